"""For public data: how hard a column is, whether a point is right, and hard columns.

Nothing here is private. Never call it on rows that somebody protects.

Normalised variance: NV = E(X - mean)^2 / (E|X - mean|)^2, at least 1; shift and scale do not change
it. A distribution with NV <= C is C-bounded (Definition 2.5 of the paper, with C for the ratio of
squares). Gaussian 1.571, uniform 1.333, two values with probabilities p and 1 - p: 1/(4 p (1 - p)).

Checkers: z is an interior point if min(x) <= z <= max(x); it is an alpha-approximate median if at
least a share 1/2 - alpha of the rows is <= z and at least that share is >= z, which is right for
atoms too.

Hard columns: ``log_spread`` puts every value at a scale of its own and ``random_bits`` takes
doubles as they come; on few rows no private method can answer there. ``hard_median`` puts a share h
at each end of (-1, 1) and the rest from another column: its normalised variance is at most 1/(2
h)^2, so an interior point is easy, but for h just below 1/2 - alpha an alpha-approximate median is
an interior point of the other column (Section 1.1 of the paper).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpflow.core.sampling.randomness import Source
from dpflow.errors import InvalidInput

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Spread:
    """Mean absolute deviation from the mean, variance, and normalised variance (None for a constant
    column).
    """

    deviation: float
    variance: float
    normalized: float | None


def normalized_variance(values: ArrayLike) -> Spread:
    """Of a public column, which must have finite values only. A variance that no double holds is
    inf.
    """
    x = _finite_array(values)
    # Scaled by a power of two, which is exact.
    shift = math.frexp(float(np.max(np.abs(x))))[1]
    scaled = np.ldexp(x, -shift)  # no square overflows
    away = scaled - math.fsum(scaled) / len(scaled)
    deviation, variance = math.fsum(np.abs(away)) / len(away), math.fsum(away * away) / len(away)
    if x.min() == x.max():
        return Spread(0.0, 0.0, None)
    with np.errstate(over="ignore"):
        return Spread(
            float(np.ldexp(deviation, shift)),
            float(np.ldexp(variance, 2 * shift)),
            variance / deviation**2,
        )


def is_interior_point(values: ArrayLike, point: float) -> bool:
    """Whether the point lies between the smallest and the largest of some finite values."""
    x = _finite_array(values)
    return bool(x.min() <= point <= x.max())


def is_approximate_median(values: ArrayLike, point: float, alpha: Fraction) -> bool:
    """Whether the point is an alpha-approximate median of some finite values; alpha strictly
    between 0 and 1/2.
    """
    if not 0 < alpha < Fraction(1, 2):
        raise InvalidInput(f"alpha {alpha} must lie strictly between 0 and 1/2, such as 0.25")
    x = _finite_array(values)
    # A fraction: no rounding decides at the edge.
    least = (Fraction(1, 2) - alpha) * len(x)
    return bool(np.count_nonzero(x <= point) >= least and np.count_nonzero(x >= point) >= least)


def log_spread(n: int, source: Source, high: float = 900) -> Floats:
    """Values +-2^U with U uniform between -900 and ``high``."""
    signs = 1.0 - 2.0 * (source.draw_words(n) & np.uint64(1))
    return np.asarray(signs * np.exp2((high + 900) * _draw_uniform(n, source) - 900))


def random_bits(n: int, source: Source) -> Floats:
    """Finite doubles, each bit pattern as likely as any other."""
    values = source.draw_words(n).view(np.float64)
    # infinities and NaN are drawn again, which keeps the others uniform
    while (bad := np.flatnonzero(~np.isfinite(values))).size:
        values[bad] = source.draw_words(bad.size).view(np.float64)
    return values


def hard_median(inner: Floats, share: float, source: Source) -> Floats:
    """Each of the values, replaced by -1 with probability ``share`` and by 1 with the same
    probability.

    Values must lie strictly between both, the share strictly between 0 and 1/2.
    """
    u = _draw_uniform(len(inner), source)
    return np.where(u < share, -1.0, np.where(u < 2 * share, 1.0, inner))


def _draw_uniform(n: int, source: Source) -> Floats:
    # 53 bits: every multiple of 2^-53 below 1 is as likely.
    return np.asarray((source.draw_words(n) >> np.uint64(11)) * 2.0**-53, np.float64)


def _finite_array(values: ArrayLike) -> Floats:
    x = np.asarray(values, dtype=np.float64)
    if x.ndim != 1 or not len(x) or not np.isfinite(x).all():
        raise InvalidInput(
            "this takes a list of one or more finite numbers; leave out what is missing or infinite"
        )
    return x
