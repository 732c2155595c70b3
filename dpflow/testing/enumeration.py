"""The exact output distribution of a mechanism's own code: one run for every value of its noise.

While `enumerate_outputs` runs, the samplers of `dpflow.core.sampling.samplers` answer an `Enumerator` from
their exact laws instead of drawing: each run follows one path through all random
choices, and its probability is the product along the path. What is audited is everything but the
samplers, which have their own tests: scales, thresholds, costs, clamping. Noise is truncated where
less than ``tail`` is left of each number.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from fractions import Fraction
from functools import lru_cache
from itertools import permutations
from types import CodeType
from typing import Any, TypeVar

import numpy as np

from dpflow.core.contract.declaration import Table
from dpflow.core.contract.mechanism import Mechanism
from dpflow.core.contract.requests import Answer
from dpflow.core.sampling import samplers
from dpflow.core.sampling.randomness import RandomWords, Source
from dpflow.testing import exact_divergence
from dpflow.testing.neighbours import answer_fingerprint
from dpflow.testing.sampler_patches import REAL, replace_samplers, sample_weakened
from dpflow.testing.work import add_work, spent

Outcome = TypeVar("Outcome", bound=Hashable)


#: Values of one number of noise, and numbers drawn at once, at most.
WIDEST = 1000
#: What is far from done after this part of its work is given up,
EARLY = 1 / 8
#: where it would take so many times as much as it may. Later paths can be shorter, but not by so much.
HOPELESS = 8
#: Choices of one path, and paths, between two looks at the clock, which can cost more than a choice.
PICKS_PER_CLOCK, PATHS_PER_CLOCK = 64, 16
#: What a choice is worth, in numbers that are followed.
PICK = 1 / 10
TOO_MUCH_WORK = "the enumeration takes more work than it may"


class NotEnumerable(Exception):
    """The code takes raw words, or has more paths than allowed."""


class Enumerator(Source):
    """A source that follows a scripted path, and takes the first alternative beyond its end."""

    def __init__(self, path: Sequence[int], tail: float, end: float = math.inf) -> None:
        self.path, self.tail, self.end = list(path), tail, end
        self.sizes: list[int] = []
        self.weight = 1.0

    def pick(self, law: Mapping[int, float]) -> int:
        """The next choice, by a law over integers."""
        return self.pick_item(tuple(law.items()))

    def pick_item(self, items: Sequence[tuple[int, float]]) -> int:
        """The next choice among integers and their probabilities: a list that is made once."""
        step = len(self.sizes)
        if step % PICKS_PER_CLOCK == PICKS_PER_CLOCK - 1:
            add_work(PICKS_PER_CLOCK * PICK)
            if spent() > self.end:
                raise NotEnumerable(TOO_MUCH_WORK)
        # Beyond the script the first alternative, which makes the order depth-first.
        if step == len(self.path):
            self.path.append(0)
        self.sizes.append(len(items))
        value, mass = items[self.path[step]]
        self.weight *= mass  # the probability of the path so far
        return value

    def draw_below(self, n: int) -> int:
        """A uniform choice."""
        # So wide a law would use up the paths that are allowed.
        if n > 10_000:
            raise NotEnumerable(f"a uniform choice among {n} is too wide to enumerate")
        return self.pick({i: 1 / n for i in range(n)})

    def draw_words(self, n: int) -> RandomWords:
        """Refused: 2^64 alternatives."""
        raise NotEnumerable(
            "raw random words cannot be enumerated; draw through dpflow.core.sampling.samplers"
        )

    @property
    def progress(self) -> float:
        """How much of all paths lies before this one, if every choice has as many that follow."""
        done, width = 0.0, 1.0
        for step, size in zip(self.path, self.sizes):
            width /= size
            done += step * width
        return done

    def next_path(self) -> list[int] | None:
        """The path after this one in depth-first order, or None after the last."""
        path = self.path
        # The last step with an alternative left advances, so no path is taken twice.
        for step in range(len(path) - 1, -1, -1):
            if path[step] + 1 < self.sizes[step]:
                return [*path[:step], path[step] + 1]
        return None


def enumerate_outputs(
    draw: Callable[[Source], Outcome],
    tail: float = exact_divergence.TAIL,
    paths: int = 500_000,
    work: float = math.inf,
) -> dict[Outcome, float]:
    """Every outcome of ``draw`` with its probability.

    Args:
        draw: takes all of its randomness from the source that it is given.
        tail: probability that each number of noise may leave out.
        paths: how many random paths there may be.
        work: work that may be done (`dpflow.testing.work`).

    Raises:
        NotEnumerable: raw words were drawn, or a limit was reached.
    """
    law: dict[Outcome, float] = defaultdict(float)
    path: list[int] = []
    begun = spent()
    early, end = begun + work * EARLY, begun + work
    with follow_laws():
        for number in range(paths):
            source = Enumerator(path, tail, end)
            outcome = draw(source)
            law[outcome] += source.weight
            add_work(len(source.sizes) % PICKS_PER_CLOCK * PICK)
            following = source.next_path()
            if following is None:
                return dict(law)
            path = following
            if number % PATHS_PER_CLOCK == 0 and (now := spent()) > early:
                if now > end:
                    raise NotEnumerable(TOO_MUCH_WORK)
                if source.progress < EARLY / HOPELESS:
                    raise NotEnumerable(TOO_MUCH_WORK)
                early = end
    raise NotEnumerable(f"more than {paths} paths; take a larger epsilon or fewer groups")


def exact_delta(
    mechanism: Mechanism[Any],
    params: Any,
    table: Table,
    pairs: Iterator[tuple[Answer, Answer]],
    epsilon: float | Fraction,
) -> float:
    """The largest `exact_divergence.divergence` of outputs over pairs of neighbouring answers."""
    laws: dict[Any, dict[Any, float]] = {}
    compared_pairs: set[frozenset[Any]] = set()

    def output_law(given: Answer) -> dict[Any, float]:
        # One enumeration per distinct answer: most of the time goes there.
        name = answer_fingerprint(given)
        if name not in laws:
            laws[name] = enumerate_outputs(
                lambda source: mechanism.draw(params, table, given, source)
            )
        return laws[name]

    worst = 0.0
    with follow_laws():
        for a, b in pairs:
            pair = frozenset((answer_fingerprint(a), answer_fingerprint(b)))
            # Equal answers cannot diverge, and many tables share one answer.
            if len(pair) == 2 and pair not in compared_pairs:
                compared_pairs.add(pair)
                found = exact_divergence.divergence(output_law(a), output_law(b), epsilon)
                worst = max(worst, found)
    return worst


@lru_cache(maxsize=1024)
def _list_law(
    law: Callable[[Fraction, Any], Mapping[int, float]], top: int, bottom: int, reach: float
) -> tuple[tuple[int, float], ...]:
    """A law of scale top / bottom as a list; none where it has too many values. Each path asks for the same few."""
    # Of sigma^2 or a scale: either way there are at least so many values.
    return () if top > WIDEST**2 * bottom else tuple(law(Fraction(top, bottom), reach).items())


def _pick_many(
    law: Callable[[Fraction, Any], Mapping[int, float]],
    scale: Any,
    reach: float,
    size: int,
    source: Enumerator,
) -> Any:
    items = _list_law(law, *scale.as_integer_ratio(), reach) if size <= WIDEST else ()
    if not items:
        raise NotEnumerable(f"{size} numbers of noise at scale {float(scale):.3g} are too many")
    return np.array([source.pick_item(items) for _ in range(size)], dtype=np.int64)


def _repeat_law(
    law: Callable[[Fraction, float], Mapping[int, float]],
) -> Callable[[Any, int, Enumerator], Any]:
    return lambda scale, size, source: _pick_many(law, scale, source.tail, size, source)


def _pick_truncated(scale: Any, radius: int, size: int, source: Enumerator) -> Any:
    _require_few(radius)
    return _pick_many(exact_divergence.truncated_laplace, scale, radius, size, source)


def _require_few(alternatives: int, most: int = 10 * WIDEST) -> None:
    if alternatives > most:
        raise NotEnumerable(f"a choice among {alternatives} is too wide to enumerate")


def _pick_ring(n: int, source: Enumerator) -> Any:
    _require_few(n, 9)
    circles = _list_circles(n)
    index = source.pick(dict.fromkeys(range(len(circles)), 1 / len(circles)))
    return np.array(circles[index], dtype=np.int64)


@lru_cache(maxsize=16)
def _list_circles(n: int) -> list[tuple[int, ...]]:
    """Each circle once: it starts with 0 and goes round towards the smaller of its neighbours."""
    return [(0, *rest)[:n] for rest in permutations(range(1, n)) if not rest or rest[0] <= rest[-1]]


def _pick_interval(
    lengths: Sequence[int], costs: Sequence[int], rate: Fraction, source: Enumerator
) -> int:
    _require_few(len(costs))
    return source.pick(exact_divergence.exponential_choice(lengths, costs, rate))


def _permute_and_flip(costs: Any, rate: Fraction, source: Enumerator) -> int:
    _require_few(len(costs), 12)
    return source.pick(exact_divergence.permute_and_flip(np.asarray(costs).tolist(), rate))


def _choose_rows(costs: Any, rate: Fraction, source: Enumerator) -> Any:
    _require_few(np.asarray(costs).size)
    rows = [
        source.pick(exact_divergence.exponential_choice([1] * len(row), row, rate))
        for row in np.asarray(costs).tolist()
    ]
    return np.array(rows, dtype=np.int64)


def _pick_uniform(n: int, size: int, source: Enumerator) -> Any:
    _require_few(size)
    return np.array([source.draw_below(n) for _ in range(size)], dtype=np.int64)


def _pick_bit(p: Fraction, source: Enumerator) -> bool:
    return bool(source.pick({0: float(1 - p), 1: float(p)}))


_LAWS: dict[str, Callable[..., Any]] = {
    "discrete_laplace": _repeat_law(exact_divergence.discrete_laplace),
    "discrete_gaussian": _repeat_law(exact_divergence.discrete_gaussian),
    "geometric": _repeat_law(exact_divergence.geometric),
    "truncated_laplace": _pick_truncated,
    "circular_order": _pick_ring,
    "choose_piece": _pick_interval,
    "permute_and_flip": _permute_and_flip,
    "choose_rows": _choose_rows,
    "uniform_integers": _pick_uniform,
    "bernoulli": _pick_bit,
}


def register_law(sampler: Callable[..., Any], law: Callable[..., Any]) -> None:
    """State the law of a sampler that takes raw words, so that the exact check can follow it.

    Args:
        sampler: a function whose last argument is the source.
        law: takes the same arguments, the source being an `Enumerator`, and makes every choice by
            ``source.pick({value: probability, ...})``.
    """
    _REGISTERED[sampler] = law


def is_sampler(code: CodeType) -> bool:
    """Whether this is the code of a sampler whose law is stated."""
    return code.co_filename == samplers.__file__ or any(
        sampler.__code__ is code for sampler in _REGISTERED
    )


_REGISTERED: dict[Any, Callable[..., Any]] = {}
#: The samplers that follow an `Enumerator` now.
_followed: frozenset[Any] = frozenset()


@contextmanager
def follow_laws() -> Iterator[None]:
    """Inside, `enumerate_outputs` need not look for the modules that hold a sampler each time."""
    global _followed
    stand_ins, before = _list_stand_ins(), _followed
    if before >= stand_ins.keys():
        yield
        return
    _followed = frozenset(stand_ins)
    try:
        with replace_samplers(stand_ins):
            yield
    finally:
        _followed = before


def _list_stand_ins() -> dict[Any, Callable[..., Any]]:
    laws = {REAL[name]: law for name, law in _LAWS.items()} | _REGISTERED
    return {real: _draw_or_enumerate(real, law) for real, law in laws.items()}


def _draw_or_enumerate(real: Callable[..., Any], law: Callable[..., Any]) -> Callable[..., Any]:
    """A sampler that follows an `Enumerator`; other threads and helper sources keep the real one."""

    return lambda *args: sample_weakened(
        real, args, law if isinstance(args[-1], Enumerator) else real
    )
