"""What the ledger takes and gives: small frozen values. None of them shows secret state."""

from __future__ import annotations

import datetime as dt
import functools
import hashlib
import json
import math
import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Literal

from dpflow.core.accounting.amounts import DELTA_UNIT, EPSILON_UNIT, exact_text
from dpflow.core.accounting.periods import name_period, next_start
from dpflow.core.accounting.privacy_filters import (
    CLOSED,
    SATURATED,
    Capacity,
    Cost,
    Filter,
)
from dpflow.errors import InvalidInput, LedgerCorrupt
from dpflow.ledger.storage.compact_json import canonical_json

if TYPE_CHECKING:
    from dpflow.ledger.history.state import LedgerState

Point = int | dt.datetime  # in the history: an entry's number, or a time with its zone
State = Literal["reserved", "settled", "fenced", "open", "closed"]
#: A budget that used such a share is near its end.
NEAR_END = Fraction(4, 5)


def checked_name(what: str, value: str, *, empty: bool = False, longest: int = 200) -> str:
    """A name of at most ``longest`` printable characters; raises `InvalidInput`, whose message does
    not repeat the name.
    """
    if (
        not isinstance(value, str)
        or len(value) > longest
        or not value.isprintable()
        or (not value and not empty)
    ):
        raise InvalidInput(
            f"{what} must be a text of 1 to {longest} printable characters; shorten or correct it"
        )
    return value


_INVISIBLE = re.compile(
    "[\0-\x1f\x7f-\xa0\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2000-\u200f\u2028-\u202f\u205f-\u206f\u2800\u3000"
    "\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U000e0000-\U000e0fff]"
)


def is_visible(name: str) -> bool:
    """Whether a name holds no control character, no blank but the space, and nothing else that nobody sees."""
    return not _INVISIBLE.search(name)


def checked_principal(name: str) -> str:
    """Who acts, as it is written down: without blanks around it. Raises `InvalidInput` for what is
    no name, or holds control or invisible characters.
    """
    what = "a principal"
    stripped = checked_name(what, name).strip()
    return checked_name(what, stripped if is_visible(stripped) else "")


def is_same_principal(one: str, other: str) -> bool:
    """Whether two names are one login for a rule that asks for two: case, blanks around them and
    forms of a letter tell nobody apart.
    """
    return fold_name(one) == fold_name(other)


def fold_name(name: str) -> str:
    """What two spellings of one principal have in common."""
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold()).strip()


#: Bytes of UTF-8 that PostgreSQL's indexes take for a row, a little less.
LONGEST_KEY = 2600


def check_key_length(what: str, *names: str) -> None:
    """Refuse names that are too long together for a database's index; raises `InvalidInput`."""
    length = sum(len(name.encode()) for name in names)
    if length > LONGEST_KEY:
        raise InvalidInput(
            f"{what} takes {length} bytes in UTF-8, and at most {LONGEST_KEY} fit an index; shorten its names"
        )


UNREADABLE_ROW = "a row of the ledger cannot be read; run dpflow ledger verify"


def stored_json(text: Any) -> Any:
    """What a row's JSON says. Raises `LedgerCorrupt` for a text that no ledger wrote, without
    repeating it.
    """
    try:
        return json.loads(text)
    except (ValueError, TypeError, RecursionError):
        raise LedgerCorrupt(UNREADABLE_ROW) from None


@functools.lru_cache(maxsize=1024)
def name_in_request(text: str) -> str:
    """The name that a request's JSON gives, "" if none. Read from its text alone, so that whoever
    verifies reads the same.
    """
    return str(json.loads(text).get("name") or "")


def utc_text(time: dt.datetime) -> str:
    """A time with its zone, as entries write theirs: in UTC, to the second below."""
    return time.astimezone(dt.UTC).isoformat(timespec="seconds")


@functools.lru_cache(maxsize=1024)
def path_of(scope: str) -> tuple[str, ...]:
    """A scope's name and those of the scopes above it, the widest first."""
    parts = scope.split("/")
    return tuple("/".join(parts[: n + 1]) for n in range(len(parts)))


