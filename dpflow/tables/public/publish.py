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
from dpflow.errors import TableError, TableUnreadable
from dpflow.tables.access import sql
from dpflow.tables.public import distribution_macros
from dpflow.tables.public.named_tables import answer_ids, strip_latest
from dpflow.tables.public.public_file import check_file, read_file, write_file
from dpflow.tables.public.table_names import VIEW, has_table, require_table

_REQUIRED = {
    *("release_id", "release", "block", "mechanism", "group_key", "measure"),
    *("clipped", "only_a_bound", "epsilon", "delta"),
}

#: Columns of a published table: its contract with whoever reads it.
COLUMNS = tuple(
    (name, FIELD_KINDS.get(name, "VARCHAR") + (" NOT NULL" if name in _REQUIRED else ""))
    for name in FIELDS
)


#: The first columns of a table of synthetic rows; the others are the data's.
_MARKS = (("release_id", "VARCHAR NOT NULL"), ("block", "VARCHAR NOT NULL"))


def check_places(database: Path, places: Sequence[tuple[str, str]]) -> None:
    """Check, before they are charged, that releases can be published in a file, which need not exist.

    Args:
        places: for each release the table, and its name, after which the table of synthetic rows is called. Whether it has
            such rows is known once they are drawn, so the name has to be free.

    Raises `NotPublished` or `TableUnreadable`: nothing was charged.
    """
    outputs = {table.casefold() for table, _ in places}
    for _, release in places:
        if name_synthetic(release).casefold() in outputs:
            raise TableUnreadable(
                f"{name_synthetic(release)!r} would be the table of two things, the synthetic rows of {release!r} and results; "
                "name another table; nothing was charged now"
            )

    def check(connection: duckdb.DuckDBPyConnection) -> None:
        for table, release in dict.fromkeys(places):
            _require_output(connection, database, table)
            _require_synthetic(connection, database, release)

    check_file(database, check)


def publish(
    database: Path, table: str, release: PublishedRelease, *, deadline: float = 30.0
) -> None:
    """Copy a settled result into ``table`` of ``database``, and its synthetic rows into the table of their own; all are
    created if missing.

    The same release again changes nothing. A release without rows, such as one that selected no key,
    has the one row `NO_ROWS`. Readers of the file hold nothing up; see `write_file`.

    Raises:
        NotPublished: another process writes the file for ``deadline`` seconds, or its place is not
            writable; the release itself stands.
        TableUnreadable: the file is not DuckDB, or what has one of these names is another kind of table.
    """
    name, synthetic = sql.quote_name(table), release.result.synthetic

    def list_missing(connection: duckdb.DuckDBPyConnection) -> list[str]:
        _require_output(connection, database, table)
        tables = [table]
        if synthetic is not None:
            _require_synthetic(connection, database, release.release)
            beside = name_synthetic(release.release)
            tables += [beside] if synthetic.rows or not has_table(connection, beside) else []
        return [t for t in tables if not _has_release(connection, t, release.release_id)]

    def write(connection: duckdb.DuckDBPyConnection) -> bool:
        missing = list_missing(connection)
        if table in missing:
            columns = ", ".join(f"{column} {kind}" for column, kind in COLUMNS)
            connection.execute(f"CREATE TABLE IF NOT EXISTS {name} ({columns})")
            values = release.list_columns()
            _insert_rows(connection, name, COLUMNS, [values[column] for column in FIELDS])
        if synthetic is not None and name_synthetic(release.release) in missing:
            _insert_synthetic(connection, release, synthetic)
        if missing and release.mechanism == distribution_macros.MECHANISM:
            distribution_macros.create_macros(connection, table)
        return bool(missing)

    # A retry, which is most often one of a release that is there, copies no file.
    if not database.exists() or read_file(database, deadline, list_missing):
        write_file(database, deadline, write)


def name_synthetic(release: str) -> str:
    """The table of a release's synthetic rows, by the release's name."""
    return f"{release}_synthetic"


