"""What each scope and block has spent, what a charge debits, and why it is refused."""

from __future__ import annotations

import datetime as dt
import functools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from dpflow.core.accounting.events import Event, Unprotected, check_supported
from dpflow.core.accounting.periods import name_account, strip_period
from dpflow.core.accounting.privacy_filters import Cost, Filter
from dpflow.core.contract.declaration import NOBODY
from dpflow.errors import BudgetExceeded, InvalidInput, PlanRefused, UnknownName
from dpflow.ledger.books.budget_refusal import explain_refusal
from dpflow.ledger.books.records import Scope, checked_name, path_of, stored_json
from dpflow.ledger.history.state import LedgerState
from dpflow.ledger.storage import schema
from dpflow.ledger.storage.statements import Prepared

_SCOPES = Prepared(sa.select(schema.scope).order_by(schema.scope.c.name))


@dataclass(frozen=True)
class Charge:
    """What one budget pays: the sum of several events in its scope's filter. In a quota that refreshes
    ``block`` is the name of an account (`periods.name_account`).
    """

    scope: Scope
    block: str
    cost: Cost

    def to_json(self) -> list[Any]:
        """For the history."""
        return [self.scope.scope, self.block, self.cost.epsilon, self.cost.delta, self.cost.renyi]


@functools.lru_cache(maxsize=1024)
def read_scope(row: Any) -> Scope:
    """A scope's row."""
    return Scope(
        row.name,
        Filter.from_json(stored_json(row.filter)),
        row.protects,
        bool(row.blocks),
        bool(row.closed),
        row.approvals,
    )


@functools.lru_cache(maxsize=4096)
def _sum_costs(row: Any, events: tuple[Event, ...]) -> tuple[Scope, Cost]:
    """A scope, and what events cost there. Raises `PlanRefused`."""
    scope = read_scope(row)
    cost = sum((scope.filter.event_cost(event) for event in events), Cost())
    # Only a scope that protects nobody may hold a release without a guarantee: fail closed.
    if scope.protects != NOBODY and any(isinstance(event, Unprotected) for event in events):
        raise PlanRefused(
            f"this release makes no privacy guarantee, and scope {scope.scope!r} does not say that it protects nobody; "
            f"grant a scope for a table that is declared generalisation_only"
        )
    return scope, cost


def find_scope(state: LedgerState, name: str) -> Scope | None:
    """A granted scope, or None."""
    row = state.find(schema.scope, name=name)
    return None if row is None else read_scope(row)


def get_scope(state: LedgerState, name: str) -> Scope:
    """A granted scope. Raises `UnknownName` with the names that exist."""
    return read_scope(_scope_row(state, name))


def _scope_row(state: LedgerState, name: str) -> Any:
    row = state.find(schema.scope, name=name)
    if row is None:
        names = [row.name for row in state.transaction.rows(_SCOPES)]
        raise UnknownName("granted scope", name, names)
    return row


def all_scopes(state: LedgerState) -> list[Scope]:
    """Every granted scope, by name; one that was deleted by hand is not missed."""
    rows = state.transaction.rows(_SCOPES)
    return [read_scope(state.take(schema.scope, row)) for row in rows]


def list_costs(state: LedgerState, scope: str) -> list[tuple[str, Cost]]:
    """What each account of a scope has spent, by its name, none of them left out: empty before the
    first charge. An account is called as its block, and in a quota that refreshes as its period, too.
    """
    rows = state.list_rows(schema.account, scope)
    return sorted((row.block, Cost(row.epsilon, row.delta, row.renyi)) for row in rows)


def sum_costs(state: LedgerState, scope: Scope) -> dict[str, Cost]:
    """What each block of a scope has spent since its first charge. A refreshed quota gives no loss back: its
    periods add up.
    """
    sums: dict[str, Cost] = {}
    for account, cost in list_costs(state, scope.scope) or [("", Cost())]:
        block = strip_period(scope.filter.period, account)
        sums[block] = sums.get(block, Cost()) + cost
    return sums


def today() -> dt.date:
    """The day (UTC) for who only reads; a charge takes that of its entry."""
    return dt.datetime.now(dt.UTC).date()


def make_bill(
    state: LedgerState,
    scope: str,
    events: Sequence[Event],
    blocks: Sequence[str],
    day: dt.date | None = None,
) -> list[Charge]:
    """What every budget on the scope's path pays for these events together; a block named twice
    pays once.

    Args:
        day: of the charge, which decides the period of a quota that refreshes; today if left out.

    Raises:
        UnknownName: a scope on the path has no grant.
        InvalidInput: blocks where the scope has none, or none where it has.
        PlanRefused: an event that a filter does not support.
    """
    charges, supported = [], tuple(map(check_supported, events))
    # Every scope of the path is charged in full: a quota lies inside its parent's budget.
    for name in path_of(scope):
        granted, cost = _sum_costs(_scope_row(state, name), supported)
        if granted.blocks != bool(blocks):
            needs = (
                "is charged per block, so name the blocks"
                if granted.blocks
                else "has no blocks, so name none"
            )
            raise InvalidInput(f"scope {name!r} {needs}")
        # A set has no order, and the bill goes into the history: equal charges read the same.
        for b in sorted({*blocks} or {""}):
            block = checked_name("a block", b, empty=not granted.blocks)
            if granted.filter.period is not None:
                block = name_account(granted.filter.period, block, day or today())
            charges.append(Charge(granted, block, cost))
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


def require_certified(bill: Sequence[Charge], keys: Sequence[str]) -> None:
    """Raises `PlanRefused` if a scope that pays trusts none of the keys that have certified what
    will draw. Whoever compares code with certificates says which keys those are.
    """
    for charge in bill:
        trusted = charge.scope.filter.certified_by
        if trusted and not set(trusted) & set(keys):
            raise PlanRefused(
                f"scope {charge.scope.scope!r} pays for certified mechanisms only, and this charge names no key "
                f"that it trusts; audit and sign what is installed: dpflow certify"
            )


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


class OpenAccounts:
    """The budgets that one transaction charges, each read and written once however many releases it
    pays for. Whoever made it holds the write lock and calls `write` before the end.
    """

    def __init__(self, state: LedgerState) -> None:
        self._state = state
        self._sums: dict[tuple[str, str], Cost] = {}
        #: Of releases that were charged here, by all that they depend on: equal ones share a bill.
        self.bills: dict[Any, list[Charge]] = {}
        #: By scope that demands a witness: how many releases were charged here.
        self.counted: Counter[str] = Counter()

    def debit(self, charges: Sequence[Charge]) -> None:
        """Charge these budgets. Raises `BudgetExceeded`, after which nothing may be written."""
        for charge in charges:
            account = charge.scope.scope, charge.block
            used = self._sums.get(account)
            if used is None:
                row = self._state.find(schema.account, scope=account[0], block=account[1])
                used = Cost() if row is None else Cost(row.epsilon, row.delta, row.renyi)
            after = used + charge.cost
            # Both sides are whole units: no rounding can admit a charge too many.
            if not Filter.admits(charge.scope.capacity, after):
                raise BudgetExceeded(
                    explain_refusal(charge.scope, charge.block, charge.cost, used),
                    scope=account[0],
                    block=charge.block or None,
                )
            self._sums[account] = after

    def write(self) -> None:
        """Write what every budget has spent now."""
        for account, cost in self._sums.items():
            identity = {"scope": account[0], "block": account[1]}
            self._state.put(schema.account, identity, **vars(cost))
