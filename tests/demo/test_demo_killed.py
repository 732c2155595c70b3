"""The real demo, killed and resumed, and `--up` on what it left: slow."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from dpflow.demo import job, ui
from dpflow.demo.airflow_client import AirflowClient
from dpflow.demo.supervisor import list_processes
from dpflow.demo.workspace import Workspace, create_workspace

pytestmark = pytest.mark.slow

DPFLOW = [str(Path(sys.executable).with_name("dpflow")), "demo", "--days", "2"]
READ: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}


def wait_for(condition: Any, process: subprocess.Popen[str] | None = None) -> Any:
    """Poll for as long as a busy machine needs."""
    until = time.monotonic() + 900
    while not (result := condition()):
        assert time.monotonic() < until and (process is None or process.poll() is None)
        time.sleep(0.5)
    return result


def test_a_demo_that_is_ended_leaves_nothing_and_resumes(tmp_path: Path) -> None:
    """SIGKILL while tasks run, then SIGHUP and SIGTERM; no day is charged twice in the end."""
    workspace = Workspace(tmp_path / "demo")
    mark = f"DPFLOW_DEMO={workspace.root}"
    command = [*DPFLOW, "--root", str(workspace.root)]
    task_logs = workspace.airflow_home / "logs"
    options: tuple[str, ...] = ()
    for signum, task in (
        (signal.SIGKILL, "dag_id=flights_daily/*/task_id=contract"),
        (signal.SIGHUP, "dag_id=flights_model/*/task_id=train"),
        (signal.SIGTERM, "dag_id=flights_model/*/task_id=gate"),
    ):
        process = subprocess.Popen([*command, *options], **READ)
        wait_for(lambda task=task: list(task_logs.glob(task)), process)
        process.send_signal(signum)
        output, _ = process.communicate()
        assert process.returncode == (-signum if signum == signal.SIGKILL else 128 + signum)
        assert "Traceback" not in output
        until = time.monotonic() + 30
        while list_processes(mark) and time.monotonic() < until:
            time.sleep(0.2)
        assert not list_processes(mark)
        if signum != signal.SIGKILL:
            assert "--resume" in output and workspace.report.exists()
        options = ("--resume",)
    process = subprocess.Popen([*command, "--resume"], **READ)
    output, _ = process.communicate()
    assert process.returncode == 0, output
    ledger = workspace.open_ledger()
    rows = ledger.remaining("flights").rows()
    assert [row["epsilon_spent"] for row in rows] == ["2"] * 3 and ledger.verify().ok
    assert not list_processes(mark)


def test_both_dags_run_after_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The environment of `--up` is the demo's: a day is released, and a model is promoted. Both
    although the scheduler is killed right after they were asked for.
    """
    workspace = create_workspace(tmp_path / "demo")
    job.prepare_workspace(workspace)
    url = ui.start_ui(workspace.root)
    try:
        client = AirflowClient(url, lambda: None)
        ((user, password),) = ui.read_logins(workspace).items()
        wait_for(lambda: client.log_in(user, password))
        wait_for(lambda: client.get("dags/flights_daily") and client.get("dags/flights_model"))
        client.trigger("flights_model", "by-hand")
        assert client.backfill("flights_daily", "2013-01-01", "2013-01-01")
        pids = list_processes(f"DPFLOW_DEMO={workspace.root}")
        commands = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in pids}
        # The process that leads the scheduler's session.
        leader = next(p for p in pids if b"scheduler" in commands[p] and os.getsid(p) == p)
        os.kill(leader, signal.SIGKILL)
        told = workspace.logs / "supervisor.log"
        wait_for(lambda: "scheduler ended (signal 9) and was started again" in told.read_text())

        def list_ends() -> list[str]:
            runs = [
                run for dag in ("flights_daily", "flights_model") for run in client.list_runs(dag)
            ]
            states = [str(run["state"]) for run in runs]
            return states if len(states) == 2 and set(states) <= job.ENDED else []

        assert wait_for(list_ends) == ["success", "success"]
        client.close()
        assert job.read_champion(workspace)
    finally:
        ui.stop_ui(workspace.root)
    assert "Airflow is down" in capsys.readouterr().out
    assert not list_processes(f"DPFLOW_DEMO={workspace.root}")
