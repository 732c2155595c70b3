"""Small tables, all their neighbours, and the exact answer to a statistic on them: a reference for
`dpflow.tables`.

A unit is what one guarantee protects: a tuple of its rows, which are mappings from column to a grid
integer, a key or None. A table is a tuple of units. Units are cut to their limits before they
count, each by its own rows only; here the cut keeps the first rows. A random cut is a mixture of
such cuts and cannot diverge further (joint convexity); rows above a limit that count as their mean
give, column by column, what some unit within the limits gives.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations_with_replacement
from typing import Any, Literal

import numpy as np

from dpflow.core.contract.requests import (
    Answer,
    DataRequest,
    GroupedSums,
    Groups,
    Histogram,
    KeySets,
    RecordArrays,
    Records,
    Sets,
    SortedValues,
    UnboundedValues,
)
from dpflow.testing.column_in_memory import ArrayColumn

Row = Mapping[str, Any]
UnitRows = tuple[Row, ...]
SmallTable = tuple[UnitRows, ...]


def possible_units(rows: Sequence[Row], limit: int) -> list[UnitRows]:
    """Every unit of one to ``limit`` rows, each taken from the given kinds of row."""
    return [
        unit for size in range(1, limit + 1) for unit in combinations_with_replacement(rows, size)
    ]


def neighbours(
    units: Sequence[UnitRows], relation: Literal["add-remove", "replace"], others: int = 1
) -> Iterator[tuple[SmallTable, SmallTable]]:
    """Every pair of neighbouring tables that share at most ``others`` units, one order of each
    pair.
    """
    for size in range(others + 1):
        for shared in combinations_with_replacement(units, size):
            if relation == "add-remove":
                yield from (((*shared, unit), shared) for unit in units)
            else:
                yield from (
                    ((*shared, a), (*shared, b)) for i, a in enumerate(units) for b in units[:i]
                )


def answer(statistic: DataRequest, units: Iterable[UnitRows]) -> Answer:
    """The exact answer to a statistic, contributions cut to its limits; a key of `Records` is its
    place in the list.
    """
    if isinstance(statistic, GroupedSums):
        return _grouped(statistic, units)
    if isinstance(statistic, SortedValues):
        return _sorted(statistic, units)
    if isinstance(statistic, KeySets):
        return key_sets(
            (
                [row[statistic.by] for row in unit if row[statistic.by] is not None]
                for unit in units
            ),
            statistic.groups,
        )
    if isinstance(statistic, Records):
        return _records(statistic, units)
    if isinstance(statistic, UnboundedValues):
        return _open(statistic, units)
    raise TypeError(
        f"there is no reference answer for a {type(statistic).__name__}; build it by hand"
    )


def fingerprint(given: Answer) -> Any:
    """A hashable form of an answer: equal answers have equal output distributions."""
    if isinstance(given, Groups):
        each = (given.sums, given.counts, given.squares)
        values = [
            (c, *(tuple(one[c].tolist()) for one in each if c in one)) for c in sorted(given.sums)
        ]
        return given.keys, tuple(given.rows.tolist()), tuple(given.units.tolist()), tuple(values)
    if isinstance(given, Histogram):
        codes = [] if given.codes is None else given.codes.tolist()
        return tuple(codes), tuple(zip(given.values.tolist(), given.counts.tolist()))
    if isinstance(given, Sets):
        bags: dict[int, list[str]] = {}
        for unit, code in zip(given.units.tolist(), given.codes.tolist()):
            bags.setdefault(unit, []).append(given.keys[code])
        return tuple(sorted(tuple(sorted(bag)) for bag in bags.values()))
    if isinstance(given, RecordArrays):
        return tuple(
            zip(
                given.units.tolist(),
                *(given.columns[name].tolist() for name in sorted(given.columns)),
            )
        )
    if isinstance(given, ArrayColumn):
        return given.size, tuple(tuple(sorted(values.tolist())) for values in given.groups)
    return tuple(given.values.tolist())


def _cut(
    statistic: GroupedSums | SortedValues | UnboundedValues, unit: UnitRows
) -> Iterator[tuple[str, Row]]:
    """The rows of one unit that count, with their group."""
    taken: Counter[str] = Counter()
    for row in unit:
        key = "" if statistic.by is None else row[statistic.by]
        known = key is not None and (
            statistic.by is None or statistic.keys is None or key in statistic.keys
        )
        if (
            known
            and (key in taken or len(taken) < statistic.groups)
            and taken[key] < statistic.rows_per_group
        ):
            taken[key] += 1
            yield key, row


def _grouped(statistic: GroupedSums, units: Iterable[UnitRows]) -> Groups:
    kept = [list(_cut(statistic, unit)) for unit in units]
    found = sorted({key for unit in kept for key, _ in unit})
    keys = (
        ("",)
        if statistic.by is None
        else statistic.keys
        if statistic.keys is not None
        else tuple(found)
    )
    place = {key: i for i, key in enumerate(keys)}
    rows, reached = np.zeros(len(keys), np.int64), np.zeros(len(keys), np.int64)
    sums = {column: np.zeros(len(keys), np.int64) for column, _ in statistic.values}
    counts = {column: np.zeros(len(keys), np.int64) for column, _ in statistic.values}
    squares = {column: np.zeros(len(keys), np.int64) for column, _, _ in statistic.squares}
    for unit in kept:
        for key in {key for key, _ in unit}:
            reached[place[key]] += 1
        for key, row in unit:
            rows[place[key]] += 1
            for column, centre in statistic.values:
                if row[column] is not None:
                    sums[column][place[key]] += row[column] - centre
                    counts[column][place[key]] += 1
            for column, centre, half in statistic.squares:
                if row[column] is not None:
                    squares[column][place[key]] += (row[column] - centre) ** 2 - half
    return Groups(keys, rows, reached, sums, counts, squares)


def _open(statistic: UnboundedValues, units: Iterable[UnitRows]) -> ArrayColumn:
    units = list(units)
    return ArrayColumn.of(*_values(statistic, units).values(), units=len(units))


def _sorted(statistic: SortedValues, units: Iterable[UnitRows]) -> Histogram:
    return histogram(statistic, *_values(statistic, units).values())


def key_sets(bags: Iterable[Iterable[str]], groups: int = 10**6) -> Sets:
    """The answer of units that have these keys."""
    kept = [list(dict.fromkeys(bag))[:groups] for bag in bags]
    keys = tuple(sorted({key for bag in kept for key in bag}))
    units = np.repeat(np.arange(len(kept)), [len(bag) for bag in kept])
    return Sets(keys, units, np.array([keys.index(key) for bag in kept for key in bag], np.int64))


def _values(
    statistic: SortedValues | UnboundedValues, units: Iterable[UnitRows]
) -> dict[str, list[Any]]:
    """The values of every group that count."""
    groups: dict[str, list[Any]] = {key: [] for key in statistic.keys}
    for unit in units:
        for key, row in _cut(
            statistic, tuple(row for row in unit if row[statistic.column] is not None)
        ):
            groups[key].append(row[statistic.column])
    return groups


def histogram(statistic: SortedValues, *groups: Iterable[int]) -> Histogram:
    """The answer to a request whose groups have these values, in any order."""
    found = [np.unique(np.array(list(values), np.int64), return_counts=True) for values in groups]
    codes = np.repeat(np.arange(len(groups)), [len(values) for values, _ in found])
    values, counts = (np.concatenate(parts).astype(np.int64) for parts in zip(*found, strict=True))
    return Histogram(values, counts, None if statistic.by is None else codes)


def _records(statistic: Records, units: Iterable[UnitRows]) -> RecordArrays:
    whole = [
        [row for row in unit if all(row[c] is not None for c in statistic.columns)]
        for unit in units
    ]
    kept = [
        (number, row)
        for number, unit in enumerate(filter(None, whole))
        for row in unit[: statistic.rows]
    ]
    columns = {
        name: np.array([row[name] for _, row in kept], np.int64) for name in statistic.columns
    }
    return RecordArrays(np.array([number for number, _ in kept], np.int64), columns)
