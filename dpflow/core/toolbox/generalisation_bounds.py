"""When does a private verdict also hold for fresh data? Sizes from the stable-median paper (Feldman
and Steinke).

A verdict here is about a claim v for an estimator phi on one group: "good" when v lies in the (rho,
1-rho) quantile interval of phi on fresh groups, "bad" when it is outside (rho-alpha, 1-rho+alpha).
The functions give the number of groups with which, with probability at least 1-beta, every one of k
adaptively chosen good claims passes and every bad one fails, until ell have failed. Neighbours of
those theorems differ in the rows of one group.

=======================  ======================  =======================================================================
method                   source                  idea
=======================  ======================  =======================================================================
sparse_vector            Theorem 5.1             two noisy counts a claim, A = #{phi <= v} and B = #{phi >= v}
one_query                the same proof          min(A, B) (or B alone) is asked once: k noisy counts instead of 2k
tight                    the same theorems       one_query with threshold and constants solved numerically
description_length       counting transcripts    no noise: few answers "no" make few possible questions; no privacy guarantee
splitting                none needed             fresh groups for every claim; no privacy guarantee
=======================  ======================  =======================================================================
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from math import ceil, exp, expm1, inf, lgamma, log, sqrt

from dpflow.core.accounting.composition import step_eps
from dpflow.errors import InvalidInput


@dataclass(frozen=True)
class Promise:
    """What a gate promises.

    ``queries`` k, ``failures`` ell (1 <= ell <= k), ``beta`` in (0, 1/2], 0 < ``alpha`` < ``rho`` <
    1/4.
    """

    queries: int
    failures: int
    beta: float
    rho: float
    alpha: float

    def __post_init__(self) -> None:
        if not 0 < self.alpha < self.rho < 0.25:
            raise InvalidInput(
                f"rho {self.rho} and alpha {self.alpha} must satisfy 0 < alpha < rho < 1/4"
            )
        if not 0 < self.beta <= 0.5:
            raise InvalidInput(f"beta {self.beta} must lie in (0, 1/2]")
        if not 1 <= self.failures <= self.queries:
            raise InvalidInput(
                f"failures {self.failures} must lie between 1 and the number of queries {self.queries}"
            )


@cache
def sparse_vector_groups(promise: Promise) -> tuple[int, int, float, float, float]:
    """Groups for Theorem 5.1 with the constants of the specification's section 11.

    Returns: (m0 for the noise, m1 for generalisation, epsilon and delta of the whole session,
        epsilon per failure).
    """
    epsilon = 0.5 * log(1 + promise.alpha / (8 * promise.rho))
    delta = promise.alpha * promise.beta / 384
    step = float(step_eps(epsilon, delta, promise.failures))
    tails = 2 * log(4 * promise.failures / promise.beta) + 4 * log(
        8 * promise.queries / promise.beta
    )
    m0 = ceil(6 * tails / (promise.alpha * step))
    m1 = ceil(96 / (epsilon * promise.alpha) * log(16 * promise.queries / promise.beta))
    return m0, m1, epsilon, delta, step


@cache
def one_query_groups(promise: Promise) -> tuple[int, int, float, float, float]:
    """As `sparse_vector_groups` when a claim is one noisy count: k of them instead of 2k; m1 stays
    the same.
    """
    _, m1, epsilon, delta, step = sparse_vector_groups(promise)
    tails = 2 * log(4 * promise.failures / promise.beta) + 4 * log(
        4 * promise.queries / promise.beta
    )
    return ceil(6 * tails / (promise.alpha * step)), m1, epsilon, delta, step


@dataclass(frozen=True)
class Tight:
    """A point of the numerical search: ``groups`` that suffice with ``epsilon`` and ``delta``,
    ``each`` per failure.
    """

    groups: int
    epsilon: float
    delta: float
    each: float


#: Shares of beta that go to the noise; the rest goes to generalisation. Any share is valid, these
#: come close to the best.
SHARES = (0.5, 0.8, 0.9, 0.99)


@cache
def tight_groups(promise: Promise) -> Tight:
    """The fewest groups of method ``tight`` over a grid of (epsilon, delta, share); every grid
    point is proven.
    """
    best, groups = (0.0, 0.0), inf
    for share in SHARES:
        for x in range(2, 25):
            delta = (1 - share) * promise.beta * 10 ** (-x / 2) / 8
            for i in range(1, 200):
                room, work = _tight_terms(promise, 0.002 * i, delta, share)
                # A larger epsilon only leaves less room for the noise, so this row of the grid is
                # done.
                if room <= 0:
                    break
                step = (sqrt(2 * log(1 / delta) + 0.004 * i) - sqrt(2 * log(1 / delta))) / sqrt(
                    promise.failures
                )
                m = (2 * _noise_term(promise, share) / step + work) / room
                if m < groups:
                    best, groups = (0.002 * i, delta), m
    step = step_eps(*best, promise.failures)
    return Tight(ceil(groups), *best, step)


#: Counts by which integer noise and an integer threshold may be worse than the real ones of the
#: proofs, generously.
ROUNDING = 4


def noise_fits(promise: Promise, counts: int, each: float, tolerance: float) -> bool:
    """Whether ``counts`` noisy counts a claim all stay within ``tolerance`` counts of theirs, but
    with probability beta/2.

    Args:
        each: epsilon of a stretch for one group's change.
        tolerance: alpha m/6 in Theorem 5.1.
    """
    tails = 2 * log(4 * promise.failures / promise.beta) + 4 * log(
        4 * counts * promise.queries / promise.beta
    )
    return tolerance - ROUNDING >= tails / each


def tight_threshold(
    promise: Promise, epsilon: float, delta: float, each: float, groups: int
) -> float | None:
    """The threshold, as a share of the groups, with which method ``tight`` is proven; None if these
    amounts prove nothing.

    With beta = b1 + b2, gamma = exp(2 epsilon) - 1 and A = 4/(epsilon m) ln(4/b2) + 8 delta/b2 (the
    transfer theorem for two functions), the noise may use h = alpha/2 - A - gamma [rho(1-rho) +
    (rho-alpha)(1-rho+alpha)], and needs h >= (2 ln(2 ell/b1) + 4 ln(2 k/b1)) / (m each). The
    threshold is rho - A - 2 gamma rho(1-rho) - h.
    """
    thresholds: list[tuple[float, float]] = []
    for share in SHARES:
        b2 = (1 - share) * promise.beta
        room, work = _tight_terms(promise, epsilon, delta, share)
        half = (room - work / groups) / 2
        if (half * groups - ROUNDING) * each >= _noise_term(promise, share):
            error = 4 / (epsilon * groups) * log(4 / b2) + 8 * delta / b2
            gamma = expm1(2 * epsilon)
            thresholds.append(
                (half, promise.rho - error - 2 * gamma * promise.rho * (1 - promise.rho) - half)
            )
    return max(thresholds)[1] if thresholds else None


def correction_proven(
    failures: int, points: int, beta: float, groups: int, epsilon: float, delta: float, each: float
) -> bool:
    """Whether corrected values on "no" lie between the quartiles of fresh groups (Theorem 4.2), but
    with probability beta.

    Args:
        points: size of the range of corrected values.
        epsilon, delta: of the whole session for one group's change, verdicts included.
        each: epsilon of one correcting median for one group's change.
    """
    b = beta / 2
    median = groups * each >= 16 * log(failures * points / b)
    return (
        median and epsilon <= 1 / 20 and delta <= b / 256 and groups >= 2560 * log(2 * failures / b)
    )


def _noise_term(promise: Promise, share: float) -> float:
    """How far all noises together may lie out, in units of 1/(m each)."""
    beta = share * promise.beta
    return 2 * log(2 * promise.failures / beta) + 4 * log(2 * promise.queries / beta)


def _tight_terms(
    promise: Promise, epsilon: float, delta: float, share: float
) -> tuple[float, float]:
    """(what 2h would be with infinitely many groups, and how much of it 1/m takes away)."""
    rho, bad, b2 = promise.rho, promise.rho - promise.alpha, (1 - share) * promise.beta
    room = (
        promise.alpha
        - 16 * delta / b2
        - 2 * expm1(2 * epsilon) * (rho * (1 - rho) + bad * (1 - bad))
    )
    return room, 8 / epsilon * log(4 / b2)


@cache
def description_length_groups(promise: Promise, answers: int = 1) -> int:
    """Groups for the noise-free description-length verifier (section 13): proven, but without a
    privacy guarantee.

    Args:
        answers: how many different texts a "no" may carry: 1 without a corrected value, else the
        size of its range.
    """
    k, ell = promise.queries, promise.failures
    terms = [lgamma(k + 1) - lgamma(i + 2) - lgamma(k - i) + i * log(answers) for i in range(ell)]
    top = max(terms)
    nodes = top + log(sum(exp(t - top) for t in terms))
    return ceil(
        (nodes + log(2 / promise.beta))
        / balance_threshold(promise.rho - promise.alpha, promise.rho)[1]
    )


@cache
def splitting_groups(promise: Promise) -> int:
    """Groups when every claim is tested on its own, never reused ones: proven for any analyst,
    without a privacy guarantee.
    """
    per_claim = (
        log(2 * promise.queries / promise.beta)
        / balance_threshold(promise.rho - promise.alpha, promise.rho)[1]
    )
    return promise.queries * ceil(per_claim)


def _kl_divergence(a: float, b: float) -> float:
    return a * log(a / b) + (1 - a) * log((1 - a) / (1 - b))


def balance_threshold(low: float, high: float) -> tuple[float, float]:
    """The threshold between two rates that is equally far from both in KL divergence, and that
    divergence.
    """
    a, b = low, high
    # A hundred halvings reach the last digit of a double.
    for _ in range(100):
        middle = (a + b) / 2
        a, b = (
            (middle, b)
            if _kl_divergence(middle, low) < _kl_divergence(middle, high)
            else (a, middle)
        )
    return middle, min(_kl_divergence(middle, low), _kl_divergence(middle, high))
