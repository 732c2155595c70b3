"""`interior_point` and `approximate_median`: Algorithms 1 and 2 of the paper, in two rounds on an
open column.

Definition. Round one finds the scale 2^j at which random pairs of rows often differ
(`column_scale`). Round two counts rows in cells of that width and answers an edge between two cells
that are certainly occupied (`interior_cell`). If most pairs tie, round two counts single values
instead and answers an atom. The median does the same on the middle slice: the rows without the t
lowest and t highest, t = floor((1/2 - alpha + gamma) n). Left out, alpha follows from the number n,
which is public or noisy: choosing it is post-processing.

Guarantee: (epsilon, delta)-DP for the declared unit, for every table and every distribution: each
round is a stability histogram (`stable_bins`) with a part of the privacy cost, the slice and the
pairing keep neighbours neighbours, what follows is post-processing. "None" is an output like every
other.

Certainty: an answered interior point z has min(x) <= z <= max(x); an answered median has x_(t+1) <=
z <= x_(v-t) among the v values that were read. The data's distribution decides how often there is
an answer, never whether it is right.

When not to use it: with a trusted range `quantile` needs 5 to 20 times fewer rows and no delta. It
cannot answer an atom, and with a wrong range it is wrong without notice; these mechanisms are right
or say none.

Source: Aliakbarpour, Silver, Steinke, Ullman 2023 (Theorems 3.1 and 4.1). The rule argmax, atoms,
groups, several rows a unit and add-remove are extensions, proved in the modules named above.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, TypeVar

from pydantic import model_validator

from dpflow.core.contract.declaration import Table
from dpflow.core.contract.printed_numbers import print_width
from dpflow.core.contract.requests import Answer, BinCounts, CellGrid, OpenColumn
from dpflow.core.contract.results import ErrorBound, Result, Row
from dpflow.core.contract.strict_models import Exact
from dpflow.core.sampling.randomness import Source
from dpflow_interior_point import CITATION
from dpflow_interior_point.building_blocks import column_scale as pairing
from dpflow_interior_point.building_blocks import row_counts
from dpflow_interior_point.building_blocks.column_scale import (
    Rule,
    Scale,
    estimate_scale,
    least_pairs,
    sample_size,
)
from dpflow_interior_point.building_blocks.interior_cell import (
    NO_SCALE,
    Point,
    middle_slice,
    point_among,
    point_between,
)
from dpflow_interior_point.building_blocks.stage_costs import (
    GroupShare,
    OpenColumnMechanism,
    RowCounts,
    ScaleParams,
    column_request,
    has_public_size,
)
from dpflow_interior_point.building_blocks.truncated_noise import TruncatedNoiseLaw


class InteriorPointParams(ScaleParams):
    """As `ScaleParams`. ``split``: share of epsilon for the scale, strictly between 0 and 1; by
    default 0.62 where units are replaced (0.6 for a median) and 0.75 elsewhere. ``atoms``: whether
    a value that many rows share may be answered as it is.
    """

    split: Exact | None = None
    atoms: bool = True

    @model_validator(mode="after")
    def _check_split(self) -> InteriorPointParams:
        if self.split is not None and not 0 < self.split < 1:
            raise ValueError("split must lie strictly between 0 and 1, such as 0.6")
        return self


class ApproximateMedianParams(InteriorPointParams):
    """As `InteriorPointParams`. ``alpha``: how far the rank may be from the middle, as a share of
    the rows, strictly between 0 and 1/2; left out, the least at which so many rows were measured to
    have an answer, at most 1/4. ``gamma``: safety margin within alpha for the step from rows to
    their distribution, by default alpha/4.
    """

    alpha: Exact | None = None
    gamma: Exact | None = None

    @model_validator(mode="after")
    def _check_alpha(self) -> ApproximateMedianParams:
        if not 0 < self.largest_alpha < Fraction(1, 2):
            raise ValueError("alpha must lie strictly between 0 and 1/2, such as 0.25")
        if self.alpha is None and self.gamma is not None:
            raise ValueError("gamma belongs to an alpha that is given; give both, or neither")
        if not 0 <= self.margin < self.largest_alpha:
            raise ValueError("gamma must be from 0 up to below alpha, such as alpha/4")
        return self

    @property
    def largest_alpha(self) -> Fraction:
        """Alpha, or the most that it is where the rows decide."""
        return row_counts.LARGEST_ALPHA if self.alpha is None else self.alpha

    @property
    def margin(self) -> Fraction:
        """Gamma, or its default."""
        return self.largest_alpha / 4 if self.gamma is None else self.gamma

    @property
    def trim_share(self) -> Fraction:
        """Share of the rows that the slice leaves out at each end, with few rows."""
        return Fraction(1, 2) - self.largest_alpha + self.margin


@dataclass(frozen=True)
class Method:
    """The two stages, ready to draw.

    Attributes:
        sizes: where numbers of rows come from, or None if no stage needs them.
        pairs, cells: the noise of the stages.
        rule, share: how a scale is chosen.
        trim_share: share of the rows to leave out at each end.
        chooses_alpha: whether more is left out where there are rows enough, see `alpha_for`.
    """

    sizes: RowCounts | None
    pairs: TruncatedNoiseLaw
    cells: TruncatedNoiseLaw
    rule: Rule
    share: Fraction
    atoms: bool
    trim_share: Fraction
    chooses_alpha: bool = False

    @classmethod
    def from_params(
        cls,
        params: InteriorPointParams,
        table: Table,
        share: GroupShare | None = None,
        *,
        size_is_public: bool,
    ) -> Method:
        """Divide the privacy cost between stages, and a count of the rows unless their number is
        public.
        """
        cut, chooses = Fraction(0), False
        if isinstance(params, ApproximateMedianParams):
            cut, chooses = params.trim_share, params.alpha is None
        sizes, share = None, share or GroupShare.for_group(params, table)
        # Only a trimmed slice or a share of the pairs needs the number of rows, which may cost.
        if cut or params.share:
            sizes, share = RowCounts.from_share(share, size_is_public)
        pairs, cells = share.stage_noise(params.split, sliced=bool(cut))
        return cls(sizes, pairs, cells, params.rule, params.share, params.atoms, cut, chooses)

    def alpha_for(self, size: int) -> Fraction:
        """The accuracy that a number of rows, public or noisy, was measured to have an answer at."""
        return row_counts.alpha_for_rows(self.pairs, self.cells, size, sample_size(self.pairs))

    def explain_alpha(self, size: int) -> str:
        """Why `alpha_for` is what it is: what a smaller one would take."""
        paired, alpha = sample_size(self.pairs), self.alpha_for(size)
        if alpha == row_counts.LARGEST_ALPHA:
            return f"the largest that is taken; about {size} rows may have no answer at it"
        if alpha == row_counts.alpha_for_rows(self.pairs, self.cells, 1000 * size, paired):
            return f"the least at any number of rows, as {paired} rows at most are paired; a larger epsilon makes it smaller"
        return f"the least at which about {size} rows were measured to have an answer"

    def trim_at(self, size: int) -> Fraction:
        """The share of so many rows to leave out at each end; the margin is a quarter of alpha."""
        if not self.chooses_alpha:
            return self.trim_share
        return Fraction(1, 2) - self.alpha_for(size) * Fraction(3, 4)

    def find_points(self, column: OpenColumn, source: Source) -> list[tuple[Scale, Point]]:
        """Both rounds, for every group."""
        return self.find_points_of(column, self.draw_sizes(column, source), source)

    def draw_sizes(self, column: OpenColumn, source: Source) -> list[int]:
        """The number of rows of every group, public or noisy; 0 where no stage needs it."""
        if self.sizes is None:
            return [0] * len(column.rows)
        return self.sizes.draw_row_counts(column, source)

    def find_points_of(
        self, column: OpenColumn, sizes: Sequence[int], source: Source
    ) -> list[tuple[Scale, Point]]:
        """Both rounds, for every group and its number of rows."""
        scales, most = [], sample_size(self.pairs)
        for values, size in zip(column.sample_values(most), sizes, strict=True):
            # ``size`` is public or noisy, so what follows from it is no more than that
            paired = min(size, most)
            trim = int(self.trim_at(size) * paired)
            threshold = least_pairs(self.share, paired - 2 * trim)
            scales.append(
                estimate_scale(middle_slice(values, trim), self.pairs, threshold, self.rule, source)
            )
        grids = {
            code: grid
            for code, grid in enumerate(map(self.choose_grid, scales, sizes))
            if grid is not None
        }
        # One query for the cells of all groups.
        cells = column.count_cells(grids)
        # A group without a scale has no second round; the privacy cost is the same.
        points = [NO_SCALE] * len(scales)
        for code, grid in grids.items():
            points[code] = self.draw_point(cells[code], grid, source)
        return list(zip(scales, points, strict=True))

    def choose_grid(self, scale: Scale, size: int) -> CellGrid | None:
        """Which cells the second round looks at, or None if there is no scale.

        Where the chosen class has w pairs of each row's `column_scale.PARTNERS`, there is a second
        cell, or an atom, with about w/4 rows at least (the inequality in `row_counts`). Cells of
        w/64 rows never leave the database, of which n rows have at most 64 n/w.
        """
        atoms = self.atoms and scale.mostly_ties
        if scale.exponent is None and not atoms:
            return None
        spare = max(0, scale.ties if atoms else scale.count) // (64 * pairing.PARTNERS)
        return CellGrid(
            None if atoms else scale.exponent, int(self.trim_at(size) * size), 1 + spare
        )

    def draw_point(self, cells: BinCounts, grid: CellGrid, source: Source) -> Point:
        """The second round's answer."""
        if grid.exponent is None:
            return point_among(cells, self.cells, grid.least - 1, source)
        return point_between(cells, grid.exponent, self.cells, grid.least - 1, source)


