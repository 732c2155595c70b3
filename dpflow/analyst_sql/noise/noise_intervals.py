"""The noise intervals of an answer: the query is run again beside columns for them, and the widths of all
released numbers are those that hold for as many together as a value needs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from dpflow.analyst_sql.noise.noise_expressions import Source
from dpflow.analyst_sql.noise.noise_relations import (
    COUNT,
    HIGH,
    LOW,
    ReleasedNoise,
    RuleMissing,
    Shape,
)
from dpflow.analyst_sql.noise.noise_rules import NoiseRules
from dpflow.analyst_sql.noise.released_tables import (
    ReleasedTable,
    find_limits,
    find_span,
    write_sum_width,
)
from dpflow.analyst_sql.parse.select_query import SplitQuery, write_sql
from dpflow.analyst_sql.releases.cells import Number
from dpflow.core.contract.results import UNLIMITED, ValueRange
from dpflow.errors import QueryStopped
from dpflow.tables.public.published_rows import PublishedRows
from dpflow.tables.public.query_process import PROCESS, QueryRejected, RowTable

#: Columns of one value beside which it has an interval: low, high, count.
_BESIDE = 3


@dataclass(frozen=True)
class ColumnIntervals:
    """The intervals of one column.

    Attributes:
        noisy: its values, or which of them there are, depend on noise.
        sources: the released columns that it is computed from.
        together: how many numbers must be within their widths, with those that chose the rows.
        taken: at as many each width is taken.
        confidence: per cent with which all of them hold then; None where there is no interval.
        values, spans: for each row the value, and the ends of its interval; None where it has none.
        chosen: noise chose which rows there are.
    """

    noisy: bool
    sources: frozenset[Source] = frozenset()
    together: int = 0
    taken: int = 1
    confidence: int | None = None
    values: Sequence[Any] = ()
    spans: Sequence[tuple[float, float] | None] = ()
    chosen: bool = True


def find_intervals(
    query: SplitQuery,
    tables: Sequence[ReleasedTable],
    rows: Sequence[Sequence[Any]] | None,
    keep_noisy: bool = False,
    seconds: float | None = None,
) -> list[ColumnIntervals] | None:
    """The intervals of each column; None where no rule covers the query.

    Args:
        rows: the answer's rows, which those with columns for intervals must repeat.
        keep_noisy: conditions on noisy values leave no row out.
        seconds: the most time of one run.
    """
    runs = _Runs(query, tables, rows, keep_noisy, seconds)
    try:
        shape = runs.start()
        if shape is None:
            return None
        chosen = shape.selected or bool(shape.chosen)
        return [
            replace(runs.find_column(position), chosen=chosen)
            for position in range(len(shape.columns))
        ]
    except (RuleMissing, QueryRejected, QueryStopped):
        return None


def find_ranges(
    query: SplitQuery, tables: Sequence[ReleasedTable], rows: Sequence[Sequence[Any]]
) -> list[list[ValueRange]]:
    """The public range of each value of an answer, by column: what it can be whatever the private rows
    are, by the same rules as the intervals, from the public ranges of the released numbers.
    """
    unlimited = [[UNLIMITED] * len(rows) for _ in (rows[0] if rows else ())]
    means = {
        (n, j): limits
        for n, table in enumerate(tables)
        for j, limits in table.find_mean_limits().items()
    }
    # A sum of cells is between the sums of their ends, however many there are.
    described = [replace(one, cells=[0] * len(one.cells)) for one in (t.describe() for t in tables)]
    released = ReleasedNoise(described, PROCESS.list_aggregates(), query.public, mean_limits=means)
    try:
        tree, shape = NoiseRules(released).apply(query.tree)
        ruled = shape.list_ruled()
        if not any(ruled):
            return unlimited
        ends = [*query.public, *(table.write_rows(find_limits) for table in tables)]
        found = PROCESS.run(ends, write_sql(tree)).rows
    except (RuleMissing, QueryRejected, QueryStopped):
        return unlimited
    width = len(ruled)
    if [row[:width] for row in found] != [list(row) for row in rows]:
        return unlimited
    starts = [width + _BESIDE * sum(ruled[:position]) for position in range(width)]
    return [
        [_read_range(row, position, start) if is_ruled else UNLIMITED for row in found]
        for position, (is_ruled, start) in enumerate(zip(ruled, starts))
    ]


def _read_range(row: Sequence[Any], position: int, start: int) -> ValueRange:
    span = _read_span(row, position, start)
    if span is None:
        return UNLIMITED
    low, high = (None if math.isinf(end) else end for end in span)
    return ValueRange(low, high)


class _Runs:
    """Runs of a query with columns for intervals, by how many numbers hold together."""

    def __init__(
        self,
        query: SplitQuery,
        tables: Sequence[ReleasedTable],
        rows: Sequence[Sequence[Any]] | None,
        keep_noisy: bool,
        seconds: float | None,
    ) -> None:
        self._query, self._tables, self._rows = query, tables, rows
        self._keep_noisy, self._seconds = keep_noisy, seconds
        self._known: dict[int, list[list[Any]]] = {}
        # Its text is one for all of them unless it has widths of sums.
        self._text, self._has_sums = "", False
        self._shape: Shape | None = None
        self._released: ReleasedNoise | None = None

    def start(self) -> Shape | None:
        """The columns of the query; None where no rule covers it."""
        self._released = self._make_released(1)
        tree, self._shape = NoiseRules(self._released).apply(self._query.tree)
        if any(self._shape.list_ruled()):
            self._text = write_sql(tree)
            self._known[1] = self._run(self._text, 1)
        return self._shape

    def _make_released(self, together: int) -> ReleasedNoise:
        tables = self._tables

        def write_width(source: Source, count: Any) -> Any:
            self._has_sums = True
            release, number = source
            return write_sum_width(tables[release].numbers[number][0], together, count)

        return ReleasedNoise(
            [table.describe() for table in tables],
            PROCESS.list_aggregates(),
            self._query.public,
            write_width,
            self._keep_noisy,
        )

    def _run(self, text: str, together: int) -> list[list[Any]]:
        find_ends = partial(find_span, together=together)
        tables = list_public(self._query.public)
        tables += [table.write_rows(find_ends) for table in self._tables]
        rows = PROCESS.run(tables, text, self._seconds).rows
        assert self._shape is not None
        width = len(self._shape.columns)
        # The columns beside values must change none of them, and no row's place.
        if self._rows is not None and [row[:width] for row in rows] != [
            list(row) for row in self._rows
        ]:
            raise RuleMissing
        return rows

    def _rows_at(self, together: int) -> list[list[Any]]:
        if together not in self._known:
            text = self._text
            if self._has_sums:
                tree, _ = NoiseRules(self._make_released(together)).apply(self._query.tree)
                text = write_sql(tree)
            self._known[together] = self._run(text, together)
        return self._known[together]

    def find_column(self, position: int) -> ColumnIntervals:
        """The intervals of a column."""
        assert self._shape is not None and self._released is not None
        noise = self._shape.columns[position].noise
        choosers = self._shape.chosen
        if not noise.noisy:
            return ColumnIntervals(False)
        if not noise.ruled:
            return ColumnIntervals(True, noise.sources)
        if choosers and self._released.reads_published(noise.sources | choosers):
            # A published number may be a released one: what its noise chose may be any row.
            choosers = self._released.everything
        width = len(self._shape.columns)
        start = width + _BESIDE * sum(self._shape.list_ruled()[:position])
        counts = [int(row[start + 2] or 0) for row in self._known[1]]
        together = min(
            max(counts, default=0) + self._released.count_numbers(choosers),
            self._released.count_numbers(noise.sources | choosers),
        )
        numbers = self.list_numbers(noise.sources)
        # An answer without rows needs none; and published intervals are those of one number.
        is_single = not together or self._released.reads_published(noise.sources)
        widened = not is_single and all(
            n.width(together) is not None for n in numbers if n.value is not None
        )
        held = 95 if widened else 100 - 5 * together
        taken = together if widened and together else 1
        if not together or held < 50:
            return ColumnIntervals(True, noise.sources, together, taken)
        rows = self._rows_at(taken)
        values = [row[position] for row in rows]
        spans = [_read_span(row, position, start) for row in rows]
        confidence = held if any(span is not None for span in spans) else None
        return ColumnIntervals(True, noise.sources, together, taken, confidence, values, spans)

    def list_numbers(self, sources: frozenset[Source]) -> list[Number]:
        """All released numbers of columns."""
        tables = self._tables
        return [
            number for i, n in sorted(sources) if i < len(tables) for number in tables[i].numbers[n]
        ]


def list_public(tables: Sequence[RowTable]) -> list[RowTable]:
    """Public tables with the ends of intervals beside what was published with some."""
    ends = (LOW, HIGH, COUNT)
    return [one.write_rows(ends) if isinstance(one, PublishedRows) else one for one in tables]


def _read_span(row: Sequence[Any], position: int, start: int) -> tuple[float, float] | None:
    value, low, high = row[position], row[start], row[start + 1]
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or low is None or high is None:
        return None
    # Not a number where infinite ends were subtracted, and in no order then.
    return (float(low), float(high)) if low <= high else None
