"""EffectiveRounds: exact answers, fresh data after a failure, and what is proven."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from dpflow_stable_median.mechanisms.effective_rounds import EffectiveRounds, RoundsParams

from dpflow.core.accounting.events import Unprotected
from dpflow.core.contract.requests import GroupedUnits, PerGroup
from dpflow.core.sampling.randomness import SystemSource
from dpflow.errors import InvalidInput, PlanRefused
from dpflow.testing.examples import EXAMPLE_TABLE, Example
from dpflow.testing.session_checks import MemorySession

ROUNDS = EffectiveRounds()
GIVEN = {
    "groups": 400,
    "rounds": 3,
    "round_groups": 50,
    "queries": 100,
    "rho": "0.24",
    "alpha": "0.2",
}
ASK = {"estimator": "column_mean", "columns": ["amount"]}


def asked(values: list[Any], **changes: Any) -> list[dict[str, Any]]:
    """The answers to one query after the other, whose values per group are these."""
    session = MemorySession(
        ROUNDS, Example(EXAMPLE_TABLE, GIVEN | changes, [ASK] * len(values)), SystemSource()
    )
    return [
        session.ask_query(query, PerGroup(np.asarray(v, float))).body
        for query, v in zip(session.queries, values)
    ]


def test_a_plausible_answer_is_the_exact_median_of_the_round() -> None:
    values = np.random.default_rng(0).normal(size=400)
    body = asked([values])[0]
    assert body["value"] == np.sort(values[:50])[24] and not body["switched"]
    assert (body["queries_left"], body["failures_left"], body["guarantee"]) == (99, 2, "unproven")


def test_an_overfitted_round_is_thrown_away() -> None:
    """A query that lies on the first round only is answered by the second, and so are those after
    it; two failures end it.
    """
    overfitted = np.concatenate([np.full(50, 9.0), np.linspace(-1, 1, 350)])
    plain = np.concatenate([np.zeros(50), np.full(50, 0.5), np.linspace(-1, 1, 300)])
    third = np.concatenate([np.zeros(50), np.full(50, 9.0), np.linspace(-1, 1, 300)])
    found = asked([overfitted, plain, third, plain])
    assert [body.get("switched") for body in found] == [True, False, True, None]
    assert abs(found[0]["value"]) < 1 and found[1]["value"] == 0.5 and abs(found[2]["value"]) < 1
    assert [body.get("failures_left") for body in found] == [1, 1, 0, None] and found[3][
        "verdict"
    ] == "exhausted"


def test_an_adaptive_analyst_is_never_answered_outside_the_promise() -> None:
    """Sign aggregation on the first round is seen, although every single answer was plausible."""
    params = RoundsParams.model_validate(
        GIVEN | {"queries": 300, "groups": 2, "rounds": 3} | {"groups": 400}
    )
    fresh, verifying = params.proven_sizes()
    sizes = {"round_groups": fresh, "groups": 3 * fresh + verifying, "queries": 300}
    data = np.random.default_rng(1).normal(size=(sizes["groups"], 200))
    session = MemorySession(ROUNDS, Example(EXAMPLE_TABLE, GIVEN | sizes, [ASK]), SystemSource())
    units = GroupedUnits(50 * sizes["groups"], is_public=True, mean_range=(-9.0, 9.0))
    said = [
        session.ask_query(session.queries[0], PerGroup(column, units=units)).body
        for column in data.T
    ]
    assert not any(body["switched"] for body in said) and {body["guarantee"] for body in said} == {
        "proven"
    }
    last = data @ np.sign([body["value"] for body in said]) / np.sqrt(200)
    body = session.ask_query(session.queries[0], PerGroup(last)).body
    assert body["switched"] and abs(body["value"]) < 0.6745 < np.median(last[:fresh])


def test_it_protects_nobody_and_says_what_it_needs() -> None:
    assert ROUNDS.event(RoundsParams.model_validate(GIVEN), EXAMPLE_TABLE) == Unprotected()
    few = RoundsParams.model_validate(GIVEN | {"require": "proven"})
    fresh, verifying = few.proven_sizes()
    with pytest.raises(
        PlanRefused, match=f"take {fresh} and {verifying}, {3 * fresh + verifying} groups in all"
    ):
        ROUNDS.event(few, EXAMPLE_TABLE)
    assert (
        f"unproven: rounds of 50 groups and 250 that verify prove nothing: take {fresh}"
        in ROUNDS.note(few, EXAMPLE_TABLE)
    )
    enough = {"round_groups": fresh, "groups": 3 * fresh + verifying, "require": "proven"}
    assert ROUNDS.note(RoundsParams.model_validate(GIVEN | enough), EXAMPLE_TABLE).startswith(
        "answers are proven"
    )
    assert ROUNDS.event(RoundsParams.model_validate(GIVEN | enough), EXAMPLE_TABLE) == Unprotected()
    with pytest.raises(ValueError, match="leave groups that verify"):
        RoundsParams.model_validate(GIVEN | {"groups": 150})
    with pytest.raises((ValueError, InvalidInput)):
        RoundsParams.model_validate(GIVEN | {"rho": "0.3"})
