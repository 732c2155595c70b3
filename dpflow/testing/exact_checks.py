"""The exact check of a guarantee; `dpflow.testing.conformance` runs it.

On tables so small that all their neighbours can be listed, the mechanism's own code runs once for
every value of its noise (`dpflow.testing.enumeration`). The output distributions over the whole
result are then compared: a guarantee that is wrong by a few percent shows, and nothing is left to
chance. Samplers are taken at their stated laws; they have tests of their own.
"""

from __future__ import annotations

import json
import math
import sys
import warnings
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Literal

from dpflow.core.contract.declaration import Table
from dpflow.core.contract.interactive import InteractiveMechanism, State
from dpflow.core.contract.mechanism import Mechanism
from dpflow.core.contract.requests import Answer, Groups, Records
from dpflow.core.contract.results import Result
from dpflow.core.sampling.randomness import RandomWords, Source
from dpflow.errors import InvalidInput
from dpflow.testing import exact_divergence, harness
from dpflow.testing.enumeration import NotEnumerable, enumerate_outputs, follow_laws, is_sampler
from dpflow.testing.examples import (
    AnyMechanism,
    Example,
    examples_for,
    neighbouring_answers,
    plan_mechanism,
    possible_answers,
    typical_answer,
    validate_model,
)
from dpflow.testing.harness import LimitedSource, NotConformant, epsilon_delta, require
from dpflow.testing.leaks import name_exact_leak, name_transcript
from dpflow.testing.neighbours import (
    UnitRows,
    answer_fingerprint,
    neighbouring_tables,
    possible_units,
    reference_answer,
)
from dpflow.testing.outcomes import digest_outcome
from dpflow.testing.release_checks import list_pairs
from dpflow.testing.session_checks import (
    LONGEST,
    Game,
    MemorySession,
    Pick,
    list_games,
    neighbouring_sides,
)
from dpflow.testing.tiny_tables import NOTHING, ROWS, TINY_TABLES, is_tiny
from dpflow.testing.work import add_work, counts_work, spent

Law = Mapping[Hashable, float]

#: Work for all distributions of one example at one epsilon.
WORK = 0.4
#: With fewer pairs than these when work is over, other noise is tried, too.
FEW_PAIRS = 5
#: What truncated noise may add to a computed delta.
SLACK = 1e-6
#: The same for sessions, whose many questions each leave a tail out.
SESSION_SLACK = 1e-5
#: States times transcripts of a session, at most.
MOST_PATHS = 200_000
#: Pairs of neighbouring tables with the same number of other units, at most.
PAIRS = 40
#: Little noise has few values and shows a wrong scale best.
EPSILONS = ("12", "4")
#: A wrong session shows after several answers, each of which must keep a mass that can be seen.
SESSION_EPSILONS = ("6", "12")


@dataclass(frozen=True)
class ExactComparison:
    """What the output distributions of one example say.

    Attributes:
        epsilon, delta: the guarantee.
        delta_found: the largest divergence at epsilon over the compared pairs.
        epsilon_found: the least epsilon that they keep at delta.
        pairs: neighbouring answers that were compared; 0 if none could be enumerated.
        obstacle: why some could not, or "".
        passed: whether no pair refutes the guarantee; the tails that were left out are granted.
        laws: the output distributions of the pair that needs the largest epsilon.
        params: the parameters that were compared, as in a release file.
        refuted: laws and, of a release, answers of the pair that breaks the guarantee.
    """

    epsilon: float
    delta: float
    delta_found: float
    epsilon_found: float
    pairs: int
    obstacle: str = ""
    passed: bool = True
    laws: tuple[Law, Law] | None = field(default=None, repr=False)
    params: Mapping[str, Any] = field(default_factory=dict)
    refuted: tuple[tuple[Law, Law], tuple[Answer, Answer] | None] | None = field(
        default=None, repr=False
    )

    @property
    def rank(self) -> tuple[float, int]:
        """How much it shows: the share of the guarantee that its pairs need, and their number."""
        return self.epsilon_found / self.epsilon if self.epsilon else 0.0, self.pairs


def tiny_examples(mechanism: AnyMechanism) -> list[Example]:
    """Examples of the standard parameters on tiny tables, those with the fewest parameters first;
    none if its fields have other names.
    """
    with suppress(InvalidInput):
        return sorted(examples_for(mechanism, TINY_TABLES), key=lambda one: len(one.params))
    return []


