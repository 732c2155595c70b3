"""Lost marks, logs and hosts: what an owner can do, and that nobody spends what is unknown."""

from __future__ import annotations

import re
import shutil
import sqlite3
from contextlib import closing
from dataclasses import replace
from unittest.mock import Mock

import psycopg
import pytest
import sqlalchemy as sa
from audit_program import export_text, run_audit

from dpflow.core.accounting.privacy_filters import Cost
from dpflow.errors import (
    BudgetExceeded,
    InvalidInput,
    LedgerCorrupt,
    LedgerUnavailable,
    RetryConflict,
    SessionClosed,
)
from dpflow.ledger.audit.audited_ledger import NEWEST
from dpflow.ledger.history import chain
from dpflow.ledger.history.checkpoint import Checkpoint, Signer, open_note
from dpflow.ledger.storage import database as connections


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


def test_no_proposal_outlives_a_recovery(place, make_place, new_target, tmp_path):
    """The lost entries may have taken its place, or the right to sign from who made it."""
    ann, bob = Signer.create("ann"), Signer.create("bob")
    keys, terms = [ann.public_text, bob.public_text], {"table": None, "principal": "login"}
    ledger = place.open()
    ledger.grant("s", 1, 0, signers=keys, signer=ann, **terms)
    ledger.quota("s/t", "0.5", 0, principal="login", approvals=2, signer=ann)
    (proposal,) = ledger.proposals()
    restored = make_place(new_target(), place.anchor)
    copy_database(place.target, restored.target)
    ledger.grant("s", 1, 0, signers=keys[1:], signer=bob, **terms)
    note, left = ledger.checkpoint(), restored.open()
    left.recover(reason="disk", principal="owner", checkpoint=note)
    assert left.proposals() == [] and left.verify().ok
    left.grant("s", 1, 0, signer=bob, **terms)
    with pytest.raises(InvalidInput, match="no grant that entry"):
        left.approve("s/t", proposal.seq, principal="login", signer=bob)
    assert run_audit(export_text(left), tmp_path).returncode == 0


@pytest.fixture
def lost(make_place, place, new_target, ask):
    """A ledger whose newest entries are gone while its anchor is not; a checkpoint of its end, the
    owner's verifier key, and what was reserved and open.
    """
    ledger = place.open()
    for scope in ("flights", "other"):
        ledger.grant(scope, 1, 0, table=None, filter="basic", principal="owner")
    ask.settle(ledger, "old")
    reserved = ask.reserve(ledger, "reserved")
    session = ledger.open_session(
        ask.key("session"), **ask.terms(), state={"left": 2}, exclusive=False
    )
    restored = make_place(new_target(), place.anchor)
    copy_database(place.target, restored.target)
    ask.settle(ledger, "new")
    note = ledger.checkpoint()
    return restored, note, ledger.signer.public_text, reserved, session


def test_reanchor_accepts_what_verifies(ledger, place, ask):
    """Only an owner's entry makes a new mark; with the mark there is nothing to do."""
    ask.settle(ledger, "one")
    with pytest.raises(InvalidInput, match="mark is there"):
        ledger.reanchor(reason="r", principal="owner")
    (place.anchor / "mark").unlink()
    ledger.reanchor(reason="disk lost", principal="owner")
    last = ledger.history(limit=1)[0]
    assert (last.kind, last.principal, last.body["reason"]) == ("reanchor", "owner", "disk lost")
    ask.settle(ledger, "two")
    assert ledger.verify().ok and ask.spent(ledger) == {"": "0.2"}


def test_reanchor_refuses_what_does_not_verify(ledger, place, ask):
    ask.settle(ledger, "one")
    (place.anchor / "mark").write_bytes(b"")
    place.sql("UPDATE dpflow_account SET epsilon = 1")
    with pytest.raises(LedgerCorrupt, match="not accepted"):
        place.open().reanchor(reason="r", principal="owner")


