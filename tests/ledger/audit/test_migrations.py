"""Ledgers outlive versions: each past version's fixture comes to the newest one, whole."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from fractions import Fraction
from pathlib import Path
from typing import Any

import psycopg
import pytest
from audit_program import export_text, run_audit

from dpflow.core.accounting.events import Pure
from dpflow.errors import InvalidInput, LedgerCorrupt, LedgerUnavailable, SessionClosed
from dpflow.ledger import Ledger, ReleaseKey

FIXTURES = Path(__file__).parents[1] / "fixtures"
V5 = FIXTURES / "v5"
TABLES = ("meta", "scope", "account", "release", "data", "slot", "answer", "entry")
MORE = {"v5": (), "v6": ("key", "node"), "v7": ("proposal", "key", "node")}
ENTRIES = {"v5": 32, "v6": 26, "v7": 34}  # the upgrade's own included


class Old:
    """A copy of a past version's fixture on either database."""

    def __init__(self, target: str, anchor: Path, version: str = "v5") -> None:
        self.target, self.anchor, self.version = target, anchor, version

    def sql(self, statement: str) -> Any:
        if "://" in self.target:
            with psycopg.connect(
                self.target.replace("+psycopg", ""), autocommit=True
            ) as connection:
                connection.execute("SET session_replication_role = replica")
                cursor = connection.execute(statement)
                return cursor.fetchall() if cursor.description else []
        # Closed, so that all of it is in the file, and nothing in a log.
        with closing(sqlite3.connect(self.target)) as connection, connection:
            return connection.execute(statement).fetchall()


def copy_fixture(version: str, database: str, folder: Path, postgres: Any) -> Old:
    shutil.copytree(FIXTURES / version / "anchor", folder / "anchor")
    path = folder / "ledger.sqlite"
    shutil.copy(FIXTURES / version / "ledger.sqlite", path)
    if database == "sqlite":
        return Old(str(path), folder / "anchor", version)
    target = postgres()
    with (
        psycopg.connect(target.replace("+psycopg", ""), autocommit=True) as server,
        sqlite3.connect(path) as file,
    ):
        server.execute((FIXTURES / version / "postgresql.sql").read_text())
        for table in TABLES + MORE[version]:
            rows = file.execute(f"SELECT * FROM dpflow_{table}").fetchall()
            marks = ", ".join(["%s"] * len(rows[0]))
            with server.cursor() as cursor:
                cursor.executemany(f"INSERT INTO dpflow_{table} VALUES ({marks})", rows)
    return Old(target, folder / "anchor", version)


@pytest.fixture(params=["sqlite", "postgresql"])
def old(request: pytest.FixtureRequest, tmp_path: Path) -> Old:
    """Of version 5."""
    makes = request.param == "postgresql"
    postgres = request.getfixturevalue("postgres") if makes else None
    return copy_fixture("v5", request.param, tmp_path, postgres)


@pytest.fixture(params=[(v, d) for v in MORE for d in ("sqlite", "postgresql")], ids="-".join)
def any_old(request: pytest.FixtureRequest, tmp_path: Path) -> Old:
    """Of each past version."""
    version, database = request.param
    postgres = request.getfixturevalue("postgres") if database == "postgresql" else None
    return copy_fixture(version, database, tmp_path, postgres)


def ask(ledger: Ledger, digest: str, family: str, scope: str, **changes: Any) -> Any:
    terms = {
        "event": Pure(Fraction(1, 10)),
        "blocks": (),
        "family": family,
        "slot": None,
        "principal": "ann",
        "request": {"name": "r"},
    }
    key = ReleaseKey(scope, "d", "t", "2026-01-01", digest)
    return ledger.reserve(key, **terms | changes)


