from __future__ import annotations

import json
import math
from fractions import Fraction
from typing import Any

import pytest

from dpflow.core.accounting import renyi
from dpflow.core.accounting.events import (
    ZCDP,
    Approximate,
    BoundedRange,
    Composed,
    DiscreteGaussian,
    DiscreteLaplace,
    Event,
    Pure,
    Repeated,
    SparseVector,
    from_json,
    to_json,
)
from dpflow.errors import InvalidAmount, PlanRefused

F = Fraction
TENTH, ZERO = F(1, 10), F(0)
EVERY_KIND: list[Event] = [
    Pure(TENTH),
    Approximate(TENTH, F(1, 10**6)),
    ZCDP(F(1, 200)),
    ZCDP(F(1, 200), F(1, 10**9)),
    BoundedRange(F(1, 3)),
    DiscreteLaplace(F(20, 3), 2),
    DiscreteGaussian(F(2500), F(3, 2)),
    SparseVector(TENTH),
    Composed((Pure(TENTH), BoundedRange(TENTH))),
    Repeated(DiscreteGaussian(F(100)), 100),
]


@pytest.mark.parametrize("event", EVERY_KIND, ids=lambda event: type(event).__name__)
def test_json_round_trip(event: Event) -> None:
    """Every kind survives JSON exactly."""
    assert from_json(json.loads(json.dumps(to_json(event)))) == event


@pytest.mark.parametrize(
    "data",
    [
        None,
        [],
        "pure.v1",
        {},
        {"kind": "pure.v2", "epsilon": "1"},
        {"kind": ["pure.v1"]},
        {"kind": "pld.v1"},
    ],
)
def test_an_unknown_kind_is_refused(data: object) -> None:
    """Unknown means unsupported, never free."""
    with pytest.raises(
        PlanRefused, match="no kind of privacy event known here; known: approximate.v1"
    ):
        from_json(data)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"kind": "pure.v1"}, "exactly the fields epsilon"),
        ({"kind": "pure.v1", "epsilon": "1", "free": True}, "exactly the fields epsilon"),
        ({"kind": "composed.v1", "events": "x"}, "are a list"),
        ({"kind": "composed.v1", "events": []}, "at least one event"),
        ({"kind": "repeated.v1", "count": 1, "event": 3}, "int is no kind"),
    ],
)
def test_a_malformed_event_is_refused(data: dict[str, Any], message: str) -> None:
    """Missing, extra and mistyped fields are refused by name."""
    with pytest.raises(PlanRefused, match=message):
        from_json(data)


def test_a_deeply_nested_event_is_refused() -> None:
    """Decoding does not recurse without bound."""
    data: dict[str, Any] = {"kind": "pure.v1", "epsilon": "1"}
    for _ in range(500):
        data = {"kind": "repeated.v1", "event": data, "count": 1}
    with pytest.raises(PlanRefused, match="nested more than 32 deep"):
        from_json(data)


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (Pure, (F(0),)),
        (Pure, (float("nan"),)),
        (BoundedRange, (F(-1),)),
        (Approximate, (TENTH, F(1))),
        (ZCDP, (F(0),)),
        (DiscreteLaplace, (F(0), 1)),
        (DiscreteLaplace, (F(1), 0)),
        (DiscreteLaplace, (F(1), F(3, 2))),
        (DiscreteLaplace, (F(1, 10**9), 1)),
        (DiscreteGaussian, (F(-4),)),
        (Repeated, (Pure(TENTH), 0)),
        (Repeated, (Pure(TENTH), True)),
    ],
)
def test_events_validate_themselves(kind: Any, values: tuple[Any, ...]) -> None:
    """No event with an illegal amount exists, so no accountant can meet one."""
    with pytest.raises(InvalidAmount, match="must be"):
        kind(*values)


