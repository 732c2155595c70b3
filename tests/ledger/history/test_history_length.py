"""A charge costs the same work after ten and after thousands of charges. `python -m
bench.ledger_history` times a million.
"""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path
from typing import Any

import psycopg
from crashes import run_forked_work

from bench.ledger import ask
from bench.ledger_history import charge, fill
from dpflow.core.accounting.events import Pure
from dpflow.ledger import Ledger, ReleaseKey, Slot

GROWING = ("dpflow_release", "dpflow_entry", "dpflow_slot", "dpflow_answer")


def aged(target: str, anchor: Path, number: int) -> Ledger:
    """A ledger with so many past charges."""
    ledger = Ledger(target, anchor=anchor, create=True)
    ledger.grant(
        "bench", 10**6, 0, table=None, filter="basic", principal="owner", confirm_large=True
    )
    fill(ledger, target, anchor, "bench", number)
    return ledger


def everyday(ledger: Ledger) -> None:
    """What runs all day: a check, a release and its replay, a retry of a slot, a session that is
    asked and closed, and a contract's questions.
    """
    ledger.check("bench", [Pure("0.001")], ())
    ledger.remaining("bench")
    for _ in range(2):
        charge(ledger, "bench", "today")
    terms: dict[str, Any] = {
        "event": Pure("0.001"),
        "blocks": (),
        "family": "f",
        "principal": "p",
        "request": {},
    }
    for _ in range(2):
        ledger.reserve(
            ReleaseKey("bench", "dag", "task", "o", "slotted"), slot=Slot("run", "0"), **terms
        )
    key, data = ReleaseKey("bench", "", "", "o", "s"), ["table t", "place p"]
    held = ledger.open_session(
        key, slot=None, state={"v": 0}, exclusive=True, data=data, partition="9 groups", **terms
    )
    ledger.is_fresh(held.session_id, "bench", data)
    ledger.answer(held.session_id, query="q", expected_version=0, state={}, answer={}, closed=True)
    ledger.history(limit=5)
    assert not ledger.is_suite_registered("suite", data, None) and not ledger.was_checked(data)


def test_sqlite_does_the_same_steps(tmp_path, monkeypatch):
    """Instructions of SQLite's virtual machine: a scan would need thousands more."""
    steps, connect = [0], sqlite3.dbapi2.connect

    def count() -> None:
        steps[0] += 1

    def counted(*arguments: Any, **options: Any) -> sqlite3.Connection:
        connection = connect(*arguments, **options)
        connection.set_progress_handler(count, 1)
        return connection

    taken = {}
    for number in (10, 3000, 9000):
        aged(str(tmp_path / f"l{number}"), tmp_path / f"a{number}", number)
        with monkeypatch.context() as patch:
            for module in (sqlite3, sqlite3.dbapi2):
                patch.setattr(module, "connect", counted)
            ledger = Ledger(tmp_path / f"l{number}", anchor=tmp_path / f"a{number}")
            steps[0] = 0
            everyday(ledger)
            taken[number] = steps[0]
    # The trie of 3,000 releases is two levels deeper; one scan of them takes more steps than this.
    assert 1000 < taken[10] <= taken[3000] < taken[10] + 3000
    # The tries of 3,000 and of 9,000 are equally deep.
    assert taken[9000] < 1.05 * taken[3000]


def test_postgresql_scans_nothing_that_grows(postgres, tmp_path, monkeypatch):
    """Rows read by sequential scans of tables with thousands of them: next to none."""
    url = postgres()
    ledger = aged(url, tmp_path / "anchor", 3000)
    monkeypatch.setenv("PGAPPNAME", "child")
    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as connection:

        def scanned() -> int:
            read = (
                "SELECT sum(seq_tup_read)::bigint FROM pg_stat_user_tables WHERE relname = ANY(%s)"
            )
            return connection.execute(read, [list(GROWING)]).fetchall()[0][0]

        before = scanned()
        # PostgreSQL counts what a connection did when it ends.
        assert run_forked_work(lambda: everyday(ledger))[0] == 0
        others = "SELECT 1 FROM pg_stat_activity WHERE application_name = 'child' AND pid <> pg_backend_pid()"
        while connection.execute(others).fetchall():
            time.sleep(0.01)
        assert scanned() - before < 100
        connection.execute("SELECT max(at) FROM dpflow_entry").fetchall()
        connection.execute("SELECT pg_stat_force_next_flush()")
        assert scanned() - before >= 6000  # a scan would have been seen


def test_postgresql_plans_for_what_is_there(postgres, tmp_path, monkeypatch):
    """A connection that began with an empty ledger goes on to find each row by its whole key: a plan
    of that time read all releases of the scope for each key, 55,000 rows here.
    """
    url = postgres()
    ledger = Ledger(url, anchor=tmp_path / "anchor", create=True)
    ledger.grant(
        "bench", 10**6, 0, table=None, filter="basic", principal="owner", confirm_large=True
    )
    monkeypatch.setenv("PGAPPNAME", "child")

    def charge_batches() -> None:
        ours = Ledger(url, anchor=tmp_path / "anchor", owner=True)
        for batch in range(10):
            ours.reserve_many([ask(f"{batch}-{n}") for n in range(50)])

    assert run_forked_work(charge_batches)[0] == 0
    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as connection:
        others = "SELECT 1 FROM pg_stat_activity WHERE application_name = 'child' AND pid <> pg_backend_pid()"
        while connection.execute(others).fetchall():
            time.sleep(0.01)
        read = "SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_user_tables WHERE relname = 'dpflow_release'"
        assert connection.execute(read).fetchall()[0][0] < 1000
