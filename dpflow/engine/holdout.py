"""Estimates on every holdout group, each computed from that group's rows and nothing else.

One unit sits in one group, so it may move one estimate. That holds only if nothing is computed across groups: predictions
are made one group at a time too, because a batch lets one row that fails, or the blocking of a matrix product, reach all.
Rows of a group are put in the order of their values first: a sum of floats depends on the order, and the order in which a
table is scanned depends on rows of other groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpflow.core.estimators import Estimator, Subject
from dpflow.core.statistics import GroupValues
from dpflow.tables import PrivateTable


def group_values(
    private: PrivateTable,
    request: GroupValues,
    secret: bytes,
    blocks: Sequence[str],
    estimator: Estimator,
    subject: Subject,
    default: float,
) -> NDArray[np.float64]:
    """One estimate per group; an empty group, or one on which model or estimator fails, gets the default."""
    groups, rows = private.grouped_rows(request, secret, blocks)
    order = np.lexsort([*(_sortable(column) for column in rows.values()), groups])
    starts = np.searchsorted(groups[order], np.arange(request.groups + 1))
    ordered = {name: values[order] for name, values in rows.items()}
    values = np.full(request.groups, default)
    for group in np.flatnonzero(np.diff(starts)):
        part = slice(starts[group], starts[group + 1])
        values[group] = estimator.value({name: column[part] for name, column in ordered.items()}, subject, default)
    return values


def _sortable(column: NDArray[Any]) -> NDArray[Any]:
    """The column, or for texts their places in sorted order, missing ones last."""
    if column.dtype != object:
        return column
    places = {text: i for i, text in enumerate(sorted({v for v in column if v is not None}))}
    return np.array([places.get(v, len(places)) for v in column], dtype=np.int64)
