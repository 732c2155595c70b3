"""Gates, sessions and predictions of tasks at a service, through Airflow's own task runner."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import duckdb
import pytest
import yaml
from airflow_runs import run_dag
from service_world import TOKENS, Server, ServiceWorld, asker, serve_here

from dpflow.errors import InvalidInput
from dpflow.tables.access.declarations import load_table

DAG_FILE = """
from datetime import datetime, timedelta
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG
from dpflow.airflow import PrivatePredictionOperator, ReusableHoldoutOperator, SessionOperator

def said(name, claim):
    place = {"database": "said.duckdb", "table": name, "id": "person"}
    return {"name": name, "label": "late", "claim": claim, "predictions": place}

session = {"name": "means", "mechanism": "mean_queries", "table": "visits",
           "params": {"epsilon": "0.25", "rows": 100, "queries": 2}}
with DAG("d", schedule="@daily", start_date=datetime(2020, 1, 1), catchup=False,
         default_args={"retries": 0}) as dag:
    gate = ReusableHoldoutOperator(task_id="gate", session="late", fresh=["fresh"], service_conn_id="gates",
        candidates=[said("good", "0.9"), said("bad", "0.9"), said("bad", "0.8"), said("worse", "0.9"), said("good", "0.9")],
        branches={"plausible": ["ask"], "no": ["never"]})
    ask = SessionOperator(task_id="ask", session=session, queries=[{"column": "age"}, {"column": "cost"}], deferrable=False)
    later = SessionOperator(task_id="later", session=session, queries=[{"column": "cost"}])
    predict = PrivatePredictionOperator(task_id="predict", service_conn_id="points",
        points={"database": "points.duckdb", "table": "tomorrow", "key": "id"},
        answers={"database": "answers.duckdb", "table": "answers"})
    gate >> [ask, EmptyOperator(task_id="never")]
    ask >> later >> predict
"""
RUNS = """
run(2)
run(2)                                   # cleared and run again
from airflow.models.xcom import XComModel
with create_session() as session:
    values = {x.task_id: x.value for x in session.query(XComModel).filter(XComModel.key == "return_value")}
