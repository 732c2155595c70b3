"""Truncated noise and random circles: their laws, and that an enumeration follows the same laws."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from exact_cuts import ALARM
from scipy import stats

from dpflow.core.sampling import samplers
from dpflow.core.sampling.randomness import SystemSource
from dpflow.core.sampling.samplers import circular_order, truncated_laplace
from dpflow.errors import InvalidAmount
from dpflow.testing import exact_divergence
from dpflow.testing.enumeration import enumerate_outputs
from dpflow.testing.scripted_sources import ScriptedSource


def neighbours(circle: np.ndarray) -> frozenset[frozenset[int]]:
    """What a circle is, whatever its start and direction."""
    return frozenset(map(frozenset, zip(circle.tolist(), np.roll(circle, 1).tolist(), strict=True)))


@pytest.mark.parametrize(
    ("scale", "radius"),
    [
        (Fraction(3, 2), 1),
        (Fraction(2), 5),
        (Fraction(30), 70),
        (Fraction(21, 2), 10),
        (Fraction(2**49), 3),
    ],
)
def test_truncated_noise_has_its_law(scale: Fraction, radius: int) -> None:
    """Chi-square against the law; a scale twenty percent off is noticed."""
    drawn = Counter(truncated_laplace(scale, radius, 200_000, SystemSource()).tolist())
    assert set(drawn) <= set(range(-radius, radius + 1))

    def p(claimed: Fraction) -> float:
        law = exact_divergence.truncated_laplace(claimed, radius)
        return float(
            stats.chisquare(
                [drawn[x] for x in law], [200_000 * mass for mass in law.values()]
            ).pvalue
        )

    assert p(scale) > ALARM
    assert radius < 5 or p(scale * Fraction(4, 5)) < ALARM


@pytest.mark.parametrize(("n", "count"), [(0, 1), (1, 1), (2, 1), (3, 1), (4, 3), (5, 12), (6, 60)])
def test_every_circle_is_equally_likely(n: int, count: int) -> None:
    """(n-1)!/2 orders around a circle, both drawn and enumerated."""
    law = enumerate_outputs(lambda source: neighbours(circular_order(n, source)))
    assert len(law) == count
    assert list(law.values()) == pytest.approx([1 / count] * count)
    drawn = Counter(neighbours(circular_order(n, SystemSource())) for _ in range(400 * count))
    assert (
        stats.chisquare([drawn[x] for x in law]).pvalue > ALARM
        if count > 1
        else set(drawn) == set(law)
    )


def test_equal_words_are_drawn_again() -> None:
    """Two equal words have no order: the next ones decide, and a large circle has everybody once."""
    source = ScriptedSource([5, 5, 1, 4, 3, 2])
    assert circular_order(3, source).tolist() == [2, 1, 0]
    assert sorted(circular_order(100_001, SystemSource()).tolist()) == list(range(100_001))


@pytest.mark.parametrize("n", [3, 10, 2**61 - 1])
def test_uniform_numbers_have_no_modulo_bias(n: int) -> None:
    """Words from the last whole multiple of n on are drawn again; the word before it is the largest
    number.
    """
    top = 2**64 // n * n
    assert samplers.uniform_integers(n, 2, ScriptedSource([top, top - 1, n])).tolist() == [0, n - 1]


def test_sizes_and_radii_are_checked() -> None:
    """Negative sizes and radii are refused."""
    for draw in (
        lambda: circular_order(-1, SystemSource()),
        lambda: truncated_laplace(Fraction(1), -1, 1, SystemSource()),
    ):
        with pytest.raises(InvalidAmount):
            draw()
