"""One day by hand: a param ``day``, tasks that only plan, and errors that name the day."""

from __future__ import annotations

import datetime as dt
import itertools
import re
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from airflow_runs import run_dag
from airflow_tasks import DAY, context, make_release

from dpflow.airflow.run_names import list_runs, name_day, name_run
from dpflow.airflow.task_context import AirflowFailException
from dpflow.errors import InvalidInput
from dpflow.ledger import Ledger

if TYPE_CHECKING:
    from smallworld import Tiny

DAG_FILE = """
from datetime import datetime
from airflow.sdk import DAG, Asset
try:
    from airflow.sdk import CronDataIntervalTimetable
except ImportError:  # Airflow 3.1
    from airflow.timetables.interval import CronDataIntervalTimetable
from dpflow.airflow import ReleaseOperator

wanted = {"name": "a", "mechanism": "count", "table": "visits.yml", "scope": "visits", "params": {"epsilon": "0.5"}}
with DAG("d", schedule=CronDataIntervalTimetable("0 3 * * *", timezone="UTC"), start_date=datetime(2020, 1, 1),
         params={"day": None, "plan_only": False}):
    ReleaseOperator(task_id="t", release=wanted, blocks="{{ params.day or (data_interval_start | ds) }}",
                    plan_only="{{ params.plan_only }}", outlets=[Asset("visits")])
"""
RUNS = """
from airflow.models.asset import AssetEvent
from sqlalchemy import func, select

def start(logical_date, conf=None):
    # In one process a run's configuration would stay in the params of the next.
    done = dag.test(logical_date=logical_date, run_conf={"day": None, "plan_only": False} | (conf or {}))
    with create_session() as session:
        run = session.merge(done)
        (task,) = run.get_task_instances(session=session)
        seen.append([str(task.state), session.scalar(select(func.count()).select_from(AssetEvent))])

start(None, {"day": "2020-01-02", "plan_only": True})
start(dt.datetime(2020, 1, 2, 3, tzinfo=dt.UTC))   # the schedule's interval from January 1 at 3:00
start(None, {"day": "2020-01-01"})
start(dt.datetime.now(dt.UTC), {"day": "2020-01-02"})   # as airflow dags test does
start(None)

import shlex
from airflow.cli import cli_parser
from airflow.models.backfill import _get_info_list
from airflow.models.serialized_dag import SerializedDagModel

asked = cli_parser.get_parser().parse_args(shlex.split(os.environ["PAGE_COMMAND"])[1:])
runs = _get_info_list(dag=SerializedDagModel.get_dag("d"), from_date=asked.from_date, to_date=asked.to_date, reverse=False)
seen.append([str(run.data_interval.start) for run in runs])
"""
PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "schedule-in-airflow.md"


def test_a_day_by_hand_is_the_schedules_run(tiny: Tiny, airflow_database: Any) -> None:
    """It pays once, whichever comes first; a plan charges nothing, and sends no asset event. A test run says that it
    pays.
    """
    output: list[str] = []
    (command,) = re.findall(r"^\$ (airflow backfill create .*)$", PAGE.read_text(), re.MULTILINE)
    *seen, backfilled = run_dag(
        tiny, airflow_database, DAG_FILE, RUNS, output, PAGE_COMMAND=command
    )
    # The page's command makes the one run of its day.
    assert backfilled == ["2026-01-01 03:00:00+00:00"]
    assert seen == [["skipped", 0], ["success", 1], ["success", 2], ["success", 3], ["failed", 3]]
    spent = {r["block"]: r["epsilon_spent"] for r in Ledger(tiny.ledger).remaining("visits").rows()}
    assert spent == {"2020-01-01": "0.5", "2020-01-02": "0.5"}
    log = "".join(output)
    assert log.count("spends the real budget") == 3
    assert "a (count): asks scope visits, block 2020-01-02, for epsilon 0.5" in log
    assert "'data_interval_start' is undefined" in log and "give the DAG a param day" in log


