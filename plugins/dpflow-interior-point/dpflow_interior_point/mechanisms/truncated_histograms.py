"""Histograms with noise that is never above R: over public keys, over texts in the rows, over cells
of a number line.

Definitions. `truncated_count`: rows by public key plus truncated noise, so |error| <= R with
certainty. `stability_histogram`: noisy counts of the bins that are selected (`stable_bins`); a bin
is a text or key of the column, or with ``exponent`` a cell [k 2^exponent, (k+1) 2^exponent) of a
number, date or timestamp, named by its lower end.

Guarantee: (epsilon, delta)-DP for the declared privacy unit, by `truncated_noise`: a unit moves G
counts by at most B each (a number's cells: by B rows in all), under replace as many up as down.

When not to use them: `histogram` is pure and needs less noise on average; `private_histogram` is
smaller by a constant for a small delta. Here an error bound is certain, and bins need no list.
"""

from __future__ import annotations

import math
import sys
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from dpflow.core.accounting.amounts import Epsilon
from dpflow.core.accounting.events import Approximate, Event
from dpflow.core.contract.declaration import Table
from dpflow.core.contract.mechanism import Mechanism, Params
from dpflow.core.contract.requests import Answer, CellGrid, GroupedSums, UnboundedValues
from dpflow.core.contract.results import NOT_NEGATIVE, ErrorBound, Result, Row, ValueRange
from dpflow.core.sampling.randomness import Source
from dpflow_interior_point import CITATION
from dpflow_interior_point.building_blocks.interior_cell import finite_cells, lower_edge
from dpflow_interior_point.building_blocks.stable_bins import select_bins
from dpflow_interior_point.building_blocks.truncated_noise import (
    TruncatedDelta,
    TruncatedNoiseLaw,
    count_noise,
)


class _CostParams(Params):
    """``epsilon``, ``delta``: the privacy cost."""

    epsilon: Epsilon
    delta: TruncatedDelta

    def noise_for(self, table: Table, request: GroupedSums | UnboundedValues) -> TruncatedNoiseLaw:
        """Noise for counts of which a unit reaches the request's groups, with its rows in each."""
        rows, exchange = request.rows_per_group, table.neighbours == "replace"
        return count_noise(
            self.epsilon,
            self.delta,
            rows,
            exchange=exchange,
            groups=request.groups,
            total=request.rows,
        )


class TruncatedCountParams(_CostParams):
    """``epsilon``, ``delta``: the privacy cost. ``by``: a column with public keys, or nothing for
    the total.
    """

    by: str | None = None


class TruncatedCount(Mechanism[TruncatedCountParams]):
    """Rows by public key with an error that has a certain bound."""

    name = "truncated_count"
    job = "one number"
    summary = "number of rows, by key if asked, with an error that is certainly bounded"
    citation = CITATION + ", Lemma 2.3; discrete form with its exact radius proved here"

    def event(self, params: TruncatedCountParams, table: Table) -> Event:
        """The whole (epsilon, delta). Raises `PlanRefused` where the noise is beyond 2^50."""
        params.noise_for(table, self.data_request(params, table))
        return Approximate(params.epsilon, params.delta)

    def data_request(self, params: TruncatedCountParams, table: Table) -> GroupedSums:
        """Row counts by public key, or of the whole table."""
        keys = None if params.by is None else table.public_keys(params.by)
        # A unit cannot reach more groups than there are keys.
        size = 1 if keys is None else len(keys)
        groups, rows_per_group, rows = table.bounds_for(params.by).narrow(size)
        return GroupedSums(params.by, keys, groups, rows_per_group, rows=rows)

    def count_rows(self, params: TruncatedCountParams, table: Table) -> int:
        """One for each public key."""
        return 1 if params.by is None else len(table.public_keys(params.by))

    def draw(
        self, params: TruncatedCountParams, table: Table, answer: Answer, source: Source
    ) -> Result:
        """Every count plus truncated noise, in the order of the keys."""
        noise = params.noise_for(table, self.data_request(params, table))
        noisy = noise.add_noise(answer.rows, source)
        return Result(
            tuple(
                Row(k, "count", int(n), noise.half_width)
                for k, n in zip(answer.keys, noisy, strict=True)
            )
        )

    def value_ranges(self, params: TruncatedCountParams, table: Table) -> dict[str, ValueRange]:
        """Counts are not negative."""
        return {"count": NOT_NEGATIVE}

    def error_bound(self, params: TruncatedCountParams, table: Table) -> ErrorBound:
        """95 % half-width; the note has the radius that noise never leaves."""
        noise = params.noise_for(table, self.data_request(params, table))
        return ErrorBound(
            {"count": noise.half_width},
            f"the noise never leaves +-{noise.radius}; truncated rows add bias",
        )


