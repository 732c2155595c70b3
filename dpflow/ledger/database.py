"""Connections: one writer at a time on SQLite and PostgreSQL, durable commits, and errors in dpflow's words.

Writers are serial because the history is a chain. SQLite: WAL, synchronous=FULL, BEGIN IMMEDIATE. PostgreSQL: one advisory
lock per transaction. Engines are never shared across a fork.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy import exc

from dpflow.errors import DpflowError, InvalidInput, LedgerCorrupt, LedgerUnavailable
from dpflow.ledger import schema

_LOCK = 0x6470666C6F77  # "dpflow": names the advisory lock on PostgreSQL
_PATIENCE = 60.0  # seconds a writer waits for its turn


class Database:
    """One ledger's database, by path or URL."""

    def __init__(self, target: str | Path) -> None:
        text = str(target)
        self.sqlite = "://" not in text
        if not self.sqlite and not text.startswith("postgresql+psycopg://"):
            raise InvalidInput("a ledger is a SQLite file or a postgresql+psycopg:// URL; correct its place")
        self.path = Path(text).absolute() if self.sqlite else None
        self._url = sa.URL.create("sqlite", database=str(self.path)) if self.sqlite else sa.make_url(text)
        self._engine: sa.Engine | None = None
        self._pid = 0

    def __repr__(self) -> str:
        return self._url.render_as_string(hide_password=True)

    @contextmanager
    def writing(self) -> Iterator[sa.Connection]:
        """A transaction that no other writer runs beside; commits at the end, or leaves nothing."""
        with self._transaction(write=True) as connection:
            yield connection

    @contextmanager
    def reading(self) -> Iterator[sa.Connection]:
        """A consistent view."""
        with self._transaction(write=False) as connection:
            yield connection

    @contextmanager
    def _transaction(self, write: bool) -> Iterator[sa.Connection]:
        try:
            with self.engine.connect() as connection:
                connection = connection.execution_options(write=write)
                with connection.begin():
                    if write and not self.sqlite:
                        connection.execute(sa.text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
                    yield connection
        except exc.DBAPIError as error:
            raise _translated(error, repr(self)) from None

    @property
    def engine(self) -> sa.Engine:
        """This process's engine; one inherited through a fork is left alone, because its sockets belong to the parent."""
        if self._engine is None or self._pid != os.getpid():
            if self._engine is not None:
                self._engine.dispose(close=False)
            self._engine, self._pid = self._make(), os.getpid()
        return self._engine

    def _make(self) -> sa.Engine:
        if not self.sqlite:
            return sa.create_engine(
                self._url, pool_pre_ping=True, hide_parameters=True, isolation_level="READ COMMITTED"
            )
        engine = sa.create_engine(self._url, connect_args={"timeout": _PATIENCE}, hide_parameters=True)
        sa.event.listen(engine, "connect", _configure)
        sa.event.listen(engine, "begin", _begin)
        return engine

    def exists(self) -> bool:
        """Whether there is a ledger. Raises `LedgerCorrupt` for another schema version or a file that is no ledger."""
        if self.path is not None and not self.path.exists():
            return False
        with self.reading() as connection:
            if not sa.inspect(connection).has_table("dpflow_meta"):
                if self.path is not None and sa.inspect(connection).get_table_names():
                    raise LedgerCorrupt(f"{self!r} is a database but no dpflow ledger; name another file")
                return False
            found = connection.scalar(sa.select(schema.meta.c.value).where(schema.meta.c.name == "schema"))
        if found != schema.VERSION:
            raise LedgerCorrupt(
                f"{self!r} has ledger schema version {found}, this dpflow reads only {schema.VERSION}; "
                f"use the dpflow that made it to export it"
            )
        return True

    def create(self) -> None:
        """Make the tables; harmless if another process just did."""
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            os.close(os.open(self.path, os.O_CREAT | os.O_RDWR, 0o600))
        with self.writing() as connection:
            if sa.inspect(connection).has_table("dpflow_meta"):
                return
            schema.metadata.create_all(connection)
            for statement in schema.APPEND_ONLY["sqlite" if self.sqlite else "postgresql"]:
                connection.execute(sa.text(statement))
            connection.execute(schema.meta.insert().values(name="schema", value=schema.VERSION))


def _configure(connection: sqlite3.Connection, _: object) -> None:
    connection.isolation_level = None  # we say BEGIN ourselves
    for pragma in ("journal_mode = WAL", "synchronous = FULL", "foreign_keys = ON"):
        connection.execute(f"PRAGMA {pragma}")


def _begin(connection: sa.Connection) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE" if connection.get_execution_options().get("write") else "BEGIN")


def _translated(error: exc.DBAPIError, place: str) -> DpflowError:
    """A driver's error in our words; its own text may hold a URL or values, so only its class is named."""
    kind = type(error.orig).__name__
    message = str(error.orig).lower()
    if "not a database" in message or "malformed" in message:
        return LedgerCorrupt(f"{place} is not a ledger ({kind}); name the right file, or restore it")
    if isinstance(error, exc.OperationalError | exc.InterfaceError):
        return LedgerUnavailable(
            f"{place} cannot be used now ({kind}): it is locked, full, read-only or out of reach; nothing was recorded, "
            f"so try again when that is mended"
        )
    return LedgerCorrupt(f"{place} refused a statement ({kind}); run dpflow ledger verify")
