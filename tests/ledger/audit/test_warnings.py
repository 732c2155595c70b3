"""What a verification says beside yes and no, and what a database that fails is called."""

from __future__ import annotations

import sqlite3
import time

import psycopg
import pytest
import sqlalchemy

from dpflow.errors import LedgerCorrupt, LedgerUnavailable
from dpflow.ledger import Ledger
from dpflow.ledger.storage import database as connections


def test_verify_says_what_it_was_compared_with(ledger, ask):
    """Without a checkpoint from elsewhere an older database with its older anchor would pass."""
    ask.reserve(ledger)
    assert "compared with no checkpoint kept elsewhere" in str(ledger.verify())
    report = ledger.verify(since=ledger.checkpoint())
    assert "; compared with the checkpoint of entry 2" in str(report)
    assert [point["size"] for point in report.to_json()["compared_with"]] == [2]
    assert ledger.verify().compared_with == ()


@pytest.mark.parametrize(
    ("shifts", "words"),
    [
        ([0, 200, 0], []),  # clocks of two machines
        ([0, -1000, 0], ["time goes back at 1 entry, first at entry 3"]),
        ([0, 5000, 0], ["time goes back at 1 entry, first at entry 4", "first entry 3 of"]),
    ],
)
def test_clocks_that_lie_are_warned_of(ledger, ask, monkeypatch, shifts, words):
    """Nothing is wrong with the sums, so the ledger verifies."""
    clock = time.time
    for number, shift in enumerate(shifts):
        monkeypatch.setattr(time, "time", lambda shift=shift: clock() + shift)
        ask.reserve(ledger, str(number))
    monkeypatch.undo()
    report = ledger.verify()
    assert report.ok and len(report.warnings) == len(words), report
    assert all(word in warning for word, warning in zip(words, report.warnings, strict=True))


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (sqlite3.SQLITE_FULL, "full disk"),
        (sqlite3.SQLITE_READONLY, "read-only"),
        (sqlite3.SQLITE_READONLY | 1 << 8, "read-only"),
        (sqlite3.SQLITE_BUSY, "locked"),
        (sqlite3.SQLITE_IOERR, "disk that fails"),
        (sqlite3.SQLITE_CANTOPEN, "out of reach"),
    ],
)
def test_a_database_that_fails_is_called_what_it_is(code, words):
    error = sqlite3.OperationalError("secret")
    error.sqlite_errorcode = code
    told = connections._translate_error(error, "ledger", False)
    assert isinstance(told, LedgerUnavailable)
    assert (
        words in str(told)
        and "this step recorded nothing" in str(told)
        and "secret" not in str(told)
    )
    late = connections._translate_error(error, "ledger", True)
    assert "may or may not be recorded" in str(late)


@pytest.mark.parametrize(
    ("state", "kind", "words"),
    [
        ("57014", LedgerUnavailable, ["canceled a statement", "may or may not be recorded"]),
        ("25P03", LedgerUnavailable, ["stood still", "may or may not be recorded"]),
        ("25006", LedgerUnavailable, ["read-only", "this step recorded nothing"]),
        ("26000", LedgerUnavailable, ["pool of transactions", "may or may not be recorded"]),
        ("XX001", LedgerCorrupt, ["ledger verify", "ledger verify"]),
    ],
)
def test_what_a_server_refuses_is_called_what_it_is(state, kind, words):
    for late, word in enumerate(words):
        error = psycopg.errors.lookup(state)("secret")
        told = connections._translate_error(error, "ledger", bool(late))
        assert type(told) is kind and word in str(told) and "secret" not in str(told)
    opening = sqlalchemy.exc.InternalError("SELECT 1", None, psycopg.errors.lookup(state)("secret"))
    assert isinstance(connections._translate_error(opening, "ledger", False), LedgerUnavailable)


def test_a_server_that_takes_no_changes(postgres, tmp_path, ask):
    """A standby, or a database that was made read-only for a move: nothing was recorded for certain."""
    url = postgres()
    ledger = Ledger(url, anchor=tmp_path / "anchor", create=True)
    ledger.grant("flights", 1, 0, table=None, filter="basic", principal="owner")
    held = ask.reserve(ledger)
    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as connection:
        name = connection.info.dbname
        connection.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    with pytest.raises(LedgerUnavailable, match="is read-only here.*this step recorded nothing"):
        Ledger(url, anchor=tmp_path / "anchor").settle(held, {})
    assert ledger.settle(held, {}).settled


def test_a_standby_gives_what_is_stored(postgres, tmp_path, ask):
    """Nothing is recorded for it, so nothing needs to be flushed, which a standby refuses."""
    url = postgres()
    ledger = Ledger(url, anchor=tmp_path / "anchor", create=True)
    ledger.grant("flights", 1, 0, table=None, filter="basic", principal="owner")
    ask.settle(ledger)
    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute(
            "CREATE FUNCTION pg_is_in_recovery() RETURNS boolean LANGUAGE sql AS 'SELECT true';"
            "CREATE FUNCTION pg_logical_emit_message(boolean, text, text) RETURNS pg_lsn LANGUAGE plpgsql AS "
            "'BEGIN RAISE internal_error; END'"
        )
        name = connection.info.dbname
        connection.execute(f"ALTER DATABASE {name} SET search_path = public, pg_catalog")
    assert ask.reserve(Ledger(url, anchor=tmp_path / "anchor")).settled


def test_a_file_that_nobody_may_write_is_read_only(tmp_path):
    """By SQLite's own error."""
    path = tmp_path / "file"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE t (x)")
    connection.close()
    reader = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    with pytest.raises(sqlite3.OperationalError) as caught:
        reader.execute("INSERT INTO t VALUES (1)")
    reader.close()
    assert "read-only" in str(connections._translate_error(caught.value, "ledger", False))
