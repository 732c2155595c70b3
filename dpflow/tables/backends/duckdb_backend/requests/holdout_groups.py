"""Requests per holdout group: rows for an estimator, moments, and a user's expression.

A group is a keyed hash of the unit, so a unit's rows are all in one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpflow.core.contract.declaration import Table
from dpflow.core.contract.requests import (
    GroupEstimates,
    GroupMoments,
    GroupValues,
    UnitScores,
)
from dpflow.extras import require_extra
from dpflow.tables.access import sandbox, sql
from dpflow.tables.access.sandbox import as_int64
from dpflow.tables.backends.duckdb_backend.requests.query import RequestQuery
from dpflow.tables.language import aggregate_rendering, expressions
from dpflow.tables.language.nodes import Node

#: Measures of `GroupMoments`, in grid steps. The difference of products is exact before it becomes
#: a double.
_MEASURES = {
    "n": "count(*)",
    "x": "sum(x)",
    "equal": "count_if(x = y)",
    "xx": "CAST(count(*) AS HUGEINT) * sum(x * x) - sum(x) * sum(x)",
    "yy": "CAST(count(*) AS HUGEINT) * sum(y * y) - sum(y) * sum(y)",
    "xy": "CAST(count(*) AS HUGEINT) * sum(x * y) - sum(x) * sum(y)",
}


def check_values(reading: RequestQuery, request: GroupValues) -> None:
    """Refuse columns that no estimator can read; reads no row."""
    rows_query(reading, request, b"")


def check_moments(reading: RequestQuery, request: GroupMoments) -> None:
    """Refuse columns without bounds; reads no row."""
    moments_query(reading, request, b"")


def check_scores(reading: RequestQuery, request: UnitScores) -> None:
    """Refuse columns that no estimator can read; reads no row."""
    unit_rows_query(reading, request.columns)


def rows_query(reading: RequestQuery, request: GroupValues, secret: bytes) -> str:
    """The query of rows by holdout group."""
    outputs = [
        _bucket_column(reading, request.groups, secret),
        *_number_columns(reading, request.columns),
    ]
    # Estimators must not see whose a row is.
    return f"SELECT * EXCLUDE (unit, part) FROM ({reading.select_rows(outputs)})"


def unit_rows_query(reading: RequestQuery, columns: Sequence[str]) -> str:
    """The query of rows by unit, numbered from 0 in the order of the units' keys: a place, which
    tells who it is no more than a position does.
    """
    rows = reading.select_rows(_number_columns(reading, columns))
    number = "CAST(dense_rank() OVER (ORDER BY unit) - 1 AS BIGINT) AS bucket"
    return f"SELECT {number}, * EXCLUDE (unit, part) FROM ({rows})"


def _number_columns(reading: RequestQuery, columns: Sequence[str]) -> list[str]:
    """Columns as estimators read them, numbered: a declared one may have any name."""
    return [
        f"{sql.bounded_number(reading.column(name), reading.table.column(name))} AS x{i}"
        for i, name in enumerate(columns)
    ]


def moments_query(reading: RequestQuery, request: GroupMoments, secret: bytes) -> str:
    """The query of sums by holdout group: one GROUP BY."""
    outputs = [_bucket_column(reading, request.groups, secret)]
    for name, column in zip("xy", request.columns):
        outputs.append(
            f"{sql.write_grid_steps(reading.column(column), reading.table.bounded_column(column))} AS {name}"
        )
    # A pair with one half missing is in no sum, or n would not be the number of products.
    present = " AND ".join(f"{name} IS NOT NULL" for name, _ in zip("xy", request.columns))
    measures = ", ".join(
        f"CAST({_MEASURES[name]} AS DOUBLE) AS m_{name}" for name in request.measures
    )
    return f"SELECT bucket, {measures} FROM ({reading.select_rows(outputs)}) WHERE {present} GROUP BY bucket"


def units_query(reading: RequestQuery, columns: Sequence[str]) -> str:
    """The query of the number of units and rows in all groups, and of rows that have a value in
    every one of some columns.
    """
    fields = [reading.column(name) for name in columns]
    outputs = [
        f"{sql.bounded_number(field, reading.table.column(name))} AS x{i}"
        for i, (field, name) in enumerate(zip(fields, columns))
    ]
    present = [
        f"x{i} IS NOT NULL" if field.kind in ("varchar", "enum") else f"NOT isnan(x{i})"
        for i, field in enumerate(fields)
    ]
    complete = f"count_if({' AND '.join(present) or 'true'}) AS complete"
    return f"SELECT count(DISTINCT unit) AS units, count(*) AS n_rows, {complete} FROM ({reading.select_rows(outputs)})"


def estimates_query(reading: RequestQuery, request: GroupEstimates, secret: bytes) -> str:
    """The query of a user's expression by holdout group: one GROUP BY."""
    written = aggregate_rendering.render_expression(
        expressions.parse_expression(request.sql, reading.table), reading.table, reading.column
    )
    outputs = [
        _bucket_column(reading, request.groups, secret),
        *(f"{row} AS r{i}" for i, row in enumerate(written.rows)),
    ]
    return f"SELECT bucket, {written.value} AS value FROM ({reading.select_rows(outputs)}) GROUP BY bucket"


