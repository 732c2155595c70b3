"""`seeded_median`: a sharper median of a continuous column without a range, which may be wrong
without notice.

Definition, in three rounds. Round one finds the fullest class [2^b, 2^(b+8)) of differences of
random pairs (`scale`). Round two counts rows in cells of width W = 2^(b+20), the two on both sides
of 0 taken as one, and keeps the one with the largest noisy count of those that a stability
histogram shows (`stability`). Round three is the exponential mechanism over 2^42 points of step
2^(b-20) that reach 2 W to either side of that cell's lower end (of 0, in the middle cell); its cost
is |#below - #above|, and rows outside count at the ends.

Claim: (epsilon, delta)-DP by adaptive basic composition: rounds one and two spend a share of
epsilon and half of delta each, round three the rest of epsilon. Classes and cells divide pairs and
rows, however wide they are, so their claims are those of the modules named. One unit of R rows
moves the cost by at most R, under replace by 2 R.

Why not the whole method first: a window need only contain the median and need not be small. The
price of its width is a logarithm, but classes of eight octaves hold two to six times as many pairs
as those of one, and cells as wide hold nearly all rows, so that both rounds need far fewer rows
than an interior point does. Permute-and-flip in the place of the exponential mechanism would change
nothing: among so many points of equal cost as many are kept as expected, which is the same law.

When not to use it: for discrete columns (an atom is next to never answered), and where a wrong
answer must not pass: if the median lies outside the window, nothing tells. `approximate_median` is
right or says none.

Source: the combination is proved here; Aliakbarpour, Silver, Steinke, Ullman 2023 for the first
rounds, McSherry, Talwar 2007 for the last.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from dpflow.core.accounting.events import Event
from dpflow.core.contract.declaration import Table
from dpflow.core.contract.mechanism import Mechanism
from dpflow.core.contract.requests import Answer, Cells, Grid, UnboundedValues
from dpflow.core.contract.results import ErrorBound, Result, Row
from dpflow.core.sampling.randomness import Source
from dpflow.core.sampling.samplers import choose
from dpflow_interior_point.building_blocks.column_scale import (
    LEAST,
    MOST,
    PARTNERS,
    estimate_scale,
    sample_size,
)
from dpflow_interior_point.building_blocks.stable_bins import select
from dpflow_interior_point.building_blocks.stage_costs import ColumnParams, Purse, event, request
from dpflow_interior_point.building_blocks.truncated_noise import Noise
from dpflow_interior_point.mechanisms.interior_point import CITATION

FARTHEST = (
    2.0**900
)  #: cells whose number is larger count as outside, so that all numbers of grid points are doubles
LARGEST = Fraction(sys.float_info.max)


class SeededMedianParams(ColumnParams):
    """As `ColumnParams`."""


class SeededMedian(Mechanism[SeededMedianParams]):
    """A median by the exponential mechanism in a window that two private rounds found."""

    name = "seeded_median"
    summary = "a sharper median of a continuous column without a known range; wrong without notice if the data defeat it"
    citation = CITATION + "; McSherry, Talwar 2007; the combination is proved here"
    version = 4
    Params = SeededMedianParams

    SHARES = Fraction(3, 10), Fraction(3, 20)  #: of epsilon, for the scale and for the window
    OCTAVES = 8  #: of a class
    WIDE = 20  #: cells are 2^WIDE times as wide as the smallest difference of the class
    FINE = 40  #: and 2^FINE steps of the grid

    def _methods(self, params: SeededMedianParams, table: Table) -> tuple[Noise, Noise, Fraction]:
        """The noise of pairs and cells, and the exponential mechanism's rate per unit of cost."""
        purse, half = Purse.of(params, table), Fraction(1, 2)
        pairs, cells = (purse.part(share, half) for share in self.SHARES)
        moved = purse.rows * (2 if purse.exchange else 1)  # of #below - #above, by one unit
        rate = (1 - sum(self.SHARES)) * purse.epsilon / (2 * moved)
        return pairs.pairs(), cells.cells(), rate

    def event(self, params: SeededMedianParams, table: Table) -> Event:
        self._methods(params, table)
        return event(params)

    def data_request(self, params: SeededMedianParams, table: Table) -> UnboundedValues:
        return request(params, table)

    def draw(
        self, params: SeededMedianParams, table: Table, answer: Answer, source: Source
    ) -> Result:
        pairs, cells, rate = self._methods(params, table)
        scales = [
            estimate_scale(values, pairs, 0, "argmax", source, self.OCTAVES).exponent
            for values in answer.sample(sample_size(pairs))
        ]
        wide = {
            code: min(found + self.WIDE, MOST)
            for code, found in enumerate(scales)
            if found is not None
        }
        counted = answer.cells({code: Grid(exponent) for code, exponent in wide.items()})
        windows = {code: self._window(counted[code], wide[code], cells, source) for code in wide}
        found = {code: window for code, window in windows.items() if window is not None}
        fine = answer.cells({code: Grid(window.step) for code, window in found.items()})
        rows: list[Row] = []
        for code, key in enumerate(request(params, table).keys):
            value, status = None, "no_bins" if code in wide else "no_scale"
            if code in found:
                value, status = (
                    answer.written(median_in(found[code], fine[code], rate, source)),
                    "ok",
                )
            rows += [Row(key, "median", value), Row(key, "status", status)]
        return Result(tuple(rows))

    def _window(self, cells: Cells, exponent: int, noise: Noise, source: Source) -> Window | None:
        """Around the fullest cell by noisy count that shows, of equal ones the highest; None if
        none shows.
        """
        usable = np.abs(cells.keys) < FARTHEST
        keys = np.where(cells.keys == -1, 0.0, cells.keys)[usable]
        keys, inverse = np.unique(keys, return_inverse=True)
        counts = np.bincount(inverse, weights=cells.counts[usable], minlength=len(keys)).astype(
            np.int64
        )
        places, noisy = select(counts, noise, noise.radius, source)
        if not len(places):
            return None
        _, place = max(zip(noisy.tolist(), places.tolist(), strict=True))
        step = max(exponent - self.FINE, LEAST)
        width = 2 ** (exponent - step)
        return Window(step, int(keys[place]) * width, 2 * width)

    def error_bound(self, params: SeededMedianParams, table: Table) -> ErrorBound:
        pairs, cells, rate = self._methods(params, table)
        rank = ((self.FINE + 2) * math.log(2) + math.log(20)) / float(2 * rate)
        note = f"in rows, if the median lies in the window that is found; about {rows_for_window(pairs, cells)} rows are needed"
        return ErrorBound({"rank (rows)": rank}, f"{note} for an answer")


