"""The published file: readers that keep it open hold no publication up, and see one state of it.

A writer takes the lock file beside it, changes a complete copy and puts that in its place in one step.
So dashboards stay connected to the state they opened, and see the next one when they connect again; a
writer that is killed leaves the file as it was; and everything else in the file, such as tables and
views of its users, is kept.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

import duckdb

from dpflow import fault_points
from dpflow.error_boundary import errors_end_here
from dpflow.errors import NotPublished, TableUnreadable
from dpflow.tables.access import isolated_database

T = TypeVar("T")
Action = Callable[[duckdb.DuckDBPyConnection], T]

#: The format of a file that dpflow makes: readable by DuckDB 1.2 and every later version.
STORAGE_VERSION = "v1.2.0"
OLDEST_READER = "1.2"

#: Held while one thread of this process writes: locks of files are a process's.
_turn = threading.RLock()


def _renew_turn() -> None:
    """In a forked child, which may have inherited it taken, by a thread that it does not have."""
    global _turn
    _turn = threading.RLock()


os.register_at_fork(after_in_child=_renew_turn)

#: What DuckDB raises while somebody else writes the file, in another process or in this one.
_HELD = (
    duckdb.IOException,
    duckdb.TransactionException,
    duckdb.ConnectionException,
    duckdb.ResourceInUseException,
    BlockingIOError,
)


@errors_end_here
def read_file(database: Path, deadline: float, action: Action[T]) -> T:
    """What an action reads of the file, which must exist; waits for whoever writes it in place.

    Raises `NotPublished` or `TableUnreadable`.
    """

    def read() -> T:
        try:
            connection = duckdb.connect(str(database), read_only=True)
        except duckdb.ConnectionException:
            # This process has it open to be written: then all its connections can.
            connection = duckdb.connect(str(database))
        with connection:
            isolated_database.hide_progress_bar(connection)
            return action(connection)

    return _try_until(database, deadline, read)


@errors_end_here
def check_file(database: Path, check: Action[None], *, deadline: float = 5.0) -> None:
    """Check, before anything is charged, that a file can be written, which need not exist. Every door that publishes calls it
    first: what is refused after the charge was paid for nothing.

    Args:
        check: raises `TableUnreadable` where what will be written has no place among what the file has.

    Raises:
        NotPublished: its place cannot be written, or another process holds it until the deadline, in seconds.
        TableUnreadable: as ``check``, or it is no DuckDB file.
    """
    database = Path(os.path.realpath(database))
    folder = next(parent for parent in database.parents if parent.exists())
    if not (folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)):
        raise NotPublished(
            f"the place of {database} is not writable, and a file is published beside the last one; nothing was charged now"
        )
    if not database.exists():
        return
    try:
        read_file(database, deadline, check)
    except NotPublished:
        raise NotPublished(
            f"{database} is held by another process, so nothing could be published in it; nothing was charged now, ask again later"
        ) from None
    except TableUnreadable as error:
        raise TableUnreadable(
            f"{error}; nothing was charged now, and what was paid before is free at another name"
        ) from None


@errors_end_here
def write_file(database: Path, deadline: float, action: Action[bool]) -> None:
    """Change the file in one step, or make it. The action runs in a transaction on a copy that nobody
    else sees; where it returns False, the file stays as it is.

    A file that this process has open to be written is changed in place, for what its connections
    write afterwards would go to a file that is no longer there.

    Raises:
        NotPublished: other processes write it until the deadline, in seconds, or its place cannot be
            written.
        TableUnreadable: it is no DuckDB file, or the action fails on what is in it.
    """
    # A link stays one, and so do locks of it under another name.
    database = Path(os.path.realpath(database))

    def write() -> None:
        with _turn, _lock_writers(database):
            _remove_parts(database)
            if database.exists() and _is_open_here(database):
                with duckdb.connect(str(database)) as connection:
                    _run_action(connection, action)
            else:
                _replace_file(database, action)
            fault_points.pass_point("publish.after-commit")

    try:
        database.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise NotPublished(
            f"{database.parent} cannot be created ({error.strerror}); the release is settled and paid, repair with: dpflow publish"
        ) from None
    _try_until(database, deadline, write)


def storage_version(database: Path) -> str:
    """The oldest DuckDB that reads a file, such as ``1.2``; "" if it is no DuckDB file."""
    with suppress(OSError), database.open("rb") as stream:
        header = stream.read(20)
        if header[8:12] == b"DUCK":
            number = int.from_bytes(header[12:20], "little")
            # The numbers of released formats, which DuckDB documents; newer ones are of 2.0 and later.
            known = {64: "0.9", 65: OLDEST_READER, 66: "1.3", 67: "1.4", 68: "1.5"}
            return known.get(number, "2.0" if number > max(known) else "")
    return ""


def _run_action(connection: duckdb.DuckDBPyConnection, action: Action[bool]) -> bool:
    """Run it in a transaction, which a change alone commits."""
    isolated_database.hide_progress_bar(connection)
    connection.execute("BEGIN")
    changed = action(connection)
    fault_points.pass_point("publish.before-commit")
    connection.execute("COMMIT" if changed else "ROLLBACK")
    return changed


def _replace_file(database: Path, action: Action[bool]) -> None:
    """Change a copy, and put it in the file's place; durable when it returns."""
    part = _part(database)
    config: dict[str, str | bool | int | float | list[str]] = {}
    with _lock_others(database) as source:
        try:
            if source is not None:
                with part.open("xb") as copy, open(source, "rb", closefd=False) as stream:
                    _keep_owner(source, copy.fileno())
                    shutil.copyfileobj(stream, copy, 1 << 22)
            else:
                config["storage_compatibility_version"] = STORAGE_VERSION
            with duckdb.connect(str(part), config=config) as connection:
                changed = _run_action(connection, action)
            # Closed, so that everything is in the one file.
            if changed:
                _flush(part)
                fault_points.pass_point("publish.before-replace")
                part.replace(database)
                _flush(database.parent)
        finally:
            part.unlink(missing_ok=True)
            Path(f"{part}.wal").unlink(missing_ok=True)


