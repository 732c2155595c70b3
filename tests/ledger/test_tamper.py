"""What somebody does who can write the database but not the anchor, and what an export gives away."""

from __future__ import annotations

import io
import json

import pytest

from dpflow.errors import InvalidInput, LedgerCorrupt, SessionClosed, UnknownName
from dpflow.ledger import Ledger, chain


@pytest.fixture
def used(ledger, ask):
    """A ledger with a settled release, an orphan and a session with one answer."""
    ledger.settle(ask.reserve(ledger, "done", slot="run/0"), {"value": 7}, snapshot="s")
    ask.reserve(ledger, "orphan", slot="run/1")
    held = ledger.open_session(ask.key("gate"), **ask.terms(), state={"threshold": 4711}, exclusive=False)
    ledger.answer(held.session_id, query="q", expected_version=0, state={"threshold": 4712}, answer={"ok": True})
    assert ledger.verify().ok
    return ledger


@pytest.mark.parametrize(
    ("statement", "finding"),
    [
        ("UPDATE dpflow_entry SET seq = -seq WHERE seq IN (2, 3)", "is missing"),
        ("UPDATE dpflow_entry SET hash = previous WHERE seq = 2", "entry 2 was changed"),
        ("UPDATE dpflow_entry SET seal = 'x' WHERE seq = 3", "entry 3 was not made by this ledger"),
        ("UPDATE dpflow_answer SET answer = '{\"ok\": false}'", "is not the one that was given"),
        ("DELETE FROM dpflow_answer", "is not the one that was given"),
        ("DELETE FROM dpflow_slot WHERE slot = 'run/0'", "did not ask for that"),
        ("UPDATE dpflow_release SET digest = 'free' WHERE state = 'settled'", "the digest of release"),
        ("UPDATE dpflow_release SET state = 'reserved' WHERE state = 'settled'", "the state of release"),
        ("UPDATE dpflow_release SET fenced_below = 9 WHERE state = 'reserved'", "the fenced_below of release"),
        ("UPDATE dpflow_release SET version = 0 WHERE state = 'open'", "the version of release"),
        ("DELETE FROM dpflow_account", "does not hold what its charges add up to"),
    ],
)
def test_every_table_is_checked_against_the_history(used, place, statement, finding):
    """Each row of each table follows from the history, so each change is named."""
    place.sql(statement)
    assert finding in str(used.verify())


def test_a_forged_tail_is_found_and_not_built_upon(used, place, ask):
    """A correct hash without the key is no entry: verify names it, and the next charge is refused."""
    (last,) = place.sql("SELECT seq, hash FROM dpflow_entry ORDER BY seq DESC LIMIT 1")
    fields = dict(zip(chain.FIELDS, (last[0] + 1, "t", "grant", "flights", "", "mallory", "{}", last[1])))
    fields |= {"hash": chain.hashed(fields), "seal": "0" * 64}
    values = ", ".join(f"'{v}'" if isinstance(v, str) else str(v) for v in fields.values())
    place.sql(f"INSERT INTO dpflow_entry ({', '.join(fields)}) VALUES ({values})")
    assert "was not made by this ledger" in str(used.verify())
    with pytest.raises(LedgerCorrupt, match="not made by this ledger"):
        ask.reserve(used, "next")


def test_a_restored_past_is_found_and_not_built_upon(used, place, ask):
    """Entries taken off the end cannot be grown over: the next charge is refused, and nothing is spent."""
    place.sql(
        "DELETE FROM dpflow_entry WHERE seq = (SELECT max(seq) FROM dpflow_entry)",
        "DELETE FROM dpflow_answer",
    )
    with pytest.raises(LedgerCorrupt, match="old copy was restored"):
        ask.reserve(used, "next")
    assert "old copy was restored" in str(used.verify())
    assert ask.spent(used) == {"": "0.3"}


def test_a_new_database_needs_a_new_anchor(used, place, ask, tmp_path):
    """Deleting the database does not give the budget back: its anchor remembers."""
    fresh = Ledger(tmp_path / "fresh.sqlite", anchor=place.anchor, create=True)
    with pytest.raises(LedgerCorrupt, match="new ledger needs a new anchor"):
        fresh.grant("flights", 1, 0, filter="basic", principal="owner")


