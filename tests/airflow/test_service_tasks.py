"""Tasks that ask a service, through Airflow's own task runner: no file, ledger or key beside them."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from airflow_runs import run_dag
from service_world import RELEASE, TOKENS, ServiceWorld, asker, keep_alive

DAG_FILE = """
from datetime import datetime, timedelta
from pathlib import Path
from airflow.sdk import DAG, task
from dpflow.airflow import DataContractOperator, LoadOperator, ReleaseOperator, SqlReleaseOperator

release = RELEASE
marker = Path(__file__).with_name("deferred")

class Dying(ReleaseOperator):
    def defer(self, **kwargs):
        if not marker.exists():
            marker.touch()
            raise RuntimeError("this worker dies when its request is sent")
        super().defer(**kwargs)

with DAG("d", schedule="@daily", start_date=datetime(2020, 1, 1), catchup=False,
         default_args={"retries": 1, "retry_delay": timedelta(0)}) as dag:
    both = ReleaseOperator(task_id="both", release=[release, {**release, "name": "late", "where": "age > 30"}], retries=0)
    query = SqlReleaseOperator(task_id="query", sql="SELECT avg(age) AS a FROM visits WHERE day < $day", epsilon="0.5",
                               parameters={"day": "{{ ds }}"}, retries=0)

    @task.dpflow_sql(task_id="function", epsilon="0.5", retries=0)
    def function():
        with marker.with_name("calls").open("a") as calls:
            calls.write("x")
        return "SELECT count(*) AS n FROM visits"

    dying = Dying(task_id="dying", release={**release, "name": "dying"})
    waiting = ReleaseOperator(task_id="waiting", release={**release, "name": "waiting"}, deferrable=False, retries=0)
    load = LoadOperator(task_id="load", load="daily", blocks="{{ ds }}", retries=0)
    contract = DataContractOperator(task_id="contract", contract="daily", retries=0)
    load >> both >> query >> function() >> dying >> waiting >> contract
