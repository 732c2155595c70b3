"""How a draw failed is told to the owner alone: in a sealed note of one length, in every settlement."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import duckdb
import pytest
from budget_books import Visitor
from typer.testing import CliRunner

import dpflow
from dpflow.cli.ledger import app
from dpflow.core.contract.declaration import Table
from dpflow.core.contract.mechanism import Mechanism
from dpflow.core.contract.results import NONE
from dpflow.errors import LedgerCorrupt
from dpflow.ledger import Ledger
from dpflow.ledger.audit.budget_view import BudgetView
from dpflow.ledger.history.cipher import SALT, strip_salt
from dpflow.ledger.history.owner_notes import SEALED_NOTE, open_note, seal_note
from dpflow.ui.application import create_app
from dpflow.ui.visit import Audience

NOTES = ("", "x", "OutOfRangeException at sums.py:12", "é" * 300, "y" * 5000)


def test_every_note_has_one_length(ledger, place, ask):
    """The stored result is as long whether and however the draw failed, and so is an entry."""
    for i, note in enumerate(NOTES):
        ledger.settle(ask.reserve(ledger, f"release {i}"), {"value": 7}, snapshot="s", failure=note)
    rows = place.sql(
        "SELECT length(result), length(result_digest), length(snapshot) FROM dpflow_release"
    )
    assert len(rows) == len(NOTES) and len(set(rows)) == 1
    entries = place.sql("SELECT length(body) FROM dpflow_entry WHERE kind = 'settle'")
    assert len(entries) == len(NOTES) and len(set(entries)) == 1
    salted = ledger._cipher.add_note('{"value": 7}', NOTES[4])
    assert len(salted) == SALT + SEALED_NOTE + 12 and strip_salt(salted) == '{"value": 7}'
    sign, sealed = (place.anchor / "sign").read_bytes(), salted[SALT : SALT + SEALED_NOTE]
    assert open_note(sealed, sign) == NOTES[4][:234]
    with pytest.raises(LedgerCorrupt):
        open_note(salted[:SEALED_NOTE], sign)


def test_who_spends_cannot_read_notes(ledger, place, ask):
    """Without `sign` everything goes on but the report, and no other file of the anchor opens a note."""
    owners = (place.anchor / "sign").read_bytes()
    (place.anchor / "sign").unlink()
    spender = place.open()
    spender.settle(ask.reserve(spender, "bad"), {"value": None}, failure="Telltale")
    with pytest.raises(LedgerCorrupt, match="sign is not in"):
        spender.failures()
    salted = spender._cipher.add_note("{}", "Telltale")
    sealed = salted[SALT : SALT + SEALED_NOTE]
    for file in place.anchor.iterdir():
        if len(file.read_bytes()) == 32:
            with pytest.raises(LedgerCorrupt):
                open_note(sealed, file.read_bytes())
    assert open_note(sealed, owners) == "Telltale"
    # Equal notes have no equal ciphertext.
    public_half = (place.anchor / "notes").read_bytes()
    assert seal_note("", public_half) != seal_note("", public_half)
    (place.anchor / "sign").write_bytes(owners)
    assert [one.error for one in place.open().failures().failures] == ["Telltale"]


def test_the_note_is_nowhere_but_in_the_owners_report(ledger, place, ask):
    """Not in the database, an export, a record or the history; other answers stay as they were."""
    secret = "Telltale at dpflow/x.py:7"
    ledger.settle(ask.reserve(ledger, "bad"), {"value": None}, failure=secret)
    ledger.settle(ask.reserve(ledger, "good"), {"value": 7})
    exported = io.StringIO()
    ledger.export(exported)
    stored = [
        str(place.sql(f"SELECT * FROM {name}")) for name in ("dpflow_release", "dpflow_entry")
    ]
    seen = [exported.getvalue(), *stored, str(ledger.history()), str(ledger.releases())]
    assert not any("Telltale" in text for text in seen)
    assert [record.result for record in ledger.releases()] == [{"value": None}, {"value": 7}]
    report = ledger.failures()
    assert [one.error for one in report.failures] == [secret]
    assert (report.read, report.unreadable) == (2, 0) and "defect" in str(report)
    assert ledger.verify().ok


def test_notes_that_nobody_can_open_are_no_all_clear(ledger, place, ask, monkeypatch):
    """As after a restore of another key: the exit code is 1, and the report says what is unknown."""
    ledger.settle(ask.reserve(ledger, "bad"), {"value": None}, failure="Telltale")
    (place.anchor / "sign").write_bytes(b"x" * 32)
    monkeypatch.setenv("DPFLOW_LEDGER_ANCHOR", str(place.anchor))
    done = CliRunner().invoke(app, ["verify", "--failures", "--ledger", place.target])
    assert done.exit_code == 1 and "whether those draws failed is unknown" in done.output


def test_answers_of_sessions_have_notes_too(ledger, place, ask):
    """Of the same length; a session's report names the query."""
    session = ledger.open_session(ask.key("gate"), **ask.terms(), state={"n": 0}, exclusive=False)
    for version, note in enumerate(NOTES[:3]):
        ledger.answer(
            session.session_id,
            query=f"q{version}",
            expected_version=version,
            state={"n": 1},
            answer={"verdict": "none"},
            failure=note,
        )
    assert len(set(place.sql("SELECT length(answer) FROM dpflow_answer"))) == 1
    told = [(one.query, one.error) for one in ledger.failures().failures]
    assert told == [("q1", NOTES[1]), ("q2", NOTES[2])]
    ledger.rotate(principal="owner")
    assert len(ledger.failures().failures) == 2


