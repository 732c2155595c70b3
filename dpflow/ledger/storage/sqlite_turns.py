"""Turns among the writers of one SQLite file: two at work at a time, each for one slice.

SQLite's own waiting is a lottery: a writer that comes back at once nearly always wins, and the
others sleep longer and longer. Passing the turn on to the next in line after every transaction is
fair but slow, because each time another process wakes up with cold caches, and the more processes
are awake, the oftener one is pushed from its processor in the middle of a turn. So who writes in a
loop must have one of two seats: one of them works while the other waits for the disk, and everybody
else sleeps until a seat is free. A writer that comes once in a while takes none, and passes in line
whenever one is free.

Only fairness and speed depend on all this. The database's own lock keeps writers apart. Who is next
holds a lock that has no time limit: a process that is stopped just then (SIGSTOP, a paused
container) holds up all others until it goes on or is killed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import time
import weakref

SEATS = min(2, os.cpu_count() or 1)
SLICE = 0.05  # seconds for which a writer keeps its seat at most
AWAY = 0.01  # and how long at most if it does not come back
BACK = 0.001  # who comes back so soon writes in a loop
#: For how long to look all the time: a turn is mostly shorter than falling asleep and waking up.
SPIN = 0.001
LOOK = 0.0003  # how often after that
#: How long who is next waits for a seat, and then for its turn, before it goes on without.
PATIENCE = 60.0
#: When a seat is free again, in seconds of this machine's monotonic clock.
_END = struct.Struct("=d")


class Queue:
    """One thread's place among the writers. Locks on two empty files: the turn, and who is next;
    and a file of seats.
    """

    def __init__(self, path: str) -> None:
        self.pid = os.getpid()
        self._files: list[int] = []
        self._seat, self._until, self._kept, self._left = 0, 0.0, 0.0, 0.0
        _OPEN.add(self)
        with contextlib.suppress(OSError):  # a place that cannot be written: no turns, no fairness
            for name in ("turn", "queue", "seats"):
                self._files.append(
                    os.open(f"{path}.{name}", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
                )

    def enter(self) -> None:
        """Wait for a turn."""
        if len(self._files) < 3:
            return
        now = time.monotonic()
        with contextlib.suppress(OSError):  # such as a file system without locks
            if now >= self._kept:
                self._line_up(in_a_loop=now < self._left + BACK)
            else:
                if self._kept < min(self._until, now + AWAY / 2):
                    self._keep_seat(now)
                self._take_turn(now + SPIN)

    def leave(self) -> None:
        """Give the turn back."""
        if len(self._files) == 3:
            with contextlib.suppress(OSError):
                fcntl.flock(self._files[0], fcntl.LOCK_UN)
            self._left = time.monotonic()

    def close(self) -> None:
        """Let go of the files."""
        while self._files:
            os.close(self._files.pop())

    __del__ = close

    def _line_up(self, in_a_loop: bool) -> None:
        """Wait in line until a seat is free. Who writes in a loop takes it, others only their turn."""
        try:
            fcntl.flock(self._files[1], fcntl.LOCK_EX)
            end = time.monotonic() + PATIENCE
            while (now := time.monotonic()) < end:
                until, self._seat = self._find_seat(now)
                if not until:
                    break
                time.sleep(until - now)
            if in_a_loop:
                self._until = now + SLICE
                self._keep_seat(now)
            else:
                self._take_turn(now)
        finally:
            fcntl.flock(self._files[1], fcntl.LOCK_UN)
        # With a seat the line is left first, so that the next one can look for the other seat.
        if in_a_loop:
            self._take_turn(now)

    def _find_seat(self, now: float) -> tuple[float, int]:
        """When the first seat is free, 0 for now, and which. A time after AWAY is of a clock before
        the last boot.
        """
        ends = os.pread(self._files[2], SEATS * _END.size, 0).ljust(SEATS * _END.size, b"\0")
        return min(
            (until if now < until <= now + AWAY else 0.0, n)
            for n, (until,) in enumerate(_END.iter_unpack(ends))
        )

    def _keep_seat(self, now: float) -> None:
        """Say until when the seat is taken."""
        self._kept = min(self._until, now + AWAY)
        os.pwrite(self._files[2], _END.pack(self._kept), self._seat * _END.size)

    def _take_turn(self, spin: float) -> None:
        """Take the turn when it is free: look all the time until then, and now and then from then
        on.
        """
        while not self._try_turn() and (now := time.monotonic()) < spin + PATIENCE:
            if now < spin:
                os.sched_yield()
            else:
                time.sleep(LOOK)

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
