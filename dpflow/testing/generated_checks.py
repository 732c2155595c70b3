"""Checks of a one-shot mechanism on generated tables (`dpflow.testing.generated_tables`).

`guarantee_holds_on_generated_tables` compares whole runs where noise may be seen: the loss of one
possible run is exact (`dpflow.testing.replay`), so a pure guarantee is refuted by one run, and one
with a delta by many. Noise that stays secret is enumerated where it has few values.

Beside these small tables come plans whose numbers run through whole ranges (`dpflow.testing.generated_ranges`), each on
its most distant neighbours, and neighbours of many equal units.

`structure_is_public` looks at tables of 0 to 2^20 equal units: at every number to 256, on a geometric grid, and at each
number that the mechanism's code names. With the same random words, the form
of the result must not depend on how many there are: which samplers are called and at which scale,
which values are missing, their types, stated errors and remarks. Where the form changes between n
and n + 1 units, these are neighbours, and both results are audited.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property, partial
from typing import Any

from dpflow.core.accounting.events import Event, Unprotected
from dpflow.core.contract.audit_cells import (
    Cells,
    describe_cells,
    digest_cells,
    has_holes,
    merge_cells,
)
from dpflow.core.contract.mechanism import Mechanism
from dpflow.core.contract.requests import Answer
from dpflow.core.contract.results import Result
from dpflow.core.sampling.randomness import RandomWords, Source, SystemSource
from dpflow.errors import InvalidInput
from dpflow.testing import harness
from dpflow.testing.audit import affordable_draws, audit_with_confirmation
from dpflow.testing.enumeration import NotEnumerable, enumerate_outputs
from dpflow.testing.exact_divergence import divergence
from dpflow.testing.examples import Example, plan_mechanism
from dpflow.testing.generated_ranges import range_cases
from dpflow.testing.generated_tables import (
    CLOSE_PAIRS,
    MAX_PAIRS,
    MAX_UNITS,
    SMALL_SIZES,
    Case,
    EqualUnits,
    describe_pair,
    distant_neighbours,
    generate_cases,
    generated_neighbours,
    list_sizes,
    lone_unit_cases,
    spread,
)
from dpflow.testing.half_widths import half_widths_hold
from dpflow.testing.harness import (
    LimitedSource,
    NotConformant,
    StreamSource,
    epsilon_delta,
    require,
)
from dpflow.testing.neighbours import answer_fingerprint
from dpflow.testing.outcomes import choose_paths, list_features, make_outcome
from dpflow.testing.replay import (
    DrawRun,
    Run,
    climb_both_ways,
)
from dpflow.testing.replay_audit import ROUNDING, find_delta
from dpflow.testing.replay_laws import Impossible, NamedNoise, Unfollowed
from dpflow.testing.replay_samplers import follow_samplers
from dpflow.testing.replay_sources import Recording
from dpflow.testing.sampler_patches import REAL, replace_samplers
from dpflow.testing.sensitivity_audit import statistics_move_as_stated
from dpflow.testing.work import Made, counts_work, spent

#: Paths of one enumeration, and of all of them together.
PATHS, ALL_PATHS = 2_000, 12_000
#: What an enumeration leaves out of each number, and what that may add to delta.
TAIL, SLACK = 1e-9, 1e-5
#: Pairs of neighbours of all cases together, and work (`dpflow.testing.work`), for draws that take long. Cases beyond
#: either are reported as not followed.
PAIRS, MAX_WORK = 2_400, 20
#: So many pairs with so much work are enough where each takes long.
ENOUGH_PAIRS, ENOUGH_WORK = 400, 6
#: Work of the runs of one pair, and of the forms of all sizes.
RUNS_WORK, FORMS_WORK = 20, 10
#: Work for a few pairs of every case.
WHOLE_WORK = 90
#: How many times longer a first pair is waited for.
PATIENCE = 10
#: Work of one run whose numbers are chosen.
CLIMB_WORK = 0.3
#: Pairs of each case that have been compared after each round.
DEPTHS = (2, MAX_PAIRS, CLOSE_PAIRS)
#: Cases of which tables of many equal units are compared.
SIZED_CASES = 4
#: Changes of form that are audited for one case.
MAX_CHANGES = 4
#: Declarations with parameters whose form is looked at, and draws of an audited change.
FORMS, DRAWS = 4, 800
#: Work of the draws of one change.
PAIR_WORK = 2


@dataclass
class Coverage:
    """What was compared.

    Attributes:
        cases, pairs: how many declarations with parameters, and pairs of neighbours.
        cells: of all cases that were followed.
        plans: names of these cases (`dpflow.core.contract.audit_cells.digest_cells`).
        not_followed: cases whose noise could not be followed.
        ranges: whether each generated value of a range was tried in some case.
        paths: runs of enumerations.
        judged: guarantees with the laws of noise that were drawn from (`dpflow.testing.replay_laws.name_laws`).
        losses: the largest losses of pure noise, by its laws.
    """

    cases: int = 0
    pairs: int = 0
    cells: Cells = field(default_factory=dict)
    plans: frozenset[str] = frozenset()
    not_followed: int = 0
    ranges: bool = False
    paths: int = 0
    judged: set[Hashable] = field(default_factory=set, repr=False)
    losses: dict[Hashable, float] = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class Violation:
    """A pair of neighbours that breaks the guarantee; ``tables`` are smallest ones with their answers."""

    case: Case
    epsilon: float
    delta: float
    loss: str
    pair: tuple[Answer, Answer]
    tables: str

    def __str__(self) -> str:
        return (
            f"on a generated table ({_name_cells(self.case.cells)}; "
            f"{dict(self.case.params)}) {self.loss}, where the event states "
            f"({self.epsilon:g}, {self.delta:g}). Neighbouring answers: {self.tables}"
        )


def _name_cells(cells: Cells) -> str:
    return ", ".join(f"{name} {' and '.join(sorted(cells[name]))}" for name in cells)


@counts_work
def find_violation(
    mechanism: Mechanism[Any],
    effort: float = 1.0,
    examples: Sequence[Example] = (),
    is_whole: bool = False,
) -> tuple[Violation | None, Coverage]:
    """The first pair of generated neighbours that breaks the guarantee, and what was compared: of every
    case a few pairs, then of every one more of them.

    Args:
        mechanism: an instance.
        effort: how many times longer than usual.
        examples: plans that are compared first; where parameters have no standard names, others are made of them.
        is_whole: look at every case, whatever the effort: a certificate covers ranges only then.
    """
    violation, coverage, parts = _search(mechanism, effort, examples, is_whole)
    if violation is not None:
        return violation, coverage
    compared = [one for part in parts for one in part]
    followed = [one for one in compared if one.is_followed]
    coverage.cases, coverage.not_followed = len(followed), len(compared) - len(followed)
    coverage.cells = merge_cells(one.case.cells for one in followed)
    others = (one.case.cells for one in compared if not one.is_followed)
    coverage.ranges = not has_holes(coverage.cells, merge_cells(others))
    coverage.plans = frozenset(digest_cells(one.case.cells) for one in followed)
    return None, coverage


def _search(
    mechanism: Mechanism[Any],
    effort: float,
    examples: Sequence[Example] = (),
    is_whole: bool = False,
) -> tuple[Violation | None, Coverage, Sequence[Made[_ComparedCase]]]:
    """As `find_violation`; the coverage counts pairs and paths alone, and cases that no work suffices for are not made."""
    coverage = Coverage()
    tiny = generate_cases(mechanism)
    sized = {id(case) for case in spread(tiny)[:SIZED_CASES]}
    # Ranges have a budget of their own: they leave small tables as much work as they had alone.
    parts = [
        Made(_ComparedCase(mechanism, case, coverage, effort, id(case) in sized) for case in cases)
        for cases in ([*_cases_of(mechanism, examples), *tiny], range_cases(mechanism, examples))
    ]
    with follow_samplers():
        for part in parts:
            begun, before = spent(), coverage.pairs

            def is_over(
                is_first: bool,
                begun: float = begun,
                before: int = before,
                part: Made[_ComparedCase] = part,
            ) -> bool:
                pairs, is_needed = coverage.pairs - before, is_whole and is_first
                work = WHOLE_WORK if is_needed else MAX_WORK * effort
                # What cases cost to make is no work of comparing them.
                taken = spent() - begun - part.work
                is_spent = taken > work
                if not is_needed:
                    is_enough = pairs >= ENOUGH_PAIRS * effort and taken > ENOUGH_WORK * effort
                    is_spent = is_spent or is_enough or pairs >= PAIRS * effort
                # Where no run of a mechanism can be followed in time, further cases are no other.
                return (pairs > 0 and is_spent) or taken > PATIENCE * work

            for depth, case in ((depth, case) for depth in DEPTHS for case in part):
                ends = partial(is_over, depth == DEPTHS[0])
                if ends():
                    break
                if (violation := case.compare(depth, ends)) is not None:
                    return violation, coverage, parts
    return None, coverage, parts


def _cases_of(mechanism: Mechanism[Any], examples: Sequence[Example]) -> Iterator[Case]:
    for example in examples:
        with suppress(InvalidInput):
            params, _ = plan_mechanism(mechanism, example.table, example.params)
            cells = describe_cells(example.table, params)
            yield Case(example.table, example.params, cells, is_range=True, example=example)


class _ComparedCase:
    """A case, and how many of its pairs were compared."""

    def __init__(
        self,
        mechanism: Mechanism[Any],
        case: Case,
        coverage: Coverage,
        effort: float,
        is_sized: bool = False,
    ) -> None:
        self.case, self.done = case, 0
        self._mechanism, self._coverage, self._effort = mechanism, coverage, effort
        self._laws: dict[Any, dict[str, float] | None] = {}
        # Sizes of tables of many equal units are pairs, too.
        self._pairs: list[tuple[Answer, Answer] | int] | None = None
        self._units: EqualUnits | None = None
        self._ends, self._is_sized = False, is_sized

    def compare(self, depth: int, is_over: Callable[[], bool]) -> Violation | None:
        """What breaks the guarantee on the first pairs, up to this number or until work is over."""
        if self._ends:
            return None
        if isinstance(self._event, Unprotected):
            self._ends = True
            return None
        epsilon, delta = self._guarantee
        for listed in self._list_pairs()[self.done : depth]:
            if self.done and is_over():
                return None
            if isinstance(listed, int):
                assert self._units is not None
                pair = self._units.neighbours(listed)
            else:
                # A wrong mechanism may change what it is given.
                pair = deepcopy(listed)
            loss = self._find_loss(pair, epsilon, delta)
            if loss is None and self.case.example is not None:
                loss = self._draw_loss(pair)
            if loss is None:
                self._ends = True
                return None
            self.done += 1
            self._coverage.pairs += 1
            if loss:
                request = self._mechanism.data_request(self._params, self.case.table)
                tables = describe_pair(request, self.case.table, pair)
                return Violation(self.case, epsilon, delta, loss, pair, tables)
        return None

    @property
    def is_followed(self) -> bool:
        """Whether pairs were compared, or neighbours have the same answer."""
        return self.done > 0 or (self._pairs == [] and not self._ends)

    # Many cases are beyond the work that there is, and need none of these.
    @cached_property
    def _params(self) -> Any:
        return self._mechanism.Params.model_validate(dict(self.case.params))

    @cached_property
    def _event(self) -> Event:
        return self._mechanism.event(self._params, self.case.table)

    @cached_property
    def _guarantee(self) -> tuple[float, float]:
        return epsilon_delta(self._event)

    def _draw_loss(self, pair: tuple[Answer, Answer]) -> str:
        """What draws show, where runs cannot be followed."""
        try:
            _audit_pair(self._mechanism, self.case, pair, "its neighbours are told apart")
        except NotConformant as refusal:
            return str(refusal)
        return ""

    def _list_pairs(self) -> list[tuple[Answer, Answer] | int]:
        if self._pairs is None:
            try:
                request = self._mechanism.data_request(self._params, self.case.table)
                if self.case.is_range:
                    self._pairs = [*distant_neighbours(request, self.case)]
                else:
                    most = self.case.max_pairs
                    self._pairs = [*generated_neighbours(request, self.case.table, most)]
                if self._is_sized:
                    self._units = EqualUnits(request, self.case.table)
                    listed = list_sizes(self._mechanism, self._units.most - 1, SMALL_SIZES)
                    number = sum(n < MAX_UNITS for n in listed)
                    # Large tables come last: there are many of them.
                    self._pairs[MAX_PAIRS // 4 : 0] = listed[:number]
                    self._pairs += listed[number:]
            except TypeError:  # a request without a reference answer
                self._pairs, self._ends = [], True
        return self._pairs

    def _find_loss(self, pair: tuple[Answer, Answer], epsilon: float, delta: float) -> str | None:
        """What is wrong with a pair: "" if nothing is; None if it cannot be followed."""
        runs = self._bind(pair[0]), self._bind(pair[1])
        try:
            if delta:
                work = RUNS_WORK * self._effort
                needed = find_delta(*runs, epsilon, delta, work, self._coverage.judged)
                return (
                    f"runs need delta {needed:.4g} at epsilon {epsilon:g}" if needed > delta else ""
                )
            worst = climb_both_ways(*runs, CLIMB_WORK, self._coverage.losses)
            if worst is None:
                return None
            return f"a possible run loses {worst:.4g}" if worst > epsilon + ROUNDING else ""
        except Unfollowed:
            first, second = self._law_of(pair[0]), self._law_of(pair[1])
        if first is None or second is None:
            return None
        needed = divergence(first, second, epsilon)
        if needed <= delta + SLACK:
            return ""
        return f"the output distributions need delta {needed:.4g} at epsilon {epsilon:g}"

    def _bind(self, answer: Answer) -> DrawRun:
        return DrawRun(self._mechanism, self._params, self.case.table, answer)

    def _law_of(self, answer: Answer) -> dict[str, float] | None:
        """The output distribution, or None where it has too many paths."""
        name = answer_fingerprint(answer)
        if name not in self._laws and self._coverage.paths < ALL_PATHS * self._effort:
            draw, paths = self._bind(answer), [0]

            def count_path(source: Source) -> str:
                paths[0] += 1
                return draw(source)

            self._laws[name] = None
            with suppress(NotEnumerable):
                self._laws[name] = enumerate_outputs(count_path, tail=TAIL, paths=PATHS)
            self._coverage.paths += paths[0]
        return self._laws.get(name)


@counts_work
def guarantee_holds_on_generated_tables(mechanism: Mechanism[Any]) -> None:
    """The guarantee holds on generated declarations, parameters and neighbours."""
    violation, *_ = _search(mechanism, harness.effort)
    require(violation is None, str(violation))


# --- structure --------------------------------------------------------------------------------------------------------


class _Recorder(Source):
    """A stream of words that notes the samplers which take from it, and their scales."""

    def __init__(self, seed: int) -> None:
        self._stream, self.calls = StreamSource(seed), list[Any]()

    def draw_words(self, n: int) -> RandomWords:
        """The next n words."""
        return self._stream.draw_words(n)


#: Samplers that have a scale, and where it is among their arguments; the number of choices follows
#: public candidates or private keys, and is no part of the form.
_SCALES = {
    "discrete_laplace": 0,
    "discrete_gaussian": 0,
    "geometric": 0,
    "truncated_laplace": 0,
    "choose_piece": 2,
    "choose_rows": 1,
    "permute_and_flip": 1,
}


def _note_calls() -> Any:
    depth = [0]

    def stand_in(real: Callable[..., Any], name: str, place: int) -> Callable[..., Any]:
        def draw(*arguments: Any) -> Any:
            source = arguments[-1]
            if isinstance(source, _Recorder) and not depth[0]:
                source.calls.append((name, str(arguments[place])))
            depth[0] += 1
            try:
                return real(*arguments)
            finally:
                depth[0] -= 1

        return draw

    return replace_samplers(
        {REAL[name]: stand_in(REAL[name], name, place) for name, place in _SCALES.items()}
    )


def _features(results: Sequence[Result], calls: Sequence[Any]) -> dict[str, Any]:
    """The form of a result by its parts, and how far two draws of whole numbers are apart."""
    rows = results[0].rows
    pairs = zip(*(result.rows for result in results), strict=False)
    return {
        "calls": tuple(calls),
        "keys": tuple((row.key, row.measure) for row in rows),
        "types": tuple(type(row.value).__name__ for row in rows),
        "errors": tuple(row.half_width_95 for row in rows),
        "remarks": tuple(row.remark for row in rows),
        "noise": tuple(
            one.value - other.value
            for one, other in pairs
            if isinstance(one.value, int) and isinstance(other.value, int)
        ),
    }


def structure_changes(
    mechanism: Mechanism[Any], case: Case, end: float = math.inf
) -> list[tuple[int, tuple[Answer, Answer]]]:
    """Sizes n at which the form of the result differs between tables of n and n + 1 equal units, as
    far as work allows before ``end``.

    Raises `TypeError` for a request without a reference answer.
    """
    params = mechanism.Params.model_validate(dict(case.params))
    table = case.table
    units = EqualUnits(mechanism.data_request(params, table), table)

    def features(n: int) -> dict[str, Any]:
        sources = _Recorder(0), _Recorder(1)
        results = [mechanism.draw(params, table, units.answer(n), source) for source in sources]
        return _features(results, sources[0].calls)

    changes: list[tuple[int, tuple[Answer, Answer]]] = []
    with _note_calls():
        few = [features(n) for n in range(1, 5)]
        # What follows the noise differs from one size to the next; what is public stays.
        steady = [name for name in few[0] if all(one[name] == few[0][name] for one in few)]

        def form(n: int) -> Any:
            found = features(n)
            return [found[name] for name in steady]

        before = 0, form(0)
        for n in list_sizes(mechanism, units.most):
            if spent() > end:
                break
            now = form(n)
            if now != before[1] and len(changes) < MAX_CHANGES:
                low, high = before[0], n
                while high - low > 1:
                    middle = (low + high) // 2
                    low, high = (middle, high) if form(middle) == before[1] else (low, middle)
                changes.append((low, units.neighbours(low)))
            before = n, now
    return changes


@counts_work
def structure_is_public(mechanism: Mechanism[Any]) -> None:
    """The form of a result does not tell how many rows there are."""
    end = spent() + FORMS_WORK * harness.effort
    for case in spread(generate_cases(mechanism))[: max(1, int(FORMS * harness.effort))]:
        with suppress(TypeError):
            for n, pair in structure_changes(mechanism, case, end):
                what = f"tables of {n} and {n + 1} equal units give results of different form"
                _audit_pair(mechanism, case, pair, what)


@counts_work
def delta_covers_lone_units(mechanism: Mechanism[Any]) -> None:
    """A unit that is alone in many groups shows with probability delta at most, also at a small
    epsilon, where noise is fine enough to tell delta for one group from delta for all.
    """
    for case, pair in lone_unit_cases(mechanism):
        params = mechanism.Params.model_validate(dict(case.params))
        shown = _find_shown(*(DrawRun(mechanism, params, case.table, answer) for answer in pair))
        if shown is None:
            _audit_pair(mechanism, case, pair, "one unit alone in six groups shows")
            continue
        _, delta = epsilon_delta(mechanism.event(params, case.table))
        require(
            shown <= delta * (1 + ROUNDING),
            f"one unit alone in six groups shows with probability {shown:.4g}, where the event states {delta:.4g} "
            f"({dict(case.params)}, {case.table.neighbours})",
        )


def _find_shown(first: Run, second: Run) -> float | None:
    """How probably a name is shown that one side alone has, which is the delta that sides without a common name need at
    any epsilon; None where more noise than that of names is drawn, or it cannot be followed.
    """
    laws = list[NamedNoise]()
    try:
        with follow_samplers():
            for run in (first, second):
                recorded = Recording(Fraction(1), False)
                run(recorded)
                if len(recorded.laws) > 1:
                    return None
                laws += recorded.laws
    except Unfollowed:
        return None
    if not all(isinstance(law, NamedNoise) for law in laws):
        return None
    if len(laws) == 2 and laws[0].exact.keys() & laws[1].exact.keys():
        return None
    try:
        return max(-math.expm1(math.fsum(map(law.log_hidden, law.exact.values()))) for law in laws)
    except Impossible:
        return 1.0


def _audit_pair(
    mechanism: Mechanism[Any], case: Case, pair: tuple[Answer, Answer], what: str
) -> None:
    params = mechanism.Params.model_validate(dict(case.params))
    epsilon, delta = epsilon_delta(mechanism.event(params, case.table))
    source = SystemSource()

    def draw_from(answer: Answer) -> Callable[[], Result]:
        return lambda: mechanism.draw(params, case.table, answer, LimitedSource(source))

    draws = [draw_from(answer) for answer in pair]
    paths = choose_paths(list_features(draw()) for draw in draws for _ in range(20))

    def sampler(draw: Callable[[], Result]) -> Callable[[], Any]:
        return lambda: make_outcome(draw(), paths)

    samplers = sampler(draws[0]), sampler(draws[1])
    number = affordable_draws(samplers[1], int(DRAWS * harness.effort), PAIR_WORK)
    audit = audit_with_confirmation(*samplers, epsilon, delta, draws=number)
    require(audit.passed, f"{what} ({dict(case.params)}, {case.table.neighbours}): {audit}")


GENERATED = (
    guarantee_holds_on_generated_tables,
    structure_is_public,
    delta_covers_lone_units,
    statistics_move_as_stated,
    half_widths_hold,
)
