"""Random interleavings of all verbs against a model that fits on a screen."""

from __future__ import annotations

import itertools
import tempfile
from fractions import Fraction
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from dpflow.core.events import Pure
from dpflow.errors import BudgetExceeded, GrantConflict, InvalidInput, RetryConflict, SessionClosed
from dpflow.ledger import Ledger, ReleaseKey, Reservation

NAMES = st.sampled_from("abcd")
TENTHS = st.integers(1, 12)


class Model(RuleBasedStateMachine):
    """A grant, what is spent, and per key: its state, its tries, the tries that are fenced, its result."""

    numbers = itertools.count()

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.ledger = Ledger(Path(self.folder.name) / "l", create=True)
        self.ledger.grant("s", 1, 0, filter="basic", principal="o")
        self.granted, self.spent, self.gate = 10, 0, None
        self.known: dict[str, dict] = {}

    def terms(self, tenths: int = 1) -> dict:
        event = Pure(Fraction(tenths, 10))
        return {"event": event, "blocks": (), "family": "f", "slot": None, "principal": "p", "request": {}}

    @rule(tenths=TENTHS)
    def grant(self, tenths: int) -> None:
        try:
            self.ledger.grant("s", Fraction(tenths, 10), 0, filter="basic", principal="o")
            self.granted = tenths
        except GrantConflict:
            assert tenths < self.spent

    @rule(name=NAMES, tenths=st.integers(1, 4))
    def reserve(self, name: str, tenths: int) -> None:
        known = self.known.get(name)
        try:
            held = self.ledger.reserve(ReleaseKey("s", "", "", "o", name), **self.terms(tenths))
        except BudgetExceeded:
            assert known is None and self.spent + tenths > self.granted
        except SessionClosed:
            assert known is None and self.gate is not None
        except RetryConflict:
            assert known["state"] == "fenced"
        else:
            if known is None:
                assert self.spent + tenths <= self.granted and self.gate is None
                self.spent += tenths
                self.known[name] = {"id": held.release_id, "state": "reserved", "tries": 1, "fence": 0, "result": None}
            elif known["state"] == "settled":
                assert held.settled and held.result == {"n": known["result"]}
            else:
                known["tries"] += 1
                assert (known["state"], held.attempt) == ("reserved", known["tries"])

    @rule(name=NAMES, attempt=st.integers(1, 4))
    def settle(self, name: str, attempt: int) -> None:
        known = self.known.get(name)
        if known is None:
            return
        number = next(self.numbers)
        legal = known["state"] == "reserved" and known["fence"] <= attempt <= known["tries"]
        try:
            done = self.ledger.settle(Reservation(known["id"], attempt, False), {"n": number})
        except RetryConflict:
            assert not legal and known["state"] != "settled"
        else:
            if legal:
                known["state"], known["result"] = "settled", number
            assert known["state"] == "settled" and done.result == {"n": known["result"]}

    @rule(name=NAMES, decision=st.sampled_from(["close", "retry"]))
    def resolve(self, name: str, decision: str) -> None:
        known = self.known.get(name, {"id": "x", "state": "unknown"})
        try:
            self.ledger.resolve(known["id"], reason="r", principal="o", decision=decision)
        except InvalidInput:
            assert known["state"] != "reserved"
        else:
            known["state"] = "fenced" if decision == "close" else "reserved"
            known["fence"] = known["tries"] + 1

    @rule(closed=st.booleans(), stale=st.booleans())
    def session(self, closed: bool, stale: bool) -> None:
        if self.gate is None:
            number = next(self.numbers)
            try:
                key = ReleaseKey("s", "", "", "gate", str(number))
                held = self.ledger.open_session(key, **self.terms(), state={"v": 0}, exclusive=True)
            except BudgetExceeded:
                assert self.spent + 1 > self.granted
                return
            self.gate, self.version, self.spent = held.session_id, 0, self.spent + 1
        ask = {"query": str(next(self.numbers)), "state": {"v": self.version + 1}, "answer": {}, "closed": closed}
        given = self.ledger.answer(self.gate, expected_version=self.version - stale, **ask)
        assert (given is None) == stale
        if not stale:
            self.version += 1
            assert self.ledger.session(self.gate).state == {"v": self.version}
            self.gate = None if closed else self.gate

    @invariant()
    def books_agree(self) -> None:
        """The sum is exact to the unit, and never above the grant."""
        ((_, cost),) = self.ledger.remaining("s").spent
        assert cost.epsilon == self.spent * 10**11 and self.spent <= self.granted

    def teardown(self) -> None:
        assert self.ledger.verify().ok
        self.folder.cleanup()


TestModel = Model.TestCase
TestModel.settings = settings(max_examples=25, stateful_step_count=25, deadline=None, database=None)
