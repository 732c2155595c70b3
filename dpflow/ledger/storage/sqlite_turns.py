"""Turns among the writers of one SQLite file, in the order in which they came.

SQLite's own waiting is a lottery: a writer that comes back at once nearly always wins, and the
others sleep longer and longer. So writers line up at one lock on a file, and only who is next looks
whether the turn, another one, is free. A turn is short, so it looks often.

Only fairness depends on this. The database's own lock keeps writers apart. Who is next holds a lock
that has no time limit: a process that is stopped just then (SIGSTOP, a paused container) holds up
all others until it goes on or is killed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
import weakref

LOOK = 0.0002  # seconds between looks at the turn
#: How long who is next waits for its turn before it goes on without.
PATIENCE = 60.0


class Queue:
    """One thread's place among the writers: locks on two empty files, the turn and who is next."""

    def __init__(self, path: str) -> None:
        self.pid = os.getpid()
        self._files: list[int] = []
        _OPEN.add(self)
        with contextlib.suppress(OSError):  # a place that cannot be written: no turns, no fairness
            for name in ("turn", "queue"):
                self._files.append(
                    os.open(
                        f"{path}.{name}",
                        os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC,
                        0o600,
                    )
                )

    def enter(self) -> None:
        """Wait for a turn."""
        if len(self._files) < 2:
            return
        with contextlib.suppress(OSError):  # such as a file system without locks
            try:
                fcntl.flock(self._files[1], fcntl.LOCK_EX)
                end = time.monotonic() + PATIENCE
                while not self._try_turn() and time.monotonic() < end:
                    time.sleep(LOOK)
            finally:
                fcntl.flock(self._files[1], fcntl.LOCK_UN)

    def leave(self) -> None:
        """Give the turn back."""
        if len(self._files) == 2:
            with contextlib.suppress(OSError):
                fcntl.flock(self._files[0], fcntl.LOCK_UN)

    def close(self) -> None:
        """Let go of the files."""
        while self._files:
            os.close(self._files.pop())

    __del__ = close

    def _try_turn(self) -> bool:
        try:
            fcntl.flock(self._files[0], fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


_OPEN: weakref.WeakSet[Queue] = weakref.WeakSet()


def _close_inherited() -> None:
    """In a forked child: close what it inherited, or a lock would outlive the parent that holds it."""
    for queue in list(_OPEN):
        queue.close()


os.register_at_fork(after_in_child=_close_inherited)
