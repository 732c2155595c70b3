"""The exact median and the monitor, on lists of values: for simulations, tests and public values, nothing here is private."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpflow.errors import InvalidInput


def lower_median(values: ArrayLike) -> float:
    """The exact median, of two middle values the lower: what splitting and naive reuse answer."""
    y = _check_values(values)
    return float(np.partition(y, (len(y) - 1) // 2)[(len(y) - 1) // 2])


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
