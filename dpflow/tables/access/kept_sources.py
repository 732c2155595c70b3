"""DuckDB files that stay open between the steps of one question: its plan, its checks, and its releases.

Between two questions the file is closed and DuckDB is kept, which takes 20 times as long to start as to open a
file. Nothing of a question stays in it: tables of ours are those of a connection that is closed, the file is
detached, and the folder to spill into is removed.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import duckdb

from dpflow.tables.access import file_list, isolated_database
from dpflow.tables.access.local_files import file_identity
from dpflow.tables.access.spill import spill_folder


class _FileSession:
    """DuckDB that may open one file and its log, and nothing else, from its start on. A view whose SQL somebody
    answers for could read them as files, too.
    """

    def __init__(self, database: Path, what: str) -> None:
        self._database, self._is_closed = database, False
        self.name = _name_session(database)
        # Made for its name, and once more for each question.
        with spill_folder(database.parent) as self._spill:
            self._raw = isolated_database.start_duckdb(self._spill, what)
        isolated_database.lock_session(self._raw, what, isolated_database.list_names(database))

    def is_usable(self) -> bool:
        """Whether its folder can be made again."""
        folder = self._spill.parent
        return os.access(folder.parent, os.W_OK | os.X_OK) and not os.path.lexists(folder)

    @contextmanager
    def open(self, what: str) -> Iterator[isolated_database.Connection]:
        """As `isolated_database.open_file`. Nothing is kept of a question that fails, nor of one that leaves a spilled file or
        whose folder somebody removed.
        """
        session = self._raw.cursor()

        def detach() -> None:
            session.close()
            try:
                self._raw.execute(f"DETACH {isolated_database.PRIVATE}")
            except duckdb.Error:
                # Then the file is closed with all else, if it was opened.
                self.close()

        try:
            with spill_folder(again=self._spill):
                with isolated_database.attach(session, self._database, what, detach) as connection:
                    yield connection
                is_clean = self._is_spill_empty()
        except BaseException:
            self.close()
            raise
        if not is_clean:
            self.close()
        if self._is_closed:
            return
        _IDLE.append(self)
        while len(_IDLE) > _MAX_IDLE:
            _close_oldest()

    def _is_spill_empty(self) -> bool:
        try:
            return not os.listdir(self._spill)
        except OSError:
            return False

    def close(self) -> None:
        """End it, for good."""
        self._is_closed = True
        self._raw.close()


#: Those that nobody uses, the newest last.
_IDLE: list[_FileSession] = []
_MAX_IDLE = 4


@contextmanager
def open_file_again(database: Path, what: str) -> Iterator[isolated_database.Connection]:
    """As `isolated_database.open_file`, in a DuckDB that an earlier question about this file left, if there is one."""
    isolated_database.require_file(database, what)
    session = _take_idle(_name_session(database)) or _FileSession(database.absolute(), what)
    with session.open(what) as connection:
        yield connection


def _take_idle(name: tuple[list[str], str]) -> _FileSession | None:
    for session in [session for session in _IDLE if session.name == name]:
        # Another thread may be faster.
        with suppress(ValueError):
            _IDLE.remove(session)
            if session.is_usable():
                return session
            session.close()
    return None


def _name_session(database: Path) -> tuple[list[str], str]:
    """What a session may open and how much memory it may take: none can be told otherwise later."""
    return isolated_database.list_names(database), isolated_database.memory_limit()


def _close_oldest() -> None:
    with suppress(IndexError):
        _IDLE.pop(0).close()


def _close_idle() -> None:
    while _IDLE:
        _close_oldest()


# A child has none of DuckDB's threads, and would wait for them.
os.register_at_fork(before=_close_idle)
atexit.register(_close_idle)


class _KeptSources:
    """Open files by path, each with the identity that it was opened with."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._open: dict[Path, tuple[bytes, isolated_database.Connection]] = {}

    def open(self, database: Path, what: str) -> isolated_database.Connection:
        """A session of the file as it is now: one that was changed or exchanged is opened again."""
        identity = file_identity(database, what)
        known, connection = self._open.get(database, (None, None))
        if connection is None or known != identity:
            connection = self._stack.enter_context(open_file_again(database, what))
            self._open[database] = identity, connection
        return connection.open_session(what)

    def close(self) -> None:
        self._open.clear()
        self._stack.close()

    def __enter__(self) -> _KeptSources:
        return self

    def __exit__(self, *error: Any) -> None:
        self._open.clear()
        self._stack.__exit__(*error)


_KEPT: ContextVar[_KeptSources | None] = ContextVar("kept_sources", default=None)


@contextmanager
def keep_sources_open() -> Iterator[None]:
    """Inside, and in this thread, a DuckDB file that was read stays open for its next reader until
    `close_sources`: opening one takes 20 times as long as a session of one that is open.
    """
    if _KEPT.get() is not None:
        yield
        return
    with _KeptSources() as kept:
        token = _KEPT.set(kept)
        try:
            yield
        finally:
            _KEPT.reset(token)


def close_sources() -> None:
    """Close what is kept open: nothing of it is in use any more."""
    if (kept := _KEPT.get()) is not None:
        kept.close()


@contextmanager
def open_source(database: Path, what: str) -> Iterator[isolated_database.Connection]:
    """A session of a declaration's database, as `file_list.open_source` gives it, and raising the same."""
    kept = _KEPT.get()
    if kept is None or file_list.is_list(database):
        with file_list.open_source(database, what) as connection:
            yield connection
        return
    with closing(kept.open(database, what)) as session:
        yield session