def _require_output(connection: duckdb.DuckDBPyConnection, database: Path, table: str) -> None:
    remedy = "name another table or file to publish in"
    require_table(connection, database, table, COLUMNS, remedy)


def _require_synthetic(connection: duckdb.DuckDBPyConnection, database: Path, release: str) -> None:
    remedy = f"synthetic rows of {release!r} would go there, so name another file to publish in, or the release otherwise"
    require_table(connection, database, name_synthetic(release), _MARKS, remedy)


def _has_release(connection: duckdb.DuckDBPyConnection, table: str, release_id: str) -> bool:
    query = f"SELECT 1 FROM {sql.quote_name(table)} WHERE release_id = ? LIMIT 1"
    return (
        has_table(connection, table)
        and connection.execute(query, [release_id]).fetchone() is not None
    )


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
    if found is None and connection.execute(VIEW, [name]).fetchone():
        raise TableError(
            f"{name} is a view whose rows name no release; name a table that dpflow publish writes, or a named answer"
        )
    return found or set()


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
    """Add a synthetic table's rows, marked with their release and block. Rows of earlier releases are NULL in columns that
    these did not have, as new rows are in columns of theirs.
    """
    name = sql.quote_name(name_synthetic(release.release))
    marks = ", ".join(f"{column} {kind}" for column, kind in _MARKS)
    connection.execute(f"CREATE TABLE IF NOT EXISTS {name} ({marks})")
    found = connection.execute(f"DESCRIBE {name}").fetchall()
    stored = {str(column).casefold(): str(kind) for column, kind, *_ in found}
    columns, taken = list(_MARKS), dict(_MARKS)
    values: list[Any] = [release.release_id, release.block]
    cells = list(zip(*table.rows, strict=True)) or [()] * len(table.columns)
    for (column, text), listed in zip(table.columns, cells, strict=True):
        # One that is called as a mark, or as another one in another case.
        while column.casefold() in taken:
            column += "_"
        # The kind of a decimal is the name of its type.
        kind = taken[column.casefold()] = _KINDS.get(text, text.upper())
        # What no double or BIGINT holds is given as text.
        as_text = kind == "HUGEINT" or kind.startswith("DECIMAL")
        values.append([*map(str, listed)] if as_text else list(listed))
        before = stored.get(column.casefold())
        quoted = sql.quote_name(column)
        if before is None:
            connection.execute(f"ALTER TABLE {name} ADD COLUMN {quoted} {kind}")
        elif before != kind:
            kind = _join_kinds(connection, name, quoted, (before, kind), values[-1])
            if kind != before:
                as_kind = f"CAST(CAST({quoted} AS VARCHAR) AS {kind})"
                connection.execute(f"ALTER TABLE {name} ALTER {quoted} TYPE {kind} USING {as_kind}")
        columns.append((column, kind))
    if table.rows:
        _insert_rows(connection, name, columns, values)


def _join_kinds(
    connection: duckdb.DuckDBPyConnection,
    table: str,
    column: str,
    kinds: tuple[str, str],
    values: Sequence[Any],
) -> str:
    """The first of a column's type, the new values' type and VARCHAR that holds what is in the column and the new values
    unchanged.
    """
    before, new = kinds

    def is_kept(kind: str, own: str, rows: str, parameters: Sequence[Any]) -> bool:
        there = f"TRY_CAST(CAST(v AS VARCHAR) AS {kind})"
        changed = f"v IS DISTINCT FROM TRY_CAST(CAST({there} AS VARCHAR) AS {own})"
        query = f"SELECT 1 FROM (SELECT {rows}) WHERE {changed} LIMIT 1"
        return connection.execute(query, parameters).fetchone() is None

    for kind in (before, new):
        if is_kept(kind, before, f"{column} AS v FROM {table}", []) and is_kept(
            kind, new, f"unnest(CAST(? AS {new}[])) AS v", [values]
        ):
            return kind
    return "VARCHAR"


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