@counts_work
def compare_exactly(
    mechanism: AnyMechanism, example: Example, work: float = WORK
) -> ExactComparison:
    """Output distributions of one example on its neighbouring answers, the most distant first."""
    best: ExactComparison | None = None
    for raw in _widen_epsilon(mechanism, example):
        comparison = _compare_laws(mechanism, replace(example, params=raw), work)
        if best is None or not comparison.passed or comparison.rank > best.rank:
            best = comparison
        share, pairs = best.rank
        if isinstance(mechanism, Mechanism):
            # Some pairs of a release show its scale, if half of the noise would show.
            enough = share >= 0.45 and (pairs >= FEW_PAIRS or not comparison.obstacle)
        else:
            # A session shows it after many questions.
            enough = pairs > 0 and not comparison.obstacle
        if not best.passed or enough:
            break
    assert best is not None
    return best


def _compare_laws(mechanism: AnyMechanism, example: Example, work: float) -> ExactComparison:
    params, event = plan_mechanism(mechanism, example.table, example.params)
    epsilon, delta = epsilon_delta(event)
    slack = SLACK if isinstance(mechanism, Mechanism) else SESSION_SLACK
    # A tail counts e^epsilon times, and a session leaves one out with each question.
    questions = 1 if isinstance(mechanism, Mechanism) else LONGEST
    tail = slack / (20 * questions) * math.exp(-min(epsilon, 40))
    worst_delta, worst_epsilon, pairs, obstacle = 0.0, 0.0, 0, ""
    worst: tuple[Law, Law] | None = None
    refuted: tuple[tuple[Law, Law], tuple[Answer, Answer] | None] | None = None
    end = spent() + work
    laws = (
        _session_laws(mechanism, example, params, tail, end)
        if isinstance(mechanism, InteractiveMechanism)
        else _release_laws(mechanism, example, params, tail, end)
    )
    try:
        with follow_laws():
            for first, second, answers in laws:
                pairs += 1
                add_work((len(first) + len(second)) / 20)
                worst = worst or (first, second)
                worst_delta = max(worst_delta, exact_divergence.divergence(first, second, epsilon))
                # Only a pair that is worse than all before is worth the search for its epsilon.
                if exact_divergence.divergence(first, second, worst_epsilon) > delta + slack:
                    worst_epsilon = exact_divergence.smallest_epsilon(first, second, delta + slack)
                    worst = first, second
                if worst_delta > delta + slack:
                    refuted = (first, second), answers
                    break
    except NotEnumerable as error:
        obstacle = str(error)
    return ExactComparison(
        epsilon,
        delta,
        worst_delta,
        worst_epsilon,
        pairs,
        obstacle,
        worst_delta <= delta + slack,
        worst,
        example.params,
        refuted,
    )


class NotFollowed(UserWarning):
    """Output distributions that could not be listed, or not all of them: what passed says nothing of the rest."""


@counts_work
def guarantee_holds_exactly(mechanism: AnyMechanism, example: Example) -> None:
    """Output distributions on neighbouring tables keep the event's (epsilon, delta), over the
    whole result; what cannot be listed is a warning.
    """
    comparison = compare_exactly(mechanism, example, WORK * harness.effort)
    if comparison.passed:
        if comparison.obstacle:
            warnings.warn(
                f"{mechanism.name}, {dict(example.params)}, {example.table.neighbours}: {comparison.pairs} pairs of "
                f"neighbours were compared exactly, and no further one: {comparison.obstacle}",
                NotFollowed,
                stacklevel=2,
            )
        return
    require(
        False,
        f"at epsilon {comparison.epsilon:g} the output distributions need delta {comparison.delta_found:.4g}, "
        f"where the event states {comparison.delta:.4g}; epsilon is at least {comparison.epsilon_found:.4g}. "
        f"What leaks: {_name_leak(mechanism, example, comparison)}",
    )


def _name_leak(mechanism: AnyMechanism, example: Example, found: ExactComparison) -> str:
    assert found.refuted is not None
    laws, answers = found.refuted
    if answers is None or isinstance(mechanism, InteractiveMechanism):
        return name_transcript(laws, found.epsilon)
    params, _ = plan_mechanism(mechanism, example.table, found.params)

    def draw_from(answer: Answer) -> Callable[[Source], Result]:
        return lambda source: mechanism.draw(params, example.table, answer, source)

    draws = [draw_from(answer) for answer in answers]
    tail = SLACK / 20 * math.exp(-min(found.epsilon, 40))
    return name_exact_leak(draws, found.epsilon, found.delta + SLACK, tail, 40 * WORK)


def randomness_has_a_law(mechanism: AnyMechanism, example: Example) -> None:
    """Noise comes from samplers whose law is stated: those of `dpflow.core.sampling.samplers`,
    ``source.draw_below``, or a sampler of its own that `register_law` knows.
    """
    params, _ = plan_mechanism(mechanism, example.table, example.params)
    source = LawSource()
    try:
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
    except NotConformant:
        raise
    except Exception as error:
        raise NotConformant(f"no draw to look at: it raised {type(error).__name__}") from error
    require(
        not source.raw,
        f"raw random words were drawn in {', '.join(sorted(source.raw))}; draw through "
        f"dpflow.core.sampling.samplers, or state the sampler's law with "
        f"dpflow.testing.enumeration.register_law",
    )


