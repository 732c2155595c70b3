"""Release the answer of a SQL query each day, and let another DAG run on what was published."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from airflow.sdk import DAG, Asset, get_current_context, task

try:
    from airflow.sdk import CronDataIntervalTimetable
except ImportError:  # Airflow 3.1
    from airflow.timetables.interval import CronDataIntervalTimetable

from dpflow.airflow import SqlReleaseOperator

BY_CITY = Asset("visits_by_city")
QUERY = """
SELECT city, COUNT(*) AS visits, AVG(age) AS mean_age
FROM visits
WHERE day = '{{ data_interval_start | ds }}'
GROUP BY city
"""

with DAG(
    "visits_sql",
    schedule=CronDataIntervalTimetable("0 4 * * *", timezone="UTC"),
    start_date=datetime(2026, 1, 1),
    catchup=False,
    max_active_runs=1,  # a published file has one writer at a time
    default_args={"retries": 3, "retry_delay": timedelta(minutes=5)},
    tags=["dpflow"],
):
    SqlReleaseOperator(
        task_id="release",
        sql=QUERY,
        epsilon="0.5",
        output_table="visits_by_city",
        outlets=[BY_CITY],
    )

with DAG(
    "visits_sql_report",
    schedule=[BY_CITY],
    start_date=datetime(2026, 1, 1),
    max_active_runs=1,
    default_args={"retries": 2, "retry_delay": timedelta(seconds=10)},
    tags=["dpflow"],
):

    @task
    def report() -> list[dict[str, Any]]:
        """Print the cost of each release; the event holds no released number."""
        from dpflow.airflow.asset_events import read_releases

        releases = read_releases(get_current_context())
        for release in releases:
            print(release["mechanism"], release["blocks"], release["epsilon"], release["published"])
        return releases

    report()
