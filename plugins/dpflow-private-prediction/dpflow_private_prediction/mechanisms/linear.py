"""Numbers and scores from one linear model: convex learning that is stable by itself, and noise on
each answer.

Definition: features are mapped into the unit ball by public bounds (with a constant one, so that
the intercept is kept small, too), a label into [-1, 1] by its bounds or as -1 and +1. One weight
vector w is learned from all rows, with n a public number:

    regularised   w minimises (1/n) sum of losses + lambda |w|^2, lambda = 2 / (R sqrt(n epsilon/(1+epsilon))) unless given
                  as ``strength``; stability rate gamma = 4 / (lambda n)                        (Corollary 4.11, Theorem 4.9)
    sgd           one pass of projected gradient steps of eta = R/sqrt(n) in a random order, averaged over all n steps;
                  gamma = 2 R / sqrt(n), the worst case over positions. (The paper prints R / sqrt(n), which the row in
                  the first place violates.)                                                                 (Theorem 4.12)

An answer is <w, x> in steps of a grid g <= gamma/1024 plus integer noise for D = floor(gamma/g) + 1
of them.

Guarantee: one unit of k rows moves <w, x> by at most k gamma, so `noise` applies with gamma
replaced by k gamma. Regularised: the exact minimiser moves by at most 1/(lambda n) for each row,
under add-remove and replace, and what is computed is always within 3/(4 lambda n) of it (`minimise`,
whose proof allows for rounding and needs no luck): 2.5/(lambda n), less than gamma in all. A row
that is missing counts as one without loss, and of more than n rows a random n are taken, so n need
not be the true number. Losses have slope at most 1 in the prediction: ``huber`` for numbers,
``logistic`` for two labels.

When not to use it: for what is not linear (`value`, `vote`), or if n is far from the number of
rows: guarantees hold, answers are poor.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from dpflow.core.accounting.amounts import Epsilon
from dpflow.core.accounting.events import Event
from dpflow.core.contract.declaration import Table
from dpflow.core.contract.point_encoding import Codes
from dpflow.core.contract.prediction import PredictionParams
from dpflow.core.contract.requests import Answer
from dpflow.core.contract.strict_models import Exact
from dpflow.core.sampling.randomness import Source
from dpflow.errors import PlanRefused
from dpflow_private_prediction.building_blocks import answer_noise, features, stable_descent
from dpflow_private_prediction.building_blocks.answer_noise import Noise
from dpflow_private_prediction.building_blocks.stable_descent import Loss, Vector


class LinearParams(PredictionParams):
    """What is learned and asked.

    ``size``: n, about how many rows there are; public. ``epsilon``: of one prediction. ``label``: a
    bounded column, or with logistic loss one with two labels, answered as the probability of the
    second. ``loss``: huber for numbers, logistic for labels. ``radius``: R, how long a weight
    vector may be that answers compete with. ``method``: regularised or sgd. ``strength``: lambda,
    instead of the paper's. ``noise``: laplace or gaussian.
    """

    epsilon: Epsilon
    label: str
    size: Annotated[int, Field(ge=1, le=10**9)]
    loss: Loss = "huber"
    method: Literal["regularised", "sgd"] = "regularised"
    radius: Annotated[Exact, Field(gt=0, le=10**6)] = Fraction(5)
    strength: Annotated[Exact, Field(gt=0, le=10**6)] | None = None
    noise: Noise = "laplace"


@dataclass(frozen=True)
class Weights:
    """The learned vector. Its repr shows nothing."""

    w: Vector = field(repr=False)


class PredictLinear(features.LearnsLabel[LinearParams]):
    """Which number, or which probability of a label, does a point have?"""

    name = "predict_linear"
    job = "predictions"
    summary = (
        "session: numbers or label probabilities from one linear model, by noise on each answer"
    )
    citation = "Dwork, Feldman 2018, Lemma 4.5, Theorems 4.9, 4.12, Corollary 4.11"
    version = 2  # 1 minimised by another method

    def prediction_event(self, params: LinearParams, table: Table) -> Event:
        """The event of one answer. Raises `PlanRefused` where the stability rate could not be
        proven.
        """
        if params.loss == "logistic":
            features.check_two_labels(table, params.label, f"{self.name} with loss logistic")
        else:
            features.number_column(table, params.label)
        if params.method == "sgd" and params.strength is not None:
            raise PlanRefused("sgd has no strength; leave it out, or take method regularised")
        step = stable_descent.step_size(float(params.radius), params.size)
        if params.method == "sgd" and stable_descent.SMOOTHNESS[params.loss] * step > 2:
            raise PlanRefused(
                "radius is too large for so few rows: a gradient step would overshoot; lower it, or take more rows"
            )
        numbers = features.matrix_width(table, params.features) + 1
        if params.method == "regularised" and not stable_descent.exact_enough(
            params.loss, plan_strength(params), params.size, numbers
        ):
            raise PlanRefused(
                "the strength is too small for so many rows: the minimum could not be computed as closely as the guarantee needs; "
                "raise strength, or lower radius or size"
            )
        return answer_noise.noise_event(params.noise, answer_grid(params, table)[1], params.epsilon)

    def learn(self, params: LinearParams, table: Table, answer: Answer, source: Source) -> Weights:
        """One weight vector from all rows, at most ``size`` of them, by the declared method."""
        points = unit_ball(table, params, [answer.columns[name] for name in params.features])
        targets: Vector
        if params.loss == "logistic":
            codes = features.label_codes(table, params.label, answer)
            # A row with another label counts as a row without loss.
            points, targets = points[codes >= 0], (2.0 * codes[codes >= 0] - 1).astype(np.float64)
        else:
            low, high = table.bounded_column(params.label).grid_bounds()
            targets = (2.0 * answer.columns[params.label] - (low + high)) / max(high - low, 1)
        if params.method == "sgd":
            radius = float(params.radius)
            return Weights(
                stable_descent.one_pass(points, targets, params.loss, radius, params.size, source)
            )
        # A random n of them: one row more puts at most one other out.
        if len(points) > params.size:
            sample = stable_descent.sample_rows(len(points), params.size, source)
            points, targets = points[sample], targets[sample]
        return Weights(
            stable_descent.minimise(
                points, targets, params.loss, plan_strength(params), params.size
            )
        )

    def predict(
        self, params: LinearParams, table: Table, learned: Weights, points: Codes, source: Source
    ) -> list[Any]:
        """A number in the label's unit, or the probability of its second value, for each point."""
        g, steps = answer_grid(params, table)
        exact = unit_ball(table, params, points.T) @ learned.w
        # Rounded to the grid before the noise, which is a whole number of its steps.
        on_grid = np.clip(np.round(exact / g), -(2.0**52), 2.0**52).astype(np.int64)
        noisy = g * answer_noise.add_noise(on_grid, params.noise, steps, params.epsilon, source)
        if params.loss == "logistic":
            return (1 / (1 + np.exp(-np.clip(noisy, -700, 700)))).tolist()  # type: ignore[no-any-return]
        column = table.bounded_column(params.label)
        low, high = column.grid_bounds()
        middle, half = (low + high) / 2, max(high - low, 1) / 2
        return ((np.clip(noisy, -1, 1) * half + middle) * float(column.step)).tolist()  # type: ignore[no-any-return]


