"""A ledger's database for whoever only looks: it needs no key, and cannot write.

SQLite opens the file read-only; on PostgreSQL the session is read-only, and the role
``dpflow_reader`` of roles.sql is enough.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import sqlalchemy as sa

from dpflow.errors import InvalidInput
from dpflow.ledger.storage.database import Database
from dpflow.ledger.storage.statements import Read, Transaction

if TYPE_CHECKING:
    import psycopg

_PATIENCE = 5.0  # seconds that a reader waits for SQLite's locks
_LONGEST = 10_000  # milliseconds of a statement on PostgreSQL


class ReadOnlyDatabase(Database):
    """One ledger's database, by path or URL, to be read."""

    @contextlib.contextmanager
    def begin_writing(self, reads: Sequence[Read] = ()) -> Iterator[Transaction]:
        """Refused: raises `InvalidInput`."""
        raise InvalidInput(f"{self!r} was opened to be read; open it as a ledger to write")
        yield

    @contextlib.contextmanager
    def begin_reading(self, reads: Sequence[Read] = ()) -> Iterator[Transaction]:
        """A consistent view; see `Database.begin_reading`."""
        try:
            with super().begin_reading(reads) as transaction:
                yield transaction
        finally:
            # Opened again each time: a file that was replaced would be read as it was, for as long
            # as this process lives.
            while self.sqlite and self._spare:
                self._spare.pop().invalidate()

    def _make_engine(self) -> sa.Engine:
        if not self.sqlite:
            engine = super()._make_engine()
            sa.event.listen(engine, "connect", _make_read_only)
            return engine
        place = f"file:{quote(str(self.path))}?mode=ro"

        def connect() -> sqlite3.Connection:
            return sqlite3.connect(
                place, uri=True, timeout=_PATIENCE, isolation_level=None, check_same_thread=False
            )

        return sa.create_engine("sqlite://", creator=connect, poolclass=sa.QueuePool)


def _make_read_only(connection: psycopg.Connection[Any], _: object) -> None:
    with connection.transaction():
        connection.execute("SET default_transaction_read_only = on")
        connection.execute(f"SET statement_timeout = {_LONGEST}")
