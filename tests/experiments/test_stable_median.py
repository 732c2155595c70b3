"""The stable-median experiments in a small form: every bound that the full ones state holds."""

from __future__ import annotations

from math import inf

import pytest
from dpflow_stable_median.theory.sign_attack import mean_shift, median_shift, surviving_share

from experiments import adaptive_composition, flights, stable_median
from experiments.report import Bound, Experiment, Found, section

EXPERIMENTS = [*stable_median.EXPERIMENTS, *adaptive_composition.EXPERIMENTS, *flights.EXPERIMENTS]


@pytest.mark.slow
@pytest.mark.parametrize("experiment", EXPERIMENTS, ids=lambda e: e.name)
def test_every_bound_holds(experiment: Experiment) -> None:
    assert experiment.run(experiment.small).broken == []


def test_figures_have_numbers_of_their_own() -> None:
    numbers = [e.number for e in EXPERIMENTS]
    assert len(set(numbers)) == len(numbers)


def test_a_broken_bound_is_shown() -> None:
    """It is in the list, and the page says so."""
    found = Found(
        ("a",), ((0.5,),), {}, (Bound("it holds", "it did not", False), Bound("this", "did", True))
    )
    assert found.broken == ["it holds: it did not"]
    text = section(EXPERIMENTS[0], found, "x.svg")
    assert "**does not hold**" in text and "| 0.500 |" in text


def test_the_attacks_closed_forms_are_the_papers() -> None:
    """Predictions of the specification's tables, with and without noise; much noise leaves nothing
    of the attack.
    """
    said = [median_shift(4000, 1000, e) for e in (inf, 0.06, 0.03, 0.02)]
    assert said == pytest.approx([1.273, 0.538, 0.316, 0.223], abs=5e-4)
    assert [median_shift(int(n * 2000), 2000) for n in (0.25, 1, 4, 16)] == pytest.approx(
        [0.318, 0.637, 1.273, 2.546], abs=6e-4
    )
    said = [mean_shift(2001, 2000, e) for e in (inf, 0.05, 0.02, 0.01)]
    assert said == pytest.approx([0.7876, 0.7091, 0.6269, 0.5749], abs=5e-5)
    assert (
        surviving_share(0) == 0
        and surviving_share(20.001) == pytest.approx(surviving_share(19.999), abs=1e-6)
        and 0.999 < surviving_share(50) < 1
    )
