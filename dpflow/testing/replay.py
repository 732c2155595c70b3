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
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpflow.core.contract.declaration import Table
from dpflow.core.contract.mechanism import Mechanism
from dpflow.core.contract.requests import Answer, Groups, Sets
from dpflow.core.sampling.randomness import Source, SystemSource
from dpflow.testing.outcomes import digest_outcome
from dpflow.testing.replay_laws import (
    Impossible,
    aim_value,
    name_laws,
)
from dpflow.testing.replay_samplers import follow_samplers
from dpflow.testing.replay_sources import Enough, Recording, Replaying, StatedPart
from dpflow.testing.work import add_work, spent

#: Makes what everybody sees, from the source that it is given.
Run = Callable[[Source], Hashable]

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


def draw_losses(
    first: Run,
    second: Run,
    most: int,
    work: float = math.inf,
    *,
    factor: Fraction | int = 1,
    explores: bool = False,
) -> NDArray[np.float64]:
    """Losses of runs on the first answer against the second; infinite where that one never makes
    the same.

    Args:
        first, second: runs on neighbouring answers.
        most: how many runs; at least one is made.
        work: work after which no further one is.
        factor: how much weaker all noise is than asked for.
        explores: draw from everywhere, also what is improbable: it says how large a loss can be,
            and nothing of how often.

    Raises:
        Unfollowed: see the module.
    """
    end, losses = spent() + work, list[float]()
    with follow_samplers():
        while len(losses) < most and (not losses or spent() < end):
            losses.append(_draw_loss(first, second, Fraction(factor), explores))
    return np.array(losses)


def compare_laws(
    first: Run, second: Run, number: int
) -> tuple[NDArray[np.float64], Hashable | None]:
    """Losses of so many runs, and a name of the laws of their numbers on both sides: where it is the same, losses have
    the same law. None where runs differ in it, the other side never makes one, or the laws have no name.
    """
    losses, names = list[float](), set[Hashable]()
    with follow_samplers():
        for _ in range(number):
            recorded = Recording(Fraction(1), False, _has_places(first, second))
            try:
                replayed = _replay_run(first, second, recorded)
            except Impossible:
                losses.append(math.inf)
                names.add(None)
                continue
            losses.append(math.fsum(_list_losses(recorded, replayed)))
            names.add(name_laws(recorded.laws, replayed.laws))
    return np.array(losses), names.pop() if len(names) == 1 else None


def climb_losses(
    first: Run, second: Run, most: int, work: float, *, factor: Fraction | int = 1
) -> NDArray[np.float64]:
    """Losses of runs that are chosen number by number: of a few values of each the one that loses most.

    A run of many parts loses all that it may where each of them does, which no chance finds. Each is a
    possible run, and its loss is exact; how often it comes is not said. The arguments are those of
    `draw_losses`; fewer runs are made if work is over, and then perhaps none.
    """
    end, losses = spent() + work, list[float]()
    with follow_samplers(), suppress(_WorkIsOver):
        while len(losses) < most:
            losses.append(_climb_loss(first, second, Fraction(factor), end))
    return np.array(losses)


