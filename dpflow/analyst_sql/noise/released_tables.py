"""Released numbers as tables for DuckDB: keys, numbers, and on demand the ends of their intervals."""

from __future__ import annotations

import datetime as dt
import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from fractions import Fraction
from typing import Any

from sqlglot import exp

from dpflow.analyst_sql.noise.expression_intervals import brackets, call, call_macro
from dpflow.analyst_sql.noise.noise_relations import COUNT, HIGH, LOW, ROW, ReleasedColumns
from dpflow.analyst_sql.parse.private_rows import find_column
from dpflow.analyst_sql.parse.select_query import (
    SelectQuery,
    SplitQuery,
    SqlAggregate,
    filled_column,
    key_column,
    number_column,
    present_column,
    release_table,
)
from dpflow.analyst_sql.releases.cells import Cells, Number, find_measure, find_release
from dpflow.analyst_sql.releases.complete_keys import find_incomplete
from dpflow.analyst_sql.releases.query_parts import find_grouping
from dpflow.analyst_sql.releases.typed_keys import KeyReader
from dpflow.core.contract.declaration import MAX_MAGNITUDE, Table
from dpflow.core.contract.results import NO_VALUE, TOO_LARGE, ValueRange
from dpflow.core.contract.totals import MeanTotal, TermTotal
from dpflow.core.toolbox.noise import FAILURE
from dpflow.core.toolbox.noise_sums import list_sizes
from dpflow.tables.public.query_process import RowTable

_EPOCH = dt.datetime(1970, 1, 1)
_MISSING = Number(None, lambda together: None)

#: The ends of what a number may be.
FindEnds = Callable[[Number], tuple[float | None, float | None]]


@dataclass(frozen=True)
class ReleasedTable:
    """One released table.

    Attributes:
        numbers: for each aggregate the released number of each row.
        filled: for each number that means are divided by whether its interval excludes 0, in each row.
        present: the numbers of units.
        planned_kinds: the types of the numbers with which the query was planned.
        partial: some rows of the query may be in none of its groups.
    """

    name: str
    keys: list[tuple[str, str, list[Any]]]
    kinds: list[str]
    numbers: list[list[Number]]
    selected: bool
    filled: Mapping[int, list[bool]] = field(default_factory=dict)
    present: Sequence[int] = ()
    planned_kinds: Sequence[str] = ()
    partial: bool = False

    def with_planned_kinds(self) -> ReleasedTable:
        """The same numbers as doubles where the plan took them for doubles, though all were drawn whole."""
        kinds = [
            planned if planned == "DOUBLE" and kind == "BIGINT" else kind
            for kind, planned in zip(self.kinds, self.planned_kinds or self.kinds)
        ]
        return replace(self, kinds=kinds)

    def write_rows(
        self, levels: Mapping[str, FindEnds] | None = None, wanted: Collection[str] | None = None
    ) -> RowTable:
        """Keys and numbers, and beside each number its two ends.

        Args:
            levels: what finds ends, by what their columns' names end in.
            wanted: which columns of ends are written; all if left out.
        """
        written = [(name, kind, list(map(_write_value, texts))) for name, kind, texts in self.keys]
        for position, (kind, numbers) in enumerate(zip(self.kinds, self.numbers)):
            name = number_column(position)
            written.append((name, kind, [_write_number(number.value, kind) for number in numbers]))
            is_counted = position in self.present
            if is_counted:
                marks = [_mark_present(find_span(number, 1))[0] for number in numbers]
                written.append((present_column(position), "BIGINT", marks))
            for level, find_ends in (levels or {}).items() if _is_numeric(kind) else ():
                spans = list(map(find_ends, numbers))
                beside = [(name, spans)]
                if is_counted:
                    beside.append((present_column(position), list(map(_mark_present, spans))))
                for of, ends in beside:
                    columns: list[tuple[str, str, list[Any]]] = [
                        (of + LOW + level, "DOUBLE", [low for low, _ in ends]),
                        (of + HIGH + level, "DOUBLE", [high for _, high in ends]),
                        (of + COUNT + level, "BIGINT", [1] * len(ends)),
                    ]
                    written += [one for one in columns if wanted is None or one[0] in wanted]
        for position, filled in self.filled.items():
            written.append((filled_column(position), "BOOLEAN", filled))
        if wanted and ROW in wanted:
            written.append((ROW, "BIGINT", list(range(len(self.numbers[0])))))
        names = [(name, kind) for name, kind, _ in written]
        return RowTable(self.name, names, [values for _, _, values in written])

    def find_mean_limits(self) -> dict[int, ValueRange]:
        """Public ranges of the means of what is summed up, by the position of the sum."""
        return {
            position: limits
            for position, numbers in enumerate(self.numbers)
            if len(declared := {number.mean_limits for number in numbers}) == 1
            and (limits := declared.pop()) is not None
        }

    def describe(self) -> ReleasedColumns:
        """What rules for intervals need of it."""
        return ReleasedColumns(
            len(self.keys),
            [_is_numeric(kind) for kind in self.kinds],
            len(self.numbers[0]) if self.numbers else 0,
            self.selected,
            [_count_cells(numbers) for numbers in self.numbers],
            [
                any(number.remark in (NO_VALUE, TOO_LARGE) for number in numbers)
                for numbers in self.numbers
            ],
            list(self.filled),
            self.present,
            [
                frozenset[str]().union(*(one.premises for one in numbers))
                for numbers in self.numbers
            ],
            self.partial,
        )


