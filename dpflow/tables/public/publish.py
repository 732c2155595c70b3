"""Settled results in a table that everybody may read: one short transaction, once per release."""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, TypeVar

import duckdb

from dpflow import fault_points
from dpflow.core.contract.result_fields import FIELDS, read_key, split_value, utc_time
from dpflow.core.contract.results import Row, Synthetic
from dpflow.error_boundary import errors_end_here
from dpflow.errors import NotPublished, TableUnreadable
from dpflow.tables.access import sandbox, sql
from dpflow.tables.public import distribution_macros

T = TypeVar("T")

#: Threads of one process share a file in DuckDB, where rows that two of them add do not collide: held
#: while one of them works on a file.
_turn = threading.RLock()


def _renew_turn() -> None:
    """In a forked child, which may have inherited it taken, by a thread that it does not have."""
    global _turn
    _turn = threading.RLock()


os.register_at_fork(after_in_child=_renew_turn)

#: What DuckDB raises while somebody else holds the file, in another process or in this one.
_HELD = (
    duckdb.IOException,
    duckdb.TransactionException,
    duckdb.ConnectionException,
    duckdb.ResourceInUseException,
)

_TYPES = {
    "value": "DOUBLE",
    "half_width_95": "DOUBLE",
    "epsilon": "DOUBLE",
    "delta": "DOUBLE",
    "released_at": "TIMESTAMP",
    "key_integer": "BIGINT",
    "key_date": "DATE",
    "key_timestamp": "TIMESTAMP",
}
_REQUIRED = {
    *("release_id", "release", "block", "mechanism", "group_key", "measure"),
    *("epsilon", "delta"),
}

#: Columns of a published table: its contract with whoever reads it.
COLUMNS = tuple(
    (name, _TYPES.get(name, "VARCHAR") + (" NOT NULL" if name in _REQUIRED else ""))
    for name in FIELDS
)

#: Stands for a release without rows: whoever reads the table sees that it was made.
NO_ROWS = Row("", "no rows", None)


@dataclass(frozen=True)
class PublishedRelease:
    """A settled result as it is published; ``epsilon`` and ``delta`` are exact text.

    What comes from the ledger's record is the same whenever it is published: ``scope``, ``run``,
    ``released_at`` (when it was settled, a time with its zone) and ``protects``. "" and None stand
    for what nobody knows.

    A synthetic table goes to a table of its own, named after the release with ``_synthetic`` behind
    it.
    """

    release_id: str
    release: str
    block: str
    mechanism: str
    epsilon: str
    delta: str
    rows: tuple[Row, ...]
    synthetic: Synthetic | None = None
    scope: str = ""
    run: str = ""
    released_at: dt.datetime | None = None
    protects: str = ""

    def list_columns(self) -> dict[str, Any]:
        """Values by column: a list, or the one value of all rows."""
        rows = self.rows or (NO_ROWS,)
        keys = [read_key(row.key) for row in rows]
        values = [split_value(row.value) for row in rows]
        return {
            "release_id": self.release_id,
            "release": self.release,
            "block": self.block,
            "mechanism": self.mechanism,
            "group_key": [row.key for row in rows],
            "measure": [row.measure for row in rows],
            "value": [_as_float(number) for number, _ in values],
            "text": [text for _, text in values],
            "half_width_95": [_as_float(row.half_width_95) for row in rows],
            "remark": [row.remark or None for row in rows],
            "epsilon": float(Fraction(self.epsilon)),
            "delta": float(Fraction(self.delta)),
            "scope": self.scope or None,
            "run": self.run or None,
            "released_at": utc_time(self.released_at),
            "protects": self.protects or None,
            "key_integer": [key.integer for key in keys],
            "key_date": [key.date for key in keys],
            "key_timestamp": [key.timestamp for key in keys],
        }


