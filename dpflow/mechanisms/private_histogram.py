"""Rows per key, where the keys themselves are private: noisy counts above a threshold.

Definition: each unit is cut to L0 groups and B rows per group, as
declared for the column. Every key in
the rows gets N_k + X_k with X_k discrete Laplace of scale D/epsilon, D = L0 B (2 L0 B under replace); it is released
when N_k + X_k >= tau, sorted by key. tau is the smallest integer with Pr[X >= tau - B] <= delta/L0.

Claim: (epsilon, delta)-DP for the declared unit. Proof. Let T' have the unit's rows and T not. Keys that only T' has are
at most L0, each with at most B rows, so one of them is released with probability at most delta. Given that none is,
outputs are those of the shared keys, on which counts move by at most D in L1, which costs epsilon. In the other
direction the factor 1 - delta of "none is released" is a difference of at most delta. Under replace each table may have
L0 keys of its own; the two deficits do not add: their maximum bounds the divergence.

When not to use it: for keys that are public anyway (`histogram` is pure and shows empty keys), or when most keys have
few units; what is below the threshold is lost.
"""

from __future__ import annotations

from decimal import Decimal, localcontext
from fractions import Fraction

from pydantic import field_validator

from dpflow.core.amounts import Delta, Epsilon
from dpflow.core.declaration import Table
from dpflow.core.events import Approximate, Event
from dpflow.core.mechanism import Mechanism, Params
from dpflow.core.noise import half_width, scale_for, sum_sensitivity
from dpflow.core.randomness import Source
from dpflow.core.results import ErrorBound, Result, Row
from dpflow.core.samplers import discrete_laplace
from dpflow.core.statistics import Answer, GroupedSums
from dpflow.hookspecs import hookimpl


class PrivateHistogramParams(Params):
    """``by``: the grouping column. ``epsilon``, ``delta``: the price; delta is the chance that a lone unit's key shows."""

    by: str
    epsilon: Epsilon
    delta: Delta

    @field_validator("delta")
    @classmethod
    def _positive(cls, value: Fraction) -> Fraction:
        if not value > 0:
            raise ValueError("private keys need a delta above 0, such as 1e-6")
        return value


def tail_above(scale: Fraction, failure: Fraction) -> int:
    """Smallest t >= 1 with Pr[X >= t] = q^t/(1+q) <= failure for discrete Laplace noise; rounded upwards."""
    with localcontext(prec=60):
        inverse = Decimal(scale.denominator) / Decimal(scale.numerator)
        q = (-inverse).exp()
        bound = (1 + q) * Decimal(failure.numerator) / Decimal(failure.denominator)
        # a relative slack of 1e-30 covers the rounding of every step above, always in favour of the unit
        need = -bound.ln() / inverse * (1 + Decimal("1e-30"))
        return max(1, int(need.to_integral_value(rounding="ROUND_CEILING")))


class PrivateHistogram(Mechanism[PrivateHistogramParams]):
    """Number of rows of the keys that many units share."""

    name = "private_histogram"
    summary = "number of rows by key, keys selected privately"
    citation = (
        "Korolova, Kenthapadi, Mishra, Ntoulas 2009 (releasing search queries); discrete noise, bound proved here"
    )
    Params = PrivateHistogramParams

    def _noise(self, params: PrivateHistogramParams, table: Table) -> tuple[Fraction, int]:
        """Scale and threshold."""
        table.column(params.by)
        scale = scale_for(sum_sensitivity(table, 1, params.by), params.epsilon)
        groups, rows = table.cut(params.by)
        return scale, rows + tail_above(scale, params.delta / groups)

    def event(self, params: PrivateHistogramParams, table: Table) -> Event:
        self._noise(params, table)
        return Approximate(params.epsilon, params.delta)

    def statistic(self, params: PrivateHistogramParams, table: Table) -> GroupedSums:
        return GroupedSums(params.by, None, *table.cut(params.by))

    def draw(self, params: PrivateHistogramParams, table: Table, answer: Answer, source: Source) -> Result:
        scale, threshold = self._noise(params, table)
        noisy = answer.rows + discrete_laplace(scale, len(answer.keys), source)
        width = half_width(scale)
        released = sorted((k, int(n)) for k, n in zip(answer.keys, noisy, strict=True) if n >= threshold)
        return Result(tuple(Row(key, "count", number, width) for key, number in released))

    def error(self, params: PrivateHistogramParams, table: Table) -> ErrorBound:
        scale, threshold = self._noise(params, table)
        note = f"noise only, for keys that are released; a key needs about {threshold} rows to be released"
        return ErrorBound({"count": half_width(scale)}, note)


@hookimpl
def dpflow_register_mechanisms() -> list[PrivateHistogram]:
    return [PrivateHistogram()]
