"""Grants: what an owner promises, and how a promise may change afterwards."""

from __future__ import annotations

from fractions import Fraction

import sqlalchemy as sa

from dpflow.core.amounts import text, to_units_down
from dpflow.core.filters import DELTA_UNIT, Cost, Filter, FilterName, make_filter
from dpflow.errors import GrantConflict, InvalidInput
from dpflow.ledger import accounts, schema
from dpflow.ledger.chain import Writer, canonical
from dpflow.ledger.database import Prepared, Transaction, insert, where
from dpflow.ledger.records import Scope, checked_name

_INSERT = insert(schema.scope)
_FILTER = sa.bindparam("filter", type_=sa.Text)
_UPDATE = Prepared(schema.scope.update().where(where(schema.scope.c.name)).values(filter=_FILTER))


def checked_scope(name: str) -> str:
    """A path of non-empty names, parted by slashes. Raises `InvalidInput`."""
    checked_name("a scope", name)
    if not all(part.strip() for part in name.split("/")):
        raise InvalidInput("a scope is a name or a path such as flights/team-a, with no empty part; correct it")
    return name


def grant(
    transaction: Transaction, writer: Writer, wanted: Scope, epsilon: Fraction, delta: Fraction, principal: str
) -> Scope:
    """Store a grant; ``wanted`` says everything but the amounts' filter. See `Ledger.grant`."""
    scope, name = wanted.scope, wanted.filter.name
    known = accounts.find_scope(transaction, scope)
    parent = scope.rpartition("/")[0]
    above = accounts.find_scope(transaction, parent) if parent else None
    if parent and above is None:
        raise GrantConflict(f"scope {scope!r} is below {parent!r}, which has no grant; grant {parent!r} first")
    for other in (found for found in (known, above) if found is not None):
        if (other.protects, other.blocks) != (wanted.protects, wanted.blocks):
            raise GrantConflict(
                f"scope {other.scope!r} was granted to protect {other.protects or 'nothing named'!r}"
                f"{', per block' if other.blocks else ''}; grant {scope!r} for the same declaration"
            )
    if known is not None and known.filter.name != name:
        raise GrantConflict(f"scope {scope!r} uses the {known.filter.name} filter; its filter cannot be changed")
    granted = wanted
    if known is not None:
        used = accounts.spent(transaction, known)
        if any(cost != Cost() for _, cost in used):
            granted = Scope(scope, _changed(known.filter, epsilon, delta), wanted.protects, wanted.blocks)
        _require_covers(granted, used)
    row = {"filter": canonical(granted.filter.to_json()), "protects": granted.protects, "blocks": int(granted.blocks)}
    if known is None:
        transaction.run(_INSERT, name=scope, **row)
    else:
        transaction.run(_UPDATE, name=scope, filter=row["filter"])
    writer.note("grant", scope, "", principal, row)
    return granted


def _changed(known: Filter, epsilon: Fraction, delta: Fraction) -> Filter:
    """A filter with new amounts for sums that were already made: the order they were made at cannot change.

    A grant that has spent without a Renyi path never opens one: the charges so far were not counted on it.
    """
    name: FilterName = known.name
    if known.order is None or known.delta == 0 or (delta == 0 and name != "renyi"):
        return Filter(name, epsilon, delta)
    tail = to_units_down(delta * known.tail_delta / known.delta, DELTA_UNIT) * DELTA_UNIT
    if tail == 0:
        make_filter(name, epsilon, delta)  # says what is wrong with this delta
        raise GrantConflict(
            "delta is too small for the Renyi order that this scope's charges were summed at; raise delta"
        )
    return Filter(name, epsilon, delta, known.order, tail, known.conversion)


def _require_covers(granted: Scope, used: list[tuple[str, Cost]]) -> None:
    """Raises `GrantConflict` if an account has spent more than the new grant holds."""
    capacity = granted.filter.capacity()
    for block, cost in used:
        if cost != Cost() and not Filter.admits(capacity, cost, Cost()):
            place = f" in block {block!r}" if block else ""
            raise GrantConflict(
                f"scope {granted.scope!r} has already spent more than epsilon {text(granted.filter.epsilon)}, delta "
                f"{text(granted.filter.delta)}{place}; grant at least what is spent"
            )
