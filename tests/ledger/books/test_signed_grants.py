"""Grants and approvals that people sign: a login that calls itself by another name signs nothing."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from types import SimpleNamespace

import pytest
from audit_program import export_text, run_audit

from dpflow.core.accounting.events import Pure
from dpflow.errors import GrantConflict, InvalidInput, LedgerCorrupt, SignatureRequired
from dpflow.ledger import ReleaseKey, budgets
from dpflow.ledger.audit.entry_text import explain_entry
from dpflow.ledger.books import grants
from dpflow.ledger.history import chain, checkpoint
from dpflow.ledger.history.checkpoint import SentSignature, Signer

ANN, BOB, EVE = map(Signer.create, ("ann", "bob", "eve"))
KEYS = [ANN.public_text, BOB.public_text]
TERMS = {"table": None, "filter": "basic", "principal": "login"}


@pytest.fixture
def signed(place):
    """A ledger whose scope ann and bob may grant, one of them signed by ann."""
    ledger = place.open()
    ledger.grant("s", 1, 0, signers=KEYS, signer=ANN, **TERMS)
    return ledger


def test_a_signed_grant_names_who_signed(signed, tmp_path):
    """The principal is the key's name, not the login's; nothing of it is self-declared."""
    (entry,) = signed.history()
    assert entry.principal == "ann" and entry.body["signature"]
    report = signed.verify()
    assert report.ok and report.self_declared == ()
    assert run_audit(export_text(signed), tmp_path).returncode == 0


def test_a_reason_is_signed_and_told(signed, tmp_path):
    """Grant, proposal and approval each say why, also to who reads without dpflow; in no table, and without one nothing is
    written of it. Another reason under the same signature is found.
    """
    assert "reason" not in signed.history()[0].body
    signed.grant("s", 2, 0, signer=ANN, reason="the trial goes on", approvals=2, **TERMS)
    signed.grant("s", 2, 0, signer=ANN, reason="the trial goes on", approvals=2, **TERMS)
    (proposal,) = signed.proposals()
    assert (proposal.reason, signed.history()[-1].seq) == ("the trial goes on", proposal.seq)
    signed.grant("s", 2, 0, signer=ANN, reason="for a year", approvals=2, **TERMS)
    (proposal,) = signed.proposals()
    assert proposal.reason == "for a year"
    signed.approve("s", proposal.seq, principal="x", signer=BOB, reason="agreed on Monday")
    assert [e.body.get("reason") for e in signed.history()[-2:]] == [
        "for a year",
        "agreed on Monday",
    ]
    assert "agreed on Monday" in explain_entry(signed.history()[-1])
    assert signed.statement("s").lines[-1].name == "agreed on Monday"
    assert "<td>agreed on Monday</td>" in signed.report("s")[0]
    assert signed.verify().ok
    audited = run_audit(export_text(signed), tmp_path)
    assert audited.returncode == 0 and "entry 4 says why: 'agreed on Monday'" in audited.stderr
    entries = list(signed.history())
    for wrong in ("agreed on Friday", ""):
        body = entries[-1].body | {"reason": wrong}
        forged = replace(entries[-1], body=body)
        row = SimpleNamespace(**vars(forged) | {"previous": entries[-2].hash})
        assert not grants.is_signed(row, body, KEYS)
    row.body = entries[-1].body
    assert grants.is_signed(row, row.body, KEYS)
    for wrong in ("a" * 1001, "two\nlines"):
        with pytest.raises(InvalidInput, match="a reason must be"):
            signed.grant("s", 2, 0, signer=ANN, reason=wrong, **TERMS)
        with pytest.raises(InvalidInput, match="a reason must be"):
            signed.approve("s", 4, principal="x", signer=BOB, reason=wrong)


def test_the_reason_of_a_proposal_is_proved(place):
    """Whoever approves is shown no reason that somebody wrote into the file afterwards."""
    ledger = place.open()
    ledger.grant("s", 1, 0, approvals=2, reason="the trial", **TERMS)
    ledger.grant("t", 1, 0, **TERMS)
    assert [p.reason for p in ledger.proposals()] == ["the trial"]
    place.sql(
        "UPDATE dpflow_entry SET body = replace(body, 'the trial', 'a good one') WHERE seq = 1"
    )
    with pytest.raises(LedgerCorrupt, match="entry 1 was changed"):
        ledger.proposals()


def test_the_ledger_stores_who_may(signed):
    """Nobody, a stranger, and a stranger with a signer's name are refused; the other signer is not."""
    impostor = Signer.create("ann")
    for nobody in (None, EVE, impostor):
        with pytest.raises(InvalidInput, match="must be signed by one of ann, bob"):
            signed.grant("s", 2, 0, signer=nobody, **TERMS)
    signed.grant("s", 2, 0, signer=BOB, **TERMS)
    with pytest.raises(InvalidInput, match="must be signed by one of"):
        signed.grant("s", 3, 0, signers=[EVE.public_text], signer=EVE, **TERMS)
    with pytest.raises(InvalidInput, match="must be signed"):
        signed.quota("s/team", "0.5", 0, principal="login")
    signed.quota("s/team", "0.5", 0, principal="login", signers=[EVE.public_text], signer=ANN)
    signed.quota("s/team", "0.6", 0, principal="login", signer=EVE)
    signed.grant("s", 2, 0, signers=[], signer=ANN, **TERMS)
    signed.grant("s", 3, 0, **TERMS)
    report = signed.verify()
    assert report.ok and report.self_declared == (signed.history()[-1].seq,)
    assert "self-declared, not signed" in str(report)


