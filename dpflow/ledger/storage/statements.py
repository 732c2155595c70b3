"""Statements and transactions: SQLAlchemy Core compiled once, run on the driver's own connection."""

from __future__ import annotations

import contextlib
import operator
import sqlite3
from abc import ABC, abstractmethod
from collections import namedtuple
from collections.abc import Callable, Generator, Mapping, Sequence
from functools import cache, cached_property
from operator import itemgetter
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import sqlite
from sqlalchemy.schema import CreateIndex, CreateTable

from dpflow import fault_points
from dpflow.ledger.storage import schema
from dpflow.ledger.storage.compact_json import encode_json


@cache
def load_dialect(driver: str) -> sa.Dialect:
    """What SQL is compiled for: ``sqlite``, with parameters as ``?``, or ``postgresql``, with ``$1``."""
    if driver == "sqlite":
        return sqlite.dialect(paramstyle="qmark")
    from sqlalchemy.dialects import postgresql

    dialect: sa.Dialect = postgresql.dialect(paramstyle="numeric_dollar")  # type: ignore[no-untyped-call]
    return dialect


Statement = sa.Select[Any] | sa.CompoundSelect[Any] | sa.Insert | sa.Update


class Prepared:
    """A Core statement, compiled once for each driver. Its parameters are named ``bindparam``s.

    Args:
        statement: on SQLite, and on PostgreSQL if there is no other for it.
        on_postgresql: makes the same there.
        bulk: makes a change of many rows at once on PostgreSQL, as its parameter ``rows``.
    """

    def __init__(
        self,
        statement: Statement,
        on_postgresql: Callable[[], Statement] | None = None,
        *,
        bulk: Callable[[], Statement] | None = None,
    ) -> None:
        self._statement, self._bulk = statement, bulk
        self.on = _Compiled(statement, on_postgresql)

    @cached_property
    def bulk(self) -> Prepared | None:
        """The change of many rows, if it has one."""
        return None if self._bulk is None else Prepared(self._bulk())

    @cached_property
    def row(self) -> Any:
        """The class of its result's rows."""
        statement = self._statement
        selected = statement.selected_columns if isinstance(statement, sa.SelectBase) else ()
        return namedtuple("row", [c.name for c in selected], rename=True)

    def bind_values(self, driver: str, parameters: dict[str, Any]) -> tuple[str, tuple[Any, ...]]:
        """SQL text for a driver, and the parameters in its order. Rows, a list of mappings, are packed
        as `_unpack_rows` and `prepare_lookup` read them.
        """
        sql, ordered = self.on[driver]
        rows = parameters.get("rows")
        if rows is not None and driver == "postgresql":
            parameters = {name: [row[name] for row in rows] for name in rows[0]}
        elif rows is not None:
            values = [[*row.values()] for row in rows]
            packed = values if len(rows[0]) > 1 else [value for (value,) in values]
            parameters = {"rows": encode_json(packed)}
        return sql, ordered(parameters)


class _Compiled(dict[str, tuple[str, Callable[[Mapping[str, Any]], tuple[Any, ...]]]]):
    """By driver: SQL text, and what puts parameters into its order."""

    def __init__(self, statement: Statement, on_postgresql: Callable[[], Statement] | None) -> None:
        self._statement, self._on_postgresql = statement, on_postgresql

    def __missing__(
        self, driver: str
    ) -> tuple[str, Callable[[Mapping[str, Any]], tuple[Any, ...]]]:
        other = self._on_postgresql if driver == "postgresql" else None
        statement = self._statement if other is None else other()
        compiled: Any = statement.compile(dialect=load_dialect(driver))
        ordered = pick_values(compiled.positiontup or ())
        constants = {name: value for name, value in compiled.params.items() if value is not None}
        form = self[driver] = (
            str(compiled),
            (lambda given: ordered({**constants, **given})) if constants else ordered,
        )
        return form


def pick_values(keys: Sequence[Any]) -> Callable[[Any], tuple[Any, ...]]:
    """What takes the values under these keys out of a mapping or a sequence."""
    if len(keys) > 1:
        return itemgetter(*keys)
    return lambda given: tuple([given[key] for key in keys])


Read = tuple[Prepared, dict[str, Any]]  # a statement that reads, and its parameters
BoundStatement = tuple[str, tuple[Any, ...]]  # its text for a driver, and values in order
MakeRow = Callable[[Sequence[Any]], Any]
LoadRows = Callable[[MakeRow], list[Any]]  # the rows of a result, each made into what is wanted


