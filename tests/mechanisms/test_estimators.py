"""Holdout estimators against scikit-learn and numpy; whatever a group holds, they give a number."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from dpflow.core.contract.estimators import (
    Estimator,
    EstimatorQuery,
    FromMoments,
    Subject,
    reads_across,
)
from dpflow.core.sampling.randomness import SystemSource
from dpflow.errors import InvalidInput, PluginError, UnknownName
from dpflow.mechanisms.builtin_estimators import COLUMNS, SCORES

ALL = {e.name: e for e in (*SCORES, *COLUMNS)}
RNG = np.random.default_rng(0)
SCORE = np.round(RNG.uniform(0, 1, 300), 2)
LABEL = (RNG.uniform(0, 1, 300) < SCORE).astype(float)
X = RNG.normal(size=300)
Y = 3 * X + RNG.normal(size=300)


def estimate(name: str, label: Any = LABEL, score: Any = SCORE, **options: Any) -> float:
    estimator = ALL[name]
    subject = Subject(
        ("y", "x"),
        {**estimator.options, **options},
        "label",
        lambda rows: (rows["score"] >= 0.5).astype(float),
        lambda rows: rows["score"],
        lambda rows: np.ones(len(rows["score"])),
    )
    rows = {"label": np.asarray(label, float), "score": np.asarray(score, float), "y": Y, "x": X}
    return estimator.estimate_group(rows, subject)


def test_nobody_gains_by_rows_without_a_score() -> None:
    """Sorted last, they had the highest rank: who lost the positive rows had an area near 1."""
    assert estimate("auc", score=np.full(300, np.nan)) == 0.5
    lost = np.where(LABEL == 1, np.nan, 0.5)
    assert estimate("auc", score=lost) == estimate("auc", score=np.full(300, 0.5)) == 0.5
    some = np.where(np.arange(300) % 3 == 0, np.nan, SCORE)
    assert 0.5 < estimate("auc", score=some) < estimate("auc")
    subject = Subject((), {}, "label", lambda rows: rows["said"])
    rows = {"label": LABEL, "said": np.where(LABEL == 1, 1.0, np.nan)}
    right = LABEL.sum()
    assert ALL["f1"].estimate_group(rows, subject) == 2 * right / (right + 300)


def test_scores_are_scikit_learns() -> None:
    from sklearn import metrics

    said = SCORE >= 0.5
    assert estimate("accuracy") == pytest.approx(metrics.accuracy_score(LABEL, said))
    assert estimate("squared_loss") == pytest.approx(metrics.brier_score_loss(LABEL, SCORE))
    assert estimate("log_loss") == pytest.approx(
        metrics.log_loss(LABEL, np.clip(SCORE, 1e-6, 1 - 1e-6))
    )
    assert estimate("auc") == pytest.approx(metrics.roc_auc_score(LABEL, SCORE))
    assert estimate("f1") == pytest.approx(metrics.f1_score(LABEL, said))
    assert estimate("difference") == pytest.approx(np.mean(said == LABEL) - LABEL.mean())
    assert estimate("calibration_error", score=np.full(300, 0.75)) == pytest.approx(
        abs(LABEL.mean() - 0.75)
    )
    assert estimate("calibration_error") < 0.15 < estimate("calibration_error", score=1 - SCORE)


def test_columns_are_numpys() -> None:
    assert estimate("column_mean") == pytest.approx(Y.mean())
    assert estimate("column_variance") == pytest.approx(Y.var(ddof=1))
    assert estimate("column_deviation") == pytest.approx(Y.std(ddof=1))
    assert estimate("column_quantile", p=Fraction(1, 4)) == pytest.approx(np.quantile(Y, 0.25))
    assert estimate("column_correlation") == pytest.approx(np.corrcoef(X, Y)[0, 1])
    assert estimate("column_slope") == pytest.approx(np.polyfit(X, Y, 1)[0])
    residual = Y - np.polyval(np.polyfit(X, Y, 1), X)
    assert estimate("best_loss") == pytest.approx((residual**2).mean())
    assert estimate("best_loss") < estimate("trained_loss") < 1.5


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("n", [0, 1, 2])
def test_any_group_gives_a_number(name: str, n: int) -> None:
    """Nothing, one row, one class, NaN and infinities are the default or a finite number, without a
    warning.
    """
    for fill in (0.0, 1.0, np.nan, np.inf, -np.inf, 1e308):
        rows = {c: np.full(n, fill) for c in ("label", "score", "y", "x")}
        predict = lambda r: r["score"]  # noqa: E731
        subject = Subject(("y", "x"), ALL[name].options, "label", predict, predict, predict)
        assert np.isfinite(ALL[name].estimate_group(rows, subject))
        assert ALL[name].estimate_group({}, subject, 0.25) == 0.25


def test_wrong_options_are_refused_before_reading() -> None:
    with pytest.raises(UnknownName, match="did you mean 'bins'"):
        ALL["calibration_error"].fill_options(
            EstimatorQuery(estimator="calibration_error", columns=("y",), options={"bin": 3})
        )
    with pytest.raises(InvalidInput, match="needs 2 columns"):
        ALL["column_slope"].fill_options(EstimatorQuery(estimator="column_slope", columns=("y",)))
    assert ALL["column_quantile"].fill_options(EstimatorQuery(estimator="q", columns=("y",))) == {
        "p": Fraction(1, 2)
    }


# --- estimators that look beyond their group --------------------------------------------------------------------------


class _Scaler:
    """Subtracts the mean of everything it has seen so far, as a scaler fitted on the holdout would."""

    def __init__(self) -> None:
        self.seen: list[float] = []

    def __call__(self, rows: Any, subject: Subject) -> float:
        self.seen += list(rows["x"])
        return float(np.mean(rows["x"]) - np.mean(self.seen))


def test_estimators_that_read_across_groups_are_refused_at_registration() -> None:
    """State between calls, randomness, sums taken over all groups, and scores that compare rows are
    found; every built-in passes.
    """
    from types import SimpleNamespace

    from dpflow.hookspecs import hookimpl
    from dpflow.registry import Registry

    rng = np.random.default_rng()
    centred = FromMoments(("n", "x"), lambda m: m["x"] / m["n"] - (m["x"] / m["n"]).mean())
    odd = (
        Estimator("scaled", "s", 0.0, _Scaler(), model="", better="higher"),
        Estimator(
            "random", "s", 0.0, lambda rows, subject: rng.random(), model="", better="higher"
        ),
        Estimator(
            "centred",
            "s",
            0.0,
            lambda rows, subject: 0.5,
            model="",
            better="higher",
            moments=centred,
        ),
        Estimator(
            "ranked",
            "s",
            0.0,
            lambda rows, subject: 0.5,
            model="",
            better="higher",
            row_scores=lambda rows, subject: rows["x"] / rows["x"].max(),
        ),
    )
    for estimator in odd:
        assert reads_across(estimator, SystemSource())
        plugin = SimpleNamespace(dpflow_register_estimators=hookimpl(lambda e=estimator: [e]))
        with pytest.raises(
            PluginError, match=f"estimator '{estimator.name}' of theirs gives a group another value"
        ):
            Registry({"theirs": plugin})
    for _ in range(20):
        assert not any(reads_across(estimator, SystemSource()) for estimator in ALL.values())
