"""The exact check of a guarantee; `dpflow.testing.conformance` runs it.

On tables so small that all their neighbours can be listed, the mechanism's own code runs once for
every value of its noise (`dpflow.testing.enumeration`). The output distributions over the whole
result are then compared: a guarantee that is wrong by a few percent shows, and nothing is left to
chance. Samplers are taken at their stated laws; they have tests of their own.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Hashable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from dpflow.core.contract.declaration import Table
from dpflow.core.contract.interactive import InteractiveMechanism
from dpflow.core.contract.requests import Answer
from dpflow.core.sampling.randomness import RandomWords, Source, SystemSource
from dpflow.errors import InvalidInput
from dpflow.testing import exact_divergence
from dpflow.testing.enumeration import NotEnumerable, enumerate_outputs, is_sampler
from dpflow.testing.examples import (
    AnyMechanism,
    Example,
    examples_for,
    neighbouring_answers,
    plan_mechanism,
    possible_answers,
    typical_answer,
)
from dpflow.testing.harness import epsilon_delta, require
from dpflow.testing.neighbours import (
    SmallTable,
    answer_fingerprint,
    neighbouring_tables,
    possible_units,
    reference_answer,
)
from dpflow.testing.outcomes import freeze_outcome
from dpflow.testing.session_checks import MemorySession, Pick, neighbouring_sides

#: CPU seconds for all distributions of one example.
SECONDS = 1.0
#: What truncated noise may add to a computed delta.
SLACK = 2e-4
#: Pairs of neighbouring tables with the same number of other units, at most.
PAIRS = 40
#: Much noise has many values, and little noise shows a wrong scale best.
EPSILONS = ("4", "12")

_TINY: dict[str, Any] = {
    "name": "tiny",
    "database": "tiny.duckdb",
    "privacy_unit": {"column": "user"},
    "columns": {
        "user": {},
        "kind": {"public_keys": ["b", "a"]},
        "word": {},
        "amount": {"lower": -1, "upper": 2},
        "share": {"lower": 0, "upper": 1, "step": "0.5"},
    },
}
#: A unit has two rows: one in each of two groups, or both in one group.
TINY_TABLES = tuple(
    Table.model_validate(
        _TINY
        | {
            "contribution_bounds": {"rows": 2, "groups": groups, "rows_per_group": 2 // groups},
            "neighbours": relation,
        }
    )
    for relation, groups in (
        ("add-remove", 2),
        ("replace", 1),
        ("replace", 2),
        ("add-remove", 1),
    )
)
#: Rows at the ends of every column's domain.
_ROWS = tuple(
    {"kind": kind, "word": kind, "amount": amount, "share": share}
    for kind in "ab"
    for amount, share in ((-1, 0), (2, 2))
)
_NOTHING = dict.fromkeys(_ROWS[0])


@dataclass(frozen=True)
class ExactComparison:
    """What the output distributions of one example say.

    Attributes:
        epsilon, delta: the guarantee.
        delta_found: the largest divergence at epsilon over the compared pairs.
        epsilon_found: the least epsilon that they keep at delta.
        pairs: neighbouring answers that were compared; 0 if none could be enumerated.
        obstacle: why some could not, or "".
    """

    epsilon: float
    delta: float
    delta_found: float
    epsilon_found: float
    pairs: int
    obstacle: str = ""

    @property
    def passed(self) -> bool:
        """Whether no pair refutes the guarantee; the tails that were left out are granted."""
        return self.delta_found <= self.delta + SLACK


def tiny_examples(mechanism: AnyMechanism) -> list[Example]:
    """Examples of the standard parameters on tiny tables, those with the fewest parameters first;
    none if its fields have other names.
    """
    with suppress(InvalidInput):
        return sorted(examples_for(mechanism, TINY_TABLES), key=lambda one: len(one.params))
    return []


def compare_exactly(
    mechanism: AnyMechanism, example: Example, seconds: float = SECONDS
) -> ExactComparison:
    """Output distributions of one example on its neighbouring answers, the most distant first."""
    best: ExactComparison | None = None
    for raw in _widen_epsilon(mechanism, example):
        found = _compare_laws(mechanism, replace(example, params=raw), seconds)
        if best is None or found.pairs > best.pairs or not found.passed:
            best = found
        if best.pairs:
            break
    assert best is not None
    return best


def _compare_laws(mechanism: AnyMechanism, example: Example, seconds: float) -> ExactComparison:
    params, event = plan_mechanism(mechanism, example.table, example.params)
    epsilon, delta = epsilon_delta(event)
    # A tail counts e^epsilon times.
    tail = SLACK / 20 * math.exp(-min(epsilon, 40))
    end = time.thread_time() + seconds
    laws: dict[Any, dict[Hashable, float]] = {}
    worst_delta, worst_epsilon, pairs, obstacle = 0.0, 0.0, 0, ""
    for draws in _list_pairs(mechanism, example, params):
        try:
            for name, draw in draws:
                # One enumeration per distinct answer: most of the time goes there.
                if name not in laws:
                    laws[name] = enumerate_outputs(
                        draw, tail=tail, seconds=end - time.thread_time()
                    )
        except NotEnumerable as error:
            obstacle = str(error)
            break
        first, second = (laws[name] for name, _ in draws)
        pairs += 1
        worst_delta = max(worst_delta, exact_divergence.divergence(first, second, epsilon))
        # Only a pair that is worse than all before is worth the search for its epsilon.
        if exact_divergence.divergence(first, second, worst_epsilon) > delta + SLACK:
            worst_epsilon = exact_divergence.smallest_epsilon(first, second, delta + SLACK)
    return ExactComparison(epsilon, delta, worst_delta, worst_epsilon, pairs, obstacle)


def guarantee_holds_exactly(mechanism: AnyMechanism, example: Example) -> None:
    """Output distributions on neighbouring tables keep the event's (epsilon, delta), over the
    whole result.
    """
    found = compare_exactly(mechanism, example)
    require(
        found.passed,
        f"at epsilon {found.epsilon:g} the output distributions need delta {found.delta_found:.4g}, "
        f"where the event states {found.delta:.4g}; epsilon is at least {found.epsilon_found:.4g}",
    )


def randomness_has_a_law(mechanism: AnyMechanism, example: Example) -> None:
    """Noise comes from samplers whose law is stated: those of `dpflow.core.sampling.samplers`,
    ``source.draw_below``, or a sampler of its own that `register_law` knows.
    """
    params, _ = plan_mechanism(mechanism, example.table, example.params)
    source = LawSource()
    if isinstance(mechanism, InteractiveMechanism):
        session = MemorySession(mechanism, example, source)
        session.transcript(lambda request: typical_answer(request, example.table))
    else:
        request = mechanism.data_request(params, example.table)
        for answer in (
            typical_answer(request, example.table),
            *possible_answers(request, example.table).values(),
        ):
            mechanism.draw(params, example.table, answer, source)
    require(
        not source.raw,
        f"raw random words were drawn in {', '.join(sorted(source.raw))}; draw through "
        f"dpflow.core.sampling.samplers, or state the sampler's law with "
        f"dpflow.testing.enumeration.register_law",
    )


class LawSource(Source):
    """The system's entropy; notes functions that take raw words without a stated law."""

    def __init__(self) -> None:
        self._source, self.raw = SystemSource(), set[str]()

    def draw_words(self, n: int) -> RandomWords:
        """The next n words; notes who asked."""
        frame = sys._getframe(1)
        function = frame.f_code.co_name
        while frame is not None and frame.f_globals.get("__name__") == Source.__module__:
            # A uniform choice below n has its law by itself.
            if frame.f_code.co_name == "draw_below":
                return self._source.draw_words(n)
            function, frame = frame.f_code.co_name, frame.f_back  # type: ignore[assignment]
        caller = frame
        while caller is not None:
            if is_sampler(caller.f_code):
                return self._source.draw_words(n)
            caller = caller.f_back  # type: ignore[assignment]
        name = frame.f_globals.get("__name__", "?") if frame is not None else "?"
        self.raw.add(f"{name}.{frame.f_code.co_name if frame is not None else function}")
        return self._source.draw_words(n)


