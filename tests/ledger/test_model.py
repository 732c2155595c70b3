"""Random interleavings of all verbs, on both databases, against a model that fits on a screen."""

from __future__ import annotations

import copy
import io
import itertools
import os
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from dpflow.core.accounting.events import Pure
from dpflow.errors import (
    BudgetExceeded,
    DatasetLocked,
    DpflowError,
    GrantConflict,
    InvalidInput,
    LedgerCorrupt,
    RetryConflict,
    SessionClosed,
    UnknownName,
)
from dpflow.ledger import Ledger, ReleaseKey, Reservation, Slot
from dpflow.ledger.books.records import path_of


@dataclass
class Kept:
    """A release or session: ``slots`` are the task instances that asked for it."""

    tenths: int
    state: str
    exclusive: bool
    slots: set[str]
    tries: int = 1
    fence: int = 0
    result: Any = None
    answers: dict[str, Any] = field(default_factory=dict)
    version: int = 0


class Model:
    """The ledger in memory. A verb that raises changes nothing (`Machine.both` sees to that)."""

    def __init__(self) -> None:
        self.grants: dict[str, int] = {}
        self.spent: Counter[tuple[str, str]] = Counter()
        self.kept: dict[tuple[str, str], Kept] = {}
        self.lines: list[str] = []

    def grant(self, scope: str, tenths: int, quota: bool) -> None:
        above, used = (
            scope.rpartition("/")[0],
            [n for (s, _), n in self.spent.items() if s == scope],
        )
        if quota and not above:
            raise InvalidInput
        if (
            above
            and (above not in self.grants or quota and tenths > self.grants[above])
            or tenths < max([0, *used])
        ):
            raise GrantConflict
        self.grants[scope] = tenths
        self.lines += ["grant"]

    def find_replay(
        self, scope: str, name: str, tenths: int, slot: str | None, again: bool
    ) -> Kept | None:
        """Exactly once: by key; else what this slot has, if it is of one family; else it may have
        to be refused.
        """
        kept = self.kept.get((scope, name))
        before = {at: k for at, k in self.kept.items() if slot is not None and slot in k.slots}
        if kept is not None and slot is not None and slot not in kept.slots:
            kept.slots.add(slot)
            self.lines += ["join"]
        if kept is not None or not before:
            return kept
        for (other, named), found in before.items():
            if (other, named[0], found.tenths) == (scope, name[0], tenths):
                return found
        in_run = [k.slots for k in self.kept.values() if k.slots]
        if again or len(set[str]().union(*in_run)) > len(in_run):
            return None
        raise RetryConflict

    def charge(self, at: tuple[str, str], blocks: set[str], kept: Kept) -> None:
        """Every account pays, or none."""
        gates = {
            path_of(scope)[0]
            for (scope, _), k in self.kept.items()
            if k.exclusive and k.state == "open"
        }
        if path_of(at[0])[0] in gates:
            raise DatasetLocked
        if at[0] not in self.grants:
            raise UnknownName("", "", ())
        bill = {(scope, block): kept.tenths for scope in path_of(at[0]) for block in blocks}
        if any(
            self.spent[account] + tenths > self.grants[account[0]]
            for account, tenths in bill.items()
        ):
            raise BudgetExceeded("", scope="", block=None)
        self.spent.update(bill)
        self.kept[at] = kept
        self.lines += ["session" if kept.state == "open" else "reserve"]

    def reserve(
        self, scope: str, name: str, tenths: int, blocks: set[str], slot: str | None, again: bool
    ) -> Any:
        kept = self.find_replay(scope, name, tenths, slot, again)
        if kept is None:
            self.charge((scope, name), blocks, Kept(tenths, "reserved", False, {slot} - {None}))
            return 1, None
        if kept.state == "settled":
            return kept.tries, kept.result
        if kept.state != "reserved":
            raise RetryConflict
        kept.tries += 1
        self.lines += ["retry"]
        return kept.tries, None

    def settle(self, kept: Kept, attempt: int, result: Any) -> Any:
        if kept.state != "settled":
            if kept.state != "reserved" or not kept.fence <= attempt <= kept.tries:
                raise RetryConflict
            kept.state, kept.result = "settled", result
            self.lines += ["settle"]
        return kept.result

    def resolve(self, kept: Kept, decision: str) -> str:
        if kept.state not in ("reserved", "open") or (kept.state, decision) == ("open", "retry"):
            raise InvalidInput
        kept.state = (
            "reserved"
            if decision == "retry"
            else {"reserved": "fenced", "open": "closed"}[kept.state]
        )
        kept.fence = kept.tries + 1
        self.lines += ["resolve"]
        return kept.state

    def open(
        self,
        scope: str,
        name: str,
        tenths: int,
        blocks: set[str],
        slot: str | None,
        exclusive: bool,
    ) -> Any:
        kept = self.find_replay(scope, name, tenths, slot, False)
        if kept is None:
            kept = Kept(tenths, "open", exclusive, {slot} - {None})
            self.charge((scope, name), blocks, kept)
        if kept.state not in ("open", "closed"):
            raise UnknownName("", "", ())
        return kept.version, kept.state == "closed"

    def answer(self, kept: Kept, query: str, version: int, given: Any, closed: bool) -> Any:
        if query in kept.answers:
            return kept.answers[query]
        if kept.state == "closed":
            raise SessionClosed
        if version != kept.version:
            return None
        kept.answers[query], kept.version, kept.state = (
            given,
            version + 1,
            "closed" if closed else "open",
        )
        self.lines += ["answer"]
        return given

    def move(self) -> None:
        for kept in self.kept.values():
            kept.state = "closed" if kept.state == "open" else kept.state
        self.lines += ["import"]


