"""Settled results in a table that everybody may read: once per release."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

import duckdb

from dpflow.core.contract.published_release import PublishedRelease
from dpflow.core.contract.result_fields import FIELD_KINDS, FIELDS
from dpflow.core.contract.results import Synthetic
from dpflow.errors import TableError
from dpflow.tables.access import sql
from dpflow.tables.public import distribution_macros
from dpflow.tables.public.named_tables import answer_ids, strip_latest
from dpflow.tables.public.public_file import read_file, write_file

_REQUIRED = {
    *("release_id", "release", "block", "mechanism", "group_key", "measure"),
    *("clipped", "only_a_bound", "epsilon", "delta"),
}

#: Columns of a published table: its contract with whoever reads it.
COLUMNS = tuple(
    (name, FIELD_KINDS.get(name, "VARCHAR") + (" NOT NULL" if name in _REQUIRED else ""))
    for name in FIELDS
)


def publish(
    database: Path, table: str, release: PublishedRelease, *, deadline: float = 30.0
) -> None:
    """Copy a settled result into ``table`` of ``database``; both are created if missing.

    The same release again changes nothing. A release without rows, such as one that selected no key,
    has the one row `NO_ROWS`. Readers of the file hold nothing up; see `write_file`.

    Raises:
        NotPublished: another process writes the file for ``deadline`` seconds, or its place is not
            writable; the release itself stands.
        TableUnreadable: the file is not DuckDB, or the table has other columns.
    """
    name = sql.quote_name(table)

    def is_published(connection: duckdb.DuckDBPyConnection) -> bool:
        query = f"SELECT 1 FROM {name} WHERE release_id = ? LIMIT 1"
        return (
            has_table(connection, table)
            and connection.execute(query, [release.release_id]).fetchone() is not None
        )

    def write(connection: duckdb.DuckDBPyConnection) -> bool:
        columns = ", ".join(f"{column} {kind}" for column, kind in COLUMNS)
        connection.execute(f"CREATE TABLE IF NOT EXISTS {name} ({columns})")
        if is_published(connection):
            return False
        values = release.list_columns()
        _insert_rows(connection, name, COLUMNS, [values[column] for column in FIELDS])
        if release.result.synthetic is not None:
            _insert_synthetic(connection, release, release.result.synthetic)
        if release.mechanism == distribution_macros.MECHANISM:
            distribution_macros.create_macros(connection, table)
        return True

    # A retry, which is most often one of a release that is there, copies no file.
    if not (database.exists() and read_file(database, deadline, is_published)):
        write_file(database, deadline, write)


def withdraw_totals(
    database: Path, table: str, ids: Collection[str], *, deadline: float = 30.0
) -> None:
    """Take the total intervals of these releases out of a published table. Raises like `publish`."""
    rows = f"{sql.quote_name(table)} WHERE coalesce(low, high) IS NOT NULL AND release_id IN (SELECT unnest(?))"

    def has_totals(connection: duckdb.DuckDBPyConnection) -> bool:
        return (
            connection.execute(f"SELECT 1 FROM {rows} LIMIT 1", [list(ids)]).fetchone() is not None
        )

    def write(connection: duckdb.DuckDBPyConnection) -> bool:
        target, _, condition = rows.partition(" WHERE ")
        connection.execute(
            f"UPDATE {target} SET low = NULL, high = NULL WHERE {condition}", [list(ids)]
        )
        return True

    if not ids:
        return
    if read_file(database, deadline, has_totals):
        write_file(database, deadline, write)


_VIEW = "SELECT 1 FROM duckdb_views() WHERE schema_name = current_schema() AND NOT internal AND lower(view_name) = lower(?)"


def published_ids(database: Path, table: str, *, deadline: float = 30.0) -> set[str]:
    """Ids of the releases in a published table or behind named answers; none if file or table are missing. ``NAME_latest`` is
    the whole of NAME. Raises like `publish`.
    """

    def read(connection: duckdb.DuckDBPyConnection) -> set[str]:
        if (name := _find_table(connection, table)) is None:
            return _list_answers(connection, table)
        query = f"SELECT DISTINCT release_id FROM {sql.quote_name(name)}"
        return {str(release_id) for (release_id,) in connection.execute(query).fetchall()}

    return read_file(database, deadline, read) if database.exists() else set()


def digest_published(database: Path, table: str, *, deadline: float = 30.0) -> dict[str, str]:
    """As `published_ids`, with the `digest_rows` of each release's rows; "" behind named answers, whose numbers were computed
    from those of releases.
    """

    def read(connection: duckdb.DuckDBPyConnection) -> dict[str, str]:
        if (name := _find_table(connection, table)) is None:
            return dict.fromkeys(_list_answers(connection, table), "")
        query = f"SELECT {', '.join(FIELDS)} FROM {sql.quote_name(name)} ORDER BY release_id"
        rows = connection.execute(query)
        streamed = itertools.chain.from_iterable(iter(lambda: rows.fetchmany(10_000), []))
        groups = itertools.groupby(streamed, lambda row: str(row[0]))
        return {release_id: digest_rows(group) for release_id, group in groups}

    return read_file(database, deadline, read) if database.exists() else {}


def digest_rows(rows: Iterable[tuple[Any, ...]]) -> str:
    """A digest of rows of `FIELDS`, in whatever order."""
    return hashlib.sha256("\n".join(sorted(map(repr, rows))).encode()).hexdigest()


def _find_table(connection: duckdb.DuckDBPyConnection, name: str) -> str | None:
    """The published table of a name, or the one that it names the latest of."""
    # A view is not read: it could read any file.
    return next((n for n in (name, strip_latest(name)) if has_table(connection, n)), None)


def _list_answers(connection: duckdb.DuckDBPyConnection, name: str) -> set[str]:
    found = answer_ids(connection, name)
    if found is None and connection.execute(_VIEW, [name]).fetchone():
        raise TableError(
            f"{name} is a view whose rows name no release; name a table that dpflow publish writes, or a named answer"
        )
    return found or set()


def has_table(connection: duckdb.DuckDBPyConnection, table: str) -> bool:
    """Whether the published file has a table of this name; DuckDB does not tell case apart."""
    query = "SELECT 1 FROM duckdb_tables() WHERE schema_name = current_schema() AND lower(table_name) = lower(?)"
    return connection.execute(query, [table]).fetchone() is not None


def read_published(database: Path, table: str, *, deadline: float = 30.0) -> list[dict[str, Any]]:
    """Every row of a published table as a mapping, in a fixed order. Raises like `publish`."""

    def read(connection: duckdb.DuckDBPyConnection) -> list[dict[str, Any]]:
        query = f"SELECT {', '.join(FIELDS)} FROM {sql.quote_name(table)} ORDER BY block, release, group_key, measure, release_id"
        return [dict(zip(FIELDS, row, strict=True)) for row in connection.execute(query).fetchall()]

    return read_file(database, deadline, read)


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
