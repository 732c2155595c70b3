"""What is known of an answer's intervals before anything is released: the query runs over numbers that stand for the
released ones, in every group that there may be.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

from sqlglot import exp

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
from dpflow.analyst_sql.releases.grouping_levels import AddedLevel, add_levels
from dpflow.analyst_sql.releases.query_parts import PartPlan, find_grouping, split_key
from dpflow.analyst_sql.releases.stored_answers import Stored, find_cells, keep_cells
from dpflow.analyst_sql.releases.typed_keys import KeyReader
from dpflow.core.contract.results import Row

#: More groups are not looked at, and no run takes more seconds.
MAX_GROUPS, MAX_SECONDS = 5000, 5.0
#: Of so many numbers that a query names, the neighbourhoods are looked at.
MAX_NAMED = 6
_CHOICES = exp.Where | exp.Having | exp.Qualify | exp.Limit | exp.Order | exp.Distinct
#: So many private keys are, beyond those that a LIMIT leaves.
PRIVATE_KEYS = 50


@dataclass(frozen=True)
class ColumnNoise:
    """What is known of a column's intervals before it is released.

    Attributes:
        intervals: those that the answer will state, as far as they are known.
        half_width_95: of every value of the column; None where it hangs on what is released, or where all
            noise together holds with less.
        widest_95: the largest half-width of a value, where those of all are known, and may differ.
        with_keys: where noise chooses among private keys, of which nobody knows how many there are: a
            number of them, with the half-width that it makes; None elsewhere.
    """

    intervals: ColumnIntervals
    half_width_95: float | None
    widest_95: float | None
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

    def forecast(private_keys: int, start: int, step: int) -> list[ColumnIntervals] | None:
        cells = _make_cells(parts, stored, added, private_keys, (start, step))
        if cells is None:
            return None
        tables = make_tables(query, cells, keys)
        return find_intervals(query, tables, None, keep_noisy=True, seconds=MAX_SECONDS)

    probes = [(10_000, 37), (30_000, 111), *_list_bends(query)]
    forecasts = [forecast(1, *probes[0]), *(forecast(many, *probe) for probe in probes)]
    columns = []
    if any(one is None for one in forecasts):
        return None
    for few, one, *others in zip(*(intervals or [] for intervals in forecasts)):
        widths = _find_half_widths(one, *others)
        width, widest = widths[0] if len({*widths}) == 1 else None, max(widths, default=None)
        if few.together == one.together:
            columns.append(ColumnNoise(few, width, widest, None))
        else:
            # How many keys there are is private, and the width is one of as many.
            columns.append(ColumnNoise(few, None, None, (many, width)))
    return columns


def _list_bends(query: SplitQuery) -> Iterator[tuple[int, int]]:
    """Where else to look, as the number of the first group and how the others follow: a query may do another thing with
    numbers that are small, large, or near one that it names, such as ``least(n, 500)``.
    """
    linear = exp.Sum | exp.Cast | exp.And
    parts = query.tree.walk()
    if not any(
        isinstance(one, _CHOICES | exp.Func) and not isinstance(one, linear) for one in parts
    ):
        return
    yield from ((0, 0), (0, 1), (10**12, 37))
    named = {one.name for one in query.tree.find_all(exp.Literal) if not one.is_string}
    for text in sorted(named)[:MAX_NAMED]:
        near = min(round(Fraction(text)), 10**12)
        yield from ((near // 2 - 1, 1), (near - 3, 1), (near * 2 + 1, 1))


def _find_half_widths(*columns: ColumnIntervals) -> list[float]:
    """The half-widths of all intervals of a column, in order, whatever is released; none where they hang on that."""
    found = set[tuple[float, ...]]()
    for column in columns:
        if column.confidence != 95:
            return []
        widths = []
        for value, span in zip(column.values, column.spans):
            if span is None:
                return []
            below, above = value - span[0], span[1] - value
            if not math.isclose(below, above, rel_tol=1e-9, abs_tol=1e-9) or math.isinf(above):
                return []
            widths.append(float(f"{above:.9g}"))
        found.add(tuple(sorted(widths)))
    return [*found.pop()] if len(found) == 1 else []


def _make_cells(
    parts: Sequence[PartPlan],
    stored_releases: Sequence[Stored | None],
    added: Sequence[AddedLevel],
    private_keys: int,
    probe: tuple[int, int],
) -> Callable[[SelectQuery], Cells] | None:
    """Released numbers of all parts: those of stored releases, and numbers that stand for others; None of
    too many groups.
    """
    answered = []
    for part, stored in zip(parts, stored_releases):
        query = part.part.queries[0]
        cells = find_cells(stored, query) if stored else _assume_cells(part, private_keys, probe)
        if cells is None:
            return None
        answered.append((part.part, cells))
    return find_cells_by_query(add_levels(answered, added))


def _assume_cells(part: PartPlan, private_keys: int, probe: tuple[int, int]) -> Cells | None:
    (start, step), query = probe, part.part.queries[0]
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
            # Which key a mode will be, nobody knows.
            value = None if aggregate.kind == "mode" else start + step * position + 7 * number
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
