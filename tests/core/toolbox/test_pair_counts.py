"""Sums over pairs against brute force, and the bounds on them against exact laws."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np
import pytest

from dpflow.core.contract.requests import PairCounts
from dpflow.core.toolbox.improvement import count_pair_improvement, list_rates, total_cost
from dpflow.core.toolbox.pair_counts import count_pairs
from dpflow.core.toolbox.transcripts import lowest_mean


def signs(labels: Any, scores: Any) -> Any:
    """Of every pair, one by one."""
    table = np.sign(scores[labels][:, None] - scores[~labels][None, :])
    return np.where(np.isnan(table), 0, table)


@pytest.mark.parametrize("values", [1, 2, 5, 10**9])
def test_sums_are_those_of_all_pairs(values: int) -> None:
    """Ties, constants, one class, no row, no score, zeros of both signs, and any order."""
    rng = np.random.default_rng(values)
    for n in (0, 1, 2, 3, 7, 8, 33, 100):
        labels = rng.random(n) < (0.0 if n == 8 else 0.3)
        a, b = (rng.integers(0, values, n) * 1.0 for _ in range(2))
        a[rng.random(n) < 0.1], b[rng.random(n) < 0.1], a[:1] = np.nan, np.nan, -0.0
        left, right = signs(labels, a), signs(labels, b)
        assert count_pairs(labels, a).halves == (1 + left).sum()
        counts = count_pairs(labels, a, b)
        assert (counts.halves, counts.squares) == ((left - right).sum(), ((left - right) ** 2).sum())  # fmt: skip


LAWS = [np.array(law) / sum(law) for law in ([1, 0, 1], [0, 1, 0], [3, 2, 1], [1, 1, 1], [0, 1, 4])]
SIZES = [(1, 1), (1, 4), (4, 1), (2, 3)]


@pytest.mark.parametrize("size", SIZES)
def test_an_area_is_too_high_as_rarely_as_stated(size: tuple[int, int]) -> None:
    """Exact: every score vector over three scores, for pairs of laws. With all rows in place of the rarer class
    the bound is false.
    """
    positives, negatives = size
    labels = np.arange(sum(size)) < positives
    vectors = np.array(list(product(range(3), repeat=sum(size))))
    halves = [count_pairs(labels, v.astype(float)).halves for v in vectors]
    areas, place = np.unique(halves, return_inverse=True)
    areas = areas / (2 * positives * negatives)
    kernel = (1 + np.sign(np.subtract.outer(range(3), range(3)))) / 2
    # Beside them what beats a middle score by a coin that is just below the bound on all rows.
    coins = [np.array([1 - x, 0, x]) for x in (math.exp(-2 / n) - 1e-6 for n in (*size, sum(size)))]
    broken = False
    for p, q in product([*LAWS, *coins], LAWS):
        chance = p[vectors[:, :positives]].prod(axis=1) * q[vectors[:, positives:]].prod(axis=1)
        for cost in (1.0, 2.0):
            false = {
                n: chance[
                    (np.array([lowest_mean(a, cost / n) for a in areas]) > p @ kernel @ q)[place]
                ].sum()  # fmt: skip
                for n in (min(size), sum(size))
            }
            assert false[min(size)] <= math.exp(-cost)
            broken |= false[sum(size)] > math.exp(-cost)
    assert broken


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("margin", [Fraction(0), Fraction(1, 4)])
def test_luck_pays_the_whole_cost_of_pairs(size: tuple[int, int], margin: Fraction) -> None:
    """E exp(S(r)) <= 1 where the challenger's area is not above the champion's by the margin: every vector of two
    models' scores, for laws of both. With all rows in place of the rarer class some law breaks it.
    """
    positives, n, b = size[0], sum(size), float(margin)
    outcomes = list(product((0.0, 1.0), repeat=2))
    labels, places = np.arange(n) < positives, np.array(list(product(range(4), repeat=n)))
    counted = [count_pairs(labels, *np.array(outcomes)[row].T) for row in places]
    mean = np.array([c.halves / 2 / c.pairs for c in counted])
    square = np.array([c.squares / 4 / c.pairs for c in counted])
    y, y2 = (mean - b) / (1 + b), (square - 2 * b * mean + b * b) / (1 + b) ** 2
    rng, broken = np.random.default_rng(1), False
    # Also the worst case: only positive rows differ, as often each way.
    laws = [(np.array([0, 0.5, 0.5, 0]), np.array([1.0, 0, 0, 0]))]
    laws += [tuple(rng.dirichlet([0.4] * 4, 2)) for _ in range(40)]
    for p, q in laws:
        chance = p[places[:, :positives]].prod(axis=1) * q[places[:, positives:]].prod(axis=1)
        if chance @ mean > b:
            continue
        for each in list_rates(margin, is_replaced=False):
            r, psi = float(each.rate), float(each.curvature)
            assert chance @ np.exp(min(size) * (r * y - psi * y2)) <= 1 + 1e-9
            broken |= chance @ np.exp(n * (r * y - psi * y2)) > 1 + 1e-9
    assert broken or margin


def test_a_challenger_passes_where_the_sum_reaches_the_cost() -> None:
    """What the test computes from counts is S(r), taken pair by pair."""
    rng = np.random.default_rng(3)
    labels = rng.random(300) < 0.4
    good, poor = labels + rng.normal(0, 0.4, 300), rng.normal(0, 2, 300)
    difference = ((signs(labels, good) - signs(labels, poor)) / 2).ravel()
    counts = count_pairs(labels, good, poor)
    for b in (0.0, 0.125):
        y = (difference - b) / (1 + b)
        reached = max(
            counts.independent * (float(e.rate) * y - float(e.curvature) * y**2).mean()
            for e in list_rates(Fraction(b), is_replaced=False)
        )
        at = reached - total_cost(0.0)
        assert at > 0.1
        assert count_pair_improvement(counts, Fraction(b), at - 1e-6) >= 0
        assert count_pair_improvement(counts, Fraction(b), at + 1e-6) < 0
    assert count_pair_improvement(PairCounts(0, 9, 0), Fraction(0), 0.1) < 0