def test_a_ledger_of_a_past_version_comes_to_the_newest(any_old: Old) -> None:
    """Queued runs wait; afterwards results replay, sessions go on, gates stay, sums are the same."""
    old = any_old
    with sqlite3.connect(FIXTURES / old.version / "ledger.sqlite") as file:
        entries = "SELECT seq, body, hash, seal FROM dpflow_entry ORDER BY seq"
        history = file.execute(entries).fetchall()
    sums = sorted(old.sql("SELECT scope, block, epsilon, delta, renyi FROM dpflow_account"))
    with pytest.raises(LedgerUnavailable, match="dpflow ledger upgrade"):
        Ledger(old.target, anchor=old.anchor)
    assert LedgerUnavailable.retryable
    report = Ledger.upgrade(old.target, anchor=old.anchor, principal="owner")
    assert report.ok and report.entries == ENTRIES[old.version]
    assert old.sql(entries)[:-1] == history
    assert sorted(old.sql("SELECT scope, block, epsilon, delta, renyi FROM dpflow_account")) == sums
    ledger = Ledger(old.target, anchor=old.anchor)
    assert ask(ledger, "p1", "f1", "flights/team-a").result == {"count": 12, "n": [1, 2]}
    assert ask(ledger, "p2", "f2", "flights").attempt == 3
    (session,) = [r for r in ledger.releases("flights/team-a") if r.state == "open"]
    held = ledger.session(session.release_id)
    assert held.version == 2 and held.state == {"left": 2}
    assert ledger.stored_answer(held.session_id, "q1").answer == {"label": 3}
    assert ledger.batches(held.session_id) == [{"x": 1, "y": 0}]
    assert ledger.answer_batch(held.session_id, {"z": 1}, expected_version=2, state={"left": 1})
    with pytest.raises(SessionClosed, match="a gate session is open"):
        ask(ledger, "new", "new", "flights", data=("table cars",))
    assert ledger.verify().ok
    approvals = {scope.scope: scope.approvals for scope in ledger.scopes()}
    assert approvals.pop("both", 2) == 2 and {*approvals.values()} == {1}
    done = run_audit(export_text(ledger), old.anchor.parent)
    assert done.returncode == 0, done.stderr  # entries of version 5 do not say what a grant holds
    again = Ledger.upgrade(old.target, anchor=old.anchor, principal="owner")
    assert again.ok and again.entries == ledger.verify().entries


@pytest.mark.parametrize("version", ["v6", "v7"])
def test_a_checkpoint_of_a_past_version_is_extended(tmp_path: Path, version: str) -> None:
    """What its owner signed then is proved now; so is what a recovery took over from another one."""
    old = copy_fixture(version, "sqlite", tmp_path, None)
    note = (FIXTURES / version / "checkpoint.txt").read_text()
    Ledger.upgrade(old.target, anchor=old.anchor, principal="owner")
    ledger = Ledger(old.target, anchor=old.anchor)
    assert ledger.verify(since=note).ok and ledger.verify(since=ledger.checkpoint()).ok
    assert ledger.history(limit=100)[0].kind == "recover"
    assert ledger.find(ReleaseKey("flights", "d", "t", "2026-01-01", "p5")).result == {"n": 5}


