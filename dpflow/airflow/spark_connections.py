"""Airflow's connections of type ``spark_connect`` as addresses of Spark Connect servers."""

from __future__ import annotations

from urllib.parse import quote

from airflow.sdk import BaseHook

from dpflow.airflow.task_context import AirflowNotFoundException
from dpflow.errors import InvalidInput

_TYPE = "spark_connect"


def find_spark_address(name: str) -> str | None:
    """The address that a connection names, with its credentials, or None where Airflow has none of this
    name. The fields are those of Airflow's provider for Apache Spark: host, port, login for the user,
    password for the token, and ``use_ssl`` in the extra.

    Raises `InvalidInput` for a connection of another type, or without a host.
    """
    try:
        connection = BaseHook.get_connection(name)
    except AirflowNotFoundException:
        return None
    if connection.conn_type != _TYPE or not connection.host:
        raise InvalidInput(
            f"Airflow's connection {name!r} must be of type {_TYPE!r} and have a host, to name the Spark server of a "
            f"declaration; correct it"
        )
    host = str(connection.host).removeprefix("sc://").rstrip("/")
    server = f"{host}:{connection.port}" if connection.port else host
    extras = connection.extra_dejson
    words = {"user_id": connection.login, "token": connection.password}
    if "use_ssl" in extras:
        words["use_ssl"] = "true" if extras["use_ssl"] in (True, "true", "True", 1) else "false"
    parameters = "".join(
        f";{key}={quote(str(word), safe='')}" for key, word in words.items() if word
    )
    return f"sc://{server}/{parameters}"
