"""DuckDB files that tests write, and private files that they read often.

To start an instance of DuckDB takes 25 ms of CPU, which is most of what a test of a small table costs. So files are
attached to one instance, and private files stay open as long as they are the same.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from dpflow.tables.access import file_list

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
