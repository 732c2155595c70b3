"""The exponential mechanism for a quantile of m integers, m public, drawn exactly in the time of
one sort.

Definition: with p = a/b and for a key v the counts L(v) = #{y < v} and U(v) = #{y > v}, the cost is
the integer c(v) = max(b L(v) - a m, b U(v) - (b-a) m); v is drawn with probability proportional to
w(v) exp(-rate c(v)) from all keys first, ..., last. For the median the cost is 2 max(L, U) - m. The
weights w are public whole numbers, 1 unless said: a key of weight w holds w places, and a place is drawn.

Guarantee: if ``changed`` of the m integers may become others, every cost moves by at most b
changed, so rate = epsilon / (2 b changed) is epsilon-bounded range, hence epsilon-DP and
epsilon^2/8-zCDP, whatever the weights are, for they are the same on both tables.

Accuracy (stable-median paper, Theorem 3.1): with probability 1-beta the rank error is below 2
changed ln(N/beta)/epsilon of m, N the number of keys.

Exactness: L ascends and U descends in v, so the keys of cost at most T are an interval whose ends
are two order statistics. Few integers: the whole range is chosen from as runs of equal cost. Many:
keys are proposed from bands between such intervals, a band of costs C, ..., C + 1/rate as if all of
it had cost C, and kept with probability exp(-rate (c - C)): rejection sampling from a law that
dominates the wanted one and is at most e times it. So the time is that of the sort, whatever
epsilon.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from dpflow.core.accounting.bisection import bisect_integers
from dpflow.core.sampling.noisy_values import draw_place
from dpflow.core.sampling.randomness import Source
from dpflow.core.sampling.samplers import bernoulli_exp, choose_piece

#: Keys beyond the last narrow band together weigh less than exp(-MARGIN) of the best one: they are
#: proposed about never.
MARGIN = 64

#: Up to so many integers are looked at run by run.
SMALL = 4096

#: How many places keys below each of some keys hold, for keys from the first to the last plus 1:
#: strictly ascending, as Python integers in an array.
Places = Callable[[NDArray[np.int64]], NDArray[Any]]


def rate_for(epsilon: Fraction, p: Fraction, changed: int) -> Fraction:
    """The rate at which one unit of cost lowers the odds when ``changed`` integers may become
    others.
    """
    return epsilon / (2 * p.denominator * changed)


def draw_quantile(
    keys: NDArray[np.int64],
    first: int,
    last: int,
    p: Fraction,
    rate: Fraction,
    source: Source,
    places: Places | None = None,
) -> int:
    """One key from the law above.

    Args:
        keys: the m integers, within [first, last], in any order; m may be 0.
        first, last: the public range.
        p: the quantile, strictly between 0 and 1.
        rate: from `rate_for`.
        source: where the randomness comes from.
        places: the weights of keys, as sums; they must be public. None: each key weighs 1.
    """
    window = _Window(np.sort(keys), first, last, p, places)
    # Bands have a width of 1/rate, so there are none at rate 0.
    if len(keys) > SMALL and rate > 0:
        return window.key_of(_draw_from_bands(window, first, last, rate, source))
    starts, lengths, costs = window.equal_cost_runs(first, last)
    least = min(costs)
    return window.key_of(
        draw_place(starts, lengths, [cost - least for cost in costs], rate, source)
    )


def _draw_from_bands(window: _Window, first: int, last: int, rate: Fraction, source: Source) -> int:
    """Rejection sampling of a place from bands of cost, each proposed as if all of it had its least
    cost.
    """
    low, high = window.places_of(first, last)
    width, least = math.ceil(1 / rate), window.least_cost()
    far = least + math.ceil((math.log(high - low + 1) + MARGIN) / rate)
    bands = [_Band(least, *window.places_of(*window.cost_interval(least)))]
    while (bands[-1].low, bands[-1].high) != (low, high):
        inner, floor = bands[-1], bands[-1].floor + (width if len(bands) > 1 else 1)
        interval = (first, last) if floor > far else window.cost_interval(floor + width - 1)
        bands.append(_Band(floor, *window.places_of(*interval), inner.low, inner.high))
    # Neighbouring costs may have the same interval, which leaves a band without places.
    bands = [band for band in bands if band.size]
    sizes, costs = [band.size for band in bands], [band.floor - least for band in bands]
    while True:
        band = bands[choose_piece(sizes, costs, rate, source)]
        place = band.place_at(source.draw_below(band.size))
        cost = window.key_cost(window.key_of(place))
        if bernoulli_exp(rate * (cost - band.floor), source):
            return place


@dataclass(frozen=True)
class _Band:
    """The places of an interval without an inner one (empty if ``start`` > ``end``), all of cost at
    least ``floor``.
    """

    floor: int
    low: int
    high: int
    start: int = 1
    end: int = 0

    @property
    def size(self) -> int:
        return (self.high - self.low + 1) - (self.end - self.start + 1)

    def place_at(self, index: int) -> int:
        """The band's place of an index, 0 to size - 1."""
        place = self.low + index
        if self.end < self.start or place < self.start:
            return place
        return place + (self.end - self.start + 1)


