"""Views of a published file that have a name of their own, such as answers of queries: rows are in a
schema of ours, written whole, in the place of the last ones, and the view is what BI tools read.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import duckdb

from dpflow.errors import NotPublished, TableUnreadable
from dpflow.tables.access import sql
from dpflow.tables.public.publish import run_patiently

#: Where the file notes which names are ours: no other is ever replaced.
_NOTES = "dpflow_named_tables"
#: The schema of the rows.
_ROWS = "dpflow_answers"
_TYPES = ("BIGINT", "DOUBLE", "VARCHAR", "BOOLEAN", "DATE", "TIMESTAMP")


def name_dataset(database: Path, table: str) -> tuple[str, str]:
    """Namespace and name of a published table for lineage, as dbt's own lineage has them for DuckDB."""
    file = database.resolve()
    return f"duckdb://{file}", f"{file.stem}.main.{table}"


def publish_view(
    database: Path,
    name: str,
    columns: Sequence[tuple[str, str, Sequence[Any]]],
    *,
    deadline: float = 30.0,
) -> None:
    """Write rows and their view in one transaction.

    Args:
        columns: names, types and values; at least one column.

    Raises:
        NotPublished: the file is held by another process, or cannot be written.
        TableUnreadable: a table or view of this name is somebody else's, or the file is not DuckDB.
    """
    assert all(kind in _TYPES for _, kind, _ in columns)

    def write(connection: duckdb.DuckDBPyConnection) -> None:
        connection.execute("BEGIN")
        connection.execute(f"CREATE TABLE IF NOT EXISTS {_NOTES} (name VARCHAR PRIMARY KEY)")
        taken = connection.execute(
            "SELECT table_name FROM information_schema.tables WHERE table_schema = 'main' AND "
            f"lower(table_name) = lower(?) AND lower(?) NOT IN (SELECT name FROM {_NOTES})",
            [name, name],
        ).fetchone()
        if taken is not None:
            raise TableUnreadable(
                f"{database.name} has a table {name!r} that is no answer of a query; give the query another name"
            )
        definitions = ", ".join(f"{sql.quote_name(column)} {kind}" for column, kind, _ in columns)
        rows = f"{_ROWS}.{sql.quote_name(name)}"
        connection.execute(f"DROP VIEW IF EXISTS {sql.quote_name(name)}")
        connection.execute(f"CREATE SCHEMA IF NOT EXISTS {_ROWS}")
        connection.execute(f"CREATE OR REPLACE TABLE {rows} ({definitions})")
        connection.execute(f"INSERT OR IGNORE INTO {_NOTES} VALUES (lower(?))", [name])
        places = ", ".join(f"unnest(CAST(? AS {kind}[]))" for _, kind, _ in columns)
        if columns[0][2]:
            connection.execute(
                f"INSERT INTO {rows} SELECT {places}", [list(values) for _, _, values in columns]
            )
        connection.execute(f"CREATE VIEW {sql.quote_name(name)} AS SELECT * FROM {rows}")
        connection.execute("COMMIT")

    try:
        database.parent.mkdir(parents=True, exist_ok=True)
    except OSError:
        raise NotPublished(
            f"{database.parent} cannot be created; the releases are settled and paid, so ask again"
        ) from None
    run_patiently(database, deadline, write)
