"""`cdf`: the distribution function of a column, with or without a range, for any later question.

Definition, in three rounds.

1. The number of rows, noisy unless public. It decides the sizes of what follows (`choose_sizes`).
2. A search for cells: the median of the column by the exponential mechanism over all doubles, then
   the medians of the rows below and above it, and so on, s levels. Doubles are weighed by what is
   public: the type, and points already released (`dpflow.core.toolbox.search_weights`). Cells are
   cut at these points, just above each of them, so that a value which many rows share has a cell of
   its own, and in equal parts between them. Beyond the outermost points cells get wider by doubling.
   The first cell begins at minus infinity and the last one ends at infinity.
3. Noisy counts of the cells, as a flat histogram or as a tree (`dpflow.core.toolbox.noisy_tree`),
   made to ascend.

Declared bounds narrow the search, and what lies outside them is counted outside: nothing is clamped,
and no range is ever taken for granted.

Guarantee: epsilon-DP by adaptive composition of the rounds, of shares `COUNTING`, `SEARCHING` and the
rest. A neighbour adds or removes R rows of a unit, or under replace removes R and adds R: D rows in
all, D = R or 2 R. The number of rows moves by R at most. On a level of the search every row is in one
half at most, the halves' ends are released, and a row moves the cost max(2 #below - m, 2 #above - m) of each
point of its half by 1 at most; so a rate of e/(2 D) makes a level e-DP, whatever weights the points
have, since they depend on the type and on earlier levels' points alone. The last round is proved
where it is computed. Where the number of rows is public, its share is not spent.

Error: every interval of every later question holds at once with probability 95 %, by the tails of the
last round's noise alone. A search that went wrong makes cells, hence intervals, wide; it cannot make
them false, because the outermost cells have no end. How wide they usually are, by rows and epsilon:
docs/guides/medians.md.

When not to use it: for one quantile of a column with a trusted range, where `quantile` is sharper
with few rows.

Source: McSherry, Talwar 2007 (exponential mechanism); Kaplan, Schnapp, Stemmer 2022 (medians of
halves, for quantiles); the combination is proved here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, Field

from dpflow.core.accounting.amounts import Epsilon
from dpflow.core.accounting.events import Event, Pure
from dpflow.core.contract.columns import Column
from dpflow.core.contract.declaration import Table
from dpflow.core.contract.distribution import DOCUMENT, SHARE_BELOW, Distribution
from dpflow.core.contract.mechanism import Mechanism, Params
from dpflow.core.contract.requests import CellGrid, OpenColumn, UnboundedValues
from dpflow.core.contract.results import (
    NO_INFORMATION,
    NO_RANK,
    ONLY_A_BOUND,
    ErrorBound,
    Result,
    Row,
    ValueRange,
    bound_labels,
)
from dpflow.core.contract.sensitivity import RowSensitivity
from dpflow.core.sampling.randomness import Source
from dpflow.core.toolbox.noise import FAILURE, Noise, laplace_noise
from dpflow.core.toolbox.noise_sums import laplace_sum_half_width
from dpflow.core.toolbox.noisy_tree import PrefixCounts, draw_prefix_counts
from dpflow.core.toolbox.quantiles import draw_quantile
from dpflow.core.toolbox.search_weights import DOUBLES, SearchWeights
from dpflow.mechanisms.rank_params import Share, check_distinct

COUNTING = Fraction(1, 32)  #: of epsilon, for the number of rows
SEARCHING = Fraction(2, 5)  #: of epsilon, for the search
MOST_LEVELS, MOST_CELLS = 7, 4096
#: The remark of a quantile that no released count bounds on one side.
NO_END = "no bound: the rows beyond the outermost edge may hold it"
DOUBLINGS = 12  #: of the width of cells beyond the outermost points
#: Years 1 to 9999, in days and in microseconds since 1970-01-01: what a text can write.
_TIMES = {
    "date": (-719_162, 2_932_896),
    "timestamp": (-62_135_596_800_000_000, 253_402_300_799_000_000),
}
#: Sizes that a plan shows the error of.
_SHOWN_ROWS = (1_000, 10_000, 100_000, 1_000_000)


class CdfParams(Params):
    """``column``: a number, date or timestamp column; it needs no bounds. ``epsilon``: the privacy
    cost. ``quantiles``: up to 100 that the result names, free of charge, as all others are later.

    ``search``: levels of the search, 1 to 7, chosen from the number of rows if left out. ``cells``:
    how many, 2 to 4,096, chosen in the same way. ``levels``: of noisy counts, 1 for a histogram to 4 for a
    tree, chosen in the same way.
    """

    column: str
    epsilon: Epsilon
    quantiles: Annotated[
        tuple[Share, ...], Field(max_length=100), AfterValidator(check_distinct)
    ] = ()
    search: Annotated[int, Field(ge=1, le=MOST_LEVELS)] | None = None
    cells: Annotated[int, Field(ge=2, le=MOST_CELLS)] | None = None
    levels: Annotated[int, Field(ge=1, le=4)] | None = None


@dataclass(frozen=True)
class Sizes:
    """What a number of rows decides: levels of the search, cells, levels of noisy counts; and the
    mean error of a share that is expected of it.
    """

    search: int
    cells: int
    levels: int
    error: float


@lru_cache(maxsize=1024)
def choose_sizes(
    rows: int, epsilon: float, search: int | None, cells: int | None, levels: int | None
) -> Sizes:
    """The sizes of least expected error for so many rows, public or noisy.

    Args:
        epsilon: of one row that comes or goes.
        search, cells, levels: what is fixed.
    """
    size = max(1, rows)
    # Measured on 19 laws: with more levels each median is worse, with fewer each cell is less even.
    search = search or max(1, min(MOST_LEVELS, round(0.6 * math.log2(max(2, size * epsilon)) - 3)))
    share = float(1 - COUNTING - SEARCHING) * epsilon
    # Each point of the search has a cell edge at least.
    numbers = [cells] if cells else [2**k for k in range(2, 13) if 2**k >= 2**search]
    options = []
    for number in numbers:
        for level in [levels] if levels else (1, 2, 3, 4):
            branches = number ** (1 / level)
            # Noises in a prefix, on average: of the first level from both sides, below from the
            # nearer one.
            terms = max(1.0, branches / 6 + (level - 1) * branches / 4)
            noise = 0.8 * math.sqrt(2 * terms) * level / share
            options.append((math.hypot(noise, 0.15 * size / number) / size, number, level))
    error, number, level = min(options)
    return Sizes(search, number, level, min(error, 0.5))


class Cdf(Mechanism[CdfParams]):
    """A distribution function, to be asked for shares and quantiles."""

    name = "cdf"
    job = "distribution"
    version = 2  # 1 weighed all doubles the same
    summary = "the distribution of a column, bounded or not: shares below, within, and all quantiles, with intervals"
    citation = "McSherry, Talwar 2007; Kaplan, Schnapp, Stemmer 2022 (medians of halves); Hay et al. 2010 (trees of counts)"

    def _moved(self, params: CdfParams, table: Table) -> RowSensitivity:
        return table.sensitivity(self.data_request(params, table))

    def _sizes(self, params: CdfParams, table: Table, rows: int) -> Sizes:
        epsilon = float(params.epsilon / self._moved(params, table).cells.l1)
        return choose_sizes(rows, epsilon, params.search, params.cells, params.levels)

    def _cell_noise(self, params: CdfParams, table: Table, levels: int) -> Noise:
        """Noise of each count of a cell, of so many levels, in each of which a row is counted once."""
        share = params.epsilon * (1 - COUNTING - SEARCHING)
        return laplace_noise(self._moved(params, table).cells * levels, share)

    def _row_noise(self, params: CdfParams, table: Table) -> Noise:
        """Noise of the number of rows."""
        return laplace_noise(self._moved(params, table).rows, params.epsilon * COUNTING)

    def event(self, params: CdfParams, table: Table) -> Event:
        """The whole epsilon, shared by the three rounds."""
        table.column(params.column)
        self._row_noise(params, table)
        self._cell_noise(params, table, 4)
        return Pure(params.epsilon)

    def data_request(self, params: CdfParams, table: Table) -> UnboundedValues:
        """The values as they are: the column needs no declared bounds."""
        return UnboundedValues(params.column, rows_per_group=table.contribution_bounds.rows)

    def draw(self, params: CdfParams, table: Table, answer: OpenColumn, source: Source) -> Result:
        """The number of rows, the cells, and how many rows lie below each of their edges."""
        data = answer.count_cells({0: CellGrid(None)})[0]
        public = (
            answer.public_size.rows if answer.public_size and answer.public_size.exact else None
        )
        rows = public
        if rows is None:
            noise = self._row_noise(params, table)
            rows = max(0, noise.add_noise(int(data.counts.sum()), source))
        sizes = self._sizes(params, table, rows)
        changes = self._moved(params, table).cells.l1
        rate = params.epsilon * SEARCHING / sizes.search / (2 * changes)
        time = _time_of(answer)
        range_ = _search_range(table.column(params.column), answer, time)
        points = search_medians(
            data.keys, data.counts, range_, sizes.search, rate, source, answer.is_whole
        )
        edges = place_edges(points, sizes.cells, data.keys.dtype, answer.is_whole, time)
        counts = count_below(data.keys, data.counts, edges)
        noise = self._cell_noise(params, table, sizes.levels)
        cells = np.diff(np.concatenate([[0], counts, [data.counts.sum()]]))
        branches = find_branches(len(cells), sizes.levels)
        prefix = draw_prefix_counts(cells, branches, sizes.levels, noise, public, source)
        shares, halves = estimate_shares(prefix, noise.scale)
        keys = [str(answer.column_value(edge)) for edge in edges.tolist()]
        edge_shares = list(zip(keys, shares.tolist(), halves.tolist(), strict=True))
        step = (Fraction(1) if time else answer.step) if answer.is_whole else None
        distribution = Distribution.from_rows(edge_shares, step, time)
        about = {
            "column": params.column,
            "step": None if step is None else str(step),
            "time": time,
            "rows": rows,
            "rows_are": "noisy" if public is None else "public",
            "search": sizes.search,
            "cells": len(cells),
            "levels": sizes.levels,
            "intervals": "all hold at once with probability 95 %",
        }
        counted = table.describe_counted_rows()
        quantiles = [
            row
            for p in sorted(params.quantiles)
            for row in _quantile_rows(distribution, p, counted)
        ]
        below = [
            Row(key, SHARE_BELOW, share, half, NO_INFORMATION if _spans_all(share, half) else "")
            for key, share, half in edge_shares
        ]
        return Result((*quantiles, *below), {DOCUMENT: about})

    def value_ranges(self, params: CdfParams, table: Table) -> dict[str, ValueRange]:
        """Shares are between 0 and 1."""
        return {SHARE_BELOW: ValueRange(0, 1)}

    def _edge_error(self, params: CdfParams, table: Table, sizes: Sizes, sides: int = 2) -> int:
        """How far the number of rows on one side of an edge is off, all edges at once, with probability 95 %: of edges
        that are counted from the nearer of two ends, as middle ones are, or of any.
        """
        scale = self._cell_noise(params, table, sizes.levels).scale
        branches = find_branches(sizes.cells, sizes.levels)
        terms = math.ceil(branches / sides) * sizes.levels
        return laplace_sum_half_width(terms, scale, FAILURE / (2 * sizes.cells))

    def _share_error(self, params: CdfParams, table: Table, sizes: Sizes, rows: int) -> float:
        """The half-width of a share below an edge at most, wherever the rows lie.

        With b and a rows counted below and above, off by w and v at most, the half-width is at most
        (b v + a w)/(b + a) / (b + a - |w - v|), and b + a is at least the number of rows - w - v.
        """
        error = self._edge_error(params, table, sizes, sides=1)
        return min(1.0, error / (rows - 2 * error)) if rows > 2 * error else 1.0

    def rank_error(self, params: CdfParams, table: Table, rows: int) -> float:
        """About how far, in rows, the rank of a quantile is stated to be off, of so many rows that fill cells
        evenly: as an edge is, and a cell further. To choose a method by; no bound.
        """
        sizes = self._sizes(params, table, rows)
        return self._edge_error(params, table, sizes) + rows / sizes.cells

    def error_bound(self, params: CdfParams, table: Table) -> ErrorBound:
        """The half-width of a share below an edge at most, for some numbers of rows, all edges at once."""
        widths, chosen = {}, []
        for rows in _SHOWN_ROWS:
            sizes = self._sizes(params, table, rows)
            width = self._share_error(params, table, sizes, rows)
            widths[f"share below an edge, of {rows:,} rows"] = width
            method = "a histogram" if sizes.levels == 1 else f"a tree of {sizes.levels} levels"
            chosen.append(
                f"{rows:,} rows: {sizes.search} search levels, {sizes.cells} cells in {method}, "
                f"mean error of a share about {sizes.error:.2g}"
            )
        note = "; ".join(chosen)
        return ErrorBound(
            widths,
            f"chosen by the number of rows, which is public or counted for 1/32 of epsilon: {note}; "
            "between edges an interval reaches from edge to edge; all hold at once with probability 95 %",
        )


def _spans_all(share: float, half_width: float) -> bool:
    """Whether an interval holds every share that there is."""
    return share - half_width <= 0 and share + half_width >= 1


def search_medians(
    values: NDArray[Any],
    counts: NDArray[np.int64],
    within: tuple[float, float],
    levels: int,
    rate: Fraction,
    source: Source,
    whole: bool = False,
) -> list[float]:
    """Points that divide the rows in about equal parts: the median, the medians of both halves, and so
    on; ascending, each once.

    Args:
        values, counts: distinct values, ascending, and their multiplicities.
        within: the least and the largest point.
        levels: how often parts are divided.
        rate: of the exponential mechanism, per unit of its cost.
        source: where the randomness comes from.
        whole: whether the column holds whole numbers alone.
    """
    first, last = (int(key) for key in DOUBLES.nearest_keys(np.array(within, float)))
    # Each row by itself, so neighbours stay neighbours; beyond 2^53 integers share keys.
    keys = np.clip(DOUBLES.nearest_keys(values.astype(np.float64) + 0.0), first, last)
    rows = np.repeat(keys, counts)
    # Keys of the ends, and whether a point lies beyond them.
    bounded = math.isfinite(within[0]) and within[1] < DOUBLES.key_value(DOUBLES.last_key)
    parts, points = [(first, last, bounded, bounded)], set[int]()
    for _ in range(levels):
        halves = []
        for low, high, after_point, before_point in parts:
            start, stop = np.searchsorted(rows, [low, high + 1])
            weights = SearchWeights(
                low,
                high,
                DOUBLES.key_value(low - 1) if after_point else None,
                DOUBLES.key_value(high + 1) if before_point else None,
                whole,
            )
            middle = draw_quantile(
                rows[start:stop], low, high, Fraction(1, 2), rate, source, weights.count
            )
            points.add(middle)
            # Rows at the point are in neither half: a value of many rows would be found again and again.
            halves += [(low, middle - 1, after_point, True), (middle + 1, high, True, before_point)]
        # Whether a half has a value is public.
        parts = [half for half in halves if half[0] <= half[1]]
    return [DOUBLES.key_value(key) for key in sorted(points)]


def place_edges(
    points: list[float], cells: int, dtype: np.dtype[Any], whole: bool, time: str
) -> NDArray[Any]:
    """Edges of cells, ascending, of the type that the values have; about so many cells. Nothing but
    released points is used.
    """
    parts = max(1, round(cells / (len(points) + 1)))
    edges: list[float] = []
    for low, high in pairwise(points):
        # Halves are subtracted, since the difference of two doubles may be infinite.
        edges += (low + 2 * ((high / 2 - low / 2) * (np.arange(parts) / parts))).tolist()
    edges += points[-1:]
    if len(points) > 1 and parts > 1:
        even = (points[-1] / 2 - points[0] / 2) / (len(points) - 1) * 2
        for end, width in (
            (points[0], -max(points[1] - points[0], even / 16)),
            (points[-1], max(points[-1] - points[-2], even / 16)),
        ):
            edges += _widen_edges(end, width, parts)
    # The next double above a point: among these, and among whole numbers beyond 2^53, there is no
    # other between.
    with np.errstate(over="ignore"):
        above = np.nextafter(points, np.inf)
    finite = np.unique(np.concatenate([edges, above]))
    finite = finite[np.isfinite(finite)] + 0.0
    if not whole:
        return np.asarray(finite)
    # Whole numbers below an edge are those below the next whole number.
    bits = 63 if dtype.kind == "i" else 127
    least, most = _TIMES.get(time, (-(2**bits), 2**bits - 1))
    exact = {math.ceil(edge) for edge in finite.tolist()} | {math.floor(p) + 1 for p in points}
    for low, high in zip(points, above.tolist()):
        if high - low > 1 and math.isfinite(high):
            exact |= {int(low) + (int(high) - int(low)) * i // parts for i in range(parts)}
    inside = sorted({min(max(edge, least), most) for edge in exact})
    if dtype.kind == "O":
        edges_of_objects = np.empty(len(inside), object)
        edges_of_objects[:] = inside
        return edges_of_objects
    return np.unique(np.array(inside, dtype))


def _widen_edges(end: float, width: float, parts: int) -> list[float]:
    """Edges beyond a point: cells of a stretch that gets twice as wide, with half as many cells."""
    edges = []
    for doubling in range(DOUBLINGS):
        number = max(1, parts >> max(0, doubling - 1) >> 1)
        edges += [end + width * (i + 1) / number for i in range(number)]
        end, width = end + width, 2 * width
    return edges


def count_below(
    values: NDArray[Any], counts: NDArray[np.int64], edges: NDArray[Any]
) -> NDArray[np.int64]:
    """Rows with a value below each edge, exactly."""
    sums = np.concatenate([[0], np.cumsum(counts)])
    return np.asarray(sums[np.searchsorted(values, edges, side="left")], np.int64)


def find_branches(cells: int, levels: int) -> int:
    """The least branching, 2 at least, with which so many levels reach so many cells."""
    branches = 2
    while branches**levels < cells:
        branches += 1
    return branches


def estimate_shares(
    prefix: PrefixCounts, scale: Fraction
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Shares below the inner edges, ascending, and half-widths in which all stay at once."""
    below_low, below_high, above_low, above_high = (
        part[1:-1].astype(float) for part in prefix.bounds(scale, FAILURE)
    )
    below = np.maximum(prefix.below[1:-1], 0).astype(float)
    above = np.maximum(prefix.above[1:-1], 0).astype(float)
    shares = np.divide(below, below + above, out=np.full(len(below), 0.5), where=below + above > 0)
    # Between the largest so far and the smallest to come: as good as the shares were, and ascending.
    shares = (np.maximum.accumulate(shares) + np.minimum.accumulate(shares[::-1])[::-1]) / 2
    most = below_low + above_high
    low = np.divide(below_low, most, out=np.zeros(len(below)), where=most > 0)
    least = below_high + above_low
    high = np.divide(below_high, least, out=np.ones(len(below)), where=least > 0)
    # A share is a double, which a third is not: without noise that is all that it is off by.
    rounded = np.where((shares > 0) & (shares < 1), 2.0**-51, 0.0)
    return shares, np.minimum(np.maximum(high - shares, shares - low) + rounded, 1.0)


