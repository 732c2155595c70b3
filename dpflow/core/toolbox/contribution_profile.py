"""How much units contribute, as a released profile tells: noisy numbers of units by rows and by groups.

A histogram has bins of sizes, such as 5 to 6 rows. Of what it says two things are used. An estimate
of what a bound cuts, to choose bounds by: numbers within their noise count as none there. And an
upper limit on the number of units above a bound, which holds with a stated probability whatever the
rows are.

A grouping that no histogram counts is bounded by those of what it is computed from. A unit has no more
groups of several columns together than the product of its groups of each. So if it has more than s t of two,
it has more than s of the first or more than t of the second: their limits add up.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

from dpflow.core.accounting.events import DiscreteGaussian, DiscreteLaplace, from_json, to_json
from dpflow.core.toolbox.noise import FAILURE, Noise
from dpflow.late_numpy import NDArray, np

#: A profile is used where its resolution is at most this part of the number of units.
MAX_RESOLUTION = 10
#: With this probability noise passes for units with many rows: bounds chosen by it would be far too large.
SHOWN_FAILURE = 0.005


def size_bins(largest: int) -> tuple[int, ...]:
    """The least size of each bin: 1, 2, 3, 4, 6, 8, 12, 16 and so on up to the largest size; the last
    bin has no end.
    """
    starts, step = [1], 1
    while starts[-1] < largest:
        following = starts[-1] + step
        starts.append(following)
        # Two bins for each doubling.
        step = max(1, 1 << (following.bit_length() - 2))
    return tuple(start for start in starts if start <= largest)


def count_bins(
    starts: tuple[int, ...], sizes: NDArray[np.int64], units: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Units in each bin, of so many units with each size; those of size 0 are in none."""
    counts = np.zeros(len(starts), np.int64)
    places = np.searchsorted(np.array(starts, np.int64), sizes, side="right") - 1
    np.add.at(counts, places[places >= 0], units[places >= 0])
    return counts


@dataclass(frozen=True)
class SizeHistogram:
    """Noisy numbers of units by size.

    Attributes:
        starts: the least size of each bin, ascending from 1.
        counts: units in each bin, with independent noise.
        noise: of one count.
        end: the largest size, where it is declared.
    """

    starts: tuple[int, ...]
    counts: tuple[int, ...]
    noise: Noise
    end: int | None = None

    @property
    def shares(self) -> int:
        """Of the failures of single bins, those that a limit takes."""
        return 1

    @cached_property
    def tails(self) -> NDArray[np.int64]:
        """Noisy numbers of units in each bin and those above it."""
        return np.cumsum(np.array(self.counts, np.int64)[::-1])[::-1]

    def limit_above(self, size: int, failure: float = FAILURE) -> int:
        """A number that at most so many units have more than ``size`` of, but with this probability.
        Units of the bin in which ``size`` lies count as above it, unless it is the bin's end.
        """
        place = bisect_right(self.starts, size)
        if place == len(self.starts) or self.starts[place] != size + 1:
            place -= 1
        terms = len(self.starts) - place
        # Half of a two-sided failure is that of one side.
        slack = self.noise.sum_half_width(terms, min(2 * failure, 1.0))
        return max(0, int(self.tails[place]) + slack)

    @cached_property
    def estimates(self) -> NDArray[np.float64]:
        """The units of each bin, none below 0, and none above the last bin that noise does not explain:
        by its own number, or with those above it.
        """
        most = self.noise.half_width(SHOWN_FAILURE / len(self.counts))
        shown = [
            count > most
            or tail > self.noise.sum_half_width(len(self.counts) - place, SHOWN_FAILURE)
            for place, (count, tail) in enumerate(zip(self.counts, self.tails.tolist()))
        ]
        last = max((place for place, is_shown in enumerate(shown) if is_shown), default=-1)
        counts = np.maximum(np.array(self.counts, np.float64), 0.0)
        return np.where(np.arange(len(counts)) <= last, counts, 0.0)

    @cached_property
    def sizes(self) -> NDArray[np.float64]:
        """The middle of each bin; the start of a last one without an end."""
        ends = [*(start - 1 for start in self.starts[1:]), max(self.end or 0, self.starts[-1])]
        sums = [float(start + end) for start, end in zip(self.starts, ends)]
        return np.array(sums, np.float64) / 2.0

    @property
    def largest(self) -> int:
        """The start of the last bin that noise does not explain; 1 if all may be empty."""
        occupied = np.flatnonzero(self.estimates)
        return self.starts[int(occupied[-1])] if occupied.size else 1


