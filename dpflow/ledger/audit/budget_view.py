"""`BudgetView`: a ledger as pages show it, read without its anchor. Nothing here is proved: who has
the anchor verifies, and a signed checkpoint says how far that went.

No result, answer or secret state is read: they are encrypted under keys that a page has not. What a
gate's answers said is in the history, told after they were given.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from dpflow.core.accounting.periods import name_period, select_current
from dpflow.core.accounting.privacy_filters import CLOSED, Capacity, Cost
from dpflow.errors import DpflowError, InvalidInput, LedgerCorrupt
from dpflow.ledger.audit.history_index import HistoryIndex, Unsettled
from dpflow.ledger.audit.shown_releases import RELEASES, ShownRelease, find_entries, show_releases
from dpflow.ledger.audit.signed_notes import SignedNote, hold_notes, read_texts
from dpflow.ledger.audit.statement import PageStatement, Settled, read_newest
from dpflow.ledger.books import charges, grants, witnesses
from dpflow.ledger.books.records import (
    NEAR_END,
    UNREADABLE_ROW,
    Entry,
    GrantProposal,
    Scope,
    has_reached,
    make_slot,
    stored_json,
)
from dpflow.ledger.history.state import LedgerState
from dpflow.ledger.storage import schema
from dpflow.ledger.storage.read_only import ReadOnlyDatabase
from dpflow.ledger.storage.statements import Prepared, Transaction, match_columns, prepare_lookup

#: Seconds after which a charge without a result is called an orphan: no task draws for so long.
ORPHAN_AGE = 3600
_CHUNK = 2_000  # entries that are indexed in one go, about 20 ms
_FRESH = 60  # seconds for which checkpoints are not read again: their place may be far away
_PATIENCE = 0.15  # seconds that a page waits for the index; the rest is read behind it

_E, _A, _R, _S = schema.entry.c, schema.account.c, schema.release.c, schema.scope.c
_LIMIT = sa.bindparam("limit", type_=sa.Integer)
_NEWEST = Prepared(sa.select(_E.seq).order_by(_E.seq.desc()).limit(sa.literal_column("1")))
_HASH_AT = Prepared(sa.select(_E.hash).where(match_columns(_E.seq)))
_NEXT = Prepared(
    sa.select(schema.entry)
    .where(_E.seq > sa.bindparam("after", type_=sa.BigInteger))
    .order_by(_E.seq)
    .limit(_LIMIT)
)
_SCOPES = Prepared(
    sa.select(schema.scope)
    .where(_S.name > sa.bindparam("after", type_=sa.Text))
    .order_by(_S.name)
    .limit(_LIMIT)
)
_SLOTS = prepare_lookup([schema.slot.c.release_id], [schema.slot.c.run])
_SETTLED = Prepared(
    sa.select(_E.seq, _E.at)
    .where(
        _E.seq > sa.bindparam("after", type_=sa.BigInteger),
        _E.seq <= sa.bindparam("until", type_=sa.BigInteger),
        match_columns(_E.release_id, _E.kind),
    )
    .order_by(_E.seq)
    .limit(sa.literal_column("1"))
)
_REACH = 20_000  # entries behind a charge in which the one that settled it is looked for


_OF_SCOPE = match_columns(_A.scope)


_BLOCKS = sa.select(schema.account).where(_OF_SCOPE).order_by(_A.block.desc()).limit(_LIMIT)
_LAST_BLOCKS = Prepared(_BLOCKS)
_EARLIER_BLOCKS = Prepared(_BLOCKS.where(_A.block < sa.bindparam("before", type_=sa.Text)))
_BLOCKS_OF = Prepared(sa.select(schema.account).where(_OF_SCOPE))
_SCOPE = Prepared(sa.select(_S.seq).where(match_columns(_S.name)))
_BLOCK = Prepared(sa.select(schema.account).where(match_columns(_A.scope, _A.block)))


@dataclass(frozen=True)
class BudgetState:
    """One block of a scope, or a scope without blocks.

    Attributes:
        block: of a quota that refreshes its period, and the block behind a slash.
        spent: all that was charged, what is reserved among it.
        reserved: charged for releases that have no result yet.
        daily: by day (UTC), what was charged, as of `add_exactly`.
    """

    scope: Scope
    block: str
    spent: Cost
    reserved: Cost
    daily: dict[str, Cost]


@dataclass(frozen=True)
class ScopeSummary:
    """A scope, its fullest block, how many blocks were charged, and how many are near their end; of a
    quota that refreshes, in this period.
    """

    fullest: BudgetState
    blocks: int
    near_end: int

    @property
    def scope(self) -> Scope:
        """The scope itself."""
        return self.fullest.scope


@dataclass(frozen=True)
class Progress:
    """How far the history was read for the pages that list it: ``seq`` of ``newest`` entries."""

    seq: int
    newest: int
    at: str

    @property
    def complete(self) -> bool:
        """Whether all of it was."""
        return self.seq >= self.newest


class BudgetView:
    """A ledger in a SQLite file or a PostgreSQL database, for pages. It holds no key and cannot
    write. Safe to use from many threads.

    Args:
        target: a path, or a ``postgresql+psycopg://`` URL whose login may be a ``dpflow_reader``.
        checkpoints: a file, a folder or another place of signed checkpoints; DPFLOW_LEDGER_WITNESS if left out, and none
            without that.
        keys: verifier keys of who signs them; of DPFLOW_LEDGER_WITNESS those that scopes demand if left out.

    Raises:
        InvalidInput: there is no ledger, or the target is no place of one.
        LedgerUnavailable: out of reach, or of another schema version (retryable).
        LedgerCorrupt: not a ledger.
    """

    def __init__(
        self,
        target: str | Path,
        *,
        checkpoints: str | Path | None = None,
        keys: Sequence[str] = (),
    ) -> None:
        self._database = ReadOnlyDatabase(target)
        self._is_witness = checkpoints is None
        self._checkpoints = str(checkpoints or os.environ.get("DPFLOW_LEDGER_WITNESS", ""))
        self._keys = tuple(keys)
        self._texts: tuple[float, list[tuple[str, str]] | str] = -_FRESH, []
        self._lock = threading.Lock()
        self._index = HistoryIndex()
        self._reader: threading.Thread | None = None
        self.check()

    def __repr__(self) -> str:
        return f"BudgetView({self._database!r})"

    def check(self) -> None:
        """Whether there is a ledger of this version; raises as the class says."""
        if not self._database.exists():
            raise InvalidInput(
                f"there is no ledger at {self._database!r}; name the right place, or make one with dpflow ledger grant"
            )

    # --- the index --------------------------------------------------------------------------------

    def catch_up(self) -> Progress:
        """Read on in the history for a moment; what is left then is read in the background."""
        end = time.monotonic() + _PATIENCE
        progress = self._read_chunk()
        while not progress.complete:
            if time.monotonic() >= end:
                self._read_in_background()
                break
            progress = self._read_chunk()
        return progress

    def _read_chunk(self) -> Progress:
        with self._lock, self._database.begin_reading() as transaction:
            index = self._index
            if index.seq:
                stored = transaction.first(_HASH_AT, seq=index.seq)
                # Another ledger is in its place now, or entries were lost.
                if stored is None or stored.hash != index.hash:
                    index = self._index = HistoryIndex()
            for row in transaction.rows(_NEXT, after=index.seq, limit=_CHUNK):
                index.add_entry(row)
            newest = transaction.first(_NEWEST)
            return Progress(index.seq, newest.seq if newest else 0, index.at)

    def _read_in_background(self) -> None:
        with self._lock:
            if self._reader is None or not self._reader.is_alive():
                self._reader = threading.Thread(target=self._read_all, daemon=True)
                self._reader.start()

    def _read_all(self) -> None:
        # What fails here fails again in the page that asks next, and is told there.
        with contextlib.suppress(DpflowError):
            while not self._read_chunk().complete:
                time.sleep(0.001)  # pages that wait for the lock come first

    # --- budgets ----------------------------------------------------------------------------------

    def scopes(self, after: str = "", limit: int = 50) -> list[ScopeSummary]:
        """Granted scopes behind ``after``, by name."""
        with self._read() as (transaction, index):
            return [
                self._summarise(transaction, index, charges.read_scope(row))
                for row in transaction.rows(_SCOPES, after=after, limit=limit)
            ]

    def scope(self, name: str) -> ScopeSummary:
        """One scope. Raises `UnknownName`."""
        with self._read() as (transaction, index):
            scope = charges.get_scope(LedgerState(transaction, ""), name)
            return self._summarise(transaction, index, scope)

    def _summarise(
        self, transaction: Transaction, index: HistoryIndex, scope: Scope
    ) -> ScopeSummary:
        period, day = scope.filter.period, charges.today()
        rows = transaction.rows(_BLOCKS_OF, scope=scope.scope)
        current = [r for _, r in select_current(period, [(row.block, row) for row in rows], day)]
        rank, least = _rank_accounts(scope.capacity), scope.sums_at(NEAR_END)
        try:
            row = max(current, key=lambda row: (rank(row), row.block), default=None)
            near = sum(has_reached(least, row) for row in current)
        except TypeError:  # edited by hand
            raise LedgerCorrupt(UNREADABLE_ROW) from None
        name = name_period(period, day) if period else ""
        budget = _make_budget(scope, name if row is None else row.block, row, index)
        return ScopeSummary(budget, len(current), near)

    def budgets(self, name: str, before: str | None = None, limit: int = 50) -> list[BudgetState]:
        """The blocks of a scope that were charged, the last by name first. Raises `UnknownName`.

        Args:
            before: only those before this one.
        """
        with self._read() as (transaction, index):
            scope = charges.get_scope(LedgerState(transaction, ""), name)
            rows = (
                transaction.rows(_LAST_BLOCKS, scope=name, limit=limit)
                if before is None
                else transaction.rows(_EARLIER_BLOCKS, scope=name, before=before, limit=limit)
            )
            reserved = index.sum_reserved(name)
            return [_make_budget(scope, row.block, row, index, reserved) for row in rows]

    def budget(self, name: str, block: str) -> BudgetState:
        """One block of a scope, also one that nobody charged. Raises `UnknownName`."""
        with self._read() as (transaction, index):
            scope = charges.get_scope(LedgerState(transaction, ""), name)
            row = transaction.first(_BLOCK, scope=name, block=block)
            return _make_budget(scope, block, row, index)

    def proposals(self) -> list[GrantProposal]:
        """Grants that wait for a second principal."""
        with self._read() as (transaction, _):
            return grants.list_proposals(LedgerState(transaction, ""))

    # --- releases and history ---------------------------------------------------------------------

    def releases(
        self,
        scope: str | None = None,
        dags: Collection[str] | None = None,
        before: int = 2**62,
        limit: int = 50,
    ) -> list[ShownRelease]:
        """Releases and sessions charged by entries below ``before``, the newest first.

        Args:
            scope: only those of this scope and the quotas below it.
            dags: only those of these DAGs; None for all, and for those outside Airflow.
        """
        with self._read() as (transaction, index):
            numbers = index.find_charges(scope, dags, before, limit)
            return show_releases(transaction, index, numbers)

    def releases_of_run(
        self, dag_id: str, run: str, task_id: str | None = None
    ) -> list[ShownRelease]:
        """What the tasks of a run of Airflow's charged or were given again, the newest first.

        Args:
            run: the run identity (`ShownRelease.run`).
        """
        with self._read() as (transaction, index):
            tasks = index.list_tasks(dag_id) if task_id is None else [task_id]
            runs = [{"run": make_slot(dag_id, run, task).run} for task in tasks]
            if not runs:
                return []
            ids = {row.release_id for row in transaction.rows(_SLOTS, rows=runs)}
            rows = transaction.rows(RELEASES, rows=[{"id": i} for i in ids]) if ids else []
            return show_releases(transaction, index, sorted((r.seq for r in rows), reverse=True))

    def release(self, release_id: str) -> ShownRelease | None:
        """One release or session; None if there is none of this id."""
        with self._read() as (transaction, index):
            rows = transaction.rows(RELEASES, rows=[{"id": release_id}])
            releases = show_releases(transaction, index, [rows[0].seq]) if rows else []
            return releases[0] if releases else None

    def settled_at(self, release: ShownRelease) -> str | None:
        """When a release was settled, in UTC; None if it is not, or was long after its charge."""
        with self._read() as (transaction, _):
            until = release.seq + _REACH
            row = transaction.first(
                _SETTLED,
                after=release.seq,
                until=until,
                release_id=release.release_id,
                kind="settle",
            )
            return None if row is None else str(row.at)

    def sessions(
        self, dags: Collection[str] | None = None, before: int = 2**62, limit: int = 50
    ) -> list[ShownRelease]:
        """Gates and other sessions, the newest first; arguments as of `releases`."""
        with self._read() as (transaction, index):
            charged = _list_visible(index.sessions.values(), dags)
            numbers = sorted((h.seq for h in charged if h.seq < before), reverse=True)[:limit]
            return show_releases(transaction, index, numbers)

    def orphans(self, dags: Collection[str] | None = None, limit: int = 50) -> list[ShownRelease]:
        """Charged longer ago than `ORPHAN_AGE` and not settled, the oldest first."""
        latest = dt.datetime.now(dt.UTC) - dt.timedelta(seconds=ORPHAN_AGE)
        until = latest.isoformat(timespec="seconds")
        with self._read() as (transaction, index):
            charged = [h for h in _list_visible(index.orphans.values(), dags) if h.at < until]
            numbers = sorted(h.seq for h in charged)[:limit]
            return show_releases(transaction, index, numbers)[::-1]

    def history(
        self,
        scope: str | None = None,
        dags: Collection[str] | None = None,
        before: int = 2**62,
        limit: int = 50,
    ) -> list[Entry]:
        """Entries below ``before``, the newest first; arguments as of `releases`, and what is about
        the ledger itself, such as grants, is among them.
        """
        with self._read() as (transaction, index):
            numbers = index.find_entries(scope, dags, before, limit)
            return [Entry.read_row(row) for row in find_entries(transaction, numbers)]

    def statement(
        self, name: str, dags: Collection[str] | None = None, limit: int = 50
    ) -> PageStatement:
        """The newest lines of a scope's account statement; arguments as of `releases`. Raises `UnknownName`."""
        with self._read() as (transaction, index):
            scope = charges.get_scope(LedgerState(transaction, ""), name)
            seq = transaction.rows(_SCOPE, name=name)[0].seq
            cut = max(seq, index.cut_at + 1)
            numbers = index.find_charges(name, None, 2**62, limit + 1)
            charged = find_entries(transaction, [n for n in numbers if n >= cut])
            visible = index.find_charges(name, dags, 2**62, limit + 1)
            grants = find_entries(transaction, [seq] if seq == cut else [])
            accounts = transaction.rows(_BLOCKS_OF, scope=name)
            sums = {row.block: index.sum_exactly(name, row.block) for row in accounts}
            states = {row.id: row.state for row in _find_releases(transaction, charged)}
        entries = map(Entry.read_row, [*grants, *charged[::-1]])
        return read_newest(scope, sums, entries, states, {*visible}, limit)

    def settled(
        self, dags: Collection[str] | None = None, limit: int = 2000
    ) -> tuple[list[Settled], bool]:
        """The newest releases without sessions, to be held against what is published, and whether none was left
        out.
        """
        with self._read() as (transaction, index):
            numbers = index.find_charges(None, dags, 2**62, limit)
            entries = [row for row in find_entries(transaction, numbers) if row.kind == "reserve"]
            rows = _find_releases(transaction, entries)
            releases = [Settled(r.id, r.scope, r.state, stored_json(r.request)) for r in rows]
            return releases, len(numbers) < limit

    def faults(self) -> list[int]:
        """Entries that were changed, or do not follow the one before them."""
        with self._lock:
            return list(self._index.faults)

    def checkpoints(self) -> list[SignedNote]:
        """Signed checkpoints, the newest first, each with what is wrong with it. Where the place cannot be read, one that
        says so.
        """
        texts = self._read_texts()
        if isinstance(texts, str):
            return [SignedNote("the place of checkpoints", 0, "", "", None, texts)]
        with self._read() as (transaction, index):

            def hash_at(seq: int) -> str | None:
                row = transaction.first(_HASH_AT, seq=seq)
                return None if row is None else str(row.hash)

            keys: Collection[str] = self._keys
            if self._is_witness and not keys:
                keys = witnesses.list_keys(LedgerState(transaction, ""))
            return hold_notes(texts, keys, hash_at, index.recoveries)

    def _read_texts(self) -> list[tuple[str, str]] | str:
        """The checkpoints as they are at their place, or were there a minute ago; or why they cannot be read."""
        begun, texts = self._texts
        if self._checkpoints and time.monotonic() >= begun + _FRESH:
            try:
                texts = read_texts(self._checkpoints)
            except DpflowError as error:
                texts = str(error).rstrip(".")
            self._texts = time.monotonic(), texts
        return texts

    @contextlib.contextmanager
    def _read(self) -> Iterator[tuple[Transaction, HistoryIndex]]:
        with self._lock, self._database.begin_reading() as transaction:
            yield transaction, self._index


