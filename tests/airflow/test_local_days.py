"""Days of schedules in a time zone of their own: each is asked once, also where the clocks change."""

from __future__ import annotations

import datetime as dt
import itertools
import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from page_runner import inside, run_main

from dpflow.airflow.dag_jobs import read_dags
from dpflow.airflow.run_names import list_runs, name_day
from dpflow.errors import InvalidInput

if TYPE_CHECKING:
    from smallworld import Tiny

DAG_FILE = """
from datetime import datetime
from airflow.sdk import DAG
try:
    from airflow.sdk import CronDataIntervalTimetable
except ImportError:  # Airflow 3.1
    from airflow.timetables.interval import CronDataIntervalTimetable
from dpflow.airflow import ReleaseOperator

wanted = {{"name": "a", "mechanism": "count", "table": "visits.yml", "scope": "visits", "params": {{"epsilon": "0.5"}}}}
with DAG("d", schedule=CronDataIntervalTimetable("{cron}", timezone="{zone}"), start_date=datetime(2026, 1, 1),
         end_date=datetime(2027, 1, 3), catchup=True):
    ReleaseOperator(task_id="t", release=wanted, blocks="{blocks}")
"""
UTC_DAY = "{{ data_interval_start | ds }}"
#: In Lord Howe half an hour is left out; in Apia nothing changes.
SCHEDULES = [
    ("0 1 * * *", "Europe/Berlin"),
    ("30 0 * * *", "Europe/London"),
    ("0 0 * * *", "Europe/Berlin"),
    ("0 22 * * *", "America/New_York"),
    ("30 19 * * *", "America/New_York"),
    ("0 16 * * *", "America/Los_Angeles"),
    ("15 10 * * *", "Australia/Lord_Howe"),
    ("30 12 * * *", "Pacific/Auckland"),
    ("0 3 * * *", "Pacific/Apia"),
]


def write(tiny: Tiny, cron: str, zone: str, blocks: str) -> Any:
    file = tiny.folder / "d.py"
    file.write_text(DAG_FILE.format(cron=cron, zone=zone, blocks=blocks))
    return file


def list_blocks(tiny: Tiny, *schedule: str) -> Iterator[tuple[str, ...]]:
    """What the task asks for in each run of the year, as a plan has it."""
    (job,), _ = read_dags(write(tiny, *schedule))
    (task,) = job.tasks
    runs = itertools.takewhile(lambda run: run.when.year == 2026, job.runs())
    return (ask.blocks for run in runs for ask in task.asks(run))


@pytest.mark.parametrize(("cron", "zone"), SCHEDULES)
def test_each_day_is_asked_once(tiny: Tiny, airflow_home: None, cron: str, zone: str) -> None:
    """By the template that the refusal of one without a zone says. Days of UTC came twice in spring, or never in
    autumn. A day by hand is the schedule's run of it.
    """
    from airflow.sdk import DAG
    from airflow_names import CronDataIntervalTimetable

    with pytest.raises(InvalidInput, match="task d.t: .* is a day of UTC, and .* in ") as told:
        list(list_blocks(tiny, cron, zone, UTC_DAY))
    template = str(told.value).partition("such as ")[2]
    assert template == f"{{{{ data_interval_start.in_timezone('{zone}') | ds }}}}"
    blocks = [block for (block,) in list_blocks(tiny, cron, zone, template)]
    first = dt.date.fromisoformat(blocks[0])
    assert len(blocks) > 360
    assert blocks == [str(first + dt.timedelta(days=n)) for n in range(len(blocks))]
    dag = DAG("d", schedule=CronDataIntervalTimetable(cron, timezone=zone))
    for month, day in ((3, 6), (3, 27), (4, 3), (9, 25), (10, 2), (10, 23), (10, 30)):
        start = dt.datetime(2026, month, day, tzinfo=dt.UTC)
        for number in range(5):
            wanted = str((start + dt.timedelta(days=number)).date())
            name = name_day({"dag": dag, "params": {"day": wanted}})
            begun = dt.datetime.fromisoformat(name.partition("/")[0])
            (run,) = [
                run
                for run in itertools.islice(
                    list_runs(dag, start - dt.timedelta(days=2), None)[0](), 12
                )
                if run.occurrence == name
            ]
            assert run.variables["data_interval_start"] == begun
            assert str(run.variables["data_interval_start"].in_timezone(zone).date()) == wanted