Path(folder / "answers.json").write_text(json.dumps(values, default=str))
"""
GATE: dict[str, Any] = {
    "name": "late",
    "mechanism": "gate",
    "table": "holdout.yml",
    "scope": "holdout",
    "params": {
        "metric": "accuracy",
        "threshold": "0.2",
        "epsilon": 40,
        "queries": 20,
        "failures": 2,
    },
}
HOLDOUT: dict[str, Any] = {
    "name": "holdout",
    "database": "holdout.duckdb",
    "privacy_unit": {"column": "person"},
    "contribution_bounds": {"rows": 1},
    "holdout": True,
    "columns": {"person": {}, "late": {"lower": 0, "upper": 1, "step": 1}},
}
VOTE: dict[str, Any] = {
    "name": "where",
    "mechanism": "predict_vote",
    "table": "visits.yml",
    "scope": "visits/bob",
    "params": {
        "features": ["age"],
        "label": "city",
        "epsilon": "10",
        "predictions": 60,
        "shards": 10,
        "learner": "GaussianNB",
    },
}


def make_world(folder: Path) -> ServiceWorld:
    """A service with two gates, of which each closes after two failures, a table for sessions, and predictions."""
    world = ServiceWorld(folder)
    for number, name in enumerate(("holdout", "unseen")):
        with duckdb.connect(str(folder / f"{name}.duckdb")) as connection:
            connection.execute(
                f"CREATE TABLE {name} AS SELECT i AS person, (i % 100 >= 50)::INTEGER AS late "
                f"FROM range({4000 * number}, {4000 * (number + 1)}) t(i)"
            )
        declared = HOLDOUT | {"name": name, "database": f"{name}.duckdb"}
        (folder / f"{name}.yml").write_text(yaml.safe_dump(declared))
        gate = GATE | {"name": f"gate {number}", "table": f"{name}.yml", "scope": "holdout"}
        (folder / f"gate{number}.yml").write_text(yaml.safe_dump(gate))
    table = load_table(folder / "holdout.yml")
    world.ledger.grant(
        "holdout", 100, 0, filter="basic", table=table, principal="owner", confirm_large=True
    )
    visits = yaml.safe_load((folder / "visits.yml").read_text())
    visits["columns"]["age"] |= {"missing": 0}
    (folder / "visits.yml").write_text(yaml.safe_dump(visits))
    (folder / "where.yml").write_text(yaml.safe_dump(VOTE))
    service = yaml.safe_load(world.file.read_text())
    service["tables"] |= {name: f"{name}.yml" for name in ("holdout", "unseen")}
    service["gates"] = {"late": {"gate": "gate0.yml"}, "fresh": {"gate": "gate1.yml"}}
    service["predict"] = {"session": "where.yml"}
    ci = {"doors": ["gate"], "tables": [], "gates": ["late", "fresh"], "scope": "holdout"}
    service["principals"] |= {
        "bob": asker("bob", doors=["predict"], tables=[]),
        "cyd": asker("cyd", **ci),
    }
    world.file.write_text(yaml.safe_dump(service))
    return world


def test_tasks_submit_ask_and_predict_at_a_service(tmp_path: Path, airflow_database: Path) -> None:
    """Candidates go to the next gate where one is used up; what is cleared and run again is free and the same. The
    worker has predictions and points, and no row, ledger or key.
    """
    for folder in ("owner", "worker/home"):
        (tmp_path / folder).mkdir(parents=True)
    world = make_world(tmp_path / "owner")
    with duckdb.connect(str(tmp_path / "worker" / "said.duckdb")) as said:
        for name, wrong in (("good", 0), ("bad", 100), ("worse", 90)):
            said.execute(
                f"CREATE TABLE {name} AS SELECT i AS person, "
                f"CASE WHEN i % 100 < {wrong} THEN (i % 100 < 50)::INT ELSE (i % 100 >= 50)::INT END AS prediction "
                "FROM range(8000) t(i)"
            )
    with duckdb.connect(str(tmp_path / "worker" / "points.duckdb")) as points:
        points.execute("CREATE TABLE tomorrow AS SELECT i AS id, i AS age FROM range(5) t(i)")
    worker: Any = SimpleNamespace(
        folder=tmp_path / "worker", ledger=tmp_path / "nowhere" / "ledger.sqlite"
    )
    output: list[str] = []
    server = Server(world.file)
    try:
        connections = {
            f"AIRFLOW_CONN_{name}": json.dumps(
                {"conn_type": "dpflow", "host": server.url, "password": TOKENS[who][0]}
            )
            for name, who in (("DPFLOW", "ann"), ("GATES", "cyd"), ("POINTS", "bob"))
        }
        home = str(tmp_path / "worker" / "home")
        seen = run_dag(worker, airflow_database, DAG_FILE, RUNS, output, HOME=home, **connections)
    finally:
        server.stop()
    written = "".join(output)
    assert [one["state"] for one in seen] == ["success"] * 2, written[-4000:]
    states = {name: state for name, _, state, _ in seen[1]["tasks"]}
    assert states == dict.fromkeys(("gate", "ask", "later", "predict"), "success") | {
        "never": "skipped"
    }
    spent = {
        scope: world.ledger.remaining(scope).rows()[0]["epsilon_spent"]
        for scope in ("holdout", "visits/ann", "visits/bob")
    }
    assert spent == {"holdout": "80", "visits/ann": "0.5", "visits/bob": "600"}
    assert world.ledger.verify().ok
    values = json.loads((tmp_path / "worker" / "answers.json").read_text())
    values = {name: json.loads(v) if isinstance(v, str) else v for name, v in values.items()}
    outcomes = [verdict["outcome"] for verdict in values["gate"]]
    assert outcomes == ["plausible", "no", "no", "no", "plausible"]
    # The first gate closed with its second failure; what it had answered it repeats.
    first, fresh = values["gate"][0]["session"], values["gate"][3]["session"]
    assert first != fresh
    assert [verdict["session"] for verdict in values["gate"]] == [first] * 3 + [fresh, first]
    assert values["ask"][1] == values["later"][0] and values["predict"]["points"] == 5
    assert not any(token in written for token, _ in TOKENS.values())
    files = {file.name for file in (tmp_path / "worker").rglob("*") if file.suffix == ".duckdb"}
    assert files == {"said.duckdb", "points.duckdb", "answers.duckdb"}
    # Its run's interval, by which an older run that is cleared leaves the answers of this one.
    (written_to,) = (tmp_path / "worker").rglob("answers.duckdb")
    with duckdb.connect(str(written_to), read_only=True) as connection:
        counts = connection.execute("SELECT count(*), count(interval_start) FROM answers")
        assert counts.fetchall() == [(5, 5)]


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("ReusableHoldoutOperator", {"session": "gate.yml", "candidates": []}, "name its gates as session and fresh"),
        ("ReusableHoldoutOperator", {"session": "late", "candidates": [], "promote": {"model": "m"}}, "leave promote out"),
        ("PrivatePredictionOperator", {"session": "s.yml", "points": {}, "answers": {}}, "leave session and student out"),
        ("PrivatePredictionOperator", {"student": {}, "points": {}, "answers": {}}, "leave session and student out"),
        ("SessionOperator", {"session": {"name": "s"}, "queries": "text"}, "a list of mappings"),
    ],
)  # fmt: skip
def test_what_a_service_does_not_take_is_refused_with_the_fix(
    monkeypatch: pytest.MonkeyPatch, name: str, arguments: dict[str, Any], said: str
) -> None:
    """Before anything is sent: nobody listens at that address."""
    from dpflow import airflow

    connection = {"conn_type": "dpflow", "host": "http://127.0.0.1:9", "password": "t"}
    monkeypatch.setenv("AIRFLOW_CONN_DPFLOW", json.dumps(connection))
    operator = getattr(airflow, name)(task_id="t", **arguments)
    monkeypatch.setattr(f"{type(operator).__module__}.dag_folder", lambda context: Path("/"))
    with pytest.raises(Exception, match=said) as raised:
        operator.execute({})
    assert InvalidInput.__name__ in f"{type(raised.value).__name__} {raised.value}"


def test_a_task_without_service_needs_a_session(monkeypatch: pytest.MonkeyPatch) -> None:
    from dpflow.airflow import PrivatePredictionOperator

    operator = PrivatePredictionOperator(task_id="t", points={}, answers={})
    assert operator.find_service() is None and operator.session is None


def test_branches_of_a_gate_at_a_service_are_those_of_both_kinds() -> None:
    """Whether it promotes is known there; a misspelt word is refused all the same."""
    from dpflow.airflow import ReusableHoldoutOperator

    words = {"promoted": "a", "not_better": "b", "plausible": "c", "no": "d", "exhausted": "e"}
    ReusableHoldoutOperator(task_id="t", session="late", candidates=[], branches=words)
    for session, word in (("late", "promotet"), ("gate.yml", "promoted")):
        with pytest.raises(ValueError, match="branches are for"):
            ReusableHoldoutOperator(
                task_id="t", session=session, candidates=[], branches={word: "a"}
            )


PLANNED_DAG = """
from datetime import datetime
from airflow.sdk import DAG, task
from dpflow.airflow import LoadOperator, ReleaseOperator, ReusableHoldoutOperator, SqlReleaseOperator

