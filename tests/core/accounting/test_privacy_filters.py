from __future__ import annotations

import json
import math
from collections.abc import Callable
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from continuous_laplace import laplace_divergence
from hypothesis import given, settings
from hypothesis import strategies as st

from dpflow.core.accounting import pld, renyi
from dpflow.core.accounting.events import (
    ZCDP,
    Approximate,
    Composed,
    DiscreteGaussian,
    DiscreteLaplace,
    Event,
    Pure,
    SparseVector,
)
from dpflow.core.accounting.privacy_filters import (
    CLOSED,
    EPSILON_UNIT,
    SATURATED,
    Capacity,
    Cost,
    Filter,
    FilterName,
    default_filter,
    make_filter,
    prove_guarantee,
)
from dpflow.errors import InvalidAmount, InvalidDeclaration, PlanRefused

F = Fraction
DELTA = F(1, 10**6)
ORACLE = json.loads(Path(__file__).with_name("oracle_dp_accounting.json").read_text())


def jobs(capacity: Capacity, price: Cost) -> int:
    """Charges before the first refusal, as the ledger would count them."""
    spent, count = Cost(), 0
    while Filter.admits(capacity, spent + price):
        spent, count = spent + price, count + 1
    return count


def continuous_laplace(rule: Filter, epsilon: Fraction) -> Cost:
    """What continuous Laplace noise would cost; dpflow itself draws integers, so this is no event."""
    assert rule.order is not None
    price = rule.event_cost(Pure(epsilon))
    return Cost(price.epsilon, 0, math.ceil(laplace_divergence(epsilon, rule.order) / EPSILON_UNIT))


# --- the numbers of issue 3 -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("epsilon", "expected"), [("0.1", 10), ("0.01", 100)])
def test_basic_jobs(epsilon: str, expected: int) -> None:
    """A grant of eps 1 holds exactly 10 jobs of 0.1 and 100 of 0.01, one of eps 3 three times as
    many: no decimal is lost.
    """
    rule = make_filter("basic", F(1), DELTA)
    assert jobs(rule.capacity(), rule.event_cost(Pure(F(epsilon)))) == expected
    assert (
        jobs(make_filter("basic", F(3), DELTA).capacity(), rule.event_cost(Pure(F(epsilon))))
        == 3 * expected
    )


@pytest.mark.parametrize(
    ("name", "grant", "order", "continuous", "discrete"),
    [
        ("renyi", 1, 22.0, 492, 490),
        ("renyi", 3, 8.9, 3718, 3705),
        ("hybrid", 1, 22.0, 492, 490),
        ("hybrid", 3, 8.9, 3718, 3705),
    ],
)
def test_laplace_jobs(
    name: FilterName,
    grant: int,
    order: float,
    continuous: int,
    discrete: int,
) -> None:
    """Laplace 0.01 under one fixed order; integer noise of scale 100 costs a little more than
    continuous noise.
    """
    rule = make_filter(name, F(grant), DELTA, tail_share=F(1))
    assert rule.order is not None and float(rule.order) == pytest.approx(order, abs=0.05)
    assert rule.tail_delta == DELTA
    assert jobs(rule.capacity(), continuous_laplace(rule, F(1, 100))) == continuous
    assert jobs(rule.capacity(), rule.event_cost(DiscreteLaplace(F(100)))) == discrete
    assert jobs(rule.capacity(), rule.event_cost(Pure(F(1, 100)))) == discrete


@pytest.mark.parametrize("name", ["renyi", "hybrid"])
def test_gaussian_jobs(name: FilterName) -> None:
    """Gaussian sigma 50 at eps 1."""
    rule = make_filter(name, F(1), DELTA, tail_share=F(1))
    assert jobs(rule.capacity(), rule.event_cost(DiscreteGaussian(F(2500)))) == 121


def test_a_grid_of_orders_gains_nothing() -> None:
    """The best of all orders for a schedule of Gaussians holds 121 jobs as well: one order fixed at
    the grant is enough.
    """
    assert renyi.smallest_epsilon(lambda order: F(121, 5000) * order, DELTA) <= 1
    assert renyi.smallest_epsilon(lambda order: F(122, 5000) * order, DELTA) > 1


