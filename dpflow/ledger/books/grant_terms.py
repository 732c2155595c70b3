"""The terms of a grant: what an owner names, the filter that they make, and how a filter may change once it was charged."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Literal, TypedDict, Unpack

from dpflow.core.accounting import amounts
from dpflow.core.accounting.amounts import DELTA_UNIT, Amount, exact_text, to_units_down
from dpflow.core.accounting.periods import PERIODS, Period
from dpflow.core.accounting.privacy_filters import (
    Filter,
    FilterName,
    WitnessDemand,
    default_filter,
    make_filter,
)
from dpflow.core.contract.declaration import NOBODY
from dpflow.errors import DpflowError, GrantConflict, InvalidInput
from dpflow.ledger.books.records import (
    Scope,
    checked_name,
    fold_name,
)
from dpflow.ledger.history.checkpoint import (
    DecisionSigner,
    parse_public_key,
)


class GrantOptions(TypedDict, total=False):
    """What `Ledger.grant` and `Ledger.quota` take alike, as keyword arguments. None keeps what an earlier grant said."""

    filter: FilterName | None
    tail_share: Amount | None
    approvals: int | None
    certified_by: Sequence[str] | None
    signers: Sequence[str] | None
    signer: DecisionSigner | None
    witness: str | None
    witness_every: int | None
    reason: str


@dataclass(frozen=True)
class Terms:
    """A grant before it meets what was granted earlier: its amounts, and `GrantOptions` with a quota's period."""

    epsilon: Fraction
    delta: Fraction
    filter: FilterName | None = None
    tail_share: Fraction | None = None
    approvals: int | None = None
    certified_by: tuple[str, ...] | None = None
    signers: tuple[str, ...] | None = None
    signer: DecisionSigner | None = None
    witness: str | None = None
    witness_every: int | None = None
    reason: str = ""
    period: Period | Literal["never"] | None = None

    @classmethod
    def parse_terms(
        cls,
        epsilon: Amount,
        delta: Amount,
        period: Period | Literal["never"] | None = None,
        **options: Unpack[GrantOptions],
    ) -> Terms:
        """Validated terms. Raises `InvalidAmount`, `InvalidDeclaration` or `InvalidInput`."""
        values: dict[str, Any] = {**options}
        if values.get("tail_share") is not None:
            values["tail_share"] = amounts.parse_exact("tail_share", values["tail_share"])
        values |= {name: _sort_keys(values.get(name)) for name in ("certified_by", "signers")}
        sums = amounts.check_epsilon(epsilon), amounts.check_delta(delta)
        terms = cls(*sums, period=period, **values)
        require_persons(terms.signers or ())
        checked_name("a reason", terms.reason, empty=True, longest=1000)
        if terms.approvals not in (None, 1, 2):
            raise InvalidInput("a grant needs the approval of 1 or 2 principals; choose one")
        if period is not None and period not in (*PERIODS, "never"):
            choices = ", ".join(PERIODS)
            raise InvalidInput(
                f"a quota refreshes each {choices}, or never; {str(period)[:40]!r} is none of these"
            )
        if terms.witness is not None:
            parse_public_key(terms.witness)
            terms = replace(terms, witness=terms.witness.strip())
            if not terms.witness_every:
                raise InvalidInput(
                    "say after how many charges the witness must have signed: --witness-every N"
                )
        # Built for its checks only: amounts that no filter can hold are refused before the turn.
        replace(terms, witness_every=None).build_filter(None)
        return terms

    def choose_filter(self, known: Filter | None, protects: str) -> Terms:
        """These terms with the filter that an earlier grant named, or the default, if they name none."""
        name = self.filter or (None if known is None else known.name)
        return replace(
            self, filter=name or default_filter(self.delta, is_protected=protects != NOBODY)
        )

    def build_filter(self, known: Filter | None) -> Filter:
        """The filter of a scope that has spent nothing yet."""
        share = self.tail_share
        if share is None and known is not None and known.order is not None:
            share = known.tail_delta / known.delta
        name = self.filter or default_filter(self.delta)
        built = make_filter(name, self.epsilon, self.delta, tail_share=share)
        return self.add_conditions(built, known)

    def change_filter(self, before: Scope) -> Filter:
        """The filter of a scope that was charged. Raises `GrantConflict` or `InvalidAmount`."""
        return self.add_conditions(change_amounts(before, self), before.filter)

    def list_grants(self, before: Scope | None, granted: Scope) -> list[Scope]:
        """What these terms can make of a scope: while nothing is charged, and afterwards.

        Args:
            granted: names the scope, and what it then protects.
        """
        known = None if before is None else before.filter
        terms = self.choose_filter(known, granted.protects)
        rules = []
        with contextlib.suppress(DpflowError):
            rules.append(terms.build_filter(known))
        with contextlib.suppress(DpflowError):
            rules += [] if before is None else [terms.change_filter(before)]
        approvals = self.approvals or (1 if before is None else before.approvals)
        return [replace(granted, filter=rule, approvals=approvals) for rule in rules]

    def add_conditions(self, filter: Filter, known: Filter | None) -> Filter:
        """The filter with whom these terms trust, who signs and when they refresh, or with what an
        earlier filter said of these.
        """
        before = ((), ()) if known is None else (known.certified_by, known.signers)
        keys = before[0] if self.certified_by is None else self.certified_by
        signers = before[1] if self.signers is None else self.signers
        period = None if known is None else known.period
        if self.period is not None:
            period = None if self.period == "never" else self.period
        witness = self._choose_witness(None if known is None else known.witness)
        return replace(filter, certified_by=keys, period=period, signers=signers, witness=witness)

    def _choose_witness(self, known: WitnessDemand | None) -> WitnessDemand | None:
        if self.witness_every is None:
            return known
        key = self.witness or (known and known.key)
        if self.witness_every and not key:
            raise InvalidInput("name the verifier key of the witness: --witness KEY")
        return WitnessDemand(key, self.witness_every) if self.witness_every and key else None


def _sort_keys(keys: Sequence[str] | None) -> tuple[str, ...] | None:
    """Verifier keys, validated. Raises `InvalidInput`."""
    for key in keys or ():
        parse_public_key(key)
    # A set has no order, and a filter is compared by its text.
    return None if keys is None else tuple(sorted({key.strip() for key in keys}))


def require_persons(signers: Sequence[str]) -> None:
    """Raises `InvalidInput` for one name or one key twice: a rule that asks for two people would count it twice."""
    parsed = [parse_public_key(key) for key in signers]
    if len({fold_name(name) for name, _ in parsed}) < len(parsed):
        raise InvalidInput("two signers have one name; give each person's key a name of its own")
    if len({key for _, key in parsed}) < len(parsed):
        raise InvalidInput("two signers have one key; name a key of its own for each person")


def may_follow(granted: Filter, former: Filter) -> bool:
    """Whether sums that were made under one filter still mean the same under another."""
    # What was charged is in accounts of one kind of period, or of none.
    if granted.period != former.period:
        return False
    if granted.order is None:
        return True
    # Charges before a Renyi path was open were not counted on it.
    if former.order != granted.order:
        return False
    share = former.tail_delta / former.delta
    return granted.tail_delta == to_units_down(granted.delta * share, DELTA_UNIT) * DELTA_UNIT


def change_amounts(scope: Scope, terms: Terms) -> Filter:
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
    return Filter(before.name, epsilon, delta, before.order, tail)
