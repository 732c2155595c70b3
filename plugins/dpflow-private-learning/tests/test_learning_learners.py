"""Learners: exact claims on enumerated neighbours, with controls that fail."""

from __future__ import annotations

import math
import sys
from fractions import Fraction as F
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dpflow_private_learning.building_blocks import (
    stability_selection,
)
from dpflow_private_learning.building_blocks.achieved_error import Learner
from dpflow_private_learning.building_blocks.spend_log import SpendLog
from dpflow_private_learning.mechanisms.learn_class import LearnClass, LearnSemiPrivate
from dpflow_private_learning.mechanisms.learn_points import LearnPoints
from dpflow_private_learning.mechanisms.learn_thresholds import LearnThresholds
from dpflow_private_learning.mechanisms.thresholds_by_search import (
    LearnThresholdsBySearch,
)

from dpflow.core.contract.declaration import Table
from dpflow.core.contract.requests import RecordArrays
from dpflow.errors import PlanRefused
from dpflow.testing.enumeration import exact_delta
from dpflow.testing.examples import plan_mechanism
from dpflow.testing.harness import StreamSource
from dpflow.testing.neighbours import neighbouring_tables, possible_units, reference_answer

sys.path.insert(0, str(Path(__file__).parent))
from learning_examples import at_rows, example  # noqa: E402
from noisy_comparisons import choose_among_two  # noqa: E402

SLACK = 1e-9


@pytest.fixture
def two_outcomes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A comparison with noise is one choice of two, by the exact tail; and nothing is paid for the share of
    wrong rows, which `test_learning_achieved` has.
    """
    choose_among_two(monkeypatch)
    monkeypatch.setattr(Learner, "error_share", F(0))


def worst(
    mechanism: Any,
    table: Table,
    params: dict[str, Any],
    rows: list[dict[str, int]],
    shared: int = 1,
) -> float:
    """The largest divergence, beyond the claimed epsilon, over all neighbours with so many shared
    units.
    """
    checked, event = plan_mechanism(mechanism, table, params)
    epsilon, _ = event.epsilon_delta()
    statistic = mechanism.data_request(checked, table)
    pairs = neighbouring_tables(
        possible_units(rows, table.contribution_bounds.rows), table.neighbours, shared
    )
    answers = ((reference_answer(statistic, a), reference_answer(statistic, b)) for a, b in pairs)
    return exact_delta(mechanism, checked, table, answers, epsilon)


ROWS = [{"few": x, "late": y} for x in (0, 1, 3) for y in (0, 1)]
CLAIMS = [
    (LearnClass(), {"columns": ["few"], "label": "late", "epsilon": "1", "rows": 4}),
    (
        LearnClass(),
        {"columns": ["few"], "label": "late", "epsilon": "1", "rows": 4, "rules": "points"},
    ),
    (at_rows(LearnThresholds()), {"column": "few", "label": "late", "epsilon": "1", "rows": 4}),
    (
        LearnPoints(),
        {
            "column": "few",
            "label": "late",
            "epsilon": "1",
            "delta": "0.1",
            "rows": 4,
            "allow_zero": True,
        },
    ),
    (
        at_rows(LearnThresholdsBySearch()),
        {
            "column": "few",
            "label": "late",
            "epsilon": "3",
            "delta": "0.2",
            "rows": 4,
            "alpha": "1/2",
        },
    ),
    (
        LearnPoints(),
        {
            "column": "few",
            "label": "late",
            "epsilon": "0.5",
            "delta": "0.1",
            "rows": 4,
            "allow_zero": True,
        }
        | {"selection": "literal"},
    ),
    (
        at_rows(LearnThresholdsBySearch()),
        {
            "column": "few",
            "label": "late",
            "epsilon": "2",
            "delta": "0.1",
            "rows": 4,
            "alpha": "1/2",
        }
        | {"selection": "literal"},
    ),
    (
        LearnSemiPrivate(),
        {"columns": ["few"], "label": "late", "epsilon": "1", "rows": 4, "public": [["0"], ["2"]]},
    ),
]


@pytest.mark.parametrize("shared", [1, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("relation", ["add-remove", "replace"])
@pytest.mark.parametrize(
    ("mechanism", "params"), CLAIMS, ids=lambda value: getattr(value, "name", "")
)
def test_learners_keep_their_claims(
    two_outcomes: None, mechanism: Any, params: dict[str, Any], relation: str, shared: int
) -> None:
    """All neighbours of up to three rows over three values, labels changed, rows moved, added and
    taken away.
    """
    table = example({}, relation).table
    _, claimed = plan_mechanism(mechanism, table, params)[1].epsilon_delta()
    assert worst(mechanism, table, params, ROWS, shared) <= claimed + SLACK


def test_units_of_two_rows_pay_for_two_rows(two_outcomes: None) -> None:
    for mechanism, params in CLAIMS[:4]:
        table = example({}, "add-remove", 2).table
        assert worst(mechanism, table, params, ROWS[1:4], 1) <= F(params.get("delta", "0")) + SLACK


def test_learners_that_spend_more_than_they_say_are_caught(
    two_outcomes: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Controls: twice the epsilon in the exponential mechanism; the printed stability behind the
    point learner.
    """
    from dpflow_private_learning.mechanisms import learn_class

    table = example({}, "replace").table
    real = learn_class.draw_solution
    monkeypatch.setattr(
        learn_class,
        "draw_solution",
        lambda scores, epsilon, calls: real(scores, 2 * epsilon, calls),
    )
    params = CLAIMS[-1][1]
    assert worst(LearnSemiPrivate(), table, params, ROWS) > 0.05

    def literal(gap: int, epsilon: F, delta: F, calls: SpendLog, moves: int, _: bool) -> bool:
        return stability_selection.is_stable(gap, epsilon, delta, calls, moves, literal=True)

    monkeypatch.setattr("dpflow_private_learning.mechanisms.learn_points.is_stable", literal)
    learner, given = LearnPoints(), CLAIMS[3][1] | {"delta": "0.01"}
    checked, _ = plan_mechanism(learner, table, given)

    def counted(a: int, b: int) -> RecordArrays:
        x = np.array([0] * a + [3] * b)
        return RecordArrays(np.arange(a + b), {"few": x, "late": np.ones(a + b, np.int64)})

    pairs = [(counted(m, 0), counted(m - 1, 1)) for m in (4, 5, 6, 7)]
    assert exact_delta(learner, checked, table, iter(pairs), 1) > 10 * 0.01
    monkeypatch.undo()


