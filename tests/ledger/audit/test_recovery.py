"""Lost marks, logs and hosts: what an owner can do, and that nobody spends what is unknown."""

from __future__ import annotations

import re
import shutil
import sqlite3
from contextlib import closing
from dataclasses import replace

import psycopg
import pytest
import sqlalchemy as sa
from audit_program import export_text, run_audit

from dpflow.errors import BudgetExceeded, InvalidInput, LedgerCorrupt, RetryConflict, SessionClosed
from dpflow.ledger.history import chain
from dpflow.ledger.history.checkpoint import Checkpoint, Signer, open_note
from dpflow.ledger.storage import database as connections


def settle(ledger, ask, name):
    return ledger.settle(ask.reserve(ledger, name), {"rows": [name]})


def copy_database(target, copy):
    """The database as a backup holds it, at another place that nobody has opened yet."""
    connections._before_fork()  # closes what this process has open
    if "://" not in target:
        with closing(sqlite3.connect(target)) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        shutil.copy(target, copy)
        return
    places = [sa.make_url(each.replace("+psycopg", "")) for each in (target, copy)]
    name, other = (place.database for place in places)
    server = places[0].set(database="postgres").render_as_string(hide_password=False)
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [name]
        )
        connection.execute(f"DROP DATABASE {other}")
        connection.execute(f"CREATE DATABASE {other} TEMPLATE {name}")


@pytest.fixture
def lost(make_place, place, new_target, ask):
    """A ledger whose newest entries are gone while its anchor is not; a checkpoint of its end, the
    owner's verifier key, and what was reserved and open.
    """
    ledger = place.open()
    for scope in ("flights", "other"):
        ledger.grant(scope, 1, 0, table=None, filter="basic", principal="owner")
    settle(ledger, ask, "old")
    reserved = ask.reserve(ledger, "reserved")
    session = ledger.open_session(
        ask.key("session"), **ask.terms(), state={"left": 2}, exclusive=False
    )
    restored = make_place(new_target(), place.anchor)
    copy_database(place.target, restored.target)
    settle(ledger, ask, "new")
    note = ledger.checkpoint()
    return restored, note, ledger.signer.public_text, reserved, session


def test_reanchor_accepts_what_verifies(ledger, place, ask):
    """Only an owner's entry makes a new mark; with the mark there is nothing to do."""
    settle(ledger, ask, "one")
    with pytest.raises(InvalidInput, match="mark is there"):
        ledger.reanchor(reason="r", principal="owner")
    (place.anchor / "mark").unlink()
    ledger.reanchor(reason="disk lost", principal="owner")
    last = ledger.history(limit=1)[0]
    assert (last.kind, last.principal, last.body["reason"]) == ("reanchor", "owner", "disk lost")
    settle(ledger, ask, "two")
    assert ledger.verify().ok and ask.spent(ledger) == {"": "0.2"}


def test_reanchor_refuses_what_does_not_verify(ledger, place, ask):
    settle(ledger, ask, "one")
    (place.anchor / "mark").write_bytes(b"")
    place.sql("UPDATE dpflow_account SET epsilon = 1")
    with pytest.raises(LedgerCorrupt, match="not accepted"):
        place.open().reanchor(reason="r", principal="owner")


def test_a_checkpoint_is_extended_or_not(ledger, place, ask):
    """The owner's and a witness's note of an earlier moment; another ledger's, and one of a moment
    that this history never had.
    """
    settle(ledger, ask, "one")
    witness = Signer.create("example.org/nightly")
    early = ledger.checkpoint(witness)
    settle(ledger, ask, "two")
    assert ledger.verify(since=early, keys=[witness.public_text]).ok
    assert ledger.verify(since=ledger.checkpoint()).ok
    with pytest.raises(LedgerCorrupt, match="no trusted key"):
        ledger.verify(since=early)
    point = Checkpoint.parse(open_note(early, [witness.public_text])[0])
    assert [(s, b, c.epsilon) for s, b, c in point.spent] == [("flights", "", 10**11)]
    forged = Checkpoint(**{**vars(point), "head": "0" * 64})
    report = ledger.verify(since=witness.sign(forged.text), keys=[witness.public_text])
    assert "does not extend the checkpoint" in report.problems[0]
    forged = Checkpoint(**{**vars(point), "ledger_id": "f" * 16, "size": 99})
    report = ledger.verify(since=witness.sign(forged.text), keys=[witness.public_text])
    assert "is of ledger ffff" in report.problems[0]


