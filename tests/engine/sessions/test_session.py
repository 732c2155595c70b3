"""The life of a session: charged whole at its opening, every answer stored before it is seen,
failures never redrawn.
"""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from smallworld import forbid_reads

import dpflow
from dpflow import Session, fault_points, open_session, plan, release
from dpflow.core.accounting.events import ZCDP
from dpflow.engine.sessions.holdout_gate import judge
from dpflow.errors import (
    BudgetExceeded,
    DatasetLocked,
    InvalidInput,
    PlanRefused,
    PluginError,
    SessionClosed,
    TableBusy,
    TableUnreadable,
    UnknownName,
)
from dpflow.ledger import Ledger
from dpflow.mechanisms.above_threshold import AboveThreshold
from dpflow.registry import Registry
from dpflow.tables.access.declarations import load_table
from dpflow.tables.private import PrivateTable

if TYPE_CHECKING:
    from smallworld import Tiny

FAR = {"threshold": -(2**40)}  # every count is above it, whatever the noise
NEAR = {"threshold": 2**40}  # and below this


def opened(tiny: Tiny, mechanism: str = "above_threshold", **changes: Any) -> Session:
    given: dict[str, Any] = {
        "name": "watch",
        "scope": "visits",
        "blocks": ["2020-01-01"],
        "epsilon": "0.25",
    }
    planned = plan(mechanism, tiny.folder / "visits.yml", **(given | changes))
    return Session.open(planned, Ledger(tiny.ledger), Registry.load())


def test_a_session_is_paid_once_and_answers_until_it_is_used_up(tiny: Tiny) -> None:
    """Opening charges everything; answers and resuming cost nothing; a used-up session still
    repeats what it said.
    """
    session = opened(tiny, failures=2)
    assert tiny.spent() == "0.25"
    assert [session.ask({**FAR, "by": "city", "key": key}) for key in ("Oslo", "Rome")] == [
        {"verdict": "above"}
    ] * 2
    assert session.ask(NEAR) == {"verdict": "below"}
    again = opened(tiny, failures=2)
    assert again.id == session.id and again.ask(NEAR) == {"verdict": "below"}
    assert again.ask({**NEAR, "by": "city", "key": "Oslo"}) == {"verdict": "below"}
    with pytest.raises(SessionClosed, match="used up"):
        session.ask(FAR)
    assert session.ask(NEAR) == {"verdict": "below"}
    assert tiny.spent() == "0.25" and Ledger(tiny.ledger).verify().ok


@pytest.mark.parametrize("half", [{"key": "Oslo"}, {"by": "city"}, {"by": "no such"}])
def test_half_of_a_key_is_no_question_about_all_rows(tiny: Tiny, half: dict[str, str]) -> None:
    """Refused before anything is read or used up."""
    with pytest.raises(InvalidInput, match="by and key belong together"):
        opened(tiny).ask(NEAR | half)
    assert opened(tiny).ask(NEAR) == {"verdict": "below"}


@pytest.mark.parametrize("query", [None, 1, [], b"x"])
def test_a_question_of_another_type_is_none(tiny: Tiny, query: Any) -> None:
    with pytest.raises(InvalidInput, match="a question is a mapping or an estimator's name"):
        opened(tiny).ask(query)


def test_doors_refuse_what_is_no_plan_table_or_run(tiny: Tiny) -> None:
    """By name, before anything is charged."""
    ledger = Ledger(tiny.ledger)
    for table in (None, 1, b"x", {}):
        with pytest.raises(InvalidInput, match="a table is a declaration's path"):
            plan("count", table, name="a", scope="visits", epsilon=1)
    declared = load_table(tiny.folder / "visits.yml")
    with pytest.raises(InvalidInput, match="of a query a list of them"):
        dpflow.sql(
            "SELECT COUNT(*) FROM visits", tables=declared, ledger=ledger, scope="visits", epsilon=1
        )
    planned = plan(
        "count", declared, name="a", scope="visits", epsilon="0.1", blocks=["2020-01-01"]
    )
    for door in (release, open_session):
        with pytest.raises(InvalidInput, match="plan is of type str"):
            door("x", ledger)
        with pytest.raises(InvalidInput, match="run_identity is of type str"):
            door(planned, ledger, run_identity="x")
    assert tiny.spent() == "0"


