"""Connection types: ``dpflow_ledger`` is a SQLite path in ``host``, or a PostgreSQL server by host,
login and schema; ``dpflow`` is a service, with its address in ``host`` and a token as password.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from airflow.sdk import BaseHook

from dpflow.client.remote import RemoteClient, check_server
from dpflow.counted import counted
from dpflow.errors import DpflowError, InvalidInput
from dpflow.ledger import BudgetView, Ledger


class LedgerHook(BaseHook):
    """Opens the ledger that an Airflow connection names."""

    conn_name_attr = "ledger_conn_id"
    default_conn_name = "dpflow_ledger"
    conn_type = "dpflow_ledger"
    hook_name = "dpflow ledger"

    def __init__(self, ledger_conn_id: str = default_conn_name, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.ledger_conn_id = ledger_conn_id

    def find_connection(self) -> Any:
        """Airflow's connection. Raises `AirflowNotFoundException`."""
        return self.get_connection(self.ledger_conn_id)

    def get_conn(self) -> Ledger:
        """The ledger; it must exist, because a DAG run that made a new, empty one would hide a
        wrong path.
        """
        connection = self.find_connection()
        self._require_type(connection)
        # Anything else in a connection's extra is ignored.
        extras = connection.extra_dejson
        anchor = Path(extras["anchor"]) if extras.get("anchor") else None
        # Not made here: a new, empty ledger would hide a wrong path behind a full budget.
        if anchor is None and connection.schema and not os.environ.get("DPFLOW_LEDGER_ANCHOR"):
            raise InvalidInput(
                f"connection {self.ledger_conn_id!r} names a ledger on PostgreSQL and no anchor; write the anchor "
                f'directory into the connection\'s extra: {{"anchor": "DIR"}}'
            )
        return Ledger(ledger_target(connection), anchor=anchor, create=False)

    def test_connection(self) -> tuple[bool, str]:
        """Airflow's Test button: whether the ledger opens, under its anchor where this server reaches it, and how
        many scopes it has. Charges nothing.
        """
        try:
            connection = self.find_connection()
            self._require_type(connection)
            scopes, note = len(BudgetView(ledger_target(connection)).scopes(limit=10**6)), ""
            if _may_have_anchor(connection):
                self.get_conn().scopes()
            else:
                note = "; this server does not reach its anchor, which only tasks need, so that was not compared"
        except DpflowError as error:
            return False, str(error)
        return (
            True,
            f"the ledger opens and has {counted(scopes, 'granted scope')}{note}",
        )

    def _require_type(self, connection: Any) -> None:
        if connection.conn_type != self.conn_type:
            raise InvalidInput(
                f"connection {self.ledger_conn_id!r} is of type {connection.conn_type!r}; name one of type "
                f"{self.conn_type!r}, whose host is the ledger"
            )


def _may_have_anchor(connection: Any) -> bool:
    """Whether the keys may be in reach: where somebody names their folder, if they are in it."""
    named = connection.extra_dejson.get("anchor") or os.environ.get("DPFLOW_LEDGER_ANCHOR")
    if named:
        return (Path(named) / "key").is_file()
    # A SQLite file of this user has them in the user's state.
    return not connection.schema


def ledger_target(connection: Any) -> str:
    """What `Ledger` opens: a path, or a SQLAlchemy URL."""
    if not connection.host:
        raise InvalidInput(
            "connection of type dpflow_ledger has no host; give a SQLite path or a PostgreSQL server"
        )
    # A SQLite file has no database inside it, so without one the host is a path.
    if not connection.schema:
        return str(connection.host)
    return server_url(connection, "postgresql+psycopg")


def server_url(connection: Any, driver: str) -> str:
    """The PostgreSQL server that a connection names."""
    from sqlalchemy import URL

    # An absolute path is the directory of PostgreSQL's Unix socket, which a URL names in its query.
    socket = (connection.host or "").startswith("/")
    url = URL.create(
        driver,
        username=connection.login,
        password=connection.password,
        host=None if socket else connection.host,
        port=connection.port,
        database=connection.schema,
        query={"host": connection.host} if socket else {},
    )
    # Who connects needs the password.
    return url.render_as_string(hide_password=False)


class ServiceHook(BaseHook):
    """A client of the service that an Airflow connection names."""

    conn_name_attr = "service_conn_id"
    default_conn_name = "dpflow"
    conn_type = "dpflow"
    hook_name = "dpflow service"

    def __init__(self, service_conn_id: str = default_conn_name, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.service_conn_id = service_conn_id

    def get_conn(self) -> RemoteClient:
        """The client. Raises `AirflowNotFoundException`, and `InvalidInput` for another kind of connection."""
        return make_client(self.get_connection(self.service_conn_id))

    def test_connection(self) -> tuple[bool, str]:
        """Airflow's Test button: whether the service knows the token, and its tables."""
        try:
            tables = [table["table"] for table in self.get_conn().tables()]
        except DpflowError as error:
            return False, str(error)
        return True, f"the service answers; tables: {', '.join(tables) or '(none)'}"


def make_client(connection: Any) -> RemoteClient:
    """The client of the service that a connection of type ``dpflow`` names. Raises `InvalidInput`."""
    conn_id = connection.conn_id
    if connection.conn_type != ServiceHook.conn_type:
        raise InvalidInput(
            f"connection {conn_id!r} is of type {connection.conn_type!r}; name one of type {ServiceHook.conn_type!r}"
        )
    if not connection.host or not connection.password:
        raise InvalidInput(
            f"connection {conn_id!r} needs the service's address as host and a token as password; add them"
        )
    host = connection.host
    if "://" not in host:
        port = f":{connection.port}" if connection.port else ""
        host = f"{connection.schema or 'https'}://{host}{port}"
    return RemoteClient(check_server(host), connection.password)
