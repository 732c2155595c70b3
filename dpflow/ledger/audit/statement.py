"""An account statement of a scope: who spent what, when and for what, and what was left after it.

It is read from the entries alone and holds no result. Amounts are exact decimals.
"""

from __future__ import annotations

import datetime as dt
import json
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, field, fields, replace
from html import escape
from typing import Any, Literal, get_args

from dpflow.core.accounting.amounts import DELTA_UNIT, EPSILON_UNIT
from dpflow.core.accounting.periods import Period, select_current, strip_period
from dpflow.core.accounting.privacy_filters import (
    SATURATED,
    Capacity,
    Cost,
    Filter,
    prove_guarantee,
)
from dpflow.core.contract.question_text import describe_question
from dpflow.errors import InvalidAmount
from dpflow.ledger.books.records import Entry, Point, Scope, path_of, stored_json

Group = Literal["dag", "principal", "table"]
_NOTHING_LEFT = "0"
#: Who paid what lost entries had spent, as their checkpoint says.
LOST = "lost entries"


@dataclass(frozen=True)
class StatementLine:
    """One event that changed what is left: a release, a session, a grant, or a recovery.

    Attributes:
        entry, at: its entry's number and time (UTC).
        what: release, session, grant or recovery.
        name: of the release in its user's words; the reason of a grant or recovery.
        question: what the release asked, such as ``count by month, from orders``.
        task: ``dag.task``, "" outside Airflow.
        blocks: that paid, with commas between them; "" where the scope has none.
        state: what became of the release: settled, reserved, open, fenced or closed.
        epsilon, delta, renyi: what each of the blocks paid, as decimals; "" on a path that the scope's
            filter does not count.
        left_epsilon, left_delta, left_renyi: what is left after it in that block of these which has
            least left; after a grant or recovery, in the fullest block of all.
        unit_epsilon, unit_delta: what a unit with rows in every block has paid by then, in all blocks
            together, as one guarantee with a delta of its own; "" where nothing finite is proved.
    """

    entry: int
    at: str
    what: str
    name: str
    question: str
    principal: str
    task: str
    table: str
    scope: str
    blocks: str
    state: str
    epsilon: str
    delta: str
    renyi: str
    left_epsilon: str
    left_delta: str
    left_renyi: str
    unit_epsilon: str
    unit_delta: str
    release_id: str


@dataclass(frozen=True)
class StatementTotal:
    """What a group of releases paid in the period, in the block that paid most of each amount, and in all blocks together
    (``sum_``): no unit with rows in every block lost more to it.
    """

    group: str
    releases: int
    epsilon: str
    delta: str
    renyi: str
    sum_epsilon: str
    sum_delta: str
    sum_renyi: str


@dataclass(frozen=True)
class Statement:
    """A scope's account in a period.

    Attributes:
        by: what the totals are grouped by.
        unit_epsilon, unit_delta: as of the last line; "0" before the first charge.
        newest: number and hash of the last entry that was read, all of them verified.
        comparison: with which checkpoint kept elsewhere they were compared, or why with none.
        is_whole: false after a loss that closed the scope: what the lost entries charged is in no sum.
        is_compared: false where a witness is named, and its checkpoint could not be compared.
        remarks: what the verification warned of.
        is_converted: whether the filter counts Renyi divergence.
    """

    scope: str
    since: str
    until: str
    by: Group
    lines: tuple[StatementLine, ...]
    totals: tuple[StatementTotal, ...]
    unit_epsilon: str
    unit_delta: str
    newest: tuple[int, str]
    comparison: str
    is_whole: bool = True
    is_compared: bool = True
    remarks: tuple[str, ...] = ()
    is_converted: bool = False

    def to_json(self) -> dict[str, Any]:
        """JSON for programs; amounts are decimal texts."""
        return asdict(self)

    def csv_rows(self) -> Iterator[Sequence[object]]:
        """A head, and a row for each line."""
        names = [field.name for field in fields(StatementLine)]
        yield names
        for line in self.lines:
            yield [getattr(line, name) for name in names]

    @property
    def summary(self) -> str:
        """The total of a unit, and how far the statement goes."""
        bound, lost = (
            ("", "") if self.is_whole else ("at least ", " Lost entries may have charged more.")
        )
        converted = (
            " Renyi divergence is converted at the grant's tail delta, by dpflow ledger odometer at all that is left of its "
            "delta: two guarantees of one loss."
        )
        return (
            f"A unit with rows in all blocks has paid {bound}epsilon {self.unit_epsilon or 'without bound'}, delta "
            f"{self.unit_delta or 'without bound'} in all.{lost}{converted * self.is_converted} Verified to entry "
            f"{self.newest[0]}; {self.comparison}."
        )


