"""One load: all of a source's rows, or none, in one transaction of the private file.

The file keeps a book of its loads in the schema ``dpflow``: the same source again, for the same blocks, changes
nothing while its rows stand. So a load that was killed or is retried is run again as it was.
"""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import duckdb

from dpflow import fault_points
from dpflow.errors import InvalidInput, TableBusy, TableUnreadable
from dpflow.tables.access import isolated_database, sql
from dpflow.tables.access.spill import PREFIX, spill_folder
from dpflow.tables.loading.column_types import write_columns
from dpflow.tables.loading.report import LoadReport, Rejects
from dpflow.tables.loading.sources import LoadSource

#: The schema of what the file keeps about itself; no declaration names it.
OWN_SCHEMA = "dpflow"
_BOOK = f"{OWN_SCHEMA}.loads"
_STAGED = "temp.main.staged_rows"


class TableUnfit(TableUnreadable):
    """A load failed, and no row is why: its files, or what stands in the private file, must be mended first."""


def load_rows(
    source: LoadSource,
    database: Path,
    table: str,
    *,
    by: str | None = None,
    blocks: Sequence[str] = (),
    replace: bool = False,
    max_rejects: int = 0,
    tell: Callable[[LoadReport], None] | None = None,
) -> LoadReport:
    """Load a source into a table of a private DuckDB file, whole or not at all.

    Args:
        source: rows with declared types (`dpflow.tables.loading.sources`).
        database: the file, made if it is missing, readable by this user only.
        table: the table in it, made if it is missing.
        by: a column whose values are blocks. The source holds whole blocks, which are added to the
            table; without it, the source is the whole table.
        blocks: with ``by``, the blocks that the source should hold; rows of others are rejected.
        replace: rows that stand there, of these blocks or of the whole table, are replaced.
        max_rejects: how many rows may be left out because a value is not of its type.
        tell: is told the numbers, before anything is refused. They are exact aggregates of private
            rows: for the owner's eyes, never for a log.

    Raises:
        InvalidInput: arguments that do not fit the source or the table, or a file that cannot be written; nothing was read.
        TableBusy: other processes have the file open for `dpflow.tables.access.isolated_database.MAX_WAIT` seconds,
            a source's file was written meanwhile, or the file cannot grow, as on a full disk or for want of memory; nothing
            was loaded.
        TableUnreadable: too many rows were rejected, or a source that cannot be read (`TableUnfit` where no row is why);
            nothing was loaded.
    """
    if blocks and by is None:
        raise InvalidInput("blocks are values of a column; name it with by")
    if by is not None and by not in source.columns:
        raise InvalidInput(
            f"there is no column {by!r} among those that are loaded; declare its type, too"
        )
    digest = source.fingerprint()
    what = f"{database} (table {table!r})"

    def load_whole() -> LoadReport:
        try:
            create_database(database)
            with _open_for_owner(database) as connection:
                load = _Load(connection, source, table, by, tuple(map(str, blocks)), what)
                return load.run(digest, replace, max_rejects, tell or (lambda report: None))
        # Beyond the memory that it may take, DuckDB spills into the space that a disk has.
        except duckdb.OutOfMemoryException as error:
            kind = type(error).__name__
        except duckdb.Error as error:
            kind, text = type(error).__name__, str(error)
            is_ended = isinstance(error, duckdb.TransactionException | duckdb.FatalException)
            # A key that stands twice may be found at the commit.
            if not (is_ended or _is_of_no_row(error)) or (is_ended and "onstraint" in text):
                raise
            # DuckDB has no class for a full disk, and says nothing of rows in these.
            if not is_ended and not any(words in text for words in ("Could not write", PREFIX)):
                raise TableUnfit(
                    f"{what} or {source.name} cannot be read ({kind}); the error's own text is withheld; give whole files "
                    f"that may be read, and a DuckDB file of this version with a table of that name, no view, and the "
                    f"schema {OWN_SCHEMA} as it was made"
                ) from None
        raise TableBusy(
            f"{what} could not be written ({kind}), as on a full disk or for want of memory, and nothing was loaded; free space, "
            f"or raise DPFLOW_MEMORY_LIMIT, and run it again"
        )

    return isolated_database.scrub_errors(load_whole, f"{what} or {source.name}")


def _is_of_no_row(error: duckdb.Error) -> bool:
    """Whether an error is of a file, or of what else stands in the database, whatever rows hold."""
    kinds = duckdb.IOException | duckdb.CatalogException | duckdb.BinderException
    # Those of a file's format and checksums alone have no class of their own.
    is_known = isinstance(error, kinds) or type(error) is duckdb.Error
    return is_known and "Could not set lock" not in str(error)


