"""Several counts, sums, means and variances of one GROUP BY: one scan, one truncation of
contributions, one privacy cost.

Definition: ``measures`` is a list of names (``count``, ``count_distinct``) and of mappings such as
``{measure: mean, column: age}``; each is computed as its own mechanism would, from moments that are
drawn once even if several measures need them (a sum and a mean of the same column cost what the
mean costs).

Guarantee and error: `dpflow.core.toolbox.aggregate`. The privacy cost is either

- ``epsilon``, split by the measures' ``weight``; or
- what the measures' ``error`` needs: the least privacy cost whose half-widths at 95 % stay within
  every target. A mean's or variance's is stated for a group with ``size`` values, and holds
  whatever these values are.

When not to use it: for one measure, which has a shorter name of its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from statistics import NormalDist
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from dpflow.core.accounting.amounts import Epsilon
from dpflow.core.accounting.bisection import bisect_reals
from dpflow.core.toolbox import budget_split
from dpflow.core.toolbox.aggregate import POWER, Law, MeasureMechanism, NoisyParams, Release
from dpflow.core.toolbox.moments import Measure, Query
from dpflow.core.toolbox.noise import FAILURE
from dpflow.errors import PlanRefused

# Rounds in which the true errors correct the linear ones.
CORRECTIONS = 4
LARGEST_STEP = 40.0  # of the search for a cost, in powers of two


def _expand_name(value: Any) -> Any:
    """A measure without a column may be written as its name."""
    return {"measure": value} if isinstance(value, str) else value


def _check_names(measures: tuple[Measure, ...]) -> tuple[Measure, ...]:
    # Two equal measures would be one noisy number under two names.
    if len({measure.full_name for measure in measures}) != len(measures):
        raise ValueError("name each measure once")
    return measures


#: What a release file lists: measures, or names of those without a column.
Measures = Annotated[
    tuple[Annotated[Measure, BeforeValidator(_expand_name)], ...],
    Field(min_length=1, max_length=100),
    AfterValidator(_check_names),
]


class AggregatesParams(NoisyParams):
    """``measures``: what to release. ``by``: a column with public keys, or nothing. ``epsilon``:
    the privacy cost of everything; left out when every measure names its error. ``delta``: allows
    Gaussian noise. ``noise``: laplace, gaussian or auto.
    """

    measures: Measures
    by: str | None = None
    epsilon: Epsilon | None = None  # type: ignore[assignment]

    @model_validator(mode="after")
    def _check_targets(self) -> AggregatesParams:
        targets = [measure.error is not None for measure in self.measures]
        # Both would ask for two costs at once; neither would ask for none.
        if any(targets) if self.epsilon is not None else not all(targets):
            raise ValueError("give either epsilon, or the error of every measure")
        return self


class Aggregates(MeasureMechanism[AggregatesParams]):
    """Several aggregates in one release."""

    name = "aggregates"
    job = "groups"
    summary = "several counts, sums, means and variances of one GROUP BY, for one epsilon or for target errors"
    citation = "Dwork, McSherry, Nissim, Smith 2006; budget split proved in dpflow.core.toolbox.budget_split"

    def list_measures(self, params: AggregatesParams) -> Sequence[Measure]:
        """The measures as the release file lists them."""
        return params.measures

    def measure_label(self, measure: Measure) -> str:
        """The measure with its column, since several may be of one kind."""
        return measure.full_name

    def fit_release(self, params: AggregatesParams, query: Query, law: Law) -> Release:
        """At the given epsilon, or at the least cost that meets every target error."""
        return (
            super().fit_release(params, query, law)
            if params.epsilon is not None
            else meet_targets(query, law)
        )

    def release_score(self, params: AggregatesParams, release: Release) -> float:
        """With target errors the epsilon, else the noise."""
        if params.epsilon is not None:
            return super().release_score(params, release)
        return float(release.event.epsilon_at(params.delta) or math.inf)


def meet_targets(query: Query, law: Law) -> Release:
    """The least costs that keep every target error.

    They are optimal for errors linear in the noise; what the true errors are at these costs
    corrects the linear ones a few times, and at last all costs are scaled until every target is
    kept.
    """
    power = POWER[law]
    targets = [_linear_shares(query, measure, law) for measure in query.measures]
    for _ in range(CORRECTIONS):
        costs = budget_split.least_costs(targets, power)
        release = _scale_costs(query, law, costs, 0)
        for measure, target in zip(query.measures, targets, strict=True):
            linear = sum(
                part * cost ** (-1 / power) for part, cost in zip(target, costs, strict=True)
            )
            # Bounded, so that one target that is far off cannot throw the search away.
            factor = min(max(_target_share(release, measure), 0.01), 100.0) / linear
            target[:] = [part * factor for part in target]
    # Some targets are out of reach at any legal cost.
    if not _meets_targets(_scale_costs(query, law, costs, LARGEST_STEP)):
        raise PlanRefused("no privacy cost keeps these target errors; allow larger errors")
    # To a quarter of a percent: finer would not change three digits of a cost.
    _, step = bisect_reals(
        lambda step: _meets_targets(_scale_costs(query, law, costs, step)),
        -LARGEST_STEP,
        LARGEST_STEP,
        halvings=15,
    )
    return _scale_costs(query, law, costs, step)


def _scale_costs(query: Query, law: Law, costs: Sequence[float], exponent: float) -> Release:
    """The release at 2^exponent times these costs, in their legal range and rounded up to three
    digits.
    """
    return Release(query, law, tuple(_three_digits(cost * 2.0**exponent) for cost in costs))


def _target_share(release: Release, measure: Measure) -> float:
    """The error of a measure as a part of its target."""
    assert measure.error is not None
    try:
        return (release.error_bound(measure) or 0.0) / float(measure.error)
    except PlanRefused:  # noise too wide for the samplers is too wide for any target
        return math.inf


def _meets_targets(release: Release) -> bool:
    return all(_target_share(release, measure) <= 1 for measure in release.query.measures)


def _linear_shares(query: Query, measure: Measure, law: Law) -> list[float]:
    """The part of its target that the noise of each moment uses up at cost 1, taken as linear."""
    used = query.weights(measure)
    failure = FAILURE / len(used)
    width = (
        math.log(1 / failure)
        if law == "laplace"
        else NormalDist().inv_cdf(1 - failure / 2) / math.sqrt(2)
    )
    assert measure.error is not None
    # One moment's noise at a time, small enough for the error to be linear in it.
    small = 1e-6
    slopes = {
        m: query.noise_error(measure, {o: small * (o == m) for o in used}) / small for m in used
    }
    sizes = (
        slopes.get(m, 0.0) * query.sensitivity(m).noise_norm(POWER[law]) for m in query.moments
    )
    return [size * width / float(measure.error) for size in sizes]


def _three_digits(cost: float) -> Fraction:
    """The next number up with three digits, so that a plan's digest does not hang on a last bit."""
    # Inside the legal range of epsilon and rho, whatever the search tried.
    cost = min(max(cost, 1e-11), 1e5)
    digits = 2 - math.floor(math.log10(cost))
    return Fraction(math.ceil(cost * 10.0**digits)) / Fraction(10) ** digits
