"""Models whose prediction of a row is the same, bit for bit, in every batch."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from dpflow.engine.sessions.row_wise_models import make_row_wise

pytest.importorskip("sklearn")
from sklearn.ensemble import ExtraTreesRegressor, RandomForestClassifier
from sklearn.linear_model import (
    ElasticNet,
    Lasso,
    LinearRegression,
    LogisticRegression,
    Ridge,
    RidgeClassifier,
    SGDClassifier,
)
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler, PolynomialFeatures, RobustScaler, StandardScaler
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

MODELS = [
    LogisticRegression(),
    LogisticRegression(solver="liblinear"),
    RidgeClassifier(),
    SGDClassifier(loss="log_loss", random_state=0),
    SGDClassifier(loss="modified_huber", random_state=0),
    LinearRegression(),
    Ridge(),
    Lasso(alpha=0.01),
    ElasticNet(alpha=0.01),
    make_pipeline(StandardScaler(), LogisticRegression()),
    make_pipeline(MinMaxScaler(), RobustScaler(), Ridge()),
]


def _fit(model: Any, classes: int = 2, outputs: int = 1) -> Any:
    rng = np.random.default_rng(5)
    features = rng.normal(size=(300, 37)) * 10.0 ** rng.integers(-6, 6, 37)
    label = rng.integers(0, classes, 300 * outputs)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return model.fit(features, label if outputs == 1 else label.reshape(300, outputs)), features


def _ask(model: Any, features: Any) -> list[Any]:
    names = ("predict", "predict_proba", "decision_function")
    with np.errstate(all="ignore"):
        return [np.asarray(getattr(model, n)(features)) for n in names if hasattr(model, n)]


@pytest.mark.parametrize("model", MODELS, ids=str)
def test_a_row_is_predicted_alone(model: Any) -> None:
    """In every batch, order and place in memory, and nearly as scikit-learn does."""
    fitted, features = _fit(model)
    row_wise = make_row_wise(fitted)
    assert row_wise is not None and row_wise is not fitted
    together, theirs = _ask(row_wise, features), _ask(fitted, features)
    order = np.random.default_rng(1).permutation(len(features))
    for other in (features[order], np.asfortranarray(features[order])):
        for mine, turned in zip(together, _ask(row_wise, other)):
            assert np.array_equal(mine[order], turned)
    for size in (1, 2, 7):
        parts = [_ask(row_wise, features[i : i + size]) for i in range(0, len(features), size)]
        for mine, pieces in zip(together, zip(*parts)):
            assert np.array_equal(mine, np.concatenate(pieces))
    for mine, other in zip(together, theirs):
        assert np.allclose(mine, other, rtol=1e-6, atol=1e-6)


def test_scikit_learns_own_product_is_not_row_wise() -> None:
    """The control: without our sum some row has another last digit in a batch."""
    fitted, features = _fit(LinearRegression())
    alone = np.concatenate([fitted.predict(features[i : i + 1]) for i in range(len(features))])
    assert not np.array_equal(fitted.predict(features), alone)


@pytest.mark.parametrize("model, more", [
    (LogisticRegression(), {"classes": 3}),
    (Ridge(), {"outputs": 2}),
    (DecisionTreeClassifier(), {"outputs": 2}),
    (RandomForestClassifier(3), {"outputs": 2}),
    (RandomForestClassifier(3, n_jobs=2), {}),
    (GaussianNB(), {}),
    (make_pipeline(PolynomialFeatures(1), Ridge()), {}),
    (make_pipeline(StandardScaler(), GaussianNB()), {}),
])  # fmt: skip
def test_other_models_are_asked_group_by_group(model: Any, more: dict[str, int]) -> None:
    assert make_row_wise(_fit(model, **more)[0]) is None


@pytest.mark.parametrize("kind", [np.float64, np.float32])
def test_many_features_meet_in_one_order(kind: Any) -> None:
    """401 features at batch sizes 1, 2, 7 and 1,000, with subnormal numbers and both zeros among them."""
    rng = np.random.default_rng(3)
    features = rng.normal(size=(1000, 401)) * 10.0 ** rng.integers(-8, 8, 401)
    features[::5, ::3], features[1::5, ::3], features[2::5, ::3] = 5e-324, -0.0, 0.0
    # As fitting leaves it, in the type of the rows that it was fitted on.
    fitted = LogisticRegression()
    fitted.coef_, fitted.intercept_ = rng.normal(size=(1, 401)).astype(kind), np.ones(1, kind)
    fitted.classes_, fitted.n_features_in_ = np.array([0, 1]), 401
    row_wise = make_row_wise(fitted)
    assert row_wise is not None
    together = _ask(row_wise, features)
    for size in (1, 2, 7):
        parts = [_ask(row_wise, features[i : i + size]) for i in range(0, 42, size)]
        for mine, pieces in zip(together, zip(*parts)):
            assert np.array_equal(mine[:42], np.concatenate(pieces))


@pytest.mark.parametrize("model", [
    DecisionTreeClassifier(max_depth=4),
    DecisionTreeRegressor(max_depth=4),
    RandomForestClassifier(5),
    ExtraTreesRegressor(5),
], ids=str)  # fmt: skip
def test_trees_predict_as_they_are(model: Any) -> None:
    """Texts as classes and missing values, too."""
    fitted, features = _fit(model)
    row_wise = make_row_wise(fitted)
    assert row_wise is not None and row_wise is not fitted
    features[::7, ::5] = np.nan
    for mine, theirs in zip(_ask(row_wise, features), _ask(fitted, features), strict=True):
        assert np.array_equal(mine, theirs)
    if hasattr(fitted, "classes_"):
        texts = fitted.fit(_fit(Ridge())[1], np.array(["no", "yes"] * 150, dtype=object))
        named = make_row_wise(texts)
        assert named is not None
        assert np.array_equal(named.predict(features), texts.predict(features))


def _change(model: Any, name: str, value: Any) -> Any:
    setattr(model, name, value)
    return model


def _list_odd_models() -> Iterator[Any]:
    """Each reads other rows of a batch, or does in a batch of one size."""
    size = 300
    for scaler, name in ((StandardScaler(), "mean_"), (StandardScaler(), "scale_")):
        pipeline, features = _fit(make_pipeline(scaler, LogisticRegression()))
        _change(pipeline.steps[0][1], name, np.ones((size, features.shape[1])))
        yield pipeline
    for scaler, name in ((MinMaxScaler(), "min_"), (RobustScaler(), "center_")):
        pipeline, features = _fit(make_pipeline(scaler, Ridge()))
        yield _change(pipeline.steps[0][1], name, np.ones((size, 37))) and pipeline
    tree, _ = _fit(DecisionTreeClassifier())
    yield _change(tree, "tree_", _fit(LinearRegression(), outputs=2)[0])
    tree, _ = _fit(DecisionTreeClassifier())
    yield _change(tree, "classes_", np.ones((2, size)))
    forest, _ = _fit(RandomForestClassifier(3))
    yield _change(forest, "n_classes_", size) and _change(forest, "classes_", np.arange(size))
    forest, _ = _fit(RandomForestClassifier(3))
    yield _change(forest, "estimators_", [_fit(LinearRegression())[0]])
    for name, value in {"classes_": np.ones((2, size)), "intercept_": np.ones(size)}.items():
        yield _change(_fit(LogisticRegression())[0], name, value)
    yield _change(_fit(SGDClassifier())[0], "loss", ["log_loss"])


def test_odd_numbers_make_no_row_wise_model() -> None:
    """Fitted here: a fit of each while tests are collected takes a second of every worker."""
    models = list(_list_odd_models())
    assert len(models) == 11
    for model in models:
        assert make_row_wise(model) is None, model


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_row_that_a_model_does_not_take_fails_its_batch(value: float) -> None:
    """As in scikit-learn, so that whoever asked gives that row its default, and no other."""
    fitted, features = _fit(Ridge())
    row_wise = make_row_wise(fitted)
    assert row_wise is not None
    features[3, 2] = value
    with pytest.raises(ValueError, match="does not take"):
        row_wise.predict(features)


def test_odd_attributes_make_no_row_wise_model() -> None:
    """A file may hold any attribute."""
    for name, value in {"coef_": np.array(["a"] * 37), "intercept_": [1.0, 2.0]}.items():
        fitted, _ = _fit(Ridge())
        setattr(fitted, name, value)
        assert make_row_wise(fitted) is None
