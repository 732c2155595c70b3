"""Base of the mechanisms that release measures of one GROUP BY: which noise, at which share of the
privacy cost.

Guarantee: every moment (`dpflow.core.toolbox.moments`) gets integer noise of its own, fitted to how
far one unit moves it (`dpflow.core.toolbox.noise`); the guarantee is these events composed. Moments
that two measures need are charged once.

Noise: without a delta it is Laplace. With one, ``auto`` compares both forms of the whole release at
the same (epsilon, delta) and takes the one whose moments have the smaller geometric mean of
half-widths; the plan says which and by how much. The comparison is of this release alone: a scope
with filter ``basic`` cannot pay Gaussian noise (it refuses the plan), and one with ``renyi``
charges its rho, which favours Gaussian noise further.

Privacy cost: ``epsilon`` (or the rho that it allows at delta) is split so that the geometric mean
of the measures' errors, weighted as they are, is least: by weight among measures that share no
moment, and inside a measure so that its error is smallest. Without epsilon every measure names the
error it may have, and the release takes the least privacy cost that keeps all of them
(`dpflow.core.toolbox.budget_split`).

Error: half-widths at 95 %; a measure of k moments takes each tail at 5 %/k. That of a mean or
variance shrinks with the group and is computed from the noisy numbers.
"""

from __future__ import annotations

import math
import operator
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import Any, Literal, TypeVar

from pydantic import model_validator

from dpflow.core.accounting.amounts import Delta, Epsilon
from dpflow.core.accounting.events import Composed, Event
from dpflow.core.contract.declaration import MAX_MAGNITUDE, Table
from dpflow.core.contract.mechanism import Mechanism, Params
from dpflow.core.contract.requests import Answer, GroupedSums
from dpflow.core.contract.results import (
    NO_INFORMATION,
    NO_VALUE,
    TOO_LARGE,
    ErrorBound,
    Result,
    Row,
    ValueRange,
)
from dpflow.core.sampling.randomness import Source
from dpflow.core.toolbox import budget_split
from dpflow.core.toolbox.moments import Measure, Moment, Noisy, Query
from dpflow.core.toolbox.noise import FAILURE, Noise, gaussian_noise, laplace_noise, rho_for
from dpflow.late_numpy import np

Law = Literal["laplace", "gaussian"]
#: How often a sum that stopped may be taken for one that did not; and rows of which a plan says so.
STOP_FAILURE, MANY_ROWS = 1e-9, 10**9
#: Groups for which a plan says the error of what shrinks with a group.
SIZES = (1000, 10_000, 100_000)
#: A privacy cost p buys an error proportional to p^(-1/power).
POWER: dict[Law, int] = {"laplace": 1, "gaussian": 2}


class NoisyParams(Params):
    """``epsilon``: the privacy cost of everything together. ``delta``: allows Gaussian noise.
    ``noise``: laplace, gaussian or auto.
    """

    epsilon: Epsilon
    delta: Delta = Fraction(0)
    noise: Literal["laplace", "gaussian", "auto"] = "auto"

    @model_validator(mode="after")
    def _check_law(self) -> NoisyParams:
        # Gaussian noise satisfies no pure guarantee, so a delta must be there to pay for it.
        if self.noise == "gaussian" and not self.delta:
            raise ValueError("Gaussian noise needs a delta above 0, such as 1e-6")
        if self.noise == "laplace" and self.delta:
            raise ValueError("Laplace noise needs no delta; leave it out")
        return self


class ColumnParams(NoisyParams):
    """``column``: a bounded column. ``by``: a column with public keys, or nothing. ``epsilon``: the
    privacy cost of all groups together. ``delta``: allows Gaussian noise. ``noise``: laplace,
    gaussian or auto.
    """

    column: str
    by: str | None = None


N = TypeVar("N", bound=NoisyParams)


