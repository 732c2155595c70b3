"""Fixtures of the page's tests."""

from budget_books import books, filled_books, visit

__all__ = ["books", "filled_books", "visit"]