def test_nothing_is_signed_that_does_not_verify(ledger, place, ask):
    settle(ledger, ask, "one")
    place.sql("UPDATE dpflow_account SET epsilon = 1")
    with pytest.raises(LedgerCorrupt, match="nothing is signed"):
        ledger.checkpoint()


def test_a_lost_log_without_a_witness_closes_all(lost, ask, tmp_path):
    """The drill: entries are gone, nobody knows what they charged. Nothing can be spent, settled or
    answered until the owner grants again.
    """
    place, _, _, reserved, session = lost
    ledger = place.open()
    with pytest.raises(LedgerCorrupt, match="old copy was restored"):
        ask.reserve(ledger, "again")
    assert not ledger.verify().ok
    assert ledger.recover(reason="log lost", principal="owner") == ["flights", "other"]
    assert ledger.verify().ok
    with pytest.raises(BudgetExceeded, match="is closed: entries were lost"):
        ask.reserve(ledger, "again")
    with pytest.raises(RetryConflict, match="fenced"):
        ledger.settle(reserved, {"rows": []})
    with pytest.raises(SessionClosed):
        ledger.answer(session.session_id, query="q", expected_version=0, state={}, answer={})
    assert ledger.remaining("flights").rows()[0]["epsilon_left"] == "0"
    ledger.grant("flights", 2, 0, table=None, filter="basic", principal="owner")
    settle(ledger, ask, "again")
    assert ledger.verify().ok
    done = run_audit(export_text(ledger), tmp_path)
    assert done.returncode == 0 and "recovered from checkpoint None" in done.stderr, done.stderr
    with pytest.raises(InvalidInput, match="nothing is missing"):
        ledger.recover(reason="twice", principal="owner")


def test_a_checkpoint_of_the_very_end_restores_all(lost, ask, tmp_path):
    """It states what the lost entries charged, and the mark says that nothing came after it."""
    place, note, _, reserved, _ = lost
    ledger = place.open()
    assert ledger.recover(reason="log lost", principal="owner", checkpoint=note) == []
    assert ask.spent(ledger) == {"": "0.4"}  # two settled, one reserved, one session
    settle(ledger, ask, "again")
    with pytest.raises(RetryConflict):
        ledger.settle(reserved, {"rows": []})
    assert ledger.verify(since=note).ok
    done = run_audit(export_text(ledger), tmp_path)
    assert done.returncode == 0 and '"units": [500000000000, 0, 0]' in done.stdout, done.stderr
    point = Checkpoint.parse(open_note(note, [ledger.signer.public_text])[0])
    assert point.head in done.stderr  # which checkpoint to compare it with


def test_a_mark_beyond_the_checkpoint_closes_all(lost, ask, tmp_path):
    """Something came after it, or the mark is lost with the host: then nobody witnesses the end."""
    place, note, *_ = lost
    (place.anchor / "mark").unlink()
    ledger = place.open()
    closed = ledger.recover(reason="host lost", principal="owner", checkpoint=note)
    assert closed == ["flights", "other"] and ask.spent(ledger) == {"": "0.4"}
    with pytest.raises(BudgetExceeded, match="closed"):
        ask.reserve(ledger, "again")
    assert ledger.verify(since=note).ok


def test_a_lost_host_goes_on_from_a_checkpoint_alone(lost, ask, tmp_path, make_place, new_target):
    """Ledger and keys are gone: a new ledger takes over grants and sums, all closed."""
    _, note, key, *_ = lost
    ledger = make_place(new_target(), tmp_path / "new").open()
    with pytest.raises(LedgerCorrupt, match="no trusted key"):
        ledger.recover(reason="host lost", principal="owner", checkpoint=note)
    closed = ledger.recover(reason="host lost", principal="owner", checkpoint=note, keys=[key])
    assert closed == ["flights", "other"] and ask.spent(ledger) == {"": "0.4"}
    assert ledger.verify().ok
    ledger.grant("flights", 1, 0, table=None, filter="basic", principal="owner")
    settle(ledger, ask, "again")
    assert ask.spent(ledger) == {"": "0.5"}
    assert ledger.verify(since=note, keys=[key]).ok
    assert run_audit(export_text(ledger), tmp_path).returncode == 0


