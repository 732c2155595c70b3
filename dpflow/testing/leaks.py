"""Which part of a result leaks: a refuted guarantee is said with the name of what tells too much.

Each coordinate of a result (`dpflow.testing.outcomes.list_features`) is compared by itself between two
neighbours. A coordinate that alone breaks the guarantee is named. Where none does, the noise is too
small for what all of them tell together.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

from dpflow.core.contract.results import Result
from dpflow.core.sampling.randomness import Source
from dpflow.testing.enumeration import NotEnumerable, enumerate_outputs
from dpflow.testing.exact_divergence import divergence, smallest_epsilon
from dpflow.testing.outcomes import Features, Path, list_features

#: Values of one coordinate that are compared at most.
MOST_VALUES = 20_000
#: The whole, which leaks wherever a part does.
_WHOLE: Path = ("all",)


def name_exact_leak(
    draws: Sequence[Callable[[Source], Result]],
    epsilon: float,
    delta: float,
    tail: float,
    work: float,
) -> str:
    """What leaks between two neighbours whose every draw can be followed.

    Args:
        draws: one function of a source for each neighbour.
        epsilon, delta: the guarantee that the results break.
        tail: mass that truncated noise may leave out.
        work: work for both sides; when it is over, nothing is named.
    """
    try:
        laws = [
            enumerate_outputs(_freeze_features(draw), tail=tail, work=work / 2) for draw in draws
        ]
    except NotEnumerable:
        return "the result"
    sides = [[(dict(features), mass) for features, mass in law.items()] for law in laws]
    return _name_worst(sides, epsilon, delta)


def _freeze_features(draw: Callable[[Source], Result]) -> Callable[[Source], frozenset[Any]]:
    return lambda source: frozenset(list_features(draw(source)).items())


def name_drawn_leak(results: Sequence[Sequence[Result]], epsilon: float) -> str:
    """What differs most between draws on two neighbours: a hint, where an audit has refuted."""
    sides = [[(list_features(one), 1 / len(drawn)) for one in drawn] for drawn in results]
    # Rare values say nothing in a few draws, so a coordinate must differ in many of them.
    return _name_worst(sides, epsilon, 0.2)


def name_transcript(laws: Sequence[Mapping[Hashable, float]], epsilon: float) -> str:
    """The transcript of a session that tells most, of two laws of transcripts."""
    factor = math.exp(epsilon)
    excess: dict[Hashable, float] = defaultdict(float)
    for first, second in (laws, laws[::-1]):
        for transcript, mass in first.items():
            excess[transcript] = max(excess[transcript], mass - factor * second.get(transcript, 0))
    worst = max(excess, key=lambda one: excess[one])
    answers = list(worst) if isinstance(worst, tuple) else [worst]
    text = ", ".join(str(one) for one in answers)
    return f"{len(answers)} answers together, such as {text[:300]}"


def _name_worst(
    sides: Sequence[Sequence[tuple[Features, float]]], epsilon: float, delta: float
) -> str:
    paths = dict.fromkeys(path for side in sides for features, _ in side for path in features)
    leaking = []
    for path in paths:
        laws = [Counter[Hashable]() for _ in sides]
        for law, side in zip(laws, sides, strict=True):
            for features, mass in side:
                law[features.get(path)] += mass  # type: ignore[assignment]
        if path != _WHOLE and max(map(len, laws)) <= MOST_VALUES:
            here = divergence(laws[0], laws[1], epsilon)
            if here > delta:
                leaking.append((-smallest_epsilon(laws[0], laws[1], delta), _rank(path), path))
    if not leaking:
        return "all numbers of the result together"
    worst = min(leaking)[2]
    repeated = any(
        path[:3] == worst[:3] and path != worst for path in paths if worst[0] in ("row", "error")
    )
    return describe_path(worst, repeated)


def _rank(path: Path) -> tuple[int, str]:
    """Among what tells as much: the shape before what it holds, and names before numbers."""
    order = ("rows", "order", "document", "synthetic", "error", "row")
    kind = str(path[0])
    first = path == ("synthetic", "rows")
    return order.index(kind) - first if kind in order else len(order), repr(path)


def describe_path(path: Path, repeated: bool = False) -> str:
    """A coordinate in words.

    Args:
        path: as `list_features` names it.
        repeated: several rows have this key and measure.
    """
    kind, *rest = path
    if kind in ("row", "error"):
        key, measure, occurrence = rest
        what = "the value" if kind == "row" else "the stated error"
        of_key = f" of key {key!r}" if key else ""
        again = f", row {int(str(occurrence)) + 1} of several with this name" if repeated else ""
        return f"{what} of {measure!r}{of_key}{again}"
    if kind == "document":
        return f"the document, at {'.'.join(map(str, rest))}"
    if kind == "synthetic":
        if rest == ["rows"]:
            return "the number of synthetic rows"
        return f"the synthetic rows, in column {rest[0]!r}"
    return {
        "rows": "the number of rows",
        "order": "which keys have rows, or their order",
    }.get(str(kind), "the result as a whole")
