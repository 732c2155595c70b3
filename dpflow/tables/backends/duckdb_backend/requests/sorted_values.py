"""Requests for the distinct values of a bounded column, with their multiplicities."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dpflow.core.contract.columns import Column
from dpflow.core.contract.requests import SortedValues, ValueCounts
from dpflow.late_numpy import NDArray, np
from dpflow.tables.access import sql
from dpflow.tables.backends.duckdb_backend.bounding import dispatch
from dpflow.tables.backends.duckdb_backend.bounding.sort_bounding import NumberedColumn
from dpflow.tables.backends.duckdb_backend.bounding.sql_bounding import Truncation, Value
from dpflow.tables.backends.duckdb_backend.requests.public_size import find_public_size
from dpflow.tables.backends.duckdb_backend.requests.query import RequestQuery


def check_request(reading: RequestQuery, request: SortedValues) -> None:
    """Refuse keys that the column cannot hold, and a column without bounds; reads no row."""
    reading.check_keys(request)
    truncate_request(reading, request)


def offset_of(declared: Column) -> int:
    """What values are read above, so that a BIGINT holds them: 0 but for a range that needs UBIGINT."""
    return 2**63 if declared.grid_bounds()[1] >= 2**63 else 0


def truncate_request(reading: RequestQuery, request: SortedValues) -> tuple[Truncation, Value]:
    """How the values of a column are truncated, and what they can be; reads nothing."""
    declared = reading.table.bounded_column(request.column)
    above = offset_of(declared)
    low, high = declared.grid_bounds()
    value = Value(low - above, high - above, 0)
    output = f"{sql.write_grid_steps(reading.column(request.column), declared, above=above)} AS v0"
    rows = reading.in_groups(request, [output])
    return reading.truncate(request, rows, (value,), len(request.keys)), value


def answer_request(reading: RequestQuery, request: SortedValues) -> ValueCounts:
    """Bound contributions, count equal values."""
    truncation, value = truncate_request(reading, request)
    truncation = replace(truncation, most_rows=reading.most_rows())
    reading.bound_joins()
    if request.by is not None:
        reading.number_keys(reading.column(request.by), request.keys)
    codes = NumberedColumn("code", 0, len(request.keys))
    groups, signed, counts = dispatch.bounded_values(reading, truncation, value, codes)
    values: NDArray[Any] = signed
    if offset_of(reading.table.bounded_column(request.column)):
        # Adds 2^63 modulo 2^64: what a UBIGINT holds is above 0.
        values = signed.view(np.uint64) ^ np.uint64(2**63)
    if request.by is not None:
        return ValueCounts(values, counts, groups)
    size = find_public_size(
        reading,
        [request.column],
        request.rows_per_group,
        size=int(counts.sum()),
    )
    return ValueCounts(values, counts, public_size=size)
