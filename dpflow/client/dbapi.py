"""DB-API 2.0 (PEP 249) over a `Client`: for `pandas.read_sql`, SQLAlchemy and dashboards.

Published results and stored answers are read freely. New answers are paid only where an epsilon is given, in `connect`
or in the query's own comment, or an error there, and only from a scope with a limit per day: dashboards send many
variants of a query.
Each answer is final when it is there. There are no transactions, so `Connection.commit` has nothing to do and
`Connection.rollback` is not supported.
"""

from __future__ import annotations

import datetime as dt
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from dpflow import errors
from dpflow.analyst_sql.parse.parameters import check_parameters
from dpflow.client.interface import Client
from dpflow.client.open_client import connect as open_client
from dpflow.errors import DpflowError, InvalidInput, UnknownName

if TYPE_CHECKING:
    from dpflow.analyst_sql.answer.sql_answer import SqlAnswer

apilevel = "2.0"
threadsafety = 1
paramstyle = "qmark"


class Warning(Exception):
    """A note that belongs to an answer; see `Cursor.messages`."""


class Error(Exception):
    """The root of the errors of this module; ``__cause__`` is dpflow's own."""


class InterfaceError(Error):
    """This module was used wrongly, such as a closed cursor."""


class DatabaseError(Error):
    """The root of what a query or a service raises."""


class DataError(DatabaseError):
    """A value is none that the query can compute with."""


class OperationalError(DatabaseError):
    """No answer now: a budget is spent, or service, ledger or table are away or say no."""


class IntegrityError(DatabaseError):
    """PEP 249 names it; nothing here raises it."""


class InternalError(DatabaseError):
    """The ledger does not verify, or dpflow failed inside."""


class ProgrammingError(DatabaseError):
    """The query, an option or a name is wrong; nothing was charged."""


class NotSupportedError(DatabaseError):
    """What a client that only asks does not have."""


#: The first that fits.
_CLASSES: tuple[tuple[type[DpflowError], type[DatabaseError]], ...] = (
    (errors.InvalidInput, ProgrammingError),
    (errors.QueryFailed, DataError),
    (errors.LedgerCorrupt, InternalError),
    (errors.UnexpectedFailure, InternalError),
    (DpflowError, OperationalError),
)


#: Columns of what EXPLAIN gives.
_PLAN = [("part", "VARCHAR"), ("plan", "VARCHAR")]


class _Kind:
    """A type object of PEP 249: equal to the type codes of its columns."""

    def __init__(self, *kinds: str) -> None:
        self._kinds = frozenset(kinds)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, _Kind):
            return self._kinds == other._kinds
        return str(other).partition("(")[0] in self._kinds

    def __hash__(self) -> int:
        return hash(self._kinds)


STRING = _Kind("VARCHAR")
BINARY = _Kind("BLOB")
NUMBER = _Kind("BIGINT", "HUGEINT", "DOUBLE", "DECIMAL", "BOOLEAN")
DATETIME = _Kind("DATE", "TIMESTAMP")
ROWID = _Kind("ROWID")
Date, Timestamp, Time = dt.date, dt.datetime, dt.time
DateFromTicks, TimestampFromTicks = dt.date.fromtimestamp, dt.datetime.fromtimestamp


def TimeFromTicks(ticks: float) -> dt.time:  # noqa: N802  PEP 249 names it
    """The time of day of a moment in seconds since 1970, local."""
    return dt.datetime(*time.localtime(ticks)[:6]).time()


def Binary(value: bytes) -> NoReturn:  # noqa: N802  PEP 249 names it
    """Raises `NotSupportedError`: no query has a parameter of bytes."""
    raise NotSupportedError(
        "a query takes numbers, texts, dates and truth values; give one of these"
    )


def connect(
    server: str | None = None,
    *,
    token: str | None = None,
    scope: str | None = None,
    epsilon: str | None = None,
    delta: str | None = None,
) -> Connection:
    """Open a connection to a service, or to tables and ledger of ``dpflow.yml``.

    Args:
        server, token: as of `dpflow.connect`.
        scope: which budget pays; the principal's, or that of ``dpflow.yml``, if left out.
        epsilon, delta: what one new answer may cost; if left out, a query's own comment says it, or only published
            results and stored answers are read.

    Raises:
        Error: there is no such service, or no token.
    """
    with _OurErrors():
        client = open_client(server, token=token)
    return Connection(client, {"scope": scope, "epsilon": epsilon, "delta": delta})


