"""Scores of a candidate on every holdout group: rows are read and predicted once, then scored one group at a time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpflow.core.estimators import Estimator
from dpflow.core.statistics import GroupValues
from dpflow.engine.candidate import Candidate
from dpflow.tables import PrivateTable


class _Predicted:
    """A predictor whose predictions were made beforehand; an estimator sees one group's share of them."""

    def __init__(self, label: str) -> None:
        self.label = label

    def predict(self, features: Mapping[str, Any]) -> Any:
        """The prepared predictions of this group."""
        return features["prediction"]


def group_values(
    private: PrivateTable, request: GroupValues, secret: bytes, estimator: Estimator, candidate: Candidate
) -> NDArray[np.float64]:
    """One estimate per group. A model or estimator that fails gives the estimator's default, never an error."""
    groups, rows = private.grouped_rows(request, secret)
    try:
        predictions = np.asarray(candidate.predict({name: rows[name] for name in candidate.submission.features}))
        usable = len(predictions) == len(groups)
    except Exception:  # noqa: BLE001  may depend on a row; a model that fails has no score
        usable = False
    if not usable:
        return np.full(request.groups, estimator.default)
    order = np.argsort(groups, kind="stable")
    starts = np.searchsorted(groups[order], np.arange(request.groups + 1))
    labels, predictions = rows[candidate.label][order], predictions[order]
    predictor = _Predicted(candidate.label)
    values = np.empty(request.groups)
    for group in range(request.groups):
        part = slice(starts[group], starts[group + 1])
        values[group] = estimator.value({candidate.label: labels[part], "prediction": predictions[part]}, predictor)
    return values
