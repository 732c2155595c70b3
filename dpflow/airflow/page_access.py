"""Who may look at the budget page inside Airflow, and which ledger it shows. Imported by the web
process at the first request.
"""

from __future__ import annotations

import datetime as dt
import itertools
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from typing import Any

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import AccessView, DagDetails
from airflow.api_fastapi.core_api.security import GetUserDep, requires_access_view
from airflow.models import Connection, DagRun
from airflow.models.serialized_dag import SerializedDagModel
from airflow.utils.session import create_session
from sqlalchemy import and_, or_, select

try:
    from airflow.sdk.exceptions import AirflowNotFoundException
except ImportError:  # Airflow 3.1
    from airflow.exceptions import AirflowNotFoundException

from dpflow.airflow.connection import ledger_target
from dpflow.airflow.links import make_task_path
from dpflow.airflow.run_names import list_load_names, name_run
from dpflow.catalogue import locate_ledger
from dpflow.engine.releases.reconcile import parse_place
from dpflow.errors import InvalidInput
from dpflow.ledger import BudgetView, ShownRelease
from dpflow.ui.application import create_app
from dpflow.ui.visit import Audience, Host

#: The first that there is: one with a login that only reads, and that of the tasks.
CONNECTIONS = ("dpflow_reader", "dpflow_ledger")
#: No DAG has this id: who may read it may read any, and what was released outside Airflow.
_ANY_DAG = "any DAG, and none"


def create_page() -> Any:
    """The page as Airflow mounts it. Its users are Airflow's, by cookie or bearer token."""
    return create_app(
        open_view,
        audience=find_audience,
        guards=[requires_access_view(AccessView.PLUGINS)],
        host=AirflowPages(),
    )


# Not by `request.app.state`: a mounted application has a state of its own.
def find_audience(user: GetUserDep) -> Audience:
    """The DAGs that a user may read. A DAG that was removed, and what was released outside Airflow,
    is for those who may read every DAG.
    """
    manager = get_auth_manager()
    if manager.is_authorized_dag(method="GET", details=DagDetails(id=_ANY_DAG), user=user):
        return Audience()
    dag_ids = manager.get_authorized_dag_ids(user=user, method="GET")
    beginnings = ("", *find_beginnings())
    return Audience(frozenset(f"{start}{dag_id}" for dag_id in dag_ids for start in beginnings))


def find_connection() -> Any:
    """The connection ``dpflow_reader``, or ``dpflow_ledger``; None if there is neither."""
    for name in CONNECTIONS:
        with suppress(AirflowNotFoundException):
            return Connection.get_connection_from_secrets(name)
    return None


def find_beginnings() -> list[str]:
    """What the ledger writes before ids of this Airflow's DAGs that ask a service: its principal there, which the
    extra ``principal`` of the page's connection names.
    """
    connection = find_connection()
    principal = connection and connection.extra_dejson.get("principal")
    return [f"{principal}/"] if principal else []


def open_view() -> BudgetView:
    """The ledger of `find_connection`, or of DPFLOW_LEDGER.

    The connection's extra may name ``checkpoints``, a folder, and ``keys``, the verifier keys of who
    signs them. An anchor that it names is not opened.

    Raises:
        InvalidInput: nobody names a ledger, or there is none.
    """
    if (connection := find_connection()) is not None:
        extras = connection.extra_dejson
        folder, keys = extras.get("checkpoints"), extras.get("keys") or ()
        return BudgetView(
            ledger_target(connection),
            checkpoints=str(folder) if folder else None,
            keys=[keys] if isinstance(keys, str) else [str(key) for key in keys],
        )
    try:
        place, _ = locate_ledger(None)
    except InvalidInput:
        raise InvalidInput(
            f"no ledger was named to the web process; make a connection {' or '.join(CONNECTIONS)} of type "
            f"dpflow_ledger, or set DPFLOW_LEDGER"
        ) from None
    return BudgetView(place)


