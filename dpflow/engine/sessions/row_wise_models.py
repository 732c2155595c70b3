"""Models that predict a row the same, bit for bit, whatever other rows are in the batch.

========================  ==================================================================================
a tree                    compares numbers of the row
a forest of one job       adds up the row's votes in the order of its trees
a linear model            our sum of products, one feature after the other, in every row the same
scaling, then a model     subtracts and divides number by number
========================  ==================================================================================

scikit-learn's own product of matrices does not: the blocking depends on the number of rows, and with it
a row's last digit. Nor do jobs that add up in whatever order they end.

Each is built from a fitted model's numbers, whose shapes are checked. A file may hold any: means of as
many rows as a holdout has would be subtracted from that many rows only, and one person more would
change every score.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpflow.engine.sessions.model_parts import is_tree

_TREES = tuple(
    f"sklearn.tree._classes.{kind}Tree{task}"
    for kind in ("Decision", "Extra")
    for task in ("Classifier", "Regressor")
)
_FORESTS = tuple(
    f"sklearn.ensemble._forest.{kind}{task}"
    for kind in ("RandomForest", "ExtraTrees")
    for task in ("Classifier", "Regressor")
)
#: Linear models with one output, by the method in which the product of matrices is.
_LINEAR = {
    "sklearn.linear_model._logistic.LogisticRegression": "decision_function",
    "sklearn.linear_model._ridge.RidgeClassifier": "decision_function",
    "sklearn.linear_model._stochastic_gradient.SGDClassifier": "decision_function",
    "sklearn.linear_model._base.LinearRegression": "_decision_function",
    "sklearn.linear_model._ridge.Ridge": "_decision_function",
    "sklearn.linear_model._coordinate_descent.Lasso": "_decision_function",
    "sklearn.linear_model._coordinate_descent.ElasticNet": "_decision_function",
}
#: By scaler, what it does if so, and the numbers that it then has for each feature.
_SCALERS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "sklearn.preprocessing._data.StandardScaler": {
        "with_mean": ("mean_",),
        "with_std": ("scale_",),
    },
    "sklearn.preprocessing._data.MinMaxScaler": {"": ("scale_", "min_")},
    "sklearn.preprocessing._data.MaxAbsScaler": {"": ("scale_",)},
    "sklearn.preprocessing._data.RobustScaler": {
        "with_centering": ("center_",),
        "with_scaling": ("scale_",),
    },
}
_PIPELINE = "sklearn.pipeline.Pipeline"


def make_row_wise(model: Any) -> Any | None:
    """The model as one that predicts each row alone, whatever the batch; None if there is no such one.

    Args:
        model: a fitted estimator of scikit-learn.
    """
    # Anything can be in a file's attributes; then scikit-learn is asked group by group.
    try:
        return _make(model)
    except Exception:  # noqa: BLE001
        return None


class _NotRowWise(Exception):
    """No kind of model or no number that is known to make a row-wise one."""


def _require(condition: bool) -> None:
    if not condition:
        raise _NotRowWise


def _make(model: Any) -> Any:
    name = f"{type(model).__module__}.{type(model).__qualname__}"
    if name in _TREES:
        return _make_tree(model)
    if name in _FORESTS:
        return _make_forest(model)
    if name in _LINEAR:
        return _make_linear(model, _LINEAR[name])
    _require(name == _PIPELINE)
    return _make_pipeline(model)


def _start(model: Any) -> Any:
    """One of the same kind that is not fitted, with the number of features and the classes."""
    fresh = type(model)()
    fresh.n_features_in_ = _count(model.n_features_in_)
    if hasattr(model, "classes_"):
        classes = np.array(model.classes_)
        _require(classes.ndim == 1 and len(classes) > 0)
        _require(classes.dtype.kind in "biufU" or all(type(one) is str for one in classes))
        fresh.classes_ = classes
    return fresh


def _count(number: Any) -> int:
    _require(isinstance(number, int | np.integer) and bool(number > 0))
    return int(number)


def _vector(numbers: Any, size: int) -> NDArray[np.float64]:
    vector = np.array(numbers, dtype=np.float64)
    _require(vector.shape == (size,))
    return vector


def _make_tree(model: Any) -> Any:
    fresh, tree = _start(model), model.tree_
    _require(is_tree(tree, fresh.n_features_in_) and tree.n_outputs == 1 == model.n_outputs_)
    if hasattr(fresh, "classes_"):
        fresh.n_classes_ = len(fresh.classes_)
        _require(tree.max_n_classes == fresh.n_classes_ == model.n_classes_)
    fresh.tree_, fresh.n_outputs_ = tree, 1
    # With constraints a tree refuses missing values.
    fresh.monotonic_cst = model.monotonic_cst
    return fresh


def _make_forest(model: Any) -> Any:
    _require(model.n_jobs in (None, 1) and model.n_outputs_ == 1 and len(model.estimators_) > 0)
    fresh = _start(model)
    fresh.n_jobs, fresh.n_outputs_, fresh.monotonic_cst = 1, 1, model.monotonic_cst
    fresh.estimators_ = [_make(tree) for tree in model.estimators_]
    fresh.n_estimators = len(fresh.estimators_)
    if hasattr(fresh, "classes_"):
        fresh.n_classes_ = len(fresh.classes_)
    for tree in fresh.estimators_:
        kind = f"{type(tree).__module__}.{type(tree).__qualname__}"
        _require(kind in _TREES and tree.n_features_in_ == fresh.n_features_in_)
        _require(getattr(tree, "n_classes_", 0) == getattr(fresh, "n_classes_", 0))
    return fresh


def _make_linear(model: Any, method: str) -> Any:
    fresh = _start(model)
    weights = np.array(model.coef_, dtype=np.float64)
    # Several classes are compared by a product of matrices and a softmax.
    _require(weights.ndim == 1 or len(weights) == 1)
    weights = _vector(weights.ravel(), fresh.n_features_in_)
    offset = _vector(np.ravel(model.intercept_), 1)
    _require(not hasattr(fresh, "classes_") or len(fresh.classes_) == 2)
    for name in ("coef_", "intercept_"):
        setattr(fresh, name, np.array(getattr(model, name), dtype=np.float64))
    if hasattr(model, "_label_binarizer"):
        # A ridge classifier asks it whether a row has several labels; ours of two classes says no.
        fresh._label_binarizer = type(model._label_binarizer)(neg_label=-1).fit(fresh.classes_)
    if hasattr(model, "loss"):
        _require(type(model.loss) is str)
        fresh.loss = model.loss
    # scikit-learn makes classes and probabilities of this number, row by row.
    setattr(fresh, method, _make_sum(weights, float(offset[0])))
    return fresh


def _make_sum(weights: NDArray[np.float64], offset: float) -> Callable[[Any], NDArray[np.float64]]:
    def add_products(matrix: Any) -> NDArray[np.float64]:
        features = np.asarray(matrix, dtype=np.float64)
        # As scikit-learn refuses such rows. Whoever asked asks again without them.
        if (
            features.ndim != 2
            or features.shape[1] != len(weights)
            or not np.isfinite(features).all()
        ):
            raise ValueError("rows that the model does not take")
        total = np.zeros(len(features))
        # Numbers of one row meet in one order: no library chooses another for a larger batch.
        for column, weight in zip(features.T, weights):
            total += column * weight
        total += offset
        return total

    return add_products


def _make_pipeline(model: Any) -> Any:
    """A pipeline of scalers before a row-wise model."""
    _require(model.memory is None)
    *before, (last, final) = model.steps
    steps = [(str(name), _make_scaler(step)) for name, step in before]
    return type(model)([*steps, (str(last), _make(final))])


def _make_scaler(model: Any) -> Any:
    name = f"{type(model).__module__}.{type(model).__qualname__}"
    _require(name in _SCALERS)
    fresh = _start(model)
    # A scaler that clamps needs the ends of its range, too.
    _require(not getattr(model, "clip", False))
    for switch, numbers in _SCALERS[name].items():
        if switch:
            setattr(fresh, switch, bool(getattr(model, switch)))
        for number in numbers:
            present = not switch or getattr(fresh, switch)
            value = _vector(getattr(model, number), fresh.n_features_in_) if present else None
            setattr(fresh, number, value)
    return fresh
