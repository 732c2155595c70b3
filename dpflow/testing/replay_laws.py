"""The laws of the numbers that a replayed run follows (`dpflow.testing.replay`): each is drawn from on one
side, and says on the other how probable the same number is there.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import Any, Literal

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
        noise = REAL["discrete_gaussian" if self.gaussian else "discrete_laplace"]
        drawn = self._explore(source) if explores else noise(self.size, self.exact.size, source)
        noisy: NDArray[Any] = self.exact + drawn
        return noisy

    def _explore(self, source: Source) -> NDArray[np.int64]:
        """Noise that is so much wider, of about this law: exact noise of another size needs tables of its own."""
        words = source.draw_words(self.exact.size)
        width = WIDER * (math.sqrt(self.size) if self.gaussian else float(self.size))
        sizes = -np.log(((words >> np.uint64(11)) + 1.0) * 2.0**-53) * width
        signed: NDArray[np.float64] = np.where(words & np.uint64(1), sizes, -sizes)
        return signed.round().astype(np.int64)

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
    """One of some places, by the logarithms of their sizes, and by integers that each cost so much."""

    sizes: NDArray[np.float64]
    costs: Sequence[int] | NDArray[Any] = ()
    rate: Fraction = Fraction(0)

    @cached_property
    def _away(self) -> NDArray[Any]:
        """What each costs more than the cheapest."""
        costs = self.costs if isinstance(self.costs, np.ndarray) else np.array(self.costs, object)
        return costs - costs.min() if len(costs) else np.zeros(len(self.sizes), np.int64)

    @cached_property
    def logs(self) -> NDArray[np.float64]:
        """The logarithms of the weights, to be compared with each other."""
        logs: NDArray[np.float64] = self.sizes - float(self.rate) * self._away.astype(float)
        return logs

    @cached_property
    def _total(self) -> float:
        return _log_sum(self.logs)

    def draw(self, source: Source, explores: bool) -> int:
        if explores:
            return _explore(len(self.logs), source)
        weights = np.exp(self.logs - self.logs.max())
        at = int(np.searchsorted(np.cumsum(weights) / weights.sum(), _draw_unit(source)))
        return min(at, len(weights) - 1)

    def log_mass(self, value: int) -> float | Fraction:
        if value >= len(self.logs):
            raise Impossible
        # Doubles of very improbable places, which two neighbours differ in by little, would differ by rounding.
        likely = float(self.sizes[value]) - self._total
        return Fraction(likely) - self.rate * int(self._away[value]) if self.rate else likely


@dataclass(frozen=True)
class Place:
    """An integer of one of several runs that do not overlap, by the starts, lengths and choice of these."""

    starts: NDArray[Any]
    lengths: NDArray[Any]
    runs: ChoiceLaw

    def draw(self, source: Source, explores: bool) -> int:
        run = self.runs.draw(source, explores)
        return int(self.starts[run]) + source.draw_below(int(self.lengths[run]))

    def log_mass(self, value: int) -> float | Fraction:
        before = np.flatnonzero(self.starts <= value)
        # Of the runs that start before it only the last one may hold it.
        run = before[np.argmax(self.starts[before])] if before.size else None
        if run is None or value >= int(self.starts[run]) + int(self.lengths[run]):
            raise Impossible
        return self.runs.log_mass(run) - Fraction(float(self.runs.sizes[run]))


#: Gaussian tails are summed up to this sigma, and this many sigmas far; beyond it an integral is as near.
MAX_SUMMED, FAR = 1000, 38


@dataclass(frozen=True)
class NamedNoise:
    """Numbers of private names with noise of one law, of which those that reach a threshold are shown.

    A name that one side alone has is hidden on that side, or the other side never makes the run. Noise without a radius
    keeps its guarantee though the hidden numbers of other names are seen, so runs compare these, too.

    Attributes:
        exact: the numbers by name.
        sampler: of the noise.
        size: as of `ShiftedNoise`.
        threshold: from which noisy number on a name is shown; None where all are.
        radius: of truncated noise.
    """

    exact: Mapping[Any, int]
    sampler: Literal["discrete_laplace", "discrete_gaussian", "truncated_laplace"]
    size: Fraction
    threshold: int | None = None
    radius: int | None = None

    def draw(self, source: Source, explores: bool) -> NamedNumbers:
        power = 2 if self.sampler == "discrete_gaussian" else 1
        size = self.size * (WIDER**power if explores else 1)
        radius = [] if self.radius is None else [self.radius]
        noise = REAL[self.sampler](size, *radius, len(self.exact), source).tolist()
        noisy = {name: n + x for (name, n), x in zip(self.exact.items(), noise, strict=True)}
        if self.radius is not None:
            noisy = {name: n for name, n in noisy.items() if self.shows(n)}
        return NamedNumbers(noisy, self)

    def shows(self, noisy: int) -> bool:
        """Whether the name of this number leaves."""
        return self.threshold is None or noisy >= self.threshold

    def log_mass(self, value: NamedNumbers) -> float:
        return math.fsum([*self._list_logs(value)])

    def _list_logs(self, value: NamedNumbers) -> Iterator[float]:
        for name, exact in self.exact.items():
            if name in value.noisy:
                yield self._log_weight(value.noisy[name] - exact)
            else:
                yield self.log_hidden(exact)
        for name in value.noisy.keys() - self.exact.keys():
            if self.shows(value.noisy[name]):
                raise Impossible
            # Here it is hidden for certain: what is left is its law on the other side, given that.
            exact = value.law.exact[name]
            yield value.law._log_weight(value.noisy[name] - exact) - value.law.log_hidden(exact)

    def _log_weight(self, noise: int) -> float:
        """Of a number that is followed; its normaliser is the same on both sides, which follow the same names."""
        if self.radius is not None and abs(noise) > self.radius:
            raise Impossible
        if self.sampler == "discrete_gaussian":
            return -(noise**2) / (2 * float(self.size))
        return -abs(noise) / float(self.size)

    def log_hidden(self, exact: int) -> float:
        """Of a number that noise leaves below the threshold."""
        if self.threshold is None:
            raise Impossible
        room = self.threshold - exact
        # The smaller of both tails has no rounding to hide it.
        if room > 0:
            return math.log1p(-self.tail(room))
        hidden = self.tail(1 - room)
        if hidden <= 0:
            raise Impossible
        return math.log(hidden)

    def tail(self, t: int) -> float:
        """Pr[X >= t] for t >= 1."""
        if self.sampler == "discrete_gaussian":
            return _gaussian_tail(self.size, t)
        rate = float(1 / self.size)
        if self.radius is None:
            return math.exp(-rate * t) / (1 + math.exp(-rate))
        if t > self.radius:
            return 0.0
        # (q^t - q^(k+1)) / (1 + q - 2 q^(k+1))
        above = math.exp(-rate * t) * -math.expm1(-rate * (self.radius + 1 - t))
        whole = -math.expm1(-rate * (self.radius + 1))
        return above / (whole - math.exp(-rate) * math.expm1(-rate * self.radius))


@dataclass(frozen=True)
class NamedNumbers:
    """Noisy numbers by name, and the law that they are of."""

    noisy: Mapping[Any, int]
    law: NamedNoise

    @property
    def shown(self) -> dict[Any, int]:
        """Those that leave."""
        return {name: n for name, n in self.noisy.items() if self.law.shows(n)}


def _gaussian_tail(sigma2: Fraction, t: int) -> float:
    if sigma2 > MAX_SUMMED**2:
        return math.erfc((t - 0.5) / math.sqrt(2 * float(sigma2))) / 2
    tails = _list_gaussian_tails(sigma2)
    return float(tails[t]) if t < len(tails) else 0.0


@lru_cache(maxsize=32)
def _list_gaussian_tails(sigma2: Fraction) -> NDArray[np.float64]:
    """Pr[X >= t] by t, from 0 on."""
    reach = math.ceil(FAR * math.sqrt(float(sigma2))) + 2
    weights = np.exp(-(np.arange(reach) ** 2.0) / (2 * float(sigma2)))
    tails: NDArray[np.float64] = np.cumsum(weights[::-1])[::-1]
    tails /= 2 * tails[0] - 1
    return tails


def aim_value(law: Any, other: Any, drawn: Any) -> list[Any]:
    """The number that loses most under the first law against the second one; none where these do not tell.

    Args:
        law, other: of one number on both sides.
        drawn: a number of the first law, which says how far out the other one lies.
    """
    if isinstance(law, ChoiceLaw) and isinstance(other, ChoiceLaw):
        is_same = len(law.logs) == len(other.logs)
        return [int(np.argmax(law.logs - other.logs))] if is_same else []
    if not (isinstance(law, ShiftedNoise) and isinstance(other, ShiftedNoise)):
        return []
    if law.exact.shape != other.exact.shape:
        return []
    # Beyond the one of both numbers that is its own.
    noise, apart = drawn - law.exact, law.exact - other.exact
    return [law.exact + np.where(apart == 0, noise, np.sign(apart) * np.abs(noise))]


def name_laws(laws: Sequence[Any], others: Sequence[Any]) -> Hashable | None:
    """A name of the laws of numbers on both sides: where it is the same, what each number loses has the same law. None
    of laws without one.
    """
    names = [_name_law(*pair) for pair in zip(laws, others, strict=True)]
    return None if None in names else tuple(names)


def _name_law(law: Any, other: Any) -> Hashable | None:
    if law is None and other is None:
        return ("shared",)
    if isinstance(law, ShiftedNoise) and isinstance(other, ShiftedNoise):
        if law.exact.shape != other.exact.shape or law.gaussian != other.gaussian:
            return None
        # Equal numbers lose nothing, and of others the distance alone counts.
        apart = [x for x in (law.exact - other.exact).tolist() if x]
        return law.gaussian, law.size, other.size, *sorted(apart)
    if isinstance(law, NamedNoise) and isinstance(other, NamedNoise):
        sides = [(one.sampler, one.size, one.threshold, one.radius) for one in (law, other)]
        names = law.exact.keys() | other.exact.keys()
        pairs = [(law.exact.get(name), other.exact.get(name)) for name in names]
        moved = sorted(repr((one, two)) for one, two in pairs if one != two)
        return *sides, *moved
    return None


def find_distance(name: Any) -> float | None:
    """By how many standard deviations Gaussian noise is shifted, where `name_laws` says that all noise is this; else
    None.
    """
    if name is None or not all(law[0] is True and law[1] == law[2] for law in name):
        return None
    return math.sqrt(math.fsum(sum(x * x for x in law[3:]) / float(law[1]) for law in name))


class Stretch:
    """A sparse vector between two answers "below": how probable each noise of its threshold is,
    after what was answered since.
    """

    def __init__(self, scale: Fraction) -> None:
        self.weights, self.left_out = _weigh_thresholds(scale), LEFT_OUT

    def split(self, difference: int, scale: Fraction) -> tuple[NDArray[Any], NDArray[Any]]:
        """How probable "below" and "above" are of a value so far above the threshold, by each noise of this."""
        reach = len(self.weights) // 2
        if abs(difference) > 2 * reach:
            return _split_noise(np.arange(-reach, reach + 1.0) - difference, scale)
        first = 2 * reach - difference
        below, above = _list_tails(reach, scale)
        return below[first : first + len(self.weights)], above[first : first + len(self.weights)]

    def keep(self, chances: NDArray[Any], mass: float) -> None:
        """Go on after an answer that has these chances, and this probability in all."""
        self.weights = self.weights * chances
        self.weights /= mass
        self.left_out /= mass


@lru_cache(maxsize=8)
def _weigh_thresholds(scale: Fraction) -> NDArray[np.float64]:
    reach = math.ceil(-math.log(LEFT_OUT) * float(scale))
    if 2 * reach > MOST_THRESHOLDS:
        raise Unfollowed("the noise of a threshold has too many values to sum over")
    weights: NDArray[np.float64] = np.exp(-np.abs(np.arange(-reach, reach + 1.0)) / float(scale))
    weights /= weights.sum()
    return weights


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
        self.sides = stretch.split(difference, scale)
        self.masses = [float(stretch.weights @ side) for side in self.sides]

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
        place = 0 if value else 1
        self.stretch.keep(self.sides[place], self.masses[place])


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
