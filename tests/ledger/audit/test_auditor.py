"""Questions of a bank's auditor: copies of the books, late hands, odd names, clocks that lie."""

from __future__ import annotations

import contextlib
import io
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

from dpflow.core.accounting.events import Pure, from_json
from dpflow.errors import (
    BudgetExceeded,
    DpflowError,
    GrantConflict,
    InvalidAmount,
    InvalidInput,
    LedgerCorrupt,
    RetryConflict,
    SessionClosed,
    UnknownName,
)
from dpflow.ledger import Ledger, Reservation, Slot
from dpflow.ledger.history import chain
from dpflow.ledger.history.anchor import Mark

# --- two sets of books


@pytest.fixture
def twins(tmp_path, ask) -> tuple[Ledger, Ledger]:
    """A ledger and a copy of its file, under one anchor."""
    first = Ledger(tmp_path / "l", anchor=tmp_path / "anchor", create=True)
    first.grant("flights", 1, 0, table=None, filter="basic", principal="owner")
    ask.reserve(first, "before")
    with contextlib.closing(sqlite3.connect(tmp_path / "l")) as connection:
        connection.execute("VACUUM INTO ?", [str(tmp_path / "copy")])
    return first, Ledger(tmp_path / "copy", anchor=tmp_path / "anchor")


@pytest.mark.parametrize("ahead", [1, 3])
def test_two_copies_cannot_both_spend_at_once(twins, ask, monkeypatch, ahead):
    """Both look at the mark before either commits: the one that raises it second gives nothing out."""
    first, copy = twins
    stale = copy._anchor.read_mark()
    for n in range(ahead):
        ask.reserve(first, f"first-{n}")
    monkeypatch.setattr(Mark, "read_entry", lambda _: stale)
    with pytest.raises(LedgerCorrupt, match="another copy is in use"):
        ask.reserve(copy, "copy")
    monkeypatch.undo()
    with pytest.raises(LedgerCorrupt, match="another copy is in use"):
        ask.reserve(copy, "copy")
    ask.reserve(first, "on")
    assert first.verify().ok and "another copy is in use" in str(copy.verify())


def test_copies_in_use_together_pay_no_more_than_one(twins, ask):
    """Two processes at two copies, as fast as they can: only one of them is given anything from the
    first moment on.
    """
    start = threading.Barrier(2)

    def spend(place: tuple[int, Ledger]) -> int:
        start.wait()
        given = 0
        with contextlib.suppress(LedgerCorrupt):
            for n in range(8):
                ask.reserve(place[1], f"{place[0]}-{n}")
                given += 1
        return given

    with ThreadPoolExecutor(2) as pool:
        given = list(pool.map(spend, enumerate(twins)))
    assert sorted(given) == [0, 8]


def test_a_takeover_in_a_copy_settles_nothing(twins, ask):
    """A reservation copied with its books cannot be drawn a second time."""
    first, copy = twins
    first.settle(ask.reserve(first, "before"), {"drawn": 1})
    with pytest.raises(LedgerCorrupt, match="another copy is in use"):
        ask.reserve(copy, "before")


# --- late hands


def test_a_decision_races_a_settle(ledger, ask):
    """Whoever comes first: a stored result and a refused decision, or a decision and a discarded
    result; never both.
    """
    ledger.grant(
        "flights", 100, 0, table=None, filter="basic", principal="owner", confirm_large=True
    )
    ends = set()
    with ThreadPoolExecutor(2) as pool:
        for n in range(25):
            held, start = ask.reserve(ledger, f"r{n}"), threading.Barrier(2)

            def settle(held=held, start=start) -> bool:
                start.wait()
                with contextlib.suppress(RetryConflict):
                    return ledger.settle(held, {"drawn": 1}).settled
                return False

            def resolve(held=held, start=start, decision="close" if n % 2 else "retry") -> bool:
                start.wait()
                with contextlib.suppress(InvalidInput):
                    ledger.resolve(
                        held.release_id, reason="r", principal="owner", decision=decision
                    )
                    return True
                return False

            settled, resolved = pool.submit(settle), pool.submit(resolve)
            assert settled.result() != resolved.result()
            assert ledger.release(held.release_id).settled == settled.result()
            ends.add(settled.result())
    assert ledger.verify().ok and ends <= {True, False}


