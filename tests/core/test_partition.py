"""When a private key may be shown: both thresholds, exactly, and what they cost against the optimum."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest

from dpflow.core.partition import tail_above, truncation
from dpflow.testing import oracle


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
    for x, p in oracle.truncated_laplace(scale, bound).items():
        seen = count + x if count + x > bound else 0
        law[seen] = law.get(seen, 0.0) + p
    return law


@pytest.mark.parametrize("most", [1, 2, 5])
@pytest.mark.parametrize("failure", [Fraction(1, 50), Fraction(1, 10**6)])
@pytest.mark.parametrize("scale", [Fraction(1, 2), Fraction(3), Fraction(17)])
def test_truncated_noise_hides_a_key_and_one_step_less_does_not(scale: Fraction, failure: Fraction, most: int) -> None:
    """All counts that differ by at most ``most`` stay within (d/scale, failure), and the bound below exceeds it."""
    bound = truncation(scale, most, failure)

    def worst(k: int) -> float:
        found = 0.0
        for count in {0, 1, k, 2 * k + 1}:
            for away in range(1, most + 1):
                laws = _shown(count, scale, k), _shown(count + away, scale, k)
                found = max(found, oracle.divergence(*laws, float(Fraction(away) / scale)))
        return found

    assert worst(bound) <= float(failure) * (1 + 1e-9) + 1e-13
    if bound > most:
        assert worst(bound - 1) > float(failure)


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 3.0])
@pytest.mark.parametrize("delta", [1e-2, 1e-5])
def test_one_unit_a_key_is_the_optimal_selection(epsilon: float, delta: float) -> None:
    """Between the optimal probability of a count (Desfontaines et al. 2022, Theorem 1) and that of two units less."""
    scale = 1 / Fraction(epsilon)
    bound = truncation(scale, 1, Fraction(delta))
    optimal = [0.0, 0.0, 0.0]
    for count in range(1, 2 * bound + 2):
        before = optimal[-1]
        optimal.append(min(math.exp(epsilon) * before + delta, 1 - math.exp(-epsilon) * (1 - before - delta), 1.0))
        ours = 1 - _shown(count, scale, bound).get(0, 0.0)
        assert optimal[-3] - 1e-12 <= ours <= optimal[-1] + 1e-12
