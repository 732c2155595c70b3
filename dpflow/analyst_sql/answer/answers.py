"""The answer of a query, computed from released numbers in DuckDB."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from itertools import product
from typing import Any

from dpflow.analyst_sql.answer.guarded_query import guard_query
from dpflow.analyst_sql.answer.sql_answer import (
    AnswerColumn,
    IntervalKind,
    Origin,
    Released,
    SqlAnswer,
    number_name,
    plan_kind,
    write_text,
)
from dpflow.analyst_sql.answer.sql_plan import SqlPlan
from dpflow.analyst_sql.noise.noise_intervals import (
    ColumnIntervals,
    find_noise,
    find_noisy,
)
from dpflow.analyst_sql.noise.released_tables import ReleasedTable, make_tables
from dpflow.analyst_sql.parse.select_query import (
    SelectQuery,
    SplitQuery,
    write_sql,
)
from dpflow.analyst_sql.releases.cells import Cells, Number
from dpflow.core.contract.result_fields import clip_number
from dpflow.core.contract.results import NO_VALUE, UNLIMITED, ValueRange
from dpflow.errors import QueryFailed
from dpflow.tables.public.query_process import PROCESS, QueryRejected, QueryResult


def compute_answer(
    plan: SqlPlan,
    cells: Callable[[SelectQuery], Cells],
    origins: Sequence[Origin],
    notes: Sequence[str],
    has_intervals: bool = True,
) -> SqlAnswer:
    """All that is computed from released numbers, in DuckDB; with intervals where a rule covers them.

    An interval of several released numbers holds when all of theirs do. So each is taken at a smaller
    failure probability, or, where that is not known, the failures are added. Where noise chose the rows, as
    HAVING or LIMIT do, it is taken so that those of all that might have been chosen hold: the largest of
    many numbers is the one whose noise is likely to be large.

    Total intervals follow from those of released numbers in the same way.

    All of it is computed from numbers as they were drawn; only the answer's own are clipped to their
    public ranges.

    Args:
        has_intervals: state intervals; without them its numbers are of several states of the rows.

    Raises:
        QueryFailed: DuckDB cannot compute it from these numbers, not even as NULL.
        QueryStopped: it took too long, or too much memory.
        TableBusy: a source's catalogue, which says what keys are, cannot be read now.
    """
    tables: Sequence[ReleasedTable] = make_tables(plan.query, cells, plan.keys)
    tables, query, result = run_query(tables, plan.query)
    if query is not plan.query:
        notes = [*notes, GUARDED]
    noise = find_noise(query, tables, result.rows)
    intervals, of_totals, ranges = noise.intervals, noise.totals, noise.ranges
    width = len(result.columns)
    has_noise = find_noisy(plan.query, tables, intervals if query is plan.query else None)
    if has_noise is None or len(has_noise) != width:
        has_noise = [True] * width
    if intervals is None or len(intervals) != width:
        # Also where an item is several columns, as a struct that is unnested: nothing says which is which.
        of_totals, ranges = None, [[UNLIMITED] * len(result.rows)] * width
        everything = frozenset(
            (n, j) for n, table in enumerate(tables) for j in range(len(table.numbers))
        )
        intervals = [ColumnIntervals(True, everything) for _ in result.columns]
    if not has_intervals:
        intervals, of_totals = [replace(one, confidence=None) for one in intervals], None
    columns: list[AnswerColumn] = []
    computed: list[list[Released]] = []
    for position, ((name, computed_kind), one) in enumerate(zip(result.columns, intervals)):
        drawn = [row[position] for row in result.rows]
        is_exact = computed_kind.startswith("DECIMAL") and _has_digits(query, one)
        kind, values = (
            read_decimals(computed_kind, drawn, result.exact, position)
            if is_exact
            else read_values(computed_kind, drawn)
        )
        kind = plan_kind(plan.kinds[position], kind, computed_kind)
        if kind == "TIMESTAMP":
            values = [
                dt.datetime(one.year, one.month, one.day) if type(one) is dt.date else one
                for one in values
            ]
        known = one.confidence is not None
        spans = one.spans if known else [None] * len(values)
        interval: IntervalKind = "stated" if known else "no interval" if one.noisy else "exact"
        limits = ranges[position] if result.rows else []
        if is_exact:
            # No noise was added to the numbers that it is computed from: they are values in their ranges.
            limits = [UNLIMITED] * len(values)
        cells_of = [_clip_value(*cell, one.noisy) for cell in zip(values, spans, limits)]
        statistic = query.find_number(position, len(result.columns))
        if of_totals is not None and of_totals[position].confidence == 95:
            cells_of = [
                _add_total(*cell) for cell in zip(cells_of, of_totals[position].spans, limits)
            ]
        is_bounded = statistic is not None and plan.states_bounds(*statistic)
        if statistic is not None and is_bounded:
            number = cells(statistic[0]).get((), {}).get(statistic[1])
            cells_of = [_add_bounds(cell, number, kind) for cell in cells_of]
        clipped = sum(cell.clipped for cell in cells_of)
        has_total = any(cell.total is not None for cell in cells_of)
        total: IntervalKind = "stated" if has_total else "no interval" if one.noisy else "exact"
        name = number_name({column.name.casefold() for column in columns}, name)
        columns.append(
            AnswerColumn(
                name,
                kind,
                one.confidence,
                interval,
                clipped,
                total,
                is_bounded,
                has_noise[position],
            )
        )
        computed.append(cells_of)
    marked = [
        f"{column.name}: at least {column.confidence} % noise interval"
        for column in columns
        if column.confidence not in (None, 95)
    ]
    marked += [
        f"{column.name}: {column.clipped} of {len(result.rows)} values or intervals clipped to what is possible"
        for column in columns
        if column.clipped
    ]
    sums = [
        column.name
        for n, column in enumerate(columns)
        if column.total == "stated" and query.find_number(n, len(columns)) is None
    ]
    if sums:
        marked.append(
            f"total intervals of {', '.join(sums)} follow from those of released numbers; rows without declared keys are in no "
            f"sum of groups"
        )
    sources = frozenset[tuple[int, int]]().union(*(one.sources for one in intervals))
    remarks = _list_remarks(query, tables, sources)
    if not all(known for table in tables for filled in table.filled.values() for known in filled):
        remarks.add(NO_VALUE)
    protected = dict.fromkeys(one.table.protection_text for one in query.list_releases())
    return SqlAnswer(
        tuple(columns),
        tuple(zip(*computed)) if result.rows else (),
        tuple(origins),
        "; ".join(protected),
        (*notes, *marked, *sorted(filter(None, remarks))),
        any(one.chosen for one in intervals),
    )


def _list_remarks(
    query: SplitQuery, tables: Sequence[ReleasedTable], sources: frozenset[tuple[int, int]]
) -> set[str]:
    """Remarks of the released numbers that an answer is computed from. Those of a quantile begin with its text; of those
    about its rank in several groups only the widest is told, which holds for each.
    """
    remarks, widest = set[str](), dict[tuple[str, str], tuple[float, str]]()
    for n, j in sources:
        if n >= len(tables):
            continue
        aggregate = query.releases[n].aggregates[j] if n < len(query.releases) else None
        is_quantile = aggregate is not None and aggregate.kind == "quantile"
        for remark in filter(None, {number.remark for number in tables[n].numbers[j]}):
            text = f"{aggregate}: {remark}" if is_quantile else remark
            if rank := _RANK.search(text):
                name = text[: rank.start()], text[rank.end() :]
                widest[name] = max(widest.get(name, (0.0, "")), (float(rank[1]), text))
            else:
                remarks.add(text)
    return remarks | {text for _, text in widest.values()}


def _has_digits(query: SplitQuery, column: ColumnIntervals) -> bool:
    """Whether the digits of a decimal column are values' own: none comes from a number with added noise."""
    releases = query.releases
    return not column.noisy or all(
        n < len(releases) and releases[n].aggregates[j].kind in ("quantile", "mode")
        for n, j in column.sources
    )


