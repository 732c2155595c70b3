"""How often a gate refuses: a power curve from public numbers alone, before anything is opened.

A claim that is too good by x is reached in a group whose score happens to be that much above what is
expected. For the mean of t scores of standard deviation s that is a share 1 - Phi(x sqrt(t)/s) of
the groups, by the normal approximation; the number of such groups is binomial, and the gate compares
it, plus discrete Laplace noise, with its threshold. Reporting only: no guarantee rests on it.
"""

from __future__ import annotations

from fractions import Fraction
from functools import cache
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

#: Noise beyond so many scales is left out of the curve.
MOST_SCALES = 40
#: The most points that a noise's distribution is written in; a wider one is written more coarsely.
MOST_POINTS = 4001


def _laplace_weights(scale: float, step: float, points: int) -> NDArray[np.float64]:
    """Probabilities of Laplace noise in cells of this width around 0."""
    ends = (np.arange(-points, points + 2) - 0.5) * step
    below = np.where(
        ends < 0,
        0.5 * np.exp(np.minimum(ends, 0) / scale),
        1 - 0.5 * np.exp(-np.maximum(ends, 0) / scale),
    )
    weights: NDArray[np.float64] = np.diff(below)
    total: NDArray[np.float64] = weights / weights.sum()
    return total


def refusal_probability(
    share: float, groups: int, threshold: float, scales: tuple[Fraction, ...]
) -> float:
    """How often a claim is refused that a share of the groups reaches.

    Args:
        threshold: the number of groups at which it is refused.
        scales: of the independent noises that are added; none for methods without noise.
    """
    mean, deviation = groups * share, max((groups * share * (1 - share)) ** 0.5, 1e-9)
    if not scales:
        return NormalDist(mean, deviation).cdf(threshold + 0.5)
    law = NormalDist(mean, deviation)
    points = _sum_laws(scales)
    return float(sum(w * law.cdf(threshold + 0.5 - x) for w, x in zip(*points)))


def mean_refusal_probability(
    distance: float, units: int, deviation: float, scales: tuple[Fraction, ...]
) -> float:
    """How often a gate on means refuses a claim that is this far above its threshold.

    Args:
        distance: of the claim from threshold and expected score, as a share of the range.
        deviation: of one unit's score, as a share of the range.
        scales: of the independent noises on the sum over units, a unit moving it by 1 at most.
    """
    spread = max(deviation / units**0.5, 1e-9)
    law = NormalDist(0, spread)
    if not scales:
        return law.cdf(distance)
    return float(sum(w * law.cdf(distance - x / units) for w, x in zip(*_sum_laws(scales))))


@cache
def _sum_laws(scales: tuple[Fraction, ...]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Probabilities of the sum of Laplace noises of these scales, and its values."""
    widest = float(max(scales)) * MOST_SCALES
    points = min(int(widest) + 1, MOST_POINTS // 2)
    step, weights = widest / points, np.ones(1, np.float64)
    for scale in scales:
        weights = np.convolve(weights, _laplace_weights(float(scale), step, points))
    noise = (np.arange(len(weights), dtype=np.float64) - len(weights) // 2) * step
    return np.asarray(weights, np.float64), noise


def share_above(excess: float, units_per_group: float, deviation: float) -> float:
    """The share of groups whose mean lies so far above what is expected."""
    return 1 - NormalDist().cdf(excess * units_per_group**0.5 / deviation)
