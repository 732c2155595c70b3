"""A recovery is no way around signatures and second approvals: nobody signed what its entry states."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest
from audit_program import export_text, run_audit

from dpflow.core.accounting.privacy_filters import Filter, make_filter
from dpflow.errors import InvalidInput
from dpflow.ledger.books import grant_terms
from dpflow.ledger.books.records import GrantProposal
from dpflow.ledger.history.checkpoint import Checkpoint, Signer
from dpflow.ledger.storage import schema
from dpflow.ledger.storage.compact_json import canonical_json

ANN, BOB, EVE, WITNESS = map(Signer.create, ("ann", "bob", "eve", "nightly"))
KEYS = [ANN.public_text, BOB.public_text]
TERMS = {"table": None, "filter": "basic", "principal": "login"}
LARGE = canonical_json(Filter("basic", Fraction(1000), Fraction(0)).to_json())


@pytest.fixture
def signed(place):
    """A scope that two people sign, and one that two principals approve."""
    ledger = place.open()
    ledger.grant("s", 1, 0, signers=KEYS, signer=ANN, approvals=2, **TERMS)
    (proposal,) = ledger.proposals()
    ledger.approve("s", proposal.seq, principal="login", signer=BOB)
    proposal = ledger.grant("two", 1, 0, approvals=2, **TERMS)
    ledger.approve("two", proposal.seq, principal="other")
    ledger.grant("free", 1, 0, **TERMS)
    return ledger


def read_point(note):
    return Checkpoint.parse(note.rpartition("\n\n")[0] + "\n")


def forge_recovery(ledger, stated, taken=None):
    """What a holder of the anchor's key writes: rows, and an entry that is its own witness."""
    with ledger._begin_writing() as writer:
        number, state = writer.next_seq, writer.state
        for name, *columns in stated:
            row = state.find(schema.scope, name=name)
            terms = dict(zip(("filter", "protects", "blocks", "closed", "approvals"), columns))
            if row is None:
                state.insert(schema.scope, name=name, **terms, seq=number)
            else:
                state.update(schema.scope, row, **terms, seq=number)
        head = [number - 1, writer.head]
        body = {"reason": "disk", "marked": taken[1:3] if taken else head}
        body |= {"checkpoint": taken or ["x", *head, "nightly"], "scopes": stated, "spent": []}
        body |= {"closed": [], "unsettled": [], "data": []}
        writer.add_entry("recover", "", "", "owner", body)


def verdicts(ledger, note, folder):
    """Problems of a full and a forward verification, and whether the audit program objects."""
    key = {"since": note, "keys": [WITNESS.public_text]}
    reports = ledger.verify(), ledger.verify(**key), ledger.verify(**key, new_only=True)
    refused = run_audit(export_text(ledger), folder).returncode != 0
    return *(bool(report.problems) for report in reports), refused


def change(ledger, scope, **columns):
    """What a history says of a scope, but for these columns."""
    (terms,) = (row for row in read_point(ledger.checkpoint()).scopes if row[0] == scope)
    names = ("name", "filter", "protects", "blocks", "closed", "approvals")
    return [*(dict(zip(names, terms)) | columns).values()]


@pytest.mark.parametrize(
    ("name", "columns", "is_legal"),
    [
        ("s", {"filter": LARGE, "approvals": 1}, False),
        ("s", {"approvals": 1}, False),
        ("s", {"filter": LARGE, "closed": 1}, False),
        ("two", {"filter": LARGE}, False),
        ("two", {"approvals": 1}, False),
        ("s", {"name": "s/quota", "approvals": 1}, False),
        ("free", {"name": "s/quota"}, False),
        ("free", {"name": "s/quota", "closed": 1}, True),
        ("s", {}, True),
        ("s", {"closed": 1}, True),
        ("two", {}, True),
        ("free", {"filter": LARGE}, True),
        ("free", {"name": "new", "filter": LARGE}, True),
    ],
)
def test_a_recovery_states_no_terms_that_people_sign(signed, tmp_path, name, columns, is_legal):
    """Verification, forward verification and the audit program agree; the last rows are legal, and
    what nobody signed of them is named.
    """
    note = signed.checkpoint(WITNESS)
    forge_recovery(signed, [change(signed, name, **columns)])
    assert set(verdicts(signed, note, tmp_path)) == {not is_legal}
    if is_legal:
        number = signed.history()[-1].seq
        assert (number in signed.verify().self_declared) == bool(columns)
        named = run_audit(export_text(signed), tmp_path).stderr
        assert (f", {number}]" in named) == bool(columns), named


def test_a_closed_scope_is_not_opened_by_a_recovery(signed, tmp_path):
    """Its signers alone open it again."""
    note = signed.checkpoint(WITNESS)
    forge_recovery(signed, [change(signed, "s", closed=1)])
    forge_recovery(signed, [change(signed, "s", closed=0)])
    assert set(verdicts(signed, note, tmp_path)) == {True}