def _clip_value(
    value: Any, span: tuple[float, float] | None, limits: ValueRange, noisy: bool
) -> Released:
    number = clip_number(value, span, limits) if isinstance(value, int | float) else None
    if number is None:
        return Released(value, None, None, noisy, False, value)
    low, high = number.noise_low, number.noise_high
    return Released(number.value, low, high, noisy, number.clipped, value, span)


def _add_total(cell: Released, span: tuple[float, float] | None, limits: ValueRange) -> Released:
    if span is None or not isinstance(cell.value, int | float):
        return cell
    return replace(cell, total=(limits.clip(span[0]), limits.clip(span[1])))


def _add_bounds(cell: Released, quantile: Number | None, kind: str) -> Released:
    """A value with the bounds of the released quantile that it is, in the type of its column."""
    if quantile is None:
        return cell
    writers: Mapping[str, Callable[[Any], Any]] = {"VARCHAR": write_text, "DOUBLE": float}
    writers = {**writers, "DATE": dt.date.fromisoformat, "TIMESTAMP": dt.datetime.fromisoformat}
    is_decimal = kind.startswith("DECIMAL")
    write = (lambda end: Decimal(str(end))) if is_decimal else writers.get(kind, int)
    ends = []
    for end in quantile.bounds or (None, None):
        try:
            ends.append(None if end is None else write(end))
        except ValueError:
            # A time that Python does not have.
            ends.append(end)
    return replace(cell, bounds=(ends[0], ends[1]), only_a_bound=quantile.only_a_bound)


