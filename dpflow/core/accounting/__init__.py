"""Privacy costs: exact amounts, events, and the filters and accountants that add them up."""
