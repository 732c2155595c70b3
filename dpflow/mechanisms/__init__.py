"""Built-in mechanisms, one file each. They register through the same hooks as anybody's plugin."""
