"""Which checks of a metered contract the noise lets decide, before anything is paid: from public numbers alone.

A check whose rows are as good as they can be has the excess -S, its *slack*; S grows with the number of rows. It is
told *kept*, with the contract's confidence or more, if twice the noise's half-width is at most S. With fewer rows,
or a lower epsilon, even perfect rows may be undecided.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, floor

from dpflow.core.contract.declaration import Table
from dpflow.core.toolbox.aggregate import Release
from dpflow.core.toolbox.row_checks import RowCheck, make_excess
from dpflow.engine.releases.own_histogram import find_release
from dpflow.engine.releases.plan import Plan
from dpflow.engine.releases.scope_filters import ScopeFilters
from dpflow.mechanisms.check_rows import CheckRows, CheckRowsParams
from dpflow.quality.contract_file import Contract
from dpflow.tables.language.grouping import declare_columns


@dataclass(frozen=True)
class Decidability:
    """What the noise of a plan lets decide of one check.

    Attributes:
        check: its name.
        min_rows, max_rows: between how many rows perfect rows are judged, from the first and up to the second; None
            where there is no such end.
        decides: whether the contract's ``rows`` are enough; None where that depends on rows it does not name, or on
            units. A bound of 0 is never told kept: noise hides one row.
        min_epsilon: about which epsilon of all checks together would be enough, at the same split.
    """

    check: str
    min_rows: int | None
    decides: bool | None
    min_epsilon: float | None
    max_rows: int | None = None

    def describe(self) -> str:
        """For a person."""
        if self.decides is None:
            if self.max_rows is not None:
                return f"up to {self.max_rows} rows"
            return (
                "depends on the units" if self.min_rows is None else f"from {self.min_rows} rows on"
            )
        if self.decides:
            return "yes"
        return "no" if self.min_epsilon is None else f"from epsilon {self.min_epsilon:.3g} on"


def list_decidability(contract: Contract, plan: Plan) -> list[Decidability]:
    """For each check of a metered contract, from the plan of its release of `CheckRows`."""
    release = find_release(plan)
    return [_judge_noise(contract, check, release, plan.table) for check in contract.checks]


def _judge_noise(
    contract: Contract, check: RowCheck, release: Release, table: Table
) -> Decidability:
    needed = 2 * _half_width(contract, check, release)
    slack = _slack(check, table)
    if slack is None:
        return Decidability(check.name, None, None, None)
    per_row, constant = slack
    if per_row == constant == 0:
        return Decidability(check.name, None, False, None)
    min_rows = max_rows = None
    if per_row < 0 < constant:
        max_rows = floor((constant - Fraction(needed)) / -per_row)
    elif per_row != 0:
        # Where no rows keep the bound, they are told violated from so many on.
        own = constant if per_row > 0 else -constant
        min_rows = max(0, ceil((Fraction(needed) - own) / abs(per_row)))
    if per_row != 0 and contract.rows is None:
        # A bound that is narrower than the noise is told kept of no number of rows.
        decides = False if max_rows is not None and max_rows < 0 else None
        return Decidability(check.name, min_rows, decides, None, max_rows)
    # A bound on the wrong side of the number of rows is decided, too: as violated.
    room = abs(per_row * (contract.rows or 0) + constant)
    epsilon = float(contract.epsilon or 0) * needed / float(room) if room else None
    return Decidability(check.name, min_rows, needed <= room, epsilon, max_rows)


def _half_width(contract: Contract, check: RowCheck, release: Release) -> float:
    """As a verdict has it (`dpflow.quality.verdicts`)."""
    excess = make_excess(check, release.query)
    return excess.half_width(excess.list_tails(release.noises, float(1 - contract.confidence)))


def _slack(check: RowCheck, table: Table) -> tuple[Fraction, Fraction] | None:
    """How far below 0 the excess of perfect rows is: so much for each row, and a constant."""
    at_most, limit = check.at_least is None, check.limit
    if check.check == "units":
        return None
    if check.check in ("rows", "freshness"):
        return (Fraction(-1), limit) if at_most else (Fraction(1), -limit)
    if check.check in ("mean", "sum"):
        column = table.bounded_column(check.column or "")
        low, high = column.lower or Fraction(0), column.upper or Fraction(0)
        if check.check == "sum":
            return (-low, limit) if at_most else (high, -limit)
        return (limit - low if at_most else high - limit), Fraction(0)
    if check.check == "quantile":
        assert check.p is not None
        return (1 - check.p if at_most else check.p), Fraction(0)
    return (limit if at_most else 1 - limit), Fraction(0)


def weigh_checks(contract: Contract, filters: ScopeFilters) -> tuple[RowCheck, ...]:
    """The checks with weights under which as many as possible decide at the contract's ``rows``.

    Those that need the least noise-free room get a weight in proportion to their need, the others the least
    weight; of equal numbers the split that serves more checks. Depends on public numbers alone. An author's own
    weights stay.
    """
    checks = contract.checks
    if contract.rows is None or any(check.weight != 1 for check in checks):
        return checks
    table = contract.load_declaration()

    def judge(weighted: Sequence[RowCheck]) -> list[Decidability]:
        params = CheckRowsParams(
            checks=tuple(weighted), epsilon=contract.epsilon, delta=contract.delta
        )
        declared = declare_columns(table, CheckRows().computed_columns(params, table))
        release, _ = CheckRows().choose_release(params, declared)
        if not filters.hold(contract.scope or contract.name, release.event):
            params = params.model_copy(update={"delta": Fraction(0)})
            release, _ = CheckRows().choose_release(params, declared)
        return [_judge_noise(contract, check, release, table) for check in weighted]

    even = judge(checks)
    needs = {one.check: one.min_epsilon for one in even if one.min_epsilon}
    order = sorted(needs, key=lambda name: needs[name])
    best, best_count = checks, sum(one.decides is True for one in even)
    for served in range(len(order), 0, -1):
        if served <= best_count:
            break
        least = needs[order[0]]
        weights = {
            name: Fraction(min(1000, round(10 * needs[name] / least))) for name in order[:served]
        }
        weighted = tuple(
            check.model_copy(update={"weight": weights.get(check.name, Fraction(10))})
            for check in checks
        )
        count = sum(one.decides is True for one in judge(weighted))
        if count > best_count:
            best, best_count = weighted, count
    return best
