"""Estimates on every holdout group, each computed from that group's rows and nothing else.

One unit sits in one group, so it may move one estimate. That holds only if nothing is computed across groups: predictions
are made one group at a time too, because a batch lets one row that fails, or the blocking of a matrix product, reach all.
Rows of a group are put in the order of their values first: a sum of floats depends on the order, and the order in which a
table is scanned depends on rows of other groups. Estimators that are functions of exact sums are added up in the database.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpflow.core.estimators import Estimator, Subject
from dpflow.core.statistics import GroupMoments, GroupValues
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
    sums = summed(private, request, estimator)
    if sums is not None and estimator.moments is not None:
        return estimator.moments.values(private.group_moments(sums, secret, blocks), default)
    groups, rows = private.grouped_rows(request, secret, blocks)
    order = np.lexsort([*(_sortable(column) for column in rows.values()), groups])
    starts = np.searchsorted(groups[order], np.arange(request.groups + 1))
    ordered = {name: values[order] for name, values in rows.items()}
    values = np.full(request.groups, default)
    for group in np.flatnonzero(np.diff(starts)):
        part = slice(starts[group], starts[group + 1])
        values[group] = estimator.value({name: column[part] for name, column in ordered.items()}, subject, default)
    return values


def summed(private: PrivateTable, request: GroupValues, estimator: Estimator) -> GroupMoments | None:
    """The sums that an estimator is a function of, if the columns' bounds let the database add them up exactly."""
    if estimator.moments is None:
        return None
    sums = GroupMoments(request.groups, request.columns[: estimator.columns], estimator.moments.measures)
    return sums if private.sums_exactly(sums) else None


def _sortable(column: NDArray[Any]) -> NDArray[Any]:
    """The column, or for texts their places in sorted order, missing ones last."""
    if column.dtype != object:
        return column
    places = {text: i for i, text in enumerate(sorted({v for v in column if v is not None}))}
    return np.array([places.get(v, len(places)) for v in column], dtype=np.int64)
