"""Connections: one writer at a time on SQLite and PostgreSQL, durable commits, and errors in
dpflow's words.

Writers are serial because the history is a chain. SQLite: WAL and BEGIN IMMEDIATE. PostgreSQL: one
advisory lock per transaction, which is fair by itself.

A writer lets the next one in when it has committed, and only then waits for the disk, so that
several wait for it together. The rule that makes this as good as waiting first: **nothing returns
to a caller before everything it has seen is on the disk**, its own changes and those of others,
readers included. Logs are written in order, so one flush covers whatever was committed before it;
what a power cut takes away nobody was ever told. See docs/adr/0004-flush-after-the-turn.md.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import stat
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy import exc

from dpflow.errors import DpflowError, InvalidInput, LedgerCorrupt, LedgerUnavailable
from dpflow.extras import require_extra
from dpflow.ledger.storage import postgres_catalogue, schema
from dpflow.ledger.storage.postgres_transaction import PostgresTransaction
from dpflow.ledger.storage.statements import Read, SqliteTransaction, Transaction
from dpflow.private_files import UntrustedPlace, make_private_folder, require_own_file

if TYPE_CHECKING:
    import psycopg

_LOCK = 0x6470666C6F77  # "dpflow": names the advisory lock on PostgreSQL
_PATIENCE = 60.0  # seconds a writer waits inside the database
_TAKE_TURN = (
    # A writer that stands still inside its transaction loses it, so that others can go on. What
    # comes before the flush is committed without one.
    f"SELECT set_config('idle_in_transaction_session_timeout', '{int(_PATIENCE * 500)}', true), "
    f"set_config('synchronous_commit', 'off', true), pg_advisory_xact_lock({_LOCK})"
)
# An empty record, which carries all before it to the disk; a standby has nothing that is not there.
_FLUSH = (
    "SELECT CASE WHEN NOT pg_is_in_recovery() THEN pg_logical_emit_message(true, 'dpflow', '') END"
)
_ON_DISK = """SELECT CASE WHEN pg_is_in_recovery() THEN true ELSE current_setting('synchronous_standby_names') = ''
    AND pg_current_wal_flush_lsn() >= pg_current_wal_insert_lsn() END"""
_READ_ONLY = "25006"  # what PostgreSQL calls a transaction that must not write
_UNPREPARED = "InvalidSqlStatementName", "DuplicatePreparedStatement"
_UNSTORABLE = "a name or number that no database can hold was asked for; correct it"


def _parse_url(text: str) -> sa.URL:
    """A URL that can be told without its password. Raises `InvalidInput`, without repeating it: where
    ``@`` or ``/`` is not escaped, parts of a password stand where host and database should.
    """
    with contextlib.suppress(ValueError, sa.exc.ArgumentError):
        url = sa.make_url(text)
        if "@" not in f"{url.host}{url.database}":
            return url
    raise InvalidInput(
        "the ledger's URL cannot be read; write it as postgresql+psycopg://LOGIN:PASSWORD@HOST:PORT/DATABASE, with "
        "%40 for @ and %2F for / in login and password"
    )


class Database:
    """One ledger's database, by path or URL."""

    def __init__(self, target: str | Path) -> None:
        text = str(target)
        self.sqlite = "://" not in text
        if not self.sqlite and not text.startswith("postgresql+psycopg://"):
            raise InvalidInput(
                "a ledger is a SQLite file or a postgresql+psycopg:// URL; correct its place"
            )
        if not self.sqlite:
            with require_extra("postgres", "a ledger on PostgreSQL"):
                import psycopg  # noqa: F401
        if "\0" in text:
            raise InvalidInput("the ledger's place holds a NUL character; correct it")
        self.path = Path(text).absolute() if self.sqlite else None
        self._url = (
            sa.URL.create("sqlite", database=str(self.path)) if self.sqlite else _parse_url(text)
        )
        self._engine: sa.Engine | None = None
        # Spared from the pool, because giving them back costs a rollback.
        self._spare: list[sa.PoolProxiedConnection] = []
        self._pid = 0
        self._torn = False  # a flush failed, and nothing written since is sure to be on the disk
        _databases.add(self)

    @property
    def location(self) -> str:
        """The path or URL that opens it again, with its password."""
        if self.sqlite:
            return str(self.path)
        return self._url.render_as_string(hide_password=False)

    def __repr__(self) -> str:
        """Where it is. A URL's query may hold passwords, too: of it only the server is told."""
        if self.sqlite:
            return str(self.path)
        place = {
            name: self._url.query[name] for name in ("host", "port") if name in self._url.query
        }
        return self._url.set(query=place).render_as_string(hide_password=True)

    def __del__(self) -> None:
        """Close connections now; the engine is in reference cycles, and a server has only so many
        places.
        """
        with contextlib.suppress(Exception):  # the interpreter may be going down
            if self._engine is not None and self._pid == os.getpid():
                while self._spare:
                    self._spare.pop().invalidate()
                self._engine.dispose()

    @contextlib.contextmanager
    def begin_writing(self, reads: Sequence[Read] = ()) -> Iterator[Transaction]:
        """A transaction that no other writer runs beside; commits at the end, or leaves nothing.

        Args:
            reads: what it needs from the first, sent with its beginning: `Transaction.read_ahead`.
        """
        committing = False
        try:
            connection, transaction = self._begin_transaction(self._start_writing, reads)
            try:
                # Nothing counts as flushed, should a signal come between commit and flush.
                flushed = connection.info.pop("flushed", None)
                yield transaction
                # From here an error may hide a commit that went through; its message says so.
                committing = True
                transaction.commit()
            except BaseException:
                self._undo_transaction(connection, transaction)
                raise
            # After the turn: the next writer works while this one waits for the disk.
            if self.sqlite:
                self._flush_log(connection)
                connection.info["flushed"] = flushed
            self._spare.append(connection)
        except _all_failures() as error:
            raise _translate_error(error, repr(self), committing) from None

    @contextlib.contextmanager
    def begin_reading(self, reads: Sequence[Read] = ()) -> Iterator[Transaction]:
        """A consistent view, all of which is on the disk when it ends; ``reads`` as of
        `begin_writing`.
        """
        try:
            connection, transaction = self._begin_transaction(self._start_reading, reads)
            try:
                yield transaction
                seen = transaction.text("PRAGMA data_version" if self.sqlite else _ON_DISK)[0][0]
                transaction.commit()
                # What was read may be committed and not flushed: nothing leaves before it is.
                if not self.sqlite and not seen:
                    transaction.text(_FLUSH)
            except BaseException:
                self._undo_transaction(connection, transaction)
                raise
            # Others committed since this connection's last flush.
            if self.sqlite and seen != connection.info.get("flushed"):
                self._flush_log(connection)
                connection.info["flushed"] = seen
            self._spare.append(connection)
        except _all_failures() as error:
            raise _translate_error(error, repr(self), False) from None

    def _undo_transaction(
        self, connection: sa.PoolProxiedConnection, transaction: Transaction
    ) -> None:
        """Leave nothing; keep the connection if it still works."""
        try:
            transaction.rollback()
            self._spare.append(connection)
        except _driver_errors():
            connection.invalidate()

    def _begin_transaction(
        self,
        start: Callable[[sa.PoolProxiedConnection], tuple[Transaction, Sequence[str]]],
        reads: Sequence[Read],
    ) -> tuple[Any, Transaction]:
        """A connection inside a transaction. Those that died while idle, or whose prepared statements
        somebody dropped, are replaced: nothing ran on them.
        """
        engine = self.engine
        while True:
            try:
                connection, fresh = self._spare.pop(), False
            except IndexError:
                connection, fresh = self._open_connection(engine), True
            try:
                transaction, statements = start(connection)
                try:
                    transaction.begin(statements, reads)
                except BaseException:
                    with contextlib.suppress(*_driver_errors()):
                        transaction.rollback()
                    raise
                return connection, transaction
            except BaseException as error:
                connection.invalidate()
                # A fresh one tells the truth.
                stale = _psycopg_errors("OperationalError", *_UNPREPARED)
                if fresh or self.sqlite or not isinstance(error, stale):
                    raise

    def _open_connection(self, engine: sa.Engine) -> sa.PoolProxiedConnection:
        try:
            return engine.raw_connection()
        except OSError as error:  # not of the database: such as no descriptor left
            raise LedgerUnavailable(
                f"{self!r} cannot be used now ({error.strerror}); this step recorded nothing, so try again when that is mended"
            ) from None

    def _start_reading(
        self, connection: sa.PoolProxiedConnection
    ) -> tuple[Transaction, Sequence[str]]:
        if self.sqlite:
            return SqliteTransaction(connection.driver_connection), ["BEGIN"]
        begin = "BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY"
        return PostgresTransaction(connection.driver_connection), [begin]

    def _start_writing(
        self, connection: sa.PoolProxiedConnection
    ) -> tuple[Transaction, Sequence[str]]:
        if self.sqlite:
            return SqliteTransaction(connection.driver_connection), ["BEGIN IMMEDIATE"]
        # The commit ends the turn: the next writer works while this one waits for the disk. Each
        # statement sees what was committed before it, so reads come behind the turn.
        transaction = PostgresTransaction(connection.driver_connection, _FLUSH)
        return transaction, ["BEGIN ISOLATION LEVEL READ COMMITTED", _TAKE_TURN]

    def _flush_log(self, connection: sa.PoolProxiedConnection) -> None:
        """Put all that was committed to the SQLite file on the disk."""
        if "log" not in connection.info:
            return None
        try:
            # The kernel forgets what it failed to write: this writes it a second time, elsewhere.
            if self._torn:
                ((busy, _, _),) = connection.driver_connection.execute(  # type: ignore[union-attr]
                    "PRAGMA wal_checkpoint(TRUNCATE)"
                )
                if busy:
                    raise LedgerUnavailable(_explain_loss(repr(self), "busy"))
                self._torn = False
            os.fdatasync(connection.info["log"])
        except OSError as error:
            self._torn = True
            connection.info.pop("flushed", None)
            raise LedgerUnavailable(_explain_loss(repr(self), str(error.strerror))) from None

    def empty_log(self) -> None:
        """Destroy what a killed writer may have left in the log of a SQLite file: a try that goes on
        draws afresh, and nothing of the former draw may stay. PostgreSQL keeps no part of a
        transaction without its commit that anybody but its superuser can read.

        Raises `LedgerUnavailable` while others keep the log in use.
        """
        # SQLite waits for readers and writers, but not for another who does the same.
        if self.sqlite and not _wait_until(self._truncate_log):
            raise LedgerUnavailable(
                f"{self!r} is read all the time, so what a killed try left cannot be destroyed; try again, "
                f"which is never charged twice"
            )

    def outwait_readers(self) -> None:
        """Return when each transaction has ended that reads what was there before this call. Raises
        `LedgerUnavailable` if one goes on for too long.
        """
        earlier = set[str]() if self.sqlite else self._list_readers()
        if not _wait_until(
            self._truncate_log if self.sqlite else lambda: earlier.isdisjoint(self._list_readers())
        ):
            raise LedgerUnavailable(
                f"{self!r} is still read by a program that began before the change; repeat the call when that has ended"
            )

    def _truncate_log(self) -> bool:
        """Move the log of a SQLite file into it; false while others use the log."""
        try:
            with contextlib.closing(self._open_connection(self.engine)) as connection:
                ((busy, _, _),) = connection.driver_connection.execute(  # type: ignore[union-attr]
                    "PRAGMA wal_checkpoint(TRUNCATE)"
                )
        except _driver_errors() as error:
            raise _translate_error(error, repr(self), False) from None
        return not busy

    def _list_readers(self) -> set[str]:
        """Other transactions on PostgreSQL that have used a table of the ledger and go on."""
        with self.begin_reading() as transaction:
            return {
                name
                for (name,) in transaction.text(
                    postgres_catalogue.READERS, (postgres_catalogue.TABLES,)
                )
            }

    @property
    def engine(self) -> sa.Engine:
        """This process's engine; what came through a fork is left alone, because its sockets belong
        to the parent.
        """
        if self._engine is None or self._pid != os.getpid():
            if self._engine is not None:
                # Referred to, not dropped: to collect them would close sockets of the parent.
                self._spare, self._inherited = [], self._spare
                self._engine.dispose(close=False)
            self._engine, self._pid = None, os.getpid()
            self._engine = self._make_engine()
        return self._engine

    def _make_engine(self) -> sa.Engine:
        if not self.sqlite:
            engine = sa.create_engine(self._url, hide_parameters=True, max_overflow=-1)
            sa.event.listen(engine, "connect", _harden_session)
            return engine
        if _forked.get(os.path.realpath(str(self.path)), self._pid) != self._pid:
            raise LedgerUnavailable(
                f"{self!r} was in use when this process was forked; use it from a new process"
            )
        engine = sa.create_engine(
            self._url, connect_args={"timeout": _PATIENCE}, hide_parameters=True, max_overflow=-1
        )
        sa.event.listen(engine, "connect", _configure_sqlite)
        sa.event.listen(engine, "close", _close_log)
        return engine

    def exists(self) -> bool:
        """Whether there is a ledger of this schema version.

        Raises:
            LedgerUnavailable: it has an earlier version and waits for its upgrade, or a later one and
                this program waits for its own (retryable); or it is out of reach.
            LedgerCorrupt: no version at all, or a file that is no ledger.
        """
        shown = self.stored_version()
        if shown in schema.UPGRADABLE:
            # Retryable: whoever waits in a queue goes on when the owner has upgraded.
            raise LedgerUnavailable(
                f"{self!r} has ledger schema version {shown}, this dpflow uses {schema.VERSION}; this step recorded nothing. "
                f"Have its owner run: dpflow ledger upgrade"
            )
        self.refuse_later(shown)
        if shown not in (None, schema.VERSION):
            raise LedgerCorrupt(
                f"{self!r} has ledger schema version {shown}, this dpflow reads only {schema.VERSION}; "
                f"use the dpflow that made it"
            )
        return shown is not None

    def refuse_later(self, version: str | None) -> None:
        """Raises `LedgerUnavailable` for a version that only a later dpflow reads."""
        if version is not None and schema.is_later(version):
            # Retryable: the next try may run where the new version is.
            raise LedgerUnavailable(
                f"{self!r} has ledger schema version {version}, and this dpflow knows none after {schema.VERSION}; this step "
                f"recorded nothing. Upgrade dpflow on this machine, as on every worker: use the dpflow that made it"
            )

    def stored_version(self) -> str | None:
        """The schema version of the ledger here; None if there is none. Raises `LedgerCorrupt` for a
        file that is no ledger, and `LedgerUnavailable` for a login that may not even read this.
        """
        if self.path is not None:
            try:
                status = self.path.stat()
                if not stat.S_ISREG(status.st_mode):
                    raise InvalidInput(f"{self!r} is a directory or a device; name a file")
                # An empty file is what `make_place` leaves before the tables are there.
                if status.st_size == 0:
                    return None
            except (FileNotFoundError, NotADirectoryError):
                return None
            except OSError as error:
                raise LedgerUnavailable(
                    f"{self!r} cannot be reached ({error.strerror}); correct its place"
                ) from None
        with self.begin_reading() as transaction:
            if not transaction.has_ledger():
                if self.path is not None and transaction.text("SELECT 1 FROM sqlite_master"):
                    raise LedgerCorrupt(
                        f"{self!r} is a database but no dpflow ledger; name another file"
                    )
                return None
            try:
                versions = transaction.text("SELECT value FROM dpflow_meta WHERE name = 'schema'")
            except _psycopg_errors("InsufficientPrivilege"):
                # Retryable: an upgrade makes the tables again, and roles.sql comes after it.
                raise LedgerUnavailable(
                    f"{self!r} lets this database role read nothing, as between an upgrade and roles.sql; this step "
                    f"recorded nothing. Have its owner run roles.sql"
                ) from None
        return str(versions[0][0]) if versions else "unknown"

    def find_power(self) -> str | None:
        """What this login can do that separates an owner from those who spend, such as "can write
        dpflow_scope"; None if nothing, or on SQLite, which has no logins.
        """
        if self.sqlite:
            return None
        with self.begin_reading() as transaction:
            powers = transaction.text(postgres_catalogue.POWERS, (postgres_catalogue.TABLES,))
        return None if not powers else powers[0][0]

    def make_place(self) -> None:
        """Make the SQLite file and its directory, for this user only. Raises `LedgerUnavailable`."""
        if self.path is not None:
            try:
                if not self.path.parent.exists():
                    make_private_folder(self.path.parent)
                # Closing any descriptor of a file drops SQLite's locks on it in this process: one
                # that exists stays untouched.
                with _MAKING, contextlib.suppress(FileExistsError):
                    os.close(os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
                require_own_file(self.path, self.path.lstat())
            except UntrustedPlace as error:
                raise InvalidInput(f"no ledger is made there: {error.strerror}") from None
            except OSError as error:
                raise LedgerUnavailable(
                    f"{self!r} cannot be written ({error.strerror}); correct its place"
                ) from None


_MAKING = threading.Lock()
_databases: weakref.WeakSet[Database] = weakref.WeakSet()
_forked: dict[str, int] = {}  # files with a transaction going on when the process of this id forked


def _before_fork() -> None:
    """Close idle SQLite connections.

    SQLite keeps its file locks per process in memory: a child that inherits that memory believes
    that it holds locks which the kernel gave to its parent only, and once the parent closes the
    file, others may delete the log that the child writes.
    """
    pid = os.getpid()
    for path in [path for path, forker in _forked.items() if forker == pid]:
        del _forked[path]
    for database in list(_databases):
        if database.path is not None and database._engine is not None and database._pid == pid:
            while database._spare:
                database._spare.pop().invalidate()  # not into a pool that an earlier fork has given up
            if database._engine.pool.checkedout():  # type: ignore[attr-defined]
                _forked[os.path.realpath(database.path)] = pid
            database._engine.dispose()


os.register_at_fork(before=_before_fork)


def _configure_sqlite(connection: sqlite3.Connection, record: Any) -> None:
    """Keep a log in which commits are ordered and never torn. Where SQLite cannot keep one, it
    flushes each commit itself.
    """
    connection.isolation_level = None  # we say BEGIN ourselves
    # Of a file that is made now: nodes of the trie do not fit beside each other into half of that.
    connection.execute("PRAGMA page_size = 8192")
    ((mode,),) = connection.execute("PRAGMA journal_mode = WAL")
    connection.execute(f"PRAGMA synchronous = {'NORMAL' if mode == 'wal' else 'EXTRA'}")
    if mode == "wal":
        # Whoever finds so many pages in the log, 47 MiB, moves them to the file, inside its turn. Most
        # are written many times, so fewer moves cost less.
        connection.execute("PRAGMA wal_autocheckpoint = 6000")
        # Opened before anything is written through this connection, so that it hears of every write
        # error.
        connection.execute("SELECT count(*) FROM sqlite_master").fetchall()
        ((_, _, path),) = connection.execute("PRAGMA database_list")
        record.info["log"] = os.open(f"{path}-wal", os.O_RDONLY | os.O_CLOEXEC)


def _close_log(_: object, record: Any) -> None:
    if "log" in record.info:
        os.close(record.info.pop("log"))


def _harden_session(connection: psycopg.Connection[Any], _: object) -> None:
    """What the ledger relies on, whatever the server's or the role's defaults are."""
    connection.autocommit = True  # we say BEGIN ourselves, whatever the server's default
    # What it prepares it drops at a rollback, and with it what `postgres_pipeline` prepares.
    connection.prepare_threshold = None
    with connection.transaction():
        connection.execute(
            "SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'"
        )
        connection.execute("SET client_encoding TO 'UTF8'")
        # To plan each time takes longer than to run. But a plan that is kept was often made while the
        # tables were nearly empty, and then reads all rows for each key: so none may be read whole
        # where an index would do.
        connection.execute(
            "SELECT set_config('plan_cache_mode', 'force_generic_plan', false), set_config('enable_seqscan', 'off', false), "
            "set_config('jit', 'off', false)"
        )
        connection.execute(f"SET lock_timeout = {int(_PATIENCE * 1000)}")


def _wait_until(ended: Callable[[], bool]) -> bool:
    """Whether it came true within the patience of a writer."""
    end = time.monotonic() + _PATIENCE
    while not (result := ended()) and time.monotonic() < end:
        time.sleep(0.02)
    return result


def _psycopg_errors(*names: str) -> tuple[type[Exception], ...]:
    """Exception classes of psycopg by name. None before a ledger on PostgreSQL has loaded it: until
    then nothing can have raised one.
    """
    errors = sys.modules.get("psycopg.errors")
    return tuple(getattr(errors, name) for name in names if hasattr(errors, name))


def _driver_errors() -> tuple[type[Exception], ...]:
    return (sqlite3.Error, exc.SQLAlchemyError, *_psycopg_errors("Error"))


def _all_failures() -> tuple[type[Exception], ...]:
    """Whatever a statement may end with: a driver's error, or a value that it cannot send."""
    return (*_driver_errors(), UnicodeError, OverflowError)


def _translate_error(error: Exception, place: str, committing: bool) -> DpflowError:
    """A driver's error in our words; its own text may hold a URL or values, so only its class is
    named.
    """
    kind = type(getattr(error, "orig", None) or error).__name__
    message = str(error).lower()
    if isinstance(error, UnicodeDecodeError):
        return LedgerCorrupt(f"{place} holds text that no ledger wrote; bring the newest copy back")
    if any(sign in message for sign in ("not a database", "malformed", "could not decode")):
        return LedgerCorrupt(
            f"{place} is not a ledger ({kind}); name the right file, or restore it"
        )
    if isinstance(error, _psycopg_errors("InsufficientPrivilege")):
        return InvalidInput(
            f"{place} does not let this database role do that (see roles.sql); ask the ledger's owner"
        )
    if isinstance(error, (*_psycopg_errors("DataError"), UnicodeError, OverflowError)):
        return InvalidInput(_UNSTORABLE)
    # A table or column of ours is not there, or cannot be read.
    unfit = getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_ERROR
    unfit |= isinstance(error, _psycopg_errors("DataCorrupted", "IndexCorrupted"))
    operational: tuple[type[Exception], ...] = (
        sqlite3.OperationalError,
        exc.OperationalError,
        exc.InterfaceError,
        exc.InternalError,
        exc.TimeoutError,
        *_psycopg_errors("OperationalError", "InterfaceError", "InternalError", *_UNPREPARED),
    )
    if not unfit and isinstance(error, operational):
        # What is read-only refuses the changes, before the commit.
        if committing and getattr(error, "sqlstate", None) != _READ_ONLY:
            return LedgerUnavailable(_explain_loss(place, kind))
        reason, remedy = _find_cause(error)
        told = f"{place} {reason} ({kind}), so this step recorded nothing; what was charged before it is not charged again"
        return LedgerUnavailable(f"{told}. {remedy}")
    return LedgerCorrupt(f"{place} refused a statement ({kind}); run dpflow ledger verify")


def _find_cause(error: Exception) -> tuple[str, str]:
    """What a database that cannot be used suffers from, by its code alone, and what helps."""
    origin = getattr(error, "orig", None) or error
    code = (getattr(origin, "sqlite_errorcode", None) or 0) & 0xFF
    state = getattr(origin, "sqlstate", None) or ""
    if code == sqlite3.SQLITE_FULL or state == "53100":
        return "is on a full disk", "Free space, then try again"
    if code == sqlite3.SQLITE_READONLY or state == _READ_ONLY:
        return "is read-only here", "Name a copy that can be written, or make it so, then try again"
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED) or state == "55P03":
        return "is locked by another program", "Try again when that has ended"
    if code == sqlite3.SQLITE_IOERR:
        return "is on a disk that fails", "Look at the disk, then try again"
    if state == "57014":
        return "canceled a statement", "Try again; if that ends alike, raise statement_timeout"
    if isinstance(origin, _psycopg_errors(*_UNPREPARED)):
        return "is behind a pool of transactions", "Connect to the server itself, or pool sessions"
    if state == "25P03":
        return "ended a transaction that stood still", "Try again"
    return "is out of reach", "Try again when it can be reached"


def _explain_loss(place: str, kind: str) -> str:
    return (
        f"{place} was lost while it recorded this ({kind}), so it may or may not be recorded; the same call again "
        f"completes it and is never charged twice"
    )