def test_an_anchor_in_the_state_directory_stays(tmp_path: Path, monkeypatch: Any) -> None:
    """Version 6 had it there already: an upgrade finds it without a name."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("DPFLOW_LEDGER_ANCHOR", raising=False)
    path = tmp_path / "l.sqlite"
    shutil.copy(FIXTURES / "v6" / "ledger.sqlite", path)
    with sqlite3.connect(path) as file:
        ((name,),) = file.execute("SELECT value FROM dpflow_meta WHERE name = 'anchor'").fetchall()
    shutil.copytree(FIXTURES / "v6" / "anchor", tmp_path / "state" / "dpflow" / name[:16])
    assert Ledger.upgrade(path, principal="owner").ok
    assert ask(Ledger(path), "p1", "f1", "flights/team-a").settled


@pytest.mark.parametrize("version", ["v6", "v7"])
@pytest.mark.parametrize(
    "change",
    [
        "UPDATE dpflow_entry SET principal = 'me' WHERE seq = 3",
        "DELETE FROM dpflow_entry WHERE seq = (SELECT max(seq) FROM dpflow_entry)",
        "UPDATE dpflow_release SET result = 'x' WHERE result IS NOT NULL",
        "UPDATE dpflow_release SET secret = NULL WHERE state = 'open'",
        "DELETE FROM dpflow_key WHERE version = 2",
        "DELETE FROM dpflow_answer WHERE version = 1",
        "UPDATE dpflow_answer SET answer = (SELECT answer FROM dpflow_answer WHERE version = 2)",
    ],
)
def test_what_does_not_verify_of_later_versions_is_not_upgraded(
    tmp_path: Path, change: str, version: str
) -> None:
    """Nothing is changed then."""
    old = copy_fixture(version, "sqlite", tmp_path, None)
    for trigger in ("dpflow_entry_no_update", "dpflow_entry_no_delete"):
        old.sql(f"DROP TRIGGER {trigger}")
    old.sql(change)
    before = Path(old.target).read_bytes()
    with pytest.raises(LedgerCorrupt):
        Ledger.upgrade(old.target, anchor=old.anchor, principal="owner")
    assert old.sql("SELECT value FROM dpflow_meta WHERE name = 'schema'") == [(version[1:],)]
    assert Path(old.target).read_bytes()[100:] == before[100:]


def test_old_entries_are_on_an_auditors_page(old: Old) -> None:
    """On either database, entries of every version: sums as the ledger keeps them, what is pending as
    it says, and no result.
    """
    Ledger.upgrade(old.target, anchor=old.anchor, principal="owner")
    ledger = Ledger(old.target, anchor=old.anchor)
    assert [entry.seq for entry in ledger.stream_history()] == list(range(1, 33))
    assert ledger.history(limit=2) == list(ledger.stream_history(since=31))
    for scope in ledger.scopes():
        page = ledger.report(scope.scope)
        sums = page.partition("Spend by block")[2].partition("</table>")[0]
        for row in ledger.remaining(scope.scope).rows():
            spent = row["epsilon_spent"] or "not counted"
            shown = f"<td>{row['block'] or 'all rows'}</td><td>{spent}</td>"
            assert shown in sums or row["epsilon_spent"] == "0"
        pending = page.partition("not settled")[2].partition("Decisions")[0]
        below = [r for r in ledger.releases() if f"{r.scope}/".startswith(f"{scope.scope}/")]
        for release in below:
            assert (release.release_id in pending) == (release.state in ("reserved", "open"))
        assert "&quot;count&quot;" not in page and "'count'" not in page


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE dpflow_entry SET principal = 'me' WHERE seq = 3",
        "DELETE FROM dpflow_entry WHERE seq = 31",
        "UPDATE dpflow_release SET result = '{}' WHERE result IS NOT NULL",
        "UPDATE dpflow_release SET secret = secret || 'x' WHERE secret IS NOT NULL",
        "UPDATE dpflow_answer SET answer = '{}' WHERE version = 2",
    ],
)
def test_what_does_not_verify_is_not_upgraded(old: Old, change: str) -> None:
    """Nothing is changed then: the version before it is there to look into."""
    if "://" not in old.target:
        for trigger in ("dpflow_entry_no_update", "dpflow_entry_no_delete"):
            old.sql(f"DROP TRIGGER {trigger}")
    old.sql(change)
    with pytest.raises(LedgerCorrupt):
        Ledger.upgrade(old.target, anchor=old.anchor, principal="owner")
    assert old.sql("SELECT value FROM dpflow_meta WHERE name = 'schema'") == [("5",)]
    assert old.sql("SELECT count(*) FROM dpflow_release") == [(10,)]


def test_an_anchor_beside_the_file_moves(tmp_path: Path) -> None:
    """Without a named anchor it goes to the default place, which later calls look into."""
    path = tmp_path / "ledger.sqlite"
    shutil.copy(V5 / "ledger.sqlite", path)
    shutil.copytree(V5 / "anchor", tmp_path / "ledger.sqlite.anchor")
    assert Ledger.upgrade(path, principal="owner").ok
    assert not (tmp_path / "ledger.sqlite.anchor").exists()
    assert ask(Ledger(path), "p1", "f1", "flights/team-a").settled


def test_an_upgrade_needs_a_ledger(tmp_path: Path) -> None:
    """It makes none."""
    with pytest.raises(InvalidInput, match="there is no ledger"):
        Ledger.upgrade(tmp_path / "none.sqlite", principal="owner")