P = TypeVar("P", bound=InteriorPointParams)


class _Points(OpenColumnMechanism[P]):
    """What both mechanisms share."""

    citation = CITATION
    measure: str

    @abstractmethod
    def describe_place(self, params: P, method: Method, size: int, rows: str) -> str:
        """Where an answer lies among these rows, whose number is public or noisy."""

    def plan_noise(self, params: P, table: Table) -> Method:
        """The stages where rows must be counted."""
        return Method.from_params(params, table, size_is_public=False)

    def draw(self, params: P, table: Table, answer: Answer, source: Source) -> Result:
        """Both rounds per group; the document holds the scale and noisy counts."""
        method = Method.from_params(params, table, size_is_public=has_public_size(answer))
        keys = column_request(params, table).keys
        sizes = method.draw_sizes(answer, source)
        answers = method.find_points_of(answer, sizes, source)
        counted = table.describe_counted_rows(params.by)
        rows: list[Row] = []
        document: dict[str, dict[str, Any]] = {}
        for key, size, (scale, point) in zip(keys, sizes, answers, strict=True):
            # Both rounds count in steps of the column; only the answer has its measure.
            value = None if point.value is None else answer.column_value(point.value)
            remark = "" if value is None else self.describe_place(params, method, size, counted)
            rows += [
                Row(key, self.measure, value, remark=remark),
                Row(key, "status", point.status),
            ]
            width = (
                None
                if scale.exponent is None
                else float(Fraction(2) ** scale.exponent * answer.step)
            )
            document[key] = {"scale": width, "rows_below": point.below, "rows_above": point.above}
            if method.chooses_alpha:
                alpha = method.alpha_for(size)
                document[key] |= {
                    "alpha": float(alpha),
                    "alpha_because": method.explain_alpha(size),
                }
        return Result(tuple(rows), document)