@pytest.mark.parametrize("again", ["nothing is lost", "more is lost"])
def test_a_checkpoint_is_taken_over_once(lost, ask, again):
    """What was charged after a recovery stays charged, whoever recovers by the same checkpoint again:
    its sums were put back, and the ledger did not verify from then on.
    """
    place, note, *_ = lost
    ledger = place.open()
    note = _sign_longer(ledger, note)
    ledger.recover(reason="log lost", principal="owner", checkpoint=note)
    ledger.grant("flights", 2, 0, table=None, filter="basic", principal="owner")
    settle(ledger, ask, "after")
    if again == "nothing is lost":
        with pytest.raises(InvalidInput, match="nothing is missing"):
            ledger.recover(reason="twice", principal="owner", checkpoint=note)
    else:
        (place.anchor / "mark").unlink()
        ledger.recover(reason="mark lost", principal="owner", checkpoint=note)
        assert ledger.scope("flights").closed
    assert ask.spent(ledger) == {"": "0.5"}
    assert ledger.verify(since=note).ok


def test_a_checkpoint_of_another_branch_takes_no_charge_back(lost, ask):
    """Less was spent by it than by the history that is left."""
    place, note, *_ = lost
    ledger = place.open()
    note = _sign_longer(ledger, note)
    ledger.recover(reason="log lost", principal="owner")
    ledger.grant("flights", 2, 0, table=None, filter="basic", principal="owner")
    for name in "abc":
        settle(ledger, ask, name)
    before, number = ask.spent(ledger), len(ledger.history())
    with pytest.raises(InvalidInput, match="spent less than by the history"):
        ledger.recover(reason="again", principal="owner", checkpoint=note)
    assert (ask.spent(ledger), len(ledger.history())) == (before, number)
    assert ledger.verify().ok


def _sign_longer(ledger, note):
    """The same of a history that was a hundred notes longer."""
    point = Checkpoint.parse(open_note(note, [ledger.signer.public_text])[0])
    return ledger.signer.sign(replace(point, size=point.size + 100, head="1" * 64).text)


def test_no_data_are_fresh_after_a_loss(lost, ask):
    """The lost entries may have read them, so no session proves anything that needs fresh rows."""
    place, note, *_ = lost
    ledger = place.open()
    ledger.recover(reason="log lost", principal="owner", checkpoint=note)
    for scope in ("other", "new"):
        ledger.grant(scope, 1, 0, table=None, filter="basic", principal="owner")
        held = ledger.open_session(
            ask.key("gate", scope=scope), **ask.terms(), state={}, exclusive=True
        )
        assert not ledger.is_fresh(held.session_id, scope, ["table t"])
    assert ledger.verify().ok
    place.sql("DELETE FROM dpflow_data WHERE name = 'lost entries'")
    with pytest.raises(LedgerCorrupt):
        ledger.is_fresh(held.session_id, scope, ["table t"])
    assert "what is known of lost entries" in str(ledger.verify())


FALSE_RECOVERIES = {
    "a scope stays open": ({"closed": ["flights"]}, "leaves scopes open"),
    "a charge is taken back": ({"spent": [["flights", "", 0, 0, 0]]}, "takes a charge back"),
    "a try goes on": ({"unsettled": []}, "leaves a reservation or session open"),
    "a witness of nothing": ({"closed": [], "marked": None}, "leaves scopes open"),
}


@pytest.mark.parametrize("change", FALSE_RECOVERIES)
def test_a_recovery_that_leaves_too_much_is_found(lost, tmp_path, monkeypatch, change):
    """By verify and by the program: what nobody witnesses is closed, and sums never fall."""
    place, note, *_ = lost
    (place.anchor / "mark").unlink()
    ledger, add_entry = place.open(), chain.Writer.add_entry
    body, rule = FALSE_RECOVERIES[change]

    def add_other(writer, kind, scope, name, principal, true):
        add_entry(writer, kind, scope, name, principal, true | body)

    monkeypatch.setattr(chain.Writer, "add_entry", add_other)
    ledger.recover(reason="host lost", principal="owner", checkpoint=note)
    monkeypatch.undo()
    assert rule in str(ledger.verify())
    done = run_audit(export_text(ledger), tmp_path)
    assert done.returncode and "(recover) breaks a rule" in done.stderr


