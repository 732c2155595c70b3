"""The noise intervals of an answer: the query is run again beside columns for them, and the widths of all
released numbers are those that hold for as many together as a value needs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from sqlglot import exp

from dpflow.analyst_sql.noise.expression_intervals import EXACT, Known, Source
from dpflow.analyst_sql.noise.noise_relations import (
    COUNT,
    HIGH,
    LOW,
    ROW,
    ReleasedNoise,
    RuleMissing,
    Shape,
)
from dpflow.analyst_sql.noise.noise_rules import NoiseRules
from dpflow.analyst_sql.noise.released_tables import (
    FindEnds,
    ReleasedTable,
    find_limits,
    find_span,
    find_total_span,
    write_shortfall,
    write_sum_width,
)
from dpflow.analyst_sql.parse.parsed_parts import iterate_parts
from dpflow.analyst_sql.parse.select_query import SplitQuery, write_sql
from dpflow.analyst_sql.releases.cells import (
    Number,
)
from dpflow.core.contract.results import UNLIMITED, ValueRange
from dpflow.errors import QueryStopped
from dpflow.tables.public.published_rows import PublishedRows
from dpflow.tables.public.query_process import PROCESS, QueryRejected, RowTable
from dpflow.tables.public.query_worker import SCHEMA

#: Columns of one value beside which it has an interval: low, high, count.
_BESIDE = 3
#: Reads the ends of a column from a row; Nones where it has none.
ReadEnds = Callable[[Sequence[Any]], tuple[Any, Any]]
#: More rows than a LIMIT keeps.
_ANY_ROWS = 2**63
#: Stand at the end of names of columns with public ranges, and before the level of those with total intervals.
_RANGES, _TOTALS = "r", "t"


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


@dataclass(frozen=True)
class AnswerNoise:
    """What is known of an answer's noise.

    Attributes:
        intervals: of each column; None where no rule covers the query.
        totals: the same of noise and truncation; None also where no number has one. Those of a column without
            published numbers hold as its confidence says.
        ranges: the public range of each value, by column.
    """

    intervals: list[ColumnIntervals] | None
    totals: list[ColumnIntervals] | None
    ranges: list[list[ValueRange]]


def find_noise(
    query: SplitQuery, tables: Sequence[ReleasedTable], rows: Sequence[Sequence[Any]]
) -> AnswerNoise:
    """What is known of an answer's noise, by the fewest runs.

    Args:
        rows: the answer's rows, which those with columns for intervals must repeat.
    """
    numbers = [one for table in tables for column in table.numbers for one in column]
    premises = frozenset[str]().union(*(one.premises for one in numbers))
    is_limited = bool(premises) if any(one.total for one in numbers) else None
    try:
        # Where all rest on one premise, rules are the same for both kinds of intervals.
        if len(premises) <= 1:
            found = _Runs(query, tables, rows).read_at_once(is_limited, with_ranges=True)
            if found is not None:
                return found
    except (RuleMissing, QueryRejected, QueryStopped):
        pass
    totals = None
    if is_limited is not None:
        totals = _Runs(query, tables, rows, is_limited=is_limited).read()
    return AnswerNoise(
        find_intervals(query, tables, rows), totals, find_ranges(query, tables, rows)
    )


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
    return _Runs(query, tables, rows, keep_noisy, seconds).read()


def find_noisy(
    query: SplitQuery, tables: Sequence[ReleasedTable], found: Sequence[ColumnIntervals] | None
) -> list[bool] | None:
    """For each column whether noise may be in it, by the query alone: whatever rows and NULLs noise makes. None where no
    rule covers the query.

    Args:
        found: the intervals of its columns, if it was run as it is written.
    """
    # Nothing else is exact or not by what is drawn.
    may_change = any(
        isinstance(part, exp.Count)
        or (isinstance(part, exp.Limit | exp.Offset) and part.parent is not query.tree)
        for part in iterate_parts(query.tree)
    )
    if found is not None and not may_change:
        return [one.noisy for one in found]
    described = [
        replace(
            table.describe(),
            rows=_ANY_ROWS,
            hidden=[one.kind not in ("count", "values", "units") for one in release.aggregates],
        )
        for table, release in zip(tables, query.releases)
    ]
    rules = NoiseRules(ReleasedNoise(described, PROCESS.list_aggregates(), query.public))
    try:
        columns = rules.read_outer(rules.copy(query.tree)).columns
    except RuleMissing:
        return None
    return [one.noise.noisy for one in columns]


def find_ranges(
    query: SplitQuery, tables: Sequence[ReleasedTable], rows: Sequence[Sequence[Any]]
) -> list[list[ValueRange]]:
    """The public range of each value of an answer, by column: what it can be whatever the private rows
    are, by the same rules as the intervals, from the public ranges of the released numbers.
    """
    unlimited = [[UNLIMITED] * len(rows) for _ in (rows[0] if rows else ())]
    try:
        tree, shape = NoiseRules(_make_range_noise(query, tables)).apply(query.tree)
        if not any(shape.list_ruled()):
            return unlimited
        ends = [*query.public, *(table.write_rows({"": find_limits}) for table in tables)]
        found = PROCESS.run(ends, write_sql(tree, copy=False)).rows
    except (RuleMissing, QueryRejected, QueryStopped):
        return unlimited
    width = len(shape.columns)
    if [row[:width] for row in found] != [list(row) for row in rows]:
        return unlimited
    starts = _list_starts(shape)
    return _read_ranges(found, [_read_at(start) if start else _read_nothing for start in starts])


def _has_quotient(item: Any) -> bool:
    """Whether the public range of a column may have rules of its own, as means and quotients have, also by their names."""
    return any(
        isinstance(part, exp.Div) or (isinstance(part, exp.Column) and not part.table)
        for part in iterate_parts(item)
    )


def _make_range_noise(query: SplitQuery, tables: Sequence[ReleasedTable]) -> ReleasedNoise:
    """What rules read where the ends of columns are those of public ranges."""
    means = {
        (n, j): limits
        for n, table in enumerate(tables)
        for j, limits in table.find_mean_limits().items()
    }
    # A sum of cells is between the sums of their ends, however many there are.
    described = [replace(one, cells=[0] * len(one.cells)) for one in (t.describe() for t in tables)]
    return ReleasedNoise(described, PROCESS.list_aggregates(), query.public, mean_limits=means)


def _list_starts(shape: Shape) -> list[int]:
    """For each column where what stands beside it begins in a row; 0 where nothing does."""
    ruled = shape.list_ruled()
    return [
        len(ruled) + _BESIDE * sum(ruled[:position]) if is_ruled else 0
        for position, is_ruled in enumerate(ruled)
    ]


def _read_nothing(row: Sequence[Any]) -> tuple[None, None]:
    """Of a column without ends."""
    return None, None


def _read_at(start: int) -> ReadEnds:
    """What reads ends that stand in a row from a place on."""
    return lambda row: (row[start], row[start + 1])


def _read_ranges(
    rows: Sequence[Sequence[Any]], readers: Sequence[ReadEnds]
) -> list[list[ValueRange]]:
    return [
        [_read_range(row[position], *read_ends(row)) for row in rows]
        for position, read_ends in enumerate(readers)
    ]


def _read_range(value: Any, low: Any, high: Any) -> ValueRange:
    span = _read_span(value, low, high)
    if span is None:
        return UNLIMITED
    ends = (None if math.isinf(end) else end for end in span)
    return ValueRange(*ends)


class _Runs:
    """Runs of a query with columns for intervals, by how many numbers hold together; for total intervals where it
    is said whether released limits take half of the failures.
    """

    def __init__(
        self,
        query: SplitQuery,
        tables: Sequence[ReleasedTable],
        rows: Sequence[Sequence[Any]] | None,
        keep_noisy: bool = False,
        seconds: float | None = None,
        is_limited: bool | None = None,
    ) -> None:
        self._is_limited = is_limited
        self._query, self._tables, self._rows = query, tables, rows
        self._keep_noisy, self._seconds = keep_noisy, seconds
        self._has_sums, self._adds_widths = False, False
        self._released = self._make_released(1)
        self._tree: Any = None
        self._shape = Shape([])

    def _make_released(self, together: int) -> ReleasedNoise:
        tables = self._tables

        def write_width(source: Source, count: Any) -> Any:
            self._has_sums = True
            release, number = source
            numbers = tables[release].numbers[number]
            width = write_sum_width(numbers, together * (1 + bool(self._is_limited)), count)
            if self._is_limited is None:
                return width, width.copy()
            below, above = write_shortfall(numbers[0], count)
            return exp.Add(this=width, expression=below), exp.Add(
                this=width.copy(), expression=above
            )

        return ReleasedNoise(
            [table.describe() for table in tables],
            PROCESS.list_aggregates(),
            self._query.public,
            None if self._adds_widths else write_width,
            self._keep_noisy,
            is_total=self._is_limited is not None,
        )

    def _find_ends(self, together: int) -> FindEnds:
        """What finds the ends of numbers of which as many hold together."""
        if self._is_limited is None:
            return partial(find_span, together=together)
        return partial(find_total_span, together=together, is_limited=self._is_limited)

    def _read_rules(self) -> None:
        if self._tree is None:
            rules = NoiseRules(self._released)
            self._tree = rules.copy(self._query.tree)
            self._shape = rules.read_outer(self._tree)
            if self._has_sums and (self._shape.chosen or self._released.ranks):
                # Which of many sums noise chose nobody counts; what follows from the widths of all cells holds of each.
                self._has_sums, self._adds_widths, self._tree = False, True, None
                self._released = self._make_released(1)
                self._read_rules()

    def read(self) -> list[ColumnIntervals] | None:
        """The intervals of each column, by the fewest runs; None where no rule covers the query."""
        try:
            found = self.read_at_once()
            return self.read_levels() if found is None else found.intervals
        except (RuleMissing, QueryRejected, QueryStopped):
            return None

    def read_at_once(
        self, is_limited: bool | None = None, with_ranges: bool = False
    ) -> AnswerNoise | None:
        """All that is known by one run, each column at its own level: of a SELECT of one release's rows as they are, where
        the query says how many numbers a value needs. None of any other.

        Args:
            is_limited: released limits take half of the failures of total intervals; None where none is known.
        """
        if not _reads_one_table(self._query.tree):
            return None
        self._read_rules()
        noises = [column.noise for column in self._shape.columns]
        counts = [_count_static(noise.count) if noise.ruled else 0 for noise in noises]
        if self._has_sums or None in counts:
            return None
        is_empty = self._rows is not None and not self._rows
        planned = [
            self._plan_column(position, 0 if is_empty else count or 0)
            for position, count in enumerate(counts)
        ]
        ranges = [EXACT] * len(planned)
        if with_ranges:
            # All but those of quotients are by the same rules.
            have_quotients = list(map(_has_quotient, self._tree.expressions))
            released = _make_range_noise(self._query, self._tables)
            assert self._shape.reread is not None
            own = self._shape.reread(released, have_quotients)
            ranges = [a if one else b for one, a, b in zip(have_quotients, own, noises)]
        alias = self._tree.args["from_"].this.alias_or_name
        row_number = exp.column(ROW, table=exp.to_identifier(alias, quoted=True), quoted=True)
        beside: list[Any] = [row_number]
        wanted: set[str] = {ROW}
        levels: dict[str, FindEnds] = {}

        def add_ends(
            position: int, noise: Known, level: str, find_ends: FindEnds, is_last: bool
        ) -> ReadEnds:
            """What reads the ends of a column from a row, computed of those of a level."""
            if (cell := self._shape.columns[position].cell) is not None:
                # What stands in a released row has the ends of that row's number.
                known = list(map(find_ends, self._tables[cell[0]].numbers[cell[1]]))
                return lambda row: known[row[len(planned)]]
            levels[level] = find_ends
            # Those of other levels stand beside them under other names.
            ends = [end if is_last else end.copy() for end in (noise.low, noise.high)]
            wanted.update(_name_level(ends, level))
            beside.extend(ends)
            return _read_at(len(planned) + len(beside) - 2)

        def add_all(
            name: str, noises: Iterable[Known], find_ends: Callable[[int], FindEnds]
        ) -> list[ReadEnds]:
            return [
                add_ends(position, noise, f"{name}{one.taken}", find_ends(one.taken), not name)
                if one.confidence is not None
                else _read_nothing
                for position, (noise, one) in enumerate(zip(noises, planned))
            ]

        readers = []
        if is_limited is not None:
            find_total = partial(partial, find_total_span, is_limited=is_limited)
            readers.append(add_all(_TOTALS, noises, lambda many: find_total(together=many)))
        limits = [
            add_ends(position, one, _RANGES, find_limits, one is not noises[position])
            if one.ruled
            else _read_nothing
            for position, one in enumerate(ranges)
        ]
        readers.append(add_all("", noises, self._find_ends))
        if self._rows is None or any(
            one is not _read_nothing for listed in (*readers, limits) for one in listed
        ):
            self._tree.set("expressions", [*self._tree.expressions, *beside])
            rows = self._run(write_sql(self._tree, copy=False), levels, wanted)
        else:
            rows = [list(row) for row in self._rows]
        *totals, intervals = (
            [
                self._fill_column(column, rows, position, listed[position])
                for position, column in enumerate(planned)
            ]
            for listed in readers
        )
        return AnswerNoise(intervals, totals[0] if totals else None, _read_ranges(rows, limits))

    def read_levels(self) -> list[ColumnIntervals]:
        """The intervals of each column, by a run for each level."""
        self._read_rules()
        self._shape.attach(self._shape.list_ruled())
        starts = _list_starts(self._shape)
        known: dict[int, list[list[Any]]] = {}
        first = write_sql(self._tree)

        def rows_at(together: int) -> list[list[Any]]:
            if together not in known:
                text = first
                # Its text is one for all of them unless it has widths of sums.
                if self._has_sums and together > 1:
                    released = self._make_released(together)
                    text = write_sql(NoiseRules(released).apply(self._query.tree)[0])
                known[together] = self._run(text, {"": self._find_ends(together)})
            return known[together]

        columns = []
        for position, start in enumerate(starts):
            counts = [int(row[start + 2] or 0) for row in (rows_at(1) if start else ())]
            column = self._plan_column(position, max(counts, default=0))
            if column.confidence is not None:
                column = self._fill_column(column, rows_at(column.taken), position, _read_at(start))
            columns.append(column)
        return columns

    def _run(
        self, text: str, levels: Mapping[str, FindEnds], wanted: Collection[str] | None = None
    ) -> list[list[Any]]:
        tables = list_public(self._query.public)
        tables += [table.write_rows(levels, wanted) for table in self._tables]
        rows = PROCESS.run(tables, text, self._seconds).rows
        width = len(self._shape.columns)
        # The columns beside values must change none of them, and no row's place.
        if self._rows is not None and [row[:width] for row in rows] != [
            list(row) for row in self._rows
        ]:
            raise RuleMissing
        return rows

    def _plan_column(self, position: int, count: int) -> ColumnIntervals:
        """How many numbers a column's intervals need together, without its values.

        Args:
            count: the most that one value of it needs.
        """
        noise, choosers = self._shape.columns[position].noise, self._shape.chosen
        chosen = self._shape.selected or bool(choosers)
        if not noise.noisy:
            return ColumnIntervals(False, chosen=chosen)
        if not noise.ruled:
            return ColumnIntervals(True, noise.sources, chosen=chosen)
        if choosers and not self._released.rests_on_one(noise.sources | choosers):
            return ColumnIntervals(True, noise.sources, chosen=chosen)
        if choosers and self._released.reads_published(noise.sources | choosers):
            # A published number may be a released one: what its noise chose may be any row.
            choosers = self._released.everything
        together = count + self._released.count_numbers(choosers)
        if not self._has_sums:
            # All bounds follow from those of all numbers. A sum's own width does not: each sum is one more.
            together = min(together, self._released.count_numbers(noise.sources | choosers))
        numbers = self._list_numbers(noise.sources)
        # An answer without rows needs none; and published intervals are those of one number.
        is_single = not together or self._released.reads_published(noise.sources)
        widened = not is_single and all(
            n.width(together) is not None for n in numbers if n.value is not None
        )
        held = 95 if widened else 100 - 5 * together
        taken = together if widened and together else 1
        confidence = held if together and held >= 50 else None
        return ColumnIntervals(True, noise.sources, together, taken, confidence, chosen=chosen)

    def _fill_column(
        self,
        column: ColumnIntervals,
        rows: Sequence[Sequence[Any]],
        position: int,
        read_ends: ReadEnds,
    ) -> ColumnIntervals:
        """The column with values and intervals of rows."""
        if column.confidence is None:
            return column
        values = [row[position] for row in rows]
        spans = [_read_span(row[position], *read_ends(row)) for row in rows]
        is_known = any(span is not None for span in spans)
        confidence = column.confidence if is_known else None
        return replace(column, confidence=confidence, values=values, spans=spans)

    def _list_numbers(self, sources: frozenset[Source]) -> list[Number]:
        """All released numbers of columns."""
        tables = self._tables
        return [
            number for i, n in sorted(sources) if i < len(tables) for number in tables[i].numbers[n]
        ]


def _reads_one_table(tree: Any) -> bool:
    """Whether a query is a SELECT that reads a release's table and nothing else."""
    source = tree.args.get("from_")
    if source is None or tree.args.get("joins") or tree.args.get("with_"):
        return False
    is_released = isinstance(source.this, exp.Table) and source.this.db == SCHEMA
    return is_released and sum(isinstance(part, exp.Query) for part in iterate_parts(tree)) == 1


