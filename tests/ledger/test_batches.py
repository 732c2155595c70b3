"""Many answers in one transaction: all of them or none, read from where one left off, in the
history and in an export.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import pytest

from dpflow.errors import InvalidInput, LedgerCorrupt, SessionClosed, UnknownName
from dpflow.ledger import Ledger
from dpflow.ledger.books.records import AnswerRecord

if TYPE_CHECKING:
    from conftest import Asks, Place


def opened(ledger: Ledger, ask: Asks, **changes: Any) -> str:
    terms = ask.terms() | {"state": {"answered": 0}, "exclusive": False} | changes
    return ledger.open_session(ask.key(), **terms).session_id


def test_a_batch_is_one_step_of_the_session(place: Place, ledger: Ledger, ask: Asks) -> None:
    """A batch appears together with its state; a stale one stores nothing; the last one closes."""
    name = opened(ledger, ask)
    first = {"answers": list(range(2500)), "odd": "q'; --"}
    assert ledger.answer_batch(name, first, expected_version=0, state={"answered": 2500})
    assert not ledger.answer_batch(name, {"late": 1}, expected_version=0, state={"answered": 1})
    assert ledger.batches(name) == [first]
    held = ledger.session(name)
    assert (held.version, held.state, held.closed) == (1, {"answered": 2500}, False)
    assert ledger.answer_batch(
        name, {"last": "x"}, expected_version=1, state={"answered": 2501}, closed=True
    )
    with pytest.raises(SessionClosed):
        ledger.answer_batch(name, {"more": 1}, expected_version=2, state={})
    assert ledger.verify().ok


def test_batches_are_read_from_where_one_left_off(ledger: Ledger, ask: Asks) -> None:
    """In order past nine, those of this session only, beside answers of single queries."""
    name, other = (
        opened(ledger, ask),
        ledger.open_session(ask.key("other"), **ask.terms(), state={}, exclusive=False).session_id,
    )
    for version in range(12):
        ledger.answer_batch(name, {"v": version}, expected_version=version, state={})
    ledger.answer_batch(other, {"v": "other"}, expected_version=0, state={})
    ledger.answer(name, query="q", expected_version=12, state={}, answer={"v": "q"})
    assert [batch["v"] for batch in ledger.batches(name)] == list(range(12))
    assert [batch["v"] for batch in ledger.batches(name, 9)] == [9, 10, 11]
    assert ledger.batches(name, 12) == ledger.batches(name, 10**9) == []
    with pytest.raises(UnknownName, match="no session"):
        ledger.batches("nobody's")
    assert ledger.verify().ok


def test_a_batch_that_cannot_be_stored_leaves_nothing(ledger: Ledger, ask: Asks) -> None:
    """What is no JSON is refused, and the session stands where it stood."""
    name = opened(ledger, ask)
    for wrong in ({"answer": object()}, {"answer": float("nan")}):
        with pytest.raises(InvalidInput):
            ledger.answer_batch(name, wrong, expected_version=0, state={})
    assert ledger.session(name).version == 0
    assert ledger.batches(name) == []
    assert ledger.verify().ok


def test_a_changed_answer_of_a_batch_is_found(place: Place, ledger: Ledger, ask: Asks) -> None:
    """Every answer of a batch is in the history."""
    name = opened(ledger, ask)
    ledger.answer_batch(name, {"answers": [1, 2]}, expected_version=0, state={})
    place.sql("UPDATE dpflow_answer SET answer = '{\"answers\":[1,3]}'")
    assert [
        problem
        for problem in ledger.verify().problems
        if f"answer {name}/{1:020d} is not" in problem
    ]


def test_what_was_stored_is_given_again_or_nothing(place: Place, ledger: Ledger, ask: Asks) -> None:
    """A batch or an answer that somebody changed, although it reads well, put at another's place or
    took away is not believed.
    """
    name = opened(ledger, ask)
    for version in range(3):
        ledger.answer_batch(name, {"answers": [version]}, expected_version=version, state={})
    single = ledger.open_session(
        ask.key("single"), **ask.terms(), state={}, exclusive=False
    ).session_id
    for version in range(3):
        ledger.answer(
            single, query=f"q{version}", expected_version=version, state={}, answer={"v": version}
        )
    assert [answer.answer["v"] for answer in ledger.answers(single)] == [0, 1, 2]
    assert ledger.ask(single, "q1") == ledger.answers(single)[1]

    for change in (
        "UPDATE dpflow_answer SET answer = '{\"answers\":[7]}' WHERE session_id = '{}' AND version = 2",
        "UPDATE dpflow_answer SET answer = '{\"v\":7}' WHERE session_id = '{}' AND version = 2",
    ):
        place.sql(change.replace("{}", single if '"v"' in change else name))
    for refused in (
        lambda: ledger.batches(name),
        lambda: ledger.batches(name, 1),
        lambda: ledger.answers(single),
        lambda: ledger.ask(single, "q1"),
        lambda: ledger.answer(single, query="q1", expected_version=3, state={}, answer={"v": 1}),
    ):
        with pytest.raises(
            LedgerCorrupt, match="answer or state is not what this ledger encrypted"
        ):
            refused()
    assert ledger.batches(name, 2) == [{"answers": [2]}]
    assert ledger.ask(single, "q2") == AnswerRecord("q2", {"v": 2})

    place.sql(f"DELETE FROM dpflow_answer WHERE session_id = '{name}' AND version = 2")
    with pytest.raises(LedgerCorrupt, match=f"a stored answer of session {name} is missing"):
        ledger.batches(name)


def test_no_query_is_named_like_a_batch(ledger: Ledger, ask: Asks) -> None:
    """Its answer was given out as a batch, and a batch as its answer."""
    name = opened(ledger, ask)
    for query in (f"{1:020d}", "٠" * 20):
        with pytest.raises(InvalidInput, match="taken for a batch"):
            ledger.answer(name, query=query, expected_version=0, state={}, answer={"v": 1})
        with pytest.raises(InvalidInput, match="taken for a batch"):
            ledger.ask(name, query)
    ledger.answer_batch(name, {"a": 1}, expected_version=0, state={})
    for query in (f"{1:019d}", f"{1:021d}"):
        assert not isinstance(ledger.ask(name, query), AnswerRecord)
    assert ledger.batches(name) == [{"a": 1}] and ledger.verify().ok


def test_a_batch_survives_an_export(tmp_path: Any, ask: Asks) -> None:
    """The imported ledger gives the same answers."""
    first = Ledger(tmp_path / "one.sqlite", anchor=tmp_path / "anchor", create=True)
    first.grant("flights", 1, 0, table=None, filter="basic", principal="owner")
    name = opened(first, ask)
    first.answer_batch(name, {"answers": [1, "two"]}, expected_version=0, state={})
    written = io.StringIO()
    first.export(written)
    written.seek(0)
    second = Ledger(tmp_path / "two.sqlite", anchor=tmp_path / "anchor", create=True)
    second.import_(written, principal="owner")
    assert second.batches(name) == [{"answers": [1, "two"]}]
    assert second.verify().ok
