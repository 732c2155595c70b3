"""Questions about a private table that the catalogue of its source answers. No row is read."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any

from dpflow.core.contract.declaration import Table
from dpflow.core.contract.requests import DataRequest
from dpflow.core.contract.table_description import describe_columns
from dpflow.errors import DpflowError, TableUnreadable
from dpflow.tables.access.file_list import is_list
from dpflow.tables.access.local_files import file_identity
from dpflow.tables.private import PrivateTable


def column_types(table: Table, names: Collection[str] | None = None) -> Mapping[str, str]:
    """The types of these columns, the declared ones if left out, as the source names them. Raises `TableUnreadable` or
    `TableBusy`.
    """
    return PrivateTable(table).column_types(names)


def readable_types(table: Table) -> Mapping[str, str]:
    """The types of the declared columns that the source has; none while its catalogue cannot be read."""
    types: dict[str, str] = {}
    with suppress(DpflowError):
        return column_types(table)
    with suppress(DpflowError):
        # Of no column first: a source that is away is asked once.
        column_types(table, ())
        for name in table.columns:
            with suppress(DpflowError):
                types |= column_types(table, (name,))
    return types


def describe_typed_columns(table: Table) -> list[dict[str, Any]]:
    """What may be done with each declared column, with its ``type`` in the source's catalogue; "" where that cannot be
    read.
    """
    types = readable_types(table)
    return [row | {"type": types.get(row["column"], "")} for row in describe_columns(table)]


def catalogue_state(table: Table) -> bytes | None:
    """Another text once the file that has the types was written or exchanged; None where there is no such
    file, or a server, a list of files or a backend of a plugin knows them.
    """
    if table.source is not None or table.backend != "duckdb" or is_list(table.database):
        return None
    try:
        return file_identity(table.database, table.name)
    except TableUnreadable:
        return None


def check_schema(table: Table) -> None:
    """Check every declared column against the source's catalogue.

    Raises:
        TableUnreadable: file, relation or column missing, or a type that cannot be used.
        TableBusy: another process is writing the file.
    """
    PrivateTable(table).check_schema()


def check_request(
    table: Table, where: str | None, request: DataRequest, blocks: Sequence[str]
) -> None:
    """Check a request on the rows that fulfil ``where`` against the source's catalogue.

    Raises:
        TableUnreadable, TableBusy: as `check_schema`.
        PlanRefused, UnknownName: the request does not fit the declaration or the types.
        NotSealed: blocks are sealed, and the place for them cannot be used.
    """
    PrivateTable(table, where).check_request(request, blocks)
