"""Choices by exact weights, of one or of many rows, and uniform numbers: their laws and their cuts."""

from __future__ import annotations

import math
from decimal import localcontext
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from exact_cuts import ALARM, assert_cut, exp
from scipy import stats

from dpflow.core.sampling import samplers
from dpflow.core.sampling.interval_arithmetic import exp_bounds
from dpflow.core.sampling.randomness import SystemSource
from dpflow.core.sampling.samplers import (
    choose_piece,
)
from dpflow.errors import InvalidAmount
from dpflow.testing import exact_divergence
from dpflow.testing.scripted_sources import ScriptedSource

SOURCE = SystemSource()
F = Fraction


# --- choose --------------------------------------------------------------------------------------------------------


CASES: dict[str, tuple[list[int], list[int], Fraction]] = {
    "plain": ([1, 2, 3, 4], [3, 0, 2, 2], F(1, 2)),
    "long pieces": ([2**64, 2**70 - 1, 1], [30, 33, 0], F(7, 5)),
    "no price": ([5, 1, 2**60], [7, 10**9, 0], F(0)),
    "equal far costs": ([3, 4, 5], [10**9] * 3, F(1000)),
    "small rate": ([7, 9, 2], [10**9, 0, 5 * 10**8], F(1, 10**9)),
}


@pytest.mark.parametrize("case", CASES)
def test_choose_cuts_are_exact(case: str) -> None:
    """Every cut between pieces lies within 2^-108 of lengths exp(-rate costs), summed and
    normalised in decimals.
    """
    lengths, costs, rate = CASES[case]
    with localcontext(prec=80):
        weights = [
            n * exp(rate * (cost - min(costs))) for n, cost in zip(lengths, costs, strict=True)
        ]
        for i in range(len(weights) - 1):
            if min(weights[i : i + 2]) / sum(weights) * 2**128 < 2**30:
                continue
            cut = sum(weights[: i + 1]) / sum(weights)
            assert_cut(lambda source: choose_piece(lengths, costs, rate, source), cut, i, i + 1)


def test_choose_has_the_stated_distribution() -> None:
    """20,000 choices of 40 pieces agree with the exact probabilities, and not with those of a rate
    10 % off.
    """
    lengths, costs = [1 + i % 7 for i in range(40)], [abs(i - 15) for i in range(40)]
    counts = np.bincount(
        [choose_piece(lengths, costs, F(1, 4), SOURCE) for _ in range(20_000)], minlength=40
    )
    p = []
    for rate in (0.25, 0.2):
        weights = np.array(lengths) * np.exp(-rate * np.array(costs))
        p.append(stats.chisquare(counts, weights / weights.sum() * 20_000).pvalue)
    assert p[0] > ALARM > p[1]


def test_choose_of_one_piece_is_that_piece() -> None:
    """A single piece is chosen at any length and cost."""
    assert choose_piece([2**70], [10**9], F(5), ScriptedSource([2**64 - 1])) == 0
    assert choose_piece([1], [0], F(0), ScriptedSource([0])) == 0


@pytest.mark.parametrize("word", [0, 2**63, 2**64 - 2**40])
def test_choose_ignores_pieces_of_no_weight(word: int) -> None:
    """Against a cost difference of 10^9 even a length of 2^64 has no chance worth a word, and no
    rate overflows.
    """
    for rate in (F(1), F(10**300)):
        assert choose_piece([1, 2**64], [0, 10**9], rate, ScriptedSource([word])) == 0
        assert (
            choose_piece([2**64, 1], [10**9, 0], rate, ScriptedSource([word or 1, *[1] * 60])) == 1
        )


