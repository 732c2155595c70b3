"""Questions with known answers, which a server answers before any row is read.

They are asked of a relation, by the very expressions that read rows: a server that computes one of them
otherwise would bound or group rows otherwise, without an error. What is tried is what exactness rests
on; servers are many, and a server that passes is not proved right.
"""

from __future__ import annotations

import datetime as dt
import math
import struct
from collections import Counter
from collections.abc import Callable, Iterable
from fractions import Fraction
from typing import Any

from dpflow.core.contract.columns import Column
from dpflow.core.contract.declaration import Table
from dpflow.errors import TableUnreadable
from dpflow.tables.backends.spark_backend.hash_bounding import (
    SummedColumn,
    UnitBounds,
    find_cell_fraction,
    write_cell_number,
)
from dpflow.tables.backends.spark_backend.spark_columns import (
    describe_field,
    key_text,
    unit_text,
    write_grid_steps,
)
from dpflow.tables.backends.spark_backend.spark_connection import SparkConnection
from dpflow.tables.backends.spark_backend.spark_rendering import SparkRenderer
from dpflow.tables.language.conditions import parse_condition

_NUMBERS = [0.0, -0.0, math.nan, math.inf, -math.inf, 0.25, -0.25, 0.75, 1e300, 5e-324, None]
_STEPS = [
    0,
    0,
    1,
    40,
    -40,
    1,
    -1,
    2,
    40,
    0,
    1,
]  # of half a unit, between -20 and 20, missing at half
_WHOLES = [2**63 - 1, -(2**63), 7, -7, 8, -8, None]
_SEVENTHS = [9, -9, 2, -2, 3, -3, None]  # steps of three: 7 is 2.33, 8 is 2.67
_TEXTS = ["", "a", "A", "Z", "é", "\uffee", "😀", "it's", "\\", "n", None]
_TIMES = [dt.datetime(1969, 12, 31, 12), dt.datetime(2020, 2, 29, 23, 59, 59, 999999)]
_DECIMALS = ["99.99", "-0.25", "0.24"]
#: NaN of both signs, quiet and signalling, with payloads.
_NANS = [
    *(0x7FF8000000000000, 0xFFF8000000000000, 0x7FF0000000000001, 0xFFF0000000000001),
    *(0x7FF8000000000001, 0xFFFFFFFFFFFFFFFF),
]
_BESIDE_NAN = [-1.0, -0.0, 0.0, 0.5, 4.0, 1000.0]
#: How many of both fulfil a condition.
_NAN_COUNTS = {
    "v IS NULL": 6,
    "sqrt(v) < 1000": 5,
    "sqrt(v) IS NULL": 7,
    "exp(v) - exp(v) = 0": 5,
    "coalesce(sqrt(v), 2) = 2": 8,
    "NOT ln(v) > 0": 3,
    "least(v, 1) = 1": 8,
    "v = 0": 2,
    "v IN (0, 4)": 3,
    "v BETWEEN 0 AND 1": 3,
    "4 / v > 0": 3,
    "4 % v >= 0": 4,
    "bucket(v, 2) = 0": 3,
}
#: The same of -2^63, -2^63 + 1, -1, 0 and 2^63 - 1.
_END_COUNTS = {
    "i > 0": 1,
    "-i > 0": 3,
    "i - 1 < 0": 4,
    "i * i >= 0": 5,
    "i % 7 IS NOT NULL": 5,
    "CAST(i AS VARCHAR) = '-9223372036854775808'": 1,
    "CAST(i AS DOUBLE) >= 9223372036854775807": 1,
    "bucket(i, 7) IS NULL": 1,
    "bucket(i, 7) = 0": 1,
}
_TIME_CONDITIONS = (
    *("year(d) IS NOT NULL", "month(d) > 0", "dayofweek(d) >= 0", "isodow(d) > 0"),
    *("date_trunc('month', d) IS NOT NULL", "date_trunc('week', d) IS NOT NULL"),
    *("CAST(d AS VARCHAR) IS NOT NULL", "CAST(d AS DATE) IS NOT NULL"),
)
_MICROSECONDS = 86_400_000_000


def check_server(connection: SparkConnection, what: str) -> None:
    """Ask. Raises `TableUnreadable` with the name of what the server answers otherwise."""
    for name, ask in CANARIES.items():
        if not ask(connection):
            raise TableUnreadable(
                f"the Spark server of {what} does not compute {name} as dpflow relies on, so no answer of it is used; "
                f"use another version of the server"
            )


def _read_numbers(connection: SparkConnection) -> bool:
    column = Column(lower=-20, upper=20, step=Fraction(1, 2), missing=Fraction(1, 2))
    return _read(connection, _NUMBERS, "double", column) == _STEPS


def _read_integers(connection: SparkConnection) -> bool:
    column = Column(lower=-27, upper=27, step=3)
    return _read(connection, _WHOLES, "bigint", column) == _SEVENTHS


