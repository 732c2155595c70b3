"""Release statistics of rows that a Spark cluster reads: only the table's declaration differs."""

from __future__ import annotations

from datetime import datetime, timedelta

from airflow.sdk import DAG

try:
    from airflow.sdk import CronDataIntervalTimetable
except ImportError:  # Airflow 3.1
    from airflow.timetables.interval import CronDataIntervalTimetable

from dpflow.airflow import ReleaseOperator

with DAG(
    "visits_on_spark",
    schedule=CronDataIntervalTimetable("0 5 * * *", timezone="UTC"),
    start_date=datetime(2026, 1, 1),
    catchup=False,
    max_active_runs=1,  # a published file has one writer at a time
    default_args={"retries": 3, "retry_delay": timedelta(minutes=5)},
    tags=["dpflow"],
):
    ReleaseOperator(
        task_id="release",
        release={
            "name": "visits by city on Spark",
            "mechanism": "histogram",
            "table": "tables/visits_on_spark.yml",
            "params": {"by": "city", "epsilon": "0.3"},
        },
        blocks="{{ data_interval_start | ds }}",
    )
