"""Rows per public key, with discrete Laplace noise.

Definition: for every declared key k, N_k + X_k, after each unit is cut to its declared groups and
rows per group. Keys that no row has appear with noise around zero; other values are ignored.

Claim: epsilon-DP for the declared unit: the vector moves by at most groups x rows_per_group in L1 under add-remove and
by twice that under replace.

When not to use it: when the list of keys is itself learnt from the rows; `private_histogram` selects keys privately.
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


class HistogramParams(Params):
    """``by``: a column with public keys. ``epsilon``: the price of all keys together."""

    by: str
    epsilon: Epsilon


class Histogram(Mechanism[HistogramParams]):
    """Number of rows of every public key."""

    name = "histogram"
    summary = "number of rows of every public key"
    citation = (
        "Dwork, McSherry, Nissim, Smith 2006 (calibrating noise to sensitivity); discrete form of Ghosh et al. 2009"
    )
    Params = HistogramParams

    def _scale(self, params: HistogramParams, table: Table) -> Fraction:
        return scale_for(sum_sensitivity(table, 1, params.by), params.epsilon)

    def event(self, params: HistogramParams, table: Table) -> Event:
        return DiscreteLaplace(self._scale(params, table), sum_sensitivity(table, 1, params.by))

    def statistic(self, params: HistogramParams, table: Table) -> GroupedSums:
        return GroupedSums(params.by, table.keys(params.by), *table.cut(params.by))

    def draw(self, params: HistogramParams, table: Table, answer: Answer, source: Source) -> Result:
        scale = self._scale(params, table)
        noise = discrete_laplace(scale, len(answer.keys), source)
        width = half_width(scale)
        return Result(
            tuple(
                Row(key, "count", int(n) + int(x), width)
                for key, n, x in zip(answer.keys, answer.rows, noise, strict=True)
            )
        )

    def error(self, params: HistogramParams, table: Table) -> ErrorBound:
        return ErrorBound({"count": half_width(self._scale(params, table))})


@hookimpl
def dpflow_register_mechanisms() -> list[Histogram]:
    return [Histogram()]
