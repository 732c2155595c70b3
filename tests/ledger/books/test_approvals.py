"""Grants that two principals must agree to: none is in effect before, whoever wants it to be."""

from __future__ import annotations

import io
import sqlite3
from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import Any

import psycopg
import pytest
from audit_program import export_text, run_audit

from dpflow.core.contract.declaration import Table
from dpflow.errors import BudgetExceeded, GrantConflict, InvalidInput, LedgerCorrupt, UnknownName
from dpflow.ledger import GrantProposal, Ledger, Scope
from dpflow.ledger.books import grants
from dpflow.ledger.history.checkpoint import Checkpoint, open_note


@pytest.fixture
def ledger(place: Any) -> Ledger:
    """An empty ledger."""
    opened: Ledger = place.open()
    return opened


def propose(ledger: Ledger, epsilon: Any = 1, by: str = "ann", **more: Any) -> Any:
    terms: dict[str, Any] = {"table": None, "filter": "basic", "approvals": 2, "principal": by}
    return ledger.grant("s", epsilon, 0, **(terms | more))


@pytest.fixture
def shared(ledger: Ledger) -> Ledger:
    """Ann proposed epsilon 1, and Bob approved."""
    ledger.approve("s", propose(ledger).seq, principal="bob")
    return ledger


def test_a_grant_waits_for_somebody_else(ledger, ask):
    """Nothing can be charged before; whoever proposed it does not count twice."""
    told = propose(ledger)
    assert isinstance(told, GrantProposal) and (told.principal, told.seq) == ("ann", 1)
    assert ledger.proposals() == [told] and ledger.scopes() == []
    with pytest.raises(UnknownName):
        ask.reserve(ledger, scope="s")
    with pytest.raises(InvalidInput, match="ann proposed this grant, and somebody else approves"):
        ledger.approve("s", told.seq, principal="ann")
    for seq in (0, 2, 99):
        with pytest.raises(InvalidInput, match="waits for scope 's'"):
            ledger.approve("s", seq, principal="bob")
    assert [entry.kind for entry in ledger.history()] == ["propose"]
    granted = ledger.approve("s", told.seq, principal="bob")
    assert isinstance(granted, Scope) and granted == told.terms == ledger.scope("s")
    assert ledger.proposals() == [] and granted.approvals == 2
    ask.reserve(ledger, scope="s")
    with pytest.raises(InvalidInput, match="waits for scope 's'"):
        ledger.approve("s", told.seq, principal="carol")
    assert [entry.principal for entry in ledger.history(limit=3)] == ["ann", "bob", "airflow:dag"]
    assert ledger.verify().ok


@pytest.mark.parametrize("alias", ["ann ", " Ann", "ANN", "\uff41nn"])
def test_no_other_spelling_of_a_name_approves(ledger, alias):
    """Blanks, case and forms of letters make no second principal; what is stored has no blanks."""
    told = propose(ledger, by=" ann")
    assert told.principal == "ann"
    with pytest.raises(InvalidInput, match="proposed this grant"):
        ledger.approve("s", told.seq, principal=alias)
    assert ledger.scopes() == []
    ledger.approve("s", told.seq, principal="Bob ")
    assert [entry.principal for entry in ledger.history()] == ["ann", "Bob"]
    assert ledger.verify().ok


@pytest.mark.parametrize(
    "name",
    ["", " ", "a\u200bnn", "a\x00nn", "ann\u202e", "ann\n", None]
    + ["ann\ufe0f", "a\u034fnn", "ann\u3164", "\u2800ann", "an\U000e0100n"],
)
def test_a_principal_has_no_invisible_characters(ledger, ask, name):
    """Neither one who grants nor one who spends: a name with a space of no width looks like
    another.
    """
    with pytest.raises(InvalidInput, match="a principal must be a text"):
        propose(ledger, by=name)
    with pytest.raises(InvalidInput, match="a principal must be a text"):
        ask.reserve(ledger, principal=name)


@pytest.mark.parametrize("more", [{}, {"approvals": None}, {"approvals": 1}])
def test_every_later_grant_waits_too(shared, ask, more):
    """Also the one that would end it, and one that does not speak of it."""
    told = propose(shared, 5, **more)
    with pytest.raises(BudgetExceeded):
        ask.reserve(shared, "much", "1.5", scope="s")
    shared.approve("s", told.seq, principal="bob")
    ask.reserve(shared, "much", "1.5", scope="s")
    again = propose(shared, 6, **more)
    assert isinstance(again, Scope if more.get("approvals") == 1 else GrantProposal)
    assert shared.verify().ok


