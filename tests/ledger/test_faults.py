"""Death and loss at every step: at most one charge, one result, and a retry always completes."""

from __future__ import annotations

import gc
import os
import random
from concurrent.futures import ThreadPoolExecutor
from unittest.mock import Mock

import psycopg
import pytest
from crashes import KILLED, run_python
from forked_programs import run_forked

from bench.hammer import Anvil, hammer
from dpflow import fault_points
from dpflow.errors import LedgerUnavailable, UnknownName
from dpflow.ledger import Ledger

OPEN = """
import sys
from dpflow.core.accounting.events import Pure
from dpflow.ledger import Ledger, ReleaseKey, Slot
ledger = Ledger(sys.argv[1], anchor=sys.argv[2])
held = ledger.open_session(ReleaseKey("flights", "", "", "o", "d"), event=Pure("0.5"), blocks=(), family="f", slot=Slot("s"),
    principal="p", state={"v": 0}, exclusive=True, request={})
"""
ANSWER = """
import sys
from dpflow.ledger import Ledger
ledger = Ledger(sys.argv[1], anchor=sys.argv[2])
held = ledger.session(ledger.releases()[0].release_id)
ledger.answer(held.session_id, query="q", expected_version=held.version, state={"v": 1}, answer={"by": sys.argv[3]})
"""


@pytest.mark.parametrize("point", ["session.before-commit", "session.after-commit"])
def test_a_killed_opening_is_resumed(ledger, place, ask, point):
    """Killed around its opening, a session is opened and charged once."""
    arguments = (place.target, str(place.anchor))
    assert run_forked(OPEN, *arguments, fault=point) == KILLED
    assert run_forked(OPEN, *arguments) == 0
    assert len(ledger.releases()) == 1 and ask.spent(ledger) == {"": "0.5"} and ledger.verify().ok


@pytest.mark.parametrize(
    ("point", "winner"), [("session.before-commit", "second"), ("session.after-commit", "first")]
)
def test_a_killed_answer_is_given_once(ledger, place, ask, point, winner):
    """Killed before its commit an answer never was; killed after it, the stored answer stands."""
    arguments = (place.target, str(place.anchor))
    assert run_forked(OPEN, *arguments) == 0
    assert run_forked(ANSWER, *arguments, "first", fault=point) == KILLED
    assert run_forked(ANSWER, *arguments, "second") == 0
    (session,) = ledger.releases()
    assert ledger.ask(session.release_id, "q").answer == {"by": winner}
    assert ledger.session(session.release_id).version == 1
    assert ask.spent(ledger) == {"": "0.5"} and ledger.verify().ok


@pytest.mark.parametrize("point", ["reserve.before-commit", "settle.before-commit"])
def test_a_failure_before_the_commit_leaves_nothing(ledger, ask, monkeypatch, point):
    """An exception inside a transaction undoes all of it, and the same ledger object goes on."""
    held = ask.reserve(ledger) if point.startswith("settle") else None
    before = len(ledger.history())
    monkeypatch.setattr("dpflow.fault_points.armed", f"{point}:fail")
    with pytest.raises(fault_points.FaultInjected, match=point):
        ledger.settle(held, {}) if held else ask.reserve(ledger)
    monkeypatch.setattr("dpflow.fault_points.armed", "")
    assert len(ledger.history()) == before and ledger.verify().ok
    ledger.settle(held or ask.reserve(ledger), {"value": 1})
    assert ask.spent(ledger) == {"": "0.1"}


FORK = """
import os, sys
from dpflow.core.accounting.events import Pure
from dpflow.errors import LedgerUnavailable, UnknownName
from dpflow.ledger import Ledger
from dpflow.ledger import Ledger, ReleaseKey, Slot
from dpflow.ledger.storage.database import _before_fork
ledger = Ledger(sys.argv[1], anchor=sys.argv[2])
def charge(n):
    ledger.reserve(ReleaseKey("flights", "", "", n, "d"), event=Pure("0.1"), blocks=(), family="f", slot=None,
                   principal="p", request={})
charge("parent")
if sys.argv[3] == "busy":
    inside = ledger._database.begin_reading()
    inside.__enter__().text("SELECT 1")
charged, closed = os.pipe(), os.pipe()
if os.fork() == 0:
    try:
        charge("child")
        os.write(charged[1], b"+")
        os.read(closed[0], 1)
        charge("child again")
    except LedgerUnavailable as error:
        assert "was in use when this process was forked" in str(error)
        os.write(charged[1], b"-")
    os._exit(0)
print(os.read(charged[0], 1).decode())
_before_fork()  # closes the last connection that anybody but the child has
os.write(closed[1], b"x")
assert os.wait()[1] == 0
"""


@pytest.mark.parametrize(("thread", "charges", "said"), [("idle", 3, "+"), ("busy", 1, "-")])
def test_a_forked_child_loses_no_charge(tmp_path, thread, charges, said):
    """When the parent closes its connections to a file, what the child charges stays; a child that
    cannot be safe charges nothing.
    """
    file, anchor = str(tmp_path / "ledger.sqlite"), str(tmp_path / "anchor")
    ledger = Ledger(file, anchor=anchor, create=True)
    ledger.grant("flights", 1, 0, table=None, filter="basic", principal="owner")
    done = run_python(FORK, file, anchor, thread)
    assert (done.returncode, done.stdout.strip()) == (0, said), done.stderr
    assert len(ledger.releases()) == charges and ledger.verify().ok


