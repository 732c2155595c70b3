"""Tiny private tables, made with duckdb directly."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from duckdb_files import duckdb_file

from dpflow.core.contract.declaration import Table
from dpflow.tables.backends.duckdb_backend.bounding.sort_bounding import PackedRows
from dpflow.tables.private import PrivateTable

Maker = Callable[..., PrivateTable]


@pytest.fixture(params=["sorted", "queried"])
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Contributions are bounded by sorting where rows fit in words, or always by queries."""
    if request.param == "queried":
        monkeypatch.setattr(PackedRows, "fit_in_words", lambda self: False)


@pytest.fixture
def make(tmp_path: Path) -> Maker:
    """Run statements on a fresh file and declare its table ``data``; keywords replace parts of the
    declaration.
    """
    path, made = tmp_path / "private.duckdb", [0]

    def build(
        *statements: str, columns: dict[str, Any] | None = None, **changes: Any
    ) -> PrivateTable:
        made[0] += 1
        file = path.with_stem(f"private{made[0]}")
        with duckdb_file(file) as connection:
            for statement in statements:
                connection.execute(statement)
        declared: dict[str, Any] = {
            "name": "data",
            "database": file,
            "privacy_unit": {"column": "u"},
            "contribution_bounds": {"rows": 100},
            "columns": columns
            or {"v": {"lower": 0, "upper": 10}, "k": {"public_keys": ["a", "b", "c"]}},
        }
        return PrivateTable(Table.model_validate(declared | changes))

    return build
