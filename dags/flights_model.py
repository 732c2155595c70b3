"""Many candidates, one holdout: an analyst submits models, and only claims that hold on fresh aircraft are promoted."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from airflow.sdk import DAG, task

from dpflow.airflow import ReusableHoldoutOperator

HERE = Path(__file__).parent

# [START gate]
GATE = {
    "name": "late arrivals gate",
    "mechanism": "reusable_holdout",
    "table": "tables/flights_holdout.yml",
    "scope": "flights_holdout",
    "params": {
        "epsilon": "2",
        "groups": 2000,
        "queries": 200,
        "failures": 10,
        "rho": "0.2",
        "alpha": "0.1",
    },
}
# [END gate]

with DAG(
    "flights_model",
    schedule=None,
    is_paused_upon_creation=False,
    default_args={"retries": 3, "retry_delay": timedelta(seconds=1)},
    tags=["dpflow"],
):

    @task
    def train() -> list[dict[str, object]]:
        """Fit candidates on the training weeks; returns what each claims."""
        from analyst import candidates

        from dpflow.tables import open_rows

        return candidates(open_rows(HERE / "tables" / "flights_training.yml"), HERE.parent / "demo" / "models")

    ReusableHoldoutOperator(
        task_id="gate",
        session=GATE,
        candidates=train(),
        promote={"model": "late_arrivals", "alias": "champion", "tracking_uri": "{{ var.value.mlflow_uri }}"},
    )
