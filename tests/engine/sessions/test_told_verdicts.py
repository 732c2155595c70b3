"""A gate's verdicts in the history, where pages read them without a key: each once, in order."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
from holdout_gates import HONEST, PARAMS, grant_holdout, open_gate, wrong
from ledger_verbs import list_verdicts

from dpflow import Session, fault_points
from dpflow.engine.sessions.holdout_gate import judge, judge_all
from dpflow.errors import InvalidInput, LedgerCorrupt, LedgerUnavailable
from dpflow.ledger import Ledger

if TYPE_CHECKING:
    from smallworld import Tiny


@pytest.fixture
def ledger(tiny: Tiny) -> Ledger:
    return grant_holdout(tiny)


def test_a_gate_tells_each_verdict_once(tiny: Tiny, ledger: Ledger) -> None:
    """The word and the failures left, as the answer has them; a repeated question tells nothing more."""
    session = open_gate(tiny, ledger)
    for submission in (HONEST, wrong(0), HONEST, wrong(0)):
        judge(session, submission)
    answers = [record.answer for record in ledger.answers(session.id)]
    assert list_verdicts(ledger) == [
        {"version": n, "verdict": answer["verdict"], "failures_left": answer["failures_left"]}
        for n, answer in enumerate(answers, 1)
    ]
    assert len(answers) == 2 and ledger.verify().ok


def test_a_gate_that_died_before_it_told_tells_when_asked_again(
    tiny: Tiny, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was stored, drawn once; so it is of answers that an earlier version stored."""
    session = open_gate(tiny, ledger)
    monkeypatch.setattr(fault_points, "armed", "session.after-commit:fail")
    with pytest.raises(fault_points.FaultInjected):
        judge(session, wrong(0))
    (stored,) = ledger.answers(session.id)
    assert list_verdicts(ledger) == []
    monkeypatch.setattr(fault_points, "armed", "")
    assert judge(open_gate(tiny, ledger), wrong(0))["verdict"] == stored.answer["verdict"]
    assert [body["verdict"] for body in list_verdicts(ledger)] == [stored.answer["verdict"]]
    assert len(ledger.answers(session.id)) == 1 and ledger.verify().ok


def test_a_batch_tells_each_verdict_behind_the_next_answer(tiny: Tiny, ledger: Ledger) -> None:
    """Once, the last one at its end; a repeated candidate tells what waits, and a second batch nothing."""
    session = open_gate(tiny, ledger)
    batch = [HONEST, wrong(0), wrong(0), HONEST | {"claim": "17"}]
    for _ in range(2):
        judge_all([lambda: session], batch)
    answers = [record.answer for record in ledger.answers(session.id)]
    assert list_verdicts(ledger) == [
        {"version": n, "verdict": answer["verdict"], "failures_left": answer["failures_left"]}
        for n, answer in enumerate(answers, 1)
    ]
    kinds = [entry.kind for entry in ledger.stream_history()]
    assert [kind for kind in kinds if kind in ("answer", "verdict")] == [
        *("answer", "verdict", "answer"),
        *("verdict", "verdict", "answer")[1:],
        "verdict",
    ]
    assert ledger.verify().ok


@pytest.mark.parametrize("what", ["an answer", "a quota", "an earlier state"])
def test_a_batch_sees_what_others_wrote(tiny: Tiny, ledger: Ledger, what: str) -> None:
    """It carries on from the rows of its last answer: only where nobody wrote, and never from a state that was put back."""
    session = open_gate(tiny, ledger)
    with closing(sqlite3.connect(tiny.ledger)) as database:
        database.execute("PRAGMA busy_timeout = 30000")
        old = database.execute(
            "SELECT secret, secret_digest, version FROM dpflow_release"
        ).fetchone()

        def write(session: Session, submission: Any, promoter: Any) -> dict[str, Any]:
            if submission == HONEST:
                return judge(session, submission, promoter)
            if what == "an answer":
                other = open_gate(tiny, Ledger(tiny.ledger))
                assert judge(other, wrong(7))["verdict"] == "no"
            elif what == "a quota":
                ledger.quota("gate/b", 1, 0, principal="owner")
            else:
                columns = "secret = ?, secret_digest = ?, version = ?"
                database.execute(f"UPDATE dpflow_release SET {columns}", old)
                database.commit()
            return judge(session, submission, promoter)

        batch = [HONEST, wrong(0)]
        if what == "an earlier state":
            with pytest.raises(LedgerCorrupt):
                judge_all([lambda: session], batch, judge_one=write)
            return
        judge_all([lambda: session], batch, judge_one=write)
    answers = [record.answer for record in ledger.answers(session.id)]
    left = [answer["failures_left"] for answer in answers]
    assert left == ([2, 1, 0] if what == "an answer" else [2, 1]) and ledger.verify().ok


def test_a_session_that_is_named_twice_tells_all(tiny: Tiny, ledger: Ledger) -> None:
    """Also what waits when the second name of it begins a batch, as when its answers are used up."""
    session = open_gate(tiny, ledger, **PARAMS | {"failures": 1})
    judge_all([lambda: session] * 2, [HONEST, *map(wrong, range(4))])
    stored = [record.answer["verdict"] for record in ledger.answers(session.id)]
    assert [body["verdict"] for body in list_verdicts(ledger)] == stored and len(stored) > 1
    # Nothing waits outside.
    assert session._batch.untold is None and ledger.verify().ok


@pytest.mark.parametrize("error", [KeyboardInterrupt(), InvalidInput("a candidate")])
@pytest.mark.parametrize("within_reach", [True, False])
def test_a_batch_that_ends_early_tells_what_waits(
    tiny: Tiny, ledger: Ledger, error: BaseException, within_reach: bool
) -> None:
    """Before its error leaves, which a ledger out of reach does not replace; then a second batch tells."""
    session = open_gate(tiny, ledger)

    def fail_second(session: Session, submission: Any, promoter: Any) -> dict[str, Any]:
        if submission != HONEST:
            assert list_verdicts(ledger) == []
            raise error
        return judge(session, submission, promoter)

    def fail_telling(*_: Any, **__: Any) -> None:
        raise LedgerUnavailable("of the test")

    with pytest.MonkeyPatch.context() as patch, pytest.raises(type(error)):
        if not within_reach:
            patch.setattr(Ledger, "tell_verdict", fail_telling)
        judge_all([lambda: session], [HONEST, wrong(0)], judge_one=fail_second)
    assert len(list_verdicts(ledger)) == within_reach
    judge_all([lambda: session], [HONEST])
    assert len(list_verdicts(ledger)) == 1 and ledger.verify().ok
    # Outside a batch nothing waits.
    judge(session, wrong(0))
    assert len(list_verdicts(ledger)) == 2


def test_a_verdict_that_becomes_a_tag_is_told_before(tiny: Tiny, ledger: Ledger) -> None:
    """Where a candidate of the batch is a registered model, whose tag would say what the history does not."""
    session = open_gate(tiny, ledger)

    def look(session: Session, submission: Any, promoter: Any) -> dict[str, Any]:
        verdict = judge(session, HONEST, promoter)
        assert len(list_verdicts(ledger)) == 1
        return verdict

    judge_all([lambda: session], [{**HONEST, "model": "models:/m/1"}], judge_one=look)
