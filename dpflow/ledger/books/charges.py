"""What each scope and block has spent, what a charge debits, and why it is refused."""

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
from dpflow.ledger.storage.statements import Prepared, Read, Transaction, match_columns

_S, _A = schema.scope.c, schema.account.c
_SCOPE = Prepared(sa.select(schema.scope).where(match_columns(_S.name)))
_SCOPES = Prepared(sa.select(schema.scope).order_by(_S.name))
_ACCOUNT = Prepared(sa.select(schema.account).where(match_columns(_A.scope, _A.block)))
_ACCOUNTS = Prepared(sa.select(schema.account).where(match_columns(_A.scope)).order_by(_A.block))
_SUMS = ("epsilon", "delta", "renyi")
#: So many budgets are read one by one; of more, all of a scope's are read at once.
_FEW = 4
_new = upsert(schema.account).values({c.name: sa.bindparam(c.name) for c in schema.account.columns})
# Sums are made here, under the write lock; the statement reads the same in both databases.
_DEBIT = Prepared(
    _new.on_conflict_do_update(
        index_elements=["scope", "block"], set_={n: _new.excluded[n] for n in _SUMS}
    )
)


@dataclass(frozen=True)
class Charge:
    """What one budget pays: the sum of several events in its scope's filter."""

    scope: Scope
    block: str
    cost: Cost

    def to_json(self) -> list[Any]:
        """For the history."""
        return [self.scope.scope, self.block, self.cost.epsilon, self.cost.delta, self.cost.renyi]


@functools.lru_cache(maxsize=1024)
def _parse_scope(row: Any) -> Scope:
    return Scope(
        row.name, Filter.from_json(stored_json(row.filter)), row.protects, bool(row.blocks)
    )


@functools.lru_cache(maxsize=4096)
def _sum_costs(row: Any, events: tuple[Event, ...]) -> tuple[Scope, Cost]:
    """A scope, and what events cost there. Raises `PlanRefused`."""
    scope = _parse_scope(row)
    cost = sum((scope.filter.event_cost(event) for event in events), Cost())
    # Only a scope that protects nobody may hold a release without a guarantee: fail closed.
    if scope.protects != NOBODY and any(isinstance(event, Unprotected) for event in events):
        raise PlanRefused(
            f"this release makes no privacy guarantee, and scope {scope.scope!r} does not say that it protects nobody; "
            f"grant a scope for a table that is declared generalisation_only"
        )
    return scope, cost


def find_scope(transaction: Transaction, name: str) -> Scope | None:
    """A granted scope, or None."""
    row = transaction.first(_SCOPE, name=name)
    return None if row is None else _parse_scope(row)


def get_scope(transaction: Transaction, name: str) -> Scope:
    """A granted scope. Raises `UnknownName` with the names that exist."""
    return _parse_scope(_scope_row(transaction, name))


def _scope_row(transaction: Transaction, name: str) -> Any:
    row = transaction.first(_SCOPE, name=name)
    if row is None:
        raise UnknownName("granted scope", name, [row.name for row in transaction.rows(_SCOPES)])
    return row


def all_scopes(transaction: Transaction) -> list[Scope]:
    """Every granted scope, by name."""
    return [_parse_scope(row) for row in transaction.rows(_SCOPES)]


def list_costs(transaction: Transaction, scope: Scope) -> list[tuple[str, Cost]]:
    """What each budget of a scope has spent; one unspent budget before the first charge."""
    rows = transaction.rows(_ACCOUNTS, scope=scope.scope)
    return [(row.block, Cost(row.epsilon, row.delta, row.renyi)) for row in rows] or [("", Cost())]


def make_bill(
    transaction: Transaction, scope: str, events: Sequence[Event], blocks: Sequence[str]
) -> list[Charge]:
    """What every budget on the scope's path pays for these events together; a block named twice
    pays once.

    Raises:
        UnknownName: a scope on the path has no grant.
        InvalidInput: blocks where the scope has none, or none where it has.
        PlanRefused: an event that a filter does not support.
    """
    charges, supported = [], tuple(map(check_supported, events))
    # Every scope of the path is charged in full: a quota lies inside its parent's budget.
    for name in path_of(scope):
        granted, cost = _sum_costs(_scope_row(transaction, name), supported)
        if granted.blocks != bool(blocks):
            needs = (
                "is charged per block, so name the blocks"
                if granted.blocks
                else "has no blocks, so name none"
            )
            raise InvalidInput(f"scope {name!r} {needs}")
        charges += [
            Charge(granted, checked_name("a block", b, empty=not granted.blocks), cost)
            # A set has no order, and the bill goes into the history: equal charges read the same.
            for b in sorted({*blocks} or {""})
        ]
    return charges