@dataclass(frozen=True)
class Release:
    """A query with its noise; ``amounts`` are one epsilon (Laplace) or rho (Gaussian) for each of
    its moments.
    """

    query: Query
    law: Law
    amounts: tuple[Fraction, ...]

    @cached_property
    def noises(self) -> dict[Moment, Noise]:
        """The noise of every moment."""
        make = laplace_noise if self.law == "laplace" else gaussian_noise
        moments = self.query.moments
        return {
            m: make(self.query.sensitivity(m), amount)
            for m, amount in zip(moments, self.amounts, strict=True)
        }

    @cached_property
    def event(self) -> Event:
        """The guarantee of all moments together."""
        events = tuple(noise.event for noise in self.noises.values())
        return events[0] if len(events) == 1 else Composed(events)

    def tails(self, measure: Measure, failure: float = FAILURE) -> dict[Moment, float]:
        """Half-widths of its moments that hold together, but for this probability."""
        used = self.query.weights(measure)
        return {moment: self.noises[moment].half_width(failure / len(used)) for moment in used}

    def error_bound(self, measure: Measure) -> float | None:
        """Its half-width before spending, or None where that depends on the rows."""
        computable = not measure.shrinks or measure.size is not None
        return self.query.error_bound(measure, self.tails(measure)) if computable else None

    def read_measure(self, measure: Measure, noisy: Noisy) -> tuple[list[Any], list[float | None]]:
        """As `Query.read_measure` has it, with half-widths that all draws share."""
        name = measure.full_name
        if name not in self._widths:
            tails = self.tails(measure)
            error = None if measure.shrinks else self.query.error_bound(measure, tails)
            self._widths[name] = tails, error
        return self.query.read_measure(measure, noisy, *self._widths[name])

    @cached_property
    def _widths(self) -> dict[str, tuple[dict[Moment, float], float | None]]:
        """By measures' names: half-widths of their moments, and their own where these do not depend on rows."""
        return {}

    def find_stopped(self, noisy: Noisy, measures: Sequence[Measure]) -> list[frozenset[int]]:
        """For each measure, the places of groups in which one of its sums may have reached `MAX_MAGNITUDE`, where sums
        stop. From released numbers alone; a sum that did is missed once in 10^9 times.
        """
        stopped = dict[Moment, frozenset[int]]()
        for moment, least in self._stops.items():
            reached = np.abs(noisy[moment]) >= least
            # Hardly ever one, and draws are many.
            if reached.any():
                stopped[moment] = frozenset(np.flatnonzero(reached).tolist())
        if not stopped:
            return [frozenset()] * len(measures)
        used = [self.query.weights(measure) for measure in measures]
        return [frozenset().union(*(stopped[m] for m in one if m in stopped)) for one in used]

    @cached_property
    def _stops(self) -> dict[Moment, int]:
        """From which noisy number on a moment may have stopped."""
        return {m: MAX_MAGNITUDE - n.half_width(STOP_FAILURE) for m, n in self.noises.items()}

    def describe_limits(self) -> Iterator[str]:
        """Columns of which fewer than `MANY_ROWS` rows can reach `MAX_MAGNITUDE`, where sums stop. Squares are
        counted in steps of which none do.
        """
        for what, name in self.noises:
            if what != "sum":
                continue
            most = max(1, *map(abs, self.query.columns[name].term_range(what)))
            if MAX_MAGNITUDE // most < MANY_ROWS:
                yield (
                    f"sums of {name} stop at {MAX_MAGNITUDE // most:,} rows at an end of the bounds, and then there is "
                    f"no value; a coarser step gives room for more"
                )

    def describe_sizes(self, measure: Measure) -> str:
        """A shrinking measure's largest half-width, whatever the values, for some sizes of a group."""
        # What shrinks with the group has no single half-width before spending, so examples are
        # given.
        tails, examples = self.tails(measure), []
        for size in SIZES:
            widest = self.query.error_bound(measure.model_copy(update={"size": size}), tails)
            # |a - b|^2 <= |a^2 - b^2|, so the root of a variance's half-width will do.
            if measure.measure == "standard_deviation":
                widest = math.sqrt(widest)
            examples.append(
                f"{min(widest, self.query.widest_error(measure)):.3g} in a group of {size:,} values"
            )
        return f"at most {', '.join(examples)}; the result says what it is"

    def mean_width(self) -> float:
        """Geometric mean of the moments' half-widths: what two forms of noise are compared by."""
        logs = [math.log(noise.half_width() + 0.5) for noise in self.noises.values()]
        return math.exp(sum(logs) / len(logs))


