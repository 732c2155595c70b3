"""The processes of docker-compose.yml with its environment, side by side on this machine, on a real
PostgreSQL that asks for passwords.

Only places, ports and hosts are substituted. Each process has an AIRFLOW_HOME, secrets and logs of its
own, as in a container, so the shared secrets and the execution address must really be shared.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import duckdb
import httpx
import psycopg
import pytest
import yaml
from compose_services import COMPOSE, ROOT, Deployment

from dpflow import load_table
from dpflow.demo.airflow_stage import Stage

DAG = """
from airflow.sdk import DAG
from dpflow.airflow import ReleaseOperator
with DAG("service_visits", schedule=None, is_paused_upon_creation=False):
    ReleaseOperator(task_id="count", release={
        "name": "visits", "mechanism": "count", "table": "visits", "params": {"epsilon": "0.5"}})
"""
PAGE = (ROOT / "docs" / "how-to" / "deploy.md").read_text()
TABLE = {
    "name": "visits",
    "database": "../private/visits.duckdb",
    "privacy_unit": {"column": "person"},
    "contribution_bounds": {"rows": 1},
    "columns": {},
}
#: What broke an address that was put together without quoting.
PASSWORD = "p@ss:w/o rd%40'\"?#&\\"


@pytest.fixture(scope="module")
def deployment(password_server: str, tmp_path_factory: pytest.TempPathFactory) -> Deployment:
    """What the services ``init`` and ``demo`` leave; with passwords of an owner's choice."""
    root = tmp_path_factory.mktemp("compose")
    (root / "secrets").mkdir()
    for login in ("airflow", "dpflow_owner", "dpflow_service", "dpflow_page"):
        (root / "secrets" / f"{login}_password").write_text(PASSWORD + login + "\n")
    deployment = Deployment(root, password_server)
    deployment.prepare_dags()
    (deployment.dags / "visits.py").write_text(DAG)
    folder = deployment.service_folder
    (folder / "visits.yml").write_text(yaml.safe_dump(TABLE))
    service = yaml.safe_load((folder / "service.yml").read_text())
    service["tables"]["visits"] = "visits.yml"
    airflow = service["principals"]["airflow"]
    airflow["tables"], airflow["scope"] = ["visits", "flights"], "visits"
    (folder / "service.yml").write_text(yaml.safe_dump(service))
    with duckdb.connect(str(folder.parent / "private" / "visits.duckdb")) as connection:
        connection.execute("CREATE TABLE visits AS SELECT i AS person FROM range(500) t(i)")
    deployment.run_init()
    table = load_table(folder / "visits.yml")
    deployment.open_ledger().grant("visits", 1, 0, filter="basic", table=table, principal="owner")
    deployment.run_owner("demo", *COMPOSE["services"]["demo"]["command"])
    return deployment


def test_the_owners_commands_have_what_they_need(deployment: Deployment) -> None:
    """As the pages write them: paths begin in the project's folder; rows, declarations, anchor and key are there."""
    project = deployment.dags.parent
    (project / "incoming" / "shop.csv").write_text("person,amount\np1,3\np2,4\n")
    (deployment.service_folder / "shop.yml").write_text(
        "{name: shop, database: ../private/shop.duckdb, privacy_unit: {column: person}, contribution_bounds: {rows: 1},"
        " columns: {amount: {lower: 0, upper: 9}}}"
    )
    suite = {"expectations": [{"type": "expect_column_to_exist", "kwargs": {"column": "amount"}}]}
    (deployment.service_folder / "suite.json").write_text(json.dumps(suite))
    (compose,) = re.findall(r"docker compose run --rm owner (load .*)$", PAGE, re.MULTILINE)
    load = compose.replace("visits", "shop").replace("day DATE, city VARCHAR, age", "amount")
    grant = "ledger grant shop --epsilon 1 --delta 0 --table service/shop.yml"
    register = "contract register service/suite.json --table service/shop.yml"
    for command in (load, grant, register, "ledger verify"):
        deployment.run_owner("owner", *shlex.split(command))
    assert deployment.run_owner("owner", "ledger", "checkpoint")
    assert "shop" in {scope.scope for scope in deployment.open_ledger().scopes()}


@pytest.mark.integration
def test_a_second_run_of_init_and_demo_changes_nothing(deployment: Deployment) -> None:
    """Before the services start, as compose runs them: `test_init_grants_what_the_demo_needs` looks at both runs."""
    before = deployment.open_ledger().scopes()
    deployment.run_init()
    deployment.run_owner("demo", *COMPOSE["services"]["demo"]["command"])
    assert deployment.open_ledger().scopes() == before


@pytest.fixture(scope="module")
def stage(deployment: Deployment) -> Iterator[Stage]:
    """The service, api-server, scheduler, dag-processor and triggerer."""
    with deployment.serve():
        running = deployment.make_stage()
        try:
            deployment.log_in(running)
            yield running
        finally:
            running.stop()