SCOPES = st.sampled_from(["s", "s/a", "s/a/c", "s/b"])
NAMES = st.sampled_from(
    ["a1", "a2", "b1", "b2"]
)  # a digest each; those of one letter are versions of one mechanism
BLOCKS = st.sets(st.sampled_from("xy"), min_size=1)
SLOTS = st.sampled_from([None, "run/0", "run/1"])
CHARGES = st.sampled_from([1, 1, 2, 5])
#: Nothing dies here, so nothing need be on a disk, where close to half of the time went into
#: flushing it.
FOLDERS = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


class Machine(RuleBasedStateMachine):
    """Does everything twice, and compares answers, errors, sums, histories and states."""

    places: Callable[[], Any]

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory(prefix="dpflow-model-", dir=FOLDERS)
        self.anchor, self.numbers = Path(self.folder.name) / "anchor", itertools.count()
        self.model, self.ids = Model(), {}
        self.target = self.fresh()
        self.ledger = Ledger(self.target, anchor=self.anchor, create=True)
        for scope, tenths in (("s", 14), ("s/a", 12), ("s/a/c", 8)):
            self.grant(scope, tenths, False)

    def fresh(self) -> Any:
        return self.places() or Path(self.folder.name) / f"ledger-{next(self.numbers)}"

    def both(self, ours: Callable[[], Any], theirs: Callable[[], Any]) -> None:
        """The same answer, or the same kind of refusal, which changes nothing but leaves a note where a
        budget refused.
        """
        before, outcomes = copy.deepcopy(self.model.__dict__), []
        for verb in (theirs, ours):
            try:
                outcomes.append(verb())
            except DpflowError as error:
                outcomes.append(type(error))
                if verb is theirs:
                    self.model.__dict__ = before
                    self.model.lines += ["refuse"] * isinstance(error, BudgetExceeded)
        assert outcomes[1] == outcomes[0]

    def terms(self, name: str, tenths: int, blocks: set[str], slot: str | None) -> dict[str, Any]:
        event = Pure(Fraction(tenths, 10))
        return {
            "event": event,
            "blocks": sorted(blocks),
            "family": name[0],
            "slot": None if slot is None else Slot(*slot.split("/")),
            "principal": "p",
            "request": {},
        }

    def note(self, scope: str, name: str, release_id: str) -> None:
        if (scope, name) in self.model.kept:
            self.ids.setdefault((scope, name), release_id)

    def some(self, data: st.DataObject) -> tuple[str, str]:
        """Any release or session, more often an unsettled one."""
        waiting = sorted(at for at in self.ids if self.model.kept[at].state == "reserved")
        return data.draw(st.sampled_from(sorted(self.ids) + 3 * waiting))

    @rule(scope=SCOPES, tenths=st.integers(1, 14), quota=st.booleans())
    def grant(self, scope: str, tenths: int, quota: bool) -> None:
        def ours() -> None:
            terms: Any = {"filter": "basic", "principal": "o"}
            if quota:
                self.ledger.quota(scope, Fraction(tenths, 10), 0, **terms)
            else:
                self.ledger.grant(scope, Fraction(tenths, 10), 0, table=None, blocks=True, **terms)

        self.both(ours, lambda: self.model.grant(scope, tenths, quota))

    @rule(scope=SCOPES, name=NAMES, tenths=CHARGES, blocks=BLOCKS, slot=SLOTS, again=st.booleans())
    def reserve(
        self, scope: str, name: str, tenths: int, blocks: set[str], slot: str | None, again: bool
    ) -> None:
        def ours() -> Any:
            key = ReleaseKey(scope, "", "", "o", name)
            held = self.ledger.reserve(
                key, **self.terms(name, tenths, blocks, slot), spend_again=again
            )
            self.note(scope, name, held.release_id)
            return held.attempt, None if held.result is None else dict(held.result)

        self.both(ours, lambda: self.model.reserve(scope, name, tenths, blocks, slot, again))

    def _settle(self, at: tuple[str, str], off: int) -> None:
        result, attempt = {"n": next(self.numbers)}, self.model.kept[at].tries + off
        held = Reservation(self.ids[at], attempt, False)
        self.both(
            lambda: dict(self.ledger.settle(held, result).result or {}),
            lambda: self.model.settle(self.model.kept[at], attempt, result),
        )

    def _resolve(self, at: tuple[str, str], decision: Any) -> None:
        self.both(
            lambda: self.ledger.resolve(self.ids[at], reason="r", principal="o", decision=decision),
            lambda: self.model.resolve(self.model.kept[at], decision),
        )

    @precondition(lambda self: self.ids)
    @rule(data=st.data(), off=st.sampled_from([0, 0, -1, 1]))
    def settle(self, data: st.DataObject, off: int) -> None:
        self._settle(self.some(data), off)

    @precondition(lambda self: self.ids)
    @rule(data=st.data(), decision=st.sampled_from(["close", "retry"]), late=st.booleans())
    def resolve(self, data: st.DataObject, decision: Any, late: bool) -> None:
        """A decision, and perhaps at once the hand that it was about."""
        at = self.some(data)
        self._resolve(at, decision)
        if late:
            self._settle(at, 0)

    @rule(scope=SCOPES, name=NAMES, blocks=BLOCKS, slot=SLOTS, exclusive=st.booleans())
    def open(
        self, scope: str, name: str, blocks: set[str], slot: str | None, exclusive: bool
    ) -> None:
        def ours() -> Any:
            key = ReleaseKey(scope, "", "", "o", name)
            held = self.ledger.open_session(
                key, **self.terms(name, 1, blocks, slot), state={"v": 0}, exclusive=exclusive
            )
            self.note(scope, name, held.session_id)
            return held.version, held.closed

        self.both(ours, lambda: self.model.open(scope, name, 1, blocks, slot, exclusive))

    def sessions(self) -> list[tuple[str, str]]:
        return sorted(
            at for at, kept in self.model.kept.items() if kept.state in ("open", "closed")
        )

    @precondition(lambda self: self.sessions())
    @rule(
        data=st.data(), query=st.sampled_from("qrs"), stale=st.integers(0, 1), closed=st.booleans()
    )
    def answer(self, data: st.DataObject, query: str, stale: int, closed: bool) -> None:
        at, given = data.draw(st.sampled_from(self.sessions())), {"n": next(self.numbers)}
        version = self.model.kept[at].version - stale

        def ours() -> Any:
            asked = {
                "query": query,
                "expected_version": version,
                "state": {"v": version + 1},
                "closed": closed,
            }
            told = self.ledger.answer(self.ids[at], answer=given, **asked)
            return None if told is None else dict(told.answer)

        self.both(
            ours, lambda: self.model.answer(self.model.kept[at], query, version, given, closed)
        )

    @rule()
    def reopen(self) -> None:
        """Another process takes over: nothing lives outside the database and the anchor."""
        self.ledger = Ledger(self.target, anchor=self.anchor)

    @rule()
    def move(self) -> None:
        """Export here, import there; the old database is of no use any more, and its books still
        read well.
        """
        stream, old = io.StringIO(), self.ledger
        assert old.verify().ok and old.export(stream) == len(self.model.lines)
        stream.seek(0)
        self.target = self.fresh()
        self.ledger = Ledger(self.target, anchor=self.anchor, create=True)
        self.ledger.import_(stream, principal="o")
        self.model.move()
        with pytest.raises(LedgerCorrupt, match="old copy was restored"):
            old.grant("s", 20, 0, table=None, filter="basic", blocks=True, principal="o")
        assert not old.verify().ok

    @invariant()
    def books_agree(self) -> None:
        """Sums to the unit and never above the grant, the history line by line, every state."""
        assert [scope.scope for scope in self.ledger.scopes()] == sorted(self.model.grants)
        for scope, granted in self.model.grants.items():
            left = self.ledger.remaining(scope)
            sums = {block: cost.epsilon for block, cost in left.spent if cost.epsilon}
            assert sums == {
                b: n * 10**11 for (s, b), n in self.model.spent.items() if s == scope and n
            }
            assert (
                left.scope.epsilon == Fraction(granted, 10)
                and max(sums.values(), default=0) <= granted * 10**11
            )
        assert [entry.kind for entry in self.ledger.history(limit=1000)] == self.model.lines
        found = {r.release_id: (r.state, r.attempts) for r in self.ledger.releases()}
        assert found == {
            self.ids[at]: (kept.state, kept.tries) for at, kept in self.model.kept.items()
        }
        for at in self.sessions():
            kept = self.model.kept[at]
            assert [dict(a.answer) for a in self.ledger.answers(self.ids[at])] == list(
                kept.answers.values()
            )
            if kept.state == "open":
                assert self.ledger.session(self.ids[at]).state == {"v": kept.version}

    def teardown(self) -> None:
        assert self.ledger.verify().ok
        self.folder.cleanup()


@pytest.mark.parametrize(
    ("kind", "examples"),
    [
        ("sqlite", 15),
        ("postgresql", 2),
        pytest.param("sqlite", 1000, marks=pytest.mark.slow),
        pytest.param("postgresql", 100, marks=pytest.mark.slow),
    ],
)
def test_all_verbs_follow_the_model(
    request: pytest.FixtureRequest, kind: str, examples: int
) -> None:
    """Every sequence that hypothesis finds does on the ledger what it does on the model."""
    places = (lambda: None) if kind == "sqlite" else request.getfixturevalue("postgres")
    chosen = settings(max_examples=examples, stateful_step_count=50, deadline=None, database=None)
    # The module's name: as in `adversary_model.run_model`.
    parts = {"places": staticmethod(places), "__module__": "drawn"}
    run_state_machine_as_test(type("Machine", (Machine,), parts), settings=chosen)
