"""Exact divergences of finite distributions, and the distributions of building blocks.

A distribution is a mapping from outcomes to probabilities. It may fall short of one by a truncated
tail; every builder says by how much at most.

(eps, delta)-DP for one ordered pair of neighbours is ``hockey_stick(p, q, eps) <= delta``, where
the hockey-stick divergence is the sum of ``max(0, p(x) - e^eps q(x))``. `divergence` takes both
directions. With tails of at most t the computed number lies between the true one minus t and the true
one plus e^eps t.

Fractions stay exact except for e^eps, which is one float, so the relative error is below 1e-15;
sums of floats are correctly rounded (`math.fsum`).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from fractions import Fraction
from functools import lru_cache
from statistics import NormalDist
from typing import Any, TypeVar

import numpy as np

Probability = float | Fraction
Distribution = Mapping[Any, Probability]
Outcome = TypeVar("Outcome", bound=Hashable)

#: Mass that a truncated noise distribution may leave out.
TAIL = 1e-10


def hockey_stick(p: Distribution, q: Distribution, epsilon: float | Fraction) -> float:
    """The least delta such that p(S) <= e^epsilon q(S) + delta for every set S of outcomes."""
    factor = math.exp(epsilon)
    # Fractions meet the one float as a fraction, so nothing is rounded after it.
    if all(isinstance(mass, Fraction) for side in (p, q) for mass in side.values()):
        exact = Fraction(factor)
        excess = (mass - exact * q.get(x, Fraction(0)) for x, mass in p.items())
        return float(sum((part for part in excess if part > 0), Fraction(0)))
    return math.fsum(max(0.0, float(mass) - factor * float(q.get(x, 0))) for x, mass in p.items())


def divergence(p: Distribution, q: Distribution, epsilon: float | Fraction) -> float:
    """The larger of the two directions of `hockey_stick`."""
    return max(hockey_stick(p, q, epsilon), hockey_stick(q, p, epsilon))


def smallest_epsilon(p: Distribution, q: Distribution, delta: float | Fraction = 0.0) -> float:
    """The least epsilon >= 0 with `divergence` at most delta, from above within 1e-9; infinite if
    there is none.

    Masses of truncated distributions never cancel exactly: ask for a delta above the tails.
    """
    target, low, high = float(delta), 0.0, 1.0
    outcomes = list(dict.fromkeys((*p, *q)))
    masses = [np.array([float(side.get(x, 0)) for x in outcomes]) for side in (p, q)]

    def exceeds_target(epsilon: float) -> bool:
        factor = math.exp(epsilon)
        excesses = (one - factor * other for one, other in (masses, masses[::-1]))
        return any(math.fsum(excess[excess > 0].tolist()) > target for excess in excesses)

    if not exceeds_target(0.0):
        return 0.0
    # The divergence falls with epsilon, so doubling and bisection find the least.
    while exceeds_target(high):
        low, high = high, 2 * high
        # e^512 is near the end of the doubles
        if high > 512:
            return math.inf
    while high - low > 1e-9:
        middle = (low + high) / 2
        low, high = (middle, high) if exceeds_target(middle) else (low, middle)
    return high


def gaussian_delta(distance: float, epsilon: float) -> float:
    """The least delta at epsilon of continuous Gaussian noise whose mean moves by so many standard deviations (Balle,
    Wang 2018, theorem 8).
    """
    if not 0 < distance < math.inf:
        return float(distance > 0)
    low, high = (-epsilon / distance + sign * distance / 2 for sign in (-1, 1))
    # e^epsilon Phi(low), where either factor alone may leave the doubles.
    tail = NormalDist().cdf(low)
    weighted = math.exp(epsilon + math.log(tail)) if tail > 0 else 0.0
    return NormalDist().cdf(high) - weighted


# --- building blocks --------------------------------------------------------------------------------------------------


@lru_cache(maxsize=1024)
def _laplace_law(scale: Fraction, tail: float) -> tuple[tuple[int, float], ...]:
    rate = float(1 / scale)
    peak = math.tanh(rate / 2)  # (1 - q) / (1 + q)
    reach = max(0, math.ceil(math.log(2 / tail) / rate))  # 2 q^(reach + 1) / (1 + q) <= tail
    return tuple((x, peak * math.exp(-rate * abs(x))) for x in range(-reach, reach + 1))


def discrete_laplace(scale: Fraction, tail: float = TAIL) -> dict[int, float]:
    """Pr[x] = (1 - q)/(1 + q) q^|x| with q = exp(-1/scale), without at most ``tail`` of its mass."""
    return dict(_laplace_law(Fraction(scale), tail))


def discrete_gaussian(sigma2: Fraction, tail: float = TAIL) -> dict[int, float]:
    """Pr[x] proportional to exp(-x^2 / (2 sigma2)), without at most ``tail`` of its mass."""
    twice = 2 * float(sigma2)
    reach = math.ceil(math.sqrt(twice * math.log(4 / tail))) + 1
    weights = {x: math.exp(-x * x / twice) for x in range(-reach, reach + 1)}
    return normalise(weights)


def geometric(scale: Fraction, tail: float = TAIL) -> dict[int, float]:
    """Pr[x] = (1 - q) q^x for x >= 0, without at most ``tail`` of its mass."""
    rate = float(1 / scale)
    return {
        x: -math.expm1(-rate) * math.exp(-rate * x)
        for x in range(math.ceil(math.log(1 / tail) / rate) + 1)
    }


def truncated_laplace(scale: Fraction, radius: int) -> dict[int, float]:
    """Pr[x] proportional to exp(-|x|/scale) for |x| <= radius."""
    return normalise({x: math.exp(-abs(x) / float(scale)) for x in range(-radius, radius + 1)})


def exponential_choice(
    lengths: Sequence[int], costs: Sequence[int], rate: Fraction
) -> dict[int, float]:
    """Pr[i] proportional to lengths[i] exp(-rate costs[i]), the law of
    `dpflow.core.sampling.samplers.choose`.
    """
    least = min(costs)  # one weight is 1: no sum underflows to 0
    return normalise(
        {
            i: n * math.exp(-float(rate) * (c - least))
            for i, (n, c) in enumerate(zip(lengths, costs))
        }
    )


def permute_and_flip(costs: Sequence[int], rate: Fraction) -> dict[int, float]:
    """The law of `dpflow.core.sampling.samplers.permute_and_flip`: p_i times the integral of the
    product of 1 - t p_j, j not i, over t in [0, 1], the part of the others that come before i.
    """
    chances = np.exp(-float(rate) * np.array(costs, float))
    nodes, weights = _list_nodes(math.ceil(len(chances) / 16))
    logs = np.log1p(-np.outer(nodes, chances))
    others = np.exp(logs.sum(axis=1, keepdims=True) - logs)
    return dict(enumerate((chances * (weights @ others)).tolist()))


@lru_cache(maxsize=64)
def _list_nodes(eighths: int) -> tuple[Any, Any]:
    """Nodes and weights in [0, 1] of a sum that is the integral of polynomials of degree below sixteen times this
    number. No weight is negative, so nothing cancels (Gauss, Legendre).
    """
    nodes, weights = np.polynomial.legendre.leggauss(8 * eighths)
    return (nodes + 1) / 2, weights / 2


def normalise(weights: Mapping[Outcome, float]) -> dict[Outcome, float]:
    """The same weights, divided by their sum."""
    total = math.fsum(weights.values())
    return {x: weight / total for x, weight in weights.items()}
