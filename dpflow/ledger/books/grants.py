"""Grants: what an owner promises, and how a promise may change afterwards."""

from __future__ import annotations

from dataclasses import astuple, dataclass
from fractions import Fraction

from dpflow.core.accounting import amounts
from dpflow.core.accounting.amounts import DELTA_UNIT, exact_text, to_units_down
from dpflow.core.accounting.privacy_filters import (
    Cost,
    Filter,
    FilterName,
    make_filter,
)
from dpflow.errors import GrantConflict, InvalidInput
from dpflow.ledger.books import charges
from dpflow.ledger.books.records import Scope, checked_name
from dpflow.ledger.history.chain import Writer, canonical_json
from dpflow.ledger.history.state import LedgerState
from dpflow.ledger.storage import schema


def checked_scope(name: str) -> str:
    """A path of non-empty names, parted by slashes. Raises `InvalidInput`."""
    checked_name("a scope", name)
    if not all(part.strip() for part in name.split("/")):
        raise InvalidInput(
            "a scope is a name or a path such as flights/team-a, with no empty part; correct it"
        )
    return name


@dataclass(frozen=True)
class Terms:
    """A grant's amounts before they meet what was granted earlier; ``tail_share`` None keeps what
    an earlier grant said.
    """

    name: FilterName
    epsilon: Fraction
    delta: Fraction
    tail_share: Fraction | None

    @classmethod
    def parse_terms(
        cls, name: FilterName, epsilon: object, delta: object, tail_share: object | None
    ) -> Terms:
        """Validated terms. Raises `InvalidAmount` or `InvalidDeclaration`."""
        share = None if tail_share is None else amounts.parse_exact("tail_share", tail_share)
        terms = cls(name, amounts.check_epsilon(epsilon), amounts.check_delta(delta), share)
        # Built for its checks only: amounts that no filter can hold are refused before the turn.
        terms.build_filter(None)
        return terms

    def build_filter(self, known: Filter | None) -> Filter:
        """The filter of a scope that has spent nothing yet."""
        share = self.tail_share
        if share is None and known is not None and known.order is not None:
            share = known.tail_delta / known.delta
        return make_filter(
            self.name, self.epsilon, self.delta, tail_share=Fraction(1) if share is None else share
        )


def find_parent(state: LedgerState, scope: str) -> Scope | None:
    """The scope above a quota, None for a scope without a slash. Raises `GrantConflict` if it has
    no grant.
    """
    parent = scope.rpartition("/")[0]
    granted = charges.find_scope(state, parent) if parent else None
    if parent and granted is None:
        raise GrantConflict(
            f"scope {scope!r} is below {parent!r}, which has no grant; grant {parent!r} first"
        )
    return granted


def require_inside(scope: str, terms: Terms, parent: Scope) -> None:
    """Raises `GrantConflict` for a quota that could never be spent."""
    if terms.epsilon > parent.filter.epsilon or terms.delta > parent.filter.delta:
        raise GrantConflict(
            f"quota {scope!r} of epsilon {exact_text(terms.epsilon)}, delta {exact_text(terms.delta)} is more than {parent.scope!r} was "
            f"granted (epsilon {exact_text(parent.filter.epsilon)}, delta {exact_text(parent.filter.delta)}); ask for less"
        )


