"""The checks of an interactive mechanism; `dpflow.testing.conformance` runs them."""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import Callable, Sequence
from typing import Any

from dpflow.core.contract.gate import VERDICTS, Gate
from dpflow.core.contract.interactive import InteractiveMechanism, State, Verdict
from dpflow.core.contract.requests import Answer, GroupedSums, GroupValues
from dpflow.core.sampling.randomness import Source, SystemSource
from dpflow.testing import harness
from dpflow.testing.audit import (
    SUSPICION,
    Sampler,
    affordable_draws,
    audit_pair,
    audit_with_confirmation,
)
from dpflow.testing.examples import (
    Example,
    make_groups,
    neighbouring_answers,
    plan_mechanism,
    possible_answers,
    typical_answer,
    validate_model,
)
from dpflow.testing.harness import (
    LimitedSource,
    NotConformant,
    StreamSource,
    capture_output,
    deep_equal,
    epsilon_delta,
    forbid_hidden_randomness,
    remember_globals,
    require,
)
from dpflow.testing.work import counts_work

Interactive = InteractiveMechanism[Any, Any]
#: Answers a data request, on one of two neighbouring tables.
Pick = Callable[[Any], Answer]
#: An adversary: the next query, from the verdicts so far, or None to stop.
Game = Callable[[Sequence[Any], Sequence[str]], Any]
#: Questions of a game.
LONGEST = 30
#: Sessions per side of an audit.
DRAWS = 1200
#: Work of the audits of one example.
WORK = 0.8


class MemorySession:
    """A session in memory, without a ledger; each state goes through JSON, as it would there."""

    def __init__(self, mechanism: Interactive, example: Example, source: Source) -> None:
        self.mechanism, self.table, self.source = mechanism, example.table, source
        self.params = validate_model(mechanism.Params, example.params)
        self.queries = [validate_model(mechanism.Query, query) for query in example.queries]
        self.closed = False
        self.state = round_trip(mechanism.open(self.params, self.table, source))

    def ask_query(self, query: Any, answer: Answer) -> Verdict:
        """One answer; the state advances."""
        verdict, state = self.mechanism.answer(
            self.params, self.table, self.state, query, answer, self.source
        )
        self.state, self.closed = round_trip(state), verdict.closed
        if isinstance(self.mechanism, Gate):
            word = verdict.body.get("verdict")
            require(word in VERDICTS, f"a gate answers one of {', '.join(VERDICTS)}")
            limits = {f"{name}_left" for name in self.mechanism.limits(self.params)}
            is_said = word == "none" or limits <= verdict.body.keys()
            require(is_said, "every verdict of a gate says what is left")
        return verdict

    def transcript(self, pick: Pick, game: Game | None = None) -> tuple[str, ...]:
        """All verdicts as JSON, padded after the session closed.

        Args:
            pick: answers each data request.
            game: chooses each query from the verdicts so far; by default they come in order.
        """
        play = game or play_in_order
        verdicts: list[str] = []
        while not self.closed and (query := play(self.queries, verdicts)) is not None:
            request = self.mechanism.data_request(self.params, query, self.table)
            is_counted = self.mechanism.count_groups(self.params) is not None
            require(
                is_counted or not isinstance(request, GroupValues),
                "a session that asks for groups must say in count_groups how many there are",
            )
            verdict = self.ask_query(query, pick(request))
            verdicts.append(json.dumps([verdict.body, verdict.closed], sort_keys=True))
        # Padding makes transcripts as long as each other, which the audit needs.
        longest = len(self.queries) if game is None else LONGEST
        return tuple(verdicts + ["closed"] * (longest - len(verdicts)))


def play_in_order(queries: Sequence[Any], verdicts: Sequence[str]) -> Any:
    """Each query once."""
    return queries[len(verdicts)] if len(verdicts) < len(queries) else None


