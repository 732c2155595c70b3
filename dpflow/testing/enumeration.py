"""The exact output distribution of a mechanism's own code, by running it once for every value its
noise can take.

While `outputs` runs, the samplers of `dpflow.core.sampling.samplers` answer an `Enumerator` from
their exact laws (`oracle`) instead of drawing: each run follows one path through all random
choices, and its probability is the product along the path. What is audited is everything but the
samplers, which have their own tests: scales, thresholds, costs, clamping. Noise is truncated where
less than ``tail`` is left of each number.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from fractions import Fraction
from itertools import permutations
from typing import Any, TypeVar

import numpy as np

from dpflow.core.contract.declaration import Table
from dpflow.core.contract.mechanism import Mechanism
from dpflow.core.contract.requests import Answer
from dpflow.core.sampling import samplers
from dpflow.core.sampling.randomness import Source, Words
from dpflow.testing import exact_divergence
from dpflow.testing.neighbours import fingerprint

Outcome = TypeVar("Outcome", bound=Hashable)


class NotEnumerable(Exception):
    """The code takes raw words, or has more paths than allowed."""


class Enumerator(Source):
    """A source that follows a scripted path and takes the first alternative at every choice beyond
    it.
    """

    def __init__(self, path: Sequence[int], tail: float) -> None:
        self.path, self.tail = list(path), tail
        self.sizes: list[int] = []
        self.weight = 1.0

    def pick(self, law: Mapping[int, float]) -> int:
        """The next choice, by a law over integers."""
        step, items = len(self.sizes), list(law.items())
        if step == len(self.path):
            self.path.append(0)
        self.sizes.append(len(items))
        value, mass = items[self.path[step]]
        self.weight *= mass
        return value

    def below(self, n: int) -> int:
        """A uniform choice."""
        if n > 10_000:
            raise NotEnumerable(f"a uniform choice among {n} is too wide to enumerate")
        return self.pick({i: 1 / n for i in range(n)})

    def words(self, n: int) -> Words:
        """Refused: 2^64 alternatives."""
        raise NotEnumerable(
            "raw random words cannot be enumerated; draw through dpflow.core.sampling.samplers"
        )

    def next_path(self) -> list[int] | None:
        """The path after this one in depth-first order, or None after the last."""
        path = self.path
        for step in range(len(path) - 1, -1, -1):
            if path[step] + 1 < self.sizes[step]:
                return [*path[:step], path[step] + 1]
        return None


def outputs(
    draw: Callable[[Source], Outcome], tail: float = exact_divergence.TAIL, paths: int = 500_000
) -> dict[Outcome, float]:
    """Every outcome of ``draw`` with its probability. Raises `NotEnumerable`."""
    found: dict[Outcome, float] = defaultdict(float)
    path: list[int] = []
    with _enumerated():
        for _ in range(paths):
            source = Enumerator(path, tail)
            outcome = draw(source)
            found[outcome] += source.weight
            following = source.next_path()
            if following is None:
                return dict(found)
            path = following
    raise NotEnumerable(f"more than {paths} paths; take a larger epsilon or fewer groups")


def exact_delta(
    mechanism: Mechanism[Any],
    params: Any,
    table: Table,
    pairs: Iterator[tuple[Answer, Answer]],
    epsilon: float | Fraction,
) -> float:
    """The largest `oracle.divergence` of the mechanism's outputs over pairs of neighbouring
    answers.
    """
    known: dict[Any, dict[Any, float]] = {}
    done: set[frozenset[Any]] = set()

    def law(given: Answer) -> dict[Any, float]:
        name = fingerprint(given)
        if name not in known:
            known[name] = outputs(lambda source: mechanism.draw(params, table, given, source))
        return known[name]

    worst = 0.0
    for a, b in pairs:
        pair = frozenset((fingerprint(a), fingerprint(b)))
        if len(pair) == 2 and pair not in done:
            done.add(pair)
            worst = max(worst, exact_divergence.divergence(law(a), law(b), epsilon))
    return worst


def _vector(
    law: Callable[[Fraction, float], Mapping[int, float]],
) -> Callable[[Any, int, Enumerator], Any]:
    def sample(scale: Any, size: int, source: Enumerator) -> Any:
        one = law(Fraction(scale), source.tail)
        return np.array([source.pick(one) for _ in range(size)], dtype=np.int64)

    return sample


def _truncated(scale: Any, radius: int, size: int, source: Enumerator) -> Any:
    return _vector(lambda b, _: exact_divergence.truncated_laplace(b, radius))(scale, size, source)


def _ring(n: int, source: Enumerator) -> Any:
    """Each circle once: it starts with 0 and goes round towards the smaller of its neighbours."""
    circles = [
        (0, *rest)[:n] for rest in permutations(range(1, n)) if not rest or rest[0] <= rest[-1]
    ]
    place = source.pick(dict.fromkeys(range(len(circles)), 1 / len(circles)))
    return np.array(circles[place], dtype=np.int64)


def _choose(
    lengths: Sequence[int], costs: Sequence[int], rate: Fraction, source: Enumerator
) -> int:
    return source.pick(exact_divergence.exponential_choice(lengths, costs, rate))


def _permute_and_flip(costs: Any, rate: Fraction, source: Enumerator) -> int:
    return source.pick(exact_divergence.permute_and_flip(np.asarray(costs).tolist(), rate))


def _choose_rows(costs: Any, rate: Fraction, source: Enumerator) -> Any:
    rows = [
        source.pick(exact_divergence.exponential_choice([1] * len(row), row, rate))
        for row in np.asarray(costs).tolist()
    ]
    return np.array(rows, dtype=np.int64)


def _uniform(n: int, size: int, source: Enumerator) -> Any:
    return np.array([source.below(n) for _ in range(size)], dtype=np.int64)


def _bernoulli(p: Fraction, source: Enumerator) -> bool:
    return bool(source.pick({0: float(1 - p), 1: float(p)}))


_LAWS: dict[str, Callable[..., Any]] = {
    "discrete_laplace": _vector(exact_divergence.discrete_laplace),
    "discrete_gaussian": _vector(exact_divergence.discrete_gaussian),
    "geometric": _vector(exact_divergence.geometric),
    "truncated_laplace": _truncated,
    "ring": _ring,
    "choose": _choose,
    "permute_and_flip": _permute_and_flip,
    "choose_rows": _choose_rows,
    "uniform": _uniform,
    "bernoulli": _bernoulli,
}


@contextmanager
def _enumerated() -> Iterator[None]:
    """Every module that imported a sampler by name gets one that also understands an `Enumerator`."""
    places = []
    for name, law in _LAWS.items():
        real = getattr(samplers, name)

        def either(*args: Any, _real: Any = real, _law: Any = law) -> Any:
            return (_law if isinstance(args[-1], Enumerator) else _real)(*args)

        for module in list(sys.modules.values()):
            if module is not None and vars(module).get(name) is real:
                places.append((module, name, real))
                setattr(module, name, either)
    try:
        yield
    finally:
        for module, name, real in places:
            setattr(module, name, real)