def publish(
    database: Path, table: str, release: PublishedRelease, *, deadline: float = 30.0
) -> None:
    """Copy a settled result into ``table`` of ``database``; both are created if missing.

    The same release again changes nothing. A release without rows, such as one that selected no key,
    has the one row `NO_ROWS`. While another process holds the file, tries again with growing
    pauses.

    Raises:
        NotPublished: still held after ``deadline`` seconds, or not writable; the release itself
        stands.
        TableUnreadable: the file is not DuckDB, or the table has other columns.
    """
    name = sql.quote_name(table)

    def write(connection: duckdb.DuckDBPyConnection) -> None:
        connection.execute("BEGIN")
        columns = ", ".join(f"{column} {kind}" for column, kind in COLUMNS)
        connection.execute(f"CREATE TABLE IF NOT EXISTS {name} ({columns})")
        # In one transaction and one turn: a file is open in one process at a time.
        published = connection.execute(
            f"SELECT 1 FROM {name} WHERE release_id = ? LIMIT 1", [release.release_id]
        ).fetchone()
        if published is None:
            values = release.list_columns()
            _insert_rows(connection, name, COLUMNS, [values[column] for column in FIELDS])
            if release.synthetic is not None:
                _insert_synthetic(connection, release, release.synthetic)
            if release.mechanism == distribution_macros.MECHANISM:
                distribution_macros.create_macros(connection, table)
        fault_points.pass_point("publish.before-commit")
        connection.execute("COMMIT")
        fault_points.pass_point("publish.after-commit")

    try:
        database.parent.mkdir(parents=True, exist_ok=True)
    except OSError:
        raise NotPublished(
            f"{database.parent} cannot be created; the release is settled and paid, repair with: dpflow publish"
        ) from None
    run_patiently(database, deadline, write)


def published_ids(database: Path, table: str, *, deadline: float = 30.0) -> set[str]:
    """Ids of the releases in a published table; none if file or table are missing. Raises like
    `publish`.
    """
    if not database.exists():
        return set()

    def read(connection: duckdb.DuckDBPyConnection) -> set[str]:
        exists = connection.execute(
            "SELECT 1 FROM duckdb_tables() WHERE schema_name = current_schema() AND lower(table_name) = lower(?)",
            [table],
        ).fetchone()
        if exists is None:
            return set()
        ids = connection.execute(
            f"SELECT DISTINCT release_id FROM {sql.quote_name(table)}"
        ).fetchall()
        return {str(row[0]) for row in ids}

    return run_patiently(database, deadline, read)


def read_published(database: Path, table: str, *, deadline: float = 30.0) -> list[dict[str, Any]]:
    """Every row of a published table as a mapping, in a fixed order. Raises like `publish`."""

    def read(connection: duckdb.DuckDBPyConnection) -> list[dict[str, Any]]:
        query = f"SELECT {', '.join(FIELDS)} FROM {sql.quote_name(table)} ORDER BY block, release, group_key, measure, release_id"
        return [dict(zip(FIELDS, row, strict=True)) for row in connection.execute(query).fetchall()]

    return run_patiently(database, deadline, read)


_KINDS = {
    "whole": "BIGINT",
    "huge": "HUGEINT",
    "number": "DOUBLE",
    "text": "VARCHAR",
    "date": "DATE",
}


def _insert_synthetic(
    connection: duckdb.DuckDBPyConnection, release: PublishedRelease, table: Synthetic
) -> None:
    """Add a synthetic table's rows, marked with their release and block."""
    name = f"{release.release}_synthetic"
    key_columns = [("release_id", "VARCHAR"), ("block", "VARCHAR")]
    columns = key_columns + [
        # The kind of a decimal is the name of its type.
        (column, _KINDS.get(kind, kind.upper()))
        for column, kind in table.columns
    ]
    definitions = ", ".join(f"{sql.quote_name(column)} {kind} NOT NULL" for column, kind in columns)
    connection.execute(f"CREATE TABLE IF NOT EXISTS {sql.quote_name(name)} ({definitions})")
    _widen_columns(connection, name, columns)
    if not table.rows:
        return
    # What no double or BIGINT holds is given as text.
    values = [
        list(map(str, listed)) if kind == "HUGEINT" or kind.startswith("DECIMAL") else list(listed)
        for listed, (_, kind) in zip(zip(*table.rows, strict=True), columns[2:], strict=True)
    ]
    _insert_rows(
        connection, sql.quote_name(name), columns, [release.release_id, release.block, *values]
    )


