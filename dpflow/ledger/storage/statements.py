"""Statements and transactions: SQLAlchemy Core compiled once, run on the driver's own connection."""

from __future__ import annotations

import itertools
from collections import namedtuple
from collections.abc import Callable, Generator, Mapping, Sequence
from operator import itemgetter
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.schema import CreateIndex, CreateTable

from dpflow import fault_points
from dpflow.ledger.storage import schema

#: How each driver wants its parameters: sqlite3, and psycopg's cursors.
DIALECTS: dict[str, sa.Dialect] = {
    "sqlite": sqlite.dialect(paramstyle="qmark"),
    "postgresql": postgresql.dialect(paramstyle="format"),  # type: ignore[no-untyped-call]
}


Statement = sa.Select[Any] | sa.CompoundSelect[Any] | sa.Insert | sa.Update


class Prepared:
    """A Core statement, compiled once for each driver. Its parameters are named ``bindparam``s."""

    def __init__(self, statement: Statement) -> None:
        self.on = _Compiled(statement)
        columns = (
            [c.name for c in statement.selected_columns]
            if isinstance(statement, sa.SelectBase)
            else []
        )
        self.row: Any = namedtuple("row", columns, rename=True)  # type: ignore[misc]

    def bind_values(self, driver: str, parameters: dict[str, Any]) -> tuple[str, tuple[Any, ...]]:
        """SQL text for a driver, and the parameters in its order."""
        sql, ordered = self.on[driver]
        return sql, ordered(parameters)


class _Compiled(dict[str, tuple[str, Callable[[Mapping[str, Any]], tuple[Any, ...]]]]):
    """By driver: SQL text, and what puts parameters into its order."""

    def __init__(self, statement: Statement) -> None:
        self._statement = statement

    def __missing__(
        self, driver: str
    ) -> tuple[str, Callable[[Mapping[str, Any]], tuple[Any, ...]]]:
        compiled: Any = self._statement.compile(dialect=DIALECTS[driver])
        ordered = _in_order(compiled.positiontup or ())
        constants = {name: value for name, value in compiled.params.items() if value is not None}
        form = self[driver] = (
            str(compiled),
            (lambda given: ordered({**constants, **given})) if constants else ordered,
        )
        return form


def _in_order(names: Sequence[str]) -> Callable[[Mapping[str, Any]], tuple[Any, ...]]:
    """What takes these values out of a mapping."""
    if len(names) > 1:
        return itemgetter(*names)
    return lambda given: tuple([given[name] for name in names])


Read = tuple[Prepared, dict[str, Any]]  # a statement that reads, and its parameters


def match_columns(*columns: sa.Column[Any]) -> sa.ColumnElement[bool]:
    """Equality of columns with parameters of the same names."""
    return sa.and_(*(column == sa.bindparam(column.name, type_=column.type) for column in columns))


def prepare_insert(table: sa.Table) -> Prepared:
    """An insert of one whole row."""
    return Prepared(table.insert().values({c.name: sa.bindparam(c.name) for c in table.columns}))


_cursor_number = itertools.count()


