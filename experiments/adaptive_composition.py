"""The lecture's attack on means: exact answers overfit as predicted, Laplace noise takes the
overfitting away.
"""

from __future__ import annotations

from fractions import Fraction
from math import inf

import numpy as np
from dpflow_stable_median.theory.sign_attack import mean_shift

from dpflow.core.sampling.samplers import discrete_laplace
from dpflow.testing.harness import StreamSource
from experiments.report import Bound, Experiment, Found

ROWS, QUERIES = 2000, 2001
EACH = (Fraction(1, 20), Fraction(1, 50), Fraction(1, 100))


def sign_aggregation(runs: int) -> Found:
    """k bits per row, uniform and independent; the final query says whether a row agrees with most
    of the signs.
    """
    shifts: dict[Fraction | None, list[float]] = {each: [] for each in (None, *EACH)}
    for seed in range(runs):
        bits = np.random.default_rng(seed).integers(0, 2, (ROWS, QUERIES), dtype=np.int8)
        sums = bits.sum(axis=0, dtype=np.int64)
        source = StreamSource(seed)
        for each, found in shifts.items():
            said = sums if each is None else sums + discrete_laplace(1 / each, QUERIES, source)
            signs = np.where(2 * said >= ROWS, 1, -1).astype(np.int32)
            agree = (2 * bits.astype(np.int32) - 1) @ signs
            found.append(float((agree > 0).mean()))
    rows, bounds, curve, predicted = [], [], [], []
    for each, found in shifts.items():
        mean, expected = (
            float(np.mean(found)),
            mean_shift(QUERIES, ROWS, float(each) if each else inf),
        )
        name = f"epsilon {float(each):g}" if each else "exact means"
        rows.append((name, mean, expected, float(np.std(found)), 0.5))
        bounds.append(
            Bound(
                f"{name} within 0.015 of the prediction",
                f"{mean:.4f}",
                abs(mean - expected) <= 0.015,
            )
        )
        if each:
            curve.append((float(each), mean))
    for e in np.geomspace(0.004, 0.2, 40):
        predicted.append((float(e), mean_shift(QUERIES, ROWS, float(e))))
    return Found(
        ("answers", "final query on the sample", "predicted", "sd over runs", "truth"),
        tuple(rows),
        {
            "measured": curve,
            "predicted": predicted,
            "exact answers": [(0.004, rows[0][1]), (0.2, rows[0][1])],
            "truth": [(0.004, 0.5), (0.2, 0.5)],
        },
        tuple(bounds),
    )


EXPERIMENTS = (
    Experiment(
        6,
        "sign-aggregation-means",
        "Adding up signs of answers about means",
        f"{ROWS:,} rows of {QUERIES:,} fair bits. The analyst asks for each bit's mean and then for the share of rows that agree "
        "with most of the answers' signs; on fresh rows it is 1/2. The prediction is `dpflow calculate sign_attack`.",
        ("epsilon of an answer", "final query on the sample"),
        sign_aggregation,
        runs=20,
        small=3,
        logarithmic="x",
    ),
)