def test_the_same_numbers_from_dp_accounting() -> None:
    """Recorded by oracle_dp_accounting.py in its own environment: the same jobs, the same
    conversions.
    """
    recorded = ORACLE["jobs"]
    one, three = make_filter("renyi", F(1), DELTA), make_filter("renyi", F(3), DELTA)
    assert (
        jobs(one.capacity(), continuous_laplace(one, F(1, 100)))
        == recorded["laplace 0.01, eps 1, order 22.0"]
    )
    assert (
        jobs(three.capacity(), continuous_laplace(three, F(1, 100)))
        == recorded["laplace 0.01, eps 3, order 8.9"]
    )
    assert (
        jobs(one.capacity(), one.event_cost(DiscreteGaussian(F(2500))))
        == recorded["gaussian 50, eps 1, order 22.0"]
    )
    for scale, order, epsilon in ORACLE["rdp eps at one order, one laplace"]:
        a = F(str(order))
        ours = laplace_divergence(1 / F(str(scale)), a) + renyi.conversion_penalty(a, DELTA)
        assert float(ours) == pytest.approx(epsilon, rel=1e-9)


# --- properties -------------------------------------------------------------------------------------------------------

EPSILONS = st.fractions(min_value=F(1, 1000), max_value=5, max_denominator=1000)


@settings(max_examples=40)
@given(EPSILONS, st.lists(EPSILONS, max_size=12))
def test_hybrid_admits_whatever_basic_admits(grant: Fraction, steps: list[Fraction]) -> None:
    """Never fewer jobs than basic for pure events."""
    basic, hybrid = (make_filter(name, grant, DELTA) for name in ("basic", "hybrid"))
    spent_basic = spent_hybrid = Cost()
    for step in steps:
        price = basic.event_cost(Pure(step))
        if Filter.admits(basic.capacity(), spent_basic + price):
            assert Filter.admits(hybrid.capacity(), spent_hybrid + hybrid.event_cost(Pure(step)))
            spent_basic, spent_hybrid = (
                spent_basic + price,
                spent_hybrid + hybrid.event_cost(Pure(step)),
            )


@pytest.mark.parametrize("name", ["basic", "renyi", "hybrid"])
@pytest.mark.parametrize(
    ("epsilon", "delta"), [("1e-12", "1e-18"), ("1", "1e-6"), ("0.1", "0.9"), ("1e6", "0.5")]
)
def test_json_round_trip_and_bounds_of_every_grant(
    name: FilterName, epsilon: str, delta: str
) -> None:
    """Extreme grants have a capacity that fits BIGINT, below saturation, and survive JSON exactly."""
    rule = make_filter(name, F(epsilon), F(delta))
    assert Filter.from_json(json.loads(json.dumps(rule.to_json()))) == rule
    capacity = rule.capacity()
    for number in (capacity.epsilon, capacity.delta, capacity.renyi, capacity.renyi_delta):
        assert CLOSED <= number < SATURATED


def test_a_price_is_rounded_up_and_never_zero() -> None:
    """A third is paid in full; the smallest legal release costs a unit on every path."""
    rule = make_filter("hybrid", F(1), DELTA)
    assert rule.event_cost(Pure(F(1, 3))).epsilon == 333333333334
    smallest = rule.event_cost(Pure(F(1, 10**12)))
    assert smallest.epsilon == 1 and smallest.renyi == 1


def test_a_saturated_path_stays_closed_and_never_overflows() -> None:
    """After one Gaussian the basic path of a hybrid grant stays closed; clamped sums fit
    BIGINT.
    """
    rule = make_filter("hybrid", F(1), DELTA)
    gaussian = rule.event_cost(DiscreteGaussian(F(2500)))
    assert gaussian.epsilon == SATURATED and 2 * SATURATED < 2**63
    spent = gaussian + gaussian + rule.event_cost(Pure(F(1, 100)))
    assert spent.epsilon == SATURATED
    assert Filter.admits(rule.capacity(), spent + rule.event_cost(Pure(F(1, 100)))), (
        "the Renyi path goes on"
    )
    assert not Filter.admits(rule.capacity(), spent + rule.event_cost(Pure(F(9, 10))))
    assert rule.event_cost(ZCDP(F(10**6))).renyi == SATURATED


