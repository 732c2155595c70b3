"""What a history did against the rules is found in it, by verify, by import, and by the audit
program of docs/how-to/operate-the-ledger.md, though chain and seals hold.

The ledger itself does not write such a history: here it believes every row, as earlier versions did.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from audit_program import run_audit, start_audit, start_program

from dpflow.errors import LedgerCorrupt
from dpflow.ledger import Ledger
from dpflow.ledger.history.state import LedgerState


@pytest.fixture
def credulous(monkeypatch: pytest.MonkeyPatch) -> None:
    """A ledger that believes its rows."""

    def believe(self: LedgerState) -> None:
        self._load_paths([*self._reads, *self._writes])
        self._reads = {}

    monkeypatch.setattr(LedgerState, "prove_reads", believe)


def draw_twice(ledger: Ledger, place: Any, ask: Any) -> None:
    held = ask.reserve(ledger, "paid")
    ledger.settle(held, {"value": 7})
    place.sql(
        "UPDATE dpflow_release SET state = 'reserved', result = NULL, result_digest = NULL",
        "DELETE FROM dpflow_key",
    )
    ledger.settle(ask.reserve(ledger, "paid"), {"value": 8})


def empty_balance(ledger: Ledger, place: Any, ask: Any) -> None:
    for n in range(10):
        ask.reserve(ledger, f"first {n}")
    place.sql("UPDATE dpflow_account SET epsilon = 0")
    for n in range(10):
        ask.reserve(ledger, f"second {n}")
    place.sql("UPDATE dpflow_account SET epsilon = 2000000000000")


def raise_filter(ledger: Ledger, place: Any, ask: Any) -> None:
    ((before,),) = place.sql("SELECT filter FROM dpflow_scope")
    place.sql(
        'UPDATE dpflow_scope SET filter = replace(filter, \'"epsilon":"1"\', \'"epsilon":"9"\')'
    )
    ask.reserve(ledger, "much", "1.5")
    place.sql(f"UPDATE dpflow_scope SET filter = '{before}'")


def reopen_fenced(ledger: Ledger, place: Any, ask: Any) -> None:
    held = ask.reserve(ledger, "lost")
    ledger.resolve(held.release_id, reason="lost", principal="owner")
    place.sql("UPDATE dpflow_release SET state = 'reserved'")
    ledger.settle(ask.reserve(ledger, "lost"), {"value": 1})


def settle_late(ledger: Ledger, place: Any, ask: Any) -> None:
    held = ask.reserve(ledger, "lost")
    ledger.resolve(held.release_id, reason="lost", principal="owner", decision="retry")
    place.sql("UPDATE dpflow_release SET fenced_below = 0")
    ledger.settle(held, {"value": 1})


def charge_key_twice(ledger: Ledger, place: Any, ask: Any) -> None:
    ledger.settle(ask.reserve(ledger, "paid"), {"value": 7})
    place.sql("DELETE FROM dpflow_release")
    ledger.settle(ask.reserve(ledger, "paid"), {"value": 8})


def lower_too_far(ledger: Ledger, place: Any, ask: Any) -> None:
    ask.reserve(ledger, "paid", "0.9")
    place.sql("UPDATE dpflow_account SET epsilon = 1")
    ledger.grant("flights", "0.5", 0, table=None, filter="basic", principal="owner")


def pass_gate(ledger: Ledger, place: Any, ask: Any) -> None:
    ledger.open_session(ask.key("gate"), **ask.terms(), state={}, exclusive=True)
    place.sql("UPDATE dpflow_release SET state = 'closed'")
    ask.reserve(ledger, "beside it")
    place.sql("UPDATE dpflow_release SET state = 'open' WHERE version = 0 AND exclusive = 1")


def forget_certifiers(ledger: Ledger, place: Any, ask: Any) -> None:
    certifiers = [ledger.signer.public_text]
    ledger.grant("flights", 1, 0, table=None, filter="basic", certified_by=certifiers, principal="owner")  # fmt: skip
    ask.reserve(ledger, "certified", certified_by=certifiers)
    ((before,),) = place.sql("SELECT filter FROM dpflow_scope")
    ((former, *_),) = place.sql("SELECT body FROM dpflow_entry WHERE seq = 1")
    plain = json.loads(former)["filter"]
    place.sql(f"UPDATE dpflow_scope SET filter = '{plain}'")
    ask.reserve(ledger, "not certified")
    place.sql(f"UPDATE dpflow_scope SET filter = '{before}'")


ATTACKS = {
    forget_certifiers: "charges for what scope flights trusts no certificate of",
    draw_twice: "follows a release that is settled",
    empty_balance: "charges more than scope flights was granted",
    raise_filter: "charges more than scope flights was granted",
    reopen_fenced: "follows a release that is fenced",
    settle_late: "settles an attempt that was fenced",
    charge_key_twice: "charges the same key a second time",
    lower_too_far: "grants less than is spent",
    pass_gate: "reads data that an open gate closes",
}


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__)
def test_an_illegal_history_is_found(
    credulous: None,
    ledger: Ledger,
    place: Any,
    ask: Any,
    tmp_path: Path,
    attack: Callable[[Ledger, Any, Any], None],
) -> None:
    """By verify, which names the entry; by import; by the program without dpflow."""
    attack(ledger, place, ask)
    assert ATTACKS[attack] in str(ledger.verify())
    stream = io.StringIO()
    ledger.export(stream)
    moved = Ledger(tmp_path / "moved.sqlite", anchor=place.anchor, create=True)
    stream.seek(0)
    with pytest.raises(LedgerCorrupt, match=ATTACKS[attack]):
        moved.import_(stream, principal="owner")
    done = run_audit(stream.getvalue(), tmp_path)
    assert done.returncode and "breaks a rule" in done.stderr, done.stderr


def test_a_legal_history_passes_both(ledger: Ledger, place: Any, ask: Any, tmp_path: Path) -> None:
    """Every verb once, two filters, blocks and a quota; from an export and from the file itself."""
    ledger.quota("flights/team", "0.5", 0, principal="owner")
    ledger.grant("days", 1, "1e-6", table=None, protects="p", blocks=True, principal="owner")
    ledger.settle(ask.reserve(ledger, "one", scope="flights/team", slot="run/0"), {"value": 7})
    ask.reserve(ledger, "one", scope="flights/team", slot="run/1")
    ask.reserve(ledger, "two", scope="days", blocks=("a", "b"), protects="p")
    lost = ask.reserve(ledger, "lost")
    ledger.resolve(lost.release_id, reason="r", principal="owner", decision="retry")
    ask.reserve(ledger, "lost")
    ledger.resolve(lost.release_id, reason="r", principal="owner")
    held = ledger.open_session(ask.key("s"), **ask.terms(), state={}, exclusive=True)
    ledger.answer(held.session_id, query="q", expected_version=0, state={}, answer={})
    ledger.resolve(held.session_id, reason="r", principal="owner")
    ledger.grant("flights", 2, 0, table=None, filter="basic", principal="owner")
    ledger.record("note", {"charges": [["flights", "", 10**15, 0, 0]]}, principal="somebody")
    assert ledger.verify().problems == ()
    stream = io.StringIO()
    ledger.export(stream)
    done = start_audit(stream.getvalue(), tmp_path)
    assert done.returncode == 0 and '"units": [300000000000, 0, 0]' in done.stdout, done.stderr
    if "://" not in place.target:
        done = start_program(place.target, folder=tmp_path)
        assert "all within the rules" in done.stderr


@pytest.mark.parametrize("name", [("a", "b"), {"a": 1}, 1.5, None])
def test_any_name_of_a_request_verifies(ledger, ask, name):
    """A name that reads otherwise as JSON than as text: every later verification failed."""
    ask.reserve(ledger, "d", request={"name": name})
    assert ledger.verify().ok


@pytest.mark.parametrize("body", ["{", "[1]", "7", '{"a": 1}', '{"a":1,"a":2}'])
def test_a_note_that_no_ledger_spells_is_found(place, tmp_path, body) -> None:
    """Sealed by a holder of the key: by verify, and by the program without dpflow."""
    ledger = place.open()
    with ledger._begin_writing() as writer:
        writer.add_entry("contract", "", "", "p", {"a": 1})
        writer._entries[-1]["body"] = body
    assert "entry 1 " in str(ledger.verify()), ledger.verify()
    stream = io.StringIO()
    ledger.export(stream)
    assert run_audit(stream.getvalue(), tmp_path).returncode == 1


def test_a_value_of_another_type_is_a_problem_of_its_own(tmp_path, make_place, ask) -> None:
    """SQLite stores any type in any column."""
    place = make_place(str(tmp_path / "l.sqlite"), tmp_path / "anchor")
    ledger = place.open()
    ledger.grant("flights", 1, 0, table=None, filter="basic", principal="owner")
    ask.reserve(ledger, "one", slot="run/0")
    place.sql("UPDATE dpflow_slot SET run = x'00'")
    problems = place.open().verify().problems
    assert "a row holds a value of a type that no ledger writes" in problems
