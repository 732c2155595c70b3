"""Files and folders that only this user may read and change, wherever the environment puts them.

A path may lead through a folder, file or symbolic link that another user of the machine made. What
is written there is theirs. So each folder on the way must belong to this user or to root, and the
last one to this user alone, and a new file is never one that was there before.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import shutil
import stat
import time
from pathlib import Path

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_STALE = 3600  # seconds: no living process takes so long


class UntrustedPlace(PermissionError):
    """A folder or file that another user made, or may change; ``strerror`` says which and why."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(errno.EACCES, f"{path} {reason}", str(path))


def make_private_folder(folder: Path) -> None:
    """Make a folder and its missing parents, each with mode 0700 whatever the umask is.

    Raises:
        UntrustedPlace: a folder or symbolic link on the way belongs to another user, or all may write
            into it; or the last one is not this user's alone to write.
        OSError: it cannot be made.
    """
    folder = folder.absolute()
    for place in [*reversed(folder.parents), folder]:
        with contextlib.suppress(FileExistsError):
            os.mkdir(place, 0o700)
        status = place.lstat()
        _require_owner(place, status, root=True)
        if stat.S_ISLNK(status.st_mode):
            status = place.stat()
            _require_owner(place, status, root=True)
        # With the sticky bit, as in /tmp, nobody replaces what others put there.
        if status.st_mode & stat.S_IWOTH and not status.st_mode & stat.S_ISVTX:
            raise UntrustedPlace(place, "can be written by all; run: chmod o-w")
    require_own_folder(folder)


def require_own_folder(folder: Path) -> None:
    """Raises `UntrustedPlace` unless a folder is no symbolic link, and this user's alone to write."""
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode):
        raise UntrustedPlace(folder, "is a symbolic link or no folder; name the folder itself")
    _require_owner(folder, status)
    if status.st_mode & _OTHERS_WRITE:
        raise UntrustedPlace(folder, "can be written by others; run: chmod go-w")


def require_own_file(path: Path, status: os.stat_result) -> None:
    """Raises `UntrustedPlace` unless a file is a regular one under a single name, this user's, and
    nobody else's to write.
    """
    _require_owner(path, status)
    if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
        raise UntrustedPlace(path, "is no regular file, or has a second name; remove it")
    if status.st_mode & _OTHERS_WRITE:
        raise UntrustedPlace(path, "can be written by others; remove it, or run: chmod go-w")


def forbid_public_writing(path: Path) -> None:
    """Raises `UntrustedPlace` if every user of the machine may change a file or folder. Its owner and
    group are trusted: those who share it may be users of a group.
    """
    if path.stat().st_mode & stat.S_IWOTH:
        raise UntrustedPlace(path, "can be written by all; run: chmod o-w")


def write_private(path: Path, data: bytes) -> None:
    """Put a new file of mode 0600 in a place, flushed to the disk and whole or not at all. What was
    there before, also a symbolic link, is replaced and not written into. A killed writer leaves a part
    with mode 0600, which a later one removes.
    """
    sweep_left(path.parent, re.escape(f".{path.name}.") + "[0-9a-f]{16}")
    part = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    create = os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_WRONLY | os.O_CLOEXEC
    try:
        with open(os.open(part, create, 0o600), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def sweep_left(folder: Path, pattern: str) -> None:
    """Remove what killed processes of this user left in a folder over an hour ago, files and folders.

    Args:
        pattern: a regular expression for whole names.
    """
    with contextlib.suppress(OSError), os.scandir(folder) as found:
        left = [entry for entry in found if re.fullmatch(pattern, entry.name)]
        for entry in left:
            status = entry.stat(follow_symlinks=False)
            if status.st_uid != os.geteuid() or time.time() - status.st_mtime < _STALE:
                continue
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path, ignore_errors=True)
            else:
                os.unlink(entry.path)


def _require_owner(path: Path, status: os.stat_result, *, root: bool = False) -> None:
    if status.st_uid not in (os.geteuid(), *([0] if root else [])):
        raise UntrustedPlace(path, "belongs to another user; name a place of your own")