def test_a_stranger_has_no_json() -> None:
    """The vocabulary is closed: a subclass is not an event, neither alone nor inside another."""

    class Free(Pure):
        pass

    with pytest.raises(PlanRefused, match="type Free is not supported"):
        to_json(Free(TENTH))
    with pytest.raises(PlanRefused, match="type Free is not supported"):
        Composed((Pure(TENTH), Free(TENTH)))
    with pytest.raises(PlanRefused, match="type Free is not supported"):
        Repeated(Free(TENTH), 2)


def test_conversions_to_epsilon_and_zcdp() -> None:
    """The textbook values, exactly."""
    assert DiscreteLaplace(F(100), 3).epsilon_delta() == (F(3, 100), ZERO)
    assert Pure(TENTH).rho_delta() == (F(1, 200), ZERO)
    assert BoundedRange(TENTH).rho_delta() == (F(1, 800), ZERO)
    assert SparseVector(TENTH).rho_delta() == Pure(TENTH).rho_delta()
    assert DiscreteGaussian(F(2500), F(2)).rho_delta() == (F(4, 5000), ZERO)
    assert DiscreteGaussian(F(2500)).epsilon_delta() is None
    assert Composed((Approximate(TENTH, F(1, 10**6)), Pure(TENTH))).epsilon_delta() == (
        F(1, 5),
        F(1, 10**6),
    )
    assert Composed((ZCDP(TENTH), Pure(TENTH))).epsilon_delta() is None
    assert Repeated(Approximate(TENTH, F(1, 10**6)), 3).epsilon_delta() == (F(3, 10), F(3, 10**6))
    assert Pure(F(5)).rho_delta() == (F(5), ZERO), (
        "for large epsilon, epsilon itself is the smaller rho"
    )


@pytest.mark.parametrize("order", [F(11, 10), F(2), F(17, 2), F(22), F(1000)])
@pytest.mark.parametrize(("scale", "shift"), [(F(1, 2), 1), (F(2), 1), (F(3), 5), (F(40), 7)])
def test_discrete_laplace_curve_equals_the_sum_of_its_series(
    scale: Fraction, shift: int, order: Fraction
) -> None:
    """The closed form is the divergence summed term by term, to float accuracy, and never below it."""
    t, a, reach = float(1 / scale), float(order), int(40 * scale * 2) + 60
    log_norm = math.log(math.tanh(t / 2))
    terms = [
        log_norm - t * (a * abs(x) + (1 - a) * abs(x - shift)) for x in range(-reach, reach + shift)
    ]
    top = max(terms)
    direct = (top + math.log(math.fsum(math.exp(term - top) for term in terms))) / (a - 1)
    assert float(renyi.discrete_laplace_divergence(scale, shift, order)) == pytest.approx(
        direct, rel=1e-9
    )


def test_discrete_laplace_spread_over_coordinates_costs_no_more() -> None:
    """The curve is superadditive in the shift: an L1 sensitivity in one coordinate is the worst
    case.
    """
    for order in (F(3, 2), F(9), F(60)):
        curve = [F(0)] + [renyi.discrete_laplace_divergence(F(3), d, order) for d in range(1, 13)]
        assert all(curve[a] + curve[b] <= curve[a + b] for a in range(1, 7) for b in range(1, 7))


@pytest.mark.parametrize("order", [F(10001, 10000), F(2), F(22), F(10**12)])
@pytest.mark.parametrize("epsilon", [F(1, 10**12), F(1, 100), F(1), F(10**6)])
def test_pure_curve_lies_between_its_known_bounds(epsilon: Fraction, order: Fraction) -> None:
    """At most epsilon and order epsilon^2/2 at all scales, and never below the divergence of the
    worst mechanism.
    """
    value = renyi.pure_divergence(epsilon, order)
    slack = 1 + F(1, 10**39)
    assert 0 < value <= min(epsilon, order * epsilon**2 / 2) * slack
    if epsilon == 1 and order < 100:
        p, a = 1 / (1 + math.exp(-1)), float(order)
        assert float(value) == pytest.approx(
            math.log(p**a * (1 - p) ** (1 - a) + (1 - p) ** a * p ** (1 - a)) / (a - 1)
        )


