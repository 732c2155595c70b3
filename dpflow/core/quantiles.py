"""The exponential mechanism for a quantile of m integers, m public, drawn exactly in the time of one sort.

Definition: with p = a/b and for a key v the counts L(v) = #{y < v} and U(v) = #{y > v}, the cost is the integer
c(v) = max(b L(v) - a m, b U(v) - (b-a) m); v is drawn with probability proportional to exp(-rate c(v)) from all keys
first, ..., last. For the median this is 2 max(L, U) - m.

Claim: if ``changed`` of the m integers may become others, every cost moves by at most b changed, so
rate = epsilon / (2 b changed) is epsilon-bounded range, hence epsilon-DP and epsilon^2/8-zCDP.

Accuracy (stable-median paper, Theorem 3.1): with probability 1-beta the rank error is below 2 changed ln(N/beta)/epsilon
of m, N the number of keys.

Exactness: L ascends and U descends in v, so the keys of cost at most T are an interval whose ends are two order statistics.
Keys inside a wide interval are chosen from as runs of equal cost; those outside (all of cost above T) are one run at cost
T + 1, and one of them is kept with probability exp(-rate (c - T - 1)), else everything is drawn anew: rejection sampling
from a law that dominates the wanted one.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dpflow.core.randomness import Source
from dpflow.core.samplers import bernoulli_exp, choose

#: Outside keys together weigh less than exp(-MARGIN) of the best one, so that they are looked at about never.
MARGIN = 64

#: Up to so many integers, the window is the whole range.
SMALL = 4096


def rate_for(epsilon: Fraction, p: Fraction, changed: int) -> Fraction:
    """The price of one unit of cost when ``changed`` integers may become others."""
    return epsilon / (2 * p.denominator * changed)


def draw_quantile(keys: NDArray[np.int64], first: int, last: int, p: Fraction, rate: Fraction, source: Source) -> int:
    """One key from the law above.

    Args:
        keys: the m integers, within [first, last], in any order; m may be 0.
        first, last: the public range.
        p: the quantile, strictly between 0 and 1.
        rate: from `rate_for`.
        source: where the randomness comes from.
    """
    window = _Window(np.sort(keys), first, last, p)
    least = window.least()
    inside = last - first + 1
    top = least + 2**52
    if len(keys) > SMALL and rate > 0:
        top = least + min(math.ceil((math.log(inside) + MARGIN) / rate), 2**52)
    low, high = window.interval(top)
    starts, lengths, costs = window.runs(low, high)
    outside = inside - (high - low + 1)
    costs = [cost - least for cost in costs]
    if outside:
        lengths, costs = [*lengths, outside], [*costs, top + 1 - least]
    while True:
        piece = choose(lengths, costs, rate, source)
        if piece < len(starts):
            return starts[piece] + source.below(lengths[piece])
        place = first + source.below(outside)
        key = place if place < low else place + (high - low + 1)
        if bernoulli_exp(rate * (window.cost(key) - top - 1), source):
            return key


class _Window:
    """Sorted integers, and the costs of keys among them."""

    def __init__(self, ordered: NDArray[np.int64], first: int, last: int, p: Fraction) -> None:
        self._y, self._m, self._first, self._last = ordered, len(ordered), first, last
        self._a, self._b = p.numerator, p.denominator

    def _place(self, key: int, side: Literal["left", "right"]) -> int:
        return int(np.searchsorted(self._y, np.int64(key), side))

    def _cost(self, below: int, above: int) -> int:
        return max(self._b * below - self._a * self._m, self._b * above - (self._b - self._a) * self._m)

    def cost(self, key: int) -> int:
        """c(key)."""
        return self._cost(self._place(key, "left"), self._m - self._place(key, "right"))

    def interval(self, top: int) -> tuple[int, int]:
        """The first and last key of cost at most ``top``; first above last if there is none."""
        below = (top + self._a * self._m) // self._b
        above = (top + (self._b - self._a) * self._m) // self._b
        if below < 0 or above < 0:
            return 1, 0
        low = self._first if above >= self._m else int(self._y[self._m - 1 - above])
        high = self._last if below >= self._m else int(self._y[below])
        return low, high

    def least(self) -> int:
        """The smallest cost of all keys."""
        low, high = -self._b * self._m - 1, self._b * self._m
        while high - low > 1:
            middle = (low + high) // 2
            found = self.interval(middle)
            low, high = (low, middle) if found[0] <= found[1] else (middle, high)
        return high

    def runs(self, low: int, high: int) -> tuple[list[int], list[int], list[int]]:
        """The keys from low to high as runs of equal cost: starts, lengths, costs."""
        begin, end = self._place(low, "left"), self._place(high, "right")
        values, counts = np.unique(self._y[begin:end], return_counts=True)
        starts, lengths, costs = [], [], []
        position, below = low, begin
        for value, count in zip(values.tolist(), counts.tolist()):
            if value > position:
                starts.append(position)
                lengths.append(value - position)
                costs.append(self._cost(below, self._m - below))
            starts.append(value)
            lengths.append(1)
            costs.append(self._cost(below, self._m - below - count))
            position, below = value + 1, below + count
        if position <= high:
            starts.append(position)
            lengths.append(high + 1 - position)
            costs.append(self._cost(below, self._m - below))
        return starts, lengths, costs