@pytest.mark.parametrize(
    ("template", "is_refused"),
    [
        (UTC_DAY, True),
        ("{{ ds }}", True),
        ("{{ ds_nodash }}", True),
        ("{{ ts[:10] }}", True),
        ("{{ ts_nodash[:8] }}", True),
        ("{{ dag_run.logical_date | ds }}", True),
        ("{{ data_interval_start.strftime('%H%M%S') }}", False),
        ("{{ macros_add(ds) }}", True),
        ("{{ params.day or (data_interval_start | ds) }}", True),
        ("{{ data_interval_start.in_timezone('UTC') | ds }}", False),
        ("{{ data_interval_start.in_timezone('Europe/Berlin').subtract(days=1) | ds }}", False),
        ("{{ data_interval_start }}", False),
        ("{{ ts_nodash }}", False),
        ("2026-03-29", False),
    ],
)
def test_a_task_says_whose_days_its_blocks_are(
    tiny: Tiny, airflow_home: None, template: str, is_refused: bool
) -> None:
    """Refused where it is rendered, before anything is read: as blocks, in a release, a query, a contract, a session's
    questions and a function's arguments.
    """
    from airflow.sdk import DAG
    from airflow_names import AirflowFailException, CronDataIntervalTimetable

    from dpflow.airflow import (
        DataContractOperator,
        ReleaseOperator,
        SessionOperator,
        SqlReleaseOperator,
    )
    from dpflow.airflow.decorators import FunctionReleaseOperator

    dag = DAG("d", schedule=CronDataIntervalTimetable("0 1 * * *", timezone="Europe/Berlin"))
    dag.user_defined_macros = {
        "macros_add": lambda ds: str(dt.date.fromisoformat(ds) - dt.timedelta(days=1))
    }
    tables, query = ["visits.yml"], "SELECT COUNT(*) FROM visits WHERE day = '{}'"
    tasks = [
        ReleaseOperator(task_id="a", release={"name": "x"}, blocks=[template], dag=dag),
        ReleaseOperator(task_id="b", release=[{"name": "x", "blocks": template}], dag=dag),
        SqlReleaseOperator(
            task_id="c",
            tables=tables,
            scope="visits",
            epsilon="1",
            sql=query.format(template),
            dag=dag,
        ),
        DataContractOperator(
            task_id="d", contract={"checks": [{"check": "freshness", "since": template}]}, dag=dag
        ),
        SessionOperator(task_id="e", session="s.yml", queries=[f"day = '{template}'"], dag=dag),
        FunctionReleaseOperator(
            task_id="f", python_callable=lambda day: day, op_kwargs={"day": template}, dag=dag
        ),
    ]
    (run,) = itertools.islice(
        list_runs(dag, dt.datetime(2026, 3, 29, 22, tzinfo=dt.UTC), None)[0](), 1
    )
    assert run.occurrence.startswith("2026-03-29T23:00")
    times = {
        "ts_nodash": run.variables["data_interval_start"].strftime("%Y%m%dT%H%M%S"),
        "params": {"day": None},
    }
    dates = {name: run.variables[name] for name in ("logical_date", "data_interval_start")}
    times["dag_run"] = SimpleNamespace(run_type="scheduled", partition_key=None, **dates)
    for task in tasks:
        context = run.variables | times | {"ti": SimpleNamespace(map_index=-1), "task": task}
        if is_refused:
            with pytest.raises(
                AirflowFailException, match=r"InvalidInput: 2026-?03-?2\d is a day of UTC"
            ):
                task.render_template_fields(context)
        else:
            task.render_template_fields(context)


def test_missing_days_are_those_of_the_schedule(tiny: Tiny, airflow_home: None) -> None:
    """Its dates were of UTC: the day that --since names was left out."""
    template = "{{ data_interval_start.in_timezone('Europe/Berlin') | ds }}"
    write(tiny, "0 0 * * *", "Europe/Berlin", template)
    dates = ["--since", "2026-03-29", "--until", "2026-03-30"]
    with inside(tiny.folder):
        place = ["--runs", "d.py", "--ledger", str(tiny.ledger)]
        _, output, errors = run_main(["check", "--json", *place, *dates])
    (finding,) = json.loads(output)
    assert "of 2 that were due 2 are not whole" in finding["text"], errors
    assert "nothing was released: 2026-03-29, 2026-03-30; run" in finding["text"]
