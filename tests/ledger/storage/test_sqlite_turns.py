"""Turns among the writers of a SQLite file: one at a time, in their order, nobody stuck."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import signal
import sqlite3
import threading

import pytest

from dpflow.ledger.storage.database import Database
from dpflow.ledger.storage.sqlite_turns import Queue


@pytest.fixture
def path(tmp_path):
    """A ledger's place."""
    return str(tmp_path / "ledger")


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
