"""Labels on a line by the exponential projected walk: thresholds and unions of intervals, on any
ordered column.

Definition: rows are sorted by (x, u) with u an independent uniform tie-breaker. A walk starts at 0,
goes up at label one and down at label zero, and is clipped to [-T, T]. A query draws its own u and
sees the walk's value v after the last row that is not above (x, u); the answer is label one with
probability sigmoid(epsilon v / D), drawn exactly.

Guarantee: a row that comes or goes moves v by at most 1, because a clipped step never drives two
walks apart; a row that is replaced moves it by at most 2. With k rows a unit D is k under
add-remove and 2k under replace, so the logit moves by at most epsilon: a prediction has bounded
range epsilon, for every T and every query.

Error, for e = 2 epsilon / D, over functions that change at most k times, from n rows, whatever the
size of the domain (a private learner of thresholds needs rows that grow with it; without
tie-breakers this is false for tied values):

    plain             E[error] <= exp(e) (Opt + alpha)             n = 2 (k+2) T / alpha,   T = ceil(2 ln(2/alpha) / e)
    agnostic          E[error] <= Opt + alpha, with e <= alpha/2   n = 6 (k+2) T / alpha,   T = ceil(2 ln(6/alpha) / e)
    high-probability  if Opt = 0: Pr[error >= 3 alpha] <= 2 beta, with e <= 1/(16 ln(1/beta)); n and T as for plain

The last two lower e to what they need: a prediction then costs less than ``epsilon``.

When not to use it: for more than one feature (`vote`), or with so few rows that the walk cannot
climb from -T to T between two changes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from dpflow.core.accounting.amounts import Epsilon
from dpflow.core.accounting.events import BoundedRange, Event
from dpflow.core.contract.declaration import Table
from dpflow.core.contract.point_encoding import Codes
from dpflow.core.contract.prediction import PredictionParams
from dpflow.core.contract.requests import Answer, Records
from dpflow.core.contract.strict_models import Exact
from dpflow.core.sampling.randomness import Source
from dpflow.core.sampling.samplers import choose_rows, uniform_integers
from dpflow.errors import PlanRefused
from dpflow_private_prediction.building_blocks import features

Ints = NDArray[np.int64]

RATE_STEPS = 10**9  # a computed rate is rounded down to a multiple of 1e-9

#: Tie-breakers are integers below it. A tie of tie-breakers falls to the rows' random order.
TIES = 2**32


class WalkParams(PredictionParams):
    """What is learned and asked; the features are one bounded column.

    ``epsilon``: of one prediction, at most. ``label``: a column with two labels; the second is
    "one". ``mode``: which error is proven, see `dpflow_private_prediction.mechanisms.walk`.
    ``alpha``: the error, in (0, 1). ``beta``: the failure probability of high-probability, in (0,
    1). ``clip``: T, instead of the paper's.
    """

    epsilon: Epsilon
    label: str
    mode: Literal["plain", "agnostic", "high-probability"] = "plain"
    alpha: Annotated[Exact, Field(gt=0, lt=1)] = Fraction(1, 10)
    beta: Annotated[Exact, Field(gt=0, lt=1)] = Fraction(1, 20)
    clip: Annotated[int, Field(ge=1, le=2**40)] | None = None


@dataclass(frozen=True)
class Walk:
    """A finished walk: sorted keys of rows, and the value before the first and after each."""

    distinct: Ints = field(repr=False)
    keys: Ints = field(repr=False)
    values: Ints = field(repr=False)

    def values_at(self, x: Ints, source: Source) -> Ints:
        """The walk's value at each query, which draws its own tie-breaker."""
        ties = uniform_integers(TIES, len(x), source)
        order = np.argsort(x)  # neighbouring searches meet in the cache
        x, ties = x[order], ties[order]
        rank = np.searchsorted(self.distinct, x, side="right")
        seen = np.zeros(len(x), bool)
        seen[rank > 0] = self.distinct[rank[rank > 0] - 1] == x[rank > 0]
        # Ranks count from 1. A query between two values of x lies above all rows of the lower one.
        key = rank * TIES + np.where(seen, ties, TIES - 1)
        values = np.empty(len(x), np.int64)
        values[order] = self.values[np.searchsorted(self.keys, key, side="right")]
        return values


def walk_labels(x: Ints, y: Ints, clip: int, source: Source) -> Walk:
    """The walk of labelled values, given in an order that tells nothing about them.

    Args:
        x: any integers.
        y: 0 or 1 for each.
        clip: T.
    """
    ties = uniform_integers(TIES, len(x), source)
    order = np.argsort(x, kind="stable")
    x, new = x[order], np.ones(len(x), bool)
    new[1:] = x[1:] != x[:-1]
    key = np.cumsum(new) * TIES + ties[order]
    within = np.argsort(key, kind="stable")  # in order already but for ties
    order = order[within]
    values = clipped_walk(2 * y[order] - 1, clip)
    return Walk(x[new], key[within], np.concatenate([[0], values]))


