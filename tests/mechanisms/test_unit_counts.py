"""One noisy number of units was charged, so one is drawn, whatever is asked in between."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dpflow.core.contract.contribution import ContributionBounds
from dpflow.core.contract.requests import GroupedUnits, PerGroup, PerUnit
from dpflow.core.sampling.randomness import SystemSource
from dpflow.core.toolbox.unit_counts import remember_needs
from dpflow.registry import Registry
from dpflow.testing.examples import EXAMPLE_TABLE, Example
from dpflow.testing.session_checks import MemorySession

ROW_TABLE = EXAMPLE_TABLE.model_copy(update={"contribution_bounds": ContributionBounds(rows=1)})
SECRET = GroupedUnits(2 * 10**7, False, (0.0, 1.0))
MEAN: dict[str, Any] = {
    "metric": "accuracy",
    "threshold": "0.1",
    "epsilon": "100",
    "queries": 9,
    "failures": 3,
    "count_epsilon": "1",
}
GROUPS: dict[str, Any] = {
    "metric": "accuracy",
    "method": "tight",
    "epsilon": "0.05",
    "delta": "1e-9",
    "groups": 10**6,
    "queries": 10,
    "failures": 1,
    "rho": "0.24",
    "alpha": "0.2",
    "count_epsilon": "0.001",
}
CLAIM: dict[str, Any] = {"estimator": "accuracy", "columns": ["amount"], "claim": "0.5"}
DUEL: dict[str, Any] = {"estimator": "accuracy", "columns": ["amount"], "champion": "c"}
MEDIAN: dict[str, Any] = {
    "epsilon": "50",
    "groups": 10**5,
    "queries": 3,
    "range_size": 3,
    "count_epsilon": "1",
}
ASK: dict[str, Any] = {
    "estimator": "column_mean",
    "columns": ["amount"],
    "range": {"kind": "grid", "lower": 0, "upper": 1, "step": "0.5"},
}
VALUES, MANY = np.full(10**5, 0.5), np.full(10**6, 0.5)


@pytest.mark.parametrize(
    ("name", "params", "asked"),
    [
        # Of a comparison nothing is counted.
        ("reusable_holdout", GROUPS, [(CLAIM, PerGroup(MANY, units=SECRET)), (DUEL, PerGroup(MANY * 0, units=SECRET, width=1.0))]),
        # A column that may be missing leaves nothing to count.
        ("reusable_holdout", GROUPS, [
            (CLAIM, PerGroup(MANY, units=SECRET)),
            (CLAIM, PerGroup(MANY, units=GroupedUnits(0, False, doubt="x may be missing"))),
        ]),
        # Of columns that may be missing nothing is counted.
        ("gate", MEAN, [
            (CLAIM, PerUnit(VALUES)),
            (CLAIM, PerUnit(VALUES, needs=("amount",))),
        ]),
        # The proof of another quantile asks for no number.
        ("stable_median", MEDIAN, [
            (ASK, PerGroup(VALUES, units=SECRET)),
            (ASK | {"p": "0.9"}, PerGroup(VALUES)),
        ]),
    ],
)  # fmt: skip
def test_nothing_between_two_counts_pays_for_a_second(
    monkeypatch: pytest.MonkeyPatch, name: str, params: dict[str, Any], asked: list[Any]
) -> None:
    drawn: list[int] = []

    def draw(units: int, *rest: Any) -> int:
        drawn.append(units)
        return units - 1000

    monkeypatch.setattr("dpflow.core.toolbox.unit_counts.draw_unit_limit", draw)
    mechanism: Any = Registry.load().find_mechanism(name)
    turns = [asked[0], asked[1], asked[0]]
    queries = [query for query, _ in turns]
    session = MemorySession(mechanism, Example(ROW_TABLE, params, queries), SystemSource())
    bodies = [
        session.ask_query(query, answer).body for query, (_, answer) in zip(session.queries, turns)
    ]
    assert len(drawn) == 1, bodies
    assert bodies[0].get("tolerance") == bodies[2].get("tolerance")


def test_what_other_columns_lack_is_no_text_of_a_transcript() -> None:
    """The first question's columns are remembered; others say nothing, whatever their numbers are."""
    first = GroupedUnits(10, True, needs=("a",))
    state, why = remember_needs({}, first)
    assert state == {"needs": ["a"]} and why == ""
    for other in (GroupedUnits(10, True), GroupedUnits(9, True, needs=("a", "b"))):
        kept, why = remember_needs(state, other)
        assert kept == state and "declare what a missing value is" in why