count = {"name": "count", "mechanism": "count", "table": TABLE, "where": "day = DATE '{{ ds }}'", "params": {"epsilon": "0.5"}}
with DAG("team_a_x", schedule="@daily", start_date=datetime(2020, 1, 1)):
    @task
    def find():
        return [{"name": "a"}]

    @task.dpflow_sql(epsilon="0.5")
    def function():
        return "SELECT count(*) AS n FROM visits"

    LoadOperator(task_id="load", load="daily", blocks="{{ ds }}")
    ReleaseOperator(task_id="daily", release=count)
    ReleaseOperator.partial(task_id="mapped").expand(release=[count, {**count, "name": "second"}])
    SqlReleaseOperator(task_id="later", sql="SELECT avg(age) AS a FROM visits WHERE day < $day", epsilon="0.5",
                       parameters={"day": "{{ ti.xcom_pull('x') }}"})
    ReusableHoldoutOperator(task_id="gate", session="late", candidates=find(), service_conn_id="gates")
    function()
"""


def test_a_plan_asks_the_service_and_says_what_is_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is unknown is a fault of the schedule, and never counts as free."""
    from dpflow.airflow.dag_jobs import read_dags
    from dpflow.engine.planning.report import list_faults
    from dpflow.engine.planning.simulate import forecast_schedule
    from dpflow.registry import Registry

    (tmp_path / "owner").mkdir()
    world = make_world(tmp_path / "owner")
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path / "airflow"))

    def plan(text: str) -> dict[str, str]:
        file = tmp_path / "dags" / "dag.py"
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
        jobs, _ = read_dags(file)
        faults = list_faults(forecast_schedule(jobs, Registry.load(), None), 1)
        notes = {task.name: task.note for job in jobs for task in job.tasks}
        assert len(faults) == len(notes)
        return notes

    with serve_here(world) as url:
        for name, who in (("DPFLOW", "ann"), ("GATES", "cyd"), ("POINTS", "bob")):
            connection = {"conn_type": "dpflow", "host": url, "password": TOKENS[who][0]}
            monkeypatch.setenv(f"AIRFLOW_CONN_{name}", json.dumps(connection))
        notes = plan(DAG_FILE)
        assert {*notes} == {"gate", "ask", "later"}
        for name in ("late", "fresh"):
            assert f"gate {name}: asks its scope for epsilon 40, delta 0" in notes["gate"]
        assert "asks scope visits/ann for epsilon 0.5, delta 0" in notes["ask"]
        notes = plan(PLANNED_DAG.replace("TABLE", "'visits'"))
        assert {*notes} == {"daily", "mapped", "later", "gate", "function"}
        asks = "asks scope visits/ann for epsilon 0.5, delta 0"
        assert [notes[name].count(asks) for name in ("daily", "mapped")] == [1, 2]
        assert "epsilon 40" in notes["gate"] and "later runs" in notes["gate"].lower()
        for name in ("later", "function"):
            assert notes[name].startswith("privacy cost unknown: it takes what only a run knows")
        with pytest.raises(InvalidInput, match="task team_a_x.daily: .*'visit'"):
            plan(PLANNED_DAG.replace("TABLE", "'visit'"))
    unreachable = plan(PLANNED_DAG.replace("TABLE", "'visits'"))
    assert all(note.startswith("privacy cost unknown: ") for note in unreachable.values())
    monkeypatch.delenv("AIRFLOW_CONN_GATES")
    assert "there is no connection 'gates'" in plan(PLANNED_DAG.replace("TABLE", "'visits'"))["gate"]  # fmt: skip
    monkeypatch.delenv("AIRFLOW_CONN_DPFLOW")
    with pytest.raises(InvalidInput, match=r"team_a_x.daily: .*AIRFLOW_CONN_DPFLOW"):
        plan(PLANNED_DAG.replace("TABLE", "'visits'"))
    rows = [
        row for name in ("holdout", "visits/ann") for row in world.ledger.remaining(name).rows()
    ]
    assert {row["epsilon_spent"] for row in rows} == {"0"}
