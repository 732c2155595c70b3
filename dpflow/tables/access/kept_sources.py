"""DuckDB files that stay open between the steps of one question: its plan, its checks, and its releases."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from contextvars import ContextVar
from pathlib import Path

from dpflow.tables.access import file_list, sandbox


class _KeptSources:
    """Open files by path, each with the identity that it was opened with."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._open: dict[Path, tuple[bytes, sandbox.Connection]] = {}

    def open(self, database: Path, what: str) -> sandbox.Connection:
        """A session of the file as it is now: one that was changed or exchanged is opened again."""
        identity = sandbox.file_identity(database, what)
        known, connection = self._open.get(database, (None, None))
        if connection is None or known != identity:
            connection = self._stack.enter_context(sandbox.open_file(database, what))
            self._open[database] = identity, connection
        return connection.open_session(what)

    def close(self) -> None:
        self._open.clear()
        self._stack.close()


_KEPT: ContextVar[_KeptSources | None] = ContextVar("kept_sources", default=None)


@contextmanager
def keep_sources_open() -> Iterator[None]:
    """Inside, and in this thread, a DuckDB file that was read stays open for its next reader until
    `close_sources`: opening one takes 20 times as long as a session of one that is open.
    """
    if _KEPT.get() is not None:
        yield
        return
    with closing(_KeptSources()) as kept:
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
def open_source(database: Path, what: str) -> Iterator[sandbox.Connection]:
    """A session of a declaration's database, as `file_list.open_source` gives it, and raising the same."""
    kept = _KEPT.get()
    if kept is None or file_list.is_list(database):
        with file_list.open_source(database, what) as connection:
            yield connection
        return
    with closing(kept.open(database, what)) as session:
        yield session
