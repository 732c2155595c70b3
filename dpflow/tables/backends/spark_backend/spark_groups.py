"""Requests per holdout group, and per unit, on Spark: rows for an estimator, moments, a user's expression.

A group is a keyed hash of the unit, so a unit's rows are all in one. The key comes as a relation of one
row, whose content stands in no plan of Spark's. Moments are added up on the cluster, as exact integers.
Rows come to the machine that runs the release, and so do those of an expression, which is computed there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpflow.core.contract.requests import GroupEstimates, GroupMoments, GroupValues, UnitScores
from dpflow.errors import PlanRefused
from dpflow.tables.access.arithmetic import SPARK
from dpflow.tables.access.isolated_database import as_int64
from dpflow.tables.backends.duckdb_backend.requests import holdout_groups
from dpflow.tables.backends.spark_backend.hash_bounding import hash_text, write_group_number
from dpflow.tables.backends.spark_backend.spark_columns import (
    decode_texts,
    write_bounded_number,
    write_grid_steps,
)
from dpflow.tables.backends.spark_backend.spark_queries import (
    SparkQuery,
    check_query,
    number_units,
)
from dpflow.tables.language import expressions


def check_rows(reading: SparkQuery, request: GroupValues | UnitScores) -> None:
    """Refuse columns that no estimator can read; reads no row."""
    check_query(reading, reading.select_rows(_number_columns(reading, request.columns)))


def group_rows(
    reading: SparkQuery, request: GroupValues, secret: bytes
) -> tuple[NDArray[np.int64], dict[str, NDArray[Any]]]:
    """The group of each row, and its columns."""
    outputs = _number_columns(reading, request.columns)
    rows = _add_bucket(reading, reading.select_rows(outputs), request.groups, secret)
    names = [f"x{i}" for i in range(len(request.columns))]
    arrays = reading.connection.fetch(rows.selectExpr("bucket", *names))
    return as_int64(arrays["bucket"]), _name_columns(request.columns, arrays)


def unit_rows(
    reading: SparkQuery, columns: Sequence[str]
) -> tuple[NDArray[np.int64], dict[str, NDArray[Any]]]:
    """The number of each row's unit, and its columns; no order of units means anything."""
    rows = reading.select_rows(_number_columns(reading, columns))
    # By the unit alone, also where its blocks are protected one by one.
    name = hash_text(reading.nonce, ("unit",), "'name'")
    names = [f"x{i}" for i in range(len(columns))]
    arrays = reading.connection.fetch(rows.selectExpr(f"{name} AS u", *names))
    return number_units(arrays["u"])[0], _name_columns(columns, arrays)


def check_moments(reading: SparkQuery, request: GroupMoments) -> None:
    """Refuse columns without bounds; reads no row."""
    check_query(reading, _select_steps(reading, request)[0])


def _select_steps(reading: SparkQuery, request: GroupMoments) -> tuple[Any, dict[str, str]]:
    """Rows with x and y in grid steps, and the sums over them by name; a pair with one half missing is in
    no sum. Raises `PlanRefused` beyond 2^30 steps, as on every backend.
    """
    outputs, columns = [], {}
    for name, column in zip("xy", request.columns):
        bounds = reading.table.bounded_column(column)
        if max(map(abs, bounds.grid_bounds())) > 2**30:
            raise PlanRefused(
                f"column {column!r} has bounds further than 2^30 steps from 0, of which no exact products are added up; take "
                f"a coarser step, or tighter bounds"
            )
        outputs.append(f"{write_grid_steps(reading.column(column), bounds)} AS {name}")
        columns[name] = SPARK.column(name, *bounds.grid_bounds())
    sums = {}
    for name, term in holdout_groups.moment_sums(request, columns).items():
        total = SPARK.sum_counts(term) if isinstance(term, str) else SPARK.sum_rows(term)
        # As texts, which are exact.
        sums[name] = f"CAST({total} AS STRING)"
    rows = reading.select_rows(outputs)
    for name in columns:
        rows = rows.where(f"{name} IS NOT NULL")
    return rows, sums


def add_moments(
    reading: SparkQuery, request: GroupMoments, secret: bytes
) -> dict[str, NDArray[np.float64]]:
    """Each measure of each group, 0 where there are no rows."""
    from pyspark.sql.connect.functions import expr

    steps, sums = _select_steps(reading, request)
    rows = _add_bucket(reading, steps, request.groups, secret).groupBy("bucket")
    arrays = reading.connection.fetch(rows.agg(*(expr(sums[name]).alias(name) for name in sums)))
    texts = {name: arrays[name].to_pylist() for name in sums}
    return holdout_groups.spread_moments(request, reading.table, as_int64(arrays["bucket"]), texts)


def check_estimates(reading: SparkQuery, request: GroupEstimates) -> None:
    """Refuse an expression whose types do not fit; reads no row."""
    node = expressions.parse_expression(request.sql, reading.table)
    theirs = expressions.candidate_columns(node, reading.table)
    fields = {name: reading.column(name) for name in sorted(node.column_names() - theirs)}
    check_rows(reading, GroupValues(request.groups, tuple(fields)))
    holdout_groups.check_distinct(node, reading.table, fields)
    kinds = {
        name: "varchar" if field.kind == "varchar" else "double" for name, field in fields.items()
    }
    holdout_groups.check_arrays(node, reading.table, kinds | dict.fromkeys(theirs, "double"))


def estimate_groups(
    reading: SparkQuery, request: GroupEstimates, secret: bytes
) -> NDArray[np.float64]:
    """An expression's number for each group, NaN where it has none."""
    node = expressions.parse_expression(request.sql, reading.table)
    values = GroupValues(request.groups, tuple(sorted(node.column_names())))
    groups, columns = group_rows(reading, values, secret)
    return holdout_groups.estimate_arrays(request, reading.table, groups, columns)


def _number_columns(reading: SparkQuery, columns: Sequence[str]) -> list[str]:
    """Columns as estimators read them, numbered: a declared one may have any name."""
    return [
        f"{write_bounded_number(reading.column(name), reading.table.column(name))} AS x{i}"
        for i, name in enumerate(columns)
    ]


def _add_bucket(reading: SparkQuery, rows: Any, groups: int, secret: bytes) -> Any:
    """Rows with the number of their group."""
    keyed = rows.crossJoin(reading.connection.make_rows({"secret": [secret.hex()]}))
    number = SPARK.column(write_group_number("secret", "unit"), 0, 2**52 - 1)
    return keyed.selectExpr("*", f"{number % groups} AS bucket")


def _name_columns(names: Sequence[str], arrays: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
    """Numbers without negative zeros, texts or None."""
    columns: dict[str, NDArray[Any]] = {}
    for i, name in enumerate(names):
        array = arrays[f"x{i}"]
        if str(array.type) == "double":
            # SQL takes -0 and 0 for one value; an estimator that divides by it would not.
            columns[name] = array.to_numpy(zero_copy_only=False) + 0.0
        else:
            columns[name] = np.empty(len(array), dtype=object)
            columns[name][:] = decode_texts(array)
    return columns
