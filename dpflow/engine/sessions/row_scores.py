"""Scores of rows that are the same, bit for bit, whatever other rows are scored with them.

Rows lie by unit or group, one part behind the other. All are scored at once. If a row fails, each half
is scored by itself, and so on: only the part of that row has no scores, and no other part's change.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpflow.core.contract.estimators import Estimator, Subject


def copy_rows(rows: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Rows for one who may write into them; the next one gets others."""
    return {name: column.copy() for name, column in rows.items()}


def order_rows(
    groups: NDArray[np.int64], rows: Mapping[str, NDArray[Any]], count: int
) -> tuple[NDArray[np.int64], dict[str, NDArray[Any]], list[tuple[int, slice]]]:
    """Rows by group, in each in the order of their values, and where the rows of every group that has
    some are. A sum of floats depends on the order.

    Args:
        groups: the group of each row, from 0 to ``count`` - 1.
    """
    # By value, not by position: where a row is stored depends on rows of other groups.
    order = np.lexsort([*(_sort_key(column) for column in rows.values()), groups])
    starts = np.searchsorted(groups[order], np.arange(count + 1))
    parts = [
        (int(group), slice(starts[group], starts[group + 1]))
        for group in np.flatnonzero(np.diff(starts))
    ]
    return groups[order], {name: values[order] for name, values in rows.items()}, parts


def score_halves(
    estimator: Estimator,
    subject: Subject,
    rows: Mapping[str, NDArray[Any]],
    parts: Sequence[slice],
    scores: NDArray[np.float64],
) -> None:
    """Fill in the scores of rows in these parts, which lie one behind the other; a part that fails
    alone keeps what it has.
    """
    if not parts:
        return
    whole = slice(parts[0].start, parts[-1].stop)
    if score_part(estimator, subject, rows, whole, scores) or len(parts) == 1:
        return
    middle = len(parts) // 2
    score_halves(estimator, subject, rows, parts[:middle], scores)
    score_halves(estimator, subject, rows, parts[middle:], scores)


def score_part(
    estimator: Estimator,
    subject: Subject,
    rows: Mapping[str, NDArray[Any]],
    part: slice,
    scores: NDArray[np.float64],
) -> bool:
    """Fill in the scores of these rows; False, and they stay as they were, if that fails."""
    assert estimator.row_scores is not None
    mine = copy_rows({name: column[part] for name, column in rows.items()})
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        # A warning about one part's rows is a message about them.
        warnings.simplefilter("ignore")
        # Any failure may depend on a row, so it is mapped, not shown.
        try:
            row_scores = np.asarray(estimator.row_scores(mine, subject), dtype=float)
            # A shorter array would be spread over rows, among them those of other parts.
            if row_scores.shape != scores[part].shape:
                raise ValueError("not one score for each row")
            scores[part] = row_scores
        except Exception:  # noqa: BLE001
            return False
    return True


def _sort_key(column: NDArray[Any]) -> NDArray[Any]:
    """The column, or for texts their places in sorted order, missing ones last."""
    if column.dtype != object:
        return column
    ranks = {text: i for i, text in enumerate(sorted({v for v in column if v is not None}))}
    return np.array([ranks.get(v, len(ranks)) for v in column], dtype=np.int64)
