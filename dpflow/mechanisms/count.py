"""Rows of a table, with discrete Laplace noise.

Definition: N + X, where N is the number of rows after each unit is cut to ``limits.rows`` rows and X is discrete Laplace
of scale D/epsilon.

Claim: epsilon-DP (a pure guarantee with the discrete Laplace's Renyi curve) for the declared unit. A unit adds between 0
and ``rows`` rows, so D = rows under add-remove and under replace alike.

When not to use it: by group, where `histogram` spends once for all groups; for units instead of rows declare
``limits.rows: 1``.
"""

from __future__ import annotations

from dpflow.core.amounts import Epsilon
from dpflow.core.declaration import Table
from dpflow.core.events import DiscreteLaplace, Event
from dpflow.core.mechanism import Mechanism, Params
from dpflow.core.noise import half_width, scale_for
from dpflow.core.randomness import Source
from dpflow.core.results import ErrorBound, Result, Row
from dpflow.core.samplers import discrete_laplace
from dpflow.core.statistics import Answer, GroupedSums
from dpflow.hookspecs import hookimpl


class CountParams(Params):
    """``epsilon``: the price."""

    epsilon: Epsilon


class Count(Mechanism[CountParams]):
    """Number of rows."""

    name = "count"
    summary = "number of rows"
    citation = "Ghosh, Roughgarden, Sundararajan 2009 (universally utility-maximizing privacy mechanisms)"
    Params = CountParams

    def event(self, params: CountParams, table: Table) -> Event:
        return DiscreteLaplace(scale_for(table.limits.rows, params.epsilon), table.limits.rows)

    def statistic(self, params: CountParams, table: Table) -> GroupedSums:
        return GroupedSums(rows_per_group=table.limits.rows)

    def draw(self, params: CountParams, table: Table, answer: Answer, source: Source) -> Result:
        scale = scale_for(table.limits.rows, params.epsilon)
        noisy = int(answer.rows[0]) + int(discrete_laplace(scale, 1, source)[0])
        return Result((Row("", "count", noisy, half_width(scale)),))

    def error(self, params: CountParams, table: Table) -> ErrorBound:
        return ErrorBound({"count": half_width(scale_for(table.limits.rows, params.epsilon))})


@hookimpl
def dpflow_register_mechanisms() -> list[Count]:
    return [Count()]
