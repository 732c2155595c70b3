"""Mean, variance and standard deviation of a bounded column, in total or per public key.

Definition: from the noisy number, sum and (for the latter two) sum of squares of values around the
middle of the bounds, all exact integers on the declared grid; see `dpflow.core.toolbox.moments`.
Results are clamped to what bounded values can have. Variance divides by the number of values.

Guarantee: `dpflow.core.toolbox.aggregate`: two moments for a mean, three for the others, composed;
each gets about the same part of epsilon.

Error: computed from the noisy numbers (post-processing), because it shrinks with the group; a group
with too few values for a bound gets the full width of what is possible. Squares of a column whose
bounds are more than 2,047 steps from their middle are rounded, each to about 2^-22 of the largest; the
half-width includes that.

When not to use it: for small groups, where a median or nothing at all is the honest answer; a
standard deviation near 0 has an error near the root of the variance's, which is large.
"""

from __future__ import annotations

from dpflow.core.toolbox.aggregate import ColumnParams, MeasureMechanism
from dpflow.core.toolbox.moments import Measure, single_measure


class Mean(MeasureMechanism[ColumnParams]):
    """Mean of a bounded column."""

    name = "mean"
    job = "one number"
    summary = "mean of a bounded column, in total or by public key"
    citation = "Dwork, McSherry, Nissim, Smith 2006 (noisy sum over noisy count)"

    def list_measures(self, params: ColumnParams) -> tuple[Measure, ...]:
        """One moment-based measure of the column, named like the mechanism."""
        return single_measure(self.name, params.column)


# Three names for one calculation: the measure is the mechanism's own name.
class Variance(Mean):
    """Variance of a bounded column."""

    name = "variance"
    job = "one number"
    summary = "variance of a bounded column, in total or by public key"
    citation = "Dwork, McSherry, Nissim, Smith 2006 (noisy moments); centred squares: bound proved in dpflow.core.toolbox.moments"


class StandardDeviation(Mean):
    """Standard deviation of a bounded column."""

    name = "standard_deviation"
    job = "one number"
    summary = "standard deviation of a bounded column, in total or by public key"
    citation = Variance.citation
