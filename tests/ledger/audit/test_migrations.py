"""An upgrade takes a ledger of this schema version to an artificial next one, whole or not at all."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from audit_program import export_text, run_audit

from dpflow.errors import (
    DatasetLocked,
    InvalidInput,
    LedgerCorrupt,
    LedgerUnavailable,
)
from dpflow.ledger import Ledger
from dpflow.ledger.audit import migrations
from dpflow.ledger.storage import schema

SUMS = "SELECT scope, block, epsilon, delta, renyi FROM dpflow_account ORDER BY 1, 2"
ENTRIES = "SELECT seq, body, hash, seal FROM dpflow_entry ORDER BY seq"


def fill(place: Any, ask: Any) -> Ledger:
    """Grants of all forms, and a release or session in each state."""
    ledger = place.open()
    ledger.grant("flights", 1, "1e-6", table=None, filter="hybrid", principal="ann")
    ledger.grant("flights/team", "0.8", "1e-6", table=None, filter="hybrid", principal="ann")
    ledger.grant("cars", 1, 0, table=None, filter="basic", principal="ann")
    both = {"table": None, "filter": "basic", "principal": "ann", "approvals": 2}
    ledger.grant("both", 1, 0, **both)
    ledger.approve("both", ledger.proposals()[0].seq, principal="bob")
    ledger.grant("both", 2, 0, **both)
    settled = ask.reserve(ledger, "settled", scope="flights/team", slot="run/0")
    ledger.settle(settled, {"count": 12, "n": [1, 2]}, snapshot="7")
    ask.reserve(ledger, "pending", slot="run/1")
    session = ledger.open_session(
        ask.key("gate", scope="cars"),
        **ask.terms(data=("table cars",)),
        state={"left": 2},
        exclusive=True,
    )
    ledger.answer(
        session.session_id, query="q1", expected_version=0, state={"left": 1}, answer={"label": 3}
    )
    return ledger


@pytest.fixture
def next_version(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Makes this dpflow one of a next schema version, which has another table."""
    number = str(int(schema.VERSION) + 1)

    def switch() -> None:
        monkeypatch.setattr(schema, "UPGRADABLE", (*schema.UPGRADABLE, schema.VERSION))
        monkeypatch.setattr(schema, "VERSION", number)
        table = sa.Table("dpflow_next", schema.metadata, sa.Column("name", sa.Text))
        monkeypatch.setattr(schema, "next", table, raising=False)

    yield switch
    if "dpflow_next" in schema.metadata.tables:
        schema.metadata.remove(schema.metadata.tables["dpflow_next"])


def test_each_table_of_this_version_is_replaced() -> None:
    """A version that adds a table and forgets to say so would leave it behind at the next upgrade."""
    tables = {f"dpflow_{name}" for name in migrations._TABLES[schema.VERSION]}
    assert tables == set(schema.metadata.tables)