def match_columns(*columns: sa.Column[Any]) -> sa.ColumnElement[bool]:
    """Equality of columns with parameters of the same names."""
    return sa.and_(*(column == sa.bindparam(column.name, type_=column.type) for column in columns))


def _unpack_rows(columns: Sequence[sa.Column[Any]]) -> Any:
    """On PostgreSQL: the rows whose columns are the parameters, each a list of texts or integers."""
    kinds = {c.name: sa.BigInteger if isinstance(c.type, sa.Integer) else sa.Text for c in columns}
    lists = [sa.bindparam(name, type_=sa.ARRAY(kind)) for name, kind in kinds.items()]
    rows = sa.func.unnest(*lists).table_valued(*(sa.column(*kind) for kind in kinds.items()))
    return rows.render_derived(name="packed")


def prepare_insert(table: sa.Table, *, replace: bool = False) -> Prepared:
    """An insert of whole rows.

    Args:
        replace: a row with the same key gets the new values.
    """
    columns = list(table.columns)
    values: dict[str, Any] = {c.name: sa.bindparam(c.name) for c in columns}
    keys = [column.name for column in table.primary_key]

    def overwrite(insert: Any) -> Any:
        if not replace:
            return insert
        new = {name: insert.excluded[name] for name in values if name not in keys}
        return insert.on_conflict_do_update(index_elements=keys, set_=new)

    def start_insert() -> Any:
        from sqlalchemy.dialects import postgresql

        return postgresql.insert(table)

    def insert_many() -> Any:
        packed = _unpack_rows(columns)
        rows = sa.select(*(packed.c[name] for name in values))
        return overwrite(start_insert().from_select([*values], rows))

    return Prepared(
        overwrite(sqlite.insert(table).values(values)),
        lambda: overwrite(start_insert().values(values)),
        bulk=insert_many,
    )


def prepare_lookup(
    columns: Sequence[sa.Column[Any]], identity: Sequence[sa.Column[Any]]
) -> Prepared:
    """A read of all rows with any of many identities, which are its parameter ``rows``: mappings in
    the order of ``identity``.
    """
    keys = sa.func.json_each(sa.bindparam("rows", type_=sa.Text)).table_valued("value", name="key")
    values = [
        sa.func.json_extract(keys.c.value, sa.literal_column(f"'$[{index}]'"))
        for index in range(len(identity))
    ]
    # A list of lists takes twice the time of a list.
    matches = map(operator.eq, identity, values if len(identity) > 1 else [keys.c.value])
    return Prepared(
        sa.select(*columns).select_from(keys.join(columns[0].table, sa.and_(*matches))),
        lambda: _look_up_packed(columns, identity),
    )


def _look_up_packed(
    columns: Sequence[sa.Column[Any]], identity: Sequence[sa.Column[Any]]
) -> Statement:
    packed = _unpack_rows(identity)
    # Each key by the index, however small the table was when this was planned: an inner query with
    # an offset is not joined in any other way.
    inner = (
        sa.select(*columns)
        .where(*(column == packed.c[column.name] for column in identity))
        .offset(sa.literal_column("0"))
        .lateral("found")
    )
    return sa.select(*(inner.c[column.name] for column in columns)).select_from(
        packed.join(inner, sa.true())
    )


def _do_nothing() -> None:
    pass


