"""The gate on areas under ROC curves: whole sessions by exact enumeration and under attack, and refusals."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from dpflow.core.contract.contribution import ContributionBounds
from dpflow.core.contract.requests import PairCounts
from dpflow.core.sampling.randomness import SystemSource
from dpflow.core.toolbox.pair_counts import count_pairs
from dpflow.core.toolbox.transcripts import lowest_mean
from dpflow.errors import DpflowError
from dpflow.mechanisms.mean_gate import MeanGate
from dpflow.mechanisms.mean_gate_params import MeanGateParams
from dpflow.testing.examples import EXAMPLE_TABLE, Example
from dpflow.testing.session_checks import MemorySession

GATE = MeanGate()
TABLE = EXAMPLE_TABLE.model_copy(
    update={"contribution_bounds": ContributionBounds(rows=1), "generalisation_only": True}
)
PARAMS: dict[str, Any] = {
    "metric": {"estimator": "auc", "label": "amount"},
    "method": "description_length",
    "threshold": "0.01",
}
ASK: dict[str, Any] = {"estimator": "auc", "columns": ["amount"]}


def open_session(asks: list[dict[str, Any]], **params: Any) -> MemorySession:
    return MemorySession(GATE, Example(TABLE, PARAMS | params, asks), SystemSource())


#: Scores of three candidates for a row of each kind.
CANDIDATES = np.array([[0.0, 1, 2], [2, 0, 1], [0, 1, 1]])


def false_sessions(law: tuple[Any, Any], size: tuple[int, int]) -> float:
    """The probability that an interval of a session is false, in which each answer chooses what comes next."""
    p, q = (np.array(one) / sum(one) for one in law)
    labels, total = np.arange(sum(size)) < size[0], 0.0
    kernel = [(1 + np.sign(np.subtract.outer(c, c))) / 2 for c in CANDIDATES]
    areas = [float(p @ k @ q) for k in kernel]
    asks = [ASK | {"claim": v, "candidate": str(i)} for i, v in enumerate(("1", "0.76", "0.51"))]
    for kinds in product(range(3), repeat=sum(size)):
        row = np.array(kinds)
        chance = p[row[: size[0]]].prod() * q[row[size[0] :]].prod()
        if not chance:
            continue
        session, candidate, false = open_session(asks, queries=3, failures=2, beta="0.5"), 0, False
        for query in session.queries:
            said = session.ask_query(query, count_pairs(labels, CANDIDATES[candidate][row])).body
            if "interval" in said:
                low, high = said["interval"]
                false |= not low <= areas[candidate] <= high
            # A yes is asked more of the same; a no turns to another one.
            candidate = candidate if said["verdict"] == "yes" else (candidate + 1) % 3
        total += chance * false
    return total


LAWS = [([1, 2, 3], [1, 1, 1]), ([1, 0, 1], [0, 1, 0]), ([45, 0, 55], [0, 1, 0]), ([1, 1, 4], [3, 1, 1])]  # fmt: skip


@pytest.mark.parametrize("size", [(2, 3), (1, 5)])
def test_a_session_is_false_as_rarely_as_stated(
    size: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over all rows of three kinds. With all rows in place of those of the rarer class it is false too often."""
    assert max(false_sessions(law, size) for law in LAWS) <= 0.5
    monkeypatch.setattr(PairCounts, "independent", property(lambda c: c.positives + c.negatives))
    assert size != (1, 5) or false_sessions(LAWS[2], size) > 0.5


def test_boosting_on_bits_makes_no_champion() -> None:
    """Random tables vote with the sign of each answer. The vote looks better than a fresh test set allows, and is
    neither stated nor promoted.
    """
    rng, n, k = np.random.default_rng(7), 200, 150
    asks = [ASK | {"claim": "0.51", "candidate": str(i)} for i in range(k)]
    asks += [ASK | {"claim": "0.6", "candidate": "v"}, ASK | {"champion": "c", "candidate": "v"}]
    fooled = 0
    for _ in range(12):
        session = open_session(asks, queries=k + 2, failures=k + 2)
        labels, vote = np.arange(n) % 2 == 0, np.zeros(n)
        for query in session.queries[:k]:
            scores = rng.normal(size=n)
            said = session.ask_query(query, count_pairs(labels, scores)).body
            low, high = said.get("interval", (0, 1))
            assert low <= 0.5 <= high
            vote += scores if said["verdict"] == "yes" else -scores
        area = count_pairs(labels, vote).halves / 2 / (n / 2) ** 2
        fooled += lowest_mean(area, np.log(20) / (n / 2)) > 0.5
        claim = session.ask_query(session.queries[k], count_pairs(labels, vote)).body
        assert claim.get("interval", (0, 1))[0] <= 0.5
        duel = session.ask_query(session.queries[-1], count_pairs(labels, vote, np.zeros(n))).body
        assert duel["verdict"] == "no"
    assert fooled >= 10


def test_verdicts_and_intervals() -> None:
    """By the exact area; without a class nothing is known, and rows that are not alone prove nothing."""
    labels = np.arange(4000) % 4 == 0
    scores = labels.astype(float)
    scores[:1264] = 0.5
    asks = [ASK | {"claim": v, "candidate": v} for v in ("0.95", "0.97")]
    asks.append(ASK | {"champion": "c", "candidate": "v"})
    area = count_pairs(labels, scores).halves / (2 * 1000 * 3000)
    session = open_session(asks, queries=9, failures=5)
    answers = [count_pairs(labels, scores)] * 2 + [count_pairs(labels, scores, np.roll(scores, 1))]
    passed, failed, better = (session.ask_query(q, a).body for q, a in zip(session.queries, answers))  # fmt: skip
    assert 0.94 < area < 0.96 and [passed["verdict"], failed["verdict"]] == ["yes", "no"]
    assert passed["guarantee"] == "proven" and 0.88 < passed["interval"][0] < 0.94
    assert failed["interval"][1] > area
    assert (better["verdict"], better["guarantee"]) == ("yes", "proven")
    for other, why in (
        (PairCounts(0, 9, 0), "class has no unit"),
        (PairCounts(9, 9, 81, doubt="some unit has several rows"), "several rows"),
        (PairCounts(9, 9, 81, needs=("amount",)), "lack a value in amount"),
    ):
        fresh = open_session(asks, queries=9, failures=5)
        said = fresh.ask_query(fresh.queries[0], other).body
        assert said["guarantee"] == "unproven" and why in said["because"], said


@pytest.mark.parametrize(
    ("params", "table", "why"),
    [
        ({"method": "sparse_vector", "epsilon": "1"}, {}, "pair with every row of the other class"),
        ({}, {"contribution_bounds": ContributionBounds(rows=2)}, "each unit has one row"),
        ({"metric": {"estimator": "auc", "label": "odd"}}, {}, "odd"),
        ({"metric": {"estimator": "auc", "label": "amount", "default": 1}}, {}, "leave out label"),
    ],
)
def test_what_proves_nothing_is_refused(
    params: dict[str, Any], table: dict[str, Any], why: str
) -> None:
    with pytest.raises((DpflowError, ValueError), match=why):
        parsed = MeanGateParams.model_validate(PARAMS | params)
        GATE.event(parsed, TABLE.model_copy(update=table))
