"""What a task instance is, in dpflow's words: its occasion, its default blocks, and how its
failures end.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from airflow.sdk import BaseOperator
from airflow.sdk.bases.xcom import BaseXCom
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from dpflow.engine.releases.plan import Plan
from dpflow.engine.releases.run_identity import Occasion
from dpflow.errors import DpflowError


def occasion(context: Mapping[str, Any], ordinal: int = 0) -> Occasion:
    """The occasion of a running task.

    The name is the logical date with its data interval if the run has one, else the partition key,
    else the run id. Airflow changes map_index, clear_number, try number, run type and task-instance
    ids between tries, so none of them is in the key; the slot, which only serves to notice a
    changed retry, holds the run id and map index.
    """
    instance, run = context["ti"], context["dag_run"]
    name = occasion_name(context, getattr(run, "partition_key", None), instance.run_id)
    slot = f"{instance.dag_id}/{instance.run_id}/{instance.task_id}/{instance.map_index}"
    return Occasion(
        instance.dag_id, instance.task_id, name, slot, principal(instance.dag_id), ordinal
    )


def session_occasion(plan: Plan, dag_id: str) -> Occasion:
    """A session is opened by whatever run comes first, and named by its name; this run's DAG opens
    or asks it.
    """
    return Occasion.of_request(plan.request, principal(dag_id))


def principal(dag_id: str) -> str:
    """Who spends, for the history."""
    return f"airflow:{dag_id}"


def occasion_name(context: Mapping[str, Any], partition_key: str | None, run_id: str) -> str:
    """What makes a run the same run again, from whatever it has."""
    start, end = context.get("data_interval_start"), context.get("data_interval_end")
    logical = context.get("logical_date")
    if logical is None:
        return partition_key or run_id
    if start is None or end is None or start == end:
        return str(logical.isoformat())
    return f"{start.isoformat()}/{end.isoformat()}"


def keep(operator: BaseOperator, context: Mapping[str, Any], value: Any) -> None:
    """Store now what a task returns: Airflow skips other tasks by an exception, and with that the
    task returns nothing.
    """
    if operator.do_xcom_push:
        context["ti"].xcom_push(key=BaseXCom.XCOM_RETURN_KEY, value=value)


@contextmanager
def failures() -> Iterator[None]:
    """Map dpflow's errors to Airflow's: what a retry cannot help fails at once, the rest is tried
    again.
    """
    try:
        yield
    except DpflowError as error:
        kind = AirflowException if error.retryable else AirflowFailException
        raise kind(f"{type(error).__name__}: {error}") from None
