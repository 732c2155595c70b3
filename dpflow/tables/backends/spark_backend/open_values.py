"""Values without declared bounds on Spark, for draws that ask in rounds.

The cluster truncates contributions. What a unit keeps comes to the machine that runs the release, with a
hash of its unit, and there it is asked in rounds as a column of a file is
(`dpflow.tables.backends.duckdb_backend.requests.unbounded_values`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpflow.core.contract.requests import OpenColumn, PublicSize, UnboundedValues
from dpflow.tables.access import isolated_database, sql
from dpflow.tables.access.arithmetic import stretch_hash
from dpflow.tables.access.isolated_database import as_int64
from dpflow.tables.access.sql import Field
from dpflow.tables.backends.duckdb_backend.requests.unbounded_values import TableColumn
from dpflow.tables.backends.spark_backend.hash_bounding import write_cell_number
from dpflow.tables.backends.spark_backend.spark_columns import write_open_number
from dpflow.tables.backends.spark_backend.spark_queries import SparkQuery, check_query


@dataclass(frozen=True)
class KeptValues:
    """What all units keep: of each value its group, its unit's hash of 52 bits, and the value; and the
    public size of the only group, if there is one.
    """

    codes: NDArray[np.int64] = field(repr=False)
    hashes: NDArray[np.int64] = field(repr=False)
    values: NDArray[Any] = field(repr=False)
    size: PublicSize | None


def check_values(reading: SparkQuery, request: UnboundedValues) -> None:
    """Refuse keys that the column cannot hold, and a column that is no number; reads no row."""
    reading.check_keys(request.by, request.keys)
    check_query(reading, reading.select_rows([_write_value(reading, request)]))


def keep_values(reading: SparkQuery, request: UnboundedValues) -> KeptValues:
    """Truncate, and fetch what is kept."""
    column = reading.column(request.column)
    keys = ("",) if request.by is None else request.keys
    rows = reading.with_codes(request.by, keys, [_write_value(reading, request)])
    rows = rows.where("v IS NOT NULL")
    if column.is_float:
        rows = rows.where("NOT isnan(v)")
    bounds = reading.grouped_bounds(request)
    bounded = bounds.keep_rows(rows, ["v"])
    # Of a unit and group, and fresh: which values are in a sample is decided by units alone.
    number = write_cell_number(reading.sample_nonce, reading.owners, "code", "'sample'")
    arrays = reading.connection.fetch(bounded.selectExpr("code", f"{number} AS h", "v"))
    values = arrays["v"].to_numpy(zero_copy_only=False)
    size = None if request.by is not None else reading.public_size(request.rows_per_group)
    return KeptValues(
        as_int64(arrays["code"]), as_int64(arrays["h"]), _convert_numbers(column, values), size
    )


def _write_value(reading: SparkQuery, request: UnboundedValues) -> str:
    declared = reading.table.column(request.column)
    return f"{write_open_number(reading.column(request.column), declared)} AS v"


def _convert_numbers(column: Field, values: NDArray[Any]) -> NDArray[Any]:
    """Integers as doubles where those hold every value of the type, and times rounded down to one."""
    if column.is_float or sql.has_exact_integers(column):
        return values
    near = values.astype(np.float64)
    # Compared as integers; 2^63 is none.
    whole = np.where(near < 2.0**63, near, 0.0).astype(np.int64)
    return np.where((near >= 2.0**63) | (whole > values), np.nextafter(near, -np.inf), near)


@contextmanager
def open_column(
    reading: SparkQuery, request: UnboundedValues, kept: KeptValues
) -> Iterator[OpenColumn]:
    """The column of what was kept, in a session of DuckDB's in memory."""
    arrays = [kept.codes, kept.hashes, kept.values]
    with isolated_database.open_arrays(arrays, reading.connection.what) as connection:
        columns = f"c0 AS code, {stretch_hash('c1')} AS h, c2 AS x"
        connection.execute(f"CREATE TEMP VIEW kept AS SELECT {columns} FROM given")  # noqa: S608
        column, size = reading.column(request.column), kept.size
        yield TableColumn(connection, column, request, reading.count_units, lambda _: size)
