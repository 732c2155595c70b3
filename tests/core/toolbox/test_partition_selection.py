"""When a private key may be shown: both thresholds, exactly, and what they cost against the
optimum.
"""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from declared_tables import declare_grouped

from dpflow.core.accounting.events import ZCDP, Approximate
from dpflow.core.contract.requests import GroupedSums
from dpflow.core.contract.sensitivity import GroupedSensitivity
from dpflow.core.toolbox.partition_selection import (
    SelectionRule,
    gaussian_above,
    tail_above,
    truncation_bound,
)
from dpflow.testing import exact_divergence


@pytest.mark.parametrize("scale", [Fraction(1, 3), Fraction(2), Fraction(40, 3), Fraction(1000)])
@pytest.mark.parametrize("failure", [Fraction(1, 10**6), Fraction(1, 10**12), Fraction(1, 50)])
def test_the_threshold_is_the_smallest_that_holds(scale: Fraction, failure: Fraction) -> None:
    """Pr[X >= t] = q^t/(1+q) is at most the failure at t and above it at t - 1."""
    t, q = tail_above(scale, failure), math.exp(-1 / float(scale))
    assert q**t / (1 + q) <= float(failure) * (1 + 1e-9)
    if t > 1:
        assert q ** (t - 1) / (1 + q) > float(failure)


def test_a_lone_unit_shows_with_probability_at_most_delta() -> None:
    """Control: one step less would let it show too often."""
    scale, delta = Fraction(10), Fraction(1, 10**5)
    t, q = tail_above(scale, delta), math.exp(-0.1)
    assert q**t / (1 + q) <= float(delta) < q ** (t - 1) / (1 + q)


def _shown(count: int, scale: Fraction, bound: int) -> dict[int, float]:
    """What a key of this count leaves: a noisy count above the bound, or 0 for nothing."""
    law: dict[int, float] = {}
    for x, p in exact_divergence.truncated_laplace(scale, bound).items():
        seen = count + x if count + x > bound else 0
        law[seen] = law.get(seen, 0.0) + p
    return law


@pytest.mark.parametrize("most", [1, 2, 5])
@pytest.mark.parametrize("failure", [Fraction(1, 50), Fraction(1, 10**6)])
@pytest.mark.parametrize("scale", [Fraction(1, 2), Fraction(3), Fraction(17)])
def test_truncated_noise_hides_a_key_and_one_step_less_does_not(
    scale: Fraction, failure: Fraction, most: int
) -> None:
    """All counts that differ by at most ``most`` stay within (d/scale, failure), and the bound
    below exceeds it.
    """
    bound = truncation_bound(scale, most, failure)

    def worst(k: int) -> float:
        found = 0.0
        for count in {0, 1, k, 2 * k + 1}:
            for away in range(1, most + 1):
                laws = _shown(count, scale, k), _shown(count + away, scale, k)
                found = max(
                    found, exact_divergence.divergence(*laws, float(Fraction(away) / scale))
                )
        return found

    assert worst(bound) <= float(failure) * (1 + 1e-9) + 1e-13
    if bound > most:
        assert worst(bound - 1) > float(failure)


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 3.0])
@pytest.mark.parametrize("delta", [1e-2, 1e-5])
def test_one_unit_a_key_is_the_optimal_selection(epsilon: float, delta: float) -> None:
    """Between the optimal probability of a count (Desfontaines et al. 2022, Theorem 1) and that of
    two units less.
    """
    scale = 1 / Fraction(epsilon)
    bound = truncation_bound(scale, 1, Fraction(delta))
    optimal = [0.0, 0.0, 0.0]
    for count in range(1, 2 * bound + 2):
        before = optimal[-1]
        optimal.append(
            min(
                math.exp(epsilon) * before + delta,
                1 - math.exp(-epsilon) * (1 - before - delta),
                1.0,
            )
        )
        ours = 1 - _shown(count, scale, bound).get(0, 0.0)
        assert optimal[-3] - 1e-12 <= ours <= optimal[-1] + 1e-12


@pytest.mark.parametrize("sigma2", [Fraction(1, 3), Fraction(7), Fraction(500)])
@pytest.mark.parametrize("failure", [Fraction(1, 50), Fraction(1, 10**6)])
def test_gaussian_thresholds_hold_and_are_tight(sigma2: Fraction, failure: Fraction) -> None:
    """The tail from t on is at most the failure, and three steps lower it is not."""
    law = exact_divergence.discrete_gaussian(sigma2, tail=1e-14)
    t = gaussian_above(sigma2, failure)
    assert math.fsum(p for x, p in law.items() if x >= t) <= float(failure)
    assert t <= 3 or math.fsum(p for x, p in law.items() if x >= t - 3) > float(failure)


def _moved(groups: int) -> GroupedSensitivity:
    table = declare_grouped({"word": {}}, groups)
    return table.sensitivity(GroupedSums("word", None, groups))


def test_the_rule_with_the_lowest_threshold_is_taken() -> None:
    """Truncated Laplace noise for one key, Gaussian for many: at 20 keys its threshold is less than
    half.
    """
    price = Fraction(1), Fraction(1, 10**6)
    assert (
        SelectionRule.lowest_threshold(_moved(1), "rows", *price).noise_name == "truncated Laplace"
    )
    for groups, name in ((1, "truncated Laplace"), (2, "truncated Laplace"), (20, "Gaussian")):
        best = SelectionRule.lowest_threshold(_moved(groups), "rows", *price)
        forms = [
            SelectionRule.lowest_threshold(_moved(groups), "rows", *price, law)
            for law in ("laplace", "gaussian")
        ]
        assert best.noise_name == name
        assert best.threshold == min(form.threshold for form in forms)
        assert best.event == Approximate(*price)
        assert isinstance(forms[1].event, ZCDP)
    assert 2 * best.threshold < forms[0].threshold


def test_a_price_too_small_for_gaussian_noise_takes_another() -> None:
    """Where no rho is known for epsilon and delta, auto is Laplace noise."""
    assert (
        "Laplace"
        in SelectionRule.lowest_threshold(
            _moved(20), "rows", Fraction(1, 10**9), Fraction(1, 10**6)
        ).noise_name
    )
