"""Released numbers by group: as a release has them, or added up over its cells, with the half-widths
that hold for several of them together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from dpflow.analyst_sql.parse.select_query import SelectQuery, SqlAggregate
from dpflow.analyst_sql.releases.query_parts import QueryPart, find_grouping, split_key
from dpflow.core.contract.mechanism import Mechanism
from dpflow.core.contract.results import UNLIMITED, Result, Row, ValueRange, bound_labels
from dpflow.core.contract.totals import MeanTotal, TermTotal, Totals
from dpflow.core.toolbox.aggregate import MeasureMechanism, Release
from dpflow.core.toolbox.moments import Measure
from dpflow.core.toolbox.noise import FAILURE
from dpflow.engine.releases.plan import Plan
from dpflow.tables.language.nodes import Node

Key = tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Number:
    """One released number, or a sum of such. Each is itself only: equal values have other noise.

    Attributes:
        value: None where the release answered "none".
        width: its half-width so that k such numbers are within theirs with 95 % together; None where
            none is known.
        plan, label: the release, and what it calls the statistic; None where its noise does not add up.
        cells: how many numbers of the release are added up in it.
        parts: those numbers; none if it is one itself.
        limits: its public range.
        mean_limits: of a sum of values, the public range of their mean.
        bounds: of a quantile, the values between which it lies, None where nothing bounds it; None of a release
            that states none.
        only_a_bound: it has no value, and a bound.
        totals: how far numbers of its release may be from the truth.
    """

    value: Any
    width: Callable[[int], float | None]
    remark: str = ""
    plan: Plan | None = None
    label: str = ""
    cells: int = 1
    parts: frozenset[Number] = frozenset()
    limits: ValueRange = UNLIMITED
    mean_limits: ValueRange | None = None
    bounds: tuple[Any, Any] | None = None
    only_a_bound: bool = False
    totals: Totals | None = None

    @property
    def total(self) -> TermTotal | MeanTotal | None:
        """How far it, or each number that is added up in it, may be from the truth."""
        return None if self.totals is None else self.totals.ends.get(self.label)

    @property
    def premises(self) -> frozenset[str]:
        """The released limits that this rests on: one, or none."""
        if self.totals is None or self.total is None or not self.total.is_limited:
            return frozenset()
        return frozenset({self.totals.premise or f"of {id(self.totals)}"})


Cells = dict[Key, dict[SqlAggregate, Number]]


def no_width(together: int) -> None:
    """Of numbers without an interval."""


def read_cells(part: QueryPart, plan: Plan, result: Result, groups: Sequence[Node]) -> Cells:
    """The rows of a release by group and aggregate."""
    rows = result.rows
    by_label = {label: aggregate for aggregate, label in part.measures.items()}
    if part.mechanism in ("arg_max", "histogram"):
        return _read_keys(part, plan, rows)
    cells: Cells = {}
    limits, mean_limits = _read_limits(plan)
    measures = {label: find_measure(plan, label) for label in by_label}
    # What shrinks with the group has another width in each.
    widths = {
        label: make_width(plan, Row("", label, None))
        for label, measure in measures.items()
        if measure is not None and not measure.shrinks
    }
    additive = {label: additive_plan(plan, label) for label in by_label}
    values = {(row.key, row.measure): row.value for row in rows}
    for row in rows:
        if row.measure in by_label:
            key = tuple(split_key(row.key, groups))
            cell = cells.setdefault(key, {})
            value = _whole(plan, row, measures[row.measure])
            low, high = ((row.key, label) for label in bound_labels(row.measure))
            number = Number(
                value,
                widths.get(row.measure) or make_width(plan, row),
                row.remark,
                additive[row.measure],
                row.measure,
                limits=limits.get(row.measure, UNLIMITED),
                mean_limits=mean_limits.get(row.measure),
                bounds=(values[low], values[high]) if low in values else None,
                only_a_bound=row.only_a_bound,
                totals=result.totals,
            )
            for aggregate, label in part.measures.items():
                if label == row.measure:
                    cell[aggregate] = number
    return _add_empty_groups(part, cells)


def _add_empty_groups(part: QueryPart, cells: Cells) -> Cells:
    """With the groups of units that a FILTER leaves no row, which stay in the answer: their number is known."""
    table, by, _ = find_grouping(part.queries[0])
    is_filtered = any(one.condition is not None for one in part.measures)
    if part.mechanism != "count_distinct" or by is None or not is_filtered:
        return cells
    keys = [tuple(split_key(key, part.queries[0].groups)) for key in table.public_keys(by)]
    return {
        key: cells.get(key) or dict.fromkeys(part.measures, Number(0, lambda together: 0.0))
        for key in keys
    }


def _read_limits(plan: Plan) -> tuple[Mapping[str, ValueRange], Mapping[str, ValueRange]]:
    """Public ranges by label, and those of the means of what is summed up."""
    mechanism = plan.mechanism
    if not isinstance(mechanism, Mechanism):
        return {}, {}
    means = {}
    if isinstance(mechanism, MeasureMechanism):
        query = mechanism.make_query(plan.params, plan.table)
        for measure in query.measures:
            if measure.measure == "sum":
                mean = measure.model_copy(update={"measure": "mean"})
                means[mechanism.measure_label(measure)] = query.value_range(mean)
    return mechanism.value_ranges(plan.params, plan.table), means


def _read_keys(part: QueryPart, plan: Plan, rows: Sequence[Row]) -> Cells:
    """MODE is the key with rank 1; HISTOGRAM is all keys with their counts."""
    if any(row.measure == "none" for row in rows):
        return {}
    mode = part.mechanism == "arg_max"
    value = rows[0].key if mode else {row.key: row.value for row in rows}
    return {(): dict.fromkeys(part.measures, Number(value, no_width))}


def _whole(plan: Plan, row: Row, measure: Measure | None) -> Any:
    """Sums of whole steps are whole numbers."""
    value = row.value
    if not isinstance(value, float) or not value.is_integer() or abs(value) > 2**53:
        return value
    if measure is None or measure.measure != "sum" or measure.column is None:
        return value
    return int(value) if plan.table.columns[measure.column].step.denominator == 1 else value


def find_release(plan: Plan) -> Release | None:
    """The noise of a release of moments; None for other mechanisms."""
    mechanism = plan.mechanism
    if not isinstance(mechanism, MeasureMechanism):
        return None
    return mechanism.choose_release(plan.params, plan.table)[0]


def find_measure(plan: Plan, label: str) -> Measure | None:
    """What a release computes under a label."""
    mechanism = plan.mechanism
    if not isinstance(mechanism, MeasureMechanism):
        return None
    measures = mechanism.list_measures(plan.params)
    return next((one for one in measures if mechanism.measure_label(one) == label), None)


def make_width(plan: Plan, row: Row, cells: int = 1) -> Callable[[int], float | None]:
    """Half-widths of a number, or of a sum of as many cells."""
    release, measure = find_release(plan), find_measure(plan, row.measure)
    half_width = row.half_width_95
    if release is None or measure is None or measure.shrinks:
        # What shrinks with the group is known at 95 % only.
        return lambda together: half_width if together == 1 and cells == 1 else None

    @cache
    def width(together: int) -> float:
        used = release.query.weights(measure)
        failure = FAILURE / (len(used) * together)
        tails = {
            moment: float(release.noises[moment].sum_half_width(cells, failure)) for moment in used
        }
        return release.query.error_bound(measure, tails)

    return width


def additive_plan(plan: Plan, label: str) -> Plan | None:
    """The plan, if noises of this label add up: they are independent, and of a known size."""
    measure = find_measure(plan, label)
    additive = plan.mechanism.name == "aggregates" and measure is not None and not measure.shrinks
    return plan if additive else None


def add_up(
    cells: Cells,
    stored_groups: Sequence[Node],
    groups: Sequence[Node],
) -> Cells:
    """Counts and sums over public keys, added up to a coarser grouping."""
    positions = [list(stored_groups).index(group) for group in groups]
    collected: dict[Key, dict[SqlAggregate, list[Number]]] = {}
    for key, cell in cells.items():
        coarse = collected.setdefault(tuple(key[position] for position in positions), {})
        for aggregate, number in cell.items():
            coarse.setdefault(aggregate, []).append(number)
    return {
        key: {
            aggregate: add_numbers(numbers) or Number(None, no_width)
            for aggregate, numbers in cell.items()
        }
        for key, cell in collected.items()
    }


def add_numbers(numbers: Sequence[Number]) -> Number | None:
    """The sum of different numbers of one release, whose noise is narrower than the sum of their
    widths; None where they are not of one, have no value, or have noise in common, as a total has with
    what it was added up from.
    """
    plan, label = (numbers[0].plan, numbers[0].label) if numbers else (None, "")
    if plan is None or any(one.plan is not plan or one.label != label for one in numbers):
        return None
    parts = [part for number in numbers for part in number.parts or (number,)]
    if len(set(parts)) < len(parts):
        return None
    if any(number.value is None for number in numbers):
        return None
    cells = sum(number.cells for number in numbers)
    total = sum(number.value for number in numbers)
    width = make_width(plan, Row("", label, None), cells)
    limits, mean_limits = parts[0].limits, parts[0].mean_limits
    ends = (None if end is None else end * cells for end in (limits.low, limits.high))
    return Number(
        total,
        width,
        "",
        plan,
        label,
        cells,
        frozenset(parts),
        ValueRange(*ends),
        mean_limits,
        totals=parts[0].totals,
    )


def error_sizes(part: QueryPart, plan: Plan) -> Mapping[str, float]:
    """How large the errors of a part's aggregates are, of noise and of searched bounds: what two prices of one release are
    compared by. A mean's or variance's is that of a group of 10,000 values.
    """
    release = find_release(plan)
    if release is None:
        bound = plan.error_bound
        return dict(bound.half_width) if bound is not None else {}
    sizes: dict[str, float] = {}
    for label in part.measures.values():
        measure = find_measure(plan, label)
        assert measure is not None
        if measure.shrinks:
            measure = measure.model_copy(update={"size": 10_000})
        width = release.query.error_bound(measure, release.tails(measure))
        sizes[label] = width + find_excess(plan, label)
    return sizes


def find_excess(plan: Plan, label: str) -> float:
    """What values exceed the bounds of a searched column by, all together and at most; 0 of any other."""
    measure = find_measure(plan, label)
    column = plan.table.columns.get(measure.column or "") if measure else None
    return sum(column.excess) if column else 0.0


def find_cells_by_query(
    answered: Sequence[tuple[QueryPart, Cells]],
) -> Callable[[SelectQuery], Cells]:
    """For a private SELECT, the released numbers of all its parts together."""

    def collect_cells(query: SelectQuery) -> Cells:
        cells: Cells = {}
        for part, part_cells in answered:
            for key, cell in part_cells.items() if query in part.queries else ():
                cells.setdefault(key, {}).update(cell)
        return cells

    return collect_cells