class StabilityHistogramParams(_CostParams):
    """``column``: what to count by. ``epsilon``, ``delta``: the privacy cost. ``exponent``: for
    numbers, dates (days) and timestamps (microseconds), cells of width 2^exponent; without it every
    different text or key is a bin. ``least``: rows that a bin which shows certainly has; smaller
    bins never leave the database.
    """

    column: str
    exponent: Annotated[int, Field(ge=-1000, le=1000)] | None = None
    least: Annotated[int, Field(ge=1, le=10**9)] = 1


class StabilityHistogram(Mechanism[StabilityHistogramParams]):
    """Counts of the bins that certainly have rows."""

    name = "stability_histogram"
    job = "groups"
    summary = (
        "number of rows by text, or by cell of a number line without ends; bins selected privately"
    )
    citation = (
        CITATION
        + ", Lemma 2.4; Korolova, Kenthapadi, Mishra, Ntoulas 2009; Bun, Nissim, Stemmer 2016"
    )

    def event(self, params: StabilityHistogramParams, table: Table) -> Event:
        """The whole (epsilon, delta). Raises `PlanRefused` where the noise is beyond 2^50."""
        params.noise_for(table, self.data_request(params, table))
        return Approximate(params.epsilon, params.delta)

    def data_request(
        self, params: StabilityHistogramParams, table: Table
    ) -> GroupedSums | UnboundedValues:
        """Row counts by private key, or with ``exponent`` the column itself."""
        table.column(params.column)
        if params.exponent is not None:
            return UnboundedValues(params.column, rows_per_group=table.contribution_bounds.rows)
        groups, rows_per_group, rows = table.bounds_for(params.column)
        return GroupedSums(params.column, None, groups, rows_per_group, rows=rows)

    def draw(
        self, params: StabilityHistogramParams, table: Table, answer: Answer, source: Source
    ) -> Result:
        """Noisy counts of the selected bins, sorted by text or by lower end."""
        noise = params.noise_for(table, self.data_request(params, table))
        if params.exponent is None:
            # private keys come in any order: sorting them keeps it from telling anything
            order = sorted(range(len(answer.keys)), key=answer.keys.__getitem__)
            counts, names = answer.rows[order], np.array(answer.keys, object)[order]
        else:
            cells = answer.count_cells({0: CellGrid(params.exponent, least=params.least)})[0]
            names, counts = finite_cells(cells)
        selected, noisy = select_bins(names, counts, noise, noise.radius + params.least - 1, source)
        if params.exponent is not None:
            labels = [
                str(answer.column_value(_clip_to_doubles(names[at], params.exponent)))
                for at in selected
            ]
        else:
            labels = [names[i] for i in selected]
        return Result(
            tuple(
                Row(k, "count", int(n), noise.half_width)
                for k, n in zip(labels, noisy, strict=True)
            )
        )

    def value_ranges(self, params: StabilityHistogramParams, table: Table) -> dict[str, ValueRange]:
        """Counts are not negative."""
        return {"count": NOT_NEGATIVE}

    def error_bound(self, params: StabilityHistogramParams, table: Table) -> ErrorBound:
        """95 % half-width of the bins that show; the note says which bins do."""
        noise = params.noise_for(table, self.data_request(params, table))
        rows = noise.radius + params.least - 1 + noise.half_width
        note = f"for bins that show; a bin needs about {rows} rows to show"
        return ErrorBound({"count": noise.half_width}, note)


def _clip_to_doubles(key: Any, exponent: int) -> float | int:
    """The lower end of a cell; that of the outermost cells may lie beyond the doubles."""
    try:
        return lower_edge(key, exponent)
    except OverflowError:
        return math.copysign(sys.float_info.max, key)