@dataclass(frozen=True)
class Slot:
    """Who asks: one instance of a task for one data interval, partition key or run id. Only to notice
    that it asks for something else than before; in no key.

    ``run`` is a text of its own for each interval of a task (`make_slot`), ``instance`` one for each
    map index, "" if there is but one.
    """

    run: str
    instance: str = ""

    def __post_init__(self) -> None:
        checked_name("a run", self.run, longest=1000)
        checked_name("an instance", self.instance, empty=True)


def make_slot(*names: str, instance: str = "") -> Slot:
    """The slot of a run that these names tell from all others: as a JSON list, so that no two lists
    read the same.
    """
    return Slot(json.dumps(names), instance)


@dataclass(frozen=True)
class ReleaseKey:
    """Exactly-once identity of a release: equal keys are the same release, however often they are
    asked for.

    ``dag_id`` and ``task_id`` are empty outside Airflow; ``digest`` is the plan's; ``ordinal``
    tells equal plans of one run apart.
    """

    scope: str
    dag_id: str
    task_id: str
    run_identity: str
    digest: str
    ordinal: int = 0

    def __post_init__(self) -> None:
        for name in ("scope", "run_identity", "digest"):
            checked_name(f"the key's {name}", getattr(self, name))
        for name in ("dag_id", "task_id"):
            checked_name(f"the key's {name}", getattr(self, name), empty=True)
        if type(self.ordinal) is not int or not 0 <= self.ordinal < 2**31:
            raise InvalidInput("the key's ordinal must be a whole number from 0; correct it")
        check_key_length(
            "the key", self.scope, self.dag_id, self.task_id, self.run_identity, self.digest
        )

    @functools.cached_property
    def columns(self) -> dict[str, Any]:
        """What is stored and compared."""
        return dict(vars(self))


@dataclass(frozen=True)
class Reservation:
    """A charge that was made. ``attempt`` counts the tries that took it over; ``result`` is set
    once settled. ``key`` lets it be settled in one step, and decides nothing.
    """

    release_id: str
    attempt: int
    settled: bool
    result: Mapping[str, Any] | None = field(repr=False, default=None)
    key: ReleaseKey | None = field(repr=False, compare=False, default=None)


@dataclass(frozen=True)
class ReleaseRecord:
    """A release or session as the ledger holds it; public fields only. ``answers``: how many a session gave."""

    release_id: str
    scope: str
    blocks: tuple[str, ...]
    state: State
    attempts: int
    principal: str
    request: Mapping[str, Any]
    event: Mapping[str, Any]
    result: Mapping[str, Any] | None = field(repr=False)
    snapshot: str | None = None
    answers: int = 0

    @property
    def settled(self) -> bool:
        """Whether a result is stored."""
        return self.state == "settled"


@dataclass(frozen=True)
class SettledRequest:
    """What a settled release was asked, as it is stored and not proved.

    Attributes:
        digest: of the plan that was paid.
    """

    release_id: str
    digest: str
    request: Mapping[str, Any]


@dataclass(frozen=True)
class Settlement:
    """How a release was settled, as the history says it.

    Attributes:
        at: when, by the clock of who settled it, in whole seconds.
        run: the run that it was charged to. In Airflow DAG, task and run identity, with slashes
        between them; else the release's name and revision.
    """

    at: dt.datetime
    run: str


@dataclass(frozen=True)
class SessionRecord:
    """A session: its version counts answers; ``state`` is secret and shown by no repr. ``rows``: what
    `Ledger.ask` proved.
    """

    session_id: str
    version: int
    closed: bool
    state: dict[str, Any] = field(repr=False)
    rows: LedgerState | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True)
class AnswerRecord:
    """A stored answer of a session."""

    query: str
    answer: Mapping[str, Any]