@dataclass(frozen=True)
class PageStatement:
    """The end of a scope's account, for pages.

    Attributes:
        lines: the newest first. Nothing of them is verified.
        is_whole: whether no earlier charge was left out.
        hidden: how many lines were left out because they are of DAGs that the reader may not see.
    """

    lines: tuple[StatementLine, ...]
    is_whole: bool
    hidden: int


@dataclass(frozen=True)
class Settled:
    """A release by what became of it: reserved, settled or fenced."""

    release_id: str
    scope: str
    state: str
    request: dict[str, Any]


def read_newest(
    scope: Scope,
    sums: Mapping[str, Cost],
    entries: Iterable[Entry],
    states: Mapping[str, str],
    visible: Collection[int],
    limit: int,
) -> PageStatement:
    """The newest lines of a statement, counted back from what is spent now.

    Args:
        sums: what each account has spent, as of `add_exactly`.
        entries: in their order, the grant that gave the scope its terms, and the newest that charged it since,
            one more than the limit; none before a loss.
        states: of the releases.
        visible: numbers of the entries that the reader may see, grants apart.
    """
    newest, opening = list(entries), dict(sums)
    for entry in newest:
        for at, block, *units in entry.body.get("charges", ()):
            if at == scope.scope:
                opening[block] = add_exactly(opening.get(block, Cost()), Cost(*units), -1)
    held = {block: Cost() + cost for block, cost in opening.items()}
    reader = StatementReader(scope.scope, None, None, opening=held, rule=scope.filter)
    reader.add_entries(newest)
    lines = [
        replace(line, state=states.get(line.release_id, line.state))
        for line in reader.make_statement().lines[::-1]
    ]
    is_whole = len(lines) <= limit and not any(cost != Cost() for cost in opening.values())
    shown = [line for line in lines[:limit] if line.what == "grant" or line.entry in visible]
    return PageStatement(tuple(shown), is_whole, len(lines[:limit]) - len(shown))


def table_of_totals(
    by: str, totals: Sequence[StatementTotal]
) -> tuple[list[str], list[list[object]]]:
    """Heads and rows of totals; sums over blocks where they are other than the largest block."""
    names = [field.name for field in fields(StatementTotal)]
    if all(astuple(total)[2:5] == astuple(total)[5:] for total in totals):
        names = names[:5]
    heads = [name.replace("sum_", "in all blocks: ") for name in names[1:]]
    return [by, *heads], [[getattr(total, name) for name in names] for total in totals]


def add_exactly(total: Cost, cost: Cost, sign: int = 1) -> Cost:
    """A sum, or with sign -1 a difference, that is not held at `SATURATED`, so that it can be counted back."""
    return Cost(*(a + sign * b for a, b in zip(astuple(total), astuple(cost), strict=True)))


def subtract_cost(larger: Cost, smaller: Cost) -> Cost:
    """A difference of sums; one that is saturated has forgotten how much it was."""
    pairs = zip(astuple(larger), astuple(smaller), strict=True)
    return Cost(*(SATURATED if a == SATURATED else max(0, a - b) for a, b in pairs))


@dataclass
class GroupSpend:
    """What groups of releases paid, by group and block."""

    releases: Counter[str] = field(default_factory=Counter)
    costs: dict[str, dict[str, Cost]] = field(default_factory=lambda: defaultdict(dict))

    def add(self, group: str, charges: Iterable[tuple[str, Cost]], releases: int = 1) -> None:
        """Count a release of a group, or more or none, and what it paid in each block."""
        self.releases[group] += releases
        paid = self.costs[group]
        for block, cost in charges:
            paid[block] = paid.get(block, Cost()) + cost

    def by_block(self, group: str, period: Period | None) -> dict[str, Cost]:
        """What a group paid in each block."""
        return sum_blocks(self.costs[group], period)

    def largest(self, group: str, period: Period | None) -> Cost:
        """The most that one block paid, of each amount: no unit of a block lost more."""
        return _largest_cost(self.by_block(group, period).values())

    def total(self, group: str) -> Cost:
        """What all blocks paid together."""
        return sum(self.costs[group].values(), Cost())


def sum_blocks(accounts: Mapping[str, Cost], period: Period | None) -> dict[str, Cost]:
    """Sums by block. Rows of a block are in each of its periods, whose accounts are added up."""
    sums: dict[str, Cost] = {}
    for account, cost in accounts.items():
        block = strip_period(period, account)
        sums[block] = sums.get(block, Cost()) + cost
    return sums