def test_keys_rotate(ledger, place, ask):
    """What was stored stays readable, under keys that the old anchor's copy does not open."""
    settle(ledger, ask, "one")
    held = ledger.open_session(ask.key("s"), **ask.terms(), state={"left": 3}, exclusive=False)
    answer = {
        "query": "q",
        "expected_version": 0,
        "state": {"left": 2},
        "answer": {"yes": True},
    }
    ledger.answer(held.session_id, **answer)
    tables = (
        "SELECT wrapped FROM dpflow_key",
        "SELECT secret FROM dpflow_release",
        "SELECT answer FROM dpflow_answer",
    )
    before = {value for table in tables for (value,) in place.sql(table) if value}
    old = (place.anchor / "wrap").read_bytes()
    assert ledger.rotate(principal="owner") == 3
    assert (place.anchor / "wrap").read_bytes() != old and not (place.anchor / "wrap.old").exists()
    assert before.isdisjoint(value for table in tables for (value,) in place.sql(table))
    for opened in (ledger, place.open()):
        assert settle(opened, ask, "one").result == {"rows": ["one"]}
        assert opened.session(held.session_id).state == {"left": 2}
        assert opened.stored_answer(held.session_id, "q").answer == {"yes": True}
    assert ledger.verify().ok
    (place.anchor / "wrap").write_bytes(old)
    with pytest.raises(LedgerCorrupt, match="restore its file wrap"):
        settle(place.open(), ask, "one")


def test_a_rotation_that_was_killed_is_finished_by_the_next(ledger, place, ask, monkeypatch):
    settle(ledger, ask, "one")
    monkeypatch.setattr(type(ledger._cipher), "rewrap_keys", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        ledger.rotate(principal="owner")
    monkeypatch.undo()
    settle(ledger, ask, "two")  # under the new key already
    assert (place.anchor / "wrap.old").exists() and settle(ledger, ask, "one").settled
    assert ledger.rotate(principal="owner") == 2 and not (place.anchor / "wrap.old").exists()
    assert settle(place.open(), ask, "one").settled and ledger.verify().ok


def test_nothing_stored_is_in_the_clear(ledger, place, ask):
    """Results, answers and states: only ciphertext in any row, log or export of secrets."""
    ledger.settle(ask.reserve(ledger, "one"), {"rows": ["marzipan"]})
    held = ledger.open_session(
        ask.key("s"), **ask.terms(), state={"threshold": "nougat"}, exclusive=False
    )
    ledger.answer(
        held.session_id, query="q", expected_version=0, state={"threshold": "praline"}, answer={"a": "truffle"},
    )  # fmt: skip
    tables = ["dpflow_release", "dpflow_answer", "dpflow_entry", "dpflow_node", "dpflow_key"]
    text = repr([place.sql(f"SELECT * FROM {table}") for table in tables])  # noqa: S608
    if "://" not in place.target:
        text += repr([file.read_bytes() for file in place.anchor.parent.glob("ledger.sqlite*")])
    assert not re.search("marzipan|nougat|praline|truffle", text)


def test_a_ciphertext_opens_only_in_its_place(ledger, place, ask):
    """A result put into another release's row, with or without its key, is refused."""
    ids = [settle(ledger, ask, name).release_id for name in ("one", "two")]
    place.sql(
        f"UPDATE dpflow_release SET result = (SELECT result FROM dpflow_release WHERE id = '{ids[0]}') WHERE id = '{ids[1]}'"
    )
    with pytest.raises(LedgerCorrupt):
        settle(place.open(), ask, "two")
    place.sql(
        f"UPDATE dpflow_key SET wrapped = (SELECT wrapped FROM dpflow_key WHERE release_id = '{ids[0]}') WHERE release_id = '{ids[1]}'"
    )
    with pytest.raises(LedgerCorrupt):
        settle(place.open(), ask, "two")
    assert not ledger.verify().ok
    place.sql(f"DELETE FROM dpflow_key WHERE release_id = '{ids[0]}'")
    with pytest.raises(LedgerCorrupt, match="key of release .* is gone"):
        settle(place.open(), ask, "one")
