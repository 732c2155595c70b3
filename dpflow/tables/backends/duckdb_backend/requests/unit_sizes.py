"""Requests for how many units have so many rows, and so many groups of a column."""

from __future__ import annotations

from dpflow.core.contract.requests import SizeCounts, UnitSizes
from dpflow.late_numpy import NDArray, np
from dpflow.tables.access import sql
from dpflow.tables.access.isolated_database import as_int64
from dpflow.tables.backends.duckdb_backend.requests.query import RequestQuery


def check_request(reading: RequestQuery, request: UnitSizes) -> None:
    """Refuse columns whose type is no key; reads no row."""
    reading.select_rows([])
    for name in request.groupings:
        _groups_query(reading, name)


def answer_request(reading: RequestQuery, request: UnitSizes) -> SizeCounts:
    """Count rows and groups by unit, then units by these numbers."""
    rows = _count_units(reading, reading.select_rows([]))
    groups = [_count_units(reading, _groups_query(reading, name)) for name in request.groupings]
    return SizeCounts(rows, tuple(groups))


def _groups_query(reading: RequestQuery, name: str) -> str:
    """The query of each unit's groups, each once."""
    column = reading.column(name)
    parts = column.parts or (column,)
    keys = [f"{sql.key(part, 'group key')} AS key{i}" for i, part in enumerate(parts)]
    present = [f"{part.sql} IS NOT NULL" for part in parts]
    names = ", ".join(f"key{i}" for i in range(len(parts)))
    rows = reading.select_rows(keys, where=present)
    return f"SELECT DISTINCT unit, part, {names} FROM ({rows})"


def _count_units(reading: RequestQuery, rows: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    units = f"SELECT count(*) AS size FROM ({rows}) GROUP BY unit, part"
    arrays = reading.fetch_arrays(
        f"SELECT size, count(*) AS units FROM ({units}) GROUP BY size ORDER BY size"
    )
    return as_int64(arrays["size"]), as_int64(arrays["units"])
