"""Where the noise of a mechanism takes its sensitivity from, and whether its statistics move so far at most.

Noise and choices have a few doors: `Noise.add_noise`, `Noise.show_from`, `Choice` and `SelectionRule.show_counts`.
Each carries what it was fitted to. A draw on one answer is repeated on a neighbour: there every door gives what it gave before, so
both sides go the same way, and what comes to each door may differ by the stated sensitivity at most. That is exact,
whatever the noise is, also where a delta hides much.

A sampler that is called past these doors has arithmetic of the mechanism's own. What comes later on both sides is no
longer comparable, so the comparison ends there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Literal
from unittest import mock

import numpy as np

from dpflow.core.accounting.events import DiscreteLaplace
from dpflow.core.contract.declaration import Table
from dpflow.core.contract.interactive import InteractiveMechanism
from dpflow.core.contract.mechanism import Mechanism
from dpflow.core.contract.requests import Answer, DataRequest
from dpflow.core.contract.sensitivity import Sensitivity
from dpflow.core.sampling.randomness import RandomWords, Source
from dpflow.core.toolbox.choices import Choice
from dpflow.core.toolbox.noise import Noise
from dpflow.core.toolbox.partition_selection import SelectionRule
from dpflow.testing import harness
from dpflow.testing.examples import Example, plan_mechanism
from dpflow.testing.generated_ranges import range_cases
from dpflow.testing.generated_tables import (
    MAX_CASES,
    SMALL_SIZES,
    Case,
    EqualUnits,
    describe_pair,
    distant_neighbours,
    generate_cases,
    generated_neighbours,
    list_sizes,
    spread,
)
from dpflow.testing.harness import StreamSource, require
from dpflow.testing.neighbours import answer_fingerprint
from dpflow.testing.release_checks import list_pairs
from dpflow.testing.sampler_patches import REAL, replace_samplers
from dpflow.testing.session_checks import MemorySession, Pick, neighbouring_sides
from dpflow.testing.work import Made, counts_work, spent

#: From the best to the worst: every sensitivity is a request's; some are declared, and tested; some sampler was
#: called with arithmetic of the mechanism's own; or its code reads what no argument says (`dpflow.testing.own_state`).
Arithmetic = Literal["of requests", "declared", "own arithmetic", "own state"]
ORDER: tuple[Arithmetic, ...] = ("of requests", "declared", "own arithmetic", "own state")

#: Pairs of one generated case, pairs without a statistic to compare after which none is expected, and cases of which
#: tables of many equal units are compared.
PAIRS, HOPELESS, SIZED = 6, 24, 4
#: Work of all pairs.
WORK = 8


def _worst(*arithmetic: Arithmetic | None) -> Arithmetic | None:
    return max((one for one in arithmetic if one), key=ORDER.index, default=None)


class _Ended(Exception):
    """Both sides are no longer comparable."""


@dataclass
class _Meeting:
    """What came to a door.

    Attributes:
        numbers: by place; of runs of integers of equal cost, by first and last one.
        shape: equal where both sides' numbers are comparable.
        moved: how they may move.
        given: what the door gave.
    """

    numbers: dict[Any, int]
    shape: Any
    moved: Sensitivity | int | None
    norm: Literal["l1", "l2", "spread"]
    given: Any = None


@dataclass
class _Doors(Source):
    """A source that doors know: on the first side they draw, on the second they give the same again."""

    seed: int
    first: list[_Meeting] | None = None
    meetings: list[_Meeting] = field(default_factory=list)
    arithmetic: Arithmetic | None = None

    def __post_init__(self) -> None:
        self._stream = StreamSource(self.seed)

    def draw_words(self, n: int) -> RandomWords:
        """Words that were asked for past all doors."""
        self.note("own arithmetic")
        if self.first is not None:
            raise _Ended
        return self._stream.draw_words(n)

    def note(self, arithmetic: Arithmetic) -> None:
        """Keep the worst."""
        self.arithmetic = _worst(self.arithmetic, arithmetic)

    def meet(self, meeting: _Meeting, draw: Callable[[Source], Any]) -> Any:
        """What the door gives."""
        moved = meeting.moved
        is_proven = isinstance(moved, Sensitivity) and moved.is_proven
        self.note("own arithmetic" if moved is None else "of requests" if is_proven else "declared")
        if self.first is None:
            meeting.given = draw(self._stream)
        else:
            if len(self.meetings) >= len(self.first):
                raise _Ended
            before = self.first[len(self.meetings)]
            if (before.norm, before.shape) != (meeting.norm, meeting.shape):
                raise _Ended
            meeting.given = before.given
        self.meetings.append(meeting)
        return meeting.given


def _meet(values: Any, moved: Sensitivity | int | None, norm: Any) -> _Meeting:
    numbers = np.asarray(values, object)
    return _Meeting(dict(enumerate(numbers.ravel().tolist())), numbers.shape, moved, norm)


def _norm_of(noise: Noise) -> str:
    return "l1" if isinstance(noise.event, DiscreteLaplace) else "l2"


def _moved_of(noise: Noise) -> Sensitivity | None:
    """What noise was fitted to; None where its event says that it was fitted to less."""
    if noise.moved is None:
        return None
    power = 1 if isinstance(noise.event, DiscreteLaplace) else 2
    stated = noise.event.sensitivity**power
    return noise.moved if stated >= _bound(_norm_of(noise), noise.moved) else None


def _open_noise(noise: Noise, exact: Any, source: _Doors) -> Any:
    meeting = _meet(exact, _moved_of(noise), _norm_of(noise))
    return source.meet(meeting, lambda inner: _NOISE(noise, exact, inner))


def _open_best(choice: Choice, scores: Any, source: _Doors) -> Any:
    meeting = _meet(scores, choice.moved, "spread")
    return source.meet(meeting, lambda inner: _BEST(choice, scores, inner))


def _open_integer(choice: Choice, starts: Any, lengths: Any, costs: Any, source: _Doors) -> Any:
    runs = {
        (int(start), int(start) + int(length)): int(cost)
        for start, length, cost in zip(starts, lengths, costs, strict=True)
    }
    meeting = _Meeting(runs, (min(runs)[0], max(runs)[1]), choice.moved, "spread")
    return source.meet(meeting, lambda inner: _INTEGER(choice, starts, lengths, costs, inner))


def _open_names(noise: Noise, names: Any, exact: Any, threshold: Any, source: _Doors) -> Any:
    meeting = _meet(exact, _moved_of(noise), _norm_of(noise))
    return source.meet(meeting, lambda inner: _NAMES(noise, names, exact, threshold, inner))


def _open_counts(rule: SelectionRule, names: Any, counts: Any, source: _Doors) -> Any:
    meeting = _meet(counts, _moved_of(rule.noise), _norm_of(rule.noise))
    return source.meet(meeting, lambda inner: _COUNTS(rule, names, counts, inner))


_NOISE, _BEST, _INTEGER = Noise.add_noise, Choice.choose_best, Choice.choose_integer
_NAMES, _COUNTS = Noise.show_from, SelectionRule.show_counts
_DOORS: tuple[tuple[Any, str, Callable[..., Any], Callable[..., Any]], ...] = (
    (Noise, "add_noise", _NOISE, _open_noise),
    (Choice, "choose_best", _BEST, _open_best),
    (Choice, "choose_integer", _INTEGER, _open_integer),
    (Noise, "show_from", _NAMES, _open_names),
    (SelectionRule, "show_counts", _COUNTS, _open_counts),
)


@contextmanager
def watch_doors() -> Iterator[None]:
    """Inside, draws from a source of this module go through the doors that are watched, and all samplers that are
    called past them are noted.
    """

    def watch_method(real: Callable[..., Any], opened: Callable[..., Any]) -> Callable[..., Any]:
        def call(self: Any, *arguments: Any) -> Any:
            watched = isinstance(arguments[-1], _Doors)
            return (opened if watched else real)(self, *arguments)

        return call

    def watch_sampler(real: Callable[..., Any]) -> Callable[..., Any]:
        def draw(*arguments: Any) -> Any:
            source = arguments[-1]
            if not isinstance(source, _Doors):
                return real(*arguments)
            source.note("own arithmetic")
            if source.first is not None:
                raise _Ended
            return real(*arguments[:-1], source._stream)

        return draw

    with ExitStack() as stack:
        for kind, name, real, opened in _DOORS:
            stack.enter_context(mock.patch.object(kind, name, watch_method(real, opened)))
        stack.enter_context(replace_samplers({one: watch_sampler(one) for one in REAL.values()}))
        yield


def compare_moves(
    first: Callable[[Source], Any], second: Callable[[Source], Any], seed: int = 0
) -> tuple[Arithmetic | None, int, str]:
    """Where the sensitivities of two neighbouring draws come from (None without noise), how many statistics were compared, and the first
    that moves further than stated, or "". Only inside `watch_doors`.
    """
    recorded = _Doors(seed)
    first(recorded)
    # After the first sampler of its own nothing can be compared, so that side alone is looked at.
    replayed = _Doors(seed, recorded.meetings)
    # What a draw cannot make of the other side's numbers is not comparable either; whether it raises by itself is
    # another check's matter.
    with suppress(Exception):
        second(replayed)
    arithmetic = _worst(recorded.arithmetic, replayed.arithmetic)
    number = len(replayed.meetings)
    for one, other in zip(recorded.meetings, replayed.meetings, strict=False):
        if excess := _describe_excess(one, other):
            return arithmetic, number, excess
    return arithmetic, number, ""


def _describe_excess(one: _Meeting, other: _Meeting) -> str:
    moves = _differences(one.numbers, other.numbers)
    stated = [_bound(one.norm, m.moved) for m in (one, other) if m.moved is not None]
    if not stated or not moves:
        return ""
    distance = {
        "l1": sum(map(abs, moves)),
        "l2": sum(x * x for x in moves),
        "spread": max(moves) - min(moves),
    }[one.norm]
    if distance <= min(stated):
        return ""
    what = {
        "l1": "numbers that get Laplace noise move by {} in L1",
        "l2": "numbers that get Gaussian noise move by the root of {} in L2",
        "spread": "differences of scores move by {}",
    }[one.norm].format(distance)
    return f"{what} between neighbouring tables, where the stated sensitivity is {min(stated)}"


def _bound(norm: str, moved: Any) -> int:
    """What noise is fitted to: 1 at least."""
    if isinstance(moved, int):
        return max(1, moved)
    return int(max(1, {"l1": moved.l1, "l2": moved.l2_squared, "spread": moved.spread}[norm]))


def _differences(one: dict[Any, int], other: dict[Any, int]) -> list[int]:
    if not one or not isinstance(next(iter(one)), tuple):
        return [other[name] - number for name, number in one.items() if name in other]
    # Runs of equal cost: at the beginning of each run of either side.
    moves = []
    for start in sorted({low for low, _ in (*one, *other)}):
        costs = [
            next((cost for (low, end), cost in side.items() if low <= start < end), None)
            for side in (one, other)
        ]
        if costs[0] is not None and costs[1] is not None:
            moves.append(costs[1] - costs[0])
    return moves


@dataclass(frozen=True)
class Moves:
    """What all comparisons said.

    Attributes:
        arithmetic: the worst of all draws; None where none was looked at.
        pairs: neighbouring answers.
        excess: the first statistic that moves too far, with where; "" if none does.
    """

    arithmetic: Arithmetic | None
    pairs: int
    excess: str


@counts_work
def check_moves(
    mechanism: Mechanism[Any], effort: float = 1.0, examples: Sequence[Example] = ()
) -> Moves:
    """Compare draws on neighbours: of examples, of generated cases, and of tables of many equal units."""
    worst: Arithmetic | None = None
    pairs, comparable = 0, False
    most = max(1, int(MAX_CASES * min(1.0, 8 * effort)))
    tiny = [*generate_cases(mechanism)[:most]]
    sized = {id(case) for case in spread(tiny)[:SIZED]}
    by_hand = [Case(one.table, one.params, {}) for one in examples if not tiny]
    cases = range_cases(mechanism, examples)
    ranges = Made(spread(cases) if 8 * effort >= 1 else cases.sample(8 * effort))
    begun = spent()
    with watch_doors():
        for number, case in enumerate(chain(tiny, by_hand, ranges)):
            # What cases cost to make is no work of comparing them.
            taken = spent() - begun - ranges.work
            if (pairs > HOPELESS and not comparable) or taken > WORK * effort:
                break
            params, _ = plan_mechanism(mechanism, case.table, case.params)
            request = mechanism.data_request(params, case.table)
            example = examples[number] if case in by_hand else None
            for pair in _pairs_of(mechanism, request, case, example, id(case) in sized):
                first, second = (_bind(mechanism, params, case.table, answer) for answer in pair)
                arithmetic, compared, excess = compare_moves(first, second, seed=pairs)
                worst = _worst(worst, arithmetic)
                pairs, comparable = pairs + 1, comparable or compared > 0
                if excess:
                    tables = (
                        " and ".join(str(answer_fingerprint(answer)) for answer in pair)
                        if example or case.is_range
                        else describe_pair(request, case.table, pair)
                    )
                    where = f"({dict(case.params)}, {case.table.neighbours}). Neighbouring answers: {tables}"
                    return Moves(worst, pairs, f"{excess} {where}")
    return Moves(worst, pairs, "")


def _pairs_of(
    mechanism: Mechanism[Any],
    request: DataRequest,
    case: Case,
    example: Example | None,
    is_sized: bool,
) -> Sequence[tuple[Answer, Answer]]:
    try:
        if example is not None:
            pairs = list_pairs(request, example)
        elif case.is_range:
            pairs = distant_neighbours(request, case)
        else:
            pairs = generated_neighbours(request, case.table, 16)
        # Numbers of private keys have the same places only where both sides have the same keys.
        # A wrong mechanism may change what it is given.
        pairs = deepcopy([pair for pair in pairs if _keys(pair[0]) == _keys(pair[1])][:PAIRS])
        if is_sized:
            units = EqualUnits(request, case.table)
            sizes = list_sizes(mechanism, units.most, SMALL_SIZES)
            pairs += [units.neighbours(n) for n in sizes]
    except TypeError:  # a request without a reference answer
        return []
    return pairs


def _keys(answer: Answer) -> Any:
    return getattr(answer, "keys", None)


def _bind(
    mechanism: Mechanism[Any], params: Any, table: Table, answer: Answer
) -> Callable[[Source], Any]:
    return lambda source: mechanism.draw(params, table, answer, source)


@counts_work
def statistics_move_as_stated(mechanism: Mechanism[Any]) -> None:
    """What gets noise moves by the sensitivity that the noise was fitted to, at most; scores of a choice likewise."""
    moves = check_moves(mechanism, harness.effort)
    require(not moves.excess, moves.excess)


def compare_session(
    mechanism: InteractiveMechanism[Any, Any], examples: Iterable[Example]
) -> Moves:
    """Compare the neighbouring sides of a session's examples, their queries in order."""
    worst: Arithmetic | None = None
    pairs = 0
    with watch_doors():
        for example in examples:
            for sides in neighbouring_sides(mechanism, example)[:PAIRS]:
                first, second = (_bind_session(mechanism, example, pick) for pick in sides)
                arithmetic, _, excess = compare_moves(first, second, seed=pairs)
                worst = _worst(worst, arithmetic)
                pairs += 1
                if excess:
                    return Moves(worst, pairs, f"{excess} ({dict(example.params)})")
    return Moves(worst, pairs, "")


def _bind_session(
    mechanism: InteractiveMechanism[Any, Any], example: Example, pick: Pick
) -> Callable[[Source], Any]:
    return lambda source: MemorySession(mechanism, example, source).transcript(pick)
