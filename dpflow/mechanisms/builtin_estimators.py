"""Built-in holdout estimators: functions of one group's rows and a model's predictions.

An estimator sees one group at a time: anything fitted across groups would break the gate's
guarantee. Those that score a model read its predictions; the others read columns, in the order of
the query.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from dpflow.core.contract.estimators import Better, Estimator, FromMoments, Rows, Subject
from dpflow.errors import InvalidInput

Floats = NDArray[np.float64]


def _true_labels(rows: Rows, subject: Subject) -> Any:
    return np.asarray(rows[subject.label])


def _feature_columns(rows: Rows, subject: Subject) -> Rows:
    # A model that sees the label would predict it.
    return {name: values for name, values in rows.items() if name != subject.label}


def _predict_labels(rows: Rows, subject: Subject) -> Any:
    # Estimators that score a model are only asked with one.
    assert subject.predict is not None
    return np.asarray(subject.predict(_feature_columns(rows, subject)))


def _score_rows(rows: Rows, subject: Subject) -> Floats:
    assert subject.score is not None
    return np.asarray(subject.score(_feature_columns(rows, subject)), dtype=float)


def _column_values(rows: Rows, subject: Subject, place: int) -> Floats:
    """The values a column has: missing ones are left out."""
    values = np.asarray(rows[subject.columns[place]], dtype=float)
    present: Floats = values[~np.isnan(values)]
    return present


def _complete_rows(rows: Rows, subject: Subject) -> Floats:
    """The columns side by side, rows with a missing value left out."""
    matrix = np.column_stack([np.asarray(rows[name], dtype=float) for name in subject.columns])
    complete: Floats = matrix[~np.isnan(matrix).any(axis=1)]
    return complete


def _right_labels(rows: Rows, subject: Subject) -> Floats:
    right = _true_labels(rows, subject) == _predict_labels(rows, subject)
    return np.asarray(right, dtype=float)


def _squared_errors(rows: Rows, subject: Subject) -> Floats:
    errors: Floats = _true_labels(rows, subject).astype(float) - _score_rows(rows, subject)
    return errors**2


def _log_losses(rows: Rows, subject: Subject) -> Floats:
    floor = float(subject.options["floor"])
    truth = _true_labels(rows, subject) == 1
    p = np.clip(_score_rows(rows, subject), floor, 1 - floor)
    losses: Floats = -np.where(truth, np.log(p), np.log1p(-p))
    return losses


def _log_loss_range(options: Mapping[str, Fraction]) -> tuple[float, float]:
    floor = options["floor"]
    # Below, 1 - floor is no longer a double of its own.
    if not Fraction(1, 10**15) <= floor < Fraction(1, 2):
        raise InvalidInput(
            f"floor of log_loss is the least probability that a loss is taken of, not {float(floor):g}; give one from 1e-15 to "
            f"below 0.5"
        )
    return 0.0, -math.log(floor)


def _area_under_curve(rows: Rows, subject: Subject) -> float:
    """Probability that a positive row scores above a negative one; half for ties and where one of them has no score.
    Fails without both classes.
    """
    truth, scores = _true_labels(rows, subject) == 1, _score_rows(rows, subject)
    pairs = int(truth.sum()) * int((~truth).sum())
    truth, scores = truth[np.isfinite(scores)], scores[np.isfinite(scores)]
    # Ties get the mean of their ranks, which counts each of them half.
    _, level, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[level]
    positive, negative = int(truth.sum()), int((~truth).sum())
    above = ranks[truth].sum() - positive * (positive + 1) / 2
    return float((above + (pairs - positive * negative) / 2) / pairs)


def _f1_score(rows: Rows, subject: Subject) -> float:
    truth, labels = _true_labels(rows, subject) == 1, _predict_labels(rows, subject)
    # A row without a prediction is of the wrong class.
    predicted = np.where(np.isfinite(labels.astype(float)), labels == 1, ~truth)
    return float(2 * (truth & predicted).sum() / (truth.sum() + predicted.sum()))


def _calibration_error(rows: Rows, subject: Subject) -> float:
    """Expected calibration error over bins of equal width of the score."""
    truth, p = _true_labels(rows, subject) == 1, np.clip(_score_rows(rows, subject), 0, 1)
    bins = int(subject.options["bins"])
    # A score of exactly 1 belongs to the last bin.
    bin_of = np.minimum((p * bins).astype(int), bins - 1)
    gaps = np.bincount(bin_of, weights=truth - p, minlength=bins)
    return float(np.abs(gaps).sum() / len(p))


def _quantile_range(options: Mapping[str, Fraction]) -> Literal["column"]:
    if not 0 <= options["p"] <= 1:
        raise InvalidInput(
            f"p of column_quantile is a share of the rows, not {float(options['p']):g}; give one from 0 to 1"
        )
    return "column"


def _calibration_range(options: Mapping[str, Fraction]) -> tuple[float, float]:
    if options["bins"] not in range(1, 1001):
        raise InvalidInput(
            f"bins of calibration_error is a number of bins, not {float(options['bins']):g}; give a whole number from 1 to 1000"
        )
    return 0.0, 1.0


def _right_differences(rows: Rows, subject: Subject) -> Floats:
    assert subject.rival is not None
    theirs = np.asarray(subject.rival(_feature_columns(rows, subject)))
    difference: Floats = _right_labels(rows, subject) - (_true_labels(rows, subject) == theirs)
    return difference


def _equal_values(rows: Rows, subject: Subject) -> Floats:
    x, y = _complete_rows(rows, subject)[:, :2].T
    return np.asarray(x == y, dtype=float)


def _first_values(rows: Rows, subject: Subject) -> Floats:
    return _column_values(rows, subject, 0)


def _column_variance(rows: Rows, subject: Subject) -> float:
    return float(_column_values(rows, subject, 0).var(ddof=1))


def _column_deviation(rows: Rows, subject: Subject) -> float:
    return float(_column_values(rows, subject, 0).std(ddof=1))


def _column_quantile(rows: Rows, subject: Subject) -> float:
    return float(np.quantile(_column_values(rows, subject, 0), float(subject.options["p"])))


def _column_correlation(rows: Rows, subject: Subject) -> float:
    x, y = _complete_rows(rows, subject)[:, :2].T
    return float(np.asarray(np.corrcoef(x, y))[0, 1])


def _regression_slope(rows: Rows, subject: Subject) -> float:
    y, x = _complete_rows(rows, subject)[:, :2].T
    return float(((x - x.mean()) * (y - y.mean())).sum() / ((x - x.mean()) ** 2).sum())


def _best_loss(rows: Rows, subject: Subject) -> float:
    """Least squares inside the group: mean squared error of the first column on the others, on the
    rows it was fitted to.
    """
    matrix = _complete_rows(rows, subject)
    design = np.column_stack([np.ones(len(matrix)), matrix[:, 1:]])
    weights, *_ = np.linalg.lstsq(design, matrix[:, 0], rcond=None)
    return float(np.mean((matrix[:, 0] - design @ weights) ** 2))


def _trained_loss(rows: Rows, subject: Subject) -> float:
    """Least squares on the first half of the group, squared error on the second: a learning curve's
    point.
    """
    matrix = _complete_rows(rows, subject)
    # The second half is fresh to what the first one fitted.
    half = len(matrix) // 2
    design = np.column_stack([np.ones(len(matrix)), matrix[:, 1:]])
    weights, *_ = np.linalg.lstsq(design[:half], matrix[:half, 0], rcond=None)
    return float(np.mean((matrix[half:, 0] - design[half:] @ weights) ** 2))


def _mean_over_rows(
    name: str,
    summary: str,
    default: float,
    row_scores: Callable[[Rows, Subject], Floats],
    better: Better,
    **more: Any,
) -> Estimator:
    """An estimator that is the mean of one score for each row."""

    def mean(rows: Rows, subject: Subject) -> float:
        return float(row_scores(rows, subject).mean())

    return Estimator(name, summary, default, mean, better=better, row_scores=row_scores, **more)


#: The least probability that a log loss is taken of, which keeps it finite.
FLOOR = Fraction(1, 10**6)
SCORES = (
    _mean_over_rows(
        "accuracy",
        "share of right predictions in a group",
        0.0,
        _right_labels,
        "higher",
        range=(0.0, 1.0),
    ),
    _mean_over_rows(
        "squared_loss",
        "mean squared error of a score",
        1.0,
        _squared_errors,
        "lower",
        label="number",
    ),
    _mean_over_rows(
        "log_loss",
        "mean log loss of a probability; floor keeps it finite",
        1.0,
        _log_losses,
        "lower",
        range=_log_loss_range,
        options={"floor": FLOOR},
        label="binary",
    ),
    Estimator(
        "auc",
        "area under the ROC curve; label 1 is positive",
        0.5,
        _area_under_curve,
        better="higher",
        range=(0.0, 1.0),
        pair_scores=_score_rows,
        label="binary",
    ),
    Estimator(
        "f1", "F1 of class 1", 0.0, _f1_score, better="higher", range=(0.0, 1.0), label="binary"
    ),
    Estimator(
        "calibration_error",
        "expected calibration error over bins",
        1.0,
        _calibration_error,
        {"bins": Fraction(10)},
        better="lower",
        range=_calibration_range,
        label="binary",
    ),
    _mean_over_rows(
        "difference",
        "accuracy of a model minus its rival's",
        0.0,
        _right_differences,
        "higher",
        range=(-1.0, 1.0),
        model="two",
    ),
)


def _of_columns(
    name: str, summary: str, function: Any, better: Better = "higher", **more: Any
) -> Estimator:
    """An estimator that applies no model; a group without rows has 0."""
    return Estimator(name, summary, 0.0, function, model="", better=better, **more)


MEAN = FromMoments(("n", "x"), lambda m: m["x"] / m["n"])
VARIANCE = FromMoments(("n", "xx"), lambda m: m["xx"] / (m["n"] * (m["n"] - 1)))
DEVIATION = FromMoments(("n", "xx"), lambda m: np.sqrt(m["xx"] / (m["n"] * (m["n"] - 1))))
#: Of what a column holds nobody but the owner knows what is better: higher unless a metric says
#: otherwise.
COLUMNS = (
    _mean_over_rows(
        "column_agreement",
        "share of rows in which two columns are equal: the accuracy of stored predictions",
        0.0,
        _equal_values,
        "higher",
        model="",
        columns=2,
        moments=FromMoments(("n", "equal"), lambda m: m["equal"] / m["n"]),
        range=(0.0, 1.0),
        skips_missing=True,
    ),
    _mean_over_rows(
        "column_mean",
        "mean of a column",
        0.0,
        _first_values,
        "higher",
        model="",
        moments=MEAN,
        range="column",
        skips_missing=True,
    ),
    _of_columns("column_variance", "variance of a column", _column_variance, moments=VARIANCE),
    _of_columns(
        "column_deviation", "standard deviation of a column", _column_deviation, moments=DEVIATION
    ),
    _of_columns(
        "column_quantile",
        "p-quantile of a column",
        _column_quantile,
        options={"p": Fraction(1, 2)},
        range=_quantile_range,
    ),
    _of_columns(
        "column_correlation",
        "correlation of two columns",
        _column_correlation,
        columns=2,
        moments=FromMoments(("xx", "yy", "xy"), lambda m: m["xy"] / np.sqrt(m["xx"] * m["yy"])),
        range=(-1.0, 1.0),
    ),
    _of_columns(
        "column_slope",
        "regression slope of the first column on the second",
        _regression_slope,
        columns=2,
        moments=FromMoments(("yy", "xy"), lambda m: m["xy"] / m["yy"]),
    ),
    _of_columns(
        "best_loss",
        "least squared error inside a group, first column on the others",
        _best_loss,
        "lower",
        columns=2,
        more_columns=True,
    ),
    _of_columns(
        "trained_loss",
        "least squares on half a group, error on the other half",
        _trained_loss,
        "lower",
        columns=2,
        more_columns=True,
    ),
)


#: All of them by name.
ESTIMATORS = {estimator.name: estimator for estimator in (*SCORES, *COLUMNS)}