class InteriorPoint(_Points[InteriorPointParams]):
    """Some point between the smallest and the largest value."""

    name = "interior_point"
    summary = "a point inside the range of a column that has no known range, or none"
    version = 4
    measure = "interior point"

    def describe_place(
        self, params: InteriorPointParams, method: Method, size: int, rows: str
    ) -> str:
        """Never outside the range."""
        return "between the smallest and the largest value"

    def error_bound(self, params: InteriorPointParams, table: Table) -> ErrorBound:
        """Rank error 1/2, which is certain; the note says how many rows an answer needs."""
        method = self.plan_noise(params, table)
        rows = row_counts.rows_for_point(method.pairs, method.cells)
        note = f"never outside the range; about {rows} rows{_per_group(params)} are needed for an answer, else it is none"
        return ErrorBound({"rank (share of rows)": 0.5}, note)


class ApproximateMedian(_Points[ApproximateMedianParams]):
    """A point whose rank is near the middle."""

    name = "approximate_median"
    job = "one number"
    door = "median"
    summary = (
        "a median within alpha of the middle rank, for a column that has no known range, or none"
    )
    version = 5
    measure = "median"

    def describe_place(
        self, params: ApproximateMedianParams, method: Method, size: int, rows: str
    ) -> str:
        """Alpha, as a share of the rows; more if a noisy number of rows may be that much too small."""
        alpha = method.alpha_for(size) if method.chooses_alpha else params.largest_alpha
        noise = method.sizes.half_width if method.sizes else 0
        left_out = Fraction(int(method.trim_at(size) * size), max(1, size + noise))
        # Rounded up: never nearer than it is.
        share = math.ceil(10**4 * max(alpha, Fraction(1, 2) - left_out)) / 10**4
        likely = " (95 %)" if noise else ""
        return f"its rank is within {share:g} of the middle, as a share of the {rows}{likely}"

    def error_bound(self, params: ApproximateMedianParams, table: Table) -> ErrorBound:
        """Rank error alpha, which is certain; the note says how many rows an answer needs."""
        method = self.plan_noise(params, table)
        alpha = params.largest_alpha
        rows = row_counts.rows_for_median(method.pairs, method.cells, alpha, params.margin)
        note = f"about {rows} rows{_per_group(params)} are needed for an answer, else it is none"
        if method.chooses_alpha:
            ten = float(method.alpha_for(10 * rows))
            many = float(method.alpha_for(100 * rows))
            note += (
                f"; from more rows alpha is chosen smaller: {print_width(ten)} for {10 * rows:,} rows, "
                f"{print_width(many)} for {100 * rows:,}"
            )
        if method.sizes is not None and method.sizes.scale is not None:
            note += (
                f"; unless public, the number of rows is counted, within {method.sizes.half_width}"
            )
        return ErrorBound({"rank (share of rows)": float(alpha)}, note)


def _per_group(params: ScaleParams) -> str:
    return "" if params.by is None else " a group"
