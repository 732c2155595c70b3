"""A model's file holds what fitting makes, or is no candidate: compiled code checks no place that it reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpflow.engine.sessions.candidate import Submission, load_candidate
from dpflow.engine.sessions.model_parts import find_odd_part
from dpflow.errors import InvalidInput

pytest.importorskip("sklearn")
from sklearn.ensemble import (
    BaggingClassifier,
    IsolationForest,
    RandomForestClassifier,
    RandomTreesEmbedding,
    StackingRegressor,
)
from sklearn.impute import SimpleImputer
from sklearn.linear_model import (
    LinearRegression,
    LogisticRegression,
    RidgeClassifier,
    SGDClassifier,
)
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import (
    KBinsDiscretizer,
    LabelBinarizer,
    MultiLabelBinarizer,
    OneHotEncoder,
    PolynomialFeatures,
    StandardScaler,
    TargetEncoder,
)
from sklearn.tree import DecisionTreeClassifier

RNG = np.random.default_rng(0)
ROWS = RNG.normal(size=(200, 5))
LABEL = (ROWS[:, 0] > 0) * 1.0


def _load(model: Any, folder: Path) -> Any:
    import skops.io

    file = folder / "model.skops"
    skops.io.dump(model, file)
    names = tuple(f"f{i}" for i in range(5))
    return load_candidate(Submission(name="c", file=file, label="label", features=names, claim=1))


def _edit_tree(model: Any, **changes: Any) -> Any:
    """The model with another feature, or another way, in its first node."""
    state = model.tree_.__getstate__()
    nodes = state["nodes"].copy()
    for name, value in changes.items():
        if name in nodes.dtype.names:
            nodes[name][0] = value
    state |= {"nodes": nodes} | {k: v for k, v in changes.items() if k in state}
    features = changes.get("n_features", 5)
    tree = type(model.tree_)(features, np.array([2], dtype=np.intp), 1)
    tree.__setstate__(state)
    model.tree_ = tree
    return model


def _edit_forest(model: Any) -> Any:
    _edit_tree(model.estimators_[0], feature=10)
    return model


def _set(model: Any, **attributes: Any) -> Any:
    for name, value in attributes.items():
        setattr(model, name, value)
    return model


def _widen(**attributes: Any) -> Any:
    """Polynomials of which a file says something else than fitting, before a sum of all their columns."""
    polynomials = _set(PolynomialFeatures(2).fit(ROWS), **attributes)
    total = LinearRegression().fit(np.zeros((2, 500)), [0.0, 1.0])
    total.coef_, total.intercept_ = np.ones(500), 0.0
    return make_pipeline(polynomials, total)


def _stack(method: str) -> Any:
    """A stack whose second member is fitted to whatever rows are predicted, and is its first one, too."""
    scaler = StandardScaler().fit(ROWS)
    stack = StackingRegressor([("a", LinearRegression())], final_estimator=LinearRegression())
    _set(stack.fit(ROWS, LABEL), estimators_=[scaler, scaler], stack_method_=["transform", method])
    # Fitting leaves a type behind that no file may hold.
    del stack.named_estimators_
    stack.final_estimator_ = LinearRegression().fit(np.hstack([ROWS, ROWS]), ROWS[:, 0])
    stack.final_estimator_.coef_ = np.eye(1, 10)[0]
    return stack


def _mix_classes() -> Any:
    """Labels that no sort puts in order: 5 is looked for behind the last."""
    labels = LabelBinarizer(sparse_output=True).fit([1.0, 5.0, 7.0])
    return _set(labels, classes_=np.array([5.0, np.nan, 1.0, 1.0, 1.0], dtype=object))


TREE = DecisionTreeClassifier(max_depth=1)
ODD = {
    "another row's feature": lambda: _edit_tree(TREE.fit(ROWS, LABEL), feature=15),
    "a feature before the row": lambda: _edit_tree(TREE.fit(ROWS, LABEL), feature=-5),
    "a place behind the tree": lambda: _edit_tree(TREE.fit(ROWS, LABEL), left_child=1000),
    "a way without an end": lambda: _edit_tree(TREE.fit(ROWS, LABEL), right_child=0),
    "more features": lambda: _edit_tree(TREE.fit(ROWS, LABEL), n_features=6),
    "features that are no number": lambda: _set(TREE.fit(ROWS, LABEL), n_features_in_=np.arange(5)),
    "a tree of a forest": lambda: _edit_forest(RandomForestClassifier(2).fit(ROWS, LABEL)),
    "another model as tree": lambda: _set(
        TREE.fit(ROWS, LABEL), tree_=LinearRegression().fit(ROWS, LABEL)
    ),
    "another model in a forest": lambda: _set(
        RandomForestClassifier(2).fit(ROWS, LABEL),
        estimators_=[LinearRegression().fit(ROWS, LABEL)],
    ),
    "a tree somewhere else": lambda: _set(
        LogisticRegression().fit(ROWS, LABEL), coef_=DecisionTreeClassifier().fit(ROWS, LABEL).tree_
    ),
    "a function as method": lambda: _set(
        LogisticRegression().fit(ROWS, LABEL), decision_function=np.negative
    ),
    "a model as method": lambda: _set(
        LogisticRegression().fit(ROWS, LABEL), predict=TREE.fit(ROWS, LABEL)
    ),
    "a function": lambda: make_pipeline(
        StandardScaler(), _set(LogisticRegression(), x=[np.exp])
    ).fit(ROWS, LABEL),
    "a forest of distances": lambda: IsolationForest(n_estimators=2).fit(ROWS, LABEL),
    "columns that nothing computes": lambda: _widen(_n_out_full=500, n_output_features_=500),
    "another degree": lambda: _widen(_max_degree=1),
    "no number of columns": lambda: _widen(_n_out_full=[21, 22]),
    "a method by its name": lambda: _stack("fit_transform"),
    "places of ones": lambda: OneHotEncoder().fit(ROWS, LABEL),
    "places of bins": lambda: KBinsDiscretizer(2).fit(ROWS, LABEL),
    "places of leaves": lambda: RandomTreesEmbedding(2).fit(ROWS, LABEL),
    "places of labels": lambda: MultiLabelBinarizer().fit(ROWS),
    "labels in no order": _mix_classes,
    "means of labels": lambda: TargetEncoder().fit(ROWS, LABEL),
}


@pytest.mark.parametrize("make", ODD.values(), ids=ODD)
def test_a_model_that_nothing_fitted_is_refused(make: Any, tmp_path: Path) -> None:
    with pytest.raises(
        InvalidInput, match="as scikit-learn fits it|fixed function|predicts nothing"
    ):
        _load(make(), tmp_path)


def test_a_tree_reads_other_rows_unless_it_is_checked() -> None:
    """The control: feature 15 of five is the first feature of the third row from here."""
    tree = _edit_tree(DecisionTreeClassifier(max_depth=1).fit(ROWS, LABEL), feature=15).tree_
    rows = np.full((8, 5), -1.0, dtype=np.float32)
    before = tree.apply(rows[:5])
    rows[3] = 5
    assert (tree.apply(rows[:5]) != before).tolist() == [True, False, False, False, False]


def test_columns_that_nothing_computes_hold_what_was_in_memory() -> None:
    """The control: the same rows, after other numbers were freed."""
    model, said = _widen(_n_out_full=500, n_output_features_=500), set()
    for other in (7.0, 9.0, 11.0):
        gone = np.full((200, 500), other)
        del gone
        said.add(float(model.predict(ROWS)[0]))
    assert len(said) > 1


def test_labels_in_no_order_have_a_place_behind_the_last() -> None:
    """The control: scikit-learn looks 5 up so, and writes a one there."""
    classes = _mix_classes().classes_
    assert np.searchsorted(np.sort(classes), 5.0) == len(classes)


def test_a_stack_keeps_rows_unless_it_is_refused() -> None:
    """The control: the same rows, after others were predicted."""
    model = _stack("fit_transform")
    model.predict(ROWS[:3])
    first = model.predict(ROWS[:3])
    model.predict(ROWS[3:] + 100)
    assert (abs(model.predict(ROWS[:3]) - first) > 50).all()


@pytest.mark.parametrize("model", [
    DecisionTreeClassifier(),
    RandomForestClassifier(3),
    BaggingClassifier(n_estimators=2),
    LogisticRegression(),
    RidgeClassifier(),
    SGDClassifier(),
    GaussianNB(),
    make_pipeline(SimpleImputer(), StandardScaler(), LogisticRegression()),
    make_pipeline(PolynomialFeatures((2, 3), interaction_only=True), LogisticRegression()),
    make_pipeline(KBinsDiscretizer(2, encode="ordinal"), LogisticRegression()),
], ids=str)  # fmt: skip
def test_a_fitted_model_is_a_candidate(model: Any, tmp_path: Path) -> None:
    assert find_odd_part(model.fit(ROWS, LABEL)) is None
    assert _load(model, tmp_path).predict is not None
