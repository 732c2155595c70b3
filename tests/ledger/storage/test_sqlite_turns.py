"""Turns among the writers of a SQLite file: one at a time, seats for those who write in a loop,
nobody stuck.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import signal
import sqlite3
import struct
import threading
import time

import pytest

from dpflow.ledger.storage import sqlite_turns as turns
from dpflow.ledger.storage.database import Database
from dpflow.ledger.storage.sqlite_turns import Queue

SEATS = struct.Struct("=2d")


@pytest.fixture
def path(tmp_path, monkeypatch):
    """A ledger's place, where two may sit, and whoever writes twice is said to write in a loop."""
    monkeypatch.setattr(turns, "SEATS", 2)
    monkeypatch.setattr(turns, "BACK", 60.0)
    return str(tmp_path / "ledger")


def claims(path):
    """Until when each seat is taken, in seconds from now; 0 for one that nobody claimed."""
    with open(f"{path}.seats", "rb") as file:
        kept = SEATS.unpack(file.read().ljust(SEATS.size, b"\0"))
    return [until - time.monotonic() if until else 0 for until in kept]


def in_a_loop(path):
    """A writer that came back, and so has a seat."""
    queue = Queue(path)
    for _ in range(2):
        queue.enter()
        queue.leave()
    return queue


def test_one_has_its_turn(path):
    """A turn is one writer's, also among the threads of a process."""
    first, second = Queue(path), Queue(path)
    first.enter()
    passed = threading.Event()
    other = threading.Thread(target=lambda: (second.enter(), passed.set(), second.leave()))
    other.start()
    assert not passed.wait(0.05)
    first.leave()
    assert passed.wait(60)
    other.join()


def test_who_writes_once_takes_no_seat(path):
    """It passes, and leaves both seats to others."""
    for _ in range(3):
        queue = Queue(path)
        queue.enter()
        queue.leave()
    assert claims(path) == [0, 0]


def test_two_who_write_in_a_loop_sit_and_the_third_waits_until_one_has_gone(path, monkeypatch):
    """A seat is kept for AWAY after its writer was last seen, whoever else wants it."""
    monkeypatch.setattr(turns, "AWAY", 2.0)
    monkeypatch.setattr(turns, "SLICE", 2.0)
    left = 0.0
    while left <= 0:  # again if this process stood still meanwhile
        sitting = [in_a_loop(path) for _ in range(2)]
        left = min(claims(path))
    assert left <= 2
    start = time.monotonic()
    visitor = Queue(path)
    visitor.enter()
    assert time.monotonic() - start >= left - 0.5, "and not a turn before"
    visitor.leave()
    for queue in sitting:  # their seats are gone, and they line up again
        queue.enter()
        queue.leave()
    assert max(claims(path)) > 0


def test_a_seat_is_given_up_after_a_slice(path, monkeypatch):
    """Whoever sits longer than a slice lines up again, as long as it keeps writing."""
    monkeypatch.setattr(turns, "AWAY", 60.0)
    lined_up = []
    real = Queue._line_up

    def seen(queue: Queue, in_a_loop: bool) -> None:
        lined_up.append((time.monotonic(), in_a_loop))
        real(queue, in_a_loop)

    monkeypatch.setattr(Queue, "_line_up", seen)
    queue, end = Queue(path), time.monotonic() + 60
    while len(lined_up) < 4 and time.monotonic() < end:
        queue.enter()
        queue.leave()
    assert [in_a_loop for _, in_a_loop in lined_up] == [False, True, True, True]
    times = [at for at, in_a_loop in lined_up if in_a_loop]
    assert min(later - earlier for earlier, later in zip(times, times[1:])) >= turns.SLICE


@pytest.mark.parametrize(
    "kept",
    [b"\xff" * 16, b"x", SEATS.pack(float("inf"), float("nan")), SEATS.pack(1e18, 1e300), b""],
)
def test_a_damaged_file_or_another_clock_holds_nobody_up(path, kept):
    """What no writer of this boot can have claimed is no claim."""
    with open(f"{path}.seats", "wb") as file:
        file.write(kept)
    start = time.monotonic()
    for queue in (in_a_loop(path), in_a_loop(path), Queue(path)):
        queue.enter()
        queue.leave()
    assert time.monotonic() - start < turns.PATIENCE


def test_a_seat_of_another_clock_is_free_again(path, monkeypatch):
    """After a boot both seats are taken, not only the one whose old time comes first."""
    monkeypatch.setattr(turns, "AWAY", 60.0)
    monkeypatch.setattr(turns, "SLICE", 60.0)
    with open(f"{path}.seats", "wb") as file:
        file.write(SEATS.pack(time.monotonic() + 1e6, time.monotonic() + 2e6))
    first, second = Queue(path), Queue(path)
    for queue in (first, second):
        queue._line_up(in_a_loop=True)
        queue.leave()
    assert {first._seat, second._seat} == {0, 1}


@pytest.mark.parametrize("nth", range(1, 5))
def test_whoever_is_interrupted_leaves_no_lock(path, monkeypatch, nth):
    """Ctrl-C right after any lock was given or taken: the process may go on, and nobody waits for
    it.
    """
    database, calls, flock = Database(path), itertools.count(1), fcntl.flock
    database.make_place()

    def interrupted(*arguments: int) -> None:
        flock(*arguments)
        if next(calls) == nth:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "flock", interrupted)
        with pytest.raises(KeyboardInterrupt), database.begin_writing():
            pass
    other = Queue(path)
    for file in other._files[:2]:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None, timeout=0)) as connection:
        connection.execute("BEGIN IMMEDIATE")


def test_without_a_place_for_files_nobody_waits(tmp_path):
    """Turns are for fairness only: where they cannot be kept, the database's own lock decides."""
    (tmp_path / "ledger.turn").mkdir()
    queue = Queue(str(tmp_path / "ledger"))
    queue.enter()
    queue.leave()
    queue.close()


def test_a_disk_that_fails_stops_no_writer(path, monkeypatch):
    """No claim can be written: everybody writes on."""

    def fails(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", fails)
    for queue in [in_a_loop(path) for _ in range(3)]:
        queue.enter()
        queue.leave()


def test_whoever_is_stopped_while_next_holds_others_up_until_killed(path):
    """The limit of a lock that hands on in order: nobody can give up waiting for it. Nothing but
    time is lost.
    """
    child = os.fork()
    if child == 0:
        queue = Queue(path)
        fcntl.flock(queue._files[1], fcntl.LOCK_EX)
        os.kill(os.getpid(), signal.SIGSTOP)
        os._exit(0)
    assert os.WIFSTOPPED(os.waitpid(child, os.WUNTRACED)[1])
    passed = threading.Event()
    other = threading.Thread(target=lambda: (Queue(path).enter(), passed.set()))
    other.start()
    assert not passed.wait(0.2)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert passed.wait(60)
    other.join()


def test_a_child_holds_no_turn_of_its_parent(path):
    """A fork in the middle of a turn: the child's copy of the lock goes, or the turn would never
    end.
    """
    queue = Queue(path)
    queue.enter()
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.read(read, 1)
        os._exit(0)
    queue.leave()
    other = Queue(path)
    assert other._try_turn()
    other.leave()
    os.write(write, b"!")
    os.waitpid(child, 0)
    for end in (read, write):
        os.close(end)
