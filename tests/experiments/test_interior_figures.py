"""The experiments on medians without a range in a small form, and what they rest on."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dpflow.testing.harness import StreamSource
from experiments import interior, real_medians
from experiments.__main__ import PAPERS


def test_figures_of_all_papers_have_numbers_of_their_own() -> None:
    numbers = [experiment.number for paper in PAPERS for experiment in paper.EXPERIMENTS]
    assert len(set(numbers)) == len(numbers)


@pytest.mark.parametrize("name", ["interior-none", "interior-insurance"])
def test_bounds_hold(name: str) -> None:
    """Never outside, none where rows show no scale, medians of people's visits in the middle: also
    in few runs.
    """
    experiments = (*interior.EXPERIMENTS, *real_medians.EXPERIMENTS)
    (experiment,) = [e for e in experiments if e.name == name]
    assert experiment.run(experiment.small).broken == []


@pytest.mark.slow
def test_flights_have_medians_without_bounds() -> None:
    """Every large carrier gets a median of air time and delay that is one."""
    (experiment,) = [e for e in real_medians.EXPERIMENTS if e.name == "interior-flights"]
    assert experiment.run(experiment.small).broken == []


def test_the_fit_finds_the_size() -> None:
    """A curve that reaches 95 % at 200 rows, from far below and above."""

    def success(n: int, seed: int) -> bool:
        return bool(np.random.default_rng([n, seed]).normal() < 1.645 + 12 * math.log(n / 200))

    for around in (60, 200, 900):
        assert interior.rows_for_95(success, around, 400) == pytest.approx(200, rel=0.05)


@pytest.mark.parametrize("name", interior.LAWS)
def test_twice_the_rows_are_enough(name: str) -> None:
    """At twice the specified rows nine of ten releases are right: the median is one of the
    distribution.
    """
    law, right = interior.LAWS[name], [0, 0]
    for seed in range(30):
        rng = np.random.default_rng(seed)
        right[0] += (
            interior.answer(law.draw(rng, 2 * law.point), False, StreamSource(seed)) is not None
        )
        found = interior.answer(law.draw(rng, 2 * law.median), True, StreamSource(seed))
        right[1] += found is not None and law.is_median(found)
    assert min(right) >= 27


@pytest.mark.parametrize("name", ["Gaussian", "Poisson 1", "2-point p=.2", "60% zeros"])
def test_medians_of_the_distributions(name: str) -> None:
    """The sample median of many rows is an approximate median; the largest row is not."""
    law = interior.LAWS[name]
    values = law.draw(np.random.default_rng(1), 20_001)
    assert law.is_median(float(np.median(values)))
    assert not law.is_median(float(values.max()) + 1)
