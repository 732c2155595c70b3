"""The samplers at 10^7 draws: single cells, tails and moments, each with a false alarm rate of
10^-6.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from dpflow.core.sampling.randomness import SystemSource
from dpflow.core.sampling.samplers import (
    choose_piece,
    discrete_gaussian,
    discrete_laplace,
    geometric,
)

pytestmark = pytest.mark.slow

SOURCE = SystemSource()
DRAWS = 10**7
ALARM = 1e-6
SCALES = [
    Fraction(1, 3),
    Fraction(1),
    Fraction(355, 113),
    Fraction(10),
    Fraction(100),
    Fraction(2001, 2),
]


def p_value(drawn: np.ndarray, support: np.ndarray, weights: np.ndarray) -> float:
    """Chi-square of every cell that expects 20 or more draws, the others taken together."""
    expected = weights / weights.sum() * drawn.size
    observed = np.bincount(drawn - support[0], minlength=support.size)
    assert observed.size == support.size, "a draw lies where less than 10^-20 of the mass is"
    common = expected >= 20
    both = [np.append(counts[common], counts[~common].sum()) for counts in (observed, expected)]
    return float(stats.chisquare(*both).pvalue)


@pytest.mark.parametrize("factor", [Fraction(1), Fraction(51, 50)], ids=["right", "2 % off"])
@pytest.mark.parametrize("scale", SCALES, ids=str)
def test_laplace_cells(scale: Fraction, factor: Fraction) -> None:
    """Every cell of the discrete Laplace law is met as often as it should be, and a scale 2 % off
    is noticed.
    """
    support = np.arange(-math.ceil(60 * scale), math.ceil(60 * scale) + 1)
    p = p_value(
        discrete_laplace(scale * factor, DRAWS, SOURCE),
        support,
        np.exp(-abs(support) / float(scale)),
    )
    assert p > ALARM if factor == 1 else p < ALARM


@pytest.mark.parametrize("factor", [Fraction(1), Fraction(51, 50)], ids=["right", "2 % off"])
@pytest.mark.parametrize("scale", SCALES, ids=str)
def test_geometric_cells(scale: Fraction, factor: Fraction) -> None:
    """Every cell of the geometric law is met as often as it should be, and a scale 2 % off is
    noticed.
    """
    support = np.arange(math.ceil(60 * scale) + 1)
    p = p_value(geometric(scale * factor, DRAWS, SOURCE), support, np.exp(-support / float(scale)))
    assert p > ALARM if factor == 1 else p < ALARM


@pytest.mark.parametrize("factor", [Fraction(1), Fraction(51, 50)], ids=["right", "2 % off"])
@pytest.mark.parametrize("sigma", SCALES, ids=str)
def test_gaussian_cells(sigma: Fraction, factor: Fraction) -> None:
    """Every cell of the discrete Gaussian law is met as often as it should be, and a sigma 2 % off
    is noticed.
    """
    support = np.arange(-math.ceil(12 * sigma), math.ceil(12 * sigma) + 1)
    weights = np.exp(-((support / float(sigma)) ** 2) / 2)
    p = p_value(discrete_gaussian((sigma * factor) ** 2, DRAWS, SOURCE), support, weights)
    assert p > ALARM if factor == 1 else p < ALARM


@pytest.mark.parametrize("scale", [Fraction(10**6), Fraction(10**12)], ids=str)
def test_wide_noise_has_uniform_ranks(scale: Fraction) -> None:
    """The continuous limit maps wide noise to uniform ranks in 4096 bins."""
    u = np.abs(discrete_laplace(scale, DRAWS, SOURCE) + 0.5) / float(scale)
    v = (discrete_gaussian(scale**2, DRAWS, SOURCE) + 0.5) / float(scale)
    for rank in (-np.expm1(-u), stats.norm.cdf(v)):
        assert (
            stats.chisquare(np.bincount((rank * 4096).astype(int), minlength=4096)).pvalue > ALARM
        )


def test_laplace_tail_is_memoryless() -> None:
    """Beyond 8 scales the noise looks like fresh geometric noise."""
    drawn = abs(discrete_laplace(Fraction(5), 4 * DRAWS, SOURCE))
    beyond = drawn[drawn >= 40] - 40
    support = np.arange(301)
    assert beyond.size > 10_000
    assert p_value(beyond, support, np.exp(-support / 5)) > ALARM


def test_choose_frequencies() -> None:
    """200,000 choices between 60 pieces of very different lengths agree with the exact
    probabilities.
    """
    lengths, costs = [1 + (i * i) % 17 for i in range(60)], [abs(2 * i - 51) for i in range(60)]
    counts = np.bincount(
        [choose_piece(lengths, costs, Fraction(1, 30), SOURCE) for _ in range(200_000)],
        minlength=60,
    )
    weights = np.array(lengths) * np.exp(-np.array(costs) / 30)
    assert stats.chisquare(counts, weights / weights.sum() * 200_000).pvalue > ALARM
