"""Private medians behind one interface, by name; other distributions can add more.

Each takes m integers of a public range, of which ``changed`` may become others (one per group that
a neighbour changes), and answers a key that is about the p-quantile. The exponential mechanism is
the default; the noisy binary search uses nothing but noisy counts, and wins only for ranges that
are larger than anything a computer holds.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from fractions import Fraction
from functools import cache
from importlib.metadata import entry_points
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from dpflow.core.accounting.events import ZCDP, BoundedRange, Event, Pure
from dpflow.core.sampling.noisy_values import add_gaussian, add_laplace
from dpflow.core.sampling.randomness import Source
from dpflow.core.toolbox.quantiles import draw_quantile, rate_for
from dpflow.errors import UnknownName

Keys = NDArray[np.int64]
Ends = tuple[int, int]

#: Entry-point group whose objects are `PrivateMedian` classes.
GROUP = "dpflow_stable_median.building_blocks.private_medians"


class PrivateMedian(ABC):
    """A private quantile of integers. Stateless; made without arguments."""

    name: ClassVar[str]

    @abstractmethod
    def event(self, epsilon: Fraction) -> Event:
        """The event of one answer, if ``changed`` of `draw` is how many integers may change."""

    @abstractmethod
    def draw(
        self, keys: Keys, ends: Ends, p: Fraction, epsilon: Fraction, changed: int, source: Source
    ) -> int:
        """One key of the range with these ends, both included."""


class Exponential(PrivateMedian):
    """Theorem 3.1: `dpflow.core.toolbox.quantiles`. Event: epsilon-bounded range."""

    name = "exponential"

    def event(self, epsilon: Fraction) -> Event:
        return BoundedRange(epsilon)

    def draw(
        self, keys: Keys, ends: Ends, p: Fraction, epsilon: Fraction, changed: int, source: Source
    ) -> int:
        return draw_quantile(keys, *ends, p, rate_for(epsilon, p, changed), source)


class BinarySearch(PrivateMedian):
    """Lemma 3.2: at most ceil(log2 N) probes, each two noisy counts, #{y <= v} and #{y < v}, taken
    to be within alpha m/4.

    A count moves by ``changed``. q = 2 ceil(log2 N) counts with Laplace noise of scale q
    changed/epsilon are epsilon-DP.
    """

    name = "binary_search"
    alpha = Fraction(1, 4)

    def event(self, epsilon: Fraction) -> Event:
        return Pure(epsilon)

    def noisy_count(
        self, rows: int, probes: int, epsilon: Fraction, changed: int, source: Source
    ) -> int:
        """One count with its noise."""
        return add_laplace(rows, probes * changed / epsilon, source)

    def draw(
        self, keys: Keys, ends: Ends, p: Fraction, epsilon: Fraction, changed: int, source: Source
    ) -> int:
        ordered, m, (first, last) = np.sort(keys), len(keys), ends
        # A function of the range alone: how many counts share epsilon must not follow the rows.
        steps = (last - first).bit_length()
        low, high = first, last
        for _ in range(steps):
            if low >= high:
                break
            v = (low + high) // 2
            counts = [
                int(np.searchsorted(ordered, np.int64(v), side)) for side in ("right", "left")
            ]
            at_most, below = (
                # The search may end early; the noise is for as many counts as it may take.
                Fraction(self.noisy_count(n, 2 * steps, epsilon, changed, source))
                for n in counts
            )
            # noise may turn the two counts round; the true ones never are
            if below > at_most:
                at_most = below = (at_most + below) / 2
            if at_most <= (p - self.alpha / 4) * m:
                low = v + 1
            elif below >= (p + self.alpha / 4) * m:
                high = v - 1
            else:
                return v
        # Noise may lead past either end.
        return min(max(low, first), last)


class GaussianSearch(BinarySearch):
    """The same with Gaussian noise: q counts at sigma^2 = q changed^2/epsilon^2 are
    (epsilon^2/2)-zCDP (Corollary 3.3).
    """

    name = "gaussian_search"

    def event(self, epsilon: Fraction) -> Event:
        return ZCDP(epsilon**2 / 2)

    def noisy_count(
        self, rows: int, probes: int, epsilon: Fraction, changed: int, source: Source
    ) -> int:
        """One count with its noise."""
        return add_gaussian(rows, probes * changed**2 / epsilon**2, source)


@cache
def installed_medians() -> Mapping[str, PrivateMedian]:
    """Installed medians by name, built-in ones first; a name that is taken stays with who came
    first.
    """
    medians_by_name: dict[str, PrivateMedian] = {
        m.name: m for m in (Exponential(), BinarySearch(), GaussianSearch())
    }
    # Built-in names come first, so that no other distribution can take one over.
    for point in entry_points(group=GROUP):
        extension = point.load()()
        medians_by_name.setdefault(extension.name, extension)
    return medians_by_name


def find_median(name: str) -> PrivateMedian:
    """The median of this name, or `UnknownName`."""
    try:
        return installed_medians()[name]
    except KeyError:
        raise UnknownName("private median", name, installed_medians()) from None
