"""What pages about a ledger need beside its rows, from one pass over the history: where a scope's
or a DAG's entries are, what is not settled, and what each block paid on each day.

The history only grows, so that an index which has read it to an entry goes on behind it. It holds
numbers of entries, names and privacy costs: about 30 bytes an entry.
"""

from __future__ import annotations

import datetime as dt
import functools
import heapq
import itertools
from array import array
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import astuple, dataclass, field
from typing import Any

from dpflow.core.accounting.privacy_filters import Cost
from dpflow.ledger.audit.release_state import read_body
from dpflow.ledger.audit.statement import add_exactly
from dpflow.ledger.books.records import path_of
from dpflow.ledger.history.chain import is_changed

#: Entries that no DAG wrote: an owner's, or those of a release outside Airflow.
OUTSIDE = ""
#: Owners' acts on the ledger itself.
_ACTS = ("grant", "propose", "import", "upgrade", "reanchor", "recover", "rotate", "suite")
_BY_DAG = "airflow:"  # what the principals of tasks begin with


@dataclass
class Unsettled:
    """A charge without a result, or a session.

    Attributes:
        seq, at: of the entry that charged it.
        charges: scope, block and cost of each budget that paid.
        answers: of a session, how many entries answered it: questions, or batches of points.
        verdicts: of a gate, what was told of its answers: number, verdict, failures left if it said so.
        closed: of a session.
    """

    release_id: str
    seq: int
    at: str
    scope: str
    dag_id: str
    charges: tuple[tuple[str, str, Cost], ...]
    answers: int = 0
    verdicts: list[tuple[int, str, int | None]] = field(default_factory=list)
    closed: bool = False