@dataclass(frozen=True)
class Marginal:
    """Units by their groups of one thing that a grouping is computed from.

    Attributes:
        histogram: of its groups.
        further: groups that a unit may have beyond those, such as that of rows without a value.
        largest: groups that no unit exceeds; None where nothing says so.
    """

    histogram: SizeHistogram
    further: int = 0
    largest: int | None = None

    def limit_above(self, size: int, failure: float) -> int:
        """A number that at most so many units have more than ``size`` groups, but with this probability."""
        if self.largest is not None and size >= self.largest:
            return 0
        return self.histogram.limit_above(size - self.further, failure)

    def list_sizes(self, most: int) -> list[int]:
        """Where limits change, up to a size."""
        ends = [start - 1 + self.further for start in self.histogram.starts]
        sizes = {*ends, self.largest or most, most}
        return sorted(size for size in sizes if 1 <= size <= most)

    @property
    def classes(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Estimated units, and their groups, from the fewest on."""
        sizes = self.histogram.sizes + self.further
        return self.histogram.estimates, np.minimum(sizes, self.largest or math.inf)


@dataclass(frozen=True)
class JointHistogram:
    """What histograms of its parts say of the groups of several things together: bounds from above.

    Attributes:
        parts: at least one.
    """

    parts: tuple[Marginal, ...]

    @property
    def shares(self) -> int:
        """Of the failures of single bins, those that a limit takes."""
        return sum(len(part.histogram.starts) for part in self.parts)

    def limit_above(self, size: int, failure: float = FAILURE) -> int:
        """A number that at most so many units have more than ``size`` groups, but with this probability."""
        # Noise chooses among these limits, so they hold together.
        each = failure / self.shares

        @cache
        def search(place: int, size: int) -> int:
            part = self.parts[place]
            if place == len(self.parts) - 1:
                return part.limit_above(size, each)
            sizes = part.list_sizes(size)
            return min(part.limit_above(s, each) + search(place + 1, size // s) for s in sizes)

        return search(0, size)

    @cached_property
    def _classes(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        units, sizes = couple_classes([part.classes for part in self.parts])
        return units[::-1], np.prod(sizes, axis=0)[::-1]

    @property
    def estimates(self) -> NDArray[np.float64]:
        """Units by groups, if those with most groups of one part have most of each."""
        return self._classes[0]

    @property
    def sizes(self) -> NDArray[np.float64]:
        """Their groups, ascending."""
        return self._classes[1]


def couple_classes(
    lists: Sequence[tuple[NDArray[np.float64], NDArray[np.float64]]],
) -> tuple[NDArray[np.float64], list[NDArray[np.float64]]]:
    """Classes of units that are of one class in each list, from the largest on: how many, and their sizes
    in each list. Units that are largest in one list are largest in each.

    Args:
        lists: units and their sizes, ascending by size.
    """
    ends = [np.cumsum(units[::-1]) for units, _ in lists]
    total = min(float(end[-1]) for end in ends)
    # From the largest on: where either list goes on to its next class.
    cuts = np.unique(np.concatenate([*ends, [total]]))
    cuts = cuts[(cuts > 0) & (cuts <= total)]
    starts = np.concatenate([[0.0], cuts[:-1]]) if cuts.size else cuts
    sizes = [
        sizes[::-1][np.minimum(np.searchsorted(end, starts, side="right"), len(end) - 1)]
        for (_, sizes), end in zip(lists, ends)
    ]
    return cuts - starts, sizes


@dataclass(frozen=True)
class ContributionProfile:
    """A released profile.

    Attributes:
        rows: units by their rows.
        groups: units by their groups of each grouping, by its text.
        resolution: how far a number of units may be from the truth, at 95 %.
    """

    rows: SizeHistogram
    groups: Mapping[str, SizeHistogram]
    resolution: int

    @property
    def bins(self) -> int:
        """How many noisy numbers it has."""
        return sum(len(one.starts) for one in (self.rows, *self.groups.values()))

    @property
    def units(self) -> int:
        """The noisy number of units."""
        return max(0, int(self.rows.tails[0]))

    @property
    def is_fine(self) -> bool:
        """Whether its resolution is at most a tenth of the units, so that it says something of them."""
        return self.resolution * MAX_RESOLUTION <= self.units

    def to_json(self) -> dict[str, Any]:
        """JSON from which `from_json` makes an equal profile."""

        def write(histogram: SizeHistogram) -> dict[str, Any]:
            return {"starts": list(histogram.starts), "counts": list(histogram.counts)}

        return {
            "noise": to_json(self.rows.noise.event),
            "resolution": self.resolution,
            "rows": write(self.rows),
            "groups": {by: write(histogram) for by, histogram in self.groups.items()},
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ContributionProfile:
        """The inverse of `to_json`."""
        event = from_json(data["noise"])
        assert isinstance(event, DiscreteLaplace | DiscreteGaussian)
        noise = Noise(event)

        def read(histogram: Mapping[str, Sequence[int]]) -> SizeHistogram:
            return SizeHistogram(tuple(histogram["starts"]), tuple(histogram["counts"]), noise)

        groups = {by: read(histogram) for by, histogram in data["groups"].items()}
        return cls(read(data["rows"]), groups, int(data["resolution"]))