class LawSource(Source):
    """The system's entropy; notes functions that take raw words without a stated law."""

    def __init__(self) -> None:
        self._source, self.raw = LimitedSource(), set[str]()

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
        for epsilon in EPSILONS if isinstance(mechanism, Mechanism) else SESSION_EPSILONS:
            raw = {**example.params, "epsilon": epsilon}
            with suppress(InvalidInput):
                plan_mechanism(mechanism, example.table, raw)
                yield raw
    yield dict(example.params)


def _release_laws(
    mechanism: Mechanism[Any], example: Example, params: Any, tail: float, end: float
) -> Iterator[tuple[Law, Law, tuple[Answer, Answer] | None]]:
    """Output distributions on neighbouring answers, with these; equal answers are left out."""
    request = mechanism.data_request(params, example.table)
    laws: dict[Any, Law] = {}

    def output_law(name: Any, answer: Answer) -> Law:
        # One enumeration per distinct answer: most of the time goes there.
        if name not in laws:
            laws[name] = enumerate_outputs(
                lambda source: digest_outcome(
                    mechanism.draw(params, example.table, answer, source)
                ),
                tail=tail,
                work=end - spent(),
            )
        return laws[name]

    compared: set[frozenset[Any]] = set()
    own_pairs = None if example.sides is None else list_pairs(request, example)
    for pair in own_pairs or _neighbouring_pairs(request, example.table):
        names = [answer_fingerprint(answer) for answer in pair]
        if names[0] != names[1] and frozenset(names) not in compared:
            compared.add(frozenset(names))
            yield output_law(names[0], pair[0]), output_law(names[1], pair[1]), pair


def _neighbouring_pairs(request: Any, table: Table) -> Iterator[tuple[Answer, Answer]]:
    if not is_tiny(table):
        yield from neighbouring_answers(request, table)
        return
    rows: Sequence[Mapping[str, Any]] = ROWS
    if isinstance(request, Records):
        # There a public key is its index.
        keys = {name: table.column(name).public_keys for name in request.columns}
        rows = [
            row | {c: k.index(row[c]) for c, k in keys.items() if k is not None} for row in ROWS
        ]
    units = [*possible_units(rows, table.contribution_bounds.rows), (NOTHING,)]
    try:
        # A lone unit shows a wrong scale; what others have matters to choices between values.
        totals = tuple(map(_total_columns, units))
        for others in (0, 1, 2):
            for a, b in _list_distant_pairs(totals, table.neighbours, others):
                yield (
                    reference_answer(request, [units[i] for i in a]),
                    reference_answer(request, [units[i] for i in b]),
                )
    except TypeError:  # a request without a reference answer
        yield from neighbouring_answers(request, table)


def _total_columns(unit: UnitRows) -> tuple[int, ...]:
    """A unit's rows, groups and values, added up: tables are as far apart as these are."""
    totals = {
        (name, value if isinstance(value, str) else ""): sum(
            1 if isinstance(row[name], str) else 1 + row[name]
            for row in unit
            if row[name] is not None and (not isinstance(value, str) or row[name] == value)
        )
        for name in ROWS[0]
        for value in ("a", "b", 0)
    }
    return tuple(totals.values())


@lru_cache(maxsize=64)
def _list_distant_pairs(
    totals: tuple[tuple[int, ...], ...], relation: Literal["add-remove", "replace"], others: int
) -> tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]:
    """Neighbouring tables as numbers of their units, the most distant first, at most `PAIRS`.

    There are thousands, the same for every mechanism. What both share does not move them apart.
    """
    nothing = (0,) * len(totals[0])

    def measure_distance(pair: tuple[tuple[int, ...], tuple[int, ...]]) -> int:
        shared = len(pair[0]) - 1
        first, second = (totals[table[-1]] if len(table) > shared else nothing for table in pair)
        return sum(abs(a - b) for a, b in zip(first, second))

    pairs = sorted(neighbouring_tables(range(len(totals)), relation, others), key=measure_distance)
    return tuple(pairs[-PAIRS:][::-1])


