"""Contribution bounding, in two implementations: by SQL and by sorting."""