class _OurErrors:
    """Raises dpflow's errors as those of PEP 249, with the same text."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, DpflowError):
            raise next(ours for theirs, ours in _CLASSES if isinstance(error, theirs))(
                str(error)
            ) from error


class Connection:
    """A connection of `connect`.

    Attributes:
        client: what it asks.
        options: ``scope``, ``epsilon`` and ``delta`` of queries that do not say them.
    """

    Warning, Error, InterfaceError, DatabaseError = Warning, Error, InterfaceError, DatabaseError
    DataError, OperationalError, IntegrityError = DataError, OperationalError, IntegrityError
    InternalError, ProgrammingError, NotSupportedError = (
        InternalError,
        ProgrammingError,
        NotSupportedError,
    )

    def __init__(self, client: Client, options: Mapping[str, str | None]) -> None:
        self.client = client
        self.options = {name: text for name, text in options.items() if text is not None}
        self._is_closed = False

    def cursor(self) -> Cursor:
        """A new cursor."""
        self.require_open()
        return Cursor(self)

    def commit(self) -> None:
        """Nothing: each answer is final, and paid, when it is there."""
        self.require_open()

    def rollback(self) -> None:
        """Raises `NotSupportedError`: no charge can be taken back."""
        raise NotSupportedError("an answer that was paid stays paid; there is nothing to roll back")

    def close(self) -> None:
        """Close it; cursors of it cannot be used any more."""
        self._is_closed = True

    def require_open(self) -> None:
        """Raises `InterfaceError` for a closed connection."""
        if self._is_closed:
            raise InterfaceError("the connection is closed; open another one")

    def find_limit_problem(self, view: Mapping[str, Any]) -> str:
        """Why a planned query is not paid: no limit per day holds the scope that pays; "" if it may be.

        Args:
            view: of `Client.explain`.
        """
        if all(release["stored"] for release in view["releases"]):
            return ""
        scope = str(view["scope"])
        ends = [end for end, letter in enumerate(scope) if letter == "/"]
        rows = [row for end in (*ends, None) for row in self.client.remaining(scope[:end])]
        if any(re.fullmatch(r"\d{4}-\d\d-\d\d", str(row.get("period"))) for row in rows):
            return ""
        return (
            f"scope {scope!r} has no limit per day, so a dashboard could spend all of it; let a new quota below it pay: "
            f"dpflow ledger quota {scope}/board --epsilon 1 --period day"
        )

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Cursor:
    """A cursor of PEP 249.

    Attributes:
        description: for each column its name and its type, such as ``BIGINT``, and five times None.
        rowcount: rows of the answer; -1 before there is one.
        arraysize: rows that `fetchmany` gives; 1 at first.
        answer: the `SqlAnswer` with noise intervals; None where published results or EXPLAIN answer.
        messages: what a reader of the answer must know, as pairs of `Warning` and a note.
    """

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.arraysize = 1
        self._is_closed = False
        self._forget()

    def _forget(self) -> None:
        self.description: list[tuple[Any, ...]] | None = None
        self.rowcount = -1
        self.answer: SqlAnswer | None = None
        self.messages: list[tuple[type[Warning], Warning]] = []
        self._rows: Iterator[tuple[Any, ...]] | None = None

    def execute(self, operation: str, parameters: Sequence[Any] = ()) -> Cursor:
        """Answer a SELECT, or an EXPLAIN of one.

        Args:
            operation: the query, with ``?`` where parameters stand; options may stand in its comment.
            parameters: a list or tuple with a value for each ``?``: numbers, texts, dates and truth values; each
                stays one literal.

        Raises:
            ProgrammingError: the parameters are none, or too few or many; nothing was asked.
            DatabaseError: its subclass for the error of dpflow, with the same text.
        """
        self._require_open()
        self._forget()
        with _OurErrors():
            if isinstance(parameters, Mapping):
                raise InvalidInput("parameters are a list or tuple with a value for each ?")
            check_parameters(parameters)
            columns, rows = self._ask(operation, tuple(parameters))
        self.description = [(name, kind, *[None] * 5) for name, kind in columns]
        self.rowcount, self._rows = len(rows), iter(rows)
        return self

    def _ask(
        self, text: str, parameters: tuple[Any, ...]
    ) -> tuple[Sequence[tuple[str, str]], list[tuple[Any, ...]]]:
        # It brings a parser, which whoever only connects need not wait for.
        from dpflow.analyst_sql.answer import published_query
        from dpflow.analyst_sql.answer.plan_text import plan_lines
        from dpflow.analyst_sql.parse.text_and_options import read_source

        client = self.connection.client
        text = published_query.drop_schema(text)
        source = read_source(text)
        found = published_query.find_published(
            source, parameters, client.published, lambda: list_tables(client)
        )
        if found is not None:
            tree, names = found
            if source.explain:
                return _PLAN, [("forecast", "free: published results answer it")]
            tables = [client.read_published(name) for name in sorted(names)]
            self.messages = [
                (Warning, Warning(note)) for note in published_query.describe_rest(tree, tables)
            ]
            made = published_query.answer_published(tree, tables)
            return made.columns, made.rows
        # What the text says goes before what the connection says.
        options: dict[str, Any] = {
            name: value
            for name, value in self.connection.options.items()
            if name not in source.options
        }
        if "error" in source.options:
            options.pop("epsilon", None)
        elif "epsilon" not in source.options:
            options.setdefault("epsilon", "0")
        is_free = "0" in (options.get("epsilon"), source.options.get("epsilon"))
        if source.explain or not is_free:
            view = client.explain(text, parameters=parameters, **options)
            problem = self.connection.find_limit_problem(view)
            if source.explain:
                view |= {"forecast": f"refused: {problem}"} if problem else {}
                return _PLAN, list(plan_lines(view))
            if problem:
                raise errors.PlanRefused(problem)
            # No other one, which the file may name by now.
            if "scope" not in source.options:
                options["scope"] = view["scope"]
        answer = client.sql(text, parameters=parameters, **options)
        self.answer = answer
        self.messages = [(Warning, Warning(note)) for note in answer.notes]
        listed = answer.list_columns()
        rows = list(zip(*(values for _, _, values in listed)))
        return [(name, kind) for name, kind, _ in listed], rows

    def executemany(self, operation: str, parameters: Sequence[Sequence[Any]]) -> NoReturn:
        """Raises `NotSupportedError`: nothing is written, and each query has an answer."""
        raise NotSupportedError("many queries have many answers; call execute for each")

    def fetchone(self) -> tuple[Any, ...] | None:
        """The next row; None behind the last one."""
        return next(self._require_rows(), None)

    def fetchmany(self, size: int | None = None) -> list[tuple[Any, ...]]:
        """The next rows, at most ``size`` or `arraysize`."""
        rows = self._require_rows()
        wanted = self.arraysize if size is None else size
        return [row for _, row in zip(range(wanted), rows)]

    def fetchall(self) -> list[tuple[Any, ...]]:
        """All rows that were not fetched yet."""
        return list(self._require_rows())

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return self._require_rows()

    def close(self) -> None:
        """Close it."""
        self._is_closed = True

    def setinputsizes(self, sizes: Sequence[Any]) -> None:
        """Nothing, as PEP 249 allows."""

    def setoutputsize(self, size: int, column: int | None = None) -> None:
        """Nothing, as PEP 249 allows."""

    def __enter__(self) -> Cursor:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _require_open(self) -> None:
        self.connection.require_open()
        if self._is_closed:
            raise InterfaceError("the cursor is closed; open another one")

    def _require_rows(self) -> Iterator[tuple[Any, ...]]:
        self._require_open()
        if self._rows is None:
            raise InterfaceError("no query was answered; call execute first")
        return self._rows


def list_tables(client: Client) -> list[str]:
    """Names of the private tables that may be asked about."""
    with _OurErrors():
        return [str(row["table"]) for row in client.tables()]


def list_published(client: Client) -> list[str]:
    """Names of the published results that may be read."""
    with _OurErrors():
        return client.published()


def list_columns(client: Client, name: str) -> list[tuple[str, str]] | None:
    """Columns of a private table or published result with their types, "" where they are not known; None if there is
    no such table.
    """
    with _OurErrors():
        try:
            columns = client.describe(name)["columns"]
            return [(str(row["column"]), str(row["type"])) for row in columns]
        except UnknownName:
            pass
        try:
            return [(column, kind) for column, kind in client.read_published(name).columns]
        except UnknownName:
            return None
