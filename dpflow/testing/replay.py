"""The loss of whole runs: a run on one answer is replayed on its neighbour, number by number.

A guarantee by composition holds though every noisy number and every choice of a run is seen. So one
run is drawn, and each of its numbers (`dpflow.core.sampling.noisy_values`, the choices of
`dpflow.core.sampling.samplers`) is forced upon the neighbour. The logarithm of the ratio of both
probabilities is the run's loss, and it is known exactly, whatever the size of the domain. What
follows from the numbers follows on both sides: where the results differ, rows were told by another
way, and the loss is infinite.

Noise that must stay secret cannot be followed so (`Unfollowed`); then only results can be compared.
A sparse vector's threshold can: given what was answered before, the probability of each answer is a
sum over the threshold's noise.
Uniform draws that decide nothing by themselves (which shard, which order) are shared by both sides:
distributions that are close for each of their values are close.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpflow.core.sampling import noisy_values
from dpflow.core.sampling.randomness import RandomWords, Source, SystemSource
from dpflow.core.toolbox import quantiles, sparse_vector
from dpflow.testing import exact_divergence
from dpflow.testing.sampler_patches import REAL, replace_samplers

#: Makes what everybody sees, from the source that it is given.
Run = Callable[[Source], Hashable]

#: How much wider noise is drawn by a run that explores.
WIDER = 6
#: Choices whose law needs so many polynomials at most.
MOST_FLIPS = 30
#: Values of a threshold's noise that are summed over at most, and the mass that is left out.
MOST_THRESHOLDS, LEFT_OUT = 400_000, 1e-18
#: How much of an answer's probability the mass that is left out may be.
NEGLIGIBLE = 1e-9
#: Values of one number that a climb compares.
TRIES = 4


class Unfollowed(Exception):
    """The run draws noise that nobody may see, or as many numbers as rows say."""


class _Impossible(Exception):
    """The neighbour never makes this number."""


class _Enough(Exception):
    """The number that was asked for is drawn."""


@dataclass(frozen=True)
class _ShiftedNoise:
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
class _Choice:
    """One of some places, by the logarithms of their weights."""

    logs: NDArray[np.float64]

    def draw(self, source: Source, explores: bool) -> int:
        if explores:
            return source.draw_below(len(self.logs))
        weights = np.exp(self.logs - self.logs.max())
        at = int(np.searchsorted(np.cumsum(weights) / weights.sum(), _draw_unit(source)))
        return min(at, len(weights) - 1)

    def log_mass(self, value: int) -> float:
        if value >= len(self.logs):
            raise _Impossible
        return float(self.logs[value] - _log_sum(self.logs))


@dataclass(frozen=True)
class _Place:
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
        run = _Choice(self._log_weights()).draw(source, explores)
        return self.starts[run] + source.draw_below(self.lengths[run])

    def log_mass(self, value: int) -> float:
        for start, length, cost in zip(self.starts, self.lengths, self.costs):
            if start <= value < start + length:
                return float(-self.rate * cost - _log_sum(self._log_weights()))
        raise _Impossible


@dataclass(frozen=True)
class _LargeCounts:
    """Counts by name that noise of a bounded size lifts above a threshold."""

    counts: Mapping[Any, int]
    noise: Mapping[int, float]
    threshold: int

    def draw(self, source: Source, explores: bool) -> dict[Any, int]:
        values = list(self.noise)
        law = _Choice(np.log([self.noise[x] for x in values]))
        noisy = {name: n + values[law.draw(source, explores)] for name, n in self.counts.items()}
        return {name: n for name, n in noisy.items() if n > self.threshold}

    def log_mass(self, value: Mapping[Any, int]) -> float:
        if not value.keys() <= self.counts.keys():
            raise _Impossible
        total = 0.0
        for name, count in self.counts.items():
            mass = self.noise.get(value[name] - count, 0.0) if name in value else self._hide(count)
            if mass <= 0:
                raise _Impossible
            total += math.log(mass)
        return total

    def _hide(self, count: int) -> float:
        return math.fsum(p for x, p in self.noise.items() if count + x <= self.threshold)


class _Stretch:
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


class _Comparison:
    """Whether a value, so much above a threshold of which only answers are seen, is below it."""

    def __init__(self, stretch: _Stretch, difference: int, scale: Fraction) -> None:
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
            raise _Impossible
        return math.log(mass)

    def keep(self, value: bool) -> None:
        """Go on after this answer."""
        self.stretch.keep(self.parts[0 if value else 1])


class _Follower(Source):
    """A source whose noisy numbers are followed; noise is ``factor`` times weaker than asked for."""

    def __init__(self, factor: Fraction, explores: bool) -> None:
        self.factor, self.explores, self.logs = factor, explores, list[float]()
        self._fresh = SystemSource()
        self._stretches: dict[int, _Stretch] = {}

    def open_stretch(self, scale: Fraction) -> int:
        """A name for the secret noise of a threshold: another one on each side, so it is missed
        nowhere if a result shows it.
        """
        name = self._fresh.draw_bits(53)
        self._stretches[name] = _Stretch(scale / self.factor)
        return name

    def compare_value(self, difference: int, name: int, scale: Fraction) -> bool:
        """Whether a value, so much above that threshold, is below it."""
        law = _Comparison(self._stretches[name], difference, scale / self.factor)
        answer = bool(self.follow(law))
        law.keep(answer)
        return answer

    def follow(self, law: Any) -> Any:
        """The next number."""
        raise NotImplementedError

    def share(self, draw: Callable[[], Any], fit: Callable[[Any], Any]) -> Any:
        """A uniform draw that both sides have in common, as far as it fits both."""
        raise NotImplementedError

    def draw_words(self, n: int) -> RandomWords:
        """Refused: nobody says what they become."""
        raise Unfollowed("raw random words have no law")

    def draw_below(self, n: int) -> int:
        """A uniform choice, seen by everybody."""
        return int(self.follow(_Choice(np.zeros(n))) if n < 10**6 else self.follow(_Wide(n)))


@dataclass(frozen=True)
class _Wide:
    """A uniform integer below n."""

    n: int

    def draw(self, source: Source, explores: bool) -> int:
        return source.draw_below(self.n)

    def log_mass(self, value: int) -> float:
        if value >= self.n:
            raise _Impossible
        return -math.log(self.n)


class _Recording(_Follower):
    """Draws a run, after numbers that are given."""

    def __init__(
        self, factor: Fraction, explores: bool, given: Sequence[Any] | None = None
    ) -> None:
        super().__init__(factor, explores)
        self._given, self.values = given or [], list[Any]()
        self._most = math.inf if given is None else len(given) + 1

    def _take(self, draw: Callable[[], Any]) -> Any:
        at = len(self.values)
        if at >= self._most:
            raise _Enough
        self.values.append(self._given[at] if at < len(self._given) else draw())
        return self.values[-1]

    def follow(self, law: Any) -> Any:
        value = self._take(lambda: law.draw(self._fresh, self.explores))
        self.logs.append(law.log_mass(value))
        return value

    def share(self, draw: Callable[[], Any], fit: Callable[[Any], Any]) -> Any:
        self.logs.append(0.0)
        return self._take(draw).copy()


class _Replaying(_Follower):
    """Forces a drawn run."""

    def __init__(self, recorded: _Recording, is_whole: bool = True) -> None:
        super().__init__(recorded.factor, recorded.explores)
        self._left, self._is_whole = list(recorded.values), is_whole

    def _next(self) -> Any:
        if not self._left:
            raise _Impossible if self._is_whole else _Enough
        return self._left.pop(0)

    def follow(self, law: Any) -> Any:
        value = self._next()
        try:
            self.logs.append(law.log_mass(value))
        except (TypeError, AttributeError):  # another kind of number
            raise _Impossible from None
        return value

    def share(self, draw: Callable[[], Any], fit: Callable[[Any], Any]) -> Any:
        self.logs.append(0.0)
        return fit(self._next())

    @property
    def is_finished(self) -> bool:
        return not self._left


def draw_losses(
    first: Run,
    second: Run,
    most: int,
    seconds: float = math.inf,
    *,
    factor: Fraction | int = 1,
    explores: bool = False,
) -> NDArray[np.float64]:
    """Losses of runs on the first answer against the second; infinite where that one never makes
    the same.

    Args:
        first, second: runs on neighbouring answers.
        most: how many runs; at least one is made.
        seconds: CPU time after which no further one is.
        factor: how much weaker all noise is than asked for.
        explores: draw from everywhere, also what is improbable: it says how large a loss can be,
            and nothing of how often.

    Raises:
        Unfollowed: see the module.
    """
    end, losses = time.thread_time() + seconds, list[float]()
    with follow_samplers():
        while len(losses) < most and (not losses or time.thread_time() < end):
            losses.append(_draw_loss(first, second, Fraction(factor), explores))
    return np.array(losses)


def climb_losses(
    first: Run, second: Run, most: int, seconds: float, *, factor: Fraction | int = 1
) -> NDArray[np.float64]:
    """Losses of runs that are chosen number by number: of a few values of each the one that loses most.

    A run of many parts loses all that it may where each of them does, which no chance finds. Each is a
    possible run, and its loss is exact; how often it comes is not said. The arguments are those of
    `draw_losses`; fewer runs are made if time is over, and then perhaps none.
    """
    end, losses = time.thread_time() + seconds, list[float]()
    with follow_samplers():
        while len(losses) < most:
            loss = _climb_loss(first, second, Fraction(factor), end)
            if loss is None:
                break
            losses.append(loss)
    return np.array(losses)


def _climb_loss(first: Run, second: Run, factor: Fraction, end: float) -> float | None:
    given: list[Any] = []
    while True:
        best: tuple[float, Any] | None = None
        for _ in range(TRIES):
            if time.thread_time() > end:
                return None
            recorded = _Recording(factor, True, given)
            parts = _split_loss(first, second, recorded)
            if parts is None:
                return math.inf
            # The run ended before it asked for another number: this is all of it.
            if len(parts) == len(given):
                return math.fsum(parts)
            if best is None or parts[-1] > best[0]:
                best = parts[-1], recorded.values[-1]
        assert best is not None
        given.append(best[1])


def _draw_loss(first: Run, second: Run, factor: Fraction, explores: bool) -> float:
    parts = _split_loss(first, second, _Recording(factor, explores))
    return math.inf if parts is None else math.fsum(parts)


def _split_loss(first: Run, second: Run, recorded: _Recording) -> list[float] | None:
    """What each number of a run, or of its beginning, loses; None where the other side never makes
    the same.
    """
    is_whole, outcome = True, None
    try:
        outcome = first(recorded)
    except _Enough:
        is_whole = False
    replayed = _Replaying(recorded, is_whole)
    try:
        if second(replayed) != outcome or not replayed.is_finished:
            return None
    except _Impossible:
        return None
    except _Enough:
        pass
    return [one - other for one, other in zip(recorded.logs, replayed.logs, strict=True)]


def _follow_noise(gaussian: bool) -> Callable[..., Any]:
    def add_noise(exact: Any, size: Any, source: _Follower) -> Any:
        weaker = Fraction(size) / source.factor ** (2 if gaussian else 1)
        whole = isinstance(exact, np.ndarray)
        numbers = exact if whole else np.array([exact], object)
        value = source.follow(_ShiftedNoise(numbers, weaker, gaussian))
        return value.astype(np.int64) if whole else int(value[0])

    return add_noise


def _follow_large(
    names: Any, counts: Any, scale: Any, radius: int, threshold: int, source: _Follower
) -> Any:
    law = exact_divergence.truncated_laplace(Fraction(scale) / source.factor, radius)
    by_name = dict(zip(names.tolist(), counts.tolist(), strict=True))
    noisy_by_name = source.follow(_LargeCounts(by_name, law, threshold))
    indexes = [i for i, name in enumerate(names.tolist()) if name in noisy_by_name]
    noisy = [noisy_by_name[name] for name in names.tolist() if name in noisy_by_name]
    return np.array(indexes, np.int64), np.array(noisy, np.int64)


def _as_list(values: Any) -> list[int]:
    return [int(value) for value in values]


def _follow_place(starts: Any, lengths: Any, costs: Any, rate: Any, source: _Follower) -> int:
    penalties = np.array([float(cost) for cost in costs])
    law = _Place(
        _as_list(starts),
        _as_list(lengths),
        penalties - penalties.min(),
        float(rate * source.factor),
    )
    return int(source.follow(law))


def _follow_bands(window: Any, first: int, last: int, rate: Any, source: _Follower) -> int:
    starts, lengths, costs = window.equal_cost_runs(first, last)
    return _follow_place(starts, lengths, costs, rate, source)


def _follow_piece(lengths: Any, costs: Any, rate: Any, source: _Follower) -> int:
    sizes = np.array([float(length) for length in lengths])
    away = np.array([float(cost) for cost in costs])
    return int(source.follow(_Choice(np.log(sizes) - float(rate * source.factor) * away)))


def _follow_rows(costs: Any, rate: Any, source: _Follower) -> Any:
    return np.array(
        [_follow_piece([1] * len(row), row, rate, source) for row in np.asarray(costs).tolist()],
        np.int64,
    )


def _follow_flips(costs: Any, rate: Any, source: _Follower) -> int:
    if len(costs) > MOST_FLIPS:
        raise Unfollowed("the law of so many flips is not computed here")
    law = exact_divergence.permute_and_flip(_as_list(costs), rate * source.factor)
    return int(source.follow(_Choice(np.log([max(law[i], 1e-300) for i in range(len(costs))]))))


def _share_integers(n: int, size: int, source: _Follower) -> Any:
    def draw() -> Any:
        return REAL["uniform_integers"](n, size, SystemSource())

    # What the other side has more of, or less, stands at the end.
    return source.share(draw, lambda shared: np.append(shared[:size], draw()[len(shared) :]))


def _share_circle(n: int, source: _Follower) -> Any:
    def fit(circle: Any) -> Any:
        # A circle of one row less is the same one without its last row.
        for row in range(len(circle), n):
            circle = np.insert(circle, SystemSource().draw_below(len(circle) + 1), row)
        return circle[circle < n]

    return source.share(lambda: REAL["circular_order"](n, SystemSource()), fit)


def _refuse(*_: Any) -> Any:
    raise Unfollowed("this noise must stay secret")


_STAND_INS: dict[Any, Callable[..., Any]] = {
    sparse_vector._draw_threshold: lambda scale, source: source.open_stretch(scale),
    sparse_vector._is_below: lambda difference, noise, scale, source: source.compare_value(
        difference, noise, scale
    ),
    noisy_values.add_laplace: _follow_noise(False),
    noisy_values.add_gaussian: _follow_noise(True),
    noisy_values.show_large_counts: _follow_large,
    noisy_values.draw_place: _follow_place,
    quantiles._draw_from_bands: _follow_bands,
    REAL["choose_piece"]: _follow_piece,
    REAL["choose_rows"]: _follow_rows,
    REAL["permute_and_flip"]: _follow_flips,
    REAL["uniform_integers"]: _share_integers,
    REAL["circular_order"]: _share_circle,
} | {
    REAL[name]: _refuse
    for name in (
        "discrete_laplace",
        "discrete_gaussian",
        "truncated_laplace",
        "geometric",
        "bernoulli",
        "bernoulli_exp",
    )
}


_followed = False


@contextmanager
def follow_samplers() -> Iterator[None]:
    """Inside, `draw_losses` need not look for the modules that hold a sampler each time."""
    global _followed
    if _followed:
        yield
        return
    _followed = True
    try:
        with _stand_in():
            yield
    finally:
        _followed = False


@contextmanager
def _stand_in() -> Iterator[None]:
    def choose(real: Callable[..., Any], follow: Callable[..., Any]) -> Callable[..., Any]:
        # Other threads, and sources of its own, keep the real one.
        return lambda *args: (follow if isinstance(args[-1], _Follower) else real)(*args)

    with replace_samplers({real: choose(real, f) for real, f in _STAND_INS.items()}):
        yield


def _draw_unit(source: Source) -> float:
    return float(source.draw_bits(53)) * 2.0**-53


def _log_sum(logs: NDArray[np.float64]) -> float:
    top = logs.max()
    return float(top + np.log(np.exp(logs - top).sum()))
