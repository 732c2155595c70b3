"""What the demo does without Airflow: its folder, its progress, its signals and its part of a
report.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from forked_programs import ForkedProcess
from made_once import copy_flights
from rich.console import Console

from dpflow.demo import job, ui
from dpflow.demo.airflow_client import DemoFailed
from dpflow.demo.facts import DemoFacts
from dpflow.demo.workspace import create_workspace, find_workspace, lock_workspace
from dpflow.errors import InvalidInput

#: A demo in a folder whose only step says that it began and sleeps.
SLEEPER = """
import pathlib, sys, time
from rich.console import Console
from dpflow.demo import job
def wait(demo, tell):
    print("asleep", flush=True)
    time.sleep(600)
job.STEPS = (("wait", wait, False),)
try:
    job.run_demo(pathlib.Path(sys.argv[1]), 2, Console())
finally:
    print("over", flush=True)
"""


def use_steps(monkeypatch: pytest.MonkeyPatch, *names: str) -> list[str]:
    """Keep these steps of the job; the names of those that run."""
    done: list[str] = []
    steps = {action.__name__: (title, action) for title, action, _ in job.STEPS}

    def record(name: str, action: Any) -> Any:
        def step(demo: job.Demo, tell: Any) -> None:
            done.append(name)
            action(demo, tell)

        step.__name__ = name
        return step

    chosen = tuple((steps[name][0], record(name, steps[name][1]), False) for name in names)
    monkeypatch.setattr(job, "STEPS", chosen)
    return done


def test_it_resumes_behind_the_last_step_that_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error is the step's own; a part of a report is there; grants are not made twice."""
    root = tmp_path / "demo"
    monkeypatch.setattr(job, "load_demo_tables", copy_flights)
    done = use_steps(monkeypatch, "load_and_grant", "verify_ledger", "draw_report")
    verify = job.STEPS[1]

    def fail(demo: job.Demo, _: Any) -> None:
        raise DemoFailed("it did not hold")

    fail.__name__ = "verify_ledger"
    monkeypatch.setattr(job, "STEPS", (job.STEPS[0], ("fail", fail, False), job.STEPS[2]))
    with pytest.raises(DemoFailed, match="it did not hold"):
        job.run_demo(root, 2, Console())
    page = (root / "report.html").read_text()
    assert "stopped before its end" in page and "not reached" in page
    assert "--resume" in capsys.readouterr().out
    monkeypatch.setattr(job, "STEPS", (job.STEPS[0], verify, job.STEPS[2]))
    facts = job.run_demo(root, 9, Console(), resume=True)
    assert done == ["load_and_grant", "verify_ledger", "draw_report"]
    assert facts.days == ["2013-01-01", "2013-01-02"] and "entries verified" in facts.verified
    assert "stopped before its end" not in (root / "report.html").read_text()


def test_there_must_be_something_to_resume(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="run dpflow demo"):
        job.run_demo(tmp_path / "demo", 2, Console(), resume=True)
    create_workspace(tmp_path / "demo")
    with pytest.raises(InvalidInput, match="run dpflow demo without --resume"):
        job.run_demo(tmp_path / "demo", 2, Console(), resume=True)


def test_a_folder_that_is_not_ours_is_never_deleted(tmp_path: Path) -> None:
    """Only a folder with the demo's marker is cleared; nothing is written into another one."""
    precious = tmp_path / "demo" / "precious.txt"
    precious.parent.mkdir()
    precious.write_text("keep")
    for attempt in (
        lambda: create_workspace(precious.parent),
        lambda: job.run_demo(precious.parent, 2, Console()),
    ):
        with pytest.raises(InvalidInput, match="was not made by dpflow demo"):
            attempt()
    assert [file.name for file in precious.parent.iterdir()] == ["precious.txt"]


def test_a_workspace_has_what_the_wheel_has(tmp_path: Path) -> None:
    """Workflows, tables and the owner's script come from the package; an older state goes."""
    workspace = create_workspace(tmp_path / "demo")
    names = {str(file.relative_to(workspace.dags)) for file in workspace.dags.rglob("*.*")}
    assert {"flights_daily.py", "flights_model.py", "analyst.py", "flights.sql"} <= names
    assert {
        "tables/flights.yml",
        "tables/flights_holdout.yml",
    } <= names and "__init__.py" not in names
    workspace.ledger_file.touch()
    assert not create_workspace(tmp_path / "demo").ledger_file.exists()
    assert find_workspace(tmp_path / "demo").private_folder.stat().st_mode & 0o077 == 0


def test_one_demo_at_a_time_works_in_a_folder(tmp_path: Path) -> None:
    root = tmp_path / "demo"
    with lock_workspace(root):
        with pytest.raises(InvalidInput, match="another dpflow demo works in"):
            job.run_demo(root, 2, Console())
    create_workspace(root)
    with lock_workspace(root), pytest.raises(InvalidInput, match="another dpflow demo works in"):
        ui.start_ui(root)


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_it_in_order(tmp_path: Path, signum: signal.Signals) -> None:
    """What must be ended is ended; the exit code names the signal."""
    output = tmp_path / "output"
    streams = [str(output), os.devnull]
    process = ForkedProcess(SLEEPER, [str(tmp_path / "demo")], os.environ, streams)
    while not output.exists() or "asleep" not in output.read_text():
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signum)
    assert process.wait(60) == 128 + signum and output.read_text().split()[-1] == "over"
    with lock_workspace(tmp_path / "demo"):
        pass


def test_ctrl_c_ends_it_in_order(tmp_path: Path) -> None:
    """As a shell sees it."""
    command = [sys.executable, "-c", SLEEPER, str(tmp_path / "demo")]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        while "asleep" not in process.stdout.readline():
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert process.stdout.read().split()[-1] == "over"
    assert process.returncode == -signal.SIGINT
    with lock_workspace(tmp_path / "demo"):
        pass


def test_the_next_run_ends_what_an_earlier_one_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that carries the workspace's mark, as Airflow's do, does not work beside the new
    ones.
    """
    root = tmp_path / "demo"
    left = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(600)"],
        env=os.environ | {"DPFLOW_DEMO": str(root)},
    )
    time.sleep(0.2)  # until it is another program than this one
    monkeypatch.setattr(job, "load_demo_tables", copy_flights)
    use_steps(monkeypatch, "load_and_grant")
    monkeypatch.setattr(job.report, "show_facts", lambda *_: None)
    job.run_demo(root, 2, Console())
    assert left.wait(60) == -signal.SIGTERM


def test_up_needs_a_demo_and_down_needs_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(InvalidInput, match="there is no demo in"):
        ui.start_ui(tmp_path / "demo")
    ui.stop_ui(tmp_path / "demo")
    assert "Airflow is not up" in capsys.readouterr().out


def test_facts_survive_their_file(tmp_path: Path) -> None:
    workspace = create_workspace(tmp_path / "demo")
    facts = DemoFacts(days=["2013-01-01"], steps=["load_and_grant"], naive={"verdict": "yes"})
    job.Demo(workspace, facts).save_facts()
    assert job._resume_demo(workspace).facts == facts
