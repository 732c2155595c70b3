"""The tables of released rows, and by which rules their noise becomes intervals of what a query computes."""
