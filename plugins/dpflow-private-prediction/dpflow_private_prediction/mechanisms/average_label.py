"""Labels with an agnostic guarantee: the noisy average of yes-or-no models.

Definition: units are dealt to r shards, a classifier learns on each. With ``ones`` models for the
second label and integer noise Z, the answer is that label with probability p = clip(ones + Z, 0, r)
/ r, drawn exactly; or p itself.

Guarantee: one unit moves ``ones`` by at most 1 (add-remove and replace), so `noise` with D = 1
applies; drawing the label from p, or showing p, is post-processing.

Its expected error is at most the average error of the models plus 1/(r epsilon), whatever the
labels are, so with r of 2/(alpha epsilon) it is within alpha of the best function that the learner
can find (Corollary 4.7; `average_rows`).

When not to use it: for labels that some function gets right nearly always: then `vote` needs fewer
rows, because it answers like the majority and not like a model picked at random.
"""

from __future__ import annotations

from typing import Any, Literal

from dpflow.core.accounting.events import Event
from dpflow.core.contract.declaration import Table
from dpflow.core.contract.point_encoding import Codes
from dpflow.core.contract.requests import Answer
from dpflow.core.sampling.randomness import Source
from dpflow.core.sampling.samplers import uniform_integers
from dpflow_private_prediction.building_blocks import answer_noise, features
from dpflow_private_prediction.building_blocks.answer_noise import Noise
from dpflow_private_prediction.building_blocks.base_learners import learner_factory
from dpflow_private_prediction.building_blocks.shards import Ints, Shards
from dpflow_private_prediction.mechanisms.vote import VoteParams, learn_labels


class AverageParams(VoteParams):
    """As for a vote, for two labels.

    ``answer``: the drawn label, or the noisy share of models for the second label. ``noise``:
    laplace or gaussian.
    """

    answer: Literal["label", "share"] = "label"
    noise: Noise = "laplace"


class PredictAverage(features.LearnsLabel[AverageParams]):
    """Which of two labels does a point have?"""

    name = "predict_average"
    job = "predictions"
    summary = "session: one of two labels by a noisy average of classifiers, close to the best whatever the labels are"
    citation = "Dwork, Feldman 2018, Corollary 4.7 (agnostic learning by averaging)"

    def prediction_event(self, params: AverageParams, table: Table) -> Event:
        """The event of one noisy count of votes. Raises `PlanRefused` unless there are two labels."""
        features.check_two_labels(table, params.label, self.name)
        learner_factory("classifier", params.learner, params.options)
        return answer_noise.noise_event(params.noise, 1, params.epsilon)

    def learn(self, params: AverageParams, table: Table, answer: Answer, source: Source) -> Shards:
        """One classifier for each shard of units; they stay in this process."""
        return learn_labels(params, table, answer, source)

    def predict(
        self, params: AverageParams, table: Table, learned: Shards, points: Codes, source: Source
    ) -> list[Any]:
        """A label drawn from the noisy share of models, or that share itself, for each point."""
        names = features.list_labels(table, params.label)
        ones = learned.votes(features.matrix(table, params.features, points.T), 2)[:, 1]
        noisy = noisy_count(ones, params, source)
        if params.answer == "share":
            return (noisy / params.shards).tolist()  # type: ignore[no-any-return]
        # Drawn by integers below ``shards``: the probability is exactly the noisy share.
        second = uniform_integers(params.shards, len(noisy), source) < noisy
        return [names[index] for index in second.astype(int).tolist()]


def noisy_count(ones: Ints, params: AverageParams, source: Source) -> Ints:
    """Counts with noise, clipped to what a count can be."""
    counts = answer_noise.add_noise(ones, params.noise, 1, params.epsilon, source)
    noisy: Ints = counts.clip(0, params.shards)
    return noisy
