"""What a gate is opened with: the parameters of `dpflow.mechanisms.reusable_holdout`."""

from __future__ import annotations

from fractions import Fraction
from typing import Annotated, Literal

from pydantic import Field, model_validator

from dpflow.core.accounting.amounts import Delta, Epsilon
from dpflow.core.contract.estimators import AnyMetric
from dpflow.core.contract.gate import Reserve
from dpflow.core.contract.mechanism import Params
from dpflow.core.contract.strict_models import Exact
from dpflow.core.toolbox.generalisation_bounds import Promise
from dpflow.core.toolbox.ranges import AnyRange

PRIVATE = ("sparse_vector", "one_query", "tight")  #: methods with a privacy guarantee


class HoldoutParams(Params):
    """What a gate is opened with.

    ``method``: how verdicts are drawn; `dpflow.mechanisms.reusable_holdout` has the table.
    ``epsilon``, ``delta``: the privacy cost of the whole session, for the methods that have one.
    ``groups``: into how many groups the holdout's units are split. ``queries``: how many claims it
    answers. ``failures``: how many of them may fail. ``rho``: claims inside the (rho, 1-rho)
    quantile interval of the estimator on fresh groups pass. ``alpha``: claims above the (rho-alpha,
    1-rho+alpha) interval fail. ``beta``: the probability that the proof does not hold. ``side``:
    `over` fails claims that are too good, `both` also those that are too bad. ``correct``: the
    range of corrected values, if failed claims get one. ``require``: `proven` refuses a gate whose
    verdicts are not proven, with the sizes that would be. ``reserve``: the part of epsilon and
    delta that pays for releases inside the session. ``metric``: the one estimator that all
    candidates are compared by, with its direction, range and default; without one claims are about
    any estimators, and nothing is promoted. ``count_epsilon``: the part of epsilon that pays for
    the number of units, where that is private; a proof needs to know it.
    """

    method: Literal["sparse_vector", "one_query", "tight", "description_length", "splitting"] = (
        "sparse_vector"
    )
    epsilon: Epsilon | None = None
    delta: Delta = Fraction(0)
    groups: Annotated[int, Field(ge=2, le=10**7)]
    queries: Annotated[int, Field(ge=1, le=10**9)] = 1000
    failures: Annotated[int, Field(ge=1, le=10**6)] = 10
    rho: Exact = Fraction(1, 5)
    alpha: Exact = Fraction(1, 10)
    beta: Exact = Fraction(1, 20)
    side: Literal["over", "both"] = "over"
    correct: AnyRange | None = None
    require: Literal["any", "proven"] = "any"
    reserve: Reserve | None = None
    metric: AnyMetric | None = None
    count_epsilon: Epsilon | None = None

    @model_validator(mode="after")
    def _check_method(self) -> HoldoutParams:
        self.make_promise()
        if self.reserve is not None and not self.is_private:
            raise ValueError(
                f"method {self.method} has no epsilon to reserve, and its proof allows no other release"
            )
        if self.is_private and self.epsilon is None:
            raise ValueError(f"method {self.method} needs an epsilon")
        if not self.is_private and (self.epsilon is not None or self.delta):
            raise ValueError(
                f"method {self.method} has no noise and no privacy; leave epsilon and delta out"
            )
        if self.epsilon is None:
            if self.count_epsilon is not None:
                raise ValueError(
                    f"method {self.method} has no epsilon to count with; leave count_epsilon out"
                )
        elif self.kept_epsilon >= self.epsilon or self.kept_delta > self.delta:
            raise ValueError(
                "reserve and count_epsilon together must be less than epsilon, and the reserve's delta no more than delta"
            )
        if self.method == "splitting" and self.groups < self.queries:
            raise ValueError("splitting needs at least one fresh group for each query")
        return self

    @property
    def kept_epsilon(self) -> Fraction:
        """The part of epsilon that no verdict spends."""
        kept = Fraction(0) if self.reserve is None else self.reserve.epsilon
        return kept + (self.count_epsilon or 0)

    @property
    def kept_delta(self) -> Fraction:
        """The part of delta that no verdict spends."""
        return Fraction(0) if self.reserve is None else self.reserve.delta

    @property
    def is_private(self) -> bool:
        """Whether the method has a privacy guarantee."""
        return self.method in PRIVATE

    def make_promise(self) -> Promise:
        """The generalisation promise in floats. Raises `InvalidInput` outside the theorem's ranges."""
        return Promise(
            self.queries, self.failures, float(self.beta), float(self.rho), float(self.alpha)
        )
