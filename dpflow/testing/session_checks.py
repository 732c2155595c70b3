"""The checks of an interactive mechanism; `dpflow.testing.conformance` runs them."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

from dpflow.core.contract.mechanism import InteractiveMechanism, State, Verdict
from dpflow.core.contract.requests import Answer
from dpflow.core.sampling.randomness import Source, SystemSource
from dpflow.testing.audit import affordable, confirmed
from dpflow.testing.examples import Example, answers, neighbouring, plan, typical, validated
from dpflow.testing.harness import (
    NotConformant,
    StreamSource,
    claim,
    forbid_hidden_randomness,
    require,
    same,
    silence,
)

Interactive = InteractiveMechanism[Any, Any]
DRAWS = 1200  # sessions per side of an audit, and how long it may take
SECONDS = 1.0


class Session:
    """A session in memory; each state goes through JSON, as in the ledger. Stops where a verdict
    closes it.
    """

    def __init__(self, mechanism: Interactive, example: Example, source: Source) -> None:
        self.mechanism, self.table, self.source = mechanism, example.table, source
        self.params = validated(mechanism.Params, example.params)
        self.queries = [validated(mechanism.Query, query) for query in example.queries]
        self.closed = False
        self.state = stored(mechanism.open(self.params, self.table, source))

    def ask(self, query: Any, answer: Answer) -> Verdict:
        """One answer; the state advances."""
        verdict, state = self.mechanism.answer(
            self.params, self.table, self.state, query, answer, self.source
        )
        self.state, self.closed = stored(state), verdict.closed
        return verdict

    def transcript(self, pick: Callable[[Any], Answer]) -> tuple[str, ...]:
        """All verdicts as JSON, padded after the session closed; ``pick`` answers each statistic."""
        said = []
        for query in self.queries:
            if not self.closed:
                verdict = self.ask(
                    query, pick(self.mechanism.data_request(self.params, query, self.table))
                )
                said.append(json.dumps([verdict.body, verdict.closed], sort_keys=True))
        return tuple(said + ["closed"] * (len(self.queries) - len(said)))


def stored(state: State) -> State:
    """The state after a JSON round trip."""
    require(isinstance(state, State), "a state must be a dpflow.core.contract.mechanism.State")
    again = State(json.loads(json.dumps(state.data, allow_nan=False)))
    require(again == state, "the state must be equal after a JSON round trip")
    return again


def state_is_secret(mechanism: Interactive, example: Example) -> None:
    """The state survives JSON, is never changed in place, and nothing is printed, logged or kept."""
    kept = copy.deepcopy(vars(mechanism))
    with silence() as said:
        session = Session(mechanism, example, SystemSource())
        require(repr(session.state) == "State()", "the repr of a state must show nothing")
        for query in session.queries:
            statistic = mechanism.data_request(session.params, query, example.table)
            before = copy.deepcopy(session.state)
            given = typical(statistic, example.table)
            mechanism.answer(
                session.params, example.table, session.state, query, given, SystemSource()
            )
            require(
                same(before, session.state),
                "answer must return a new state: a crashed answer is asked again",
            )
    require(not said(), "the session printed or logged something")
    require(
        same(kept, vars(mechanism)),
        "nothing may be kept in the mechanism: the state lives in the ledger",
    )


def answers_never_raise(mechanism: Interactive, example: Example) -> None:
    """Rows never cause an error, verdicts survive JSON, and a closed session stays closed and
    unchanged.
    """
    require(example.queries, "an example of an interactive mechanism needs queries")
    session = Session(mechanism, example, SystemSource())
    for query in session.queries:
        for name, given in answers(
            mechanism.data_request(session.params, query, example.table), example.table
        ).items():
            was_closed, before = session.closed, session.state
            try:
                verdict = session.ask(query, given)
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

    def run(seed: int) -> tuple[Any, ...]:
        with forbid_hidden_randomness() as touched:
            session = Session(mechanism, example, StreamSource(seed))
            first = json.dumps(session.state.data, sort_keys=True)
            said = session.transcript(
                lambda statistic: neighbouring(statistic, example.table)[0][0]
            )
        require(
            not touched,
            f"the session used {', '.join(touched)}; take all randomness from the source",
        )
        return first, said, json.dumps(session.state.data, sort_keys=True)

    first = [run(seed) for seed in range(12)]
    require(
        first == [run(seed) for seed in range(12)],
        "the same random words must give the same session",
    )
    require(
        len(set(first)) > 1,
        "sessions do not change with the random words: no noise, or a fixed seed",
    )


def event_covers_the_session(mechanism: Interactive, example: Example) -> None:
    """The claim is made when the session opens and does not depend on what is asked or answered."""
    params, event = plan(mechanism, example.table, example.params)
    session = Session(mechanism, example, SystemSource())
    session.transcript(lambda statistic: typical(statistic, example.table))
    require(
        mechanism.event(params, example.table) == event,
        "the event changed while the session was asked",
    )


def claim_survives_audit(mechanism: Interactive, example: Example) -> None:
    """The claim for the whole session is not refuted by transcripts on neighbouring tables."""
    _, event = plan(mechanism, example.table, example.params)
    epsilon, delta = claim(event)
    source = SystemSource()
    params = validated(mechanism.Params, example.params)
    first = mechanism.data_request(
        params, validated(mechanism.Query, example.queries[0]), example.table
    )
    for number in range(len(neighbouring(first, example.table))):

        def sampler(side: int, number: int = number) -> Callable[[], tuple[str, ...]]:
            def pick(statistic: Any) -> Answer:
                return neighbouring(statistic, example.table)[number][side]

            return lambda: Session(mechanism, example, source).transcript(pick)

        draws = affordable(sampler(0), DRAWS, SECONDS)
        found = confirmed(sampler(0), sampler(1), epsilon, delta, draws=draws)
        require(found.passed, f"neighbouring answers {number}: {found}")


SESSION = (
    state_is_secret,
    answers_never_raise,
    randomness_is_the_source,
    event_covers_the_session,
    claim_survives_audit,
)
