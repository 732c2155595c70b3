"""A power cut: what a call returned is on the disk, and what is on the disk is a whole history."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from dpflow.errors import LedgerCorrupt, LedgerUnavailable
from dpflow.ledger import Ledger
from dpflow.ledger.history.chain import Writer
from dpflow.ledger.storage import database as databases
from dpflow.ledger.storage.database import Database


class Disk:
    """What would be there after a power cut: the ledger's files as they were at the last flush."""

    def __init__(self, ledger: Path, anchor: Path, there: Path) -> None:
        self.ledger, self.anchor, self.there = ledger, anchor, there
        self.keep()

    def keep(self) -> None:
        shutil.rmtree(self.there, ignore_errors=True)
        self.there.mkdir()
        for name in ("", "-wal"):
            if (source := Path(f"{self.ledger}{name}")).exists():
                shutil.copy(source, self.there / source.name)

    def after_a_power_cut(self) -> Ledger:
        copy = self.there.with_suffix(".copy")
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(self.there, copy)
        return Ledger(copy / self.ledger.name, anchor=self.anchor)


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Disk:
    Ledger(tmp_path / "l.sqlite", anchor=tmp_path / "anchor", create=True)
    disk, flush = Disk(tmp_path / "l.sqlite", tmp_path / "anchor", tmp_path / "disk"), os.fdatasync

    def kept(descriptor: int) -> None:
        flush(descriptor)
        disk.keep()

    monkeypatch.setattr(os, "fdatasync", kept)
    return disk


def test_a_commit_that_undoes_is_no_commit(place, ask, monkeypatch):
    """A database may answer COMMIT of a transaction that failed with no error: PostgreSQL with the
    word ROLLBACK, SQLite, which undoes some by itself, with nothing. No charge is made of it.
    """
    ledger = place.open()
    ledger.grant("flights", 1, 0, table=None, filter="basic", principal="owner")
    write, before = Writer.write_entries, ledger.verify().entries

    def write_and_fail(writer: Writer) -> None:
        write(writer)
        failing = "ROLLBACK" if writer.transaction.dialect == "sqlite" else "SELECT 1/0"
        with contextlib.suppress(psycopg.DataError):
            writer.transaction.text(failing)

    with monkeypatch.context() as patch:
        patch.setattr(Writer, "write_entries", write_and_fail)
        with pytest.raises(LedgerUnavailable, match="same call again") as told:
            ask.reserve(ledger)
        assert told.value.retryable
    # The mark was not raised over what is not there.
    assert ledger.verify().ok and ledger.verify().entries == before
    assert ask.reserve(ledger).attempt == 1 and ledger.verify().ok


def test_prepared_statements_that_somebody_dropped(postgres, tmp_path, ask):
    """As a pool between client and server may do: the connection is replaced, and nothing is told."""
    ledger = Ledger(postgres(), anchor=tmp_path / "anchor", create=True)
    ledger.grant("flights", 1, 0, table=None, filter="basic", principal="owner")
    for verb in (lambda: ask.reserve(ledger), lambda: ledger.remaining("flights")):
        (spare,) = ledger._database._spare
        spare.driver_connection.execute("DEALLOCATE ALL")
        assert verb()
    assert ledger.verify().ok


def verbs(ledger: Ledger, ask) -> list[Callable[[], object]]:
    """Writing verbs, each of which adds an entry."""
    held = []
    return [
        lambda: ledger.grant("flights", 1, 0, table=None, filter="basic", principal="owner"),
        lambda: ledger.quota("flights/team", "0.5", 0, principal="owner"),
        lambda: held.append(ask.reserve(ledger)),
        lambda: ledger.settle(held[0], {"rows": [1]}),
        lambda: held.append(ask.reserve(ledger, "second")),
        lambda: ledger.resolve(held[1].release_id, reason="r", principal="owner"),
        lambda: ledger.record("note", {"a": 1}, principal="owner"),
    ]


def lost(disk: Disk, ask) -> list[int]:
    """The verbs whose entry a power cut right after their return would take away."""
    ledger, missing = Ledger(disk.ledger, anchor=disk.anchor), []
    for number, verb in enumerate(verbs(ledger, ask)):
        verb()
        found = disk.after_a_power_cut()
        if found.history() != ledger.history() or not found.verify().ok:
            missing.append(number)
    return missing


def test_what_a_verb_returned_survives_a_power_cut(disk, ask):
    assert lost(disk, ask) == []


def test_the_test_notices_a_verb_that_does_not_wait(disk, ask, monkeypatch):
    """Negative control: without our flush, SQLite keeps commits in memory."""
    monkeypatch.setattr(Database, "_flush_log", lambda *_: None)
    assert len(lost(disk, ask)) == 7


