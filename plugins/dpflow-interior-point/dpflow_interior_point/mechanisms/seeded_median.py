"""`seeded_median`: a sharper median of a continuous column without a range, which may be wrong
without notice.

Definition, in three rounds. Round one finds the fullest class [2^b, 2^(b+8)) of differences of
random pairs (`column_scale`). Round two counts rows in cells of width W = 2^(b+20), the two on both sides
of 0 taken as one, and keeps the one with the largest noisy count of those that a stability
histogram shows (`stable_bins`). Round three is the exponential mechanism over 2^42 points of step
2^(b-20) that reach 2 W to either side of that cell's lower end (of 0, in the middle cell); its cost
is 2 max(#below, #above) - n of n rows, which are rounded down to the grid, and count at the ends if outside.

Guarantee: (epsilon, delta)-DP by adaptive basic composition: rounds one and two spend a share of
epsilon and half of delta each, round three the rest of epsilon. Classes and cells divide pairs and
rows, however wide they are, so their guarantees are those of the modules named. One unit of R rows
moves the cost by at most R, under replace by 2 R.

Why not the whole method first: a window need only contain the median and need not be small. The
cost of its width is a logarithm, but classes of eight octaves hold two to six times as many pairs
as those of one, and cells as wide hold nearly all rows, so that both rounds need far fewer rows
than an interior point does. Permute-and-flip in the place of the exponential mechanism would change
nothing: among so many points of equal cost as many are kept as expected, which is the same law.

Error: some point of the window has no more than half of the rows on either side, if the median lies in it,
so the least cost is 0 or less, also where rows share a value.

When not to use it: for columns of few values, and where a wrong answer must not pass: if the median lies
outside the window, or many rows are rounded to its own point of the grid, as where values are near each
other in places that are far apart, nothing tells. So `median` never takes it, which takes `cdf`;
`approximate_median` is right or says none.

Source: the combination is proved here; Aliakbarpour, Silver, Steinke, Ullman 2023 for the first
rounds, McSherry, Talwar 2007 for the last.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from dpflow.core.contract.declaration import Table
from dpflow.core.contract.requests import Answer, BinCounts, CellGrid
from dpflow.core.contract.results import ErrorBound, Result, Row
from dpflow.core.sampling.noisy_values import draw_place
from dpflow.core.sampling.randomness import Source
from dpflow_interior_point import CITATION
from dpflow_interior_point.building_blocks.column_scale import (
    LEAST,
    MOST,
    PARTNERS,
    estimate_scale,
    sample_size,
)
from dpflow_interior_point.building_blocks.stable_bins import select_bins
from dpflow_interior_point.building_blocks.stage_costs import (
    GroupShare,
    OpenColumnMechanism,
    OpenColumnParams,
    column_request,
)
from dpflow_interior_point.building_blocks.truncated_noise import TruncatedNoiseLaw

#: Cells of larger numbers count as outside, so that all numbers of grid points are doubles.
FARTHEST = 2.0**900
LARGEST = Fraction(sys.float_info.max)


class SeededMedianParams(OpenColumnParams):
    """As `OpenColumnParams`."""


class SeededMedian(OpenColumnMechanism[SeededMedianParams]):
    """A median by the exponential mechanism in a window that two private rounds choose."""

    name = "seeded_median"
    job = "one number"
    door = "median"
    summary = "a sharper median of a continuous column without a known range; wrong without notice if the data defeat it"
    citation = CITATION + "; McSherry, Talwar 2007; the combination is proved here"
    version = (
        5  # 4 took the cost for the difference of both sides, which no point of an atom has small
    )

    SHARES = Fraction(3, 10), Fraction(3, 20)  #: of epsilon, for the scale and for the window
    OCTAVES = 8  #: of a class
    WIDE = 20  #: cells are 2^WIDE times as wide as the smallest difference of the class
    FINE = 40  #: and 2^FINE steps of the grid

    def plan_noise(
        self, params: SeededMedianParams, table: Table
    ) -> tuple[TruncatedNoiseLaw, TruncatedNoiseLaw, Fraction]:
        """The noise of pairs and cells, and the exponential mechanism's rate per unit of cost."""
        share_of_group, half = GroupShare.for_group(params, table), Fraction(1, 2)
        pairs, cells = (share_of_group.take_share(share, half) for share in self.SHARES)
        # Of the cost, by one unit: a row more, or fewer, moves it by 1.
        moved = share_of_group.rows * (2 if share_of_group.exchange else 1)
        rate = (1 - sum(self.SHARES)) * share_of_group.epsilon / (2 * moved)
        return pairs.pair_noise(), cells.cell_noise(), rate

    def draw(
        self, params: SeededMedianParams, table: Table, answer: Answer, source: Source
    ) -> Result:
        """Scale, window and median of each group; a group without a window answers None."""
        pairs, cells, rate = self.plan_noise(params, table)
        scales = [
            estimate_scale(values, pairs, 0, "argmax", source, self.OCTAVES).exponent
            for values in answer.sample_values(sample_size(pairs))
        ]
        wide = {
            code: min(exponent + self.WIDE, MOST)
            for code, exponent in enumerate(scales)
            if exponent is not None
        }
        counted = answer.count_cells({code: CellGrid(exponent) for code, exponent in wide.items()})
        windows = {c: self._find_window(counted[c], wide[c], cells, source) for c in wide}
        fine = answer.count_cells(
            {c: CellGrid(w.step) for c, w in windows.items() if w is not None}
        )
        rows: list[Row] = []
        rank = math.ceil(self._rank_error(rate))
        counted = table.describe_counted_rows(params.by)
        certainty = (
            f"its rank among the {counted}, rounded down to a grid of 2^{self.FINE + 2} points in the window that was found, is within "
            f"{rank:,} of the middle (95 %) if the median lies in that window"
        )
        for code, key in enumerate(column_request(params, table).keys):
            value, status = None, "no_bins" if code in wide else "no_scale"
            if (window := windows.get(code)) is not None:
                value, status = (
                    answer.column_value(median_in(window, fine[code], rate, source)),
                    "ok",
                )
            remark = "" if value is None else certainty
            rows += [Row(key, "median", value, remark=remark), Row(key, "status", status)]
        return Result(tuple(rows))

    def _find_window(
        self, cells: BinCounts, exponent: int, noise: TruncatedNoiseLaw, source: Source
    ) -> Window | None:
        """Around the fullest cell by noisy count that shows, of equal ones the highest; None if
        none shows.
        """
        usable = np.abs(cells.keys) < FARTHEST
        # Cells -1 and 0 are one: a median near 0 would else need twice the rows.
        keys = np.where(cells.keys == -1, cells.keys.dtype.type(0), cells.keys)[usable]
        keys, inverse = np.unique(keys, return_inverse=True)
        counts = np.bincount(inverse, weights=cells.counts[usable], minlength=len(keys)).astype(
            np.int64
        )
        selected, noisy = select_bins(keys, counts, noise, noise.radius, source)
        if not len(selected):
            return None
        _, fullest = max(zip(noisy.tolist(), selected.tolist(), strict=True))
        # 2^step stays an ordinary double; at that end the window has fewer points.
        step = max(exponent - self.FINE, LEAST)
        width = 2 ** (exponent - step)
        return Window(step, int(keys[fullest]) * width, 2 * width)

    def _rank_error(self, rate: Fraction) -> float:
        """In rows: the exponential mechanism's bound for 2^(FINE + 2) points at failure 1/20."""
        return ((self.FINE + 2) * math.log(2) + math.log(20)) / float(2 * rate)

    def error_bound(self, params: SeededMedianParams, table: Table) -> ErrorBound:
        """The rank error within a right window; nothing bounds the error outside it."""
        pairs, cells, rate = self.plan_noise(params, table)
        rank = self._rank_error(rate)
        note = f"in rows, if the median lies in the window; about {rows_for_window(pairs, cells)} rows are needed"
        return ErrorBound({"rank (rows)": rank}, f"{note} for an answer")