def _read_times(connection: SparkConnection) -> bool:
    column = Column(lower=-(10**6), upper=10**6, step=Fraction(1, 2))
    halves = [-1, 2 * 18322]
    import pyarrow as pa

    local = pa.array(_TIMES, pa.timestamp("us"))
    zoned = pa.array(
        [moment.replace(tzinfo=dt.UTC) for moment in _TIMES], pa.timestamp("us", "UTC")
    )
    return (
        _read(connection, local, "timestamp_ntz", column) == halves
        and _read(connection, zoned, "timestamp", column) == halves
        and _read(connection, [moment.date() for moment in _TIMES], "date", column) == [-2, 36642]
    )


def _read_decimals(connection: SparkConnection) -> bool:
    rows = connection.make_rows({"t": _DECIMALS})
    typed = rows.selectExpr("CAST(t AS DECIMAL(38, 2)) AS x")
    column = Column(lower=-50, upper=50, step=Fraction(1, 4))
    steps = write_grid_steps(describe_field("x", "decimal(38,2)"), column)
    return _fetch(connection, typed.selectExpr(f"{steps} AS y")) == [200, -1, 1]


def _lose_nan(connection: SparkConnection) -> bool:
    """NaN of every kind is missing, stored and of arithmetic; -0 is 0, and division by it is missing."""
    import numpy as np

    bits = struct.pack(f"<{len(_NANS)}Q", *_NANS)
    values = np.concatenate([np.frombuffer(bits, "<f8"), _BESIDE_NAN])
    return _count(connection, {"v": values}, {"v": "double"}, _NAN_COUNTS) == list(
        _NAN_COUNTS.values()
    )


def _pass_ends(connection: SparkConnection) -> bool:
    """What lies at the end of a type is cast where a type has it, and missing elsewhere."""
    import pyarrow as pa

    ends = pa.array([-(2**63), -(2**63) + 1, -1, 0, 2**63 - 1], pa.int64())
    wide = connection.make_rows({"i": ends}).selectExpr(
        "TRY_CAST(CAST(i AS DECIMAL(38, 0)) * 1 AS BIGINT) = i AS same",
        "TRY_CAST(CAST(i AS DECIMAL(38, 0)) * 2 AS BIGINT) IS NULL AS is_beyond",
    )
    answer = connection.fetch(wide)
    return (
        answer["same"].to_pylist() == [True] * 5
        and answer["is_beyond"].to_pylist() == [True, True, False, False, True]
        and _count(connection, {"i": ends}, {"i": "bigint"}, _END_COUNTS)
        == list(_END_COUNTS.values())
    )


def _keep_far_times(connection: SparkConnection) -> bool:
    """Dates and times outside of the years 1 to 9999 have no text and no parts, and are still units that
    differ.
    """
    import pyarrow as pa

    first, last = -719162, 2932896
    days = [-(2**31), -(2**31) + 1, first - 1, first, last, last + 1, 2**31 - 1]
    near = [*(_MICROSECONDS * day for day in days[2:6]), _MICROSECONDS * (last + 1) - 1]
    times = [-(2**63) + 1, -(2**62), *near, 2**62, 2**63 - 1]
    for kind, numbers, texts in (
        ("date", pa.array(days, pa.date32()), ["0001-01-01", "9999-12-31"]),
        (
            "timestamp_ntz",
            pa.array(times, pa.timestamp("us")),
            ["0001-01-01 00:00:00", "9999-12-31 00:00:00", "9999-12-31 23:59:59.999999"],
        ),
    ):
        field = describe_field("d", kind)
        outputs = [f"{key_text(field, 'key')} AS k", f"{unit_text(field, 'unit')} AS u"]
        answer = connection.fetch(connection.make_rows({"d": numbers}).selectExpr(*outputs))
        keys, units = answer["k"].to_pylist(), answer["u"].to_pylist()
        if [key for key in keys if key is not None] != texts or len(set(units)) < len(numbers):
            return False
        parts = dict.fromkeys(_TIME_CONDITIONS, len(texts))
        if _count(connection, {"d": numbers}, {"d": kind}, parts) != list(parts.values()):
            return False
    return True


def _count(
    connection: SparkConnection,
    columns: dict[str, Any],
    kinds: dict[str, str],
    conditions: Iterable[str],
) -> list[Any]:
    """How many rows fulfil each condition of the declared language."""
    fields = {name: describe_field(name, kind) for name, kind in kinds.items()}
    declared = {
        "name": "canary",
        "database": ".",
        "privacy_unit": {"column": "u"},
        "contribution_bounds": {"rows": 1},
        "columns": {name: {} for name in columns},
    }
    table, renderer = Table.model_validate(declared), SparkRenderer(fields.__getitem__)
    outputs = [
        f"count(CASE WHEN {renderer.condition(parse_condition(text, table))} THEN 1L END) AS y{i}"
        for i, text in enumerate(conditions)
    ]
    answer = connection.fetch(connection.make_rows(columns).selectExpr(*outputs))
    return [column[0].as_py() for column in answer.values()]


def _read(connection: SparkConnection, values: Any, kind: str, column: Column) -> list[Any]:
    steps = write_grid_steps(describe_field("x", kind), column)
    return _fetch(connection, connection.make_rows({"x": values}).selectExpr(f"{steps} AS y"))


