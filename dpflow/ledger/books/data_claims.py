"""What releases read, by public names: who read it first, which gate closes it, how it is
partitioned into groups.

A name says what may be one and the same data: the dataset (the first part of the scope's path), and
what else the caller names, such as a table and its place. Two releases that share one name read
the same data. A gate is recorded on all its names in the transaction that opens it, so of two that
open at once, from whatever scopes, the second is refused.

A name after "joined " is of rows that are read, too, but are declared public: an open gate on them
closes them, and a later one finds them no longer fresh, but whoever joins them neither closes nor
cuts them.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from dpflow.errors import DatasetLocked, LedgerCorrupt, PlanRefused
from dpflow.ledger.history.state import LedgerState
from dpflow.ledger.storage import schema

JOINED = "joined "
#: A name that stands for all data since a recovery: nobody knows what the lost entries read.
LOST = "lost entries"


def claim_names(scope: str, named: Sequence[str]) -> tuple[str, ...]:
    """All names of the data that a release on this scope is about."""
    return _split_names(scope, tuple(named))[0]


def joined_names(scope: str, named: Sequence[str]) -> tuple[str, ...]:
    """Names of public rows that it joins."""
    return _split_names(scope, tuple(named))[1]


def all_names(scope: str, named: Sequence[str]) -> tuple[str, ...]:
    """Names of both kinds."""
    return claim_names(scope, named) + joined_names(scope, named)


@functools.lru_cache(maxsize=1024)
def _split_names(scope: str, named: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    bound_names = dict.fromkeys(
        (f"dataset {scope.split('/')[0]}", *(name for name in named if not name.startswith(JOINED)))
    )
    also = dict.fromkeys(name.removeprefix(JOINED) for name in named if name.startswith(JOINED))
    # What is read as private and joined as public counts as private, which closes more.
    return tuple(bound_names), tuple(name for name in also if name not in bound_names)


def _read_claims(state: LedgerState, scope: str, named: Sequence[str]) -> dict[str, Any]:
    """What is known of this data, by name, in the order of the names: a refusal names the same data
    each time.
    """
    rows = {name: state.find(schema.data, name=name) for name in all_names(scope, named)}
    return {name: row for name, row in rows.items() if row is not None}


def is_fresh(state: LedgerState, release_id: str, scope: str, named: Sequence[str]) -> bool:
    """Whether nothing was charged before this release on any of these names, for certain."""
    bound_names = claim_names(scope, named)
    if state.find(schema.data, name=LOST) is not None:
        return False
    return all(row.first == release_id for row in _read_claims(state, scope, bound_names).values())


def require_access(
    state: LedgerState, scope: str, named: Sequence[str], partition: str = ""
) -> dict[str, Any]:
    """What is known of this data, for `record`, if a release may read it.

    Raises:
        PlanRefused: its first session partitioned it into other groups, which stay.
        DatasetLocked: an open session locks it.
    """
    claims = _read_claims(state, scope, named)
    for row in (claims[name] for name in claim_names(scope, named) if partition and name in claims):
        if row.partition is not None and row.partition != partition:
            raise PlanRefused(
                f"{_describe_name(row.name)} is partitioned into {row.partition} since its first session, and a partition is never "
                f"changed; open the session with that, or name other data"
            )
    for row in claims.values():
        if row.gate is None:
            continue
        # The last gate on it may be closed by now: only its own row says so.
        gate = state.find_handle(schema.release, row.gate)
        # A gate without its row was deleted by hand: nobody knows whether it is open.
        if gate is None:
            raise LedgerCorrupt(
                f"the gate on {_describe_name(row.name)} is gone; run dpflow ledger verify, and bring the newest copy back"
            )
        if gate.state == "open":
            locked = DatasetLocked(
                f"a gate session is open on scope {gate.scope!r}, and while it is no other release reads its data "
                f"({_describe_name(row.name)}); ask that one, wait until it is used up, or use another partition"
            )
            locked.session_id = gate.id
            raise locked
    return claims


def require_no_gate(state: LedgerState, named: Sequence[str]) -> None:
    """Raises `PlanRefused` where a gate was ever opened on one of these names: its rows are a holdout, whatever
    another declaration calls them.
    """
    for name in named:
        row = state.find(schema.data, name=name)
        if row is not None and row.gate is not None:
            raise PlanRefused(
                f"{_describe_name(name)} is a gate's holdout, and an unpaid bit about its rows would end the gate's proof; "
                f"check other rows, or these before they become a holdout"
            )


def record_claims(
    state: LedgerState,
    release_id: str,
    scope: str,
    named: Sequence[str],
    claims: dict[str, Any],
    *,
    gate: bool,
    partition: str,
) -> None:
    """Write down that a release reads this data, and closes it as a gate or partitions it if
    it does.
    """
    closing = release_id if gate else None
    for name in claim_names(scope, named):
        row = claims.get(name)
        if row is None:
            known = {"name": name, "first": release_id, "partition": partition or None}
            state.insert(schema.data, gate=closing, **known)
        elif gate or (partition and row.partition is None):
            partitioned = row.partition or partition or None
            state.update(schema.data, row, gate=closing or row.gate, partition=partitioned)
    # Whoever joins public rows is noted as their first reader, and closes or partitions nothing.
    for name in joined_names(scope, named):
        if name not in claims:
            state.insert(schema.data, name=name, first=release_id, gate=None, partition=None)


def _describe_name(name: str) -> str:
    """A name for a person: what kind of thing, and which; a keyed digest is left out."""
    kind, _, which = name.partition(" ")
    return "this relation, by where it is stored" if kind == "place" else f"{kind} {which!r}"
