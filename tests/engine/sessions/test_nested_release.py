"""Releases inside a gate: paid by its own epsilon, by no other account, and an end to what its
verdicts prove.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Any

import pytest
from holdout_gates import open_gate

from dpflow import Session, fault_points, plan, release
from dpflow.core.accounting.events import Approximate, Pure
from dpflow.engine.sessions.holdout_gate import judge
from dpflow.engine.sessions.nested_release import inner_plan
from dpflow.errors import BudgetExceeded, InvalidInput, PlanRefused, SessionClosed, UnknownName
from dpflow.ledger import Ledger
from dpflow.registry import Registry
from dpflow.tables.access.declarations import load_table

if TYPE_CHECKING:
    from smallworld import Tiny

ROWS = "CREATE TABLE visits AS SELECT 'p' || i AS person, i % 2 AS sick, (i % 2) * 30 + i % 7 AS age FROM range(4000) t(i)"
PARAMS = {
    "groups": 400,
    "queries": 20,
    "failures": 2,
    "rho": "0.24",
    "alpha": "0.2",
    "epsilon": "5",
}
RESERVE = {"reserve": {"epsilon": "1"}}
HONEST = {"name": "honest", "estimator": "column_mean", "features": ["age"], "claim": "18"}


def count(epsilon: str = "0.4", **changes: Any) -> dict[str, Any]:
    return {"release": {"mechanism": "count", "params": {"epsilon": epsilon}} | changes}


@pytest.fixture
def ledger(tiny: Tiny) -> Ledger:
    tiny.fill(ROWS)
    age = {"lower": 0, "upper": 120, "missing": 0}
    columns = {"sick": {"lower": 0, "upper": 1}, "age": age}
    table = load_table(
        tiny.declare(
            protects="unit",
            contribution_bounds={"rows": 1},
            columns=columns,
            block=None,
            holdout=True,
        )
    )
    made = Ledger(tiny.ledger)
    made.grant("gate", 5, "1e-6", filter="basic", table=table, principal="owner")
    return made


def test_a_release_inside_is_paid_by_the_gate(tiny: Tiny, ledger: Ledger) -> None:
    """The scope pays for the session alone; the reserve pays until it is used up; the same release
    again is free.
    """
    session = open_gate(tiny, ledger, **PARAMS, **RESERVE)
    assert ledger.remaining("gate").rows()[0]["epsilon_left"] == "0"
    first = session.ask(count())
    assert first["verdict"] == "released" and abs(first["result"]["rows"][0][2] - 4000) < 60
    assert (first["epsilon"], first["reserve_epsilon_left"], first["reserve_delta_left"]) == (
        "0.4",
        "0.6",
        "0",
    )
    assert session.ask(count()) == first and judge(session, HONEST)["verdict"] == "yes"
    some = session.ask(count(where="sick = 1"))
    assert abs(some["result"]["rows"][0][2] - 2000) < 60 and some["reserve_epsilon_left"] == "0.2"
    state = ledger.session(session.id)
    with pytest.raises(BudgetExceeded, match=r"epsilon 0.4 .* 0.2 and 0 of its reserve are left"):
        session.ask(count(revision=2))
    assert ledger.session(session.id) == state
    assert (
        open_gate(tiny, ledger, **PARAMS, **RESERVE).ask(count("0.2", revision=2))[
            "reserve_epsilon_left"
        ]
        == "0"
    )
    assert session.remaining() == {
        "state": "open", "answered": 4, "queries_left": 19, "failures_left": 2, "reserve_epsilon_left": "0",
        "reserve_delta_left": "0",
    }  # fmt: skip
    with pytest.raises(PlanRefused, match="readable only through a gate"):
        release(
            plan("count", tiny.folder / "visits.yml", name="n", scope="gate", epsilon="0.1"), ledger
        )
    assert len(ledger.releases()) == 1 and ledger.verify().ok
    for claim in ("60", "61"):
        assert judge(session, HONEST | {"claim": claim})["verdict"] == "no"
    with pytest.raises(SessionClosed):
        session.ask(count("0.1", revision=3))
    assert session.ask(count()) == first


def test_what_has_no_place_inside(tiny: Tiny, ledger: Ledger) -> None:
    """No reserve, a session, a mechanism without an exact price, a wrong one: refused before
    anything is read or stored.
    """
    bare = open_gate(tiny, ledger, name="bare", **PARAMS)
    with pytest.raises(PlanRefused, match="keeps nothing for other releases"):
        bare.ask(count())
    ledger.resolve(bare.id, reason="test", principal="owner")
    ledger.grant(
        "gate",
        10,
        "1e-6",
        filter="basic",
        principal="owner",
        table=load_table(tiny.folder / "visits.yml"),
    )
    session = open_gate(tiny, ledger, **PARAMS, **RESERVE)
    state = ledger.session(session.id)
    for wrong, error, message in (
        (count(mechanism="above_threshold"), PlanRefused, "no single release"),
        (count(mechanism="cuont"), UnknownName, "count"),
        (count(params={}), InvalidInput, "epsilon"),
        (count(table="visits.yml"), InvalidInput, "table"),
        (count(where="age >= 0) OR (sick = 0"), InvalidInput, "where|condition|filter|parse"),
        (count("1.1"), BudgetExceeded, "1.1"),
    ):
        with pytest.raises(error, match=message):
            session.ask(wrong)
    assert ledger.session(session.id) == state and session.remaining()["answered"] == 0


def test_noise_that_is_left_to_choose_is_what_the_reserve_holds(tiny: Tiny, ledger: Ledger) -> None:
    """Sums of two columns take Gaussian noise for a delta, which has no exact price: inside a gate Laplace
    noise is taken, and not refused.
    """
    sums = {"columns": ["sick", "age"], "epsilon": "0.01", "delta": "0.01"}
    table = load_table(tiny.folder / "visits.yml")
    outside = plan(
        "vector_sum", table.model_copy(update={"holdout": False}), name="b", scope="gate", **sums
    )
    assert outside.event.epsilon_delta() is None
    params: dict[str, Any] = PARAMS | {"reserve": {"epsilon": "1", "delta": "0.1"}, "delta": "0.2"}
    gate = plan("reusable_holdout", table, name="gate", scope="gate", **params)
    inside = inner_plan(gate, {"mechanism": "vector_sum", "params": sums}, Registry.load())
    assert inside.event.epsilon_delta() == (Fraction("0.01"), 0)


def test_a_crash_inside_is_charged_once(
    tiny: Tiny, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the draw and before the answer is stored nothing is spent and nothing was seen; the
    next try draws afresh.
    """
    session = open_gate(tiny, ledger, **PARAMS, **RESERVE)
    with monkeypatch.context() as patched:
        patched.setattr("dpflow.fault_points.armed", "draw.after:fail")
        with pytest.raises(fault_points.FaultInjected):
            session.ask(count())
    assert session.remaining()["answered"] == 0
    assert session.ask(count("1"))["reserve_epsilon_left"] == "0"


