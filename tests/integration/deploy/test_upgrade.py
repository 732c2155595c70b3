"""A ledger of an earlier version while runs are queued: they wait, the owner upgrades, and then each runs
once. Run by `make integration`.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections import Counter
from pathlib import Path

import duckdb
import psycopg
import pytest
import yaml
from compose_services import ROOT, Deployment

pytestmark = pytest.mark.integration

FIXTURES = ROOT / "tests" / "ledger" / "fixtures"
TABLES = ["meta", "scope", "account", "release", "data", "slot", "answer", "entry", "key", "node"]
RUNS = 6
DAG = """
from datetime import timedelta
from airflow.sdk import DAG
from dpflow.airflow import ReleaseOperator
with DAG("visits", schedule=None, is_paused_upon_creation=False, max_active_runs=2,
         default_args={"retries": 100, "retry_delay": timedelta(seconds=2)}):
    ReleaseOperator(task_id="count", release={
        "name": "visits", "mechanism": "count", "table": "visits.yml", "scope": "visits", "params": {"epsilon": "0.1"}})
"""
TABLE = {
    "name": "visits",
    "database": "visits.duckdb",
    "privacy_unit": {"column": "person"},
    "contribution_bounds": {"rows": 1},
    "columns": {},
}


def connect(deployment: Deployment, login: str) -> psycopg.Connection:
    url = (deployment.secrets / f"{login}_url").read_text().replace("+psycopg", "")
    return psycopg.connect(url, autocommit=True)


def put_earlier_ledger(deployment: Deployment) -> None:
    """What the ledger's owner had before: tables of version 6, their anchor, and roles that use them."""
    shutil.copytree(
        FIXTURES / "v6_granted" / "anchor", deployment.root / "opt" / "anchor", dirs_exist_ok=True
    )
    copy = shutil.copy(FIXTURES / "v6_granted" / "ledger.sqlite", deployment.root)
    file = sqlite3.connect(copy)
    with connect(deployment, "dpflow_owner") as server:
        server.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
        server.execute((FIXTURES / "v6" / "postgresql.sql").read_text())
        for table in TABLES:
            for row in file.execute(f"SELECT * FROM dpflow_{table}"):
                marks = ", ".join(["%s"] * len(row))
                server.execute(f"INSERT INTO dpflow_{table} VALUES ({marks})", row)
        roles = "dpflow_spender, dpflow_interactive, dpflow_reader"
        server.execute(f"GRANT USAGE ON SCHEMA public TO {roles}")
        server.execute(f"GRANT SELECT, INSERT ON ALL TABLES IN SCHEMA public TO {roles}")
    file.close()


@pytest.fixture
def deployment(password_server: str, tmp_path: Path) -> Deployment:
    """Compose's environment with one DAG, whose ledger is of version 6."""
    deployment = Deployment(tmp_path, password_server)
    deployment.give_tasks_the_ledger()
    deployment.prepare_dags()
    (deployment.dags / "visits.py").write_text(DAG)
    (deployment.dags / "visits.yml").write_text(yaml.safe_dump(TABLE))
    with duckdb.connect(str(deployment.dags / "visits.duckdb")) as connection:
        connection.execute("CREATE TABLE visits AS SELECT i AS person FROM range(500) t(i)")
    deployment.run_init()
    put_earlier_ledger(deployment)
    return deployment


def test_queued_runs_wait_for_the_upgrade(deployment: Deployment) -> None:
    stage = deployment.make_stage()
    try:
        deployment.log_in(stage)
        client = stage.client
        stage.wait("the DAG", lambda: client.get("dags/visits"))
        for number in range(RUNS):
            client.trigger("visits", f"run-{number}")

        def count_runs() -> Counter[str]:
            return Counter(run["state"] for run in client.list_runs("visits"))

        def list_tasks() -> list[dict[str, object]]:
            runs = [r["dag_run_id"] for r in client.list_runs("visits") if r["state"] == "running"]
            return [task for run in runs for task in client.list_tasks("visits", run)]

        def all_waiting() -> bool:
            tasks = list_tasks()
            return len(tasks) == 2 and all(
                task["state"] == "up_for_retry" or int(str(task["try_number"])) >= 2
                for task in tasks
            )

        stage.wait("two refused tries", all_waiting, lambda: [t["state"] for t in list_tasks()])
        assert count_runs() == {"running": 2, "queued": RUNS - 2}
        waiting = [run for run in client.list_runs("visits") if run["state"] == "running"]
        path = f"dags/visits/dagRuns/{waiting[0]['dag_run_id']}/taskInstances/count/logs/1"
        log = json.dumps(client.get(path))
        assert "has ledger schema version 6" in log and "dpflow ledger upgrade" in log
        with connect(deployment, "dpflow_owner") as server:
            assert server.execute("SELECT kind FROM dpflow_entry").fetchall() == [("grant",)]
        # between an upgrade and its roles the tasks' login can read nothing: they still wait
        with connect(deployment, "dpflow_owner") as server:
            server.execute(
                "REVOKE ALL ON ALL TABLES IN SCHEMA public FROM dpflow_spender, dpflow_interactive"
            )
        tries = max(int(str(task["try_number"])) for task in list_tasks())
        stage.wait(
            "a later try",
            lambda: any(int(str(t["try_number"])) > tries + 1 for t in list_tasks()),
            lambda: [t["try_number"] for t in list_tasks()],
        )
        assert count_runs() == {"running": 2, "queued": RUNS - 2}
        deployment.run_init()
        stage.wait("every run", lambda: count_runs()["success"] == RUNS, count_runs)
    finally:
        stage.stop()
    ledger = deployment.open_ledger()
    assert [r.state for r in ledger.releases("visits")] == ["settled"] * RUNS
    assert ledger.remaining("visits").rows()[0]["epsilon_spent"] == "0.6"
    kinds = Counter(entry.kind for entry in ledger.history(limit=100))
    assert (kinds["reserve"], kinds["settle"], kinds["upgrade"]) == (RUNS, RUNS, 1)
    assert ledger.verify().ok