def _fetch(connection: SparkConnection, frame: Any) -> list[Any]:
    return list(connection.fetch(frame)["y"].to_pylist())


def _hash_texts(connection: SparkConnection) -> bool:
    rows = connection.make_rows({"u": _TEXTS})
    number = write_cell_number(2**64 - 1, ["u"], "CAST(7 AS BIGINT)", "'x'")
    answer = _fetch(connection, rows.selectExpr(f"CAST({number} AS DOUBLE) * {2.0**-52!r}D AS y"))
    return answer == [find_cell_fraction(2**64 - 1, [text], 7, "x") for text in _TEXTS]


def _order_texts(connection: SparkConnection) -> bool:
    texts = [text for text in _TEXTS if text is not None]
    rows = connection.make_rows({"x": texts})
    ranked = rows.selectExpr("x", "row_number() OVER (PARTITION BY 1 ORDER BY x) AS place")
    answer = connection.fetch(ranked)
    placed = dict(zip(answer["x"].to_pylist(), answer["place"].to_pylist()))
    if sorted(texts, key=str.encode) != sorted(texts, key=placed.__getitem__):
        return False
    return _fetch(connection, rows.selectExpr("count(DISTINCT x) AS y")) == [len(texts)]


def _write_keys(connection: SparkConnection) -> bool:
    import pyarrow as pa

    rows = connection.make_rows(
        {
            "b": pa.array([True]),
            "d": [dt.date(1, 1, 1)],
            "i": pa.array([-(2**63)], pa.int64()),
            "t": pa.array(_TIMES[1:], pa.timestamp("us")),
        }
    )
    kinds = {"b": "boolean", "d": "date", "i": "bigint", "t": "timestamp_ntz"}
    texts = [f"{key_text(describe_field(n, kind), 'key')} AS {n}" for n, kind in kinds.items()]
    answer = connection.fetch(rows.selectExpr(*texts))
    wanted = ["true", "0001-01-01", str(-(2**63)), "2020-02-29 23:59:59.999999"]
    return [answer[name][0].as_py() for name in kinds] == wanted


def _bound_sums(connection: SparkConnection) -> bool:
    """A unit with three groups keeps two, with five values the mean of two, and one of 10^18 is
    saturated, as a plain loop computes it; so does one whose row has no value.
    """
    import pyarrow as pa

    cells = [
        ("a", 0, -3),
        ("a", 0, 2),
        ("a", 0, 2),
        ("a", 1, 1),
        ("a", 2, -4),
        ("b", 2, 5),
        ("c", 1, None),
    ]
    units, codes, values = zip(*cells)
    rows = connection.make_rows(
        {"u": units, "code": pa.array(codes, pa.int64()), "v0": pa.array(values, pa.int64())}
    )
    bounds, column = UnitBounds(("u",), 2, 2, 5), SummedColumn("v0", -4, 5, 1)
    answer = connection.fetch(bounds.add_up(rows, [column]))
    got = {
        code: (answer["unit_count"][i].as_py(), answer["s0"][i].as_py())
        for i, code in enumerate(answer["code"].to_pylist())
    }
    numbers = {code: find_cell_fraction(5, ["a"], code) for code in (0, 1, 2)}
    chosen_cells = [("a", code) for code in sorted(numbers, key=numbers.__getitem__)[:2]]
    chosen_cells += [("b", 2), ("c", 1)]
    want: dict[int, tuple[int, int]] = {}
    for unit, code in chosen_cells:
        above = [v + 4 for u, c, v in cells if (u, c) == (unit, code) and v is not None]
        size, most = max(len(above), 1), min(len(above), 2)
        quotient, rest = divmod(sum(above), size)
        drawn = int(find_cell_fraction(5, [unit], code, 0) * size)
        total = quotient * most + (rest * most + drawn) // size - 5 * most
        count, before = want.get(code, (0, 0))
        want[code] = (count + 1, before + total)
    return got == want and _saturates(connection)


def _saturates(connection: SparkConnection) -> bool:
    import pyarrow as pa

    rows = connection.make_rows(
        {
            "u": [str(i) for i in range(9)],
            "code": pa.array([0] * 9, pa.int64()),
            "v0": pa.array([2**62] * 9, pa.int64()),
        }
    )
    answer = connection.fetch(
        UnitBounds(("u",), None, 1, 5).add_up(rows, [SummedColumn("v0", 0, 2**62, 0)])
    )
    return Counter(answer["s0"].to_pylist()) == Counter([2**62])


#: What is asked, by the words of the refusal.
CANARIES: dict[str, Callable[[SparkConnection], bool]] = {
    "doubles, NaN and infinities": _read_numbers,
    "integers": _read_integers,
    "decimals": _read_decimals,
    "times and time zones": _read_times,
    "NaN and zeros of either sign": _lose_nan,
    "casts at the ends of types": _pass_ends,
    "dates and times beyond the calendar": _keep_far_times,
    "hashes": _hash_texts,
    "the order of texts": _order_texts,
    "the texts of keys": _write_keys,
    "bounded sums": _bound_sums,
}
