"""A query from its text to its plan and its answer."""