def test_every_attempt_below_the_fence_is_refused(ledger, ask):
    """Zombie, its retry, and the retry's retry: after the decision only tries that began later may
    settle.
    """
    tries = [ask.reserve(ledger) for _ in range(3)]
    ledger.resolve(tries[0].release_id, reason="r", principal="owner", decision="retry")
    for old in tries:
        with pytest.raises(RetryConflict, match="discarded"):
            ledger.settle(old, {"drawn": "old"})
    after = ask.reserve(ledger)
    for old in tries:
        with pytest.raises(RetryConflict, match="discarded"):
            ledger.settle(old, {"drawn": "old"})
    assert ledger.settle(after, {"drawn": "new"}).result == {"drawn": "new"}
    assert all(ledger.settle(old, {"drawn": "old"}).result == {"drawn": "new"} for old in tries)
    assert ask.spent(ledger) == {"": "0.1"} and ledger.verify().ok


def test_an_answer_races_the_end_of_its_session(ledger, ask):
    """An owner closes a session while it is asked: answers before the decision stand, none comes
    after it.
    """
    for n in range(10):
        held = ledger.open_session(
            ask.key(f"s{n}"), **ask.terms("0.01"), state={"left": 99}, exclusive=False
        )
        start = threading.Barrier(2)

        def answer(held=held, start=start) -> int:
            start.wait()
            given = 0
            with contextlib.suppress(SessionClosed):
                for version in range(50):
                    asked = {
                        "query": str(version),
                        "expected_version": version,
                        "state": {"left": 98 - version},
                    }
                    ledger.answer(held.session_id, **asked, answer={})
                    given += 1
            return given

        with ThreadPoolExecutor(1) as pool:
            answering = pool.submit(answer)
            start.wait()
            ledger.resolve(held.session_id, reason="r", principal="owner")
        assert answering.result() == len(ledger.answers(held.session_id))
    assert ledger.verify().ok


def test_one_session_asked_at_once_gives_every_version_once(ledger, ask):
    """Many hands at one session: a version is used by one answer, the others are told to ask again."""
    held = ledger.open_session(ask.key("s"), **ask.terms(), state={"v": 0}, exclusive=False)

    def answer(n: int) -> bool:
        given = ledger.answer(
            held.session_id, query=f"q{n}", expected_version=0, state={"v": n}, answer={"n": n}
        )
        return given is not None

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(answer, range(8))) == 1
    ((given,),) = [ledger.answers(held.session_id)]
    assert ledger.session(held.session_id).state == {"v": given.answer["n"]} and ledger.verify().ok


def test_a_session_is_no_release(ledger, ask):
    """Its charge cannot be settled like a release's, taken over by one, or asked about as one that
    nobody opened.
    """
    held = ledger.open_session(ask.key("gate"), **ask.terms(), state={"left": 1}, exclusive=False)
    with pytest.raises(RetryConflict):
        ledger.settle(Reservation(held.session_id, 1, False), {"drawn": 1})
    with pytest.raises(RetryConflict, match="is a session"):
        ask.reserve(ledger, "gate")
    release = ask.reserve(ledger, "release")
    for verb in (
        lambda: ledger.session(release.release_id),
        lambda: ledger.answer(
            release.release_id, query="q", expected_version=0, state={}, answer={}
        ),
        lambda: ledger.open_session(ask.key("release"), **ask.terms(), state={}, exclusive=True),
    ):
        with pytest.raises(UnknownName, match="session"):
            verb()
    assert ledger.session(held.session_id).state == {"left": 1} and ask.spent(ledger) == {"": "0.2"}
    assert ledger.verify().ok


# --- names, amounts, clocks

ODD = [
    "o'Hare\"; DROP TABLE dpflow_entry; -- %s :x ?",
    "%(scope)s {0} \\ $1 `",
    "naïve \u4e2d\u6587 \U0001f4b0",
    "'" * 200,
]
BAD = [
    "",
    "a\nb",
    "tab\t",
    "nul\0",
    "\ud800",
    "\u202e",
    "\u200b",
    "x" * 201,
    "x" * 10_000,
    None,
    7,
    b"x",
    ["a"],
]
LEGAL: Any = [("task", ""), ("slot", "x" * 201), ("reason", "x" * 201)]