def _is_numeric(kind: str) -> bool:
    return kind in ("BIGINT", "DOUBLE") or kind.startswith(("DECIMAL", "HUGEINT"))


def find_span(number: Number, together: int) -> tuple[float | None, float | None]:
    """The interval of a number that holds with as many together; Nones where it has none."""
    width, value = number.width(together), number.value
    if width is None or isinstance(value, bool) or not isinstance(value, int | float):
        return None, None
    return value - width, value + width


def find_total_span(
    number: Number, together: int, is_limited: bool
) -> tuple[float | None, float | None]:
    """The same of noise and truncation.

    Args:
        is_limited: released limits on what is cut take half of the failures.
    """
    total = number.total
    if isinstance(total, MeanTotal):
        width = number.width(1)
        if together > 1 or width is None or number.value is None:
            return None, None
        return total.find_span(number.value, width)
    low, high = find_span(number, together * (1 + is_limited))
    if total is None or low is None or high is None:
        return None, None
    below, above = total.find_shortfall(number.cells)
    return low - below, high + above


def find_limits(number: Number) -> tuple[float | None, float | None]:
    """The public range of a number, with infinite ends; Nones where it has no value."""
    limits = number.limits
    if number.value is None:
        return None, None
    return (
        -math.inf if limits.low is None else float(limits.low),
        math.inf if limits.high is None else float(limits.high),
    )


def _mark_present(span: tuple[float | None, float | None]) -> tuple[int | None, int | None]:
    """Whether there surely is some unit, and whether there may be one, by the interval of their number."""
    low, high = span
    return (None, None) if low is None or high is None else (int(low > 0), int(high >= 1))


def _is_filled(number: Number) -> bool:
    """Whether the interval of a number of rows excludes 0, together with that of the sum over them."""
    lows = (find_span(number, together)[0] for together in (2, 1))
    low = next((low for low in lows if low is not None), None)
    return low is not None and low > 0


def _count_cells(numbers: Sequence[Number]) -> int:
    """How many cells each number adds up; 0 unless all add up as many of one release, each once."""
    first = numbers[0] if numbers else _MISSING
    if first.plan is None or any(
        number.plan is not first.plan
        or number.label != first.label
        or number.cells != first.cells
        or number.value is None
        for number in numbers
    ):
        return 0
    parts = [part for number in numbers for part in number.parts or (number,)]
    return first.cells if len(set(parts)) == len(parts) else 0


def make_tables(
    query: SplitQuery, cells: Callable[[SelectQuery], Cells], keys: KeyReader
) -> list[ReleasedTable]:
    """The tables that a query reads."""
    return [
        _make_table(position, release, cells(release), keys, _list_divisors(query, position))
        for position, release in enumerate(query.releases)
    ]


def _list_divisors(query: SplitQuery, position: int) -> list[int]:
    """The numbers of a release that means are divided by."""
    return sorted(number for release, number in query.divisors if release == position)


