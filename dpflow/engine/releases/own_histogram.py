"""Counts of units whose release takes a histogram of its own rows first, to choose in how many groups a unit counts.

Who: a count of units over public keys, of which nobody declared in how many groups a unit can be, and which no
released profile counts. Noise for G groups is G times that for one, and most units reach few groups. So a share of
epsilon pays for the number of units by groups that they reach, under the query's condition and in its blocks; each
unit is in one bin. Of g groups, at most G, those are taken for which the total interval of a group is narrowest: twice
the noise's half-width, and U(g), the upper limit on the units with more groups. The limits hold together for all g, so
they hold for the one that noise chose.

When: what can be known before. It is taken where the total interval would be three quarters as wide as the noise
interval with G groups, or less, if no unit had more than some g. G itself can be chosen, so the noise never grows by
more than the histogram's share of epsilon. No number of units is needed: where the histogram is too coarse for a table,
so is the noise that it replaces.

Claim. Let H be the histogram with the event E, and M_g the release's mechanism, which brings each unit down to g groups
before it adds noise. What is drawn is h from H, then a number from M_g(h) by fresh noise; both leave, and g(h) follows
from h and from what is public. For every g the noise of M_g is fitted to the sensitivity under g and the table's
neighbouring relation, so M_g satisfies one event F: `Pure` with Laplace noise, `ZCDP` with Gaussian noise, of the same
amounts for all g. Law and amounts are fixed by the plan. So the pair satisfies E composed with F, whose second part may
look at the first's output (`dpflow.core.accounting.events.Composed`), and the charge is known before a row is read.

Nothing of h leaves before both are settled. A process that dies between the two leaves a reservation, and the next try
takes a new histogram at no further cost, as for any draw that nobody saw. Both requests read one open source.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Any

from dpflow.core.accounting.events import ZCDP, Composed, Event, Pure
from dpflow.core.contract.contribution import RequestedBounds
from dpflow.core.contract.requests import SizeCounts, UnitSizes
from dpflow.core.contract.results import ErrorBound, Result
from dpflow.core.sampling.randomness import Source
from dpflow.core.toolbox.aggregate import MeasureMechanism, Release
from dpflow.core.toolbox.contribution_profile import SizeHistogram, count_bins, size_bins
from dpflow.core.toolbox.noise import FAILURE, laplace_noise
from dpflow.engine.releases.plan import OwnHistogram, Plan
from dpflow.errors import PlanRefused

#: Of a release's epsilon; and how wide a total interval may be at best, beside that without a histogram.
SHARE, MAX_WIDTH = Fraction(3, 20), Fraction(3, 4)
#: Under which a charge has what the histogram costs, and a result's document its numbers and the groups.
DOCUMENT = "own_histogram"


def add_histogram(plan: Plan) -> Plan:
    """The plan with a histogram of its own; as it is where that could gain too little, or nothing."""
    epsilon, mechanism = getattr(plan.params, "epsilon", None), plan.mechanism
    if epsilon is None or not isinstance(mechanism, MeasureMechanism):
        return plan
    query = mechanism.make_query(plan.params, plan.table)
    # Of rows and sums the bound on rows says how much noise there is, however many groups they are in.
    if query.private or query.group_keys is None or query.moments != (("units", ""),):
        return plan
    keys = len(query.group_keys)
    groups = plan.table.bounds_for(query.by).narrow(keys, 1).groups
    if groups < 2:
        return plan
    starts = _list_bins(groups, keys)
    try:
        changed = apply_histogram(plan, epsilon * SHARE, starts)
        # As if all units had one group.
        empty = SizeHistogram(starts, (0,) * len(starts), _read_own(changed).noise)
        widths = _list_widths(changed, empty, keys)
        without = 2 * find_release(plan).tails(query.measures[0])["units", ""]
    except PlanRefused:  # noise beyond what can be drawn
        return plan
    return changed if min(widths.values()) <= MAX_WIDTH * Fraction(without) else plan


def _list_bins(groups: int, keys: int) -> tuple[int, ...]:
    """Up to what the plan allows, and above that where units may have more."""
    return (*size_bins(groups), *([groups + 1] if groups < keys else ()))


def apply_histogram(plan: Plan, epsilon: Fraction, starts: tuple[int, ...], law: str = "") -> Plan:
    """The plan with a histogram at this cost, and what is left of its epsilon for its numbers.

    Args:
        starts: the least number of groups of each bin.
        law: of the noise of its numbers; that of the plan if left out.
    """
    assert isinstance(plan.mechanism, MeasureMechanism)
    rest = {"epsilon": plan.params.epsilon - epsilon}  # type: ignore[attr-defined]
    params = plan.params.model_copy(update=rest)
    # Less epsilon may suit another law, which the scope that pays may not hold.
    law = law or plan.mechanism.choose_release(plan.params, plan.table)[0].law
    # Of the two lists that are read, only one gets noise and leaves.
    sensitivity = plan.table.sensitivity(UnitSizes())
    own = OwnHistogram(epsilon, law, starts, laplace_noise(sensitivity, epsilon))
    changed = replace(
        plan,
        params=params.model_copy(update={"noise": law}),
        question=plan.question or plan,
        histogram=own,
    )
    event = _find_fixed_event(find_release(changed))
    bound = plan.mechanism.error_bound(changed.params, plan.table)
    note = f"{changed.describe_histogram()}; half-widths are at most those stated; {bound.note}"
    return replace(
        changed,
        event=Composed((own.noise.event, event)),
        error_bound=ErrorBound(bound.half_width, note),
    )


def follow_charge(plan: Plan, charged: Mapping[str, Any]) -> Plan:
    """The plan with the histogram that a charge names."""
    starts = tuple(charged["starts"])
    return apply_histogram(plan, Fraction(charged["epsilon"]), starts, charged["noise"])


def find_release(plan: Plan) -> Release:
    """The noise of a plan's moments."""
    assert isinstance(plan.mechanism, MeasureMechanism)
    return plan.mechanism.choose_release(plan.params, plan.table)[0]


