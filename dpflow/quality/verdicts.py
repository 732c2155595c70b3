"""What a check's outcome is, decided from released numbers alone.

A metered check's excess E (`dpflow.core.toolbox.row_checks`) is known up to noise: the released one
is within ``half_width`` of it, except with probability 1 - confidence. So it is *violated* if even
the least possible excess is above 0, *kept* if even the largest is not, and *undecided* between. The
error is stated with it. Nothing here reads rows: deciding is post-processing of what was paid.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from dpflow.core.contract.results import Result
from dpflow.core.toolbox.moments import CentredColumn
from dpflow.core.toolbox.row_checks import RowCheck, describe_check, describe_rows, make_excess
from dpflow.engine.releases.own_histogram import find_release
from dpflow.engine.releases.plan import Plan
from dpflow.mechanisms.check_rows import moment_label
from dpflow.quality.contract_file import Contract, DriftCheck

Verdict = Literal["kept", "violated", "undecided", "quiet", "alarm"]
#: Verdicts of checks that pass.
PASSING = frozenset[str](("kept", "quiet"))


@dataclass(frozen=True)
class CheckOutcome:
    """One check's outcome. All of it may be shown: numbers are noisy and paid.

    Attributes:
        name, kind: of the check.
        summary: what is asked, in words.
        verdict: ``kept``, ``violated`` or ``undecided``; of mode watch ``quiet``, which proves nothing within twice its
            margin, or ``alarm``.
        excess: the released excess: how far beyond the bound; for a share or a quantile in rows, for others
            in the unit of the bound. None where only a verdict leaves, or where nothing bounds it.
        half_width: its error, which noise exceeds with no more than 1 - confidence.
        estimate: what the released numbers say of the quantity itself. None where they do not: for a
            quantile they count the rows beyond its bound.
        why_undecided: where it is not the noise that hides it.
    """

    name: str
    kind: str
    summary: str
    verdict: Verdict
    excess: float | None = None
    half_width: float | None = None
    estimate: float | None = None
    why_undecided: str | None = None

    def to_json(self) -> dict[str, Any]:
        """The fields that hold something, as JSON."""
        return {name: value for name, value in vars(self).items() if value is not None}


def decide_excess(excess: float, half_width: float) -> Verdict:
    """The verdict of an excess that is known up to a half-width."""
    # In positive form, so that NaN is undecided.
    if excess - half_width > 0:
        return "violated"
    return "kept" if excess + half_width <= 0 else "undecided"


def judge_checks(contract: Contract, plan: Plan, result: Result) -> list[CheckOutcome]:
    """The outcomes of a contract's checks, from its release of `check_rows`."""
    release = find_release(plan)
    numbers = {row.measure: row.value for row in result.rows}
    outcomes = []
    for check in contract.checks:
        summary = describe_check(check, plan.table)
        excess = make_excess(check, release.query)
        named = {moment: numbers.get(moment_label(moment)) for moment in excess.coefficients}
        moments = {m: value for m, value in named.items() if isinstance(value, int)}
        # The release answered none: nothing is known, whatever the rows are.
        if len(moments) < len(named):
            outcomes.append(CheckOutcome(check.name, check.check, summary, "undecided"))
            continue
        tails = excess.list_tails(release.noises, float(1 - contract.confidence))
        value, width = float(excess.evaluate(moments)), excess.half_width(tails)
        verdict = decide_excess(value, width)
        estimate = _estimate(check, moments, tails, release.query.columns, plan)
        shown: tuple[float | None, float | None] = (value, width)
        if check.check == "mean":
            (counted,) = (moment for moment in moments if moment[0] != "sum")
            shown = _divide_excess(value, width, moments[counted], tails[counted])
        outcomes.append(CheckOutcome(check.name, check.check, summary, verdict, *shown, estimate))
    return outcomes


def _divide_excess(
    excess: float, width: float, number: int, tail: float
) -> tuple[float, float] | tuple[None, None]:
    """The middle and half-width of all quotients of an excess of sums and of the number that they are over, each as far off as
    noise may be: an excess of the mean. None where that number may be 0.
    """
    if number <= tail:
        return None, None
    quotients = [
        (excess + sign * width) / (number + far) for sign in (-1, 1) for far in (-tail, tail)
    ]
    low, high = min(quotients), max(quotients)
    return (low + high) / 2, (high - low) / 2


def _estimate(
    check: RowCheck,
    moments: Mapping[Any, int],
    tails: Mapping[Any, float],
    columns: Mapping[str, CentredColumn],
    plan: Plan,
) -> float | None:
    """The share, mean or number itself; None for a quantile, and where the number that it is divided by may be 0."""
    if check.check == "quantile":
        return None
    if check.check in ("rows", "units"):
        return float(moments[check.check, ""])
    if check.check == "freshness":
        return float(moments["sum", check.computed_name])
    name = check.column if check.check in ("mean", "sum") else check.computed_name
    assert name is not None
    total = moments["sum", name]
    counted = next(moment for moment in moments if moment[0] != "sum")
    number = moments[counted]
    if check.check == "sum":
        assert check.column is not None
        step = plan.table.bounded_column(check.column).step
        return float(step * (total + number * columns[name].centre))
    if number <= tails[counted]:
        return None
    if check.check == "mean":
        column = plan.table.bounded_column(name)
        low, high = (float(bound) for bound in (column.lower or 0, column.upper or 0))
        mean = float(column.step) * (total / number + columns[name].centre)
        return min(max(mean, low), high)
    return min(max(total / number, 0.0), 1.0)


def judge_drift(
    contract: Contract, check: DriftCheck, plan: Plan, result: Result, reference: Result
) -> CheckOutcome:
    """The outcome of a drift check, from its histogram and that of the reference.

    With noisy counts n_k, each within h of the true one, N their sum and K keys, the total
    variation distance of the shares from any fixed ones moves by at most K h/(N - K h). The
    reference is taken as it was released.
    """
    of = f"the shares of {check.column} from {check.reference!r}"
    summary = f"distance of {of} at most {check.at_most}{describe_rows(plan.table)}"
    undecided = CheckOutcome(check.name, "drift", summary, "undecided")
    shares, former = shares_of(result), shares_of(reference)
    if shares is None or former is None or set(shares) - set(former):
        return undecided
    (noise,) = find_release(plan).noises.values()
    total = sum(row.value for row in result.rows if isinstance(row.value, int))
    slack = len(shares) * noise.half_width(float(1 - contract.confidence) / len(shares))
    if total <= slack:
        return undecided
    keys = sorted(former)
    distance = math.fsum(abs(shares.get(key, 0.0) - former[key]) for key in keys) / 2
    excess, width = distance - float(check.at_most), slack / (total - slack)
    return CheckOutcome(
        check.name, "drift", summary, decide_excess(excess, width), excess, width, distance
    )


def shares_of(result: Result) -> dict[str, float] | None:
    """Each key's share of released counts; None where there are none."""
    counts = {
        row.key: row.value
        for row in result.rows
        if row.measure == "count" and isinstance(row.value, int)
    }
    total = sum(counts.values())
    if len(counts) < len(result.rows) or total < 1:
        return None
    return {key: count / total for key, count in counts.items()}


def all_pass(outcomes: Sequence[CheckOutcome], undecided: str) -> bool:
    """Whether a contract is kept: no check is violated, and none is undecided unless that passes."""
    passing = PASSING | ({"undecided"} if undecided == "pass" else set())
    return all(outcome.verdict in passing for outcome in outcomes)
