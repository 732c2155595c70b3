"""One score for every privacy unit, each computed from that unit's rows and nothing else.

A unit's score is the mean of its rows' scores, so a unit of many rows moves a sum of scores no further
than one of a single row. Rows are scored all together where a row's score is a fixed function of the
row (`scores_rows_alone`), and unit by unit elsewhere: in a batch of a matrix product a row may reach
the last digit of another row's score.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpflow.core.contract.declaration import Table
from dpflow.core.contract.estimators import Estimator, Subject
from dpflow.engine.sessions.row_scores import order_rows, score_halves, score_part
from dpflow.errors import PlanRefused
from dpflow.tables.snapshot import SnapshotTable

#: Scores of rows are rounded to this part of their range, and added up as integers: a sum of floats
#: depends on the order.
ROW_SCORE_STEPS = 2**30


def require_row_scores(estimator: Estimator, span: tuple[float, float] | None) -> None:
    """Raises `PlanRefused` unless a metric is the mean of bounded scores of rows."""
    if estimator.row_scores is None:
        pairs = ""
        if estimator.pair_scores is not None:
            pairs = f"without noise metric: {{estimator: {estimator.name}, label: COLUMN}}, "
        raise PlanRefused(
            f"{estimator.name} is no mean of scores of rows, so no mean of units says what it is; use accuracy, log_loss, "
            f"another mean or SQL, {pairs}or the gate reusable_holdout, which takes any estimator"
        )
    if span is None:
        raise PlanRefused(
            f"{estimator.name} has no range, so one unit may decide everything; give the metric range: [low, high]"
        )


def require_pair_scores(estimator: Estimator, table: Table) -> None:
    """Raises `PlanRefused` unless a metric is a mean over pairs of rows, and rows are compared without noise."""
    if estimator.pair_scores is None:
        raise PlanRefused(
            f"{estimator.name} is no metric of pairs of rows, which label is for; leave label out of the metric"
        )
    if not table.generalisation_only:
        raise PlanRefused(
            f"pairs of rows are compared without noise, and table {table.name!r} is not declared generalisation_only"
        )


def mean_shares(
    private: SnapshotTable,
    columns: Sequence[str],
    needed: Sequence[str],
    blocks: Sequence[str],
    estimator: Estimator,
    subject: Subject,
    span: tuple[float, float],
    default: float,
    *,
    scores_rows_alone: bool,
) -> NDArray[np.float64]:
    """Where in its range each unit's mean score is; NaN for a unit that is left out.

    Args:
        columns: what is read.
        needed: those without whose value an estimator leaves a row out; none if it fails on it.
        default: the score of a row on which model or estimator fails.
        scores_rows_alone: whether a row's score is a fixed function of that row.
    """
    codes, scores, count = _score_rows(
        private, columns, needed, blocks, estimator, subject, scores_rows_alone=scores_rows_alone
    )
    scores = np.where(np.isfinite(scores), scores, default)
    return _mean_by_unit(codes, scores, span, count)


def pair_scores(
    private: SnapshotTable,
    columns: Sequence[str],
    blocks: Sequence[str],
    estimator: Estimator,
    subject: Subject,
    *,
    scores_rows_alone: bool,
) -> NDArray[np.float64]:
    """Each unit's score in a metric of pairs; NaN where model or estimator gives no finite number. Of
    several rows of a unit any one counts.
    """
    of_rows = replace(estimator, row_scores=estimator.pair_scores)
    codes, scores, count = _score_rows(
        private, columns, (), blocks, of_rows, subject, scores_rows_alone=scores_rows_alone
    )
    values: NDArray[np.float64] = np.full(count, np.nan)
    values[codes] = np.where(np.isfinite(scores), scores, np.nan)
    return values


def read_labels(
    private: SnapshotTable, label: str, blocks: Sequence[str]
) -> tuple[NDArray[np.bool_], bool]:
    """Whether each unit's label is 1, and whether each unit has one row."""
    units, rows = private.unit_rows((label,), blocks)
    labels = np.zeros(int(units.max()) + 1 if len(units) else 0, dtype=bool)
    labels[units[np.asarray(rows[label] == 1)]] = True
    return labels, len(labels) == len(units)


def _score_rows(
    private: SnapshotTable,
    columns: Sequence[str],
    needed: Sequence[str],
    blocks: Sequence[str],
    estimator: Estimator,
    subject: Subject,
    *,
    scores_rows_alone: bool,
) -> tuple[NDArray[np.int64], NDArray[np.float64], int]:
    """The unit and the score of each complete row, NaN where that fails, and how many units there are."""
    units, rows = private.unit_rows(columns, blocks)
    count = int(units.max()) + 1 if len(units) else 0
    complete = np.ones(len(units), dtype=bool)
    for name in needed:
        complete &= _has_value(rows[name])
    complete_rows = _select_rows(rows, complete)
    codes, scores = units[complete], np.full(int(complete.sum()), np.nan)
    # Neither order nor company matters to a row that is scored alone.
    whole = slice(0, len(codes))
    if not (scores_rows_alone and score_part(estimator, subject, complete_rows, whole, scores)):
        order = ("ordered units", tuple(columns), tuple(needed), tuple(blocks))
        codes, ordered, parts = private.remember(
            order, lambda: order_rows(units[complete], _select_rows(rows, complete), count)
        )
        slices = [part for _, part in parts]
        if scores_rows_alone:
            score_halves(estimator, subject, ordered, slices, scores)
        else:
            for part in slices:
                score_part(estimator, subject, ordered, part, scores)
    return codes, scores, count


def _select_rows(
    rows: Mapping[str, NDArray[Any]], complete: NDArray[np.bool_]
) -> dict[str, NDArray[Any]]:
    return {name: column[complete] for name, column in rows.items()}


def _has_value(column: NDArray[Any]) -> NDArray[np.bool_]:
    """Whether each row has one. A text is a value, whatever it says."""
    if column.dtype == object:
        return np.array([value is not None for value in column], dtype=bool)
    present: NDArray[np.bool_] = ~np.isnan(column)
    return present


def _mean_by_unit(
    codes: NDArray[np.int64], scores: NDArray[np.float64], span: tuple[float, float], count: int
) -> NDArray[np.float64]:
    low, high = span
    shares = (np.clip(scores, low, high) - low) / (high - low)
    numbers = np.bincount(codes, minlength=count)
    # 64 bits hold eight thousand million rows of one unit.
    whole = np.rint(shares * ROW_SCORE_STEPS).astype(np.int64)
    sums = np.zeros(count, dtype=np.int64)
    np.add.at(sums, codes, whole)
    means: NDArray[np.float64] = np.full(count, np.nan)
    present = numbers > 0
    means[present] = sums[present] / (numbers[present] * float(ROW_SCORE_STEPS))
    return means


def share_values(values: NDArray[np.float64], span: tuple[float, float]) -> NDArray[np.float64]:
    """Where in its range each number is."""
    low, high = span
    shares: NDArray[np.float64] = (np.clip(values, low, high) - low) / (high - low)
    return shares
