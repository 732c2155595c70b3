"""Accounts: what each scope and block has spent, what a charge debits, and why it is refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Any

import sqlalchemy as sa

from dpflow.core.amounts import text
from dpflow.core.events import Event
from dpflow.core.filters import Cost, Filter
from dpflow.errors import BudgetExceeded, GrantConflict, InvalidInput, SessionClosed, UnknownName
from dpflow.ledger import chain, schema
from dpflow.ledger.database import Database
from dpflow.ledger.records import Scope, checked_name

#: Appends an entry: kind, scope, release id, principal, body.
Note = Callable[[str, str, str, str, Mapping[str, Any]], None]


class Writing(AbstractContextManager[tuple[sa.Connection, Note]]):
    """A writing transaction that hands out a way to append entries, and raises the anchor's mark after its commit."""

    def __init__(self, database: Database, anchor: chain.Anchor) -> None:
        self._transaction = database.writing()
        self._anchor = anchor
        self._head: tuple[int, str] | None = None

    def __enter__(self) -> tuple[sa.Connection, Note]:
        connection = self._transaction.__enter__()

        def note(kind: str, scope: str, release_id: str, principal: str, body: Mapping[str, Any]) -> None:
            self._head = chain.append(connection, kind, scope, release_id, principal, body)

        return connection, note

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._transaction.__exit__(kind, error, trace)
        if kind is None and self._head is not None:
            self._anchor.advance(*self._head)


@dataclass(frozen=True)
class Charge:
    """What one account pays: the sum of several events in its scope's filter."""

    scope: Scope
    block: str
    cost: Cost

    def to_json(self) -> list[Any]:
        """For the history."""
        return [self.scope.scope, self.block, self.cost.epsilon, self.cost.delta, self.cost.renyi]


def _scope(row: Any) -> Scope:
    return Scope(row.name, Filter.from_json(row.filter), row.protects, row.blocks)


def find_scope(connection: sa.Connection, name: str) -> Scope | None:
    """A granted scope, or None."""
    row = connection.execute(sa.select(schema.scope).where(schema.scope.c.name == name)).first()
    return None if row is None else _scope(row)


def get_scope(connection: sa.Connection, name: str) -> Scope:
    """A granted scope. Raises `UnknownName` with the names that exist."""
    found = find_scope(connection, name)
    if found is None:
        raise UnknownName("granted scope", name, connection.scalars(sa.select(schema.scope.c.name)).all())
    return found


def all_scopes(connection: sa.Connection) -> list[Scope]:
    """Every granted scope, by name."""
    return [_scope(row) for row in connection.execute(sa.select(schema.scope).order_by(schema.scope.c.name))]


def spent(connection: sa.Connection, scope: Scope) -> Iterator[tuple[str, Cost]]:
    """Every account of a scope; one empty account if there is none yet."""
    c = schema.account.c
    rows = connection.execute(sa.select(schema.account).where(c.scope == scope.scope).order_by(c.block)).all()
    for row in rows:
        yield row.block, Cost(row.epsilon, row.delta, row.renyi)
    if not rows:
        yield "", Cost()


def bill(connection: sa.Connection, scope: str, events: Sequence[Event], blocks: Sequence[str]) -> list[Charge]:
    """What every account on the scope's path pays for these events together.

    Raises:
        UnknownName: a scope on the path has no grant.
        InvalidInput: blocks where the scope has none, or none where it has.
        PlanRefused: an event that a filter does not support.
    """
    charges = []
    for name in get_scope(connection, scope).path:
        found = get_scope(connection, name)
        if found.blocks != bool(blocks):
            needs = "is charged per block, so name the blocks" if found.blocks else "has no blocks, so name none"
            raise InvalidInput(f"scope {name!r} {needs}")
        cost = Cost()
        for event in events:
            cost = cost + found.filter.cost(event)
        charges += [
            Charge(found, checked_name("a block", block, empty=not found.blocks), cost) for block in blocks or [""]
        ]
    return charges


def _account(connection: sa.Connection, charge: Charge) -> Cost | None:
    c = schema.account.c
    where = (c.scope == charge.scope.scope, c.block == charge.block)
    row = connection.execute(sa.select(schema.account).where(*where)).first()
    return None if row is None else Cost(row.epsilon, row.delta, row.renyi)


def _refused(connection: sa.Connection, charges: Sequence[Charge]) -> tuple[Charge, Cost] | None:
    for charge in charges:
        used = _account(connection, charge) or Cost()
        if not Filter.admits(charge.scope.filter.capacity(), used, charge.cost):
            return charge, used
    return None


def _sentence(charge: Charge, used: Cost) -> str:
    from dpflow.ledger.records import Remaining

    row = Remaining(charge.scope, ((charge.block, used),)).rows()[0]
    asked = Remaining(charge.scope, ((charge.block, charge.cost),)).rows()[0]
    where = f"scope {charge.scope.scope!r}" + (f", block {charge.block!r}" if charge.block else "")
    return (
        f"{where} cannot pay: epsilon {asked['epsilon_spent']} is asked, {row['epsilon_left']} of {text(charge.scope.epsilon)} is "
        f"left (delta left {row['delta_left']}, filter {charge.scope.filter.name}). Ask for less, or have its owner run: "
        f"dpflow ledger grant {charge.scope.scope}"
    )