class AirflowPages(Host):
    """Airflow around the page. The ledger knows runs by their identity (`name_run`), Airflow by run ids: its database
    says which is which.
    """

    @property
    def published(self) -> list[tuple[Path, str]]:
        """What the connection's extra ``published`` names, as ``FILE`` or ``FILE:TABLE``."""
        connection = find_connection()
        named = connection.extra_dejson.get("published") if connection is not None else None
        return [parse_place(text) for text in ([named] if isinstance(named, str) else named or ())]

    def name_dags(self, dag_id: str) -> list[str]:
        """The DAG's own id, and that of its runs through a service."""
        return [dag_id, *(f"{start}{dag_id}" for start in find_beginnings())]

    def name_runs(self, dag_id: str, run_id: str) -> list[tuple[str, str]]:
        """The run identities of a run's tasks, several where several loads triggered it or params of tasks name days; the
        run id itself for a run that Airflow does not have.
        """
        with create_session() as session:
            of_run = DagRun.dag_id == dag_id, DagRun.run_id == run_id
            run = session.scalar(select(DagRun).where(*of_run))
            if run is None:
                return [(run_id, "")]
            dag = SerializedDagModel.get_dag(dag_id, session=session)
            context = {
                "dag_run": run,
                "logical_date": run.logical_date,
                "data_interval_start": run.data_interval_start,
                "data_interval_end": run.data_interval_end,
                "triggering_asset_events": {"": list(run.consumed_asset_events)},
                "dag": dag,
            }
            # A day means something by the schedule of its DAG, which may be gone. Params of a task have its DAG's in them.
            days = defaultdict[str, list[str]](list)
            for task in dag.tasks if dag else ():
                days[_read_day(run, task.params)].append(task.task_id)
            names, loads = list[tuple[str, str]](), list_load_names(context)
            for day, tasks in (days or {"": []}).items():
                # A day that is none of the schedule's: the tasks failed, and released nothing.
                with suppress(InvalidInput):
                    about = context | {"params": {"day": day}}
                    name = name_run(about, getattr(run, "partition_key", None), run_id)
                    of_loads = sorted({*loads, name}) if name in {*loads, run_id} else [name]
                    names += itertools.product(of_loads, tasks if len(days) > 1 else [""])
        return names

    def find_task_address(self, release: ShownRelease) -> str:
        """The task in the newest run of this identity, its DAG where Airflow has no such run, and "" for a DAG of
        another scheduler.
        """
        start, slash, dag_id = release.dag_id.rpartition("/")
        if slash and f"{start}/" not in find_beginnings():
            return ""
        run_id = _find_run_id(dag_id, release.run) if release.task_id else ""
        return make_task_path(dag_id, run_id, release.task_id)


def _find_run_id(dag_id: str, name: str) -> str:
    """The newest run of this identity in Airflow's database, "" for none."""
    times = []
    with suppress(ValueError):
        times = [dt.datetime.fromisoformat(part) for part in name.split("/")]
    # A partition key may read as a time without a zone, which is none of Airflow's.
    times = [] if any(time.tzinfo is None for time in times) else times
    same = [DagRun.run_id == name]
    if hasattr(DagRun, "partition_key"):
        same.append(DagRun.partition_key == name)
    if len(times) == 2:
        start, end = times
        same.append(and_(DagRun.data_interval_start == start, DagRun.data_interval_end == end))
    elif times:
        same.append(DagRun.logical_date == times[0])
    newest = select(DagRun.run_id).where(DagRun.dag_id == dag_id, or_(*same))
    with create_session() as session:
        return session.scalar(newest.order_by(DagRun.run_after.desc()).limit(1)) or ""


def _read_day(run: Any, params: Any) -> str:
    """The day that a run's configuration or else a task's params name, "" for none. Unread are all other params: a
    required one raises where nobody gave it.
    """
    if "day" in (given := run.conf or {}):
        day = given["day"]
    else:
        day = getattr(params.get_param("day"), "value", None) if "day" in params else None
    return day if isinstance(day, str) else ""
