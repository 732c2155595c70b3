"""What somebody does who can write the database but not the anchor, and what an export gives away."""

from __future__ import annotations

import contextlib
import io
import json
import sqlite3
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from dpflow.core.accounting.events import Pure
from dpflow.errors import InvalidInput, LedgerCorrupt, SessionClosed, UnknownName
from dpflow.ledger import Ledger
from dpflow.ledger.history import chain
from dpflow.ledger.history.checkpoint import Signer
from dpflow.ledger.history.cipher import Cipher, add_salt
from dpflow.ledger.storage import schema

KEYS = {
    "name",
    "scope",
    "id",
    "release_id",
    "run",
    "instance",
    "session_id",
    "digest",
    "prefix",
}  # what a copied row needs to be a row of its own


@pytest.fixture
def used(ledger, ask):
    """A ledger with a settled release, an orphan and a session with one answer."""
    ledger.settle(ask.reserve(ledger, "done", slot="run/0"), {"value": 7}, snapshot="s")
    ask.reserve(ledger, "orphan", slot="run/1")
    ask.answer_once(ledger)
    assert not ledger.verify().problems
    return ledger


@pytest.mark.parametrize(
    ("statement", "finding"),
    [
        ("UPDATE dpflow_entry SET seq = -seq WHERE seq IN (2, 3)", "is missing"),
        ("UPDATE dpflow_entry SET hash = previous WHERE seq = 2", "entry 2 was changed"),
        ("UPDATE dpflow_entry SET seal = 'x' WHERE seq = 3", "entry 3 was not made by this ledger"),
        ("UPDATE dpflow_answer SET answer = '{\"ok\": false}'", "is not the one that was given"),
        ("DELETE FROM dpflow_answer", "is not the one that was given"),
        ("DELETE FROM dpflow_slot WHERE instance = '0'", "and the row is gone"),
        (
            "UPDATE dpflow_release SET digest = 'free' WHERE state = 'settled'",
            "what was asked of release",
        ),
        (
            "UPDATE dpflow_release SET state = 'reserved' WHERE state = 'settled'",
            "the state of release",
        ),
        (
            "UPDATE dpflow_release SET fenced_below = 9 WHERE state = 'reserved'",
            "the fenced_below of release",
        ),
        ("UPDATE dpflow_release SET version = 0 WHERE state = 'open'", "the version of release"),
        ("DELETE FROM dpflow_account", "does not hold what its charges add up to"),
        ("UPDATE dpflow_scope SET filter = '{}'", "is not what was granted"),
    ],
)
def test_every_table_is_checked_against_the_history(used, place, statement, finding):
    """Each row of each table follows from the history, so each change is named."""
    place.sql(statement)
    assert finding in str(used.verify())


def variants(value, sqlite):
    """Other values for a cell: those a thief would want, and those that trip a careless verifier."""
    if isinstance(value, int):
        return [value + 1, value - 1, 0, 2**62] + ([b"\x00"] if sqlite else [])
    text = "" if value is None else value
    found = [
        text + "x",
        text[:-1],
        text.upper(),
        text.replace(":", ": "),
        "",
        "é" * 64,
        "{}",
        None if value else "null",
    ]
    # A number in a column of texts becomes its text: one that no cell has, and 7 is the schema's version.
    return found + ([b"\xff", 10**6 + 7] if sqlite else [])


