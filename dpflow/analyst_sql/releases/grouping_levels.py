"""Several groupings of the same rows: which of them is added up from a finer one at no cost, and which is paid."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

from dpflow.analyst_sql.parse.select_query import ADDITIVE
from dpflow.analyst_sql.releases.cells import Cells, add_up, make_width
from dpflow.analyst_sql.releases.complete_keys import find_incomplete
from dpflow.analyst_sql.releases.query_parts import PartPlan, QueryPart
from dpflow.core.contract.printed_numbers import print_bound
from dpflow.core.contract.results import Row
from dpflow.tables.language.nodes import Node


@dataclass(frozen=True)
class AddedLevel:
    """A level whose numbers are sums over the groups of a finer one.

    Attributes:
        part: what would have been paid.
        source: the position of the release that it is added up from.
        cells: how many of its groups make one of this level, if all are there.
    """

    part: QueryPart
    source: int
    cells: int

    @property
    def name(self) -> str:
        """The grouping set, as in SQL."""
        return name_level(self.part.queries[0].groups)


def add_levels(
    answered: Sequence[tuple[QueryPart, Cells]], added: Sequence[AddedLevel]
) -> list[tuple[QueryPart, Cells]]:
    """Parts with their cells, and levels with theirs, which are added up from those of finer groupings."""
    summed = []
    for level in added:
        (finer, cells), part = answered[level.source], level.part
        own = {
            key: {one: number for one, number in cell.items() if one in part.measures}
            for key, cell in cells.items()
        }
        summed.append((part, add_up(own, finer.queries[0].groups, part.queries[0].groups)))
    return [*answered, *summed]


def name_level(groups: Sequence[Node]) -> str:
    """A grouping set, as in SQL."""
    return f"({', '.join(map(str, groups))})"


@dataclass(frozen=True)
class PlannedParts:
    """The releases of a query, and what is added up from them.

    Attributes:
        added: levels that cost nothing.
        levels: for each level what is done for it, and why.
    """

    parts: list[PartPlan]
    added: tuple[AddedLevel, ...] = ()
    levels: tuple[str, ...] = ()


def plan_levels(
    parts: Sequence[QueryPart], price_parts: Callable[[Sequence[QueryPart]], list[PartPlan]]
) -> PlannedParts:
    """Plans of a query's parts, with the levels left out that are added up from others.

    Args:
        price_parts: divides the price among parts.
    """
    all_paid = price_parts(parts)
    sources = choose_levels(all_paid)
    positions = [n for n in range(len(parts)) if n not in sources]
    plans = price_parts([parts[n] for n in positions]) if sources else all_paid
    added = tuple(
        AddedLevel(parts[n], positions.index(source), cells)
        for n, (source, cells) in sorted(sources.items())
    )
    for one in added:
        source_plan = plans[one.source]
        plans[one.source] = replace(source_plan, cells=max(source_plan.cells, one.cells))
    return PlannedParts(plans, added, tuple(explain_levels(plans, added, all_paid)))


def choose_levels(plans: Sequence[PartPlan]) -> dict[int, tuple[int, int]]:
    """Which parts are added up, at no cost, and from which other part and how many of its cells.

    Paying for a level takes a share of the price from the others, and adding it up takes the noise of all its
    cells. What makes the product of all levels' errors smallest is sources, whatever the rows hold.

    Args:
        plans: with all levels paid.
    """
    finer = {n: finer_parts for n in range(len(plans)) if (finer_parts := _list_finer(n, plans))}
    if not finer:
        return {}
    starts: list[frozenset[int]] = [frozenset(), frozenset(finer)]
    best = min((_improve(one, finer, plans) for one in starts), key=lambda one: one[0])[1]
    sources = {}
    for n in best:
        source = min((j for j in finer[n] if j not in best), key=lambda j: finer[n][j])
        sources[n] = source, finer[n][source]
    return sources


def _improve(
    added: frozenset[int], finer: dict[int, dict[int, int]], plans: Sequence[PartPlan]
) -> tuple[float, frozenset[int]]:
    """Change one level after the other, while errors become smaller."""
    score = _score(added, finer, plans)
    while True:
        others = [(_score(added ^ {n}, finer, plans), added ^ {n}) for n in finer]
        better, changed = min(others, key=lambda one: one[0])
        if not better < score - 1e-9:
            return score, added
        score, added = better, changed


def _score(
    added: Collection[int], finer: dict[int, dict[int, int]], plans: Sequence[PartPlan]
) -> float:
    """The logarithm of the product of all parts' errors, as a share of those with all levels paid."""
    weights = [len(one.part.measures) for one in plans]
    paid = [n for n in range(len(plans)) if n not in added]
    share = sum(weights[n] for n in paid) / sum(weights)
    total = math.log(share) * len(plans)
    for n in added:
        sources = [j for j in finer[n] if j in paid]
        if not sources:
            return math.inf
        own = _mean_error(plans[n], 1)
        total += min(_mean_error(plans[j], finer[n][j]) for j in sources) - own
    return total


