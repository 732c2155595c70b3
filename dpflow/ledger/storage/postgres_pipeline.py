"""A writer's transaction on PostgreSQL, in as few round trips as there are dependent steps.

Everybody else waits while a writer has its turn, so it must not spend it on the network or in a
driver: the begin, the lock and the reads go out together, and so do the writes, the commit and the
flush. psycopg's cursors can pipeline, too, but spend more time on each statement than the server
does; this speaks to libpq, which psycopg documents as ``psycopg.pq``.
"""

from __future__ import annotations

import select
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import psycopg
from psycopg import pq

from dpflow import fault_points
from dpflow.errors import InvalidInput
from dpflow.ledger.storage.statements import Prepared, Read, Transaction

_INTEGERS = frozenset({20, 21, 23})  # object ids of bigint, smallint and integer
_STATUS = pq.ExecStatus
_FINE = frozenset({_STATUS.COMMAND_OK, _STATUS.TUPLES_OK})
# An empty record, which carries all before it to the disk.
FLUSH = "SELECT pg_logical_emit_message(true, 'dpflow', '')"
Command = tuple[str, Sequence[Any]]


class Wire:
    """One connection, as batches of statements.

    Args:
        prepared: the names of the statements that this connection knows; each is prepared once.
    """

    def __init__(self, connection: psycopg.Connection[Any], prepared: dict[str, bytes]) -> None:
        self._pg, self._names = connection.pgconn, prepared
        self._poll = select.poll()

    def ask(self, *batches: Sequence[Command]) -> list[list[Any]]:
        """Send batches in one go; the rows of each statement, in order. A failed statement stops
        its batch, not the next.

        Raises:
            psycopg.Error: of the first statement that failed, after everything was answered.
        """
        pg, new = self._pg, dict[str, bytes]()
        expected: list[tuple[str, str]] = []
        pg.enter_pipeline_mode()
        for batch in batches:
            for sql, values in batch:
                name = self._names.get(sql) or new.get(sql)
                if name is None:
                    name = new[sql] = b"dpflow_%d" % (len(self._names) + len(new))
                    pg.send_prepare(name, sql.encode())
                    expected.append(("prepare", sql))
                pg.send_query_prepared(name, [_encode_value(value) for value in values] or None)
                expected.append(("rows", sql))
            pg.pipeline_sync()
            expected.append(("sync", ""))
        self._send_all()
        answers, failed = [], None
        for kind, sql in expected:
            result = self._next_result()
            if result.status == _STATUS.PIPELINE_SYNC:
                continue
            # Later results of the batch only say that it was broken off; the first says why.
            if result.status not in _FINE:
                failed = failed or result
            # A name counts only once the server has it; a failed prepare is sent again.
            elif kind == "prepare":
                self._names[sql] = new[sql]
            else:
                answers.append(_decode_rows(result))
            while self._next_or_none() is not None:
                pass
        pg.exit_pipeline_mode()
        if failed is not None:
            raise _make_error(failed)
        return answers

    def require_idle(self) -> None:
        """Raises `psycopg.OperationalError` if a batch was broken off, after which nobody knows
        what will be answered.
        """
        if self._pg.pipeline_status != pq.PipelineStatus.OFF:
            raise psycopg.OperationalError("a batch was broken off")

    def _send_all(self) -> None:
        self._poll.register(self._pg.socket, select.POLLIN | select.POLLOUT)
        # Answers are read while statements go out, or both sides could wait on full buffers.
        while self._pg.flush():
            if any(event & select.POLLIN for _, event in self._poll.poll()):
                self._pg.consume_input()
        self._poll.register(self._pg.socket, select.POLLIN)

    def _next_result(self) -> Any:
        result = self._next_or_none()
        if result is None:
            raise psycopg.OperationalError("the connection was lost")
        return result

    def _next_or_none(self) -> Any:
        while self._pg.is_busy():
            self._poll.poll()
            self._pg.consume_input()
        return self._pg.get_result()


