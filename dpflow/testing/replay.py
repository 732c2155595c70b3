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
from abc import abstractmethod
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpflow.core.contract.declaration import Table
from dpflow.core.contract.mechanism import Mechanism
from dpflow.core.contract.requests import Answer, Groups, Sets
from dpflow.core.sampling import noisy_values
from dpflow.core.sampling.randomness import RandomWords, Source, SystemSource
from dpflow.core.toolbox import quantiles, sparse_vector
from dpflow.testing import exact_divergence
from dpflow.testing.outcomes import digest_outcome
from dpflow.testing.replay_laws import (
    ChoiceLaw,
    ComparisonLaw,
    Impossible,
    NamedNoise,
    Place,
    ShiftedNoise,
    Stretch,
    Unfollowed,
    Wide,
    aim_value,
    measure_shift,
)
from dpflow.testing.sampler_patches import REAL, replace_samplers
from dpflow.testing.work import add_work, spent

#: Makes what everybody sees, from the source that it is given.
Run = Callable[[Source], Hashable]

#: Choices among so many at most have a law that is computed here.
MOST_FLIPS = 512
#: Values of one number that a climb compares.
TRIES = 4


@dataclass(frozen=True, eq=False)
class DrawRun:
    """Draws of a one-shot mechanism on one answer: their digests."""

    mechanism: Mechanism[Any]
    params: Any
    table: Table
    answer: Answer

    def __call__(self, source: Source) -> str:
        return digest_outcome(self.mechanism.draw(self.params, self.table, self.answer, source))

    @property
    def keys(self) -> tuple[str, ...] | None:
        """Those that the answer's numbers belong to, in their order."""
        return self.answer.keys if isinstance(self.answer, Groups | Sets) else None


class _Enough(Exception):
    """The number that was asked for is drawn."""


@dataclass
class StatedPart:
    """What a run states about the numbers from one of them on, up to the next part.

    Attributes:
        first: the number of its first number in the run.
        epsilon, delta, moves: as `dpflow.core.sampling.randomness.Source.begin_part` has them.
        largest: by number of each Laplace noise: what it loses, as it is drawn, for that many moves.
    """

    first: int
    epsilon: Fraction
    delta: Fraction
    moves: int | None = None
    largest: dict[int, float] = field(default_factory=dict, compare=False)


class _Follower(Source):
    """A source whose noisy numbers are followed; noise is ``factor`` times weaker than asked for.

    ``has_places`` says that a place of an array belongs to the same key on both sides.
    """

    def __init__(self, factor: Fraction, explores: bool, has_places: bool = True) -> None:
        self.factor, self.explores, self.logs = factor, explores, list[float]()
        self.laws = list[Any]()
        self.has_places = has_places
        self._fresh = SystemSource()
        self._stretches: dict[int, Stretch] = {}
        self.parts = list[StatedPart]()

    def begin_part(
        self, epsilon: Fraction, delta: Fraction = Fraction(0), moves: int | None = None
    ) -> None:
        """Note which numbers belong to the part."""
        self.parts.append(StatedPart(len(self.logs), epsilon, delta, moves))

    def open_stretch(self, scale: Fraction) -> int:
        """A name for the secret noise of a threshold: another one on each side, so it is missed
        nowhere if a result shows it.
        """
        name = self._fresh.draw_bits(53)
        self._stretches[name] = Stretch(scale / self.factor)
        return name

    def compare_value(self, difference: int, name: int, scale: Fraction) -> bool:
        """Whether a value, so much above that threshold, is below it."""
        law = ComparisonLaw(self._stretches[name], difference, scale / self.factor)
        answer = bool(self.follow(law))
        law.keep(answer)
        return answer

    @abstractmethod
    def follow(self, law: Any) -> Any:
        """The next number."""

    @abstractmethod
    def share(self, draw: Callable[[], Any], fit: Callable[[Any], Any]) -> Any:
        """A uniform draw that both sides have in common, as far as it fits both."""

    def draw_words(self, n: int) -> RandomWords:
        """Refused: nobody says what they become."""
        raise Unfollowed("raw random words have no law")

    def draw_below(self, n: int) -> int:
        """A uniform choice, seen by everybody."""
        return int(self.follow(ChoiceLaw(np.zeros(n))) if n < 10**6 else self.follow(Wide(n)))