def _mean_error(plan: PartPlan, cells: int) -> float:
    """The mean logarithm of the errors of a part's numbers, or of their sums."""
    widths = [width for _, width in _list_widths(plan, cells)]
    return sum(math.log(width or 1e-9) for width in widths) / len(widths)


def _list_finer(n: int, plans: Sequence[PartPlan]) -> dict[int, int]:
    """The parts that one may be added up from, with how many of their cells make one of its own."""
    part = plans[n].part
    query = part.queries[0]
    # The finest level is paid, and so is what another SELECT asks for, too.
    if not all(one.levels for one in part.queries) or not is_additive(part):
        return {}
    finer = {}
    for j, other in enumerate(plans):
        of = other.part.queries[0]
        if (
            of.levels == query.levels
            and (of.table, of.conditions, of.blocks)
            == (query.table, query.conditions, query.blocks)
            and set(query.groups) < set(of.groups)
            and is_additive(other.part)
            and set(part.measures) <= set(other.part.measures)
            and not find_incomplete(query, of.groups)
        ):
            finer[j] = max(1, _count_cells(other.part) // _count_cells(part))
    return finer


def is_additive(part: QueryPart) -> bool:
    """Whether a part's numbers over public keys add up."""
    return part.mechanism == "aggregates" and all(one.kind in ADDITIVE for one in part.measures)


def _count_cells(part: QueryPart) -> int:
    by = part.params["by"]
    return 1 if by is None else len(part.table.public_keys(by))


def explain_levels(
    plans: Sequence[PartPlan], added: Sequence[AddedLevel], all_paid: Sequence[PartPlan]
) -> list[str]:
    """For each level of a ROLLUP and the like what is done for it, and why."""
    lines = []
    for n, one in enumerate(all_paid):
        query = one.part.queries[0]
        if not query.levels:
            continue
        name = name_level(query.groups)
        level = next((level for level in added if level.part is one.part), None)
        if level is not None:
            source = plans[level.source]
            from_name = name_level(source.part.queries[0].groups)
            lines.append(
                f"level {name} is added up from {level.cells} cells of {from_name} at no cost, "
                f"{_describe(source, level.cells)}; paid, it would be {_describe(one, 1)} and take its share from the "
                f"others; rows without declared keys are not in it"
            )
            continue
        plan = next((paid for paid in plans if paid.part is one.part), one)
        finer = _list_finer(n, all_paid)
        if finer:
            j = min(finer, key=lambda position: finer[position])
            lines.append(
                f"level {name} is paid, {_describe(plan, 1)}; added up from {finer[j]} cells of "
                f"{name_level(all_paid[j].part.queries[0].groups)} it would be {_describe(all_paid[j], finer[j])}"
            )
            continue
        lines.append(f"level {name} is paid: {_find_reason(one, all_paid)}")
    return lines


def _find_reason(one: PartPlan, plans: Sequence[PartPlan]) -> str:
    query = one.part.queries[0]
    if one.part.private:
        return "its keys are selected privately, and what is not selected would be missing in sums"
    if not any(set(query.groups) < set(of.part.queries[0].groups) for of in plans):
        return "no level is finer"
    others = [str(a) for a in one.part.measures if a.kind not in ADDITIVE]
    if others:
        return f"{others[0]} does not add up over groups"
    added = (other.part.queries[0].groups for other in plans if is_additive(other.part))
    finer = [node for groups in added if set(query.groups) < set(groups) for node in groups]
    if incomplete := find_incomplete(query, finer):
        return f"rows without a key of {incomplete} are in no finer group"
    return "no finer level has public keys alone"


def _describe(plan: PartPlan, cells: int) -> str:
    widths = _list_widths(plan, cells)
    return ", ".join(
        f"{label} +- {print_bound(width, upper=True)}"
        for label, width in widths
        if width is not None
    )


def _list_widths(plan: PartPlan, cells: int) -> list[tuple[str, float | None]]:
    """Half-widths of a part's numbers, or of sums of as many, by label."""
    labels = plan.part.measures.values()
    return [(label, make_width(plan.plan, Row("", label, None), cells)(1)) for label in labels]
