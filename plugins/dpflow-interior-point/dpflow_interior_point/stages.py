"""The stages of the method, each as a release of its own, and the extension that narrows the median down.

Definitions and claims are those of the modules `scale`, `points` and `stability`; each of these mechanisms spends its whole
price on one stage. `seeded_median` spends 0.7 of epsilon and all of delta on an interior point (j, z), and the rest on the
exponential mechanism over a grid of 2^42 points of step 2^(j-21) around z, which is public by then. It needs fewer rows for a
small alpha, but if the median lies outside that window the answer is wrong without notice; and it never answers an atom.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Annotated

import numpy as np
from pydantic import Field

from dpflow.core.declaration import Table
from dpflow.core.events import Event
from dpflow.core.mechanism import Mechanism
from dpflow.core.randomness import Source
from dpflow.core.results import ErrorBound, Result, Row
from dpflow.core.samplers import choose
from dpflow.core.statistics import Answer, Cells, Grid, UnboundedValues
from dpflow_interior_point import planner
from dpflow_interior_point.interior import CITATION, InteriorPointParams, Method
from dpflow_interior_point.noise import Noise
from dpflow_interior_point.points import Point, point_between
from dpflow_interior_point.price import ColumnParams, Purse, ScaleParams, Sizes, event, request
from dpflow_interior_point.scale import Rule, estimate_scale, sample_size

Exponent = Annotated[int, Field(ge=-1000, le=1000)]


class EstimateFirstMomentParams(ScaleParams):
    """As `ScaleParams`, with the rule ``largest`` by default, which is the one that estimates a scale."""

    rule: Rule = "largest"


class EstimateFirstMoment(Mechanism[EstimateFirstMomentParams]):
    """E|X - mean| of a column without bounds, up to a constant factor."""

    name = "estimate_first_moment"
    summary = "the scale of a column: a power of two near its mean absolute deviation, or none"
    citation = CITATION + ", Proposition 3.2"
    Params = EstimateFirstMomentParams

    def _method(self, params: EstimateFirstMomentParams, table: Table) -> tuple[Sizes | None, Noise]:
        purse, sizes = Purse.of(params, table), None
        if params.share:
            sizes, purse = Sizes.of(params, table, purse)
        return sizes, purse.pairs()

    def event(self, params: EstimateFirstMomentParams, table: Table) -> Event:
        self._method(params, table)
        return event(params)

    def statistic(self, params: EstimateFirstMomentParams, table: Table) -> UnboundedValues:
        return request(params, table)

    def draw(self, params: EstimateFirstMomentParams, table: Table, answer: Answer, source: Source) -> Result:
        sizes, noise = self._method(params, table)
        numbers = [0] * len(answer.rows) if sizes is None else sizes.of_groups(answer, source)
        rows: list[Row] = []
        most = sample_size(noise)
        for key, values, n in zip(request(params, table).keys, answer.sample(most), numbers, strict=True):
            threshold = int(params.share * (min(n, most) // 2))
            found = estimate_scale(values, noise, threshold, params.rule, source)
            width = None if found.exponent is None else float(Fraction(2) ** found.exponent * answer.step)
            status = "ok" if width is not None else "ties" if found.ties else "no_scale"
            rows += [Row(key, "scale", width), Row(key, "status", status)]
        return Result(tuple(rows))

    def error(self, params: EstimateFirstMomentParams, table: Table) -> ErrorBound:
        _, noise = self._method(params, table)
        rows = math.ceil(2 * (noise.radius + 3 * float(noise.scale)) / 0.2)
        note = (
            "a power of two, mostly 1 to 5 times the mean absolute deviation; dates count days, timestamps microseconds"
        )
        return ErrorBound({}, f"{note}; about {rows} rows are needed for an answer")


class FindInteriorPointParams(ColumnParams):
    """As `ColumnParams`. ``exponent``: cells have the width 2^exponent, in the column's own measure (decimals: last digits,
    dates: days, timestamps: microseconds); something near the spread of the values, known from elsewhere. ``least``: rows that
    a cell must certainly have to count.
    """

    exponent: Exponent
    least: Annotated[int, Field(ge=1, le=10**9)] = 1


class FindInteriorPoint(Mechanism[FindInteriorPointParams]):
    """An interior point at a given width."""

    name = "find_interior_point"
    summary = "a point between two occupied cells of a given width, or none"
    citation = CITATION + ", Proposition 3.8"
    Params = FindInteriorPointParams

    def event(self, params: FindInteriorPointParams, table: Table) -> Event:
        Purse.of(params, table).cells()
        return event(params)

    def statistic(self, params: FindInteriorPointParams, table: Table) -> UnboundedValues:
        return request(params, table)

    def draw(self, params: FindInteriorPointParams, table: Table, answer: Answer, source: Source) -> Result:
        noise, keys = Purse.of(params, table).cells(), request(params, table).keys
        cells = answer.cells({code: Grid(params.exponent, least=params.least) for code in range(len(keys))})
        rows: list[Row] = []
        for code, key in enumerate(keys):
            point = point_between(cells[code], params.exponent, noise, params.least - 1, source)
            value = None if point.value is None else answer.written(point.value)
            rows += [Row(key, "interior point", value), Row(key, "status", point.status)]
        return Result(tuple(rows))

    def error(self, params: FindInteriorPointParams, table: Table) -> ErrorBound:
        noise = Purse.of(params, table).cells()
        rows = math.ceil(noise.radius + params.least - 1 + 3 * float(noise.scale))
        note = f"never outside the range; two cells need about {rows} rows each for an answer"
        return ErrorBound({"rank (share of rows)": 0.5}, note)


class SeededMedianParams(ColumnParams):
    """As `ColumnParams`."""


class SeededMedian(Mechanism[SeededMedianParams]):
    """A median by the exponential mechanism in a window that an interior point found."""

    name = "seeded_median"
    summary = (
        "a sharper median of a continuous column without a known range; wrong without notice if the data defeat it"
    )
    citation = CITATION + "; McSherry, Talwar 2007; the combination is proved here"
    Params = SeededMedianParams

    SEED = Fraction(7, 10)  #: share of epsilon for the window
    REACH = 42  #: the window has 2^REACH steps

    def _methods(self, params: SeededMedianParams, table: Table) -> tuple[Method, Fraction]:
        """The search for a window, and the exponential mechanism's rate per unit of cost."""
        purse = Purse.of(params, table)
        whole = InteriorPointParams.model_validate(params.model_dump())
        moved = purse.rows * (2 if purse.exchange else 1)  # of #below - #above, by one unit
        method = Method.of(whole.model_copy(update={"atoms": False}), table, purse.part(self.SEED, Fraction(1)))
        return method, (1 - self.SEED) * purse.epsilon / (2 * moved)

    def event(self, params: SeededMedianParams, table: Table) -> Event:
        self._methods(params, table)
        return event(params)

    def statistic(self, params: SeededMedianParams, table: Table) -> UnboundedValues:
        return request(params, table)

    def draw(self, params: SeededMedianParams, table: Table, answer: Answer, source: Source) -> Result:
        method, rate = self._methods(params, table)
        found = method.find(answer, source)
        fine = {
            code: self._step(scale.exponent) for code, (scale, point) in enumerate(found) if point.value is not None
        }
        cells = answer.cells({code: Grid(step) for code, step in fine.items()})
        rows: list[Row] = []
        for code, (key, (_, point)) in enumerate(zip(request(params, table).keys, found, strict=True)):
            value = None
            if point.value is not None:
                value = answer.written(self._median(cells[code], point, fine[code], rate, source))
            rows += [Row(key, "median", value), Row(key, "status", point.status)]
        return Result(tuple(rows))

    def _step(self, exponent: int | None) -> int:
        """Exponent of the grid: a window of 2^21 widths on 2^42 points."""
        assert exponent is not None
        return max(exponent - self.REACH // 2, -1000)

    def _median(self, cells: Cells, point: Point, step: int, rate: Fraction, source: Source) -> float:
        """The exponential mechanism over the cells of the window; cost |#below - #above|, rows outside at its ends."""
        assert point.value is not None
        half = 2 ** (self.REACH - 1)
        centre = Fraction(point.value) / Fraction(2) ** step  # a whole number, and a double
        places = np.clip(cells.keys - float(centre), -half, half - 1).astype(np.int64)
        places, inverse = np.unique(places, return_inverse=True)
        counts = np.bincount(inverse, weights=cells.counts, minlength=len(places)).astype(np.int64)
        below = np.concatenate([[0], np.cumsum(counts)])
        # Every place is a piece of one point, and so is the gap before it; the last gap reaches the end of the window.
        starts = np.empty(2 * len(places) + 1, np.int64)
        starts[0::2], starts[1::2] = np.concatenate([[-half], places + 1]), places
        lengths = np.diff(starts, append=half)
        costs = np.empty_like(starts)
        costs[0::2], costs[1::2] = np.abs(2 * below - below[-1]), np.abs(below[:-1] + below[1:] - below[-1])
        real = lengths > 0
        starts, lengths, costs = starts[real], lengths[real], costs[real]
        piece = choose(lengths.tolist(), costs.tolist(), rate, source)
        at = int(starts[piece]) + source.below(int(lengths[piece]))
        return float((centre + at) * Fraction(2) ** step)

    def error(self, params: SeededMedianParams, table: Table) -> ErrorBound:
        method, rate = self._methods(params, table)
        rank = (self.REACH * math.log(2) + math.log(20)) / float(2 * rate)
        rows = planner.rows_for_point(method.pairs, method.cells)
        note = f"in rows, if the median lies in the window that is found; about {rows} rows are needed for an answer"
        return ErrorBound({"rank (rows)": rank}, note)
