"""How far a sum of independent noises strays: upper limits on its quantiles, in O(terms) steps and never too low.

Discrete Laplace, up to `EXACT_TERMS` terms: the exact law. Let q = exp(-1/scale), p = 1 - q, b = 1/(1+q), S the sum
of k noises. Its generating function (p^2/((1-qz)(1-q/z)))^k has in 1-qz the principal part of

    sum over l < k of w_l (p/(1-qz))^(k-l),    w_l = [u^l] (b + b^2 q^2 (u + b u^2 + b^2 u^3 + ...))^k,

so S = s >= 0 has the probability of a mixture of negative binomials. One of m successes is above t with probability
q^(t+1) (C(t,0) + C(t+1,1) p + ... + C(t+m-1,m-1) p^(m-1)), hence

    Pr[S > t] = q^(t+1) sum over h < k of C(t+h,h) p^h (w_0 + ... + w_(k-1-h)).

Miller's recurrence for powers of a series gives all w_l. No term is negative, so the relative rounding error is at
most a few units in the last place for each term: below `_ROUNDING`, by which the tail is raised.

Discrete Gaussian: noise j+1 joins a sum of j by completing the square, which leaves a sum of exp(-(y-c)^2/(2 s^2))
over integers y, s^2 = sigma2 j/(j+1). By Poisson's summation formula its value depends on c by a factor of at most
(1+e)/(1-e), e = 2x/(1-x), x = exp(-2 pi^2 s^2). So the law of k noises is at most the product of these factors times
the discrete Gaussian law of variance parameter k sigma2, whose tail Pr[X >= t+1] is at most the normal one beyond t
(Canonne, Kamath, Steinke 2020, Prop. 25). The sum is subgaussian, too, which is better for narrow noise.

Both laws are symmetric and unimodal, so more terms only widen a sum: above `EXACT_SIZES` terms their number is
rounded up to one of 16 sizes for each doubling, and few widths answer for all.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate
from statistics import NormalDist

#: Numbers of terms up to here are not rounded up; a power of two.
EXACT_SIZES = 32
#: Above so many Laplace terms Chernoff's bound is used: (1/2)^k is no precise double for more.
EXACT_TERMS = 1024
#: Far more than the relative error of a tail in double arithmetic.
_ROUNDING = 1e-9
#: Exponents up to which all terms of a tail are doubles.
_MAX_EXPONENT = 600


def round_terms(terms: int) -> int:
    """The size, at least ``terms``, whose width stands for that many: the same up to `EXACT_SIZES`."""
    shift = max(0, (terms - 1).bit_length() - EXACT_SIZES.bit_length() + 1)
    return -(-terms >> shift) << shift


def list_sizes(terms: int) -> list[int]:
    """All sizes from 1 to that of ``terms``, ascending."""
    sizes = [1]
    while sizes[-1] < terms:
        sizes.append(round_terms(sizes[-1] + 1))
    return sizes


@lru_cache(maxsize=4096)
def laplace_sum_half_width(terms: int, scale: Fraction, failure: float) -> int:
    """A t with Pr[|S| > t] <= failure for the sum S of so many discrete Laplace noises, with any signs: the smallest,
    but for rounded terms.
    """
    if not terms:
        return 0
    terms, log_target = round_terms(terms), math.log(failure / 2) - _ROUNDING
    spread, size = math.sqrt(-4 * terms * log_target) - log_target, float(scale)
    # By Bernstein's inequality the quantile is hardly above the spread times the scale.
    high, low = int(size * spread), -1
    rate = min(1 / size, 700.0)  # a larger scale has larger tails
    if terms > EXACT_TERMS or high * rate > _MAX_EXPONENT:
        return math.ceil(chernoff_half_width({1.0: terms}, scale, failure))
    p, weights = -math.expm1(-rate), _list_weights(terms, rate)

    def excess(t: int) -> float:
        """The logarithm of the tail beyond t over its target."""
        total, term = 0.0, 1.0
        for h, weight in enumerate(weights, 1):
            total += term * weight
            term *= (t + h) / h * p
        return math.log(total) - (t + 1) * rate - log_target

    # Between two places the logarithm is nearly a line; every third step halves, whatever it is.
    at_low, at_high, step = excess(low), excess(high), 0
    while at_high > 0:
        low, at_low, high = high, at_high, 2 * high + 1
        at_high = excess(high)
    if at_low <= 0:
        return 0
    while high - low > 1:
        step += 1
        middle = low + math.ceil((high - low) * at_low / (at_low - at_high)) if step % 3 else 0
        middle = middle if low < middle < high else (low + high) // 2
        at_middle = excess(middle)
        if at_middle > 0:
            low, at_low = middle, at_middle
        else:
            high, at_high = middle, at_middle
    return high


@lru_cache(maxsize=1024)
def _list_weights(terms: int, rate: float) -> tuple[float, ...]:
    """By h from 0 on: w_0 + ... + w_(k-1-h) for k terms."""
    q = math.exp(-rate)
    b = 1 / (1 + q)
    weights, sums, moments = [b**terms], 0.0, 0.0
    for n in range(1, terms):
        sums = weights[-1] + b * sums
        weights.append(b * q * q * ((terms + 1 - n) * sums + (terms + 1) * b * moments) / n)
        moments = sums + b * moments
    return tuple(accumulate(weights))[::-1]


def chernoff_half_width(terms: Mapping[float, int], scale: Fraction, failure: float) -> float:
    """The same for a weighted sum, by Chernoff's bound.

    Args:
        terms: the number of noises by their weight, which is positive.
    """
    size, largest = float(scale), max(terms)
    best = math.inf
    for step in range(1, 100):
        rate = step / 100 / size
        # E exp(rate X) = (1 - q)^2 / ((1 - q e^rate)(1 - q e^-rate)), q = exp(-1/scale).
        log_moment = sum(
            number
            * (
                2 * math.log(-math.expm1(-1 / size))
                - math.log(-math.expm1(rate * weight / largest - 1 / size))
                - math.log(-math.expm1(-rate * weight / largest - 1 / size))
            )
            for weight, number in terms.items()
        )
        best = min(best, (log_moment + math.log(2 / failure)) / rate)
    return best * largest


@lru_cache(maxsize=4096)
def gaussian_sum_half_width(terms: int, sigma2: Fraction, failure: float) -> int:
    """A t with Pr[|S| > t] <= failure for the sum S of so many discrete Gaussian noises, with any signs."""
    terms, size = round_terms(terms), float(sigma2)
    limit = subgaussian_half_width(terms * size, failure)
    # The factors fall with j: the first one, and the second one for all others.
    waves = [math.exp(-2 * math.pi**2 * size * j / (j + 1)) for j in (1, 2)]
    bends = [2 * x / (1 - x) for x in waves]
    if bends[0] < 1:
        first, second = (math.log1p(e) - math.log1p(-e) for e in bends)
        factor = (first if terms > 1 else 0.0) + max(0, terms - 2) * second
        tail = failure / 2 * math.exp(-factor - _ROUNDING)
        if tail > 0:
            limit = min(limit, -NormalDist().inv_cdf(tail) * math.sqrt(terms * size))
    return math.ceil(limit * (1 + _ROUNDING))


def subgaussian_half_width(sigma2: float, failure: float) -> float:
    """A t with Pr[|S| > t] <= failure for an S that is subgaussian with this variance proxy."""
    return math.sqrt(2 * sigma2 * math.log(2 / failure))
