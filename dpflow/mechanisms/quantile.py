"""A quantile of a bounded column, by the exponential mechanism over its grid.

Definition: with p = a/b, n rows after the cut, and for a grid point v the counts L(v) = #{x < v}, U(v) = #{x > v}, the
cost is c(v) = max(b L(v) - a n, b U(v) - (b-a) n), an integer; v is drawn with probability proportional to
exp(-epsilon c(v) / (2 D)), exactly, over the whole grid between the declared bounds.

Claim: epsilon-bounded range, hence epsilon-DP and epsilon^2/8-zCDP. One row more moves c by at most max(a, b-a), so a
unit of R rows moves it by D = R max(a, b-a) under add-remove and R b under replace.

Error: with probability 95 % the rank of the answer is within 2 D ln(20 G)/(b epsilon) rows of p n, where G is the number
of grid points. In the column's own unit no bound is known beforehand.

When not to use it: without a trusted range (a plugin finds interior points of unbounded data), or where the grid is much
coarser than the spread of the rows.
"""

from __future__ import annotations

import math
from fractions import Fraction

from pydantic import field_validator

from dpflow.core.amounts import Epsilon
from dpflow.core.declaration import Exact, Table
from dpflow.core.events import BoundedRange, Event
from dpflow.core.mechanism import Mechanism, Params
from dpflow.core.randomness import Source
from dpflow.core.results import ErrorBound, Result, Row
from dpflow.core.samplers import choose
from dpflow.core.statistics import Answer, Histogram, SortedValues
from dpflow.hookspecs import hookimpl


class QuantileParams(Params):
    """``column``: a bounded column. ``p``: strictly between 0 and 1, 1/2 for the median. ``epsilon``: the price."""

    column: str
    epsilon: Epsilon
    p: Exact = Fraction(1, 2)

    @field_validator("p")
    @classmethod
    def _inside(cls, value: Fraction) -> Fraction:
        if not 0 < value < 1 or value.denominator > 10**6:
            raise ValueError("p must lie strictly between 0 and 1, with at most six decimals")
        return value


def pieces(data: Histogram, low: int, high: int, p: Fraction) -> tuple[list[int], list[int], list[int]]:
    """Cut the grid [low, high] into runs of equal cost: their starts, lengths and costs (smallest cost 0)."""
    a, b = p.numerator, p.denominator
    total = int(data.counts.sum())
    starts, lengths, costs = [], [], []

    def add(start: int, length: int, below: int, above: int) -> None:
        if length > 0:
            starts.append(start)
            lengths.append(length)
            costs.append(max(b * below - a * total, b * above - (b - a) * total))

    position, below = low, 0
    for value, count in zip(data.values.tolist(), data.counts.tolist(), strict=True):
        add(position, value - position, below, total - below)
        add(value, 1, below, total - below - count)
        position, below = value + 1, below + count
    add(position, high + 1 - position, below, 0)
    # Costs are cut at 2^53 above the least: the cut moves with the least cost, so one row still moves a cost by no more.
    least = min(costs)
    return starts, lengths, [min(cost - least, 2**53 - 1) for cost in costs]


class Quantile(Mechanism[QuantileParams]):
    """A quantile of a bounded column."""

    name = "quantile"
    summary = "a quantile (p: 1/2 is the median) of a bounded column"
    citation = "McSherry, Talwar 2007 (exponential mechanism); Smith 2011 (quantiles); Dong, Durfee, Rogers 2020 (bounded range)"
    Params = QuantileParams

    def _sensitivity(self, params: QuantileParams, table: Table) -> int:
        a, b = params.p.numerator, params.p.denominator
        return table.limits.rows * (b if table.neighbours == "replace" else max(a, b - a))

    def event(self, params: QuantileParams, table: Table) -> Event:
        table.bounded(params.column)
        return BoundedRange(params.epsilon)

    def statistic(self, params: QuantileParams, table: Table) -> SortedValues:
        table.bounded(params.column)
        return SortedValues(params.column, table.limits.rows)

    def draw(self, params: QuantileParams, table: Table, answer: Answer, source: Source) -> Result:
        column = table.bounded(params.column)
        low, high = column.grid()
        starts, lengths, costs = pieces(answer, low, high, params.p)
        piece = choose(lengths, costs, params.epsilon / (2 * self._sensitivity(params, table)), source)
        value = starts[piece] + source.below(lengths[piece])
        return Result((Row("", f"quantile {params.p}", float(value * column.step)),))

    def error(self, params: QuantileParams, table: Table) -> ErrorBound:
        low, high = table.bounded(params.column).grid()
        scale = 2 * self._sensitivity(params, table) / (params.p.denominator * params.epsilon)
        rank = float(scale) * math.log(20 * (high - low + 1))
        return ErrorBound({"rank (rows)": rank}, "rank error; the error in the column's unit depends on the rows")


@hookimpl
def dpflow_register_mechanisms() -> list[Quantile]:
    return [Quantile()]
