"""Many candidates, one holdout: an analyst submits models, and only claims that hold on fresh
aircraft are promoted.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, Param, task

from dpflow.airflow import ReusableHoldoutOperator

HERE = Path(__file__).parent

# [START gate]
GATE = {
    "name": "late arrivals gate",
    "mechanism": "gate",
    "table": "tables/flights_holdout.yml",
    "scope": "flights_holdout",
    "params": {
        "metric": "accuracy",
        "threshold": "0.08",  # aircraft of few flights count as much as others, and claims are of flights
        "epsilon": "2",
        "count_epsilon": "0.1",
        "queries": 400,  # a claim that passes asks a second one, about the champion
        "failures": 14,
    },
}
# [END gate]

with DAG(
    "flights_model",
    schedule=None,
    is_paused_upon_creation=False,
    max_active_runs=1,  # what is submitted next depends on what was answered before
    default_args={"retries": 3, "retry_delay": timedelta(seconds=1)},
    params={
        "steps": Param(
            0,
            type="integer",
            minimum=0,
            description="models to try from what passed; 0: the fixed list",
        )
    },
    tags=["dpflow"],
):

    @task
    def train(run_id: str, params: dict[str, int]) -> Any:
        """Fit candidates on the training weeks; returns what each claims."""
        from analyst import Climber, fit_candidates

        from dpflow import open_rows

        training, models = (
            open_rows(HERE / "tables" / "flights_training.yml"),
            HERE.parent / "models",
        )
        if params["steps"]:
            return Climber(training, models / "steps").make_submissions(run_id, params["steps"])
        return fit_candidates(training, models)

    submissions = train()  # Airflow fills in what the context has

    # [START branches]
    gate = ReusableHoldoutOperator(
        task_id="gate",
        session=GATE,
        candidates=submissions,
        promote={
            "model": "late_arrivals",
            "alias": "champion",
            "tracking_uri": "{{ var.value.mlflow_uri }}",
        },
        branches={
            "promoted": ["note", "deploy"],
            "not_better": ["note", "rethink"],
            "no": ["note", "rethink"],
            "exhausted": ["note", "collect_fresh_data"],
        },
    )
    # [END branches]

    @task
    def note(
        submissions: list[dict[str, object]], verdicts: list[dict[str, object]], run_id: str
    ) -> None:
        """Note the verdicts, which are all that the analyst learns about the holdout."""
        from analyst import write_notebook

        write_notebook(HERE.parent / "models" / "steps", run_id, submissions, verdicts)

    gate >> [
        note(submissions=submissions, verdicts=gate.output),
        *(EmptyOperator(task_id=name) for name in ("deploy", "rethink", "collect_fresh_data")),
    ]
