"""Estimates on every holdout group, each computed from that group's rows and nothing else.

One privacy unit sits in one group, so it may move one estimate. That holds only if nothing is
computed across groups. Predictions are made one group at a time, too, because a batch lets one row
that fails, or the blocking of a matrix product, reach all; all at once only where a row's prediction
is a fixed function of the row (`dpflow.engine.sessions.row_wise_models`). If one row of a batch fails,
its own group alone is estimated in another way (`dpflow.engine.sessions.row_scores`). Rows of a group
are put in the order of their values first: a sum of floats depends on the order, and the order in which
a table is scanned depends on rows of other groups.
Estimators that are functions of exact sums are added up in the database.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpflow.core.contract.declaration import Table
from dpflow.core.contract.estimators import Estimator, FromMoments, Rows, Subject
from dpflow.core.contract.requests import GroupEstimates, GroupMoments, GroupValues
from dpflow.engine.releases.grid_check import GridReader
from dpflow.engine.sessions.row_scores import copy_rows, order_rows, score_halves
from dpflow.errors import PlanRefused
from dpflow.tables.private import PrivateTable
from dpflow.tables.snapshot import SnapshotTable


def group_values(
    private: SnapshotTable,
    request: GroupValues,
    secret: bytes,
    blocks: Sequence[str],
    estimator: Estimator,
    subject: Subject,
    default: float,
    *,
    scores_rows_alone: bool = False,
) -> NDArray[np.float64]:
    """One estimate per group; an empty group, or one on which model or estimator fails, gets the
    default.

    Args:
        scores_rows_alone: whether what a candidate says of a row is a fixed function of that row.
    """
    sums = exact_sums(private, request, estimator)
    if sums is not None and estimator.moments is not None:
        return estimator.moments.estimate_groups(
            private.group_moments(sums, secret, blocks), default
        )
    groups, remembered, parts = _order_rows(private, request, secret, blocks)
    values = np.full(request.groups, default)
    if scores_rows_alone and estimator.row_scores is not None and parts:
        scores = np.full(len(groups), np.nan)
        score_halves(estimator, subject, remembered, [part for _, part in parts], scores)
        starts = [part.start for _, part in parts]
        # Each sum is a function of its own stretch alone.
        with np.errstate(all="ignore"):
            means = np.add.reduceat(scores, starts) / np.diff([*starts, len(groups)])
        values[[group for group, _ in parts]] = means
        # Without all scores of its rows a group is estimated from them, such as those it may leave out.
        parts = [(group, part) for group, part in parts if not np.isfinite(values[group])]
    ordered = copy_rows(remembered) if parts else {}
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
    *,
    predicts_rows_alone: bool = False,
) -> NDArray[np.float64]:
    """A user's expression on every group, over its rows and what a candidate says about them; NaN
    where that fails, or a row has no finite prediction: the expression might take that for a good one.

    Args:
        groups, rows: the group of each row, and its columns.
        predict: by the expression's names of the candidate's columns, what gives one number per row
        of a group.
        predicts_rows_alone: whether each number is a fixed function of its row.
    """
    groups, ordered, parts = order_rows(groups, rows, own.groups)
    predictions = {name: np.full(len(groups), np.nan) for name in predict}
    failed: list[int] = []
    if predicts_rows_alone and _predict_all(predict, ordered, predictions):
        parts = []
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
    silent = [groups[~np.isfinite(column)] for column in predictions.values()]
    values[np.concatenate([np.array(failed, dtype=np.intp), *silent])] = np.nan
    return values


def _predict_all(
    predict: Mapping[str, Callable[[Rows], Any]],
    rows: Mapping[str, NDArray[Any]],
    predictions: Mapping[str, NDArray[np.float64]],
) -> bool:
    """Fill in what a candidate says of all rows; False if a row fails, which must reach no other."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            for name, function in predict.items():
                numbers = np.asarray(function(rows), dtype=float)
                # A shorter array would be spread over rows of other groups.
                if numbers.shape != predictions[name].shape:
                    return False
                predictions[name][:] = numbers
        except Exception:  # noqa: BLE001  as in `_mean_by_group`
            return False
    return True