class _Load:
    """One transaction."""

    def __init__(
        self,
        connection: duckdb.DuckDBPyConnection,
        source: LoadSource,
        table: str,
        by: str | None,
        blocks: tuple[str, ...],
        what: str,
    ) -> None:
        self._connection, self._source, self._what = connection, source, what
        self._table, self._by, self._blocks = table, by, blocks
        self._target = sql.quote_path("main", table)
        self._block = "" if by is None else f"CAST({sql.quote_name(by)} AS VARCHAR)"

    def run(
        self, digest: str, replace: bool, max_rejects: int, tell: Callable[[LoadReport], None]
    ) -> LoadReport:
        """Load, or change nothing."""
        connection, source = self._connection, self._source
        connection.execute("BEGIN")
        self._make_tables()
        if not replace and self._still_stands(digest):
            connection.execute("ROLLBACK")
            report = LoadReport(self._table, loaded=False, repeated=True)
            tell(report)
            return report
        if self._by is None:
            self._make_room(replace)
        with source.open_query(connection) as query:
            rows, held, misplaced = self._insert(query, replace)
            rejected, rejects = source.count_rejects(
                connection, rows + sum(r.rows for r in misplaced)
            )
        rejected += sum(reject.rows for reject in misplaced)
        fits = rejected <= max_rejects
        report = LoadReport(
            self._table,
            loaded=fits,
            rows=rows,
            rejected=rejected,
            rejects=(*rejects, *misplaced),
            ignored_columns=source.ignored_columns,
        )
        tell(report)
        if not fits:
            raise TableUnreadable(
                f"more rows of {source.name} were rejected than may be, so nothing was loaded; correct them, "
                f"or say how many may be left out (max_rejects); dpflow load --rejects FILE lists their lines"
            )
        self._write_book(digest, held, rows)
        fault_points.pass_point("load.before-commit")
        connection.execute("COMMIT")
        fault_points.pass_point("load.after-commit")
        return report

    def _make_tables(self) -> None:
        """The book, and the table with the declared types; raises `InvalidInput` if it has others."""
        columns = self._source.columns
        self._connection.execute(f"CREATE SCHEMA IF NOT EXISTS {OWN_SCHEMA}")
        self._connection.execute(
            f"CREATE TABLE IF NOT EXISTS {_BOOK} (relation VARCHAR, by_column VARCHAR, asked VARCHAR[], "
            f"blocks VARCHAR[], rows BIGINT, source VARCHAR, sha256 VARCHAR, loaded_at TIMESTAMP WITH TIME ZONE)"
        )
        listed = ", ".join(f"{sql.quote_name(name)} {kind}" for name, kind in columns.items())
        self._connection.execute(f"CREATE TABLE IF NOT EXISTS {self._target} ({listed})")
        existing = stored_columns(self._connection, self._table)
        if {n.casefold(): k for n, k in existing.items()} != {
            n.casefold(): k for n, k in columns.items()
        }:
            raise InvalidInput(
                f"{self._what} has the columns {write_columns(existing)}, and others are declared: "
                f"{write_columns(columns)}; declare the same, or load into another table"
            )

    def _still_stands(self, digest: str) -> bool:
        """Whether a load of the same source for the same blocks is the last one of them, and nobody took its rows out."""
        found = self._connection.execute(
            f"SELECT blocks, rows FROM {_BOOK} WHERE relation = lower(?) AND sha256 = ? "
            f"AND by_column IS NOT DISTINCT FROM ? AND asked = CAST(? AS VARCHAR[])",
            [self._table, digest, self._by, sorted(self._blocks)],
        ).fetchone()
        if found is None:
            return False
        blocks, rows = found
        count = f"SELECT count(*) FROM {self._target}"
        if self._by is None:
            there = self._connection.execute(count)
        else:
            where = f"WHERE list_contains(CAST(? AS VARCHAR[]), {self._block})"
            there = self._connection.execute(f"{count} {where}", [blocks])
        return there.fetchone() == (rows,)

    def _make_room(self, replace: bool) -> None:
        """A source that is the whole table needs an empty one."""
        if replace:
            self._connection.execute(f"DELETE FROM {self._target}")
        elif self._connection.execute(f"SELECT 1 FROM {self._target} LIMIT 1").fetchone():
            raise InvalidInput(
                f"{self._what} has rows, and this source is another than theirs; say replace to put it in their "
                f"place, or by COLUMN to add its blocks"
            )

    def _insert(self, query: str, replace: bool) -> tuple[int, list[str], tuple[Rejects, ...]]:
        """Insert the rows; how many, the blocks that are now as the source has them, and the rows that are of no
        block, or of one that was not asked for.
        """
        listed = ", ".join(map(sql.quote_name, self._source.columns))
        insert = f"INSERT INTO {self._target} ({listed})"
        if self._by is None:
            return self._count(f"{insert} {query}"), [], ()
        # Set aside first: which blocks there are says which stand there already.
        self._connection.execute(f"CREATE TEMP TABLE staged_rows AS {query}")
        asked = f" AND {self._block} NOT IN ({', '.join('?' * len(self._blocks))})"
        misplaced = [
            Rejects(self._source.name, self._by, kind, count)
            for kind, condition, values in (
                ("no block", f"{self._block} IS NULL", []),
                ("another block", f"{self._block} IS NOT NULL{asked}", list(self._blocks)),
            )
            if (kind == "no block" or self._blocks)
            and (count := self._count(f"DELETE FROM {_STAGED} WHERE {condition}", values))
        ]
        there = f"{self._block} IN (SELECT {self._block} FROM {_STAGED})"
        if replace:
            # A block that was asked for and has no rows now is empty.
            marks = ", ".join("?" * len(self._blocks))
            replaced = f"{self._block} IN ({marks})" if self._blocks else there
            self._connection.execute(
                f"DELETE FROM {self._target} WHERE {replaced}", list(self._blocks)
            )
        elif self._connection.execute(
            f"SELECT 1 FROM {self._target} WHERE {there} LIMIT 1"
        ).fetchone():
            raise InvalidInput(
                f"{self._what} has rows of blocks that {self._source.name} holds, too; say replace to put it in "
                f"their place"
            )
        rows = self._count(f"{insert} SELECT {listed} FROM {_STAGED}")
        held = self._connection.execute(f"SELECT DISTINCT {self._block} FROM {_STAGED}").fetchall()
        blocks = sorted({*self._blocks, *(block for (block,) in held)})
        return rows, blocks, tuple(misplaced)

    def _count(self, statement: str, values: Sequence[str] = ()) -> int:
        """Run a statement that changes rows; how many it changed."""
        (rows,) = self._connection.execute(statement, list(values)).fetchone() or (0,)
        return int(rows)

    def _write_book(self, digest: str, blocks: list[str], rows: int) -> None:
        """Enter this load, and take out those whose rows may stand no more as they were loaded."""
        stale = "by_column IS DISTINCT FROM ? OR ? IS NULL OR list_has_any(blocks, CAST(? AS VARCHAR[]))"
        self._connection.execute(
            f"DELETE FROM {_BOOK} WHERE relation = lower(?) AND ({stale})",
            [self._table, self._by, self._by, blocks],
        )
        self._connection.execute(
            f"INSERT INTO {_BOOK} VALUES (lower(?), ?, ?, ?, ?, ?, ?, ?)",
            [
                self._table,
                self._by,
                sorted(self._blocks),
                blocks,
                rows,
                self._source.name,
                digest,
                dt.datetime.now(dt.UTC),
            ],
        )


