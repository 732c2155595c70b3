"""A PostgreSQL table as a source: one COPY in one read-only snapshot, into a file that only this user
can read and that is gone afterwards.
"""

from __future__ import annotations

import hashlib
import re
import select
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import duckdb

from dpflow.error_boundary import contain_errors
from dpflow.errors import DpflowError, InvalidInput, TableBusy, TableUnreadable, UnknownName
from dpflow.extras import require_extra
from dpflow.tables.access.spill import spill_folder
from dpflow.tables.loading.column_types import normalize_type
from dpflow.tables.loading.csv_files import CsvFormat, CsvSource
from dpflow.tables.loading.report import Rejects
from dpflow.tables.loading.sources import require_columns

#: What PostgreSQL calls types that DuckDB calls otherwise; an enum's values are texts.
_TYPES = {
    "character": "VARCHAR",
    "character varying": "VARCHAR",
    "text": "VARCHAR",
    "double precision": "DOUBLE",
    "real": "FLOAT",
    "time without time zone": "TIME",
    "timestamp without time zone": "TIMESTAMP",
    "timestamp with time zone": "TIMESTAMP WITH TIME ZONE",
}
#: Types whose values are equal exactly where their texts are; enums are, too. Of a padded one it is
#: the text that the server compares, without its blanks.
_SAME_AS_TEXT = {
    *("text", "varchar", "bpchar", "name", "char", "uuid", "bool", "int2", "int4", "int8", "oid"),
    *("date", "time", "timestamp", "timestamptz", "bytea", "json", "xml"),
}
# A domain is what is below it. Servers before version 12 have no other collations than deterministic ones.
_COLUMNS = """
WITH RECURSIVE below(type, base) AS (
  SELECT oid, oid FROM pg_type
  UNION ALL SELECT below.type, t.typbasetype FROM below JOIN pg_type t ON t.oid = below.base WHERE t.typtype = 'd')
SELECT a.attname, format_type(a.atttypid, a.atttypmod), b.typtype = 'e',
       t.typnamespace = (SELECT oid FROM pg_namespace WHERE nspname = 'pg_catalog'), b.typname,
       coalesce(CAST(to_jsonb(c) ->> 'collisdeterministic' AS boolean), true)
FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
JOIN below ON below.type = t.oid JOIN pg_type b ON b.oid = below.base AND b.typtype <> 'd'
LEFT JOIN pg_collation c ON c.oid = a.attcollation
WHERE a.attrelid = to_regclass(%s) AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
"""
_CHUNK = 1 << 20


class _CopiedSource(CsvSource):
    """The file that COPY wrote; the server says how many rows are in it."""

    copied_rows: int = 0
    digest: str = ""

    def fingerprint(self) -> str:
        # Taken while the rows came: reading them once more would take a third of the time.
        return self.digest

    def _count_lines(self, connection: duckdb.DuckDBPyConnection) -> int:
        # Values may hold line ends here: a program wrote the quotes.
        return self.copied_rows

    def count_rejects(
        self, connection: duckdb.DuckDBPyConnection, rows: int
    ) -> tuple[int, tuple[Rejects, ...]]:
        # The file and its lines are gone when somebody reads of them.
        rejected, rejects = super().count_rejects(connection, rows)
        return rejected, tuple(replace(one, source=self.name, lines=()) for one in rejects)

    def _find_lines(self, file: Path, texts: Mapping[str, set[str]]) -> dict[str, list[int]]:
        return {column: [] for column in texts}


