"""Sum of a bounded column, in total or per public key, with discrete Laplace noise on the declared grid.

Definition: values are clamped to [lower, upper], rounded to the column's step and added up as integers, after each unit
is cut to its limits; noise is added in steps, and the result is multiplied by the step.

Claim: epsilon-DP for the declared unit. One row moves a sum by at most M = max(|lower|, |upper|)/step steps. In total a
unit moves it by rows x M under add-remove, and by rows x (max(upper, 0) - min(lower, 0))/step under replace; per key by
groups x rows_per_group x M in L1, twice that under replace.

When not to use it: with bounds much wider than the values; the noise follows the bounds, not the rows.
"""

from __future__ import annotations

from fractions import Fraction

from dpflow.core.amounts import Epsilon
from dpflow.core.declaration import Table
from dpflow.core.events import DiscreteLaplace, Event
from dpflow.core.mechanism import Mechanism, Params
from dpflow.core.noise import half_width, scale_for, sum_sensitivity
from dpflow.core.randomness import Source
from dpflow.core.results import ErrorBound, Result, Row
from dpflow.core.samplers import discrete_laplace
from dpflow.core.statistics import Answer, GroupedSums
from dpflow.hookspecs import hookimpl


class SumParams(Params):
    """``column``: a bounded column. ``by``: a column with public keys, or nothing. ``epsilon``: the price of all sums."""

    column: str
    epsilon: Epsilon
    by: str | None = None


def sensitivity(params: SumParams, table: Table) -> int:
    """L1 sensitivity in grid steps."""
    low, high = table.bounded(params.column).grid()
    if params.by is None and table.neighbours == "replace":
        return table.limits.rows * (max(high, 0) - min(low, 0))
    return sum_sensitivity(table, max(abs(low), abs(high)), params.by)


class Sum(Mechanism[SumParams]):
    """Sum of a bounded column."""

    name = "sum"
    summary = "sum of a bounded column, in total or by public key"
    citation = "Dwork, McSherry, Nissim, Smith 2006; discrete form of Ghosh et al. 2009"
    Params = SumParams

    def _scale(self, params: SumParams, table: Table) -> Fraction:
        return scale_for(sensitivity(params, table), params.epsilon)

    def event(self, params: SumParams, table: Table) -> Event:
        return DiscreteLaplace(self._scale(params, table), max(1, sensitivity(params, table)))

    def statistic(self, params: SumParams, table: Table) -> GroupedSums:
        table.bounded(params.column)
        keys = None if params.by is None else table.keys(params.by)
        return GroupedSums(params.by, keys, *table.cut(params.by), ((params.column, 0),))

    def draw(self, params: SumParams, table: Table, answer: Answer, source: Source) -> Result:
        step, scale = table.bounded(params.column).step, self._scale(params, table)
        noise = discrete_laplace(scale, len(answer.keys), source)
        width = float(half_width(scale) * step)
        sums = answer.sums[params.column]
        return Result(
            tuple(
                Row(k, "sum", float((int(s) + int(x)) * step), width)
                for k, s, x in zip(answer.keys, sums, noise, strict=True)
            )
        )

    def error(self, params: SumParams, table: Table) -> ErrorBound:
        step = table.bounded(params.column).step
        return ErrorBound({"sum": float(half_width(self._scale(params, table)) * step)})


@hookimpl
def dpflow_register_mechanisms() -> list[Sum]:
    return [Sum()]
