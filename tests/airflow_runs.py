"""Runs of a DAG by Airflow's own task runner (`dag.test()` on a throw-away database), in a process of its own."""

from __future__ import annotations

import atexit
import json
import os
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from airflow_process import AirflowProcess
from made_once import make_once

if TYPE_CHECKING:
    from smallworld import Tiny

START = """
import datetime as dt, json, os, sys
from pathlib import Path
try:
    from airflow.dag_processing.dagbag import DagBag, sync_bag_to_db
except ImportError:  # Airflow 3.1
    from airflow.models.dagbag import DagBag, sync_bag_to_db
from airflow.models.dagbundle import DagBundleModel
from airflow.models.dagrun import DagRun
from airflow.utils.session import create_session

folder = Path(sys.argv[1])
sys.path.insert(0, str(folder))  # as Airflow does with its DAGs' folder
with create_session() as session:
    session.merge(DagBundleModel(name="testing"))
names = DagBag.__init__.__annotations__
bundle = {"bundle_name": "testing"} if "bundle_name" in names else {}  # not in Airflow 3.1
bag = DagBag(folder / "d.py", load_op_links=False, bundle_path=folder, **bundle)
sync_bag_to_db(bag, "testing", None)
dag = bag.dags["d"]
seen = []

def run(day, run_id=None):
    done = dag.test(logical_date=dt.datetime(2020, 1, day, tzinfo=dt.UTC))
    with create_session() as session:
        run = session.merge(done)
        states = sorted((t.task_id, t.map_index, str(t.state), t.try_number) for t in run.get_task_instances(session=session))
        labels = {f"{t.task_id} {t.map_index}": t.rendered_map_index for t in run.get_task_instances(session=session)}
    seen.append({"run": done.run_id, "state": str(done.state), "tasks": states, "labels": labels})

"""
MIGRATE = """
from airflow import settings
from airflow.utils.db import upgradedb
upgradedb()
settings.engine.dispose()  # the last connection takes the write-ahead log into the file, which is copied alone
"""
END = """
Path(folder / "seen.json").write_text(json.dumps(seen))
"""


def airflow_environment(home: Path) -> dict[str, str]:
    """The environment of an Airflow of its own in a folder."""
    return {k: v for k, v in os.environ.items() if not k.startswith(("AIRFLOW", "DPFLOW"))} | {
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__DAGS_FOLDER": str(home),
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home / 'airflow.db'}",
        "NO_PROXY": "*",
    }


def run_python(environment: dict[str, str], *command: str) -> list[str]:
    """What a run of this Python wrote to its streams; it must end well."""
    done = subprocess.run(
        [sys.executable, *command], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return [done.stdout, done.stderr]


@cache
def start_airflow() -> AirflowProcess:
    """The process that runs the DAGs of all tests of this worker."""
    home = tempfile.TemporaryDirectory()
    process = AirflowProcess(Path(home.name))
    atexit.register(home.cleanup)
    return process


@pytest.fixture(scope="session")
def airflow_database() -> Path:
    """An empty Airflow database. To make one takes several CPU seconds, to copy it none."""
    home = make_once(
        "airflow", lambda home: start_airflow().run(MIGRATE, airflow_environment(home))
    )
    return home / "airflow.db"


def run_dag(
    tiny: Tiny,
    database: Path,
    dag_file: str,
    runs: str,
    output: list[str] | None = None,
    **more: str,
) -> list[dict[str, Any]]:
    """What the runs of a DAG ended as, on a copy of the database; what they wrote to streams is
    added to ``output``.
    """
    (tiny.folder / "d.py").write_text(dag_file)
    home = tiny.folder / "airflow"
    home.mkdir()
    shutil.copy(database, home / "airflow.db")
    connection = {"conn_type": "dpflow_ledger", "host": str(tiny.ledger)}
    environment = airflow_environment(home) | {"AIRFLOW_CONN_DPFLOW_LEDGER": json.dumps(connection)}
    program, environment = START + runs + END, environment | more
    written = start_airflow().run(program, environment, str(tiny.folder))
    if output is not None:
        output += written
    found: list[dict[str, Any]] = json.loads((tiny.folder / "seen.json").read_text())
    return found
