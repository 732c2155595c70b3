"""Legal histories with every kind of entry that a ledger writes, as exports with the key of their anchor."""

from __future__ import annotations

import contextlib
import io
import json
import sqlite3
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from audit_program import export_text

from dpflow.core.accounting import events
from dpflow.core.contract.declaration import NOBODY
from dpflow.errors import BudgetExceeded
from dpflow.ledger import Ledger, ReleaseKey, Slot
from dpflow.ledger.books.witnesses import take_checkpoint
from dpflow.ledger.history import chain
from dpflow.ledger.history.anchor import Anchor
from dpflow.ledger.history.checkpoint import Signer

TENTH = events.Pure(Fraction("0.1"))
COMPOSED = events.Composed(
    (events.Repeated(events.DiscreteLaplace(Fraction(9), 2), 3), events.BoundedRange(Fraction(1)))
)


def terms(event: events.Event = TENTH, **changes: Any) -> dict[str, Any]:
    """Of a charge."""
    fixed = {"event": event, "blocks": (), "family": "f", "slot": None, "principal": "airflow:dag"}
    return fixed | {"request": {"name": "n"}, "data": ("table t", "joined u")} | changes


def key(name: str, scope: str = "s") -> ReleaseKey:
    """Of a release."""
    return ReleaseKey(scope, "dag", "task", "run", name, 0)


def write_history(folder: Path) -> tuple[str, Anchor]:
    """Grants of all filters, signed and approved ones, charges and what follows them, notes."""
    ann, bob, nightly = map(Signer.create, ("ann", "bob", "nightly"))
    ledger = Ledger(folder / "ledger.sqlite", anchor=folder / "anchor", create=True)
    owner: dict[str, Any] = {"table": None, "principal": "owner"}
    people = [ann.public_text, bob.public_text]
    ledger.grant("a", 1, "1e-6", signers=people, signer=ann, **owner)
    ledger.grant("a", 1, "1e-6", signer=ann, approvals=2, **owner)
    (proposal,) = ledger.proposals()
    ledger.approve("a", proposal.seq, principal="login", signer=bob)
    ledger.grant("s", 9, "1e-6", filter="hybrid", tail_share="0.5", **owner)
    ledger.quota("s/q", 2, "1e-7", principal="owner", period="month")
    ledger.grant("days", 2, "1e-6", filter="renyi", protects="p", blocks=True, **owner)
    ledger.grant("nobody", 1, 0, filter="basic", protects=NOBODY, **owner)
    demand = {"witness": nightly.public_text, "witness_every": 9}
    certified = [ledger.signer.public_text]
    ledger.grant("w", 1, 0, filter="basic", certified_by=certified, **owner, **demand)
    ledger.settle(ledger.reserve(key("one"), **terms(COMPOSED, slot=Slot("r", "0"))), {"value": 7})
    ledger.reserve(key("one"), **terms(COMPOSED, slot=Slot("r", "1")))
    held = ledger.reserve(key("two", "s/q"), **terms())
    ledger.reserve(key("two", "s/q"), **terms())
    ledger.resolve(held.release_id, reason="r", principal="owner", decision="retry")
    ledger.settle(ledger.reserve(key("two", "s/q"), **terms()), {"value": 8}, snapshot="1")
    lost = ledger.reserve(key("lost"), **terms(events.DiscreteGaussian(Fraction(900))))
    ledger.resolve(lost.release_id, reason="r", principal="owner")
    lost = ledger.reserve(key("lost", "a"), **terms())
    ledger.resolve(lost.release_id, reason="r", principal="login", signer=bob)
    ledger.reserve(key("day", "days"), **terms(events.ZCDP(Fraction("0.001")), blocks=("x", "y")))
    ledger.reserve(key("watched", "w"), **terms(certified_by=frozenset(certified)))
    ledger.reserve(key("none", "nobody"), **terms(events.Unprotected()))
    note = ledger.checkpoint(nightly)
    with ledger._begin_writing() as writer:
        assert take_checkpoint(writer, note, True, "p")
    session = ledger.open_session(
        key("gate"), **terms(events.Approximate(Fraction("0.1"), Fraction("1e-9")), partition="p 3"), state={"left": 2}, exclusive=True
    )  # fmt: skip
    name = session.session_id
    ledger.answer_batch(name, {"a": 1, "b": 2}, expected_version=0, state={"left": 2})
    told = {"state": {"left": 1}, "answer": {"verdict": "no", "failures_left": 1}}
    ledger.answer(name, query="v", expected_version=1, **told)
    ledger.tell_verdict(name, "v")
    ledger.count_try(name, "p")
    ledger.answer(name, query="w", expected_version=2, state={}, answer={}, closed=True)
    ledger.open_session(key("open"), **terms(), state={}, exclusive=False)
    ledger.register_suite("d" * 64, ["place p"], None, table="t", principal="owner")
    with pytest.raises(BudgetExceeded):
        ledger.reserve(key("much", "nobody"), **terms(events.Pure(Fraction(2))))
    ledger.record("note", {"charges": [["s", "", 10**15, 0, 0]]}, principal="somebody")
    return export_text(ledger), ledger._anchor


def write_losses(folder: Path) -> tuple[str, Anchor]:
    """What is left after a loss: a recovery, a new mark, new keys."""
    ledger = Ledger(folder / "ledger.sqlite", anchor=folder / "anchor", create=True)
    for scope in ("s", "t"):
        ledger.grant(scope, 1, "1e-6", filter="hybrid", table=None, principal="owner")
    ledger.reserve(key("one"), **terms())
    copy = folder / "copy.sqlite"
    with contextlib.closing(sqlite3.connect(folder / "ledger.sqlite")) as connection:
        connection.execute("VACUUM INTO ?", [str(copy)])
    ledger.reserve(key("two"), **terms())
    ledger.open_session(key("open"), **terms(), state={}, exclusive=False)
    note = ledger.checkpoint()
    left = Ledger(copy, anchor=folder / "anchor")
    left.recover(reason="disk", principal="owner", checkpoint=note)
    (folder / "anchor" / "mark").unlink()
    left.reanchor(reason="mark", principal="owner")
    left.rotate(principal="owner")
    left.grant("t", 1, "1e-6", filter="hybrid", table=None, principal="owner")
    left.open_session(key("moved", "t"), **terms(), state={}, exclusive=False)
    moved = Ledger(folder / "moved.sqlite", anchor=folder / "anchor", create=True)
    moved.import_(io.StringIO(export_text(left)), principal="owner")
    lines = export_text(moved).splitlines()
    last = json.loads(lines[-1])
    body = chain.canonical_json({"from": "0", "entries": last["seq"]})
    upgrade = last | {"kind": "upgrade", "seq": last["seq"] + 1, "body": body}
    seal([upgrade], moved._anchor, last["hash"])
    return "\n".join([*lines, json.dumps(upgrade)]), moved._anchor


def seal(entries: list[dict[str, Any]], anchor: Anchor, previous: str = "") -> None:
    """Chain and seal entries behind a hash, as whoever holds the anchor's key can."""
    previous = previous or chain.first_link(anchor.ledger_id)
    for entry in entries:
        entry["previous"] = previous
        previous = entry["hash"] = chain.hash_entry(entry)
        entry["seal"] = anchor.seal_entry(entry["seq"], previous)
