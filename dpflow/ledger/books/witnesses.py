"""Scopes that demand a witness: after so many charges somebody outside must have signed how far the history
goes.

A witness signs checkpoints of a ledger that it may only read, and keeps them where the ledger's users cannot write. Its
newest one is brought into the history as an entry of its own. A scope that demands it pays for at most so many charges
behind the entry that was signed. Whoever puts an older copy back, with its anchor, is found by the first charge of a
process that reaches the witness's checkpoints. Where none does, they take back that many charges at most, and as many
again each time.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from dpflow.core.accounting.privacy_filters import Filter, WitnessDemand
from dpflow.errors import InvalidInput, LedgerCorrupt, WitnessBehind
from dpflow.ledger.books.charges import Charge, read_scope
from dpflow.ledger.books.records import Scope, path_of, stored_json
from dpflow.ledger.history.chain import Writer, is_changed
from dpflow.ledger.history.checkpoint import (
    Checkpoint,
    StoredCheckpoint,
    open_note,
    parse_public_key,
)
from dpflow.ledger.history.state import LedgerState
from dpflow.ledger.storage import schema
from dpflow.ledger.storage.statements import Prepared

_SCOPES = Prepared(sa.select(schema.scope).order_by(schema.scope.c.name))
_FROM = Prepared(
    sa.select(schema.entry)
    .where(schema.entry.c.seq >= sa.bindparam("first", type_=sa.BigInteger))
    .order_by(schema.entry.c.seq)
)
#: Kinds of entries that charge.
CHARGES = ("reserve", "session")


@dataclass(frozen=True)
class WitnessState:
    """How far a scope's witness is.

    Attributes:
        scope: the scope that demands it.
        witness: its name.
        size: the last entry of its checkpoint that charges are counted from; before there is one, the entry of the grant.
        charges: how many came behind that entry, of ``every`` that may.
        newest: the last entry of its newest checkpoint at the place that DPFLOW_LEDGER_WITNESS names, which `Ledger.verify`
            compares with; 0 if none was read.
    """

    scope: str
    witness: str
    size: int
    charges: int
    every: int
    newest: int = 0

    def __str__(self) -> str:
        ahead = f"; its newest checkpoint is of entry {self.newest}, and the next charge that needs it counts from there"
        return (
            f"scope {self.scope!r}: for witness {self.witness}, charges count from entry {self.size}, and {self.charges} of "
            f"{self.every} came behind it{ahead if self.newest > self.size else ''}"
        )


def starts_anew(before: Filter | None, after: Filter) -> bool:
    """Whether a grant names a witness that the scope had not: its charges are counted from there on."""
    if after.witness is None:
        return False
    earlier = None if before is None else before.witness
    return earlier is None or earlier.key != after.witness.key


def watch_scope(
    state: LedgerState, name: str, before: Filter | None, after: Filter, seq: int
) -> None:
    """Begin to count a scope's charges where its grant names another witness than before."""
    if starts_anew(before, after):
        state.put(schema.witness, {"scope": name}, size=seq, charges=0)


def count_charges(state: LedgerState, bill: Sequence[Charge], counted: Counter[str]) -> None:
    """Count one charge in each scope of a bill that demands a witness.

    Args:
        counted: what this transaction charged before, by scope.

    Raises:
        WitnessBehind: so many came behind the newest checkpoint that no other may.
        InvalidInput: this transaction alone charges more than may come behind any.
    """
    for scope in {charge.scope.scope: charge.scope for charge in bill}.values():
        if scope.filter.witness is None:
            continue
        row, every = _find_row(state, scope), scope.filter.witness.every
        if counted[scope.scope] >= every:
            raise InvalidInput(
                f"more than {every} releases are charged at once, and scope {scope.scope!r} demands a checkpoint of its witness "
                f"after {every}; release fewer at once, or have its owner raise --witness-every"
            )
        if row.charges >= every:
            told = _read_state(scope, scope.filter.witness, row)
            raise WitnessBehind(
                f"{told}, so nothing was charged or read. Have the witness sign (dpflow ledger checkpoint --key KEY "
                f"--into PLACE), name the place where you charge (DPFLOW_LEDGER_WITNESS=PLACE), and retry"
            )
        state.update(schema.witness, row, charges=row.charges + 1)
        counted[scope.scope] += 1


def list_states(state: LedgerState, newest: Mapping[str, StoredCheckpoint]) -> list[WitnessState]:
    """How far the witness of each scope is that demands one.

    Args:
        newest: the newest checkpoints at its place, by verifier key.
    """
    return [
        _read_state(
            scope,
            demand,
            _find_row(state, scope),
            newest[demand.key].point.size if demand.key in newest else 0,
        )
        for scope, demand in _demanding(state)
    ]