def _rank_accounts(capacity: Capacity) -> Callable[[Any], float]:
    """Orders accounts as `Scope.used_share` does, by doubles."""

    def invert(limit: int, delta_limit: int) -> tuple[float, float, float]:
        # Where nothing was granted of an amount, its first unit uses the path up. A closed path counts as twice full.
        return 1 / max(limit, 1), 1 / max(delta_limit, 1), 2.0 * (limit == CLOSED)

    sums, delta, closed = invert(capacity.epsilon, capacity.delta)
    renyi, renyi_delta, no_renyi = invert(capacity.renyi, capacity.renyi_delta)
    return lambda row: min(
        max(row.epsilon * sums, row.delta * delta) + closed,
        max(row.renyi * renyi, row.delta * renyi_delta) + no_renyi,
    )


def _make_budget(
    scope: Scope,
    block: str,
    row: Any,
    index: HistoryIndex,
    reserved: dict[str, Cost] | None = None,
) -> BudgetState:
    charged = index.sum_reserved(scope.scope) if reserved is None else reserved
    spent = Cost() if row is None else _read_cost(row)
    daily = dict(index.daily_spend(scope.scope, block))
    return BudgetState(scope, block, spent, charged.get(block, Cost()), daily)


def _read_cost(row: Any) -> Cost:
    """What an account has spent. Raises `LedgerCorrupt` for a row that no ledger wrote."""
    units = row.epsilon, row.delta, row.renyi
    if {*map(type, units)} != {int}:
        raise LedgerCorrupt(UNREADABLE_ROW)
    return Cost(*units)


def _find_releases(transaction: Transaction, entries: Sequence[Any]) -> list[Any]:
    """The rows of what these entries charged."""
    ids = [{"id": entry.release_id} for entry in entries]
    return transaction.rows(RELEASES, rows=ids) if ids else []


def _list_visible(charged: Collection[Unsettled], dags: Collection[str] | None) -> list[Unsettled]:
    return [one for one in charged if dags is None or one.dag_id in dags]