class MeasureMechanism(Mechanism[N]):
    """A mechanism that releases `measures`; everything else follows from them."""

    version = 2

    @abstractmethod
    def list_measures(self, params: N) -> Sequence[Measure]:
        """What to release."""

    def counts_units(self, params: N) -> bool:
        """Whether a measure is `count_distinct`."""
        return any(one.measure == "count_distinct" for one in self.list_measures(params))

    def grouping_column(self, params: N) -> str | None:
        """The column with public keys to group by."""
        return getattr(params, "by", None)

    def make_query(self, params: N, table: Table) -> Query:
        """The measures as moments of one GROUP BY."""
        return Query(table, self.grouping_column(params), tuple(self.list_measures(params)))

    def measure_label(self, measure: Measure) -> str:
        """What a released number is called."""
        return measure.measure

    def split_budget(self, query: Query, power: int) -> list[Fraction]:
        """Shares of the privacy cost with the least weighted geometric mean of the measures'
        errors.
        """
        return self.balance_errors(query, power, {})

    def balance_errors(
        self, query: Query, power: int, further: Mapping[Moment, Fraction]
    ) -> list[Fraction]:
        """The same, where errors of single moments count with these weights, too."""
        errors = []
        for measure in query.measures:
            used = query.weights(measure)
            errors.append(
                [
                    abs(used.get(moment, 0)) * query.sensitivity(moment).noise_norm(power)
                    for moment in query.moments
                ]
            )
        errors += [[float(moment == one) for moment in query.moments] for one in further]
        weights = [*(measure.weight for measure in query.measures), *further.values()]
        return budget_split.balance_shares(errors, weights, power)

    def fit_release(self, params: N, query: Query, law: Law) -> Release:
        """The release with this noise at the requested cost."""
        whole = params.epsilon if law == "laplace" else rho_for(params.epsilon, params.delta)
        return Release(
            query, law, tuple(whole * share for share in self.split_budget(query, POWER[law]))
        )

    def choose_release(self, params: N, table: Table) -> tuple[Release, str]:
        """The release, and a note on the choice of noise."""
        global _last
        # Draws after each other ask with the same objects, which need not be compared by their values.
        asked, chosen = _last
        if chosen is None or any(map(operator.is_not, asked, (self, params, table))):
            chosen = _choose_release(self, params, table)
            _last = (self, params, table), chosen
        return chosen

    def release_score(self, params: N, release: Release) -> float:
        """What ``auto`` makes small: the half-widths at the requested cost."""
        return release.mean_width()

    def event(self, params: N, table: Table) -> Event:
        return self.choose_release(params, table)[0].event

    def data_request(self, params: N, table: Table) -> GroupedSums:
        return self.make_query(params, table).data_request()

    def count_rows(self, params: N, table: Table) -> int | None:
        request, measures = self.data_request(params, table), len(self.list_measures(params))
        if request.by is None:
            return measures
        return None if request.keys is None else len(request.keys) * measures

    def draw(self, params: N, table: Table, answer: Answer, source: Source) -> Result:
        release = self.choose_release(params, table)[0]
        query, noises = release.query, release.noises
        noisy = {
            moment: noise.add_noise(answer.moment(*moment), source)
            for moment, noise in noises.items()
        }
        return self.list_rows(release, query.measures, answer.keys, noisy)

    def list_rows(
        self, release: Release, measures: Sequence[Measure], keys: Sequence[str], noisy: Noisy
    ) -> Result:
        """The measures of each key, computed from noisy moments."""
        query, stopped = release.query, release.find_stopped(noisy, measures)
        columns = [
            (m, self.measure_label(m), *release.read_measure(m, noisy), ended)
            for m, ended in zip(measures, stopped, strict=True)
        ]
        rows = []
        for i, key in enumerate(keys):
            for m, label, values, errors, ended in columns:
                # Of released numbers alone: an empty group looks as one that the noise hides.
                value, error, remark = values[i], errors[i], ""
                if i in ended:
                    value, error, remark = None, None, TOO_LARGE
                elif value is None or error is None:
                    remark = NO_VALUE
                elif query.spans_range(m, value, error):
                    remark = NO_INFORMATION
                rows.append(Row(key, label, value, error, remark))
        return Result(tuple(rows))

    def value_ranges(self, params: N, table: Table) -> dict[str, ValueRange]:
        query = self.make_query(params, table)
        return {self.measure_label(m): query.value_range(m) for m in query.measures}

    def error_bound(self, params: N, table: Table) -> ErrorBound:
        release, note = self.choose_release(params, table)
        errors = {
            self.measure_label(m): error
            for m in release.query.measures
            if (error := release.error_bound(m)) is not None
        }
        shrinking = [
            f"{self.measure_label(m)}: {release.describe_sizes(m)}"
            for m in release.query.measures
            if self.measure_label(m) not in errors
        ]
        notes = [ErrorBound(errors).note, *shrinking, *release.describe_limits()]
        return ErrorBound(errors, "; ".join([*notes, *([note] if note else [])]))


#: What was asked for last, and its release.
_last: tuple[tuple[Any, ...], tuple[Release, str] | None] = (), None


@lru_cache(maxsize=512)
def _choose_release(
    mechanism: MeasureMechanism[Any], params: Any, table: Table
) -> tuple[Release, str]:
    """Guarantee, error and draw of one plan ask for the same release."""
    query = mechanism.make_query(params, table)
    # Without a delta only Laplace noise is possible, so nothing is compared.
    if params.noise != "auto" or not params.delta:
        return mechanism.fit_release(
            params, query, "gaussian" if params.noise == "gaussian" else "laplace"
        ), ""
    forms = [mechanism.fit_release(params, query, law) for law in POWER]
    judged = [(mechanism.release_score(params, release), release) for release in forms]
    (least, best), (most, other) = sorted(judged, key=lambda pair: pair[0])
    note = f"{best.law} noise: {100 * (1 - least / most):.0f} % better than with {other.law} noise at the same delta"
    return best, note
