"""A planned query, and what EXPLAIN says of it: how it would be answered, what it would cost and how
exact it would be. Reads no row and charges nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from sqlglot import exp

from dpflow.analyst_sql.answer.sql_answer import SqlAnswer, write_text
from dpflow.analyst_sql.noise.noise_forecast import ColumnNoise, forecast_noise
from dpflow.analyst_sql.noise.noise_intervals import ColumnIntervals
from dpflow.analyst_sql.parse.aggregate_reader import TAIL
from dpflow.analyst_sql.parse.select_query import (
    SelectQuery,
    SplitQuery,
    SqlAggregate,
    find_sources,
    join_conditions,
)
from dpflow.analyst_sql.parse.text_and_options import SourceText
from dpflow.analyst_sql.parse.value_columns import describe_missing
from dpflow.analyst_sql.releases.cells import find_measure, find_release, make_width
from dpflow.analyst_sql.releases.grouping_levels import AddedLevel
from dpflow.analyst_sql.releases.query_parts import PartPlan
from dpflow.analyst_sql.releases.settings import Settings
from dpflow.analyst_sql.releases.stored_answers import Stored
from dpflow.analyst_sql.releases.typed_keys import KeyReader
from dpflow.core.contract.declaration import Table
from dpflow.core.contract.printed_numbers import print_bound
from dpflow.core.contract.results import Row
from dpflow.engine.releases.execute import check_scope, find_lock, require_certified
from dpflow.engine.releases.plan import Plan
from dpflow.errors import TableBusy
from dpflow.ledger import Ledger
from dpflow.tables.public.published_rows import PublishedRows

#: Of private keys: the count that shows a key is the one that is released.
CHOSEN_KEYS = (
    "groups with few units are not shown; of those near the threshold the ones with large noise are, so "
    "fewer than 95 % of their intervals hold"
)
_TAILS = (TAIL, 1 - TAIL)
#: Why a mechanism answers.
_REASONS = {
    "aggregates": "counts, sums, means and variances share one scan, one truncation and one cost",
    "private_aggregates": "a key is private, so noisy counts above a threshold select what is shown",
    "quantiles": "ranks have no bounded sum: the exponential mechanism draws a value of the column's grid",
    "cdf": "one distribution has all quantiles, and needs no bounds",
    "count_distinct": "a filter on units is a condition on rows of its own",
    "arg_max": "the most frequent key is chosen without releasing the counts",
    "histogram": "one count for each public key",
}


@dataclass(frozen=True, repr=False)
class SqlPlan:
    """A query with what would answer it; nothing was read or charged.

    Attributes:
        stored: for each part the stored release that answers it, or None.
        added: levels of a ROLLUP and the like that are added up from a part's answer.
        keys: reads keys as typed values.
        columns, kinds: names of the answer's columns, and DuckDB's types of them, whatever is drawn.
        levels: for each level what is done for it, and why.
        unpaid: why a part is paid although a finer release is there.
        source_problem: what kept a source of what is to pay from being checked; "" if nothing did.
        ledger: the one that it was planned with.
    """

    query: SplitQuery
    settings: Settings
    parts: tuple[PartPlan, ...]
    stored: tuple[Stored | None, ...]
    source: SourceText = field(repr=False)
    keys: KeyReader = field(repr=False, compare=False)
    columns: tuple[str, ...]
    kinds: tuple[str, ...]
    added: tuple[AddedLevel, ...] = ()
    levels: tuple[str, ...] = ()
    unpaid: tuple[str, ...] = ()
    source_problem: str = ""
    ledger: Ledger | None = field(default=None, repr=False, compare=False)

    def __repr__(self) -> str:
        costs = [plan.privacy_cost() for plan in self.to_pay]
        paid = ", ".join(f"epsilon {epsilon}, delta {delta}" for epsilon, delta in costs)
        names = ", ".join(table.name for table in self.tables)
        return f"SqlPlan({names}: {paid or 'free'}, from scope {self.settings.scope!r})"

    def forecast_noise(self) -> list[ColumnNoise] | None:
        """What is known of each column's noise before it is released; None where no rule covers the query."""
        return forecast_noise(self.query, self.keys, self.parts, self.stored, self.added)

    def count_rows(self) -> int | None:
        """How many rows the answer has at most, where public keys say so; None for joins, unions and private keys."""
        return self._count_rows(self.query.tree)

    def _count_rows(self, tree: Any) -> int | None:
        source = tree.args.get("from_") if isinstance(tree, exp.Select) else None
        items = [] if source is None else tree.selects
        if source is None or tree.args.get("joins") or any(one.find(exp.UDTF) for one in items):
            return None
        inner = source.this.this if isinstance(source.this, exp.Subquery) else None
        rows = self._count_groups(source.this) if inner is None else self._count_rows(inner)
        limit = tree.args.get("limit")
        is_number = isinstance(limit, exp.Limit) and limit.expression.is_int
        return min(rows, int(limit.expression.name)) if rows is not None and is_number else rows

    def _count_groups(self, source: Any) -> int | None:
        read = [self.query.releases[n] for table, n in find_sources(source) if table is source]
        for part in (one.part for one in self.parts):
            if read and read[0] in part.queries and not part.private:
                by = part.params.get("by")
                return 1 if by is None else len(part.table.public_keys(by))
        return None

    def explain(self, ledger: Ledger | None = None) -> dict[str, Any]:
        """Stages, privacy costs, errors and what is left, as JSON; ``forecast`` says whether the ledger
        would accept it.

        Args:
            ledger: by default the one that it was planned with.

        Raises:
            PlanRefused: a scope that protects something else.
        """
        forecast, budgets = _forecast(self, ledger or self.ledger)
        answered = zip(self.parts, self.stored)
        return {
            "tables": [table.name for table in self.tables],
            "stages": list(_list_stages(self)),
            "releases": [_describe_part(part, stored) for part, stored in answered],
            "columns": list(_describe_columns(self)),
            "protects": "; ".join(dict.fromkeys(table.protection_text for table in self.tables)),
            "scope": self.settings.scope,
            "notes": [*self.unpaid, *_list_notes(self)],
            "forecast": forecast,
            "budgets": budgets,
        }

    def find_part(
        self, select: SelectQuery, aggregate: SqlAggregate
    ) -> tuple[PartPlan, Stored | None] | None:
        """The part that releases an aggregate of a SELECT, and what is stored of it; None of a level that is added up."""
        pairs = zip(self.parts, self.stored)
        of_select = (one for one in pairs if select in one[0].part.queries)
        return next((one for one in of_select if aggregate in one[0].part.measures), None)

    def states_bounds(self, select: SelectQuery, aggregate: SqlAggregate) -> bool:
        """Whether the release of a quantile has values between which it lies beside it; such releases have no groups."""
        found = None if select.groups else self.find_part(select, aggregate)
        return found is not None and found[0].plan.mechanism.name == "cdf"

    @property
    def tables(self) -> list[Table]:
        """The declared tables that it reads, each once."""
        tables: dict[str, Table] = {}
        for query in self.query.list_releases():
            tables.setdefault(query.table.name, query.table)
        return list(tables.values())

    def describe_answer(self, answer: SqlAnswer) -> dict[str, Any]:
        """What may be said of this query's answer without its numbers."""
        return {
            "releases": answer.to_json()["releases"],
            "protects": answer.protects,
            "rows": len(answer.values),
            "scope": self.settings.scope,
            "blocks": self.read_blocks,
        }

    @property
    def block_text(self) -> str:
        """The blocks that it reads, each once, with commas between them."""
        return ",".join(self.read_blocks)

    @property
    def read_blocks(self) -> list[str]:
        """The blocks that it reads, sorted."""
        return sorted({block for part in self.parts for block in part.plan.read_blocks})

    @property
    def to_pay(self) -> list[Plan]:
        """The plans that no stored release answers."""
        return [part.plan for part, stored in zip(self.parts, self.stored) if stored is None]