class _Recording(_Follower):
    """Draws a run, after numbers that are given; it ends where it asks for more than ``most``."""

    def __init__(
        self,
        factor: Fraction,
        explores: bool,
        has_places: bool = True,
        given: Sequence[Any] = (),
        most: float = math.inf,
    ) -> None:
        super().__init__(factor, explores, has_places)
        self._given, self.values, self._most = given, list[Any](), most
        self.is_whole = True

    def _take(self, draw: Callable[[], Any]) -> Any:
        at = len(self.values)
        if at >= self._most:
            raise _Enough
        self.values.append(self._given[at] if at < len(self._given) else draw())
        return self.values[-1]

    def follow(self, law: Any) -> Any:
        value = self._take(lambda: law.draw(self._fresh, self.explores))
        add_work(1 + np.size(value) / 8)
        self.logs.append(law.log_mass(value))
        self.laws.append(law)
        return value

    def share(self, draw: Callable[[], Any], fit: Callable[[Any], Any]) -> Any:
        # Before it is noted: a run that ends here had no such number.
        value = self._take(draw)
        self.logs.append(0.0)
        self.laws.append(None)
        return value.copy()


class _Replaying(_Follower):
    """Forces a drawn run."""

    def __init__(self, recorded: _Recording, is_whole: bool = True) -> None:
        super().__init__(recorded.factor, recorded.explores, recorded.has_places)
        self._left, self._is_whole = list(recorded.values), is_whole

    def _next(self) -> Any:
        if not self._left:
            raise Impossible if self._is_whole else _Enough
        return self._left.pop(0)

    def follow(self, law: Any) -> Any:
        value = self._next()
        add_work(1 + np.size(value) / 8)
        try:
            self.logs.append(law.log_mass(value))
        except (TypeError, AttributeError):  # another kind of number
            raise Impossible from None
        self.laws.append(law)
        return value

    def share(self, draw: Callable[[], Any], fit: Callable[[Any], Any]) -> Any:
        value = self._next()
        self.logs.append(0.0)
        self.laws.append(None)
        return fit(value)

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
    end, losses = spent() + seconds, list[float]()
    with follow_samplers():
        while len(losses) < most and (not losses or spent() < end):
            losses.append(_draw_loss(first, second, Fraction(factor), explores))
    return np.array(losses)


def find_gaussian_distance(first: Run, second: Run, number: int) -> float | None:
    """How many standard deviations Gaussian noise is shifted by in each of so many runs; infinite where the other side
    never makes one of them. None where it has other noise, or is shifted in another way in some run.
    """
    distances = set[float]()
    with follow_samplers():
        for _ in range(number):
            recorded = _Recording(Fraction(1), False, _has_places(first, second))
            try:
                replayed = _replay_run(first, second, recorded)
            except Impossible:
                return math.inf
            parts = [measure_shift(*laws) for laws in zip(recorded.laws, replayed.laws)]
            distances.add(-1.0 if None in parts else math.sqrt(math.fsum(filter(None, parts))))
            if len(distances) > 1 or -1.0 in distances:
                return None
    return distances.pop()


def climb_losses(
    first: Run, second: Run, most: int, seconds: float, *, factor: Fraction | int = 1
) -> NDArray[np.float64]:
    """Losses of runs that are chosen number by number: of a few values of each the one that loses most.

    A run of many parts loses all that it may where each of them does, which no chance finds. Each is a
    possible run, and its loss is exact; how often it comes is not said. The arguments are those of
    `draw_losses`; fewer runs are made if time is over, and then perhaps none.
    """
    end, losses = spent() + seconds, list[float]()
    with follow_samplers(), suppress(_TimeIsOver):
        while len(losses) < most:
            losses.append(_climb_loss(first, second, Fraction(factor), end))
    return np.array(losses)


