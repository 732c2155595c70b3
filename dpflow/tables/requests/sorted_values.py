"""Requests for the distinct values of a bounded column, with their multiplicities."""

from __future__ import annotations

from dataclasses import replace

from dpflow.core.contract.requests import SortedValues, ValueCounts
from dpflow.tables.access import sql
from dpflow.tables.bounding import dispatch
from dpflow.tables.bounding.sort_bounding import NumberedColumn
from dpflow.tables.bounding.sql_bounding import Truncation, Value
from dpflow.tables.requests.public_size import find_public_size
from dpflow.tables.requests.query import RequestQuery


def check_request(reading: RequestQuery, request: SortedValues) -> None:
    """Refuse keys that the column cannot hold, and a column without bounds; reads no row."""
    reading.check_keys(request)
    truncate_request(reading, request)


def truncate_request(reading: RequestQuery, request: SortedValues) -> tuple[Truncation, Value]:
    """How the values of a column are truncated, and what they can be; reads nothing."""
    declared = reading.table.bounded_column(request.column)
    value = Value(*declared.grid_bounds(), 0)
    output = f"{sql.grid_steps(reading.column(request.column), declared)} AS v0"
    rows, groups = reading.in_groups(request, [output])
    size, unit = len(request.keys), reading.protected_columns
    return Truncation(
        rows, (value,), request.rows_per_group, groups, size, unit, salt=reading.salt
    ), value


def answer_request(reading: RequestQuery, request: SortedValues) -> ValueCounts:
    """Bound contributions, count equal values."""
    truncation, value = truncate_request(reading, request)
    truncation = replace(truncation, most_rows=reading.most_rows())
    reading.bound_joins()
    if request.by is not None:
        reading.number_keys(reading.column(request.by), request.keys)
    codes = NumberedColumn("code", 0, len(request.keys))
    groups, values, counts = dispatch.bounded_values(reading, truncation, value, codes)
    if request.by is not None:
        return ValueCounts(values, counts, groups)
    size = find_public_size(
        reading,
        [request.column],
        request.rows_per_group,
        size=int(counts.sum()),
        missing_are_values=True,
    )
    return ValueCounts(values, counts, public_size=size)
