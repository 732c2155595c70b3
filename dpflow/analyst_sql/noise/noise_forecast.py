"""What is known of an answer's intervals before anything is released: the query runs over numbers that stand for the
released ones, in every group that there may be.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dpflow.analyst_sql.noise.noise_intervals import ColumnIntervals, find_intervals
from dpflow.analyst_sql.noise.released_tables import make_tables
from dpflow.analyst_sql.parse.select_query import SelectQuery, SplitQuery
from dpflow.analyst_sql.releases.cells import (
    Cells,
    Key,
    Number,
    additive_plan,
    find_cells_by_query,
    find_measure,
    make_width,
)
from dpflow.analyst_sql.releases.grouping_levels import AddedLevel, add_level
from dpflow.analyst_sql.releases.query_parts import PartPlan, find_grouping, split_key
from dpflow.analyst_sql.releases.stored_answers import Stored, find_cells, keep_cells
from dpflow.analyst_sql.releases.typed_keys import KeyReader
from dpflow.core.contract.results import Row

#: More groups are not looked at, and no run takes more seconds.
MAX_GROUPS, MAX_SECONDS = 5000, 5.0
#: So many private keys are, beyond those that a LIMIT leaves.
PRIVATE_KEYS = 50


@dataclass(frozen=True)
class ColumnNoise:
    """What is known of a column's intervals before it is released.

    Attributes:
        intervals: those that the answer will state, as far as they are known.
        half_width_95: of every value of the column; None where it hangs on what is released, or where all
            noise together holds with less.
        with_keys: where noise chooses among private keys, of which nobody knows how many there are: a
            number of them, with the half-width that it makes; None elsewhere.
    """

    intervals: ColumnIntervals
    half_width_95: float | None
    with_keys: tuple[int, float | None] | None


def forecast_noise(
    query: SplitQuery,
    keys: KeyReader,
    parts: Sequence[PartPlan],
    stored: Sequence[Stored | None],
    added: Sequence[AddedLevel],
) -> list[ColumnNoise] | None:
    """For each column of the answer; None where its groups are too many to look at, or no rule covers
    the query. The arguments are those of a `dpflow.analyst_sql.answer.sql_plan.SqlPlan`.

    Numbers of stored releases are as they are.
    """
    private = any(part.part.private for part in parts)
    many = PRIVATE_KEYS + min(query.count_limits(), MAX_GROUPS) if private else 1

    def forecast(private_keys: int, factor: int) -> list[ColumnIntervals] | None:
        cells = _make_cells(parts, stored, added, private_keys, factor)
        if cells is None:
            return None
        tables = make_tables(query, cells, keys)
        return find_intervals(query, tables, None, keep_noisy=True, seconds=MAX_SECONDS)

    forecasts = [forecast(*numbers) for numbers in ((1, 1), (many, 1), (many, 3))]
    columns = []
    if any(one is None for one in forecasts):
        return None
    for few, one, other in zip(*(intervals or [] for intervals in forecasts)):
        width = _find_half_width(one, other)
        if few.together == one.together:
            columns.append(ColumnNoise(few, width, None))
        else:
            # How many keys there are is private, and the width is one of as many.
            columns.append(ColumnNoise(few, None, (many, width)))
    return columns


def _find_half_width(*columns: ColumnIntervals) -> float | None:
    """The one half-width of all intervals of a column, whatever is released."""
    widths: set[float] = set()
    for column in columns:
        if column.confidence != 95:
            return None
        for value, span in zip(column.values, column.spans):
            if span is None:
                return None
            below, above = value - span[0], span[1] - value
            if not math.isclose(below, above, rel_tol=1e-9, abs_tol=1e-9) or math.isinf(above):
                return None
            widths.add(float(f"{above:.9g}"))
    return widths.pop() if len(widths) == 1 else None


def _make_cells(
    parts: Sequence[PartPlan],
    stored_releases: Sequence[Stored | None],
    added: Sequence[AddedLevel],
    private_keys: int,
    factor: int,
) -> Callable[[SelectQuery], Cells] | None:
    """Released numbers of all parts: those of stored releases, and numbers that stand for others; None of
    too many groups.
    """
    answered = []
    for part, stored in zip(parts, stored_releases):
        query = part.part.queries[0]
        cells = find_cells(stored, query) if stored else _assume_cells(part, private_keys, factor)
        if cells is None:
            return None
        answered.append((part.part, cells))
    for level in added:
        below, cells = answered[level.source]
        answered.append((level.part, add_level(level.part, cells, below.queries[0].groups)))
    return find_cells_by_query(answered)


def _assume_cells(part: PartPlan, private_keys: int, factor: int) -> Cells | None:
    query = part.part.queries[0]
    keys, private = _list_keys(query, private_keys)
    if len(keys) > MAX_GROUPS:
        return None
    cells: Cells = {}
    for position, key in enumerate(keys):
        for number, (aggregate, label) in enumerate(part.part.measures.items()):
            measure = find_measure(part.plan, label)
            width = make_width(part.plan, Row("", label, None))
            if measure is not None and measure.shrinks:
                width = _unknown_width
            # Of keys none is likelier than the others, and none has an interval.
            is_key = aggregate.kind == "mode"
            value = None if is_key else factor * (10_000 + 37 * position) + 7 * number
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
    return [tuple(split_key(key, query.groups)) for key in table.public_keys(by)], False
