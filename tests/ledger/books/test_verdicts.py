"""A gate's verdict in the clear: told behind its answer, once, and the one that was given."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from audit_program import run_audit
from crashes import KILLED
from forked_programs import run_forked
from ledger_verbs import list_verdicts

from dpflow.errors import InvalidInput, LedgerCorrupt, SessionClosed
from dpflow.ledger import Ledger
from dpflow.ledger.books import sessions
from dpflow.ledger.history import chain

WORD = "a-verdict-in-no-file"
ANSWER = """
import sys
from dpflow.ledger import Ledger
ledger = Ledger(sys.argv[1], anchor=sys.argv[2])
name = ledger.releases()[0].release_id
held = ledger.ask(name, "q")
if hasattr(held, "answer"):
    ledger.tell_verdict(name, "q")
else:
    answer = {"verdict": sys.argv[3], "failures_left": 2, "score": 0.5}
    told = {"rows": held.rows, "public_verdict": True}
    ledger.answer(name, query="q", expected_version=held.version, state={}, answer=answer, **told)
"""


BATCH = """
import sys
from dpflow import fault_points
from dpflow.ledger import Ledger
ledger = Ledger(sys.argv[1], anchor=sys.argv[2])
name, armed, behind = ledger.releases()[0].release_id, fault_points.armed, []
for query, word in (("q", "no"), ("r", sys.argv[3])):
    held = ledger.ask(name, query)
    if hasattr(held, "answer"):
        ledger.tell_verdict(name, query)
        continue
    # Dies in the second one.
    fault_points.armed = armed if behind else ""
    answer = {"verdict": word, "failures_left": 2, "score": 0.5}
    more = {"rows": held.rows, "tell": behind}
    behind = [ledger.answer(name, query=query, expected_version=held.version, state={}, answer=answer, **more)]
for record in behind:
    ledger.tell_verdict(name, record.query)
