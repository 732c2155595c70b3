"""The demo starts a process of Airflow again that ended by itself, but not for ever."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from dpflow.demo import airflow_stage as module
from dpflow.demo.airflow_stage import DemoFailed, Stage, environment

ONCE = """
import pathlib, sys, time
mark = pathlib.Path("seen")
if not mark.exists():
    mark.touch()
    sys.exit(3)
pathlib.Path("again").touch()
time.sleep(600)
"""


def test_a_process_that_ended_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(module, "AIRFLOW", (sys.executable, "-c", ONCE))
    stage = Stage(tmp_path, environment(tmp_path, 1))
    stage.start(("scheduler",), migrate=False)
    try:
        assert stage.wait("a second try", (tmp_path / "again").exists, every=0.05)
    finally:
        stage.stop()


def test_one_that_keeps_ending_fails_the_demo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        module, "AIRFLOW", (sys.executable, "-c", "print('why'); raise SystemExit(3)")
    )
    stage = Stage(tmp_path, environment(tmp_path, 1))
    stage.start(("scheduler",), migrate=False)
    try:
        with pytest.raises(DemoFailed, match="scheduler ended by itself"):
            stage.wait("nothing", lambda: False, every=0.05)
    finally:
        stage.stop()
    assert (tmp_path / "demo/logs/scheduler.log").read_text().count("why") == 1 + module.RESTARTS
