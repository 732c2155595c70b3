"""The threshold of private keys, exactly."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest

from dpflow.mechanisms.private_histogram import tail_above


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