def _find_fixed_event(release: Release) -> Event:
    """What the noise of a release satisfies, whatever the bounds are that it is fitted to."""
    total = sum(release.amounts, Fraction(0))
    return Pure(total) if release.law == "laplace" else ZCDP(total)


def _read_own(plan: Plan) -> OwnHistogram:
    assert plan.histogram is not None
    return plan.histogram


def _grouping(plan: Plan) -> str:
    return str(plan.params.by)  # type: ignore[attr-defined]


def histogram_request(plan: Plan) -> UnitSizes | None:
    """What a plan reads before its own request; None of one without a histogram."""
    return None if plan.histogram is None else UnitSizes((_grouping(plan),))


def draw_histogram(plan: Plan, sizes: SizeCounts, source: Source) -> dict[str, Any]:
    """What a result's document keeps: the noisy numbers of units, and the groups that they choose. Called after the
    charge.
    """
    own, keys = _read_own(plan), len(plan.table.public_keys(_grouping(plan)))
    exact = count_bins(own.starts, *sizes.groups[0])
    counts = tuple(own.noise.add_noise(exact, source).tolist())
    histogram = SizeHistogram(own.starts, counts, own.noise)
    widths = _list_widths(plan, histogram, keys)
    groups = min(widths, key=lambda one: (widths[one], -one))
    limit = _limit_above(histogram, groups, keys)
    return {"counts": list(counts), "groups": groups, "limit_above": limit}


def _limit_above(histogram: SizeHistogram, groups: int, keys: int) -> int:
    """Units that have more groups, at most: with 97.5 % for all numbers of groups together."""
    each = FAILURE / 2 / len(histogram.starts)
    return 0 if groups >= keys else histogram.limit_above(groups, each)


def noise_failure(groups: int, keys: int) -> float:
    """How often a total interval may fail by noise: half as often where units may be in more groups than counted."""
    return FAILURE if groups >= keys else FAILURE / 2


def _list_widths(plan: Plan, histogram: SizeHistogram, keys: int) -> dict[int, Fraction]:
    """By number of groups how wide a total interval is."""
    most = plan.table.bounds_for(_grouping(plan)).narrow(keys, 1).groups
    sizes = {start - 1 for start in histogram.starts if 1 < start <= most} | {most}
    widths = {}
    for groups in sorted(sizes):
        ((_, noise),) = find_release(_bound_plan(plan, groups)).noises.items()
        limit = _limit_above(histogram, groups, keys)
        widths[groups] = Fraction(2 * noise.half_width(noise_failure(groups, keys)) + limit)
    return widths


def _bound_plan(plan: Plan, groups: int) -> Plan:
    """The plan that draws with so many groups, for the same charge."""
    assert plan.question is not None
    bounds = RequestedBounds(groups=groups, rows_per_group=1, rows=groups)
    source = "chosen by this release's own histogram"
    table = plan.question.table.with_bounds(_grouping(plan), bounds, source)
    bounded = replace(plan, table=table)
    event = _find_fixed_event(find_release(bounded))
    if isinstance(plan.event, Composed) and event != plan.event.events[-1]:
        raise PlanRefused("a release may state one event only, whatever its histogram chooses")
    return bounded


def follow_result(plan: Plan, result: Result) -> Plan:
    """The plan with the groups that a result was drawn with, where its own histogram chose them."""
    drawn = result.document.get(DOCUMENT) if plan.histogram else None
    return plan if drawn is None else bind_groups(plan, drawn)


def bind_groups(plan: Plan, drawn: Mapping[str, Any]) -> Plan:
    """The plan with the groups that a histogram chose, as `draw_histogram` returns it."""
    assert isinstance(plan.mechanism, MeasureMechanism)
    bounded = _bound_plan(plan, drawn["groups"])
    return replace(
        bounded,
        error_bound=plan.mechanism.error_bound(plan.params, bounded.table),
        chosen_groups=True,
    )
