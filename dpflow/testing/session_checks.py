"""The checks of an interactive mechanism; `dpflow.testing.conformance` runs them."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

from dpflow.core.contract.interactive import InteractiveMechanism, State, Verdict
from dpflow.core.contract.requests import Answer
from dpflow.core.sampling.randomness import Source, SystemSource
from dpflow.testing.audit import affordable_draws, audit_with_confirmation
from dpflow.testing.examples import (
    Example,
    neighbouring_answers,
    plan_mechanism,
    possible_answers,
    typical_answer,
    validate_model,
)
from dpflow.testing.harness import (
    NotConformant,
    StreamSource,
    capture_output,
    deep_equal,
    epsilon_delta,
    forbid_hidden_randomness,
    require,
)

Interactive = InteractiveMechanism[Any, Any]
#: Sessions per side of an audit.
DRAWS = 1200
#: CPU seconds of an audit of one pair of neighbours.
SECONDS = 1.0


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
        return verdict

    def transcript(self, pick: Callable[[Any], Answer]) -> tuple[str, ...]:
        """All verdicts as JSON, padded after the session closed; ``pick`` answers each request."""
        verdicts = []
        for query in self.queries:
            if not self.closed:
                verdict = self.ask_query(
                    query, pick(self.mechanism.data_request(self.params, query, self.table))
                )
                verdicts.append(json.dumps([verdict.body, verdict.closed], sort_keys=True))
        # Padding makes transcripts as long as each other, which the audit needs.
        return tuple(verdicts + ["closed"] * (len(self.queries) - len(verdicts)))


def round_trip(state: State) -> State:
    """The state after a JSON round trip."""
    require(isinstance(state, State), "a state must be a dpflow.core.contract.interactive.State")
    again = State(json.loads(json.dumps(state.data, allow_nan=False)))
    require(again == state, "the state must be equal after a JSON round trip")
    return again


def state_is_secret(mechanism: Interactive, example: Example) -> None:
    """The state survives JSON, is never changed in place, and nothing is printed, logged or stored."""
    table = example.table
    attributes = copy.deepcopy(vars(mechanism))
    with capture_output() as output:
        session = MemorySession(mechanism, example, SystemSource())
        # Whoever logs an object by its repr must not log the secret.
        require(repr(session.state) == "State()", "the repr of a state must show nothing")
        for query in session.queries:
            request = mechanism.data_request(session.params, query, table)
            before = copy.deepcopy(session.state)
            answer = typical_answer(request, table)
            mechanism.answer(session.params, table, session.state, query, answer, SystemSource())
            require(
                deep_equal(before, session.state),
                "answer must return a new state: a crashed answer is asked again",
            )
    require(not output(), "the session printed or logged something")
    require(
        deep_equal(attributes, vars(mechanism)),
        "nothing may be kept in the mechanism: the state lives in the ledger",
    )


def answers_never_raise(mechanism: Interactive, example: Example) -> None:
    """Rows never cause an error, verdicts survive JSON, and a closed session stays unchanged."""
    require(example.queries, "an example of an interactive mechanism needs queries")
    session = MemorySession(mechanism, example, SystemSource())
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
            session = MemorySession(mechanism, example, StreamSource(seed))
            first = json.dumps(session.state.data, sort_keys=True)
            transcript = session.transcript(
                lambda request: neighbouring_answers(request, example.table)[0][0]
            )
        require(
            not touched,
            f"the session used {', '.join(touched)}; take all randomness from the source",
        )
        return first, transcript, json.dumps(session.state.data, sort_keys=True)

    first = [run_with_seed(seed) for seed in range(12)]
    require(
        first == [run_with_seed(seed) for seed in range(12)],
        "the same random words must give the same session",
    )
    require(
        len(set(first)) > 1,
        "sessions do not change with the random words: no noise, or a fixed seed",
    )


def event_covers_the_session(mechanism: Interactive, example: Example) -> None:
    """The event is fixed when the session opens; queries and answers do not change it."""
    params, event = plan_mechanism(mechanism, example.table, example.params)
    session = MemorySession(mechanism, example, SystemSource())
    session.transcript(lambda request: typical_answer(request, example.table))
    require(
        mechanism.event(params, example.table) == event,
        "the event changed while the session was asked",
    )


def guarantee_survives_audit(mechanism: Interactive, example: Example) -> None:
    """Transcripts on neighbouring tables do not refute the event of the whole session."""
    _, event = plan_mechanism(mechanism, example.table, example.params)
    epsilon, delta = epsilon_delta(event)
    source = SystemSource()
    params = validate_model(mechanism.Params, example.params)
    first = mechanism.data_request(
        params, validate_model(mechanism.Query, example.queries[0]), example.table
    )
    # Each pair is audited over whole sessions: the loss adds up over answers.
    for number in range(len(neighbouring_answers(first, example.table))):
        # ``number`` is bound now: a closure over the loop's variable would see its last value.
        def session_sampler(side: int, number: int = number) -> Callable[[], tuple[str, ...]]:
            def pick_answer(request: Any) -> Answer:
                return neighbouring_answers(request, example.table)[number][side]

            return lambda: MemorySession(mechanism, example, source).transcript(pick_answer)

        draws = affordable_draws(session_sampler(0), DRAWS, SECONDS)
        audit = audit_with_confirmation(
            session_sampler(0), session_sampler(1), epsilon, delta, draws=draws
        )
        require(audit.passed, f"neighbouring answers {number}: {audit}")


SESSION = (
    state_is_secret,
    answers_never_raise,
    randomness_is_the_source,
    event_covers_the_session,
    guarantee_survives_audit,
)
