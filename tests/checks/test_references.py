"""Names in docstrings and pages are checked like links."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from checks import references

CODE = """
class Ledger:
    rows: int = 0

    def charge(self, amount):
        self.total = amount

def open_ledger(path): ...

MECHANISM = "noisy_rows"
"""
DOTTED, LAST = references.collect_names({references.ROOT / "dpflow" / "books.py": ast.parse(CODE)})


@pytest.mark.parametrize(
    ("name", "exists"),
    [
        ("Ledger", True),
        ("Ledger.charge", True),
        ("dpflow.books.Ledger.charge", True),
        ("dpflow.books.open_ledger", True),
        ("amount", True),
        ("total", True),
        ("noisy_rows", True),
        ("numpy.ndarray", True),
        ("Ledgers", False),
        ("Ledger.refund", False),
        ("dpflow.books.close_ledger", False),
        ("dpflow.book.Ledger", False),
        ("former_name", False),
    ],
)
def test_a_reference_names_something(name: str, exists: bool) -> None:
    """A renamed function, a dropped attribute and another module are found."""
    assert references._exists(name, DOTTED, LAST) is exists


@pytest.mark.slow  # `make lint` does the same
def test_nothing_in_the_repository_is_stale() -> None:
    assert list(references.find_stale()) == []


def test_modules_of_plugins_are_named_as_they_are_imported() -> None:
    path = references.ROOT / "plugins" / "dpflow-x" / "dpflow_x" / "theory" / "__init__.py"
    assert references.module_name(Path(path)) == "dpflow_x.theory"