def require_protection(bill: Sequence[Charge], protects: str | None) -> None:
    """Raises `PlanRefused` if a scope that pays was granted to protect something else.

    Whoever plans has looked before. But a grant may have bound the scope to another table since
    then, and only inside the charge's own transaction nobody can.
    """
    for charge in bill:
        # A scope that names nothing was granted without a table: any table may be charged to it.
        if protects is not None and charge.scope.protects not in ("", protects):
            raise PlanRefused(
                f"scope {charge.scope.scope!r} was granted to protect {charge.scope.protects}, but this "
                f"release protects {protects}; use a scope granted for its declaration"
            )


def is_charged(transaction: Transaction, scope: Scope) -> bool:
    """Whether anything was ever charged to a scope, at a cost of zero too."""
    return bool(transaction.rows(_ACCOUNTS, scope=scope.scope))


def list_reads(scope: str, blocks: Sequence[str]) -> list[Read]:
    """What `bill` and `debit` will read for a charge."""
    path = path_of(scope)
    statements: list[Read] = [(_SCOPE, {"name": name}) for name in path]
    # With more budgets `_add_charges` reads all of a scope at once.
    if len(path) * max(1, len(blocks)) <= _FEW:
        statements += [
            (_ACCOUNT, {"scope": name, "block": block})
            for name in path
            for block in blocks or ("",)
        ]
    return statements


def merge_charges(charges: Sequence[Charge]) -> list[Charge]:
    """The same charges with one per budget."""
    sums: dict[tuple[str, str], Charge] = {}
    for charge in charges:
        account = charge.scope.scope, charge.block
        earlier = sums.get(account)
        sums[account] = (
            charge
            if earlier is None
            else Charge(charge.scope, charge.block, earlier.cost + charge.cost)
        )
    return list(sums.values())


def find_refusal(transaction: Transaction, charges: Sequence[Charge]) -> BudgetExceeded | None:
    """Why these charges cannot be paid, or None."""
    return _add_charges(transaction, charges)[1]


def require_budget(transaction: Transaction, charges: Sequence[Charge]) -> None:
    """Raises `BudgetExceeded` unless every budget can pay."""
    refusal = find_refusal(transaction, charges)
    if refusal is not None:
        raise refusal


def debit_accounts(transaction: Transaction, charges: Sequence[Charge]) -> None:
    """Charge every budget or none; the caller holds the write lock. Raises `BudgetExceeded`."""
    rows, refusal = _add_charges(transaction, charges)
    if refusal is not None:
        raise refusal
    if len(rows) == 1:
        transaction.run(_DEBIT, **rows[0])
    else:
        transaction.many(_DEBIT, rows)


def _add_charges(
    transaction: Transaction, charges: Sequence[Charge]
) -> tuple[list[dict[str, Any]], BudgetExceeded | None]:
    """The budgets' rows after these charges, and the first budget that cannot pay."""
    costs: dict[str, dict[str, Cost]] = {}
    rows = []
    for charge in charges:
        # One read of a whole scope is cheaper than many of single blocks.
        name = charge.scope.scope
        if len(charges) > _FEW and name not in costs:
            costs[name] = dict(list_costs(transaction, charge.scope))
        used = (
            costs[name].get(charge.block, Cost())
            if name in costs
            else _read_account(transaction, name, charge.block)
        )
        after = used + charge.cost
        # Both sides are whole units: no rounding can admit a charge too many.
        if not Filter.admits(charge.scope.capacity, after):
            return [], BudgetExceeded(
                _explain_refusal(charge, used), scope=name, block=charge.block or None
            )
        rows.append({"scope": name, "block": charge.block, **vars(after)})
    return rows, None


def _read_account(transaction: Transaction, scope: str, block: str) -> Cost:
    row = transaction.first(_ACCOUNT, scope=scope, block=block)
    return Cost() if row is None else Cost(row.epsilon, row.delta, row.renyi)


def _explain_refusal(charge: Charge, used: Cost) -> str:
    # People compare what they ask for with what is left, so both are told in the same amounts.
    row = Remaining(charge.scope, ((charge.block, used),)).rows()[0]
    request = Remaining(charge.scope, ((charge.block, charge.cost),)).rows()[0]
    account = f"scope {charge.scope.scope!r}" + (
        f", block {charge.block!r}" if charge.block else ""
    )
    paths = []
    if row["epsilon_left"] is not None:
        paths.append(
            f"epsilon {request['epsilon_spent']} is asked, {row['epsilon_left']} of {row['epsilon_granted']} is left"
        )
    if row["renyi_left"] is not None:
        order = float(charge.scope.filter.order or 0)
        paths.append(
            f"Renyi divergence {float(request['renyi_spent']):.4g} at order {order:.4g} is asked, "
            f"{float(row['renyi_left']):.4g} is left"
        )
    verb = "quota" if "/" in charge.scope.scope else "grant"
    return (
        f"{account} cannot pay: {', and '.join(paths)} (delta left {row['delta_left']}, filter {charge.scope.filter.name}). "
        f"Ask for less, or have its owner run: dpflow ledger {verb} {charge.scope.scope}"
    )