def list_games(queries: int) -> list[Game]:
    """Adversaries of `LONGEST` questions: one query again and again; all in turn; and another one
    after each change of the verdict.
    """

    def repeat_query(at: int) -> Game:
        return lambda queries, verdicts: queries[at] if len(verdicts) < LONGEST else None

    def take_turns(queries: Sequence[Any], verdicts: Sequence[str]) -> Any:
        return queries[len(verdicts) % len(queries)] if len(verdicts) < LONGEST else None

    def follow_changes(queries: Sequence[Any], verdicts: Sequence[str]) -> Any:
        changes = sum(one != other for one, other in itertools.pairwise(verdicts))
        return queries[changes % len(queries)] if len(verdicts) < LONGEST else None

    return [*map(repeat_query, range(min(queries, 3))), take_turns, follow_changes]


def round_trip(state: State) -> State:
    """The state after a JSON round trip."""
    require(isinstance(state, State), "a state must be a dpflow.core.contract.interactive.State")
    again = State(json.loads(json.dumps(state.data, allow_nan=False)))
    require(again == state, "the state must be equal after a JSON round trip")
    return again


def state_is_secret(mechanism: Interactive, example: Example) -> None:
    """The state survives JSON, is never changed in place, and nothing is printed, logged or stored."""
    table = example.table
    attributes, globals_stay = copy.deepcopy(vars(mechanism)), remember_globals(mechanism)
    with capture_output() as output:
        session = MemorySession(mechanism, example, LimitedSource())
        # Whoever logs an object by its repr must not log the secret.
        require(repr(session.state) == "State()", "the repr of a state must show nothing")
        for query in session.queries:
            request = mechanism.data_request(session.params, query, table)
            before = copy.deepcopy(session.state)
            answer = typical_answer(request, table)
            mechanism.answer(session.params, table, session.state, query, answer, LimitedSource())
            require(
                deep_equal(before, session.state),
                "answer must return a new state: a crashed answer is asked again",
            )
    require(
        not output(), f"the session printed or logged something, or wrote it: {output()[:80]!r}"
    )
    require(
        deep_equal(attributes, vars(mechanism)),
        "nothing may be kept in the mechanism: the state lives in the ledger",
    )
    require(
        globals_stay(),
        "nothing may be kept in the module or the class of the mechanism: the state lives in the ledger",
    )


def answers_never_raise(mechanism: Interactive, example: Example) -> None:
    """Rows never cause an error, verdicts survive JSON, and a closed session stays unchanged."""
    require(example.queries, "an example of an interactive mechanism needs queries")
    session = MemorySession(mechanism, example, LimitedSource())
    for query in session.queries:
        # Every kind of answer to every query, also after the session closed.
        for name, answer in possible_answers(
            mechanism.data_request(session.params, query, example.table), example.table
        ).items():
            was_closed, before = session.closed, session.state
            try:
                verdict = session.ask_query(query, answer)
            except NotConformant:
                raise
            except Exception as error:
                raise NotConformant(f"answer raised {type(error).__name__} on {name!r}") from error
            body = json.loads(json.dumps(verdict.body, allow_nan=False))
            require(body == verdict.body, "a verdict must be equal after a JSON round trip")
            require(not was_closed or verdict.closed, "a closed session must stay closed")
            require(
                not was_closed or before == session.state,
                "a closed session's state must not change",
            )


def randomness_is_the_source(mechanism: Interactive, example: Example) -> None:
    """Sessions are a function of the words, change with them, and touch no other randomness."""

    def run_with_seed(seed: int) -> tuple[Any, ...]:
        with forbid_hidden_randomness() as touched:
            session = MemorySession(mechanism, example, LimitedSource(StreamSource(seed)))
            first = json.dumps(session.state.data, sort_keys=True)
            transcript = session.transcript(
                lambda request: neighbouring_answers(request, example.table)[0][0]
            )
        require(
            not touched,
            f"the session used {', '.join(touched)}; take all randomness from the source",
        )
        return first, transcript, json.dumps(session.state.data, sort_keys=True)

    first = harness.run_seeds(run_with_seed)
    require(
        first == [run_with_seed(seed) for seed in range(len(first))],
        "the same random words must give the same session",
    )
    require(
        len(set(first)) > 1,
        "sessions do not change with the random words: no noise, or a fixed seed",
    )