def _widen_columns(
    connection: duckdb.DuckDBPyConnection, table: str, columns: Sequence[tuple[str, str]]
) -> None:
    """Give columns that an earlier release made as BIGINT or DOUBLE the type that holds every value
    exactly; that release keeps the values it was published with.
    """
    types = dict(
        connection.execute(
            "SELECT column_name, data_type FROM duckdb_columns() WHERE table_name = ?", [table]
        ).fetchall()
    )
    for column, kind in columns:
        exact = kind in ("HUGEINT", "VARCHAR") or kind.startswith("DECIMAL")
        if exact and types.get(column) in ("BIGINT", "DOUBLE"):
            connection.execute(
                f"ALTER TABLE {sql.quote_name(table)} ALTER {sql.quote_name(column)} TYPE {kind}"
            )


def _insert_rows(
    connection: duckdb.DuckDBPyConnection,
    table: str,
    columns: Sequence[tuple[str, str]],
    values: Sequence[Any],
) -> None:
    """Add rows that are given by column: a list of its values, or the one value of all rows."""
    names = ", ".join(sql.quote_name(column) for column, _ in columns)
    # Most columns of a large result say nothing in any row.
    values = [_shared_value(value) for value in values]
    # One parameter per column: parameters for every row would take far longer.
    parts = ", ".join(
        f"unnest(CAST(? AS {kind.removesuffix(' NOT NULL')}[]))" if isinstance(value, list) else "?"
        for (_, kind), value in zip(columns, values, strict=True)
    )
    connection.execute(f"INSERT INTO {table} ({names}) SELECT {parts}", values)


def _shared_value(value: Any) -> Any:
    """None for a list that holds nothing else."""
    return None if isinstance(value, list) and not any(v is not None for v in value) else value


def _as_float(value: float | None) -> float | None:
    return None if value is None else float(value)


@errors_end_here
def run_patiently(
    database: Path, deadline: float, action: Callable[[duckdb.DuckDBPyConnection], T]
) -> T:
    """Run an action on the file, waiting for whoever holds it."""
    end, pause = time.monotonic() + deadline, 0.01
    while True:
        try:
            # In every round: whoever held the file may have removed it.
            if not database.exists():
                _create_database(database)
            with _turn, duckdb.connect(str(database)) as connection:
                sandbox.hide_progress_bar(connection)
                return action(connection)
        except _HELD as error:
            trouble = str(error)
        except duckdb.Error as error:
            name = type(error).__name__
            raise TableUnreadable(
                f"{database} cannot take releases ({name}); publish to another table or file"
            ) from None
        if "valid DuckDB" in trouble:
            raise TableUnreadable(f"{database} is not a DuckDB file; publish to another path")
        if time.monotonic() + pause > end:
            raise NotPublished(
                f"{database} could not be written for {deadline:g} s, because another process holds it or its place is not "
                f"writable; the release is settled and paid, repair with: dpflow publish"
            )
        time.sleep(pause)
        pause = min(pause * 1.5, 0.5)


def _create_database(database: Path) -> None:
    """Put an empty database there in one step: a kill or a full disk while DuckDB writes the first
    pages of a new file would leave one that nothing can open.
    """
    part = database.with_name(f".{database.name}.{secrets.token_hex(8)}")
    try:
        duckdb.connect(str(part)).close()
        # Another process was first, or there are no links here: then DuckDB makes the file itself.
        with contextlib.suppress(OSError):
            os.link(part, database)
    finally:
        part.unlink(missing_ok=True)
