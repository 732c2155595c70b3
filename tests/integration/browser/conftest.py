"""A browser for all pages: Debian's chromium, by playwright-core."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from budget_books import books, filled_books

__all__ = ["books", "filled_books"]


@pytest.fixture(scope="session")
def browser_tools(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with playwright-core."""
    place = tmp_path_factory.mktemp("tools")
    subprocess.run(
        ["npm", "install", "--silent", "--prefix", str(place), "playwright-core@1.64.1"], check=True
    )
    return place