class RecordedSigner(Signer):
    """Somebody without a key, who says what another one signed once."""

    def sign_line(self, text):
        return self.recorded


def test_no_signature_is_of_another_ledger(place, make_place, tmp_path, monkeypatch):
    """A ledger of a stranger, whose first entries say what those of the true one say, at the same second."""
    monkeypatch.setattr(chain.time, "time", lambda: 1_790_000_000.0)
    true, forged = place.open(), make_place(tmp_path / "forged.sqlite", tmp_path / "other").open()
    true.grant("s", 1, 0, signers=KEYS, signer=ANN, **TERMS)
    ((entry,), lent) = true.history(), RecordedSigner("ann", ANN.seed)
    object.__setattr__(lent, "recorded", entry.body["signature"])
    forged.grant("s", 1, 0, signers=KEYS, signer=lent, **TERMS)
    (copied,) = forged.history()
    assert copied.body == entry.body and copied.hash != entry.hash
    assert true.verify().ok and not forged.verify().ok
    assert run_audit(export_text(true), tmp_path).returncode == 0
    assert run_audit(export_text(forged), tmp_path).returncode == 1
    # Nor does it help to say the true one's name.
    names = [json.loads(export_text(one).splitlines()[0])["ledger"] for one in (forged, true)]
    assert "the chain" in run_audit(export_text(forged).replace(*names), tmp_path).stderr


def test_two_approvals_are_two_keys(signed):
    """Whoever signed the proposal cannot approve it under another login."""
    signed.grant("s", 1, 0, approvals=2, signer=ANN, **TERMS)
    (proposal,) = signed.proposals()
    assert proposal.principal == "ann"
    for principal in ("ann", "bob"):
        with pytest.raises(InvalidInput, match="somebody else approves it|must be signed"):
            signed.approve("s", proposal.seq, principal=principal, signer=ANN)
        with pytest.raises(InvalidInput, match="must be signed|somebody else"):
            signed.approve("s", proposal.seq, principal=principal)
    assert signed.approve("s", proposal.seq, principal="ann", signer=BOB).approvals == 2
    assert signed.verify().ok


CAROL = Signer.create("carol")
ANNA, NEW_ANN = Signer("anna", ANN.seed), Signer.create("ann")
#: What happens to the list above a quota between its proposal, which ann signs, and its approval: the
#: new list, who approves, and whether that holds.
CHANGES = {
    "the list stays": (None, BOB, True),
    "somebody joins": ([ANN, BOB, CAROL], CAROL, True),
    "the proposer leaves": ([BOB, CAROL], BOB, False),
    "the proposer's key is replaced": ([NEW_ANN, BOB], BOB, False),
    "the proposer approves with the new key": ([NEW_ANN, BOB], NEW_ANN, False),
    "one key gets another name": ([ANNA, BOB], ANNA, False),
    "the new name's holder is another": ([ANNA, BOB], BOB, False),
    "the approver left": ([ANN, CAROL], BOB, False),
}


def propose_quota(ledger):
    """A quota of the fixture's scope that ann proposes, and the entry that did."""
    ledger.quota("s/t", "0.5", 0, principal="login", approvals=2, signer=ANN)
    (proposal,) = ledger.proposals()
    return proposal.seq