def event_covers_the_session(mechanism: Interactive, example: Example) -> None:
    """The event is fixed when the session opens; queries and answers do not change it."""
    params, event = plan_mechanism(mechanism, example.table, example.params)
    session = MemorySession(mechanism, example, LimitedSource())
    session.transcript(lambda request: typical_answer(request, example.table))
    require(
        mechanism.event(params, example.table) == event,
        "the event changed while the session was asked",
    )


@counts_work
def guarantee_survives_audit(mechanism: Interactive, example: Example) -> None:
    """Transcripts on neighbouring tables do not refute the event of the whole session, whatever is
    asked, and however often.
    """
    epsilon, delta = epsilon_delta(plan_mechanism(mechanism, example.table, example.params)[1])
    # A part of the effort looks at a part of the pairs and games: below some draws a look sees nothing.
    step = max(1, int(1 / harness.effort))
    sides = neighbouring_transcripts(mechanism, example)[::step]
    # Each pair is audited over whole sessions: the loss adds up over answers.
    for number, games in enumerate(sides):
        work = WORK * harness.effort / len(sides)
        games = games[::step]
        # A short audit of each game chooses the one that gains most; its draws are not used again.
        gains = []
        for a, b in games if len(games) > 1 else []:
            draws = affordable_draws(a, int(DRAWS * harness.effort) // 6, work / 2 / len(games))
            gains.append(
                audit_pair(a, b, epsilon, delta, draws=draws, confidence=SUSPICION).lower_epsilon
            )
        a, b = games[gains.index(max(gains))] if gains else games[0]
        draws = affordable_draws(a, int(DRAWS * harness.effort), work / 2)
        audit = audit_with_confirmation(a, b, epsilon, delta, draws=draws)
        require(audit.passed, f"neighbouring answers {number}: {audit}")


def neighbouring_transcripts(
    mechanism: Interactive, example: Example
) -> list[list[tuple[Sampler, Sampler]]]:
    """What draws a transcript from either of two neighbours: for each pair one for every game."""
    source = SystemSource()

    def bind_side(pick: Pick, game: Game | None) -> Sampler:
        return lambda: MemorySession(mechanism, example, LimitedSource(source)).transcript(
            pick, game
        )

    return [
        [
            (bind_side(first, game), bind_side(second, game))
            for game in [None, *list_games(len(example.queries))]
        ]
        for first, second in neighbouring_sides(mechanism, example)
    ]


def neighbouring_sides(mechanism: Interactive, example: Example) -> list[tuple[Pick, Pick]]:
    """Pairs of neighbouring tables as functions from a request to its exact answer."""
    if example.sides is not None:
        tables = example.sides

        def pick_given(side: int) -> Pick:
            return lambda request: tables.answer_request(request, example.table, side)

        return [(pick_given(0), pick_given(1))]
    params = validate_model(mechanism.Params, example.params)
    requests = [
        mechanism.data_request(params, validate_model(mechanism.Query, query), example.table)
        for query in example.queries
    ]

    def pick_numbered(number: int, side: int) -> Pick:
        return lambda request: neighbouring_answers(request, example.table)[number][side]

    sides = [
        (pick_numbered(number, 0), pick_numbered(number, 1))
        for number in range(len(neighbouring_answers(requests[0], example.table)))
    ]
    keys = [
        request.keys[0]
        for request in requests
        if isinstance(request, GroupedSums) and request.by is not None and request.keys
    ]
    if example.table.neighbours == "replace" and len(set(keys)) > 1:
        # A replaced unit leaves the first key's group for the others.
        def pick_moved(there: bool) -> Pick:
            def answer_count(request: GroupedSums) -> Answer:
                here = (request.keys or ("",))[0] == keys[0]
                rows = 4 * request.rows_per_group + request.rows_per_group * (here == there)
                return make_groups(request, request.keys or ("",), rows)

            return answer_count

        sides.append((pick_moved(True), pick_moved(False)))
    return sides


SESSION = (
    state_is_secret,
    answers_never_raise,
    randomness_is_the_source,
    event_covers_the_session,
    guarantee_survives_audit,
)