def test_closed_paths_admit_nothing() -> None:
    """A capacity of -1 is below every sum, zero included."""
    assert not Filter.admits(Capacity(CLOSED, 0, CLOSED, CLOSED), Cost())
    assert not Filter.admits(Capacity(5, CLOSED, CLOSED, 5), Cost())
    assert Filter.admits(Capacity(0, 0, CLOSED, CLOSED), Cost())


def test_hybrid_without_delta_is_basic() -> None:
    """A pure promise has no tail to spend."""
    rule = make_filter("hybrid", F(1), F(0))
    assert rule.order is None
    assert (
        rule.capacity()
        == make_filter("basic", F(1), F(0)).capacity()
        == Capacity(10**12, 0, CLOSED, CLOSED)
    )


def test_the_grant_divides_delta() -> None:
    """The tail's share and the mechanisms' share add up to delta; both paths leave the same room."""
    rule = make_filter("hybrid", F(1), DELTA, tail_share=F(1, 4))
    assert rule.tail_delta == DELTA / 4
    assert rule.capacity().delta == rule.capacity().renyi_delta == 75 * 10**10
    assert rule.event_cost(Approximate(F(1, 10), F(1, 10**7))) == Cost(
        10**11, 10**11, rule.event_cost(Pure(F(1, 10))).renyi
    )
    assert jobs(rule.capacity(), rule.event_cost(Approximate(F(1, 100), F(1, 10**7)))) == 7
    assert make_filter("renyi", F(1), DELTA, tail_share=F(1, 4)).capacity().delta == CLOSED


def test_events_that_no_grant_could_pay_are_refused_with_the_way_out() -> None:
    """Gaussian noise under basic; a mechanism's own delta where the grant left none."""
    for epsilon_free in (
        DiscreteGaussian(F(2500)),
        ZCDP(F(1, 100)),
        Composed((Pure(F(1)), ZCDP(F(1, 100)))),
    ):
        for rule in (make_filter("basic", F(1), DELTA), make_filter("hybrid", F(1), F(0))):
            with pytest.raises(PlanRefused, match="grant the scope with filter renyi or hybrid"):
                rule.event_cost(epsilon_free)
    for name in ("renyi", "hybrid"):
        with pytest.raises(PlanRefused, match="tail_share below 1"):
            rule = make_filter(name, F(1), DELTA, tail_share=F(1))
            rule.event_cost(Approximate(F(1, 10), F(1, 10**9)))

    class Free(Pure):
        pass

    with pytest.raises(PlanRefused, match="type Free is not supported"):
        make_filter("basic", F(1), DELTA).event_cost(Free(F(1, 10)))
    with pytest.raises(PlanRefused, match="leaves none for mechanisms"):
        make_filter("basic", F(1), F(0)).event_cost(Approximate(F(1, 10), F(1, 10**9)))


@pytest.mark.parametrize(
    ("name", "epsilon", "delta", "share", "message"),
    [
        ("renyi", F(1), F(0), F(1), "renyi filter needs delta > 0"),
        ("hybrid", F(1), DELTA, F(0), "tail_share is 0"),
        ("hybrid", F(1), DELTA, F(2), "tail_share is 2"),
        ("hybrid", F(1), F(1, 10**18), F(1, 2), "below 1e-18"),
        ("basic", F(0), F(0), F(1), "epsilon is 0"),
        ("basic", float("nan"), F(0), F(1), "epsilon is nan"),
        ("basic", F(1), F(1), F(1), "delta is 1"),
    ],
)
def test_bad_grants_are_refused(
    name: Any, epsilon: Any, delta: Any, share: Any, message: str
) -> None:
    """A grant is checked before anything else happens."""
    with pytest.raises(InvalidAmount, match=message):
        make_filter(name, epsilon, delta, tail_share=share)


@pytest.mark.parametrize(
    "change",
    [
        {"name": "pld"},
        {"conversion": "tail"},
        {"order": None},
        {"tail_delta": "0"},
        {"tail_delta": "0.5"},
        {"version": 2},
    ]
    + [{"name": "basic"}, {"extra": 1}],
)
def test_a_stored_filter_that_contradicts_itself_is_refused(change: dict[str, Any]) -> None:
    """Reading a filter back checks it again; an unknown filter is never taken for a known one."""
    stored = make_filter("hybrid", F(1), DELTA).to_json() | change
    with pytest.raises(InvalidDeclaration, match="filter"):
        Filter.from_json(stored)
    with pytest.raises(InvalidAmount, match="order is 1"):
        Filter.from_json(make_filter("hybrid", F(1), DELTA).to_json() | {"order": "1"})


