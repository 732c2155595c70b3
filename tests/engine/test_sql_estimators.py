"""An analyst's own SQL as the estimator of a gate or an answering session."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from dpflow import Session, plan
from dpflow.core.declaration import load_table
from dpflow.engine.asking import ask_all
from dpflow.engine.candidate import Submission, load_candidate
from dpflow.engine.gate import judge
from dpflow.errors import InvalidDeclaration, PlanRefused, UnknownName
from dpflow.ledger import Ledger
from dpflow.registry import Registry
from dpflow.tables import PrivateTable

if TYPE_CHECKING:
    from smallworld import Tiny

ROWS = """
CREATE TABLE visits AS SELECT 'p' || i AS person, DATE '2020-01-01' AS day, i % 2 AS sick, 0.1 + 0.8 * (i % 2) AS said,
       (i % 2) * 30 + i % 7 AS age FROM range(4000) t(i)
"""
PARAMS = {"groups": 400, "queries": 20, "failures": 2, "rho": "0.24", "alpha": "0.2", "epsilon": "4"}
LOSS = {"sql": "avg(abs(sick - said))", "range": [0, 1], "default": 1}
RIGHT = {"sql": "1 - avg(abs(sick - said))", "range": [0, 1], "default": 0}
BIT = {"lower": 0, "upper": 1}


@pytest.fixture
def opened(tiny: Tiny) -> Any:
    """Opens a session on 4,000 people with stored predictions that are off by 0.1."""
    tiny.fill(ROWS)
    columns = {"sick": BIT, "said": BIT, "age": {"lower": 0, "upper": 120}}
    table = load_table(tiny.declare(protects="unit", limits={"rows": 1}, columns=columns, block=None, holdout=True))
    Ledger(tiny.ledger).grant("gate", 8, 0, filter="basic", table=table, principal="owner")

    def session(mechanism: str = "reusable_holdout", **params: Any) -> Session:
        planned = plan(mechanism, tiny.folder / "visits.yml", name="gate", scope="gate", **(params or PARAMS))
        return Session.open(planned, Ledger(tiny.ledger), Registry.load())

    return session


def test_a_claim_about_an_expression_is_judged(opened: Any) -> None:
    """The plausible claim passes and the exaggerated one fails; both ways to write the query are one."""
    gate = opened()
    assert gate.ask(RIGHT, claim="0.9")["verdict"] == "yes"
    assert gate.ask({"estimator": RIGHT, "claim": "0.95"})["verdict"] == "no"


def test_the_text_is_part_of_the_question(opened: Any) -> None:
    """Spaces and brackets are no new claim; another text, range or default is."""
    gate = opened()
    first = gate.ask(RIGHT, claim="0.9")
    assert gate.ask(RIGHT | {"sql": "(1) - AVG( abs(Sick-said) ) -- again"}, claim="0.9") == first
    assert gate.remaining()["answered"] == 1
    changed = [{"sql": "1 - avg(abs(said - sick))"}, {"range": [0, 2]}, {"default": "0.5"}]
    for number, change in enumerate(changed, start=2):
        gate.ask(RIGHT | change, claim="0.9")
        assert gate.remaining()["answered"] == number


def test_a_candidate_may_bring_its_own_measure(opened: Any) -> None:
    """It needs no features; its digest covers the canonical text, so the record that is promoted does."""
    gate = opened()
    given = {"name": "mine", "estimator": RIGHT, "claim": "0.9"}
    said = judge(gate, given)
    assert said["verdict"] == "yes" and judge(gate, given | {"name": "other name"})["candidate"] == said["candidate"]
    spaced = judge(gate, given | {"estimator": RIGHT | {"sql": "1-avg(abs(sick-said))"}})
    assert spaced["candidate"] == said["candidate"] and gate.remaining()["answered"] == 1
    other = judge(gate, given | {"estimator": RIGHT | {"sql": "1 - avg(abs(said - sick))"}})
    assert other["candidate"] != said["candidate"] and gate.remaining()["answered"] == 2
    loaded = load_candidate(gate.canonical(Submission.model_validate(given)))
    assert loaded.digest == said["candidate"] and loaded.submission.measure == '(1 - avg(abs(("sick" - "said"))))'


def test_answering_sessions_take_expressions(opened: Any) -> None:
    """A private median over groups of any expression, on its own range."""
    session = opened("stable_median", epsilon="0.5", groups=400, queries=5)
    grid = {"kind": "grid", "lower": 0, "upper": 1, "step": "0.01"}
    answers = ask_all(
        session, [{"estimator": LOSS, "range": grid}, {"estimator": LOSS | {"sql": "avg(sick)"}, "range": grid}], None
    )
    assert [answer["queries_left"] for answer in answers] == [4, 3]
    assert abs(answers[0]["value"] - 0.1) <= 0.2  # all 400 groups agree: beyond 0.2 with probability below e^-45


@pytest.mark.parametrize(
    ("query", "error", "message"),
    [
        ({"estimator": RIGHT | {"sql": "max(error('x'))"}}, PlanRefused, "the function 'error' is not in the language"),
        (
            {"estimator": RIGHT | {"sql": "(SELECT avg(sick) FROM visits)"}},
            PlanRefused,
            "Subquery is not in the language",
        ),
        ({"estimator": RIGHT | {"sql": "avg(sicc)"}}, UnknownName, "did you mean 'sick'"),
        ({"estimator": RIGHT | {"sql": "avg(said / sick)"}}, PlanRefused, "whose bounds are not known"),
        ({"estimator": RIGHT | {"range": [1, 0]}}, InvalidDeclaration, r"estimator.sql: range must be \[low, high\]"),
        ({"estimator": RIGHT | {"default": 7}}, InvalidDeclaration, "default must lie within range"),
        ({"estimator": {"sql": "avg(sick)", "default": 0}}, InvalidDeclaration, "estimator.sql.range: Field required"),
        ({"estimator": RIGHT, "columns": ["sick"]}, InvalidDeclaration, "names its columns and default itself"),
        ({"estimator": "column_mean"}, InvalidDeclaration, "name the columns that the estimator reads"),
        ({"estimator": ["avg(sick)"]}, InvalidDeclaration, "estimator"),
    ],
)
def test_what_is_refused_reads_nothing_and_costs_nothing(
    opened: Any, query: dict[str, Any], error: type[Exception], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = opened()
    monkeypatch.setattr(PrivateTable, "group_estimates", lambda *a: pytest.fail("rows were read"))
    with pytest.raises(error, match=message):
        gate.ask({"claim": "0.5", **query})
    assert gate.remaining()["answered"] == 0 and gate.remaining()["state"] == "open"
