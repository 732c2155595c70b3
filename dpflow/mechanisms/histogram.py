"""Rows per public key.

Definition: for every declared key k, N_k + X_k, after each unit is truncated to its declared groups
and rows per group. Keys that no row has appear with noise around zero; other values are ignored. It
is `count` with a grouping column that must be there.

Guarantee and error: `dpflow.core.toolbox.aggregate`. The vector moves by groups x rows_per_group in
L1 and by the root of groups times rows_per_group in L2, so Gaussian noise is smaller where a unit
reaches many groups; give a delta and the plan compares.

When not to use it: when the list of keys is itself learnt from the rows; `private_histogram`
selects keys privately.
"""

from __future__ import annotations

from dpflow.core.toolbox.aggregate import MeasureMechanism, NoisyParams
from dpflow.core.toolbox.moments import Measure, single_measure


class HistogramParams(NoisyParams):
    """``by``: a column with public keys. ``epsilon``: the privacy cost of all keys together.
    ``delta``: allows Gaussian noise. ``noise``: laplace, gaussian or auto.
    """

    by: str


class Histogram(MeasureMechanism[HistogramParams]):
    """Number of rows of every public key."""

    name = "histogram"
    job = "groups"
    summary = "number of rows of every public key"
    citation = "Dwork, McSherry, Nissim, Smith 2006 (calibrating noise to sensitivity); discrete form of Ghosh et al. 2009"

    def list_measures(self, params: HistogramParams) -> tuple[Measure, ...]:
        """One count of rows for each public key."""
        return single_measure("count")
