"""DuckDB files that tests write, and private files that they read often.

To start an instance of DuckDB takes 20 ms of CPU, which is most of what a test of a small table costs. So files that
tests write are attached to one instance, sessions over private files share another, and those of a test that asks for
`kept_sessions` stay open as long as their files are the same.
"""

from __future__ import annotations

import itertools
import os
import tempfile
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from dpflow.tables.access import file_list, isolated_database, kept_sources

NUMBERS = itertools.count()


@cache
def _start_instance(process: int) -> duckdb.DuckDBPyConnection:
    return duckdb.connect()


@contextmanager
def duckdb_file(
    path: Path | str = ":memory:", read_only: bool = False
) -> Iterator[duckdb.DuckDBPyConnection]:
    """A connection whose default database is the file, which is made if it is not there; by default one in memory."""
    close_sessions()  # nobody writes a file that is open
    cursor, name = _start_instance(os.getpid()).cursor(), f"database{next(NUMBERS)}"
    cursor.execute(f"ATTACH '{path}' AS {name}{' (READ_ONLY)' if read_only else ''}; USE {name}")
    try:
        yield cursor
    finally:
        cursor.execute(f"USE memory; DETACH {name}")
        cursor.close()


def execute(path: Path, *statements: str) -> None:
    """Run statements in a file, which is made if it is not there."""
    with duckdb_file(path) as connection:
        for statement in statements:
            connection.execute(statement)


def query_file(path: Path, query: str) -> list[Any]:
    """The rows of a query over a file that others may have open, with times in UTC."""
    with duckdb.connect(str(path), read_only=True) as connection:
        connection.execute("SET TimeZone = 'UTC'")
        return connection.execute(query).fetchall()


def read_table(path: Path, table: str = "visits") -> list[Any]:
    """All rows of a table of a file, sorted."""
    return query_file(path, f"FROM {table} ORDER BY ALL")


def load_texts(
    connection: duckdb.DuckDBPyConnection,
    columns: Collection[str],
    rows: Sequence[Sequence[str | None]],
) -> None:
    """Make the temporary table ``texts`` of these columns and rows; ``row_place`` numbers them.

    At once: inserted one by one, a thousand rows take a CPU second.
    """
    content = {
        column: pa.array([row[place] for row in rows], pa.string())
        for place, column in enumerate(columns)
    }
    connection.register("given", pa.table(content | {"row_place": pa.array(range(len(rows)))}))
    connection.execute("CREATE OR REPLACE TEMP TABLE texts AS SELECT * FROM given")
    connection.unregister("given")


class SharedSessions:
    """Private sessions, each in an instance of DuckDB that an earlier one left. These instances are locked as a session
    is, but can open what lies in the folder of temporary files.
    """

    def __init__(self) -> None:
        self._start_own, self._lock_own = (
            isolated_database.start_session,
            isolated_database.lock_session,
        )
        self._folder = Path(tempfile.gettempdir())
        self._free: dict[str, list[duckdb.DuckDBPyConnection]] = {}
        self._used: list[duckdb.DuckDBPyConnection] = []

    @contextmanager
    def start_session(
        self, beside: Path | None, what: str, **more: int
    ) -> Iterator[duckdb.DuckDBPyConnection]:
        """As `isolated_database.start_session`."""
        if beside is not None and not beside.resolve().is_relative_to(self._folder):
            with self._start_own(beside, what, **more) as raw:
                yield raw
            return
        settings = isolated_database.session_settings(self._folder) | more
        free = self._free.setdefault(f"{os.getpid()} {settings}", [])
        instance = free.pop() if free else self._start(settings)
        cursor, name = instance.cursor(), f"memory{next(NUMBERS)}"
        cursor.execute(f"ATTACH ':memory:' AS {name}; USE {name}")
        self._used.append(cursor)
        try:
            yield cursor
        finally:
            self._used.remove(cursor)
            cursor.close()
            # An error that DuckDB calls fatal ends its instance.
            with suppress(duckdb.FatalException):
                instance.execute(
                    f"DETACH {name}; DETACH DATABASE IF EXISTS {isolated_database.PRIVATE}"
                )
                free.append(instance)

    def lock_session(
        self, raw: duckdb.DuckDBPyConnection, what: str, paths: Sequence[str] = ()
    ) -> None:
        """As `isolated_database.lock_session`."""
        if not any(raw is used for used in self._used):
            self._lock_own(raw, what, paths)

    def _start(self, settings: dict[str, Any]) -> duckdb.DuckDBPyConnection:
        instance = duckdb.connect(config=settings)
        instance.execute("SET GLOBAL TimeZone = 'UTC'")
        # The cache knows a file by its time, and tests write one again at once.
        instance.execute("SET enable_external_file_cache = false")
        instance.execute(f"SET allowed_directories = ['{self._folder}']")
        self._lock_own(instance, "the tests' instance")
        return instance


SHARED = SharedSessions()


@pytest.fixture(autouse=True)
def shared_sessions(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Private sessions do not start DuckDB, but in a test of what a session is (``own_session``)."""
    if request.node.get_closest_marker("own_session") is None:
        monkeypatch.setattr(isolated_database, "start_session", SHARED.start_session)
        monkeypatch.setattr(isolated_database, "lock_session", SHARED.lock_session)
        monkeypatch.setattr(
            kept_sources, "open_file_again", lambda *named: isolated_database.open_file(*named)
        )


SESSIONS, OPENED = ExitStack(), dict[Any, Any]()


def close_sessions() -> None:
    """Close what `kept_sessions` holds open."""
    OPENED.clear()
    SESSIONS.close()


@pytest.fixture
def kept_sessions(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Sessions over private files that did not change are opened once in the test, as `hold_open` does in a release."""
    real = file_list.open_source

    @contextmanager
    def open_source(database: Path, what: str) -> Iterator[Any]:
        key = database, what, file_list.source_identity(database, what)
        if key not in OPENED:
            OPENED[key] = SESSIONS.enter_context(real(database, what))
        yield OPENED[key]

    monkeypatch.setattr(file_list, "open_source", open_source)
    yield
    close_sessions()
