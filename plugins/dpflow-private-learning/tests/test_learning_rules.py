"""Rules outside of releases: as SQL, as a classifier, as JSON; and plans that are refused."""

from __future__ import annotations

import math
import random
import sys
import warnings
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import pytest
from dpflow_private_learning.building_blocks.classifier import PrivateClassifier
from dpflow_private_learning.building_blocks.hypotheses import (
    ColumnScale,
    EmptyRule,
    PointRule,
    RectangleRule,
    Rule,
    ThresholdRule,
    describe_rule,
    read_rule,
)
from dpflow_private_learning.mechanisms.learn_class import LearnClass, LearnSemiPrivate
from dpflow_private_learning.mechanisms.learn_thresholds import LearnThresholds
from sklearn.base import clone
from sklearn.utils.estimator_checks import check_estimator

from dpflow.core.contract.columns import Column
from dpflow.errors import InvalidInput, PlanRefused
from dpflow.testing.examples import plan_mechanism

sys.path.insert(0, str(Path(__file__).parent))
from learning_examples import example, learn_a_box  # noqa: E402

COLUMNS = {
    "a": Column(lower=-10, upper=30),
    "b c": Column(lower=0, upper=1, step="0.25", missing="0.4"),
    "d": Column(lower=-100, upper=100, step="2.5"),
}


@pytest.mark.parametrize(
    "found",
    [EmptyRule(), RectangleRule((-3, 1, -7), (9, 3, 20)), RectangleRule((1, 0, 0), (0, 0, 0))],
)
def test_predicate_and_classifier_agree_on_duckdb(found: Rule) -> None:
    """The stored document predicts the same in Python and as SQL: outside the bounds, between steps,
    NULL, NaN, infinities.
    """
    rng = random.Random(9)
    special = [
        None,
        math.nan,
        math.inf,
        -math.inf,
        0.125,
        0.375,
        -1.25,
        3.75,
        1e300,
        0.49999999999999994,
    ]
    rows = [
        (
            rng.choice([None, *range(-20, 40)]),
            rng.choice([*special, rng.random()]),
            rng.choice([*special, rng.uniform(-99, 99)]),
        )
        for _ in range(400)
    ]
    frame = pd.DataFrame(rows, columns=["a", "b c", "d"])
    document = describe_rule(found, COLUMNS)
    model = PrivateClassifier.from_document(document)
    with duckdb.connect() as connection:
        connection.execute('CREATE TABLE t (i INTEGER, a INTEGER, "b c" DOUBLE, d DOUBLE)')
        connection.executemany(
            "INSERT INTO t VALUES (?, ?, ?, ?)", [(i, *row) for i, row in enumerate(rows)]
        )
        chosen = {
            i for (i,) in connection.execute(f"SELECT i FROM t WHERE {document['sql']}").fetchall()
        }
    assert chosen == set(np.flatnonzero(model.predict(frame)).tolist())
    assert (
        not isinstance(found, RectangleRule)
        or found.lower[0] > found.upper[0]
        or 0 < len(chosen) < 400
    )
    assert (model.predict(frame.to_numpy(dtype=float)) == model.predict(frame)).all()


def test_classifier_keeps_the_conventions() -> None:
    """get_params, clone, fit returns itself and asks for one release; what is not a hypothesis is
    refused.
    """
    asked: list[Any] = []
    document = describe_rule(ThresholdRule(12), {"a": COLUMNS["a"]})

    def release(mechanism: str, table: Any, **params: Any) -> Any:
        asked.append((mechanism, table, params))
        return SimpleNamespace(result=SimpleNamespace(document=document))

    model = PrivateClassifier(release, "learn_thresholds", {"column": "a"})
    assert set(model.get_params()) == {"release", "mechanism", "params"}
    again = clone(model)
    assert again.fit("t.yml") is again and asked == [("learn_thresholds", "t.yml", {"column": "a"})]
    assert again.predict([[11], [12], [500]]).tolist() == [1, 0, 0]
    assert again.score([[11], [12]], [1, 0]) == 1.0
    assert again.feature_names_in_.tolist() == ["a"] and again.n_features_in_ == 1
    for broken in ({}, {"hypothesis": {"kind": "nothing"}}):
        with pytest.raises(InvalidInput, match="holds no hypothesis"):
            PrivateClassifier.from_document(broken)
    with pytest.raises(
        ValueError, match="2 features, but PrivateClassifier is expecting 1 features as input: a"
    ):
        again.predict([[1, 2]])
    with pytest.raises(InvalidInput, match="the columns a"):
        again.predict(pd.DataFrame({"b": [1]}))
    assert again.predict(np.zeros((0, 1))).tolist() == []
    with pytest.raises(InvalidInput, match="give release"):
        PrivateClassifier().fit("t.yml")