def test_a_checkpoint_is_extended_or_not(ledger, place, ask):
    """The owner's and a witness's note of an earlier moment; another ledger's, and one of a moment
    that this history never had.
    """
    ask.settle(ledger, "one")
    witness = Signer.create("example.org/nightly")
    early = ledger.checkpoint(witness)
    ask.settle(ledger, "two")
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
    ask.settle(ledger, "one")
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
    ask.settle(ledger, "again")
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
    ask.settle(ledger, "again")
    with pytest.raises(RetryConflict):
        ledger.settle(reserved, {"rows": []})
    assert ledger.verify(since=note).ok and ledger.verify(since=note, new_only=True).ok
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
    ask.settle(ledger, "again")
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
    # The same of a history that was a hundred notes longer.
    point = Checkpoint.parse(open_note(note, [ledger.signer.public_text])[0])
    note = ledger.signer.sign(replace(point, size=point.size + 100, head="1" * 64).text)
    ledger.recover(reason="log lost", principal="owner", checkpoint=note)
    ledger.grant("flights", 2, 0, table=None, filter="basic", principal="owner")
    ask.settle(ledger, "after")
    if again == "nothing is lost":
        with pytest.raises(InvalidInput, match="nothing is missing"):
            ledger.recover(reason="twice", principal="owner", checkpoint=note)
    else:
        (place.anchor / "mark").unlink()
        ledger.recover(reason="mark lost", principal="owner", checkpoint=note)
        assert ledger.scope("flights").closed
    assert ask.spent(ledger) == {"": "0.5"}
    assert ledger.verify(since=note).ok


def test_a_second_loss_counts_no_charge_twice(lost, make_place, new_target, ask):
    """A checkpoint that was made after the first recovery holds what was charged since: it is not late.
    So is one that goes on from it.
    """
    place, *_ = lost
    ledger = place.open()
    ledger.recover(reason="log lost", principal="owner")
    ledger.grant("flights", 1, 0, table=None, filter="basic", principal="owner")
    ask.settle(ledger, "between")
    spent = ask.spent(ledger)[""]
    early = ledger.checkpoint()
    again = make_place(new_target(), place.anchor)
    copy_database(place.target, again.target)
    ledger = place.open()
    ask.settle(ledger, "lost")
    note = ledger.checkpoint(since=early)
    assert len(Checkpoint.parse(open_note(note, [ledger.signer.public_text])[0]).recoveries) == 1
    ledger = again.open()
    ledger.recover(reason="log lost again", principal="owner", checkpoint=note)
    assert float(ask.spent(ledger)[""]) == pytest.approx(float(spent) + 0.1)
    assert ledger.verify(since=note).ok and ledger.verify(since=early).ok


@pytest.fixture
def spent_twice(make_place, place, new_target, ask):
    """Makes a ledger that lost 0.6 of 0.9 spent, with its anchor: an owner recovered it for a reason,
    granted again, and 0.7 more was paid. Returns it and the newest checkpoint of what was lost.
    """

    def make(reason=None, checkpoint=False, between=()):
        ledger = place.open()
        ledger.grant("flights", 1, 0, table=None, filter="basic", principal="owner")
        for n in range(3):
            ask.settle(ledger, f"old {n}")
        restored = make_place(new_target(), place.anchor)
        copy_database(place.target, restored.target)
        ledger, early = place.open(), None
        for n in range(3, 9):
            ask.settle(ledger, f"old {n}")
            if n == 5:
                early = ledger.checkpoint()
        lost = ledger.checkpoint()
        if not checkpoint:
            (place.anchor / "mark").unlink()
        ledger = restored.open()
        ledger.recover(reason=reason or lost.splitlines()[2], principal="owner")
        ledger.grant("flights", 1, 0, table=None, filter="basic", principal="owner")
        for n in range(7):
            ask.settle(ledger, f"new {n}")
        return ledger, lost, early

    return make


@pytest.mark.parametrize("reason", ["host lost", "head", '["', "mark"])
def test_no_checkpoint_is_confirmed_whose_charges_are_gone(spent_twice, reason):
    """Neither a reason that quotes the head, nor the mark in the entry, nor the sums of today (0.3 +
    0.7 are more than 0.9) say that the lost charges were taken over. The report says the same.
    """
    ledger, lost, early = spent_twice(
        {"head": None, "mark": "x"}.get(reason, reason), reason == "mark"
    )
    for note in (lost, early):
        assert "no recovery took over what it says" in ledger.verify(since=note).problems[0]
        (row,) = re.findall(r"<td>(yes|NO)", ledger.report("flights", checkpoints=[note])[0])
        assert row == "NO"
    assert ledger.verify().ok


