"""The laws of the numbers that a replayed run follows (`dpflow.testing.replay`): each is drawn from on one
side, and says on the other how probable the same number is there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpflow.core.sampling.randomness import Source
from dpflow.testing.sampler_patches import REAL

#: How much wider noise is drawn by a run that explores.
WIDER = 6
#: Values of a threshold's noise that are summed over at most, and the mass that is left out.
MOST_THRESHOLDS, LEFT_OUT = 400_000, 1e-18
#: How much of an answer's probability the mass that is left out may be.
NEGLIGIBLE = 1e-9


class Unfollowed(Exception):
    """The run draws noise that nobody may see, or as many numbers as rows say."""


class Impossible(Exception):
    """The neighbour never makes this number."""


@dataclass(frozen=True)
class ShiftedNoise:
    """Exact integers with noise of one size: a scale, or of Gaussian noise sigma^2."""

    exact: NDArray[Any]
    size: Fraction
    gaussian: bool = False

    def draw(self, source: Source, explores: bool) -> NDArray[Any]:
        sampler = REAL["discrete_gaussian" if self.gaussian else "discrete_laplace"]
        wider = (WIDER**2 if self.gaussian else WIDER) if explores else 1
        noisy: NDArray[Any] = self.exact + sampler(self.size * wider, self.exact.size, source)
        return noisy

    def log_mass(self, value: NDArray[Any]) -> float:
        if value.shape != self.exact.shape:
            raise Unfollowed("the rows say how many numbers get noise")
        distance = np.abs((value - self.exact).astype(float))
        # Normalisers are the same on both sides.
        if self.gaussian:
            return float(-(distance**2).sum() / (2 * float(self.size)))
        return float(-distance.sum() / float(self.size))


@dataclass(frozen=True)
class ChoiceLaw:
    """One of some places, by the logarithms of their weights."""

    logs: NDArray[np.float64]

    def draw(self, source: Source, explores: bool) -> int:
        if explores:
            return _explore(len(self.logs), source)
        weights = np.exp(self.logs - self.logs.max())
        at = int(np.searchsorted(np.cumsum(weights) / weights.sum(), _draw_unit(source)))
        return min(at, len(weights) - 1)

    def log_mass(self, value: int) -> float:
        if value >= len(self.logs):
            raise Impossible
        return float(self.logs[value] - _log_sum(self.logs))


@dataclass(frozen=True)
class Place:
    """An integer of one of several runs."""

    starts: Sequence[int]
    lengths: Sequence[int]
    costs: NDArray[np.float64]
    rate: float

    def _log_weights(self) -> NDArray[np.float64]:
        sizes = np.array([float(length) for length in self.lengths])
        logs: NDArray[np.float64] = np.log(sizes) - self.rate * self.costs
        return logs

    def draw(self, source: Source, explores: bool) -> int:
        run = ChoiceLaw(self._log_weights()).draw(source, explores)
        return self.starts[run] + source.draw_below(self.lengths[run])

    def log_mass(self, value: int) -> float:
        for start, length, cost in zip(self.starts, self.lengths, self.costs):
            if start <= value < start + length:
                return float(-self.rate * cost - _log_sum(self._log_weights()))
        raise Impossible


@dataclass(frozen=True)
class LargeCounts:
    """Counts by name that noise of a bounded size lifts above a threshold."""

    counts: Mapping[Any, int]
    noise: Mapping[int, float]
    threshold: int

    def draw(self, source: Source, explores: bool) -> dict[Any, int]:
        values = list(self.noise)
        law = ChoiceLaw(np.log([self.noise[x] for x in values]))
        noisy = {name: n + values[law.draw(source, explores)] for name, n in self.counts.items()}
        return {name: n for name, n in noisy.items() if n > self.threshold}

    def log_mass(self, value: Mapping[Any, int]) -> float:
        if not value.keys() <= self.counts.keys():
            raise Impossible
        total = 0.0
        for name, count in self.counts.items():
            mass = self.noise.get(value[name] - count, 0.0) if name in value else self._hide(count)
            if mass <= 0:
                raise Impossible
            total += math.log(mass)
        return total

    def _hide(self, count: int) -> float:
        return math.fsum(p for x, p in self.noise.items() if count + x <= self.threshold)


class Stretch:
    """A sparse vector between two answers "below": how probable each noise of its threshold is,
    after what was answered since.
    """

    def __init__(self, scale: Fraction) -> None:
        reach = math.ceil(-math.log(LEFT_OUT) * float(scale))
        if 2 * reach > MOST_THRESHOLDS:
            raise Unfollowed("the noise of a threshold has too many values to sum over")
        weights = np.exp(-np.abs(np.arange(-reach, reach + 1.0)) / float(scale))
        self.weights: NDArray[np.float64] = weights / weights.sum()
        self.left_out = LEFT_OUT

    def split(self, difference: int, scale: Fraction) -> tuple[NDArray[Any], NDArray[Any]]:
        """The weights with "below", and those with "above", of a value so far above the threshold."""
        reach = len(self.weights) // 2
        if abs(difference) > 2 * reach:
            below, above = _split_noise(np.arange(-reach, reach + 1.0) - difference, scale)
        else:
            first = 2 * reach - difference
            below, above = (
                tails[first : first + len(self.weights)] for tails in _list_tails(reach, scale)
            )
        return self.weights * below, self.weights * above

    def keep(self, weights: NDArray[Any]) -> None:
        """Go on after an answer that has these weights."""
        mass = float(weights.sum())
        self.weights, self.left_out = weights / mass, self.left_out / mass


def _split_noise(room: NDArray[Any], scale: Fraction) -> tuple[NDArray[Any], NDArray[Any]]:
    """Probabilities that Laplace noise is at most so much, and that it is more."""
    q = math.exp(-1 / float(scale))
    # The smaller of both tails has no rounding to hide it.
    tail = np.exp(-np.where(room < 0, -room, room + 1) / float(scale)) / (1 + q)
    return np.where(room < 0, tail, 1 - tail), np.where(room < 0, 1 - tail, tail)


@lru_cache(maxsize=8)
def _list_tails(reach: int, scale: Fraction) -> tuple[NDArray[Any], NDArray[Any]]:
    """The same for every whole number up to three times ``reach``: questions differ by a shift."""
    return _split_noise(np.arange(-3 * reach, 3 * reach + 1.0), scale)


class ComparisonLaw:
    """Whether a value, so much above a threshold of which only answers are seen, is below it."""

    def __init__(self, stretch: Stretch, difference: int, scale: Fraction) -> None:
        self.stretch = stretch
        self.parts = stretch.split(difference, scale)
        self.masses = [float(part.sum()) for part in self.parts]

    def draw(self, source: Source, explores: bool) -> bool:
        below, above = self.masses
        # What is left out must not decide how probable an improbable answer is.
        if explores and min(below, above) > self.stretch.left_out / NEGLIGIBLE:
            return bool(source.draw_below(2))
        return _draw_unit(source) * (below + above) < below

    def log_mass(self, value: bool) -> float:
        mass = self.masses[0 if value else 1]
        if mass <= 0:
            raise Impossible
        return math.log(mass)

    def keep(self, value: bool) -> None:
        """Go on after this answer."""
        self.stretch.keep(self.parts[0 if value else 1])


@dataclass(frozen=True)
class Wide:
    """A uniform integer below n."""

    n: int

    def draw(self, source: Source, explores: bool) -> int:
        return _explore(self.n, source) if explores else source.draw_below(self.n)

    def log_mass(self, value: int) -> float:
        if value >= self.n:
            raise Impossible
        return -math.log(self.n)


def _explore(n: int, source: Source) -> int:
    """A number below n, an end as often as all others together: programs compare such numbers with an end."""
    ends = 0, n - 1
    turn = source.draw_below(4)
    return ends[turn] if turn < 2 else source.draw_below(n)


def _draw_unit(source: Source) -> float:
    return float(source.draw_bits(53)) * 2.0**-53


def _log_sum(logs: NDArray[np.float64]) -> float:
    top = logs.max()
    return float(top + np.log(np.exp(logs - top).sum()))
