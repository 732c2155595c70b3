"""What works with gates works with the gate of a plugin: command line, operator, promotion, review, pages."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import plugin_gate
import pytest
import yaml
from airflow_tasks import context
from budget_books import Visitor
from gate_commands import ask_gate
from holdout_gates import MemoryRegistry
from typer.testing import CliRunner

from dpflow import plan
from dpflow.airflow import ReusableHoldoutOperator
from dpflow.cli import app
from dpflow.engine.sessions.holdout_gate import review_champion
from dpflow.engine.sessions.model_gate import ModelGate, submit_candidate
from dpflow.engine.sessions.session import Session
from dpflow.errors import PlanRefused
from dpflow.ledger import Ledger
from dpflow.ledger.audit.budget_view import BudgetView
from dpflow.registry import BUILT_INS, Registry, _installed_plugins
from dpflow.tables.access.declarations import load_table
from dpflow.ui.application import create_app
from dpflow.ui.visit import Audience

if TYPE_CHECKING:
    from smallworld import Tiny

ROWS = """CREATE TABLE visits AS SELECT 'p' || i AS person, 0.7 + (i % 7) / 1000 AS good, 0.3 AS bad
          FROM range(400) t(i)"""
GATE: dict[str, Any] = {
    "name": "tries",
    "mechanism": "tries_gate",
    "table": "visits.yml",
    "scope": "gate",
    "params": {"epsilon": "40", "tries": 4, "score": "column_mean"},
}
GOOD = {"name": "good", "features": ["good"], "claim": "0.7"}
BAD = {"name": "bad", "features": ["bad"], "claim": "0.7"}


@pytest.fixture
def holdout(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> Tiny:
    """400 people whose scores are in two columns, a budget for one gate, and the plugin installed."""
    plugins = {name: import_module(name) for name in BUILT_INS} | dict(_installed_plugins())
    installed = Registry({**plugins, "tries": plugin_gate})
    monkeypatch.setattr(Registry, "load", lambda: installed)
    tiny.fill(ROWS)
    score = {"lower": 0, "upper": 1, "step": "0.001"}
    columns = {"good": score, "bad": score}
    table = tiny.declare(
        block=None, protects="unit", contribution_bounds={"rows": 1}, columns=columns, holdout=True
    )
    Ledger(tiny.ledger).grant(
        "gate", 40, 0, filter="basic", table=load_table(table), principal="o", confirm_large=True
    )
    return tiny


def write(tiny: Tiny, name: str, content: Any) -> Path:
    path = tiny.folder / name
    path.write_text(yaml.safe_dump(content))
    return path


def test_command_line_and_pages(holdout: Tiny) -> None:
    """Plan, open, submit by exit codes, status; looks, what is left, and verdicts on pages."""
    file = write(holdout, "gate.yml", GATE)
    code, planned = ask_gate(holdout, "plan", file, "--units", 400)
    # No formula says how often it refuses, so there is no curve.
    assert code == 0 and planned["queries"] == 4 and planned["power"] == []
    _, opened = ask_gate(holdout, "open", file)
    assert opened["left"] == {"state": "open", "answered": 0, "queries_left": 4}

    def submit(*candidates: dict[str, Any]) -> tuple[int, list[tuple[str, str]]]:
        code, said = ask_gate(holdout, "submit", file, write(holdout, "c.yml", list(candidates)))
        return code, [(verdict["verdict"], verdict["outcome"]) for verdict in said["verdicts"]]

    assert submit(GOOD, BAD) == (0, [("yes", "plausible"), ("no", "no")])
    assert submit(BAD) == (1, [("no", "no")])
    code, said = submit(*(BAD | {"name": claim, "claim": claim} for claim in ("0.8", "0.9", "1.0")))
    assert code == 3 and said == [("no", "no"), ("no", "no"), ("exhausted", "exhausted")]
    assert ask_gate(holdout, "status", file)[1]["left"]["queries_left"] == 0
    view = BudgetView(holdout.ledger)
    visitor = Visitor(create_app(lambda: view, audience=lambda: Audience(None)))
    (row,) = visitor.read_tables("sessions")["Gates"]
    assert row["Mechanism"] == "tries_gate" and row["Looks left"] == "0"
    shown = visitor.read_tables(f"release?id={opened['session']}")["Verdicts"]
    assert [look["Verdict"] for look in shown] == ["exhausted", "no", "no", "no", "yes"]


@pytest.mark.parametrize("contest", [False, True])
def test_champions_are_replaced_and_reviewed(holdout: Tiny, contest: bool) -> None:
    """By its one metric on the same rows, whether candidates claim a score or challenge alone."""
    params = GATE["params"] | {"tries": 8, "contest": contest}
    planned = plan("tries_gate", holdout.folder / "visits.yml", name="c", scope="gate", **params)
    champions = MemoryRegistry()
    gate = ModelGate(Session.open(planned, Ledger(holdout.ledger), Registry.load()), champions)

    def submit(column: str, claim: str) -> str:
        fields = {"name": f"{column} {claim}", "features": [column]}
        fields |= {} if contest else {"claim": claim}
        return str(submit_candidate(gate.session, fields, champions)["outcome"])

    assert [submit("bad", "0.3"), submit("good", "0.7")] == ["promoted", "promoted"]
    assert champions.champion is not None and champions.champion.version == "2"
    assert submit("bad", "0.3") == "no"
    assert review_champion(gate.session, champions)["verdict"] == "yes"
    assert gate.status()["queries_left"] < 8


def test_the_operator_branches(holdout: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    """On verdicts of the plugin, and on its end."""
    from airflow_names import SkipMixin

    kept: list[Any] = []
    monkeypatch.setenv("DPFLOW_LEDGER", str(holdout.ledger))
    monkeypatch.setattr(SkipMixin, "skip_all_except", lambda self, ti, ids: kept.append(list(ids)))
    task = SimpleNamespace(dag=SimpleNamespace(task_group_dict={}))
    instance = {"task": task, "xcom_push": lambda key, value: None}

    def run(session: dict[str, Any], *candidates: dict[str, Any]) -> Any:
        operator = ReusableHoldoutOperator(
            task_id="gate",
            session=session,
            candidates=list(candidates),
            branches={"plausible": "deploy", "no": "retrain", "exhausted": "alert"},
        )
        return operator.execute(context(holdout, **instance))

    run(GATE, GOOD)
    run(GATE, BAD)
    run(GATE, *(BAD | {"name": claim, "claim": claim} for claim in ("0.8", "0.9", "1.0")))
    assert kept == [["deploy"], ["retrain"], ["alert"]]


def test_another_session_is_no_gate(holdout: Tiny) -> None:
    """Refused by every door before it is charged."""
    changes = {"mechanism": "mean_queries", "params": {"epsilon": 1, "rows": 400, "queries": 2}}
    file = write(holdout, "gate.yml", GATE | {"name": "means"} | changes)
    done = CliRunner().invoke(app, ["gate", "open", str(file), "--ledger", str(holdout.ledger)])
    assert isinstance(done.exception, PlanRefused) and "tries_gate" in str(done.exception)
    assert Ledger(holdout.ledger).releases() == []
