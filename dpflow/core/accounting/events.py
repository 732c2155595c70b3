"""Privacy guarantees as data: a closed vocabulary of events, their conversions and their JSON form.

An event says what one release costs, for every pair of neighbouring tables and in both directions.
It is built from the plan alone. Each kind converts itself to

- ``epsilon_delta()``: (epsilon, delta)-DP at its own delta, or None when no finite epsilon exists there;
- ``rho_delta()``: delta-approximate rho-zCDP, as (rho, delta);
- ``renyi_bound(order)``: delta-approximate Renyi DP at one order, as (bound, delta).

Delta-approximate means: with probability 1 - delta the bound holds (Bun, Steinke 2016, Def. 8.1).
All numbers are exact Fractions in nats, rounded up. A kind that is not listed here is not
supported: `from_json` refuses it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from fractions import Fraction
from typing import Any, ClassVar, Final

from dpflow.core.accounting import amounts, renyi
from dpflow.errors import InvalidAmount, PlanRefused

LARGEST_COUNT: Final = 10**12  # of a Repeated event, and the largest group
_DEEPEST: Final = 32  # nesting of a decoded event
_DELTA_GRID: Final = Fraction(1, 10**30)  # a computed delta is rounded up to it


class Event(ABC):
    """A privacy guarantee. Frozen, hashable, validated when built; see the module for the meaning
    of the conversions.
    """

    kind: ClassVar[str]

    def epsilon_delta(self) -> tuple[Fraction, Fraction] | None:
        """(epsilon, delta), or None when this event has no finite epsilon at its own delta."""
        return None

    @abstractmethod
    def rho_delta(self) -> tuple[Fraction, Fraction]:
        """(rho, delta) of delta-approximate rho-zCDP."""

    def renyi_bound(self, order: Fraction) -> tuple[Fraction, Fraction]:
        """(an upper bound of the Renyi divergence at this order > 1, delta); what zCDP implies
        unless a kind knows better.
        """
        rho, delta = self.rho_delta()
        return rho * order, delta

    @abstractmethod
    def group_event(self, size: int) -> Event:
        """The same release seen by tables that differ in ``size`` units. Raises `PlanRefused` where
        no rule is known.
        """

    def epsilon_at(self, delta: Fraction) -> Fraction | None:
        """The least epsilon proved here for a total ``delta``; None when there is none. For reports
        and planning.
        """
        bounds: list[Fraction] = []
        direct = self.epsilon_delta()
        if direct is not None and direct[1] <= delta:
            bounds.append(direct[0])
        spare = delta - self.rho_delta()[1]
        if spare > 0:
            bounds.append(renyi.smallest_epsilon(lambda order: self.renyi_bound(order)[0], spare))
        return min(bounds, default=None)


@dataclass(frozen=True)
class _PureEvent(Event):
    """What all guarantees with an epsilon in [1e-12, 1e6] and no delta share."""

    epsilon: Fraction

    def __post_init__(self) -> None:
        _check_fields(self, epsilon=amounts.check_epsilon)

    def epsilon_delta(self) -> tuple[Fraction, Fraction]:
        return self.epsilon, Fraction(0)

    def rho_delta(self) -> tuple[Fraction, Fraction]:
        return _pure_rho(self.epsilon), Fraction(0)

    def renyi_bound(self, order: Fraction) -> tuple[Fraction, Fraction]:
        return renyi.pure_divergence(self.epsilon, order), Fraction(0)

    def group_event(self, size: int) -> Event:
        return type(self)(self.epsilon * _check_group_size(size))


class Pure(_PureEvent):
    """epsilon-DP. epsilon^2/2-zCDP (Bun, Steinke 2016, Prop. 1.4)."""

    kind = "pure.v1"


class SparseVector(_PureEvent):
    """A whole sparse-vector session, charged when it opens: epsilon-DP however it is interleaved,
    and nothing better.
    """

    kind = "sparse-vector.v1"


class BoundedRange(_PureEvent):
    """The exponential mechanism, report-noisy-max with Gumbel noise, a vote: privacy losses in an
    interval of length epsilon.

    epsilon-DP and epsilon^2/8-zCDP (Cesar, Rogers 2021). Not for Laplace noise, not for a session.
    In a group the lengths of the intervals add along a path of neighbours.
    """

    kind = "bounded-range.v1"

    def rho_delta(self) -> tuple[Fraction, Fraction]:
        return min(self.epsilon**2 / 8, _pure_rho(self.epsilon)), Fraction(0)

    def renyi_bound(self, order: Fraction) -> tuple[Fraction, Fraction]:
        return renyi.bounded_range_divergence(self.epsilon, order), Fraction(0)


@dataclass(frozen=True)
class DiscreteLaplace(Event):
    """Integer noise, ``Pr[x] ~ exp(-|x|/scale)`` on every coordinate of an integer vector.

    Args:
        scale: above 0, in the unit of the grid.
        sensitivity: the L1 sensitivity, a whole number of grid steps >= 1; sensitivity/scale is the
        epsilon and must be legal.
    """

    kind: ClassVar[str] = "discrete-laplace.v1"
    scale: Fraction
    sensitivity: int = 1

    def __post_init__(self) -> None:
        _check_fields(
            self, scale=_positive_check("scale"), sensitivity=_whole_check("sensitivity", 10**30)
        )
        amounts.check_epsilon(self.sensitivity / self.scale)

    def epsilon_delta(self) -> tuple[Fraction, Fraction]:
        return self.sensitivity / self.scale, Fraction(0)

    def rho_delta(self) -> tuple[Fraction, Fraction]:
        return _pure_rho(self.sensitivity / self.scale), Fraction(0)

    def renyi_bound(self, order: Fraction) -> tuple[Fraction, Fraction]:
        return renyi.discrete_laplace_divergence(self.scale, self.sensitivity, order), Fraction(0)

    def group_event(self, size: int) -> Event:
        return DiscreteLaplace(self.scale, self.sensitivity * _check_group_size(size))


@dataclass(frozen=True)
class Approximate(Event):
    """(epsilon, delta)-DP, nothing more known. epsilon in [1e-12, 1e6], delta 0 or in [1e-18, 1)."""

    kind: ClassVar[str] = "approximate.v1"
    epsilon: Fraction
    delta: Fraction

    def __post_init__(self) -> None:
        _check_fields(self, epsilon=amounts.check_epsilon, delta=amounts.check_delta)

    def epsilon_delta(self) -> tuple[Fraction, Fraction]:
        return self.epsilon, self.delta

    def rho_delta(self) -> tuple[Fraction, Fraction]:
        return _pure_rho(self.epsilon), self.delta

    def renyi_bound(self, order: Fraction) -> tuple[Fraction, Fraction]:
        return renyi.pure_divergence(self.epsilon, order), self.delta

    def group_event(self, size: int) -> Event:
        """(k eps, delta (1 + e^eps + ... + e^((k-1) eps))), by the triangle inequality along a path
        of k neighbours.
        """
        epsilon = self.epsilon * _check_group_size(size)
        # Without a delta the series below would divide nothing by nothing.
        if size == 1 or not self.delta:
            return Approximate(epsilon, self.delta)
        if epsilon > 100:  # (k-1) eps >= 50, so that even delta = 1e-18 grows past 1
            raise InvalidAmount(
                f"a group of {size} units has delta above 1 here; protect one unit, or lower epsilon."
            )
        # The numerator is rounded up and the denominator down, so the sum is an upper bound.
        series = (renyi.exp_up(epsilon) - 1) / (1 / renyi.exp_up(-self.epsilon) - 1)
        return Approximate(
            epsilon, amounts.to_units_up(self.delta * series, _DELTA_GRID) * _DELTA_GRID
        )


@dataclass(frozen=True)
class ZCDP(Event):
    """delta-approximate rho-zCDP (Bun, Steinke 2016). rho in [1e-24, 1e6], delta 0 or in [1e-18,
    1).
    """

    kind: ClassVar[str] = "zcdp.v1"
    rho: Fraction
    delta: Fraction = Fraction(0)

    def __post_init__(self) -> None:
        _check_fields(self, rho=amounts.check_rho, delta=amounts.check_delta)

    def rho_delta(self) -> tuple[Fraction, Fraction]:
        return self.rho, self.delta

    def group_event(self, size: int) -> Event:
        """(k^2 rho)-zCDP for delta = 0 (Bun, Steinke 2016, Prop. 1.9)."""
        if self.delta and size > 1:
            raise PlanRefused(
                "approximate zCDP has no group rule here; state the guarantee for the larger neighbours."
            )
        return ZCDP(self.rho * _check_group_size(size) ** 2, self.delta)


@dataclass(frozen=True)
class DiscreteGaussian(Event):
    """Integer noise, ``Pr[x] ~ exp(-x^2 / (2 sigma2))`` on every coordinate of an integer vector.

    It is ``sensitivity^2 / (2 sigma2)``-zCDP (Canonne, Kamath, Steinke 2020, Thm. 4 and Thm. 14),
    in any dimension.

    Args:
        sigma2: the parameter sigma squared, above 0, in squared grid units.
        sensitivity: the L2 sensitivity, above 0, in grid units; the resulting rho must be legal.
    """

    kind: ClassVar[str] = "discrete-gaussian.v1"
    sigma2: Fraction
    sensitivity: Fraction = Fraction(1)

    def __post_init__(self) -> None:
        _check_fields(
            self, sigma2=_positive_check("sigma2"), sensitivity=_positive_check("sensitivity")
        )
        amounts.check_rho(self.rho_delta()[0])

    def rho_delta(self) -> tuple[Fraction, Fraction]:
        return self.sensitivity**2 / (2 * self.sigma2), Fraction(0)

    def group_event(self, size: int) -> Event:
        return DiscreteGaussian(self.sigma2, self.sensitivity * _check_group_size(size))


@dataclass(frozen=True)
class Unprotected(Event):
    """No guarantee at all: for what runs on tables declared generalisation_only, whose scopes
    protect nobody.

    It costs nothing because nothing is protected; `make_plan` refuses it for any other table, and
    no other event holds it.
    """

    kind: ClassVar[str] = "unprotected.v1"

    def epsilon_delta(self) -> tuple[Fraction, Fraction]:
        return Fraction(0), Fraction(0)

    def rho_delta(self) -> tuple[Fraction, Fraction]:
        return Fraction(0), Fraction(0)

    def renyi_bound(self, order: Fraction) -> tuple[Fraction, Fraction]:
        return Fraction(0), Fraction(0)

    def group_event(self, size: int) -> Event:
        raise PlanRefused("an unprotected event has no guarantee that could be stated for groups.")


@dataclass(frozen=True)
class Composed(Event):
    """Several events of one release, later ones free to look at earlier outputs. At least one."""

    kind: ClassVar[str] = "composed.v1"
    events: tuple[Event, ...]

    def __post_init__(self) -> None:
        # A list would make the event unhashable, and it could change after it was checked.
        object.__setattr__(self, "events", tuple(self.events))
        if not self.events:
            raise PlanRefused("a composed event needs at least one event.")
        for event in self.events:
            _require_guarantee(event)

    def epsilon_delta(self) -> tuple[Fraction, Fraction] | None:
        pairs = [event.epsilon_delta() for event in self.events]
        finite = [pair for pair in pairs if pair is not None]
        return _sum_pairs(finite) if len(finite) == len(pairs) else None

    def rho_delta(self) -> tuple[Fraction, Fraction]:
        return _sum_pairs([event.rho_delta() for event in self.events])

    def renyi_bound(self, order: Fraction) -> tuple[Fraction, Fraction]:
        return _sum_pairs([event.renyi_bound(order) for event in self.events])

    def group_event(self, size: int) -> Event:
        return Composed(tuple(event.group_event(size) for event in self.events))


@dataclass(frozen=True)
class Repeated(Event):
    """The same event ``count`` times, adaptively; count from 1 to 1e12."""

    kind: ClassVar[str] = "repeated.v1"
    event: Event
    count: int

    def __post_init__(self) -> None:
        _require_guarantee(self.event)
        _check_fields(self, count=_whole_check("count", LARGEST_COUNT))

    def epsilon_delta(self) -> tuple[Fraction, Fraction] | None:
        pair = self.event.epsilon_delta()
        return None if pair is None else self._multiply_pair(pair)

    def rho_delta(self) -> tuple[Fraction, Fraction]:
        return self._multiply_pair(self.event.rho_delta())

    def renyi_bound(self, order: Fraction) -> tuple[Fraction, Fraction]:
        return self._multiply_pair(self.event.renyi_bound(order))

    def group_event(self, size: int) -> Event:
        return Repeated(self.event.group_event(size), self.count)

    def _multiply_pair(self, pair: tuple[Fraction, Fraction]) -> tuple[Fraction, Fraction]:
        return pair[0] * self.count, pair[1] * self.count


# --- JSON -------------------------------------------------------------------------------------------------------------

_LEAVES = (
    Pure,
    Approximate,
    ZCDP,
    BoundedRange,
    DiscreteLaplace,
    DiscreteGaussian,
    SparseVector,
    Unprotected,
)
_KINDS: Final[Mapping[str, type[Event]]] = {cls.kind: cls for cls in (*_LEAVES, Composed, Repeated)}


def check_supported(event: object) -> Event:
    """The event itself if its type is in the vocabulary; a stranger, a subclass included, raises
    `PlanRefused`.
    """
    # A subclass could answer with smaller amounts, so only the listed types themselves pass.
    if isinstance(event, Event) and type(event) in _KINDS.values():
        return event
    raise PlanRefused(
        f"an event of type {type(event).__name__} is not supported; use one of dpflow.core.accounting.events."
    )


def _require_guarantee(event: object) -> Event:
    """A known event that makes a guarantee: a part without one would make the whole look cheaper
    than it is.
    """
    if isinstance(event, Unprotected):
        raise PlanRefused(
            "an event without a privacy guarantee cannot be part of one that has a guarantee."
        )
    return check_supported(event)


def to_json(event: Event) -> dict[str, Any]:
    """The event as JSON: its kind with a version, and its fields, amounts as exact strings. Raises
    `PlanRefused`.
    """
    check_supported(event)
    names = [field.name for field in fields(event)]  # type: ignore[arg-type]
    return {"kind": event.kind} | {name: _encode_field(getattr(event, name)) for name in names}


def from_json(data: object) -> Event:
    """The event that `to_json` wrote, validated again. Raises `PlanRefused` or `InvalidAmount`."""
    return _decode_event(data, _DEEPEST)


def _encode_field(value: object) -> object:
    if isinstance(value, Event):
        return to_json(value)
    if isinstance(value, tuple):
        return [to_json(event) for event in value]
    return amounts.exact_text(value) if isinstance(value, Fraction) else value


def _decode_event(data: object, depth: int) -> Event:
    kind = data.get("kind") if isinstance(data, dict) else None
    cls = _KINDS.get(kind) if isinstance(kind, str) else None
    if not isinstance(data, dict) or cls is None:
        described = repr(kind)[:60] if isinstance(data, dict) else type(data).__name__
        raise PlanRefused(
            f"{described} is no kind of privacy event known here; known: {', '.join(sorted(_KINDS))}."
        )
    values = {name: value for name, value in data.items() if name != "kind"}
    expected = [f.name for f in fields(cls)]  # type: ignore[arg-type]
    # Missing and surplus fields are both refused: a ledger's event is read whole or not at all.
    if sorted(map(str, values)) != sorted(expected):
        raise PlanRefused(f"a {kind} event has exactly the fields {', '.join(expected)}.")
    # Stored JSON may come from anybody: bounded nesting keeps decoding from exhausting the stack.
    if depth == 0:
        raise PlanRefused(f"this event is nested more than {_DEEPEST} deep.")
    if "event" in values:
        values["event"] = _decode_event(values["event"], depth - 1)
    if "events" in values:
        if not isinstance(values["events"], list):
            raise PlanRefused("the events of a composed event are a list.")
        values["events"] = tuple(_decode_event(event, depth - 1) for event in values["events"])
    return cls(**values)


# --- checks -----------------------------------------------------------------------------------------------------------


def _check_fields(event: Event, **checks: Callable[[object], object]) -> None:
    """Replace the named fields by their validated values."""
    for name, check in checks.items():
        object.__setattr__(event, name, check(getattr(event, name)))


def _positive_check(name: str) -> Callable[[object], Fraction]:
    def check(value: object) -> Fraction:
        amount = amounts.parse_exact(name, value)
        if amount > 0:
            return amount
        raise InvalidAmount(f"{name} is {amounts.short_text(amount)}; it must be above 0.")

    return check


def _whole_check(name: str, largest: int) -> Callable[[object], int]:
    def check(value: object) -> int:
        amount = amounts.parse_exact(name, value)
        if amount.denominator == 1 and 1 <= amount <= largest:
            return int(amount)
        raise InvalidAmount(
            f"{name} is {amounts.short_text(amount)}; it must be a whole number from 1 to {largest}."
        )

    return check


def _check_group_size(size: int) -> int:
    return _whole_check("the size of a group", LARGEST_COUNT)(size)


def _pure_rho(epsilon: Fraction) -> Fraction:
    return min(epsilon**2 / 2, epsilon)  # the second: D_a <= epsilon <= epsilon * a


def _sum_pairs(pairs: list[tuple[Fraction, Fraction]]) -> tuple[Fraction, Fraction]:
    return sum((pair[0] for pair in pairs), Fraction(0)), sum(
        (pair[1] for pair in pairs), Fraction(0)
    )
