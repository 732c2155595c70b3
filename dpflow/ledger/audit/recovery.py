"""What an owner does after a loss: checkpoints beforehand, and the rules by which a ledger goes on
when entries are gone.

A lost host or log may take entries away that nobody can restore. What they charged is then known
from a checkpoint at best. Whatever nobody witnesses counts as spent: scopes are closed until their
owner grants again, reservations are fenced and sessions closed, because the lost entries may have
settled or answered them, and a second draw would cost a second time.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import json
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple
from typing import Any

import sqlalchemy as sa

from dpflow.core.accounting.privacy_filters import Cost, Filter
from dpflow.counted import counted
from dpflow.errors import DpflowError, InvalidInput
from dpflow.ledger.audit.recheck import Recheck
from dpflow.ledger.audit.statement import subtract_cost
from dpflow.ledger.audit.verify import KEPT, kept_rows
from dpflow.ledger.books import grant_terms
from dpflow.ledger.books.data_claims import LOST
from dpflow.ledger.books.records import stored_json
from dpflow.ledger.history import chain
from dpflow.ledger.history.anchor import NOTHING, Anchor, Seen
from dpflow.ledger.history.checkpoint import (
    SCOPE_COLUMNS,
    Checkpoint,
    Signer,
)
from dpflow.ledger.history.state import TABLES
from dpflow.ledger.storage import schema

#: Costs by scope and block.
Sums = dict[tuple[str, str], Cost]

#: Seconds by which clocks of machines that write to one ledger may differ unnoticed.
_CLOCK_DRIFT = 300


def make_signer(anchor: Anchor) -> Signer:
    """The owner's key pair, whose private half is in the anchor."""
    return Signer(f"dpflow.ledger/{anchor.ledger_id}", anchor.stored_key("sign"))


