"""Where noise takes its sensitivity from, and whether statistics move so far: told exactly, for right and wrong code."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from dpflow.core.accounting.events import DiscreteGaussian, DiscreteLaplace
from dpflow.core.contract.sensitivity import Sensitivity
from dpflow.core.sampling.noisy_values import add_laplace
from dpflow.core.sampling.randomness import Source
from dpflow.core.toolbox.choices import Choice
from dpflow.core.toolbox.noise import Noise, gaussian_noise, laplace_noise
from dpflow.mechanisms.bounds import Bounds
from dpflow.mechanisms.count import Count
from dpflow.mechanisms.key_union import KeyUnion
from dpflow.mechanisms.private_histogram import PrivateHistogram
from dpflow.mechanisms.quantile import Median
from dpflow.mechanisms.select import ArgMax
from dpflow.mechanisms.sum import Sum
from dpflow.testing import sensitivity_audit
from dpflow.testing.sensitivity_audit import check_moves, compare_moves, watch_doors

ONE = Sensitivity(3, 5, is_proven=True)


@pytest.mark.parametrize(
    ("mechanism", "arithmetic"),
    [
        (Count(), "of requests"),
        (Sum(), "of requests"),
        (PrivateHistogram(), "of requests"),
        (KeyUnion(), "of requests"),
        (Bounds(), "of requests"),
        (ArgMax(), "of requests"),
        (Median(), "declared"),
    ],
    ids=lambda case: getattr(case, "name", case),
)
def test_built_ins_move_as_stated_and_no_less(
    mechanism: Any, arithmetic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None moves further on generated tables; with half of what is stated as the bound each would."""
    found = check_moves(mechanism, 1 / 32)
    assert not found.excess and found.arithmetic == arithmetic and found.pairs > 20
    stated = sensitivity_audit._bound
    monkeypatch.setattr(sensitivity_audit, "_bound", lambda *given: stated(*given) / 2)
    assert check_moves(mechanism, 1 / 32).excess


def compare(statistic: Callable[[Any, Source], Any], *answers: Any) -> tuple[str, int, str]:
    with watch_doors():
        first, second = ((lambda source, one=one: statistic(one, source)) for one in answers)
        return compare_moves(first, second)


VECTORS = np.array([5, 5, 5]), np.array([6, 3, 5])  # 3 in L1, 5 in squares


@pytest.mark.parametrize(
    ("noise", "excess"),
    [
        (laplace_noise(ONE, Fraction(1)), ""),
        (gaussian_noise(ONE, Fraction(1)), ""),
        (laplace_noise(Sensitivity(2, 9, is_proven=True), Fraction(1)), "move by 3 in L1"),
        (gaussian_noise(Sensitivity(9, 4, is_proven=True), Fraction(1)), "root of 5 in L2"),
    ],
)
def test_a_vector_is_held_to_the_norm_of_its_noise(noise: Noise, excess: str) -> None:
    found = compare(lambda one, source: noise.add_noise(one, source), *VECTORS)
    assert found[0] == "of requests" and excess in found[2] and bool(excess) == bool(found[2])


def choose(spread: int) -> Callable[[Any, Source], Any]:
    return lambda scores, source: Choice(spread, Fraction(1)).choose_best(scores, source)


def test_scores_are_held_to_their_differences() -> None:
    """All scores up by the same say nothing; one up and one down by 2 are 4 apart."""
    scores = np.array([5, 5]), np.array([7, 3])
    for spread, excess in ((4, ""), (3, "differences of scores move by 4")):
        found = compare(choose(spread), *scores)
        assert found[0] == "declared" and excess in found[2] and bool(excess) == bool(found[2])
    assert not compare(choose(1), scores[0], scores[0] + 9)[2]


def test_runs_of_cost_are_compared_integer_by_integer() -> None:
    """Runs that begin elsewhere are compared where either of them begins."""
    runs = ([0, 4], [4, 6], [0, 3]), ([0, 6], [6, 4], [2, 0])
    for spread, excess in ((5, ""), (4, "differences of scores move by 5")):
        choice = Choice(spread, Fraction(1))
        found = compare(lambda one, source: choice.choose_integer(*one, source), *runs)  # noqa: B023
        assert excess in found[2] and bool(excess) == bool(found[2])


def test_arithmetic_of_its_own_is_reported() -> None:
    """A scale that nothing stands behind, noise without a sensitivity, or a coin."""
    by_hand = Noise(DiscreteGaussian(Fraction(4), Fraction(1)))
    assert compare(lambda one, s: by_hand.add_noise(one, s), *VECTORS)[0] == "own arithmetic"
    assert compare(lambda one, s: add_laplace(one, Fraction(2), s), *VECTORS)[0] == "own arithmetic"
    assert compare(lambda one, s: s.draw_below(6), *VECTORS)[0] == "own arithmetic"
    narrow = replace(laplace_noise(ONE, Fraction(1)), event=DiscreteLaplace(Fraction(2), 2))
    assert compare(lambda one, s: narrow.add_noise(one, s), *VECTORS)[0] == "own arithmetic"
    declared = laplace_noise(Sensitivity(3, 5), Fraction(1))
    assert compare(lambda one, s: declared.add_noise(one, s), *VECTORS)[0] == "declared"


def test_what_follows_a_sampler_of_its_own_is_not_compared() -> None:
    """There both sides may part for a reason that their guarantee allows."""

    def draw(one: Any, source: Source) -> Any:
        shift = int(add_laplace(int(one[0]), Fraction(1), source)) * 1000
        return laplace_noise(ONE, Fraction(1)).add_noise(one + shift, source)

    assert compare(draw, *VECTORS) == ("own arithmetic", 0, "")


def test_both_sides_follow_what_was_released() -> None:
    """A second statistic that depends on the first noisy one is the same function on both sides."""
    noise = laplace_noise(ONE, Fraction(1))

    def draw(one: Any, source: Source) -> Any:
        first = noise.add_noise(one, source)
        return noise.add_noise(one * (1 + 2 * int(first[0] > 5)), source)

    found = compare(draw, *VECTORS)
    assert found[1] == 2 and ("move by 9 in L1" in found[2] or not found[2])
