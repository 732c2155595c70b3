"""Tiny private tables, made with duckdb directly."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from duckdb_files import duckdb_file

from dpflow.core.contract.declaration import Table

Maker = Callable[..., Table]

#: Twenty aircraft, two flights each, on the first of January; delays 0..19, carriers AA and UA.
GOOD = """
    SELECT 'N' || (i % 20) AS tailnum, DATE '2013-01-01' AS day, (i % 20)::DOUBLE AS delay, ['AA', 'UA'][i % 2 + 1] AS carrier
    FROM range(40) t(i)
"""


@pytest.fixture
def make(tmp_path: Path) -> Maker:
    """Writes rows (a SELECT) to a file and returns its declaration; keywords replace parts of the
    declaration.
    """

    def build(rows: str = GOOD, **changes: Any) -> Table:
        path = tmp_path / "flights.duckdb"
        with duckdb_file(path) as connection:
            connection.execute(f"CREATE TABLE flights AS {rows}")
        declared: dict[str, Any] = {
            "name": "flights",
            "database": path,
            "privacy_unit": {"column": "tailnum"},
            "block": "day",
            "contribution_bounds": {"rows": 5},
            "columns": {
                "delay": {"lower": -60, "upper": 180},
                "carrier": {"public_keys": ["AA", "UA", "DL"]},
            },
        }
        return Table.model_validate(declared | changes)

    return build