@contextmanager
def _lock_others(database: Path) -> Iterator[int | None]:
    """Keep processes that write the file in place out, as DuckDB's readers do, until it is replaced.
    Gives its descriptor; None if there is no file yet.
    """
    if Path(f"{database}.wal").exists():
        # A writer was killed: its changes are not in the file itself. Needs the file for a moment.
        duckdb.connect(str(database)).close()
    try:
        # To be written, or the system gives no lock.
        source = os.open(database, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        yield None
        return
    try:
        fcntl.lockf(source, fcntl.LOCK_SH | fcntl.LOCK_NB)
        yield source
    finally:
        # Closing any descriptor ends all locks that the process has of the file: so this is the last one.
        os.close(source)


@contextmanager
def _lock_writers(database: Path) -> Iterator[None]:
    """The turn among processes that publish; it ends with the process."""
    flags = os.O_RDONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    lock = os.open(database.with_name(f".{database.name}.lock"), flags, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(lock)


def _is_open_here(database: Path) -> bool:
    """Whether this process has it open to be written: DuckDB refuses another kind of connection."""
    try:
        duckdb.connect(str(database), read_only=True).close()
    except duckdb.ConnectionException:
        return True
    return False


def _keep_owner(source: int, copy: int) -> None:
    """Whoever may read or write the file may do so with its successor."""
    state = os.fstat(source)
    with suppress(PermissionError):
        os.fchown(copy, state.st_uid, state.st_gid)
    os.fchmod(copy, state.st_mode & 0o7777)


def _part(database: Path) -> Path:
    return database.with_name(f".{database.name}.{secrets.token_hex(8)}.part")


def _remove_parts(database: Path) -> None:
    """Copies of writers that were killed: only whoever has the turn makes any."""
    # Of this file alone: a writer of `released` leaves the copy of one of `released.duckdb`.
    name = re.compile(rf"\.{re.escape(database.name)}\.[0-9a-f]{{16}}\.part(\.wal)?")
    for file in database.parent.iterdir():
        if name.fullmatch(file.name):
            file.unlink(missing_ok=True)


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _try_until(database: Path, deadline: float, attempt: Callable[[], T]) -> T:
    """What an attempt returns, again and again while somebody else writes the file."""
    end, pause = time.monotonic() + deadline, 0.01
    if database.is_dir():
        raise TableUnreadable(f"{database} is a folder, not a DuckDB file; publish to another path")
    while True:
        try:
            return attempt()
        except _HELD as error:
            trouble = str(error)
        except OSError as error:
            raise NotPublished(
                f"the place of {database} cannot be written ({error.strerror}), and a file is published beside the last one; the "
                f"release is settled and paid, repair with: dpflow publish"
            ) from None
        except duckdb.Error as error:
            name = type(error).__name__
            raise TableUnreadable(
                f"{database} cannot take releases ({name}); publish to another table or file"
            ) from None
        if "valid DuckDB" in trouble:
            raise TableUnreadable(f"{database} is not a DuckDB file; publish to another path")
        if time.monotonic() + pause > end:
            raise NotPublished(
                f"{database} could not be written for {deadline:g} s, because another process writes it or "
                f"its disk is full; the release is settled and paid, repair with: dpflow publish"
            )
        time.sleep(pause)
        pause = min(pause * 1.5, 0.5)
