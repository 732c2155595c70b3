"""Connections: one writer at a time on SQLite and PostgreSQL, durable commits, and errors in dpflow's words.

Writers are serial because the history is a chain. SQLite: WAL, synchronous=FULL, BEGIN IMMEDIATE, and a fair queue beside
the file (SQLite's own waiting starves writers). PostgreSQL: one advisory lock per transaction, which is fair by itself.
Statements are SQLAlchemy Core; those of the hot path are compiled once and run on the driver's connection. A writer on
PostgreSQL sends statements without waiting for each answer (pipeline mode), because all others wait for it meanwhile.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import stat
import threading
import weakref
from collections import namedtuple
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psycopg
import sqlalchemy as sa
from sqlalchemy import exc
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.schema import CreateIndex, CreateTable

from dpflow.core import faults
from dpflow.errors import DpflowError, InvalidInput, LedgerCorrupt, LedgerUnavailable
from dpflow.ledger import schema
from dpflow.ledger.queue import Queue

_LOCK = 0x6470666C6F77  # "dpflow": names the advisory lock on PostgreSQL
_PATIENCE = 60.0  # seconds a writer waits inside the database
_UNSTORABLE = "a name or number that no database can hold was asked for; correct it"
_DRIVER_ERRORS = (sqlite3.Error, psycopg.Error, exc.SQLAlchemyError)


class Prepared:
    """A Core statement, compiled once per dialect. Its parameters are named ``bindparam``s."""

    def __init__(self, statement: sa.Select[Any] | sa.Insert | sa.Update) -> None:
        self._statement = statement
        self._sql: dict[str, tuple[str, dict[str, Any]]] = {}
        columns = [c.name for c in statement.selected_columns] if isinstance(statement, sa.Select) else []
        self.row: Any = namedtuple("row", columns, rename=True)  # type: ignore[misc]

    def bound(self, dialect: sa.Dialect, parameters: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        """SQL text in the driver's own parameter style, and all its parameters."""
        if dialect.name not in self._sql:
            compiled = self._statement.compile(dialect=dialect)
            constants = {name: value for name, value in compiled.params.items() if value is not None}
            self._sql[dialect.name] = str(compiled), constants
        sql, constants = self._sql[dialect.name]
        return sql, {**constants, **parameters} if constants else parameters


def where(*columns: sa.Column[Any]) -> sa.ColumnElement[bool]:
    """Equality of columns with parameters of the same names."""
    return sa.and_(*(column == sa.bindparam(column.name, type_=column.type) for column in columns))


def insert(table: sa.Table) -> Prepared:
    """An insert of one whole row."""
    return Prepared(table.insert().values({c.name: sa.bindparam(c.name) for c in table.columns}))


