"""SanThresholds (section 4.3, Figure 11, Lemmas 4.8 to 4.12, Theorem 4.13): all prefix fractions of
an ordered column.

One call on a range [k, l]: if a noisy count says that the range is light, its rows become copies of
l. Otherwise RecConcave finds the power Z such that some interval of 2Z points is moderately heavy,
the choosing mechanism picks one, its rows become copies of its upper end, and both sides are called
in turn. At most c = ceil(77/alpha) calls are made in all.

Where the paper is silent: copies are max(0, noisy count); if the choosing mechanism gives nothing,
the call ends as for a light range, with the count it already has; a range of one point needs no
length; without any copy all answers are 0.

Guarantee: at most four mechanisms in a call, each (e, d)-DP: by Theorem 2.5 for 4c of them
(epsilon, delta)-DP, if the declared rows are at least the choosing mechanism's gate for accuracy
alpha/64 and growth 2, in the inner values.

When not to use it: below hundreds of millions of rows its accuracy is not proven;
`dpflow_private_learning.building_blocks.prefix_tree` needs 10^5 and is pure. It still runs, and
measures well, from the gate on.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np

from dpflow.core.sampling.noisy_values import add_laplace
from dpflow_private_learning.building_blocks.adaptive_calls import theorem_epsilon
from dpflow_private_learning.building_blocks.choosing_mechanism import choose_solution, minimum_rows
from dpflow_private_learning.building_blocks.log_bounds import ceil_log2
from dpflow_private_learning.building_blocks.rec_concave import (
    Budget,
    best_levels,
    rec_concave,
    split_budget,
)
from dpflow_private_learning.building_blocks.spend_log import SpendLog
from dpflow_private_learning.building_blocks.step_function import Array, StepFunction
from dpflow_private_learning.building_blocks.synopsis import Synopsis

_QUARTER = Fraction(1, 4)


@dataclass(frozen=True)
class CallPlan:
    """Inner values: calls c, privacy cost of each mechanism, and the accuracy with the declared
    rows that all fractions refer to.
    """

    calls: int
    epsilon: Fraction
    delta: Fraction
    alpha: Fraction
    rows: int
    beta: float

    @property
    def minimum_rows(self) -> int:
        """The least declared number of rows for which the guarantee is proved."""
        # Growth 2: one row lies in a block of either family.
        return minimum_rows(self.alpha / 64, self.epsilon, self.delta, 2)


def plan_calls(
    alpha: Fraction,
    beta: Fraction,
    epsilon: Fraction,
    delta: Fraction,
    rows: int,
    budget: Budget = "tight",
) -> CallPlan:
    """Divide a target (epsilon, delta) for one row."""
    # The proof's bound: all of these calls are charged, however few a run makes.
    c = math.ceil(77 / alpha)
    small = min(Fraction(1), theorem_epsilon(epsilon, delta / 5, 4 * c, budget))
    return CallPlan(c, small, delta / (5 * c), alpha, rows, float(beta / (3 * c)))


def san_thresholds(
    x: Array, counts: Array, end: int, plan: CallPlan, calls: SpendLog
) -> tuple[Synopsis, int]:
    """The synthetic column over 0..end for ascending distinct positions with their counts, and how
    many calls it took.
    """
    run = _Run(x, np.concatenate([[0], np.cumsum(counts)]), plan, calls)
    todo = [(0, end)]
    while todo and run.used < plan.calls:
        # The number of calls is bounded by the plan, which charges for all of them.
        run.used += 1
        todo.extend(reversed(run.run_call(*todo.pop())))  # the left side first
    return Synopsis.of(run.weights), run.used


@dataclass
class _Run:
    x: Array
    sums: Array
    plan: CallPlan
    calls: SpendLog
    used: int = 0
    weights: dict[int, int] = field(default_factory=dict)

    def run_call(self, low: int, high: int) -> list[tuple[int, int]]:
        """One call of the figure; returns the ranges to be called next."""
        heavy = self.plan.alpha * self.plan.rows
        noisy = self._noisy_count(low, high)
        # A light range ends here: its rows become copies of its last point, by the released count.
        if noisy < heavy / 8:
            return self._add_copies(high, noisy)
        interval = self._choose_interval(low, high, heavy)
        # The paper is silent here. The count was released already, so the copies cost nothing more.
        if interval is None:
            return self._add_copies(high, noisy)
        a, b = interval
        self._add_copies(b, self._noisy_count(a, b))
        return [side for side in ((low, a - 1), (b + 1, high)) if side[0] <= side[1]]

    def _add_copies(self, point: int, number: int) -> list[tuple[int, int]]:
        # Noise may make a count negative; a column cannot hold fewer than no copies.
        self.weights[point] = self.weights.get(point, 0) + max(0, number)
        return []

    def _noisy_count(self, low: int, high: int) -> int:
        self.calls.record_call("laplace", self.plan.epsilon)
        first, last = self._value_slice(low, high)
        rows = int(self.sums[last] - self.sums[first])
        return add_laplace(rows, 1 / self.plan.epsilon, self.calls.source)

    def _value_slice(self, low: int, high: int) -> tuple[int, int]:
        """The distinct values inside a range."""
        first = int(np.searchsorted(self.x, _as_position(self.x, low), side="left"))
        return first, int(np.searchsorted(self.x, _as_position(self.x, high), side="right"))

    def _choose_interval(self, low: int, high: int, heavy: Fraction) -> tuple[int, int] | None:
        """A moderately heavy interval, or None where nothing was chosen."""
        plan, powers = self.plan, ceil_log2(high - low + 1)
        z = 0
        # A range of one point has one length, so nothing is drawn for it.
        if powers:
            score = self._length_score(low, high, powers, heavy)
            levels = best_levels(powers, 0.25, float(plan.epsilon), float(plan.delta), plan.beta)
            step = split_budget(powers, levels, plan.epsilon, plan.delta)
            z, _ = rec_concave(score, heavy / 32, _QUARTER, step, self.calls)
        first, last = self._value_slice(low, high)
        x, counts = self.x[first:last], np.diff(self.sums[first : last + 1])
        # Intervals of one point are the distinct values themselves; a row touches one of them.
        if z == 0:
            i = choose_solution(
                counts, plan.rows, plan.alpha / 64, plan.epsilon, plan.delta, self.calls
            )
            return None if i is None else (int(x[i]), int(x[i]))
        starts, sums = self._touched_blocks(x, counts, low, z)
        i = choose_solution(sums, plan.rows, plan.alpha / 64, plan.epsilon, plan.delta, self.calls)
        if i is None:
            return None
        return int(starts[i]), min(int(starts[i]) + (2 << z) - 1, high)

    def _touched_blocks(self, x: Array, counts: Array, low: int, z: int) -> tuple[Array, Array]:
        """The touched blocks of 2^(z+1) points from ``low`` and from 2^z later: where they start,
        and their rows.
        """
        starts, sums = [], []
        # Only touched blocks are listed, the others score 0. Two families overlap, so one row
        # raises the score of at most two solutions: a growth of 2.
        for offset in (low, low + (1 << z)):
            within = x >= offset
            if not within.any():
                continue
            distance: Array = x[within] - _as_position(x, offset)
            at: Array = (
                distance >> _as_position(x, z + 1) if z < 63 else distance * _as_position(x, 0)
            )
            blocks, block_of_value = np.unique(at, return_inverse=True)
            starts.append(np.array([offset + (int(b) << (z + 1)) for b in blocks], dtype=object))
            sums.append(np.zeros(len(blocks), np.int64))
            np.add.at(sums[-1], block_of_value, counts[within])
        if not starts:
            return np.zeros(0, object), np.zeros(0, np.int64)
        return np.concatenate(starts), np.concatenate(sums)

    def _length_score(self, low: int, high: int, powers: int, heavy: Fraction) -> StepFunction:
        """Q(j) = min(I(j) - alpha m/32, 3 alpha m/32 - I(j-1)), where I(j) is the most rows in 2^j
        points of the range.
        """
        first, last = self._value_slice(low, high)
        most = window_maxima(self.x[first:last], self.sums[first : last + 1], high, powers)
        unit = (heavy / 32).denominator
        least = int(heavy / 32 * unit)
        before = [0, *most[:-1]]
        return StepFunction.from_runs(
            range(powers + 1),
            powers,
            [min(now * unit - least, 3 * least - last * unit) for now, last in zip(most, before)],
            unit,
        )


def window_maxima(x: Array, sums: Array, high: int, powers: int) -> list[int]:
    """I(0), ..., I(powers): the most rows in an interval of 2^j integers, for ascending values up
    to ``high``.
    """
    if not len(x):
        return [0] * (powers + 1)
    total = int(sums[-1] - sums[0])
    narrow = int((x[1:] - x[:-1]).min()) if len(x) > 1 else high + 1
    single = int(np.diff(sums).max())
    maxima: list[int] = []
    for j in range(powers + 1):
        reach = (1 << j) - 1
        if maxima and maxima[-1] == total:
            maxima.append(total)
        # No interval this short holds two distinct values, so the heaviest value decides.
        elif reach < narrow:
            maxima.append(single)
        elif reach >= int(x[-1]) - int(x[0]):
            maxima.append(total)
        else:
            # No window reaches beyond the range, so late ones begin earlier.
            last = np.minimum(x, _as_position(x, high - reach)) + _as_position(x, reach)
            maxima.append(int((sums[np.searchsorted(x, last, side="right")] - sums[:-1]).max()))
    return maxima


def _as_position(x: Array, value: int) -> int | np.uint64:
    """A position in the type that an array has."""
    return value if x.dtype == object else np.uint64(value)