def _time_of(answer: OpenColumn) -> str:
    """Whether values are dates or timestamps, by how the column writes 1970-01-01."""
    first = answer.column_value(Fraction(0))
    if not isinstance(first, str) or "-" not in first[1:]:
        return ""
    return "date" if len(first) == len("1970-01-01") else "timestamp"


def _search_range(column: Column, answer: OpenColumn, time: str) -> tuple[float, float]:
    """The declared bounds, or everything that the column can write."""
    if time:
        return _TIMES[time][0], _TIMES[time][1]
    if column.lower is None or column.upper is None:
        return -math.inf, math.inf
    return float(column.lower / answer.step), float(column.upper / answer.step)


def _quantile_rows(distribution: Distribution, p: Fraction, counted: str) -> list[Row]:
    estimate = distribution.quantile(p)
    ends = estimate.low, estimate.high
    if estimate.value is not None:
        percent = math.ceil(1e4 * distribution.rank_error(estimate.value, p)) / 100
        remark = f"its rank among the {counted} is within {percent:g} % (95 % for all answers of the release together)"
    elif None not in ends:
        remark = NO_RANK
    else:
        remark = NO_INFORMATION if ends == (None, None) else ONLY_A_BOUND
    label = f"quantile {p}"
    rows = [Row("", label, estimate.value, None, remark, estimate.only_a_bound)]
    for bound, value in zip(bound_labels(label), ends):
        rows.append(Row("", bound, value, remark=NO_END if value is None else ""))
    return rows