class HistoryIndex:
    """Reads entries by `add_entry`, from the first on.

    Attributes:
        seq, hash, at: of the last entry that was read.
        orphans: charged and not settled, by release.
        sessions: all of them, by release.
        recoveries: ledger, size and head of checkpoints that recoveries took over, with their numbers.
        cut_at: the last recovery after a loss of entries, or import; 0 if there was none.
        faults: entries that were changed or do not follow the one before them. Seals and rules are not
            checked: whoever has the anchor verifies.
    """

    def __init__(self) -> None:
        self.seq, self.hash, self.at = 0, "", ""
        self.orphans: dict[str, Unsettled] = {}
        self.sessions: dict[str, Unsettled] = {}
        self.recoveries: dict[tuple[str, int, str], int] = {}
        self.faults: list[int] = []
        self.cut_at = 0
        # By scope and DAG: numbers of entries, and of those that charged.
        self._entries: dict[tuple[str, str | None], array[int]] = {}
        self._charges: dict[tuple[str, str | None], array[int]] = {}
        self._spend: dict[tuple[str, str], dict[str, Cost]] = {}
        self._tasks: dict[str, set[str]] = defaultdict(set)

    def add_entry(self, row: Any) -> None:
        """Take the next entry."""
        follows = not self.seq or row.previous == self.hash
        if row.seq != self.seq + 1 or not follows or is_changed(row):
            self.faults.append(row.seq)
        self.seq, self.hash, self.at = row.seq, row.hash, row.at
        try:
            self._index_entry(row)
        # Edited by hand, so that it may say anything.
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
            if self.faults[-1:] != [row.seq]:
                self.faults.append(row.seq)

    def _index_entry(self, row: Any) -> None:
        dag_id = self._find_dag(row)
        kind = row.kind
        if kind in ("reserve", "session"):
            dag_id = self._add_charge(row)
        elif kind == "settle":
            self.orphans.pop(row.release_id, None)
        elif kind == "answer":
            if (session := self.sessions.get(row.release_id)) is not None:
                session.answers += 1
                session.closed = read_body(row).get("becomes") == "closed"
        elif kind == "verdict":
            if (session := self.sessions.get(row.release_id)) is not None:
                body = read_body(row)
                left = None if body["failures_left"] is None else int(body["failures_left"])
                session.verdicts.append((int(body["version"]), str(body["verdict"]), left))
        elif kind in ("resolve", "recover", "import"):
            self._add_decision(row)
        _append(self._entries, (row.scope, dag_id), row.seq)

    def _find_dag(self, row: Any) -> str | None:
        """Whose entry it is; None for one about the ledger itself, such as a grant."""
        if row.principal.startswith(_BY_DAG):
            return str(row.principal.removeprefix(_BY_DAG))
        charge = self.orphans.get(row.release_id) or self.sessions.get(row.release_id)
        if charge is not None:
            return charge.dag_id
        # What is no owner's act is somebody's: refusals and notes name who asked.
        return None if row.kind in _ACTS and not row.release_id else OUTSIDE

    def _add_charge(self, row: Any) -> str:
        body = read_body(row)
        dag_id = body["dag_id"] or self._find_dag(row) or OUTSIDE
        charges = tuple((at, block, Cost(*units)) for at, block, *units in body["charges"])
        charge = Unsettled(row.release_id, row.seq, row.at, row.scope, dag_id, charges)
        (self.orphans if row.kind == "reserve" else self.sessions)[row.release_id] = charge
        if body["dag_id"]:
            self._tasks[dag_id].add(body["task_id"])
        day = dt.date.fromisoformat(row.at[:10]).isoformat()
        for at, block, cost in charges:
            days = self._spend.setdefault((at, block), {})
            days[day] = add_exactly(days.get(day, Cost()), cost)
        _append(self._charges, (row.scope, dag_id), row.seq)
        return dag_id

    def _take_over(self, row: Any, spent: Iterable[Any]) -> None:
        """Count what lost entries had spent to the day of the recovery."""
        for at, block, *units in spent:
            days = self._spend.setdefault((at, block), {})
            day, before = row.at[:10], self.sum_exactly(at, block)
            rest = map(max, astuple(add_exactly(Cost(*units), before, -1)), (0, 0, 0))
            days[day] = add_exactly(days.get(day, Cost()), Cost(*rest))

    def _add_decision(self, row: Any) -> None:
        body = read_body(row)
        if row.kind == "resolve":
            ended = [row.release_id] if body["becomes"] in ("fenced", "closed") else []
        elif row.kind == "recover":
            ended, self.cut_at = body["unsettled"], row.seq
            self._take_over(row, body["spent"])
            if body["checkpoint"] is not None:
                ledger_id, size, head, _ = body["checkpoint"]
                self.recoveries[ledger_id, size, head] = row.seq
        else:  # An import closes sessions: no export holds their secret states.
            ended, self.cut_at = body["closed"], row.seq
        for release_id in ended:
            self.orphans.pop(release_id, None)
            if release_id in self.sessions:
                self.sessions[release_id].closed = True

    # --- what pages ask ---------------------------------------------------------------------------

    def find_entries(
        self, scope: str | None, dags: Collection[str] | None, before: int, limit: int
    ) -> list[int]:
        """Numbers of the newest entries below ``before``, the newest first.

        Args:
            scope: only those of this scope and the quotas below it.
            dags: only those of these DAGs, and those about the ledger itself; None for all.
        """
        return _find_newest(self._entries, scope, dags, before, limit)

    def find_charges(
        self, scope: str | None, dags: Collection[str] | None, before: int, limit: int
    ) -> list[int]:
        """As `find_entries`, of the entries that charged a release or session."""
        return _find_newest(self._charges, scope, dags, before, limit)

    def sum_reserved(self, scope: str) -> dict[str, Cost]:
        """By block, what a scope paid for releases that have no result yet."""
        sums: dict[str, Cost] = {}
        for charge in self.orphans.values():
            for at, block, cost in charge.charges:
                if at == scope:
                    sums[block] = sums.get(block, Cost()) + cost
        return sums

    def daily_spend(self, scope: str, block: str) -> dict[str, Cost]:
        """By day (UTC), what a block of a scope paid, as of `add_exactly`."""
        return self._spend.get((scope, block), {})

    def sum_exactly(self, scope: str, block: str) -> Cost:
        """What a block of a scope paid, as of `add_exactly`."""
        return functools.reduce(add_exactly, self.daily_spend(scope, block).values(), Cost())

    def list_tasks(self, dag_id: str) -> Collection[str]:
        """The tasks of a DAG that charged anything."""
        return self._tasks.get(dag_id, ())


def _append(groups: dict[tuple[str, str | None], array[int]], key: Any, seq: int) -> None:
    if (numbers := groups.get(key)) is None:
        numbers = groups[key] = array("q")
    numbers.append(seq)


def _find_newest(
    groups: dict[tuple[str, str | None], array[int]],
    scope: str | None,
    dags: Collection[str] | None,
    before: int,
    limit: int,
) -> list[int]:
    def parts() -> Iterator[array[int]]:
        for (at, dag_id), numbers in list(groups.items()):
            in_scope = scope is None or scope in path_of(at)
            if in_scope and (dags is None or dag_id is None or dag_id in dags):
                end = bisect_left(numbers, before)
                yield numbers[max(0, end - limit) : end]

    return heapq.nlargest(limit, itertools.chain.from_iterable(parts()))