def _make_table(
    position: int, release: SelectQuery, cells: Cells, reader: KeyReader, divisors: Sequence[int]
) -> ReleasedTable:
    rows = list(cells)
    texts = [[key[n] for key in rows] for n in range(len(release.groups))]
    keys = [
        (key_column(n), reader.find_released_kind(release.table, group, column), column)
        for n, (group, column) in enumerate(zip(release.groups, texts))
    ]
    numbers = [[cells[key].get(one, _MISSING) for key in rows] for one in release.aggregates]
    planned = [expect_kind(one, release.table, reader) for one in release.aggregates]
    kinds = []
    for n, one in enumerate(release.aggregates):
        if one.kind == "mode":
            assert one.value is not None
            modes = [number.value for number in numbers[n] if number.value is not None]
            kinds.append(reader.find_released_kind(release.table, one.value, modes))
            continue
        if planned[n] in ("DATE", "TIMESTAMP"):
            numbers[n] = list(map(_write_times, numbers[n]))
        kinds.append(_find_number_kind(_list_values(numbers[n]), planned[n]))
    filled = {n: list(map(_is_filled, numbers[n])) for n in divisors}
    return ReleasedTable(
        release_table(position),
        keys,
        kinds,
        numbers,
        find_grouping(release)[2],
        filled,
        _list_units(release),
        planned,
        find_incomplete(replace(release, groups=()), release.groups) is not None,
    )


def _write_times(number: Number) -> Number:
    """A number of days since 1970, as a quantile of times is where its bounds have times of day, as a time."""

    def write(days: Any) -> Any:
        if (isinstance(days, str) and _is_time(days)) or days is None:
            return days
        microseconds = round(Fraction(str(days)) * 86_400_000_000)
        return (_EPOCH + dt.timedelta(microseconds=microseconds)).isoformat(sep=" ")

    bounds = None if number.bounds is None else (write(number.bounds[0]), write(number.bounds[1]))
    return replace(number, value=write(number.value), bounds=bounds)


def _is_time(text: str) -> bool:
    """Whether a text writes a date or a time of the years that Python has."""
    try:
        dt.datetime.fromisoformat(text)
    except ValueError:
        return False
    return "-" in text[1:]


def _list_values(numbers: Sequence[Number]) -> list[Any]:
    """Values of one column, and the bounds that are written beside them."""
    return [value for one in numbers for value in (one.value, *(one.bounds or ()))]


def _list_units(release: SelectQuery) -> list[int]:
    return [n for n, one in enumerate(release.aggregates) if one.kind == "units"]


def expect_tables(query: SplitQuery, keys: KeyReader) -> list[RowTable]:
    """The same tables and the public ones, before anything is released: types and no rows of releases."""
    tables = list(query.public)
    for position, release in enumerate(query.releases):
        columns = []
        for n, group in enumerate(release.groups):
            columns.append((key_column(n), keys.find_kind(release.table, group)))
        for n, one in enumerate(release.aggregates):
            columns.append((number_column(n), expect_kind(one, release.table, keys)))
        columns += [(filled_column(n), "BOOLEAN") for n in _list_divisors(query, position)]
        columns += [(present_column(n), "BIGINT") for n in _list_units(release)]
        tables.append(RowTable(release_table(position), columns, [[] for _ in columns]))
    return tables


#: DuckDB's types of Python's values.
_KINDS: Mapping[type, str] = {
    bool: "BOOLEAN",
    int: "BIGINT",
    float: "DOUBLE",
    str: "VARCHAR",
    dict: "MAP(VARCHAR, BIGINT)",
}


#: Values of DuckDB's types of keys and numbers, for `fill_samples`; numbers of either sign.
_SAMPLES: Mapping[str, list[Any]] = {
    "BIGINT": [-3, 0, 7],
    "HUGEINT": ["-2", "0", "7"],
    "UHUGEINT": ["2", "0", "7"],
    "DOUBLE": [-2.5, 0.0, 7.5],
    "BOOLEAN": [True, False, None],
    "VARCHAR": ["a", "", "9"],
    "DATE": ["2020-01-31", "2021-02-03", None],
    "TIMESTAMP": ["2020-01-31 10:00:00", "2021-02-03 00:00:00", None],
    "MAP(VARCHAR, BIGINT)": [{"key": ["a"], "value": [-3]}, None, {"key": [], "value": []}],
}


