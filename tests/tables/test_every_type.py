"""Every type of DuckDB's, in each role, in a DuckDB file and in listed Parquet files."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest
from every_type import (
    NO_COLUMNS,
    ROLES,
    TYPES,
    Store,
    check_type,
    store_in_database,
    store_in_lists,
)

STORES: dict[str, Store] = {"table": store_in_database, "files": store_in_lists}


def test_no_type_is_left_out() -> None:
    """A new one of DuckDB's has to be looked at."""
    ends = {"INTEGER[]": "LIST", "INTEGER[2]": "ARRAY", "JSON": "VARCHAR"}
    judged = {ends.get(kind, kind.partition("(")[0]) for kind in TYPES}
    listed = duckdb.sql("SELECT DISTINCT logical_type FROM duckdb_types()").fetchall()
    assert judged | NO_COLUMNS == {str(name) for (name,) in listed}


@pytest.mark.parametrize("kind", TYPES)
def test_a_part_of_all_roles(kind: str, tmp_path: Path) -> None:
    """Each type in two roles of the twelve, others each time."""
    first = list(TYPES).index(kind)
    roles = [*ROLES][first % 6 :: 6]
    check_type(kind, STORES["files" if first % 2 else "table"], tmp_path, roles)


@pytest.mark.slow
@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("kind", TYPES)
def test_every_role(kind: str, store: str, tmp_path: Path) -> None:
    """All of them."""
    check_type(kind, STORES[store], tmp_path, [*ROLES])
