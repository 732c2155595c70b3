"""Bounds for a contract's checks from what it released before: nothing is read or charged.

A suggested bound is the tightest, to three digits, at which every former run would have been decided
*kept* at the contract's present price. Released numbers are noisy and paid for, so what is computed
from them is free. A bound from few runs is a guess about the next ones. Numbers that were released
under another declaration are left out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from dpflow.core.accounting.bisection import bisect_reals
from dpflow.core.contract.results import Result
from dpflow.core.toolbox.row_checks import SHARES, RowCheck, make_excess
from dpflow.engine.releases.own_histogram import find_release
from dpflow.engine.releases.plan import Plan
from dpflow.errors import InvalidInput
from dpflow.ledger import Ledger
from dpflow.mechanisms.check_rows import moment_label
from dpflow.quality.contract_file import Contract
from dpflow.quality.contract_run import plan_contract
from dpflow.registry import Registry

#: Of a suggested bound.
DIGITS = 3
#: What tells whether two checks measure the same: all but their bounds.
SAME = ("name", "check", "column", "condition", "among", "p", "since")


@dataclass(frozen=True)
class Suggestion:
    """A bound from history.

    Attributes:
        check: the check as it is.
        bound: the suggested one, on the same side; None where history gives none.
        runs: how many former runs it follows from.
        remark: why there is none.
    """

    check: RowCheck
    bound: Fraction | None
    runs: int
    remark: str = ""


def suggest_bounds(contract: Contract, ledger: Ledger, registry: Registry) -> list[Suggestion]:
    """A suggestion for every check of a metered contract, from settled releases in its scope.

    Raises `InvalidInput` for a contract that releases no numbers.
    """
    if contract.mode != "metered" or not contract.checks:
        raise InvalidInput(
            f"bounds are suggested from released numbers, and a contract in mode {contract.mode} releases none; "
            f"take mode: metered with checks"
        )
    # Which blocks makes no difference to the noise.
    table = contract.load_declaration()
    blocks = ("any",) if table.protects == "unit-block" else ()

    def plan_checks(*checks: RowCheck) -> Plan:
        asked = contract.model_copy(update={"checks": checks, "drift": ()})
        return plan_contract(asked, blocks, registry, ledger)[0][0]

    plan, alone = (
        plan_checks(*contract.checks),
        [(one, plan_checks(one)) for one in contract.checks],
    )
    history = _read_history(alone, ledger)
    return [
        _suggest_bound(check, contract, plan, history.get(check.name, []))
        for check in contract.checks
    ]


def _read_history(
    checks: Sequence[tuple[RowCheck, Plan]], ledger: Ledger
) -> dict[str, list[Mapping[str, int]]]:
    """Released moments of every former run, by the check that they tell of.

    Args:
        checks: each with a plan of it alone: moments of rows that were declared otherwise tell nothing.
    """
    history = dict[str, list[Mapping[str, int]]]()
    for record in ledger.releases(checks[0][1].request.scope):
        request = record.request
        if request.get("mechanism") != "check_rows" or not record.settled or record.result is None:
            continue
        rows = Result.from_json(record.result).rows
        numbers = {row.measure: row.value for row in rows if isinstance(row.value, int)}
        stored = request["params"]["checks"]
        former = [
            RowCheck.model_validate({k: v for k, v in one.items() if v is not None})
            for one in stored
        ]
        measured = {check.name: _identify(check) for check in former}
        for check, plan in checks:
            if measured.get(check.name) == _identify(check) and plan.measures_same_rows(request):
                history.setdefault(check.name, []).append(numbers)
    return history


def _identify(check: RowCheck) -> tuple[object, ...]:
    return tuple(getattr(check, field) for field in SAME)


def _suggest_bound(
    check: RowCheck, contract: Contract, plan: Plan, history: list[Mapping[str, int]]
) -> Suggestion:
    if check.check == "quantile":
        return Suggestion(check, None, 0, "a quantile's rows are counted at its own bound")
    release = find_release(plan)
    # A run that answered none is kept at every bound, and says nothing of any.
    wanted = {moment_label(m) for m in make_excess(check, release.query).coefficients}
    history = [numbers for numbers in history if wanted <= numbers.keys()]
    if not history:
        return Suggestion(
            check, None, 0, "no former run released its numbers under the present declaration"
        )
    lower = check.at_least is not None
    field = "at_least" if lower else "at_most"

    def keeps_all(bound: Fraction) -> bool:
        """Whether every former run is kept at a bound."""
        # Not validated: the search is among reals, and only its end is a legal bound.
        excess = make_excess(check.model_copy(update={field: bound}), release.query)
        tails = excess.list_tails(release.noises, float(1 - contract.confidence))
        width = excess.half_width(tails)
        return all(
            float(excess.evaluate({m: numbers[moment_label(m)] for m in tails})) + width <= 0
            for numbers in history
        )

    tight, loose = _search_range(check, plan, lower)
    if not keeps_all(loose):
        return Suggestion(check, None, len(history), "no bound keeps all former runs at this price")
    loose = bisect_reals(keeps_all, tight, loose)[1]
    bound = _round_outward(loose, lower, whole=check.check in ("rows", "units", "freshness"))
    if check.check in SHARES and bound >= 1:
        return Suggestion(check, None, len(history), "no share below 1 keeps all former runs")
    return Suggestion(check, bound, len(history))


def _search_range(check: RowCheck, plan: Plan, lower: bool) -> tuple[Fraction, Fraction]:
    """The tightest and the loosest bound that make sense."""
    if check.check in (*SHARES, "key_share"):
        low, high = Fraction(0), Fraction(1)
    elif check.check == "mean":
        assert check.column is not None
        column = plan.table.bounded_column(check.column)
        low, high = column.lower or Fraction(0), column.upper or Fraction(0)
    else:
        low, high = Fraction(-(2**40) if check.check == "sum" else 0), Fraction(2**40)
    return (high, low) if lower else (low, high)


def _round_outward(value: Fraction, down: bool, *, whole: bool) -> Fraction:
    """To three digits, or a whole number, away from what was seen."""
    step = Fraction(1)
    if value and not whole:
        step = Fraction(10) ** max(-6, math.floor(math.log10(abs(float(value)))) - DIGITS + 1)
    return (math.floor(value / step) if down else math.ceil(value / step)) * step
