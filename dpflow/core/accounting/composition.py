"""Composition formulas and their inverses, for planners and for schedules that are fixed before the
first release.

Nothing here may stop a run: jobs choose after seeing outputs, and only the filters of
`dpflow.core.accounting.privacy_filters` are valid then. Steps are equal and possibly adaptive in
their queries, but number and epsilons are fixed in advance. Totals are rounded up and steps down,
so that ``total_eps(step_eps(E, delta, k), delta, k) <= E`` holds exactly. The argument order is
always (epsilon, delta, count); epsilons are above 0, deltas in (0, 1), counts whole and at least 1,
else `InvalidAmount`.

`list_theorems` has the first four rows below with their premises: the first three hold for every
pure epsilon-DP mechanism, the last one for mechanisms of bounded range only. Whoever takes the best
of several theorems takes it from there.

=============================  ====================================================  =====================================
total, and step as inverse     epsilon of k steps at failure probability delta       source
=============================  ====================================================  =====================================
plain_total_eps, _step_eps     k e, at delta 0                                       basic composition
total_eps, step_eps            k e^2/2 + e sqrt(2 k ln(1/delta))                     stable-median paper, Theorem 2.5
lecture_total_eps, _step_eps   k e (exp(e) - 1) + e sqrt(2 k ln(1/delta))            the lecture; Dwork, Rothblum, Vadhan
range_total_eps, _step_eps     k e^2/8 + e sqrt(k ln(1/delta)/2), bounded range      Cesar, Rogers 2021
coarse_total_eps, _step_eps    2 k e^2 + e sqrt(2 k ln(1/delta)), e <= 1             private-learning paper, Theorem 2.5
compose_adaptive, _steps        different steps, each with its own delta              stable-median paper, Theorem 2.4
optimal_eps, optimal_delta     the least true value for k pure steps                 Kairouz, Oh, Viswanath 2015; a report
gaussian_eps                   the true value for k Gaussian steps                   Balle, Wang 2018; a report
=============================  ====================================================  =====================================
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Final, Literal

from dpflow.core.accounting import renyi
from dpflow.core.accounting.bisection import bisect_reals
from dpflow.errors import InvalidAmount

Number = float | Fraction
EpsilonDelta = tuple[Fraction, Fraction]  #: (epsilon, delta)

#: What is known about every step. ``pure``: epsilon-DP, nothing else. ``bounded-range``: all privacy
#: losses of a pair of neighbours lie in an interval of length epsilon, which is the stronger of the
#: two. A pure mechanism is only sure of 2 epsilon: randomised response reaches that, Laplace noise
#: and permute-and-flip come close.
MechanismClass = Literal["pure", "bounded-range"]

MECHANISM_CLASSES: Final[dict[MechanismClass, str]] = {
    "pure": "any epsilon-DP mechanism",
    "bounded-range": (
        "mechanisms of epsilon-bounded range only: the exponential mechanism, predict_vote, predict_walk; "
        "not Laplace noise, randomised response or permute-and-flip"
    ),
}


@dataclass(frozen=True)
class Theorem:
    """A bound on the total of k equal steps, its inverse, and the premise of both.

    Attributes:
        name: as calculators show it.
        source: where it is proven.
        mechanism: the largest class of mechanisms that it holds for.
        total: (step, delta, count) to the total epsilon, rounded up.
        step: (total epsilon, delta, count) to the largest step, rounded down.
    """

    name: str
    source: str
    mechanism: MechanismClass
    total: Callable[[Number, Number, int], float]
    step: Callable[[Number, Number, int], float]

    @property
    def premise(self) -> str:
        """The class of mechanisms in words."""
        return MECHANISM_CLASSES[self.mechanism]


def list_theorems(mechanism: MechanismClass = "pure") -> tuple[Theorem, ...]:
    """The theorems about k equal steps that hold for every mechanism of a class.

    All of them hold side by side for a schedule that was fixed in advance, so the best may be taken.
    """
    return tuple(t for t in THEOREMS if t.mechanism in ("pure", mechanism))


def plain_total_eps(step: Number, delta: Number, count: int) -> float:
    """k steps of (step, 0)-DP: ``k e``. ``delta`` is not needed."""
    e, _, k = _check_steps(step, delta, count)
    return _float_above(k * e)


def plain_step_eps(epsilon: Number, delta: Number, count: int) -> float:
    """The largest step whose `plain_total_eps` is at most ``epsilon``."""
    e, _, k = _check_steps(epsilon, delta, count)
    return -_float_above(-e / k)


def total_eps(step: Number, delta: Number, count: int) -> float:
    """k steps of (step, 0)-DP: ``k e^2/2 + e sqrt(2 k ln(1/delta))``, at ``delta``."""
    e, log, k = _check_steps(step, delta, count)
    return _float_above(k * e**2 / 2 + e * renyi.sqrt_up(2 * k * log))


def step_eps(epsilon: Number, delta: Number, count: int) -> float:
    """The largest step whose `total_eps` is at most ``epsilon``: ``(sqrt(2L + 2E) - sqrt(2L)) /
    sqrt(k)``, L = ln(1/delta).
    """
    return _largest_step(total_eps, epsilon, delta, count)


def lecture_total_eps(step: Number, delta: Number, count: int) -> float:
    """k steps of (step, 0)-DP as in the lecture: ``e sqrt(2 k ln(1/delta)) + k e (exp(e) - 1)``, at
    ``delta``.
    """
    e, log, k = _check_steps(step, delta, count)
    # Beyond it exp(e) says nothing that the plain sum does not say better.
    if e > 100:
        return math.inf
    return _float_above(e * renyi.sqrt_up(2 * k * log) + k * e * (renyi.exp_up(e) - 1))


def lecture_step_eps(epsilon: Number, delta: Number, count: int) -> float:
    """The largest step whose `lecture_total_eps` is at most ``epsilon``."""
    return _largest_step(lecture_total_eps, epsilon, delta, count)


def coarse_total_eps(step: Number, delta: Number, count: int) -> float:
    """k steps, step <= 1: ``e sqrt(2 k ln(1/delta)) + 2 k e^2``, at ``delta``. Infinite for a step
    above 1.
    """
    e, log, k = _check_steps(step, delta, count)
    return math.inf if e > 1 else _float_above(e * renyi.sqrt_up(2 * k * log) + 2 * k * e**2)


def coarse_step_eps(epsilon: Number, delta: Number, count: int) -> float:
    """The largest step <= 1 whose `coarse_total_eps` is at most ``epsilon``."""
    return _largest_step(coarse_total_eps, epsilon, delta, count)


def range_total_eps(step: Number, delta: Number, count: int) -> float:
    """k mechanisms of ``step``-bounded range: ``k e^2/8 + e sqrt(k ln(1/delta)/2)``, the same as
    `total_eps` of half the step. Wrong for pure mechanisms of no bounded range.
    """
    return total_eps(_check_steps(step, delta, count)[0] / 2, delta, count)


def range_step_eps(epsilon: Number, delta: Number, count: int) -> float:
    """The largest step whose `range_total_eps` is at most ``epsilon``: twice `step_eps`."""
    return 2 * step_eps(epsilon, delta, count)


THEOREMS: Final = (
    Theorem("plain sum", "basic composition, delta 0", "pure", plain_total_eps, plain_step_eps),
    Theorem("closed form", "Feldman, Steinke 2017, Theorem 2.5", "pure", total_eps, step_eps),
    Theorem(
        "the lecture's",
        "Dwork, Rothblum, Vadhan 2010",
        "pure",
        lecture_total_eps,
        lecture_step_eps,
    ),
    Theorem(
        "bounded range", "Cesar, Rogers 2021", "bounded-range", range_total_eps, range_step_eps
    ),
)


def compose_adaptive(steps: Sequence[EpsilonDelta], delta: Number) -> tuple[float, float]:
    """Different (epsilon_j, delta_j) steps: ``(S/2 + sqrt(2 ln(1/delta) S), delta + sum delta_j)``,
    S the sum of squares.

    Returns the plain sums instead where their epsilon is not larger: then ``delta`` is not needed.
    """
    if not steps:
        return 0.0, 0.0
    basic = sum((e for e, _ in steps), Fraction(0))
    # Both sums are valid, so the smaller epsilon may be taken after the steps are known.
    delta_sum = sum((d for _, d in steps), Fraction(0))
    for e, _ in steps:
        _check_steps(e, delta, 1)
    squares = sum((Fraction(e) ** 2 for e, _ in steps), Fraction(0))
    advanced = squares / 2 + renyi.sqrt_up(2 * squares * _log_inverse(delta))
    return (
        (_float_above(basic), _float_above(delta_sum))
        if basic <= advanced
        else (_float_above(advanced), _float_above(delta_sum + _fraction(delta)))
    )


def compose_steps(shares: Sequence[Fraction], epsilon: Number, delta: Number) -> list[Fraction]:
    """`compose_adaptive` backwards: the largest steps in these proportions, without deltas of their
    own, that cost at most ``epsilon``.
    """
    for share in shares:
        _check_steps(share, delta, 1)

    def total_epsilon(factor: Number, at: Number, _: int) -> float:
        return compose_adaptive([(_fraction(factor) * share, Fraction(0)) for share in shares], at)[
            0
        ]

    factor = Fraction(_largest_step(total_epsilon, epsilon, delta, 1)) if shares else Fraction(0)
    return [factor * share for share in shares]


def compose_parallel(blocks: Iterable[Sequence[EpsilonDelta]]) -> EpsilonDelta:
    """Steps on disjoint blocks cost what the dearest block costs: (max of summed epsilon, max of
    summed delta).

    Sound in two cases only: the block is a function of the unit, or the protected unit is unit x
    block under add/remove. A unit with rows in several blocks pays the sum over them; under replace
    a row that moves makes two blocks pay.
    """
    sums = [
        (sum((e for e, _ in b), Fraction(0)), sum((d for _, d in b), Fraction(0))) for b in blocks
    ]
    return max((e for e, _ in sums), default=Fraction(0)), max(
        (d for _, d in sums), default=Fraction(0)
    )


# --- reports: true values for a schedule fixed in advance; floats, relative error below 1e-9, not rounded in any direction ---


def optimal_delta(step: Number, epsilon: Number, count: int) -> float:
    """The least delta at ``epsilon`` that holds for every k fixed (step, 0)-DP steps; randomised
    response attains it.
    """
    e, k, target = float(_check_steps(step, 0.5, count)[0]), count, float(epsilon)
    log_p, log_q = -math.log1p(math.exp(-e)), -e - math.log1p(math.exp(-e))
    total = 0.0
    # Of k answers ``wrong`` ones lower the loss; only losses above epsilon count.
    for wrong in range(k + 1):
        loss = (k - 2 * wrong) * e
        if loss <= target:
            break
        log_mass = math.lgamma(k + 1) - math.lgamma(wrong + 1) - math.lgamma(k - wrong + 1)
        total += math.exp(log_mass + (k - wrong) * log_p + wrong * log_q) * -math.expm1(
            target - loss
        )
    return total


def optimal_eps(step: Number, delta: Number, count: int) -> float:
    """The epsilon at which `optimal_delta` falls to ``delta``. A report: stopping a run by it is
    not a privacy filter.
    """
    e, _, k = _check_steps(step, delta, count)
    return _find_root(lambda x: optimal_delta(e, x, k) - float(delta), float(e * k))


def gaussian_eps(sigma: Number, delta: Number, count: int) -> float:
    """The epsilon of k Gaussian steps of noise ``sigma`` per unit of L2 sensitivity. A report, for
    totals up to 300.
    """
    s, _, k = _check_steps(sigma, delta, count)
    mu = math.sqrt(k) / float(s)

    def excess_delta(x: float) -> float:
        return (
            _normal_cdf(mu / 2 - x / mu)
            - math.exp(x) * _normal_cdf(-mu / 2 - x / mu)
            - float(delta)
        )

    return _find_root(excess_delta, 300.0)


def _normal_cdf(x: float) -> float:
    return math.erfc(-x / math.sqrt(2)) / 2


def _find_root(falling: Callable[[float], float], high: float) -> float:
    """Where a falling function crosses 0; the lower end 0 if it starts below."""
    return bisect_reals(lambda x: falling(x) <= 0, 0.0, high, 100)[1]


@lru_cache(1024, typed=True)
def _largest_step(
    total: Callable[[Number, Number, int], float], epsilon: Number, delta: Number, count: int
) -> float:
    """Bisection on floats for an increasing total; the result is feasible and its successor is not."""
    _check_steps(epsilon, delta, count)
    low, high = 0.0, float(epsilon)
    # A single step may exceed the total where delta pays for it, so the bracket grows first.
    while total(high, delta, count) <= epsilon:
        low, high = high, 2 * high
    # Down to neighbouring floats: the result is the largest float that keeps the total.
    while math.nextafter(low, math.inf) < high:
        middle = (low + high) / 2
        low, high = (
            (middle, high)
            if middle > 0 and total(middle, delta, count) <= epsilon
            else (low, middle)
        )
    return low


def _check_steps(epsilon: Number, delta: Number, count: int) -> tuple[Fraction, Fraction, int]:
    """(epsilon, ln(1/delta) rounded up, count), refused in the positive form."""
    if (
        not 0 < epsilon < math.inf
        or not 0 < delta < 1
        or isinstance(count, bool)
        or not isinstance(count, int)
        or count < 1
    ):
        raise InvalidAmount(
            f"cannot compose epsilon {epsilon!s:.40}, delta {delta!s:.40}, count {count!s:.40}; "
            "epsilon must be above 0 and finite, delta strictly between 0 and 1, count a whole number from 1."
        )
    return _fraction(epsilon), _log_inverse(delta), count


def _fraction(value: Number) -> Fraction:
    return Fraction(value)


def _log_inverse(delta: Number) -> Fraction:
    return renyi.log_up(1 / _fraction(delta))


def _float_above(value: Fraction) -> float:
    """The least float that is not below ``value``."""
    near = float(value)
    return near if near >= value else math.nextafter(near, math.inf)