@pytest.mark.parametrize("name", CHANGES)
def test_both_signatures_are_of_the_list_as_it_is_when_a_grant_takes_effect(
    signed, monkeypatch, tmp_path, name
):
    """Verification, from the first entry on and from a checkpoint, and the audit program agree."""
    signers, approver, holds = CHANGES[name]
    seq = propose_quota(signed)
    if signers is not None:
        keys = [signer.public_text for signer in signers]
        signed.grant("s", 1, 0, signers=keys, signer=BOB, **TERMS)
    early = signed.checkpoint()
    if not holds:
        with pytest.raises(InvalidInput, match="signed|proposed this grant"):
            signed.approve("s/t", seq, principal="login", signer=approver)
        # A holder of the ledger's key who skips the check of what waits, and of who approves.
        monkeypatch.setattr(grants, "_is_still_signed", lambda *_: True)
        monkeypatch.setattr(grants, "require_signer", lambda *_: ())
        monkeypatch.setattr(grants, "is_same_principal", lambda *_: False)
    signed.approve("s/t", seq, principal="login", signer=approver)
    for report in (signed.verify(), signed.verify(since=early, new_only=True)):
        assert report.ok == holds, report
    assert (run_audit(export_text(signed), tmp_path).returncode == 0) == holds


def test_the_same_grant_is_proposed_again_by_who_may_sign_now(signed):
    """Else what nobody can approve any more would stand in its way."""
    seq = propose_quota(signed)
    assert propose_quota(signed) == seq
    keys = [NEW_ANN.public_text, BOB.public_text]
    signed.grant("s", 1, 0, signers=keys, signer=BOB, **TERMS)
    signed.quota("s/t", "0.5", 0, principal="login", approvals=2, signer=NEW_ANN)
    (proposal,) = signed.proposals()
    assert proposal.seq > seq
    signed.approve("s/t", proposal.seq, principal="login", signer=BOB)
    assert signed.verify().ok


def test_signers_have_names_of_their_own(place):
    """Two keys of one name would be two approvals of one person."""
    ledger = place.open()
    twice = [ANN.public_text, Signer.create("Ann").public_text]
    with pytest.raises(InvalidInput, match="two signers have one name"):
        ledger.grant("s", 1, 0, signers=twice, signer=ANN, **TERMS)
    with pytest.raises(InvalidInput, match="names no signers"):
        ledger.grant("s", 1, 0, signer=ANN, **TERMS)
    with pytest.raises(InvalidInput, match="must be signed by one of ann"):
        ledger.grant("s", 1, 0, signers=KEYS, **TERMS)
    assert ledger.history() == []


@pytest.mark.parametrize(
    "change",
    [
        lambda body: body.pop("signature"),
        lambda body: body.__setitem__("capacity", [9 * 10**12, *body["capacity"][1:]]),
        lambda body: body.__setitem__("signature", EVE.sign_line("x")),
        lambda body: body.__setitem__("approvals", 1),
    ],
)
def test_whoever_has_the_ledgers_key_forges_no_signature(signed, monkeypatch, tmp_path, change):
    """A task that shares the anchor seals any entry: verification and the audit program refuse it."""
    add = grants.Writer.add_entry

    def forge(self, kind, scope, release_id, principal, body):
        body = json.loads(json.dumps(body))
        change(body)
        add(self, kind, scope, release_id, "bob", body)

    monkeypatch.setattr(grants.Writer, "add_entry", forge)
    signed.grant("s", 2, 0, approvals=2, signer=ANN, **TERMS)
    problems = signed.verify().problems
    assert any("is signed by nobody" in problem for problem in problems), problems
    assert run_audit(export_text(signed), tmp_path).returncode != 0


def test_a_signature_is_used_once(signed, monkeypatch, tmp_path):
    """An earlier, larger grant cannot be put back with the signature that it had."""
    signed.grant("s", 5, 0, signer=ANN, **TERMS)
    old = signed.history()[-1]
    signed.grant("s", 1, 0, signer=BOB, **TERMS)
    assert signed.verify().ok
    monkeypatch.setattr(grants, "require_signer", lambda *_: None)
    add = grants.Writer.add_entry

    def replay(self, kind, scope, release_id, principal, body):
        add(self, kind, scope, release_id, old.principal, dict(old.body))

    monkeypatch.setattr(grants.Writer, "add_entry", replay)
    signed.grant("s", 5, 0, **TERMS)
    assert any("signed by nobody who may" in problem for problem in signed.verify().problems)
    assert run_audit(export_text(signed), tmp_path).returncode != 0