def signed_by(note: str, keys: Iterable[str]) -> tuple[set[str], Checkpoint | None]:
    """Which of these verifier keys signed a checkpoint, and what it says; None if none did.

    Raises:
        InvalidInput: it is signed, and no checkpoint.
    """
    signers, text = set(), ""
    for key in keys:
        try:
            text, _ = open_note(note, [key])
        except LedgerCorrupt:
            continue
        signers.add(key)
    return signers, Checkpoint.parse(text) if signers else None


def take_checkpoint(writer: Writer, note: str, is_own: bool, principal: str) -> bool:
    """Write a witness's checkpoint into the history; false if no scope gains by it.

    Args:
        is_own: the user who charges could write where it was kept, or made it.

    Raises:
        LedgerCorrupt: the history does not extend what was signed.
        InvalidInput: it is no checkpoint.
    """
    state, scopes = writer.state, _demanding(writer.state)
    signers, point = signed_by(note, {demand.key for _, demand in scopes})
    if point is None:
        return False
    behind = {}
    for scope, demand in scopes:
        row = _find_row(state, scope)
        if demand.key in signers and point.size > row.size:
            behind[scope.scope] = row
    if not behind:
        return False
    charges = dict.fromkeys(behind, 0)
    for entry in _entries_behind(writer, point):
        if entry.kind in CHARGES:
            for name in path_of(entry.scope):
                if name in charges:
                    charges[name] += 1
    for name, row in behind.items():
        state.update(schema.witness, row, size=point.size, charges=charges[name])
    writer.add_entry("witness", "", "", principal, {"note": note, "own": is_own})
    return True


def list_keys(state: LedgerState, scopes: Collection[str] | None = None) -> set[str]:
    """Verifier keys of the witnesses that these scopes demand; that any scope demands if left out."""
    return {
        demand.key for scope, demand in _demanding(state) if scopes is None or scope.scope in scopes
    }


def stated_keys(point: Checkpoint, scopes: Collection[str]) -> set[str]:
    """Verifier keys of the witnesses that these scopes demand by what a checkpoint says, which may be nobody's: of a copy that
    is older than the grant that demands one, only the checkpoint knows it.
    """
    keys = set()
    for name, text, *_ in point.scopes:
        if name in scopes:
            with contextlib.suppress(InvalidInput, LedgerCorrupt):
                if (demand := Filter.from_json(stored_json(text)).witness) is not None:
                    keys.add(demand.key)
    return keys


def require_extended(
    writer: Writer, newest: Mapping[str, StoredCheckpoint], trusted: Set[str]
) -> None:
    """Raises `LedgerCorrupt` unless the history extends all of these checkpoints, by who signed them."""
    for key, stored in newest.items():
        try:
            for _ in _entries_behind(writer, stored.point):
                pass
        except LedgerCorrupt as error:
            if key in trusted:
                raise
            raise LedgerCorrupt(
                f"{error}. This ledger names no witness, and checkpoint {stored.number} at the place says that {key} is one: if it "
                f"is yours, this is a copy from before the grant that demands it; else somebody added a false note: take it away"
            ) from None


def _entries_behind(writer: Writer, point: Checkpoint) -> Iterator[Any]:
    """The entries behind the one that was signed, proved at their end by the hash of the newest."""
    rows = writer.transaction.stream(_FROM, first=point.size)
    first = next(rows, None)
    if first is None or (first.seq, first.hash) != (point.size, point.head):
        raise LedgerCorrupt(
            f"the history does not extend the checkpoint of entry {point.size} that its witness signed: entries were dropped or "
            f"replaced, or an old copy was restored. Nothing was charged; run dpflow ledger verify --since FILE"
        )
    previous = first.hash
    for row in rows:
        if is_changed(row) or row.previous != previous:
            raise LedgerCorrupt(f"entry {row.seq} was changed; run dpflow ledger verify")
        previous = row.hash
        yield row
    if previous != writer.head:
        raise LedgerCorrupt("the newest entry was changed; run dpflow ledger verify")


def _demanding(state: LedgerState) -> list[tuple[Scope, WitnessDemand]]:
    rows = [state.take(schema.scope, row) for row in state.transaction.rows(_SCOPES)]
    found = ((scope, scope.filter.witness) for scope in map(read_scope, rows))
    return [(scope, demand) for scope, demand in found if demand is not None]


def _find_row(state: LedgerState, scope: Scope) -> Any:
    row = state.find(schema.witness, scope=scope.scope)
    if row is None:
        raise LedgerCorrupt(
            f"the charges behind the witness of scope {scope.scope!r} are gone; run dpflow ledger verify"
        )
    return row


def _read_state(scope: Scope, demand: WitnessDemand, row: Any, newest: int = 0) -> WitnessState:
    name, _ = parse_public_key(demand.key)
    return WitnessState(scope.scope, name, row.size, row.charges, demand.every, newest)