@pytest.mark.parametrize("part", [3, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("table", schema.metadata.sorted_tables, ids=str)
def test_any_change_of_any_cell_is_found(used, place, table, part):
    """Every cell of every row, changed to anything else the database takes, is found; so is every
    row dropped or copied. Cells take turns in a third of the changes, and make slow makes all.
    """
    if table is schema.proposal:
        used.grant("s", 1, 0, table=None, filter="basic", approvals=2, principal="owner")
    if table is schema.witness:
        demand = {"witness": Signer.create("nightly").public_text, "witness_every": 9}
        used.grant("w", 1, 0, table=None, filter="basic", principal="owner", **demand)
    if table is schema.verdict:
        (held,) = [row for row in used.releases() if row.state == "open"]
        version, said = used.session(held.release_id).version, {"verdict": "no", "failures_left": 3}
        used.answer(held.release_id, query="told", expected_version=version, state={}, answer=said)
        used.tell_verdict(held.release_id, "told")
    sqlite, tries = "://" not in place.target, 0
    names = [column.name for column in table.columns]
    primary = [column.name for column in table.primary_key]
    where = " AND ".join(f"{name} = ?" for name in primary)
    marks = ", ".join("?" * len(names))
    with place.intruder() as run:
        rows = run(f"SELECT {', '.join(names)} FROM {table.name}")
        assert rows
        for turn, row in enumerate(rows):
            key = [row[names.index(name)] for name in primary]
            for n, column in enumerate(table.columns):
                for value in variants(row[n], sqlite)[(turn + n) % part :: part]:
                    if value == row[n]:
                        continue
                    try:
                        run(f"UPDATE {table.name} SET {column.name} = ? WHERE {where}", value, *key)
                    except (sqlite3.IntegrityError, psycopg.IntegrityError, psycopg.DataError):
                        continue  # not even the database takes it
                    assert used.verify().problems, (column, row[n], value)
                    now = [value if name == column.name else k for name, k in zip(primary, key)]
                    run(f"UPDATE {table.name} SET {column.name} = ? WHERE {where}", row[n], *now)
                    tries += 1
            run(f"DELETE FROM {table.name} WHERE {where}", *key)
            assert used.verify().problems, ("dropped", row)
            run(f"INSERT INTO {table.name} ({', '.join(names)}) VALUES ({marks})", *row)
            copy = [
                value + 1000 if name == "seq" else f"{value}x" if name in KEYS else value
                for name, value in zip(names, row)
            ]
            run(f"INSERT INTO {table.name} ({', '.join(names)}) VALUES ({marks})", *copy)
            assert used.verify().problems, ("copied", row)
            run(
                f"DELETE FROM {table.name} WHERE {where}",
                *[copy[names.index(k)] for k in primary],
            )
    assert not used.verify().problems and tries >= (4 if sqlite else 1) * len(rows)


@pytest.mark.parametrize("number", range(1, 8))
def test_any_older_state_is_found(used, place, number):
    """Taken back by any number of entries, with every hash in order, the history ends before the
    anchor's mark.
    """
    place.sql(
        f"DELETE FROM dpflow_entry WHERE seq > (SELECT max(seq) FROM dpflow_entry) - {number}"
    )
    assert "old copy was restored" in str(used.verify())


def test_a_chain_recomputed_without_the_key_is_found(used, place):
    """Whoever changes an entry and recomputes all later hashes has no seals for them."""
    with place.intruder() as run:
        rows = [
            list(row)
            for row in run(
                f"SELECT {', '.join((*chain.FIELDS, 'hash'))} FROM dpflow_entry ORDER BY seq"
            )
        ]
        previous = rows[0][-1]
        for row in rows[1:]:
            fields = dict(zip(chain.FIELDS, row)) | {"principal": "nobody", "previous": previous}
            previous = chain.hash_entry(fields)
            run("UPDATE dpflow_entry SET principal = ?, previous = ?, hash = ? WHERE seq = ?",
                "nobody", fields["previous"], previous, row[0])  # fmt: skip
    report = str(used.verify())
    assert all(f"entry {row[0]} was not made by this ledger" in report for row in rows[1:])


NOT_NEWEST = "a row of dpflow_release is not what the newest entry of the history left"


@pytest.mark.parametrize(
    ("column", "refusal"),
    [
        ("secret", "state is not what this ledger encrypted there"),
        ("version", NOT_NEWEST),
        ("both", NOT_NEWEST),
    ],
)
def test_a_session_cannot_be_set_back(used, place, ask, column, refusal):
    """An earlier state put back into its row gives no answer, although the history is whole."""
    held = used.open_session(ask.key("other"), **ask.terms(), state={"left": 9}, exclusive=False)
    used.answer(held.session_id, query="one", expected_version=0, state={"left": 8}, answer={})
    back = {"secret": "secret = '{\"left\":9}'", "version": "version = 0"}
    change = ", ".join(back.values()) if column == "both" else back[column]
    place.sql(
        f"UPDATE dpflow_release SET {change} WHERE id = '{held.session_id}'",
        "DELETE FROM dpflow_answer",
    )
    for version in (0, 1):
        with pytest.raises(LedgerCorrupt, match=refusal):
            used.answer(
                held.session_id, query="two", expected_version=version, state={"left": 8}, answer={}
            )
    with pytest.raises(LedgerCorrupt, match=refusal):
        used.session(held.session_id)
    with pytest.raises(LedgerCorrupt, match=refusal):
        used.open_session(ask.key("other"), **ask.terms(), state={"left": 9}, exclusive=False)


@pytest.mark.parametrize("end", ["used up", "closed by its owner", "moved"])
def test_a_closed_session_cannot_be_opened_again(used, place, ask, tmp_path, end):
    """Whatever closed it, a row that says open is not believed."""
    held = used.open_session(ask.key("other"), **ask.terms(), state={"left": 9}, exclusive=False)
    if end == "used up":
        used.answer(
            held.session_id,
            query="one",
            expected_version=0,
            state={"left": 9},
            answer={},
            closed=True,
        )
    elif end == "closed by its owner":
        used.resolve(held.session_id, reason="r", principal="owner")
    else:
        stream = io.StringIO()
        used.export(stream)
        place.sql(
            *(
                f"DELETE FROM {table.name}"
                for table in schema.metadata.sorted_tables
                if table is not schema.meta
            )
        )
        stream.seek(0)
        used.import_(stream, principal="owner")
    place.sql(
        f"UPDATE dpflow_release SET state = 'open', secret = '{{\"left\":9}}' WHERE id = '{held.session_id}'"
    )
    with pytest.raises(LedgerCorrupt, match=NOT_NEWEST):
        used.session(held.session_id)


def test_what_the_wrap_key_alone_can_write_is_not_believed(used, place, ask):
    """Whoever stole ``wrap`` can encrypt another state, result or answer for its place. The history
    holds their digests, so none of them is given out.
    """
    held = used.open_session(ask.key("other"), **ask.terms(), state={"left": 9}, exclusive=False)
    used.answer(held.session_id, query="one", expected_version=0, state={"left": 8}, answer={})
    paid = used.settle(ask.reserve(used, "forged"), {"value": 7})
    thief = Cipher(used._anchor)
    with place.intruder() as run:

        def encrypt(release_id: str, version: int, text: str, what: str) -> str:
            where = "FROM dpflow_key WHERE release_id = ? AND version = ?"
            ((wrapped,),) = run(f"SELECT wrapped {where}", release_id, version)
            return thief.open_key(release_id, version, wrapped).encrypt(add_salt(text), what)

        forged = encrypt(held.session_id, 1, '{"left":9}', "state")
        run("UPDATE dpflow_release SET secret = ? WHERE id = ?", forged, held.session_id)
        forged = encrypt(held.session_id, 1, '{"forged":1}', "answer")
        run("UPDATE dpflow_answer SET answer = ? WHERE session_id = ?", forged, held.session_id)
        forged = encrypt(paid.release_id, 0, '{"value":8}', "result")
        run("UPDATE dpflow_release SET result = ? WHERE id = ?", forged, paid.release_id)
    with pytest.raises(LedgerCorrupt, match="is not the one its last answer left"):
        used.session(held.session_id)
    with pytest.raises(LedgerCorrupt, match="is not the one that was given"):
        used.ask(held.session_id, "one")
    with pytest.raises(LedgerCorrupt, match="is not the one that was settled"):
        ask.reserve(used, "forged")


def test_a_restored_database_gives_no_answers(tmp_path, ask):
    """The whole file put back, entries and all: the anchor has seen the answer that is gone. Nothing
    of it is shown, either: a session's former state, and sums that were smaller.
    """
    path = tmp_path / "l"
    ledger = Ledger(path, create=True)
    ledger.grant("flights", 1, 0, table=None, filter="basic", principal="owner")
    held = ledger.open_session(ask.key(), **ask.terms(), state={"left": 1}, exclusive=False)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("VACUUM INTO ?", [str(tmp_path / "old")])
    ledger.answer(
        held.session_id, query="one", expected_version=0, state={}, answer={}, closed=True
    )
    for name in ("l", "l-wal", "l-shm"):
        (tmp_path / name).unlink(missing_ok=True)
    (tmp_path / "old").rename(path)
    old = Ledger(path)
    for verb in (
        lambda: old.answer(held.session_id, query="two", expected_version=0, state={}, answer={}),
        lambda: old.session(held.session_id),
        lambda: old.answers(held.session_id),
        lambda: old.remaining("flights"),
        lambda: old.check("flights", [Pure("0.1")], ()),
        old.releases,
        old.scopes,
    ):
        with pytest.raises(LedgerCorrupt, match="old copy was restored"):
            verb()


def test_verifying_beside_a_writer_raises_no_alarm(ledger, ask):
    """The mark is read before the history: entries that come in between are no sign of tampering."""
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(lambda: [ask.reserve(ledger, str(n), "1e-12") for n in range(40)])
        while not writing.done():
            assert ledger.verify().problems == ()
        writing.result()


def test_a_forged_tail_is_found_and_not_built_upon(used, place, ask):
    """A correct hash without the key is no entry: verify names it, and the next charge is refused."""
    (last,) = place.sql("SELECT seq, hash FROM dpflow_entry ORDER BY seq DESC LIMIT 1")
    fields = dict(
        zip(chain.FIELDS, (last[0] + 1, "t", "grant", "flights", "", "mallory", "{}", "r", last[1]))
    )
    fields |= {"hash": chain.hash_entry(fields), "seal": "0" * 64}
    values = ", ".join(f"'{v}'" if isinstance(v, str) else str(v) for v in fields.values())
    place.sql(f"INSERT INTO dpflow_entry ({', '.join(fields)}) VALUES ({values})")
    assert "was not made by this ledger" in str(used.verify())
    with pytest.raises(LedgerCorrupt, match="not made by this ledger"):
        ask.reserve(used, "next")


def test_a_restored_past_is_found_and_not_built_upon(used, place, ask):
    """Entries taken off the end cannot be grown over: the next charge is refused, and nothing is
    spent.
    """
    place.sql(
        "DELETE FROM dpflow_entry WHERE seq = (SELECT max(seq) FROM dpflow_entry)",
        "DELETE FROM dpflow_answer",
    )
    with pytest.raises(LedgerCorrupt, match="old copy was restored"):
        ask.reserve(used, "next")
    assert "old copy was restored" in str(used.verify())
    assert place.sql("SELECT epsilon FROM dpflow_account") == [(3 * 10**11,)]
    with pytest.raises(LedgerCorrupt, match="old copy was restored"):
        used.remaining("flights")


def test_a_new_database_needs_a_new_anchor(used, place, ask, tmp_path):
    """Deleting the database does not give the budget back: its anchor remembers."""
    fresh = Ledger(tmp_path / "fresh.sqlite", anchor=place.anchor, create=True)
    with pytest.raises(LedgerCorrupt, match="new ledger needs a new anchor"):
        fresh.grant("flights", 1, 0, table=None, filter="basic", principal="owner")


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
    for kind in (
        "grant",
        "reserve",
        "settle",
        "session",
        "answer",
        "resolve",
        "retry",
        "join",
        "import",
        "upgrade",
    ):
        with pytest.raises(InvalidInput, match="only the ledger writes"):
            ledger.record(kind, {}, principal="p")
    ledger.record("contract", {"ok": True}, principal="p", scope="flights")
    assert ledger.history("flights")[-1].body == {"ok": True} and not ledger.verify().problems


def test_an_export_adds_up_and_holds_no_secret(used):
    """A third party sums the charges and checks the chain, without the key and without secret
    state.
    """
    stream = io.StringIO()
    used.export(stream)
    assert "threshold" not in stream.getvalue()
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    entries = [line for line in lines if line["line"] == "entry"]
    assert all(entry["hash"] == chain.hash_entry(entry) for entry in entries)
    charges = [
        charge for entry in entries for charge in json.loads(entry["body"]).get("charges", ())
    ]
    assert sum(charge[2] for charge in charges) == 3 * 10**11


def test_a_ledger_moves_between_databases(used, ask, place, tmp_path, postgres):
    """An import goes on where the export stopped; results replay, sessions are closed, the old
    database is refused.
    """
    stream = io.StringIO()
    used.export(stream)
    stream.seek(0)
    target = postgres() if "://" not in place.target else tmp_path / "moved.sqlite"
    moved = Ledger(target, anchor=place.anchor, create=True)
    moved.import_(stream, principal="owner")
    assert not moved.verify().problems and ask.spent(moved) == {"": "0.3"}
    assert ask.reserve(moved, "done").result == {"value": 7}
    (gate,) = [r for r in moved.releases() if r.state == "closed"]
    assert moved.ask(gate.release_id, "q").answer == {"ok": True}
    assert [a.query for a in moved.answers(gate.release_id)] == ["q"]
    with pytest.raises(SessionClosed, match="closed"):
        moved.answer(gate.release_id, query="r", expected_version=1, state={}, answer={})
    with pytest.raises(LedgerCorrupt, match="old copy was restored"):
        ask.reserve(used, "next")
    stream.seek(0)
    with pytest.raises(InvalidInput, match="is not empty"):
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


def test_equal_states_have_unlike_commitments(ledger, ask):
    """Two sessions that drew the same noise, or one whose state did not change: nobody without the
    key can tell.
    """
    for name in ("one", "two"):
        held = ledger.open_session(
            ask.key(name), **ask.terms(), state={"noise": 3}, exclusive=False
        )
        for version, query in enumerate("ab"):
            state = {"noise": 3}
            ledger.answer(
                held.session_id,
                query=query,
                expected_version=version,
                state=state,
                answer={"above": False},
            )
        assert ledger.session(held.session_id).state == {"noise": 3}
    seals = [
        entry.body["state"] for entry in ledger.history() if entry.kind in ("session", "answer")
    ]
    assert len(set(seals)) == len(seals) == 6 and not ledger.verify().problems


def test_a_session_can_be_given_up(ledger, ask):
    """An owner closes a gate that nobody will finish; its scope opens again, its charge stays."""
    held = ledger.open_session(ask.key("gate"), **ask.terms(), state={}, exclusive=True)
    ledger.resolve(held.session_id, reason="project ended", principal="owner")
    ask.reserve(ledger)
    assert ask.spent(ledger) == {"": "0.2"} and not ledger.verify().problems
    with pytest.raises(UnknownName, match="no session"):
        ledger.session("none")


def test_a_wrap_key_from_before_a_rotation_is_named(ledger, ask):
    """Not the result, which is whole: it opens again with the file that was there."""
    ledger.settle(ask.reserve(ledger, "one"), {"value": 1})
    file = ledger._anchor.folder / "wrap"
    before = file.read_bytes()
    ledger.rotate(principal="owner")
    after = file.read_bytes()
    file.write_bytes(before)
    report = ledger.verify()
    assert not report.ok and "settled" not in str(report)
    assert "restore the file wrap" in str(report)
    file.write_bytes(after)
    assert ledger.verify().ok
