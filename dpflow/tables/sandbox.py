"""A DuckDB file opened read-only, for one call, with nothing else in reach; and errors that quote no row."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import duckdb

from dpflow.errors import InvalidInput, TableBusy, TableError, TableUnreadable
from dpflow.tables import sql

T = TypeVar("T")

#: Name of the attached database; everything else in the connection is in memory.
PRIVATE = "private"


def memory_limit() -> str:
    """DuckDB's memory limit: ``DPFLOW_MEMORY_LIMIT``, by default 2GB. Raises `InvalidInput` if it is no amount."""
    limit = os.environ.get("DPFLOW_MEMORY_LIMIT", "2GB")
    if not re.fullmatch(r"[0-9]+(\.[0-9]+)? ?[KMGT]i?B", limit):
        raise InvalidInput(f"DPFLOW_MEMORY_LIMIT is {limit!r}; write an amount such as 2GB or 512MB")
    return limit


def scrubbed(action: Callable[[], T], what: str) -> T:
    """Run an action; a DuckDB error, whose text may quote rows, becomes a fixed sentence with its class name only.

    The new exception is raised outside the handler, so that not even its ``__context__`` leads to the old one.

    Raises:
        TableBusy: somebody holds the file for writing.
        TableUnreadable: anything else that DuckDB objects to.
    """
    failure: TableError
    try:
        return action()
    except duckdb.Error as error:
        locked = isinstance(error, duckdb.IOException) and "Could not set lock" in str(error)
        if locked or isinstance(error, duckdb.ResourceInUseException):  # the latter: this very process is writing
            failure = TableBusy(
                f"{what} is being written by another process or connection; try again when it has finished"
            )
        else:
            failure = TableUnreadable(f"{what} cannot be read ({type(error).__name__}); DuckDB's own text is withheld")
    raise failure


class Connection:
    """A connection whose errors are scrubbed. ``what`` names the table in messages."""

    def __init__(self, raw: duckdb.DuckDBPyConnection, what: str) -> None:
        self._raw, self._what = raw, what

    def run(self, query: str, parameters: list[Any] | None = None) -> None:
        """Execute without looking at a result."""
        scrubbed(lambda: self._raw.execute(query, parameters), self._what)

    def rows(self, query: str, parameters: list[Any] | None = None) -> list[tuple[Any, ...]]:
        """All rows as Python values."""
        return scrubbed(lambda: self._raw.execute(query, parameters).fetchall(), self._what)

    def arrays(self, query: str, parameters: list[Any] | None = None) -> dict[str, Any]:
        """All rows as one numpy array per output column."""
        return scrubbed(lambda: self._raw.execute(query, parameters).fetchnumpy(), self._what)

    def fields(self, relation: str) -> dict[str, sql.Field]:
        """Columns of a table or view, from the catalog alone: binding the query runs nothing."""
        bound = scrubbed(lambda: self._raw.sql(f"SELECT * FROM {relation}"), self._what)
        return {name: sql.field(name, kind) for name, kind in zip(bound.columns, bound.types, strict=True)}


@contextmanager
def opened(database: Path, what: str) -> Iterator[Connection]:
    """The file, attached read-only as `PRIVATE` in a locked-down in-memory session.

    Spill files go to a directory only this user can enter, removed with everything in it.

    Raises:
        TableUnreadable: no such file, or not a DuckDB file.
        TableBusy: another process is writing it.
    """
    if not database.is_file():
        raise TableUnreadable(
            f"{what}: there is no file {database}; correct the declaration's database, or load the data"
        )
    with tempfile.TemporaryDirectory(prefix="dpflow-") as spill:
        raw = duckdb.connect(":memory:")
        try:
            for setting in (
                f"SET memory_limit = {sql.literal(memory_limit())}",
                f"SET temp_directory = {sql.literal(spill)}",
                "SET preserve_insertion_order = false",
                "SET TimeZone = 'UTC'",
                "SET autoinstall_known_extensions = false",
                "SET autoload_known_extensions = false",
            ):
                raw.execute(setting)
            connection = Connection(raw, what)
            path = sql.literal(str(database.absolute()))
            connection.run(f"ATTACH {path} AS {PRIVATE} (TYPE duckdb, READ_ONLY)")
            connection.run("SET enable_external_access = false")
            connection.run("SET lock_configuration = true")
            yield connection
        finally:
            raw.close()


def identity(database: Path, what: str) -> bytes:
    """Identity of the file's content without opening it: device, inode, size and time of file and write-ahead log.

    The file is not opened because closing any handle of it drops this process's own locks.
    """
    parts = []
    for path in (database, database.with_name(database.name + ".wal")):
        try:
            stat = path.stat()
        except FileNotFoundError:
            continue
        except OSError:
            raise TableUnreadable(f"{what}: {path} cannot be looked at; check its permissions") from None
        parts.append(f"{stat.st_dev}:{stat.st_ino}:{stat.st_size}:{stat.st_mtime_ns}")
    if not parts:
        raise TableUnreadable(
            f"{what}: there is no file {database}; correct the declaration's database, or load the data"
        )
    return "/".join(parts).encode()
