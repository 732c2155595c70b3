"""Numbers by averaging models, one per shard: any regressor, made stable enough for a little noise.

Definition: units are dealt to r shards, a regressor learns on each. Every model's answer is rounded
to the label's grid and clamped to its declared bounds, all are added up exactly, integer noise is
added, and the sum is divided by r.

Guarantee: one unit changes one model, hence the sum by at most D, the number of grid steps between
the bounds; `noise` applies. That is output noise on an average whose stability rate is (upper -
lower)/r (Dwork and Feldman 2018, Lemmas 4.5, 4.6). A median or a trimmed mean would not have that
rate.

When not to use it: with few shards and wide bounds the noise, (upper - lower)/(r epsilon), drowns
the answer; for linear models, `linear` needs no shards.
"""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
from pydantic import Field

from dpflow.core.accounting.amounts import Epsilon
from dpflow.core.accounting.events import Event
from dpflow.core.contract.declaration import Table
from dpflow.core.contract.point_encoding import Codes
from dpflow.core.contract.prediction import PredictionParams
from dpflow.core.contract.requests import Answer
from dpflow.core.sampling.randomness import Source
from dpflow.errors import PlanRefused
from dpflow_private_prediction.building_blocks import answer_noise, features
from dpflow_private_prediction.building_blocks.answer_noise import Noise
from dpflow_private_prediction.building_blocks.base_learners import learner_factory
from dpflow_private_prediction.building_blocks.shards import (
    Constant,
    Ints,
    Shards,
    by_shard,
    deal_shards,
    train_shards,
)

LARGEST = 2**52  # of a sum of answers: floats hold every integer up to it


class ValueParams(PredictionParams):
    """What is learned and asked. ``label``: a bounded column. ``shards``: how many models are
    averaged.

    ``epsilon``: of one prediction. ``noise``: laplace or gaussian. ``learner`` and ``options``: a
    scikit-learn regressor.
    """

    epsilon: Epsilon
    label: str
    shards: Annotated[int, Field(ge=1, le=10**5)] = 100
    noise: Noise = "laplace"
    learner: str = "LinearRegression"
    options: dict[str, Any] = Field(default_factory=dict)


class PredictValue(features.LearnsLabel[ValueParams]):
    """Which number does a point have?"""

    name = "predict_value"
    job = "predictions"
    summary = "session: numbers for points by a noisy average of regressors that learned on separate units"
    citation = "Dwork, Feldman 2018, Lemmas 4.5, 4.6 (output noise, stability by averaging)"

    def prediction_event(self, params: ValueParams, table: Table) -> Event:
        """The event of one noisy sum of answers. Raises `PlanRefused` where sums exceed 2^52 grid
        steps.
        """
        low, high = features.number_column(table, params.label).grid_bounds()
        # Floats must hold every sum exactly, or noise would be added to a rounded one.
        if max(abs(low), abs(high)) * params.shards > LARGEST:
            raise PlanRefused(
                f"{params.label!r} has too many steps to add up {params.shards} models; coarsen its step"
            )
        learner_factory("regressor", params.learner, params.options)
        return answer_noise.noise_event(params.noise, _label_width(table, params), params.epsilon)

    def learn(self, params: ValueParams, table: Table, answer: Answer, source: Source) -> Shards:
        """One regressor for each shard of units; an empty shard answers the middle of the bounds."""
        low, high = table.bounded_column(params.label).grid_bounds()
        order, cuts = by_shard(deal_shards(answer.units, params.shards, source), params.shards)
        points = features.matrix(
            table, params.features, [answer.columns[name] for name in params.features], order
        )
        make = learner_factory("regressor", params.learner, params.options)
        targets = answer.columns[params.label]

        def mean(mine: Ints) -> Constant:
            return Constant(round(float(mine.mean())) if len(mine) else (low + high) // 2)

        return train_shards(make, points, targets[order], cuts, source, mean)

    def predict(
        self, params: ValueParams, table: Table, learned: Shards, points: Codes, source: Source
    ) -> list[Any]:
        """The noisy average for each point, in the label's unit, between its bounds."""
        column = table.bounded_column(params.label)
        low, high = column.grid_bounds()
        total = learned.sums(features.matrix(table, params.features, points.T), low, high)
        total = answer_noise.add_noise(
            total, params.noise, _label_width(table, params), params.epsilon, source
        )
        return (np.clip(total / params.shards, low, high) * float(column.step)).tolist()  # type: ignore[no-any-return]


def _label_width(table: Table, params: ValueParams) -> int:
    """D: grid steps between the label's bounds."""
    low, high = table.bounded_column(params.label).grid_bounds()
    return max(high - low, 1)
