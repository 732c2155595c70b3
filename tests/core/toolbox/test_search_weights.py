"""Weights of doubles in a search: all are possible, and good answers are likely."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dpflow.core.toolbox.search_weights import DOUBLES, SearchWeights

RANDOM = np.random.default_rng(5)
LEAST, MOST = DOUBLES.first_key, DOUBLES.last_key


def key(value: float) -> int:
    return int(DOUBLES.nearest_keys(np.array([value]))[0])


def weigh(low: float | None, high: float | None, whole: bool = False) -> SearchWeights:
    first = LEAST if low is None else key(low) + 1
    last = MOST if high is None else key(high) - 1
    return SearchWeights(first, last, low, high, whole)


ENDS = [
    (None, None),
    (None, 1e6),
    (0.0, None),
    (-3.5, 12.0),
    (1e6, 1e6 + 1),
    (-1.7e308, 1.7e308),
    (0.0, 1.5e-323),
    (None, -1.7e308),
    (5e-324, 1e-300),
    (2.0**60, 2.0**60 + 1024),
]


@pytest.mark.parametrize(("low", "high"), ENDS)
@pytest.mark.parametrize("whole", [False, True])
def test_no_double_has_weight_zero(low: float | None, high: float | None, whole: bool) -> None:
    """Places ascend strictly from 0, also from one double to the next."""
    weights = weigh(low, high, whole)
    first = LEAST if low is None else key(low) + 1
    last = MOST if high is None else key(high) - 1
    near = [first, last, 0, key(1), key(-1), *[int(k) for k in np.linspace(first, last, 300)]]
    keys = sorted({min(max(k + i, first), last + 1) for k in near for i in (-1, 0, 1)} | {last + 1})
    places = weights.count(np.array(keys, np.int64)).tolist()
    assert places[0] == 0 and all(type(place) is int for place in places)
    assert all(b - a >= d - c for a, b, c, d in zip(places, places[1:], keys, keys[1:]))
    # All laws together have as many places as the uniform one times their number, rounded.
    assert places[-1] <= 8 * (last + 1 - first)


@pytest.mark.parametrize(
    ("low", "high", "start", "end", "whole", "most"),
    [
        (None, None, 1e6 - 1, 1e6 + 1, False, 21),  # the median of N(10^6, 1)
        (None, 1e6, 1e6 - 2, 1e6 - 0.3, False, 6),  # its lower quartile, 20 among doubles
        (1e6 - 0.7, 1e6, 1e6 - 0.5, 1e6 - 0.2, False, 3),
        (None, None, 3.0, 3.0, False, 8),  # one whole number, 44 among doubles
        (None, None, 3.0, 3.0, True, 8),
        (90.0, 100.0, 95.0, 95.0, True, 5),
        (0.0, None, 3.0, 3.0, True, 9),
    ],
)
def test_good_answers_are_likely(
    low: float | None, high: float | None, start: float, end: float, whole: bool, most: float
) -> None:
    """-ln of their share of all places, which the rank error grows with."""
    weights = weigh(low, high, whole)
    last = MOST if high is None else key(high) - 1
    a, b, total = weights.count(np.array([key(start), key(end) + 1, last + 1], np.int64))
    assert -math.log((b - a) / total) < most