def _order_rows(
    private: SnapshotTable, request: GroupValues, secret: bytes, blocks: Sequence[str]
) -> tuple[NDArray[np.int64], dict[str, NDArray[Any]], list[tuple[int, slice]]]:
    """Rows by group, in each in the order of their values, and where the rows of every group that
    has some are.
    """

    def order() -> tuple[NDArray[np.int64], dict[str, NDArray[Any]], list[tuple[int, slice]]]:
        return order_rows(*private.grouped_rows(request, secret, blocks), request.groups)

    name = ("ordered groups", request.groups, request.columns, secret, tuple(blocks))
    return private.remember(name, order)


def find_worst(estimator: Estimator, span: tuple[float, float] | None, *, lower: bool) -> float:
    """What a row or group has on which a candidate or estimator fails: of a mean over rows the worst of its range, so that
    nobody gains by a row without a prediction.

    Args:
        lower: whether lower numbers are better.

    Raises `PlanRefused` for a mean over rows without a range.
    """
    if estimator.row_scores is None:
        return estimator.default
    if span is None:
        raise PlanRefused(
            f"{estimator.name} has no range, so nothing says what a row without a prediction counts; give the metric a range, "
            f"or name the default"
        )
    return span[1] if lower else span[0]


def clamp_numbers(
    estimator: Estimator, span: tuple[float, float], columns: Sequence[str], table: Table
) -> Estimator:
    """An estimator whose numbers, and of a mean over rows each score, are within a range, whatever it computes.

    A number that is not finite stays one, for there it fails.
    """
    scores, function, moments = estimator.row_scores, estimator.function, estimator.moments

    def clamp(numbers: Any) -> NDArray[np.float64]:
        numbers = np.asarray(numbers, dtype=float)
        clamped: NDArray[np.float64] = np.where(
            np.isfinite(numbers), np.clip(numbers, *span), np.nan
        )
        return clamped

    def clamp_scores(rows: Rows, subject: Subject) -> NDArray[np.float64]:
        assert scores is not None
        return clamp(scores(rows, subject))

    def clamp_estimate(rows: Rows, subject: Subject) -> float:
        value = function(rows, subject) if scores is None else clamp_scores(rows, subject).mean()
        return float(clamp(value))

    # Sums in the database are of scores that nothing has clamped.
    if moments is not None and (scores is None or _sums_stay_within(moments, span, columns, table)):
        sums = moments.function
        moments = replace(moments, function=lambda measures: clamp(sums(measures)))
    else:
        moments = None
    return replace(
        estimator,
        function=clamp_estimate,
        row_scores=None if scores is None else clamp_scores,
        range=span,
        moments=moments,
    )


def _sums_stay_within(
    moments: FromMoments, span: tuple[float, float], columns: Sequence[str], table: Table
) -> bool:
    """Whether a mean as a function of sums is in its range for each single row that the columns' bounds allow."""
    column = table.column(columns[0])
    if column.lower is None or column.upper is None:
        return False
    ends = [float(column.lower), float(column.upper)]
    row = {"n": np.ones(4), "x": np.repeat(ends, 2), "equal": np.array([0.0, 1.0, 0.0, 1.0])}
    if not row.keys() >= set(moments.measures):
        return False
    values = moments.estimate_groups(row, np.inf)
    return bool(((span[0] <= values) & (values <= span[1])).all())


def score_range(
    estimator: Estimator, options: Mapping[str, Fraction], columns: Sequence[str], table: Table
) -> tuple[float, float] | None:
    """[low, high] of an estimator's numbers with these options on these columns, if it has one."""
    span = estimator.find_range(options)
    if span != "column":
        return span
    column = table.column(columns[0])
    if column.lower is None or column.upper is None:
        return None
    return float(column.lower), float(column.upper)


def exact_sums(
    private: PrivateTable, request: GroupValues, estimator: Estimator
) -> GroupMoments | None:
    """The sums that an estimator is a function of, if the columns' bounds and grids let the database add them
    up exactly.
    """
    columns, table = request.columns[: estimator.columns], private.declaration
    grids = GridReader(private)
    if estimator.moments is None or any(grids.find_rounded(one, table) for one in columns):
        return None
    sums = GroupMoments(request.groups, columns, estimator.moments.measures)
    return sums if private.can_sum_exactly(sums) else None