def test_a_recovery_counts_by_its_own_sums(lost, monkeypatch):
    """An entry that names the checkpoint, and takes less over than it says, confirms nothing; nor
    does one of another signer, size or ledger.
    """
    place, note, *_ = lost
    ledger, add_entry = place.open(), chain.Writer.add_entry
    point = Checkpoint.parse(open_note(note, [ledger.signer.public_text])[0])

    def add_other(writer, kind, scope, name, principal, body):
        body = body | {"spent": [[*row[:2], row[2] - 1, *row[3:]] for row in body["spent"]]}
        add_entry(writer, kind, scope, name, principal, body)

    with monkeypatch.context() as patch:
        patch.setattr(chain.Writer, "add_entry", add_other)
        ledger.recover(reason="log lost", principal="owner", checkpoint=note)
    assert any("no recovery took over" in p for p in ledger.verify(since=note).problems)
    for change in ({"size": point.size + 1}, {"head": "1" * 64}, {"ledger_id": "f" * 16}):
        other = ledger.signer.sign(replace(point, **change).text)
        assert not ledger.verify(since=other).ok
    witness = Signer.create("example.org/w")
    assert not ledger.verify(since=witness.sign(point.text), keys=[witness.public_text]).ok


@pytest.mark.parametrize("marked", [False, True])
def test_a_late_checkpoint_is_added_to_what_was_charged_since(spent_twice, ask, tmp_path, marked):
    """It turns up after a recovery without it: 0.9 of before, and 0.7 since. All scopes close, unless
    the mark stood at the checkpoint when the ledger was recovered.
    """
    ledger, late, _ = spent_twice("host lost", checkpoint=marked)
    assert ask.spent(ledger) == {"": "1"}
    closed = ledger.recover(reason="a note turned up", principal="owner", checkpoint=late)
    assert closed == ([] if marked else ["flights"])
    assert ledger.scope("flights").closed != marked and ask.spent(ledger) == {"": "1.6"}
    with pytest.raises(BudgetExceeded):
        ask.reserve(ledger, "more")
    assert ledger.verify(since=late).ok
    with pytest.raises(InvalidInput, match="nothing is missing"):
        ledger.recover(reason="again", principal="owner", checkpoint=late)
    done = run_audit(export_text(ledger), tmp_path)
    assert done.returncode == 0 and '"units": [1600000000000, 0, 0]' in done.stdout, done.stderr


def test_checkpoints_that_turn_up_one_by_one_never_count_too_little(spent_twice, ask):
    """An earlier one of the same lost entries first: the newer one is counted beside it."""
    ledger, late, early = spent_twice("host lost")
    ledger.recover(reason="r", principal="owner", checkpoint=early)
    assert ask.spent(ledger) == {"": "1.3"} and not ledger.verify(since=late).ok
    ledger.recover(reason="r", principal="owner", checkpoint=late)
    assert ask.spent(ledger) == {"": "1.9"}  # 1.6 were spent; 0.3 of the first are counted twice
    assert ledger.verify(since=late).ok and ledger.verify(since=early).ok


def test_a_late_checkpoint_by_which_less_was_spent_is_refused(spent_twice, ask):
    """What was restored cannot be the beginning of its history."""
    ledger, late, _ = spent_twice("host lost")
    point = Checkpoint.parse(open_note(late, [ledger.signer.public_text])[0])
    poor = replace(point, spent=tuple((s, b, Cost(2 * 10**11)) for s, b, _ in point.spent))
    number = len(ledger.history())
    for change in (poor, replace(point, spent=())):
        with pytest.raises(InvalidInput, match="spent less than by the history"):
            ledger.recover(
                reason="r", principal="owner", checkpoint=ledger.signer.sign(change.text)
            )
    assert len(ledger.history()) == number and ledger.verify().ok


def test_a_late_checkpoint_of_another_filter_is_refused(lost, ask):
    """Sums of two Renyi orders do not add up. Granted for the first time after the loss, the scope has
    another filter here than it had there.
    """
    place, note, *_ = lost
    ledger = place.open()
    point = Checkpoint.parse(open_note(note, [ledger.signer.public_text])[0])
    ledger.recover(reason="log lost", principal="owner")
    ledger.grant("new", 1, "1e-6", table=None, filter="hybrid", principal="owner")
    old = ("new", *point.scopes[0][1:])
    for cost, refused in ((Cost(5), True), (Cost(), False)):
        spent = (*point.spent, ("new", "", cost))
        grown = replace(point, scopes=(*point.scopes, old), spent=spent)
        words = {"reason": "r", "principal": "owner", "checkpoint": ledger.signer.sign(grown.text)}
        if refused:
            with pytest.raises(InvalidInput, match="another filter since"):
                ledger.recover(**words)
        else:
            ledger.recover(**words)
    assert ledger.verify().ok and ledger.scope("new").filter.name == "hybrid"