def test_forks_in_the_middle_of_a_transaction_keep_no_descriptors(tmp_path, ask):
    """A connection that was busy when its process forked is closed with its log, later."""
    ledger, open_files = Ledger(tmp_path / "l", create=True), []
    for _ in range(6):
        with ledger._database.begin_reading():
            _fork()
        _fork()
        gc.collect()
        open_files.append(len(os.listdir("/proc/self/fd")))
    assert len(set(open_files)) == 1, open_files


def _fork() -> None:
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)


def test_a_lost_connection_is_replaced(postgres, tmp_path, ask):
    """Connections that the server closed while idle are noticed before anything ran on them."""
    from dpflow.ledger import Ledger

    url = postgres()
    ledger = Ledger(url, anchor=tmp_path / "anchor", create=True)
    ledger.grant("flights", 1, 0, table=None, filter="basic", principal="owner")
    _disconnect_all(url)
    ask.reserve(ledger)
    _disconnect_all(url)
    assert ask.spent(ledger) == {"": "0.1"}


def test_a_connection_lost_inside_a_transaction_is_retryable(postgres, tmp_path, ask, monkeypatch):
    """Lost before its commit, a step records nothing; whoever is told so calls again, and that
    completes. An earlier step may have charged, so nobody is told that nothing at all was recorded.
    """
    from dpflow.ledger import Ledger
    from dpflow.ledger import ledger as verbs

    url = postgres()
    ledger = Ledger(url, anchor=tmp_path / "anchor", create=True)
    ledger.grant("flights", 1, 0, table=None, filter="basic", principal="owner")
    monkeypatch.setattr(
        verbs.fault_points,
        "pass_point",
        lambda point: _disconnect_all(url) if "before" in point else None,
    )
    # What was read is proved before the commit, so the loss is noticed while nothing can be recorded.
    step = "this step recorded nothing; what was charged before it is not charged again"
    with pytest.raises(LedgerUnavailable, match=step) as caught:
        ask.reserve(ledger)
    assert caught.value.retryable
    monkeypatch.undo()
    held = ask.reserve(ledger)
    monkeypatch.setattr(
        ledger._database, "_begin_transaction", Mock(side_effect=psycopg.OperationalError)
    )
    with pytest.raises(LedgerUnavailable, match=step):
        ledger.settle(held, {})
    monkeypatch.undo()
    ledger.settle(ask.reserve(ledger), {})
    assert ask.spent(ledger) == {"": "0.1"} and ledger.verify().ok


def test_a_server_that_is_not_there(tmp_path):
    """Out of reach is retryable, and the message shows no password."""
    from dpflow.ledger import Ledger

    with pytest.raises(LedgerUnavailable, match="out of reach") as caught:
        Ledger(
            f"postgresql+psycopg://u:sesame@/x?host={tmp_path}", anchor=tmp_path / "a", create=True
        )
    assert "sesame" not in str(caught.value)


def _disconnect_all(url: str) -> None:
    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )


@pytest.mark.parametrize(
    ("processes", "rounds"),
    [(4, 1), pytest.param(64, 20, marks=pytest.mark.slow)],
    ids=["four", "sixty-four"],
)
def test_killed_processes_never_overrun(place, processes, rounds):
    """Processes on one scope, killed at random moments and started again: exactly what fits
    commits, to the unit.
    """
    for n in range(rounds):
        anvil = Anvil(
            place.target,
            place.anchor,
            f"s{n}",
            processes,
            asks=8,
            fits=5 * processes,
            kills=processes,
        )
        assert hammer(anvil, random.Random(7)).commits == 5 * processes  # noqa: S311  it chooses whom to kill


def test_a_refusal_after_many_reads_leaves_prepared_statements(postgres, tmp_path, ask):
    """What the driver prepares for itself it drops at a rollback, and with it everything that is
    prepared.
    """
    ledger = Ledger(postgres(), anchor=tmp_path / "anchor", create=True)
    ledger.grant("flights", 1, 0, table=None, filter="basic", principal="owner")
    for n in range(10):
        ask.reserve(ledger, str(n), "0.01")
        ledger.remaining("flights")
        ledger.scope("flights")
    for n in range(3):
        with pytest.raises(UnknownName):
            ledger.scope("nobody")
        ledger.remaining("flights")
        ask.reserve(ledger, f"after {n}", "0.01")


def test_writers_take_turns_whatever_the_server_prefers(postgres, tmp_path, ask):
    """A database whose transactions are serializable by default, and a client that speaks Latin 1."""
    url = postgres()
    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as connection:
        name = connection.info.dbname
        connection.execute(
            f"ALTER DATABASE {name} SET default_transaction_isolation = 'serializable'".encode()
        )
        connection.execute(f"ALTER DATABASE {name} SET client_encoding = 'LATIN1'".encode())
    ledger = Ledger(url, anchor=tmp_path / "anchor", create=True)
    ledger.grant("flights", 1, 0, table=None, filter="basic", principal="Zoë")

    def charges(who: int) -> None:
        for n in range(6):
            ask.reserve(ledger, f"{who}-{n}", "0.01", principal="Zoë", task="é")

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(charges, range(4)))
    assert ask.spent(ledger) == {"": "0.24"}
    assert ledger.find(ask.key("1-1", task="é")) is not None
    assert ledger.verify().ok
