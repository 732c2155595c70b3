"""Where a connection's name leads: the address of a server, with the credentials that it takes."""

from __future__ import annotations

import os
import re
from collections.abc import Callable

from dpflow.errors import InvalidInput
from dpflow.tables.backends.spark_source import SparkSource

_FINDERS: dict[str, Callable[[str], str | None]] = {}


def add_address_finder(name: str, find: Callable[[str], str | None]) -> None:
    """Ask a program for the address of a connection, where no environment variable says it.

    Args:
        name: of the finder; a second one of this name takes its place.
        find: from a connection's name its address, or None.
    """
    _FINDERS[name] = find


def find_server_address(source: SparkSource) -> str:
    """The server's address, with the credentials that a connection has. Raises `InvalidInput` where
    nobody said what the connection is.
    """
    if source.spark.startswith("sc://"):
        return source.spark
    variable = f"DPFLOW_SPARK_{source.spark.upper()}"
    address = os.environ.get(variable, "")
    for find in _FINDERS.values():
        address = address or find(source.spark) or ""
    # Not repeated: it may hold a token.
    if re.match(r"sc://[^/;]", address) is None:
        raise InvalidInput(
            f"the connection {source.spark!r} needs the address of a Spark Connect server in the environment variable "
            f"{variable}, such as sc://spark.example.org:15002, or in Airflow a connection of this name and of type "
            f"spark_connect; set it"
        )
    return address