class Transaction:
    """What runs between begin and commit."""

    def __init__(self, connection: DBAPIConnection, dialect: sa.Dialect) -> None:
        self._connection, self._dialect = connection, dialect
        self._cursor = self._new_cursor()
        self._ahead: dict[Any, Sequence[Any]] = {}

    def _new_cursor(self) -> Any:
        cursor = self._connection.cursor()
        return cursor if faults.after_statement is None else faults.Watched(cursor)

    def ahead(self, *reads: tuple[Prepared, dict[str, Any]]) -> None:
        """Ask for rows that will be needed, in one round trip; `first` and `rows` find them until something is written."""
        if self._dialect.name != "sqlite":
            cursors = [self._new_cursor() for _ in reads]
            for cursor, (statement, parameters) in zip(cursors, reads):
                cursor.execute(*statement.bound(self._dialect, parameters))
            for cursor, (statement, parameters) in zip(cursors, reads):
                self._ahead[statement, *parameters.items()] = cursor.fetchall()

    def run(self, statement: Prepared, **parameters: Any) -> None:
        """Execute a change."""
        self._ahead.clear()
        self._cursor.execute(*statement.bound(self._dialect, parameters))

    def many(self, statement: Prepared, parameters: Sequence[dict[str, Any]]) -> None:
        """Execute a change once per mapping."""
        self._ahead.clear()
        if parameters:
            self._cursor.executemany(statement.bound(self._dialect, {})[0], parameters)

    def first(self, statement: Prepared, **parameters: Any) -> Any:
        """The first row, or None."""
        found = self._ahead.get((statement, *parameters.items()))
        if found is None:
            self._cursor.execute(*statement.bound(self._dialect, parameters))
            row = self._cursor.fetchone()
        else:
            row = found[0] if found else None
        return None if row is None else statement.row._make(row)

    def rows(self, statement: Prepared, **parameters: Any) -> list[Any]:
        """All rows."""
        found = self._ahead.get((statement, *parameters.items()))
        if found is None:
            self._cursor.execute(*statement.bound(self._dialect, parameters))
            return [statement.row._make(row) for row in self._cursor.fetchall()]
        return [statement.row._make(row) for row in found]

    def text(self, sql: str, parameters: Sequence[Any] = ()) -> list[Any]:
        """Run one of our own constant statements."""
        self._cursor.execute(sql, parameters) if parameters else self._cursor.execute(sql)
        return list(self._cursor.fetchall()) if sql.startswith(("SELECT", "PRAGMA")) else []

    @property
    def dialect(self) -> str:
        """``sqlite`` or ``postgresql``."""
        return self._dialect.name

    def has_ledger(self) -> bool:
        """Whether the tables exist."""
        if self.dialect == "sqlite":
            return bool(self.text("SELECT 1 FROM sqlite_master WHERE name = 'dpflow_meta'"))
        return self.text("SELECT to_regclass('dpflow_meta')")[0][0] is not None

    def create_tables(self) -> None:
        """Make tables, indices and triggers."""
        for table in schema.metadata.sorted_tables:
            self.text(str(CreateTable(table).compile(dialect=self._dialect)))
            for index in sorted(table.indexes, key=lambda index: str(index.name)):
                self.text(str(CreateIndex(index).compile(dialect=self._dialect)))
        for statement in schema.APPEND_ONLY[self._dialect.name]:
            self.text(statement)