@contextmanager
def copy_postgres(
    url: str,
    table: str,
    columns: Mapping[str, str] | None = None,
    *,
    by: str | None = None,
    blocks: Sequence[str] = (),
    beside: Path | None = None,
) -> Iterator[CsvSource]:
    """The rows of a table, or of some blocks of it, as they were at one moment.

    Args:
        url: such as ``postgresql://user@host/name``. A password is better in PGPASSWORD or
            ``~/.pgpass``.
        table: the table or view, such as ``public.visits``.
        columns: declared types by name; by default the table's own, as far as a declaration can
            use them.
        by: with ``blocks``, the column whose values are blocks: only their rows are copied.
        beside: the folder of the private file, where the rows are until they are loaded (`spill_folder`).

    Raises:
        InvalidInput: no such table or column, or no type that can be used.
        TableBusy: the server cannot be reached, or was lost; nothing was loaded.
        TableUnreadable: the server refuses to hand out the rows.
        MissingExtra: psycopg is not installed.
    """
    with require_extra("postgres", "a PostgreSQL source"):
        import psycopg

    # Up to the last @, which a password may hold by mistake: all before it stays untold.
    place = re.sub(r"^(\w+)(?:\+psycopg)?://(?:.*@)?", r"\1://", url).partition("?")[0]
    what = f"{place} (table {table!r})"

    def describe_error(error: Exception) -> DpflowError:
        # Its own text may quote rows, and the URL.
        if isinstance(error, psycopg.OperationalError):
            return TableBusy(
                f"{what}: the server cannot be reached, or was lost meanwhile; nothing was loaded, so try again"
            )
        return TableUnreadable(
            f"{what} cannot be copied ({type(error).__name__}); the error's own text is withheld; check that this "
            f"login may read the table, all rows of it, and that blocks are values of their column"
        )

    with spill_folder(beside) as folder:
        file = folder / "rows.csv"

        def copy_rows() -> tuple[_CopiedColumns, int, str]:
            with psycopg.connect(re.sub(r"^(\w+)\+psycopg://", r"\1://", url)) as connection:
                connection.read_only = True
                connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
                connection.execute("SET LOCAL TimeZone = 'UTC'")
                connection.execute("SET LOCAL DateStyle = 'ISO'")
                # Below 1, which a login may have, the server rounds floating-point numbers; before version
                # 12 it did below 3.
                connection.execute("SET LOCAL extra_float_digits = 3")
                # Where a policy hides rows of this login, an error instead of the rest of them.
                connection.execute("SET LOCAL row_security = off")
                chosen = _choose_columns(connection, what, table, columns)
                if by is not None:
                    require_columns({by: ""}, list(chosen.types), what)
                return chosen, *_copy(connection, file, table, chosen, by, blocks)

        chosen, rows, digest = contain_errors(copy_rows, describe_error)
        # Only quoted texts are empty: what is missing has no quotes.
        source = _CopiedSource([file], chosen.types, CsvFormat(quoted_missing=False))
        source.copied_rows, source.digest, source.name = rows, digest, what
        source.canonical_columns, source.ignored_columns = chosen.canonical, chosen.ignored
        yield source


@dataclass(frozen=True)
class _CopiedColumns:
    """Which columns of a server's table are copied.

    Attributes:
        types: their types in DuckDB's words.
        canonical: those of one of the server's own types: what it writes of their values is known.
        padded: those that end in blanks which the server does not compare.
        ignored: the table's other columns.
    """

    types: dict[str, str]
    canonical: frozenset[str]
    padded: frozenset[str]
    ignored: tuple[str, ...]


def _choose_columns(
    connection: Any, what: str, table: str, columns: Mapping[str, str] | None
) -> _CopiedColumns:
    """The declared columns, or all whose types a declaration can use."""
    stored = connection.execute(_COLUMNS, [table]).fetchall()
    if not stored:
        raise InvalidInput(
            f"{what}: there is no such table for this login; write it as schema.table, and quote names with capitals"
        )
    types, own_types, other_equality = {}, {}, {}
    for name, kind, is_enum, built_in, base, deterministic in stored:
        if not deterministic:
            other_equality[name] = "has a nondeterministic collation"
        elif not is_enum and base not in _SAME_AS_TEXT:
            other_equality[name] = f"is of the type {kind}"
        # Without the length of a text; a numeric keeps its digits.
        plain = re.sub(r"\([^)]*\)", "", kind)
        text = "VARCHAR" if is_enum else _TYPES.get(plain, kind.replace("numeric(", "decimal("))
        with suppress(InvalidInput):
            types[name] = normalize_type(name, text)
            if built_in:
                own_types[name] = types[name]
            if types[name] == "VARCHAR" and name in other_equality:
                del types[name]
    names = [name for name, *_ in stored]
    if columns:
        require_columns(columns, names, what)
        types = dict(columns)
    for name, kind in types.items():
        if kind == "VARCHAR" and name in other_equality:
            raise InvalidInput(
                f"{what}: column {name!r} {other_equality[name]}, which takes different texts for equal, and dpflow "
                f"compares texts as bytes; load a view that has one text for each value"
            )
    if not types:
        raise InvalidInput(
            f"{what} has no column whose type a declaration can use; name types with columns"
        )
    lower = [name.casefold() for name in types]
    odd = [n for n in types if lower.count(n.casefold()) > 1 or {"\n", "\r"} & set(n)]
    if odd:
        raise InvalidInput(
            f"{what} has the columns {', '.join(map(repr, odd))}; in a private file names differ by more than capitals "
            f"and have no line ends, so name other columns, or load a view that renames these"
        )
    canonical = frozenset(n for n, kind in types.items() if own_types.get(n) == kind)
    padded = frozenset(name for name, *_, base, _ in stored if base == "bpchar")
    return _CopiedColumns(types, canonical, padded, tuple(n for n in names if n not in types))


