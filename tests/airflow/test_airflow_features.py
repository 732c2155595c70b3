"""What Airflow offers every task, with ours: decorators, labels, callbacks, Deadline alerts, the provider's entry."""

from __future__ import annotations

import datetime as dt
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from airflow.timetables import trigger
from airflow.timetables.base import TimeRestriction
from airflow_runs import run_dag

from dpflow.airflow.dag_jobs import read_dags
from dpflow.ledger import Ledger

if TYPE_CHECKING:
    from smallworld import Tiny

DAG_FILE = """
from datetime import datetime, timedelta
from pathlib import Path
from airflow.sdk import DAG, task
try:
    from airflow.sdk import AsyncCallback, DeadlineAlert, DeadlineReference
except ImportError:  # Airflow 3.1
    from airflow.sdk.definitions.deadline import AsyncCallback, DeadlineAlert, DeadlineReference
from dpflow.airflow import BudgetCheckOperator, ReleaseOperator

def wanted(name, **more):
    return {"name": name, "mechanism": "count", "table": "visits.yml", "scope": "visits", "params": {"epsilon": "0.1"}} | more

def note(context):
    with Path(__file__).with_name("noted").open("a") as notes:
        notes.write(context["ti"].task_id + " ")

async def warn(**kwargs): ...

late = DeadlineAlert(reference=DeadlineReference.DAGRUN_LOGICAL_DATE, interval=timedelta(hours=1), callback=AsyncCallback(warn))
with DAG("d", schedule=None, start_date=datetime(2020, 1, 1), deadline=late,
         default_args={"on_success_callback": note, "on_failure_callback": note, "retries": 0}):
    @task.dpflow_release(blocks="2020-01-01")
    def both(suffix, run_id=None):
        assert run_id
        return [wanted("a" + suffix), wanted("b" + suffix)]

    @task.dpflow_release(map_index_template="{{ task.op_kwargs['name'] }}!")
    def each(name):
        return wanted(name, blocks=["2020-01-02"])

    @task.dpflow_sql(tables=["visits.yml"], scope="visits", epsilon="0.1", blocks="2020-01-01")
    def counted(): return "SELECT COUNT(*) FROM visits"

    BudgetCheckOperator(task_id="check", unknown="warn") >> [both("_x"), each.expand(name=["n", "m"]), counted()]
    ReleaseOperator(task_id="bad", release=wanted("bad", scope="nobody"), blocks="2020-01-01")
"""
RUNS = """
from airflow.cli import cli_parser

run(2)
arguments = cli_parser.get_parser().parse_args(["providers", "get", "dpflow-privacy", "--output", "json"])
arguments.func(arguments)
"""


def test_airflows_own_features_work_with_our_tasks(tiny: Tiny, airflow_database: Path) -> None:
    """Functions say what is released; labels are the DAG's; callbacks are called, after a failure, too."""
    (tiny.folder / "d.py").write_text(DAG_FILE)
    ((job,), _) = read_dags(tiny.folder / "d.py")
    unknown = {task.name for task in job.tasks if "privacy cost unknown" in task.note}
    assert unknown == {"both", "counted", "each"}
    output: list[str] = []
    (run,) = run_dag(tiny, airflow_database, DAG_FILE, RUNS, output)
    states = {(task_id, index): state for task_id, index, state, _ in run["tasks"]}
    failed = {task_id for (task_id, _), state in states.items() if state != "success"}
    assert failed == {"bad"}, "".join(output)[-5000:]
    names = sorted(str(one.request["mechanism"]) for one in Ledger(tiny.ledger).releases())
    # Equal releases of a list are two, and those of mapped instances one.
    assert names == ["aggregates", "count", "count", "count"]
    assert (run["labels"]["each 0"], run["labels"]["each 1"]) == ("n!", "m!")
    noted = (tiny.folder / "noted").read_text().split()
    assert sorted(noted) == ["bad", "both", "check", "counted", "each", "each"]
    assert "what 'both' will spend is unknown: its function says" in "".join(output)
    assert "dpflow-privacy" in output[0]


@pytest.mark.skipif(not hasattr(trigger, "CronPartitionTimetable"), reason="before Airflow 3.3")
def test_a_partition_of_the_pages_is_a_day_that_has_ended() -> None:
    """Its run at three in the morning loaded the day that had begun, and its release paid for three hours of rows."""
    pattern = r'CronPartitionTimetable\("([^"]+)", timezone="UTC"(?:, run_offset=(-?\d+))?\)'
    root = Path(__file__).parents[2]
    for place in ("docs/how-to/chain-dags.md", "tests/integration/walk/test_engineer.py"):
        ((cron, offset),) = re.findall(pattern, (root / place).read_text())
        timetable = trigger.CronPartitionTimetable(
            cron, timezone="UTC", run_offset=int(offset) if offset else None
        )
        since = TimeRestriction(dt.datetime(2026, 1, 1, tzinfo=dt.UTC), None, catchup=True)
        run = timetable.next_dagrun_info_v2(last_dagrun_info=None, restriction=since)
        assert run is not None and run.partition_key is not None and run.run_after is not None
        yesterday = run.run_after.date() - dt.timedelta(days=1)
        assert run.partition_key[:10] == yesterday.isoformat()