def stored_columns(connection: duckdb.DuckDBPyConnection, table: str) -> dict[str, str]:
    """Names and types of a table of the file, in their order; empty if there is none."""
    query = (
        "SELECT column_name, data_type FROM duckdb_columns() WHERE database_name = current_database() "
        "AND schema_name = 'main' AND lower(table_name) = lower(?) ORDER BY column_index"
    )
    return dict(connection.execute(query, [table]).fetchall())


def find_columns(database: Path, table: str) -> dict[str, str]:
    """Names and types of a table that a load could add to; empty if file or table are missing.

    Raises:
        TableBusy: another process writes the file.
        TableUnreadable: it is no DuckDB file of this version.
    """
    if not database.exists():
        return {}

    def read_columns() -> dict[str, str]:
        opened = isolated_database.wait_for_file(
            lambda: duckdb.connect(str(database), read_only=True)
        )
        with opened as connection:
            return stored_columns(connection, table)

    return isolated_database.scrub_errors(read_columns, str(database))


@contextmanager
def _open_for_owner(database: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    """The file, to be written; DuckDB spills into a folder beside it (`spill_folder`)."""
    with spill_folder(database.absolute().parent) as spill:
        settings = isolated_database.session_settings(spill)
        opened = isolated_database.wait_for_file(
            lambda: duckdb.connect(str(database), config=settings)
        )
        with opened as connection:
            connection.execute("SET TimeZone = 'UTC'")
            isolated_database.hide_progress_bar(connection)
            yield connection


def create_database(database: Path) -> None:
    """Put an empty private file there in one step, unless there is one: a kill while DuckDB writes its first pages would
    leave one that nothing can open. Raises `InvalidInput` if the place, or the file that is there, cannot be written.
    """
    is_there = database.exists()
    for place in (database.parent, *([database] if is_there else [])):
        if not os.access(place, os.W_OK):
            raise InvalidInput(
                f"{place} cannot be written; make the folder, or name a file in one of yours"
            )
    if is_there:
        return
    with spill_folder(database.absolute().parent) as folder:
        part = folder / database.name
        duckdb.connect(str(part)).close()
        # Before the move, so that it never stands there readable for others.
        part.chmod(0o600)
        # Another process may be first.
        with suppress(FileExistsError):
            os.link(part, database)
