"""Quantiles of a bounded column, one or several, by the exponential mechanism over its grid; the median; lowest and highest values.

Definition: with p = a/b, n rows after the cut, and for a grid point v the counts L(v) = #{x < v}, U(v) = #{x > v}, the
cost is c(v) = max(b L(v) - a n, b U(v) - (b-a) n), an integer; v is drawn with probability proportional to
exp(-epsilon c(v) / (2 D)), exactly, over the whole grid between the declared bounds. `quantiles` draws k of them at epsilon/k
each and sorts the values, since a higher quantile is no smaller. `minimum` and `maximum` are quantiles a small ``tail`` away
from the ends: the smallest row itself is one person's.

Claim: epsilon-bounded range for each, hence epsilon-DP and epsilon^2/8-zCDP. One row more moves c by at most max(a, b-a), so a
unit of R rows moves it by D = R max(a, b-a) under add-remove and R b under replace.

Error: with probability 95 % the ranks of all k answers are within 2 D k ln(20 k G)/(b epsilon) rows of p n, where G is the
number of grid points. In the column's own unit no bound is known beforehand.

When not to use it: without a trusted range (`median` then takes `approximate_median`, which finds interior points of unbounded
data), or where the grid is much coarser than the spread of the rows. Recursive schemes that halve the rows at each answer
(Kaplan, Schnapp, Stemmer 2022) pay log k instead of k, and are wrong where many rows share a value; these are not.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from fractions import Fraction
from typing import Annotated, Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, Field

from dpflow.core.amounts import Delta, Epsilon
from dpflow.core.declaration import Exact, Table
from dpflow.core.events import BoundedRange, Event, Repeated
from dpflow.core.mechanism import Instead, Mechanism, Params
from dpflow.core.noise import FAILURE
from dpflow.core.randomness import Source
from dpflow.core.results import ErrorBound, Result, Row
from dpflow.core.samplers import choose
from dpflow.core.statistics import Answer, Histogram, SortedValues
from dpflow.errors import PlanRefused
from dpflow.hookspecs import hookimpl


def _inside(value: Fraction) -> Fraction:
    if not 0 < value < 1 or value.denominator > 10**6:
        raise ValueError("p must lie strictly between 0 and 1, with at most six decimals")
    return value


def _different(values: tuple[Fraction, ...]) -> tuple[Fraction, ...]:
    if len(set(values)) != len(values):
        raise ValueError("name each quantile once")
    return values


Share = Annotated[Exact, AfterValidator(_inside)]
P = TypeVar("P", bound="ColumnParams")


class ColumnParams(Params):
    """``column``: a bounded column. ``epsilon``: the price."""

    column: str
    epsilon: Epsilon


class QuantileParams(ColumnParams):
    """``column``: a bounded column. ``p``: strictly between 0 and 1, 1/2 for the median. ``epsilon``: the price."""

    p: Share = Fraction(1, 2)


class QuantilesParams(ColumnParams):
    """``column``: a bounded column. ``quantiles``: up to 100, strictly between 0 and 1. ``epsilon``: the price of all."""

    quantiles: Annotated[tuple[Share, ...], Field(min_length=1, max_length=100), AfterValidator(_different)]


class ExtremeParams(ColumnParams):
    """``column``: a bounded column. ``tail``: the part of the rows that may lie beyond the answer. ``epsilon``: the price."""

    tail: Share = Fraction(1, 100)


class MedianParams(ColumnParams):
    """``column``: a column, bounded if its range is trusted. ``epsilon``: the price. ``delta``: what a column without bounds
    needs besides; 0 otherwise.
    """

    delta: Delta = Fraction(0)


def pieces(data: Histogram, low: int, high: int, p: Fraction) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.int64]]:
    """Cut the grid [low, high] into runs of equal cost: their starts, lengths and costs (smallest cost 0).

    A run is a value that some row has, or a gap before, between or after such values. Python's integers stand in for numpy's
    where those could overflow.
    """
    a, b = p.numerator, p.denominator
    total = int(data.counts.sum())
    values = data.values.astype(np.int64 if high - low < 2**62 else object)
    counts = data.counts.astype(np.int64 if b * (total + 1) < 2**62 else object)
    upto = np.cumsum(counts)
    starts, below, above = (np.empty(2 * len(kind) + 1, kind.dtype) for kind in (values, counts, counts))
    starts[0], starts[1::2], starts[2::2] = low, values, values + 1
    below[0::2], below[1::2] = np.append(upto - counts, total), upto - counts
    above[0::2], above[1::2] = np.append(total - upto + counts, 0), total - upto
    lengths = np.diff(np.append(starts, high + 1))
    costs = np.maximum(b * below - a * total, b * above - (b - a) * total)
    there = lengths > 0
    costs = costs[there]
    # Costs are cut at 2^53 above the least: the cut moves with the least cost, so one row still moves a cost by no more.
    return starts[there], lengths[there], np.minimum(costs - costs.min(), 2**53 - 1).astype(np.int64)


class _Quantiles(Mechanism[P]):
    """Draws what `wanted` names."""

    @abstractmethod
    def wanted(self, params: P) -> dict[str, Fraction]:
        """Measures with their p, ascending."""

    def _sensitivity(self, p: Fraction, table: Table) -> int:
        a, b = p.numerator, p.denominator
        return table.limits.rows * (b if table.neighbours == "replace" else max(a, b - a))

    def event(self, params: P, table: Table) -> Event:
        table.bounded(params.column)
        count = len(self.wanted(params))
        one = BoundedRange(params.epsilon / count)
        return one if count == 1 else Repeated(one, count)

    def statistic(self, params: P, table: Table) -> SortedValues:
        table.bounded(params.column)
        return SortedValues(params.column, table.limits.rows)

    def draw(self, params: P, table: Table, answer: Answer, source: Source) -> Result:
        column, wanted = table.bounded(params.column), self.wanted(params)
        found = []
        for p in wanted.values():
            starts, lengths, costs = pieces(answer, *column.grid(), p)
            rate = params.epsilon / len(wanted) / (2 * self._sensitivity(p, table))
            piece = choose(lengths, costs, rate, source)
            found.append(int(starts[piece]) + source.below(int(lengths[piece])))
        values = sorted(found)
        rows = (Row("", name, float(value * column.step)) for name, value in zip(wanted, values, strict=True))
        return Result(tuple(rows))

    def error(self, params: P, table: Table) -> ErrorBound:
        low, high = table.bounded(params.column).grid()
        wanted = self.wanted(params)
        likely = math.log(len(wanted) * (high - low + 1) / FAILURE)
        scales = (
            2 * len(wanted) * self._sensitivity(p, table) / (p.denominator * params.epsilon) for p in wanted.values()
        )
        rank = float(max(scales)) * likely
        return ErrorBound({"rank (rows)": rank}, "rank error; the error in the column's unit depends on the rows")


class Quantile(_Quantiles[QuantileParams]):
    """A quantile of a bounded column."""

    name = "quantile"
    summary = "a quantile (p: 1/2 is the median) of a bounded column"
    citation = "McSherry, Talwar 2007 (exponential mechanism); Smith 2011 (quantiles); Dong, Durfee, Rogers 2020 (bounded range)"
    Params = QuantileParams

    def wanted(self, params: QuantileParams) -> dict[str, Fraction]:
        return {f"quantile {params.p}": params.p}


class Quantiles(_Quantiles[QuantilesParams]):
    """Several quantiles of a bounded column."""

    name = "quantiles"
    summary = "several quantiles of a bounded column, in ascending order"
    citation = Quantile.citation
    Params = QuantilesParams

    def wanted(self, params: QuantilesParams) -> dict[str, Fraction]:
        return {f"quantile {p}": p for p in sorted(params.quantiles)}


class Minimum(_Quantiles[ExtremeParams]):
    """A value that few rows are below."""

    name = "minimum"
    summary = "the value of a bounded column that a small part of the rows is below"
    citation = Quantile.citation
    Params = ExtremeParams

    def wanted(self, params: ExtremeParams) -> dict[str, Fraction]:
        return {self.name: params.tail}


class Maximum(Minimum):
    """A value that few rows are above."""

    name = "maximum"
    summary = "the value of a bounded column that a small part of the rows is above"

    def wanted(self, params: ExtremeParams) -> dict[str, Fraction]:
        return {self.name: 1 - params.tail}


class Median(_Quantiles[MedianParams]):
    """The median of a column, bounded or not: the plan says how it is found."""

    name = "median"
    summary = "the median: exponential mechanism on a trusted range, approximate_median without one"
    citation = f"{Quantile.citation}; Aliakbarpour, Silver, Steinke, Ullman 2023 (without a range)"
    Params = MedianParams

    def wanted(self, params: MedianParams) -> dict[str, Fraction]:
        return {self.name: Fraction(1, 2)}

    def instead(self, params: MedianParams, table: Table) -> Instead | None:
        if table.column(params.column).lower is not None:
            return None
        if not params.delta:
            raise PlanRefused(
                f"column {params.column!r} of table {table.name!r} declares no bounds, and a median without them needs a "
                f"delta; add delta to the parameters, such as 1e-6, or lower and upper to the declaration"
            )
        why = f"column {params.column!r} declares no bounds, so approximate_median is taken; bounds would save rows and delta"
        return Instead("approximate_median", params.model_dump(mode="json"), why)

    def error(self, params: MedianParams, table: Table) -> ErrorBound:
        bound = super().error(params, table)
        spare = "; delta is not used" if params.delta else ""
        why = f"exponential mechanism over the declared bounds, which are trusted{spare}"
        return ErrorBound(bound.half_width, f"{why}; {bound.note}")


@hookimpl
def dpflow_register_mechanisms() -> list[Mechanism[Any]]:
    return [Quantile(), Quantiles(), Median(), Minimum(), Maximum()]
