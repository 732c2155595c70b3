"""Tell what of the flights was published: a DAG that runs whenever the table `flights_daily` has a new day.
It needs no date and no ledger, for what the event says is public.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from airflow.sdk import DAG, Asset, task

with DAG(
    "flights_report",
    schedule=[Asset("flights_daily")],
    start_date=datetime(2013, 1, 1),
    catchup=False,
    max_active_runs=3,
    default_args={"retries": 2, "retry_delay": timedelta(seconds=10)},
    tags=["dpflow"],
):

    @task
    def tell() -> list[dict[str, Any]]:
        """A line for each release: what was asked, at which privacy cost, and how wide its noise is."""
        from airflow.sdk import get_current_context

        from dpflow.airflow.asset_events import read_releases

        releases = read_releases(get_current_context())
        for release in releases:
            print(
                f"{release['name']}, {', '.join(release['blocks'])}: epsilon {release['epsilon']}, delta "
                f"{release['delta']}; 95 % of the noise within {release['half_width_95']}; {release['published']}"
            )
        return releases

    tell()