def test_anothers_anchor_is_refused(used, place, tmp_path):
    """A ledger opened with the wrong key says so at once, not at its next verification."""
    Ledger(tmp_path / "other.sqlite", anchor=tmp_path / "other", create=True)
    with pytest.raises(LedgerCorrupt, match="is not the anchor of"):
        Ledger(place.target, anchor=tmp_path / "other")
    with pytest.raises(LedgerCorrupt, match="key is not in"):
        Ledger(place.target, anchor=tmp_path / "nowhere")


def test_a_damaged_mark_is_named(used, place):
    """The second place is checked too."""
    (place.anchor / "mark").write_text("1 2 3\n")
    assert "not written under this ledger's key" in str(used.verify())


def test_the_ledgers_own_entries_cannot_be_recorded(ledger):
    """A note cannot pass for a grant, or for any other entry that means money."""
    for kind in ("grant", "reserve", "settle", "session", "answer", "resolve", "retry", "join", "import"):
        with pytest.raises(InvalidInput, match="only the ledger writes"):
            ledger.record(kind, {}, principal="p")
    ledger.record("contract", {"ok": True}, principal="p", scope="flights")
    assert ledger.history("flights")[-1].body == {"ok": True} and ledger.verify().ok


def test_an_export_adds_up_and_holds_no_secret(used):
    """A third party sums the charges and checks the chain, without the key and without secret state."""
    stream = io.StringIO()
    used.export(stream)
    assert "threshold" not in stream.getvalue()
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    entries = [line for line in lines if line["line"] == "entry"]
    assert all(entry["hash"] == chain.hashed(entry) for entry in entries)
    charges = [charge for entry in entries for charge in json.loads(entry["body"]).get("charges", ())]
    assert sum(charge[2] for charge in charges) == 3 * 10**11


def test_a_ledger_moves_between_databases(used, ask, place, tmp_path, postgres):
    """An import goes on where the export stopped; results replay, sessions are closed, the old database is refused."""
    stream = io.StringIO()
    used.export(stream)
    stream.seek(0)
    target = postgres() if "://" not in place.target else tmp_path / "moved.sqlite"
    moved = Ledger(target, anchor=place.anchor, create=True)
    moved.import_(stream, principal="owner")
    assert moved.verify().ok and ask.spent(moved) == {"": "0.3"}
    assert ask.reserve(moved, "done").result == {"value": 7}
    (gate,) = [r for r in moved.releases() if r.state == "closed"]
    assert moved.stored_answer(gate.release_id, "q").answer == {"ok": True}
    assert [a.query for a in moved.answers(gate.release_id)] == ["q"]
    with pytest.raises(SessionClosed, match="closed"):
        moved.answer(gate.release_id, query="r", expected_version=1, state={}, answer={})
    with pytest.raises(LedgerCorrupt, match="old copy was restored"):
        ask.reserve(used, "next")
    stream.seek(0)
    with pytest.raises(LedgerCorrupt, match="does not verify under this anchor"):
        moved.import_(stream, principal="owner")


@pytest.mark.parametrize("damage", ["truncate", "change", "garbage"])
def test_a_damaged_export_is_refused(used, place, tmp_path, damage):
    """Shortened, changed or unreadable exports restore nothing."""
    stream = io.StringIO()
    used.export(stream)
    lines = stream.getvalue().splitlines(keepends=True)
    if damage == "truncate":
        lines = lines[:3]
    elif damage == "change":
        lines = [line.replace('"principal":"owner"', '"principal":"me"') for line in lines]
    else:
        lines.insert(2, "{]\n")
    fresh = Ledger(tmp_path / "fresh.sqlite", anchor=place.anchor, create=True)
    with pytest.raises(LedgerCorrupt, match="does not verify|cannot be read"):
        fresh.import_(io.StringIO("".join(lines)), principal="owner")
    assert fresh.scopes() == []


def test_a_session_can_be_given_up(ledger, ask):
    """An owner closes a gate that nobody will finish; its scope opens again, its charge stays."""
    held = ledger.open_session(ask.key("gate"), **ask.terms(), state={}, exclusive=True)
    ledger.resolve(held.session_id, reason="project ended", principal="owner")
    ask.reserve(ledger)
    assert ask.spent(ledger) == {"": "0.2"} and ledger.verify().ok
    with pytest.raises(UnknownName, match="no session"):
        ledger.session("none")
