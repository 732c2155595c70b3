"""The append-only history: the chain of entries, and the anchor outside the database."""
