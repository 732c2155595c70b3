"""Folders for private rows that are on disk while something works on them: what DuckDB spills, what a
server sends, and what is copied from a store.

They lie beside the private file, so on storage of its class, and only this user can enter them. Each is inside one
that is locked: DuckDB makes a folder again that was removed, for everybody to read, but none where the outer one is
gone. A killed process leaves its folder; the next one that makes a folder in the same place removes it.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

#: How the folders' names begin.
PREFIX = ".dpflow-spill-"
_INNER = "rows"


@contextmanager
def spill_folder(beside: Path | None = None, *, again: Path | None = None) -> Iterator[Path]:
    """An empty folder with the rights 0700, removed with everything in it at the end.

    Args:
        beside: the folder of the private file. The system's folder for temporary files takes its place
            if this process may not write there, or if there is no file.
        again: an earlier folder of this process, which is made again under its name. Raises `OSError` where it
            is there.
    """
    place = beside if beside is not None and os.access(beside, os.W_OK | os.X_OK) else None
    outer, lock = _make_folder(place or Path(tempfile.gettempdir()), again and again.parent)
    try:
        folder = outer / _INNER
        folder.mkdir(0o700)
        yield folder
    finally:
        shutil.rmtree(outer, ignore_errors=True)
        os.close(lock)


def remove_abandoned(place: Path) -> None:
    """Remove the folders of processes that are gone: nobody holds their locks any more."""
    with suppress(OSError), os.scandir(place) as entries:
        for entry in entries:
            if entry.name.startswith(PREFIX) and entry.is_dir(follow_symlinks=False):
                # Of another user, or of a process that works in it.
                with suppress(OSError):
                    lock = _open_folder(entry.path)
                    try:
                        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                        # Its owner may have removed it and made it again since it was opened. From here on,
                        # whoever removes this one needs the lock.
                        if _is_at(lock, entry.path):
                            shutil.rmtree(entry.path, ignore_errors=True)
                    finally:
                        os.close(lock)


def _make_folder(place: Path, again: Path | None) -> tuple[Path, int]:
    """A new folder, and the descriptor that holds its lock until the process ends."""
    remove_abandoned(place if again is None else again.parent)
    while True:
        if again is not None:
            again.mkdir(0o700)
        folder = again or Path(tempfile.mkdtemp(dir=place, prefix=PREFIX))
        # Another process may take it for an abandoned one before it is locked; then it is gone.
        with suppress(FileNotFoundError):
            lock = _open_folder(folder)
            fcntl.flock(lock, fcntl.LOCK_EX)
            if _is_at(lock, folder):
                return folder, lock
            os.close(lock)


def _is_at(lock: int, path: Path | str) -> bool:
    """Whether a path leads to an open folder still."""
    try:
        return os.path.samestat(os.fstat(lock), os.lstat(path))
    except FileNotFoundError:
        return False


def _open_folder(path: Path | str) -> int:
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