def test_choose_accepts_a_million_pieces() -> None:
    """10^6 pieces are chosen from by floats alone, and the rare ambiguous word by rigorous bounds
    with the same answer.
    """
    n = 10**5
    lengths, costs = [3] * n, [abs(i - n // 2) for i in range(n)]
    word = int(0.3 * 2**64)
    fast = choose_piece(lengths, costs, F(1, 1000), ScriptedSource([word]))
    assert (
        samplers._choose_exactly(lengths, costs, F(1, 1000), word, ScriptedSource([12345])) == fast
    )
    assert fast == pytest.approx(n // 2 + 1000 * math.log(0.6), abs=2)
    assert 0 <= choose_piece([1] * 10**6, [0] * 10**6, F(1), SOURCE) < 10**6


def test_numpy_integers_do_not_overflow() -> None:
    """Lengths and costs from numpy arrays are taken as exact integers, also in the exact pass."""
    lengths, costs = np.array([2**62, 2**62], dtype=np.int64), np.array([0, 0], dtype=np.int64)
    half = ScriptedSource([2**63 - 1, 2**64 - 2**30])
    assert choose_piece(lengths, costs, F(1), half) == 0  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("lengths", "costs", "rate", "text"),
    [
        ([], [], F(1), "one cost for each of 1 or more lengths, not 0 for 0"),
        ([1, 2], [1], F(1), "not 1 for 2"),
        ([0, 1], [0, 0], F(1), "lengths are integers from 1"),
        ([1, 1], [0, -1], F(1), "costs integers from 0"),
        ([2**1001], [0], F(1), r"below 2\^1001"),
        ([1], [2**53], F(1), r"below 2\^53"),
        ([1.5], [0], F(1), "sizes, lengths and costs are integers"),
        ([1], [0], F(-1), "a rate is 0 or more, not -1"),
        ([1], [0], 0.5, "a rate must be an exact number"),
    ],
)
def test_choose_refuses_what_it_cannot_weigh(
    lengths: Any, costs: Any, rate: Any, text: str
) -> None:
    """Empty, unequal, negative, too large or inexact arguments are refused in words."""
    with pytest.raises(InvalidAmount, match=text):
        choose_piece(lengths, costs, rate, SOURCE)


# --- choose_rows and uniform --------------------------------------------------------------------------------------------


def test_choose_rows_cuts_are_exact() -> None:
    """The first word next to the cut between two labels is resolved exactly, on both sides; other
    rows by their word.
    """
    rate, costs = F(1, 3), np.array([[0, 5]])
    low, high = exp_bounds(F(5, 3), 200)
    cut = F(1 << 200, (1 << 200) + low)  # label 0 has probability 1 / (1 + exp(-5/3))
    assert abs(cut - F(1 << 200, (1 << 200) + high)) < F(1, 2**190)
    word = cut * 2**64 // 1
    inside = (cut * 2**64 - word) * 2**64 // 1
    for shift, expected in ((-2, 0), (2, 1)):
        source = ScriptedSource([int(word), int(inside) + shift, 0])
        assert samplers.choose_rows(costs, rate, source).tolist() == [expected]
    far = ScriptedSource([int(word) - 2**40, int(word) + 2**40])
    assert samplers.choose_rows(np.array([[0, 5], [0, 5]]), rate, far).tolist() == [0, 1]


@pytest.mark.parametrize("costs", [[0, 3], [7, 7], [4, 0, 9], [2, 2, 2, 10**6]])
def test_choose_rows_has_the_stated_distribution(costs: list[int]) -> None:
    """Every row is drawn by its own costs, and independently."""
    rate, n = F(1, 4), 40_000
    both = np.tile(np.array([costs, costs[::-1]]), (n, 1))
    drawn = samplers.choose_rows(both, rate, SOURCE)
    weights = np.exp(-float(rate) * (np.array(costs) - min(costs)))
    for part, chances in ((drawn[::2], weights), (drawn[1::2], weights[::-1])):
        counts = np.bincount(part, minlength=len(costs))
        seen = chances / chances.sum() * n > 1e-9
        assert counts[~seen].sum() == 0
        assert stats.chisquare(counts[seen], (chances / chances.sum() * n)[seen]).pvalue > ALARM


def test_choose_rows_takes_no_rows_and_large_costs() -> None:
    """Nothing to choose, one alternative, weights that vanish."""
    assert samplers.choose_rows(np.zeros((0, 2), np.int64), F(1), SOURCE).tolist() == []
    assert samplers.choose_rows(np.full((3, 1), 5), F(1), SOURCE).tolist() == [0, 0, 0]
    assert (
        samplers.choose_rows(np.array([[2**52, 0]] * 50), F(2**1000), SOURCE).tolist() == [1] * 50
    )
    for wrong in (
        np.zeros((2, 0), np.int64),
        np.zeros((2, 2)),
        np.array([[-1, 0]]),
        np.zeros(3, np.int64),
    ):
        with pytest.raises(InvalidAmount):
            samplers.choose_rows(wrong, F(1), SOURCE)
    with pytest.raises(InvalidAmount):
        samplers.choose_rows(np.array([[0, 1]]), F(-1), SOURCE)


@pytest.mark.parametrize("costs", [[0], [0, 0, 3], [5, 0, 2, 1], [0, 10**6]])
def test_permute_and_flip_has_the_stated_distribution(costs: list[int]) -> None:
    """Frequencies against the law's integral; a rate ten percent off is noticed where there is
    anything to notice.
    """
    rate, draws = F(1, 3), 40_000
    drawn = [samplers.permute_and_flip(np.array(costs), rate, SOURCE) for _ in range(draws)]
    counts = np.bincount(drawn, minlength=len(costs))

    def p(claimed: Fraction) -> float:
        law = np.array(list(exact_divergence.permute_and_flip(costs, claimed).values())) * draws
        return float(
            stats.chisquare(
                counts[law > 1], law[law > 1] / law[law > 1].sum() * counts[law > 1].sum()
            ).pvalue
        )

    assert len(costs) == 1 or max(costs) > 5 or p(rate) > ALARM
    assert len(costs) < 4 or p(rate * F(4, 5)) < ALARM
    assert len(costs) > 2 or set(drawn) == {0}


@pytest.mark.parametrize("rate", [F(7, 3), F(22, 7), F(1, 1000)], ids=str)
def test_permute_and_flip_cuts_are_exact(rate: Fraction) -> None:
    """The coin's cut lies within 2^-108 of exp(-rate cost); the last word then chooses the second
    of two that are kept.
    """
    with localcontext(prec=80):
        exact = int(exp(3 * rate) * 2**128)
    for u, index in ((exact - 2**20, 1), (exact + 2**20, 0)):
        source = ScriptedSource([0, u >> 64, u & (2**64 - 1), 2**63])
        assert samplers.permute_and_flip(np.array([0, 3]), rate, source) == index


@pytest.mark.parametrize("costs", [[1, 2], [], [0, -1], [0, 2**53], [[0, 1]], [0.0, 1.0]])
def test_permute_and_flip_refuses_what_it_cannot_weigh(costs: Any) -> None:
    """Costs are integers from 0, one of them 0."""
    with pytest.raises(InvalidAmount):
        samplers.permute_and_flip(np.array(costs), F(1), SystemSource())


@pytest.mark.parametrize("n", [1, 2, 3, 10, 1000])
def test_uniform_numbers_are_uniform(n: int) -> None:
    """Chi-square, and the words that would favour small numbers are drawn again."""
    drawn = samplers.uniform_integers(n, 50_000, SOURCE)
    assert (
        stats.chisquare(np.bincount(drawn, minlength=n)).pvalue > ALARM
        if n > 1
        else not drawn.any()
    )


def test_uniform_draws_biased_words_again() -> None:
    """The last words before 2^64 belong to no whole round of n."""
    assert samplers.uniform_integers(3, 1, ScriptedSource([2**64 - 1, 5])).tolist() == [2]
    assert samplers.uniform_integers(4, 1, ScriptedSource([2**64 - 1])).tolist() == [3]
    for wrong in (0, -1, 2**63):
        with pytest.raises(InvalidAmount):
            samplers.uniform_integers(wrong, 1, SOURCE)


def test_choose_takes_arrays_as_they_are() -> None:
    """Arrays and lists of the same numbers give the same piece, lengths above 2^63 and Python
    integers included.
    """
    lengths, costs = [2**63 + 5, 1, 2**64 - 1], [3, 0, 9]
    for word in (0, 2**62, 2**63 + 12345, 2**64 - 1):
        again = [ScriptedSource([word, *range(60)]) for _ in range(2)]
        arrays = np.array(lengths, np.uint64), np.array(costs, np.int64)
        assert choose_piece(*arrays, F(1, 2), again[0]) == choose_piece(
            lengths, costs, F(1, 2), again[1]
        )
    assert choose_piece([2**1000, 1], [0, 0], F(1), SOURCE) == 0
