"""What a gate on means is opened with: the parameters of `dpflow.mechanisms.mean_gate`."""

from __future__ import annotations

from fractions import Fraction
from typing import Annotated, Literal

from pydantic import Field, model_validator

from dpflow.core.accounting.amounts import Delta, Epsilon
from dpflow.core.contract.estimators import AnyMetric
from dpflow.core.contract.mechanism import Params
from dpflow.core.contract.strict_models import Exact


class MeanGateParams(Params):
    """What a gate on means is opened with.

    ``metric``: the mean that all candidates are compared by, with its range; without noise also auc, with
    the label. ``threshold``: T, how
    far a claim may be from the holdout's mean before it fails, in units of the metric; claims need it. ``method``:
    `sparse_vector`, with noise that grows with ``failures``; `gaussian`, with noise that grows with
    the root of ``queries``, which needs a delta; or `description_length`, without noise and privacy,
    on tables that are generalisation_only. ``epsilon``, ``delta``: the privacy cost of the whole
    session. ``queries``: how many questions it answers. ``failures``: how many answers there may be
    of the kind that `sparse_vector` pays for: a claim's no, a challenge's yes. ``beta``: the
    probability with which intervals may be wrong, all of them together. ``side``: `over` fails claims
    that are too good, `both` also those that are too bad. ``question``: `claim`, whether a claimed
    score is plausible, or `champion`, whether a candidate is better than the champion; then nothing
    else is asked. ``better_by``: by how much at least a challenger has to be better, in units of the
    metric. ``correct``: whether a claim's no carries the holdout's score, as a multiple of ``threshold``.
    ``count_epsilon``: the part of epsilon that counts the units, where their number is private: intervals
    of claims need it.
    """

    metric: AnyMetric
    threshold: Annotated[Exact, Field(ge=0)] = Fraction(0)
    method: Literal["sparse_vector", "gaussian", "description_length"] = "sparse_vector"
    epsilon: Epsilon | None = None
    delta: Delta = Fraction(0)
    queries: Annotated[int, Field(ge=1, le=10**9)] = 100
    failures: Annotated[int, Field(ge=1, le=10**6)] = 5
    beta: Annotated[Exact, Field(gt=0, le=0.5)] = Fraction(1, 20)
    side: Literal["over", "both"] = "over"
    question: Literal["claim", "champion"] = "claim"
    better_by: Annotated[Exact, Field(ge=0)] = Fraction(0)
    correct: bool = False
    count_epsilon: Epsilon | None = None

    @model_validator(mode="after")
    def _check_amounts(self) -> MeanGateParams:
        if self.is_private != (self.epsilon is not None):
            raise ValueError(
                f"method {self.method} needs an epsilon"
                if self.is_private
                else "method description_length has no noise and no privacy; leave epsilon out"
            )
        if self.epsilon is None:
            if self.delta or self.count_epsilon is not None:
                raise ValueError(
                    "without epsilon there is no noise; leave out delta and count_epsilon"
                )
            if self.correct:
                raise ValueError(
                    "an exact score would be one more text of a transcript; leave correct out"
                )
        elif self.count_epsilon is not None and self.count_epsilon >= self.epsilon:
            raise ValueError("count_epsilon is a part of epsilon, so it must be less")
        if self.metric.label is not None and self.is_private:
            raise ValueError(
                "a row is in a pair with every row of the other class, and noise is for sums in which a unit counts once; take "
                "method description_length on a table that is generalisation_only, or accuracy, log_loss or another mean"
            )
        if self.method == "gaussian" and not self.delta:
            raise ValueError("method gaussian needs a delta; without one take sparse_vector")
        if self.failures > self.queries:
            raise ValueError("failures are among the queries, so they cannot be more")
        if self.question == "champion":
            about_claims = self.threshold or self.correct or self.side == "both"
            if about_claims or self.count_epsilon is not None:
                raise ValueError(
                    "threshold, correct, side and count_epsilon are about claims; leave them out beside champion"
                )
        elif not self.threshold:
            raise ValueError(
                "claims need a threshold greater than 0; give it, or question: champion"
            )
        return self

    @property
    def is_private(self) -> bool:
        """Whether verdicts are noisy."""
        return self.method != "description_length"

    @property
    def stretch_epsilon(self) -> Fraction:
        """What every paid answer may spend, with the free ones before it, without a delta."""
        assert self.epsilon is not None
        return (self.epsilon - (self.count_epsilon or 0)) / self.failures
