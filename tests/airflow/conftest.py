"""Fixtures of the budget page and of real runs, for Airflow's tests of them."""

from airflow_runs import airflow_database
from budget_books import books, filled_books

__all__ = ["airflow_database", "books", "filled_books"]