def test_nobody_approves_what_came_in_its_place(shared):
    """Who approves names the entry: a proposal that was replaced meanwhile is not that one."""
    first = propose(shared, 2)
    second = propose(shared, 200, confirm_large=True)
    with pytest.raises(InvalidInput, match=f"entry {first.seq} proposed"):
        shared.approve("s", first.seq, principal="bob")
    assert shared.proposals() == [second] and shared.scope("s").epsilon == 1


def test_the_same_proposal_again_adds_nothing(shared):
    """A DAG that grants in every run proposes once; another principal or amount is another one."""
    first = propose(shared, 2)
    assert propose(shared, 2) == first and propose(shared, 2, by="carol") != first
    third = propose(shared, 3)
    assert [p.seq for p in shared.proposals()] == [third.seq]
    shared.approve("s", third.seq, principal="bob")
    assert propose(shared, 3).seq > third.seq  # it does not wait any more, so it is a new one
    assert shared.verify().ok


def test_what_is_approved_is_judged_by_what_is_spent_then(shared, ask):
    """Between the two, others may have charged the scope."""
    lower = propose(shared, "0.2")
    ask.reserve(shared, "paid", "0.5", scope="s")
    with pytest.raises(GrantConflict, match="already spent more"):
        shared.approve("s", lower.seq, principal="bob")
    assert shared.scope("s").epsilon == 1 and shared.verify().ok


def test_an_approval_does_not_change_how_sums_were_made(ledger, ask):
    """A proposal for an unspent scope chose its own Renyi order; then the scope was charged."""
    first = ledger.grant("s", 1, "1e-6", table=None, filter="renyi", principal="ann")
    told = ledger.grant("s", 9, "1e-6", table=None, filter="renyi", approvals=2, principal="ann")
    assert isinstance(told, GrantProposal) and told.terms.filter.order != first.filter.order
    ask.reserve(ledger, "paid", scope="s")
    with pytest.raises(GrantConflict, match="has changed since entry"):
        ledger.approve("s", told.seq, principal="bob")
    assert ledger.verify().ok


def test_a_proposal_binds_a_scope_with_its_quotas(ledger, ask):
    """As a grant does while nothing is spent; a quota with two approvals of its own is not bound
    over its head.
    """
    ledger.grant("s", 1, 0, table=None, filter="basic", principal="ann")
    ledger.quota("s/a", 1, 0, principal="ann")
    told = ledger.quota("s/b", 1, 0, approvals=2, principal="ann")
    assert isinstance(told, GrantProposal) and ledger.approve("s/b", told.seq, principal="bob")
    table = Table.model_validate(
        {"name": "t", "database": "d", "privacy_unit": {"column": "p"}, "contribution_bounds": {"rows": 1}, "columns": {}}
    )  # fmt: skip
    with pytest.raises(GrantConflict, match="quota 's/b' would be bound"):
        ledger.grant("s", 1, 0, table=table, filter="basic", principal="ann")
    assert {scope.protects for scope in ledger.scopes()} == {""} and ledger.verify().ok


@pytest.mark.parametrize(
    "change",
    [
        'UPDATE dpflow_proposal SET filter = replace(filter, \'"epsilon":"2"\', \'"epsilon":"9"\')',
        "UPDATE dpflow_proposal SET principal = 'carol'",
        "UPDATE dpflow_scope SET approvals = 1",
        "UPDATE dpflow_scope SET seq = 0",
        "DELETE FROM dpflow_proposal",
    ],
)
def test_an_edited_proposal_is_not_believed(shared, place, change):
    """Whoever edits rows neither approves more than was proposed, nor alone."""
    told = propose(shared, 2)
    place.sql(change)
    assert not shared.verify().ok
    for verb in (
        lambda: shared.approve("s", told.seq, principal="bob"),
        lambda: shared.approve("s", told.seq, principal="ann"),
        lambda: shared.grant("s", 9, 0, table=None, filter="basic", principal="ann"),
    ):
        with pytest.raises(LedgerCorrupt, match="is not what the newest entry"):
            verb()


