"""Which service a task asks, by its connections."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dpflow.airflow.task_context import AirflowNotFoundException
from dpflow.errors import InvalidInput

if TYPE_CHECKING:
    from dpflow.client.remote import RemoteClient


def open_service(
    task_id: str, service_conn_id: str | None, ledger_conn_id: str | None
) -> RemoteClient | None:
    """The service that a task with these arguments asks; None where it works beside the ledger. Raises `InvalidInput`
    for a named connection that is not there.
    """
    from dpflow.airflow.connection import ServiceHook

    if service_conn_id is not None and ledger_conn_id is not None:
        raise InvalidInput(f"{task_id!r} names service_conn_id and ledger_conn_id; leave one out")
    if ledger_conn_id is not None:
        return None
    name = service_conn_id or ServiceHook.default_conn_name
    try:
        return ServiceHook(name).get_conn()
    except AirflowNotFoundException:
        if service_conn_id is None:
            return None
    raise InvalidInput(
        f"there is no connection {name!r}; make one of type {ServiceHook.conn_type!r}"
    )