def test_the_default_filter_pays_for_every_event() -> None:
    """Hybrid with a delta, half of which pays mechanisms' own; basic without one, and where nobody is
    protected.
    """
    assert default_filter(DELTA) == "hybrid"
    assert default_filter(F(0)) == default_filter(DELTA, is_protected=False) == "basic"
    rule = make_filter("hybrid", F(1), DELTA)
    assert rule.tail_delta == DELTA / 2 and make_filter("renyi", F(1), DELTA).tail_delta == DELTA
    for event in (Pure(F(1, 10)), Approximate(F(1, 10), DELTA / 2), DiscreteGaussian(F(2500))):
        assert Filter.admits(rule.capacity(), rule.event_cost(event))


@pytest.mark.parametrize("share", [F(1), F(1, 2)])
@pytest.mark.parametrize(
    ("event", "grant"),
    [(DiscreteLaplace(F(20)), F(3)), (Pure(F(1, 20)), F(1, 2)), (DiscreteGaussian(F(100)), F(3))],
)
def test_a_full_hybrid_grant_is_within_its_promise(
    event: Event, grant: Fraction, share: Fraction
) -> None:
    """As many equal releases as it holds cost no more by their exact loss distribution (PLD)."""
    rule = make_filter("hybrid", grant, DELTA, tail_share=share)
    exact = pld.report_epsilon([(event, jobs(rule.capacity(), rule.event_cost(event)))], DELTA)
    assert exact is not None and 0.5 * grant < exact <= grant


def test_an_unknown_filter_is_refused() -> None:
    """PLD composition is no filter and cannot be asked for."""
    unknown: Any = "pld"
    with pytest.raises(InvalidDeclaration, match="no filter 'pld'"):
        make_filter(unknown, F(1), DELTA)


def test_odometer() -> None:
    """The report takes the better path, and its full-grant value does not exceed the promise."""
    rule = make_filter("hybrid", F(1), DELTA, tail_share=F(1))
    assert prove_guarantee(Cost(), rule).epsilon == 0
    few, many = Cost(), Cost()
    price = rule.event_cost(Pure(F(1, 100)))
    for _ in range(490):
        few, many = (few + price if few.epsilon < 10 * price.epsilon else few), many + price
    assert (prove_guarantee(few, rule).epsilon, prove_guarantee(few, rule).via) == (
        F(1, 10),
        "basic",
    )
    report = prove_guarantee(many, rule)
    assert report.via == "renyi" and F(99, 100) < report.epsilon <= 1 and report.delta == DELTA
    assert prove_guarantee(many, rule, F(1, 100)).epsilon < report.epsilon
    with pytest.raises(InvalidAmount, match="nothing finite"):
        prove_guarantee(Cost(SATURATED, 0, 5), rule, F(0))


# --- validity under fully adaptive choice, exactly --------------------------------------------------------------------

Counts = tuple[int, ...]


def worst_divergence(
    admits: Callable[[Counts], bool], grant: float, unit: float, menu: Counts, leak: float = 0
) -> float:
    """The largest hockey-stick divergence at ``grant`` that any adaptive analyst can reach, by
    dynamic programming.

    The analyst sees every outcome so far and then asks randomised response with epsilon ``m *
    unit`` for an m of the menu, or stops; ``admits`` decides from the counts of what was asked.
    Randomised response is the worst mechanism of its epsilon, so this is the exact worst case over
    all mechanisms with epsilons from the menu. With ``leak`` each answer gives the secret away with
    that probability: the worst (epsilon, leak)-DP mechanism.
    """
    right = {m: 1 / (1 + math.exp(-m * unit)) for m in menu}

    @cache
    def value(counts: Counts, loss: int) -> float:
        best = max(0.0, -math.expm1(grant - loss * unit))
        for i, m in enumerate(menu):
            asked = counts[:i] + (counts[i] + 1,) + counts[i + 1 :]
            if admits(asked):
                go_on = right[m] * value(asked, loss + m) + (1 - right[m]) * value(asked, loss - m)
                best = max(best, leak + (1 - leak) * go_on)
        return best

    return value((0,) * len(menu), 0)