class _Window:
    """Sorted integers, the costs of keys among them, and the places that keys hold."""

    def __init__(
        self,
        ordered: NDArray[np.int64],
        first: int,
        last: int,
        p: Fraction,
        places: Places | None = None,
    ) -> None:
        self._places = places
        self._y, self._m, self._first, self._last = ordered, len(ordered), first, last
        self._a, self._b = p.numerator, p.denominator

    def _insertion_point(self, key: int, side: Literal["left", "right"]) -> int:
        return int(np.searchsorted(self._y, np.int64(key), side))

    def _larger_cost(self, below: int, above: int) -> int:
        return max(
            self._b * below - self._a * self._m, self._b * above - (self._b - self._a) * self._m
        )

    def key_cost(self, key: int) -> int:
        """c(key)."""
        return self._larger_cost(
            self._insertion_point(key, "left"), self._m - self._insertion_point(key, "right")
        )

    def cost_interval(self, top: int) -> tuple[int, int]:
        """The first and last key of cost at most ``top``; first above last if there is none."""
        below = (top + self._a * self._m) // self._b
        above = (top + (self._b - self._a) * self._m) // self._b
        if below < 0 or above < 0:
            return 1, 0
        low = self._first if above >= self._m else int(self._y[self._m - 1 - above])
        high = self._last if below >= self._m else int(self._y[below])
        return low, high

    def least_cost(self) -> int:
        """The smallest cost of all keys."""

        def has_keys(top: int) -> bool:
            first, last = self.cost_interval(top)
            return first <= last

        return bisect_integers(has_keys, -self._b * self._m - 1, self._b * self._m)

    def places_of(self, low: int, high: int) -> tuple[int, int]:
        """The first and the last place of the keys from low to high; first above last if low is."""
        if self._places is None:
            return low, high
        start, end = self._places(np.array([low, high + 1], np.int64))
        return int(start), int(end) - 1

    def key_of(self, place: int) -> int:
        """The key that holds a place."""
        if self._places is None:
            return place
        low, high = self._first, self._last
        while low < high:
            # Some keys at once, as a call costs more than they do.
            step = (high - low) // 32 + 1
            keys = np.array([low + step * i for i in range(33) if low + step * i <= high], np.int64)
            at = int(np.searchsorted(self._places(keys), place, "right")) - 1
            low, high = int(keys[at]), min(high, int(keys[at]) + step - 1)
        return low

    def equal_cost_runs(self, low: int, high: int) -> tuple[list[int], list[int], list[int]]:
        """The places of keys from low to high as runs of equal cost: starts, lengths, costs."""
        begin, end = self._insertion_point(low, "left"), self._insertion_point(high, "right")
        values, counts = np.unique(self._y[begin:end], return_counts=True)
        starts, lengths, costs = [], [], []
        position, below = low, begin
        for value, count in zip(values.tolist(), counts.tolist()):
            if value > position:
                starts.append(position)
                lengths.append(value - position)
                costs.append(self._larger_cost(below, self._m - below))
            starts.append(value)
            lengths.append(1)
            costs.append(self._larger_cost(below, self._m - below - count))
            position, below = value + 1, below + count
        if position <= high:
            starts.append(position)
            lengths.append(high + 1 - position)
            costs.append(self._larger_cost(below, self._m - below))
        if self._places is not None:
            sums = self._places(np.array([*starts, high + 1], np.int64)).tolist()
            starts, lengths = sums[:-1], [b - a for a, b in pairwise(sums)]
        return starts, lengths, costs