def _widen_epsilon(mechanism: AnyMechanism, example: Example) -> Iterator[dict[str, Any]]:
    """The example's parameters at epsilons whose noise has few values, where these plan."""
    if "epsilon" in mechanism.Params.model_fields:
        for epsilon in EPSILONS:
            raw = {**example.params, "epsilon": epsilon}
            with suppress(InvalidInput):
                plan_mechanism(mechanism, example.table, raw)
                yield raw
    yield dict(example.params)


Draw = Callable[[Source], Hashable]


def _list_pairs(
    mechanism: AnyMechanism, example: Example, params: Any
) -> Iterator[list[tuple[Any, Draw]]]:
    """Neighbouring answers, each with a name and what draws its outcome; equal ones are left out."""
    if isinstance(mechanism, InteractiveMechanism):
        yield from _session_pairs(mechanism, example)
        return
    request = mechanism.data_request(params, example.table)

    def bind_draw(answer: Answer) -> tuple[Any, Draw]:
        return answer_fingerprint(answer), lambda source: freeze_outcome(
            mechanism.draw(params, example.table, answer, source)
        )

    compared: set[frozenset[Any]] = set()
    for pair in _neighbouring_pairs(request, example.table):
        draws = [bind_draw(answer) for answer in pair]
        names = frozenset(name for name, _ in draws)
        if len(names) == 2 and names not in compared:
            compared.add(names)
            yield draws


