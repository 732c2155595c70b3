"""What docs/guides/planning.md shows is run."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from dpflow.cli import app

if TYPE_CHECKING:
    from smallworld import Tiny

PAGE = (Path(__file__).parents[2] / "docs" / "guides" / "planning.md").read_text()
NIGHTLY = """
from datetime import datetime
from airflow.sdk import DAG, CronDataIntervalTimetable
from dpflow.airflow import ReleaseOperator

RELEASES = [
    {"name": "visits", "mechanism": "count", "table": "visits.yml", "scope": "visits", "params": {"epsilon": "0.1"}},
    {"name": "by city", "mechanism": "histogram", "table": "visits.yml", "scope": "visits", "params": {"by": "city", "epsilon": "0.2"}},
]
with DAG("nightly", schedule=CronDataIntervalTimetable("0 0 * * *", timezone="UTC"), start_date=datetime(2020, 1, 1)):
    ReleaseOperator.partial(task_id="release", blocks="{{ data_interval_start | ds }}").expand(release=RELEASES)
"""


def test_the_commands_run(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Each command of the page, on a folder with a release file and a DAG."""
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path_factory.mktemp("airflow")))
    monkeypatch.chdir(tiny.folder)
    monkeypatch.delenv("DPFLOW_LEDGER", raising=False)
    tiny.file()
    (tiny.folder / "nightly.py").write_text(NIGHTLY)
    commands = re.findall(r"^    dpflow ((?:plan|calculate) .*)$", PAGE, re.MULTILINE)
    assert len(commands) == 9
    for command in commands:
        done = CliRunner().invoke(app, shlex.split(command), catch_exceptions=False)
        assert done.exit_code == 0, (command, done.output)
