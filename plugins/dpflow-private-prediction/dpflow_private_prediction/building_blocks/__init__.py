"""What the mechanisms of this package share."""