#: How far off a rank is, in a remark.
_RANK = re.compile(r"is within ([0-9.]+) %")
#: What is said of an answer where DuckDB fails on the numbers that were drawn.
GUARDED = (
    "DuckDB cannot compute all of the query from what was released: what fails is NULL, as in TRY(...), also inside of "
    "aggregates and conditions"
)


def run_query(
    tables: Sequence[ReleasedTable], query: SplitQuery
) -> tuple[Sequence[ReleasedTable], SplitQuery, QueryResult]:
    """A query's rows, with the tables and the query that have them: where it fails as it is written, expressions
    that fail are NULL (`guard_query`).

    Raises:
        QueryFailed: it fails all the same.
        QueryStopped: it took too long, or too much memory.
    """
    planned = [table.with_planned_kinds() for table in tables]
    failure = ""
    for guards, tried in product((None, False, True), (tables, planned)):
        if tried is planned and planned == list(tables):
            continue
        rows = [*query.public, *(table.write_rows() for table in tried)]
        try:
            if guards is None:
                return tried, query, PROCESS.run(rows, query.sql)
            tree = guard_query(query.tree, PROCESS.list_aggregates(), tries_joins=guards)
            names = [name for name, _ in PROCESS.describe(rows, query.sql).columns]
            result = PROCESS.run(rows, write_sql(tree))
            kinds = [kind for _, kind in result.columns]
            columns = list(zip(names, kinds, strict=True))
            return tried, replace(query, tree=tree), replace(result, columns=columns)
        except QueryRejected as error:
            # Its text may quote released values.
            failure = failure or error.name or error.kind
    raise QueryFailed(
        f"DuckDB cannot compute the query from what was released ({failure}); that is settled and stored, so a query that "
        f"guards the expression, such as TRY(...), is free"
    )


def read_decimals(
    kind: str, cells: Sequence[Any], exact: Mapping[tuple[int, int], str], position: int
) -> tuple[str, list[Any]]:
    """A column of decimals: one whose type has more digits than a double writes is one of an answer, too."""
    width = int(kind.removeprefix("DECIMAL(").partition(",")[0])
    if width <= 15:
        return "DOUBLE", list(cells)
    return kind, [
        None if cell is None else Decimal(exact.get((row, position), repr(cell)))
        for row, cell in enumerate(cells)
    ]


def read_values(kind: str, values: Sequence[Any]) -> tuple[str, list[Any]]:
    """A column of DuckDB's as one of an answer: its type, and its values."""
    base = kind.partition("(")[0]
    if kind.endswith("]") or base in ("MAP", "STRUCT", "UNION"):
        return "VARCHAR", list(values)
    if base == "BOOLEAN":
        return "BOOLEAN", list(values)
    if base.endswith("INT") or base in ("INTEGER", "BIGNUM"):
        # An answer's widest integers are those that 38 digits write.
        kinds = ((-(2**63), 2**63, "BIGINT"), (1 - 10**38, 10**38, "HUGEINT"))
        numbers = [value for value in values if value is not None]
        held = (one for low, end, one in kinds if all(low <= number < end for number in numbers))
        held_by = next(held, "DOUBLE")
        if held_by == "DOUBLE":
            return held_by, [None if value is None else float(value) for value in values]
        return held_by, list(values)
    if base in ("DOUBLE", "FLOAT", "DECIMAL"):
        return "DOUBLE", list(values)
    if base == "DATE" or base.startswith("TIMESTAMP"):
        read = dt.date.fromisoformat if base == "DATE" else dt.datetime.fromisoformat
        try:
            times = [None if value is None else read(value) for value in values]
        except ValueError:
            # Beyond the years that Python has.
            return "VARCHAR", list(values)
        return ("DATE" if base == "DATE" else "TIMESTAMP"), times
    return "VARCHAR", list(values)
