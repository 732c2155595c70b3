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
DRAWS = 1200  # sessions per side of an audit, and how long it may take
SECONDS = 1.0


class MemorySession:
    """A session in memory; each state goes through JSON, as in the ledger. Stops where a verdict
    closes it.
    """

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
        """All verdicts as JSON, padded after the session closed; ``pick`` answers each statistic."""
        verdicts = []
        for query in self.queries:
            if not self.closed:
                verdict = self.ask_query(
                    query, pick(self.mechanism.data_request(self.params, query, self.table))
                )
                verdicts.append(json.dumps([verdict.body, verdict.closed], sort_keys=True))
        return tuple(verdicts + ["closed"] * (len(self.queries) - len(verdicts)))


def round_trip(state: State) -> State:
    """The state after a JSON round trip."""
    require(isinstance(state, State), "a state must be a dpflow.core.contract.interactive.State")
    again = State(json.loads(json.dumps(state.data, allow_nan=False)))
    require(again == state, "the state must be equal after a JSON round trip")
    return again


def state_is_secret(mechanism: Interactive, example: Example) -> None:
    """The state survives JSON, is never changed in place, and nothing is printed, logged or kept."""
    attributes = copy.deepcopy(vars(mechanism))
    with capture_output() as output:
        session = MemorySession(mechanism, example, SystemSource())
        require(repr(session.state) == "State()", "the repr of a state must show nothing")
        for query in session.queries:
            statistic = mechanism.data_request(session.params, query, example.table)
            before = copy.deepcopy(session.state)
            answer = typical_answer(statistic, example.table)
            mechanism.answer(
                session.params, example.table, session.state, query, answer, SystemSource()
            )
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
    """Rows never cause an error, verdicts survive JSON, and a closed session stays closed and
    unchanged.
    """
    require(example.queries, "an example of an interactive mechanism needs queries")
    session = MemorySession(mechanism, example, SystemSource())
    for query in session.queries:
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
    """The same words give the same session, other words another one, and no other randomness is
    touched.
    """

    def run_with_seed(seed: int) -> tuple[Any, ...]:
        with forbid_hidden_randomness() as touched:
            session = MemorySession(mechanism, example, StreamSource(seed))
            first = json.dumps(session.state.data, sort_keys=True)
            transcript = session.transcript(
                lambda statistic: neighbouring_answers(statistic, example.table)[0][0]
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
    """The claim is made when the session opens and does not depend on what is asked or answered."""
    params, event = plan_mechanism(mechanism, example.table, example.params)
    session = MemorySession(mechanism, example, SystemSource())
    session.transcript(lambda statistic: typical_answer(statistic, example.table))
    require(
        mechanism.event(params, example.table) == event,
        "the event changed while the session was asked",
    )


def guarantee_survives_audit(mechanism: Interactive, example: Example) -> None:
    """The claim for the whole session is not refuted by transcripts on neighbouring tables."""
    _, event = plan_mechanism(mechanism, example.table, example.params)
    epsilon, delta = epsilon_delta(event)
    source = SystemSource()
    params = validate_model(mechanism.Params, example.params)
    first = mechanism.data_request(
        params, validate_model(mechanism.Query, example.queries[0]), example.table
    )
    for number in range(len(neighbouring_answers(first, example.table))):

        def session_sampler(side: int, number: int = number) -> Callable[[], tuple[str, ...]]:
            def pick_answer(statistic: Any) -> Answer:
                return neighbouring_answers(statistic, example.table)[number][side]

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
