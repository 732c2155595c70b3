"""Corners of what a column can be declared as: each type's ends, with bounds there and rows at them.

A `Corner` is one declaration of a column ``x`` and the texts of its values with the numbers that they
are. A store makes relations of texts in one place that a backend reads; tables of every number of rows
from none to three are made of each corner.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import duckdb
from duckdb_files import duckdb_file

from dpflow.core.contract.declaration import Table
from dpflow.tables.loading.list_files import list_files
from dpflow.testing.backend_relations import Content

Number = Fraction | float | None
#: Relations by name; gives for each the declaration's fields that say where it is.
Store = Callable[[Mapping[str, Content]], Mapping[str, Mapping[str, Any]]]
_INT64, _UINT64 = (-(2**63), 2**63 - 1), (0, 2**64 - 1)
_DAY = 86_400_000_000


@dataclass(frozen=True)
class Corner:
    """A declared column: its type, bounds in grid steps, step, and texts of values.

    Attributes:
        kind: the type, as DuckDB names it.
        missing: what a missing value is declared to be; "skip" if it is left out.
    """

    kind: str
    low: int
    high: int
    values: tuple[tuple[str | None, Number], ...]
    step: Fraction = Fraction(1)
    missing: str = "skip"

    @property
    def name(self) -> str:
        """A name for a test."""
        return f"{self.kind} {self.low}..{self.high} step {self.step} {self.missing}"

    @property
    def column(self) -> dict[str, Any]:
        """Its declaration."""
        lower, upper = self.low * self.step, self.high * self.step
        missing = {} if self.missing == "skip" else {"missing": str(lower)}
        return {"lower": str(lower), "upper": str(upper), "step": str(self.step), **missing}

    def tables(self) -> Iterator[tuple[tuple[str | None, Number], ...]]:
        """Tables of no row, of each value alone, and of two and three of them."""
        yield ()
        yield from ((value,) for value in self.values)
        yield (self.values[0], self.values[-1])
        yield (self.values[0], self.values[-1], self.values[len(self.values) // 2])


def _ranges(first: int, last: int) -> Iterator[tuple[int, int]]:
    """Ranges at the ends of what a type holds and a declaration may say: narrow ones and the widest."""
    for low, high in (_INT64, _UINT64):
        a, b = max(first, low), min(last, high)
        for width in (1, 1000, 2**31, 2**44, 2**62):
            if a + width < b:
                yield a, a + width
                yield b - width, b
        yield a, b
        if a < 0 < b:
            yield -1, 1
        # Where a signed number ends, inside an unsigned range.
        if a < 2**63 - 2 and b > 2**63 + 2:
            yield 2**63 - 2, 2**63 + 2


def _whole_corners() -> Iterator[Corner]:
    for bits in (8, 16, 32, 64, 128):
        for sign in ("", "U"):
            name = {8: "TINYINT", 16: "SMALLINT", 32: "INTEGER", 64: "BIGINT", 128: "HUGEINT"}[bits]
            if sign and bits == 128:
                continue
            first, last = (0, 2**bits - 1) if sign else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
            for low, high in dict.fromkeys(_ranges(first, last)):
                yield _corner(sign + name, low, high, first, last)
            if bits == 64:
                yield _corner(sign + name, first // 7, last // 7, first, last, Fraction(7))
                yield _corner(sign + name, -(2**50), 2**50, first, last, Fraction(1, 1024))
                yield _corner(sign + name, 2**55, 2**55 + 9, first, last, missing="declared")


def _corner(
    kind: str,
    low: int,
    high: int,
    first: int,
    last: int,
    step: Fraction = Fraction(1),
    missing: str = "skip",
) -> Corner:
    """Values: both ends of the type, both bounds and their neighbours inside, and none."""
    inside = [int(low * step), int(high * step), int(low * step) + 1, 0]
    numbers = dict.fromkeys(min(max(one, first), last) for one in (first, *inside, last))
    values = [(str(number), Fraction(number)) for number in numbers]
    return Corner(kind, low, high, ((None, None), *values), step, missing)


def _decimal_corners() -> Iterator[Corner]:
    for width, scale in ((4, 1), (9, 9), (18, 0), (18, 9), (18, 18), (38, 0), (38, 10), (38, 37)):
        unit, end = Fraction(1, 10**scale), 10**width - 1
        for low, high in dict.fromkeys(_ranges(-end, end)):
            if (low, high) != (-1, 1) and high - low not in (1, 2**31, end + end, 2**64 - 1):
                continue
            digits = dict.fromkeys((-end, low, high, end, min(max(low + 1, -end), end)))
            values = [(_decimal_text(one, scale), one * unit) for one in digits]
            yield Corner(f"DECIMAL({width},{scale})", low, high, ((None, None), *values), unit)
        ends = [(_decimal_text(one, scale), one * unit) for one in (-end, end)]
        coarse = Fraction(10) ** max(width - scale - 3, 0)
        yield Corner(f"DECIMAL({width},{scale})", -9, 999, ((None, None), *ends), coarse)


def _decimal_text(digits: int, scale: int) -> str:
    text = str(abs(digits)).rjust(scale + 1, "0")
    sign = "-" if digits < 0 else ""
    return f"{sign}{text[: len(text) - scale]}{'.' if scale else ''}{text[len(text) - scale :]}"


def _time_corners() -> Iterator[Corner]:
    dates = (
        (None, None), ("5877642-06-25 (BC)", Fraction(-(2**31) + 2)), ("-infinity", float("-inf")),
        ("0001-01-01", Fraction(-719162)), ("1970-01-01", Fraction(0)),
        ("9999-12-31", Fraction(2932896)), ("infinity", float("inf")),
        ("5881580-07-10", Fraction(2**31 - 2)),
    )  # fmt: skip
    for low, high in ((-719162, 2932896), (-(2**31), 2**31), (2932895, 2932896), _INT64):
        yield Corner("DATE", low, high, dates)
    first, last = -(2**63 - 1) - 0, 2**63 - 2
    micro = Fraction(1, _DAY)
    moments = (
        (None, None), ("290309-12-22 (BC) 00:00:00", Fraction(-9223372022400000000, _DAY)),
        ("-infinity", float("-inf")), ("0001-01-01 00:00:00", Fraction(-719162)),
        ("1969-12-31 23:59:59.999999", -micro), ("infinity", float("inf")),
        ("294247-01-10 04:00:54.775806", Fraction(last, _DAY)),
    )  # fmt: skip
    for kind in ("TIMESTAMP", "TIMESTAMP WITH TIME ZONE"):
        texts = tuple(
            (f"{t}+00" if t and t[0].isdigit() and kind != "TIMESTAMP" else t, n)
            for t, n in moments
        )
        for low, high in ((first, last), (last - 1000, last), (first, first + 1000), (-1, 1)):
            yield Corner(kind, low, high, texts, micro)
        yield Corner(kind, -719162, 2932896, texts)
    near = (
        (None, None),
        ("1677-09-22 00:00:00", Fraction(-106751)),
        ("1970-01-02 00:00:00", Fraction(1)),
    )
    for kind in ("TIMESTAMP_S", "TIMESTAMP_MS", "TIMESTAMP_NS"):
        yield Corner(kind, -719162, 2932896, near)
        yield Corner(kind, first, last, near, micro)


def _float_corners() -> Iterator[Corner]:
    for kind, far, near in (("DOUBLE", "1e308", "5e-324"), ("FLOAT", "3e38", "1e-45")):
        numbers = {far: Fraction(float(far)), f"-{far}": -Fraction(float(far)), near: Fraction(0)}
        if kind == "FLOAT":
            numbers = {far: float("inf"), f"-{far}": float("-inf"), near: Fraction(0)}
        values = (
            (None, None), ("-inf", float("-inf")), *numbers.items(), ("0.5", Fraction(1, 2)),
            ("nan", None), ("inf", float("inf")),
        )  # fmt: skip
        for low, high in (
            _INT64,
            (2**62, 2**63 - 1),
            (-(2**63), -(2**63) + 2),
            (0, 2**64 - 1),
            (-1, 1),
        ):
            yield Corner(kind, low, high, values)
        yield Corner(kind, -(2**61), 2**61, values, Fraction(1, 2**70))
    yield Corner("BOOLEAN", 0, 1, ((None, None), ("false", Fraction(0)), ("true", Fraction(1))))
    yield Corner("BOOLEAN", 2**62, 2**62 + 1, (("false", Fraction(0)), ("true", Fraction(1))))


@cache
def all_corners() -> tuple[Corner, ...]:
    """Every corner, in a fixed order."""
    found = (*_whole_corners(), *_decimal_corners(), *_time_corners(), *_float_corners())
    return tuple(dict.fromkeys(found))


@dataclass(frozen=True)
class Form:
    """Where a declaration has the corner's columns ``x`` and ``y``.

    Attributes:
        join: the kind of join that brings them; "" if they are the table's own.
        cached: whether and how sums of blocks are cached.
    """

    join: str = ""
    cached: str = "off"

    @property
    def prefix(self) -> str:
        """What stands before both names in a declaration."""
        return "o." if self.join else ""

    @property
    def blocks(self) -> tuple[str, ...]:
        """The blocks that requests name."""
        return () if self.cached == "off" else (DAY,)

    def declare(self, corner: Corner, place: Mapping[str, Any], joined: str) -> Table:
        """A table with the corner's columns, a unit, and keys. ``joined`` is the other relation."""
        join = {"relation": joined, "name": "o", "kind": self.join, "on": {"u": "u"}}
        declared: dict[str, Any] = {
            "name": "t",
            "privacy_unit": {"column": "u"},
            "contribution_bounds": {"rows": 1},
            "block": "b",
            "columns": {
                f"{self.prefix}x": corner.column,
                "k": {"public_keys": ["a", "b"]},
                "p": {},
                f"{self.prefix}y": corner.column,
            },
        }
        if self.join:
            declared["joins"] = [join | ({"rows": 1} if self.join == "unit" else {})]
        if self.cached != "off":
            declared |= {"protects": "unit-block", "cached_partials": self.cached}
        return Table.model_validate(declared | dict(place))

    def relations(
        self, corner: Corner, values: Sequence[tuple[str | None, Number]]
    ) -> tuple[Content, Content | None]:
        """The rows of a table, each of a unit of its own, and of the other relation: units and private
        keys are at the ends of a BIGINT.
        """
        units = (str(2**63 - 1), str(-(2**63)), "0")
        kinds = {"u": "BIGINT", "k": "VARCHAR", "p": "BIGINT", "b": "DATE"}
        pair = {"x": corner.kind, "y": corner.kind}
        rows: list[list[str | None]]
        rows = [[units[i], "ab"[i % 2], units[-i], DAY] for i in range(len(values))]
        texts = [[text, text] for text, _ in values]
        if not self.join:
            return (kinds | pair, [[*row, *two] for row, two in zip(rows, texts)]), None
        other = [[units[i], *two] for i, two in enumerate(texts)]
        return (kinds, rows), ({"u": "BIGINT"} | pair, other)