def answer_grid(params: LinearParams, table: Table) -> tuple[float, int]:
    """g and D: the grid's step, a power of two, and how many of them one unit can move an answer."""
    gamma = stability_rate(params) * table.contribution_bounds.rows
    if params.method == "sgd":
        gamma += stable_descent.rounding_drift(
            float(params.radius), params.size, features.matrix_width(table, params.features) + 1
        )
    # A power of two, so that dividing by the step and multiplying again is exact.
    g = 2.0 ** math.floor(math.log2(gamma / 1024))
    # One step more than gamma: rounding two answers to the grid may add one.
    return g, math.floor(gamma / g * (1 + 1e-9)) + 1


def plan_strength(params: LinearParams) -> float:
    """lambda of Corollary 4.11, unless one is given."""
    if params.strength is not None:
        return float(params.strength)
    epsilon = float(params.epsilon)
    return 2 / (float(params.radius) * math.sqrt(params.size * epsilon / (1 + epsilon)))


def stability_rate(params: LinearParams) -> float:
    """gamma: how far one row can move a prediction at any point of the unit ball."""
    if params.method == "sgd":
        return 2 * stable_descent.step_size(float(params.radius), params.size)
    return 4 / (plan_strength(params) * params.size)


def unit_ball(table: Table, params: LinearParams, columns: Any) -> Vector:
    """Features and a constant, divided by the largest length that they can have."""
    numbers = features.matrix(table, params.features, columns)
    # The constant one makes the intercept a weight like any other, inside the bound.
    whole = np.hstack([numbers, np.ones((len(numbers), 1))])
    scaled: Vector = whole / math.sqrt(len(params.features) + 1)
    return scaled
