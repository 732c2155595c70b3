"""Who may look at the budget page inside Airflow, and which ledger it shows. Imported by the web
process at the first request.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import AccessView, DagDetails
from airflow.api_fastapi.core_api.security import GetUserDep, requires_access_view
from airflow.models import Connection

try:
    from airflow.sdk.exceptions import AirflowNotFoundException
except ImportError:  # Airflow 3.1
    from airflow.exceptions import AirflowNotFoundException

from dpflow.airflow.connection import ledger_target
from dpflow.airflow.links import make_task_path
from dpflow.catalogue import locate_ledger
from dpflow.errors import InvalidInput
from dpflow.ledger import BudgetView, ShownRelease
from dpflow.ui.application import create_app
from dpflow.ui.pages import Audience

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
        task_address=_find_task_address,
    )


# Not by `request.app.state`: a mounted application has a state of its own.
def find_audience(user: GetUserDep) -> Audience:
    """The DAGs that a user may read. A DAG that was removed, and what was released outside Airflow,
    is for those who may read every DAG.
    """
    manager = get_auth_manager()
    if manager.is_authorized_dag(method="GET", details=DagDetails(id=_ANY_DAG), user=user):
        return Audience()
    return Audience(frozenset(manager.get_authorized_dag_ids(user=user, method="GET")))


def open_view() -> BudgetView:
    """The ledger of the connection ``dpflow_reader``, of ``dpflow_ledger``, or of DPFLOW_LEDGER.

    The connection's extra may name ``checkpoints``, a folder, and ``keys``, the verifier keys of who
    signs them. An anchor that it names is not opened.

    Raises:
        InvalidInput: nobody names a ledger, or there is none.
    """
    for name in CONNECTIONS:
        try:
            connection = Connection.get_connection_from_secrets(name)
        except AirflowNotFoundException:
            continue
        extras = connection.extra_dejson
        folder, keys = extras.get("checkpoints"), extras.get("keys") or ()
        return BudgetView(
            ledger_target(connection),
            checkpoints=Path(folder) if folder else None,
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


def _find_task_address(release: ShownRelease) -> str:
    return make_task_path(release.dag_id, release.run_id, release.task_id)