"""
CONTRACT = {
    "name": "daily",
    "table": "visits.yml",
    "mode": "metered",
    "scope": "visits/ann",
    "epsilon": "1",
    "checks": [{"name": "many", "check": "rows", "at_least": 300}],
}
RUNS = """
run(2)
run(2)                                   # cleared and run again
"""


def test_tasks_need_no_file_and_pay_once(tmp_path: Path, airflow_database: Path) -> None:
    """The service dies before a charge, and does not know the job afterwards; a worker dies when its request is sent:
    the run pays once, in its first try but for the dead worker's, and nothing when it is cleared.
    """
    (tmp_path / "owner").mkdir()
    (tmp_path / "worker" / "home").mkdir(parents=True)
    world = ServiceWorld(tmp_path / "owner")
    service = yaml.safe_load(world.file.read_text())
    ann = asker("ann", role="scheduler", loads=["daily"], contracts=["daily"])
    ann["doors"] += ["load", "contract"]
    service["principals"]["ann"] = ann
    service["loads"] = {"daily": {"table": "visits", "source": "{block}.csv", "by": "day"}}
    service["contracts"] = {"daily": "contract.yml"}
    (world.folder / "contract.yml").write_text(yaml.safe_dump(CONTRACT))
    rows = "".join(f"{n},Oslo,c1,30,1.25,2020-01-02\n" for n in range(50))
    (world.folder / "2020-01-02.csv").write_text("person,city,clinic,age,cost,day\n" + rows)
    world.file.write_text(yaml.safe_dump(service))
    nowhere = tmp_path / "nowhere" / "ledger.sqlite"
    worker: Any = SimpleNamespace(folder=tmp_path / "worker", ledger=nowhere)
    output: list[str] = []
    fault = f"reserve.before-commit:kill:{tmp_path / 'fired'}"
    with keep_alive(world, [fault, ""]) as servers:
        connection = {"conn_type": "dpflow", "host": servers[0].url, "password": TOKENS["ann"][0]}
        seen = run_dag(
            worker,
            airflow_database,
            DAG_FILE.replace("RELEASE", repr(RELEASE), 1),
            RUNS,
            output,
            HOME=str(tmp_path / "worker" / "home"),
            AIRFLOW_CONN_DPFLOW=json.dumps(connection),
        )
    assert [one["state"] for one in seen] == ["success"] * 2, "".join(output)[-3000:]
    tries = {name: number for name, _, _, number in seen[0]["tasks"]}
    assert len(servers) == 2 and (tmp_path / "fired").exists()
    # Two releases, a query, a function, the dying task's, the waiting task's and a contract.
    (budget,) = world.ledger.remaining("visits/ann").rows()
    assert budget["epsilon_spent"] == "4" and world.ledger.verify().ok
    entries = world.ledger.history("visits/ann", limit=100)
    assert [one.kind for one in entries].count("settle") == 7
    assert not world.ledger.reserved_releases()
    assert {one.principal for one in entries if one.kind == "settle"} == {"ann"}
    # Once for each try of the task, however often it was resumed.
    assert (tmp_path / "worker" / "calls").read_text() == "xx"
    assert tries.pop("dying") == 2 and set(tries.values()) == {1} and len(tries) == 6
    written = "".join(output)
    assert "the service does not know the job, so the request is sent again" in written
    assert "nothing was charged: ann/d/both" in written
    assert TOKENS["ann"][0] not in written
    files = {
        file.name
        for file in (tmp_path / "worker").rglob("*")
        if file.suffix in (".duckdb", ".sqlite")
    }
    assert not files and not list((tmp_path / "worker" / "home").rglob("*dpflow*"))


def test_a_trigger_holds_no_token() -> None:
    """What is stored of a deferred task: connection, job and request; the same trigger can be made of it."""
    from dpflow.airflow.job_trigger import JobTrigger

    trigger = JobTrigger("dpflow", "4711", "tasks/sql", {"query": "SELECT 1"})
    path, arguments = trigger.serialize()
    assert path == f"{JobTrigger.__module__}.{JobTrigger.__qualname__}"
    assert arguments == {
        "service_conn_id": "dpflow",
        "job": "4711",
        "door": "tasks/sql",
        "request": {"query": "SELECT 1"},
    }
    assert JobTrigger(**arguments).serialize() == (path, arguments)


@pytest.mark.parametrize(
    ("connection", "said"),
    [
        ({"conn_type": "http", "host": "https://dp.example.org", "password": "t"}, "is of type 'http'"),
        ({"conn_type": "dpflow", "host": "https://dp.example.org"}, "a token as password"),
        ({"conn_type": "dpflow", "host": "http://dp.example.org", "password": "t"}, "in the clear"),
        ({"conn_type": "dpflow", "host": "dp.example.org", "port": 8443, "password": "t"}, ""),
    ],
)  # fmt: skip
def test_connections_of_a_service(
    monkeypatch: pytest.MonkeyPatch, connection: dict[str, Any], said: str
) -> None:
    from dpflow.airflow.connection import ServiceHook
    from dpflow.errors import InvalidInput

    monkeypatch.setenv("AIRFLOW_CONN_DPFLOW", json.dumps(connection))
    if said:
        with pytest.raises(InvalidInput, match=said):
            ServiceHook().get_conn()
    else:
        assert ServiceHook().get_conn().server == "https://dp.example.org:8443"


def test_a_task_names_one_place() -> None:
    from dpflow.airflow import ReleaseOperator, SqlReleaseOperator
    from dpflow.errors import InvalidInput

    both = ReleaseOperator(task_id="t", release=RELEASE, ledger_conn_id="a", service_conn_id="b")
    with pytest.raises(InvalidInput, match="leave one out"):
        both.find_service()
    absent = ReleaseOperator(task_id="t", release=RELEASE, service_conn_id="absent")
    with pytest.raises(InvalidInput, match="no connection 'absent'"):
        absent.find_service()
    assert ReleaseOperator(task_id="t", release=RELEASE).find_service() is None
    query = SqlReleaseOperator(task_id="t", sql="SELECT 1", output_table="x")
    with pytest.raises(InvalidInput, match="leave tables and output_table out"):
        query.make_body({})
