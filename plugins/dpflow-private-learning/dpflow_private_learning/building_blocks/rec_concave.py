"""RecConcave (section 3.3, Figure 5): a good solution of a quasi-concave promise problem, with few
rows for huge domains.

Problem (Def. 3.6, 3.7): a score Q over 0..T that one row moves by at most 1 and that rises, then
falls. The promise is that Q reaches r somewhere; wanted is a point with Q >= (1 - alpha) r. Bad
data break the promise, never the guarantee.

Definition: with T <= 32 or one level left, the exponential mechanism. Else T is padded to 2^p; L(j)
is the best minimum of Q over a window of 2^j points; q(j) = min(L(j) - (1 - alpha) r, r - L(j+1))
is quasi-concave in j, and one call of the same with promise alpha r/2 and accuracy 1/4 finds k. Two
families of blocks of 8 2^k points, shifted by half a block, each offer their best block by
stability; the exponential mechanism picks a point of these blocks.

Where the paper is silent: a family of one block offers it without a charge, one of none offers
nothing; if neither offers anything a uniform point is returned and the run is marked as a fallback;
a point in the padding becomes T.

Guarantee: each level but the last spends one exponential mechanism and at most two stable
selections, so D levels cost ((3D - 2) epsilon, 2 (D - 1) delta) by basic composition. D is a
function of T and the allowed levels alone.

When not to use it: for integers of a database. Up to 2^469 points the plain exponential mechanism
needs fewer rows and is pure; `rows_needed` knows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from dpflow_private_learning.building_blocks.exponential_mechanism import draw_point
from dpflow_private_learning.building_blocks.log_bounds import ceil_log2
from dpflow_private_learning.building_blocks.spend_log import SpendLog
from dpflow_private_learning.building_blocks.stability_selection import (
    is_stable,
    literal_guarantee,
    stable_lead,
)
from dpflow_private_learning.building_blocks.step_function import StepFunction

SMALL = 32  # ranges up to here are the exponential mechanism's
INNER = Fraction(1, 4)  # accuracy of the inner problem

Budget = Literal["tight", "paper"]


@dataclass(frozen=True)
class Step:
    """What every base mechanism of one run may spend, and how many levels it may use."""

    epsilon: Fraction
    delta: Fraction
    levels: int
    literal: bool = False


def recursion_depth(top: int, levels: int) -> int:
    """D: the levels that a run over 0..top really executes."""
    reached = 1
    while top > SMALL and levels > 1:
        top, levels, reached = ceil_log2(top), levels - 1, reached + 1
    return reached


def run_cost(top: int, step: Step) -> tuple[Fraction, Fraction]:
    """(epsilon, delta) of a whole run, literal stability counted at what it really guarantees."""
    d = recursion_depth(top, step.levels)
    if step.literal:
        epsilon, delta = literal_guarantee(step.epsilon, step.delta)
        return (3 * d - 2) * step.epsilon + 2 * (d - 1) * (epsilon - step.epsilon), 2 * (
            d - 1
        ) * delta
    return nominal_cost(top, step)


def nominal_cost(top: int, step: Step) -> tuple[Fraction, Fraction]:
    """The same with repaired stability: what accuracy rests on, since the printed one needs a
    smaller lead.
    """
    d = recursion_depth(top, step.levels)
    return (3 * d - 2) * step.epsilon, 2 * (d - 1) * step.delta


def split_budget(
    top: int, levels: int, epsilon: Fraction, delta: Fraction, budget: Budget = "tight"
) -> Step:
    """Split a target: by the levels that are executed, or by 3N as the paper does."""
    d = recursion_depth(top, levels)
    if budget == "paper":
        return Step(epsilon / (3 * levels), delta / (3 * levels), levels)
    return Step(epsilon / (3 * d - 2), delta / (2 * (d - 1)) if d > 1 else Fraction(0), levels)


def rec_concave(
    score: StepFunction, promise: Fraction, alpha: Fraction, step: Step, calls: SpendLog
) -> tuple[int, bool]:
    """A point of 0..T and whether it is only a fallback.

    Args:
        score: Q, over 0..T with T = ``score.end``.
        promise: r, in the same units as the true score; public.
        alpha: accuracy, above 0 and at most 1/2.
        step: the privacy cost of each base mechanism.
        calls: source and notebook.
    """
    top = score.end
    if top == 0:
        return 0, False
    # The same test as in `recursion_depth`: what is executed must be what is charged.
    if top <= SMALL or step.levels == 1:
        return draw_point([score], step.epsilon, calls), False
    # The inner problem asks which length 2^k of a window keeps a high score throughout; its range
    # is the logarithm of this one, which is why few levels suffice.
    powers = ceil_log2(top)
    padded = score.pad_to(1 << powers)
    inner, unit = _lengths_score(padded, powers, promise, alpha)
    below = Step(step.epsilon, step.delta, step.levels - 1, step.literal)
    k, fallback = rec_concave(
        StepFunction.from_runs(range(powers + 1), powers, inner, unit),
        alpha * promise / 2,
        INNER,
        below,
        calls,
    )
    # Stability releases at most two blocks: where neither leads, the answer is independent of rows.
    blocks = _offer_blocks(padded, k, step, calls)
    if not blocks:
        return calls.source.draw_below(top + 1), True
    point = draw_point([padded.clip_to(low, high) for low, high in blocks], step.epsilon, calls)
    return min(point, top), fallback


def _lengths_score(
    padded: StepFunction, powers: int, promise: Fraction, alpha: Fraction
) -> tuple[list[int], int]:
    """q(0), ..., q(powers) as integers, and their unit."""
    minima = padded.window_minima(powers)
    # No longer window fits: the score of the padding stands in for one.
    minima.append(min(0, minima[-1]))
    low, high = (1 - alpha) * promise, promise
    unit = math.lcm(padded.unit, low.denominator, high.denominator)
    grain, least, most = unit // padded.unit, int(low * unit), int(high * unit)
    return [
        min(minima[j] * grain - least, most - minima[j + 1] * grain) for j in range(powers + 1)
    ], unit


def _offer_blocks(
    padded: StepFunction, k: int, step: Step, calls: SpendLog
) -> list[tuple[int, int]]:
    """The blocks that stability releases, as one or two disjoint ranges."""
    # Blocks of 8 2^k points: a good window of 2^k points lies inside a block of one of the two
    # families, which are shifted against each other by half a block.
    shift, ranges = k + 3, []
    for offset in (0, 4 << k):
        best = padded.best_block(offset, shift)
        if best is None:
            continue
        block, value, second = best
        # One block has no rival: it is offered on every table, so it costs nothing.
        if second is None or is_stable(
            (value - second) // padded.unit, step.epsilon, step.delta, calls, literal=step.literal
        ):
            low = offset + (block << shift)
            ranges.append((low, min(low + (1 << shift) - 1, padded.end)))
    # Overlapping blocks become one range: the exponential mechanism needs disjoint parts, or a
    # point in both would count twice.
    if len(ranges) == 2 and ranges[0][0] <= ranges[1][1] and ranges[1][0] <= ranges[0][1]:
        return [(min(ranges[0][0], ranges[1][0]), max(ranges[0][1], ranges[1][1]))]
    return ranges


# --- how many rows -------------------------------------------------------------------------------------------------------


def minimum_promise(
    top: int, levels: int, alpha: float, epsilon: float, delta: float, beta: float
) -> float:
    """The least promise r that the proof needs, each base mechanism spending (epsilon, delta) and
    failing with beta.

    Not stated in the paper: computed from the steps of its proof with repaired stability, whose
    noise is discrete, and natural logarithms. The total failure is (2D - 1) beta.
    """
    if top <= SMALL or levels == 1:
        return 2 / (alpha * epsilon) * (_ln(top + 1) + math.log(1 / beta))
    return max(
        16 / (3 * alpha * epsilon) * math.log(16 / beta),
        8 / (3 * alpha) * stable_lead(epsilon, delta, beta),
        2 / alpha * minimum_promise(ceil_log2(top), levels - 1, float(INNER), epsilon, delta, beta),
    )


def recursion_rows(
    top: int, levels: int, alpha: float, epsilon: float, delta: float, beta: float
) -> float:
    """`minimum_promise` for a target (epsilon, delta) and failure beta of the whole run, tightly
    split.
    """
    d = recursion_depth(top, levels)
    call_delta = delta / (2 * (d - 1)) if d > 1 else 0.25
    return minimum_promise(
        top, levels, alpha, epsilon / (3 * d - 2), call_delta, beta / (2 * d - 1)
    )


def best_levels(top: int, alpha: float, epsilon: float, delta: float, beta: float) -> int:
    """The number of levels that needs the fewest rows; 1, the exponential mechanism, for every
    integer type.
    """
    deepest = recursion_depth(top, 64)
    if delta == 0:
        return 1
    return min(
        range(1, deepest + 1), key=lambda n: recursion_rows(top, n, alpha, epsilon, delta, beta)
    )


def _ln(n: int) -> float:
    return math.log(n)  # Python's takes integers of any size
