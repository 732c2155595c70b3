"""A private DuckDB file that an owner's SQL script makes of sources; never part of a release."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import duckdb

from dpflow.error_boundary import contain_errors
from dpflow.errors import DpflowError, TableUnreadable
from dpflow.tables.access import isolated_database, sql
from dpflow.tables.access.spill import spill_folder
from dpflow.tables.loading.sources import LoadSource


def build_database(database: Path, script: str, sources: Mapping[str, LoadSource]) -> None:
    """Run an owner's SQL script into a new file that only this user can read.

    Args:
        database: the file to make; it must not exist.
        script: SQL that creates the private tables from the sources.
        sources: the temporary tables that the script reads, by name. Each is read whole and as
            `dpflow.tables.load_rows` reads it, and its rows keep their order.

    Raises:
        InvalidInput: a source has not the columns that it declares; nothing was read.
        TableBusy: a source's file was written meanwhile.
        TableUnreadable: the file exists, a source has a row that is not of its types, or the script
            failed; no half-made file is left.
    """
    exists = f"{database} exists already; remove it to rebuild it"
    if database.exists():
        raise TableUnreadable(exists)

    def run_script() -> None:
        # In a folder that nobody else can enter, and moved when it is whole.
        with spill_folder(database.absolute().parent) as part:
            half = part / database.name
            with duckdb.connect(str(half)) as connection:
                # As where rows are loaded: a time without an offset is UTC on every machine.
                connection.execute("SET TimeZone = 'UTC'")
                isolated_database.hide_progress_bar(connection)
                for name, source in sources.items():
                    _read_whole(connection, name, source)
                connection.execute(script)
            half.chmod(0o600)
            os.link(half, database)

    def describe_error(error: Exception) -> DpflowError:
        # Another process was first.
        if isinstance(error, FileExistsError):
            return TableUnreadable(exists)
        return TableUnreadable(
            f"{database} could not be built ({type(error).__name__}); run the script by hand"
        )

    contain_errors(run_script, describe_error)


def _read_whole(connection: duckdb.DuckDBPyConnection, name: str, source: LoadSource) -> None:
    """Put a source into a temporary table. Raises `TableUnreadable` for a row that is left out."""
    target = sql.quote_name(name)
    # DuckDB's tables of rejected rows are there for one transaction.
    connection.execute("BEGIN")
    with source.open_query(connection) as query:
        connection.execute(f"CREATE TEMP TABLE {target} AS {query}")
        (rows,) = connection.execute(f"SELECT count(*) FROM {target}").fetchone() or (0,)
        rejected, _ = source.count_rejects(connection, rows)
    connection.execute("COMMIT")
    if rejected:
        raise TableUnreadable(
            f"{source.name} has rows that are not of the declared types, so nothing was built; "
            f"dpflow load --rejects FILE lists their lines"
        )