class Transaction:
    """What runs between begin and commit, on a driver's cursor."""

    def __init__(self, connection: Any, driver: str) -> None:
        self._connection, self._driver = connection, driver
        cursor = connection.cursor()
        self._cursor: Any = (
            cursor if fault_points.after_statement is None else fault_points.Watched(cursor)
        )

    def run(self, statement: Prepared, **parameters: Any) -> None:
        """Execute a change."""
        sql, ordered = statement.on[self._driver]
        self._cursor.execute(sql, ordered(parameters))

    def many(self, statement: Prepared, parameters: Sequence[dict[str, Any]]) -> None:
        """Execute a change once per mapping."""
        if parameters:
            bound = [statement.bind_values(self._driver, row) for row in parameters]
            self._cursor.executemany(bound[0][0], [values for _, values in bound])

    def first(self, statement: Prepared, **parameters: Any) -> Any:
        """The first row, or None."""
        sql, ordered = statement.on[self._driver]
        self._cursor.execute(sql, ordered(parameters))
        row = self._cursor.fetchone()
        return None if row is None else statement.row._make(row)

    def rows(self, statement: Prepared, **parameters: Any) -> list[Any]:
        """All rows."""
        sql, ordered = statement.on[self._driver]
        self._cursor.execute(sql, ordered(parameters))
        return [statement.row._make(row) for row in self._cursor.fetchall()]

    def stream(self, statement: Prepared, **parameters: Any) -> Generator[Any, None, None]:
        """All rows, a few at a time: for reading more than fits into memory."""
        sql, ordered = statement.on[self._driver]
        # On PostgreSQL only a cursor with a name stays at the server.
        name = () if self._driver == "sqlite" else (f"dpflow_{next(_cursor_number)}",)
        cursor = self._connection.cursor(*name)
        try:
            cursor.execute(sql, ordered(parameters))
            for row in cursor:
                yield statement.row._make(row)
        finally:
            cursor.close()

    def text(self, sql: str, parameters: Sequence[Any] = ()) -> list[Any]:
        """Run one of our own constant statements."""
        self._cursor.execute(sql, parameters) if parameters else self._cursor.execute(sql)
        return list(self._cursor.fetchall()) if sql.startswith(("SELECT", "PRAGMA")) else []

    def commit(self) -> None:
        """Make it visible to others."""
        self._connection.commit()
        fault_points.pass_statement()

    def rollback(self) -> None:
        """Leave nothing."""
        self._connection.rollback()

    @property
    def dialect(self) -> str:
        """``sqlite`` or ``postgresql``."""
        return DIALECTS[self._driver].name

    def has_ledger(self) -> bool:
        """Whether the tables exist."""
        if self.dialect == "sqlite":
            return bool(self.text("SELECT 1 FROM sqlite_master WHERE name = 'dpflow_meta'"))
        return self.text("SELECT to_regclass('dpflow_meta')")[0][0] is not None

    def create_tables(self) -> None:
        """Make tables, indices and triggers."""
        dialect = DIALECTS[self._driver]
        for table in schema.metadata.sorted_tables:
            self.text(str(CreateTable(table).compile(dialect=dialect)))
            for index in sorted(table.indexes, key=lambda index: str(index.name)):
                self.text(str(CreateIndex(index).compile(dialect=dialect)))
        for statement in schema.APPEND_ONLY[dialect.name]:
            self.text(statement)


class PostgresTransaction(Transaction):
    """Changes wait until something is read or committed, and go out together: a network is slow."""

    def __init__(self, connection: Any) -> None:
        super().__init__(connection, "postgresql")
        self._waiting: list[tuple[str, tuple[Any, ...]]] = []

    def run(self, statement: Prepared, **parameters: Any) -> None:
        self._waiting.append(statement.bind_values(self._driver, parameters))

    def many(self, statement: Prepared, parameters: Sequence[dict[str, Any]]) -> None:
        self._waiting += [statement.bind_values(self._driver, row) for row in parameters]

    def _send_changes(self) -> None:
        waiting, self._waiting = self._waiting, []
        if len(waiting) > 1 and fault_points.after_statement is None:
            with self._connection.pipeline():
                for sql, values in waiting:
                    self._cursor.execute(sql, values)
        else:
            for sql, values in waiting:
                self._cursor.execute(sql, values)

    def first(self, statement: Prepared, **parameters: Any) -> Any:
        self._send_changes()
        return super().first(statement, **parameters)

    def rows(self, statement: Prepared, **parameters: Any) -> list[Any]:
        self._send_changes()
        return super().rows(statement, **parameters)

    def stream(self, statement: Prepared, **parameters: Any) -> Any:
        self._send_changes()
        return super().stream(statement, **parameters)

    def text(self, sql: str, parameters: Sequence[Any] = ()) -> list[Any]:
        self._send_changes()
        return super().text(sql, parameters)

    def commit(self) -> None:
        self._send_changes()
        super().commit()
