"""Measured errors of walks and linear models are those that the specification measured, and stay
under their bounds.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))
from dpflow_private_prediction.building_blocks.stable_descent import minimise, one_pass  # noqa: E402
from dpflow_private_prediction.mechanisms import linear  # noqa: E402
from dpflow_private_prediction.mechanisms.linear import LinearParams  # noqa: E402
from dpflow_private_prediction.mechanisms.walk import walk_labels  # noqa: E402

from dpflow.testing.harness import StreamSource  # noqa: E402


@pytest.mark.parametrize(
    ("epsilon", "rows", "clip", "noise", "low", "high", "bound"),
    [
        (1.0, 360, 6, 0.0, 0.067, 0.069, 0.272),
        (1.0, 360, 6, 0.2, 0.252, 0.255, 0.815),
        (0.1, 3600, 60, 0.0, 0.065, 0.066, 0.111),
        (0.1, 3600, 60, 0.2, 0.247, 0.247, 0.332),
        (0.05, 29520, 164, 0.2, 0.216, 0.216, 0.300),
    ],
)
def test_walks_err_equally_on_every_domain(
    epsilon: float, rows: int, clip: int, noise: float, low: float, high: float, bound: float
) -> None:
    """On 10, 10^3, 10^6 and 10^12 places; the last line is agnostic mode."""
    found = []
    for places in (10, 10**3, 10**6, 10**12):
        errors = []
        for seed in range(12):
            # The exact error on 5000 fresh points of a threshold at 0.37 of the line.
            rng, source = np.random.default_rng([seed, places]), StreamSource(seed)
            x, fresh = rng.integers(1, places + 1, rows), rng.integers(1, places + 1, 5000)
            y = ((x >= 0.37 * places) ^ (rng.random(rows) < noise)).astype(np.int64)
            truth = (fresh >= 0.37 * places) ^ (rng.random(5000) < noise)
            votes = walk_labels(x, y, clip, source).values_at(fresh, source)
            p = 1 / (1 + np.exp(-epsilon * votes / 2))
            errors.append(float(np.where(truth, 1 - p, p).mean()))
        found.append(float(np.mean(errors)))
    assert max(found) <= bound
    assert 0.9 * low <= np.mean(found) <= 1.1 * high
    assert max(found) - min(found) <= 0.02


def rows_of(d: int, number: int, rng: Any) -> tuple[Any, Any]:
    """Rows in the unit ball with Pr[y = 1] = sigmoid(5 x_1)."""
    g = rng.standard_normal((number, d))
    x = g / np.linalg.norm(g, axis=1, keepdims=True)
    x[:, 0] = rng.choice([-0.9, 0.9], number) * rng.random(number)
    x /= np.maximum(1, np.linalg.norm(x, axis=1, keepdims=True))
    y = np.where(rng.random(number) < 1 / (1 + np.exp(-5 * x[:, 0])), 1.0, -1.0)
    return x, y


@pytest.mark.slow
@pytest.mark.parametrize("d", [2, 50, 500])
@pytest.mark.parametrize(
    ("rows", "epsilon", "regularised", "sgd"),
    [(20000, 1.0, (0.019, 0.022), (0.0015, 0.0023)), (20000, 0.1, (0.058, 0.061), (0.060, 0.064)),
     (3200, 0.1, (0.165, 0.168), (0.36, 0.37))],
)  # fmt: skip
def test_linear_models_do_not_mind_the_dimension(
    d: int, rows: int, epsilon: float, regularised: Any, sgd: Any
) -> None:
    """The excess loss of private predictions, logistic, R = 5, in the specification's ranges and
    under the theorems' bounds.
    """
    rng = np.random.default_rng(d)
    x, y = rows_of(d, rows, rng)
    fresh, truth = rows_of(d, 20000, rng)
    best = float(np.logaddexp(0, -truth * 5 * fresh[:, 0]).mean())
    bounds = {
        "regularised": 20 / math.sqrt(rows * epsilon / (1 + epsilon)),
        "sgd": 10 / math.sqrt(rows) + 25 / (rows * epsilon**2),
    }
    for method, (low, high) in (("regularised", regularised), ("sgd", sgd)):
        given = {
            "features": ["x"],
            "label": "y",
            "epsilon": str(epsilon),
            "predictions": 1,
            "loss": "logistic",
        }
        params = LinearParams.model_validate(
            given | {"size": rows, "method": method, "radius": "5"}
        )
        if method == "sgd":
            w = one_pass(x, y, "logistic", 5.0, rows, StreamSource(d))
        else:
            w = minimise(x, y, "logistic", linear.plan_strength(params), rows)
        noise = rng.laplace(0, linear.stability_rate(params) / epsilon, (20, len(fresh)))
        excess = float(np.logaddexp(0, -truth * (fresh @ w + noise)).mean()) - best
        assert 0.75 * low - 0.001 <= excess <= 1.25 * high + 0.001, (method, excess)
        assert excess <= bounds[method]
