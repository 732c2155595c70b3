"""Privacy filters: when must a scope stop? Everything is fixed at the grant, so jobs may choose
freely afterwards.

A filter turns an event into a `Cost` of three integers and a grant into a `Capacity`. The ledger
adds and compares those integers and knows nothing else. Costs are rounded up, capacities down.
Theorem 1 of docs/guides/accounting.md proves that any adaptive sequence of releases, sessions
included, that `Filter.admits` lets through is (epsilon, delta)-DP for the grant.

- ``basic``: the epsilons add up to at most epsilon, the deltas to at most delta.
- ``renyi``: Renyi divergences at one order add up to at most the capacity of that order at ``tail_delta``; the mechanisms'
  own deltas add up to at most the rest of delta.
- ``hybrid``: goes on while either of the two holds, both with the rest of delta for the mechanisms' own deltas.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final, Literal

from dpflow.core.accounting import amounts, renyi
from dpflow.core.accounting.amounts import DELTA_UNIT, EPSILON_UNIT, to_units_down, to_units_up
from dpflow.core.accounting.events import Event, check_supported
from dpflow.core.accounting.periods import PERIODS, Period
from dpflow.errors import InvalidAmount, InvalidDeclaration, PlanRefused

#: "cannot be paid on this path"; two of them still add up to less than 2**63.
SATURATED: Final = 2**62 - 1
CLOSED: Final = -1  #: capacity of a path that is not open

FilterName = Literal["basic", "renyi", "hybrid"]


@dataclass(frozen=True)
class Cost:
    """What an event, or a sum of events, costs: whole units >= 0, each held at `SATURATED` once it
    gets there.
    """

    epsilon: int = 0
    delta: int = 0
    renyi: int = 0

    def __add__(self, other: Cost) -> Cost:
        """The saturating sum; in SQL ``least(a + b, SATURATED)``."""
        return Cost(
            min(self.epsilon + other.epsilon, SATURATED),
            min(self.delta + other.delta, SATURATED),
            min(self.renyi + other.renyi, SATURATED),
        )


@dataclass(frozen=True)
class Capacity:
    """What a grant holds, in whole units below `SATURATED`; `CLOSED` closes the path it belongs to."""

    epsilon: int
    delta: int
    renyi: int
    renyi_delta: int


@dataclass(frozen=True)
class Guarantee:
    """A report: what was spent so far is (epsilon, delta)-DP, proved on the path ``via``. A grant's
    promise is its capacity.
    """

    epsilon: Fraction
    delta: Fraction
    via: Literal["basic", "renyi"]


@dataclass(frozen=True)
class WitnessDemand:
    """How many charges a budget may pay behind the last one that somebody outside has seen.

    Attributes:
        key: the verifier key of the witness.
        every: charges, from 1.
    """

    key: str
    every: int

    def __post_init__(self) -> None:
        if (
            not isinstance(self.key, str)
            or type(self.every) is not int
            or not 0 < self.every < 2**31
        ):
            raise InvalidDeclaration(
                "a witness is demanded by its verifier key, and after a whole number of charges from 1."
            )


@dataclass(frozen=True)
class Filter:
    """One grant's rule. Build it with `make_filter`; the fields are what the ledger stores.

    Attributes:
        name: basic, renyi or hybrid.
        epsilon, delta: the promise.
        order: the Renyi order; None when no Renyi path is open.
        tail_delta: the part of delta spent on converting Renyi divergence; the rest is for the
        mechanisms' own deltas.
        certified_by: verifier keys. Unless there are none, only mechanisms that one of these has
            certified are paid for. It changes no sum; it is sealed with the rule because
            whoever does not know of it must not charge.
        signers: verifier keys of people. Unless there are none, a grant of this scope must be signed by
            one of them. It changes no sum, either.
        period: of a quota that refreshes: what each of its accounts holds is for one such period.
            It proves nothing, and belongs to no scope whose promise somebody relies on.
        witness: whose checkpoint must not be further behind, and how far; None if nobody's. It changes
            no sum, either.
    """

    name: FilterName
    epsilon: Fraction
    delta: Fraction
    order: Fraction | None = None
    tail_delta: Fraction = Fraction(0)
    certified_by: tuple[str, ...] = ()
    period: Period | None = None
    signers: tuple[str, ...] = ()
    witness: WitnessDemand | None = None

    def __post_init__(self) -> None:
        if self.name not in ("basic", "renyi", "hybrid"):
            raise InvalidDeclaration(
                f"there is no filter {str(self.name)[:80]!r}; use basic, renyi or hybrid."
            )
        if self.period is not None and self.period not in PERIODS:
            raise InvalidDeclaration(
                f"there is no period {str(self.period)[:40]!r}; use {', '.join(PERIODS)}."
            )
        amounts.check_epsilon(self.epsilon)
        amounts.check_delta(self.delta)
        amounts.check_delta(self.tail_delta)
        open_path = self.order is not None
        if open_path != (self.tail_delta > 0) or self.tail_delta > self.delta:
            raise InvalidDeclaration(
                "a filter with a Renyi order needs 0 < tail_delta <= delta, one without tail_delta 0."
            )
        # The name alone decides which paths are compared, so it must agree with the order.
        if (self.name == "basic" and open_path) or (self.name == "renyi" and not open_path):
            raise InvalidDeclaration("a basic filter has no Renyi order, a renyi filter needs one.")
        if self.order is not None:
            renyi.check_order(self.order)

    def capacity(self) -> Capacity:
        """What the ledger compares the sums with. Rounded down."""
        epsilon, own_delta = CLOSED, to_units_down(self.delta - self.tail_delta, DELTA_UNIT)
        if self.name != "renyi":
            epsilon = to_units_down(self.epsilon, EPSILON_UNIT)
        if self.order is None:
            return Capacity(epsilon, own_delta, CLOSED, CLOSED)
        bound = to_units_down(
            renyi.divergence_capacity(self.epsilon, self.tail_delta, self.order), EPSILON_UNIT
        )
        # A capacity at SATURATED would admit costs that were clamped to it.
        divergence = min(max(bound, CLOSED), SATURATED - 1)
        return Capacity(epsilon, CLOSED if epsilon == CLOSED else own_delta, divergence, own_delta)

    def event_cost(self, event: Event) -> Cost:
        """The event's privacy cost. Rounded up; 0 on a path that this filter does not have,
        `SATURATED` where it is unpayable.

        Raises:
            PlanRefused: the event is not of the vocabulary, or this grant could not pay it whatever
                its size: no finite epsilon under basic, or a delta of its own where the grant left
                none.
        """
        check_supported(event)
        epsilon = divergence = 0
        direct, own_delta = event.epsilon_delta(), event.rho_delta()[1]
        if self.name != "renyi":
            epsilon = SATURATED if direct is None else _charged_units(direct[0], EPSILON_UNIT)
        if self.order is not None:
            divergence = _charged_units(event.renyi_bound(self.order)[0], EPSILON_UNIT)
        elif direct is None:
            raise PlanRefused(
                "this release has no epsilon of its own (Gaussian noise or zCDP), which basic accounting cannot pay; "
                "leave out its delta where it can do without, write noise: auto where it can choose, or grant the "
                "scope with filter renyi or hybrid and delta > 0."
            )
        cost = Cost(epsilon, _charged_units(own_delta, DELTA_UNIT), divergence)
        if cost.delta > 0 and self.delta == self.tail_delta:
            raise PlanRefused(
                f"this release has a delta of its own ({amounts.short_text(own_delta)}), and the grant leaves none for mechanisms; "
                "write guarantee: zcdp where the mechanism has it, or grant the scope with filter basic and delta > 0, "
                "or with a tail_share below 1."
            )
        return cost

    @staticmethod
    def admits(capacity: Capacity, total: Cost) -> bool:
        """Whether so much may have been charged, a new cost included."""
        # One path that holds is enough: each of them alone proves the promise.
        basic = total.epsilon <= capacity.epsilon and total.delta <= capacity.delta
        return basic or (total.renyi <= capacity.renyi and total.delta <= capacity.renyi_delta)

    def to_json(self) -> dict[str, Any]:
        """Everything that was fixed, amounts as exact strings; ``certified_by``, ``signers``,
        ``period`` and ``witness`` only where there are any.
        """
        optional: dict[str, Any] = {"certified_by": list(self.certified_by), "period": self.period}
        optional["signers"] = list(self.signers)
        optional["witness"] = self.witness and [self.witness.key, self.witness.every]
        return {name: value for name, value in optional.items() if value} | {
            "version": 1,
            "name": self.name,
            "epsilon": amounts.exact_text(self.epsilon),
            "delta": amounts.exact_text(self.delta),
            "order": None if self.order is None else amounts.exact_text(self.order),
            "tail_delta": amounts.exact_text(self.tail_delta),
        }

    @classmethod
    def from_json(cls, data: object) -> Filter:
        """The filter that `to_json` wrote, validated again. Raises `InvalidDeclaration` or
        `InvalidAmount`.
        """
        names = {"version", "name", "epsilon", "delta", "order", "tail_delta"}
        optional = ("certified_by", "signers", "period", "witness")
        given = data if isinstance(data, Mapping) else {}
        lists = [given.get(name, ()) for name in optional[:2]]
        if (
            set(given) != names | {name for name in optional if given.get(name)}
            or given["version"] != 1
            or not all(isinstance(keys, (list, tuple)) for keys in lists)
            or not all(isinstance(key, str) for keys in lists for key in keys)
            or (
                "witness" in given
                and (type(given["witness"]) is not list or len(given["witness"]) != 2)
            )
        ):
            raise InvalidDeclaration(
                f"not a filter of version 1: it has the fields {', '.join(sorted(names))}, and may have "
                f"{', '.join(optional)}."
            )
        data = given
        return cls(
            data["name"],
            amounts.check_epsilon(data["epsilon"]),
            amounts.check_delta(data["delta"]),
            None if data["order"] is None else amounts.parse_exact("order", data["order"]),
            amounts.check_delta(data["tail_delta"]),
            tuple(lists[0]),
            data.get("period"),
            tuple(lists[1]),
            WitnessDemand(*data["witness"]) if "witness" in data else None,
        )


def _default_share(name: FilterName, delta: Fraction) -> Fraction:
    # Hybrid is the default filter, so it pays for mechanisms with a delta of their own, too.
    return Fraction(1, 2) if name == "hybrid" and delta >= 2 * DELTA_UNIT else Fraction(1)


def default_filter(delta: Fraction, *, is_protected: bool = True) -> FilterName:
    """The filter of a grant that names none: hybrid with a delta, which holds whatever basic holds of
    pure releases and more, else basic.

    Args:
        is_protected: false for a scope that protects nobody: its releases make no claim that
            Theorem 1 could add up.
    """
    return "hybrid" if delta > 0 and is_protected else "basic"


def make_filter(
    name: FilterName,
    epsilon: Fraction,
    delta: Fraction,
    *,
    tail_share: Fraction | None = None,
) -> Filter:
    """The filter of a new grant, its order chosen to hold as many small charges as possible.

    Args:
        name: basic, renyi or hybrid.
        epsilon, delta: the promise; renyi needs delta > 0, hybrid without a delta is basic
        accounting.
        tail_share: the part of delta, above 0 and up to 1, that converts Renyi divergence; the rest
            pays for mechanisms with a delta of their own. By default a half under hybrid and 1 under
            renyi. Basic gives mechanisms the whole delta.

    Raises:
        InvalidAmount: an amount out of range, delta = 0 under renyi, a tail_share outside (0, 1].
    """
    epsilon, delta, share = (
        amounts.check_epsilon(epsilon),
        amounts.check_delta(delta),
        _default_share(name, delta)
        if tail_share is None
        else amounts.parse_exact("tail_share", tail_share),
    )
    if not 0 < share <= 1:
        raise InvalidAmount(
            f"tail_share is {amounts.short_text(share)}; it must be above 0 and at most 1."
        )
    if name == "renyi" and delta == 0:
        raise InvalidAmount(
            "delta is 0; a renyi filter needs delta > 0, e.g. 1e-6, or use filter basic."
        )
    if name == "basic" or delta == 0:
        return Filter(name, epsilon, delta)
    tail = to_units_down(delta * share, DELTA_UNIT) * DELTA_UNIT
    if tail == 0:
        raise InvalidAmount("the tail's share of delta is below 1e-18; raise delta or tail_share.")
    return Filter(name, epsilon, delta, renyi.best_order(epsilon, tail), tail)


def prove_guarantee(spent: Cost, filter: Filter, tail_delta: Fraction | None = None) -> Guarantee:
    """An odometer: the least epsilon that the sums so far prove, as a report.

    Args:
        spent: the running sums of a budget under this filter.
        filter: the budget's filter.
        tail_delta: the failure probability for converting Renyi divergence, in (0, 1); by default
        the filter's.

    Raises:
        InvalidAmount: a tail_delta out of range.
    """
    own_delta, guarantees = spent.delta * DELTA_UNIT, []
    if filter.name != "renyi" and spent.epsilon < SATURATED:
        guarantees.append(Guarantee(spent.epsilon * EPSILON_UNIT, own_delta, "basic"))
    tail = filter.tail_delta if tail_delta is None else amounts.check_delta(tail_delta)
    if filter.order is not None and tail > 0 and spent.renyi < SATURATED:
        if spent.renyi == 0:
            return Guarantee(Fraction(0), own_delta, "renyi")
        penalty = renyi.conversion_penalty(filter.order, tail)
        guarantees.append(
            Guarantee(
                max(Fraction(0), spent.renyi * EPSILON_UNIT + penalty), own_delta + tail, "renyi"
            )
        )
    if not guarantees:
        raise InvalidAmount(
            "nothing finite can be said about this budget at a tail_delta of 0; ask with a larger one."
        )
    return min(guarantees, key=lambda guarantee: guarantee.epsilon)


def odometer(spent: Cost, filter: Filter, delta: Fraction | None = None) -> Guarantee | None:
    """`guarantee` at a chosen total delta (by default the grant's): what is not the mechanisms' own
    converts the tail.

    None when nothing finite is proved there, or when the mechanisms' own deltas are above it
    already. The sums are those that the budget's filter keeps: after a sum is held at `SATURATED`
    its path proves nothing any more.
    """
    total = filter.delta if delta is None else delta
    tail = total - spent.delta * DELTA_UNIT
    if tail < 0:
        return None
    try:
        return prove_guarantee(spent, filter, tail)
    except InvalidAmount:
        return None


def _charged_units(amount: Fraction, unit: Fraction) -> int:
    return min(to_units_up(amount, unit), SATURATED)
