"""Sanitize the frequencies of single values (section 4.2, Figures 9 and 10, Theorems 4.6 and 4.7).

Problem: all 2^d frequencies within alpha, or all sums of k of them. Values are taken off one by
one, each with a noisy count; everything not listed is estimated as 0.

- ``san-points``: ceil(2k/alpha) rounds of the choosing mechanism and discrete Laplace noise, each with the same share of the
  budget by Theorem 2.5. Needs a number of rows independent of the domain; refuses to run below the privacy gate of
  the choosing mechanism. Stops at the first round that chooses nothing.
- ``exponential``: the same rounds with the exponential mechanism over the whole domain. Pure; not in the paper; needs far
  fewer rows for every integer type.
- ``auto``: the one that needs fewer rows.

Guarantee: (epsilon, delta)-DP, or epsilon-DP for ``exponential``. A value that is listed already
has score 0 in later rounds.

The synthetic table is proper (Remark 2.18): whole weights that sum to ``rows``, each within alpha
rows of its estimate; what is left over is spread over unlisted values, at most alpha rows each.

When not to use it: for counts by public keys (`histogram`), or for ranges (`sanitize_thresholds`).
"""

from __future__ import annotations

import math
from collections.abc import Container
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from dpflow.core.accounting.events import Event
from dpflow.core.contract.declaration import Table
from dpflow.core.contract.requests import Answer
from dpflow.core.contract.results import NOT_NEGATIVE, ErrorBound, Result, Row, ValueRange
from dpflow.core.sampling.noisy_values import add_laplace
from dpflow.core.sampling.randomness import Source
from dpflow.core.toolbox.noise import half_width
from dpflow_private_learning.building_blocks import learning_params as common
from dpflow_private_learning.building_blocks.adaptive_calls import call_epsilon
from dpflow_private_learning.building_blocks.choosing_mechanism import choose_solution, minimum_rows
from dpflow_private_learning.building_blocks.error_promise import FREQUENCY, ErrorPromise
from dpflow_private_learning.building_blocks.exponential_mechanism import draw_point
from dpflow_private_learning.building_blocks.noisy_row_count import MOST, Counted
from dpflow_private_learning.building_blocks.rec_concave import Budget
from dpflow_private_learning.building_blocks.row_bounds import peeling_rows, san_points_rows
from dpflow_private_learning.building_blocks.spend_log import SpendLog
from dpflow_private_learning.building_blocks.step_function import Array, StepFunction, offsets
from dpflow_private_learning.building_blocks.synopsis import Synopsis, check_name

#: Unlisted values, at least, that what is left over is spread over, if there are so many.
SPREAD = 1000


class SanitizePointsParams(common.Approximated):
    """``column``: bounded. ``k``: points a query may sum. ``method``: auto, san-points or
    exponential.

    ``budget``: tight, or the paper's split.
    """

    column: str
    k: Annotated[int, Field(ge=1, le=10**4)] = 1
    method: Literal["auto", "san-points", "exponential"] = "auto"
    budget: Budget = "tight"


@dataclass(frozen=True)
class Rounds:
    """How a run is divided: rounds, the privacy cost of each of the two calls in a round, and the
    accuracy of choosing.
    """

    method: str
    count: int
    epsilon: Fraction
    delta: Fraction
    alpha: Fraction
    rows: int
    proof_rows: float

    @property
    def min_rows(self) -> int:
        """Rows from which choosing is private."""
        return minimum_rows(self.alpha, self.epsilon, self.delta, 1)


def plan_rounds(
    method: str,
    size: int,
    k: int,
    alpha: Fraction,
    beta: Fraction,
    rows: int,
    epsilon: Fraction,
    delta: Fraction,
    budget: Budget,
) -> Rounds:
    """Divide a target (epsilon, delta) for one row; ``auto`` takes the method that needs fewer
    rows.
    """
    share = alpha / k
    count = common.need_rounds(math.ceil(2 / share))
    # Two calls a round: one chooses a value, one counts it.
    round_epsilon = epsilon / (2 * count)
    peeling = peeling_rows(size, share, beta, epsilon)
    pure = Rounds("exponential", count, round_epsilon, Fraction(0), share, rows, peeling)
    if method == "exponential" or not delta:
        return pure
    small, chance = call_epsilon(epsilon, delta / 5, 2 * count, budget), 2 * delta / (5 * count)
    proof_rows = san_points_rows(share, beta, epsilon, delta, small, chance)
    paper = Rounds("san-points", count, small, chance, share / 2, rows, proof_rows)
    # Both numbers are public; below its gate the paper's method is not private.
    if method == "auto" and (pure.proof_rows <= proof_rows or rows < paper.min_rows):
        return pure
    return paper