def test_an_unpaid_session_reads_nothing(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    forbid_reads(monkeypatch)
    with pytest.raises(BudgetExceeded):
        opened(tiny, epsilon="1.5")


def test_questions_that_cannot_be_asked_change_nothing(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What plan and catalog refuse is an error before any row is read, and the session goes on."""
    session = opened(tiny)
    state = Ledger(tiny.ledger).session(session.id)
    with monkeypatch.context() as patched:
        forbid_reads(patched)
        with pytest.raises(InvalidInput, match="threshold"):
            session.ask({})
        with pytest.raises(UnknownName, match="Oslo"):
            session.ask({**FAR, "by": "city", "key": "Osl"})
        tiny.database.rename(tiny.database.with_suffix(".away"))
        with pytest.raises(TableUnreadable):
            session.ask(FAR)
    tiny.database.with_suffix(".away").rename(tiny.database)
    assert Ledger(tiny.ledger).session(session.id) == state
    assert session.ask(FAR) == {"verdict": "above"}


@pytest.mark.parametrize("where", ["read", "draw", "impossible"])
def test_a_failure_that_may_depend_on_rows_stays_none(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """It closes the session with its state unchanged: no redraw, no second failure to learn from."""
    session = opened(tiny)
    before = Ledger(tiny.ledger).session(session.id)

    def fail(*_: Any) -> Any:
        raise TableUnreadable("withheld") if where == "read" else ZeroDivisionError

    with monkeypatch.context() as patched:
        if where == "read":
            patched.setattr(PrivateTable, "answer", fail)
        elif where == "draw":
            patched.setattr(AboveThreshold, "answer", fail)
        else:
            real = AboveThreshold.answer
            patched.setattr(
                AboveThreshold,
                "answer",
                lambda *a: (type(real(*a)[0])({"verdict": float("nan")}), real(*a)[1]),
            )
        assert session.ask(FAR) == {"verdict": "none"}
    assert session.ask(FAR) == {"verdict": "none"}
    after = Ledger(tiny.ledger).session(session.id)
    assert after.closed and after.state == before.state
    with pytest.raises(SessionClosed):
        session.ask(NEAR)


def test_a_retryable_failure_stores_nothing(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy file or a crash leaves the session as it was, and the question can be asked again."""
    session = opened(tiny)
    with monkeypatch.context() as patched:
        patched.setattr(PrivateTable, "answer", lambda *a: (_ for _ in ()).throw(TableBusy("busy")))
        with pytest.raises(TableBusy):
            session.ask(FAR)
    with monkeypatch.context() as patched:
        patched.setattr("dpflow.fault_points.armed", f"draw.after:fail:{tiny.folder / 'marker'}")
        with pytest.raises(fault_points.FaultInjected):
            session.ask(FAR)
    assert Ledger(tiny.ledger).session(session.id).version == 0
    assert session.ask(FAR) == {"verdict": "above"}


def test_racing_answers_advance_one_state(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer drawn from a state that another answer advanced meanwhile is thrown away and drawn
    again.
    """
    session, rival = opened(tiny, failures=3), opened(tiny, failures=3)
    real, draws = AboveThreshold.answer, []

    def slow(*arguments: Any) -> Any:
        draws.append(1)
        if len(draws) == 1:
            rival.ask(NEAR)
        return real(*arguments)

    monkeypatch.setattr(AboveThreshold, "answer", slow)
    assert session.ask(FAR) == {"verdict": "above"}
    assert len(draws) == 3 and Ledger(tiny.ledger).session(session.id).version == 2


def test_a_release_is_no_session(tiny: Tiny) -> None:
    with pytest.raises(PlanRefused, match="run it with release"):
        opened(tiny, "count")


# --- the gate ---------------------------------------------------------------------------------------------------------

LABELLED = """
CREATE TABLE visits AS SELECT 'p' || i AS person, DATE '2020-01-01' AS day, i % 2 AS sick, (i % 2) * 30 + i % 7 AS age
FROM range(4000) t(i)
"""


def submission(tiny: Tiny, model: Any, claim: str, name: str, shift: int = 0) -> dict[str, Any]:
    """Fit a model on fresh rows of the same kind, or on ages that are off by ``shift``, and save
    it.
    """
    import skops.io

    ages, labels = (
        np.array([[(i % 2) * 30 + i % 7 + shift] for i in range(400)]),
        np.array([i % 2 for i in range(400)]),
    )
    file = tiny.folder / f"{name}.skops"
    skops.io.dump(model.fit(ages, labels), file)
    return {
        "name": name,
        "file": str(file),
        "label": "sick",
        "features": ["age"],
        "claim": claim,
        "estimator": "accuracy",
    }


@pytest.fixture
def gate(tiny: Tiny) -> Session:
    """An open gate on a table whose label follows from the age."""
    tiny.fill(LABELLED)
    table = tiny.declare(
        protects="unit",
        contribution_bounds={"rows": 1},
        columns={"sick": {"lower": 0, "upper": 1}, "age": {"lower": 0, "upper": 120}},
    )
    Ledger(tiny.ledger).grant(
        "gate", 4, 0, filter="basic", table=load_table(table), principal="owner"
    )
    params = {
        "groups": 400,
        "queries": 20,
        "failures": 2,
        "rho": "0.24",
        "alpha": "0.2",
        "beta": "0.1",
        "side": "over",
    }
    return opened(
        tiny, "reusable_holdout", name="gate", scope="gate", blocks=None, epsilon="4", **params
    )


def test_the_gate_tells_honest_claims_from_wrong_ones(tiny: Tiny, gate: Session) -> None:
    """A true claim passes, a false one does not, a repeated one is free, and after the last failure
    it is exhausted.
    """
    from sklearn.tree import DecisionTreeClassifier

    honest = submission(tiny, DecisionTreeClassifier(), "0.9", "tree")
    first = judge(gate, honest)
    assert first["verdict"] == "yes" and first["outcome"] == "plausible"
    wrong = [
        submission(tiny, DecisionTreeClassifier(), "1", f"wrong{years}", years)
        for years in (50, 60)
    ]
    assert [judge(gate, b)["verdict"] for b in wrong] == ["no", "no"]
    assert (
        judge(gate, submission(tiny, DecisionTreeClassifier(max_depth=1), "0.8", "stump"))[
            "verdict"
        ]
        == "exhausted"
    )
    assert judge(gate, honest) == first


def test_an_open_gate_closes_its_scope(tiny: Tiny, gate: Session) -> None:
    """While it is open nothing else may be released from its scope."""
    count = plan("count", tiny.folder / "visits.yml", name="count", scope="gate", epsilon="1/1000")
    with pytest.raises(DatasetLocked):
        release(count, Ledger(tiny.ledger))


def test_models_that_may_change_their_mind_are_refused(tiny: Tiny, gate: Session) -> None:
    """A pickle of anything, or an estimator outside the allow-list, never runs."""
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.preprocessing import FunctionTransformer

    odd = submission(tiny, RandomForestClassifier(n_estimators=2), "0.9", "fine")
    Path(odd["file"]).write_bytes(b"not a model")
    with pytest.raises(InvalidInput, match="not a skops file"):
        judge(gate, odd)
    with pytest.raises(InvalidInput, match="may not be a fixed function|types that are not"):
        judge(gate, submission(tiny, FunctionTransformer(np.sin), "0.9", "function"))
    with pytest.raises(PlanRefused, match="hand one to ask"):
        gate.ask({"estimator": "accuracy", "claim": "0.9", "candidate": "c", "columns": ["age"]})
    with pytest.raises(UnknownName, match="accuracy"):
        gate.ask({"estimator": "acuracy", "claim": "0.9", "candidate": "c", "columns": ["age"]})


def test_a_session_claims_what_is_proven_for_sessions(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The filters' proof covers pure and approximate sessions; another claim is the author's
    mistake.
    """
    monkeypatch.setattr(AboveThreshold, "event", lambda *_: ZCDP(Fraction(1, 10)))
    with pytest.raises(PluginError, match=r"states zcdp\.v1"):
        opened(tiny)


def test_a_session_is_opened_by_the_ledgers_place(tiny: Tiny) -> None:
    """`open_session` takes a path or an open ledger, and resumes what `Session.open` charged."""
    session = opened(tiny)
    for place in (tiny.ledger, str(tiny.ledger), Ledger(tiny.ledger)):
        again = open_session(session.plan, place)
        assert isinstance(again, Session) and again.id == session.id
    assert tiny.spent() == "0.25"
