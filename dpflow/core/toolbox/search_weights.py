"""How a search among all doubles weighs them, if nothing is known but points that were released.

Definition: the doubles between two ends get the mean of some laws, each a public function of the
ends alone:

- every double the same, so that none has weight 0, and no range is taken for granted;
- a moderate size, from 2^-64 to 2^64, each power of two the same;
- where both ends are points: even in between;
- near a point: each power of two of the distance the same, from 2^-52 of the scale to the whole, or
  2^12 times the scale if the other end is none. The scale is the distance of the ends, or the
  point's size.

Each but the first once more for whole numbers, as if a value were rounded up to one: columns often
hold them, and then one value has many rows. For columns of whole numbers there is no other.

Why: the exponential mechanism's error grows with -ln of the weight of good answers. Among n normal
values of mean 10^6 and standard deviation 1 all doubles give 20 for the median and for each later
part; the mean of these laws gives 19, then 5.

Use: `SearchWeights(...).count` is ``places`` of `dpflow.core.toolbox.quantiles.draw_quantile`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpflow.core.toolbox.ranges import Floats

DOUBLES = Floats(kind="float64")
Values = NDArray[np.float64]
Law = Callable[[Values], Values]


class SearchWeights:
    """The weights of the doubles with keys from first to last.

    Args:
        first, last: keys of `DOUBLES`.
        low, high: released points just outside, or None where the range ends.
        whole: whether the column holds whole numbers alone.
    """

    def __init__(
        self, first: int, last: int, low: float | None, high: float | None, whole: bool
    ) -> None:
        self._first, self._last = first, last
        both = low is not None and high is not None
        points = [point for point in (low, high) if point is not None]
        # Halves are subtracted, since the difference of two doubles may be infinite.
        scale = points[-1] / 2 - points[0] / 2 if both else max(map(abs, points), default=0.0) / 2
        scale = scale or 0.5
        most = scale if both else scale * 2.0**12
        self._laws = []
        # The least whole number that is not 0 gets the share of one power of two.
        for step, least, size in ((_round_up, 0.25, 0.5), (_keep, scale * 2.0**-52, 2.0**-64)):
            laws: list[Law] = [_even if both else partial(_weigh_size, least=size)]
            if low is not None:
                laws.append(partial(_weigh_above, point=low, least=least, most=most))
            if high is not None:
                laws.append(partial(_weigh_below, point=high, least=least, most=most))
            for law in laws:
                # The end of the last double is the start of the next one.
                start, end = law(step(self._values(np.array([first, last + 1], np.int64))))
                if end > start:
                    self._laws.append((step, law, float(start), float(end)))
            if whole:
                break

    def count(self, keys: NDArray[np.int64]) -> NDArray[Any]:
        """Places below each of some keys from first to last + 1, strictly ascending."""
        number = self._last + 1 - self._first
        sums = keys.astype(object) - self._first
        values = self._values(keys)
        for step, law, start, end in self._laws:
            # Each step is rounded but ascends, and the first law ascends strictly.
            shares = np.clip((law(step(values)) - start) / (end - start), 0, 1)
            sums += np.array([int(share) for share in (shares * float(number)).tolist()], object)
        return sums

    def _values(self, keys: NDArray[np.int64]) -> Values:
        bits = np.abs(keys)
        return np.asarray(np.copysign(bits.view(np.float64), keys))


def _keep(values: Values) -> Values:
    return values


def _round_up(values: Values) -> Values:
    return np.ceil(values)


def _even(values: Values) -> Values:
    return values / 2


def _weigh_size(values: Values, least: float) -> Values:
    first, last = (float(key) for key in DOUBLES.nearest_keys(np.array([least, 2.0**64])))
    keys = DOUBLES.nearest_keys(values).astype(float)
    return np.asarray(np.sign(keys) * (np.clip(np.abs(keys), first, last) - first))


def _weigh_above(values: Values, point: float, least: float, most: float) -> Values:
    ends = np.clip(values / 2 - point / 2, least, max(least, most))
    return DOUBLES.nearest_keys(ends).astype(float)


def _weigh_below(values: Values, point: float, least: float, most: float) -> Values:
    return -_weigh_above(-values, -point, least, most)
