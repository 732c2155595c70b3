"""The stages of the method, each as a release of its own.

Definitions and guarantees are those of `column_scale`, `interior_cell` and `stable_bins`; each of
these mechanisms spends its whole privacy cost on one stage.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Annotated

from pydantic import Field

from dpflow.core.contract.declaration import Table
from dpflow.core.contract.requests import Answer, CellGrid
from dpflow.core.contract.results import ErrorBound, Result, Row
from dpflow.core.sampling.randomness import Source
from dpflow_interior_point import CITATION
from dpflow_interior_point.building_blocks.column_scale import (
    PARTNERS,
    Rule,
    estimate_scale,
    least_pairs,
    sample_size,
)
from dpflow_interior_point.building_blocks.interior_cell import point_between
from dpflow_interior_point.building_blocks.stage_costs import (
    GroupShare,
    OpenColumnMechanism,
    OpenColumnParams,
    RowCounts,
    ScaleParams,
    column_request,
    has_public_size,
)
from dpflow_interior_point.building_blocks.truncated_noise import TruncatedNoiseLaw

Exponent = Annotated[int, Field(ge=-1000, le=1000)]


class EstimateFirstMomentParams(ScaleParams):
    """As `ScaleParams`, with the rule ``largest`` by default, which is the one that estimates a
    scale.
    """

    rule: Rule = "largest"


class EstimateFirstMoment(OpenColumnMechanism[EstimateFirstMomentParams]):
    """E|X - mean| of a column without bounds, up to a constant factor."""

    name = "estimate_first_moment"
    summary = "the scale of a column: a power of two near its mean absolute deviation, or none"
    version = 4
    citation = CITATION + ", Proposition 3.2"

    def plan_noise(
        self, params: EstimateFirstMomentParams, table: Table, *, size_is_public: bool = False
    ) -> tuple[RowCounts | None, TruncatedNoiseLaw]:
        """Where the number of rows comes from, if it matters, and the noise of pairs."""
        share, sizes = GroupShare.for_group(params, table), None
        # only a threshold that is a share of all pairs needs their number
        if params.share:
            sizes, share = RowCounts.from_share(share, size_is_public)
        return sizes, share.pair_noise()

    def draw(
        self, params: EstimateFirstMomentParams, table: Table, answer: Answer, source: Source
    ) -> Result:
        """A power of two per group, in the measure of the column, or None with a status."""
        sizes, noise = self.plan_noise(params, table, size_is_public=has_public_size(answer))
        numbers = [0] * len(answer.rows) if sizes is None else sizes.draw_row_counts(answer, source)
        rows: list[Row] = []
        most = sample_size(noise)
        for key, values, n in zip(
            column_request(params, table).keys, answer.sample_values(most), numbers, strict=True
        ):
            threshold = least_pairs(params.share, min(n, most))
            scale = estimate_scale(values, noise, threshold, params.rule, source)
            width = (
                None
                if scale.exponent is None
                else float(Fraction(2) ** scale.exponent * answer.step)
            )
            status = "ok" if width is not None else "ties" if scale.ties else "no_scale"
            rows += [Row(key, "scale", width), Row(key, "status", status)]
        return Result(tuple(rows))

    def error_bound(self, params: EstimateFirstMomentParams, table: Table) -> ErrorBound:
        """No half-width: the factor depends on the distribution, and the note says how."""
        _, noise = self.plan_noise(params, table)
        # 0.2: about the q of a heavy-tailed column in `row_counts.SHAPES`.
        rows = math.ceil(2 * (noise.radius + 3 * float(noise.scale)) / PARTNERS / 0.2)
        note = "a power of two, mostly 1 to 5 times the mean absolute deviation; dates count days, timestamps microseconds"
        return ErrorBound({}, f"{note}; about {rows} rows are needed for an answer")


class FindInteriorPointParams(OpenColumnParams):
    """As `ColumnParams`. ``exponent``: cells have the width 2^exponent, in the column's own measure
    (decimals: last digits, dates: days, timestamps: microseconds); something near the spread of the
    values, known from elsewhere. ``least``: rows that a cell must certainly have to count.
    """

    exponent: Exponent
    least: Annotated[int, Field(ge=1, le=10**9)] = 1


class FindInteriorPoint(OpenColumnMechanism[FindInteriorPointParams]):
    """An interior point at a given width."""

    name = "find_interior_point"
    summary = "a point between two occupied cells of a given width, or none"
    citation = CITATION + ", Proposition 3.8"

    def plan_noise(self, params: FindInteriorPointParams, table: Table) -> TruncatedNoiseLaw:
        """The noise of cells."""
        return GroupShare.for_group(params, table).cell_noise()

    def draw(
        self, params: FindInteriorPointParams, table: Table, answer: Answer, source: Source
    ) -> Result:
        """The best edge between two occupied cells of each group, or None with a status."""
        noise, keys = self.plan_noise(params, table), column_request(params, table).keys
        cells = answer.count_cells(
            {code: CellGrid(params.exponent, least=params.least) for code in range(len(keys))}
        )
        rows: list[Row] = []
        for code, key in enumerate(keys):
            point = point_between(cells[code], params.exponent, noise, params.least - 1, source)
            value = None if point.value is None else answer.column_value(point.value)
            rows += [Row(key, "interior point", value), Row(key, "status", point.status)]
        return Result(tuple(rows))

    def error_bound(self, params: FindInteriorPointParams, table: Table) -> ErrorBound:
        """Rank error 1/2, which is certain; the note says how many rows a cell needs."""
        noise = self.plan_noise(params, table)
        rows = math.ceil(noise.radius + params.least - 1 + 3 * float(noise.scale))
        note = f"never outside the range; two cells need about {rows} rows each for an answer"
        return ErrorBound({"rank (share of rows)": 0.5}, note)
