from __future__ import annotations

import json
import math
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import pytest

from dpflow.core.accounting import composition as c
from dpflow.errors import InvalidAmount

F = Fraction
ORACLE = json.loads(Path(__file__).with_name("oracle_dp_accounting.json").read_text())
Formula = Callable[[float, float, int], float]
PAIRS: list[tuple[Formula, Formula]] = [
    (c.total_eps, c.step_eps),
    (c.lecture_total_eps, c.lecture_step_eps),
    (c.coarse_total_eps, c.coarse_step_eps),
    (c.range_total_eps, c.range_step_eps),
]


def test_goldens_of_the_papers() -> None:
    """The specifications' golden numbers for DP-5 and the lecture's composition."""
    assert c.step_eps(0.05, 0.025 / 256, 1000) == pytest.approx(3.6742781e-4, rel=1e-8)
    assert c.step_eps(0.05, 0.025 / 256, 10) == pytest.approx(3.6742781e-3, rel=1e-8)
    assert c.lecture_total_eps(0.001, 1e-5, 1000) == pytest.approx(0.15274321, abs=5e-9)
    assert c.lecture_total_eps(0.01, 1e-6, 100) == pytest.approx(0.53570234, abs=5e-9)


def test_step_eps_is_its_closed_form() -> None:
    """DP-5: (sqrt(2L + 2E) - sqrt(2L)) / sqrt(k)."""
    for total, delta, count in ((0.05, 1e-4, 7), (3.0, 1e-6, 1000), (40.0, 0.5, 1)):
        log = math.log(1 / delta)
        closed = (math.sqrt(2 * log + 2 * total) - math.sqrt(2 * log)) / math.sqrt(count)
        assert c.step_eps(total, delta, count) == pytest.approx(closed, rel=1e-12)


def test_coarse_step_is_its_closed_form() -> None:
    """The private-learning paper's inverse: (-A + sqrt(A^2 + 8 k E)) / (4 k)."""
    a = math.sqrt(2 * 1000 * math.log(1e6))
    assert c.coarse_step_eps(1.0, 1e-6, 1000) == pytest.approx(
        (-a + math.sqrt(a * a + 8000)) / 4000, rel=1e-12
    )


