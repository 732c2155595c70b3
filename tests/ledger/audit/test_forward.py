"""Verification forward from a checkpoint: what it finds, what it says it leaves out, and what it costs."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest

from dpflow.errors import LedgerCorrupt
from dpflow.ledger.audit.forward import ForwardCheck
from dpflow.ledger.history.checkpoint import Checkpoint, Signer, open_note


def busy(ledger, ask):
    """Something of every kind before a checkpoint; returns what is unsettled then."""
    terms = {"table": None, "filter": "basic", "approvals": 2, "principal": "ann"}
    proposal = ledger.grant("other", 2, 0, **terms)
    ask.settle(ledger, "old", "0.01", slot="run/0", data=["place x"])
    orphan = ask.reserve(ledger, "orphan", "0.01", slot="run/1")
    gate = ledger.open_session(
        ask.key("gate"), **ask.terms("0.01", data=["place y"]), state={"n": 0}, exclusive=False
    )
    answer(ledger, gate, 0)
    return proposal, orphan, gate


def answer(ledger, gate, version, closed=False):
    said = {"verdict": "pass", "failures_left": 1}
    ledger.answer(
        gate.session_id,
        query=f"q{version}",
        expected_version=version,
        state={"n": version},
        answer=said,
        closed=closed,
    )
    ledger.tell_verdict(gate.session_id, f"q{version}")


def go_on(ledger, ask, unsettled):
    """What ends or follows each of them, and new things."""
    proposal, orphan, gate = unsettled
    ledger.approve("other", proposal.seq, principal="bob")
    retried = ask.reserve(ledger, "orphan", "0.01", slot="run/1")
    ledger.settle(retried, {"rows": []})
    answer(ledger, gate, 1, closed=True)
    ask.settle(ledger, "new", "0.01", slot="run/2", data=["place x", "joined place y"])
    ask.reserve(ledger, "old", "0.01", slot="run/3")  # joins
    late = ask.reserve(ledger, "late", "0.01")
    ledger.resolve(late.release_id, reason="host lost", principal="ann")
    ask.reserve(ledger, "open", "0.01")
    ledger.record("note", {"of": "a caller"}, principal="ann")


def test_new_entries_go_through_the_same_rules(ledger, ask):
    """An honest history verifies forward, says what was left out, and its next checkpoint states what
    a full verification states.
    """
    unsettled = busy(ledger, ask)
    early = ledger.checkpoint()
    point = Checkpoint.parse(early.rpartition("\n\n")[0] + "\n")
    assert [row[0] for row in point.unsettled] == sorted(
        [unsettled[1].release_id, unsettled[2].session_id]
    )
    assert point.waiting == (unsettled[0].seq,)
    go_on(ledger, ask, unsettled)
    report = ledger.verify(since=early, new_only=True)
    assert report.ok, report.problems
    assert report.checked_after == point.size and f"before {point.size + 1} not rechecked" in str(
        report
    )
    forward, full = ledger.checkpoint(since=early), ledger.checkpoint()
    texts = [note.rpartition("\n\n")[0] for note in (forward, full)]
    assert texts[0].replace(f"checked after {point.size}", "checked after 0") == texts[1]
    assert ledger.verify(since=forward, new_only=True).ok
    page = ledger.report("flights", checkpoints=[early], new_only=True)[0]
    assert f"Entries behind {point.size} were verified" in page and "whole history" not in page


@pytest.mark.parametrize(
    ("statement", "word"),
    [
        ("UPDATE dpflow_account SET epsilon = 1", "account"),
        ("UPDATE dpflow_scope SET approvals = 1 WHERE name = 'other'", "scope other"),
        ("UPDATE dpflow_release SET attempts = 9 WHERE state = 'fenced'", "attempts"),
        ("UPDATE dpflow_release SET state = 'reserved' WHERE digest = 'orphan'", "state"),
        ("UPDATE dpflow_release SET result = secret WHERE digest = 'new'", "result"),
        ("DELETE FROM dpflow_release WHERE digest = 'new'", "is gone"),
        ("DELETE FROM dpflow_slot WHERE instance = '2'", "task instance"),
        ("UPDATE dpflow_data SET first = 'x' WHERE name = 'place y'", "root"),
        ("DELETE FROM dpflow_answer WHERE version = 2", "answer"),
        ("UPDATE dpflow_verdict SET verdict = 'fail' WHERE version = 2", "verdict"),
        ("DELETE FROM dpflow_key WHERE version = 2", "key"),
        ("UPDATE dpflow_proposal SET principal = 'eve'", "waits for other"),
        ("UPDATE dpflow_entry SET principal = 'eve' WHERE kind = 'resolve'", "was changed"),
        ("DELETE FROM dpflow_entry WHERE kind = 'resolve'", "is missing"),
        ("UPDATE dpflow_entry SET body = 'x' WHERE kind IN ('session', 'propose')", "was changed"),
    ],
)
def test_damage_behind_a_checkpoint_is_found(ledger, place, ask, statement, word):
    """Of each table, where new entries touched it."""
    unsettled = busy(ledger, ask)
    early = ledger.checkpoint()
    go_on(ledger, ask, unsettled)
    place.sql(statement)
    problems = place.open().verify(since=early, new_only=True).problems
    assert any(word in problem for problem in problems), problems
    with pytest.raises(LedgerCorrupt, match="nothing is signed"):
        place.open().checkpoint(since=early)


def test_what_was_checked_before_is_left_out_and_said(ledger, place, ask):
    """Damage that only the old entries tell of: not found, which the report says, and found in full."""
    ask.settle(ledger, "old", "0.01")
    early = ledger.checkpoint()
    ask.settle(ledger, "new", "0.01")
    place.sql("UPDATE dpflow_release SET snapshot = 'x' WHERE digest = 'old'")
    report = place.open().verify(since=early, new_only=True)
    assert report.ok and "nor rows that none since has touched" in str(report)
    assert not place.open().verify(since=early).ok


def test_only_a_trusted_checkpoint_of_this_history_is_a_start(ledger, ask):
    """A forged sum, another head, a stranger's signature: refused or told."""
    ask.settle(ledger, "old", "0.01")
    witness = Signer.create("example.org/nightly")
    note = ledger.checkpoint(witness)
    ask.settle(ledger, "new", "0.01")
    with pytest.raises(LedgerCorrupt, match="no trusted key"):
        ledger.verify(since=note, new_only=True)
    text, _ = open_note(note, [witness.public_text])
    sums = witness.sign(text.replace('"flights","",10000000000,', '"flights","",20000000000,'))
    report = ledger.verify(since=sums, keys=[witness.public_text], new_only=True)
    assert any("account flights" in problem for problem in report.problems), report
    other = replace(Checkpoint.parse(text), head="0" * 64)
    report = ledger.verify(
        since=witness.sign(other.text), keys=[witness.public_text], new_only=True
    )
    assert any("does not extend the checkpoint" in problem for problem in report.problems)


def test_a_move_is_checked_from_the_first_entry_on(ledger, place, make_place, new_target, ask):
    """An import since the checkpoint: the past is not taken from it. A lost mark changes no row."""
    ask.settle(ledger, "old", "0.01")
    early = ledger.checkpoint()
    (place.anchor / "mark").unlink()
    ledger.reanchor(reason="disk lost", principal="owner")
    assert ledger.verify(since=early, new_only=True).checked_after > 0
    moved = make_place(new_target(), place.anchor).open()
    stream = io.StringIO()
    ledger.export(stream)
    stream.seek(0)
    moved.import_(stream, principal="owner")
    report = moved.verify(since=early, new_only=True)
    assert report.ok and report.checked_after == 0


def test_a_charge_while_it_reads_is_no_loss(ledger, place, ask, monkeypatch):
    """The mark goes on with it, and the entries that are read do not."""
    early = ledger.checkpoint()
    ask.reserve(ledger, "one")
    read = ForwardCheck.__init__

    def charge_then(check, *words):
        read(check, *words)
        ask.reserve(place.open(), "two")

    monkeypatch.setattr(ForwardCheck, "__init__", charge_then)
    assert ledger.verify(since=early, new_only=True).ok
