"""`PostgresTransaction`: statements that go to a server together."""

from __future__ import annotations

import itertools
from collections.abc import Generator, Sequence
from typing import Any

from dpflow import fault_points
from dpflow.ledger.storage.statements import (
    BoundStatement,
    LoadRows,
    MakeRow,
    Prepared,
    Read,
    Transaction,
)

_cursor_number = itertools.count()


class PostgresTransaction(Transaction):
    """Statements go out together, because a network is slow: those that begin it with what is read
    ahead, and its changes with the commit or before the next read.

    Args:
        after_commit: a statement that goes out with the commit, as a transaction of its own.
    """

    def __init__(self, connection: Any, after_commit: str | None = None) -> None:
        super().__init__(connection, "postgresql")
        self._end = ["COMMIT", *([] if after_commit is None else [after_commit])]
        self._waiting: list[BoundStatement] = []

    def begin(self, statements: Sequence[str], reads: Sequence[Read] = ()) -> None:
        bound = [statement.bind_values(self._driver, given) for statement, given in reads]
        results = self._run_together([*((sql, ()) for sql in statements), *bound])
        self.read_ahead = [
            load(statement.row._make)
            for (statement, _), load in zip(reads, results[len(statements) :], strict=True)
        ]

    def run(self, statement: Prepared, **parameters: Any) -> None:
        self._waiting.append(statement.bind_values(self._driver, parameters))

    def many(self, statement: Prepared, parameters: Sequence[dict[str, Any]]) -> None:
        if statement.bulk is not None and len(parameters) > 1:
            self.run(statement.bulk, rows=parameters)
        else:
            self._waiting += [statement.bind_values(self._driver, row) for row in parameters]

    def _run_together(self, statements: Sequence[BoundStatement]) -> list[LoadRows]:
        """What loads the rows of each statement, of all in one round trip."""
        from dpflow.ledger.storage.postgres_pipeline import run_pipeline

        if fault_points.after_statement is None:
            return run_pipeline(self._connection, statements)
        results = []
        for statement in statements:
            results += run_pipeline(self._connection, [statement])
            fault_points.pass_statement()
        return results

    def _send_and_read(self, statement: BoundStatement, make_row: MakeRow) -> list[Any]:
        """Send what waits, and a statement behind it; returns its rows."""
        self.before_reading()
        waiting, self._waiting = self._waiting, []
        return self._run_together([*waiting, statement])[-1](make_row)

    def send_changes(self) -> None:
        self.before_reading()
        waiting, self._waiting = self._waiting, []
        if waiting:
            self._run_together(waiting)

    def rows(self, statement: Prepared, **parameters: Any) -> list[Any]:
        return self._send_and_read(
            statement.bind_values(self._driver, parameters), statement.row._make
        )

    def stream(self, statement: Prepared, **parameters: Any) -> Generator[Any, None, None]:
        from psycopg import RawServerCursor

        self.send_changes()
        # Only a cursor with a name stays at the server.
        with RawServerCursor(self._connection, f"dpflow_{next(_cursor_number)}") as cursor:
            cursor.execute(*statement.bind_values(self._driver, parameters))
            yield from map(statement.row._make, cursor)

    def text(self, sql: str, parameters: Sequence[Any] = ()) -> list[Any]:
        return self._send_and_read((sql, tuple(parameters)), tuple)

    def _commit(self) -> None:
        waiting, self._waiting = self._waiting, []
        self._run_together([*waiting, *((sql, ()) for sql in self._end)])
