"""The experiments on private prediction in a small form, and what they rest on."""

from __future__ import annotations

import numpy as np
import pytest

from experiments import prediction


@pytest.mark.parametrize("name", ["prediction-membership", "prediction-walk"])
def test_bounds_hold(name: str) -> None:
    """The attacker's advantage stays under its bound, the plain tree's does not; the walk does not
    mind the domain.
    """
    (experiment,) = [e for e in prediction.EXPERIMENTS if e.name == name]
    assert experiment.run(experiment.small).broken == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ["prediction-digits", "prediction-flights"])
def test_bounds_hold_on_real_data(name: str) -> None:
    """Predictions beat a published model where few are asked."""
    (experiment,) = [e for e in prediction.EXPERIMENTS if e.name == name]
    assert experiment.run(experiment.small).broken == []


def test_the_budget_of_one_vote() -> None:
    """Basic for one prediction, the vote's zCDP for many."""
    assert prediction.spent(1.0, 1) == 1.0
    assert 0.01 < prediction.spent(1.0, 100) < 0.06
    assert prediction._most(0.7, 1) == pytest.approx(0.7) and prediction._most(
        0.5, 10
    ) == pytest.approx(0.5)


def test_expected_accuracy_is_the_soft_majority_s() -> None:
    """Two labels, 16 of 23 votes at epsilon 1: the specification's probability."""
    assert prediction.accuracy(np.array([[7, 16]]), np.array([1]), 1.0) == pytest.approx(
        0.9890130574, abs=1e-9
    )
