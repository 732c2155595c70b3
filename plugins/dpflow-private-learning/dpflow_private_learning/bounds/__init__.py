"""How many rows each method needs, and what no method can do: formulas without data."""
