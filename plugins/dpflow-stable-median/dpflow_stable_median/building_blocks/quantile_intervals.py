"""Quantile intervals, approximate medians, deviations, and the monitor: what the theorems talk
about, on lists of values.

qi(a, b) of values y_1..y_m holds v when #{y <= v}/m > a and #{y < v}/m < b, both strict; it is an
interval. v is an alpha-approximate median when it lies in qi((1-alpha)/2, (1+alpha)/2). These are
for simulations, tests and public values: nothing here is private.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpflow.errors import InvalidInput


def in_interval(v: float, values: ArrayLike, low: float, high: float) -> bool:
    """Whether v lies in qi(low, high) of the values, 0 <= low < high <= 1."""
    if not 0 <= low < high <= 1:
        raise InvalidInput(f"a quantile interval needs 0 <= a < b <= 1, not ({low}, {high})")
    y = _check_values(values)
    at_most, below, m = int((y <= v).sum()), int((y < v).sum()), len(y)
    # fractions: no rounding decides whether a bound is strict
    return bool(at_most > Fraction(low) * m and below < Fraction(high) * m)


def in_interval_of(
    v: float,
    cdf: Callable[[float], float],
    below: Callable[[float], float],
    low: float,
    high: float,
) -> bool:
    """The same for a known distribution: ``cdf`` is Pr[Y <= v], ``below`` is Pr[Y < v]."""
    return cdf(v) > low and below(v) < high


def is_median(v: float, values: ArrayLike, alpha: float) -> bool:
    """Whether v is an alpha-approximate median; alpha = 1 asks for any interior point."""
    if not 0 < alpha <= 1:
        raise InvalidInput(f"alpha {alpha} must lie in (0, 1]")
    return in_interval(v, values, (1 - alpha) / 2, (1 + alpha) / 2)


def lower_median(values: ArrayLike) -> float:
    """The exact median, of two middle values the lower: what splitting and naive reuse answer."""
    y = _check_values(values)
    return float(np.partition(y, (len(y) - 1) // 2)[(len(y) - 1) // 2])


def mean_deviation(values: ArrayLike) -> float:
    """Mean absolute deviation from the mean, at most the standard deviation."""
    y = _check_values(values)
    return float(np.abs(y - y.mean()).mean())


def block_median(
    blocks: int, function: Callable[[NDArray[np.float64]], float]
) -> Callable[[NDArray[np.float64]], float]:
    """The amplified estimator: split a group into so many blocks, apply the function to each, take
    the lower median.
    """
    if blocks < 1:
        raise InvalidInput(f"blocks is {blocks}; take at least 1")
    return lambda rows: lower_median(
        [function(part) for part in np.array_split(np.asarray(rows), blocks)]
    )


@dataclass(frozen=True)
class Overfit:
    """Result of the monitor: the query whose answer lies furthest out on fresh data.

    ``query`` its place, ``side`` "low" or "high", ``mass`` what fresh data has on that side of the
    answer, answer included: below 1/4 the answer left the interquartile interval.
    """

    query: int
    side: str
    mass: float


def worst_answer(answers: Sequence[float], fresh: Sequence[ArrayLike]) -> Overfit:
    """Given values of every query on fresh groups, the worst answer. Post-processing of the
    transcript: it sees no sample.
    """
    if not answers or len(answers) != len(fresh):
        raise InvalidInput("the monitor needs fresh values for each of one or more answers")
    candidates = []
    for j, (v, values) in enumerate(zip(answers, fresh)):
        y = _check_values(values)
        candidates += [
            Overfit(j, "low", float((y <= v).mean())),
            Overfit(j, "high", float((y >= v).mean())),
        ]
    return min(candidates, key=lambda one: one.mass)


def _check_values(values: ArrayLike) -> NDArray[np.float64]:
    y = np.asarray(values, dtype=np.float64)
    # NaN compares as false, so it would count on neither side.
    if y.ndim != 1 or not len(y) or np.isnan(y).any():
        raise InvalidInput("values are a list of one or more numbers, none of them NaN")
    return y
