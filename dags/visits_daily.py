"""Load a day's file, check its rows, release two statistics of them and report what is left."""

from __future__ import annotations

from datetime import datetime, timedelta

from airflow.sdk import DAG

try:
    from airflow.sdk import CronDataIntervalTimetable
except ImportError:  # Airflow 3.1
    from airflow.timetables.interval import CronDataIntervalTimetable

from dpflow.airflow import (
    BudgetReportOperator,
    DataContractOperator,
    LoadOperator,
    ReleaseOperator,
)

DAY = "{{ data_interval_start | ds }}"
RELEASES = [
    {
        "name": "visits by city",
        "mechanism": "histogram",
        "table": "visits",
        "params": {"by": "city", "epsilon": "0.3"},
    },
    {
        "name": "mean age",
        "mechanism": "mean",
        "table": "visits",
        "params": {"column": "age", "epsilon": "0.2"},
    },
]

with DAG(
    "visits_daily",
    schedule=CronDataIntervalTimetable("0 3 * * *", timezone="UTC"),
    start_date=datetime(2026, 1, 1),
    catchup=False,
    max_active_runs=1,  # a published file has one writer at a time
    default_args={"retries": 3, "retry_delay": timedelta(minutes=5)},
    tags=["dpflow"],
):
    load = LoadOperator(
        task_id="load",
        source=f"../incoming/visits-{DAY}.csv",
        into="visits",
        columns="person VARCHAR, day DATE, city VARCHAR, age INTEGER",
        by="day",
        blocks=DAY,
    )
    contract = DataContractOperator(task_id="contract", table="visits", blocks=DAY)
    release = ReleaseOperator(task_id="release", release=RELEASES, blocks=DAY)
    load >> contract >> release >> BudgetReportOperator(task_id="report", scope="visits")