def _encode_value(value: Any) -> bytes | None:
    """A parameter in PostgreSQL's text format, which ends at a NUL."""
    if value is None:
        return None
    data = str.encode(value) if isinstance(value, str) else b"%d" % value
    if b"\0" in data:
        raise InvalidInput(
            "a text with a NUL character was asked for, which no database can hold; correct it"
        )
    return data


def _decode_rows(result: Any) -> list[tuple[Any, ...]]:
    width = range(result.nfields)
    integer = [result.ftype(column) in _INTEGERS for column in width]

    def value(row: int, column: int) -> Any:
        data = result.get_value(row, column)
        return None if data is None else int(data) if integer[column] else data.decode()

    return [tuple(value(row, column) for column in width) for row in range(result.ntuples)]


def _make_error(result: Any) -> psycopg.Error:
    """psycopg's exception for an error; the server's text goes no further than the ledger's own
    translation.
    """
    state = (result.error_field(pq.DiagnosticField.SQLSTATE) or b"").decode()
    try:
        return psycopg.errors.lookup(state)(result.get_error_message())
    except KeyError:
        return psycopg.DatabaseError(state)


class WireTransaction(Transaction):
    """Writes wait until something must be known, or until the commit; reads that were asked for
    ahead are there already.
    """

    def __init__(
        self,
        connection: psycopg.Connection[Any],
        wire: Wire,
        begin: Sequence[str],
        ahead: Iterable[Read],
    ) -> None:
        super().__init__(connection, "wire")
        self._wire = wire
        self._ahead: dict[Any, list[Any]] = {}
        self._waiting: list[Command] = [(sql, ()) for sql in begin]
        reads = list(ahead)
        answers = self._send_commands(
            [statement.bind_values("wire", parameters) for statement, parameters in reads]
        )
        if reads:
            for (statement, parameters), rows in zip(reads, answers[-len(reads) :]):
                self._ahead[statement, *parameters.items()] = rows

    def _send_commands(
        self, commands: Sequence[Command], *more: Sequence[Command]
    ) -> list[list[Any]]:
        """Send what waits, these statements and further batches."""
        batches, self._waiting = [[*self._waiting, *commands], *more], []
        if fault_points.after_statement is None:
            return self._wire.ask(*batches)
        answers = []
        for command in (command for batch in batches for command in batch):
            answers += self._wire.ask([command])
            fault_points.pass_statement()
        return answers

    def run(self, statement: Prepared, **parameters: Any) -> None:
        # What was read ahead may be changed by this write.
        self._ahead.clear()
        self._waiting.append(statement.bind_values("wire", parameters))

    def many(self, statement: Prepared, parameters: Sequence[dict[str, Any]]) -> None:
        self._ahead.clear()
        self._waiting += [statement.bind_values("wire", values) for values in parameters]

    def first(self, statement: Prepared, **parameters: Any) -> Any:
        rows = self.rows(statement, **parameters)
        return rows[0] if rows else None

    def rows(self, statement: Prepared, **parameters: Any) -> list[Any]:
        rows = self._ahead.get((statement, *parameters.items()))
        if rows is None:
            rows = self._send_commands([statement.bind_values("wire", parameters)])[-1]
        return [statement.row._make(row) for row in rows]

    def stream(self, statement: Prepared, **parameters: Any) -> Iterator[Any]:
        self._send_commands([])
        return super().stream(statement, **parameters)

    def text(self, sql: str, parameters: Sequence[Any] = ()) -> list[Any]:
        # psycopg runs this one itself, so what waits must go out before.
        self._send_commands([])
        return super().text(sql, parameters)

    def rollback(self) -> None:
        self._waiting.clear()
        self._wire.require_idle()
        super().rollback()

    def commit(self) -> None:
        """Let the next writer in, then wait until the disk has it: both are on their way in one
        batch each.
        """
        self._send_commands([("COMMIT", ())], [(FLUSH, ())])
