"""The noise intervals that an answer will state, before anything is released.

The answer is computed from numbers that stand for the released ones, with their widths, in every group
that it may have: so EXPLAIN widens intervals where noise chooses rows just as the answer does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dpflow.analyst_sql.answers import NoiseCount, count_noises
from dpflow.analyst_sql.cells import (
    Cells,
    Key,
    Number,
    additive_plan,
    find_measure,
    make_width,
)
from dpflow.analyst_sql.grouping_levels import add_level
from dpflow.analyst_sql.query_parts import PartPlan, find_grouping, split_key
from dpflow.analyst_sql.query_plan import SqlPlan, find_cells_by_query
from dpflow.analyst_sql.released_query import Query, UnionAll, list_inner, walk_query
from dpflow.analyst_sql.released_rows import RowComputer
from dpflow.analyst_sql.select_query import SelectQuery
from dpflow.analyst_sql.stored_answers import find_cells, keep_cells
from dpflow.analyst_sql.typed_keys import KeyReader
from dpflow.core.contract.results import Row

#: More groups, and more rows of joins and unions, are not looked at.
MOST_GROUPS, MOST_ROWS = 5000, 50_000
#: So many private keys are, beyond those that a LIMIT leaves.
PRIVATE_KEYS = 50


@dataclass(frozen=True)
class ColumnNoise:
    """What is known of a column's intervals before it is released.

    Attributes:
        taken: the widths of all numbers hold for as many together.
        confidence: per cent; None where there will be no interval.
        half_width_95: of every value of the column; None where it hangs on what is released, or where all
            noise together holds with less.
        with_keys: where noise chooses among private keys, of which nobody knows how many there are: a
            number of them, with the half-width that it makes; None elsewhere.
    """

    taken: int
    confidence: int | None
    half_width_95: float | None
    with_keys: tuple[int, float | None] | None


def forecast_noise(plan: SqlPlan) -> list[ColumnNoise] | None:
    """For each column of the answer; None where its groups are too many to look at.

    Numbers of stored releases are as they are.
    """
    try:
        few = many = _Forecast(plan, 1)
        if any(part.part.private for part in plan.parts):
            many = _Forecast(plan, PRIVATE_KEYS + _add_limits(plan))
    except _TooMany:
        return None
    columns = []
    for position, _ in enumerate(plan.query.columns):
        count, of_many = few.count(position), many.count(position)
        width = many.find_half_width(position)
        if count.together == of_many.together:
            columns.append(ColumnNoise(count.taken, count.confidence, width, None))
        else:
            # How many keys there are is private, and the width is one of as many.
            columns.append(ColumnNoise(count.taken, count.confidence, None, (many.keys, width)))
    return columns


class _TooMany(Exception):
    """More groups or rows than are looked at."""


class _Forecast:
    """Two answers with other numbers in them: what they have in common is known before a release."""

    def __init__(self, plan: SqlPlan, private_keys: int) -> None:
        self.keys, self._plan, self._key_reader = private_keys, plan, KeyReader()
        self._cells = [_make_cells(plan, private_keys, factor) for factor in (1, 3)]
        _count_rows(plan.query, self._cells[0], {})
        self._rows = RowComputer(self._cells[0], None, self._key_reader, True).compute(plan.query)
        self._counts: dict[int, NoiseCount] = {}

    def count(self, position: int) -> NoiseCount:
        """What a column's intervals hang on."""
        if position not in self._counts:
            self._counts[position] = count_noises(self._rows, position)
        return self._counts[position]

    def find_half_width(self, position: int) -> float | None:
        """The one half-width of all intervals of a column."""
        count = self.count(position)
        if count.confidence != 95:
            return None
        widths: set[float] = set()
        for cells in self._cells:
            rows = RowComputer(cells, count.taken, self._key_reader, True).compute(self._plan.query)
            for row in rows.cells:
                value = row[position].value
                if not row[position].noises:
                    continue
                if not value.bounded or value.low is None or value.high is None:
                    return None
                below, above = value.value - value.low, value.high - value.value
                if not math.isclose(below, above, rel_tol=1e-9) or math.isinf(above):
                    return None
                widths.add(float(f"{above:.9g}"))
        return widths.pop() if len(widths) == 1 else None


def _count_rows(query: Query, cells: Callable[[SelectQuery], Cells], known: dict[int, int]) -> int:
    """How many rows a query looks at. Raises `_TooMany`: EXPLAIN takes no longer than a plan may."""
    if id(query) not in known:
        if isinstance(query, SelectQuery):
            rows = len(cells(query))
        else:
            inner = [_count_rows(one, cells, known) for one in list_inner(query)]
            of_union = isinstance(query, UnionAll)
            rows = sum(inner) if of_union else math.prod(max(n, 1) for n in inner)
        if rows > MOST_ROWS:
            raise _TooMany
        known[id(query)] = rows
    return known[id(query)]


def _add_limits(plan: SqlPlan) -> int:
    """How many rows LIMIT leaves, at most."""
    limits = (
        (getattr(one, "limit", None) or 0) + getattr(one, "offset", 0)
        for one in walk_query(plan.query)
    )
    return min(sum(limits), MOST_GROUPS)


def _make_cells(plan: SqlPlan, private_keys: int, factor: int) -> Callable[[SelectQuery], Cells]:
    """Released numbers of all parts: those of stored releases, and numbers that stand for others."""
    answered = []
    for part, stored in zip(plan.parts, plan.stored):
        query = part.part.queries[0]
        cells = find_cells(stored, query) if stored else _assume_cells(part, private_keys, factor)
        answered.append((part.part, cells))
    for level in plan.added:
        below, cells = answered[level.source]
        answered.append((level.part, add_level(level.part, cells, below.queries[0].groups)))
    return find_cells_by_query(answered)


def _assume_cells(part: PartPlan, private_keys: int, factor: int) -> Cells:
    query = part.part.queries[0]
    keys, private = _list_keys(query, private_keys)
    cells: Cells = {}
    for position, key in enumerate(keys):
        for number, (aggregate, label) in enumerate(part.part.measures.items()):
            measure = find_measure(part.plan, label)
            width = make_width(part.plan, Row("", label, None))
            if measure is not None and measure.shrinks:
                width = _unknown_width
            value = factor * (10_000 + 37 * position) + 7 * number
            cells.setdefault(key, {})[aggregate] = Number(
                value, width, "", additive_plan(part.plan, label), label
            )
    return cells if private else keep_cells(cells, query, query.groups)


def _unknown_width(together: int) -> float | None:
    """Of what shrinks with its group: known with the release, for one number."""
    return math.inf if together == 1 else None


def _list_keys(query: SelectQuery, private_keys: int) -> tuple[Sequence[Key], bool]:
    """Keys of all groups, and whether they stand for private ones."""
    table, by, private = find_grouping(query)
    if by is None:
        return [()], False
    if private:
        return [(f"key {n}",) * len(query.groups) for n in range(private_keys)], True
    keys = table.public_keys(by)
    if len(keys) > MOST_GROUPS:
        raise _TooMany
    return [tuple(split_key(key, query.groups)) for key in keys], False