def _session_laws(
    mechanism: InteractiveMechanism[Any, Any],
    example: Example,
    params: Any,
    tail: float,
    end: float,
) -> Iterator[tuple[Law, Law, tuple[Answer, Answer] | None]]:
    """Distributions of whole transcripts: every game on all neighbours, one question more in each
    round, as long as work allows.
    """
    queries = [validate_model(mechanism.Query, query) for query in example.queries]
    sides = [
        [_SessionSide(mechanism, example.table, params, pick, tail, end) for pick in picks]
        for picks in neighbouring_sides(mechanism, example)
    ]
    yield from _search_laws(queries[0], sides)
    walks = [
        [side.walk_game(queries, game) for side in pair]
        for pair in sides
        for game in list_games(len(queries))
    ]
    for _ in range(LONGEST):
        for walk in walks:
            first, second = (next(side) for side in walk)
            yield first, second, None


#: Times that a searched question is asked.
SEARCHED = 4


def _search_laws(
    query: Any, sides: Sequence[Sequence[_SessionSide]]
) -> Iterator[tuple[Law, Law, tuple[Answer, Answer] | None]]:
    """Transcripts of a question whose numbers are searched: where the answers of the two sides lie
    a session's noise shows most, wherever its author's examples ask.
    """
    numbers = [name for name, value in query if type(value) is int]
    for pair in sides:
        counts = sorted({side.count_rows(query) for side in pair})
        if len(counts) < 2:
            continue
        for value in (counts[0], sum(counts) // 2, counts[1]):
            try:
                near = query.model_validate(query.model_dump() | dict.fromkeys(numbers, value))
            except ValueError:
                continue
            walks = [side.walk_game([near], lambda asked, verdicts: asked[0]) for side in pair]
            for _ in range(SEARCHED if numbers else 0):
                first, second = (next(walk) for walk in walks)
                yield first, second, None


class _SessionSide:
    """Sessions on one of two neighbouring tables.

    What a session does next depends on its state alone, and a state is JSON. So each step is
    enumerated once for all games, and paths that lead to one state are merged: long transcripts can
    be followed.
    """

    def __init__(
        self,
        mechanism: InteractiveMechanism[Any, Any],
        table: Table,
        params: Any,
        pick: Pick,
        tail: float,
        end: float,
    ) -> None:
        self._mechanism, self._table, self._params, self._pick = mechanism, table, params, pick
        self._tail, self._end = tail, end
        self._steps: dict[tuple[str, str] | None, Law] = {}
        self._answers: dict[str, Answer] = {}

    def walk_game(self, queries: Sequence[Any], game: Game) -> Iterator[Law]:
        """The distribution of transcripts after each question."""
        paths: dict[Any, float] = {
            (state, False, ()): mass for state, mass in self._open_session().items()
        }
        while True:
            longer: dict[Any, float] = defaultdict(float)
            for (state, closed, verdicts), mass in paths.items():
                query = None if closed else game(queries, verdicts)
                if query is None:
                    longer[state, closed, verdicts] += mass
                    continue
                step: Mapping[Any, float] = self._advance_state(state, query)
                for (body, closes, after), share in step.items():
                    longer[after, closes, (*verdicts, body)] += mass * share
            paths = longer
            if len(paths) > MOST_PATHS:
                raise NotEnumerable(f"a session has more than {MOST_PATHS} paths")
            if spent() > self._end:
                raise NotEnumerable("the sessions take more work than they may")
            transcripts: dict[Hashable, float] = defaultdict(float)
            for (_, _, verdicts), mass in paths.items():
                transcripts[verdicts] += mass
            yield transcripts

    def count_rows(self, query: Any) -> int:
        """How many rows this side answers a query with; 0 if its answer is no count."""
        answer = self._answer_query(query)
        return int(answer.rows.sum()) if isinstance(answer, Groups) else 0

    def _answer_query(self, query: Any) -> Answer:
        name = query.model_dump_json()
        if name not in self._answers:
            request = self._mechanism.data_request(self._params, query, self._table)
            self._answers[name] = self._pick(request)
        return self._answers[name]

    def _open_session(self) -> Mapping[Any, float]:
        def draw_state(source: Source) -> str:
            state = self._mechanism.open(self._params, self._table, source)
            return json.dumps(state.data, sort_keys=True)

        return self._enumerate_once(None, draw_state)

    def _advance_state(self, state: str, query: Any) -> Law:
        answer = self._answer_query(query)

        def draw_step(source: Source) -> tuple[str, bool, str]:
            verdict, after = self._mechanism.answer(
                self._params, self._table, State(json.loads(state)), query, answer, source
            )
            body = json.dumps([verdict.body, verdict.closed], sort_keys=True)
            return body, verdict.closed, json.dumps(after.data, sort_keys=True)

        return self._enumerate_once((state, query.model_dump_json()), draw_step)

    def _enumerate_once(
        self, name: tuple[str, str] | None, draw: Callable[[Source], Hashable]
    ) -> Law:
        if name not in self._steps:
            work = self._end - spent()
            self._steps[name] = enumerate_outputs(draw, tail=self._tail, work=work)
        return self._steps[name]