def _forecast(plan: SqlPlan, ledger: Ledger | None) -> tuple[str, list[dict[str, Any]]]:
    if ledger is None:
        return plan.source_problem or "no ledger yet, so no forecast", []
    to_pay = plan.to_pay
    for one in to_pay:
        check_scope(one, ledger)
        require_certified(one, ledger)
    budgets = ledger.remaining(plan.settings.scope).rows()
    if not to_pay:
        return "free: stored releases answer it", budgets
    events = [one.event for one in to_pay]
    refusal = ledger.check(plan.settings.scope, events, to_pay[0].charged_blocks)
    refusal = refusal or find_lock(to_pay, ledger)
    return refusal or plan.source_problem or "the ledger would accept it now", budgets


def _list_stages(plan: SqlPlan) -> Iterator[str]:
    read: list[SelectQuery] = []
    for part in plan.parts:
        query = part.part.queries[0]
        if query not in read:
            read.append(query)
            yield _describe_rows(query.table, join_conditions(query.conditions), query.blocks)
        by = part.part.params.get("by")
        names = ", ".join(map(str, part.part.measures))
        yield (
            f"bound contributions: {part.plan.describe_contributions()}; "
            f"{part.part.mechanism}{f' by {by}' if by else ''}: {names}"
        )
    yield from plan.levels
    for one in plan.query.public:
        columns = ", ".join(name for name, _ in one.columns)
        kind = (
            f"published answer {one.answer}" if isinstance(one, PublishedRows) else "public table"
        )
        yield f"read the {kind}, {len(one.values[0])} rows of {columns}"
    yield f"compute from what was released, at no cost: {plan.query.describe()}"