def peel_values(x: Array, counts: Array, end: int, plan: Rounds, calls: SpendLog) -> dict[int, int]:
    """Noisy counts of the values that were taken off, by position."""
    noisy_counts: dict[int, int] = {}
    left, scale = counts.copy(), 1 / plan.epsilon
    for _ in range(plan.count):
        if plan.method == "exponential":
            # A value listed before has score 0 from then on, so it is drawn again only by chance.
            point = draw_point([StepFunction.from_points(x, left, end)], plan.epsilon, calls)
            if point in noisy_counts:
                continue
        else:
            present = np.flatnonzero(left)
            index = choose_solution(
                left[present], plan.rows, plan.alpha, plan.epsilon, plan.delta, calls
            )
            # As in the figure, the first round that chooses nothing is the last one.
            if index is None:
                break
            point = int(x[present[index]])
        at = int(np.searchsorted(x, x.dtype.type(point) if x.dtype != object else point))
        true = at < len(x) and int(x[at]) == point
        calls.record_call("laplace", plan.epsilon)
        # A value without rows is counted, too: whether it has rows is what the noise hides.
        noisy_counts[point] = add_laplace(int(counts[at]) if true else 0, scale, calls.source)
        if true:
            left[at] = 0
    return noisy_counts


def make_proper(
    estimates: dict[int, int], rows: int, alpha: Fraction, end: int
) -> tuple[Synopsis, bool]:
    """A database of ``rows`` points whose frequencies are within alpha of the estimates, and
    whether there is one.

    Remark 2.18 for points. Listed points get their estimates. What is then left over is spread
    evenly over unlisted points, at most alpha rows each, then over listed ones; what is too much is
    taken from listed ones; again alpha rows each. Post-processing. The paper's wording fills listed
    points first, which is as close as promised, and less close to the truth; and so is a few points
    filled up to alpha rows, of values that hardly any row has.
    """
    # Down: more than alpha rows moved would leave the bound.
    slack = math.floor(alpha * rows)
    weights = {point: max(0, count) for point, count in sorted(estimates.items())}
    left = rows - sum(weights.values())
    for point in [*weights]:
        less = min(max(-left, 0), weights[point], slack)
        weights[point], left = weights[point] - less, left + less
    # Unlisted values first: their estimate is 0, so up to alpha rows of each are within the bound.
    if left > 0 and slack:
        chosen = _spread_points(weights, end, max(SPREAD, -(-left // slack)))
        for number, point in enumerate(chosen):
            weights[point] = min(-(-left // (len(chosen) - number)), slack)
            left -= weights[point]
    for point, count in sorted(estimates.items()):
        more = min(max(left, 0), max(0, count + slack - weights[point]))
        weights[point], left = weights[point] + more, left - more
    return Synopsis.of(weights), left == 0


def _spread_points(listed: Container[int], end: int, most: int) -> list[int]:
    """Up to so many unlisted points of 0..end, at equal distances."""
    # Of every so many neighbours the first that is not listed; all points if there are few.
    size = end + 1
    firsts = range(size) if size <= most else [size * i // most for i in range(most)]
    points = []
    for first, behind in pairwise([*firsts, size]):
        free = next((point for point in range(first, behind) if point not in listed), None)
        points += [] if free is None else [free]
    return points


class SanitizePoints(common.ReadsValues, Counted[SanitizePointsParams]):
    """Frequencies of all values of a bounded column, or of all sets of k of them."""

    name = "sanitize_points"
    job = "synthetic rows"
    version = 2
    summary = (
        "a synthetic column with nearly the same frequency of every value, or of every k values"
    )
    citation = "Beimel, Nissim, Stemmer 2013/2016, Theorems 4.6 and 4.7, Remark 2.18; peeling by the exponential mechanism"

    def _plan_rounds(self, params: SanitizePointsParams, table: Table) -> Rounds:
        check_name(table, params.column)
        size = common.domain(table, params.column)[2] + 1
        if params.method == "san-points":
            common.need_delta(params, "san-points")
        epsilon, delta = common.per_row(params.epsilon, params.delta, table)
        aim = (params.k, params.alpha, params.beta, params.n, epsilon, delta)
        plan = plan_rounds(params.method, size, *aim, params.budget)
        if plan.method == "san-points":
            common.need_rows(plan.min_rows, params.n, "san-points")
        # Refused in the plan, so that no draw fails after the charge.
        common.need_scale(4 / plan.epsilon)
        return plan

    def min_rows(self, params: SanitizePointsParams, table: Table) -> int | None:
        """The least of the choosing mechanism; None for the exponential one."""
        plan = self._plan_rounds(self._params_at(params, table, MOST), table)
        return plan.min_rows if plan.method == "san-points" else None

    def event_at_rows(self, params: SanitizePointsParams, table: Table) -> Event:
        """(epsilon, delta) with the choosing mechanism, epsilon with the exponential one."""
        plan = self._plan_rounds(params, table)
        return common.run_event(
            params.epsilon, params.delta if plan.method == "san-points" else Fraction(0)
        )

    def promise(self, params: SanitizePointsParams, table: Table) -> ErrorPromise:
        """The error of every value's frequency, or of the sum of any k of them."""
        plan = self._plan_rounds(params, table)
        paper = "Theorem 4.6" if params.k == 1 else "Theorem 4.7"
        theorem = paper if plan.method == "san-points" else "peeling by the exponential mechanism"
        shrinks = "rows grow as 1/error^1.5 and 1/epsilon, or as 1/(error^2 epsilon)"
        return ErrorPromise(params.alpha, FREQUENCY, params.beta, theorem, plan.proof_rows, shrinks)

    def draw_at_rows(
        self, params: SanitizePointsParams, table: Table, answer: Answer, source: Source
    ) -> Result:
        """Release noisy counts of the listed values and a synthetic column near them."""
        column, low, end = common.domain(table, params.column)
        plan, calls = self._plan_rounds(params, table), SpendLog(source)
        estimates = peel_values(offsets(answer.values, low), answer.counts, end, plan, calls)
        synopsis, fits = make_proper(estimates, params.n, params.alpha / params.k, end)
        width = half_width(1 / plan.epsilon)
        rows = tuple(
            Row(str(column.grid_value(low + point)), "count", count, width)
            for point, count in sorted(estimates.items())
        )
        status = "ok" if fits else "fallback"
        document = common.report(
            plan.method,
            calls,
            needed=plan.proof_rows,
            rows=params.rows,
            status=status,
            k=params.k,
        )
        return Result(rows, document, synopsis.to_table(params.column, column, low))

    def value_ranges(self, params: SanitizePointsParams, table: Table) -> dict[str, ValueRange]:
        """Counts are not negative."""
        return {"count": NOT_NEGATIVE}

    def error_bound(self, params: SanitizePointsParams, table: Table) -> ErrorBound:
        """The 95 % half-width of a listed value's noise, in rows; unlisted values have a bias
        instead.
        """
        planned = self.plan_params(params, table)
        round_epsilon = self._plan_rounds(planned, table).epsilon
        # Below its gate ``auto`` takes the pure method.
        if self.counts_rows(params, table) and params.method == "auto":
            round_epsilon = min(
                round_epsilon,
                self._plan_rounds(
                    planned.model_copy(update={"method": "exponential"}), table
                ).epsilon,
            )
        # Of one listed value, and of all values together.
        bound = super().error_bound(params, table)
        return ErrorBound(
            {"count": half_width(1 / round_epsilon)} | bound.half_width,
            f"count: noise of a listed value; others are estimated as 0; {bound.note}",
        )