def test_a_signed_scope_takes_no_quota_along(place):
    """A quota's own entry is signed, too, so another table is named before there are quotas."""
    from dpflow.core.contract.declaration import Table

    ledger = place.open()
    ledger.grant("s", 1, 0, signers=KEYS, signer=ANN, **TERMS)
    ledger.quota("s/a", "0.5", 0, principal="login", signer=ANN)
    table = Table.model_validate(
        {
            "name": "t",
            "database": "x.duckdb",
            "privacy_unit": {"column": "u"},
            "contribution_bounds": {"rows": 1},
            "columns": {"u": {}},
        }
    )
    with pytest.raises(GrantConflict, match="before there are quotas"):
        ledger.grant("s", 1, 0, signer=ANN, **(TERMS | {"table": table}))


def test_a_proposal_that_nobody_signed_takes_more_than_one_key(place, monkeypatch, tmp_path):
    """Signers who are named after it was made do not approve it with one signature."""
    ledger = place.open()
    ledger.grant("s", 1, 0, **TERMS)
    proposal = ledger.quota("s/t", "0.5", 0, principal="login", approvals=2)
    ledger.grant("s", 1, 0, signers=KEYS, signer=ANN, **TERMS)
    early = ledger.checkpoint()
    with pytest.raises(InvalidInput, match="nobody who may sign now signed the grant that entry 2"):
        ledger.approve("s/t", proposal.seq, principal="login", signer=ANN)
    monkeypatch.setattr(grants, "_is_still_signed", lambda *_: True)
    ledger.approve("s/t", proposal.seq, principal="login", signer=ANN)
    for report in (ledger.verify(), ledger.verify(since=early, new_only=True)):
        assert "nobody signed who may sign now" in report.problems[0]
    assert "not signed by who may" in run_audit(export_text(ledger), tmp_path).stderr


class _TwoLines(Signer):
    """Signs in two lines, of which a note's reader takes the second."""

    def sign_line(self, text):
        inner = Signer(self.name, self.seed).sign(f"{text}\n\u2014 {self.name} x\n")
        return f"x\n\n\u2014 {self.name} {inner.rpartition(' ')[2].strip()}"


@pytest.mark.parametrize("signer", [_TwoLines("ann", ANN.seed), Signer("bob\n", BOB.seed)])
def test_what_one_program_refuses_the_other_refuses(signed, monkeypatch, tmp_path, signer):
    """Of a holder of the ledger's key, who skips the checks before a decision is written."""
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "check_key_name", lambda _: None)
        patch.setattr(grants, "require_signer", lambda *_: ())
        keys = [ANN.public_text, signer.public_text]
        signed.grant("s", 2, 0, signers=sorted(set(keys)), signer=signer, **TERMS)
    assert not signed.verify().ok
    assert run_audit(export_text(signed), tmp_path).returncode


def test_an_invisible_principal_acts_in_no_history(place, monkeypatch, tmp_path):
    """Of a holder of the ledger's key, too: verification and the audit program refuse the entry."""
    ledger = place.open()
    with monkeypatch.context() as patch:
        patch.setattr(budgets, "checked_principal", lambda name: name)
        ledger.grant("s", 1, 0, table=None, filter="basic", principal="bob\u200b")
    assert "characters that nobody sees" in str(ledger.verify())
    assert "nobody sees" in run_audit(export_text(ledger), tmp_path).stderr


def sign_elsewhere(decide, signer):
    """Have a decision recorded whose key is not here: it says what is to be signed, and takes the signature."""
    with pytest.raises(SignatureRequired) as required:
        decide(SentSignature(signer.public_text))
    text = required.value.text
    return text, decide(SentSignature(signer.public_text, signer.sign_line(text)))