def store_grant(
    writer: Writer,
    scope: str,
    terms: Terms,
    protects: str,
    blocks: bool,
    principal: str,
    *,
    may_bind: bool = False,
) -> Scope:
    """Store a grant. See `Ledger.grant`.

    Args:
        may_bind: the grant names a table: a scope that nothing was charged to may be bound to it.
    """
    state, binding = writer.state, (protects, blocks)
    before, parent = charges.find_scope(state, scope), find_parent(state, scope)
    used = charges.list_costs(state, scope)
    # A scope that was charged has promised a guarantee to its table's units, which stays.
    binds = (
        may_bind and before is not None and (before.protects, before.blocks) != binding and not used
    )
    for other in (parent, None if binds else before):
        if other is not None and (other.protects, other.blocks) != binding:
            raise GrantConflict(
                f"scope {other.scope!r} was granted to protect {other.protects or 'nothing named'!r}"
                f"{', per block' if other.blocks else ''}; grant {scope!r} for the same declaration "
                f"(--table FILE)"
            )
    # The sums so far were made by one filter's rule and mean nothing under another.
    if before is not None and before.filter.name != terms.name:
        raise GrantConflict(
            f"scope {scope!r} uses the {before.filter.name} filter; its filter cannot be changed"
        )
    # While nothing is spent, the Renyi order may still follow the new amounts.
    if before is not None and any(cost != Cost() for _, cost in used):
        filter = _change_amounts(before, terms)
    else:
        filter = terms.build_filter(None if before is None else before.filter)
    granted = Scope(scope, filter, protects, blocks)
    _require_covers(granted, used)
    _write_scope(writer, granted, principal)
    # Whatever a quota pays, the scope above it pays too: nothing was charged to these either.
    for quota in charges.all_scopes(state) if binds else ():
        if quota.scope.startswith(scope + "/"):
            quota = Scope(quota.scope, quota.filter, protects, blocks)
            _write_scope(writer, quota, principal)
    return granted


def _write_scope(writer: Writer, granted: Scope, principal: str) -> None:
    """Write a scope's row and its entry in the history."""
    row = {
        "filter": canonical_json(granted.filter.to_json()),
        "protects": granted.protects,
        "blocks": int(granted.blocks),
    }
    before = writer.state.find(schema.scope, name=granted.scope)
    if before is None:
        writer.state.insert(schema.scope, name=granted.scope, **row, closed=0)
    else:
        writer.state.update(schema.scope, before, **row, closed=0)
    # In whole units: an auditor then needs no formula for what a grant holds.
    body = row | {"capacity": list(astuple(granted.capacity))}
    writer.add_entry("grant", granted.scope, "", principal, body)


def _change_amounts(scope: Scope, terms: Terms) -> Filter:
    """A filter with new amounts for sums that were already made: order and division of delta cannot
    change.

    A grant that has spent without a Renyi path never opens one: the charges so far were not counted
    on it.
    """
    before, epsilon, delta = scope.filter, terms.epsilon, terms.delta
    share = before.tail_delta / before.delta if before.order is not None else None
    if terms.tail_share is not None and share is not None and terms.tail_share != share:
        raise GrantConflict(
            f"scope {scope.scope!r} has spent with tail_share {exact_text(share)}, which stays; grant it without another one"
        )
    if before.order is None or share is None or (delta == 0 and before.name != "renyi"):
        return Filter(before.name, epsilon, delta)
    # Down: the part of delta that converts must never be more than the grant says.
    tail = to_units_down(delta * share, DELTA_UNIT) * DELTA_UNIT
    if tail == 0:
        make_filter(before.name, epsilon, delta)  # says what is wrong with this delta
        raise GrantConflict(
            "delta is too small for the Renyi order that this scope's charges were summed at; raise delta"
        )
    return Filter(before.name, epsilon, delta, before.order, tail, before.conversion)


def _require_covers(granted: Scope, used: list[tuple[str, Cost]]) -> None:
    """Raises `GrantConflict` if a budget has spent more than the new grant holds."""
    capacity = granted.filter.capacity()
    for block, cost in used:
        if cost != Cost() and not Filter.admits(capacity, cost):
            in_block = f" in block {block!r}" if block else ""
            raise GrantConflict(
                f"scope {granted.scope!r} has already spent more than epsilon {exact_text(granted.filter.epsilon)}, delta "
                f"{exact_text(granted.filter.delta)}{in_block}; grant at least what is spent, as dpflow ledger odometer shows it"
            )
