"""Scores of a candidate on every holdout group, each computed from that group's rows and nothing else.

One unit sits in one group, so it may move one score. That holds only if nothing is computed across groups: predictions
are made one group at a time too, because a batch lets one row that fails, or the blocking of a matrix product, reach all.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dpflow.core.estimators import Estimator
from dpflow.core.statistics import GroupValues
from dpflow.engine.candidate import Candidate
from dpflow.tables import PrivateTable


def group_values(
    private: PrivateTable, request: GroupValues, secret: bytes, estimator: Estimator, candidate: Candidate
) -> NDArray[np.float64]:
    """One estimate per group; a group on which model or estimator fails gets the estimator's default."""
    groups, rows = private.grouped_rows(request, secret)
    order = np.argsort(groups, kind="stable")
    starts = np.searchsorted(groups[order], np.arange(request.groups + 1))
    sorted_rows = {name: values[order] for name, values in rows.items()}
    values = np.full(request.groups, estimator.default)
    for group in np.flatnonzero(np.diff(starts)):
        part = slice(starts[group], starts[group + 1])
        values[group] = estimator.value({name: column[part] for name, column in sorted_rows.items()}, candidate)
    return values
