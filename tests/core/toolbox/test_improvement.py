"""The test of a challenger and the union over transcripts: each bound against exact probabilities."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import product

import numpy as np
import pytest

from dpflow.core.toolbox.improvement import RATES, count_improvement, list_rates
from dpflow.core.toolbox.mean_test import STEPS
from dpflow.core.toolbox.transcripts import Transcripts, highest_mean, lowest_mean

LEVELS = tuple(map(Fraction, ("0", "0.01", "0.3", "1")))


@pytest.mark.parametrize("is_replaced", [False, True])
def test_one_unit_moves_it_by_one_at_most(is_replaced: bool) -> None:
    """Every pair of neighbours among small tables and every margin, and some neighbours use it up."""
    values = [math.nan, -7.0, -1.0, -1 / 3, 0.0, 0.3, 1 / 3, 1.0, math.inf]
    for margin in LEVELS:
        widest = 0
        for base, before, after in product(([], [0.5, -1.0], [1.0] * 40), values, values):
            if not is_replaced and not math.isnan(before) and not math.isnan(after):
                continue
            found = [
                count_improvement(np.array([*base, end]), margin, 1.0, is_replaced=is_replaced)
                for end in (before, after)
            ]
            widest = max(widest, abs(found[0] - found[1]))
        assert widest == 1


@pytest.mark.parametrize("margin", LEVELS)
def test_luck_pays_the_whole_cost(margin: Fraction) -> None:
    """E exp(r y - psi y^2) <= 1 for each law on two points whose mean is the margin, which are the extreme
    ones; with half of psi some law breaks it.
    """
    level, half_breaks = float(margin), False
    low = np.linspace(-1, level, 60, endpoint=False)[:, None]
    high = np.linspace(level, 1, 60)[None, :]
    chance = (level - low) / np.maximum(high - low, 1e-9)
    for each in list_rates(margin, is_replaced=False):
        r, psi = float(each.rate), float(each.curvature)

        def expect(curvature: float, r: float = r) -> float:
            terms = [
                weight * np.exp(r * y - curvature * y**2)
                for weight, y in (
                    (1 - chance, (low - level) / (1 + level)),
                    (chance, (high - level) / (1 + level)),
                )
            ]
            return float(np.max(terms[0] + terms[1]))

        assert expect(psi) <= 1 + 1e-9
        half_breaks |= expect(psi / 2) > 1 + 1e-9
    assert half_breaks or margin == 1


def test_equal_models_pass_as_rarely_as_stated() -> None:
    """The exact law for 60 units of which each is won or lost by a coin: at a cost of ln 20 fewer than a
    twentieth pass, and more than none.
    """
    chance = 0.0
    for wins in range(61):
        differences = np.repeat([1.0, -1.0], [wins, 60 - wins])
        if count_improvement(differences, Fraction(0), math.log(20), is_replaced=False) >= 0:
            chance += math.comb(60, wins) / 2**60
    assert 0 < chance <= 1 / 20


def test_the_shares_of_all_transcripts_are_all_of_beta() -> None:
    """Every sequence of answers that a session of 6 questions and 3 paid answers of 2 texts can have."""
    transcripts, total = Transcripts(6, 3, answers=2), 0.0
    for asked in range(6):
        for said in product(("free", "paid", "paid otherwise"), repeat=asked):
            paid = sum(word != "free" for word in said)
            if paid < 3:
                total += math.exp(-transcripts.cost(asked, paid, 0.05))
    assert 0.03 < total <= 0.05
    # The first question of a session costs what a fixed list of questions does, for each stretch.
    first = Transcripts(100, 5).cost(0, 0, 0.05)
    assert first == pytest.approx(math.log(500 / 0.05))
    costs = [transcripts.cost(asked, min(asked, 2), 0.05) for asked in range(6)]
    assert transcripts.largest_cost(0.05) >= max(costs) - 1e-9


@pytest.mark.parametrize("units", [1, 7, 40])
def test_a_mean_is_as_low_as_stated(units: int) -> None:
    """Binomials, exactly: what is seen or more happens with probability beta at most at the lower end,
    and the upper end mirrors it.
    """
    beta = 0.05
    for wins in range(units + 1):
        low = lowest_mean(wins / units, math.log(1 / beta) / units)
        reached = sum(
            math.comb(units, i) * low**i * (1 - low) ** (units - i) for i in range(wins, units + 1)
        )
        assert wins == 0 or reached <= beta
        high = highest_mean(1 - wins / units, math.log(1 / beta) / units)
        assert high == pytest.approx(1 - low)
    assert lowest_mean(0, 1) == 0 and highest_mean(1, 1) == 1


def test_rates_are_exact() -> None:
    for rate, each in zip(RATES, list_rates(Fraction(0), is_replaced=False)):
        least = sum((rate**i / i for i in range(2, 40)), Fraction(0))
        assert 0 < each.curvature - least < Fraction(1, 10**12)
        assert STEPS % rate.denominator == 0