@dataclass(frozen=True)
class Window:
    """The grid points (centre + i) 2^step with -half <= i < half."""

    step: int
    centre: int
    half: int


def median_in(window: Window, cells: BinCounts, rate: Fraction, source: Source) -> float | Fraction:
    """The exponential mechanism over a window; cost 2 max(#below, #above) - n, rows outside at its ends.

    The point is a double among doubles, and exact among integers.
    """
    doubles = cells.keys.dtype.kind == "f"
    # Python's integers, because the difference of two of 64 bits has 65.
    distances = (
        cells.keys - float(window.centre) if doubles else cells.keys.astype(object) - window.centre
    )
    positions = np.clip(distances, -window.half, window.half - 1).astype(np.int64)
    positions, inverse = np.unique(positions, return_inverse=True)
    counts = np.bincount(inverse, weights=cells.counts, minlength=len(positions)).astype(np.int64)
    below = np.concatenate([[0], np.cumsum(counts)])
    # Every position is a piece of one point, and so is the gap before it; the last gap reaches the end
    # of the window.
    starts = np.empty(2 * len(positions) + 1, np.int64)
    starts[0::2], starts[1::2] = np.concatenate([[-window.half], positions + 1]), positions
    lengths = np.diff(starts, append=window.half)
    costs = np.empty_like(starts)
    costs[0::2], costs[1::2] = (
        np.maximum(below, below[-1] - below),
        np.maximum(below[:-1], below[-1] - below[1:]),
    )
    costs = 2 * costs - below[-1]
    # Neighbouring positions have no gap between them.
    real = lengths > 0
    starts, lengths, costs = starts[real], lengths[real], costs[real] - costs[real].min()
    at = window.centre + draw_place(starts, lengths, costs, rate, source)
    value = at * Fraction(2) ** window.step
    if not doubles:
        return value
    # The outermost points may lie beyond the doubles.
    return float(max(-LARGEST, min(value, LARGEST)))


def rows_for_window(pairs: TruncatedNoiseLaw, cells: TruncatedNoiseLaw) -> int:
    """Rows from which about 95 % of the releases find a window.

    Of two neighbouring classes one holds half of the pairs nearly always, and so it is with cells
    and rows.
    """
    first, second = (noise.radius + 3 * float(noise.scale) for noise in (pairs, cells))
    return math.ceil(max(4 * first / PARTNERS, 2 * second))
