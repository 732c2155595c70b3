"""From the installed wheels to the page, as a data engineer goes: connection, DAG, run, log line, link, and
the page in a browser with the right numbers, for two users of an auth manager. Run by `make integration`,
and by `make compat` on the oldest and the newest Airflow.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest
import yaml
from browser_tools import look

from dpflow import load_table
from dpflow.demo.airflow_environment import airflow_environment, find_free_port
from dpflow.demo.airflow_stage import Stage
from dpflow.demo.workspace import Workspace

pytestmark = pytest.mark.integration

#: Who is no admin may read the DAG `visits` alone.
MANAGER = """
from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager


class TeamManager(SimpleAuthManager):
    def is_authorized_dag(self, *, method, user, access_entity=None, details=None):
        mine = details is None or details.id in (None, "visits") or user.get_name() == "boss"
        return mine and super().is_authorized_dag(
            method=method, user=user, access_entity=access_entity, details=details
        )
"""
DAG = """
from datetime import timedelta

from airflow.sdk import DAG

from dpflow.airflow import ReleaseOperator

for name, epsilon in (("visits", "0.25"), ("payroll", "0.5")):
    with DAG(name, schedule=None, is_paused_upon_creation=False,
             default_args={"retries": 5, "retry_delay": timedelta(seconds=1)}) as dag:
        ReleaseOperator(task_id="count", release={
            "name": f"number of {name}", "mechanism": "count", "table": "visits.yml", "scope": "visits",
            "params": {"epsilon": epsilon}, "publish": {"database": "../published.duckdb", "table": name}})
    globals()[name] = dag
"""
TABLE = {
    "name": "visits",
    "database": "../private/visits.duckdb",
    "privacy_unit": {"column": "person"},
    "contribution_bounds": {"rows": 1},
    "columns": {},
}


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    """DAGs, a private table, a granted ledger, and an auth manager with two users."""
    workspace = Workspace(tmp_path)
    config = workspace.airflow_home / "config"
    for folder in (workspace.dags, workspace.private_folder, config):
        folder.mkdir(parents=True)
    (workspace.dags / "visits.py").write_text(DAG)
    (workspace.dags / "visits.yml").write_text(yaml.safe_dump(TABLE))
    (config / "team_manager.py").write_text(MANAGER)
    with duckdb.connect(str(workspace.private_folder / "visits.duckdb")) as connection:
        connection.execute("CREATE TABLE visits AS SELECT i AS person FROM range(500) t(i)")
    ledger = workspace.open_ledger(create=True)
    table = load_table(workspace.dags / "visits.yml")
    ledger.grant("visits", 1, 0, filter="basic", table=table, principal="owner")
    return workspace


@pytest.fixture
def stage(workspace: Workspace) -> Iterator[Stage]:
    """Airflow, with a connection that its own command made."""
    environment = airflow_environment(workspace, find_free_port(), login=True)
    del environment["AIRFLOW_CONN_DPFLOW_LEDGER"]
    environment |= {
        "AIRFLOW__CORE__AUTH_MANAGER": "team_manager.TeamManager",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": "ann:viewer,boss:admin",
        "AIRFLOW__WORKERS__EXECUTION_API_TIMEOUT": "60",
    }
    stage = Stage(workspace.logs, environment)
    stage.migrate()
    extra = json.dumps({"anchor": str(workspace.anchor)})
    place = ["--conn-type", "dpflow_ledger", "--conn-host", str(workspace.ledger_file)]
    command = [sys.executable, "-m", "airflow", "connections", "add", "dpflow_ledger", *place]
    subprocess.run([*command, "--conn-extra", extra], env=environment, check=True)
    try:
        stage.start()
        stage.await_health()
        yield stage
    finally:
        stage.stop()


def test_from_a_connection_to_the_page(
    workspace: Workspace, stage: Stage, browser_tools: Path
) -> None:
    client, home = stage.client, stage.client.url
    file = workspace.airflow_home / "simple_auth_manager_passwords.json.generated"
    passwords = json.loads(file.read_text())
    stage.wait("a login", lambda: client.log_in("boss", passwords["boss"]))
    for dag in ("visits", "payroll"):
        stage.wait("the DAG", lambda dag=dag: client.get(f"dags/{dag}"))
        client.trigger(dag, "one")
    for dag in ("visits", "payroll"):
        ended = stage.wait(
            "the run",
            lambda dag=dag: (
                (run := client.list_runs(dag)[0])["state"] in ("success", "failed") and run
            ),
        )
        assert ended["state"] == "success", stage.explain_failure(dag, "one")
    task = "dags/visits/dagRuns/one/taskInstances/count"
    # the log line
    log = json.dumps(client.get(f"{task}/logs/{client.get(task)['try_number']}"))
    assert "number of visits: charged epsilon 0.25, delta 0 to scope visits" in log
    # the links
    links = client.get(f"{task}/links")["extra_links"]
    receipt = links["Privacy receipt"] if "Privacy receipt" in links else next(iter(links.values()))
    (release,) = [r for r in workspace.open_ledger().releases() if r.principal == "airflow:visits"]
    assert all(links.values()) and "/dpflow/" in receipt

    def login(user: str) -> dict[str, str]:
        return {"address": home, "user": user, "password": passwords[user]}

    tabs = {
        "menu": "plugin/dpflow-nav",
        "dag": "dags/visits/plugin/dpflow-dag",
        "run": "dags/visits/runs/one/plugin/dpflow-dag-run",
        "task": "dags/visits/tasks/count/plugin/dpflow-task",
        "instance": "dags/visits/runs/one/tasks/count/plugin/dpflow-task-instance",
    }
    orders = [
        {"login": login("boss"), "address": f"{home}/{address}", "frame": True}
        for address in tabs.values()
    ]
    sessions = [
        {
            "login": login(user),
            "address": f"{home}/plugin/dpflow-nav",
            "frame": True,
            "click": ["Releases"],
        }
        for user in ("boss", "ann")
    ]
    *seen, boss, ann = look(browser_tools, *orders, *sessions)
    (stored,) = workspace.open_ledger().remaining("visits").rows()
    for tab, page in zip(tabs, seen, strict=True):
        rows = [dict(zip(page["heads"], row)) for row in page["rows"]]
        if tab == "menu":
            (row,) = rows
            assert (
                (row["Scope"], row["Remaining"])
                == ("visits", stored["epsilon_left"])
                == ("visits", "0.25")
            )
            assert not page["cut"]
        else:
            assert [row["Release"] for row in rows] == ["number of visits"], tab
            assert rows[0]["Cost"] == "epsilon 0.25, delta 0"
    names = [[row[1] for row in page["rows"]] for page in (boss, ann)]
    assert sorted(names[0]) == ["number of payroll", "number of visits"]
    assert names[1] == ["number of visits"]
    assert release.state == "settled" and workspace.open_ledger().verify().ok