"""


@pytest.fixture
def gate(ledger: Ledger, ask: Any) -> str:
    """A session that closes its data."""
    return ledger.open_session(ask.key("gate"), **ask.terms(), state={}, exclusive=True).session_id


def give(ledger: Ledger, gate: str, number: int, **said: Any) -> None:
    ledger.answer(
        gate,
        query=f"q{number}",
        expected_version=number,
        state={},
        answer={"verdict": "no", **said},
    )


def test_a_verdict_is_told_once_and_without_its_score(ledger: Ledger, gate: str) -> None:
    """In any order, and after the session has closed; again it changes nothing."""
    give(ledger, gate, 0, failures_left=2, score=0.125)
    ledger.answer(
        gate, query="q1", expected_version=1, state={}, answer={"verdict": "yes"}, closed=True
    )
    for query in ("q1", "q0", "q1", "q0"):
        ledger.tell_verdict(gate, query)
    assert list_verdicts(ledger) == [
        {"version": 2, "verdict": "yes", "failures_left": None},
        {"version": 1, "verdict": "no", "failures_left": 2},
    ]
    assert ledger.verify().ok


def test_what_has_no_verdict_tells_none(ledger: Ledger, gate: str) -> None:
    """A query without an answer, and an answer without a verdict."""
    ledger.answer(gate, query="number", expected_version=0, state={}, answer={"value": 4})
    for query in ("never", "number"):
        with pytest.raises(InvalidInput):
            ledger.tell_verdict(gate, query)
    assert list_verdicts(ledger) == [] and ledger.verify().ok


@pytest.mark.parametrize(
    ("point", "given"),
    [
        ("session.before-commit", False),
        ("session.after-commit", True),
        ("verdict.before-commit", True),
    ],
)
def test_a_killed_look_tells_what_was_given(
    ledger: Ledger, place: Any, gate: str, point: str, given: bool
) -> None:
    """In no file by the transaction of its answer; afterwards whoever asks again tells it, once."""
    arguments = (place.target, str(place.anchor))
    assert run_forked(ANSWER, *arguments, WORD, fault=point) == KILLED
    # Also once that is on the disk: a process may die while it is written.
    if point.startswith("session") and "://" not in place.target:
        files = [p for p in Path(place.target).parent.rglob("*") if p.is_file()]
        assert not [p for p in files if WORD.encode() in p.read_bytes()]
    assert list_verdicts(ledger) == []
    for _ in range(2):
        assert run_forked(ANSWER, *arguments, "second") == 0
    assert [body["verdict"] for body in list_verdicts(ledger)] == [WORD if given else "second"]
    assert ledger.verify().ok


@pytest.mark.parametrize(
    ("point", "first", "second"),
    [
        ("session.before-commit", [], "again"),
        ("session.after-commit", ["no"], WORD),
        ("verdict.before-commit", ["no"], WORD),
    ],
)
def test_a_killed_batch_tells_what_was_given(
    ledger: Ledger, place: Any, gate: str, point: str, first: list[str], second: str
) -> None:
    """The first verdict is told in one transaction with the second answer, whose own word is in no file before."""
    arguments = (place.target, str(place.anchor))
    assert run_forked(BATCH, *arguments, WORD, fault=point) == KILLED
    if point.startswith("session") and "://" not in place.target:
        files = [p for p in Path(place.target).parent.rglob("*") if p.is_file()]
        assert not [p for p in files if WORD.encode() in p.read_bytes()]
    assert [body["verdict"] for body in list_verdicts(ledger)] == first
    for _ in range(2):
        assert run_forked(BATCH, *arguments, "again") == 0
    assert [body["verdict"] for body in list_verdicts(ledger)] == ["no", second]
    assert ledger.verify().ok


def test_a_verdict_is_told_whatever_becomes_of_the_next_answer(ledger: Ledger, gate: str) -> None:
    """Also where another answer was faster; not where the session is closed, which stores nothing."""
    terms: dict[str, Any] = {"state": {}, "answer": {"verdict": "yes"}}
    record = ledger.answer(gate, query="q0", expected_version=0, **terms)
    assert record is not None
    assert ledger.answer(gate, query="q1", expected_version=0, tell=[record], **terms) is None
    assert [body["version"] for body in list_verdicts(ledger)] == [1]
    last = ledger.answer(gate, query="q1", expected_version=1, closed=True, tell=[record], **terms)
    assert last is not None and len(list_verdicts(ledger)) == 1
    with pytest.raises(SessionClosed):
        ledger.answer(gate, query="q2", expected_version=2, tell=[last], **terms)
    assert len(list_verdicts(ledger)) == 1
    assert ledger.answer(gate, query="q0", expected_version=2, tell=[last], **terms) == record
    assert [body["version"] for body in list_verdicts(ledger)] == [1, 2] and ledger.verify().ok


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM dpflow_verdict",
        "UPDATE dpflow_verdict SET verdict = 'yes'",
        "UPDATE dpflow_verdict SET failures_left = 9",
        "UPDATE dpflow_verdict SET version = 2",
    ],
)
def test_a_changed_row_is_found(ledger: Ledger, place: Any, gate: str, statement: str) -> None:
    """Nothing is told a second time for it, and verify names it."""
    give(ledger, gate, 0, failures_left=2)
    give(ledger, gate, 1)
    ledger.tell_verdict(gate, "q0")
    place.sql(statement)
    with pytest.raises(LedgerCorrupt):
        ledger.tell_verdict(gate, "q0")
    assert (
        "is not the one that was told" in str(ledger.verify()) and len(list_verdicts(ledger)) == 1
    )


def test_a_verdict_that_was_not_given_is_found(
    ledger: Ledger, place: Any, gate: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever seals another one than the answer's is found by verify, which has the key."""
    give(ledger, gate, 0, failures_left=2)
    with monkeypatch.context() as patch:
        patch.setattr(sessions, "read_verdict", lambda _: ("yes", 3))
        ledger.tell_verdict(gate, "q0")
    assert "is not the one that was given" in str(ledger.verify())