def _count_static(part: Any) -> int | None:
    """How many numbers a value needs in each row, where that is in no row of a table; None where it is."""
    if isinstance(part, exp.Literal):
        return int(part.this)
    if isinstance(part, exp.Add):
        sides = [_count_static(part.this), _count_static(part.expression)]
        return None if None in sides else sum(side or 0 for side in sides)
    # Of a released number it is 1.
    is_number = isinstance(part, exp.Coalesce) and isinstance(part.this, exp.Column)
    return 1 if is_number and part.this.name.endswith(COUNT) else None


def _name_level(ends: Sequence[Any], level: str) -> Iterator[str]:
    """Give the columns that ends are computed of the names of a level, and list these."""
    for node in (part for end in ends for part in iterate_parts(end)):
        if isinstance(node, exp.Column) and node.name.endswith((LOW, HIGH)):
            node.this.set("this", node.name + level)
            yield node.name


def list_public(tables: Sequence[RowTable]) -> list[RowTable]:
    """Public tables with the ends of intervals beside what was published with some."""
    ends = (LOW, HIGH, COUNT)
    return [one.write_rows(ends) if isinstance(one, PublishedRows) else one for one in tables]


def _read_span(value: Any, low: Any, high: Any) -> tuple[float, float] | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or low is None or high is None:
        return None
    # Not a number where infinite ends were subtracted, and in no order then.
    return (float(low), float(high)) if low <= high else None
