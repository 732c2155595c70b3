"""Rows, or units, of a table: in total or per public key.

Definition: the number of rows after each unit is truncated to its contribution bounds, or the
number of units that have any, plus integer noise.

Guarantee and error: `dpflow.core.toolbox.aggregate`. In total a unit moves the rows by at most
``contribution_bounds.rows`` and the units by 1; per key it moves its declared groups by
``rows_per_group`` rows, or by 1. Where a declaration protects a unit's rows of one block, rows are
truncated in every block that is read; units are counted in one block, or by block.

When not to use it: for keys that are themselves learnt from the rows (`private_histogram` selects
them privately).
"""

from __future__ import annotations

from dpflow.core.toolbox.aggregate import MeasureMechanism, NoisyParams
from dpflow.core.toolbox.moments import Measure, single_measure


class CountParams(NoisyParams):
    """``by``: a column with public keys, or nothing. ``epsilon``: the privacy cost of all counts
    together. ``delta``: allows Gaussian noise. ``noise``: laplace, gaussian or auto.
    """

    by: str | None = None


class Count(MeasureMechanism[CountParams]):
    """Number of rows."""

    name = "count"
    job = "one number"
    summary = "number of rows, in total or by public key"
    citation = (
        "Ghosh, Roughgarden, Sundararajan 2009 (universally utility-maximizing privacy mechanisms)"
    )

    def list_measures(self, params: CountParams) -> tuple[Measure, ...]:
        """One count of rows."""
        return single_measure("count")


class CountDistinct(MeasureMechanism[CountParams]):
    """Number of units."""

    name = "count_distinct"
    job = "one number"
    summary = "number of distinct units, in total or by public key"
    citation = (
        "Ghosh, Roughgarden, Sundararajan 2009 (universally utility-maximizing privacy mechanisms)"
    )

    def list_measures(self, params: CountParams) -> tuple[Measure, ...]:
        """One count of privacy units."""
        return single_measure("count_distinct")
