"""`dpflow ask`, `SessionOperator` and Python open the same session: one charge, stored answers,
what is left.
"""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from typer.testing import CliRunner

from dpflow import Session, plan
from dpflow.cli import app
from dpflow.errors import DpflowError, InvalidInput
from dpflow.ledger import Ledger
from dpflow.registry import Registry
from dpflow.tables.access.declarations import load_table

if TYPE_CHECKING:
    from smallworld import Tiny

ROWS = "CREATE TABLE visits AS SELECT 'p' || i AS person, i % 101 AS age FROM range(5000) t(i)"
SESSION: dict[str, Any] = {
    "name": "ages",
    "mechanism": "stable_median",
    "table": "visits.yml",
    "scope": "ages",
    "params": {"epsilon": "0.5", "groups": 250, "queries": 3, "range_size": 1001},
}
GRID = {"kind": "grid", "lower": 0, "upper": 100, "step": "0.1"}
QUERY = {"estimator": "column_mean", "columns": ["age"], "range": GRID}


@pytest.fixture
def file(tiny: Tiny) -> Path:
    """A release file that opens a session of three answers."""
    tiny.fill(ROWS)
    columns = {"age": {"lower": 0, "upper": 120}}
    table = tiny.declare(
        block=None, protects="unit", contribution_bounds={"rows": 1}, columns=columns
    )
    declared = load_table(table)
    Ledger(tiny.ledger).grant("ages", 2, 0, filter="basic", table=declared, principal="owner")
    path = tiny.folder / "ages.yml"
    path.write_text(yaml.safe_dump(SESSION))
    return path


def run(tiny: Tiny, *words: str) -> dict[str, Any]:
    done = CliRunner().invoke(app, ["ask", *words, "--ledger", str(tiny.ledger), "--json"])
    if isinstance(done.exception, DpflowError):
        raise done.exception
    assert done.exit_code == 0, done.output
    return dict(json.loads(done.output))


def test_three_doors_one_session(
    tiny: Tiny, file: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: Any
) -> None:
    """Words, a file of queries, Python and the operator: the same question has one answer and one
    price.
    """
    word = "range={kind: grid, lower: 0, upper: 100, step: '0.1'}"
    first = run(tiny, str(file), "estimator=column_mean", "columns=[age]", word)
    assert first["answers"][0]["value"] == pytest.approx(50, abs=4)
    assert first["answers"][0]["queries_left"] == 2 and first["left"]["queries_left"] == 2
    queries = tiny.folder / "queries.yml"
    queries.write_text(yaml.safe_dump([QUERY, QUERY | {"estimator": "column_deviation"}]))
    second = run(tiny, str(file), "--queries", str(queries))
    assert second["answers"][0] == first["answers"][0] and second["session"] == first["session"]
    assert second["answers"][1]["value"] == pytest.approx(29, abs=4)

    planned = plan(
        "stable_median", tiny.folder / "visits.yml", name="ages", scope="ages", **SESSION["params"]
    )
    session = Session.open(planned, Ledger(tiny.ledger), Registry.load())
    assert session.ask("column_mean", columns=["age"], range=GRID) == first["answers"][0]

    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path_factory.mktemp("airflow")))
    monkeypatch.setenv(
        "AIRFLOW_CONN_DPFLOW_LEDGER",
        json.dumps({"conn_type": "dpflow_ledger", "host": str(tiny.ledger)}),
    )
    from dpflow.airflow import SessionOperator

    day = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
    context = {
        "dag": SimpleNamespace(fileloc=str(tiny.folder / "dag.py"), timetable=None),
        "logical_date": day,
    }
    asked = [QUERY, QUERY | {"default": 7}, QUERY | {"default": 8}]
    answers = SessionOperator(task_id="t", session="ages.yml", queries=asked).execute(context)
    assert answers[0] == first["answers"][0] and answers[1]["queries_left"] == 0
    assert answers[2] == {"verdict": "exhausted"}
    assert run(tiny, str(file))["left"] == {"state": "closed", "answered": 3, "queries_left": 0}
    assert Ledger(tiny.ledger).remaining("ages").rows()[0]["epsilon_spent"] == "1.5"


def test_a_session_says_when_it_can_prove_nothing(tiny: Tiny, file: Path) -> None:
    """Few groups are unproven; require: proven refuses them before anything is charged, with the
    number needed.
    """
    assert (
        run(tiny, str(file), "estimator=column_mean", "columns=[age]")["answers"][0]["guarantee"]
        == "unproven"
    )
    file.write_text(
        yaml.safe_dump(SESSION | {"name": "p", "params": SESSION["params"] | {"require": "proven"}})
    )
    with pytest.raises(InvalidInput, match=r"at least \d+ groups .* split the data into 63 groups"):
        run(tiny, str(file), "estimator=column_mean", "columns=[age]")


def test_mistakes_are_sentences(tiny: Tiny, file: Path) -> None:
    with pytest.raises(InvalidInput, match="no list"):
        run(tiny, str(file), "--queries", str(file))
    with pytest.raises(InvalidInput, match="at most 1001; take a coarser range"):
        run(tiny, str(file), "estimator=column_mean", "columns=[age]", "range={kind: float32}")
    with pytest.raises(InvalidInput, match="did you mean"):
        run(tiny, str(file), "estimator=column_mena", "columns=[age]")


def test_a_proof_begins_with_unseen_rows(tiny: Tiny, file: Path) -> None:
    """A second session on the same data is never called proven. A private number of units is counted."""
    tiny.fill(ROWS.replace("range(5000)", "range(200000)"))
    age = {"lower": 0, "upper": 120, "missing": 0}
    tiny.declare(block=None, protects="unit", contribution_bounds={"rows": 1}, columns={"age": age})
    proven = SESSION["params"] | {
        "groups": 5000,
        "queries": 1,
        "interval": "simple",
        "beta": "1/2",
        "range_size": 2,
    }
    proven |= {"epsilon": "0.03"}
    given = {"name": "one", "scope": "ages", **proven}
    query = {
        "estimator": "column_mean",
        "columns": ["age"],
        "range": {"kind": "set", "values": [0, 100]},
    }
    given["count_epsilon"] = "0.1"
    first = Session.open(
        plan("stable_median", tiny.folder / "visits.yml", **given),
        Ledger(tiny.ledger),
        Registry.load(),
    )
    answer = first.ask(query)
    assert answer["guarantee"] == "proven" and 0 < answer["tolerance"] < 60, answer
    second = plan("stable_median", tiny.folder / "visits.yml", **(given | {"name": "two"}))
    answer = Session.open(second, Ledger(tiny.ledger), Registry.load()).ask(query)
    assert answer["guarantee"] == "unproven" and "before the session" in answer["because"]
    assert first.ask(query)["guarantee"] == "proven"