def read_point(name: str, text: str) -> Point:
    """An entry's number, or a time with its zone. Raises `InvalidInput` that calls it ``name``."""
    try:
        # A date without dashes is none of these: as a number it would be of no entry.
        if text.isdecimal() and not re.fullmatch(r"20\d\d(0\d|1[0-2])[0-3]\d", text):
            # No database numbers further, and no ledger comes near.
            return min(int(text), 2**62)
        if text.isdecimal():
            raise ValueError
        time = dt.datetime.fromisoformat(text)
        return (time if time.tzinfo else time.replace(tzinfo=dt.UTC)).astimezone(dt.UTC)
    except (ValueError, OverflowError):
        raise InvalidInput(
            f"{name} is {text[:80]!r}; give an entry's number, or a date or time such as "
            "2026-01-31 or 2026-01-31T12:00+01:00"
        ) from None


@dataclass(frozen=True)
class Entry:
    """One line of the append-only history."""

    seq: int
    at: str
    kind: str
    scope: str
    release_id: str
    principal: str
    body: Mapping[str, Any]
    hash: str

    @classmethod
    def read_row(cls, row: Any) -> Entry:
        """The entry of a row. Raises `LedgerCorrupt` if its body is none that a ledger wrote."""
        names = ("seq", "at", "kind", "scope", "release_id", "principal", "hash")
        return cls(**{name: getattr(row, name) for name in names}, body=stored_json(row.body))

    def to_json(self) -> dict[str, Any]:
        """All fields as JSON."""
        return dict(vars(self))

    def precedes(self, point: Point) -> bool:
        """Whether it comes before an entry's number, or was written before a time."""
        if isinstance(point, int):
            return self.seq < point
        return self.at < utc_text(point)


@dataclass(frozen=True)
class Scope:
    """Something a budget was granted to."""

    scope: str
    filter: Filter
    protects: str
    blocks: bool
    #: Since entries were lost that may have charged it; it pays nothing until a new grant.
    closed: bool = False
    #: How many principals must agree to its next grant: 1 or 2.
    approvals: int = 1

    def to_json(self) -> dict[str, Any]:
        """Everything that was granted, as JSON."""
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        return values | {"filter": self.filter.to_json()}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Scope:
        """What `to_json` wrote, validated again as far as it decides. Raises `InvalidInput`."""
        return cls(**{**data, "filter": Filter.from_json(data["filter"])})

    @property
    def epsilon(self) -> Fraction:
        """Granted epsilon (of every block, if the scope has blocks)."""
        return self.filter.epsilon

    @property
    def equality(self) -> str:
        """Which values of the unit's column are one unit; "" where no unit is protected. A column whose
        database has another equality is refused when it is loaded or read.
        """
        if not self.protects:
            return ""
        return "units are equal where their values are, texts byte for byte: 'P7' and 'p7' are two"

    @property
    def path(self) -> tuple[str, ...]:
        """This scope and those above it, the widest first."""
        return path_of(self.scope)

    @functools.cached_property
    def capacity(self) -> Capacity:
        """What each budget is compared with, in whole units."""
        return Capacity(*[CLOSED] * 4) if self.closed else self.filter.capacity()

    def sums_at(self, share: Fraction) -> Capacity:
        """The least sums at which a budget is used by a share; 0 on a path that is closed."""
        limits = vars(self.capacity).values()
        # Where a path grants nothing of an amount, the first unit of it uses the path up.
        least = (0 if limit == CLOSED else max(1, math.ceil(share * limit)) for limit in limits)
        return Capacity(*least)

    def has_used(self, spent: Cost, share: Fraction = NEAR_END) -> bool:
        """Whether a share of a budget is gone, exactly: on each path one of its sums."""
        return has_reached(self.sums_at(share), spent)

    def used_share(self, spent: Cost) -> float:
        """From 0 to 1, for people: the fullest sum on the path that has most left, rounded down to four digits, so
        that no mark is shown as reached before it is. Exact amounts decide, not this.
        """
        # Each path is as used as its fullest sum; whoever pays takes the path with most left.
        limits = self.capacity
        paths = [
            (spent.epsilon, limits.epsilon, limits.delta),
            (spent.renyi, limits.renyi, limits.renyi_delta),
        ]
        shares = [
            max(_used_part(sum, limit), _used_part(spent.delta, delta_limit))
            for sum, limit, delta_limit in paths
            if limit > CLOSED
        ]
        return math.floor(min(shares, default=1) * 10**4) / 10**4


