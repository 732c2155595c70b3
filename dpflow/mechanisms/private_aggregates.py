"""Counts, sums, means and variances of one GROUP BY whose keys are private: one scan, one truncation
of contributions, one privacy cost.

Definition: as `dpflow.mechanisms.aggregates`, for every key that rows have. A key is shown with its
measures if a noisy count of it reaches a threshold. That count is of units or of rows where one of
them is released anyway, at no further cost; else it is a count of units that is not shown.

Guarantee: the moments' noise composed, and a delta for keys that only one of two neighbouring tables
has. All noise is fitted to how far a unit moves the moments over every key that it may reach, as if
values were drawn for all keys. Proof. Let T' have a unit that T has not. (1) Keys of both: their
noisy moments satisfy the composed event E, and what is shown of them follows from these. (2) Keys of
T' alone: at most g, the bound on groups. Each has at most B of the unit's contributions, so a noisy
count of t + B or more has odds of delta/g at most, where Pr[X >= t] <= delta/g; one of them is shown
with odds of d <= delta. "None is shown" is independent of the noise of the keys of both. So T' is the
mixture of a law that is E-close to T's, with weight 1 - delta at least, and of another: E composed
with (0, delta)-DP. Under replace both tables have keys of their own; both are such mixtures, and the
larger d counts. The event is written as E composed with `Approximate` (10^-12, delta), for an event's
epsilon is positive; the moments get that much less.

- A scope with filter ``basic`` adds epsilons and delta. Laplace noise only.
- ``renyi`` and ``hybrid`` charge E by its Renyi divergence, and delta beside it: the mixture above is
  what their proofs ask of an approximate event.
- With Gaussian noise half of delta is the selection's, and half turns rho into epsilon.

The split of epsilon makes the weighted geometric mean of the measures' errors small, and the threshold
counts as one of them (``selection_weight``). There is no selection of its own beside a released count: for
the same threshold its best rule would take two thirds of that count's epsilon or more. A test computes
this for units of four groups with a row each, at epsilon 0.2, 1 and 4; it is no general proof. Where a unit may have several rows of
a key, name `count_distinct` beside `count`: the number of units then selects.

``min_units`` raises the threshold: a key with fewer units is shown with odds of delta/g at most.

When not to use it: for public keys (`aggregates` is pure and shows empty groups), or names alone
(`key_union`). Quantiles have no such form: they release no count that could select keys, so a second
release by the keys that were shown costs the same, and no place of a unit goes to a key that is not.
Compare: DPEngine.aggregate of PipelineDP, whose private selection pays with an epsilon of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Annotated

from pydantic import AfterValidator, Field, model_validator

from dpflow.core.accounting.amounts import Delta
from dpflow.core.accounting.events import Approximate, Composed, Event
from dpflow.core.contract.declaration import Table
from dpflow.core.contract.requests import Answer
from dpflow.core.contract.results import ErrorBound, Result
from dpflow.core.contract.strict_models import Exact
from dpflow.core.sampling.randomness import Source
from dpflow.core.toolbox.aggregate import POWER, Law, MeasureMechanism, NoisyParams, Release
from dpflow.core.toolbox.moments import Measure, Moment, Query
from dpflow.core.toolbox.noise import rho_for
from dpflow.core.toolbox.partition_selection import gaussian_above, require_delta, tail_above
from dpflow.errors import PlanRefused
from dpflow.mechanisms.aggregates import Measures

#: The smallest epsilon of an event: what the selection's event states beside its delta.
LEAST_EPSILON = Fraction(1, 10**12)

#: Counts that select keys, the cheapest first: a unit brings one to a key, or its rows.
_SELECTING: tuple[Moment, ...] = (("units", ""), ("rows", ""))


class PrivateAggregatesParams(NoisyParams):
    """``measures``: what to release of each key. ``by``: the grouping. ``epsilon``: the privacy cost
    of everything. ``delta``: as epsilon; the chance that a lone unit's key shows, and what allows
    Gaussian noise. ``noise``: laplace, gaussian or auto. ``min_units``: units that a key needs to be
    shown, but for odds of delta. ``selection_weight``: how much the threshold counts against the
    measures' errors where epsilon is split; more of it shows more keys, with noisier measures.
    """

    measures: Measures
    by: str
    delta: Annotated[Delta, AfterValidator(require_delta)]
    min_units: Annotated[int, Field(ge=1, le=10**9)] = 1
    selection_weight: Annotated[Exact, Field(ge=0, le=10**6)] = Fraction(1)

    @model_validator(mode="after")
    def _check_law(self) -> PrivateAggregatesParams:
        # Laplace noise needs no delta, but the keys do.
        return self

    @model_validator(mode="after")
    def _check_measures(self) -> PrivateAggregatesParams:
        if any(measure.error is not None for measure in self.measures):
            raise ValueError("give an epsilon; target errors are for public keys")
        return self


class PrivateAggregates(MeasureMechanism[PrivateAggregatesParams]):
    """Several aggregates of private keys in one release."""

    name = "private_aggregates"
    job = "groups"
    summary = "several counts, sums, means and variances by key, keys selected privately"
    citation = (
        "Korolova, Kenthapadi, Mishra, Ntoulas 2009 (threshold on a noisy count); Wilson, Zhang, Lam, Desfontaines, "
        "Simmons-Marengo, Gipson 2020 (selection beside several aggregates); proof in this module"
    )
    version = 2  # 1 paid for rows and units of groups with one row of a unit, which are equal

    def list_measures(self, params: PrivateAggregatesParams) -> Sequence[Measure]:
        """The measures as listed, and a count of units where none of them selects keys."""
        counted = any(m.measure in ("count", "count_distinct") for m in params.measures)
        return params.measures if counted else (*params.measures, Measure(measure="count_distinct"))

    def counts_units(self, params: PrivateAggregatesParams) -> bool:
        """Whether they are listed; otherwise they only select keys, each counted once in every block."""
        return any(one.measure == "count_distinct" for one in params.measures)

    def make_query(self, params: PrivateAggregatesParams, table: Table) -> Query:
        """The measures over every key that rows have."""
        # Raises for a column that nobody declared, before anything is charged.
        table.column(params.by)
        return Query(table, params.by, tuple(self.list_measures(params)), private=True)

    def measure_label(self, measure: Measure) -> str:
        """The measure with its column, since several may be of one kind."""
        return measure.full_name

    def fit_release(self, params: PrivateAggregatesParams, query: Query, law: Law) -> Release:
        """The release whose noise and selection cost epsilon and delta together."""
        epsilon = params.epsilon - LEAST_EPSILON
        if not epsilon >= LEAST_EPSILON:
            raise PlanRefused("an epsilon this small selects no key; take 1e-6 or more")
        whole = epsilon if law == "laplace" else rho_for(epsilon, params.delta / 2)
        # The threshold lies as far out as the noise of the count that selects.
        selecting = next(moment for moment in _SELECTING if moment in query.moments)
        weight = params.selection_weight
        shares = self.balance_errors(query, POWER[law], {selecting: weight} if weight else {})
        return Release(query, law, tuple(whole * share for share in shares))

    def event(self, params: PrivateAggregatesParams, table: Table) -> Event:
        """The noise of all moments, and the selection's delta."""
        release = self.choose_release(params, table)[0]
        noises = tuple(noise.event for noise in release.noises.values())
        return Composed((*noises, Approximate(LEAST_EPSILON, selection_delta(params, release.law))))

    def draw(
        self, params: PrivateAggregatesParams, table: Table, answer: Answer, source: Source
    ) -> Result:
        """The noisy moment that selects keys, and the others of those that reach its threshold."""
        release = self.choose_release(params, table)[0]
        selecting, threshold = selection_threshold(params, table, release)
        places, selected = release.noises[selecting].show_from(
            answer.keys, answer.moment(*selecting), threshold, source
        )
        keys, noisy = [answer.keys[i] for i in places], {selecting: selected}
        for moment, noise in release.noises.items():
            if moment != selecting:
                shown = answer.moment(*moment)[places]
                noisy[moment] = noise.show_from(keys, shown, None, source)[1]
        return self.list_rows(release, params.measures, keys, noisy)

    def error_bound(self, params: PrivateAggregatesParams, table: Table) -> ErrorBound:
        """Noise of what is shown; keys below the threshold are lost."""
        bound = super().error_bound(params, table)
        (what, _), threshold = selection_threshold(
            params, table, self.choose_release(params, table)[0]
        )
        shown = {self.measure_label(measure) for measure in params.measures}
        return ErrorBound(
            {label: width for label, width in bound.half_width.items() if label in shown},
            f"{bound.note}; only for keys that are shown; a key needs about {threshold} {what} to be",
        )


def selection_delta(params: PrivateAggregatesParams, law: Law) -> Fraction:
    """The part of delta that is the selection's."""
    return params.delta if law == "laplace" else params.delta / 2


def selection_threshold(
    params: PrivateAggregatesParams, table: Table, release: Release
) -> tuple[Moment, int]:
    """The moment whose noisy value selects a key, and from which value on."""
    moment = next(one for one in _SELECTING if one in release.noises)
    groups, rows_per_group, _ = table.bounds_for(params.by)
    most = 1 if moment[0] == "units" else rows_per_group
    failure = selection_delta(params, release.law) / groups
    noise = release.noises[moment].event
    tail = (
        tail_above(noise.scale, failure)  # type: ignore[union-attr]
        if release.law == "laplace"
        else gaussian_above(noise.sigma2, failure)  # type: ignore[union-attr]
    )
    return moment, most * params.min_units + tail
