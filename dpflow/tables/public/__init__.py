"""Public tables: published releases, query points, predictions, and rows that are open."""
