"""How many rows and groups units have: what contribution bounds are chosen by, released once.

Definition: for every unit its number of rows, and for each grouping its number of distinct groups,
fall into a bin (1, 2, 3, 4 to 5, 6 to 7, 8 to 11 and so on, two for each doubling); each bin's
number of units gets noise. No unit is truncated. Groupings are columns, row expressions and lists of
these; left out, they are the columns with public keys, and day, week and month of the columns that declare dates
as bounds or limits by periods.

Guarantee: a unit is in one bin of each of the H histograms, or in none, so it moves the counts by H
in L1 and by root(H) in L2 under add-remove; under replace it leaves one bin and enters another, so
by 2 H and root(2 H). Where budgets are per block, units of each block have bins of their own, and
every block pays. Bins depend on the declaration alone, and end where ``max_contributions`` does.

Error: the plan states the resolution, the half-width at 95 % of the number of units above any size. A
profile of fewer than ten times as many units says little, and bounds are not chosen by it. That number
of units is private, so it is compared after the charge; name ``units`` where it is known, and a plan
that is too coarse for it is refused.

When not to use it: where everybody knows how many rows and groups a unit has; declare that instead.

Source: Amin, Kulesza, Munoz, Vassilvitskii 2019 (bounding user contributions); Liu et al. 2022
(algorithms for bounding contribution for histogram estimation under user-level privacy).
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping
from typing import Annotated

from pydantic import Field

from dpflow.core.accounting.events import DiscreteLaplace, Event
from dpflow.core.contract.columns import Column
from dpflow.core.contract.contribution import PeriodLimits
from dpflow.core.contract.declaration import Table
from dpflow.core.contract.mechanism import Mechanism
from dpflow.core.contract.requests import SizeCounts, UnitSizes
from dpflow.core.contract.results import NOT_NEGATIVE, ErrorBound, Result, Row, ValueRange
from dpflow.core.sampling.randomness import Source
from dpflow.core.toolbox.aggregate import NoisyParams
from dpflow.core.toolbox.contribution_profile import (
    MAX_RESOLUTION,
    ContributionProfile,
    SizeHistogram,
    count_bins,
    size_bins,
)
from dpflow.core.toolbox.noise import Noise, gaussian_noise, laplace_noise, rho_for
from dpflow.errors import PlanRefused

#: Where the last bin begins if nothing declared says more: of rows, and of groups.
MAX_ROW_BIN, MAX_GROUP_BIN = 2**12, 2**10
#: The shortest of each period, in days.
PERIODS = {"day": 1, "week": 7, "month": 28}


Expression = Annotated[str, Field(min_length=1)]
Expressions = Annotated[tuple[Expression, ...], Field(min_length=2, max_length=8)]


class ContributionsParams(NoisyParams):
    """``groupings``: columns and row expressions such as ``date_trunc('month', day)``, and lists of them
    that are grouped by together; the declared ones if left out. ``units``: how many units there are,
    where that is known. ``epsilon``: the privacy cost of all histograms together. ``delta``: allows
    Gaussian noise. ``noise``: laplace, gaussian or auto.
    """

    groupings: Annotated[tuple[Expression | Expressions, ...], Field(max_length=50)] | None = None
    units: Annotated[int, Field(ge=1, le=10**12)] | None = None


class Contributions(Mechanism[ContributionsParams]):
    """Noisy numbers of units by rows and by groups."""

    name = "contributions"
    job = "distribution"
    summary = "how many rows and groups units have, to choose contribution bounds by"
    citation = "Amin, Kulesza, Munoz, Vassilvitskii 2019 (bounding user contributions for differential privacy)"

    def _groupings(self, params: ContributionsParams, table: Table) -> tuple[str, ...]:
        if params.groupings is not None:
            lists = [(one,) if isinstance(one, str) else one for one in params.groupings]
            for name in itertools.chain(*lists):
                # Anything else is an expression, which `computed_columns` has.
                if re.fullmatch(r"[\w.]+", name):
                    table.column(name)
            return tuple(dict.fromkeys(map(", ".join, lists)))
        found = [
            name
            for name, column in table.columns.items()
            if column.public_keys is not None and name != table.privacy_unit.column
        ]
        for name, column in table.columns.items():
            limits = (column.groups, column.rows_per_group)
            if column.bounds_are_times or any(isinstance(one, PeriodLimits) for one in limits):
                found += [f"date_trunc('{period}', {name})" for period in PERIODS]
        return tuple(dict.fromkeys(found))

    def computed_columns(self, params: ContributionsParams, table: Table) -> Mapping[str, Column]:
        """A column for each grouping that nobody declared."""
        computed: dict[str, Column] = {}
        for grouping in params.groupings or self._groupings(params, table):
            members = (grouping,) if isinstance(grouping, str) else grouping
            computed |= {n: Column(expression=n) for n in members if n not in table.columns}
            if len(members) > 1:
                computed[", ".join(members)] = Column(parts=members)
        return computed

    def _histograms(self, params: ContributionsParams, table: Table) -> dict[str, tuple[int, ...]]:
        """The bins of rows, under "", and of each grouping."""
        largest = table.max_contributions
        max_rows = MAX_ROW_BIN if largest is None else largest.rows
        bins = {"": size_bins(min(MAX_ROW_BIN, max_rows))}
        for name in self._groupings(params, table):
            bins[name] = size_bins(min(_most_groups(table, name), max_rows))
        return bins

    def _choose_noise(self, params: ContributionsParams, table: Table) -> Noise:
        moved = table.sensitivity(self.data_request(params, table))
        laws = []
        if params.noise != "gaussian":
            laws.append(laplace_noise(moved, params.epsilon))
        if params.delta:
            laws.append(gaussian_noise(moved, rho_for(params.epsilon, params.delta)))
        return min(laws, key=lambda noise: noise.half_width())

    def _resolution(self, params: ContributionsParams, table: Table) -> int:
        most = max(map(len, self._histograms(params, table).values()))
        return self._choose_noise(params, table).sum_half_width(most)

    def event(self, params: ContributionsParams, table: Table) -> Event:
        """The guarantee of all histograms together. Raises `PlanRefused` where ``units`` are too few for
        them.
        """
        resolution = self._resolution(params, table)
        if params.units is not None and resolution * MAX_RESOLUTION > params.units:
            raise PlanRefused(
                f"a profile of these {len(self._histograms(params, table))} histograms counts units up to +- {resolution}, "
                f"which is more than a tenth of {params.units}; raise epsilon, name fewer groupings, or declare groups and rows"
            )
        return self._choose_noise(params, table).event

    def data_request(self, params: ContributionsParams, table: Table) -> UnitSizes:
        """How many units have each number of rows, and of groups."""
        return UnitSizes(self._groupings(params, table))

    def draw(
        self, params: ContributionsParams, table: Table, answer: SizeCounts, source: Source
    ) -> Result:
        """A noisy number for every bin of every histogram."""
        noise, half_width = self._choose_noise(params, table), 0
        half_width = noise.half_width()
        histograms: dict[str, SizeHistogram] = {}
        rows: list[Row] = []
        bins = self._histograms(params, table)
        for (name, starts), sizes in zip(bins.items(), (answer.rows, *answer.groups), strict=True):
            counts = noise.add_noise(count_bins(starts, *sizes), source).tolist()
            histograms[_write_grouping(name, table)] = SizeHistogram(starts, tuple(counts), noise)
            labels = _label_bins(starts, "rows" if name == "" else "groups")
            rows += [Row(name, label, n, half_width) for label, n in zip(labels, counts)]
        profile = ContributionProfile(
            histograms.pop(""), histograms, self._resolution(params, table)
        )
        # Rows without a unit are one unit or none, which decides what was counted.
        counted_rows = {"missing": table.privacy_unit.missing}
        return Result(tuple(rows), {"contributions": profile.to_json() | counted_rows})

    def value_ranges(self, params: ContributionsParams, table: Table) -> Mapping[str, ValueRange]:
        """Numbers of units are not negative."""
        labels = [
            label
            for name, starts in self._histograms(params, table).items()
            for label in _label_bins(starts, "rows" if name == "" else "groups")
        ]
        return dict.fromkeys(labels, NOT_NEGATIVE)

    def error_bound(self, params: ContributionsParams, table: Table) -> ErrorBound:
        """The half-width of one number, and the resolution."""
        noise, resolution = self._choose_noise(params, table), self._resolution(params, table)
        law = "Laplace" if isinstance(noise.event, DiscreteLaplace) else "Gaussian"
        note = (
            f"{law} noise on {len(self._histograms(params, table))} histograms; resolution {resolution} units: bounds are chosen "
            f"by it where it counts {resolution * MAX_RESOLUTION} units or more"
        )
        return ErrorBound({"units": float(noise.half_width())}, note)


def _write_grouping(name: str, table: Table) -> str:
    """What a grouping counts, for a computed column of its name may be another one tomorrow."""
    column = table.columns.get(name)
    members = (name,) if column is None else column.parts or (name,)
    known = [table.columns.get(member) for member in members]
    texts = [None if column is None else column.expression for column in known]
    return ", ".join(text or member for text, member in zip(texts, members))


def _most_groups(table: Table, name: str) -> int:
    """Groups that a unit can reach, as far as the declaration says."""
    column = table.columns.get(name)
    if column is not None and column.parts is not None:
        return min(MAX_GROUP_BIN, math.prod(_most_groups(table, part) for part in column.parts))
    if column is not None and column.public_keys is not None:
        return max(1, len(column.public_keys))
    period = re.fullmatch(r"date_trunc\('(\w+)', ([\w.]+)\)", name)
    of = table.columns.get(period[2]) if period else None
    if period and of is not None and of.bounds_are_times and period[1] in PERIODS:
        assert of.lower is not None and of.upper is not None
        days = of.upper - of.lower
        return min(MAX_GROUP_BIN, int(days // PERIODS[period[1]]) + 2)
    return MAX_GROUP_BIN


def _label_bins(starts: tuple[int, ...], noun: str) -> list[str]:
    ends = [*(start - 1 for start in starts[1:]), None]
    labels = []
    for start, end in zip(starts, ends):
        size = (
            f"{start} or more"
            if end is None
            else f"{start}"
            if end == start
            else f"{start} to {end}"
        )
        labels.append(f"units with {size} {noun if size != '1' else noun[:-1]}")
    return labels
