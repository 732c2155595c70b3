"""Names in a published file: rows go to a table of their kind alone, never to what somebody else called so."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import duckdb

from dpflow.errors import TableUnreadable

#: Whether a name is that of a view.
VIEW = "SELECT 1 FROM duckdb_views() WHERE schema_name = current_schema() AND NOT internal AND lower(view_name) = lower(?)"


def has_table(connection: duckdb.DuckDBPyConnection, table: str) -> bool:
    """Whether the published file has a table of this name; DuckDB does not tell case apart."""
    query = "SELECT 1 FROM duckdb_tables() WHERE schema_name = current_schema() AND lower(table_name) = lower(?)"
    return connection.execute(query, [table]).fetchone() is not None


def require_table(
    connection: duckdb.DuckDBPyConnection,
    database: Path,
    table: str,
    columns: Collection[tuple[str, str]],
    remedy: str,
) -> None:
    """Raises `TableUnreadable` where rows of these columns cannot be written under a name: a view has it, or a table that
    lacks one of them, or asks for others.

    Args:
        remedy: what to do.
    """
    query = (
        "SELECT lower(column_name), data_type, is_nullable OR column_default IS NOT NULL FROM duckdb_columns() "
        "WHERE schema_name = current_schema() AND lower(table_name) = lower(?)"
    )
    found = connection.execute(query, [table]).fetchall()
    kinds = {name: kind for name, kind, _ in found}
    own = {name: kind.removesuffix(" NOT NULL") for name, kind in columns}
    is_view = connection.execute(VIEW, [table]).fetchone() is not None
    fits = own.items() <= kinds.items() and all(free or name in own for name, _, free in found)
    if is_view or not (fits or not found):
        kind = "view" if is_view else "table of other columns"
        raise TableUnreadable(f"{database.name} has a {kind} under the name {table!r}; {remedy}")
