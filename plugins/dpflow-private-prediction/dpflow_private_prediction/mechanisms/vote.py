"""Labels by a vote of models, one per shard: the soft majority.

Definition: units are dealt to r shards, a classifier learns on each, and label b is answered with
probability proportional to exp(epsilon votes_b / 2), drawn exactly. With two labels that is
sigmoid(epsilon (ones - zeros) / 2).

Guarantee: one unit reaches one model (`shards`), so one vote leaves a label and one joins another.
Every weight moves by a factor of at most e^(epsilon/2), and the privacy losses of the answers lie
in an interval of length epsilon: a prediction has bounded range epsilon, hence is epsilon-DP and
(epsilon^2/8)-zCDP, for every point, learner and number of shards, under add-remove and replace,
whatever number of rows a unit has. (Weights exp(epsilon votes_b) would cost 2 epsilon.)

When not to use it: with epsilon x shards well below 22, or with shards too small to learn from,
answers are coin tosses; for labels that no classifier gets right, where a vote may be worse than
its voters (`predict_average` is better).
"""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
from pydantic import Field

from dpflow.core.accounting.amounts import Epsilon
from dpflow.core.accounting.events import BoundedRange, Event
from dpflow.core.contract.declaration import Table
from dpflow.core.contract.point_encoding import Codes
from dpflow.core.contract.prediction import PredictionParams
from dpflow.core.contract.requests import Answer
from dpflow.core.sampling.randomness import Source
from dpflow.core.sampling.samplers import choose_rows
from dpflow_private_prediction.building_blocks import features
from dpflow_private_prediction.building_blocks.base_learners import learner_factory
from dpflow_private_prediction.building_blocks.shards import (
    Ints,
    Shards,
    by_shard,
    deal_shards,
    majority,
    train_shards,
)


class VoteParams(PredictionParams):
    """What is learned and asked, beside the session's fields.

    ``epsilon``: of one prediction. ``label``: the column to predict, with public keys or few
    values. ``shards``: how many models vote; privacy does not depend on it. ``learner`` and
    ``options``: a scikit-learn classifier and its arguments.
    """

    epsilon: Epsilon
    label: str
    shards: Annotated[int, Field(ge=1, le=10**5)] = 100
    learner: str = "LogisticRegression"
    options: dict[str, Any] = Field(default_factory=dict)


class PredictVote(features.LearnsLabel[VoteParams]):
    """Which label does a point have?"""

    name = "predict_vote"
    job = "predictions"
    summary = (
        "session: labels for points by a private vote of classifiers that learned on separate units"
    )
    citation = (
        "Dwork, Feldman 2018, Theorem 4.1 (soft majority); Cesar, Rogers 2021 (bounded range)"
    )

    def prediction_event(self, params: VoteParams, table: Table) -> Event:
        """Bounded range epsilon. Raises `PlanRefused` or `UnknownName` for labels or learners that
        cannot be.
        """
        features.list_labels(table, params.label)
        learner_factory("classifier", params.learner, params.options)
        return BoundedRange(params.epsilon)

    def learn(self, params: VoteParams, table: Table, answer: Answer, source: Source) -> Shards:
        """One classifier for each shard of units; they stay in this process."""
        return learn_labels(params, table, answer, source)

    def predict(
        self, params: VoteParams, table: Table, learned: Shards, points: Codes, source: Source
    ) -> list[Any]:
        """One label for each point, drawn freshly from the models' votes."""
        names = features.list_labels(table, params.label)
        votes = learned.votes(features.matrix(table, params.features, points.T), len(names))
        return [names[index] for index in soft_majority(votes, params, source).tolist()]


def learn_labels(params: VoteParams, table: Table, answer: Answer, source: Source) -> Shards:
    """A classifier for each shard. Rows whose label is not public are left out, each in its own
    shard.
    """
    targets = features.label_codes(table, params.label, answer)
    # Rows without a public label go to a shard that does not exist: other shards stay as they are.
    shard = np.where(targets >= 0, deal_shards(answer.units, params.shards, source), params.shards)
    order, cuts = by_shard(shard, params.shards)
    points = features.matrix(
        table, params.features, [answer.columns[name] for name in params.features], order
    )
    make = learner_factory("classifier", params.learner, params.options)
    default = majority(len(features.list_labels(table, params.label)))
    return train_shards(make, points, targets[order], cuts, source, default)


def soft_majority(votes: Ints, params: VoteParams, source: Source) -> Ints:
    """A label for each row of votes, drawn with probability proportional to exp(epsilon votes / 2)."""
    # Costs count the votes that a label lacks, so none is negative.
    return choose_rows(params.shards - votes, params.epsilon / 2, source)