def fill_samples(tables: Sequence[RowTable]) -> list[RowTable]:
    """Tables with made-up rows; of public tables, which have rows, the first."""
    return [
        replace(one, values=[list(values[:100]) for values in one.values])
        if any(map(len, one.values))
        else replace(one, values=[_list_samples(kind) for _, kind in one.columns])
        for one in tables
    ]


#: The ends of types of keys.
_EXTREMES: Mapping[str, list[Any]] = {
    "BIGINT": [-(2**63), 2**63 - 1],
    "HUGEINT": [str(1 - 2**127), str(2**127 - 1)],
    "UHUGEINT": ["0", str(2**128 - 1)],
    "DATE": ["-infinity", "infinity", "5877642-06-25 (BC)", "5881580-07-10"],
    "TIMESTAMP": [
        *("-infinity", "infinity", "290309-12-22 (BC) 00:00:00"),
        "294247-01-10 04:00:54.775806",
    ],
}


def fill_extremes(query: SplitQuery, tables: Sequence[RowTable]) -> list[RowTable]:
    """Tables of `expect_tables` with all public rows, and with keys and numbers that may be released: public keys, or the
    ends of their types.
    """
    public = len(query.public)
    filled = list(tables[:public])
    for release, table in zip(query.releases, tables[public:]):
        columns = [[*_list_samples(kind), *_list_ends(kind)] for _, kind in table.columns]
        for n, (_, kind) in enumerate(table.columns):
            # A number beyond has no value.
            if n >= len(release.groups) and kind == "BIGINT":
                columns[n] = [*_list_samples(kind), MAX_MAGNITUDE, -MAX_MAGNITUDE]
        for n, group in enumerate(release.groups):
            declared = find_column(group, release.table)
            if declared is not None and declared.public_keys is not None:
                columns[n] = list(declared.public_keys)
        length = max(map(len, columns), default=0)
        padded = [values + [None] * (length - len(values)) for values in columns]
        filled.append(replace(table, values=padded))
    return filled


def _list_ends(kind: str) -> list[Any]:
    if not kind.startswith("DECIMAL"):
        return _EXTREMES.get(kind, [])
    width, scale = map(int, kind[8:-1].split(","))
    nines = f"{'9' * (width - scale) or '0'}.{'9' * scale or '0'}"
    return [nines, f"-{nines}"]


def _list_samples(kind: str) -> list[Any]:
    if kind.startswith("DECIMAL"):
        # Of the last digit: others may have no place.
        scale = int(kind[:-1].rpartition(",")[2])
        return [f"{Decimal(steps).scaleb(-scale):f}" for steps in (-2, 0, 7)]
    return _SAMPLES.get(kind, [None, None, None])


def expect_kind(aggregate: SqlAggregate, table: Table, reader: KeyReader) -> str:
    """DuckDB's type of a released number, as far as it is known before it is released."""
    if aggregate.kind in ("count", "values", "units"):
        return "BIGINT"
    if aggregate.kind == "mode":
        assert aggregate.value is not None
        return reader.find_kind(table, aggregate.value)
    if aggregate.kind == "histogram":
        return "MAP(VARCHAR, BIGINT)"
    value = aggregate.value
    assert value is not None
    column = find_column(value, table) if aggregate.kind == "quantile" else None
    if column is not None:
        if column.bounds_are_times:
            return "DATE" if column.holds_dates else "TIMESTAMP"
        if column.lower is not None:
            whole = {"whole": "BIGINT", "huge": "HUGEINT"}
            is_decimal = column.kind.startswith("decimal")
            return column.kind.upper() if is_decimal else whole.get(column.kind, "DOUBLE")
    times = reader.find_time_kind(table, value) if aggregate.kind == "quantile" else None
    return times or "DOUBLE"


