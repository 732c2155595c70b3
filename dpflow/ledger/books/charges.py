"""Accounts: what each scope and block has spent, what a charge debits, and why it is refused."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert as upsert

from dpflow.core.accounting.events import Event, Unprotected, check_supported
from dpflow.core.accounting.privacy_filters import Cost, Filter
from dpflow.core.contract.declaration import NOBODY
from dpflow.errors import BudgetExceeded, InvalidInput, PlanRefused, UnknownName
from dpflow.ledger.books.records import Remaining, Scope, checked_name, path_of, stored_json
from dpflow.ledger.storage import schema
from dpflow.ledger.storage.statements import Prepared, Read, Transaction, where

_S, _A = schema.scope.c, schema.account.c
_SCOPE = Prepared(sa.select(schema.scope).where(where(_S.name)))
_SCOPES = Prepared(sa.select(schema.scope).order_by(_S.name))
_ACCOUNT = Prepared(sa.select(schema.account).where(where(_A.scope, _A.block)))
_ACCOUNTS = Prepared(sa.select(schema.account).where(where(_A.scope)).order_by(_A.block))
_SUMS = ("epsilon", "delta", "renyi")
_FEW = 4  # accounts that are read one by one; of more, all of a scope's are read at once
_new = upsert(schema.account).values({c.name: sa.bindparam(c.name) for c in schema.account.columns})
_DEBIT = Prepared(  # sums are made here, under the write lock; the statement reads alike in both databases
    _new.on_conflict_do_update(
        index_elements=["scope", "block"], set_={n: _new.excluded[n] for n in _SUMS}
    )
)


@dataclass(frozen=True)
class Charge:
    """What one account pays: the sum of several events in its scope's filter."""

    scope: Scope
    block: str
    cost: Cost

    def to_json(self) -> list[Any]:
        """For the history."""
        return [self.scope.scope, self.block, self.cost.epsilon, self.cost.delta, self.cost.renyi]


@functools.lru_cache(maxsize=1024)
def _scope(row: Any) -> Scope:
    return Scope(
        row.name, Filter.from_json(stored_json(row.filter)), row.protects, bool(row.blocks)
    )


@functools.lru_cache(maxsize=4096)
def _priced(row: Any, events: tuple[Event, ...]) -> tuple[Scope, Cost]:
    """A scope, and what events cost there. Raises `PlanRefused`."""
    found = _scope(row)
    cost = sum((found.filter.event_cost(event) for event in events), Cost())
    if found.protects != NOBODY and any(isinstance(event, Unprotected) for event in events):
        raise PlanRefused(
            f"this release makes no privacy claim, and scope {found.scope!r} does not say that it protects nobody; "
            f"grant a scope for a table that is declared generalisation_only"
        )
    return found, cost


def find_scope(transaction: Transaction, name: str) -> Scope | None:
    """A granted scope, or None."""
    row = transaction.first(_SCOPE, name=name)
    return None if row is None else _scope(row)


def get_scope(transaction: Transaction, name: str) -> Scope:
    """A granted scope. Raises `UnknownName` with the names that exist."""
    return _scope(_row(transaction, name))


def _row(transaction: Transaction, name: str) -> Any:
    row = transaction.first(_SCOPE, name=name)
    if row is None:
        raise UnknownName("granted scope", name, [row.name for row in transaction.rows(_SCOPES)])
    return row


def all_scopes(transaction: Transaction) -> list[Scope]:
    """Every granted scope, by name."""
    return [_scope(row) for row in transaction.rows(_SCOPES)]


def spent(transaction: Transaction, scope: Scope) -> list[tuple[str, Cost]]:
    """Every account of a scope; one empty account if there is none yet."""
    rows = transaction.rows(_ACCOUNTS, scope=scope.scope)
    return [(row.block, Cost(row.epsilon, row.delta, row.renyi)) for row in rows] or [("", Cost())]


def bill(
    transaction: Transaction, scope: str, events: Sequence[Event], blocks: Sequence[str]
) -> list[Charge]:
    """What every account on the scope's path pays for these events together; a block named twice
    pays once.

    Raises:
        UnknownName: a scope on the path has no grant.
        InvalidInput: blocks where the scope has none, or none where it has.
        PlanRefused: an event that a filter does not support.
    """
    charges, asked = [], tuple(map(check_supported, events))
    for name in path_of(scope):
        found, cost = _priced(_row(transaction, name), asked)
        if found.blocks != bool(blocks):
            needs = (
                "is charged per block, so name the blocks"
                if found.blocks
                else "has no blocks, so name none"
            )
            raise InvalidInput(f"scope {name!r} {needs}")
        charges += [
            Charge(found, checked_name("a block", b, empty=not found.blocks), cost)
            for b in sorted({*blocks} or {""})
        ]
    return charges


