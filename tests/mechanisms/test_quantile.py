"""The quantile's exact distribution against a golden table and against enumeration."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import product

import numpy as np
import pytest

from dpflow.core.statistics import Histogram
from dpflow.mechanisms.quantile import pieces


def histogram(values: tuple[int, ...]) -> Histogram:
    found, counts = np.unique(np.array(values, dtype=np.int64), return_counts=True)
    return Histogram(found, counts)


def distribution(values: tuple[int, ...], low: int, high: int, p: Fraction, rate: float) -> list[float]:
    """Probabilities over the grid, from the mechanism's own pieces."""
    starts, lengths, costs = pieces(histogram(values), low, high, p)
    weights = [length * math.exp(-rate * cost) for length, cost in zip(lengths, costs, strict=True)]
    found = [0.0] * (high - low + 1)
    for start, length, weight in zip(starts, lengths, weights, strict=True):
        for point in range(start, start + length):
            found[point - low] = weight / length / sum(weights)
    return found


def test_the_median_has_the_papers_distribution() -> None:
    """T = {0..9}, y = [2,3,3,7,8], eps = 1: the golden table of the stable-median specification, section 4."""
    golden = [0.046185, 0.046185, 0.076145, 0.206985, 0.125543, 0.125543, 0.125543, 0.125543, 0.076145, 0.046185]
    # the table's cost max(below, above) differs from ours, 2 max(below, above) - n, by a factor 2 and a constant
    assert distribution((2, 3, 3, 7, 8), 0, 9, Fraction(1, 2), 1 / 4) == pytest.approx(golden, abs=1e-6)


@pytest.mark.parametrize("p", [Fraction(1, 2), Fraction(1, 10), Fraction(2, 3)])
@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_the_claim_holds_on_every_small_table(p: Fraction, epsilon: float) -> None:
    """Adding one row changes no probability by more than e^eps, whatever the rows; half the sensitivity would fail."""
    sensitivity = max(p.numerator, p.denominator - p.numerator)
    worst, controls = 0.0, 0.0
    for rows in product(range(4), repeat=2):
        for more in range(4):
            for factor in (1, 2):
                rate = factor * epsilon / (2 * sensitivity)
                a = distribution(rows, 0, 3, p, rate)
                b = distribution((*rows, more), 0, 3, p, rate)
                loss = max(abs(math.log(x / y)) for x, y in zip(a, b, strict=True))
                if factor == 1:
                    worst = max(worst, loss)
                else:
                    controls = max(controls, loss)
    assert worst <= epsilon + 1e-9
    assert controls > epsilon


def test_no_rows_give_the_uniform_distribution() -> None:
    """An empty table is answered, not refused."""
    assert distribution((), 0, 4, Fraction(1, 2), 1.0) == pytest.approx([0.2] * 5)


def test_pieces_cover_the_grid_once() -> None:
    """Rows at both ends of the grid leave no gap and no overlap."""
    starts, lengths, _ = pieces(histogram((0, 9, 9, 4)), 0, 9, Fraction(1, 2))
    covered = [point for start, length in zip(starts, lengths, strict=True) for point in range(start, start + length)]
    assert sorted(covered) == list(range(10))