def approve_alone(principal: str, ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    _approve_as_is(ledger, propose(ledger, 2).seq, principal)


def _approve_as_is(ledger: Ledger, seq: int, principal: str, epsilon: Any = None) -> None:
    """What `approve_proposal` does without its checks."""
    with ledger._begin_writing() as writer:
        terms = ledger.scope("s")
        if epsilon is None:
            row = writer.state.find(grants.schema.proposal, scope="s")
            terms = grants._read_proposal(writer.state, row).terms
        grants._put_in_effect(writer, terms, grants.Decision(principal, proposal=seq), False)


def grant_alone(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        grants,
        "_propose",
        lambda writer, terms, by, *_: grants._put_in_effect(writer, terms, by, False),
    )
    propose(ledger, 2)


def approve_other_terms(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    told = propose(ledger, 2)
    _approve_as_is(ledger, told.seq, "bob", epsilon=1)


def approve_twice(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    told = propose(ledger, 2)
    ledger.approve("s", told.seq, principal="bob")
    _approve_as_is(ledger, told.seq, "bob")


ATTACKS: dict[str, tuple[Callable[..., None], str]] = {
    "approve_alone": (partial(approve_alone, "ann"), "is approved by who proposed it"),
    "approve_by_another_spelling": (
        partial(approve_alone, "Ann"),
        "is approved by who proposed it",
    ),
    "grant_alone": (grant_alone, "grants without the second principal"),
    "approve_other_terms": (approve_other_terms, "approves what nobody proposed"),
    "approve_twice": (approve_twice, "approves what nobody proposed"),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_grant_of_one_principal_is_found(
    shared, place, tmp_path, monkeypatch, new_target, make_place, attack
):
    """A ledger that was made to write it is told by verify, import and the audit program."""
    grant, problem = ATTACKS[attack]
    grant(shared, monkeypatch)
    monkeypatch.undo()
    assert problem in str(shared.verify())
    text = export_text(shared)
    done = run_audit(text, tmp_path)
    assert done.returncode and "(grant) breaks a rule" in done.stderr, done.stderr
    with pytest.raises(LedgerCorrupt, match=problem):
        make_place(new_target(), place.anchor).open().import_(io.StringIO(text), principal="o")


def test_proposals_move_and_are_audited(shared, place, tmp_path, new_target, make_place):
    """An import goes on where the export was: what waited waits, and two must agree."""
    told = propose(shared, 2)
    text = export_text(shared)
    done = run_audit(text, tmp_path)
    assert done.returncode == 0, done.stderr
    moved = make_place(new_target(), place.anchor).open()
    moved.import_(io.StringIO(text), principal="o")
    assert moved.proposals() == [told] and moved.scope("s").approvals == 2
    moved.approve("s", told.seq, principal="bob")
    assert moved.verify().ok and run_audit(export_text(moved), tmp_path).returncode == 0


def test_a_recovery_ends_what_waits_and_keeps_the_rule(shared, place, tmp_path, new_target, make_place):  # fmt: skip
    """A lost host: the checkpoint says that two must agree, and the new ledger asks for both."""
    propose(shared, 2)
    note, key = shared.checkpoint(), shared.signer.public_text
    assert Checkpoint.parse(open_note(note, [key])[0]).scopes[0][-1] == 2
    new = make_place(new_target(), tmp_path / "new").open()
    new.recover(reason="lost", principal="ann", checkpoint=note, keys=[key])
    assert new.proposals() == [] and new.scope("s").closed
    told = new.grant("s", 1, 0, table=None, filter="basic", principal="ann")
    assert isinstance(told, GrantProposal) and new.scope("s").closed
    new.approve("s", told.seq, principal="bob")
    assert not new.scope("s").closed and new.verify().ok
    assert run_audit(export_text(new), tmp_path).returncode == 0


@pytest.mark.parametrize(
    "statement",
    [
        'UPDATE dpflow_scope SET filter = replace(filter, \'"epsilon":"1"\', \'"epsilon":"9"\')',
        "UPDATE dpflow_scope SET closed = 0",
        "UPDATE dpflow_scope SET approvals = 1",
        "UPDATE dpflow_scope SET name = 't'",
        "DELETE FROM dpflow_scope",
        "INSERT INTO dpflow_scope SELECT 't', filter, protects, blocks, closed, approvals, seq FROM dpflow_scope",
    ],
)
def test_grants_are_protected_by_triggers(shared, place, ask, statement):
    """The owner of the tables, too, changes a grant only together with an entry of the history."""
    errors = (sqlite3.IntegrityError, psycopg.errors.RaiseException)
    with pytest.raises(errors, match="a grant (changes|comes) only with an entry|never deleted"):
        # As a login that owns the tables: every trigger holds.
        if "://" in place.target:
            with psycopg.connect(
                place.target.replace("+psycopg", ""), autocommit=True
            ) as connection:
                connection.execute(statement)
        else:
            with closing(sqlite3.connect(place.target, isolation_level=None)) as connection:
                connection.execute(statement)
    ask.reserve(shared, scope="s")
    propose(shared, 2)
    assert shared.verify().ok
