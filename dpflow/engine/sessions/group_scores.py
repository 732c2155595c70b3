"""Estimates on every holdout group, each computed from that group's rows and nothing else.

One privacy unit sits in one group, so it may move one estimate. That holds only if nothing is
computed across groups: predictions are made one group at a time too, because a batch lets one row
that fails, or the blocking of a matrix product, reach all. Rows of a group are put in the order of
their values first: a sum of floats depends on the order, and the order in which a table is scanned
depends on rows of other groups. Estimators that are functions of exact sums are added up in the
database.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpflow.core.contract.declaration import Table
from dpflow.core.contract.estimators import Estimator, Metric, Rows, Subject
from dpflow.core.contract.requests import GroupEstimates, GroupMoments, GroupValues
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
    """One estimate per group; an empty group, or one on which model or estimator fails, gets the
    default.
    """
    sums = exact_sums(private, request, estimator)
    if sums is not None and estimator.moments is not None:
        return estimator.moments.estimate_groups(
            private.group_moments(sums, secret, blocks), default
        )
    _, ordered, parts = _order_rows(private, request, secret, blocks)
    values = np.full(request.groups, default)
    for group, part in parts:
        values[group] = estimator.estimate_group(
            {name: column[part] for name, column in ordered.items()}, subject, default
        )
    return values


def predicted_values(
    private: PrivateTable,
    groups: NDArray[np.int64],
    rows: Mapping[str, NDArray[Any]],
    own: GroupEstimates,
    predict: Mapping[str, Callable[[Rows], Any]],
) -> NDArray[np.float64]:
    """A user's expression on every group, over its rows and what a candidate says about them; NaN
    where that fails.

    Args:
        groups, rows: the group of each row, and its columns.
        predict: by the expression's names of the candidate's columns, what gives one number per row
        of a group.
    """
    groups, ordered, parts = order_rows(groups, rows, own.groups)
    predictions = {name: np.full(len(groups), np.nan) for name in predict}
    failed = []
    for group, part in parts:
        mine = {name: column[part] for name, column in ordered.items()}
        try:
            with warnings.catch_warnings():
                # A warning about one group's rows is a message about them.
                warnings.simplefilter("ignore")
                for name, function in predict.items():
                    predictions[name][part] = np.asarray(function(mine), dtype=float)
        # Any failure may depend on a row, so it is mapped, not shown. Retryable ones, too: the
        # function is the analyst's.
        except Exception:  # noqa: BLE001
            failed.append(group)
    values = private.estimates_over(own, groups, {**ordered, **predictions})
    values[np.array(failed, dtype=np.intp)] = np.nan
    return values


def _order_rows(
    private: PrivateTable, request: GroupValues, secret: bytes, blocks: Sequence[str]
) -> tuple[NDArray[np.int64], dict[str, NDArray[Any]], list[tuple[int, slice]]]:
    """Rows by group, in each in the order of their values, and where the rows of every group that
    has some are.
    """
    return order_rows(*private.grouped_rows(request, secret, blocks), request.groups)


def order_rows(
    groups: NDArray[np.int64], rows: Mapping[str, NDArray[Any]], count: int
) -> tuple[NDArray[np.int64], dict[str, NDArray[Any]], list[tuple[int, slice]]]:
    """The same of rows that were read, of so many groups."""
    # By value, not by position: where a row is stored depends on rows of other groups.
    order = np.lexsort([*(_sort_key(column) for column in rows.values()), groups])
    starts = np.searchsorted(groups[order], np.arange(count + 1))
    parts = [
        (int(group), slice(starts[group], starts[group + 1]))
        for group in np.flatnonzero(np.diff(starts))
    ]
    return groups[order], {name: values[order] for name, values in rows.items()}, parts


def fix_range(estimator: Estimator, metric: Metric) -> tuple[Estimator, float]:
    """An estimator within the range of a metric, and what a group has on which it fails."""
    default = estimator.default if metric.default is None else float(metric.default)
    if metric.range is None:
        return estimator, default
    low, high = map(float, metric.range)
    scores, function = estimator.row_scores, estimator.function

    def clamp_scores(rows: Rows, subject: Subject) -> NDArray[np.float64]:
        assert scores is not None
        return np.clip(scores(rows, subject), low, high)

    def clamp_estimate(rows: Rows, subject: Subject) -> float:
        value = function(rows, subject) if scores is None else clamp_scores(rows, subject).mean()
        return float(np.clip(value, low, high))

    # Sums in the database are of values that no range has clamped.
    within = replace(
        estimator,
        function=clamp_estimate,
        row_scores=None if scores is None else clamp_scores,
        range=(low, high),
        moments=None,
    )
    return within, min(max(default, low), high)


def score_range(
    estimator: Estimator, columns: Sequence[str], table: Table
) -> tuple[float, float] | None:
    """[low, high] of an estimator's numbers on these columns, if it has one."""
    if estimator.range != "column":
        return estimator.range
    column = table.column(columns[0])
    if column.lower is None or column.upper is None:
        return None
    return float(column.lower), float(column.upper)


def exact_sums(
    private: PrivateTable, request: GroupValues, estimator: Estimator
) -> GroupMoments | None:
    """The sums that an estimator is a function of, if the columns' bounds let the database add them
    up exactly.
    """
    if estimator.moments is None:
        return None
    sums = GroupMoments(
        request.groups, request.columns[: estimator.columns], estimator.moments.measures
    )
    return sums if private.can_sum_exactly(sums) else None


def _sort_key(column: NDArray[Any]) -> NDArray[Any]:
    """The column, or for texts their places in sorted order, missing ones last."""
    if column.dtype != object:
        return column
    ranks = {text: i for i, text in enumerate(sorted({v for v in column if v is not None}))}
    return np.array([ranks.get(v, len(ranks)) for v in column], dtype=np.int64)