@pytest.mark.parametrize("name", ODD)
def test_an_odd_name_is_only_a_name(place, ask, name):
    """In every place that takes a name, characters are characters; all verbs work, and so does a
    move.
    """
    ledger = place.open()
    ledger.grant(name, 1, 0, table=None, filter="basic", protects=name, blocks=True, principal=name)
    odd: dict[str, Any] = {
        "blocks": [name],
        "slot": Slot(name),
        "principal": name,
        "family": name,
        "request": {name: name},
    }
    held = ask.reserve(ledger, name[:50], scope=name, task=name, run_identity=name, **odd)
    ledger.settle(held, {name: [name]}, snapshot=name)
    gate = ledger.open_session(
        ask.key("gate", scope=name), **ask.terms(blocks=[name]), state={name: name}, exclusive=True
    )
    ledger.answer(
        gate.session_id, query=name, expected_version=0, state={name: 1}, answer={name: name}
    )
    ledger.answer_batch(gate.session_id, {name: 2}, expected_version=1, state={})
    ledger.resolve(gate.session_id, reason=name, principal=name)
    ledger.record("note", {name: name}, principal=name, scope=name)
    assert ledger.ask(gate.session_id, name).answer == {name: name}
    assert ledger.batches(gate.session_id) == [{name: 2}]
    assert ask.reserve(
        ledger, name[:50], scope=name, task=name, run_identity=name, **odd
    ).result == {name: [name]}
    assert ask.spent(ledger, name) == {name: "0.2"} and ledger.verify().ok and ledger.history(name)
    stream = io.StringIO()
    assert ledger.export(stream) == len(ledger.history())


@pytest.mark.parametrize(
    "where",
    [
        "scope",
        "task",
        "run_identity",
        "digest",
        "block",
        "slot",
        "principal",
        "family",
        "query",
        "reason",
        "kind",
    ],
)
def test_a_bad_name_is_refused_everywhere(ledger, ask, where):
    """A clear refusal that does not repeat the name; nothing is spent, nothing is written."""
    ledger.grant("days", 1, 0, table=None, filter="basic", blocks=True, principal="owner")
    held = ledger.open_session(ask.key("gate"), **ask.terms(), state={}, exclusive=False)
    verbs: dict[str, Callable[[Any], object]] = {
        "block": lambda name: ask.reserve(ledger, scope="days", blocks=[name]),
        "query": lambda name: ledger.answer(
            held.session_id, query=name, expected_version=0, state={}, answer={}
        ),
        "reason": lambda name: ledger.resolve(held.session_id, reason=name, principal="p"),
        "kind": lambda name: ledger.record(name, {}, principal="p"),
        "digest": lambda name: ask.reserve(ledger, name),
        "slot": lambda name: ask.reserve(ledger, slot=Slot(name)),
    }
    before = len(ledger.history())
    for name in BAD:
        if (where, name) in LEGAL:
            continue
        with pytest.raises(InvalidInput) as refusal:
            verbs.get(where, lambda name: ask.reserve(ledger, **{where: name}))(name)
        assert len(str(refusal.value)) < 300
    assert (
        len(ledger.history()) == before and ask.spent(ledger) == {"": "0.1"} and ledger.verify().ok
    )


AMOUNTS = [
    "-1",
    "NaN",
    "inf",
    "-inf",
    "1e308",
    "1e-320",
    5e-324,
    float("nan"),
    float("inf"),
    2**70,
    None,
    "0x1",
    b"1",
    [1],
]


@pytest.mark.parametrize("what", ["epsilon", "delta", "tail_share"])
def test_an_amount_that_is_none_changes_no_grant(ledger, what):
    """Grants, and quotas too."""
    before = ledger.history()
    for amount in AMOUNTS[:-4] if what == "tail_share" else AMOUNTS:
        for verb, scope in (
            (partial(ledger.grant, table=None), "flights"),
            (partial(ledger.grant, table=None), "other"),
            (ledger.quota, "flights/q"),
        ):
            given: dict[str, Any] = {
                "epsilon": 1,
                "delta": "1e-6",
                "filter": "hybrid",
                what: amount,
            }
            with pytest.raises(InvalidInput):
                verb(scope, principal="owner", **given)
    assert ledger.history() == before and ledger.scope("flights").epsilon == 1


@pytest.mark.parametrize(
    "event",
    [
        {"kind": "gdp.v1", "mu": "1"},
        {"kind": "pure.v1", "epsilon": "NaN"},
        {"kind": "pure.v1"},
        {},
        [],
        None,
        "pure",
    ],
)
def test_an_event_of_unknown_kind_is_refused(event):
    """The vocabulary is closed."""
    with pytest.raises(DpflowError):
        from_json(event)


