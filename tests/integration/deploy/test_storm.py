"""Fifty runs with five hundred releases under two schedulers whose workers are killed at random: every
sum is exact, and every run is green or refused by its budget. Run by `make integration`.
"""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import duckdb
import pytest
import yaml
from compose_services import Deployment

from dpflow import load_table
from dpflow.demo.airflow_stage import Stage
from dpflow.demo.supervisor import list_descendants, list_processes

pytestmark = pytest.mark.integration

RUNS, RELEASES = 50, 10
GRANTED = 45  #: a run asks for epsilon 1, so that five of them are refused
PAUSE = 5  #: runs that end between two kills, however fast the machine is
DAG = f"""
from datetime import timedelta
from airflow.sdk import DAG
from dpflow.airflow import ReleaseOperator

RELEASES = [
    {{"name": f"below {{500 - n}}", "mechanism": "count", "table": "visits.yml", "scope": "visits",
      "where": f"person < {{500 - n}}", "params": {{"epsilon": "0.1"}}}}
    for n in range({RELEASES})
]
with DAG("storm", schedule=None, is_paused_upon_creation=False, max_active_runs=8,
         default_args={{"retries": 30, "retry_delay": timedelta(seconds=1)}}):
    ReleaseOperator(task_id="release", release=RELEASES)
"""
TABLE = {
    "name": "visits",
    "database": "visits.duckdb",
    "privacy_unit": {"column": "person"},
    "contribution_bounds": {"rows": 1},
    "columns": {"person": {"lower": 0, "upper": 500}},
}


@pytest.fixture
def deployment(password_server: str, tmp_path: Path) -> Deployment:
    """Compose's environment with the demo's DAGs and one of ours."""
    deployment = Deployment(tmp_path, password_server)
    deployment.more = {
        # a task whose worker is gone is taken up in seconds, not in five minutes
        "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "30",
        "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "5",
        "AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "30",
    }
    deployment.give_tasks_the_ledger()
    deployment.prepare_dags()
    (deployment.dags / "storm.py").write_text(DAG)
    (deployment.dags / "visits.yml").write_text(yaml.safe_dump(TABLE))
    with duckdb.connect(str(deployment.dags / "visits.duckdb")) as connection:
        connection.execute("CREATE TABLE visits AS SELECT i AS person FROM range(500) t(i)")
    deployment.run_init()
    table = load_table(deployment.dags / "visits.yml")
    deployment.open_ledger().grant(
        "visits", GRANTED, 0, filter="basic", table=table, principal="owner", confirm_large=True
    )
    return deployment


def read_command(pid: int) -> bytes:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def read_status(pid: int) -> tuple[str, int]:
    """State and parent of a process; of one that ended, that of a zombie of nobody."""
    with suppress(OSError):
        state, parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:2]
        return state, int(parent)
    return "Z", 0


def list_workers(stage: Stage) -> list[int]:
    """Processes below a scheduler that run a task, or wait for one that does; not those that serve logs."""
    assert stage.supervisor is not None

    def leads_session(pid: int) -> bool:
        # One that ended since it was listed leads none.
        with suppress(ProcessLookupError):
            return os.getsid(pid) == pid
        return False

    below = list_descendants(stage.supervisor.pid)
    schedulers = [pid for pid in below if leads_session(pid) and b"scheduler" in read_command(pid)]
    workers = [pid for scheduler in schedulers for pid in list_descendants(scheduler)]
    idle_or_other = (b"serve", b"<idle>")
    return [pid for pid in workers if not any(one in read_command(pid) for one in idle_or_other)]


def kill_in_task(pid: int) -> bool:
    """Kill a process of `list_workers`, unless it is a worker that has no task at this moment.

    That one takes the locks of its executor's queues, and Airflow has no other: killed with one, it leaves every later
    task of its scheduler queued for ever, whatever we do. On a busy machine a worker that was listed with a task may have
    ended it since. So it is stopped, and looked at again: whoever has a task waits for its process, and holds no lock.
    """
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGSTOP)
        while read_status(pid)[0] not in "TZ":
            time.sleep(0.01)
        has_task = bool(list_descendants(pid))
        is_task = b"LocalExecutor" in read_command(read_status(pid)[1])
        os.kill(pid, signal.SIGKILL if has_task or is_task else signal.SIGCONT)
        return has_task or is_task
    return False


def test_sums_are_exact_whatever_is_killed(deployment: Deployment) -> None:
    chance = random.Random(20261123)
    stage = deployment.make_stage({"scheduler 2": ("scheduler", "--skip-serve-logs")})
    kills, ended = 0, Counter[str]()
    try:
        deployment.log_in(stage)
        client = stage.client
        stage.wait("the DAG", lambda: client.get("dags/storm"))
        for number in range(RUNS):
            client.trigger("storm", f"run-{number}")

        def all_ended() -> bool:
            nonlocal kills
            states = Counter(run["state"] for run in client.list_runs("storm"))
            ended.clear()
            ended.update(states)
            done = states["success"] + states["failed"]
            if done >= PAUSE * kills and (workers := list_workers(stage)):
                kills += kill_in_task(chance.choice(workers))
            return done == RUNS

        stage.wait("fifty runs", all_ended, lambda: (sorted(ended.items()), kills))
        ledger = deployment.open_ledger()
        releases = [r for r in ledger.releases() if r.scope == "visits"]
        assert ended == {"success": GRANTED, "failed": RUNS - GRANTED}
        assert Counter(r.state for r in releases) == {"settled": GRANTED * RELEASES}
        row = ledger.remaining("visits").rows()[0]
        assert (row["epsilon_spent"], row["epsilon_left"]) == (str(GRANTED), "0")
        assert ledger.verify().ok
        runs = {run["dag_run_id"]: run["state"] for run in client.list_runs("storm")}
        for run, state in runs.items():
            (task,) = client.list_tasks("storm", run)
            path = f"dags/storm/dagRuns/{run}/taskInstances/release/logs/{task['try_number']}"
            log = json.dumps(client.get(path))
            assert ("BudgetExceeded" in log) == (state == "failed"), run
        assert kills >= 5
        print(f"{kills} processes were killed")
    finally:
        stage.stop()
    assert not list_processes(f"AIRFLOW_HOME={deployment.root / 'homes' / 'scheduler'}")