def ledger_rule(rule: Filter, menu: list[Event]) -> Callable[[Counts], bool]:
    capacity, prices = rule.capacity(), [rule.event_cost(event) for event in menu]

    def admits(counts: Counts) -> bool:
        total = [
            sum(n * getattr(p, part) for n, p in zip(counts, prices, strict=True))
            for part in ("epsilon", "delta", "renyi")
        ]
        return Filter.admits(capacity, Cost(*total))

    return admits


@pytest.mark.parametrize("name", ["basic", "renyi", "hybrid"])
@pytest.mark.parametrize(
    ("grant", "delta", "unit", "menu"),
    [("1", "0.05", "0.05", (1, 12)), ("2", "0.2", "0.2", (1, 4)), ("1", "0.2", "0.25", (1, 2, 4))],
)
def test_no_adaptive_analyst_gets_past_a_filter(
    name: FilterName, grant: str, delta: str, unit: str, menu: Counts
) -> None:
    """Exact worst case over all adaptive analysts: the divergence at the grant's epsilon is at most
    its delta.
    """
    rule = make_filter(name, F(grant), F(delta), tail_share=F(1))
    events: list[Event] = [Pure(F(unit) * m) for m in menu]
    worst = worst_divergence(ledger_rule(rule, events), float(grant), float(unit), menu)
    assert worst <= float(delta)
    if name == "hybrid" and grant != "1":
        assert worst > 0, "the analyst did get beyond the basic path"


@pytest.mark.parametrize("name", ["basic", "renyi", "hybrid"])
def test_no_adaptive_analyst_gets_past_a_filter_with_leaking_mechanisms(name: FilterName) -> None:
    """The same for mechanisms with a delta of their own: tail and leaks together stay within delta."""
    rule = make_filter(name, F(1), F(1, 5), tail_share=F(1, 2))
    events: list[Event] = [Approximate(F(1, 4) * m, F(1, 50)) for m in (1, 2)]
    worst = worst_divergence(ledger_rule(rule, events), 1.0, 0.25, (1, 2), leak=1 / 50)
    assert 0.05 < worst <= 0.2


def test_pld_composition_is_no_filter() -> None:
    """Negative control: 'go on while the exact divergence of what was asked is at most delta' is
    beaten by an analyst.
    """
    grant, delta, unit, menu = 1.0, 0.05, 0.2, (1, 2)

    @cache
    def exact_divergence_allows(counts: Counts) -> bool:
        losses = {0: 1.0}
        for m, count in zip(menu, counts, strict=True):
            p = 1 / (1 + math.exp(-m * unit))
            for _ in range(count):
                spread: dict[int, float] = {}
                for loss, mass in losses.items():
                    spread[loss + m] = spread.get(loss + m, 0) + mass * p
                    spread[loss - m] = spread.get(loss - m, 0) + mass * (1 - p)
                losses = spread
        return (
            sum(mass * max(0.0, -math.expm1(grant - loss * unit)) for loss, mass in losses.items())
            <= delta
        )

    assert worst_divergence(exact_divergence_allows, grant, unit, menu) == pytest.approx(
        0.05996, abs=1e-5
    )


def test_leaks_charged_to_nobody_are_caught() -> None:
    """Negative control: spending the whole delta on the tail and ignoring the mechanisms' own delta
    breaks the promise.
    """
    rule = make_filter("renyi", F(1), F(1, 5))
    blind = ledger_rule(rule, [Pure(F(1, 4)), Pure(F(1, 2))])
    assert worst_divergence(blind, 1.0, 0.25, (1, 2), leak=1 / 50) > 0.2


def test_a_session_costs_what_its_simulation_costs() -> None:
    """A sparse vector session is paid like randomised response of its epsilon on every path, never
    less.
    """
    for name in ("basic", "renyi", "hybrid"):
        rule = make_filter(name, F(1), DELTA)
        assert rule.event_cost(SparseVector(F(1, 10))) == rule.event_cost(Pure(F(1, 10)))