@dataclass(frozen=True)
class Window:
    """The grid points (centre + i) 2^step with -half <= i < half."""

    step: int
    centre: int
    half: int


def median_in(window: Window, cells: Cells, rate: Fraction, source: Source) -> float:
    """The exponential mechanism over a window; cost |#below - #above|, rows outside at its ends."""
    places = np.clip(cells.keys - float(window.centre), -window.half, window.half - 1).astype(
        np.int64
    )
    places, inverse = np.unique(places, return_inverse=True)
    counts = np.bincount(inverse, weights=cells.counts, minlength=len(places)).astype(np.int64)
    below = np.concatenate([[0], np.cumsum(counts)])
    # Every place is a piece of one point, and so is the gap before it; the last gap reaches the end
    # of the window.
    starts = np.empty(2 * len(places) + 1, np.int64)
    starts[0::2], starts[1::2] = np.concatenate([[-window.half], places + 1]), places
    lengths = np.diff(starts, append=window.half)
    costs = np.empty_like(starts)
    costs[0::2], costs[1::2] = (
        np.abs(2 * below - below[-1]),
        np.abs(below[:-1] + below[1:] - below[-1]),
    )
    real = lengths > 0
    starts, lengths, costs = starts[real], lengths[real], costs[real]
    piece = choose(lengths, costs, rate, source)
    at = window.centre + int(starts[piece]) + source.below(int(lengths[piece]))
    value = at * Fraction(2) ** window.step
    return float(max(-LARGEST, min(value, LARGEST)))


def rows_for_window(pairs: Noise, cells: Noise) -> int:
    """Rows from which about 95 % of the releases find a window.

    Of two neighbouring classes one holds half of the pairs nearly always, and so it is with cells
    and rows.
    """
    first, second = (noise.radius + 3 * float(noise.scale) for noise in (pairs, cells))
    return math.ceil(max(4 * first / PARTNERS, 2 * second))