@pytest.mark.parametrize("name", ["s", "two"])
def test_a_forged_checkpoint_of_a_key_that_the_caller_trusts_gains_nothing(
    signed, place, tmp_path, name
):
    """Through the verbs alone, by a task whose anchor has no key to sign with."""
    note = signed.checkpoint(WITNESS)
    point = read_point(note)
    scopes = tuple((row[0], LARGE, *row[2:4], 0, 1) for row in point.scopes)
    forged = replace(point, size=point.size + 5, head="ab" * 32, scopes=scopes)
    (place.anchor / "sign").unlink()
    ledger = place.open()
    words = {"reason": "lost", "principal": "task"}
    closed = ledger.recover(checkpoint=EVE.sign(forged.text), keys=[EVE.public_text], **words)
    assert closed == ["free", "s", "two"]
    row = ledger.scope(name)
    assert row.closed and row.approvals == 2 and row.filter.epsilon == 1
    if name == "s":
        with pytest.raises(InvalidInput, match="must be signed by one of ann, bob"):
            ledger.grant("s", 1000, 0, table=None, principal="task", confirm_large=True)
    else:
        waits = ledger.grant("two", 1000, 0, table=None, principal="task", confirm_large=True)
        assert isinstance(waits, GrantProposal)
    assert ledger.verify(since=note, keys=[WITNESS.public_text]).ok
    assert run_audit(export_text(ledger), tmp_path).returncode == 0


def test_a_checkpoint_that_no_ledger_could_make_is_refused(signed):
    """A scope that nobody signs is not taken over with another filter; nothing is written then."""
    point = read_point(signed.checkpoint())
    renyi = canonical_json(make_filter("hybrid", Fraction(1), Fraction("1e-6")).to_json())
    scopes = tuple((row[0], renyi, *row[2:]) if row[0] == "free" else row for row in point.scopes)
    forged = replace(point, size=point.size + 5, head="ab" * 32, scopes=scopes)
    number = len(signed.history())
    with pytest.raises(InvalidInput, match="changes the filter of a scope"):
        signed.recover(
            reason="lost",
            principal="task",
            checkpoint=EVE.sign(forged.text),
            keys=[EVE.public_text],
        )
    assert len(signed.history()) == number and signed.verify().ok


@pytest.mark.parametrize(
    "columns", [None, {"filter": LARGE, "approvals": 1}, {"approvals": 1}, {"filter": LARGE}, {}]
)
def test_a_witness_compares_scopes(place, signed, make_place, new_target, columns):
    """A history that never had the scope, and a recovery that names the witness's checkpoint: it is
    vouched for if the scope is what the witness signed, signers included.
    """
    note = signed.checkpoint(WITNESS)
    point = read_point(note)
    stated = [[*row] for row in point.scopes if columns is not None or row[0] != "s"]
    for row in stated:
        if row[0] == "s" and columns:
            row[1], row[5] = columns.get("filter", row[1]), columns.get("approvals", row[5])
    other = make_place(new_target(), place.anchor.parent / "new-anchor").open()
    taken = [point.ledger_id, point.size, point.head, WITNESS.name]
    forge_recovery(other, stated, taken)
    report = other.verify(since=note, keys=[WITNESS.public_text])
    assert report.ok == (columns == {}), report
    assert report.ok or "no recovery took over" in str(report) or "is of ledger" in str(report)


def test_signers_stay_when_all_is_lost(signed, make_place, new_target, tmp_path, place):
    """A new ledger takes over who signs; they alone open the scope again."""
    note = signed.checkpoint(WITNESS)
    ledger = make_place(new_target(), place.anchor.parent / "new-anchor").open()
    words = {"reason": "lost", "principal": "task", "checkpoint": note}
    ledger.recover(keys=[WITNESS.public_text], **words)
    with pytest.raises(InvalidInput, match="must be signed"):
        ledger.grant("s", 1, 0, **TERMS)
    ledger.grant("s", 1, 0, signer=ANN, **TERMS)
    (proposal,) = ledger.proposals()
    ledger.approve("s", proposal.seq, principal="login", signer=BOB)
    assert not ledger.scope("s").closed
    report = ledger.verify(since=note, keys=[WITNESS.public_text])
    assert report.ok and report.self_declared == (1,)
    assert run_audit(export_text(ledger), tmp_path).returncode == 0


def test_one_key_under_two_names_is_one_person(place, monkeypatch, tmp_path):
    """Refused by the grant; sealed nevertheless, by verification and the audit program."""
    ledger = place.open()
    keys = [ANN.public_text, Signer("annie", ANN.seed).public_text]
    words = {"signers": keys, "signer": ANN, **TERMS}
    with pytest.raises(InvalidInput, match="two signers have one key"):
        ledger.grant("s", 1, 0, approvals=2, **words)
    assert ledger.history() == []
    with monkeypatch.context() as patch:
        patch.setattr(grant_terms, "require_persons", lambda _: None)
        ledger.grant("s", 1, 0, **words)
    assert "impossible" in str(ledger.verify())
    done = run_audit(export_text(ledger), tmp_path)
    assert done.returncode and "one key, two signers" in done.stderr
