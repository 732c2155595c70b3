"""Mean of a bounded column, in total or per public key, as a noisy sum over a noisy count.

Definition: with c the middle of the declared bounds, S = sum of (x - c) in grid steps and N = number of values, both
after the contribution cut; S' = S + X and N' = N + Y with discrete Laplace X, Y, each paid by half of epsilon; the mean
is c + S'/max(N', 1), clamped to the bounds. Centring halves what one row can move.

Claim: epsilon-DP for the declared unit: two epsilon/2 discrete Laplace releases composed.

The error at 95 % is computed from the two noisy numbers alone (post-processing), each tail at 2.5 %; a group with too few
values for a bound gets the full width of the bounds.

When not to use it: for small groups, where a median or nothing at all is the honest answer.
"""

from __future__ import annotations

from fractions import Fraction

from dpflow.core.amounts import Epsilon
from dpflow.core.declaration import Table
from dpflow.core.events import Composed, DiscreteLaplace, Event
from dpflow.core.mechanism import Mechanism, Params
from dpflow.core.noise import half_width, scale_for, sum_sensitivity
from dpflow.core.randomness import Source
from dpflow.core.results import Result, Row
from dpflow.core.samplers import discrete_laplace
from dpflow.core.statistics import Answer, GroupedSums
from dpflow.hookspecs import hookimpl


class MeanParams(Params):
    """``column``: a bounded column. ``by``: a column with public keys, or nothing. ``epsilon``: the price of all means."""

    column: str
    epsilon: Epsilon
    by: str | None = None


class Mean(Mechanism[MeanParams]):
    """Mean of a bounded column."""

    name = "mean"
    summary = "mean of a bounded column, in total or by public key"
    citation = "Dwork, McSherry, Nissim, Smith 2006 (noisy sum over noisy count)"
    Params = MeanParams

    def _centre(self, params: MeanParams, table: Table) -> tuple[int, int]:
        """The centre and the largest distance from it, in grid steps."""
        low, high = table.bounded(params.column).grid()
        centre = (low + high) // 2
        return centre, max(high - centre, centre - low, 1)

    def _parts(self, params: MeanParams, table: Table) -> tuple[DiscreteLaplace, DiscreteLaplace]:
        """The events of sum and count."""
        half = params.epsilon / 2
        reach = self._centre(params, table)[1]
        sums = sum_sensitivity(table, reach, params.by)
        counts = sum_sensitivity(table, 1, params.by)
        return DiscreteLaplace(scale_for(sums, half), sums), DiscreteLaplace(scale_for(counts, half), counts)

    def event(self, params: MeanParams, table: Table) -> Event:
        return Composed(self._parts(params, table))

    def statistic(self, params: MeanParams, table: Table) -> GroupedSums:
        keys = None if params.by is None else table.keys(params.by)
        return GroupedSums(params.by, keys, *table.cut(params.by), ((params.column, self._centre(params, table)[0]),))

    def draw(self, params: MeanParams, table: Table, answer: Answer, source: Source) -> Result:
        of_sum, of_count = self._parts(params, table)
        size = len(answer.keys)
        noise = discrete_laplace(of_sum.scale, size, source), discrete_laplace(of_count.scale, size, source)
        sums = (int(s) + int(x) for s, x in zip(answer.sums[params.column], noise[0], strict=True))
        counts = (int(n) + int(x) for n, x in zip(answer.counts[params.column], noise[1], strict=True))
        tails = half_width(of_sum.scale, 0.025), half_width(of_count.scale, 0.025)
        parts = zip(answer.keys, sums, counts, strict=True)
        return Result(tuple(self._row(params, table, key, s, n, tails) for key, s, n in parts))

    def _row(self, params: MeanParams, table: Table, key: str, total: int, number: int, tails: tuple[int, int]) -> Row:
        """Post-process one group's two noisy integers."""
        column, (low, high) = table.bounded(params.column), table.bounded(params.column).grid()
        centre = self._centre(params, table)[0]
        number = max(number, 1)
        mean = min(max(centre + Fraction(total, number), Fraction(low)), Fraction(high))
        surely = number - tails[1]
        full = Fraction(high - low)
        # |S/N - S'/N'| <= (|S - S'| + |S'/N'| |N - N'|) / N, and N is at least N' minus its tail
        error = min(full, (tails[0] + abs(mean - centre) * tails[1]) / surely) if surely > 0 else full
        return Row(key, "mean", float(mean * column.step), float(error * column.step))


@hookimpl
def dpflow_register_mechanisms() -> list[Mean]:
    return [Mean()]