@pytest.mark.parametrize(("total", "step"), PAIRS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("epsilon", [1e-9, 0.05, 1.0, 20.0])
@pytest.mark.parametrize("count", [1, 37, 10**6])
def test_a_step_never_overspends(total: Formula, step: Formula, epsilon: float, count: int) -> None:
    """Inverses round down: the total of the step is within what was asked, and a slightly larger
    step is not.
    """
    each = step(epsilon, 1e-6, count)
    assert total(each, 1e-6, count) <= epsilon < total(each * (1 + 1e-12), 1e-6, count)


def test_bounded_range_doubles_the_step() -> None:
    """DP-6: the exponential mechanism may use exactly twice the epsilon."""
    assert c.range_step_eps(0.05, 1e-4, 100) == 2 * c.step_eps(0.05, 1e-4, 100)
    expected = 100 * 0.2**2 / 8 + 0.2 * math.sqrt(100 * math.log(1e6) / 2)
    assert c.range_total_eps(0.2, 1e-6, 100) == pytest.approx(expected)


def test_compose_takes_the_better_of_sums_and_theorem_2_4() -> None:
    """Many small steps gain from advanced composition; a single step does not."""
    epsilon, delta = c.compose_adaptive([(F(1, 100), F(1, 10**9))] * 1000, 1e-6)
    assert epsilon == pytest.approx(c.total_eps(0.01, 1e-6, 1000)) and delta == pytest.approx(2e-6)
    assert c.compose_adaptive([(F(1, 2), F(1, 4))], 1e-6) == (0.5, 0.25)
    assert c.compose_adaptive([], 1e-6) == (0.0, 0.0)
    squares = 0.1**2 * 200 + 0.2**2 * 100
    mixed = c.compose_adaptive([(F(1, 10), F(0))] * 200 + [(F(1, 5), F(0))] * 100, 1e-6)
    assert mixed[0] == pytest.approx(squares / 2 + math.sqrt(2 * math.log(1e6) * squares))


@pytest.mark.parametrize("shares", [[F(1)], [F(1), F(2)], [F(1)] * 90 + [F(7, 2)] * 10])
@pytest.mark.parametrize("epsilon", [0.01, 1.0, 30.0])
def test_compose_backwards(shares: list[Fraction], epsilon: float) -> None:
    """The proportions stay, the total is within what was asked, and a slightly larger factor is
    not.
    """
    steps = c.compose_steps(shares, epsilon, 1e-6)
    assert {step / share for step, share in zip(steps, shares, strict=True)} == {
        steps[0] / shares[0]
    }
    assert c.compose_adaptive([(step, F(0)) for step in steps], 1e-6)[0] <= epsilon
    more = [(step * (1 + F(1, 10**12)), F(0)) for step in steps]
    assert c.compose_adaptive(more, 1e-6)[0] > epsilon


def test_compose_backwards_is_step_eps_for_equal_steps() -> None:
    """Many equal steps: the closed form of DP-5. A few: the plain quotient. None: nothing."""
    assert float(c.compose_steps([F(1)] * 1000, 1.0, 1e-6)[0]) == pytest.approx(
        c.step_eps(1.0, 1e-6, 1000), rel=1e-12
    )
    assert c.compose_steps([F(1)] * 4, 1, 1e-6) == [F(1, 4)] * 4
    assert c.compose_steps([], 1.0, 1e-6) == []
    with pytest.raises(InvalidAmount, match="epsilon must be above 0"):
        c.compose_steps([F(0)], 1.0, 1e-6)


def test_parallel_blocks_cost_the_dearest_block() -> None:
    """Each block sums its own steps; the maximum is what one unit pays."""
    a, b = (F(1, 10), F(1, 10**6)), (F(1, 4), F(0))
    assert c.compose_parallel([[a, a], [b], []]) == (F(1, 4), F(2, 10**6))
    assert c.compose_parallel([]) == (F(0), F(0))


def test_optimal_composition_is_the_exact_divergence() -> None:
    """k-fold randomised response, against dp-accounting's PLD, the sum over outcomes, and the
    formula it must beat.
    """
    recorded = ORACLE["pld delta, discrete laplace 0.01, k 490, eps 1"]
    assert recorded * 0.998 < c.optimal_delta(0.01, 1.0, 490) < recorded, (
        "dp-accounting rounds losses up to a grid"
    )
    p = 1 / (1 + math.exp(-0.5))
    masses = [(p * p, 1.0), (2 * p * (1 - p), 0.0), ((1 - p) ** 2, -1.0)]
    by_hand = sum(mass * max(0.0, 1 - math.exp(0.3 - loss)) for mass, loss in masses)
    assert c.optimal_delta(0.5, 0.3, 2) == pytest.approx(by_hand)
    assert c.optimal_eps(0.01, 1e-6, 1000) < c.total_eps(0.01, 1e-6, 1000)
    assert c.optimal_eps(0.01, 1e-6, 1) == pytest.approx(0.01, abs=1e-5)


def test_exact_gaussian() -> None:
    """sigma 10, k 100, delta 1e-6: 4.887, the same as dp-accounting's PLD."""
    assert c.gaussian_eps(10.0, 1e-6, 100) == pytest.approx(4.887, abs=5e-4)
    assert c.gaussian_eps(10.0, 1e-6, 100) == pytest.approx(
        ORACLE["gaussian 10, k 100"]["pld eps"], rel=1e-6
    )


@pytest.mark.parametrize(
    "formula", [f for pair in PAIRS for f in pair] + [c.optimal_eps, c.gaussian_eps]
)
@pytest.mark.parametrize(
    "arguments",
    [
        (0, 1e-6, 1),
        (-1.0, 1e-6, 1),
        (math.nan, 1e-6, 1),
        (math.inf, 1e-6, 1),
        (1.0, 0, 1),
        (1.0, 1, 1),
    ]
    + [(1.0, math.nan, 1), (1.0, 1e-6, 0), (1.0, 1e-6, 1.5), (1.0, 1e-6, True)],
)
def test_bad_arguments_are_refused(formula: Formula, arguments: tuple[float, float, int]) -> None:
    """Calculators fail closed as well."""
    with pytest.raises(InvalidAmount, match="epsilon must be above 0"):
        formula(*arguments)