def _describe_rows(table: Table, where: str | None, blocks: Sequence[str]) -> str:
    """Which rows are read, and what each unit's rows become."""
    condition = f" where {where}" if where else ""
    units = table.unit_rows
    if units is None:
        of_blocks = f", blocks {', '.join(blocks)}" if blocks else ""
        return f"read {table.name}{of_blocks}{condition}"
    keys = [name for name, _ in units.keys]
    each = " and ".join([table.privacy_unit.column, *keys])
    columns = [(name, table.columns[name]) for name in units.features]
    features = [
        f"{name} from {float(one.lower):g} to {float(one.upper):g}"
        if one.lower is not None and one.upper is not None and not one.holds_dates
        else name
        for name, one in columns
    ]
    below = _describe_rows(units.rows, units.where, units.blocks)
    made = f"one row for each {each}{': ' if features else ''}{', '.join(features)}"
    return f"{below}; make {made}{condition}"


def _describe_part(part: PartPlan, stored: Any) -> dict[str, Any]:
    epsilon, delta = part.plan.privacy_cost() if stored is None else ("0", "0")
    return {
        "mechanism": part.plan.mechanism.name,
        "why": _REASONS[part.plan.mechanism.name],
        "of": [str(aggregate) for aggregate in part.part.measures],
        "epsilon": epsilon,
        "delta": delta,
        "blocks": list(part.plan.read_blocks),
        "charged_blocks": list(part.plan.charged_blocks),
        "stored": None
        if stored is None
        else f"release {stored.record.release_id} of {stored.at.isoformat(sep=' ')}",
        "error": part.plan.error_bound.note if part.plan.error_bound else "",
    }


def _describe_columns(plan: SqlPlan) -> Iterator[dict[str, Any]]:
    """Each column with its noise; ``half_width_95`` is that of every interval of it, None where it hangs on
    what is released.
    """
    forecasts = None
    # Without its catalogue nothing says what type keys have.
    with suppress(TableBusy):
        forecasts = plan.forecast_noise()
    everything = ColumnIntervals(
        True,
        frozenset(
            (n, j) for n, one in enumerate(plan.query.releases) for j in range(len(one.aggregates))
        ),
    )
    # Their own histogram chooses how wide the noise is.
    is_open = any(one.histogram for one in plan.to_pay)
    for position, name in enumerate(plan.columns):
        forecast = None if forecasts is None else forecasts[position]
        if forecast is not None and is_open:
            forecast = replace(forecast, half_width_95=None)
        intervals = everything if forecast is None else forecast.intervals
        yield {
            "column": name,
            "type": plan.kinds[position],
            "noise": _describe_noise(plan, forecast, intervals),
            "half_width_95": forecast and forecast.half_width_95,
        }