def test_a_checkpoint_that_no_loss_explains_is_not_taken_over(ledger, place, ask):
    """Another entry stands at its number, and nothing says that entries were lost."""
    ask.settle(ledger, "one")
    point = Checkpoint.parse(open_note(ledger.checkpoint(), [ledger.signer.public_text])[0])
    other = ledger.signer.sign(replace(point, head="1" * 64).text)
    with pytest.raises(InvalidInput, match="no recovery says that entries were lost"):
        ledger.recover(reason="r", principal="owner", checkpoint=other)


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
    ask.settle(ledger, "one")
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
        assert ask.settle(opened, "one").result == {"rows": ["one"]}
        assert opened.session(held.session_id).state == {"left": 2}
        assert opened.ask(held.session_id, "q").answer == {"yes": True}
    assert ledger.verify().ok
    (place.anchor / "wrap").write_bytes(old)
    with pytest.raises(LedgerCorrupt, match="restore the file wrap"):
        ask.settle(place.open(), "one")


def test_a_rotation_that_was_killed_is_finished_by_the_next(ledger, place, ask, monkeypatch):
    ask.settle(ledger, "one")
    monkeypatch.setattr(type(ledger._cipher), "rewrap_keys", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        ledger.rotate(principal="owner")
    monkeypatch.undo()
    ask.settle(ledger, "two")  # under the new key already
    assert (place.anchor / "wrap.old").exists() and ask.settle(ledger, "one").settled
    assert ledger.rotate(principal="owner") == 2 and not (place.anchor / "wrap.old").exists()
    assert ask.settle(place.open(), "one").settled and ledger.verify().ok


def test_of_two_rotations_one_is_refused(ledger, place, ask, monkeypatch):
    """Of two at once none destroys the key that the other, or a third, rotates from."""
    ask.settle(ledger, "one")
    outwait = ledger._database.outwait_readers

    def outwait_beside_another():
        with pytest.raises(LedgerUnavailable, match="being rotated by another program"):
            place.open().rotate(principal="another")
        outwait()

    monkeypatch.setattr(ledger._database, "outwait_readers", outwait_beside_another)
    assert ledger.rotate(principal="owner") == 1
    assert place.open().rotate(principal="another") == 1
    assert not (place.anchor / "wrap.old").exists()
    assert ask.settle(place.open(), "one").settled and ledger.verify().ok


def test_a_rotation_leaves_readers_the_old_key(ledger, place, ask, monkeypatch):
    """One who began before it reads keys that only the old one opens: no false alarm while it is there."""
    ask.settle(ledger, "one")
    monkeypatch.setattr(connections, "_PATIENCE", 0.2)
    with ledger._database.begin_reading() as transaction:
        assert transaction.rows(NEWEST, limit=1)
        with pytest.raises(LedgerUnavailable, match="still read by a program that began before"):
            place.open().rotate(principal="owner")
        assert ledger._verify_within(transaction, marked=False)[2] == []
    assert place.open().rotate(principal="owner") == 1 and not (place.anchor / "wrap.old").exists()
    assert ledger.verify().ok


def test_a_failure_of_the_ledger_is_not_one_of_the_anchor(ledger, ask, monkeypatch):
    monkeypatch.setattr(type(ledger._cipher), "rewrap_keys", Mock(side_effect=OSError(5, "I/O")))
    with pytest.raises(OSError, match="I/O"):
        ledger.rotate(principal="owner")


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
    ids = [ask.settle(ledger, name).release_id for name in ("one", "two")]
    place.sql(
        f"UPDATE dpflow_release SET result = (SELECT result FROM dpflow_release WHERE id = '{ids[0]}') WHERE id = '{ids[1]}'"
    )
    with pytest.raises(LedgerCorrupt):
        ask.settle(place.open(), "two")
    place.sql(
        f"UPDATE dpflow_key SET wrapped = (SELECT wrapped FROM dpflow_key WHERE release_id = '{ids[0]}') WHERE release_id = '{ids[1]}'"
    )
    with pytest.raises(LedgerCorrupt):
        ask.settle(place.open(), "two")
    assert not ledger.verify().ok
    place.sql(f"DELETE FROM dpflow_key WHERE release_id = '{ids[0]}'")
    with pytest.raises(LedgerCorrupt, match="key of release .* is gone"):
        ask.settle(place.open(), "one")