@pytest.mark.parametrize(
    ("schedule", "name"),
    [
        ("0 0 * * *", "2020-02-29T00:00:00+00:00/2020-03-01T00:00:00+00:00"),
        ("0 3 * * *", "2020-02-29T03:00:00+00:00/2020-03-01T03:00:00+00:00"),
        ("59 23 * * *", "2020-02-29T23:59:00+00:00/2020-03-01T23:59:00+00:00"),
        ("plain 0 3 * * *", "2020-02-29T03:00:00+00:00"),
        (None, "manual__1"),
        ("0 * * * *", "has 24 runs of that day"),
        ("0 3 1 * *", "has 0 runs of that day"),
    ],
)
def test_a_day_has_the_name_of_its_interval(schedule: str | None, name: str) -> None:
    """Of schedules with one run a day; of others a day says nothing. A param that is no date names none."""
    from airflow.sdk import DAG
    from airflow_names import CronDataIntervalTimetable

    plain = schedule is not None and schedule.startswith("plain ")
    timetable: Any = schedule and schedule[6:]
    if schedule is not None and not plain:
        timetable = CronDataIntervalTimetable(schedule, timezone="UTC")
    named = {"dag": DAG("d", schedule=timetable), "params": {"day": "2020-02-29"}}
    if "runs of" in name:
        with pytest.raises(InvalidInput, match=name):
            name_day(named)
    else:
        assert name_run(named, None, "manual__1") == name
        assert name_run(named | {"params": {"day": " 2020-02-29 "}}, None, "manual__1") == name
        # Another DAG triggers a run with a date of its own, which is not the day's.
        dated = named | {
            "logical_date": DAY,
            "dag_run": SimpleNamespace(run_type="operator_triggered"),
        }
        assert name_run(dated, None, "x") == (DAY.isoformat() if name == "manual__1" else name)
        assert (
            name_run(dated | {"dag_run": SimpleNamespace(run_type="scheduled")}, None, "x") != name
        )
    assert name_run(named | {"params": {"day": "Monday"}}, None, "manual__1") == "manual__1"
    for text in ("2020-02-29T00:00:00", "20200229", "2020-02-30") if schedule else ():
        with pytest.raises(InvalidInput, match="write a date such as"):
            name_day(named | {"params": {"day": text}})


@pytest.mark.parametrize("name", ["timedelta", "intervals", "triggers"])
def test_a_schedule_that_counts_from_its_first_run_names_no_day(name: str) -> None:
    """Its run of a day was named from midnight, and the schedule's from its start: the day was charged and drawn twice.
    A plan from a later date has the runs that the schedule has.
    """
    from airflow.sdk import DAG
    from airflow.timetables import interval, trigger

    every = dt.timedelta(days=1)
    schedule: Any = {
        "timedelta": every,
        "intervals": interval.DeltaDataIntervalTimetable(every),
        "triggers": trigger.DeltaTriggerTimetable(every, interval=every),
    }[name]
    dag = DAG("d", schedule=schedule, start_date=dt.datetime(2020, 1, 1, 3, tzinfo=dt.UTC))
    for day in ("2020-01-01", "2020-01-03"):
        with pytest.raises(
            InvalidInput, match="counts from its first run.*write the schedule as cron"
        ):
            name_day({"dag": dag, "params": {"day": day}})
    whole, later = (
        [run.occurrence for run in itertools.islice(list_runs(dag, start, None)[0](), 4)]
        for start in (None, dt.datetime(2020, 1, 2, tzinfo=dt.UTC))
    )
    skipped = 2 if name == "triggers" else 1
    assert whole[skipped:] == later[: 4 - skipped] and "T03:00" in later[0]


def test_a_day_that_the_schedule_never_reaches_is_refused() -> None:
    """Also where the param's default names it, and at the end of the calendar."""
    from airflow.sdk import DAG
    from airflow_names import CronDataIntervalTimetable

    begin, end = (dt.datetime(2020, 1, day, tzinfo=dt.UTC) for day in (1, 20))
    for day in ("2020-02-01", "9999-12-31"):
        daily = CronDataIntervalTimetable("0 3 * * *", timezone="UTC")
        dag = DAG("d", schedule=daily, start_date=begin, end_date=end, params={"day": day})
        with pytest.raises(InvalidInput, match="params.day is"):
            name_day({"dag": dag, "params": {"day": day}})


def test_an_error_names_the_block_and_the_interval(tiny: Tiny, airflow_home: None) -> None:
    """Both come from the run, and the reader of an error sees only its text."""
    from dpflow.airflow import ReleaseOperator

    release = make_release(params={"epsilon": "0.5", "typo": 1})
    task = ReleaseOperator(task_id="t", release=release, blocks="2020-01-01")
    with pytest.raises(AirflowFailException) as failure:
        task.execute(context(tiny))
    assert str(failure.value).endswith(
        "this task asks for block 2020-01-01, and its run has the data interval 2020-01-01 00:00 to 2020-01-02 00:00"
    )


def test_only_tasks_that_charge_can_plan(tiny: Tiny, airflow_home: None) -> None:
    """And what a template became must be a truth value."""
    from dpflow.airflow import BudgetCheckOperator, ReleaseOperator

    with pytest.raises(InvalidInput, match="charges nothing"):
        BudgetCheckOperator(task_id="c", plan_only=True)
    task = ReleaseOperator(task_id="t", release=make_release(), plan_only="perhaps")
    with pytest.raises(AirflowFailException, match="write true or false"):
        task.execute(context(tiny))
    assert not Ledger(tiny.ledger).releases()