def require_protection(bill: Sequence[Charge], protects: str | None) -> None:
    """Raises `PlanRefused` if a scope that pays was granted to protect something else.

    Whoever plans has looked before. But a grant may have bound the scope to another table since
    then, and only inside the charge's own transaction nobody can.
    """
    for charge in bill:
        if protects is not None and charge.scope.protects not in ("", protects):
            raise PlanRefused(
                f"scope {charge.scope.scope!r} was granted to protect {charge.scope.protects}, but this "
                f"release protects {protects}; use a scope granted for its declaration"
            )


def is_charged(transaction: Transaction, scope: Scope) -> bool:
    """Whether anything was ever charged to a scope, at a cost of zero too."""
    return bool(transaction.rows(_ACCOUNTS, scope=scope.scope))


def reads(scope: str, blocks: Sequence[str]) -> list[Read]:
    """What `bill` and `debit` will read for a charge."""
    path = path_of(scope)
    found: list[Read] = [(_SCOPE, {"name": name}) for name in path]
    if len(path) * max(1, len(blocks)) <= _FEW:
        found += [
            (_ACCOUNT, {"scope": name, "block": block})
            for name in path
            for block in blocks or ("",)
        ]
    return found


def merged(charges: Sequence[Charge]) -> list[Charge]:
    """The same charges with one per account."""
    sums: dict[tuple[str, str], Charge] = {}
    for charge in charges:
        account = charge.scope.scope, charge.block
        known = sums.get(account)
        sums[account] = (
            charge
            if known is None
            else Charge(charge.scope, charge.block, known.cost + charge.cost)
        )
    return list(sums.values())


def refused(transaction: Transaction, charges: Sequence[Charge]) -> BudgetExceeded | None:
    """Why these charges cannot be paid, or None."""
    return _totals(transaction, charges)[1]


def require(transaction: Transaction, charges: Sequence[Charge]) -> None:
    """Raises `BudgetExceeded` unless every account can pay."""
    refusal = refused(transaction, charges)
    if refusal is not None:
        raise refusal


def debit(transaction: Transaction, charges: Sequence[Charge]) -> None:
    """Charge every account or none; the caller holds the write lock. Raises `BudgetExceeded`."""
    rows, refusal = _totals(transaction, charges)
    if refusal is not None:
        raise refusal
    if len(rows) == 1:
        transaction.run(_DEBIT, **rows[0])
    else:
        transaction.many(_DEBIT, rows)


def _totals(
    transaction: Transaction, charges: Sequence[Charge]
) -> tuple[list[dict[str, Any]], BudgetExceeded | None]:
    """The accounts' rows after these charges, and the first account that cannot pay."""
    kept: dict[str, dict[str, Cost]] = {}
    rows = []
    for charge in charges:
        name = charge.scope.scope
        if len(charges) > _FEW and name not in kept:
            kept[name] = dict(spent(transaction, charge.scope))
        used = (
            kept[name].get(charge.block, Cost())
            if name in kept
            else _account(transaction, name, charge.block)
        )
        after = used + charge.cost
        if not Filter.admits(charge.scope.capacity, after):
            return [], BudgetExceeded(
                _sentence(charge, used), scope=name, block=charge.block or None
            )
        rows.append({"scope": name, "block": charge.block, **vars(after)})
    return rows, None


def _account(transaction: Transaction, scope: str, block: str) -> Cost:
    row = transaction.first(_ACCOUNT, scope=scope, block=block)
    return Cost() if row is None else Cost(row.epsilon, row.delta, row.renyi)


def _sentence(charge: Charge, used: Cost) -> str:
    row = Remaining(charge.scope, ((charge.block, used),)).rows()[0]
    asked = Remaining(charge.scope, ((charge.block, charge.cost),)).rows()[0]
    place = f"scope {charge.scope.scope!r}" + (f", block {charge.block!r}" if charge.block else "")
    paths = []
    if row["epsilon_left"] is not None:
        paths.append(
            f"epsilon {asked['epsilon_spent']} is asked, {row['epsilon_left']} of {row['epsilon_granted']} is left"
        )
    if row["renyi_left"] is not None:
        order = float(charge.scope.filter.order or 0)
        paths.append(
            f"Renyi divergence {float(asked['renyi_spent']):.4g} at order {order:.4g} is asked, "
            f"{float(row['renyi_left']):.4g} is left"
        )
    verb = "quota" if "/" in charge.scope.scope else "grant"
    return (
        f"{place} cannot pay: {', and '.join(paths)} (delta left {row['delta_left']}, filter {charge.scope.filter.name}). "
        f"Ask for less, or have its owner run: dpflow ledger {verb} {charge.scope.scope}"
    )
