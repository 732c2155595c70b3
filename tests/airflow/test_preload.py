"""What the scheduler imports before it forks: everything a task needs, and nothing that a fork
breaks.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dpflow.airflow.preload import TASK_MODULES, airflow_component
from dpflow.ledger import Ledger

if TYPE_CHECKING:
    from smallworld import Tiny

linux = pytest.mark.skipif(sys.platform != "linux", reason="tasks are forked on Linux only")

#: As `airflow_local_settings.py` in the process that the arguments name, then what is there.
LOOK = """
import gc, json, os, sys
sys.argv, arguments = ["airflow", sys.argv[1]], sys.argv[2:]
from pathlib import Path
from dpflow.airflow.preload import preload_tasks, count_threads
before = set(os.listdir("/proc/self/fd"))
loaded = preload_tasks("skops.io", "sklearn.linear_model", "no_such_module")
opened = [os.readlink(f"/proc/self/fd/{fd}") for fd in set(os.listdir("/proc/self/fd")) - before if Path(f"/proc/self/fd/{fd}").exists()]
engines = [str(o.url) for o in gc.get_objects() if type(o).__name__ == "Engine"]
kinds = {f"{type(o).__module__}.{type(o).__qualname__}" for o in gc.get_objects()}
state = {"loaded": loaded, "modules": sorted(sys.modules), "threads": count_threads(), "opened": opened}
state |= {"kinds": sorted(kinds), "engines": engines}
"""
TELL = "print(json.dumps(state))"

#: The same process then forks tasks: two at once, then one that is killed after its draw, then its
#: retry.
FORK = """
folder, fault = arguments

def task(day, kill):
    if kill:
        from dpflow import fault_points
        fault_points.armed = f"draw.after:kill:{fault}"  # as the environment does at import
    import numpy as np
    from sklearn.linear_model import LogisticRegression
    from dpflow.engine import RunIdentity, load_request, make_plan, release
    from dpflow.ledger import Ledger
    from dpflow.registry import Registry
    from dpflow.tables.private import PrivateTable
    matrix = np.random.default_rng(0).normal(size=(400, 20))
    LogisticRegression().fit(matrix, matrix[:, 0] > 0)
    assert np.linalg.svd(matrix @ matrix.T)[1].shape == (400,)
    registry, request = Registry.load(), load_request(f"{folder}/release-{day}.yml")
    release(make_plan(request, registry), Ledger(f"{folder}/ledger.sqlite"), registry, run_identity=RunIdentity.of_request(request))

def start(*what):
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        task(*what)
        code = 0
    except BaseException as error:
        print(error, file=sys.stderr)
    finally:
        os._exit(code)

ends = []
for batch in ([("2020-01-01", False), ("2020-01-02", False)], [("2020-01-03", True)], [("2020-01-03", False)]):
    pids = [start(*what) for what in batch]
    ends += [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
state["ends"] = ends
"""


def run(script: str, *arguments: str, home: Path) -> Any:
    """Run a script in a fresh interpreter; what its last line says."""
    process = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        env=os.environ | {"AIRFLOW_HOME": str(home)},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    print(process.stderr)
    assert process.returncode == 0
    assert "Warning" not in process.stderr and "threads run in the scheduler" not in process.stderr
    return json.loads(process.stdout.splitlines()[-1])


@linux
def test_the_scheduler_has_all_of_it_and_its_tasks_survive_a_kill(
    tiny: Tiny, tmp_path: Path
) -> None:
    """One thread, no new file descriptor, no connection of DuckDB, no engine, no pool of threads.

    So DuckDB, BLAS and the ledger work in each forked task; the killed one's retry is not charged
    again.
    """
    for day in ("2020-01-01", "2020-01-02", "2020-01-03"):
        tiny.file(name=day, blocks=[day]).rename(tiny.folder / f"release-{day}.yml")
    places = (str(tiny.folder), str(tmp_path / "fault"))
    state = run(LOOK + FORK + TELL, "scheduler", *places, home=tmp_path)
    assert state["loaded"] == ["skops.io", "sklearn.linear_model", *TASK_MODULES]
    assert {"dpflow.airflow.release", "dpflow.engine", "great_expectations", "duckdb"} <= set(
        state["modules"]
    )
    assert state["threads"] == 1
    assert state["opened"] == []
    assert all(url.endswith("/airflow.db") for url in state["engines"])  # Airflow's own
    forbidden = ("DuckDBPyConnection", "Ledger", "ThreadPool", "Executor", "Connection")
    # Where a notebook kernel is installed Great Expectations imports tornado, whose dummy runs in
    # its caller and has no thread.
    kinds = set(state["kinds"]) - {"tornado.concurrent.DummyExecutor"}
    assert not [kind for kind in kinds if kind.endswith(forbidden)]
    assert state["ends"] == [0, 0, -9, 0]
    ledger = Ledger(tiny.ledger)
    assert [(stored.state, stored.attempts) for stored in ledger.releases()] == [
        ("settled", 1),
        ("settled", 1),
        ("settled", 2),
    ]
    assert ledger.verify().ok


@linux
def test_other_processes_of_airflow_stay_light(tmp_path: Path) -> None:
    """The DAG processor imports operators only; the API server imports nothing."""
    state = run(LOOK + TELL, "dag-processor", home=tmp_path)
    assert "dpflow.airflow.release" in state["modules"] and state["loaded"] == []
    assert not {"great_expectations", "dpflow.engine", "duckdb"} & set(state["modules"])
    state = run(LOOK + TELL, "api-server", home=tmp_path)
    assert "airflow" not in state["modules"] and state["loaded"] == []


def test_a_command_line_names_its_component() -> None:
    assert airflow_component(["/venv/bin/airflow", "scheduler", "--pid", "x"]) == "scheduler"
    assert airflow_component(["__main__.py", "-v", "dag-processor"]) == "dag-processor"
    assert airflow_component(["airflow"]) == ""
