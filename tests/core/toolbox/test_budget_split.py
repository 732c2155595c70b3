"""Shares of one cost: the search may stop early, and finds what all its steps find."""

from __future__ import annotations

import random
from fractions import Fraction

import numpy as np
import pytest

from dpflow.core.toolbox.budget_split import balance_shares, round_shares


@pytest.mark.parametrize("power", [1, 2])
def test_shares_that_stand_are_those_of_all_steps(power: int) -> None:
    """Errors of one to six measures on one to eight vectors, of sizes from 10^-6 to 10^6."""
    chance = random.Random(power)
    for _ in range(60):
        measures, vectors = chance.randint(1, 6), chance.randint(1, 8)
        errors = [
            [chance.choice([0, 1, chance.random() * 10 ** chance.randint(-6, 6)]) for _ in range(vectors)]
            for _ in range(measures)
        ]  # fmt: skip
        for vector in range(vectors):
            errors[chance.randrange(measures)][vector] += 1
        for row in errors:
            row[chance.randrange(vectors)] += 1
        weights = [Fraction(chance.randint(1, 9)) for _ in range(measures)]
        # A thousand steps, however little the last of them change.
        a = np.maximum(np.array(errors, dtype=np.float64), 1e-300)
        a /= a.sum(axis=1, keepdims=True)
        w = np.array([float(weight / sum(weights)) for weight in weights])
        step, cost = power / (power + 1), np.full(a.shape[1], 1 / a.shape[1])
        for _ in range(1000):
            parts = a * cost ** (-1 / power)
            target = w @ (parts / parts.sum(axis=1, keepdims=True))
            cost = cost ** (1 - step) * np.maximum(target, 1e-12) ** step
            cost /= cost.sum()
        assert balance_shares(errors, weights, power) == round_shares(cost.tolist())