def test_what_is_no_event_cannot_be_charged(ledger, ask):
    """A number is no privacy claim."""
    for event in ("0.1", 0.1, None, object()):
        with pytest.raises(DpflowError):
            ask.reserve(ledger, event=event)
    assert ask.spent(ledger) == {"": "0"} and len(ledger.history()) == 1


def test_sums_never_wrap_around(place, ask):
    """What is beyond the scale of its units is no claim at all; the largest claims are held at the
    top and refused.
    """
    for amount in ("1e-13", "1e7", "1e30"):
        with pytest.raises(InvalidAmount, match="from 1e-12 to 1000000"):
            Pure(amount)
    ledger = place.open()
    ledger.grant(
        "flights", 10**6, "1e-6", table=None, filter="hybrid", principal="owner", confirm_large=True
    )
    ask.reserve(ledger, "all", "1000000")
    for n in range(3):
        with pytest.raises(BudgetExceeded, match="cannot pay"):
            ask.reserve(ledger, str(n), "1000000")
    assert ask.spent(ledger) == {"": "1000000"} and ledger.verify().ok


def test_a_clock_that_runs_backwards_changes_no_order(ledger, ask, monkeypatch):
    """Every entry earlier than the one before it: keys, order, replays and sums are what they were."""
    now = (1_900_000_000.5 - 400 * 86_400 * n for n in range(100))
    monkeypatch.setattr(chain.time, "time", lambda: next(now))
    for n in range(3):
        ledger.settle(ask.reserve(ledger, str(n)), {"n": n})
    monkeypatch.undo()
    times = [entry.at for entry in ledger.history()][1:]
    assert times == sorted(times, reverse=True)
    assert [dict(r.result or {}) for r in ledger.releases()] == [{"n": 0}, {"n": 1}, {"n": 2}]
    assert (
        ask.reserve(ledger, "1").result == {"n": 1}
        and ask.spent(ledger) == {"": "0.3"}
        and ledger.verify().ok
    )


def test_a_grant_below_what_is_spent(ledger, ask):
    """By grant or quota, in any account, before or after a raise: refused, and nothing changes."""
    ledger.grant("flights/team", "0.5", 0, table=None, filter="basic", principal="owner")
    ask.reserve(ledger, epsilon="0.3", scope="flights/team")
    before = ledger.history()
    for lower in ("0.2", "0.299999999999"):
        with pytest.raises(GrantConflict, match="already spent more"):
            ledger.grant("flights", lower, 0, table=None, filter="basic", principal="owner")
        with pytest.raises(GrantConflict, match="already spent more"):
            ledger.quota("flights/team", lower, 0, principal="owner")
    assert ledger.history() == before
    ledger.grant("flights", "0.3", 0, table=None, filter="basic", principal="owner")
    assert ledger.check("flights", [Pure("1e-12")], ()) is not None and ledger.verify().ok


@pytest.mark.parametrize("damage", ["head", "middle", "cut", "zeros", "appended"])
def test_a_corrupt_file_is_never_spent_from(tmp_path, ask, damage):
    """A SQLite file with broken pages: a clear error or an untouched answer, never a wrong sum,
    never a driver's own error.
    """
    path = tmp_path / "l"
    ledger = Ledger(path, create=True)
    ledger.grant("flights", 1, 0, table=None, filter="basic", principal="owner")
    for n in range(40):
        ask.reserve(ledger, str(n), "0.01", request={"filler": "x" * 500})
    whole = ask.spent(ledger)
    del ledger
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    data = bytearray(path.read_bytes())
    if damage == "head":
        data[:16] = b"not a database!!"
    elif damage == "middle":
        data[8192:-4096:3] = bytes(len(data[8192:-4096:3]))
    elif damage == "cut":
        del data[len(data) // 2 :]
    elif damage == "zeros":
        data[4096:] = bytes(len(data) - 4096)
    else:
        data += b"\xff" * 4096
    path.write_bytes(data)
    try:
        broken = Ledger(path)
        found = broken.verify()
        assert not found.ok or ask.spent(broken) == whole
        ask.reserve(broken, "next")
    except DpflowError as error:
        assert isinstance(
            error, LedgerCorrupt | UnknownName
        )  # an empty page reads as: nothing was granted
    else:
        assert found.ok
