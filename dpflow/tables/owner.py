"""The owner's side: make a private DuckDB file from public or raw sources. Never part of a release."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import duckdb

from dpflow.errors import TableUnreadable
from dpflow.tables import sql


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
        raise TableUnreadable(f"{database} exists already; remove it to build it anew")
    half = database.with_name(database.name + ".part")
    half.unlink(missing_ok=True)
    try:
        with duckdb.connect(str(half)) as connection:
            for name, csv in sources.items():
                path = sql.literal(str(csv))
                connection.execute(f"CREATE TEMP VIEW {sql.identifier(name)} AS FROM read_csv({path}, nullstr = ['NA', ''])")
            connection.execute(script)
        half.chmod(0o600)
        os.replace(half, database)
    except duckdb.Error as error:
        raise TableUnreadable(f"{database} could not be built ({type(error).__name__}); run the script by hand") from None
    finally:
        half.unlink(missing_ok=True)