def test_a_sent_signature_stands_for_the_key(signed, tmp_path):
    """Grant, proposal, approval, quota and what becomes of an orphan: the same entries as with the key pair."""
    sign_elsewhere(lambda by: signed.grant("s", 2, 0, signer=by, **TERMS), ANN)
    _, proposal = sign_elsewhere(
        lambda by: signed.grant("s", 3, 0, approvals=2, signer=by, **TERMS), ANN
    )
    again = signed.grant("s", 3, 0, approvals=2, signer=SentSignature(ANN.public_text), **TERMS)
    assert again == proposal
    approve = lambda by: signed.approve("s", proposal.seq, principal="login", signer=by)  # noqa: E731
    with pytest.raises(InvalidInput, match="somebody else approves it"):
        approve(SentSignature(ANN.public_text))
    assert sign_elsewhere(approve, BOB)[1].epsilon == 3
    sign_elsewhere(lambda by: signed.quota("s/t", 1, 0, principal="login", signer=by), BOB)
    orphan = reserve(signed, "s/t")
    resolve = {"reason": "host lost", "principal": "login"}
    text, state = sign_elsewhere(lambda by: signed.resolve(orphan, signer=by, **resolve), ANN)
    assert state == "fenced" and orphan in text
    kinds = [
        (entry.kind, entry.principal) for entry in signed.history() if "signature" in entry.body
    ]
    assert kinds == [
        *(("grant", "ann"), ("grant", "ann"), ("propose", "ann"), ("grant", "bob"), ("grant", "bob")),
        ("resolve", "ann"),
    ]  # fmt: skip
    report = signed.verify()
    assert report.ok and report.self_declared == ()
    said = run_audit(export_text(signed), tmp_path)
    assert said.returncode == 0 and "nobody signed" not in said.stderr


def reserve(ledger, scope, run="r"):
    """An orphan's id."""
    return ledger.reserve(
        ReleaseKey(scope, "", "", run, "d"), event=Pure(Fraction(1, 10)), blocks=(), family="f", slot=None,
        principal="spender", request={"name": "n"},
    ).release_id  # fmt: skip


def test_a_sent_signature_is_of_one_decision_behind_one_entry(signed, make_place, tmp_path):
    """Neither of other terms, nor used twice, nor behind what others wrote meanwhile, nor at another ledger."""
    grant = lambda ledger, epsilon, by: ledger.grant("s", epsilon, 0, signer=by, **TERMS)  # noqa: E731
    with pytest.raises(SignatureRequired) as required:
        grant(signed, 2, SentSignature(ANN.public_text))
    sent = SentSignature(ANN.public_text, ANN.sign_line(required.value.text))
    other = make_place(tmp_path / "other.sqlite", tmp_path / "other").open()
    other.grant("s", 1, 0, signers=KEYS, signer=ANN, **TERMS)
    before = signed.newest_entry(), other.newest_entry()
    for ledger, epsilon, by in (
        (signed, 3, sent),
        (signed, 2, SentSignature(BOB.public_text, sent.line)),
        (other, 2, sent),
    ):
        with pytest.raises(SignatureRequired):
            grant(ledger, epsilon, by)
    assert (signed.newest_entry(), other.newest_entry()) == before
    grant(signed, 2, sent)
    with pytest.raises(SignatureRequired):
        grant(signed, 2, sent)
    signed.record("note", {}, principal="somebody")
    with pytest.raises(SignatureRequired):
        grant(signed, 2, sent)
    assert signed.verify().ok


def test_a_sent_key_is_one_that_the_ledger_names(signed):
    """Also where the decision itself would name it: a new scope, or one that names nobody."""
    signed.grant("unsigned", 1, 0, **TERMS)
    eve = {"signers": [EVE.public_text], "signer": SentSignature(EVE.public_text)}
    for scope in ("new", "unsigned"):
        with pytest.raises(InvalidInput, match="names no signers.*beside the ledger"):
            signed.grant(scope, 5, 0, **eve, **TERMS)
    with pytest.raises(InvalidInput, match="must be signed by one of ann, bob"):
        signed.quota("s/t", "0.5", 0, principal="login", **eve)
    with pytest.raises(InvalidInput, match="must be signed by one of ann, bob"):
        signed.resolve(reserve(signed, "s"), reason="r", principal="login", signer=eve["signer"])


def test_an_orphans_end_that_is_signed_is_signed_by_who_may(signed, monkeypatch, tmp_path):
    """By a holder of the ledger's key: a signature of another orphan, or of somebody else."""
    first, second = reserve(signed, "s"), reserve(signed, "s", "r2")
    monkeypatch.setattr(grants, "require_signer", lambda *_: ())
    with monkeypatch.context() as patch:
        patch.setattr(
            grants,
            "decision_text",
            lambda *words: checkpoint.decision_text(*words[:-1], words[-1] | {"release_id": first}),
        )
        signed.resolve(second, reason="r", principal="login", signer=ANN)
    assert "another signature" in run_audit(export_text(signed), tmp_path).stderr
    signed.resolve(first, reason="r", principal="login", signer=EVE)
    unsigned = [one for one in signed.verify().problems if "is signed by nobody who may" in one]
    assert [one.split()[1] for one in unsigned] == ["4", "5"]