def _describe_noise(plan: SqlPlan, forecast: ColumnNoise | None, intervals: ColumnIntervals) -> str:
    """The half-widths of what a column is computed from, as its intervals in the answer take them."""
    if not intervals.noisy:
        return "none"
    statistics = [
        (plan.query.releases[n], plan.query.releases[n].aggregates[j])
        for n, j in sorted(intervals.sources)
        if n < len(plan.query.releases)
    ]
    source = plan.query.tree.args.get("from_")
    is_direct = source is not None and isinstance(source.this, exp.Table) and bool(source.this.db)
    of_rows = "" if is_direct else " in each released row"
    lines = list(
        dict.fromkeys(
            f"{aggregate} {_describe_width(aggregate, select, plan, intervals.taken)}{of_rows}"
            for select, aggregate in statistics
        )
    )
    if any(n >= len(plan.query.releases) for n, _ in intervals.sources):
        lines.append("published numbers as they were published")
    if forecast is None:
        return "; ".join([*lines, "wider where noise chooses rows"])
    if forecast.half_width_95 is not None:
        if len(lines) > 1 or of_rows:
            lines.append(f"the column +- {print_bound(forecast.half_width_95, upper=True)}")
    elif not intervals.together:
        lines.append("the column has no interval")
    if intervals.confidence not in (95, None):
        lines.append(f"together at least {intervals.confidence} %")
    if forecast.with_keys is not None:
        keys, width = forecast.with_keys
        example = f": +- {print_bound(width, upper=True)} among {keys}" if width is not None else ""
        lines.append(f"wider with every private key among which noise chooses{example}")
    return "; ".join(lines)


def _describe_width(
    aggregate: SqlAggregate, select: SelectQuery, plan: SqlPlan, together: int
) -> str:
    for level in plan.added:
        if aggregate in level.part.measures and select in level.part.queries:
            row = Row("", level.part.measures[aggregate], None)
            below = make_width(plan.parts[level.source].plan, row, level.cells)
            return f"+- {_print(below(together))} in {level.name}"
    if (found := plan.find_part(select, aggregate)) is None:
        return "unknown"
    part, stored = found
    # A stored release has the error that it was drawn with.
    answering = part.plan if stored is None else stored.plan
    label = part.part.measures[aggregate]
    release, measure = find_release(answering), find_measure(answering, label)
    if release is not None and measure is not None and measure.shrinks:
        return release.describe_sizes(measure)
    if release is None or measure is None:
        bound = part.plan.error_bound
        return "; ".join(
            f"{name} +- {print_bound(width, upper=True)}"
            for name, width in (bound.half_width if bound else {}).items()
        )
    width = make_width(answering, Row("", label, None))(together)
    of_cells = " in each cell" if stored is not None and stored.groups != select.groups else ""
    at_most = "at most " if answering.histogram and not answering.chosen_groups else ""
    return f"{at_most}+- {_print(width)}{of_cells}"


def _print(width: float | None) -> str:
    return "unknown" if width is None else print_bound(width, upper=True)


def describe_min_units(plan: SqlPlan) -> str:
    """What to say where an option that hides small groups hides none; "" otherwise."""
    if plan.settings.min_units == 1 or any(part.part.private for part in plan.parts):
        return ""
    return f"min_units={plan.settings.min_units} hides no group: it is of private keys, and here are none"


def _list_notes(plan: SqlPlan) -> Iterator[str]:
    yield from describe_missing(plan.query.list_releases())
    aggregates = [one for query in plan.query.list_releases() for one in query.aggregates]
    shares = {one.share for one in aggregates if one.kind == "quantile"} - {None}
    if shares & set(_TAILS):
        yield (
            "MIN and MAX are the quantiles 0.01 and 0.99: the smallest value itself is one unit's own"
        )
    if any(part.part.private for part in plan.parts):
        yield CHOSEN_KEYS
    if note := describe_min_units(plan):
        yield note
    for part, stored in zip(plan.parts, plan.stored):
        answering = part.plan if stored is None else stored.plan
        yield from filter(
            None, (answering.describe_clamped_features(), answering.describe_last_group())
        )
        if clamped := answering.describe_clamping():
            yield f"bounds of {clamped}"
        if stored is None and (note := part.plan.undeclared_groups()):
            yield f"{note}: -- dp: groups=N"
        for candidate in part.plan.describe_candidates() if stored is None else ():
            yield f"bounds for {part.part.mechanism}: {candidate}"
    literals = sorted(write_text(float(one)) for one in shares - set(_TAILS) if one is not None)
    if literals and any(part.plan.mechanism.name == "quantiles" for part in plan.parts):
        yield f"QUANTILE_CONT and QUANTILE_DISC draw a value of the declared grid: {', '.join(literals)}"
