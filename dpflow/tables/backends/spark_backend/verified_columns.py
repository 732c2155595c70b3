"""Columns that an owner has verified: the server read every value of them once, in one state of the rows.

A server fails on some values that a file can hold, and whether there is an answer would show such a row.
The owner's pass fails on it in its place. What it records is good for this state, this server and its
version; of another state the columns are refused before anything is charged, whatever the rows hold.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dpflow.errors import TableUnreadable
from dpflow.private_files import write_private
from dpflow.tables.backends.spark_backend.spark_connection import SparkConnection
from dpflow.tables.backends.spark_source import SparkSource
from dpflow.yaml_files import parse_json

_VERSION = 1


def find_verified(
    connection: SparkConnection, source: SparkSource, identity: bytes
) -> frozenset[str]:
    """The verified columns of a source in one of its states; none where it names no file, or the file has
    no record of this state. Raises `TableUnreadable` for a file that is no such record.
    """
    if source.verified is None:
        return frozenset()
    try:
        records = parse_json(source.verified.read_text(encoding="utf-8"))
        if records["version"] != _VERSION or records["server"] != connection.server_version:
            return frozenset()
        state, columns = records["tables"].get(source.table, ("", []))
        return frozenset(map(str, columns)) if state == identity.hex() else frozenset()
    except FileNotFoundError:
        return frozenset()
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        raise TableUnreadable(
            f"{connection.what}: {source.verified} is no record of verified columns; write it again: dpflow load DECLARATION "
            f"--in-place"
        ) from None


def write_verified(
    file: Path, server_version: str, tables: dict[str, tuple[bytes, list[str]]]
) -> None:
    """Write a record, whole or not at all.

    Args:
        tables: by the table as the source names it, the identity of its state and the verified columns.
    """
    listed: dict[str, Any] = {
        name: [state.hex(), columns] for name, (state, columns) in tables.items()
    }
    data = {"version": _VERSION, "server": server_version, "tables": listed}
    write_private(file, (json.dumps(data, indent=1) + "\n").encode())