def test_a_failing_draw_is_found_by_its_owner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Through the front door: a mechanism that fails on rows gives none, and `verify --failures` says so. Pages
    and logs do not.
    """
    caplog.set_level(0)
    with duckdb.connect(str(tmp_path / "t.duckdb")) as connection:
        connection.execute("CREATE TABLE t AS SELECT 1 AS u")
    table = Table.model_validate(
        {
            "name": "t",
            "database": tmp_path / "t.duckdb",
            "privacy_unit": {"column": "u"},
            "contribution_bounds": {"rows": 1},
            "columns": {},
        }
    )
    file = tmp_path / "l.sqlite"
    ledger = Ledger(file, anchor=tmp_path / "anchor", create=True)
    ledger.grant("s", "9", "0", table=table, filter="basic", principal="o")
    monkeypatch.setenv("DPFLOW_LEDGER_ANCHOR", str(tmp_path / "anchor"))

    def run(name: str) -> Any:
        plan = dpflow.plan("count", table, name=name, scope="s", epsilon="1")
        return dpflow.release(plan, ledger).result.rows

    assert run("good") != NONE.rows
    clean = CliRunner().invoke(app, ["verify", "--failures", "--ledger", str(file)])
    assert clean.exit_code == 0 and "no draw failed" in clean.output
    count: Any = dpflow.registry.Registry.load().find_mechanism("count")
    assert isinstance(count, Mechanism)

    def fail(*_: Any) -> Any:
        raise ArithmeticError("row 8675309")

    monkeypatch.setattr(type(count), "draw", fail)
    assert run("bad") == NONE.rows
    visitor = Visitor(create_app(lambda: BudgetView(str(file)), audience=lambda: Audience()))
    bad = next(record.release_id for record in ledger.releases() if "bad" in str(record))
    addresses = (
        "",
        "scope?name=s",
        "releases",
        f"release?id={bad}",
        "sessions",
        "alarms",
        "history",
    )
    texts = [str(visitor.get(address)) for address in addresses]
    assert len(set(texts)) == len(texts) and bad in texts[2]
    for text in (*texts, caplog.text):
        assert not re.search("ArithmeticError|8675309|test_failure_notes", text)
    found = CliRunner().invoke(app, ["verify", "--failures", "--ledger", str(file)])
    assert found.exit_code == 1 and "ArithmeticError" in found.output
    # Of another library's error the text may quote a row: not even its owner needs it.
    assert "8675309" not in found.output
