"""The world of SQL: one for questions that change nothing, and one for each test that spends."""

from __future__ import annotations

from pathlib import Path

import pytest
from sql_world import World


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("sql"))


@pytest.fixture
def fresh(tmp_path: Path) -> World:
    """A ledger that nobody has asked yet."""
    return World(tmp_path)
