"""The processes of docker-compose.yml with its environment, side by side on this machine, on a real
PostgreSQL.

Only places and secrets are substituted. Each process has an AIRFLOW_HOME of its own, as in a
container, so the shared secrets and the execution address must really be in the shared environment.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import duckdb
import pytest
import sqlalchemy as sa
import yaml

from dpflow import Ledger, load_table
from dpflow.demo.airflow_environment import find_free_port, inherited_environment
from dpflow.demo.airflow_stage import Stage

ROOT = Path(__file__).parents[3]
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())

DAG = """
from airflow.sdk import DAG
from dpflow.airflow import ReleaseOperator
with DAG("visits", schedule=None, is_paused_upon_creation=False):
    ReleaseOperator(task_id="count", release={
        "name": "visits", "mechanism": "count", "table": "visits.yml", "scope": "visits", "params": {"epsilon": "0.5"}})
"""
TABLE = {
    "name": "visits",
    "database": "visits.duckdb",
    "privacy_unit": {"column": "person"},
    "contribution_bounds": {"rows": 1},
    "columns": {},
}


@pytest.fixture(scope="module")
def stage(postgres: Callable[[], str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """Init, then api-server, scheduler, dag-processor and triggerer."""
    root = tmp_path_factory.mktemp("compose")
    dags, port = root / "dags", find_free_port()
    dags.mkdir()
    (dags / "visits.py").write_text(DAG)
    (dags / "visits.yml").write_text(yaml.safe_dump(TABLE))
    with duckdb.connect(str(dags / "visits.duckdb")) as connection:
        connection.execute("CREATE TABLE visits AS SELECT i AS person FROM range(500) t(i)")
    env = environment(root, sa.make_url(postgres()), port)
    init = env | {
        "AIRFLOW_HOME": str(root / "home-init"),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    subprocess.run(["sh", str(ROOT / "deploy" / "init.sh")], env=init, check=True)
    ledger = Ledger(env["DPFLOW_LEDGER"], anchor=env["DPFLOW_LEDGER_ANCHOR"])
    ledger.grant(
        "visits", 1, 0, filter="basic", table=load_table(dags / "visits.yml"), principal="owner"
    )
    running = Stage(root / "logs", env)
    services = [
        s["command"] for name, s in COMPOSE["services"].items() if name not in ("postgres", "init")
    ]
    try:
        names = tuple(command[1] for command in services)
        running.start(names, homes={name: root / f"home-{name}" for name in names})
        running.await_health()
        yield running
    finally:
        running.stop()


def environment(root: Path, database: sa.URL, port: int) -> dict[str, str]:
    """The shared environment of the compose file, with its hosts, paths and secrets exchanged."""
    ledger = database.set(database=f"{database.database}_ledger")
    shared = dict(COMPOSE["services"]["scheduler"]["environment"])
    connection = {
        "conn_type": "dpflow_ledger",
        "host": database.query["host"],
        "login": database.username,
        "schema": ledger.database,
    }
    changes = {
        "AIRFLOW__CORE__DAGS_FOLDER": str(root / "dags"),
        "AIRFLOW__CORE__PARALLELISM": "2",
        "AIRFLOW__CORE__FERNET_KEY": "Zm9yIHRoZSB0ZXN0cyBvbmx5LCAzMiBieXRlcyEhISE=",
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"http://127.0.0.1:{port}/execution/",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": database.render_as_string(hide_password=False),
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN_ASYNC": database.set(
            drivername="postgresql+psycopg_async"
        ).render_as_string(hide_password=False),
        "AIRFLOW__API_AUTH__JWT_SECRET": "a secret for the tests only, long enough",
        "AIRFLOW__API__HOST": "127.0.0.1",
        "AIRFLOW__API__PORT": str(port),
        "AIRFLOW__API__BASE_URL": f"http://127.0.0.1:{port}",
        "AIRFLOW_CONN_DPFLOW_LEDGER": json.dumps(connection),
        "AIRFLOW_VAR_MLFLOW_URI": f"sqlite:///{root / 'mlflow.db'}",
        "DPFLOW_LEDGER": ledger.render_as_string(hide_password=False),
        "DPFLOW_LEDGER_ANCHOR": str(root / "anchor"),
    }
    assert changes.keys() <= shared.keys()
    # what the test adds: no login, and ports that are free here
    extra = {
        "AIRFLOW_HOME": str(root / "home-scheduler"),
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
        "AIRFLOW__LOGGING__WORKER_LOG_SERVER_PORT": str(find_free_port()),
        "AIRFLOW__LOGGING__TRIGGER_LOG_SERVER_PORT": str(find_free_port()),
        "AIRFLOW__API__WORKERS": "1",
        "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "5",
        "NO_PROXY": "127.0.0.1,localhost",
    }
    return inherited_environment() | shared | changes | extra


def test_a_release_is_paid_once_on_postgresql(stage: Stage) -> None:
    """A task releases through the PostgreSQL ledger; cleared and run again it costs nothing."""
    client = stage.client
    stage.wait("the DAG", lambda: client.get("dags/visits"))
    client.trigger("visits", "one")

    def succeeded(tries: int) -> bool:
        tasks = client.list_tasks("visits", "one")
        assert all(task["state"] not in ("failed", "upstream_failed") for task in tasks), (
            stage.explain_failure("visits", "one")
        )
        return bool(tasks) and all(
            task["state"] == "success" and task["try_number"] >= tries for task in tasks
        )

    stage.wait("the run", lambda: succeeded(1))
    # A task that is cleared while the scheduler ends its run may never be scheduled again.
    stage.wait("its end", lambda: client.list_runs("visits")[0]["state"] == "success")
    ledger = Ledger(stage.env["DPFLOW_LEDGER"], anchor=stage.env["DPFLOW_LEDGER_ANCHOR"])
    first = ledger.releases()
    client.clear("visits", "one")
    stage.wait("the cleared run", lambda: succeeded(2))
    assert [r.state for r in first] == ["settled"] and ledger.releases() == first
    assert ledger.remaining("visits").rows()[0]["epsilon_left"] == "0.5"
    assert ledger.verify().ok