DAY = "2020-01-01"
FORMS = {
    "own": Form(),
    "dimension": Form("dimension"),
    "unit join": Form("unit"),
    "checked partials": Form(cached="checked"),
    "sealed partials": Form(cached="sealed"),
}


class DuckDBStore:
    """Tables of one DuckDB file for each call."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._numbers = folder, count()

    def __call__(self, relations: Mapping[str, Content]) -> Mapping[str, Mapping[str, Any]]:
        path = self.folder / f"{next(self._numbers)}.duckdb"
        with duckdb_file(path) as connection:
            fill_relations(connection, relations)
        return {name: {"database": path, "relation": name} for name in relations}


class ParquetStore:
    """Lists of Parquet files that their owner verified, one for each relation."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._numbers = folder, count()

    def __call__(self, relations: Mapping[str, Content]) -> Mapping[str, Mapping[str, Any]]:
        place = self.folder / str(next(self._numbers))
        place.mkdir()
        fields = {}
        with duckdb_file() as connection:
            fill_relations(connection, relations)
            for name in relations:
                file = place / f"{name}.parquet"
                connection.execute(f"COPY {name} TO '{file}' (FORMAT parquet)")
                listed = place / f"{name}.files.json"
                list_files([file], place, name, listed)
                fields[name] = {"database": listed, "relation": name}
        return fields


def fill_relations(connection: duckdb.DuckDBPyConnection, relations: Mapping[str, Content]) -> None:
    """Make the relations as tables of a connection."""
    connection.execute("SET TimeZone = 'UTC'")
    for name, (columns, rows) in relations.items():
        casts = ", ".join(
            f'CAST(CAST(? AS VARCHAR) AS {kind}) AS "{c}"' for c, kind in columns.items()
        )
        nulls = ", ".join(f'CAST(NULL AS {kind}) AS "{c}"' for c, kind in columns.items())
        connection.execute(f"CREATE TABLE {name} AS SELECT {nulls} LIMIT 0")
        for row in rows:
            connection.execute(f"INSERT INTO {name} SELECT {casts}", row)
