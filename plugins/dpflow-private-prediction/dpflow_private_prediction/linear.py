"""Numbers and scores from one linear model: convex learning that is stable by itself, and noise on each answer.

Definition: features are mapped into the unit ball by public bounds (with a constant one, so that the intercept is kept small,
too), a label into [-1, 1] by its bounds or as -1 and +1. One weight vector w is learned from all rows, with n a public number:

    regularised   w minimises (1/n) sum of losses + lambda |w|^2, lambda = 2 / (R sqrt(n epsilon/(1+epsilon))) unless given
                  as ``strength``; stability rate gamma = 4 / (lambda n)                        (Corollary 4.11, Theorem 4.9)
    sgd           one pass of projected gradient steps of eta = R/sqrt(n) in a random order, averaged over all n steps;
                  gamma = 2 R / sqrt(n), the worst case over positions. (The paper prints R / sqrt(n), which the row in
                  the first place violates.)                                                                 (Theorem 4.12)

An answer is <w, x> in steps of a grid g <= gamma/1024 plus integer noise for D = floor(gamma/g) + 1 of them.

Claim: one unit of k rows moves <w, x> by at most k gamma, so `noise` applies with gamma replaced by k gamma. Regularised: the
exact minimiser moves by at most 1/(lambda n) for each row, under add-remove and replace, and the solver stops where the
gradient is below 1/n, which is at most 1/(2 lambda n) away: less than gamma in all. A row that is missing counts as one
without loss, so n need not be the true number. Losses have slope at most 1 in the prediction: ``huber`` for numbers,
``logistic`` for two labels.

When not to use it: for what is not linear (`value`, `vote`), or if n is far from the number of rows: claims hold, answers
are poor.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from dpflow.core.amounts import Epsilon
from dpflow.core.declaration import Exact, Table
from dpflow.core.events import Event
from dpflow.core.points import Codes
from dpflow.core.prediction import PredictionMechanism, PredictionParams
from dpflow.core.randomness import Source
from dpflow.core.samplers import uniform
from dpflow.core.statistics import Answer, Records
from dpflow.errors import PlanRefused
from dpflow_private_prediction import features, noise
from dpflow_private_prediction.noise import Noise
from dpflow_private_prediction.shards import Ints

Vector = NDArray[np.float64]

SMOOTHNESS = {"huber": 1.0, "logistic": 0.25}  # of the loss, in the prediction
MOST_STEPS = 500  # of the solver, whose worst known rows need about twenty


class LinearParams(PredictionParams):
    """What is learned and asked. ``size``: n, about how many rows there are; public.

    ``epsilon``: of one prediction. ``label``: a bounded column (``loss: huber``) or one with two labels (``logistic``,
    answered as the probability of the second). ``radius`` R: how long a weight vector may be that answers compete with.
    ``method``: regularised or sgd. ``strength``: lambda, instead of the paper's. ``noise``: laplace or gaussian.
    """

    epsilon: Epsilon
    label: str
    size: Annotated[int, Field(ge=1, le=10**9)]
    loss: Literal["huber", "logistic"] = "huber"
    method: Literal["regularised", "sgd"] = "regularised"
    radius: Annotated[Exact, Field(gt=0, le=10**6)] = Fraction(5)
    strength: Annotated[Exact, Field(gt=0, le=10**6)] | None = None
    noise: Noise = "laplace"


@dataclass(frozen=True)
class Weights:
    """The learned vector. Its repr shows nothing."""

    w: Vector = field(repr=False)


class Linear(PredictionMechanism[LinearParams]):
    """Which number, or which probability of a label, does a point have?"""

    name = "predict_linear"
    summary = "session: numbers or label probabilities from one linear model, by noise on each answer"
    citation = "Dwork, Feldman 2018, Lemma 4.5, Theorems 4.9, 4.12, Corollary 4.11"
    Params = LinearParams

    def one(self, params: LinearParams, table: Table) -> Event:
        if params.loss == "logistic":
            features.two_labels(table, params.label, f"{self.name} with loss logistic")
        else:
            features.number(table, params.label)
        if params.method == "sgd" and params.strength is not None:
            raise PlanRefused("sgd has no strength; leave it out, or take method regularised")
        if params.method == "sgd" and SMOOTHNESS[params.loss] * step(params) > 2:
            raise PlanRefused(
                "radius is too large for so few rows: a gradient step would overshoot; lower it, or take more rows"
            )
        return noise.claim(params.noise, grid(params, table)[1], params.epsilon)

    def rows(self, params: LinearParams, table: Table) -> Records:
        return features.records(table, params.features, params.label)

    def learn(self, params: LinearParams, table: Table, answer: Answer, source: Source) -> Weights:
        points = unit_ball(table, params, [answer.columns[name] for name in params.features])
        targets: Vector
        if params.loss == "logistic":
            codes = features.label_codes(table, params.label, answer)
            points, targets = points[codes >= 0], (2.0 * codes[codes >= 0] - 1).astype(np.float64)
        else:
            low, high = table.bounded(params.label).grid()
            targets = (2.0 * answer.columns[params.label] - (low + high)) / max(high - low, 1)
        if params.method == "sgd":
            return Weights(one_pass(points, targets, params, source))
        return Weights(minimise(points, targets, params))

    def predict(self, params: LinearParams, table: Table, learned: Weights, points: Codes, source: Source) -> list[Any]:
        g, steps = grid(params, table)
        exact = unit_ball(table, params, points.T) @ learned.w
        drawn = noise.draw(params.noise, steps, params.epsilon, len(exact), source)
        noisy = g * (np.clip(np.round(exact / g), -(2.0**52), 2.0**52) + drawn)
        if params.loss == "logistic":
            return (1 / (1 + np.exp(-np.clip(noisy, -700, 700)))).tolist()  # type: ignore[no-any-return]
        column = table.bounded(params.label)
        low, high = column.grid()
        middle, half = (low + high) / 2, max(high - low, 1) / 2
        return ((np.clip(noisy, -1, 1) * half + middle) * float(column.step)).tolist()  # type: ignore[no-any-return]


def grid(params: LinearParams, table: Table) -> tuple[float, int]:
    """g and D: the grid's step, a power of two, and how many of them one unit can move an answer."""
    gamma = stability(params) * table.limits.rows
    g = 2.0 ** math.floor(math.log2(gamma / 1024))
    return g, math.floor(gamma / g * (1 + 1e-9)) + 1


