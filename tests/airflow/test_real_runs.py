"""The same through Airflow's own task runner (`dag.test()` on a throw-away database), in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from dpflow.ledger import Ledger

if TYPE_CHECKING:
    from smallworld import Tiny

DAG_FILE = """
from datetime import datetime, timedelta
from airflow.sdk import DAG, CronDataIntervalTimetable
from airflow.providers.standard.operators.empty import EmptyOperator
from dpflow.airflow import LedgerOperator, ReleaseOperator

def wanted(name, epsilon):
    return {"name": name, "mechanism": "count", "table": "visits.yml", "scope": "visits", "params": {"epsilon": epsilon}}

with DAG("d", schedule=CronDataIntervalTimetable("0 0 * * *", timezone="UTC"), start_date=datetime(2020, 1, 1), catchup=False,
         default_args={"retries": 2, "retry_delay": timedelta(0)}):
    gate = LedgerOperator(task_id="gate", action="gate", otherwise="tell")
    tell = EmptyOperator(task_id="tell")
    mapped = ReleaseOperator.partial(task_id="release", blocks="{{ data_interval_start | ds }}").expand(
        release=[wanted("a", "0.2"), wanted("b", "0.4")])
    gate >> [mapped, tell]
"""
SCRIPT = """
import datetime as dt, json, os, sys
from pathlib import Path
from airflow.dag_processing.dagbag import DagBag, sync_bag_to_db
from airflow.models.dagbundle import DagBundleModel
from airflow.models.dagrun import DagRun
from airflow.utils.session import create_session

folder = Path(sys.argv[1])
with create_session() as session:
    session.merge(DagBundleModel(name="testing"))
bag = DagBag(folder / "d.py", load_op_links=False, bundle_name="testing", bundle_path=folder)
sync_bag_to_db(bag, "testing", None)
dag = bag.dags["d"]
seen = []

def run(day, run_id=None):
    done = dag.test(logical_date=dt.datetime(2020, 1, day, tzinfo=dt.UTC))
    with create_session() as session:
        run = session.merge(done)
        states = sorted((t.task_id, t.map_index, str(t.state), t.try_number) for t in run.get_task_instances(session=session))
    seen.append({"run": done.run_id, "state": str(done.state), "tasks": states})

run(2)                                   # the first try of one task fails after its draw
run(2)                                   # cleared and run again
with create_session() as session:
    session.query(DagRun).delete()
run(2)                                   # deleted, and triggered again
run(3)                                   # another interval
os.environ["AIRFLOW_CONN_DPFLOW_LEDGER"] = json.dumps({"conn_type": "dpflow_ledger", "host": str(folder / "poor.sqlite")})
run(4)                                   # a ledger that can pay one of the two: the gate takes the other way
run(2)                                   # a ledger that can pay one of the two: the gate takes the other way
Path(folder / "seen.json").write_text(json.dumps(seen))
"""


@pytest.fixture
def seen(tiny: Tiny) -> list[dict[str, Any]]:
    """What the runs of the DAG ended as."""
    from dpflow.core.declaration import load_table

    poor = Ledger(tiny.folder / "poor.sqlite", create=True)
    poor.grant("visits", "0.5", 0, filter="basic", table=load_table(tiny.folder / "visits.yml"), principal="owner")
    (tiny.folder / "d.py").write_text(DAG_FILE)
    home = tiny.folder / "airflow"
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("AIRFLOW", "DPFLOW"))} | {
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__DAGS_FOLDER": str(home),
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home / 'airflow.db'}",
        "AIRFLOW_CONN_DPFLOW_LEDGER": json.dumps({"conn_type": "dpflow_ledger", "host": str(tiny.ledger)}),
        "DPFLOW_FAULT": f"draw.after:fail:{tiny.folder / 'fired'}",
        "NO_PROXY": "*",
    }
    home.mkdir()
    for command in (["-m", "airflow", "db", "migrate"], ["-c", SCRIPT, str(tiny.folder)]):
        done = subprocess.run([sys.executable, *command], env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    found: list[dict[str, Any]] = json.loads((tiny.folder / "seen.json").read_text())
    return found


def test_airflow_itself_pays_once(tiny: Tiny, seen: list[dict[str, Any]]) -> None:
    """Retried after a draw, cleared, deleted and run again: one charge per release and interval; a gate that really skips."""
    states = [{(task, index): (state, tries) for task, index, state, tries in run["tasks"]} for run in seen]
    assert (tiny.folder / "fired").exists() and max(tries for _, tries in states[0].values()) == 2
    for number in range(4):
        assert states[number]["release", 0][0] == states[number]["release", 1][0] == "success", seen[number]
        assert states[number]["tell", -1][0] == "skipped"
    for number in (4, 5):
        assert (states[number]["tell", -1][0], states[number]["gate", -1][0]) == ("success", "success"), seen[number]
        assert {state for (task, _), (state, _) in states[number].items() if task == "release"} == {"skipped"}
    ledger = Ledger(tiny.ledger)
    assert {row["block"]: row["epsilon_spent"] for row in ledger.remaining("visits").rows()} == {
        "2020-01-01": "0.6",
        "2020-01-02": "0.6",
    }
    assert sorted(stored.attempts for stored in ledger.releases()) == [1, 1, 1, 2]
    assert [entry.kind for entry in ledger.history()].count("settle") == 4 and ledger.verify().ok
    assert Ledger(tiny.folder / "poor.sqlite").releases() == []
