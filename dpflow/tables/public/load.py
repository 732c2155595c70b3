"""The owner's side: make a private DuckDB file, and read rows that the owner declared open. Never
part of a release.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import duckdb

from dpflow.error_boundary import contain_errors, errors_end_here
from dpflow.errors import DpflowError, PlanRefused, TableUnreadable
from dpflow.extras import require_extra
from dpflow.tables.access import file_list, sql
from dpflow.tables.access.declarations import load_table


def build(database: Path, script: str, sources: Mapping[str, Path]) -> None:
    """Run an owner's SQL script into a new file that only this user can read.

    Args:
        database: the file to make; it must not exist.
        script: SQL that creates the private tables from the sources.
        sources: names of views over CSV files that the script reads.

    Raises:
        TableUnreadable: the file exists, or the script failed; no half-made file is left.
    """
    if database.exists():
        raise TableUnreadable(f"{database} exists already; remove it to rebuild it")
    # Built beside and moved when it is whole: nobody opens a half-made file.
    half = database.with_name(database.name + ".part")
    half.unlink(missing_ok=True)

    def run_script() -> None:
        with duckdb.connect(str(half)) as connection:
            connection.execute("SET enable_progress_bar = false")
            for name, csv in sources.items():
                path = sql.quote_text(str(csv))
                connection.execute(
                    f"CREATE TEMP VIEW {sql.quote_name(name)} AS FROM read_csv({path}, nullstr = ['NA', ''])"
                )
            connection.execute(script)
        # Before the move, so that it never stands there readable for others.
        half.chmod(0o600)
        os.replace(half, database)

    def describe_error(error: Exception) -> DpflowError:
        return TableUnreadable(
            f"{database} could not be built ({type(error).__name__}); run the script by hand"
        )

    try:
        contain_errors(run_script, describe_error)
    finally:
        half.unlink(missing_ok=True)


@errors_end_here
def open_rows(path: Path | str) -> Any:
    """The declared columns of a table as a pandas frame, for fitting models.

    What is computed from raw rows has no privacy guarantee, so only a table declared
    ``generalisation_only`` is read.

    Raises:
        PlanRefused: the declaration protects units, or the table is a holdout.
    """
    with require_extra("gate", "a frame of rows"):
        import pandas

    table = load_table(path)
    if not table.generalisation_only:
        raise PlanRefused(
            f"table {table.name!r} protects {table.protection_text}, so its rows are not handed out; release statistics of it, or "
            f"let its owner declare generalisation_only"
        )
    if table.holdout:
        raise PlanRefused(
            f"table {table.name!r} is a holdout, so its rows are not handed out, for a model that saw them passes any gate"
        )
    stored = [n for n, c in table.columns.items() if not c.expression and not c.parts]
    columns = ", ".join(map(sql.quote_name, stored))
    with file_list.open_source(
        table.require_file("a frame of rows"), f"table {table.name!r}"
    ) as connection:
        relation = connection.find_relation(table.relation_name, trusted=True)
        return pandas.DataFrame(
            # One order whatever the file's: a fitted model can be fitted again.
            connection.fetch_arrays(f"SELECT {columns} FROM {relation.quoted} ORDER BY ALL")
        )
