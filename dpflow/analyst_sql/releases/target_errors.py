"""From a target error to the privacy cost that reaches it: public facts alone decide."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction

from dpflow.analyst_sql.parse.text_and_options import Refusal
from dpflow.analyst_sql.releases.cells import find_measure, find_release, make_width
from dpflow.analyst_sql.releases.grouping_levels import PlannedParts
from dpflow.analyst_sql.releases.query_parts import PartPlan
from dpflow.analyst_sql.releases.settings import Target
from dpflow.core.contract.declaration import Table
from dpflow.core.contract.results import Result, Row
from dpflow.core.toolbox.moments import Measure
from dpflow.engine.releases.choose_bounds import follow_record
from dpflow.engine.releases.own_histogram import follow_result
from dpflow.engine.releases.run_identity import RunIdentity
from dpflow.engine.releases.total_intervals import describe_unmeasured
from dpflow.errors import PlanRefused
from dpflow.ledger import Ledger
from dpflow.tables.language.grouping import declare_groups

#: Epsilons that are tried: no guarantee above the last is worth its name.
_LEAST, _MOST = 1e-4, 20.0


def find_epsilon(target: Target, plan_at: Callable[[Fraction], PlannedParts]) -> PlannedParts:
    """Plans at the least epsilon, to three digits, that keeps every error within the target.

    Raises `Refusal` if none does, or if an error is not known before spending.
    """
    low, high = math.log(_LEAST), math.log(_MOST)
    best = plan_at(_three_digits(_MOST))
    for part in best.parts:
        _require_fixed_groups(part)
    if _worst_share(target, best.parts) > 1:
        raise Refusal(
            "target",
            f"no epsilon up to {_MOST:g} keeps this error; allow a larger one, or a larger group",
        )
    while high - low > 1 / 256:
        middle = (low + high) / 2
        plans = plan_at(_three_digits(math.exp(middle)))
        if _worst_share(target, plans.parts) <= 1:
            best, high = plans, middle
        else:
            low = middle
    return best


def _require_fixed_groups(part: PartPlan) -> None:
    """Raise `Refusal` where an error within the target would say nothing of what is cut: nobody fixed in how many groups
    a unit counts, and no profile measured it.
    """
    by, table = part.part.params.get("by"), part.plan.table
    if by is None or part.plan.chosen is not None or not describe_unmeasured(part.plan):
        return
    asked, (groups, _) = part.plan.request.contribution_bounds, table.limits_for(by)
    if asked is not None and asked.groups is not None:
        return
    keys = table.columns[by].public_keys
    # In all groups that there are, a unit counts anyway.
    may_be_cut = keys is None or groups.number < len(keys)
    if "contribution_bounds.rows" in _list_sources(table, by) and may_be_cut:
        raise Refusal(
            "target",
            f"error is of noise alone, and nobody fixed in how many groups of {by} one {table.privacy_unit.column} counts; "
            f"release contributions of {table.name}, or fix groups=N in the query or declaration",
        )


def _list_sources(table: Table, by: str) -> set[str]:
    """Words of the declaration that limit the groups of a unit, also where keys of its rows are what it is grouped by."""
    if (units := table.unit_rows) is None:
        return {table.limits_for(by)[0].source}
    texts, found = dict(units.keys), set[str]()
    for part in table.columns[by].parts or (by,):
        if part in texts:
            below, name = declare_groups(units.rows, texts[part])
            found |= _list_sources(below, name)
    return found or {table.limits_for(by)[0].source}


def _three_digits(value: float) -> Fraction:
    digits = 2 - math.floor(math.log10(value))
    return Fraction(math.ceil(value * 10.0**digits)) / Fraction(10) ** digits


def _worst_share(target: Target, plans: Sequence[PartPlan]) -> float:
    """The largest error as a part of what it may be."""
    return max(error_share(target, plan) for plan in plans)


def error_share(target: Target, part: PartPlan) -> float:
    """The largest error of a part as a share of the target. Raises `Refusal` if it is not known before
    spending.
    """
    release = find_release(part.plan)
    if release is None:
        raise Refusal(
            "target",
            f"the error of {part.part.mechanism} in its own unit depends on the rows, so no target fits; give an epsilon",
        )
    shares = []
    for label in part.part.measures.values():
        measure = find_measure(part.plan, label)
        assert measure is not None
        if measure.shrinks:
            if target.rows is None:
                raise Refusal(
                    "target",
                    f"the error of {label} shrinks with the group; say how many rows it has, such as rows=10000",
                )
            measure = measure.model_copy(update={"size": target.rows})
        error = release.query.error_bound(measure, release.tails(measure))
        if part.cells > 1:
            # Of a level that is added up from it.
            width = make_width(part.plan, Row("", label, None), part.cells)(1)
            error = error if width is None else width
        allowed = float(target.size)
        if target.relative:
            assert target.rows is not None
            allowed *= _scale(measure, part.plan.table, target.rows)
        shares.append(error / allowed)
    return max(shares)


def require_target(
    target: Target, planned: Sequence[tuple[PartPlan, RunIdentity]], ledger: Ledger
) -> None:
    """Refuse before the charge what would be answered by a draw with a wider error: of the same question at the same
    price, charged with other contribution bounds or with a histogram of its own. Raises `PlanRefused`.
    """
    for part, run in planned:
        record = ledger.find(run.key(part.plan))
        if record is None:
            continue
        charged = follow_record(part.plan, record)
        drawn = follow_result(charged, Result.from_json(record.result or {"rows": []}))
        if error_share(target, replace(part, plan=drawn)) > 1:
            raise PlanRefused(
                f"release {record.release_id} of this question was charged at the same price with an error above the "
                f"target; ask for another revision, or for a larger error"
            )


def _scale(measure: Measure, table: Table, rows: int) -> float:
    """What an error is a part of: the rows, or the largest that a statistic of them can be."""
    if measure.column is None:
        return float(rows)
    column = table.bounded_column(measure.column)
    low, high = (float(end * column.step) for end in column.grid_bounds())
    if measure.measure == "sum":
        return rows * max(abs(low), abs(high))
    width = high - low
    return width if measure.measure == "mean" else width**2 / 4