def refusal(connection: sa.Connection, charges: Sequence[Charge]) -> str | None:
    """Why these charges would be refused, or None."""
    found = _refused(connection, charges)
    return None if found is None else _sentence(*found)


def require(connection: sa.Connection, charges: Sequence[Charge]) -> None:
    """Raises `BudgetExceeded` unless every account can pay."""
    found = _refused(connection, charges)
    if found is not None:
        raise BudgetExceeded(_sentence(*found), scope=found[0].scope.scope, block=found[0].block or None)


def debit(connection: sa.Connection, charges: Sequence[Charge]) -> None:
    """Add the charges to their accounts; the caller holds the write lock and has required that they fit."""
    for charge in charges:
        used = _account(connection, charge)
        values = asdict((used or Cost()) + charge.cost)
        if used is None:
            row = {"scope": charge.scope.scope, "block": charge.block}
            connection.execute(schema.account.insert().values(**row, **values))
        else:
            c = schema.account.c
            where = (c.scope == charge.scope.scope, c.block == charge.block)
            connection.execute(schema.account.update().where(*where).values(**values))


def require_covers(connection: sa.Connection, granted: Scope) -> None:
    """Raises `GrantConflict` if an account has spent more than a new grant holds."""
    for block, used in spent(connection, granted):
        if not Filter.admits(granted.filter.capacity(), used, Cost()):
            where = f" in block {block!r}" if block else ""
            raise GrantConflict(
                f"scope {granted.scope!r} has already spent more than epsilon {text(granted.filter.epsilon)}, delta "
                f"{text(granted.filter.delta)}{where}; grant at least what is spent"
            )


def require_no_gate(connection: sa.Connection, scope: str) -> None:
    """Raises `SessionClosed` while a gate session is open on this scope, above it or below it."""
    c = schema.release.c
    for name in connection.scalars(sa.select(c.scope).where(c.exclusive, c.state == "open")):
        if name == scope or name.startswith(scope + "/") or scope.startswith(name + "/"):
            raise SessionClosed(
                f"a gate session is open on scope {name!r}, and while it is no other release reads its table; "
                f"wait until it is used up, or use another partition"
            )


def problems(connection: sa.Connection, sealed: Callable[[Mapping[str, Any]], str]) -> Iterator[str]:
    """Everything in the tables that the history does not account for."""
    sums: dict[tuple[str, str], Cost] = {}
    grants: dict[str, Any] = {}
    results: dict[str, Any] = {}
    states: dict[str, str] = {}
    for row in connection.execute(sa.select(schema.entry).order_by(schema.entry.c.seq)):
        body = json.loads(row.body)
        if row.kind == "grant":
            grants[row.scope] = body
        elif row.kind == "settle":
            results[row.release_id] = body["result"]
        for scope, block, epsilon, delta, renyi in body.get("charges", ()):
            sums[scope, block] = sums.get((scope, block), Cost()) + Cost(epsilon, delta, renyi)
        if "state" in body:
            states[row.release_id] = body["state"]
    kept = {
        (a.scope, a.block): Cost(a.epsilon, a.delta, a.renyi) for a in connection.execute(sa.select(schema.account))
    }
    for place in sorted(sums.keys() | kept.keys()):
        if sums.get(place) != kept.get(place):
            yield f"account {'/'.join(filter(None, place))} does not hold what its charges add up to"
    scopes = {
        s.name: {"filter": s.filter, "protects": s.protects, "blocks": s.blocks}
        for s in connection.execute(sa.select(schema.scope))
    }
    for name in sorted(grants.keys() | scopes.keys()):
        if grants.get(name) != scopes.get(name):
            yield f"scope {name} is not what was granted"
    yield from _releases(connection, results, states, sealed)


def _releases(
    connection: sa.Connection,
    results: Mapping[str, str],
    states: Mapping[str, str],
    sealed: Callable[[Mapping[str, Any]], str],
) -> Iterator[str]:
    charged = set(
        connection.scalars(sa.select(schema.entry.c.release_id).where(schema.entry.c.kind.in_(("reserve", "session"))))
    )
    for row in connection.execute(sa.select(schema.release)):
        if row.id not in charged:
            yield f"release {row.id} was never charged"
        if (chain.digest(row.result) if row.result is not None else None) != results.get(row.id):
            yield f"the result of release {row.id} is not the one that was settled"
        if (sealed(row.secret) if row.secret is not None else None) != states.get(row.id):
            yield f"the state of session {row.id} is not the one its last answer left"
        charged.discard(row.id)
    for missing in sorted(charged):
        yield f"release {missing} was charged and is gone"