class CheckpointTrace:
    """What a history says of signed checkpoints, while it is verified: its last entry, and whether
    it extends each of them.

    Two things prove that nothing a checkpoint states was taken back: the history holds the very
    entry that was signed; or an owner's recovery names ledger, size, head and signer of the
    checkpoint, the sums in that entry are at least those it had to leave, and no scope got other
    terms or lost its signers. What was charged later proves nothing.

    Args:
        checkpoints: each with the name of the trusted key that signed it.
        expected: the rules, which are given each entry right after it went by here.
    """

    def __init__(
        self,
        checkpoints: Sequence[tuple[Checkpoint, str]],
        ledger_id: str,
        expected: Recheck,
    ) -> None:
        self.head: Seen = NOTHING
        self.at = ""
        self._now = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
        self._jumps: list[tuple[int, str, str]] = []
        self._future: list[tuple[int, str]] = []
        self._points, self._ledger_id = checkpoints, ledger_id
        self.expected = expected
        # The recoveries: number, hash, and the sums and scopes that they left.
        self._forks: list[tuple[int, str, Sums, dict[str, dict[str, Any]]]] = []
        self._earlier: tuple[str, ...] = ()
        self._origin = ""  # the ledger whose checkpoint that one took over
        self._extended = {
            point.text
            for point, _ in checkpoints
            if (point.ledger_id, point.size) == (ledger_id, 0)
        }
        self.taken_over: set[str] = set()

    def start(self, rows: Iterable[Any], point: Checkpoint) -> None:
        """Begin behind the last of these entries, which were signed."""
        self._earlier = point.recoveries
        deque(self.pass_entries(rows), 0)

    def pass_entries(self, rows: Any) -> Iterator[Any]:
        """All entries by number, as they come."""
        for row in rows:
            for point, signer in self._points:
                if self._is_signed_entry(row, point):
                    self._extended.add(point.text)
                elif row.kind == "recover" and self._takes_over(row, point, signer):
                    self.taken_over.add(point.text)
            if self.at and _seconds_between(row.at, self.at) > _CLOCK_DRIFT:
                self._jumps.append((row.seq, self.at, row.at))
            if _seconds_between(self._now, row.at) > _CLOCK_DRIFT:
                self._future.append((row.seq, row.at))
            self.head, self.at = (row.seq, row.hash), row.at
            yield row
            # By now the rules have seen it, too.
            if row.kind == "recover":
                scopes = {name: {**terms} for name, terms in self.expected.scopes.items()}
                self._forks.append((row.seq, row.hash, current_sums(self.expected), scopes))
                if len(self._forks) == 1:
                    with contextlib.suppress(ValueError, KeyError, TypeError, IndexError):
                        self._origin = str(json.loads(row.body)["checkpoint"][0])

    def _is_signed_entry(self, row: Any, point: Checkpoint) -> bool:
        signed = point.ledger_id, point.size, point.head, point.root
        return signed == (self._ledger_id, row.seq, row.hash, row.root)

    def _takes_over(self, row: Any, point: Checkpoint, signer: str) -> bool:
        try:
            body = json.loads(row.body)
            named = body["checkpoint"]
            sums = {(scope, block): Cost(*units) for scope, block, *units in body["spent"]}
            if named != [point.ledger_id, point.size, point.head, signer]:
                return False
            if not self._keeps_terms(body, point):
                return False
        # The chain's checks and the rules say what is wrong with it.
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, DpflowError):
            return False
        return all(
            _covers(sums.get(account, Cost()), cost) for account, cost in self.due(point).items()
        )

    def _keeps_terms(self, body: Mapping[str, Any], point: Checkpoint) -> bool:
        """Whether a recovery states no other terms than a checkpoint, but of closed scopes, and every scope
        whose grants need a signature or a second approval goes on with that.
        """
        stated = {
            name: dict(zip(SCOPE_COLUMNS, columns, strict=True))
            for name, *columns in body["scopes"]
        }
        then = self.expected.scopes
        if fork := self._find_fork(point):
            # What was granted since that recovery is no word of this one.
            then = self.expected.scopes | fork[3]
        for name, *columns in point.scopes:
            signed = dict(zip(SCOPE_COLUMNS, columns, strict=True))
            left = stated.get(name) or then.get(name)
            signers = Filter.from_json(stored_json(signed["filter"])).signers
            if not signers and signed["approvals"] == 1 and name not in stated:
                continue
            if left is None or left["approvals"] < signed["approvals"]:
                return False
            if Filter.from_json(stored_json(left["filter"])).signers != signers:
                return False
            is_closed = left["closed"] or name in body["closed"]
            if not is_closed and any(left[column] != signed[column] for column in SCOPE_COLUMNS):
                return False
        return True

    def accepts(self, point: Checkpoint) -> bool:
        """Whether a checkpoint is of this ledger, or of the one that its first recovery went on from;
        an empty ledger takes any.
        """
        return self.head == NOTHING or point.ledger_id in (self._ledger_id, self._origin)

    @property
    def warnings(self) -> Iterator[str]:
        """Times that nothing is decided on but periods of quotas, and that people read."""
        if self._jumps:
            seq, before, after = self._jumps[0]
            yield (
                f"time goes back at {counted(len(self._jumps), 'entry', 'entries')}, first at entry {seq} from {before} to "
                f"{after}; set the clocks of all machines that write, and read reports by entry number"
            )
        if self._future:
            seq, at = self._future[0]
            yield f"of the future: {counted(len(self._future), 'entry', 'entries')}, first entry {seq} of {at}; set the clocks"

    def is_late(self, point: Checkpoint) -> bool:
        """Whether a recovery went before that did not know of the checkpoint, which may be of
        entries that were lost by then.
        """
        return self._find_fork(point) is not None

    @property
    def recoveries(self) -> tuple[str, ...]:
        """Hashes of the recoveries of the history."""
        return *self._earlier, *(head for _, head, *_ in self._forks)

    def _find_fork(
        self, point: Checkpoint
    ) -> tuple[int, str, Sums, dict[str, dict[str, Any]]] | None:
        """The first recovery that a checkpoint should know by its number, and does not."""
        unknown = (f for f in self._forks if f[0] <= point.size and f[1] not in point.recoveries)
        return next(unknown, None)

    def due(self, point: Checkpoint) -> Sums:
        """What the accounts of a checkpoint must come to where it is taken over now: its own sums, and what
        was charged since the first recovery that the checkpoint may have come before. Charges after
        that recovery are in no checkpoint of what was lost.
        """
        now = current_sums(self.expected)
        then = fork[2] if (fork := self._find_fork(point)) else now
        return {
            (scope, block): cost
            + subtract_cost(now.get((scope, block), Cost()), then.get((scope, block), Cost()))
            for scope, block, cost in point.spent
        }

    def exceeded(self, point: Checkpoint) -> Sequence[tuple[str, str]]:
        """Accounts that had spent more, in any component, where the checkpoint must have gone on."""
        sums = fork[2] if (fork := self._find_fork(point)) else None
        signed = {(scope, block): cost for scope, block, cost in point.spent}
        return [
            account
            for account, cost in (current_sums(self.expected) if sums is None else sums).items()
            if not _covers(signed.get(account, Cost()), cost)
        ]

    @property
    def vouched(self) -> set[str]:
        """Texts of the checkpoints that the history extends, or that a recovery took over."""
        return self._extended | self.taken_over

    def explain(self, point: Checkpoint) -> str:
        """Why the history does not vouch for a checkpoint; "" if it does."""
        if point.text in self.vouched:
            return ""
        if point.ledger_id != self._ledger_id:
            return f"the checkpoint is of ledger {point.ledger_id}, this one is {self._ledger_id}"
        return (
            f"the history does not extend the checkpoint of entry {point.size}: entries were dropped or "
            f"replaced, or an old copy was restored, and no recovery took over what it says"
        )

    @property
    def problems(self) -> list[str]:
        """Why the history does not extend each checkpoint that it does not."""
        return [reason for point, _ in self._points if (reason := self.explain(point))]