def climb_both_ways(first: Run, second: Run, seconds: float) -> float | None:
    """The largest loss of a run on either side against the other, chosen as by `climb_losses`; None where time is over
    before. What is tried of the first number says what it loses in both directions.
    """
    end = spent() + seconds
    with follow_samplers(), suppress(_TimeIsOver):
        try:
            own = [*_try_number(first, second, Fraction(1), (), TRIES // 2, end)]
            own += map(_turn, _try_number(second, first, Fraction(1), (), TRIES // 2, end))
        except Impossible:
            return math.inf
        return max(
            _climb_loss(first, second, Fraction(1), end, own),
            _climb_loss(second, first, Fraction(1), end, [*map(_turn, own)]),
        )
    return None


class _TimeIsOver(Exception):
    """A climb was not finished."""


@dataclass(frozen=True)
class _Try:
    """A run up to a number that was tried.

    Attributes:
        values, losses: its numbers, and what each loses.
        laws: of each number on either side.
        is_whole: whether the run asked for no further number.
    """

    values: Sequence[Any]
    losses: Sequence[float]
    laws: tuple[Sequence[Any], Sequence[Any]]
    is_whole: bool


def _turn(one: _Try) -> _Try:
    """The same run on the other side."""
    return _Try(one.values, [-loss for loss in one.losses], one.laws[::-1], one.is_whole)


def _climb_loss(
    first: Run, second: Run, factor: Fraction, end: float, tries: Sequence[_Try] = ()
) -> float:
    """The loss of a run that goes on after the one of these that loses most."""
    best: _Try | None = None
    try:
        while best is None or not best.is_whole:
            given = best.values if best is not None else ()
            tries = tries or [*_try_number(first, second, factor, given, TRIES, end)]
            best, tries = max(tries, key=lambda one: math.fsum(one.losses)), ()
    except Impossible:
        return math.inf
    return math.fsum(best.losses)


def _try_number(
    first: Run, second: Run, factor: Fraction, given: Sequence[Any], number: int, end: float
) -> Iterator[_Try]:
    """Runs with these numbers and another one each: drawn from everywhere, and the one that loses most where laws
    know it. Raises `Impossible` where the other side never makes one of them, and `_TimeIsOver`.
    """
    aims: list[Any] = []
    for turn in range(number):
        # Asking the clock takes as long as a small run.
        if turn % TRIES == 0 and spent() > end:
            raise _TimeIsOver
        values = [*given, *aims] if turn == 1 else given
        recorded = _Recording(factor, True, _has_places(first, second), values, len(given) + 1)
        replayed = _replay_run(first, second, recorded)
        losses = _list_losses(recorded, replayed)
        laws = recorded.laws, replayed.laws
        yield _Try(recorded.values, losses, laws, recorded.is_whole)
        # It asked for no other number, so there is none to try.
        if len(losses) == len(given):
            return
        if turn == 0:
            aims = aim_value(laws[0][-1], laws[1][-1], recorded.values[-1])


@dataclass(frozen=True)
class PartLosses:
    """A run, part by part.

    Attributes:
        parts: all that the run stated.
        losses: of those that its neighbour began, too; where few tables show it, for as many moves as
            the part states. Infinite for the last one if the neighbour never draws the same there, or
            states another cost.
        before: the largest loss of a number drawn before the first part.
    """

    parts: list[StatedPart]
    losses: list[float]
    before: float


def draw_part_losses(
    first: Run, second: Run, *, factor: Fraction | int = 1, explores: bool = False
) -> PartLosses:
    """What each part of one run loses against the second answer, given all parts before it.

    The arguments are those of `draw_losses`. Raises `Unfollowed`.
    """
    with follow_samplers():
        recorded = _Recording(Fraction(factor), explores, _has_places(first, second))
        outcome = first(recorded)
        replayed, is_same = _Replaying(recorded), False
        # What is forced upon the neighbour before it parts from the run is comparable.
        with suppress(Impossible):
            is_same = second(replayed) == outcome and replayed.is_finished
    common = len(replayed.logs)
    by_number = [a - b for a, b in zip(recorded.logs[:common], replayed.logs, strict=True)]
    parts, others = recorded.parts, replayed.parts
    is_same = is_same and parts == others
    starts = [*(part.first for part in parts), len(recorded.logs)]
    before = [abs(loss) for loss in by_number[: starts[0]]]
    if common < starts[0]:
        before.append(math.inf)
    losses = list[float]()
    for index, (part, end) in enumerate(zip(parts, starts[1:], strict=True)):
        if part.first > common:
            break
        # The neighbour may part from the run after all numbers: then the last part told it.
        is_last = end > common or index + 1 == len(parts)
        if parts[index : index + 1] != others[index : index + 1] or (is_last and not is_same):
            losses.append(math.inf)
            break
        numbers = range(part.first, end)
        losses.append(math.fsum(max(by_number[n], part.largest.get(n, -math.inf)) for n in numbers))
    return PartLosses(parts, losses, max(before, default=0.0))


def _draw_loss(first: Run, second: Run, factor: Fraction, explores: bool) -> float:
    recorded = _Recording(factor, explores, _has_places(first, second))
    try:
        return math.fsum(_list_losses(recorded, _replay_run(first, second, recorded)))
    except Impossible:
        return math.inf


def _replay_run(first: Run, second: Run, recorded: _Recording) -> _Replaying:
    """Draw a run, or its beginning, and force it upon the other side. Raises `Impossible` where that one never makes
    the same.
    """
    outcome = None
    try:
        outcome = first(recorded)
    except _Enough:
        recorded.is_whole = False
    replayed = _Replaying(recorded, recorded.is_whole)
    with suppress(_Enough):
        if second(replayed) != outcome or not replayed.is_finished:
            raise Impossible
    return replayed


def _list_losses(recorded: _Recording, replayed: _Replaying) -> list[float]:
    """What each number loses."""
    return [one - other for one, other in zip(recorded.logs, replayed.logs, strict=True)]


def _has_places(first: Run, second: Run) -> bool:
    return getattr(first, "keys", None) == getattr(second, "keys", None)


def _follow_noise(gaussian: bool) -> Callable[..., Any]:
    def add_noise(exact: Any, size: Any, source: _Follower) -> Any:
        weaker = Fraction(size) / source.factor ** (2 if gaussian else 1)
        whole = isinstance(exact, np.ndarray)
        if whole and not source.has_places:
            raise Unfollowed(
                "the places of numbers follow private keys: give them names (`Noise.show_from`)"
            )
        numbers = exact if whole else np.array([exact], object)
        part = source.parts[-1] if source.parts else None
        if part is not None and part.moves is not None and not gaussian:
            part.largest[len(source.logs)] = float(part.moves / weaker)
        value = source.follow(ShiftedNoise(numbers, weaker, gaussian))
        return value.astype(np.int64) if whole else int(value[0])

    return add_noise


def _follow_named(gaussian: bool) -> Callable[..., Any]:
    sampler: Any = "discrete_gaussian" if gaussian else "discrete_laplace"

    def show(names: Any, exact: Any, size: Any, threshold: int | None, source: _Follower) -> Any:
        weaker = Fraction(size) / source.factor ** (2 if gaussian else 1)
        law = NamedNoise(_by_name(names, exact), sampler, weaker, threshold)
        return _show_named(names, source.follow(law).shown, sorted)

    return show


def _follow_large(
    names: Any, counts: Any, scale: Any, radius: int, threshold: int, source: _Follower
) -> Any:
    weaker = Fraction(scale) / source.factor
    exact = _by_name(names, counts)
    law = NamedNoise(exact, "truncated_laplace", weaker, threshold + 1, radius)
    return _show_named(names, source.follow(law).shown, list)


def _by_name(names: Any, exact: Any) -> dict[Any, int]:
    return dict(zip(names, _as_list(exact), strict=True))


def _show_named(names: Any, noisy: Mapping[Any, int], order: Callable[..., list[Any]]) -> Any:
    """Places of shown names, and their noisy numbers."""
    places = {name: place for place, name in enumerate(names)}
    shown = order([name for name in places if name in noisy])
    chosen = np.array([places[name] for name in shown], np.intp)
    return chosen, np.array([noisy[name] for name in shown], np.int64)


def _as_list(values: Any) -> list[int]:
    return [int(value) for value in values]


def _follow_place(starts: Any, lengths: Any, costs: Any, rate: Any, source: _Follower) -> int:
    penalties = np.array([float(cost) for cost in costs])
    law = Place(
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
    return int(source.follow(ChoiceLaw(np.log(sizes) - float(rate * source.factor) * away)))


def _follow_rows(costs: Any, rate: Any, source: _Follower) -> Any:
    return np.array(
        [_follow_piece([1] * len(row), row, rate, source) for row in np.asarray(costs).tolist()],
        np.int64,
    )


def _follow_flips(costs: Any, rate: Any, source: _Follower) -> int:
    if len(costs) > MOST_FLIPS:
        raise Unfollowed("the law of so many flips is not computed here")
    add_work(len(costs) ** 2 / 1000)
    law = exact_divergence.permute_and_flip(_as_list(costs), rate * source.factor)
    return int(source.follow(ChoiceLaw(np.log([max(law[i], 1e-300) for i in range(len(costs))]))))


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
    noisy_values.show_laplace: _follow_named(False),
    noisy_values.show_gaussian: _follow_named(True),
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
        with _follow_samplers():
            yield
    finally:
        _followed = False


@contextmanager
def _follow_samplers() -> Iterator[None]:
    def choose(real: Callable[..., Any], follow: Callable[..., Any]) -> Callable[..., Any]:
        # Other threads, and sources of its own, keep the real one.
        return lambda *args: (follow if isinstance(args[-1], _Follower) else real)(*args)

    with replace_samplers({real: choose(real, f) for real, f in _STAND_INS.items()}):
        yield