def check_estimates(reading: RequestQuery, request: GroupEstimates) -> None:
    """Refuse an expression whose types do not fit; with a candidate's columns it is computed over
    rows that were read.
    """
    node = expressions.parse_expression(request.sql, reading.table)
    theirs = expressions.candidate_columns(node, reading.table)
    if not theirs:
        estimates_query(reading, request, b"")
        return
    kinds_read = {name: reading.column(name).kind for name in sorted(node.column_names() - theirs)}
    rows_query(reading, GroupValues(request.groups, tuple(kinds_read)), b"")
    kinds = {
        name: "varchar" if kind in ("varchar", "enum") else "double"
        for name, kind in kinds_read.items()
    }
    check_arrays(node, reading.table, kinds | dict.fromkeys(theirs, "double"))


def check_arrays(node: Node, table: Table, kinds: Mapping[str, str]) -> None:
    """Refuse what `estimate_arrays` could not compute over arrays of these kinds."""
    # `sandbox.open_arrays` needs it, and inside a draw its absence would be the answer none.
    with require_extra("gate", "an expression over predictions"):
        import pandas  # noqa: F401
    _arrays_query(node, table, kinds)


def estimate_arrays(
    request: GroupEstimates,
    table: Table,
    groups: NDArray[np.int64],
    columns: Mapping[str, NDArray[Any]],
) -> NDArray[np.float64]:
    """An expression's number for each group over rows that were read: the group of each, and its
    columns.
    """
    node = expressions.parse_expression(request.sql, table)
    # `grouped_rows` gives numbers as float64 and texts as objects.
    kinds = {
        name: "varchar" if values.dtype == object else "double" for name, values in columns.items()
    }
    query, what = _arrays_query(node, table, kinds), f"table {table.name!r}"
    with sandbox.open_arrays([groups, *columns.values()], what) as connection:
        return spread_groups(request.groups, connection.fetch_arrays(query))


def _arrays_query(node: Node, table: Table, kinds: Mapping[str, str]) -> str:
    """The query of an expression's ``value`` by ``bucket`` over the relation ``given`` of
    `dpflow.tables.access.sandbox.open_arrays`.

    Args:
        kinds: of each array after the groups' numbers, the column that it is, and "double" or
        "varchar".
    """
    fields = {
        name: sql.Field(name, kind, kind.upper(), reference=f"t.c{i}")
        for i, (name, kind) in enumerate(kinds.items(), 1)
    }
    parts = aggregate_rendering.render_expression(node, table, fields.__getitem__)
    rows = ", ".join(["t.c0 AS bucket", *(f"{row} AS r{i}" for i, row in enumerate(parts.rows))])
    return f"SELECT bucket, {parts.value} AS value FROM (SELECT {rows} FROM given AS t) GROUP BY bucket"


def _bucket_column(reading: RequestQuery, groups: int, secret: bytes) -> str:
    """The holdout group of a row: a keyed hash of its unit."""
    unit = reading.column(reading.table.privacy_unit.column)
    text = sql.key_as_text(unit, sql.key(unit, "unit"))
    # A parameter, so that the secret stands in no query text; '=' keeps an empty text apart from
    # NULL.
    reading.parameters = [secret.hex()]
    return (
        f"CAST(md5_number_lower(? || coalesce('=' || {text}, '')) % {groups} AS BIGINT) AS bucket"
    )


def spread_groups(groups: int, arrays: Mapping[str, Any]) -> NDArray[np.float64]:
    """Values by their group's number, NaN for groups that have none."""
    answer = np.full(groups, np.nan)
    # NULL comes masked; NaN is what the estimator's declared default stands in for.
    answer[as_int64(arrays["bucket"])] = np.ma.filled(
        np.ma.asarray(arrays["value"], dtype=np.float64), np.nan
    )
    return answer