class StatementReader:
    """Reads a history from its first entry on, or behind what was spent before.

    Args:
        since, until: the period, from the first on and before the second; None is no bound.
        opening: what each account had spent before the first entry that is read.
        rule: the scope's filter then; None if it was not granted.
        comparison: see `Statement`.
    """

    def __init__(
        self,
        scope: str,
        since: Point | None,
        until: Point | None,
        by: Group = "dag",
        *,
        opening: Mapping[str, Cost] | None = None,
        rule: Filter | None = None,
        comparison: str = "",
    ) -> None:
        self._scope, self._since, self._until, self._by = scope, since, until, by
        self._filter, self._comparison = rule, comparison
        self._sums: dict[str, Cost] = dict(opening or {})
        self._total = sum(self._sums.values(), Cost())
        self._lines: list[dict[str, Any]] = []
        self._spends = {group: GroupSpend() for group in (*get_args(Group), "scope", "all")}
        self._states: dict[str, str] = {}
        self._newest = 0, ""
        self._is_closed, self._is_whole = False, True

    def add_entries(self, entries: Iterable[Entry]) -> None:
        """All entries in their order."""
        for entry in entries:
            self._newest = entry.seq, entry.hash
            if self._until is None or entry.precedes(self._until):
                self._add_entry(entry, self._since is None or not entry.precedes(self._since))

    def _add_entry(self, entry: Entry, within: bool) -> None:
        kind, body = entry.kind, entry.body
        if kind == "grant" and entry.scope == self._scope:
            self._filter = Filter.from_json(json.loads(body["filter"]))
            self._is_closed = False
            self._add_line(entry, "grant", Cost(), self._sums, within)
        elif kind in ("reserve", "session") and self._scope in path_of(entry.scope):
            self._add_charge(entry, within)
        elif kind == "settle":
            self._states[entry.release_id] = "settled"
        elif kind in ("resolve", "answer"):
            self._states[entry.release_id] = body["becomes"]
        elif kind == "import":
            self._states |= dict.fromkeys(body["closed"], "closed")
        elif kind == "recover":
            self._add_recovery(entry, within)

    def _add_charge(self, entry: Entry, within: bool) -> None:
        paid = {b: Cost(*units) for at, b, *units in entry.body["charges"] if at == self._scope}
        for block, cost in paid.items():
            self._sums[block] = self._sums.get(block, Cost()) + cost
            self._total += cost
        self._states[entry.release_id] = "open" if entry.kind == "session" else "reserved"
        what = "session" if entry.kind == "session" else "release"
        self._add_line(entry, what, next(iter(paid.values())), paid, within)
        for group, spend in self._spends.items() if within else ():
            spend.add(_name_group(group, entry), paid.items())

    def _add_recovery(self, entry: Entry, within: bool) -> None:
        for release_id in entry.body["unsettled"]:
            ended = "fenced" if self._states.get(release_id) == "reserved" else "closed"
            self._states[release_id] = ended
        for name, rule, _, _, closed, _ in entry.body["scopes"]:
            if name == self._scope:
                self._filter, self._is_closed = Filter.from_json(json.loads(rule)), bool(closed)
        if self._scope in entry.body["closed"]:
            self._is_closed, self._is_whole = True, False
        taken = {b: Cost(*units) for at, b, *units in entry.body["spent"] if at == self._scope}
        lost = {b: subtract_cost(cost, self._sums.get(b, Cost())) for b, cost in taken.items()}
        self._sums |= taken
        self._total = sum(self._sums.values(), Cost())
        if taken or self._scope in entry.body["closed"]:
            self._add_line(entry, "recovery", Cost(), self._sums, within)
            for group, spend in self._spends.items() if within else ():
                spend.add("" if group == "all" else LOST, lost.items(), releases=0)

    def _add_line(
        self, entry: Entry, what: str, cost: Cost, blocks: Iterable[str], within: bool
    ) -> None:
        if not within or self._filter is None:
            return
        body, charges = entry.body, what in ("release", "session")
        sums = [(block, self._sums[block]) for block in blocks]
        if not charges:  # of an account that refreshes, what is left now
            day = dt.date.fromisoformat(entry.at[:10])
            sums = select_current(self._filter.period, sums, day)
        left = _least_left(self._filter.capacity(), [cost for _, cost in sums])
        if self._is_closed:
            left = tuple(amount and _NOTHING_LEFT for amount in left)
        counted = self._count(cost) if charges else ("", "", "")
        task = f"{body['dag_id']}.{body['task_id']}" if charges and body["dag_id"] else ""
        self._lines.append(
            {
                "entry": entry.seq,
                "at": entry.at,
                "what": what,
                "name": str(_request(entry).get("name", "")) if charges else body.get("reason", ""),
                "question": describe_question(_request(entry)) if charges else "",
                "principal": entry.principal,
                "task": task,
                "table": str(_request(entry).get("table") or "") if charges else "",
                "scope": entry.scope,
                "blocks": ",".join(filter(None, blocks)) if charges else "",
                **dict(zip(("epsilon", "delta", "renyi"), counted, strict=True)),
                **dict(zip(("left_epsilon", "left_delta", "left_renyi"), left, strict=True)),
                **dict(zip(("unit_epsilon", "unit_delta"), self._unit_total(), strict=True)),
                "release_id": entry.release_id,
            }
        )

    def _count(self, cost: Cost) -> tuple[str, str, str]:
        rule = self._filter
        epsilon = "" if rule is not None and rule.name == "renyi" else _decimal(cost.epsilon, 12)
        renyi = "" if rule is None or rule.order is None else _decimal(cost.renyi, 12)
        return epsilon, _decimal(cost.delta, 18), renyi

    def _unit_total(self) -> tuple[str, str]:
        if self._filter is None:
            return _NOTHING_LEFT, _NOTHING_LEFT
        try:
            proved = prove_guarantee(self._total, self._filter)
        except InvalidAmount:
            return "", ""
        # Up, as what was paid is never stated too small.
        epsilon, delta = -(-proved.epsilon // EPSILON_UNIT), -(-proved.delta // DELTA_UNIT)
        return _decimal(int(epsilon), 12), _decimal(int(delta), 18)

    @property
    def _period(self) -> Period | None:
        return None if self._filter is None else self._filter.period

    def _list_totals(self, by: str) -> Iterator[StatementTotal]:
        spend = self._spends[by]
        for group, count in sorted(spend.releases.items()):
            largest, total = spend.largest(group, self._period), spend.total(group)
            yield StatementTotal(group, count, *self._count(largest), *self._count(total))

    def make_statement(self) -> Statement:
        """What was read, as a statement."""
        lines = [
            StatementLine(**line, state=self._states.get(line["release_id"], ""))
            for line in self._lines
        ]
        return Statement(
            self._scope,
            point_text(self._since, "the first entry"),
            point_text(self._until, "now"),
            self._by,
            tuple(lines),
            tuple(self._list_totals(self._by)),
            *self._unit_total(),
            self._newest,
            self._comparison,
            is_whole=self._is_whole,
            is_converted=self._filter is not None and self._filter.order is not None,
        )


def _name_group(by: str, entry: Entry) -> str:
    if by == "dag":
        return str(entry.body["dag_id"] or "outside Airflow")
    if by == "table":
        return str(_request(entry).get("table") or "")
    return {"principal": entry.principal, "scope": entry.scope}.get(by, "")


def _request(entry: Entry) -> dict[str, Any]:
    return dict(stored_json(entry.body["request"]))


def _largest_cost(costs: Collection[Cost]) -> Cost:
    """The largest of each amount; nothing where there is no cost."""
    names = ("epsilon", "delta", "renyi")
    return Cost(*(max((getattr(cost, name) for cost in costs), default=0) for name in names))


def _least_left(capacity: Capacity, sums: Sequence[Cost]) -> tuple[str, ...]:
    """What is left of each amount where least of it is; "" on a path that the filter does not have."""
    most = _largest_cost(sums)
    delta = max(capacity.delta, capacity.renyi_delta)
    return (
        "" if capacity.epsilon < 0 else _decimal(max(0, capacity.epsilon - most.epsilon), 12),
        _decimal(max(0, delta - most.delta), 18),
        "" if capacity.renyi < 0 else _decimal(max(0, capacity.renyi - most.renyi), 12),
    )


def _decimal(units: int, digits: int) -> str:
    """A whole number of decimal units as a decimal without exponent; ``inf`` for a saturated sum."""
    if units >= SATURATED:
        return "inf"
    text = f"{units // 10**digits}.{units % 10**digits:0{digits}d}"
    return text.rstrip("0").rstrip(".")


def point_text(point: Point | None, otherwise: str) -> str:
    """A bound of a period, for people; ``otherwise`` where there is none."""
    if point is None:
        return otherwise
    return f"entry {point}" if isinstance(point, int) else point.isoformat()


def render_table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Rows as HTML, every text escaped."""
    lines = ["".join(f"<td>{escape(str(cell))}</td>" for cell in row) for row in rows]
    if not lines:
        return "<p>None.</p>\n"
    head = "".join(f"<th>{escape(text)}</th>" for text in heads)
    body = "".join(f"<tr>{line}</tr>\n" for line in lines)
    return f"<table>\n<tr>{head}</tr>\n{body}</table>\n"
