"""Turns among the writers of one SQLite file: fair over a tenth of a second, in slices for speed.

SQLite's own waiting is a lottery: a writer that comes back at once nearly always wins, and the others sleep longer and longer.
Passing the turn on after every transaction is fair but slow, because each time another process must wake up with cold
caches. So who had to queue for a turn may come back without queueing for one slice of time, and those in the queue look
only now and then: mostly two or three processes work, one in its turn while the others wait for the disk.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
import weakref

SLICE = 0.010
LOOK = 0.0003
PATIENCE = 60.0  # seconds after which it goes on without a turn, and SQLite's lock decides


class Queue:
    """One thread's place among the writers. Two locks on empty files: the turn, and who is next."""

    def __init__(self, path: str) -> None:
        self.pid = os.getpid()
        self._files: list[int] = []
        self._until = 0.0
        _OPEN.add(self)
        with contextlib.suppress(OSError):  # a place that cannot be written: no turns, no fairness
            for name in ("turn", "queue"):
                self._files.append(os.open(f"{path}.{name}", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))

    def enter(self) -> None:
        """Wait for a turn."""
        if len(self._files) < 2:
            return
        while time.monotonic() < self._until:
            if self._taken():
                return
            os.sched_yield()
        fcntl.flock(self._files[1], fcntl.LOCK_EX)
        try:
            end = time.monotonic() + PATIENCE
            while not self._taken() and time.monotonic() < end:
                time.sleep(LOOK)
        finally:
            fcntl.flock(self._files[1], fcntl.LOCK_UN)
        self._until = time.monotonic() + SLICE

    def leave(self) -> None:
        """Give the turn back."""
        if len(self._files) == 2:
            fcntl.flock(self._files[0], fcntl.LOCK_UN)

    def close(self) -> None:
        """Let go of the files."""
        while self._files:
            os.close(self._files.pop())

    __del__ = close

    def _taken(self) -> bool:
        try:
            fcntl.flock(self._files[0], fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


_OPEN: weakref.WeakSet[Queue] = weakref.WeakSet()


def _forget() -> None:
    """In a forked child: close what it inherited, or a lock would outlive the parent that holds it."""
    for queue in list(_OPEN):
        queue.close()


os.register_at_fork(after_in_child=_forget)
