"""The world of SQL: one for questions that change nothing, and one for each test that spends."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from sql_twins import DECLARATION
from sql_world import World

from dpflow.core.contract.declaration import Table
from dpflow.tables.access.declarations import load_table


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("sql"))


@pytest.fixture
def fresh(tmp_path: Path) -> World:
    """A ledger that nobody has asked yet."""
    return World(tmp_path)


@pytest.fixture(scope="module")
def visits_table(tmp_path_factory: pytest.TempPathFactory) -> Table:
    folder = tmp_path_factory.mktemp("random")
    (folder / "visits.yml").write_text(yaml.safe_dump(DECLARATION))
    return load_table(folder / "visits.yml")
