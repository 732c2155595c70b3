"""What the pages' tests share."""

from browser_tools import browser_tools
from budget_books import books, filled_books

__all__ = ["books", "browser_tools", "filled_books"]
