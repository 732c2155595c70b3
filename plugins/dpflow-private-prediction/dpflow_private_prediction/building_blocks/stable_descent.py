"""Two learners of weight vectors that one row moves by no more than is proved, whatever the rows
are and however floats round.

Points lie in the unit ball, and losses have a slope of at most 1 in the prediction <w, x>. There
are at most n = ``size`` rows; a place without a row counts as a row without loss.

`minimise`, a full gradient at every step. F(w) = (1/n) sum of losses + lambda |w|^2 is m-strongly
convex, m = 2 lambda, with an M-Lipschitz gradient, so Nesterov's method from 0 with q = sqrt(m/M)
gains a factor 1 - q at each step; with an error of at most e in every gradient it is after k steps
within

    |w - w*| <= (1-q)^(k/2) 2 sqrt(F(0)/m) + 4 e / (q m)       (Schmidt, Le Roux, Bach 2011, Proposition 4; F(0) <= ln 2)

The number of steps makes the first term at most 1/(2 m n), and `exact_enough`, a question about
public numbers that a plan asks first, the second one at most 1/(m n). A gradient of length g
anywhere says |w - w*| <= g/m, so stopping early at 1/n is within 1.25/(m n). Both ways out are
within 1.5/(m n) of the minimiser. There is no third: nothing hopes to converge.

`one_pass`, one projected gradient step for each place. A step does not drive two vectors apart if 2
/ (step size) is above the losses' smoothness, and only the step at the changed row adds something:
two step sizes. `drift` adds what rounding does.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dpflow.core.sampling.randomness import Source
from dpflow.core.sampling.samplers import uniform_integers
from dpflow_private_prediction.building_blocks.shards import Ints

Vector = NDArray[np.float64]
Loss = Literal["huber", "logistic"]

SMOOTHNESS: dict[Loss, float] = {"huber": 1.0, "logistic": 0.25}  # of the loss, in the prediction
ROUNDING = 2.0**-53  # relative, of one operation on floats
ENOUGH = 1.0  # times 1/n: the length of a gradient at which descending ends early
BLOCK = 1024  # rows whose gradients are added plainly; blocks are added pairwise


def exact_enough(loss: Loss, strength: float, size: int, numbers: int) -> bool:
    """Whether rounding leaves `minimise` what its bound asks for: 4 n e <= q.

    e adds up what scores, slopes, sums and steps lose, relative to the longest vector on the way to
    the minimum.
    """
    longest = 5 / math.sqrt(strength) + 2 / (strength * size)
    error = ROUNDING * (1 + 2 * strength) * (BLOCK + 250 + (numbers + 30) * (1 + longest))
    return 4 * size * error <= math.sqrt(2 * strength / (SMOOTHNESS[loss] + 2 * strength))


def minimise(points: Vector, targets: Vector, loss: Loss, strength: float, size: int) -> Vector:
    """A vector within 1.5 / (2 strength size) of the minimiser of (1/size) sum of losses + strength
    |w|^2.

    Args:
        points: at most ``size`` rows in the unit ball.
        targets: numbers in [-1, 1], or -1 and +1 for ``logistic``.
    """
    modulus = 2 * strength
    # The Frobenius norm bounds the largest eigenvalue; 1.001 covers its rounding.
    steepest = modulus + SMOOTHNESS[loss] * 1.001 * float(np.linalg.norm(points.T @ points)) / size
    q = math.sqrt(modulus / steepest)
    momentum = (1 - q) / (1 + q)
    w = y = np.zeros(points.shape[1])
    # The number of steps is computed from public numbers: it needs no test of convergence.
    for _ in range(math.ceil(2 / q * math.log(2 + 4 * size * math.sqrt(modulus)))):
        gradient = sum_rows(points, loss_slopes(loss, points @ y, targets)) / size + modulus * y
        # Ending early is safe for privacy: the bound on the distance holds at any such point.
        if float(np.linalg.norm(gradient)) <= ENOUGH / size:
            return y
        before, w = w, y - gradient / steepest
        y = w + momentum * (w - before)
    return w


def sum_rows(points: Vector, factors: Vector) -> Vector:
    """The sum of rows times their factors, in an order that keeps its rounding small for any number
    of rows.
    """
    # numpy adds the contiguous axis pairwise, so the error grows with the logarithm of the blocks.
    blocks = [factors[i : i + BLOCK] @ points[i : i + BLOCK] for i in range(0, len(points), BLOCK)]
    whole: Vector = np.array(blocks).reshape(-1, points.shape[1]).T.copy().sum(axis=1)
    return whole


def loss_slopes(loss: Loss, score: Vector, target: Vector) -> Vector:
    """The losses' derivative in the prediction."""
    if loss == "huber":
        return np.clip(score - target, -1, 1)
    bent: Vector = -target / (1 + np.exp(np.clip(target * score, -700, 700)))
    return bent


#: The derivative of one loss in the prediction, as `slopes`, for a loop over rows.
SLOPES: dict[Loss, Callable[[float, float], float]] = {
    "huber": lambda score, target: min(1.0, max(-1.0, score - target)),
    "logistic": lambda score, target: -target / (1 + math.exp(min(700.0, target * score))),
}


def step_size(radius: float, size: int) -> float:
    """eta of Theorem 4.12."""
    return radius / math.sqrt(size)


def rounding_drift(radius: float, size: int, numbers: int) -> float:
    """How far rounding may drive two passes apart, in a prediction."""
    return 4 * ROUNDING * size * (numbers + 10) * (radius + 1) * (1 + step_size(radius, size))


def one_pass(
    points: Vector, targets: Vector, loss: Loss, radius: float, size: int, source: Source
) -> Vector:
    """One projected gradient pass over n places, averaged over what w was before each.

    Rows take distinct places at random and a place without a row leaves w alone, so a row more or
    less, or another, changes one step. Rows beyond n have no place.
    """
    eta, order = step_size(radius, size), sample_rows(len(points), size, source)
    positions = sample_places(len(order), size, source)
    slope = SLOPES[loss]
    w, total, last = np.zeros(points.shape[1]), np.zeros(points.shape[1]), 0
    for position, x, y in zip(positions.tolist(), points[order], targets[order].tolist()):
        # A place without a row leaves w alone but counts in the average.
        total += w * (position + 1 - last)
        last = position + 1
        w = w - (eta * slope(float(x @ w), y)) * x
        norm = math.sqrt(w @ w)
        if norm > radius:
            w *= radius / norm
    averaged: Vector = (total + w * (size - last)) / size
    return averaged


def sample_rows(number: int, most: int, source: Source) -> Ints:
    """At most so many of the rows 0, ..., number - 1, in random order: one row more puts at most
    one other out.
    """
    return np.argsort(uniform_integers(2**62, number, source), kind="stable")[:most]


def sample_places(number: int, size: int, source: Source) -> Ints:
    """So many of the places 0, ..., size - 1, in ascending order, every set of them as likely."""
    # Drawing the places that stay empty is faster when most are taken.
    if 2 * number > size:
        left_out = np.zeros(size, bool)
        left_out[sample_places(size - number, size, source)] = True
        return np.flatnonzero(~left_out)
    picks = np.zeros(0, np.int64)
    while len(picks) < number:
        picks = np.union1d(picks, uniform_integers(size, number - len(picks), source))
    return picks