def test_a_reader_waits_for_what_others_committed(disk, ask, monkeypatch):
    """A writer died between commit and flush. Whoever reads its result puts it on the disk first."""
    ledger = Ledger(disk.ledger, anchor=disk.anchor)
    ledger.grant("flights", 1, 0, table=None, filter="basic", principal="owner")
    held = ask.reserve(ledger)
    with monkeypatch.context() as patch:
        patch.setattr(Database, "_flush_log", lambda *_: None)
        ledger.settle(held, {"rows": [1]})
        with pytest.raises(LedgerCorrupt, match="entries were dropped"):
            disk.after_a_power_cut().find(ask.key())
    assert Ledger(disk.ledger, anchor=disk.anchor).find(ask.key()).result == {"rows": [1]}
    assert disk.after_a_power_cut().find(ask.key()).result == {"rows": [1]}


def test_a_retry_waits_for_the_result_that_it_gets(disk, ask, monkeypatch):
    ledger = Ledger(disk.ledger, anchor=disk.anchor)
    ledger.grant("flights", 1, 0, table=None, filter="basic", principal="owner")
    with monkeypatch.context() as patch:
        patch.setattr(Database, "_flush_log", lambda *_: None)
        ledger.settle(ask.reserve(ledger), {"rows": [1]})
    assert ask.reserve(ledger).result == {"rows": [1]}
    assert disk.after_a_power_cut().find(ask.key()).result == {"rows": [1]}


def test_a_signal_between_commit_and_flush(disk, ask, monkeypatch):
    """Whoever goes on with the same ledger object flushes first what the interrupted call left."""
    ledger = Ledger(disk.ledger, anchor=disk.anchor)
    ledger.grant("flights", 1, 0, table=None, filter="basic", principal="owner")
    ledger.remaining("flights")

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Database, "_flush_log", interrupted)
        with pytest.raises(KeyboardInterrupt):
            ask.reserve(ledger)
    assert ledger.find(ask.key()) is not None
    assert disk.after_a_power_cut().find(ask.key()) is not None


def test_a_log_cut_off_anywhere_is_a_shorter_history(disk, ask):
    """Whatever part of the log reached the disk: whole entries, in order, and the mark says that
    some are missing.
    """
    ledger = Ledger(disk.ledger, anchor=disk.anchor)
    for verb in verbs(ledger, ask):
        verb()
    whole, log = ledger.history(), (disk.there / "l.sqlite-wal").read_bytes()
    lengths = set()
    for cut in [*range(0, len(log), 1031), len(log)]:
        (disk.there / "l.sqlite-wal").write_bytes(log[:cut])
        try:
            found = disk.after_a_power_cut()
        except Exception as error:  # the log held the tables themselves
            assert cut < len(log) // 2, error
            continue
        history, checked = found.history(), found.verify()
        assert history == whole[: len(history)]
        assert checked.ok == (len(history) == len(whole))
        assert all("which is gone" in problem for problem in checked.problems)
        lengths.add(len(history))
    assert lengths == set(range(len(whole) + 1))


def test_a_flush_that_fails_is_an_error(disk, ask, monkeypatch):
    """The disk refuses: the message claims nothing, and the same call finds what there is."""
    ledger = Ledger(disk.ledger, anchor=disk.anchor)
    ledger.grant("flights", 1, 0, table=None, filter="basic", principal="owner")

    def refused(_: int) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", refused)
        with pytest.raises(Exception, match="may or may not be recorded"):
            ask.reserve(ledger)
    assert disk.after_a_power_cut().find(ask.key()) is None
    ask.reserve(ledger)
    assert ask.spent(ledger) == {"": "0.1"}
    (disk.there / "l.sqlite-wal").unlink(
        missing_ok=True
    )  # the kernel takes what it failed to write for written
    assert disk.after_a_power_cut().find(ask.key()) is not None


def flushed(url: str, work: Callable[[int], object]) -> int:
    """How often, of 20 times, PostgreSQL's log was on its disk as far as it was written when a call
    returned.
    """
    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute("SET synchronous_commit = off")
        connection.execute("CREATE TABLE IF NOT EXISTS others (n int)")
        times = 0
        for n in range(20):
            connection.execute(
                "INSERT INTO others VALUES (1)"
            )  # somebody committed, and nothing is flushed
            work(n)
            times += connection.execute(
                "SELECT pg_current_wal_flush_lsn() >= pg_current_wal_insert_lsn()"
            ).fetchall()[0][0]
        return times


def test_postgresql_has_written_its_log(postgres, tmp_path, ask, monkeypatch):
    """Writers and readers return when the server's log is on its disk; without our flush they do
    not (negative control).
    """
    url = postgres()
    ledger = Ledger(url, anchor=tmp_path / "anchor", create=True)
    ledger.grant("flights", 1, 0, table=None, filter="basic", principal="owner")
    assert (
        flushed(url, lambda n: ask.reserve(ledger, f"a{n}", "0.001")) >= 18
    )  # the server may write for itself meanwhile
    assert flushed(url, lambda n: ledger.remaining("flights")) >= 18
    monkeypatch.setattr(databases, "_FLUSH", "SELECT 1")
    assert flushed(url, lambda n: ask.reserve(ledger, f"b{n}", "0.001")) < 18
    assert flushed(url, lambda n: ledger.remaining("flights")) < 18