@pytest.mark.parametrize(
    ("body", "rule"),
    [
        ({"version": 1, "verdict": "no", "failures_left": 2}, "tells a verdict a second time"),
        (
            {"version": 2, "verdict": "no", "failures_left": 2},
            "tells an answer that was never given",
        ),
        (
            {"version": 0, "verdict": "no", "failures_left": 2},
            "tells an answer that was never given",
        ),
    ],
)
def test_an_illegal_entry_is_found(
    ledger: Ledger, place: Any, gate: str, body: dict[str, Any], rule: str
) -> None:
    """Sealed by somebody who has the key and none of the rules."""
    give(ledger, gate, 0, failures_left=2)
    ledger.tell_verdict(gate, "q0")
    with ledger._begin_writing() as writer:
        writer.add_entry("verdict", "flights", gate, "somebody", body)
    assert rule in str(ledger.verify())


def test_verdicts_move_with_a_ledger(ledger: Ledger, place: Any, gate: str, tmp_path: Path) -> None:
    """An import has their rows, and the program without dpflow passes over them."""
    give(ledger, gate, 0, failures_left=2)
    ledger.tell_verdict(gate, "q0")
    stream = io.StringIO()
    ledger.export(stream)
    assert run_audit(stream.getvalue(), tmp_path).returncode == 0
    moved = Ledger(tmp_path / "moved.sqlite", anchor=place.anchor, create=True)
    stream.seek(0)
    moved.import_(stream, principal="owner")
    moved.tell_verdict(gate, "q0")
    assert moved.verify().ok and len(list_verdicts(moved)) == 1


def carry_on(ledger: Ledger, held: Any, query: str) -> Any:
    """An answer to what `Ledger.ask` said of a session, with its verdict."""
    return ledger.answer(
        held.session_id,
        query=query,
        expected_version=held.version,
        state={"v": query},
        answer={"verdict": "no", "failures_left": 2},
        rows=held.rows,
        public_verdict=True,
    )


def test_what_others_write_meanwhile_is_seen(ledger: Ledger, place: Any, gate: str) -> None:
    """Rows that were proved are those of an entry: with another one behind it they are read again."""
    other, first, second, third = place.open(), *(ledger.ask(gate, f"q{n}") for n in (0, 1, 2))
    other.record("note", {}, principal="somebody")
    assert carry_on(ledger, first, "q0").answer["verdict"] == "no"
    # It was computed from a state that is gone.
    assert carry_on(ledger, second, "q1") is None
    assert carry_on(ledger, third, "q0").answer["verdict"] == "no"
    again = ledger.ask(gate, "q1")
    give(other, gate, 1, failures_left=7)
    assert carry_on(ledger, again, "q1").answer["failures_left"] == 7
    assert ledger.session(gate).version == 2 and ledger.session(gate).state == {}
    assert [body["version"] for body in list_verdicts(ledger)] == [1, 2]
    assert ledger.verify().ok


def test_rows_of_a_failed_transaction_are_not_taken_again(
    ledger: Ledger, place: Any, gate: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = ledger.ask(gate, "q")
    with monkeypatch.context() as patch:
        patch.setattr(chain.Writer, "write_entries", lambda writer: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            carry_on(ledger, held, "q")
    assert held.rows.newest is None
    assert carry_on(ledger, held, "q").answer["verdict"] == "no"
    assert ledger.verify().ok and len(list_verdicts(ledger)) == 1


def test_a_forged_tail_is_found_behind_proved_rows(ledger: Ledger, place: Any, gate: str) -> None:
    """As is a history that was cut behind what the anchor has seen."""
    held = ledger.ask(gate, "q")
    place.sql("DELETE FROM dpflow_entry WHERE seq = (SELECT max(seq) FROM dpflow_entry)")
    with pytest.raises(LedgerCorrupt):
        carry_on(ledger, held, "q")


def test_a_row_that_was_changed_behind_proved_rows_is_found(
    ledger: Ledger, place: Any, gate: str
) -> None:
    """Not by who goes on from what it proved, and by the next one who reads it."""
    held = ledger.ask(gate, "q")
    place.sql("UPDATE dpflow_release SET principal = 'another'")
    assert carry_on(ledger, held, "q").answer["verdict"] == "no"
    with pytest.raises(LedgerCorrupt):
        ledger.session(gate)
    assert not ledger.verify().ok