def climb_both_ways(
    first: Run, second: Run, work: float, known: dict[Hashable, float]
) -> float | None:
    """The largest loss of a run on either side against the other, chosen as by `climb_losses`; None where work is over
    before. What is tried of the first number says what it loses in both directions. ``known`` are losses by the laws of
    single numbers: what has the same laws loses the same.
    """
    end = spent() + work
    with follow_samplers(), suppress(_WorkIsOver):
        try:
            own = _try_number(first, second, Fraction(1), (), TRIES // 2, end)
            others = _try_number(second, first, Fraction(1), (), TRIES // 2, end)
        except Impossible:
            return math.inf
        laws = None if others[0].laws is None else own[0].laws
        if laws in known:
            return known[laws]
        worst = max(
            _climb_loss(first, second, Fraction(1), end, [*own, *map(_Try.turn, others)]),
            _climb_loss(second, first, Fraction(1), end, [*others, *map(_Try.turn, own)]),
        )
        if laws is not None:
            known[laws] = worst
        return worst
    return None


class _WorkIsOver(Exception):
    """A climb was not finished."""


@dataclass(frozen=True)
class _Try:
    """A run up to a number that was tried.

    Attributes:
        values, losses: its numbers, and what each loses.
        is_whole: whether the run is known to ask for no further number.
        laws: a name of the laws of its numbers (`dpflow.testing.replay_laws.name_laws`), where it is whole.
    """

    values: Sequence[Any]
    losses: Sequence[float]
    is_whole: bool = False
    laws: Hashable | None = None

    def turn(self) -> _Try:
        """The same run on the other side."""
        return _Try(self.values, [-loss for loss in self.losses], self.is_whole)


def _climb_loss(
    first: Run, second: Run, factor: Fraction, end: float, tries: Sequence[_Try] = ()
) -> float:
    """The loss of a run that goes on after the one of these that loses most."""
    best: _Try | None = None
    try:
        while best is None or not best.is_whole:
            given = best.values if best is not None else ()
            tries = tries or _try_number(first, second, factor, given, TRIES, end)
            best, tries = max(tries, key=lambda one: math.fsum(one.losses)), ()
    except Impossible:
        return math.inf
    return math.fsum(best.losses)


def _try_number(
    first: Run, second: Run, factor: Fraction, given: Sequence[Any], number: int, end: float
) -> list[_Try]:
    """Runs with these numbers and another one each: drawn from everywhere, and the one that loses most where laws
    know it. One run asks for the number on both sides; its laws there say what every other one loses. Raises
    `Impossible` where the other side never makes one of them, and `_WorkIsOver`.
    """
    if spent() >= end:
        raise _WorkIsOver
    recorded = Recording(factor, True, _has_places(first, second), given, len(given) + 1)
    replayed = _replay_run(first, second, recorded)
    losses = _list_losses(recorded, replayed)
    laws = name_laws(recorded.laws, replayed.laws) if recorded.is_whole else None
    tries = [_Try(recorded.values, losses, recorded.is_whole, laws)]
    law, other = recorded.laws[-1:], replayed.laws[-1:]
    # It asked for no other number, or for one that both sides share: there is none to try.
    if len(losses) == len(given) or law == [None]:
        return tries
    before, drawn = recorded.values[:-1], recorded.values[-1]
    aims = aim_value(law[0], other[0], drawn)
    others = [*aims, *(law[0].draw(SystemSource(), True) for _ in range(number - 1 - len(aims)))]
    for value in others:
        add_work(1 + np.size(value) / 8)
        loss = law[0].log_mass(value) - other[0].log_mass(value)
        tries.append(_Try([*before, value], [*losses[:-1], loss]))
    return tries


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
        recorded = Recording(Fraction(factor), explores, _has_places(first, second))
        outcome = first(recorded)
        replayed, is_same = Replaying(recorded), False
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
    recorded = Recording(factor, explores, _has_places(first, second))
    try:
        return math.fsum(_list_losses(recorded, _replay_run(first, second, recorded)))
    except Impossible:
        return math.inf


def _replay_run(first: Run, second: Run, recorded: Recording) -> Replaying:
    """Draw a run, or its beginning, and force it upon the other side. Raises `Impossible` where that one never makes
    the same.
    """
    outcome = None
    try:
        outcome = first(recorded)
    except Enough:
        recorded.is_whole = False
    replayed = Replaying(recorded, recorded.is_whole)
    with suppress(Enough):
        if second(replayed) != outcome or not replayed.is_finished:
            raise Impossible
    return replayed


def _list_losses(recorded: Recording, replayed: Replaying) -> list[float]:
    """What each number loses."""
    return [one - other for one, other in zip(recorded.logs, replayed.logs, strict=True)]


def _has_places(first: Run, second: Run) -> bool:
    return getattr(first, "keys", None) == getattr(second, "keys", None)