class Transaction(ABC):
    """What runs between begin and commit."""

    def __init__(self, connection: Any, driver: str) -> None:
        self._connection, self._driver = connection, driver
        #: What `begin` read, in the order in which it was asked.
        self.read_ahead: list[list[Any]] = []
        #: Called before anything is read: whoever holds changes back sends them now.
        self.before_reading: Callable[[], None] = _do_nothing

    @abstractmethod
    def begin(self, statements: Sequence[str], reads: Sequence[Read] = ()) -> None:
        """Start it, and read what is needed from the first, all at once."""

    @abstractmethod
    def run(self, statement: Prepared, **parameters: Any) -> None:
        """Execute a change."""

    @abstractmethod
    def many(self, statement: Prepared, parameters: Sequence[dict[str, Any]]) -> None:
        """Execute a change once per mapping."""

    @abstractmethod
    def send_changes(self) -> None:
        """Send what waits: for whoever writes more than fits into memory."""

    @abstractmethod
    def rows(self, statement: Prepared, **parameters: Any) -> list[Any]:
        """All rows."""

    def first(self, statement: Prepared, **parameters: Any) -> Any:
        """The first row of a few, or None."""
        rows = self.rows(statement, **parameters)
        return rows[0] if rows else None

    @abstractmethod
    def stream(self, statement: Prepared, **parameters: Any) -> Generator[Any, None, None]:
        """All rows, a few at a time: for reading more than fits into memory."""

    @abstractmethod
    def text(self, sql: str, parameters: Sequence[Any] = ()) -> list[Any]:
        """Run one of our own constant statements."""

    def commit(self) -> None:
        """Make it visible to others."""
        self.before_reading = _do_nothing
        self._commit()

    @abstractmethod
    def _commit(self) -> None:
        """Make it visible to others."""

    def rollback(self) -> None:
        """Leave nothing."""
        self.before_reading = _do_nothing
        self._connection.rollback()

    @property
    def dialect(self) -> str:
        """``sqlite`` or ``postgresql``."""
        return self._driver

    def has_ledger(self) -> bool:
        """Whether the tables exist."""
        if self.dialect == "sqlite":
            return bool(self.text("SELECT 1 FROM sqlite_master WHERE name = 'dpflow_meta'"))
        return self.text("SELECT to_regclass('dpflow_meta')")[0][0] is not None

    def create_tables(self) -> None:
        """Make tables, indices and triggers."""
        dialect = load_dialect(self._driver)
        for table in schema.metadata.sorted_tables:
            self.text(str(CreateTable(table).compile(dialect=dialect)))
            for index in sorted(table.indexes, key=lambda index: str(index.name)):
                options = index.dialect_options
                options[dialect.name]["where"] = options["sqlite"]["where"]
                self.text(str(CreateIndex(index).compile(dialect=dialect)))
        for statement in schema.TRIGGERS[dialect.name]:
            self.text(statement)


class SqliteTransaction(Transaction):
    """Each statement runs at once, on one cursor."""

    def __init__(self, connection: Any) -> None:
        super().__init__(connection, "sqlite")
        cursor = connection.cursor()
        self._cursor: Any = (
            cursor if fault_points.after_statement is None else fault_points.Watched(cursor)
        )
        self._streams: list[Any] = []

    def begin(self, statements: Sequence[str], reads: Sequence[Read] = ()) -> None:
        for sql in statements:
            self._cursor.execute(sql)
        self.read_ahead = [self.rows(statement, **parameters) for statement, parameters in reads]

    def run(self, statement: Prepared, **parameters: Any) -> None:
        self._cursor.execute(*statement.bind_values(self._driver, parameters))

    def many(self, statement: Prepared, parameters: Sequence[dict[str, Any]]) -> None:
        if parameters:
            sql, ordered = statement.on[self._driver]
            self._cursor.executemany(sql, [*map(ordered, parameters)])

    def send_changes(self) -> None:
        """Nothing waits."""

    def rows(self, statement: Prepared, **parameters: Any) -> list[Any]:
        self.before_reading()
        self._cursor.execute(*statement.bind_values(self._driver, parameters))
        return [statement.row._make(row) for row in self._cursor.fetchall()]

    def stream(self, statement: Prepared, **parameters: Any) -> Generator[Any, None, None]:
        self.before_reading()
        cursor = self._connection.cursor()
        self._streams.append(cursor)
        with contextlib.closing(cursor):
            cursor.execute(*statement.bind_values(self._driver, parameters))
            yield from map(statement.row._make, cursor)

    def text(self, sql: str, parameters: Sequence[Any] = ()) -> list[Any]:
        self.before_reading()
        self._cursor.execute(sql, parameters)
        return list(self._cursor.fetchall())

    def _commit(self) -> None:
        # After some errors SQLite undoes the transaction by itself, and there is nothing to commit.
        if not self._connection.in_transaction:
            raise sqlite3.OperationalError("the transaction was rolled back")
        self._end_streams()
        self._connection.commit()
        fault_points.pass_statement()

    def rollback(self) -> None:
        self._cursor.close()
        self._end_streams()
        super().rollback()

    def _end_streams(self) -> None:
        # A statement that was not read to its end would go on reading: the connection would see what it
        # saw, and hold its locks, as long as somebody has the generator, or an error that went through it.
        for cursor in self._streams:
            cursor.close()