def test_a_ledger_comes_to_the_next_version(
    place: Any, ask: Any, next_version: Callable[[], None], tmp_path: Path
) -> None:
    """Queued runs wait; afterwards results replay, sessions go on, gates stay, sums are the same."""
    old = fill(place, ask)
    (session,) = [r for r in old.releases() if r.state == "open"]
    history, sums = place.sql(ENTRIES), place.sql(SUMS)
    note = old.checkpoint()
    next_version()
    with pytest.raises(LedgerUnavailable, match="dpflow ledger upgrade") as waiting:
        place.open()
    assert waiting.value.retryable
    report = Ledger.upgrade(place.target, anchor=place.anchor, principal="owner")
    assert report.ok and report.entries == len(history) + 1
    assert place.sql(ENTRIES)[:-1] == history and place.sql(SUMS) == sums
    assert place.sql("SELECT count(*) FROM dpflow_next")[0][0] == 0
    ledger = place.open(create=False)
    assert ledger.verify(since=note).ok and ledger.verify(since=ledger.checkpoint()).ok
    again = ask.reserve(ledger, "settled", scope="flights/team", slot="run/0")
    assert again.result == {"count": 12, "n": [1, 2]}
    assert ask.reserve(ledger, "pending", slot="run/1").attempt == 2
    held = ledger.session(session.release_id)
    assert held.version == 1 and held.state == {"left": 1}
    assert ledger.ask(held.session_id, "q1").answer == {"label": 3}
    more = {"expected_version": 1, "state": {"left": 0}, "answer": {"label": 4}}
    ledger.answer(held.session_id, query="q2", **more)
    with pytest.raises(DatasetLocked, match="a gate session is open"):
        ask.reserve(ledger, "new", data=("table cars",))
    assert {scope.scope: scope.approvals for scope in ledger.scopes()}["both"] == 2
    text = export_text(ledger)
    assert "its schema" in run_audit(text, tmp_path).stderr  # a version that it does not know
    first, _, entries = text.partition("\n")
    header = json.dumps(json.loads(first) | {"schema": "1"})
    done = run_audit(f"{header}\n{entries}", tmp_path)
    assert done.returncode == 0, done.stderr
    last = ledger.verify().entries
    again = Ledger.upgrade(place.target, anchor=place.anchor, principal="owner")
    assert again.ok and again.entries == last


def test_a_program_of_the_earlier_version_is_refused(
    place: Any, ask: Any, next_version: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that was not upgraded opens nothing, and says what to do."""
    fill(place, ask)
    version = schema.VERSION
    next_version()
    Ledger.upgrade(place.target, anchor=place.anchor, principal="owner")
    monkeypatch.setattr(schema, "VERSION", version)
    monkeypatch.setattr(schema, "UPGRADABLE", ())
    with pytest.raises(LedgerUnavailable, match="Upgrade dpflow on this machine"):
        place.open(create=False)


def test_an_anchor_in_the_state_directory_is_found(
    tmp_path: Path, ask: Any, next_version: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An upgrade finds it without a name, as every other call does."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("DPFLOW_LEDGER_ANCHOR", raising=False)
    path = tmp_path / "l.sqlite"
    ledger = Ledger(path, create=True)
    ledger.grant("flights", 1, 0, table=None, filter="basic", principal="owner")
    ledger.settle(ask.reserve(ledger), {"n": 5})
    next_version()
    assert Ledger.upgrade(path, principal="owner").ok
    assert ask.reserve(Ledger(path)).settled


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE dpflow_entry SET principal = 'me' WHERE seq = 3",
        "DELETE FROM dpflow_entry WHERE seq = (SELECT max(seq) FROM dpflow_entry)",
        "UPDATE dpflow_release SET result = 'x' WHERE result IS NOT NULL",
        "UPDATE dpflow_release SET secret = NULL WHERE state = 'open'",
        "DELETE FROM dpflow_key WHERE version = 1",
        "DELETE FROM dpflow_answer WHERE version = 1",
        "UPDATE dpflow_answer SET answer = 'x' WHERE version = 1",
    ],
)
def test_what_does_not_verify_is_not_upgraded(
    place: Any, ask: Any, next_version: Callable[[], None], change: str
) -> None:
    """Nothing is changed then: the version before it is there to look into."""
    fill(place, ask)
    place.sql(change)
    before = place.sql(ENTRIES), place.sql("SELECT id, state FROM dpflow_release ORDER BY id")
    version = schema.VERSION
    next_version()
    with pytest.raises(LedgerCorrupt):
        Ledger.upgrade(place.target, anchor=place.anchor, principal="owner")
    stored = place.sql("SELECT value FROM dpflow_meta WHERE name = 'schema'")
    assert [tuple(row) for row in stored] == [(version,)]
    after = place.sql(ENTRIES), place.sql("SELECT id, state FROM dpflow_release ORDER BY id")
    assert after == before


def test_an_upgrade_needs_a_ledger(tmp_path: Path) -> None:
    """It makes none."""
    with pytest.raises(InvalidInput, match="there is no ledger"):
        Ledger.upgrade(tmp_path / "none.sqlite", principal="owner")
