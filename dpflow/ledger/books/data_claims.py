"""What releases read, by public names: who read it first, which gate closes it, how it is cut into
groups for ever.

A name says what may be one and the same data: the dataset (the first part of the scope's path), and
what the caller names besides, such as a table and its place. Two releases that share one name read
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
from dpflow.ledger.storage.statements import Prepared, Read, Transaction, insert, where

_D, _R = schema.data.c, schema.release.c
_TOGETHER = 3  # names that one statement looks up, if there is more than one
_FIND = Prepared(
    sa.select(schema.data).where(_D.name.in_([sa.bindparam(f"name{n}") for n in range(_TOGETHER)]))
)
_FIND_ONE = Prepared(sa.select(schema.data).where(where(_D.name)))
_GATE = Prepared(sa.select(_R.scope, _R.state).where(where(_R.id)))
_INSERT = insert(schema.data)
_UPDATE = Prepared(
    schema.data.update()
    .where(where(_D.name))
    .values({name: sa.bindparam("new_" + name, type_=sa.Text) for name in ("gate", "cut")})
)


JOINED = "joined "


def names(scope: str, named: Sequence[str]) -> tuple[str, ...]:
    """All names of the data that a release on this scope is about."""
    return _names(scope, tuple(named))[0]


def joined(scope: str, named: Sequence[str]) -> tuple[str, ...]:
    """Names of the public data that it reads besides."""
    return _names(scope, tuple(named))[1]


@functools.lru_cache(maxsize=1024)
def _names(scope: str, named: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    own = dict.fromkeys(
        (f"dataset {scope.split('/')[0]}", *(name for name in named if not name.startswith(JOINED)))
    )
    also = dict.fromkeys(name.removeprefix(JOINED) for name in named if name.startswith(JOINED))
    return tuple(own), tuple(name for name in also if name not in own)


def reads(scope: str, named: Sequence[str]) -> list[Read]:
    """What `require` will read for certain."""
    own, also = _names(scope, tuple(named))
    found = own + also
    if len(found) == 1:
        return [(_FIND_ONE, {"name": found[0]})]
    groups = [found[at : at + _TOGETHER] for at in range(0, len(found), _TOGETHER)]
    return [
        (_FIND, {f"name{n}": group[min(n, len(group) - 1)] for n in range(_TOGETHER)})
        for group in groups
    ]


def _known(transaction: Transaction, scope: str, named: Sequence[str]) -> dict[str, Any]:
    own, also = _names(scope, tuple(named))
    found: dict[str, Any] = {}
    for statement, values in reads(scope, named):
        for row in transaction.rows(statement, **values):
            found[row.name] = row
    return found if len(found) < 2 else {name: found[name] for name in own + also if name in found}


def is_fresh(transaction: Transaction, release_id: str, scope: str, named: Sequence[str]) -> bool:
    """Whether nothing was charged before this release on any of these names."""
    own = names(scope, named)
    return all(row.first == release_id for row in _known(transaction, scope, own).values())


def require(
    transaction: Transaction, scope: str, named: Sequence[str], cut: str = ""
) -> dict[str, Any]:
    """What is known of this data, for `record`, if a release may read it.

    Raises:
        PlanRefused: it is cut otherwise for ever.
        SessionClosed: an open gate closes it.
    """
    known = _known(transaction, scope, named)
    for row in (known[name] for name in names(scope, named) if cut and name in known):
        if row.cut is not None and row.cut != cut:
            raise PlanRefused(
                f"{_shown(row.name)} is partitioned into {row.cut} since its first session, and a partition is never "
                f"changed; open the session with that, or name other data"
            )
    for row in known.values():
        if row.gate is None:
            continue
        gate = transaction.first(_GATE, id=row.gate)
        if gate is not None and gate.state == "open":
            raise SessionClosed(
                f"a gate session is open on scope {gate.scope!r}, and while it is no other release reads its data "
                f"({_shown(row.name)}); ask that one, wait until it is used up, or use another partition"
            )
    return known


def record(
    transaction: Transaction,
    release_id: str,
    scope: str,
    named: Sequence[str],
    known: dict[str, Any],
    *,
    gate: bool,
    cut: str,
) -> None:
    """Write down that a release reads this data, and closes it as a gate or cuts it into groups if
    it does.
    """
    for name in names(scope, named):
        row = known.get(name)
        if row is None:
            closing = release_id if gate else None
            transaction.run(_INSERT, name=name, first=release_id, gate=closing, cut=cut or None)
        elif gate or (cut and row.cut is None):
            closing = release_id if gate else row.gate
            transaction.run(_UPDATE, name=name, new_gate=closing, new_cut=row.cut or cut or None)
    for name in joined(scope, named):
        if name not in known:
            transaction.run(_INSERT, name=name, first=release_id, gate=None, cut=None)


def _shown(name: str) -> str:
    """A name for a person: what kind of thing, and which; a keyed digest is left out."""
    kind, _, which = name.partition(" ")
    return "this relation of the database file" if kind == "place" else f"{kind} {which!r}"