def _find_number_kind(values: Sequence[Any], expected: str) -> str:
    """DuckDB's type of a column's numbers. One that holds every grid value stays, whatever was drawn; digits that
    no type of DuckDB's has are those of the nearest double. Dates and times are texts here.
    """
    texts = [value for value in values if isinstance(value, str)]
    if texts and expected == "VARCHAR":
        return expected
    if not all(map(_NUMBER.fullmatch, texts)):
        if not all(map(_is_time, texts)):
            return "VARCHAR"
        is_date = expected != "TIMESTAMP" and all(len(text) == 10 for text in texts)
        return "DATE" if is_date else "TIMESTAMP"
    if expected.startswith(("DECIMAL", "HUGEINT")) or (expected == "DOUBLE" and texts):
        return expected
    return _find_kind(values, expected)


#: Texts of numbers that no double is.
_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?")


def _find_kind(values: Sequence[Any], expected: str) -> str:
    """DuckDB's type of values; the expected one where there are none, or where it holds more digits."""
    kinds = {type(value) for value in values if value is not None}
    is_huge = kinds == {int} and expected in ("HUGEINT", "UHUGEINT")
    if not kinds or kinds == {Decimal} or is_huge:
        return expected
    if kinds == {int, float}:
        return "DOUBLE"
    if kinds == {int} and any(not -(2**63) <= v < 2**63 for v in values if v is not None):
        return "DOUBLE"
    return _KINDS.get(next(iter(kinds)), "VARCHAR") if len(kinds) == 1 else "VARCHAR"


def _write_number(value: Any, kind: str) -> Any:
    """A number as its column's type reads it: one with more digits than a double as text."""
    if value is None or not kind.startswith(("DECIMAL", "DOUBLE")):
        return _write_value(value)
    return float(value) if kind == "DOUBLE" else f"{Decimal(str(value)):f}"


def _write_value(value: Any) -> Any:
    if isinstance(value, Decimal):
        return f"{value:f}"
    if isinstance(value, dict):
        return {"key": list(value), "value": list(value.values())}
    if isinstance(value, dt.datetime):
        return value.isoformat(sep=" ")
    return value.isoformat() if isinstance(value, dt.date) else value


def write_sum_width(numbers: Sequence[Number], together: int, count: Any) -> Any:
    """The half-width of a sum of some of a release's independent numbers, as SQL.

    Args:
        numbers: all that may be in it.
        count: an expression of how many there are.
    """
    first = numbers[0]
    assert first.plan is not None
    release, measure = find_release(first.plan), find_measure(first.plan, first.label)
    assert release is not None and measure is not None
    used = release.query.weights(measure)
    failure = FAILURE / (len(used) * together)
    total: Any = exp.Literal.number(0)
    cells = exp.Mul(this=brackets(count.copy()), expression=exp.Literal.number(first.cells))
    sizes = list_sizes(first.cells * len(numbers))
    for moment in used:
        scale = release.query.error_bound(measure, {one: float(one == moment) for one in used})
        widths = [release.noises[moment].sum_half_width(size, failure) for size in sizes]
        listed = exp.cast(exp.Literal.string(str(widths)), "DOUBLE[]")
        tail = call_macro("width_of_size", [exp.paren(cells), listed])
        total = exp.Add(this=total, expression=exp.Mul(this=_write_float(scale), expression=tail))
    return exp.paren(total)


def write_shortfall(first: Number, count: Any) -> tuple[Any, Any]:
    """How far truncation and searched bounds leave the truth below and above a sum of a release's numbers, as SQL; None
    where it is not known.

    Args:
        first: one of the numbers.
        count: an expression of how many there are.
    """
    total = first.total
    if not isinstance(total, TermTotal):
        return exp.Null(), exp.Null()
    cells = exp.Mul(this=brackets(count.copy()), expression=_write_float(first.cells * total.cut))
    cut = call(exp.Least, [cells, _write_float(total.total_cut)])
    below, above = (
        exp.Add(
            this=exp.Mul(this=cut.copy(), expression=_write_float(moved)),
            expression=_write_float(beyond),
        )
        for moved, beyond in (
            (total.below, total.beyond_below),
            (total.above, total.beyond_above),
        )
    )
    return below, above


def _write_float(value: float) -> Any:
    number = exp.cast(exp.Literal.number(repr(abs(float(value)))), "DOUBLE")
    return exp.Neg(this=number) if value < 0 else number
