"""Build a dbt project whose models are private answers (the materialisation ``dp_release``): each is charged once, and
building it again is free.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG, Asset

with DAG(
    "visits_dbt",
    schedule="@daily",
    start_date=datetime(2026, 1, 1),
    catchup=False,
    max_active_runs=1,  # a published file has one writer at a time
    default_args={"retries": 3, "retry_delay": timedelta(minutes=5)},
    tags=["dpflow"],
):
    # DPFLOW_LEDGER, or dpflow.yml beside the project, says which ledger pays. Paths of the profile begin there, too.
    BashOperator(
        task_id="build",
        bash_command="dbt build",
        cwd="{{ var.value.dbt_project }}",
        append_env=True,
        outlets=[Asset("visits_models")],
    )
