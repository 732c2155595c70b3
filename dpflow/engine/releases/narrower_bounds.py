"""Clamping bounds inside a range that everybody knows, chosen for one release of sums by a search that it names.

Noise of a sum grows with the range of its values. Narrower bounds make less, and clamp the values beyond. What these exceed
the bounds by, all together, is bias: a search limits it (`dpflow.mechanisms.bounds`), so total intervals hold it. The ends
are powers of two that the search counted, or those of the range itself. Those with the least product of the sums' total
intervals are taken, with noise and bias in each group: first the upper end, then the lower. The rule reads request,
declaration and released numbers alone, so that a question has the same ends again. They are part of what it asks.

What it may gain: let values be in [0, B] with R rows of a unit, and b < B. The whole range has an interval of length
2 R B ln(20) / epsilon. Narrower ones have 2 R b ln(40) / epsilon + E, where no count with Laplace noise makes E less than
R (B - b) ln(20) / epsilon' with the search's epsilon': half of it, where both have the same and b is small.
No method gains much more: by group privacy an interval that holds with 95 % on all tables is longer than
R B ln(9) / epsilon with probability 1/2, where epsilon pays for all that it rests on. A search that many questions
share has more than each of them, and gains as much.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction

from dpflow.core.contract.columns import Column
from dpflow.core.contract.declaration import Table
from dpflow.core.contract.printed_numbers import print_bound
from dpflow.core.contract.strict_models import parse_exact
from dpflow.core.toolbox.aggregate import MeasureMechanism
from dpflow.core.toolbox.noise import FAILURE
from dpflow.engine.releases.choose_bounds import list_read_columns
from dpflow.engine.releases.plan import Plan, digest_column
from dpflow.engine.releases.total_intervals import describe_unmeasured
from dpflow.errors import PlanRefused
from dpflow.ledger.books.records import ReleaseRecord

Ends = tuple[Fraction, float]


def choose_ends(plan: Plan, table: Table, searches: Mapping[str, ReleaseRecord]) -> Table:
    """The declaration with the bounds that fit a release of sums, by the search of each column.

    Args:
        plan: the release with the declared ranges.
        table: the declaration.

    Raises:
        PlanRefused: it is no release of sums, a search counted other values, or one of both cuts rows of a unit.
    """
    for name, search in searches.items():
        _require_sums(plan, name, search)
        lows, highs = _read_ends(plan.table, name, search)

        def score(low: Ends, high: Ends, name: str = name, search: ReleaseRecord = search) -> float:
            return _score(plan, _narrow_column(plan.table, name, search, low, high), name)

        high = min(highs, key=lambda end: score(lows[0], end))
        low = min(lows, key=lambda end: score(end, high))
        table = _narrow_column(table, name, search, low, high)
    return table


def _require_sums(plan: Plan, name: str, search: ReleaseRecord) -> None:
    mechanism, table, largest = plan.mechanism, plan.table, plan.table.max_contributions
    if not isinstance(mechanism, MeasureMechanism):
        raise _refuse(plan, name, search, "only sums take narrower ones; leave one out")
    query = mechanism.make_query(plan.params, table)
    others = {one.column for one in query.measures if one.column and one.column != name}
    read = {*list_read_columns(filter(None, [*others, query.by]), table)}
    of = {one.measure for one in query.measures if one.column == name}
    if of != {"sum"} or name in read:
        raise _refuse(plan, name, search, "only sums of it take narrower ones; leave one out")
    declared = search.request["declared"]
    forms = table.stored_form()["columns"]
    if declared["rows"] != plan.declared["rows"]:
        raise _refuse(plan, name, search, "and it searched another declaration of the rows")
    if any(
        declared["columns"].get(one) != digest_column(forms[one])
        for one in list_read_columns([name], table)
    ):
        raise _refuse(plan, name, search, "and it was another column when it was searched")
    if describe_unmeasured(plan):
        raise _refuse(
            plan, name, search, "and contribution bounds below max_contributions cut rows"
        )
    if largest is None or declared["bounds"][2] < largest.rows:
        raise _refuse(
            plan, name, search, "and it counted fewer rows of a unit than max_contributions"
        )


def _refuse(plan: Plan, name: str, search: ReleaseRecord, why: str) -> PlanRefused:
    asked = search.request["name"]
    return PlanRefused(
        f"{plan.request.name} takes the bounds of {name!r} from {asked!r}, but table {plan.table.name!r} declares some, {why}"
    )


def _read_ends(table: Table, name: str, search: ReleaseRecord) -> tuple[list[Ends], list[Ends]]:
    """Lower and upper ends, the declared ones first, each with what values exceed it by."""
    column, found = table.columns[name], (search.result or {})["document"]["excess"]
    assert column.lower is not None and column.upper is not None
    lists = []
    for side, declared, round_to in (
        ("lower", column.lower, math.floor),
        ("upper", column.upper, math.ceil),
    ):
        # Outward to the grid: less is beyond.
        ends = [
            (round_to(parse_exact(end) / column.step) * column.step, most)
            for end, most in found[side]
        ]
        inside = [one for one in ends if column.lower < one[0] < column.upper]
        lists.append([(declared, 0.0), *inside])
    return lists[0], lists[1]


def _narrow_column(table: Table, name: str, search: ReleaseRecord, low: Ends, high: Ends) -> Table:
    column = table.columns[name]
    if (low[0], high[0]) == (column.lower, column.upper):
        return table
    if column.missing != "skip" and not low[0] <= column.missing <= high[0]:
        return table
    narrowed = Column.model_validate(
        column.model_dump(exclude_unset=True) | {"lower": low[0], "upper": high[0]}
    )
    limits = [*map(column.grid_value, column.grid_bounds())]
    excess = print_bound(low[1] + high[1], upper=True)
    narrowed.note_clamping(
        f"inside {limits[0]} to {limits[1]}; {search.request['name']!r} found that values exceed it by at most {excess} in all (97.5 %)",
        search.release_id,
        (low[1], high[1]),
    )
    return table.model_copy(update={"columns": {**table.columns, name: narrowed}})


def _score(plan: Plan, table: Table, name: str) -> float:
    """The logarithm of the product of the lengths of a column's total intervals."""
    mechanism = plan.mechanism
    assert isinstance(mechanism, MeasureMechanism)
    try:
        release = mechanism.choose_release(plan.params, table)[0]
    except PlanRefused:  # noise beyond what can be drawn
        return math.inf
    excess = table.columns[name].excess
    failure = FAILURE / 2 if any(excess) else FAILURE
    return sum(
        math.log(
            2 * release.query.error_bound(one, release.tails(one, failure)) + sum(excess) + 1e-300
        )
        for one in release.query.measures
        if one.column == name
    )