def test_init_grants_what_the_demo_needs(deployment: Deployment) -> None:
    """Tables, grants and roles are there, and no secret is in a log of the server."""
    ledger = deployment.open_ledger()
    assert {scope.scope for scope in ledger.scopes()} >= {"flights", "flights_holdout", "visits"}
    assert len([e for e in ledger.history() if e.kind == "grant" and e.scope != "shop"]) == 3
    assert (deployment.root / "opt" / "project" / "private" / "flights.duckdb").exists()
    connections = json.loads((deployment.secrets / "page_connections.json").read_text())
    login = connections["dpflow_reader"]
    assert login["password"] == f"{PASSWORD}dpflow_page"
    with psycopg.connect(host=login["host"], user="postgres", dbname="postgres") as connection:
        rows = connection.execute(
            "SELECT rolname FROM pg_roles WHERE rolcanlogin AND (rolsuper OR rolcreatedb OR rolbypassrls)"
        )
        assert rows.fetchall() == [("postgres",)]
    log = Path(login["host"]) / "log"
    texts = [file.read_text() for file in log.parent.rglob("*log*") if file.is_file()]
    assert any("ALTER ROLE" in text for text in texts)
    assert not any("p@ss" in text for text in texts)


@pytest.mark.parametrize(
    ("login", "database"),
    [("airflow", "dpflow"), ("dpflow_service", "airflow"), ("dpflow_page", "airflow")],
)
def test_no_login_enters_the_database_of_another(
    deployment: Deployment, login: str, database: str
) -> None:
    connections = json.loads((deployment.secrets / "page_connections.json").read_text())
    host, password = connections["dpflow_reader"]["host"], PASSWORD + login
    with pytest.raises(psycopg.OperationalError, match="permission denied for database"):
        psycopg.connect(host=host, user=login, password=password, dbname=database)
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(host=host, user=login, password="wrong", dbname=database)


@pytest.mark.integration
def test_a_release_is_paid_once_on_postgresql(deployment: Deployment, stage: Stage) -> None:
    """A task releases at the service, and waits in the triggerer; cleared and run again it costs nothing. Its log
    is fetched from the scheduler's log server, and the page has the right number. The worker has no row and no key.
    """
    client = stage.client
    stage.wait("the DAG", lambda: client.get("dags/service_visits"))
    client.trigger("service_visits", "one")

    def succeeded(tries: int) -> int:
        """How often the task was tried until it succeeded, if more often than ``tries``."""
        tasks = client.list_tasks("service_visits", "one")
        assert all(task["state"] not in ("failed", "upstream_failed") for task in tasks)
        done = [t["try_number"] for t in tasks if t["state"] == "success"]
        return done[0] if done and done[0] > tries else 0

    tries = stage.wait("the run", lambda: succeeded(0))
    # A task that is cleared while the scheduler ends its run may never be scheduled again.
    stage.wait("its end", lambda: client.list_runs("service_visits")[0]["state"] == "success")
    # no file of that log is below the api-server's own folder
    assert not list((deployment.root / "logs" / "api-server").rglob("attempt=*.log"))
    log = json.dumps(
        client.get(f"dags/service_visits/dagRuns/one/taskInstances/count/logs/{tries}")
    )
    assert "charged epsilon 0.5" in log and "Could not read" not in log
    ledger = deployment.open_ledger()
    first = ledger.releases()
    client.clear("service_visits", "one")
    stage.wait("the cleared run", lambda: succeeded(tries))
    assert [r.state for r in first] == ["settled"] and ledger.releases() == first
    assert ledger.remaining("visits").rows()[0]["epsilon_left"] == "0.5"
    assert ledger.verify().ok


@pytest.mark.integration
def test_the_page_reads_with_a_login_of_its_own(deployment: Deployment, stage: Stage) -> None:
    """Without the tasks' secrets and without an anchor, and for nobody who is not logged in."""
    run = deployment.root / "run" / "api-server"
    assert "dpflow_page" in (run / "connections.json").read_text()
    assert "https://" not in (run / "connections.json").read_text()
    url = f"{stage.client.url}/dpflow/"
    assert httpx.get(url, trust_env=False, timeout=60).status_code == 401
    login = {"username": "admin", "password": (deployment.secrets / "admin_password").read_text()}
    token = httpx.post(f"{stage.client.url}/auth/token", json=login, trust_env=False, timeout=60)
    bearer = {"Authorization": f"Bearer {token.json()['access_token']}"}
    page = httpx.get(url, headers=bearer, trust_env=False, timeout=60)
    assert page.status_code == 200 and "visits" in page.text and "0.5" in page.text


@pytest.mark.integration
@pytest.mark.parametrize("service", ["api-server", "scheduler", "service"])
def test_health_checks_see_who_is_healthy(
    deployment: Deployment, stage: Stage, service: str
) -> None:
    assert deployment.run_healthcheck(service) == 0


def test_the_owner_asks_the_ledger(deployment: Deployment) -> None:
    """`docker compose run --rm owner ledger show`, with an address that no variable of compose holds."""
    service = COMPOSE["services"]["owner"]
    env, words = deployment.environment("owner"), [*service["entrypoint"], *service["command"]]
    run = str(deployment.root / "run" / "owner")
    words = [word.replace("$$", "$").replace("/run/secrets", run) for word in words]
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "flights_holdout" in done.stdout, done.stderr
    assert PASSWORD not in done.stdout + done.stderr


def test_a_health_check_fails_where_nobody_answers(deployment: Deployment) -> None:
    """The negative control: a port that nobody has."""
    deployment.health_port, port = 9, deployment.health_port
    try:
        assert deployment.run_healthcheck("scheduler") != 0
    finally:
        deployment.health_port = port


def test_services_run_what_the_image_holds() -> None:
    """Commands of compose name programs of the image."""
    dockerfile = (ROOT / "Dockerfile").read_text()
    for script in ("init.py", "healthcheck.py", "make_secrets.py"):
        assert f"deploy/{script}" in dockerfile
