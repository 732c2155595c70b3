"""The private-learning figures in a small form: every bound that the full ones state holds."""

from __future__ import annotations

import pytest

from experiments import adaptive_composition, interior, learning, stable_median
from experiments.report import Experiment

QUICK = ("threshold-rows", "stability-as-printed", "pure-sanitizers", "doctor-visits")


@pytest.mark.parametrize(
    "experiment",
    [
        pytest.param(e, id=e.name, marks=[] if e.name in QUICK else [pytest.mark.slow])
        for e in learning.EXPERIMENTS
    ],
)
def test_every_bound_holds(experiment: Experiment) -> None:
    assert experiment.run(experiment.small).broken == []


def test_figures_have_numbers_of_their_own() -> None:
    papers = (stable_median, adaptive_composition, interior, learning)
    numbers = [e.number for paper in papers for e in paper.EXPERIMENTS]
    assert len(set(numbers)) == len(numbers)