def has_reached(least: Capacity, spent: Any) -> bool:
    """Whether sums have reached those of `Scope.sums_at`: on each path one of them."""
    on_sums = spent.epsilon >= least.epsilon or spent.delta >= least.delta
    return bool(on_sums and (spent.renyi >= least.renyi or spent.delta >= least.renyi_delta))


OTHER_TERMS = "no grant with these terms, proposed by entry {seq}, waits for scope {scope!r}; dpflow ledger proposals prints --terms"


@dataclass(frozen=True)
class GrantProposal:
    """A grant that takes effect once a second principal approves it."""

    terms: Scope
    principal: str
    #: Of the entry that proposed it; whoever approves names it.
    seq: int
    reason: str = ""

    @property
    def digest(self) -> str:
        """160 bits, in hexadecimal, of all that an approver agrees to: entry, terms, proposer and reason."""
        text = canonical_json(vars(self) | {"terms": self.terms.to_json()})
        return hashlib.sha256(text.encode()).hexdigest()[:40]


def _used_part(amount: int, limit: int) -> Fraction:
    # Where a path grants nothing of this amount, the first unit of it uses the path up.
    return Fraction(min(amount, limit), limit) if limit > 0 else Fraction(amount > 0)


@dataclass(frozen=True)
class Remaining:
    """What is left in a scope, one budget per block; a scope with blocks that nobody used yet has
    one full line.
    """

    scope: Scope
    spent: tuple[tuple[str, Cost], ...]
    #: The day (UTC) that it is about.
    day: dt.date = dt.date.min

    def rows(self) -> list[dict[str, Any]]:
        """Exact amounts as text, one mapping per budget."""
        return [self._row(block, cost) for block, cost in self.spent]

    def to_json(self) -> dict[str, Any]:
        """JSON for receipts."""
        return {"scope": self.scope.scope, "budgets": self.rows()}

    def _row(self, block: str, spent: Cost) -> dict[str, Any]:
        """A path that the filter does not have is None, and so is ``epsilon_left`` where no sum of epsilons
        is left and the Renyi path pays on; ``used`` is the share of the better open path that is gone. Of a
        quota that refreshes: its period, and the day on which the next begins.
        """
        granted = self.scope.filter
        capacity = self.scope.capacity
        sums, divergence = granted.name != "renyi", granted.order is not None
        left = capacity.epsilon - spent.epsilon
        pays_on = divergence and left <= 0 and spent.renyi < capacity.renyi
        paced = {}
        if granted.period is not None:
            renews = next_start(granted.period, self.day).isoformat()
            paced = {"period": name_period(granted.period, self.day), "renews": renews}
        return paced | {
            "scope": self.scope.scope,
            "block": block,
            "epsilon_granted": exact_text(granted.epsilon),
            "epsilon_spent": units_text(spent.epsilon, EPSILON_UNIT) if sums else None,
            "epsilon_left": units_text(left, EPSILON_UNIT) if sums and not pays_on else None,
            "delta_granted": exact_text(granted.delta),
            # Either path may pay, so the larger rest is what a release can still ask for.
            "delta_left": units_text(
                max(capacity.delta, capacity.renyi_delta) - spent.delta, DELTA_UNIT
            ),
            "renyi_order": exact_text(granted.order) if granted.order is not None else None,
            "renyi_spent": units_text(spent.renyi, EPSILON_UNIT) if divergence else None,
            "renyi_left": units_text(capacity.renyi - spent.renyi, EPSILON_UNIT)
            if divergence
            else None,
            "used": self.scope.used_share(spent),
            "filter": granted.name,
            "protects": self.scope.protects,
        }


def units_text(units: int, unit: Fraction) -> str:
    """Units as text; a sum that cannot be paid on a path is infinite there, and nothing is left
    below zero.
    """
    return "inf" if units >= SATURATED else exact_text(max(units, 0) * unit)