@pytest.mark.parametrize(
    ("mechanism", "params", "selections", "pure"),
    [
        (at_rows(LearnPoints()), {"epsilon": "1", "delta": "1e-6", "allow_zero": True}, 1, 0),
        (at_rows(LearnThresholdsBySearch()), {"epsilon": "6", "delta": "2e-6"}, 2, 4),
        (at_rows(LearnThresholds()), {"epsilon": "4", "delta": "2e-6", "levels": 2}, 2, 2),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_stability_as_printed_is_charged_at_what_it_guarantees(
    mechanism: Any, params: dict[str, Any], selections: int, pure: int
) -> None:
    """Each selection at (1, 1e-6) costs (2, 1e-6 e^2/(1 + 1/e)); the calls of a run add up to the
    price at most.
    """
    table = example({}, "replace").table
    given = {
        "column": "amount",
        "label": "late",
        "rows": 100,
        "alpha": "1/4",
        "beta": "1/4",
        **params,
    }
    checked, event = plan_mechanism(mechanism, table, given | {"selection": "literal"})
    epsilon, delta = event.epsilon_delta()
    own = F(params["epsilon"]) / (pure + selections)
    assert epsilon == (2 * selections + pure) * own
    assert delta == pytest.approx(
        selections * 1e-6 * math.exp(2 * own) / (1 + math.exp(-own)), rel=1e-9
    )
    rows = RecordArrays(
        np.arange(60),
        {"amount": np.arange(60) % 40 - 10, "late": (np.arange(60) % 40 < 9).astype(int)},
    )
    document = mechanism.draw(checked, table, rows, StreamSource(1)).document
    repaired = mechanism.draw(
        plan_mechanism(mechanism, table, given)[0], table, rows, StreamSource(1)
    ).document
    assert document["rows_for_proof"] == repaired["rows_for_proof"]
    spent = document["calls"]
    assert sum(F(call["epsilon"]) * call["times"] for call in spent) <= epsilon
    assert sum(F(call["delta"]) * call["times"] for call in spent) <= delta
    with pytest.raises(PlanRefused, match="one row a unit"):
        plan_mechanism(mechanism, example({}, "replace", 2).table, given | {"selection": "literal"})
    with pytest.raises(PlanRefused, match="guarantees nothing"):
        plan_mechanism(mechanism, table, given | {"selection": "literal", "delta": "0.4"})
