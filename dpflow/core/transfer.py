"""When does a private verdict also hold for fresh data? Sizes from the stable-median paper (Feldman and Steinke).

A verdict here is about a claim v for an estimator phi on one group: "good" when v lies in the (rho, 1-rho) quantile
interval of phi on fresh groups, "bad" when it is outside (rho-alpha, 1-rho+alpha). The functions give the number of
groups with which, with probability at least 1-beta, every one of k adaptively chosen good claims passes and every bad
one fails, until ell have failed.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from math import ceil, exp, lgamma, log

from dpflow.core.composition import step_eps
from dpflow.errors import InvalidInput


@dataclass(frozen=True)
class Promise:
    """What a gate promises.

    ``queries`` k, ``failures`` ell (1 <= ell <= k), ``beta`` in (0, 1/2], 0 < ``alpha`` < ``rho`` < 1/4.
    """

    queries: int
    failures: int
    beta: float
    rho: float
    alpha: float

    def __post_init__(self) -> None:
        if not 0 < self.alpha < self.rho < 0.25:
            raise InvalidInput(f"rho {self.rho} and alpha {self.alpha} must satisfy 0 < alpha < rho < 1/4")
        if not 0 < self.beta <= 0.5:
            raise InvalidInput(f"beta {self.beta} must lie in (0, 1/2]")
        if not 1 <= self.failures <= self.queries:
            raise InvalidInput(f"failures {self.failures} must lie between 1 and the number of queries {self.queries}")


@cache
def sparse_vector_groups(promise: Promise) -> tuple[int, int, float, float, float]:
    """Groups for Theorem 5.1 with the constants of the specification's section 11.

    Returns:
        (m0 for the noise, m1 for generalisation, epsilon and delta of the whole session, epsilon per failure).
    """
    epsilon = 0.5 * log(1 + promise.alpha / (8 * promise.rho))
    delta = promise.alpha * promise.beta / 384
    each = float(step_eps(epsilon, delta, promise.failures))
    tails = 2 * log(4 * promise.failures / promise.beta) + 4 * log(8 * promise.queries / promise.beta)
    m0 = ceil(6 * tails / (promise.alpha * each))
    m1 = ceil(96 / (epsilon * promise.alpha) * log(16 * promise.queries / promise.beta))
    return m0, m1, epsilon, delta, each


@cache
def description_length_groups(promise: Promise) -> int:
    """Groups for the noise-free description-length verifier (section 13): proven, but without a privacy claim."""
    k, ell = promise.queries, promise.failures
    terms = [lgamma(k + 1) - lgamma(i + 2) - lgamma(k - i) for i in range(ell)]
    nodes = max(terms) + log(sum(exp(t - max(terms)) for t in terms))
    return ceil((nodes + log(2 / promise.beta)) / balance(promise.rho - promise.alpha, promise.rho)[1])


def _kl(a: float, b: float) -> float:
    return a * log(a / b) + (1 - a) * log((1 - a) / (1 - b))


def balance(low: float, high: float) -> tuple[float, float]:
    """The threshold between two rates that is equally far from both in KL divergence, and that divergence."""
    a, b = low, high
    for _ in range(100):
        middle = (a + b) / 2
        a, b = (middle, b) if _kl(middle, low) < _kl(middle, high) else (a, middle)
    return middle, min(_kl(middle, low), _kl(middle, high))
