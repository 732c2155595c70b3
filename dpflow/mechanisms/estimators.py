"""Built-in holdout estimators: functions of one group's rows and the candidate's predictions.

The predictor is a callable from a mapping of feature arrays to an array of predictions; ``label`` is the column that a
candidate predicts. An estimator sees one group at a time: anything fitted across groups would break the gate's claim.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dpflow.core.estimators import Estimator, Rows
from dpflow.hookspecs import hookimpl


def _labels_and_predictions(rows: Rows, predictor: Any) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    features = {name: values for name, values in rows.items() if name != predictor.label}
    return np.asarray(rows[predictor.label]), np.asarray(predictor.predict(features))


def _accuracy(rows: Rows, predictor: Any) -> float:
    labels, predictions = _labels_and_predictions(rows, predictor)
    return float(np.mean(labels == predictions))


@hookimpl
def dpflow_register_estimators() -> list[Estimator]:
    return [Estimator("accuracy", "share of right predictions in a group", 0.0, _accuracy)]
