"""How often a gate refuses: a power curve from public numbers alone, before anything is opened.

A claim that is too good by x is reached in a group whose score happens to be that much above what is
expected. For the mean of t scores of standard deviation s that is a share 1 - Phi(x sqrt(t)/s) of
the groups, by the normal approximation; the number of such groups is binomial, and the gate compares
it, plus discrete Laplace noise, with its threshold. Reporting only: no guarantee rests on it.
"""

from __future__ import annotations

from fractions import Fraction
from math import erfc, exp, sqrt


def _normal_cdf(x: float) -> float:
    # Not from 1 + erf, which has no digits left in the lower tail.
    return erfc(-x / sqrt(2)) / 2


def _noisy_cdf(x: float, spread: float, scale: float) -> float:
    """Pr[Z + L <= x] for normal Z of this spread and Laplace L of this scale."""
    ratio = spread / scale
    # Noise of a thirtieth of the spread changes nothing that is reported.
    if ratio > 30:
        return _normal_cdf(x / spread)

    def tail(y: float) -> float:
        """exp(ratio^2/2 + y/scale) Pr[Z > y + spread ratio]."""
        beyond = erfc((y / spread + ratio) / sqrt(2)) / 2
        # Where it is not 0 the exponent is no larger than what it falls by.
        return exp(ratio**2 / 2 + y / scale) * beyond if beyond > 0 else 0.0

    return _normal_cdf(x / spread) + (tail(x) - tail(-x)) / 2


def _share_below(x: float, spread: float, scales: tuple[Fraction, ...]) -> float:
    """Pr[Z + noise <= x] for no noise, one Laplace noise, or two of different scales a and c.

    The sum of two has the law of a mixture: a^2/(a^2 - c^2) of the first, the rest, which is
    negative, of the second.
    """
    if not scales:
        return _normal_cdf(x / spread)
    a = float(scales[0])
    if len(scales) == 1:
        return _noisy_cdf(x, spread, a)
    c = float(scales[1])
    weight = a**2 / (a**2 - c**2)
    total = weight * _noisy_cdf(x, spread, a) + (1 - weight) * _noisy_cdf(x, spread, c)
    return min(1.0, max(0.0, total))


def refusal_probability(
    share: float, groups: int, threshold: float, scales: tuple[Fraction, ...]
) -> float:
    """How often a claim is refused that a share of the groups reaches.

    Args:
        threshold: the number of groups at which it is refused.
        scales: of the independent noises that are added, which differ; none for methods without noise.
    """
    mean, spread = groups * share, max((groups * share * (1 - share)) ** 0.5, 1e-9)
    return _share_below(threshold + 0.5 - mean, spread, scales)


def mean_refusal_probability(
    distance: float, units: int, deviation: float, scales: tuple[Fraction, ...]
) -> float:
    """How often a gate on means refuses a claim that is this far above its threshold.

    Args:
        distance: of the claim from threshold and expected score, as a share of the range.
        deviation: of one unit's score, as a share of the range.
        scales: of the independent noises on the sum over units, which differ.
    """
    return _share_below(distance * units, max(deviation * units**0.5, 1e-9), scales)


def share_above(excess: float, units_per_group: float, deviation: float) -> float:
    """The share of groups whose mean lies so far above what is expected."""
    return 1 - _normal_cdf(excess * units_per_group**0.5 / deviation)
