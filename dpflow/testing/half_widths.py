"""Whether stated half-widths hold, by the law of the noise itself: it leaves them in 5 % of results at most.

Noise is chosen, not drawn. A draw without any shows what each number is without noise, and a few more which
numbers of noise it depends on. Where that is one, its noise runs through its whole law: a half-width of 93 % is refuted as
surely as one of 50 %. Where several meet in one number (a mean), all their values together are tried, if these are few.

Of noise that chooses, of words without a law and of too many values nothing is said (`HalfWidths.not_followed`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache, partial
from itertools import islice
from typing import Any

import numpy as np

from dpflow.core.contract.mechanism import Mechanism
from dpflow.core.contract.requests import Answer
from dpflow.core.contract.results import Result, Row
from dpflow.core.sampling.randomness import RandomWords, Source
from dpflow.errors import InvalidInput
from dpflow.testing import harness
from dpflow.testing.examples import Example, plan_mechanism, possible_answers, typical_answer
from dpflow.testing.generated_ranges import range_cases
from dpflow.testing.generated_tables import generate_cases
from dpflow.testing.harness import require
from dpflow.testing.replay_laws import NamedNoise
from dpflow.testing.sampler_patches import REAL, replace_samplers
from dpflow.testing.work import add_work, counts_work, spent

#: How often noise may leave a half-width, and what rounding may add to a sum of masses.
FAILURE, ROUNDING = 0.05, 1e-6
#: What is left out of a law on either side, and of each of several laws; points of a grid on either side.
TAIL, TAIL_TOGETHER, GRID = 1e-7, 1e-3, 12
#: Values of a law that are all tried before a half-width is refused, and those of several laws together.
MAX_VALUES, MAX_PRODUCT = 4_000, 800
#: Numbers of noise in one number of a result at most.
MAX_TOGETHER = 4
#: Generated cases of each kind, answers without a half-width after which none is expected, and work of all cases.
MAX_CASES, HOPELESS, WORK = 48, 12, 3

#: A name of a sampler, and all of its arguments but size and source.
_Law = tuple[Any, ...]
_Name = tuple[str, str]


class _NotFollowed(Exception):
    """Some noise is not that of one number."""


class _Chosen(Source):
    """A source whose noise is chosen by place and law."""

    def __init__(self, choose: Callable[[int, _Law], int]) -> None:
        self.laws, self._choose = list[_Law](), choose

    def take(self, law: _Law, size: int) -> Any:
        """So many numbers of this law."""
        first = len(self.laws)
        self.laws += [law] * size
        chosen = [self._choose(place, law) for place in range(first, first + size)]
        return np.array(chosen, np.int64)

    def draw_words(self, n: int) -> RandomWords:
        """Refused: words have no law."""
        raise _NotFollowed


_NOISE = ("discrete_laplace", "discrete_gaussian", "truncated_laplace")


def _choose_noise() -> Any:
    def stand_in(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def draw(*arguments: Any) -> Any:
            source = arguments[-1]
            if not isinstance(source, _Chosen):
                return real(*arguments)
            if name not in _NOISE:
                raise _NotFollowed
            return source.take((name, *arguments[:-2]), int(arguments[-2]))

        return draw

    return replace_samplers({real: stand_in(name, real) for name, real in REAL.items()})


@dataclass(frozen=True)
class HalfWidths:
    """What was found.

    Attributes:
        followed, not_followed: numbers with a half-width, over all cases; and cases that work did not suffice for.
        excess: the first that is false, with where; "" if none is.
    """

    followed: int
    not_followed: int
    excess: str


@counts_work
def check_half_widths(
    mechanism: Mechanism[Any], effort: float = 1.0, examples: Sequence[Example] = ()
) -> HalfWidths:
    """Compare stated half-widths, of results and of plans, with the law of their noise: on examples, and on generated
    cases (`dpflow.testing.generated_tables`, `dpflow.testing.generated_ranges`).
    """
    followed = not_followed = 0
    most = max(1, round(MAX_CASES * min(1.0, effort)))
    cases = [
        *((one.table, one.params) for one in examples),
        *((one.table, one.params) for one in generate_cases(mechanism)[:most]),
        *(
            (one.table, one.params)
            for one in islice(range_cases(mechanism, examples).sample(1.0), most)
        ),
    ]
    begun, answers, stated = spent(), 0, 0
    with _choose_noise():
        for number, (table, raw) in enumerate(cases):
            if answers >= HOPELESS and not stated:
                break
            if spent() - begun > WORK * effort:
                not_followed += len(cases) - number
                break
            with suppress(InvalidInput):
                params, _ = plan_mechanism(mechanism, table, raw)
                bound = mechanism.error_bound(params, table)
                promised = {} if bound is None else bound.half_width
                for answer in _answers_of(mechanism, params, table):
                    drawn = _Drawn(mechanism, params, table, answer, promised)
                    misses, unknown = drawn.list_misses()
                    answers, stated = answers + 1, stated + drawn.number
                    followed, not_followed = followed + len(misses), not_followed + unknown
                    for (key, measure), p in misses.items():
                        if p > FAILURE + ROUNDING:
                            of_key = f" of key {key!r}" if key else ""
                            what = f"the noise of {measure!r}{of_key} leaves the stated half-width with probability {p:.4g}"
                            where = f"{dict(raw)}, {table.neighbours}"
                            excess = f"{what}, where {FAILURE} is stated ({where})"
                            return HalfWidths(followed, not_followed, excess)
    return HalfWidths(followed, not_followed, "")


@counts_work
def half_widths_hold(mechanism: Mechanism[Any]) -> None:
    """The noise of a number leaves its stated half-width with probability 5 % at most, by the law of the noise."""
    found = check_half_widths(mechanism, harness.effort)
    require(not found.excess, found.excess)


def _answers_of(mechanism: Mechanism[Any], params: Any, table: Any) -> Iterator[Answer]:
    request = mechanism.data_request(params, table)
    yield typical_answer(request, table)
    listed = possible_answers(request, table)
    if "one unit" in listed:
        yield listed["one unit"]


class _Drawn:
    """Draws of one plan on one answer, whose noise is chosen."""

    def __init__(
        self,
        mechanism: Mechanism[Any],
        params: Any,
        table: Any,
        answer: Answer,
        promised: Mapping[str, float],
    ) -> None:
        self._mechanism, self._params, self._table = mechanism, params, table
        self._answer, self._promised = answer, promised
        self._truth: dict[_Name, tuple[float | int, float]] = {}

    @property
    def number(self) -> int:
        """How many numbers of the result have a half-width, once misses are listed; 0 where noise could not be chosen."""
        return len(self._truth)

    def list_misses(self) -> tuple[dict[_Name, float], int]:
        """How often the noise of each number leaves its half-width, and of how many numbers this is not known."""
        try:
            source = _Chosen(lambda place, law: 0)
            rows = self._rows(source)
            laws = source.laws
            self._truth = {
                name: (row.value, width)
                for name, row in rows.items()
                if isinstance(row.value, int | float) and (width := self._width(row)) is not None
            }
            places = self._find_places(laws) if self._truth else {}
        except _NotFollowed:
            return {}, 1
        misses = dict[_Name, float]()
        single = {name: one[0] for name, one in places.items() if len(one) == 1}
        for law in dict.fromkeys(laws[place] for place in single.values()):
            here = [name for name, place in single.items() if laws[place] == law]
            misses |= self._scan(law, here)
        for name, several in places.items():
            if not several:
                misses[name] = 0.0
            elif len(several) > 1 and (p := self._multiply(laws, several, name)) is not None:
                misses[name] = p
        return misses, len(self._truth) - len(misses)

    def _rows(self, source: _Chosen) -> dict[_Name, Row]:
        add_work(1)
        try:
            result: Result = self._mechanism.draw(self._params, self._table, self._answer, source)
        except _NotFollowed:
            raise
        # Whether a draw raises is another check's matter.
        except Exception as error:
            raise _NotFollowed from error
        return {(row.key, row.measure): row for row in result.rows}

    def _width(self, row: Row) -> float | None:
        """The smallest half-width that is stated of a number."""
        widths = [self._promised.get(row.measure), row.half_width_95]
        return min((width for width in widths if width is not None), default=None)

    def _misses(self, choose: Callable[[int, _Law], int], names: Sequence[_Name]) -> list[bool]:
        rows = self._rows(_Chosen(choose))
        return [self._leaves(name, rows.get(name)) for name in names]

    def _leaves(self, name: _Name, row: Row | None) -> bool:
        if row is None or not isinstance(row.value, int | float):
            return False
        width = self._width(row)
        # The factor forgives the rounding of widths, and nothing more.
        return width is not None and abs(row.value - self._truth[name][0]) > width * (1 + 1e-9)

    def _find_places(self, laws: Sequence[_Law]) -> dict[_Name, tuple[int, ...]]:
        """Which numbers of noise each number depends on; those that depend on too many are left out. Each place of the
        noise has a number of bits, and in turn those with one bit are moved, and those without it.
        """
        sides = list[tuple[dict[_Name, bool], dict[_Name, bool]]]()
        for bit in range(len(laws).bit_length()):
            marked = {place for place in range(len(laws)) if (place + 1) >> bit & 1}
            others = {*range(len(laws))} - marked
            sides.append((self._moved(marked), self._moved(others)))
        places = dict[_Name, tuple[int, ...]]()
        several = list[_Name]()
        for name in self._truth:
            if not any(side[name] for pair in sides for side in pair):
                places[name] = ()
            elif all(pair[0][name] != pair[1][name] for pair in sides):
                places[name] = (sum(pair[0][name] << bit for bit, pair in enumerate(sides)) - 1,)
            else:
                several.append(name)
        if several and len(laws) <= 4 * MAX_TOGETHER:
            alone = [self._moved({place}) for place in range(len(laws))]
            for name in several:
                found = tuple(place for place, moved in enumerate(alone) if moved[name])
                if 1 < len(found) <= MAX_TOGETHER:
                    places[name] = found
        return places

    def _moved(self, places: Set[int]) -> dict[_Name, bool]:
        """Which numbers change where some of the noise does."""
        source = _Chosen(lambda place, law: _reach(law) // 2 + 1 if place in places else 0)
        rows = self._rows(source)
        return {
            name: name not in rows or (rows[name].value, self._width(rows[name])) != before
            for name, before in self._truth.items()
        }

    def _scan(self, law: _Law, names: Sequence[_Name]) -> dict[_Name, float]:
        """How often noise of a law leaves the half-widths of numbers that depend on one such number each: on a grid, and
        between two points that differ by halves. What is refused is tried at every value, as far as there are few.
        """
        found = dict[int, list[bool]]()

        def look(x: int) -> list[bool]:
            if x not in found:
                found[x] = self._misses(lambda _, own: x if own == law else 0, names)
            return found[x]

        def search(low: int, high: int) -> None:
            if look(low) != look(high) and high - low > 1:
                middle = (low + high) // 2
                search(low, middle)
                search(middle, high)

        reach = _reach(law)
        grid = sorted(
            {s * round((reach + 1) ** (i / GRID) - 1) for i in range(GRID + 1) for s in (-1, 1)}
        )
        for low, high in itertools.pairwise(grid):
            search(low, high)
        misses = self._sum_masses(law, names, found)
        if max(misses.values()) > FAILURE + ROUNDING:
            step = max(1, 2 * reach // MAX_VALUES)
            for x in range(-reach, reach + 1, step):
                look(x)
            points = sorted(found)
            for low, high in itertools.pairwise(points):
                search(low, high)
            misses = self._sum_masses(law, names, found)
        return misses

    def _sum_masses(
        self, law: _Law, names: Sequence[_Name], found: Mapping[int, Sequence[bool]]
    ) -> dict[_Name, float]:
        total = [0.0] * len(names)
        points = sorted(found)
        for low, high in itertools.pairwise([*points, math.inf]):
            # Both ends of what lies between say the same, or there is nothing between.
            mass = _mass(law, int(low), int(low) + 1 if high == math.inf else int(high))
            for place, leaves in enumerate(found[int(low)]):
                total[place] += mass * leaves
        return dict(zip(names, total, strict=True))

    def _multiply(self, laws: Sequence[_Law], places: Sequence[int], name: _Name) -> float | None:
        """The same of one number that depends on several; None where these have too many values together."""
        reaches = [_reach(laws[place], TAIL_TOGETHER) for place in places]
        ranges = [range(-reach, reach + 1) for reach in reaches]
        if math.prod(map(len, ranges)) > MAX_PRODUCT:
            return None
        masses = [
            {x: _mass(laws[place], x, x + 1) for x in own} for place, own in zip(places, ranges)
        ]
        total = 0.0
        for values in itertools.product(*ranges):
            chosen = dict(zip(places, values, strict=True))
            (leaves,) = self._misses(partial(_take_place, chosen), [name])
            total += leaves * math.prod(own[x] for own, x in zip(masses, values, strict=True))
        return total


def _take_place(chosen: Mapping[int, int], place: int, law: _Law) -> int:
    return chosen.get(place, 0)


def _mass(law: _Law, low: int, high: int) -> float:
    """The probability of low to high - 1."""
    return _tail(law, low) - _tail(law, high)


def _tail(law: _Law, t: int) -> float:
    """Pr[X >= t]."""
    return _noise_of(law).tail(t) if t > 0 else 1 - _noise_of(law).tail(1 - t)


@lru_cache(maxsize=256)
def _noise_of(law: _Law) -> NamedNoise:
    name, size, *radius = law
    return NamedNoise({}, name, Fraction(size), None, *radius)


@lru_cache(maxsize=256)
def _reach(law: _Law, left_out: float = TAIL) -> int:
    """The first number whose tail is so small that it is left out, less one."""
    high = 1
    while _tail(law, high) > left_out:
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _tail(law, middle) > left_out else (low, middle)
    return high
