"""One gate on one partition, whoever opens it: by transaction, from any scope, in two processes at
once, across a crash.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import pytest

from dpflow.errors import DatasetLocked, PlanRefused
from dpflow.ledger import Ledger

ROUNDS = 12


#: An answer after which a session gives no other.
LAST: dict[str, Any] = {
    "query": "q",
    "expected_version": 0,
    "state": {},
    "answer": {},
    "closed": True,
}


def gate(ledger: Ledger, ask: Any, scope: str, name: str = "gate", **changes: Any) -> Any:
    terms = {"state": {"v": 0}, "exclusive": True, "data": ["table t", "place p"]} | changes
    return ledger.open_session(ask.key(name, scope=scope), **ask.terms("0.01"), **terms)


def child(work: Callable[[], object]) -> int:
    """Run it in a process of its own; returns the process id."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        except BaseException:  # noqa: BLE001  the parent asks only whether it ended well
            os._exit(1)
        os._exit(0)
    return pid


@pytest.fixture
def ledger(place) -> Ledger:
    """Two datasets, one with two quotas."""
    ledger = place.open()
    for scope in ("a", "b", "a/x", "a/y"):
        ledger.grant(scope, 1, 0, table=None, filter="basic", principal="owner")
    return ledger


def test_a_gate_closes_its_data_in_every_scope(ledger, ask):
    """Whatever shares a name with it: its dataset with all quotas, its table, its place. The same
    key still resumes it.
    """
    held = gate(ledger, ask, "a/x")
    for scope, data in (
        ("a", []),
        ("a/y", ["table u"]),
        ("b", ["table t"]),
        ("b", ["table u", "table v", "place p"]),
    ):
        with pytest.raises(DatasetLocked, match="open on scope 'a/x'"):
            ask.reserve(ledger, scope=scope, data=data)
        with pytest.raises(DatasetLocked, match="open on scope 'a/x'"):
            gate(ledger, ask, scope, "other", data=data)
    assert gate(ledger, ask, "a/x").session_id == held.session_id
    ask.reserve(ledger, scope="b", data=["table u", "place q"])
    ledger.answer(held.session_id, **LAST)
    ask.reserve(ledger, scope="a", data=["table t", "place p"])
    gate(ledger, ask, "b")
    assert ledger.verify().ok


def test_a_partition_is_never_changed(ledger, ask):
    """The first session that cuts data into groups says how, for every name, gate or not."""
    held = gate(ledger, ask, "a", "first", partition="400 groups")
    ledger.answer(held.session_id, **LAST)
    for scope, data in (("a/x", []), ("b", ["table t"]), ("b", ["place p"])):
        with pytest.raises(PlanRefused, match="partitioned into 400 groups .* never changed"):
            gate(ledger, ask, scope, "second", data=data, partition="300 groups", exclusive=False)
    ledger.answer(gate(ledger, ask, "a/x", "third", partition="400 groups").session_id, **LAST)
    ask.reserve(ledger, scope="b", data=["table t"])  # cuts nothing
    assert ledger.verify().ok and ask.spent(ledger, "a") == {"": "0.02"}


def test_only_the_first_release_of_data_is_fresh(ledger, ask):
    first = ask.reserve(ledger, "one", scope="a/x", data=["table t"]).release_id
    second = gate(ledger, ask, "b").session_id
    assert ledger.is_fresh(first, "a/x", ["table t"]) and not ledger.is_fresh(
        second, "b", ["table t", "place p"]
    )
    assert ledger.is_fresh(second, "b", ["place p"]) and not ledger.is_fresh(
        second, "a/y", ["place p"]
    )


def test_two_processes_open_one_gate(ledger, ask, place):
    """Both start together in every round, from two datasets: one is charged, the other is refused
    and pays nothing.
    """
    read, write = os.pipe()
    told = [os.pipe() for _ in "ab"]

    def opens(scope: str, start: int) -> None:
        mine, known = place.open(create=False), []
        for number in range(ROUNDS):
            os.read(start, 1)
            try:
                known = [gate(mine, ask, scope, f"g{number}", data=[f"table t{number}"]).session_id]
                os.write(write, b"y")
            except DatasetLocked:
                known = []
                os.write(write, b"n")
            os.read(start, 1)
            for session_id in known:
                mine.answer(session_id, **LAST)
            os.write(write, b".")

    children = [child(lambda s=scope, r=told[n][0]: opens(s, r)) for n, scope in enumerate("ab")]
    for _ in range(ROUNDS):
        for expected in ("ny", ".."):
            for _, start in told:
                os.write(start, b"!")
            assert "".join(sorted((os.read(read, 1) + os.read(read, 1)).decode())) == expected
    assert [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children] == [0, 0]
    spent = [float(ask.spent(ledger, scope)[""]) for scope in "ab"]
    assert (
        sum(spent) == pytest.approx(ROUNDS * 0.01)
        and len(ledger.releases()) == ROUNDS
        and ledger.verify().ok
    )


@pytest.mark.parametrize("point", ["session.before-commit", "session.after-commit"])
def test_a_gate_whose_opener_dies_is_open_or_was_never_opened(
    ledger, ask, place, monkeypatch, point
):
    """Killed before the commit: nothing is closed, the other scope opens. Killed after it: the gate
    stands and is resumed.
    """

    def dies() -> None:
        monkeypatch.setattr("dpflow.fault_points.armed", f"{point}:kill")
        gate(place.open(create=False), ask, "a", partition="400 groups")

    assert os.waitstatus_to_exitcode(os.waitpid(child(dies), 0)[1]) == -signal.SIGKILL
    if point == "session.before-commit":
        gate(ledger, ask, "b", partition="300 groups")
        assert ask.spent(ledger, "a") == {"": "0"}
    else:
        with pytest.raises(PlanRefused, match="partitioned into 400 groups"):
            gate(ledger, ask, "b", partition="300 groups")
        with pytest.raises(DatasetLocked, match="open on scope 'a'"):
            gate(ledger, ask, "b", partition="400 groups")
        ledger.answer(gate(ledger, ask, "a", partition="400 groups").session_id, **LAST)
        assert ask.spent(ledger, "a") == {"": "0.01"} and ask.spent(ledger, "b") == {"": "0"}
    assert ledger.verify().ok


def test_what_is_known_of_data_is_rebuilt(ledger, ask, place, tmp_path):
    """An export carries it, and verifying finds a row that was changed, removed or added by hand."""
    held = gate(ledger, ask, "a", partition="400 groups")
    ledger.answer(held.session_id, **LAST)
    with (tmp_path / "out").open("w") as stream:
        ledger.export(stream)
    moved = Ledger(tmp_path / "moved.sqlite", anchor=place.anchor, create=True)
    with (tmp_path / "out").open() as stream:
        moved.import_(stream, principal="owner")
    with pytest.raises(PlanRefused, match="400 groups"):
        gate(moved, ask, "b", partition="300 groups")
    assert moved.verify().ok


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE dpflow_data SET gate = NULL WHERE name = 'table t'",
        "UPDATE dpflow_data SET partition = '300 groups'",
        "UPDATE dpflow_data SET first = 'another'",
        "DELETE FROM dpflow_data",
        "INSERT INTO dpflow_data VALUES ('table u', 'another', NULL, NULL)",
    ],
)
def test_verifying_finds_what_was_done_to_it_by_hand(ledger, ask, place, statement):
    gate(ledger, ask, "a", partition="400 groups")
    place.sql(statement)
    (problem, *_) = ledger.verify().problems
    assert "is not what its releases left" in problem
