"""The loss of whole runs: a run on one answer is replayed on its neighbour, number by number.

A guarantee by composition holds though every noisy number and every choice of a run is seen. So one
run is drawn, and each of its numbers (`dpflow.core.sampling.noisy_values`, the choices of
`dpflow.core.sampling.samplers`) is forced upon the neighbour. The logarithm of the ratio of both
probabilities is the run's loss, and it is known exactly, whatever the size of the domain. What
follows from the numbers follows on both sides: where the results differ, rows were told by another
way, and the loss is infinite.

Noise that must stay secret cannot be followed so (`Unfollowed`); then only results can be compared.
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
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpflow.core.sampling import noisy_values
from dpflow.core.sampling.randomness import RandomWords, Source, SystemSource
from dpflow.core.toolbox import quantiles
from dpflow.testing import exact_divergence
from dpflow.testing.sampler_patches import REAL, replace_samplers

#: Makes what everybody sees, from the source that it is given.
Run = Callable[[Source], Hashable]

#: How much wider noise is drawn by a run that explores.
WIDER = 6
#: Choices whose law needs so many polynomials at most.
MOST_FLIPS = 30


class Unfollowed(Exception):
    """The run draws noise that nobody may see, or as many numbers as rows say."""


class _Impossible(Exception):
    """The neighbour never makes this number."""


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


class _Follower(Source):
    """A source whose noisy numbers are followed; noise is ``factor`` times weaker than asked for."""

    def __init__(self, factor: Fraction, explores: bool) -> None:
        self.factor, self.explores, self.log = factor, explores, 0.0
        self._fresh = SystemSource()

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
    """Draws a run."""

    def __init__(self, factor: Fraction, explores: bool) -> None:
        super().__init__(factor, explores)
        self.values: list[Any] = []

    def follow(self, law: Any) -> Any:
        value = law.draw(self._fresh, self.explores)
        self.log += law.log_mass(value)
        self.values.append(value)
        return value

    def share(self, draw: Callable[[], Any], fit: Callable[[Any], Any]) -> Any:
        self.values.append(draw())
        return self.values[-1].copy()


class _Replaying(_Follower):
    """Forces a drawn run."""

    def __init__(self, recorded: _Recording) -> None:
        super().__init__(recorded.factor, recorded.explores)
        self._left = list(recorded.values)

    def _next(self) -> Any:
        if not self._left:
            raise _Impossible
        return self._left.pop(0)

    def follow(self, law: Any) -> Any:
        value = self._next()
        try:
            self.log += law.log_mass(value)
        except (TypeError, AttributeError):  # another kind of number
            raise _Impossible from None
        return value

    def share(self, draw: Callable[[], Any], fit: Callable[[Any], Any]) -> Any:
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


def _draw_loss(first: Run, second: Run, factor: Fraction, explores: bool) -> float:
    recorded = _Recording(factor, explores)
    outcome = first(recorded)
    replayed = _Replaying(recorded)
    try:
        same = second(replayed) == outcome
    except _Impossible:
        return math.inf
    return recorded.log - replayed.log if same and replayed.is_finished else math.inf


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
