"""The hard instance of the lower bound, and a meter that no private prediction can pass below.

Points 0, ..., d-1; labels of all but the last are coin tosses, the last has label 0. A row is the
last point with probability 1 - 4 alpha and each other one with 4 alpha / (d-1). Flipping the labels
of a point's t copies is a change of t rows, so an (epsilon, delta)-DP prediction is wrong there
with probability at least that of `error_floor`, on average over the tosses (Dwork and Feldman 2018,
Theorem 2.2).

The meter is a black-box privacy test: whoever has fewer errors is not private at this epsilon.
`count_predictor` is the simplest private prediction of a finite domain, and close to the floor.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from dpflow_private_prediction.building_blocks.shards import Ints
from dpflow_private_prediction.theory.prediction_sizes import error_floor
from numpy.typing import NDArray

from dpflow.core.sampling.randomness import Source
from dpflow.core.sampling.samplers import uniform_integers
from dpflow.errors import InvalidInput

#: From the points and labels of the rows: the probability of label 1 at each of the d points.
Predictor = Callable[[Ints, Ints], NDArray[np.float64]]


@dataclass(frozen=True)
class MeterReading:
    """``error``: mean over instances of the error on the hard points, and its standard error;
    ``floor``: what is possible.
    """

    error: float
    deviation: float
    floor: float

    @property
    def possible(self) -> bool:
        """False where an (epsilon, delta)-DP prediction cannot be so good: 4 standard errors below
        the floor.
        """
        return self.error >= self.floor - 4 * self.deviation


def draw_instance(rows: int, d: int, alpha: Fraction, source: Source) -> tuple[Ints, Ints, Ints]:
    """(labels of the d points, point of each row, label of each row). Raises `InvalidInput` outside
    alpha <= 1/4, d >= 2.
    """
    if not 0 < alpha <= Fraction(1, 4) or d < 2:
        raise InvalidInput(
            f"the hard instance needs alpha in (0, 1/4] and d of 2 or more, not {alpha} and {d}"
        )
    labels = np.concatenate([uniform_integers(2, d - 1, source), np.zeros(1, np.int64)])
    # Exact rational probabilities: the meter must not be off by its own rounding.
    easy = uniform_integers(alpha.denominator, rows, source) >= 4 * alpha.numerator
    points = np.where(easy, d - 1, uniform_integers(d - 1, rows, source))
    return labels, points, labels[points]


def measure_error(
    predictor: Predictor,
    rows: int,
    d: int,
    alpha: Fraction,
    epsilon: float,
    source: Source,
    delta: float = 0.0,
    instances: int = 200,
) -> MeterReading:
    """The mean error of a predictor on so many hard instances, against the floor."""
    errors = np.empty(instances)
    for number in range(instances):
        labels, points, row_labels = draw_instance(rows, d, alpha, source)
        ones = predictor(points, row_labels)[: d - 1]
        errors[number] = np.where(labels[: d - 1] == 1, 1 - ones, ones).mean()
    deviation = float(errors.std() / math.sqrt(instances))
    return MeterReading(
        float(errors.mean()), deviation, error_floor(rows, d, float(alpha), epsilon, delta)
    )


def count_predictor(d: int, epsilon: float) -> Predictor:
    """Label 1 with logit epsilon (n1 - n0) / 2, n_b rows at the point with label b: one row moves
    n1 - n0 by at most 2.
    """

    def predict(points: Ints, labels: Ints) -> NDArray[np.float64]:
        balance = np.bincount(points, weights=2.0 * labels - 1, minlength=d)
        p: NDArray[np.float64] = 1 / (1 + np.exp(-np.clip(epsilon * balance / 2, -700, 700)))
        return p

    return predict
