"""The audit of a mechanism by replayed runs (`dpflow.testing.replay`): all that its guarantee lets
be seen is compared, on neighbours of any size.

For a pure guarantee one possible run whose loss is above epsilon refutes it. With a delta the mean
of max(0, 1 - e^(epsilon - loss)) over drawn runs is the least delta that holds at epsilon; an
empirical Bernstein bound (Maurer, Pontil 2009) says how far a mean of so many runs may be off.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpflow.core.contract.interactive import InteractiveMechanism
from dpflow.errors import InvalidInput
from dpflow.testing.audit import RARE, clopper_pearson
from dpflow.testing.exact_divergence import gaussian_delta
from dpflow.testing.examples import (
    AnyMechanism,
    Example,
    plan_mechanism,
)
from dpflow.testing.harness import epsilon_delta
from dpflow.testing.release_checks import list_pairs
from dpflow.testing.replay import DrawRun, Run, climb_losses, compare_laws, draw_losses
from dpflow.testing.replay_laws import Unfollowed, find_distance
from dpflow.testing.replay_samplers import follow_samplers
from dpflow.testing.session_checks import Game, MemorySession, Pick, list_games, neighbouring_sides
from dpflow.testing.work import counts_work, spent

#: Runs that choose a pair of neighbours, and that judge it.
FEW, MOST = 40, 20_000
#: Runs that are chosen number by number: when all of them refute, the next ones do, too.
CLIMBS = 10
#: Confidence of a measured loss; a refutation needs `RARE`.
CONFIDENCE = 0.99
#: How surely an audit that sees something would see it again, and how rarely the estimate of that is too high.
POWER, MISS = 0.99, 1e-3
#: What sums of logarithms may be off.
ROUNDING = 1e-6
#: Runs with a delta: few in either direction that show which laws their noise has. Where all is Gaussian and shifted
#: alike, these say what they need; else some, and then more, of which this may be seen, once for the same laws. Many
#: where they need so much more than is stated.
FEW_RUNS, SOME_RUNS, MORE_RUNS, MANY_RUNS, SLIGHT, SUSPICIOUS = 6, 30, 300, 3_000, 0.01, 0.05
#: More noise than its own shows a wrong delta worse.
EPSILON = "4"


@dataclass(frozen=True)
class ReplayedRuns:
    """What the runs of one example say.

    Attributes:
        example: its parameters are those that were audited.
        epsilon, delta: the guarantee.
        epsilon_found: the loss at delta is at least this.
        passed: whether the guarantee is not refuted.
        runs: in the direction that shows more.
        losses: of these runs, for a profile.
        place: which pair of neighbours it was.
        climbs: so many of these runs, the last, were chosen number by number.
    """

    example: Example
    epsilon: float
    delta: float
    epsilon_found: float
    passed: bool
    runs: int
    losses: NDArray[np.float64] = field(repr=False)
    place: int = 0
    climbs: int = 0

    @property
    def share(self) -> float:
        """How much of the stated epsilon was found."""
        return self.epsilon_found / self.epsilon if self.epsilon else 0.0

    @property
    def excess(self) -> float:
        """By how much the runs seem to need a larger delta at epsilon."""
        return bound_delta(self.losses, self.epsilon, 0.5)[1] - self.delta

    def delta_at(self, epsilon: float) -> float:
        """A lower bound of the least delta at this epsilon."""
        return max(0.0, bound_delta(self.losses, epsilon, 1 - CONFIDENCE)[0])


@counts_work
def replay_examples(
    mechanism: AnyMechanism, examples: Sequence[Example], work: float
) -> ReplayedRuns | None:
    """Audit the example and pair of neighbours that shows most; None where none can be followed."""
    with follow_samplers():
        return _replay_examples(mechanism, examples, work)


def _replay_examples(
    mechanism: AnyMechanism, examples: Sequence[Example], work: float
) -> ReplayedRuns | None:
    begun, best, most = spent(), None, -math.inf
    candidates = [*_widen(mechanism, examples)]
    for number, example in enumerate(candidates):
        # Each example gets its part of what is left of the time that chooses.
        left = begun + work / 2 - spent()
        end = spent() + left / (len(candidates) - number)
        listed = list_runs(mechanism, example)
        for index, runs in enumerate(listed):
            budget = (end - spent()) / (len(listed) - index)
            if budget <= 0 and best is not None:
                break
            with suppress(Unfollowed):
                # Weaker noise shows sooner which neighbours are far apart.
                trial = _judge(mechanism, example, index, runs, FEW, budget, factor=2)
                score = trial.excess if trial.delta else trial.share / 2
                if score > most:
                    best, most = trial, score
    if best is None:
        return None
    return replay_pair(mechanism, best, 1, begun + work - spent())


@counts_work
def replay_pair(
    mechanism: AnyMechanism, chosen: ReplayedRuns, factor: int, work: float
) -> ReplayedRuns:
    """The chosen pair once more, with noise that is so many times weaker."""
    runs = list_runs(mechanism, chosen.example)[chosen.place]
    return _judge(mechanism, chosen.example, chosen.place, runs, MOST, work, factor)


def estimate_power(replayed: ReplayedRuns) -> float:
    """How surely as many runs as these refute the guarantee again, at least."""
    n = replayed.runs
    if not replayed.delta:
        drawn = n - replayed.climbs
        both = replayed.losses[:drawn], replayed.losses[drawn:]
        return max(estimate_hit(losses, replayed.epsilon) for losses in both)
    low = bound_delta(replayed.losses, replayed.epsilon, MISS)[0]
    # The true deviation is at most this (Maurer, Pontil 2009, theorem 10), and so is the next one,
    # but for the misses; the next bound lies so far below the next mean.
    parts = np.maximum(0.0, -np.expm1(replayed.epsilon - replayed.losses))
    wide = float(parts.std(ddof=1)) + 2 * math.sqrt(2 * math.log(1 / MISS) / (n - 1))
    log = math.log(2 / RARE)
    spare = low - replayed.delta - wide * math.sqrt(2 * log / n) - 7 * log / (3 * (n - 1))
    if spare <= 0:
        return 0.0
    # Bernstein: how probable it is that the next mean falls so far.
    fall = math.exp(-n * spare**2 / (2 * wide**2 + 2 * spare / 3))
    return max(0.0, 1 - 3 * MISS - fall)


def estimate_hit(losses: NDArray[np.float64], epsilon: float) -> float:
    """How surely one of as many runs loses more than epsilon, at least."""
    if not losses.size:
        return 0.0
    hits = int((losses > epsilon + ROUNDING).sum())
    rate = float(clopper_pearson(np.array([hits]), losses.size, MISS)[0][0])
    return (1 - MISS) * (1 - (1 - rate) ** losses.size)


def list_runs(mechanism: AnyMechanism, example: Example) -> list[tuple[Run, Run]]:
    """Runs on both sides of each pair of neighbours, and the same with the sides exchanged."""
    params, _ = plan_mechanism(mechanism, example.table, example.params)
    pairs: list[tuple[Run, Run]] = []
    if isinstance(mechanism, InteractiveMechanism):

        def bind_side(pick: Pick, game: Game | None) -> Run:
            return lambda source: MemorySession(mechanism, example, source).transcript(pick, game)

        for first, second in neighbouring_sides(mechanism, example):
            for game in [None, *list_games(len(example.queries))]:
                pairs.append((bind_side(first, game), bind_side(second, game)))
    else:
        request = mechanism.data_request(params, example.table)

        for one, other in list_pairs(request, example, edges=True):
            first, second = (
                DrawRun(mechanism, params, example.table, answer) for answer in (one, other)
            )
            pairs.append((first, second))
    return [side for one, other in pairs for side in ((one, other), (other, one))]


def _widen(mechanism: AnyMechanism, examples: Sequence[Example]) -> Iterator[Example]:
    """The examples; one with a delta at an epsilon, too, where losses above it are frequent."""
    for example in examples:
        yield example
        event = plan_mechanism(mechanism, example.table, example.params)[1]
        raw: Mapping[str, Any] = {**example.params, "epsilon": EPSILON}
        if epsilon_delta(event)[1] and "epsilon" in mechanism.Params.model_fields:
            with suppress(InvalidInput):
                plan_mechanism(mechanism, example.table, raw)
                yield replace(example, params=raw)


def _judge(
    mechanism: AnyMechanism,
    example: Example,
    place: int,
    runs: tuple[Run, Run],
    most: int,
    work: float,
    factor: int = 1,
) -> ReplayedRuns:
    epsilon, delta = epsilon_delta(plan_mechanism(mechanism, example.table, example.params)[1])
    # Of a pure guarantee any possible run will do, so half of them look at improbable ones.
    # What chance finds at all it finds soon.
    part = work / 2 if delta else work / 8

    def draw(part: float) -> NDArray[np.float64]:
        half = max(most // 2, 4)
        return np.concatenate(
            [
                draw_losses(*runs, half, part, factor=factor, explores=explores)
                for explores in (not delta, False)
            ]
        )

    losses = draw(part)
    if not delta:
        climbed = losses[:0]
        if losses.max() <= epsilon + ROUNDING:
            climbed = climb_losses(*runs, CLIMBS if most > FEW else 1, 6 * part, factor=factor)
        elif most > FEW and estimate_hit(losses, epsilon) < POWER:
            # What few runs found by chance, more show to be no luck.
            losses = np.concatenate([losses, draw(3 * part)])
        losses = np.concatenate([losses, climbed])
        worst = float(losses.max())
        return ReplayedRuns(
            example,
            epsilon,
            delta,
            max(0.0, worst),
            worst <= epsilon + ROUNDING,
            len(losses),
            losses,
            place,
            len(climbed),
        )
    passed = bound_delta(losses, epsilon, RARE)[0] <= delta
    measured = _find_epsilon(losses, delta)
    return ReplayedRuns(example, epsilon, delta, measured, passed, len(losses), losses, place)


def find_delta(
    first: Run, second: Run, epsilon: float, delta: float, work: float, judged: set[Hashable]
) -> float:
    """A lower bound of the delta that drawn runs need at epsilon, on either side against the other; many of them
    where few seem to need more than is stated, or the laws of their noise say so. Each number of runs ends with its
    work: of few runs nothing is refuted. Laws that were judged are looked at in few runs again.
    """
    needed = [0.0]
    for sides in ((first, second), (second, first)):
        losses, laws = compare_laws(*sides, FEW_RUNS)
        distance = find_distance(laws)
        if distance is not None:
            is_suspicious = gaussian_delta(distance, epsilon) > delta + SLIGHT
        elif (epsilon, delta, laws) in judged and bound_delta(losses, epsilon, 0.5)[1] <= delta:
            continue
        else:
            # One run that the other side never makes may be what delta allows.
            excess = SLIGHT if math.inf in losses else SUSPICIOUS
            losses = draw_losses(*sides, SOME_RUNS, work)
            is_suspicious = bound_delta(losses, epsilon, 0.5)[1] > delta + excess
            if is_suspicious:
                losses = draw_losses(*sides, MORE_RUNS, work)
                is_suspicious = bound_delta(losses, epsilon, 0.5)[1] > delta + SUSPICIOUS / 2
            if laws is not None:
                judged.add((epsilon, delta, laws))
        if is_suspicious:
            # What decides is drawn afresh.
            losses = draw_losses(*sides, MANY_RUNS, work)
            needed.append(bound_delta(losses, epsilon, RARE)[0])
    return max(needed)


def bound_delta(losses: NDArray[np.float64], epsilon: float, failure: float) -> tuple[float, float]:
    """The least delta at epsilon that drawn losses need: from below, but for this probability, and its estimate."""
    with np.errstate(over="ignore"):
        parts = np.maximum(0.0, -np.expm1(epsilon - losses))
    n, mean = len(parts), float(parts.mean())
    if n < 2:
        return 0.0, mean
    log = math.log(2 / failure)
    off = math.sqrt(2 * float(parts.var(ddof=1)) * log / n) + 7 * log / (3 * (n - 1))
    return mean - off, mean


def _find_epsilon(losses: NDArray[np.float64], delta: float) -> float:
    """The largest epsilon at which more than delta is needed, with `CONFIDENCE`."""
    low, high = 0.0, 1e3
    if bound_delta(losses, low, 1 - CONFIDENCE)[0] <= delta:
        return 0.0
    for _ in range(60):
        middle = (low + high) / 2
        if bound_delta(losses, middle, 1 - CONFIDENCE)[0] > delta:
            low = middle
        else:
            high = middle
    return low
