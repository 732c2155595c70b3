"""Many answers in one transaction: all of them or none, looked up by name, in the history and in an export."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import pytest

from dpflow.errors import InvalidInput, SessionClosed
from dpflow.ledger import Ledger

if TYPE_CHECKING:
    from conftest import Asks, Place


def opened(ledger: Ledger, ask: Asks, **changes: Any) -> str:
    terms = ask.terms() | {"state": {"answered": 0}, "exclusive": False} | changes
    return ledger.open_session(ask.key(), **terms).session_id


def test_a_batch_is_one_step_of_the_session(place: Place, ledger: Ledger, ask: Asks) -> None:
    """All answers appear together with the state; a stale batch stores nothing; the last one closes."""
    name = opened(ledger, ask)
    first = {f"q{i}": {"answer": i} for i in range(2500)}
    assert ledger.answer_many(name, first, expected_version=0, state={"answered": 2500})
    assert not ledger.answer_many(name, {"late": {"answer": 1}}, expected_version=0, state={"answered": 1})
    assert ledger.stored_answers(name, ["q0", "q2499", "late", "q'; --"]) == {
        "q0": {"answer": 0},
        "q2499": {"answer": 2499},
    }
    assert ledger.stored_answers(name, []) == {}
    held = ledger.session(name)
    assert (held.version, held.state, held.closed) == (1, {"answered": 2500}, False)
    assert ledger.answer_many(
        name, {"last": {"answer": "x"}}, expected_version=1, state={"answered": 2501}, closed=True
    )
    with pytest.raises(SessionClosed):
        ledger.answer_many(name, {"more": {}}, expected_version=2, state={})
    assert ledger.stored_answer(name, "last").answer == {"answer": "x"}
    assert ledger.verify().ok


def test_a_batch_that_cannot_be_stored_leaves_nothing(ledger: Ledger, ask: Asks) -> None:
    """A name or an answer that no ledger takes: refused, and the session stands where it stood."""
    name = opened(ledger, ask)
    for wrong in ({"good": {}, "bad\n": {}}, {"good": {}, "bad": {"answer": object()}}):
        with pytest.raises(InvalidInput):
            ledger.answer_many(name, wrong, expected_version=0, state={})
    assert ledger.session(name).version == 0
    assert ledger.stored_answers(name, ["good"]) == {}
    assert ledger.verify().ok


def test_a_changed_answer_of_a_batch_is_found(place: Place, ledger: Ledger, ask: Asks) -> None:
    """Every answer of a batch is in the history."""
    name = opened(ledger, ask)
    ledger.answer_many(name, {"a": {"answer": 1}, "b": {"answer": 2}}, expected_version=0, state={})
    place.sql("UPDATE dpflow_answer SET answer = '{\"answer\":1}' WHERE query = 'b'")
    assert [problem for problem in ledger.verify().problems if f"batch {name}/1" in problem]


def test_a_batch_survives_an_export(tmp_path: Any, ask: Asks) -> None:
    """The imported ledger gives the same answers."""
    first = Ledger(tmp_path / "one.sqlite", anchor=tmp_path / "anchor", create=True)
    first.grant("flights", 1, 0, filter="basic", principal="owner")
    name = opened(first, ask)
    first.answer_many(name, {"a": {"answer": 1}, "b": {"answer": "two"}}, expected_version=0, state={})
    written = io.StringIO()
    first.export(written)
    written.seek(0)
    second = Ledger(tmp_path / "two.sqlite", anchor=tmp_path / "anchor", create=True)
    second.import_(written, principal="owner")
    assert second.stored_answers(name, ["a", "b"]) == {"a": {"answer": 1}, "b": {"answer": "two"}}
    assert second.verify().ok
