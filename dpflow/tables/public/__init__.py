"""Public tables: published releases, query points, predictions, and loading a private file."""