def _copy(
    connection: Any,
    file: Path,
    table: str,
    chosen: _CopiedColumns,
    by: str | None,
    blocks: Sequence[str],
) -> tuple[int, str]:
    """Write the rows into the file; how many the server says there are, and their digest."""
    from psycopg import sql

    digest = hashlib.sha256()

    parts = [sql.Identifier(part) for part in _split_table(connection, table)]
    # As text, a padded value is what the server compares.
    outputs = [
        sql.SQL("CAST({0} AS text) AS {0}" if name in chosen.padded else "{0}").format(
            sql.Identifier(name)
        )
        for name in chosen.types
    ]
    query = sql.SQL("SELECT {} FROM {}").format(
        sql.SQL(", ").join(outputs), sql.SQL(".").join(parts)
    )
    if by is not None and blocks:
        # Literals take the column's own type, so that an index on it is used.
        query += sql.SQL(" WHERE {} IN ({})").format(
            sql.Identifier(by), sql.SQL(", ").join(map(sql.Literal, blocks))
        )
    statement = sql.SQL("COPY ({}) TO STDOUT (FORMAT csv, HEADER, ENCODING 'UTF8')").format(query)
    copied = _CopiedRows(connection.pgconn, statement.as_bytes(connection))
    with file.open("wb") as stream:
        for chunk in copied:
            stream.write(chunk)
            digest.update(chunk)
    return copied.rows, digest.hexdigest()


class _CopiedRows:
    """What COPY sends, in chunks of whole rows, taken from libpq: psycopg's own loop spends three times as
    long on each row, and most of a load's time was that.

    Attributes:
        rows: how many the server says it sent; known at the end.
    """

    rows: int = 0

    def __init__(self, server: Any, statement: bytes) -> None:
        self._server, self._statement = server, statement

    def __iter__(self) -> Iterator[bytearray]:
        from psycopg.pq import ExecStatus

        self._server.send_query(self._statement)
        # A long list of blocks is not sent at once, and the server says nothing before it has all.
        while self._server.flush():
            readable, _, _ = select.select([self._server.socket], [self._server.socket], [])
            if readable:
                self._server.consume_input()
        self._read_result(ExecStatus.COPY_OUT)
        receive, chunk = self._server.get_copy_data, bytearray()
        while True:
            size, row = receive(1)
            if size > 0:
                chunk += row
                if len(chunk) >= _CHUNK:
                    yield chunk
                    chunk = bytearray()
            elif size == 0:
                self._wait()
            else:
                break
        yield chunk
        self.rows = int(self._read_result(ExecStatus.COMMAND_OK).command_tuples or 0)
        while self._server.get_result():
            pass

    def _read_result(self, status: int) -> Any:
        """What the server says; raises psycopg's error if it is anything else than this."""
        from psycopg.errors import error_from_result

        while self._server.is_busy():
            self._wait()
        result = self._server.get_result()
        if result.status != status:
            raise error_from_result(result)
        return result

    def _wait(self) -> None:
        # In Python, so that an interrupt ends it.
        select.select([self._server.socket], [], [])
        self._server.consume_input()


def _split_table(connection: Any, table: str) -> tuple[str, str]:
    """Schema and name, as the server understands them."""
    query = (
        "SELECT n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
        "WHERE c.oid = to_regclass(%s)"
    )
    found = connection.execute(query, [table]).fetchone()
    if found is None:
        raise InvalidInput(str(UnknownName("table called", table, ())))
    return found[0], found[1]
