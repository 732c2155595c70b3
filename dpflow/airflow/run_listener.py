"""A run that ended well and released nothing says so: Airflow shows it as green as any other.

A date after the DAG's end date gives a run without tasks, and a branch may skip all of them. The scheduler
calls this listener with each run that succeeded, so it asks little, and only about DAGs that release.
"""

from __future__ import annotations

import logging
from typing import Any

from airflow.listeners import hookimpl

log = logging.getLogger(__name__)

_BEGINNING = "Nothing was released in this run"
_MOST_NAMED = 5
#: Airflow's column holds no more.
_LONGEST_NOTE = 1000


def _is_releasing(task: Any) -> bool:
    """Whether tasks of an operator release: all that the scheduler knows of it are names, and a subclass has another
    name and the same template fields. A contract that is checked releases nothing that anybody waits for.
    """
    return "plan_only" in task.template_fields and "contract" not in task.template_fields


# Airflow's decorator has no types.
@hookimpl  # type: ignore[untyped-decorator]
def on_dag_run_success(dag_run: Any, msg: str) -> None:
    """Write a note on the run, unless it has one, and a warning into the scheduler's log."""
    # A scheduler must not end because a note could not be written.
    try:
        note_empty_run(dag_run)
    except Exception as error:  # noqa: BLE001
        kind = type(error).__name__
        log.warning("whether run %s released anything could not be seen: %s", dag_run.run_id, kind)


def note_empty_run(dag_run: Any) -> None:
    """As `on_dag_run_success`; raises what Airflow's database raises. The note goes when the run was
    cleared and has released since.
    """
    from airflow.models.taskinstance import TaskInstance
    from airflow.utils.state import TaskInstanceState
    from sqlalchemy import select
    from sqlalchemy.orm import object_session

    session = object_session(dag_run)
    # A run that somebody marks in the page has no DAG with it.
    if session is None or dag_run.dag is None:
        return
    tasks = sorted(task.task_id for task in dag_run.dag.tasks if _is_releasing(task))
    if not tasks:
        return
    of_run = TaskInstance.dag_id == dag_run.dag_id, TaskInstance.run_id == dag_run.run_id
    ended_well = TaskInstance.task_id.in_(tasks), TaskInstance.state == TaskInstanceState.SUCCESS
    with session.no_autoflush:
        found = session.scalar(select(TaskInstance.task_id).where(*of_run, *ended_well).limit(1))
    note = dag_run.note or ""
    if found is not None:
        if note.startswith(_BEGINNING):
            dag_run.note = ""
        return
    more = f" and {len(tasks) - _MOST_NAMED} more" if len(tasks) > _MOST_NAMED else ""
    text = (
        f"{_BEGINNING}: none of its tasks that release ({', '.join(tasks[:_MOST_NAMED])}{more}) ran. They were skipped, "
        f"or the run's date is after the end date of the DAG or of its tasks."
    )[:_LONGEST_NOTE]
    log.warning("%s, run %s: %s", dag_run.dag_id, dag_run.run_id, text)
    if not note:
        dag_run.note = text