def clipped_walk(steps: Ints, clip: int) -> Ints:
    """The values after each step of a walk from 0 that is clipped to [-clip, clip], in O(n)
    vectorised operations.

    The walk is cut into blocks. A block of steps maps v to clip(v + s, low, high) for some s, low
    and high; all blocks find theirs side by side, then each block starts where the ones before it
    led.
    """
    if not len(steps):
        return np.zeros(0, np.int64)
    length = math.isqrt(len(steps)) + 1
    blocks = -(-len(steps) // length)
    padded = np.zeros(blocks * length, np.int64)
    padded[: len(steps)] = steps
    columns = np.ascontiguousarray(padded.reshape(blocks, length).T)
    shift = np.zeros(blocks, np.int64)
    low, high = np.full(blocks, -clip), np.full(blocks, clip)
    for step in columns:
        shift += step
        low, high = np.clip(low + step, -clip, clip), np.clip(high + step, -clip, clip)
    starts = np.zeros(blocks, np.int64)
    # Blocks are composed one after the other: there are only about sqrt(n) of them.
    for block in range(1, blocks):
        starts[block] = min(
            max(starts[block - 1] + shift[block - 1], low[block - 1]), high[block - 1]
        )
    values, now = np.empty_like(columns), starts
    for row, step in enumerate(columns):
        now = np.clip(now + step, -clip, clip)
        values[row] = now
    flat: Ints = values.T.ravel()[: len(steps)]
    return flat


class PredictWalk(features.LearnsLabel[WalkParams]):
    """On which side of a threshold, or in which of some intervals, is a point?"""

    name = "predict_walk"
    job = "predictions"
    summary = "session: one of two labels from one ordered column, with rows that do not grow with its domain"
    citation = "Dwork, Feldman 2018, Figure 1, Theorem 5.3 (exponential projected walk)"

    def prediction_event(self, params: WalkParams, table: Table) -> Event:
        """Bounded range of at most epsilon: the logit of one step times what one unit moves."""
        features.check_two_labels(table, params.label, self.name)
        return BoundedRange(step_logit(params, table) * walk_sensitivity(table))

    def training_records(self, params: WalkParams, table: Table) -> Records:
        """One bounded column and a label of two values. Raises `PlanRefused` for other features."""
        if len(params.features) != 1 or table.column(params.features[0]).public_keys is not None:
            raise PlanRefused(
                f"{self.name} walks along one bounded column; name one in features, or use predict_vote"
            )
        return super().training_records(params, table)

    def learn(self, params: WalkParams, table: Table, answer: Answer, source: Source) -> Walk:
        """The clipped walk over all rows that have a public label."""
        y = features.label_codes(table, params.label, answer)
        labelled = y >= 0
        return walk_labels(
            answer.columns[params.features[0]][labelled],
            y[labelled],
            clip_level(params, table),
            source,
        )

    def predict(
        self, params: WalkParams, table: Table, learned: Walk, points: Codes, source: Source
    ) -> list[Any]:
        """One of two labels for each point, with the walk's value there as its logit."""
        names = features.list_labels(table, params.label)
        value = learned.values_at(points[:, 0], source)
        # The better label costs 0: only the walk's value tells the two apart.
        costs = np.stack([np.maximum(value, 0), np.maximum(-value, 0)], axis=1)
        return [
            names[index] for index in choose_rows(costs, step_logit(params, table), source).tolist()
        ]


def walk_sensitivity(table: Table) -> int:
    """D: how far one unit can move the walk."""
    return table.contribution_bounds.rows * (2 if table.neighbours == "replace" else 1)


def step_logit(params: WalkParams, table: Table) -> Fraction:
    """The logit of one step of the walk, half of e; exact, and never above epsilon / D."""
    most = params.epsilon / walk_sensitivity(table)
    if params.mode == "agnostic":
        return min(most, params.alpha / 4)
    if params.mode == "high-probability":
        # Rounded down to a multiple of 1e-9: the draw needs an exact rate, and less is safe.
        enough = 1 / (32 * -math.log(params.beta))
        return min(most, Fraction(math.floor(enough * RATE_STEPS), RATE_STEPS))
    return most


def clip_level(params: WalkParams, table: Table) -> int:
    """T: given, or what the mode asks for."""
    if params.clip is not None:
        return params.clip
    alpha = float(params.alpha) / (3 if params.mode == "agnostic" else 1)
    # 1e-12 forgives a quotient that comes out just above a whole number.
    return max(1, math.ceil(math.log(2 / alpha) / float(step_logit(params, table)) - 1e-12))