#: scikit-learn's checks of what is given to `fit`, which takes a declared table in the place of
#: rows and labels.
OF_FIT = (
    "check_classifier_data_not_an_array",
    "check_classifiers_classes",
    "check_complex_data",
    "check_dtype_object",
    "check_estimator_sparse_array",
    "check_estimator_sparse_matrix",
    "check_estimator_sparse_tag",
    "check_estimators_empty_data_messages",
    "check_estimators_nan_inf",
    "check_fit1d",
    "check_supervised_y_2d",
    "check_supervised_y_no_nan",
)


def test_classifier_passes_scikit_learns_own_checks() -> None:
    """All but those; the release is a double that learns a box of as many columns."""
    reasons = dict.fromkeys(
        (*OF_FIT, "check_classifiers_train", "check_classifiers_regression_target"), "about fit"
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = check_estimator(
            PrivateClassifier(learn_a_box), expected_failed_checks=reasons, on_skip=None
        )
    assert sum(one["status"] == "passed" for one in found) >= 38


def test_rules_survive_json_and_refuse_everything_else() -> None:
    for one in (EmptyRule(), PointRule(3), ThresholdRule(-7), RectangleRule((1, 2), (3, 4))):
        assert read_rule(one.to_json()) == one
    bad: list[dict[str, Any]] = [
        {},
        {"kind": "circle"},
        {"kind": "point"},
        {"kind": "point", "at": "0; DROP TABLE t"},
        {"kind": "threshold", "below": 1.5},
        {"kind": "threshold", "below": 2**64},
        {"kind": "rectangle", "lower": [0], "upper": [1, 2]},
    ]
    for data in bad:
        with pytest.raises(InvalidInput):
            read_rule(data)
    scale = ColumnScale.from_column("b c", COLUMNS["b c"])
    assert scale.missing == 2 and ColumnScale.from_json(scale.to_json()) == scale


def test_bad_plans_are_refused() -> None:
    """Everything that can be known to be wrong without rows."""
    table = example({}).table
    given: dict[str, Any] = {
        "column": "amount",
        "label": "late",
        "epsilon": "1",
        "delta": "1e-6",
        "rows": 100,
    }
    for changes in (
        {"label": "amount"},
        {"label": "nobody"},
        {"column": "user"},
        {"alpha": "0"},
        {"alpha": "1"},
        {"beta": "1.5"},
        {"epsilon": "0"},
        {"rows": 0},
        {"delta": "0.6", "levels": 2},
        {"levels": 0},
        {"delta": "0", "levels": 2},
    ):
        with pytest.raises(InvalidInput):
            plan_mechanism(LearnThresholds(), table, given | changes)
    listed = {"columns": ["amount"], "label": "late", "epsilon": "1", "rows": 100}
    for rules in ([], [{"kind": "rectangle", "lower": [0, 0, 0], "upper": [1, 1, 1]}], "circles"):
        with pytest.raises(InvalidInput):
            plan_mechanism(LearnClass(), table, listed | {"rules": rules})
    with pytest.raises(PlanRefused, match="one column"):
        plan_mechanism(LearnClass(), table, listed | {"columns": ["amount", "few"]})
    with pytest.raises(PlanRefused, match="needs 1 values"):
        plan_mechanism(LearnSemiPrivate(), table, listed | {"public": [["1", "2"]]})


def test_frames_of_nullable_booleans_and_zoned_moments_are_read() -> None:
    """The first ended in a TypeError at its first NA, the second warned at every call."""
    flags = pd.Series(pd.array([True, None, False], "boolean"))
    scale = ColumnScale("x", 0, 20, Fraction(1), 5)
    assert scale.grid_integers(flags)[0].tolist() == [1, 5, 0]
    days = pd.to_datetime(["2026-01-02 23:00", "2026-01-30 05:00"]).tz_localize("Etc/GMT+5")
    scale = ColumnScale("x", 20454, 20485, Fraction(1), None, dates=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert scale.grid_integers(days.to_series())[0].tolist() == [20456, 20483]


@pytest.mark.parametrize("step", ["0.25", "0.5", "5"])
@pytest.mark.parametrize("kind", ["DECIMAL(38, 3)", "DECIMAL(38, 10)", "DOUBLE"])
def test_wide_columns_with_any_decimal_step_are_exact_in_sql(step: str, kind: str) -> None:
    """Steps that are no powers of ten were divided as doubles, which hold 53 bits."""
    size = Fraction(step)
    end = 2**53 + 1000
    scale = ColumnScale("x", int(-(2**55) / size), int(end * 4 / size), size, None)
    texts = [
        f"{sign}{2**53 + n}.{part}"
        for n in range(4)
        for part in ("125", "124", "75")
        for sign in ("", "-")
    ]
    with duckdb.connect() as connection:
        rows = ", ".join(f"(CAST('{text}' AS {kind}))" for text in [*texts, "0", "1e19"])
        got = connection.execute(
            f"SELECT x, {scale.sql_expression()} FROM (VALUES {rows}) v(x)"
        ).fetchall()
    mine = scale.grid_integers(np.array([x for x, _ in got], object))[0].tolist()
    assert mine == [int(n) for _, n in got]
