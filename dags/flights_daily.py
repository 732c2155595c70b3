"""Publish one day of flights: four private releases, each charged to that day's budget exactly
once.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from airflow.sdk import DAG, Asset

try:
    from airflow.sdk import CronDataIntervalTimetable
except ImportError:  # Airflow 3.1
    from airflow.timetables.interval import CronDataIntervalTimetable

from dpflow.airflow import BudgetCheckOperator, DataContractOperator, ReleaseOperator

TABLE = "tables/flights.yml"
PUBLISH = {"database": "../published.duckdb", "table": "flights_daily"}


def _release(name: str, mechanism: str, **params: str) -> dict[str, object]:
    return {
        "name": name,
        "mechanism": mechanism,
        "table": TABLE,
        "scope": "flights",
        "params": params,
        "publish": PUBLISH,
    }


# [START releases]
RELEASES = [
    _release("flights by carrier", "histogram", by="carrier", epsilon="0.3"),
    _release(
        "mean arrival delay by carrier", "mean", column="arr_delay", by="carrier", epsilon="0.5"
    ),
    _release("flights by destination", "histogram", by="dest", epsilon="0.6"),
    _release("median air time", "quantile", column="air_time", p="1/2", epsilon="0.6"),
]
# [END releases]

# The interval is the block: a plain cron string would give an empty interval in Airflow 3.
DAY = "{{ data_interval_start | ds }}"

with DAG(
    "flights_daily",
    schedule=CronDataIntervalTimetable("0 0 * * *", timezone="UTC"),
    start_date=datetime(2013, 1, 1),
    end_date=datetime(2013, 3, 31),  # later days belong to the model tables
    catchup=False,
    is_paused_upon_creation=False,
    max_active_runs=3,  # a file that is busy is tried again
    default_args={"retries": 5, "retry_delay": timedelta(seconds=1)},
    tags=["dpflow"],
):
    budget = BudgetCheckOperator(task_id="budget", releases=RELEASES, blocks=DAY)
    contract = DataContractOperator(task_id="contract", table=TABLE, blocks=DAY)
    # Its event says what was released; flights_report.py runs on it.
    releases = ReleaseOperator(
        task_id="release", release=RELEASES, blocks=DAY, outlets=[Asset("flights_daily")]
    )
    budget >> contract >> releases
