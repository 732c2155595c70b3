"""Small tables, all their neighbours, and exact answers: a reference for `dpflow.tables`.

A privacy unit is a tuple of its rows, which are mappings from column to a grid integer, a key or
None. A table is a tuple of units. Contribution bounding looks at one unit at a time; here it keeps
the first rows. Random truncation is a mixture of such choices and cannot diverge further (joint
convexity). Rows above a bound that count as their mean give, column by column, what some unit
within the bounds gives.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations_with_replacement
from typing import Any, Literal, TypeVar

import numpy as np

from dpflow.core.contract.declaration import Table
from dpflow.core.contract.requests import (
    Answer,
    DataRequest,
    GroupedSums,
    Groups,
    KeySets,
    RecordArrays,
    Records,
    Sets,
    SizeCounts,
    SortedValues,
    UnboundedValues,
    UnitSizes,
    ValueCounts,
    group_limit,
    row_limit,
)
from dpflow.testing.column_in_memory import ArrayColumn

Row = Mapping[str, Any]
UnitRows = tuple[Row, ...]
SmallTable = tuple[UnitRows, ...]
Unit = TypeVar("Unit")


def possible_units(rows: Sequence[Row], limit: int) -> list[UnitRows]:
    """Every unit of one to ``limit`` rows, each of one of these kinds of row."""
    return [
        unit for size in range(1, limit + 1) for unit in combinations_with_replacement(rows, size)
    ]


def neighbouring_tables(
    units: Sequence[Unit], relation: Literal["add-remove", "replace"], others: int = 1
) -> Iterator[tuple[tuple[Unit, ...], tuple[Unit, ...]]]:
    """Pairs of neighbouring tables that share at most ``others`` units, one order of each pair.

    The unit that they do not share comes last. Units may be anything that stands for them.
    """
    for size in range(others + 1):
        for shared in combinations_with_replacement(units, size):
            if relation == "add-remove":
                yield from (((*shared, unit), shared) for unit in units)
            else:
                yield from (
                    ((*shared, a), (*shared, b)) for i, a in enumerate(units) for b in units[:i]
                )


def reference_answer(request: DataRequest, units: Iterable[UnitRows]) -> Answer:
    """The exact answer to a request after contribution bounding; a key of `Records` is its index."""
    if isinstance(request, GroupedSums):
        return _sum_groups(request, units)
    if isinstance(request, SortedValues):
        return _sort_values(request, units)
    if isinstance(request, KeySets):
        return key_sets(
            ([row[request.by] for row in unit if row[request.by] is not None] for unit in units),
            request.groups,
        )
    if isinstance(request, Records):
        return _record_arrays(request, units)
    if isinstance(request, UnboundedValues):
        return _unbounded_column(request, units)
    if isinstance(request, UnitSizes):
        return _count_sizes(request, units)
    raise TypeError(
        f"there is no reference answer for a {type(request).__name__}; build it by hand"
    )


def index_keys(request: DataRequest, table: Table, units: Sequence[UnitRows]) -> SmallTable:
    """The units as a request reads them: in `Records` a public key is its index."""
    if not isinstance(request, Records):
        return tuple(units)
    public = {name: table.column(name).public_keys for name in request.columns}
    key_index = {name: keys.index for name, keys in public.items() if keys is not None}

    def index_row(row: Row) -> Row:
        changed = {n: find(row[n]) for n, find in key_index.items() if isinstance(row[n], str)}
        return {**row, **changed}

    return tuple(tuple(map(index_row, unit)) for unit in units)


def answer_fingerprint(answer: Answer) -> Any:
    """A hashable form of an answer: equal answers have equal output distributions."""
    if isinstance(answer, Groups):
        columns = (answer.sums, answer.counts, answer.squares)
        values = [
            (c, *(tuple(one[c].tolist()) for one in columns if c in one))
            for c in sorted(answer.sums)
        ]
        return answer.keys, tuple(answer.rows.tolist()), tuple(answer.units.tolist()), tuple(values)
    if isinstance(answer, ValueCounts):
        codes = [] if answer.codes is None else answer.codes.tolist()
        return tuple(codes), tuple(zip(answer.values.tolist(), answer.counts.tolist()))
    if isinstance(answer, Sets):
        bags: dict[int, list[str]] = {}
        for unit, code in zip(answer.units.tolist(), answer.codes.tolist()):
            bags.setdefault(unit, []).append(answer.keys[code])
        # Units have no order: equal multisets of key sets are one answer.
        return tuple(sorted(tuple(sorted(bag)) for bag in bags.values()))
    if isinstance(answer, RecordArrays):
        return tuple(
            zip(
                answer.units.tolist(),
                *(answer.columns[name].tolist() for name in sorted(answer.columns)),
            )
        )
    if isinstance(answer, SizeCounts):
        lists = (answer.rows, *answer.groups)
        return tuple(tuple(zip(sizes.tolist(), units.tolist())) for sizes, units in lists)
    if isinstance(answer, ArrayColumn):
        return answer.size, tuple(tuple(sorted(values.tolist())) for values in answer.groups)
    return tuple(answer.values.tolist())


def _bound_contributions(
    request: GroupedSums | SortedValues | UnboundedValues, unit: UnitRows
) -> Iterator[tuple[str, Row]]:
    """The rows of one unit that count, with their group: of each group the first comes before any
    second one.
    """
    rows_taken: Counter[str] = Counter()
    kept: list[tuple[bool, str, Row]] = []
    groups = group_limit(request) or len(request.keys or ("",))
    # A key outside the public ones takes no room: bounding comes after the filter, as in SQL.
    for row in unit:
        key = "" if request.by is None else row[request.by]
        is_listed = key is not None and (
            request.by is None or request.keys is None or key in request.keys
        )
        if (
            is_listed
            and (key in rows_taken or len(rows_taken) < groups)
            and rows_taken[key] < request.rows_per_group
        ):
            kept.append((key in rows_taken, key, row))
            rows_taken[key] += 1
    kept.sort(key=lambda one: one[0])
    for _, key, row in kept[: row_limit(request)]:
        yield key, row


def _sum_groups(request: GroupedSums, units: Iterable[UnitRows]) -> Groups:
    bounded_units = [list(_bound_contributions(request, unit)) for unit in units]
    observed_keys = sorted({key for unit in bounded_units for key, _ in unit})
    keys = (
        ("",)
        if request.by is None
        else request.keys
        if request.keys is not None
        else tuple(observed_keys)
    )
    index = {key: i for i, key in enumerate(keys)}
    rows, reached = np.zeros(len(keys), np.int64), np.zeros(len(keys), np.int64)
    sums = {column: np.zeros(len(keys), np.int64) for column, _ in request.values}
    counts = {column: np.zeros(len(keys), np.int64) for column, _ in request.values}
    squares = {square.name: np.zeros(len(keys), np.int64) for square in request.squares}
    for unit in bounded_units:
        for key in {key for key, _ in unit}:
            reached[index[key]] += 1
        for key, row in unit:
            rows[index[key]] += 1
            for column, centre in request.values:
                if row[column] is not None:
                    sums[column][index[key]] += row[column] - centre
                    counts[column][index[key]] += 1
            for square in request.squares:
                if (value := row[square.name]) is not None:
                    squares[square.name][index[key]] += square.round_square(value) - square.half
    return Groups(keys, rows, reached, sums, counts, squares)


def _unbounded_column(request: UnboundedValues, units: Iterable[UnitRows]) -> ArrayColumn:
    units = list(units)
    return ArrayColumn.from_groups(*_group_values(request, units).values(), units=len(units))


def _sort_values(request: SortedValues, units: Iterable[UnitRows]) -> ValueCounts:
    return make_histogram(request, *_group_values(request, units).values())


def key_sets(bags: Iterable[Iterable[str]], groups: int = 10**6) -> Sets:
    """The answer of units that have these keys."""
    key_lists = [list(dict.fromkeys(bag))[:groups] for bag in bags]
    keys = tuple(sorted({key for bag in key_lists for key in bag}))
    units = np.repeat(np.arange(len(key_lists)), [len(bag) for bag in key_lists])
    return Sets(
        keys, units, np.array([keys.index(key) for bag in key_lists for key in bag], np.int64)
    )


def make_sizes(rows: Iterable[int], *groups: Iterable[int]) -> SizeCounts:
    """The answer of units with so many rows, and so many groups of each grouping; 0 is none."""

    def count(sizes: Iterable[int]) -> tuple[Any, Any]:
        return np.unique(np.array([n for n in sizes if n], np.int64), return_counts=True)

    return SizeCounts(count(rows), tuple(map(count, groups)))


def _count_sizes(request: UnitSizes, units: Iterable[UnitRows]) -> SizeCounts:
    units = list(units)
    groups = [
        [len({row[by] for row in unit} - {None}) for unit in units] for by in request.groupings
    ]
    return make_sizes(map(len, units), *groups)


def _group_values(
    request: SortedValues | UnboundedValues, units: Iterable[UnitRows]
) -> dict[str, list[Any]]:
    """The values of every group that count."""
    groups: dict[str, list[Any]] = {key: [] for key in request.keys}
    for unit in units:
        for key, row in _bound_contributions(
            request, tuple(row for row in unit if row[request.column] is not None)
        ):
            groups[key].append(row[request.column])
    return groups


def make_histogram(request: SortedValues, *groups: Iterable[int]) -> ValueCounts:
    """The answer to a request whose groups have these values, in any order."""
    distinct = [
        np.unique(np.array(list(values), np.int64), return_counts=True) for values in groups
    ]
    codes = np.repeat(np.arange(len(groups)), [len(values) for values, _ in distinct])
    values, counts = (
        np.concatenate(parts).astype(np.int64) for parts in zip(*distinct, strict=True)
    )
    return ValueCounts(values, counts, None if request.by is None else codes)


def _record_arrays(request: Records, units: Iterable[UnitRows]) -> RecordArrays:
    whole = [
        [row for row in unit if all(row[c] is not None for c in request.columns)] for unit in units
    ]
    rows = [
        (number, row)
        for number, unit in enumerate(filter(None, whole))
        for row in unit[: request.rows]
    ]
    columns = {name: np.array([row[name] for _, row in rows], np.int64) for name in request.columns}
    return RecordArrays(np.array([number for number, _ in rows], np.int64), columns)
