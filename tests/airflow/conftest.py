"""Fixtures of the budget page, for Airflow's tests of it."""

from budget_books import books, filled_books

__all__ = ["books", "filled_books"]
