"""Sums of bounded columns, in total or per public key, on their declared grids.

Definition: values are clamped to [lower, upper], rounded to the column's step and added up as
integers, after each unit is truncated to its contribution bounds; integer noise is added in steps,
and the result is multiplied by the step. `vector_sum` adds up several columns of the same rows.

Guarantee and error: `dpflow.core.toolbox.aggregate`. One row moves a sum by at most M = max(|lower|,
|upper|)/step steps. A vector of columns is charged by the columns' L1 sensitivities with Laplace
noise and by the squares of their L2 sensitivities with Gaussian noise: over d equal columns and g
groups noise grows as d g against the root of d g. The privacy cost is split over the columns so that the
expected squared length of the error, in the columns' own units, is least.

When not to use it: with bounds much wider than the values; the noise follows the bounds, not the
rows.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Annotated

from pydantic import Field

from dpflow.core.toolbox import budget_split
from dpflow.core.toolbox.aggregate import ColumnParams, MeasureMechanism, NoisyParams
from dpflow.core.toolbox.moments import Measure, Query, single_measure


class VectorSumParams(NoisyParams):
    """``columns``: different bounded columns. ``by``: a column with public keys, or nothing.
    ``epsilon``: the privacy cost of all sums together. ``delta``: allows Gaussian noise. ``noise``:
    laplace, gaussian or auto.
    """

    columns: Annotated[tuple[str, ...], Field(min_length=1, max_length=1000)]
    by: str | None = None


class Sum(MeasureMechanism[ColumnParams]):
    """Sum of a bounded column."""

    name = "sum"
    job = "one number"
    summary = "sum of a bounded column, in total or by public key"
    citation = "Dwork, McSherry, Nissim, Smith 2006; discrete form of Ghosh et al. 2009"

    def list_measures(self, params: ColumnParams) -> tuple[Measure, ...]:
        """One sum of the column."""
        return single_measure("sum", params.column)


class VectorSum(MeasureMechanism[VectorSumParams]):
    """Sums of several bounded columns."""

    name = "vector_sum"
    job = "one number"
    summary = "sums of several bounded columns, in total or by public key"
    citation = "Dwork, McSherry, Nissim, Smith 2006 (L1); Canonne, Kamath, Steinke 2020 (L2, discrete Gaussian)"

    def list_measures(self, params: VectorSumParams) -> tuple[Measure, ...]:
        """One sum for each different column."""
        return tuple(single_measure("sum", column)[0] for column in dict.fromkeys(params.columns))

    def measure_label(self, measure: Measure) -> str:
        """The sum with its column, since there are several."""
        return measure.full_name

    def split_budget(self, query: Query, power: int) -> list[Fraction]:
        """With errors s_j p_j^(-1/power), the sum of their squares is least for p_j proportional to
        s_j^(2/(1 + 2/power)).
        """
        # Columns have units of their own, so errors are compared after their steps.
        sizes = (
            query.sensitivity(moment).noise_norm(power) * query.columns[moment[1]].step
            for moment in query.moments
        )
        weights = [size ** (2 * power / (power + 2)) for size in sizes]
        # Normalised here, because round_shares expects parts of 1.
        return budget_split.round_shares([one / sum(weights) for one in weights])
