"""A release from request to receipt."""