def strength(params: LinearParams) -> float:
    """lambda of Corollary 4.11, unless one is given."""
    if params.strength is not None:
        return float(params.strength)
    epsilon = float(params.epsilon)
    return 2 / (float(params.radius) * math.sqrt(params.size * epsilon / (1 + epsilon)))


def step(params: LinearParams) -> float:
    """eta of Theorem 4.12."""
    return float(params.radius) / math.sqrt(params.size)


def stability(params: LinearParams) -> float:
    """gamma: how far one row can move a prediction at any point of the unit ball."""
    if params.method == "sgd":
        return 2 * step(params)
    return 4 / (strength(params) * params.size)


def unit_ball(table: Table, params: LinearParams, columns: Any) -> Vector:
    """Features and a constant, divided by the largest length that they can have."""
    made = features.matrix(table, params.features, columns)
    whole = np.hstack([made, np.ones((len(made), 1))])
    scaled: Vector = whole / math.sqrt(len(params.features) + 1)
    return scaled


def slopes(loss: str, score: Vector, target: Vector) -> tuple[Vector, Vector]:
    """First and second derivative of the losses in the prediction."""
    if loss == "huber":
        gap = score - target
        return np.clip(gap, -1, 1), (np.abs(gap) <= 1).astype(np.float64)
    p = 1 / (1 + np.exp(np.clip(target * score, -700, 700)))
    return -target * p, p * (1 - p)


def losses(loss: str, score: Vector, target: Vector) -> Vector:
    """The losses of predictions."""
    if loss == "huber":
        gap = np.abs(score - target)
        quadratic: Vector = np.where(gap <= 1, gap**2 / 2, gap - 0.5)
        return quadratic
    return np.logaddexp(0, -target * score)


def minimise(points: Vector, targets: Vector, params: LinearParams) -> Vector:
    """The minimiser of the regularised loss, to a gradient below 1/n, by Newton's method with backtracking.

    The objective is strongly convex and each step takes it down by a fixed part of what its slope promises, so this ends
    whatever the rows are. Were the limit ever reached, the answer would be 0, the default model.
    """
    size, strong = params.size, strength(params)

    def objective(at: Vector) -> float:
        return float(losses(params.loss, points @ at, targets).sum() / size + strong * at @ at)

    def derivatives(at: Vector) -> tuple[Vector, Vector]:
        first, second = slopes(params.loss, points @ at, targets)
        return points.T @ first / size + 2 * strong * at, second

    w = np.zeros(points.shape[1])
    gradient, second = derivatives(w)
    for _ in range(MOST_STEPS):
        norm = float(np.linalg.norm(gradient))
        if norm <= 1 / size:
            return w
        hessian = (points.T * second) @ points / size + 2 * strong * np.eye(len(w))
        direction = -np.linalg.solve(hessian, gradient)
        slope, now, length = float(gradient @ direction), objective(w), 1.0
        while True:
            tried = w + length * direction
            gradient, second = derivatives(tried)
            # next to the minimum differences of the objective drown in rounding, and the gradient decides
            if objective(tried) <= now + 1e-4 * length * slope or float(np.linalg.norm(gradient)) <= norm / 2:
                break
            length /= 2
            if length < 1e-9:
                break
        w = tried
    return np.zeros(points.shape[1])


def one_pass(points: Vector, targets: Vector, params: LinearParams, source: Source) -> Vector:
    """One projected gradient pass over n places, averaged over what w was before each.

    Rows take distinct places at random and a place without a row leaves w alone, so a row more or less, or another, changes
    one step. Rows beyond n have no place.
    """
    size, eta, radius = params.size, step(params), float(params.radius)
    order = np.argsort(source.words(len(points)), kind="stable")[:size]
    places = spread(len(order), size, source)
    slope = SLOPES[params.loss]
    w, total, last = np.zeros(points.shape[1]), np.zeros(points.shape[1]), 0
    for place, x, y in zip(places.tolist(), points[order], targets[order].tolist()):
        total += w * (place + 1 - last)
        last = place + 1
        w = w - (eta * slope(float(x @ w), y)) * x
        norm = math.sqrt(w @ w)
        if norm > radius:
            w *= radius / norm
    averaged: Vector = (total + w * (size - last)) / size
    return averaged


#: The derivative of one loss in the prediction, as `slopes`, for a loop over rows.
SLOPES: dict[str, Callable[[float, float], float]] = {
    "huber": lambda score, target: min(1.0, max(-1.0, score - target)),
    "logistic": lambda score, target: -target / (1 + math.exp(min(700.0, target * score))),
}


def spread(number: int, size: int, source: Source) -> Ints:
    """So many of the places 0, ..., size - 1, in ascending order, every set of them as likely."""
    if 2 * number > size:
        left_out = np.zeros(size, bool)
        left_out[spread(size - number, size, source)] = True
        return np.flatnonzero(~left_out)
    chosen = np.zeros(0, np.int64)
    while len(chosen) < number:
        chosen = np.union1d(chosen, uniform(size, number - len(chosen), source))
    return chosen
