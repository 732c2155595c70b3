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

import sqlalchemy as sa

from dpflow.errors import PlanRefused, SessionClosed
from dpflow.ledger.storage import schema
from dpflow.ledger.storage.statements import (
    Prepared,
    Read,
    Transaction,
    match_columns,
    prepare_insert,
)

_D, _R = schema.data.c, schema.release.c
_TOGETHER = 3  # names that one statement looks up, if there is more than one
_FIND = Prepared(
    sa.select(schema.data).where(_D.name.in_([sa.bindparam(f"name{n}") for n in range(_TOGETHER)]))
)
_FIND_ONE = Prepared(sa.select(schema.data).where(match_columns(_D.name)))
_GATE = Prepared(sa.select(_R.scope, _R.state).where(match_columns(_R.id)))
_INSERT = prepare_insert(schema.data)
_UPDATE = Prepared(
    schema.data.update()
    .where(match_columns(_D.name))
    .values({name: sa.bindparam("new_" + name, type_=sa.Text) for name in ("gate", "partition")})
)


JOINED = "joined "


def claim_names(scope: str, named: Sequence[str]) -> tuple[str, ...]:
    """All names of the data that a release on this scope is about."""
    return _split_names(scope, tuple(named))[0]


def joined_names(scope: str, named: Sequence[str]) -> tuple[str, ...]:
    """Names of public rows that it joins."""
    return _split_names(scope, tuple(named))[1]


@functools.lru_cache(maxsize=1024)
def _split_names(scope: str, named: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    bound_names = dict.fromkeys(
        (f"dataset {scope.split('/')[0]}", *(name for name in named if not name.startswith(JOINED)))
    )
    also = dict.fromkeys(name.removeprefix(JOINED) for name in named if name.startswith(JOINED))
    # What is read as private and joined as public counts as private, which closes more.
    return tuple(bound_names), tuple(name for name in also if name not in bound_names)


def list_reads(scope: str, named: Sequence[str]) -> list[Read]:
    """What `require` will read for certain."""
    bound_names, also = _split_names(scope, tuple(named))
    lookups = bound_names + also
    if len(lookups) == 1:
        return [(_FIND_ONE, {"name": lookups[0]})]
    groups = [lookups[at : at + _TOGETHER] for at in range(0, len(lookups), _TOGETHER)]
    return [
        # The last name fills up a group: the statement has a fixed number of parameters.
        (_FIND, {f"name{n}": group[min(n, len(group) - 1)] for n in range(_TOGETHER)})
        for group in groups
    ]


def _read_claims(transaction: Transaction, scope: str, named: Sequence[str]) -> dict[str, Any]:
    bound_names, also = _split_names(scope, tuple(named))
    claims: dict[str, Any] = {}
    for statement, values in list_reads(scope, named):
        for row in transaction.rows(statement, **values):
            claims[row.name] = row
    # Rows of IN come in any order; a refusal must name the same data each time.
    return (
        claims
        if len(claims) < 2
        else {name: claims[name] for name in bound_names + also if name in claims}
    )


def is_fresh(transaction: Transaction, release_id: str, scope: str, named: Sequence[str]) -> bool:
    """Whether nothing was charged before this release on any of these names."""
    bound_names = claim_names(scope, named)
    return all(
        row.first == release_id for row in _read_claims(transaction, scope, bound_names).values()
    )


def require_access(
    transaction: Transaction, scope: str, named: Sequence[str], partition: str = ""
) -> dict[str, Any]:
    """What is known of this data, for `record`, if a release may read it.

    Raises:
        PlanRefused: its first session partitioned it into other groups, which stay.
        SessionClosed: an open gate closes it.
    """
    claims = _read_claims(transaction, scope, named)
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
        gate = transaction.first(_GATE, id=row.gate)
        if gate is not None and gate.state == "open":
            raise SessionClosed(
                f"a gate session is open on scope {gate.scope!r}, and while it is no other release reads its data "
                f"({_describe_name(row.name)}); ask that one, wait until it is used up, or use another partition"
            )
    return claims


def record_claims(
    transaction: Transaction,
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
    for name in claim_names(scope, named):
        row = claims.get(name)
        if row is None:
            closing = release_id if gate else None
            transaction.run(
                _INSERT, name=name, first=release_id, gate=closing, partition=partition or None
            )
        elif gate or (partition and row.partition is None):
            closing = release_id if gate else row.gate
            transaction.run(
                _UPDATE,
                name=name,
                new_gate=closing,
                new_partition=row.partition or partition or None,
            )
    # Whoever joins public rows is noted as their first reader, and closes or partitions nothing.
    for name in joined_names(scope, named):
        if name not in claims:
            transaction.run(_INSERT, name=name, first=release_id, gate=None, partition=None)


def _describe_name(name: str) -> str:
    """A name for a person: what kind of thing, and which; a keyed digest is left out."""
    kind, _, which = name.partition(" ")
    return "this relation of the database file" if kind == "place" else f"{kind} {which!r}"