class Database:
    """One ledger's database, by path or URL."""

    def __init__(self, target: str | Path) -> None:
        text = str(target)
        self.sqlite = "://" not in text
        if not self.sqlite and not text.startswith("postgresql+psycopg://"):
            raise InvalidInput("a ledger is a SQLite file or a postgresql+psycopg:// URL; correct its place")
        if "\0" in text:
            raise InvalidInput("the ledger's place holds a NUL character; correct it")
        self.path = Path(text).absolute() if self.sqlite else None
        self._url = sa.URL.create("sqlite", database=str(self.path)) if self.sqlite else sa.make_url(text)
        self._engine: sa.Engine | None = None
        self._mine = threading.local()  # this thread's place in the queue
        self._spare: list[sa.PoolProxiedConnection] = []  # kept at hand, because giving them back costs a rollback
        self._pid = 0
        _databases.add(self)

    def __repr__(self) -> str:
        return str(self.path) if self.sqlite else self._url.render_as_string(hide_password=True)

    @contextlib.contextmanager
    def writing(self) -> Iterator[Transaction]:
        """A transaction that no other writer runs beside; commits at the end, or leaves nothing."""
        with self._turn(), self._transaction("BEGIN IMMEDIATE") as transaction:
            yield transaction

    @contextlib.contextmanager
    def reading(self) -> Iterator[Transaction]:
        """A consistent view."""
        with self._transaction("BEGIN") as transaction:
            yield transaction

    @contextlib.contextmanager
    def _transaction(self, begin: str) -> Iterator[Transaction]:
        committing = False
        try:
            connection = self._begun(begin)
            driver: Any = connection.driver_connection
            pipelined = not self.sqlite and begin != "BEGIN"
            try:
                with driver.pipeline() if pipelined else contextlib.nullcontext():
                    faults.passed()
                    yield Transaction(driver, self.engine.dialect)
                    committing = begin != "BEGIN"
                    driver.commit()
                    faults.passed()
            except BaseException:
                try:
                    driver.rollback()
                    self._spare.append(connection)
                except _DRIVER_ERRORS:
                    connection.invalidate()
                raise
            self._spare.append(connection)
        except _DRIVER_ERRORS as error:
            raise _translated(error, repr(self), committing) from None
        except UnicodeDecodeError:
            raise LedgerCorrupt(f"{self!r} holds text that no ledger wrote; bring the newest copy back") from None
        except (UnicodeError, OverflowError):
            raise InvalidInput(_UNSTORABLE) from None

    def _begun(self, begin: str) -> sa.PoolProxiedConnection:
        """A connection inside a transaction. Those that died while idle are replaced: nothing ran on them."""
        engine = self.engine
        while True:
            try:
                connection, fresh = self._spare.pop(), False
            except IndexError:
                connection, fresh = engine.raw_connection(), True
            try:
                self._start(connection, begin)
                return connection
            except BaseException as error:
                connection.invalidate()
                if fresh or self.sqlite or not isinstance(error, psycopg.OperationalError):
                    raise

    def _start(self, connection: sa.PoolProxiedConnection, begin: str) -> None:
        cursor = connection.cursor()
        if self.sqlite:
            cursor.execute(begin)
        elif begin == "BEGIN":
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        else:
            cursor.execute(  # a writer that stands still inside its transaction loses it, so that others can go on
                f"SELECT set_config('idle_in_transaction_session_timeout', '{int(_PATIENCE * 500)}', true), "
                f"pg_advisory_xact_lock({_LOCK})"
            )

    @contextlib.contextmanager
    def _turn(self) -> Iterator[None]:
        """A turn among this file's writers. Only fairness depends on it: SQLite's own lock does the rest."""
        queue = None
        if self.path is not None:
            if (queue := getattr(self._mine, "queue", None)) is None or queue.pid != os.getpid():
                queue = self._mine.queue = Queue(str(self.path))
            queue.enter()
        try:
            yield
        finally:
            if queue is not None:
                queue.leave()

    @property
    def engine(self) -> sa.Engine:
        """This process's engine; what came through a fork is left alone, because its sockets belong to the parent."""
        if self._engine is None or self._pid != os.getpid():
            if self._engine is not None:
                self._spare, self._inherited = [], self._spare
                self._engine.dispose(close=False)
            self._engine, self._pid = None, os.getpid()
            self._engine = self._make()
        return self._engine

    def _make(self) -> sa.Engine:
        if not self.sqlite:
            engine = sa.create_engine(self._url, hide_parameters=True, max_overflow=-1)
            sa.event.listen(engine, "connect", _harden)
            return engine
        if _forked.get(os.path.realpath(str(self.path)), self._pid) != self._pid:
            raise LedgerUnavailable(f"{self!r} was in use when this process was forked; use it from a new process")
        engine = sa.create_engine(
            self._url, connect_args={"timeout": _PATIENCE}, hide_parameters=True, max_overflow=-1, paramstyle="named"
        )
        sa.event.listen(engine, "connect", _configure)
        return engine

    def exists(self) -> bool:
        """Whether there is a ledger. Raises `LedgerCorrupt` for another schema version or a file that is no ledger."""
        if self.path is not None:
            try:
                found = self.path.stat()
                if not stat.S_ISREG(found.st_mode):
                    raise InvalidInput(f"{self!r} is a directory or a device; name a file")
                if found.st_size == 0:
                    return False
            except (FileNotFoundError, NotADirectoryError):
                return False
            except OSError as error:
                raise LedgerUnavailable(f"{self!r} cannot be reached ({error.strerror}); correct its place") from None
        with self.reading() as transaction:
            if not transaction.has_ledger():
                if self.path is not None and transaction.text("SELECT 1 FROM sqlite_master"):
                    raise LedgerCorrupt(f"{self!r} is a database but no dpflow ledger; name another file")
                return False
            versions = transaction.text("SELECT value FROM dpflow_meta WHERE name = 'schema'")
        if [tuple(row) for row in versions] != [(schema.VERSION,)]:
            shown = versions[0][0] if versions else "unknown"
            raise LedgerCorrupt(
                f"{self!r} has ledger schema version {shown}, this dpflow reads only {schema.VERSION}; "
                f"use the dpflow that made it to export it"
            )
        return True

    def make_place(self) -> None:
        """Make the SQLite file and its directory, for this user only. Raises `LedgerUnavailable`."""
        if self.path is not None:
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                os.close(os.open(self.path, os.O_CREAT | os.O_RDWR, 0o600))
            except OSError as error:
                raise LedgerUnavailable(f"{self!r} cannot be written ({error.strerror}); correct its place") from None


