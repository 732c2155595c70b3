"""Look at a budget every morning, and send a message to a chat when a block is nearly used up, or
when the task fails.
"""

from __future__ import annotations

import json
import urllib.request
from datetime import datetime, timedelta
from typing import Any

from airflow.sdk import DAG, Variable

from dpflow.airflow import BudgetReportOperator

THRESHOLD = 0.8


def send_message(text: str) -> None:
    """Post a text to the incoming webhook that the variable ``alert_webhook`` names."""
    body = json.dumps({"text": text}).encode()
    request = urllib.request.Request(  # noqa: S310
        Variable.get("alert_webhook"), body, {"Content-Type": "application/json"}
    )
    urllib.request.urlopen(request, timeout=10).close()  # noqa: S310


def alert_when_used(context: Any) -> None:
    """Callback of success: the report names the fullest budget first."""
    report = context["ti"].xcom_pull(task_ids=context["ti"].task_id)
    fullest = report["budgets"][0]
    if fullest["used"] >= THRESHOLD:
        send_message(
            f"{report['scope']} {fullest['block']}: {fullest['used']:.0%} of the budget used"
        )


def alert_failure(context: Any) -> None:
    """Callback of failure: the exception's text holds no value of a row."""
    send_message(f"{context['ti'].dag_id}.{context['ti'].task_id} failed: {context['exception']}")


with DAG(
    "budget_alert",
    schedule="0 6 * * *",
    start_date=datetime(2026, 1, 1),
    catchup=False,
    max_active_runs=1,
    default_args={"retries": 3, "retry_delay": timedelta(minutes=5)},
    tags=["dpflow"],
):
    BudgetReportOperator(
        task_id="report",
        scope="visits",
        on_success_callback=alert_when_used,
        on_failure_callback=alert_failure,
    )
