"""A DuckDB file opened read-only, for one call, with nothing else in reach; and errors that quote
no row.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import duckdb

from dpflow.error_boundary import contain_errors, describe_failure
from dpflow.errors import (
    DpflowError,
    InvalidInput,
    PlanRefused,
    TableBusy,
    TableError,
    TableInterrupted,
    TableUnreadable,
)
from dpflow.extras import require_extra
from dpflow.late_numpy import NDArray, np
from dpflow.tables.access import owner_views, sql
from dpflow.tables.access.spill import PREFIX, spill_folder

T = TypeVar("T")

#: Name of the attached database; everything else in the connection is in memory.
PRIVATE = "private"

#: How names of our temporary tables and views begin.
TEMPORARY = ("keys", "kept", "sums", "cut_", "contract_rows")

#: Bytes of a DuckDB file before its first block.
_HEADERS = 3 * 4096


def memory_limit() -> str:
    """DuckDB's memory limit: ``DPFLOW_MEMORY_LIMIT``, by default 3GB. Raises `InvalidInput` if it
    is no amount.
    """
    limit = os.environ.get("DPFLOW_MEMORY_LIMIT", "3GB")
    if not re.fullmatch(r"[0-9]+(\.[0-9]+)? ?[KMGT]i?B", limit):
        raise InvalidInput(
            f"DPFLOW_MEMORY_LIMIT is {limit!r}; write an amount such as 2GB or 512MB"
        )
    return limit


def memory_bytes() -> int:
    """The memory limit as a number."""
    limit = memory_limit()
    unit = limit.lstrip("0123456789. ")
    # DuckDB's KB is 1000 bytes, its KiB 1024.
    return int(
        float(limit.removesuffix(unit))
        * (1024 if "i" in unit else 1000) ** (1 + "KMGT".index(unit[0]))
    )


#: What usually stands behind an error's kind.
_HINTS = {
    duckdb.CatalogException: "the file has no such table or column",
    duckdb.IOException: "give whole files that may be read, and of DuckDB one of this version",
    duckdb.OutOfMemoryException: "raise DPFLOW_MEMORY_LIMIT, or read fewer blocks",
    MemoryError: "read fewer blocks, or use a machine with more memory",
}


def scrub_errors(action: Callable[[], T], what: str) -> T:
    """Run an action; an error of DuckDB or for want of memory, whose text may quote rows, becomes a
    fixed sentence (`dpflow.error_boundary`).

    Raises:
        TableBusy: somebody holds the file for writing.
        TableInterrupted: another thread cancelled the query.
        TableUnreadable: anything else that DuckDB objects to.
    """

    def describe_error(error: Exception) -> DpflowError:
        # DuckDB has no class for another process's lock; for this very process's it has one.
        locked = isinstance(error, duckdb.IOException) and "Could not set lock" in str(error)
        if locked or isinstance(error, duckdb.ResourceInUseException):
            return TableBusy(
                f"{what} is being written by another process or connection; try again when it has finished"
            )
        if isinstance(error, duckdb.InterruptException):
            return TableInterrupted(f"the query of {what} was cancelled; run it again")
        if not isinstance(error, duckdb.Error | MemoryError):
            return describe_failure(error)
        # Errors of a file's format and checksums alone have no class of their own.
        hint = (
            "; give an undamaged DuckDB file of this version" if type(error) is duckdb.Error else ""
        )
        for kind, words in _HINTS.items():
            if isinstance(error, kind):
                hint = f"; {words}"
        if isinstance(error, duckdb.IOException) and PREFIX in str(error):
            hint = "; the folder it spills into is full or was removed, so free disk space or run it again"
        return TableUnreadable(
            f"{what} cannot be read ({type(error).__name__}); the error's own text is withheld{hint}"
        )

    return contain_errors(action, describe_error)


#: Seconds that a file's other user is waited for.
MAX_WAIT = 30.0


def wait_for_file(action: Callable[[], T]) -> T:
    """What an action returns that opens a file; it is tried again while another process holds the file,
    for `MAX_WAIT` seconds. Raises what DuckDB raises.
    """
    end, pause = time.monotonic() + MAX_WAIT, 0.02
    while True:
        try:
            return action()
        except duckdb.IOException as error:
            if "Could not set lock" not in str(error) or time.monotonic() + pause > end:
                raise
        time.sleep(pause)
        pause = min(pause * 1.5, 0.5)


#: Seconds after which a signal is looked for.
_TURN = 0.2


@dataclass(frozen=True)
class Relation:
    """A table or view of the file: its quoted name, and its columns by name."""

    quoted: str
    fields: dict[str, sql.Field]


class Connection:
    """A connection whose errors are scrubbed. ``what`` names the table in messages.

    Args:
        raw: DuckDB's own.
        queries: runs the main thread's queries; see `_run_query`.
        file: an open handle of the file.
    """

    def __init__(
        self,
        raw: duckdb.DuckDBPyConnection,
        what: str,
        queries: ThreadPoolExecutor,
        file: int | None = None,
    ) -> None:
        self._raw, self._what, self._queries, self._file = raw, what, queries, file
        self._found: dict[tuple[str, bool], Relation] = {}
        self._sizes: dict[str, int | None] = {}
        #: What was checked against the catalogue of this file as it is open.
        self.checked: list[Any] = []

    @cached_property
    def _rewriter(self) -> owner_views.ViewRewriter:
        return owner_views.ViewRewriter(self, PRIVATE)

    def open_session(self, what: str) -> Connection:
        """Another session of the open file, with temporary tables of its own."""
        session = Connection(self._raw.cursor(), what, self._queries, self._file)
        # What the file says is the same in both.
        session._found, session._sizes, session.checked = self._found, self._sizes, self.checked
        return session

    def close(self) -> None:
        """End the session."""
        self._raw.close()

    def scrub_errors(self, action: Callable[[], T]) -> T:
        """Work on rows that were read: for want of memory it fails as a query does."""
        return scrub_errors(action, self._what)

    def interrupt(self) -> None:
        """Stop the query that another thread runs in here; it raises `TableInterrupted`."""
        with suppress(duckdb.Error):
            self._raw.interrupt()

    def lend(self, wrap: Callable[[duckdb.DuckDBPyConnection], T]) -> T:
        """The connection itself, wrapped for a library that asks in it; whoever takes it scrubs its
        errors.
        """
        return wrap(self._raw)

    def require_unchanged(self) -> None:
        """Raise `TableBusy` where what was read may be of two states: never of a file that is open."""

    def execute(self, query: str, parameters: list[Any] | None = None) -> None:
        """Execute without looking at a result."""
        self._run_query(lambda: self._raw.execute(query, parameters))

    def fetch_rows(self, query: str, parameters: list[Any] | None = None) -> list[tuple[Any, ...]]:
        """All rows as Python values."""
        return self._run_query(lambda: self._raw.execute(query, parameters).fetchall())

    def fetch_arrays(self, query: str, parameters: list[Any] | None = None) -> dict[str, Any]:
        """All rows as one numpy array per output column."""
        return self._run_query(lambda: self._raw.execute(query, parameters).fetchnumpy())

    def _run_query(self, action: Callable[[], T]) -> T:
        """What a query returns. A signal ends it at once: what its handler raises, such as
        `KeyboardInterrupt`, passes as it is.

        Handlers run in the main thread between two steps of Python, and DuckDB takes none until it
        has finished. So the query runs in a thread that is kept for this, which the main thread waits for,
        in short turns: where a library registered a handler that restarts system calls, as polars does,
        a signal does not end a wait.
        """
        if threading.current_thread() is not threading.main_thread():
            return scrub_errors(action, self._what)
        try:
            outcome = self._queries.submit(action)
        except RuntimeError:
            # The interpreter is about to end, and starts no thread any more.
            return scrub_errors(action, self._what)
        try:
            while not outcome.done():
                wait([outcome], timeout=_TURN)
        finally:
            # The signal may come before DuckDB has begun, which forgets an earlier interrupt.
            while not outcome.done():
                self.interrupt()
                wait([outcome], timeout=0.02)
        return scrub_errors(outcome.result, self._what)

    def digest_blocks(self, blocks: Sequence[int]) -> list[bytes]:
        """The SHA-256 of each of these blocks of the file, which are read whole, or `TableUnreadable`."""
        if not blocks:
            return []
        query = "SELECT block_size FROM pragma_database_size() WHERE database_name = ?"
        size = self.fetch_rows(query, [PRIVATE])[0][0]
        digests = []
        if self._file is not None:
            with suppress(OSError):
                for block in blocks:
                    content = os.pread(self._file, size, _HEADERS + size * block)
                    if len(content) == size:
                        digests.append(hashlib.sha256(content).digest())
        if len(digests) < len(blocks):
            raise TableUnreadable(f"the blocks of {self._what} cannot be looked at")
        return digests

    def find_relation(self, name: str, trusted: bool = False) -> Relation:
        """The table or view that DuckDB means by this name, or `TableUnreadable` with close
        matches.

        Nothing else can be read. A plain name is bound at once; listing the catalog takes DuckDB
        several milliseconds.

        Args:
            trusted: somebody answers for the SQL of a view or of computed columns, so it runs as
                it is. All other SQL is rewritten, or refused with `PlanRefused`
                (`dpflow.tables.access.owner_views`).
        """
        if (name, trusted) not in self._found:
            parts = name.split(".")
            relation = None
            # A name with points or quotes of its own is looked for in the listing.
            if len(parts) <= 2 and all(
                re.fullmatch(r"[A-Za-z_]\w*", part, re.ASCII) for part in parts
            ):
                parts = parts if len(parts) == 2 else ["main", *parts]
                with suppress(TableUnreadable):
                    relation = self._bind_relation(parts)
            if relation is None:
                names = self.list_relations()
                kind = f"relation in the file of {self._what} called"
                parts = names[sql.match_name(name, names, kind)]
                relation = self._bind_relation(parts)
            if trusted:
                if not self._rewriter.is_stored(*parts):
                    self._check_names(name, relation)
            elif query := self._rewriter.rewrite(name, *parts):
                relation = Relation(f"({query})", self.bind_fields(f"({query})"))
            self._found[name, trusted] = self._with_collations(relation)
        return self._found[name, trusted]

    def _with_collations(self, relation: Relation) -> Relation:
        """The relation with the collations of its texts, which types in Python do not say. Plans only:
        reads no row.
        """
        texts = [name for name, field in relation.fields.items() if field.kind == "varchar"]
        if not texts:
            return relation
        query = f"SELECT {', '.join(map(sql.quote_name, texts))} FROM {relation.quoted}"
        plan = json.loads(self.fetch_rows("SELECT json_serialize_plan(?)", [query])[0][0])
        # What DuckDB cannot write down may compare in any way.
        outputs = [] if plan["error"] else plan["plans"][0].get("expressions", [])
        types = [output["return_type"]["type_info"] or {} for output in outputs]
        collations = [str(info.get("collation", "")) for info in types]
        if len(collations) != len(texts):
            collations = ["(unknown)"] * len(texts)
        fields = dict(relation.fields)
        for name, collation in zip(texts, collations, strict=True):
            fields[name] = replace(fields[name], collation=collation)
        return replace(relation, fields=fields)

    def _check_names(self, name: str, relation: Relation) -> None:
        """Refuse SQL that would read a temporary table of ours instead of its own: DuckDB looks
        for those first.
        """
        for table, *_ in self.list_sources(relation) or ():
            if table.startswith(TEMPORARY):
                raise PlanRefused(
                    f"relation {name!r} reads a table called {table!r}, as tables of dpflow's own are "
                    f"called; give it another name"
                )

    def is_table(self, name: str) -> bool:
        """Whether a name is not that of a view, whose SQL runs when it is read. Binds only: reads no row."""
        # DuckDB says of a view what it reads.
        full = sql.quote_path(PRIVATE, name)
        sources = self.list_sources(Relation(full, {})) or []
        parts = [tuple(part.replace('""', '"') for part in source) for source in sources]
        return parts == [(name.casefold(), PRIVATE)]

    def list_sources(self, relation: Relation) -> list[tuple[str, ...]] | None:
        """Tables that a relation reads, through views and macros, as names folded to one case, the
        table's first; None where DuckDB cannot tell. Binds only: reads no row.
        """
        query = f"SELECT * FROM {relation.quoted}"
        try:
            names = self.scrub_errors(lambda: self._raw.get_table_names(query, qualified=True))
        except TableError:
            return None
        sources = []
        for name in names:
            # DuckDB writes what the author calls the table behind it.
            part = r'(?:"(?:[^"]|"")*"|[^\s".]+)'
            match = re.fullmatch(rf"({part}(?:\.{part})*)(?: as {part})?", name.casefold())
            if match is None:
                return None
            parts = re.findall(part, match[1])
            sources.append(tuple(one.strip('"') for one in reversed(parts)))
        return sources

    def list_below(self, name: str) -> list[str]:
        """The relations of the file that a view may read, none of a table. Binds only: reads no row.

        DuckDB says their last names, so those of that name in all schemas count, and all relations where it cannot tell.
        """
        plain = name.split(".") if re.fullmatch(r"\w+(\.\w+)?", name, re.ASCII) else None
        names = {} if plain else self.list_relations()
        parts = plain or names[sql.match_name(name, names, "relation called")]
        full = (PRIVATE, *(["main"] if len(parts) == 1 else []), *parts)
        sources = self.list_sources(Relation(sql.quote_path(*full), {}))
        if sources == [tuple(part.casefold() for part in reversed(full))]:
            return []
        names = names or self.list_relations()
        if sources is None:
            return list(names)
        last = {source[0].replace('""', '"') for source in sources}
        return [one for one, path in names.items() if path[-1].casefold() in last]

    def count_stored_rows(self, relation: Relation) -> int | None:
        """How many rows a table has, from its storage; None for a view."""
        if relation.quoted not in self._sizes:
            self._sizes[relation.quoted] = self._count_stored_rows(relation)
        return self._sizes[relation.quoted]

    def _count_stored_rows(self, relation: Relation) -> int | None:
        # A declared column of that name, of a table or a view, hides the storage's.
        if "rowid" in map(str.casefold, relation.fields):
            return None
        try:
            self.bind_fields(relation.quoted, "rowid")
        except TableUnreadable:
            return None
        return int(self.fetch_rows(f"SELECT count(*) FROM {relation.quoted}")[0][0])

    def columns_without_null(self, relation: Relation) -> set[str]:
        """The columns that the catalog declares NOT NULL; none of a view."""
        query = (
            "SELECT schema_name, table_name, column_name FROM duckdb_columns() "
            "WHERE database_name = ? AND NOT is_nullable"
        )
        return {
            column
            for schema, table, column in self.fetch_rows(query, [PRIVATE])
            if sql.quote_path(PRIVATE, schema, table) == relation.quoted
        }

    def list_relations(self) -> dict[str, list[str]]:
        """Schema and name of every table and view of the file, by what a declaration may call it."""
        names = {}
        for kind in ("table", "view"):
            query = f"SELECT schema_name, {kind}_name FROM duckdb_{kind}s() WHERE database_name = $1 AND NOT internal"
            for schema, name in self.fetch_rows(query, [PRIVATE]):
                names[name if schema == "main" else f"{schema}.{name}"] = [schema, name]
        return names

    def _bind_relation(self, parts: list[str]) -> Relation:
        full = sql.quote_path(PRIVATE, *parts)
        return Relation(full, self.bind_fields(full))

    def bind_fields(self, relation: str, columns: str = "*") -> dict[str, sql.Field]:
        """Columns of a table or view, from the catalog alone: binding the query runs nothing."""
        bound = scrub_errors(lambda: self._raw.sql(f"SELECT {columns} FROM {relation}"), self._what)
        return {
            name: sql.describe_field(name, kind)
            for name, kind in zip(bound.columns, bound.types, strict=True)
        }


@contextmanager
def open_file(database: Path, what: str) -> Iterator[Connection]:
    """The file, attached read-only as `PRIVATE` in a locked-down in-memory session.

    DuckDB spills into a folder beside the file (`spill_folder`).

    Raises:
        TableUnreadable: no such file, or not a DuckDB file.
        TableBusy: another process is still writing it after `MAX_WAIT` seconds.
    """
    require_file(database, what)
    with (
        start_session(database.absolute().parent, what) as raw,
        # Attached first: nothing can be opened afterwards.
        attach(raw, database, what, raw.close) as connection,
    ):
        lock_session(raw, what)
        yield connection


@contextmanager
def attach(
    raw: duckdb.DuckDBPyConnection, database: Path, what: str, detach: Callable[[], None]
) -> Iterator[Connection]:
    """The file, attached read-only as `PRIVATE` to a session. ``detach`` ends DuckDB's use of it. Raises as
    `open_file`.
    """
    file = None
    with query_thread() as queries:
        try:
            # Attaching says what is wrong.
            with suppress(OSError):
                file = os.open(database, os.O_RDONLY | os.O_CLOEXEC)
            _attach_file(raw, database, what)
            # Blocks are read through this handle, so it must be the file that DuckDB has open.
            if file is not None and not os.path.samestat(os.fstat(file), database.stat()):
                raise TableBusy(f"{what} was exchanged while it was opened; try again")
            yield Connection(raw, what, queries, file)
        finally:
            try:
                detach()
            finally:
                if file is not None:
                    # After DuckDB's handle: closing any of them ends this process's locks.
                    os.close(file)


@contextmanager
def open_files(
    databases: Sequence[Path], what: str
) -> Iterator[Callable[[Path, str], AbstractContextManager[Connection]]]:
    """What opens any of these files as `open_file` does, one at a time, without starting DuckDB again.

    All of them may be opened until it ends, by their views, too: so whoever reads an analyst's file reads no view
    (`Connection.is_table`).
    """
    beside = databases[0].absolute().parent
    # Other threads of DuckDB's would only wait for each other: each of these tables is small.
    with query_thread() as queries, start_session(beside, what, threads=1) as raw:
        lock_session(raw, what, [name for path in databases for name in list_names(path)])

        @contextmanager
        def open_next(database: Path, what: str) -> Iterator[Connection]:
            require_file(database, what)
            _attach_file(raw, database, what)
            try:
                yield Connection(raw, what, queries)
            finally:
                scrub_errors(lambda: raw.execute(f"DETACH {PRIVATE}"), what)

        yield open_next


def require_file(database: Path, what: str) -> None:
    """Raises `TableUnreadable` if there is no file."""
    if not database.is_file():
        raise TableUnreadable(
            f"{what}: there is no file {database}; correct the declaration's database, or load the data"
        )


@contextmanager
def start_session(
    beside: Path | None, what: str, **settings: int
) -> Iterator[duckdb.DuckDBPyConnection]:
    """DuckDB in memory, with a folder to spill into (`spill_folder`)."""
    with spill_folder(beside) as spill, closing(start_duckdb(spill, what, **settings)) as raw:
        yield raw


def start_duckdb(spill: Path, what: str, **settings: int) -> duckdb.DuckDBPyConnection:
    """DuckDB in memory that spills into a folder."""
    raw = duckdb.connect(":memory:", config=session_settings(spill) | settings)
    try:
        # Days and texts of timestamps must not depend on where the process runs.
        scrub_errors(lambda: raw.execute("SET GLOBAL TimeZone = 'UTC'"), what)
        scrub_errors(lambda: hide_progress_bar(raw), what)
    except BaseException:
        raw.close()
        raise
    return raw


def lock_session(raw: duckdb.DuckDBPyConnection, what: str, paths: Sequence[str] = ()) -> None:
    """Let the session open these paths and no other, and change no setting any more."""
    texts = ", ".join(map(sql.quote_text, paths))
    statements = [f"SET allowed_paths = [{texts}]"] if paths else []
    statements += ["SET enable_external_access = false", "SET lock_configuration = true"]
    scrub_errors(lambda: raw.execute("; ".join(statements)), what)


def list_names(database: Path) -> list[str]:
    """What DuckDB calls a file and its log when it opens the file by this path."""
    # Links are followed for the log alone, and it stands before what could be a URL's query.
    names = dict.fromkeys([str(database.absolute()), os.path.realpath(database)])
    return [*names, *(re.sub(r"(?=\?)|$", ".wal", name, count=1) for name in names)]


def query_thread() -> ThreadPoolExecutor:
    """A thread for the queries of one session, started by the first of them."""
    return ThreadPoolExecutor(1, "dpflow query")


def _attach_file(raw: duckdb.DuckDBPyConnection, database: Path, what: str) -> None:
    path = sql.quote_text(str(database.absolute()))
    attach = f"ATTACH {path} AS {PRIVATE} (TYPE duckdb, READ_ONLY)"
    scrub_errors(lambda: wait_for_file(lambda: raw.execute(attach)), what)


def hide_progress_bar(connection: duckdb.DuckDBPyConnection) -> None:
    """Draw no progress bar: it would be in tasks' logs and between the lines of a program.

    Asked first, since a notebook kernel without ipywidgets has none and refuses the setting.
    """
    query = "SELECT current_setting('enable_progress_bar')"
    if connection.execute(query).fetchall() == [(True,)]:
        connection.execute("SET enable_progress_bar = false")


@contextmanager
def open_arrays(columns: Sequence[Any], what: str) -> Iterator[Connection]:
    """Arrays as the columns c0, c1, ... of the relation ``given`` in a locked-down in-memory
    session; objects are texts, or None.
    """
    with require_extra("gate", "an expression over predictions"):
        import pandas as pd

    with query_thread() as queries, start_session(None, what) as raw:
        connection = Connection(raw, what, queries)
        raw.register("frame", pd.DataFrame({f"c{i}": values for i, values in enumerate(columns)}))
        # The arrays' types decide, not what DuckDB would infer from some of their values.
        kinds = [
            "VARCHAR" if v.dtype == object else "BIGINT" if v.dtype.kind == "i" else "DOUBLE"
            for v in columns
        ]
        listed = ", ".join(f"CAST(c{i} AS {kind}) AS c{i}" for i, kind in enumerate(kinds))
        connection.execute(f"CREATE TABLE given AS SELECT {listed} FROM frame")
        raw.unregister("frame")
        lock_session(raw, what)
        yield connection


def session_settings(spill: Path) -> dict[str, str | bool | int | float | list[str]]:
    """A session that spills into this directory only, and loads nothing."""
    return {
        "memory_limit": memory_limit(),
        "temp_directory": str(spill),
        # Queries that need an order say so; keeping the file's takes memory.
        "preserve_insertion_order": False,
        # An extension would be foreign code beside an open private file.
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
    }


def as_int64(array: Any) -> NDArray[np.int64]:
    """A column of a result as 64-bit integers."""
    return np.asarray(array, dtype=np.int64)