_databases: weakref.WeakSet[Database] = weakref.WeakSet()
_forked: dict[str, int] = {}  # files with a transaction going on when the process of this id forked


def _before_fork() -> None:
    """Close idle SQLite connections.

    SQLite keeps its file locks per process in memory: a child that inherits that memory believes that it holds locks which
    the kernel gave to its parent only, and once the parent closes the file, others may delete the log that the child writes.
    """
    pid = os.getpid()
    for path in [path for path, forker in _forked.items() if forker == pid]:
        del _forked[path]
    for database in list(_databases):
        if database.path is not None and database._engine is not None and database._pid == pid:
            while database._spare:
                database._spare.pop().close()
            if database._engine.pool.checkedout():  # type: ignore[attr-defined]
                _forked[os.path.realpath(database.path)] = pid
            database._engine.dispose()


os.register_at_fork(before=_before_fork)


def _configure(connection: sqlite3.Connection, _: object) -> None:
    connection.isolation_level = None  # we say BEGIN ourselves
    for pragma in ("journal_mode = WAL", "synchronous = FULL"):
        connection.execute(f"PRAGMA {pragma}")


def _harden(connection: psycopg.Connection[Any], _: object) -> None:
    """What the ledger relies on, whatever the server's or the role's defaults are."""
    connection.isolation_level = (
        psycopg.IsolationLevel.READ_COMMITTED
    )  # a writer must see what was committed before its turn
    with connection.transaction():
        connection.execute(
            "SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'"
        )
        connection.execute(f"SET lock_timeout = {int(_PATIENCE * 1000)}")


def _translated(error: Exception, place: str, committing: bool) -> DpflowError:
    """A driver's error in our words; its own text may hold a URL or values, so only its class is named."""
    kind = type(getattr(error, "orig", None) or error).__name__
    message = str(error).lower()
    if any(sign in message for sign in ("not a database", "malformed", "could not decode")):
        return LedgerCorrupt(f"{place} is not a ledger ({kind}); name the right file, or restore it")
    if isinstance(error, psycopg.errors.InsufficientPrivilege):
        return InvalidInput(f"{place} does not let this database role do that (see roles.sql); ask the ledger's owner")
    if isinstance(error, psycopg.DataError):
        return InvalidInput(_UNSTORABLE)
    operational = (sqlite3.OperationalError, psycopg.OperationalError, psycopg.InterfaceError, psycopg.InternalError)
    if isinstance(error, (*operational, exc.OperationalError, exc.InterfaceError, exc.TimeoutError)):
        if committing:
            return LedgerUnavailable(
                f"{place} was lost while it recorded this ({kind}), so it may or may not be recorded; the same call again "
                f"completes it and is never charged twice"
            )
        return LedgerUnavailable(
            f"{place} cannot be used now ({kind}): it is locked, full, read-only or out of reach; nothing was recorded, "
            f"so try again when that is mended"
        )
    return LedgerCorrupt(f"{place} refused a statement ({kind}); run dpflow ledger verify")
