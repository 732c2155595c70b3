"""Interactive sessions and the holdout gate."""
