"""Requests that need whole rows: records of units, sets of keys, and rows by holdout group."""

from __future__ import annotations

import numpy as np

from dpflow.core.contract.requests import (
    GroupEstimates,
    GroupMoments,
    GroupValues,
    KeySets,
    Records,
    Sets,
)
from dpflow.tables.access import sql
from dpflow.tables.bounding.sql_bounding import cut_rows, numbered
from dpflow.tables.language import expressions
from dpflow.tables.requests.query import Reading, int64

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


def key_rows(reading: Reading, request: KeySets) -> str:
    """The query of each unit's distinct keys, of which it keeps some; reads nothing."""
    by = reading.column(request.by)
    if number := sql.small_integer(by):
        rows = reading.select([f"{number} AS code"], where=[f"{by.sql} IS NOT NULL"])
    else:
        rows = reading.select(
            ["keys.code AS code"], join=f" JOIN keys ON {sql.key(by, 'group key')} = keys.key"
        )
    return numbered(cut_rows(f"SELECT DISTINCT unit, part, code FROM ({rows})", request.groups))


def key_sets(reading: Reading, request: KeySets) -> Sets:
    """Number the keys, cut."""
    query, by = key_rows(reading, request), reading.column(request.by)
    reading.cut_joined()
    if not sql.small_integer(by):
        reading.collect_keys(by)
    found = reading.arrays(query)
    codes, places = np.unique(int64(found["code"]), return_inverse=True)
    if sql.small_integer(by):
        keys = tuple(str(code - sql.SMALL_OFFSET) for code in codes.tolist())
    else:
        listed = dict(reading.connection.rows("SELECT code, text FROM keys"))
        keys = tuple(listed[code] for code in codes.tolist())
    return Sets(keys, int64(found["number"]), places.astype(np.int64))


def records(reading: Reading, request: Records) -> str:
    """The query of whole rows; each unit and part draws one number, by which the units are put in
    order.
    """
    outputs, present = [], []
    for i, name in enumerate(request.columns):
        declared = reading.table.column(name)
        if declared.public_keys is not None:
            column = reading.column(name)
            reading.check_texts(column, declared.public_keys, "key")
            listed = ", ".join(sql.literal(text) for text in declared.public_keys)
            place = (
                f"list_position([{listed}], {sql.to_text(column, sql.key(column, 'group key'))})"
            )
            outputs.append(f"CAST(coalesce({place}, 0) - 1 AS BIGINT) AS x{i}")
        else:
            outputs.append(f"{sql.grid(reading.column(name), reading.table.bounded_column(name))} AS x{i}")
            present.append(f"x{i} IS NOT NULL")
    whole = f"SELECT * FROM ({reading.select(outputs)}) WHERE {' AND '.join(present) or 'true'}"
    return numbered(cut_rows(whole, request.rows))


def grouped(reading: Reading, request: GroupValues, secret: bytes) -> str:
    """The query of rows by holdout group."""
    outputs = [_bucket(reading, request.groups, secret)]
    for i, name in enumerate(request.columns):
        outputs.append(f"{sql.number(reading.column(name), reading.table.column(name))} AS x{i}")
    return f"SELECT * EXCLUDE (unit, part) FROM ({reading.select(outputs)})"


def moments(reading: Reading, request: GroupMoments, secret: bytes) -> str:
    """The query of sums by holdout group: one GROUP BY."""
    outputs = [_bucket(reading, request.groups, secret)]
    for name, column in zip("xy", request.columns):
        outputs.append(
            f"{sql.grid(reading.column(column), reading.table.bounded_column(column))} AS {name}"
        )
    present = " AND ".join(f"{name} IS NOT NULL" for name, _ in zip("xy", request.columns))
    measures = ", ".join(
        f"CAST({_MEASURES[name]} AS DOUBLE) AS m_{name}" for name in request.measures
    )
    return f"SELECT bucket, {measures} FROM ({reading.select(outputs)}) WHERE {present} GROUP BY bucket"


def estimates(reading: Reading, request: GroupEstimates, secret: bytes) -> str:
    """The query of a user's expression by holdout group: one GROUP BY."""
    written = expressions.to_sql(
        expressions.parse(request.sql, reading.table), reading.table, reading.column
    )
    outputs = [
        _bucket(reading, request.groups, secret),
        *(f"{row} AS r{i}" for i, row in enumerate(written.rows)),
    ]
    return (
        f"SELECT bucket, {written.value} AS value FROM ({reading.select(outputs)}) GROUP BY bucket"
    )


def check_estimates(reading: Reading, request: GroupEstimates) -> None:
    """Refuse an expression whose types do not fit; with a candidate's columns it is computed over
    rows that were read.
    """
    node = expressions.parse(request.sql, reading.table)
    theirs = expressions.predicted(node, reading.table)
    if not theirs:
        estimates(reading, request, b"")
        return
    own = {name: reading.column(name).kind for name in sorted(node.columns() - theirs)}
    grouped(reading, GroupValues(request.groups, tuple(own)), b"")
    kinds = {
        name: "varchar" if kind in ("varchar", "enum") else "double" for name, kind in own.items()
    }
    expressions.over(node, reading.table, kinds | dict.fromkeys(theirs, "double"))


def _bucket(reading: Reading, groups: int, secret: bytes) -> str:
    """The holdout group of a row: a keyed hash of its unit."""
    unit = reading.column(reading.table.privacy_unit.column)
    text = sql.to_text(unit, sql.key(unit, "unit"))
    reading.parameters = [secret.hex()]
    return (
        f"CAST(md5_number_lower(? || coalesce('=' || {text}, '')) % {groups} AS BIGINT) AS bucket"
    )
