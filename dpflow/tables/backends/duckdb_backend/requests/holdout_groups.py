"""Requests per holdout group: rows for an estimator, moments, and a user's expression.

A group is a keyed hash of the unit, so a unit's rows are all in one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from dpflow.core.contract.declaration import Table
from dpflow.core.contract.requests import (
    GroupEstimates,
    GroupMoments,
    GroupValues,
    UnitScores,
)
from dpflow.errors import PlanRefused
from dpflow.extras import require_extra
from dpflow.late_numpy import NDArray, np
from dpflow.tables.access import isolated_database, sql
from dpflow.tables.access.arithmetic import DUCKDB, Whole, hash_remainder, place_from_zero
from dpflow.tables.access.isolated_database import as_int64
from dpflow.tables.backends.duckdb_backend.requests.query import RequestQuery
from dpflow.tables.language import aggregate_rendering, expressions
from dpflow.tables.language.nodes import Node


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
    number = place_from_zero("dense_rank() OVER (ORDER BY unit)")
    return f"SELECT {number} AS bucket, * EXCLUDE (unit, part) FROM ({rows})"


def _number_columns(reading: RequestQuery, columns: Sequence[str]) -> list[str]:
    """Columns as estimators read them, numbered: a declared one may have any name."""
    return [
        f"{sql.bounded_number(reading.column(name), reading.table.column(name))} AS x{i}"
        for i, name in enumerate(columns)
    ]


def moments_query(reading: RequestQuery, request: GroupMoments, secret: bytes) -> str:
    """The query of exact sums by holdout group: one GROUP BY, texts named as `moment_sums` says.

    Raises `PlanRefused` where no integer type holds a sum of products.
    """
    outputs, columns = [_bucket_column(reading, request.groups, secret)], {}
    for name, column in zip("xy", request.columns):
        bounds = reading.table.bounded_column(column)
        steps = sql.write_grid_steps(reading.column(column), bounds)
        outputs.append(f"{steps} AS {name}")
        columns[name] = DUCKDB.column(name, *bounds.grid_bounds())
    # A pair with one half missing is in no sum, or n would not be the number of products.
    present = " AND ".join(f"{name} IS NOT NULL" for name in columns)
    sums = ["bucket"]
    for name, terms in moment_sums(request, columns).items():
        total = DUCKDB.sum_counts(terms) if isinstance(terms, str) else DUCKDB.sum_rows(terms)
        sums.append(f"CAST({total} AS VARCHAR) AS {name}")
    return f"SELECT {', '.join(sums)} FROM ({reading.select_rows(outputs)}) WHERE {present} GROUP BY bucket"


def moment_sums(request: GroupMoments, columns: Mapping[str, Whole]) -> dict[str, Whole | str]:
    """What is added up over the rows of a group, by name: the columns x and y, their products, and as
    texts of 0 or 1 the rows themselves and those in which both columns are equal.

    Raises `PlanRefused` for a measure of y where there is one column only.
    """
    if len(columns) < 2 and {"equal", "yy", "xy"} & set(request.measures):
        raise PlanRefused(
            f"the measures {', '.join(request.measures)} compare two columns, and the request has one; "
            f"name two different columns"
        )
    needed = {"n", *request.measures} | {
        letter for name in request.measures for letter in name if len(name) == 2
    }
    terms: dict[str, Whole | str] = {"n": "1", "equal": "CASE WHEN x = y THEN 1 ELSE 0 END"}
    terms |= columns
    for name in needed - set(terms):
        left, right = (columns[letter] for letter in name)
        terms[name] = left.square() if name[0] == name[1] else left * right
    return {f"s_{name}": terms[name] for name in sorted(needed)}


def spread_moments(
    request: GroupMoments,
    table: Table,
    buckets: NDArray[np.int64],
    texts: Mapping[str, Sequence[str]],
) -> dict[str, NDArray[np.float64]]:
    """Each measure of each group, 0 where there are no rows; exact until it becomes a float.

    Args:
        buckets: groups that have rows.
        texts: their sums in grid steps, named as `moment_sums` says.
    """
    exact = {name: [int(text) for text in values] for name, values in texts.items()}
    steps = [table.column(name).step for name in request.columns]
    units: dict[str, Any] = {"n": 1, "equal": 1, "x": steps[0], "xx": steps[0] ** 2}
    units |= {"yy": steps[-1] ** 2, "xy": steps[0] * steps[-1]}
    answer = {}
    for name in request.measures:
        numbers = exact[f"s_{name}"]
        if len(name) == 2:
            sums = (exact[f"s_{one}"] for one in ("n", name, name[0], name[1]))
            numbers = [n * product - x * y for n, product, x, y in zip(*sums)]
        answer[name] = np.zeros(request.groups)
        answer[name][buckets] = [float(units[name]) * float(number) for number in numbers]
    return answer


def units_query(reading: RequestQuery, columns: Sequence[str]) -> str:
    """The query of the number of units and rows in all groups, and of rows that have a value in
    every one of some columns.
    """
    outputs, kinds = _number_columns(reading, columns), [reading.column(n).kind for n in columns]
    present = [
        f"x{i} IS NOT NULL" if kind in ("varchar", "enum") else f"NOT isnan(x{i})"
        for i, kind in enumerate(kinds)
    ]
    # DuckDB's count_if is NULL where there are no rows.
    complete = f"count(*) FILTER (WHERE {' AND '.join(present) or 'true'}) AS complete"
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
    fields = {name: reading.column(name) for name in sorted(node.column_names() - theirs)}
    check_distinct(node, table=reading.table, fields=fields)
    kinds_read = {name: field.kind for name, field in fields.items()}
    rows_query(reading, GroupValues(request.groups, tuple(kinds_read)), b"")
    kinds = {
        name: "varchar" if kind in ("varchar", "enum") else "double"
        for name, kind in kinds_read.items()
    }
    check_arrays(node, reading.table, kinds | dict.fromkeys(theirs, "double"))


def check_distinct(node: Node, table: Table, fields: Mapping[str, sql.Field]) -> None:
    """Refuse to count different values of a column whose values a double does not tell apart: rows that
    are read hold doubles. Raises `PlanRefused`.
    """
    for name in node.column_names() & set(fields) if node.op == "count distinct" else ():
        field, declared = fields[name], table.column(name)
        ends = [end for end in (declared.lower, declared.upper) if end is not None]
        largest = max(map(abs, ends)) * 10**field.scale if ends else math.inf
        if sql.has_exact_integers(field) and largest > 2**53:
            raise PlanRefused(
                f"{node} counts different values of {name!r}, a {field.type.upper()}, and here numbers are read as doubles, "
                f"which hold no more than 53 bits; declare bounds within 2^53 of 0, or count rows"
            )
    for arg in node.args:
        if isinstance(arg, Node):
            check_distinct(arg, table, fields)


def check_arrays(node: Node, table: Table, kinds: Mapping[str, str]) -> None:
    """Refuse what `estimate_arrays` could not compute over arrays of these kinds."""
    # `isolated_database.open_arrays` needs it, and inside a draw its absence would be the answer none.
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
    with isolated_database.open_arrays([groups, *columns.values()], what) as connection:
        return spread_groups(request.groups, connection.fetch_arrays(query))


def _arrays_query(node: Node, table: Table, kinds: Mapping[str, str]) -> str:
    """The query of an expression's ``value`` by ``bucket`` over the relation ``given`` of
    `dpflow.tables.access.isolated_database.open_arrays`.

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
    digest = f"md5_number_lower(? || coalesce('=' || {text}, ''))"
    return f"{hash_remainder(digest, groups)} AS bucket"


def spread_groups(groups: int, arrays: Mapping[str, Any]) -> NDArray[np.float64]:
    """Values by their group's number, NaN for groups that have none."""
    answer = np.full(groups, np.nan)
    # NULL comes masked; NaN is what the estimator's declared default stands in for.
    answer[as_int64(arrays["bucket"])] = np.ma.filled(
        np.ma.asarray(arrays["value"], dtype=np.float64), np.nan
    )
    return answer