def _seconds_between(earlier: object, later: object) -> float:
    """How much later the second time is; 0 for what no ledger wrote, which the chain's checks name."""
    try:
        times = [dt.datetime.fromisoformat(str(time)) for time in (earlier, later)]
        return (times[1] - times[0]).total_seconds()
    except (ValueError, TypeError):
        return 0.0


def current_sums(expected: Recheck) -> Sums:
    """The sums of all accounts as the entries so far leave them."""
    return {(scope, block): cost for scope, block, cost in expected.account_rows()}


def _covers(larger: Cost, smaller: Cost) -> bool:
    return all(a >= b for a, b in zip(astuple(larger), astuple(smaller), strict=True))


def make_checkpoint(
    anchor: Anchor, expected: Recheck, trace: CheckpointTrace, checked_after: int
) -> Checkpoint:
    """What a verified history comes to."""
    return Checkpoint(
        anchor.ledger_id,
        *trace.head,
        expected.root,
        trace.at,
        tuple(
            (name, *(row[column] for column in SCOPE_COLUMNS))
            for name, row in sorted(expected.scopes.items())
        ),
        tuple(sorted(expected.account_rows(), key=lambda row: row[:2])),
        tuple(
            (name, row.seq, row.attempts, row.fenced_below, row.version, row.secret_digest)
            for name, row in sorted(expected.releases.unsettled().items())
        ),
        tuple(
            row["seq"]
            for name, row in sorted(expected.proposals.items())
            if row["seq"] > expected.scopes.get(name, {"seq": 0})["seq"]
        ),
        checked_after,
        trace.recoveries,
        tuple((name, size, len(seqs)) for name, (size, seqs) in sorted(expected.watched.items())),
    )


