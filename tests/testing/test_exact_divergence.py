"""The oracle against closed forms."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest

from dpflow.testing import exact_divergence, neighbours
from dpflow.testing.enumeration import NotEnumerable, enumerate_outputs

F = Fraction


def test_hockey_stick_of_fractions_is_exact() -> None:
    """Randomised response with odds 3:1 costs ln 3 and at epsilon 0 has delta 1/2."""
    p, q = {"yes": F(3, 4), "no": F(1, 4)}, {"yes": F(1, 4), "no": F(3, 4)}
    assert exact_divergence.hockey_stick(p, q, 0) == 0.5
    assert exact_divergence.smallest_epsilon(p, q, 1e-12) == pytest.approx(math.log(3), abs=1e-8)


def test_directions_differ() -> None:
    """An outcome that only one side has costs delta in one direction only."""
    p, q = {"a": F(9, 10), "b": F(1, 10)}, {"a": F(1)}
    assert exact_divergence.hockey_stick(p, q, 1) == pytest.approx(0.1)
    assert exact_divergence.hockey_stick(q, p, 1) == 0
    assert exact_divergence.divergence(q, p, 1) == pytest.approx(0.1)
    assert exact_divergence.smallest_epsilon(p, q, 0.05) == math.inf


@pytest.mark.parametrize("scale", [F(1, 3), F(1), F(7, 2)])
def test_discrete_laplace_costs_its_inverse_scale(scale: Fraction) -> None:
    """A shift by one costs exactly 1/scale, and has total variation distance Pr[X = 0]."""
    p = exact_divergence.discrete_laplace(scale, 1e-13)
    q = {x + 1: mass for x, mass in p.items()}
    assert sum(p.values()) == pytest.approx(1, abs=1e-12)
    assert exact_divergence.smallest_epsilon(p, q, 1e-9) == pytest.approx(
        float(1 / scale), abs=1e-5
    )
    # at epsilon 0 it is the total variation distance: Pr[X <= 0] - Pr[X <= -1] = Pr[X = 0]
    assert exact_divergence.divergence(p, q, 0) == pytest.approx(
        math.tanh(float(1 / scale) / 2), abs=1e-9
    )


def test_exponential_choice_weighs_lengths_and_costs() -> None:
    """Weights are lengths times exp(-rate cost)."""
    law = exact_divergence.exponential_choice([1, 2], [0, 1], F(1))
    assert law[1] / law[0] == pytest.approx(2 * math.exp(-1))


def test_neighbours_are_listed_once() -> None:
    """Two units alone give two added and one replaced pair."""
    units = neighbours.possible_units([{"v": 0}, {"v": 1}], 1)
    assert len(list(neighbours.neighbouring_tables(units, "add-remove", 0))) == 2
    assert len(list(neighbours.neighbouring_tables(units, "replace", 0))) == 1


def test_enumeration_is_the_law_of_the_draw() -> None:
    """A die and a coin make twelve outcomes of equal probability."""
    law = enumerate_outputs(lambda source: (source.draw_below(6), source.draw_below(2)))
    assert len(law) == 12 and all(mass == pytest.approx(1 / 12) for mass in law.values())


def test_raw_words_cannot_be_enumerated() -> None:
    """Code that takes raw words is refused, not sampled."""
    with pytest.raises(NotEnumerable, match="raw random words"):
        enumerate_outputs(lambda source: source.draw_word())


@pytest.mark.parametrize("costs", [[0], [0, 3], [2, 0, 5, 5, 1], list(range(16)), [0] * 17])
def test_flips_have_the_law_of_their_integral(costs: list[int]) -> None:
    """Against the polynomial, whose coefficients are exact."""
    chances = [F(math.exp(-cost / 2)) for cost in costs]
    for index, found in exact_divergence.permute_and_flip(costs, F(1, 2)).items():
        product = [F(1)]
        for other in chances[:index] + chances[index + 1 :]:
            pairs = zip([*product, 0], [0, *product], strict=True)
            product = [a - other * b for a, b in pairs]
        integral = sum(a / (power + 1) for power, a in enumerate(product))
        assert found == pytest.approx(float(chances[index] * integral), rel=1e-12)


def test_flips_of_many_candidates_have_a_law() -> None:
    """Polynomials of degree 399 cancel; with 30 candidates and more, no choice was followed."""
    law = exact_divergence.permute_and_flip([i // 7 for i in range(400)], F(1, 3))
    assert math.fsum(law.values()) == pytest.approx(1, abs=1e-10)
    assert law[0] == max(law.values()) and law[399] > 0