def test_bounded_range_is_a_fourth_of_pure_for_small_epsilon_and_never_more() -> None:
    """The exponential mechanism gets its better curve; a sparse vector session does not."""
    for epsilon in (F(1, 100), F(1), F(30)):
        assert (
            BoundedRange(epsilon).renyi_bound(F(22))[0]
            <= SparseVector(epsilon).renyi_bound(F(22))[0]
        )
    assert BoundedRange(F(1, 100)).renyi_bound(F(22))[0] == F(22, 80000)
    assert SparseVector(F(1, 100)).renyi_bound(F(22)) == Pure(F(1, 100)).renyi_bound(F(22))


def test_group_privacy() -> None:
    """k units: k eps; k^2 rho; the geometric series of delta."""
    assert Pure(TENTH).group_event(3) == Pure(F(3, 10))
    assert ZCDP(F(1, 200)).group_event(3) == ZCDP(F(9, 200))
    assert DiscreteLaplace(F(10)).group_event(4) == DiscreteLaplace(F(10), 4)
    assert DiscreteGaussian(F(9)).group_event(4).rho_delta() == (F(16, 18), ZERO)
    grown = Approximate(TENTH, F(1, 10**6)).group_event(3)
    assert isinstance(grown, Approximate) and grown.epsilon == F(3, 10)
    assert float(grown.delta) == pytest.approx(
        1e-6 * (1 + math.exp(0.1) + math.exp(0.2)), rel=1e-12
    )
    assert Composed((Pure(TENTH), SparseVector(TENTH))).group_event(2).epsilon_delta() == (
        F(2, 5),
        ZERO,
    )
    for event in EVERY_KIND:
        assert event.group_event(1) == event


def test_replacing_a_unit_costs_twice_and_more() -> None:
    """(2 eps, (1 + e^eps) delta), rounded up."""
    replaced = Approximate(F(1), F(1, 10**6)).group_event(2)
    assert isinstance(replaced, Approximate) and replaced.epsilon == 2
    exactly = F(1, 10**6) * (1 + renyi.exp_up(F(1)))
    assert 0 <= replaced.delta - exactly < F(1, 10**29)


def test_group_claims_that_mean_nothing_are_refused() -> None:
    """A delta of 1 or more, an epsilon out of range, a group of no one, and a rule that does not
    exist.
    """
    with pytest.raises(InvalidAmount, match="delta above 1"):
        Approximate(F(1), F(1, 10**6)).group_event(1000)
    with pytest.raises(InvalidAmount, match="delta is"):
        Approximate(F(1), F(1, 10**6)).group_event(20)
    with pytest.raises(InvalidAmount, match="epsilon is"):
        Pure(F(1000)).group_event(10**6)
    with pytest.raises(InvalidAmount, match="size of a group is 0"):
        Pure(TENTH).group_event(0)
    with pytest.raises(PlanRefused, match="no group rule"):
        ZCDP(TENTH, F(1, 10**6)).group_event(2)


def test_epsilon_at_a_delta() -> None:
    """k-fold Gaussian: at most 5.23 by Renyi DP where the exact value is 4.887; nothing below an
    event's own delta.
    """
    found = Repeated(DiscreteGaussian(F(100)), 100).epsilon_at(F(1, 10**6))
    assert found is not None and 4.887 < found <= F(523, 100)
    assert float(found) == pytest.approx(5.22153, abs=1e-4)
    assert Pure(TENTH).epsilon_at(F(0)) == TENTH
    assert DiscreteGaussian(F(100)).epsilon_at(F(0)) is None
    assert Approximate(TENTH, F(1, 10**6)).epsilon_at(F(1, 10**7)) is None
    many = Repeated(Pure(F(1, 100)), 400).epsilon_at(F(1, 10**6))
    assert many is not None and many < 4