def plan_recovery(
    trace: CheckpointTrace,
    marked: Seen | None,
    checkpoint: Checkpoint | None,
    signer: str,
    reason: str,
) -> dict[str, Any]:
    """The entry of a recovery, which takes over what a checkpoint says beyond the history and closes what nobody
    witnesses. What it does to the tables, the rules say (`write_recovery`).

    Args:
        trace: of what is left, with this checkpoint.
        marked: the highest one that the anchor has seen; None if the mark is lost, too.

    Raises:
        InvalidInput: neither mark nor checkpoint knows more than the history, or less was spent by the
            checkpoint.
    """
    # Taken over once: what was charged since would be counted a second time.
    ahead = None if checkpoint is None or not trace.explain(checkpoint) else checkpoint
    if ahead is None and marked is not None and marked[0] <= trace.head[0]:
        raise InvalidInput(
            "nothing is missing: neither the mark nor a checkpoint knows more than the history; "
            "if only the mark is lost, run dpflow ledger recover --lost mark"
        )
    expected, scopes, spent = trace.expected, list[list[Any]](), list[list[Any]]()
    if ahead is not None:
        _require_branch(trace, ahead)
        scopes = _take_scopes(trace, ahead)
        spent = [[*account, *vars(cost).values()] for account, cost in trace.due(ahead).items()]
    # A mark at the very entry that was signed: then nothing came after it.
    end = None if ahead is None else (ahead.size, ahead.head)
    witnessed = end is not None and end in {marked, *expected.marks}
    return {
        "reason": reason,
        "marked": None if marked is None else list(marked),
        "checkpoint": None if ahead is None else [ahead.ledger_id, ahead.size, ahead.head, signer],
        "scopes": scopes,
        "spent": spent,
        "closed": [] if witnessed else sorted({*expected.scopes, *(name for name, *_ in scopes)}),
        "unsettled": sorted(expected.releases.unsettled()),
        "data": [LOST],
    }


def write_recovery(writer: chain.Writer, expected: Recheck, body: Mapping[str, Any]) -> None:
    """Write what a recovery changes in the tables, as the rules say. Raises `InvalidInput` for one that breaks a rule.

    Args:
        expected: the rules, after all entries that are left.
    """
    state, before = writer.state, {*_list_rows(expected)}
    # A checkpoint may state what no ledger could have: its signer is trusted for no rule.
    if fault := expected.apply_recovery(writer.next_seq, body):
        raise InvalidInput(f"this checkpoint is not taken over: the {fault}")
    for table, row in _list_rows(expected):
        if (table, row) not in before:
            form = TABLES[table.name]
            columns = dict(zip(form.names, row))
            state.put(table, {name: columns.pop(name) for name in form.identity}, **columns)
    for name in body["unsettled"]:
        release = state.find_handle(schema.release, name)
        state.update(schema.release, release, state=expected.releases[name].state)


def _list_rows(expected: Recheck) -> Iterator[tuple[sa.Table, tuple[Any, ...]]]:
    return ((table, row) for table in KEPT for row in kept_rows(table, expected))


def _require_branch(trace: CheckpointTrace, ahead: Checkpoint) -> None:
    """Raises `InvalidInput` unless a checkpoint can be of entries that were lost from this history."""
    if not trace.is_late(ahead) and ahead.size <= trace.head[0]:
        raise InvalidInput(
            f"this history has another entry {ahead.size} than the checkpoint, and no recovery says that entries were "
            f"lost; bring back the copy that the checkpoint is of"
        )
    if exceeded := trace.exceeded(ahead):
        raise InvalidInput(
            f"by this checkpoint scope {exceeded[0][0]!r} has spent less than by the history, so one does not extend the "
            f"other; recover without it, which closes every scope"
        )


def _take_scopes(trace: CheckpointTrace, ahead: Checkpoint) -> list[list[Any]]:
    """What the entry says of the scopes of a checkpoint, as far as `Recheck.limit_terms` goes; after an
    earlier recovery only of those that nobody granted since.

    Raises:
        InvalidInput: the sums of a scope were made by another filter than it has now.
    """
    taken, used = list[list[Any]](), {scope for scope, _, cost in ahead.spent if cost != Cost()}
    for name, *columns in ahead.scopes:
        row = trace.expected.scopes.get(name)
        stated = dict(zip(SCOPE_COLUMNS, columns, strict=True))
        terms = trace.expected.limit_terms(name, stated)
        kept = row if trace.is_late(ahead) else None
        now, then = (
            Filter.from_json(stored_json(terms["filter"])) for terms in (kept or terms, stated)
        )
        if name in used and not (now.name == then.name and grant_terms.may_follow(now, then)):
            raise InvalidInput(
                f"scope {name!r} was granted by another filter since, and sums of two filters do not add up; "
                f"grant nothing more to it, and make another scope"
            )
        if kept is None:
            taken.append([name, *terms.values()])
    return taken
