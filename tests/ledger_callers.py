"""Callers of a ledger, for hypothesis, and a witness outside it who notes what they were told.

Never was more charged than was granted, in any period of a quota that refreshes; never more charges behind
a checkpoint that was demanded; never were there two draws for one charge, two answers from one state or a
grant of one principal where two are needed. Whenever the ledger verifies, it says what the witness saw.
Clocks go where they like.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import random
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    precondition,
    rule,
)

from dpflow.core.accounting.events import Pure
from dpflow.errors import BudgetExceeded, DpflowError
from dpflow.ledger import (
    GrantProposal,
    Ledger,
    ReleaseCharge,
    ReleaseKey,
    Reservation,
    Slot,
    VerificationReport,
)
from dpflow.ledger.books import sessions
from dpflow.ledger.books.records import AnswerRecord, path_of
from dpflow.ledger.history.checkpoint import Signer, parse_note

TENTH = 10**11
#: The last two refresh, if nobody changes that; one is inside the other.
ALL_SCOPES = ("s", "s/a", "both", "s/m", "s/m/d", "w")
SCOPES = st.sampled_from(["s", "s", "s/a", "both", "s/m/d", "w"])
#: Whose checkpoint "w" demands, and after how many charges.
NIGHTLY, EVERY = Signer("nightly", b"n" * 32), 2
DAYS = (1, 2, 31, -1, -31)  # to the next, over the end of a month, and back
#: Nothing dies here, so nothing need be on a disk.
FOLDERS = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
OWNERS = st.sampled_from(["ann", "bob"])
#: Of choices that depend on what is there: even, where Hypothesis would draw the first most often.
SEEDS = st.integers(0, 2**32)


@dataclass
class Release:
    """What the witness knows of a release or session."""

    scope: str
    tries: int = 1
    fence: int = 0  # attempts up to this one were fenced
    closed: bool = False
    results: set[int] = field(default_factory=set)


@dataclass
class Session:
    """A session: what it was asked, and whether it closes its data."""

    scope: str
    exclusive: bool
    version: int = 0
    open: bool = True
    answers: dict[str, int] = field(default_factory=dict)
    batches: list[int] = field(default_factory=list)


class Callers(RuleBasedStateMachine):
    """The ledger, its callers, and what the witness knows of them."""

    places: Callable[[], Any]
    make_place: Callable[[str, Path], Any]
    ledger: Ledger

    def __init__(self) -> None:
        super().__init__()
        # Ids, keys and times are the same at each try, so that what fails fails again.
        luck, self.fixed = random.Random(16), contextlib.ExitStack()
        self.now = dt.datetime(2026, 1, 30, 12, tzinfo=dt.UTC)
        clock = SimpleNamespace(time=lambda: self.now.timestamp())
        for name, change in (
            ("secrets.token_hex", lambda size: luck.randbytes(size).hex()),
            ("secrets.token_bytes", luck.randbytes),
            ("dpflow.ledger.history.chain.time", clock),
            ("dpflow.ledger.books.charges.today", lambda: self.now.date()),
        ):
            self.fixed.enter_context(mock.patch(name, change))
        self.folder = tempfile.TemporaryDirectory(prefix="dpflow-adversary-", dir=FOLDERS)
        root = Path(self.folder.name)
        self.outside = root / "outside"  # where the nightly witness keeps what it signs
        self.outside.mkdir()
        names = {"DPFLOW_LEDGER_WITNESS": str(self.outside)}
        self.fixed.enter_context(mock.patch.dict(os.environ, names))
        self.behind = 0  # charges of "w" that the witness has not seen
        self.place = self.make_place(str(self.places() or root / "ledger.sqlite"), root / "anchor")
        self.copy: Any = None  # another copy of the database, of which one at most goes on
        self.live: Any = None  # which of the two was written since they parted
        self.granted = dict.fromkeys(ALL_SCOPES, 0)
        self.periods = {"s/m": "month", "s/m/d": "day"}
        self.waiting: GrantProposal | None = None
        #: By scope, and the period of those that refresh.
        self.spent: Counter[tuple[str, str]] = Counter()
        self.held: list[Reservation] = []
        self.releases: dict[str, Release] = {}
        self.sessions: dict[str, Session] = {}
        self.number = 0
        #: Scopes that a recovery closed, and whether there was one.
        self.closed: set[str] = set()
        self.recovered = False

    # --- verbs, each noted by the witness if it went through ------------------------------------

    def attempt(self, verb: Callable[[], Any]) -> Any:
        before = self.newest_entry()
        try:
            told = verb()
        except DpflowError as error:
            told = error
            if self.newest_entry() == before:
                return error
            after = self.place.sql(f"SELECT kind FROM dpflow_entry WHERE seq > {before[0][0] or 0}")
            kinds = [kind for (kind,) in after if kind != "witness"]
            assert kinds in ([], ["refuse"]), "more than a refusal was noted"
            assert not kinds or isinstance(error, BudgetExceeded), "a refusal changed something"
        if self.copy is not None:
            assert self.live in (None, self.place), "both copies of a database were served"
            if self.newest_entry() != before:
                self.live = self.place
        return told

    def newest_entry(self) -> Any:
        return self.place.sql("SELECT max(seq) FROM dpflow_entry")

    @rule(scope=st.sampled_from(["s", "s/a"]), tenths=st.integers(1, 12))
    def grant(self, scope: str, tenths: int) -> None:
        terms: Any = {"table": None, "filter": "basic", "principal": "o"}
        told = self.attempt(lambda: self.ledger.grant(scope, Fraction(tenths, 10), 0, **terms))
        if not isinstance(told, DpflowError):
            assert self.spent[self.account(scope)] <= tenths
            self.granted[scope] = tenths
            self.closed.discard(scope)

    @rule()
    def sign(self) -> None:
        """The witness verifies behind what it signed last, and signs."""
        told = self.attempt(lambda: self.ledger.witness(self.outside, NIGHTLY))
        if not isinstance(told, DpflowError):
            self.behind = 0

    @rule(seed=SEEDS)
    def go_on(self, seed: int) -> None:
        """Time passes, somebody sets a clock back, or a quota refreshes otherwise."""
        chance = random.Random(seed)
        if chance.random() < 0.6:
            self.now += dt.timedelta(days=chance.choice(DAYS))
        else:
            scope = chance.choice(["s/m", "s/m/d"])
            self.pace(scope, chance.randint(2, 6), chance.choice([None, "never", "day", "week"]))

    def pace(self, scope: str, tenths: int, period: Any) -> None:
        terms: Any = {"filter": "basic", "period": period, "principal": "o"}
        told = self.attempt(lambda: self.ledger.quota(scope, Fraction(tenths, 10), 0, **terms))
        if not isinstance(told, DpflowError):
            period = period or self.periods[scope]
            used = any(self.spent[at] for at in self.spent if at[0] == scope)
            assert period == self.periods[scope] or not used, "sums of another kind of period"
            self.granted[scope], self.periods[scope] = tenths, period
            self.closed.discard(scope)
            assert self.spent[self.account(scope)] <= tenths

    def account(self, scope: str) -> tuple[str, str]:
        """What pays now, in the witness's own words."""
        names = {"day": "%Y-%m-%d", "week": "%G-W%V", "month": "%Y-%m"}
        return scope, self.now.strftime(names.get(self.periods.get(scope, ""), ""))

    @rule(by=OWNERS, tenths=st.integers(1, 12))
    def propose(self, by: str, tenths: int) -> None:
        terms: Any = {"table": None, "filter": "basic", "approvals": 2, "principal": by}
        told = self.attempt(lambda: self.ledger.grant("both", Fraction(tenths, 10), 0, **terms))
        if not isinstance(told, DpflowError):
            assert isinstance(told, GrantProposal), "a grant of one principal"
            self.waiting = told

    @precondition(lambda self: self.waiting)
    @rule(by=OWNERS)
    def approve(self, by: str) -> None:
        waiting = self.waiting
        assert waiting is not None
        told = self.attempt(lambda: self.ledger.approve("both", waiting.seq, principal=by))
        if not isinstance(told, DpflowError):
            tenths = told.epsilon * 10
            assert by != waiting.principal and told == waiting.terms, "a grant of one principal"
            assert self.spent["both", ""] <= tenths
            self.granted["both"], self.waiting = int(tenths), None
            self.closed.discard("both")

    def charge(self, scope: str, tenths: int, *, opens: str = "") -> None:
        """The witness pays, too."""
        for name, session in self.sessions.items():
            same = path_of(session.scope)[0] == path_of(scope)[0]
            closed = session.exclusive and session.open and same and name != opens
            assert not closed, "charged beside an open gate"
        for at in path_of(scope):
            account = self.account(at)
            assert at not in self.closed, "charged a scope that a recovery closed"
            self.spent[account] += tenths
            assert self.spent[account] <= self.granted[at], "charged beyond the grant"
            self.behind += at == "w"
        assert self.behind <= EVERY, "charged further than the witness"

    @rule(
        scope=SCOPES,
        name=st.sampled_from("abcd"),
        tenths=st.sampled_from([1, 1, 2, 4]),
        instance=st.sampled_from([None, "0", "1"]),
    )
    def reserve(self, scope: str, name: str, tenths: int, instance: str | None) -> None:
        told = self.attempt(
            lambda: self.ledger.reserve(
                ReleaseKey(scope, "", "", "o", name),
                slot=None if instance is None else Slot(f"run of {scope}", instance),
                **self.terms(name, tenths),
            )
        )
        if not isinstance(told, DpflowError):
            self.note_reservation(told, scope, tenths)

    @rule(seed=SEEDS)
    def reserve_some(self, seed: int) -> None:
        """Some at once, all or none; of them some equal, and some that were reserved before."""
        chance = random.Random(seed)
        scopes, asks = chance.sample(ALL_SCOPES, 2), dict[ReleaseKey, int]()
        for _ in range(chance.randint(2, 4)):
            key = ReleaseKey(chance.choice(scopes), "", "", "o", chance.choice("abcdefgh"))
            asks.setdefault(key, chance.choice([1, 1, 2]))
        charges = [
            ReleaseCharge(key, slot=None, **self.terms(key.digest, n)) for key, n in asks.items()
        ]
        told = self.attempt(lambda: self.ledger.reserve_many([*charges, charges[0]]))
        if not isinstance(told, DpflowError):
            assert told[-1] == told[0], "one key, two releases"
            for (key, tenths), held in zip(asks.items(), told):
                self.note_reservation(held, key.scope, tenths)

    def note_reservation(self, told: Any, scope: str, tenths: int) -> None:
        if told.settled:
            assert told.result["n"] in self.releases[told.release_id].results
            return
        self.held.append(told)
        if told.attempt == 1:
            assert told.release_id not in self.releases, "charged a second time"
            self.releases[told.release_id] = Release(scope)
            self.charge(scope, tenths)
        release = self.releases[told.release_id]
        assert not release.closed, "a closed release goes on"
        release.tries = max(release.tries, told.attempt)

    @staticmethod
    def terms(name: str, tenths: int) -> dict[str, Any]:
        about = {"family": name, "principal": "p", "request": {"name": name}}
        return {"event": Pure(Fraction(tenths, 10)), "blocks": ()} | about

    @precondition(lambda self: self.held)
    @rule(seed=SEEDS, late=st.integers(0, 1))
    def settle_some(self, seed: int, late: int) -> None:
        """Any try, the newest or one before it."""
        self.settle(random.Random(seed).choice(self.held), late)

    def settle(self, held: Reservation, late: int) -> None:
        self.number += 1
        number = self.number
        held = Reservation(held.release_id, max(held.attempt - late, 1), False)
        told = self.attempt(lambda: self.ledger.settle(held, {"n": number}))
        if not isinstance(told, DpflowError):
            release = self.releases[held.release_id]
            if not release.results:
                assert held.attempt > release.fence and not release.closed, "a fenced try settled"
            release.results.add(told.result["n"])
            assert len(release.results) == 1, "two draws for one charge"

    @precondition(lambda self: self.held or self.sessions)
    @rule(seed=SEEDS, decision=st.sampled_from(["close", "retry"]))
    def resolve_some(self, seed: int, decision: str) -> None:
        """A decision on any release or session, and perhaps at once the hand that it was about."""
        chance = random.Random(seed)
        name = chance.choice([*(held.release_id for held in self.held), *sorted(self.sessions)])
        self.resolve(name, decision)
        for held in self.held:
            if held.release_id == name and chance.random() < 0.5:
                self.settle(held, 0)

    def resolve(self, name: str, decision: Any) -> None:
        told = self.attempt(
            lambda: self.ledger.resolve(name, reason="r", principal="o", decision=decision)
        )
        if not isinstance(told, DpflowError):
            if name in self.sessions:
                self.sessions[name].open = False
            else:
                release = self.releases[name]
                assert not release.results
                release.fence, release.closed = release.tries, decision == "close"

    # --- sessions, gates, batches ---------------------------------------------------------------

    @rule(scope=SCOPES, name=st.sampled_from("xy"), exclusive=st.booleans())
    def open_session(self, scope: str, name: str, exclusive: bool) -> None:
        told = self.attempt(
            lambda: self.ledger.open_session(
                ReleaseKey(scope, "", "", "o", f"session {name}"),
                slot=None,
                state={"left": 9},
                exclusive=exclusive,
                **self.terms(name, 1),
            )
        )
        if isinstance(told, DpflowError):
            return
        if told.session_id not in self.sessions:
            self.sessions[told.session_id] = Session(scope, exclusive)
            self.charge(scope, 1, opens=told.session_id)
        session = self.sessions[told.session_id]
        assert (told.version, told.closed) == (session.version, not session.open)

    @precondition(lambda self: self.sessions)
    @rule(seed=SEEDS)
    def retry_some(self, seed: int) -> None:
        """One more try of what another process left unanswered."""
        name = random.Random(seed).choice(sorted(self.sessions))
        told = self.attempt(lambda: self.ledger.count_try(name, "o"))
        assert isinstance(told, DpflowError) or self.sessions[name].open

    @precondition(lambda self: self.sessions)
    @rule(
        seed=SEEDS,
        query=st.sampled_from(["q", "r", "", "", sessions.batch_name(1)]),
        late=st.integers(0, 1),
        closed=st.sampled_from([False, False, True]),
    )
    def answer_some(self, seed: int, query: str, late: int, closed: bool) -> None:
        """One answer of any session; a batch where the query is empty."""
        self.answer(random.Random(seed).choice(sorted(self.sessions)), query, late, closed)

    def answer(self, name: str, query: str, late: int, closed: bool) -> None:
        session, self.number = self.sessions[name], self.number + 1
        given, version = {"n": self.number, "verdict": "yes"}, max(session.version - late, 0)
        terms: Any = {"expected_version": version, "state": {"left": 8}, "closed": closed}
        told = self.attempt(
            lambda: (
                self.ledger.answer(name, query=query, answer=given, **terms)
                if query
                else self.ledger.answer_batch(name, given, **terms)
            )
        )
        if isinstance(told, DpflowError) or told in (None, False):
            return
        if query in session.answers:
            assert told.answer["n"] == session.answers[query], "two answers to one query"
            return
        assert session.open and version == session.version, "two answers from one state"
        if query:
            session.answers[query] = self.number
        else:
            session.batches.append(self.number)
        session.version, session.open = version + 1, not closed

    @precondition(lambda self: self.sessions)
    @rule(seed=SEEDS)
    def read_some(self, seed: int) -> None:
        """What was answered is given again, or nothing is; and its verdict is told."""
        self.read(random.Random(seed).choice(sorted(self.sessions)))

    def read(self, name: str) -> None:
        session = self.sessions[name]
        told = self.attempt(lambda: self.ledger.batches(name))
        if not isinstance(told, DpflowError):
            assert [batch["n"] for batch in told] == session.batches
        for query, number in session.answers.items():
            answer = self.attempt(lambda query=query: self.ledger.ask(name, query))
            if not isinstance(answer, DpflowError):
                assert isinstance(answer, AnswerRecord) and answer.answer["n"] == number
            self.attempt(lambda query=query: self.ledger.tell_verdict(name, query))

    def play(self, chance: random.Random) -> None:
        """Any verb of a caller; those about a release or session only if there is one."""
        scope, tenths = chance.choice(ALL_SCOPES), chance.choice([1, 4])
        which, by = chance.randint(0, 14), chance.choice(["ann", "bob"])
        if which == 0:
            self.grant("s/a" if scope == "s/a" else "s", 3 * tenths)
        elif which == 1:
            self.propose("ann", 3 * tenths)
        elif which == 2 and self.waiting:
            self.approve(by)
        elif which in (3, 4) and self.held:
            self.settle(chance.choice(self.held), 0)
        elif which == 5 and self.held:
            self.resolve(chance.choice(self.held).release_id, chance.choice(["close", "retry"]))
        elif which == 6:
            self.open_session(scope, "x", tenths == 1)
        elif which in (7, 8) and self.sessions:
            name, query = chance.choice(sorted(self.sessions)), chance.choice(["q", ""])
            self.answer(name, query, 0, tenths == 4)
        elif which == 9 and self.sessions:
            self.read(chance.choice(sorted(self.sessions)))
        elif which == 14:
            self.sign()
        elif which in (10, 11):
            chance.choice([self.reserve_some, self.go_on])(chance.randint(0, 2**32))
        else:
            instance = chance.choice([None, "0"])
            self.reserve(scope, chance.choice("abcd"), tenths, instance)

    def agree(self) -> None:
        """With all rows right the ledger verifies, and says what the witness saw; the copy that was
        left behind does not.
        """
        report = self.ledger.verify()
        if self.live not in (None, self.place):
            assert not is_sound(report)
            return
        assert is_sound(report), report
        self.compare_with_witness(report)
        for scope in self.granted:
            ((_, cost),) = self.ledger.remaining(scope).spent
            spent = self.spent[self.account(scope)]
            assert cost.epsilon == spent * TENTH <= self.granted[scope] * TENTH
            assert self.ledger.scope(scope).epsilon == Fraction(self.granted[scope], 10)
        rows = self.place.sql("SELECT scope, block, epsilon FROM dpflow_account")
        stored = {(s, block): units for s, block, units in rows if s in self.granted}
        assert stored == {at: spent * TENTH for at, spent in self.spent.items() if spent}

    def compare_with_witness(self, report: VerificationReport) -> None:
        """It says of itself whether the history extends what the witness signed last."""
        files = sorted(self.outside.iterdir())
        assert len(report.gaps) == (not files)
        if files:
            point = max((parse_note(file.read_text()) for file in files), key=lambda p: p.rank)
            (row,) = self.place.sql(f"SELECT max(hash) FROM dpflow_entry WHERE seq = {point.size}")
            extends = row[0] == point.head
            assert extends == (not report.problems) == bool(report.compared_with) == report.ok

    def teardown(self) -> None:
        try:
            if hasattr(self, "ledger"):
                self.agree()
        finally:
            # A ledger that fails here must not leave its clock and luck to the tests after it.
            self.fixed.close()
            self.folder.cleanup()


def is_sound(report: VerificationReport) -> bool:
    """Whether verification found nothing, but for what it says of the witness."""
    return all("does not extend the checkpoint" in problem for problem in report.problems)