def _neighbouring_pairs(request: Any, table: Table) -> Iterator[tuple[Answer, Answer]]:
    if table.name != _TINY["name"]:
        yield from neighbouring_answers(request, table)
        return
    units = [*possible_units(_ROWS, table.contribution_bounds.rows), (_NOTHING,)]
    try:
        # A lone unit shows a wrong scale; what others have matters to choices between values.
        for others in (0, 1, 2):
            pairs = sorted(
                neighbouring_tables(units, table.neighbours, others), key=_measure_distance
            )
            for a, b in pairs[-PAIRS:][::-1]:
                yield reference_answer(request, a), reference_answer(request, b)
    except TypeError:  # a request without a reference answer
        yield from neighbouring_answers(request, table)


def _measure_distance(pair: tuple[SmallTable, SmallTable]) -> int:
    """How far two neighbouring tables are apart: rows, groups and values."""
    totals = [
        {
            (name, value if isinstance(value, str) else ""): sum(
                1 if isinstance(row[name], str) else 1 + row[name]
                for row in rows
                if row[name] is not None and (not isinstance(value, str) or row[name] == value)
            )
            for name in _ROWS[0]
            for value in ("a", "b", 0)
        }
        for rows in ([row for unit in table for row in unit] for table in pair)
    ]
    return sum(abs(totals[0][name] - totals[1][name]) for name in totals[0])


def _session_pairs(
    mechanism: InteractiveMechanism[Any, Any], example: Example
) -> Iterator[list[tuple[Any, Draw]]]:
    """Transcripts of the first two queries, of the first one asked twice, and of all."""
    for queries in ([*example.queries[:1]] * 2, [*example.queries[:2]], [*example.queries]):
        short = replace(example, queries=queries)
        for number, picks in enumerate(neighbouring_sides(mechanism, short)):
            yield [
                ((str(queries), number, side), _bind_transcript(mechanism, short, pick))
                for side, pick in enumerate(picks)
            ]


def _bind_transcript(
    mechanism: InteractiveMechanism[Any, Any], example: Example, pick: Pick
) -> Draw:
    return lambda source: MemorySession(mechanism, example, source).transcript(pick)
