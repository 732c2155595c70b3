"""Release one day of flights at a service that alone holds rows, ledger and keys (docker-compose.yml): the tasks have a
token, and the results stay there, to be read by URL.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from airflow.sdk import DAG, Asset

try:
    from airflow.sdk import CronDataIntervalTimetable
except ImportError:  # Airflow 3.1
    from airflow.timetables.interval import CronDataIntervalTimetable

from dpflow.airflow import ReleaseOperator


def _release(name: str, mechanism: str, **params: str) -> dict[str, object]:
    return {"name": name, "mechanism": mechanism, "table": "flights", "params": params}


RELEASES = [
    _release("flights by carrier", "histogram", by="carrier", epsilon="0.3"),
    _release(
        "mean arrival delay by carrier", "mean", column="arr_delay", by="carrier", epsilon="0.5"
    ),
]

with DAG(
    "service_flights",
    schedule=CronDataIntervalTimetable("0 0 * * *", timezone="UTC"),
    start_date=datetime(2013, 1, 1),
    end_date=datetime(2013, 3, 31),
    catchup=False,
    max_active_runs=3,
    default_args={"retries": 5, "retry_delay": timedelta(seconds=10)},
    tags=["dpflow"],
):
    # Both are charged together, and once for a day, however often it is run.
    ReleaseOperator(
        task_id="release",
        release=RELEASES,
        blocks="{{ data_interval_start | ds }}",
        service_conn_id="dpflow",
        outlets=[Asset("service_flights")],
    )