def test_a_failed_release_is_none_and_paid(
    tiny: Tiny, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What may depend on rows is answered "none", permanently; drawing again would be rejection
    sampling.
    """
    from dpflow.mechanisms.count import Count

    session = open_gate(tiny, ledger, **PARAMS, **RESERVE)
    with monkeypatch.context() as patched:
        patched.setattr(Count, "draw", lambda *a: 1 / 0)
        failed = session.ask(count())
    assert failed["result"]["rows"][0][2] is None and failed["reserve_epsilon_left"] == "0.6"
    assert session.ask(count()) == failed and judge(session, HONEST)["verdict"] == "yes"


def test_verdicts_after_it_prove_nothing(
    tiny: Tiny, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Proofs are about whole groups, a release protects one unit: verdicts before it keep theirs,
    those after it are unproven.
    """
    from dpflow.mechanisms import reusable_holdout

    monkeypatch.setattr(reusable_holdout, "is_proven", lambda *a: True)
    session = open_gate(tiny, ledger, **PARAMS | RESERVE, count_epsilon="1")
    before = judge(session, HONEST)
    session.ask(count())
    after = judge(session, HONEST | {"claim": "17"})
    assert before["guarantee"] == "proven" and after["guarantee"] == "unproven"
    assert (
        "inside the session is private by unit" in after["because"]
        and judge(session, HONEST)["guarantee"] == "proven"
    )


def test_the_reserve_is_part_of_the_gates_price(tiny: Tiny, ledger: Ledger) -> None:
    """The session claims all of epsilon and delta; approximate releases take from delta, too."""
    whole = PARAMS | {"delta": "1e-6", "reserve": {"epsilon": "1", "delta": "4e-7"}}
    planned = plan(
        "reusable_holdout", tiny.folder / "visits.yml", name="gate", scope="gate", **whole
    )
    assert planned.event == Approximate(5, planned.params.delta)
    pure = plan(
        "reusable_holdout", tiny.folder / "visits.yml", name="g", scope="gate", **PARAMS, **RESERVE
    )
    assert pure.event == Pure(5)
    session = Session.open(planned, ledger, Registry.load())
    keys = {
        "mechanism": "private_histogram",
        "params": {"by": "sick", "epsilon": "0.5", "delta": "3e-7"},
    }
    assert session.ask({"release": keys})["reserve_delta_left"] == "1e-7"
    with pytest.raises(BudgetExceeded, match="delta 3e-7, and"):
        session.ask({"release": keys | {"revision": 2}})


def test_a_release_inside_is_checked_as_any(tiny: Tiny, ledger: Ledger) -> None:
    """Bounds without a step for a column of fractions are refused, and the reserve stays."""
    tiny.fill(ROWS.replace("i % 2 AS sick", "0.5::DOUBLE AS sick"))
    session = open_gate(tiny, ledger, **PARAMS, **RESERVE)
    params = {"epsilon": "0.4", "column": "sick"}
    with pytest.raises(PlanRefused, match="declare step"):
        session.ask(count(mechanism="sum", params=params))
    assert session.remaining()["answered"] == 0
