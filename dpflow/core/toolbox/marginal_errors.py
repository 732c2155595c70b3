"""How far a vector of discrete Gaussian noise can reach: bounds for reports, never for a guarantee.

Discrete Gaussian noise X of parameter sigma^2 is subgaussian: E exp(t X) <= exp(t^2 sigma^2/2)
(Canonne, Kamath, Steinke 2020, Lemma 44), and sums of independent ones are with the sum of their variances.
So E exp(t |X|) <= 2 exp(t^2 sigma^2/2), and by Chernoff's bound the L1 norm of n of them is above w with a
probability of at most exp(n ln 2 - w^2/(2 n sigma^2)). Where sigma is small enough to add up all
values, E exp(t |X|) itself is taken, which is a third sharper.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache

import numpy as np

#: Of sigma, up to which moments are added up value by value, and how far the values reach.
MOST_SIGMA, REACH = 3000.0, 14


def bound_noise_sum(variance: float, failure: float) -> float:
    """A w with Pr[|S| > w] <= failure for a sum S of independent noises, with any weights.

    Args:
        variance: the sum of the parameters sigma^2, each times its weight squared.
        failure: above 0.
    """
    return math.sqrt(2 * variance * math.log(2 / failure))


@lru_cache(maxsize=4096)
def bound_noise_norm(size: int, sigma2: Fraction, failure: float) -> float:
    """A w with Pr[|X_1| + ... + |X_size| > w] <= failure for independent noises."""
    sigma, more = math.sqrt(float(sigma2)), math.log(1 / failure)
    plain = sigma * math.sqrt(2 * size * (size * math.log(2) + more))
    if sigma > MOST_SIGMA:
        return plain
    values = np.arange(0, math.ceil(REACH * sigma) + 20, dtype=float)
    logs = -(values**2) / (2 * sigma**2) + np.where(values > 0, math.log(2), 0.0)
    base = _log_sum(logs)

    def bound(t: float) -> float:
        # What lies beyond the values weighs below exp(-14^2/2 + 14 t sigma) and t sigma is below 3.
        moment = _log_sum(logs + t * values) - base + 1e-12
        return (size * moment + more) / t

    # Every t gives a bound; the best one is looked for by thirds.
    low, high = 1e-4 / sigma, 3 / sigma
    for _ in range(40):
        a, b = low + (high - low) / 3, high - (high - low) / 3
        low, high = (low, b) if bound(a) < bound(b) else (a, high)
    return min(plain, bound((low + high) / 2) * (1 + 1e-9))


def _log_sum(logs: np.ndarray[tuple[int], np.dtype[np.float64]]) -> float:
    top = float(logs.max())
    return top + math.log(float(np.exp(logs - top).sum()))
