"""What claims a score: a model or a table of predictions, named by its digest, applied to the rows
of one group at a time.

Three sources: a scikit-learn estimator in a skops file, a model in MLflow that holds such a file,
and a DuckDB table of (row id, prediction, score). A model must be a fixed function: if a
prediction could change what the next one is, one group's rows would reach another's score. So a
file may hold estimators of listed scikit-learn modules only, and no random state, each as fitting
makes it (`dpflow.engine.sessions.model_parts`). Files are skops, never pickle: loading one runs no code
of its author.
"""

from __future__ import annotations

import hashlib
import io
import json
import warnings
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field, model_validator

from dpflow.core.contract.estimators import AnyEstimator, Rows, SqlEstimator
from dpflow.core.contract.strict_models import Exact, Strict
from dpflow.engine.sessions import mlflow_models
from dpflow.engine.sessions.model_identity import digest_model
from dpflow.engine.sessions.model_parts import find_odd_part
from dpflow.engine.sessions.row_wise_models import make_row_wise
from dpflow.errors import InvalidInput
from dpflow.extras import require_extra
from dpflow.tables import read_predictions

#: Beside what skops trusts by itself: scikit-learn's own compiled structures, which hold numbers
#: only.
TRUSTED = ("sklearn.tree._tree.Tree", "numpy.dtype")

#: Modules and classes of scikit-learn that were read and tried: what they say of a row is a fixed function of
#: it, whatever numbers a file gives them, if `find_odd_part` finds nothing. All others are refused.
FIXED = (
    "sklearn._loss.",
    "sklearn.compose._target.",
    "sklearn.ensemble._bagging.",
    "sklearn.ensemble._forest.",
    "sklearn.ensemble._weight_boosting.",
    "sklearn.impute._base.SimpleImputer",
    "sklearn.linear_model.",
    "sklearn.naive_bayes.",
    "sklearn.pipeline.",
    "sklearn.preprocessing._data.",
    "sklearn.preprocessing._discretization.",
    "sklearn.preprocessing._encoders.OrdinalEncoder",
    "sklearn.preprocessing._label.LabelBinarizer",
    "sklearn.preprocessing._label.LabelEncoder",
    "sklearn.preprocessing._polynomial.PolynomialFeatures",
    "sklearn.tree.",
)


_SOURCES = ("file", "model", "predictions")


class Predictions(Strict):
    """Predictions made beforehand: a ``table`` of a DuckDB file ``database`` with one row per
    ``id``.

    ``id`` is a column of the private table, too. ``score`` is the column of scores, if estimators
    shall read them. A row of the private table without a prediction counts as wrong.
    """

    database: Path
    table: str
    id: str
    prediction: str = "prediction"
    score: str | None = None


class Submission(Strict):
    """One candidate as an analyst hands it in.

    One of ``file`` (a scikit-learn estimator saved by skops), ``model`` (an MLflow URI:
    ``models:/name/3``, ``models:/name@alias``, a logged model's ``models:/m-id`` or a run's
    ``runs:/id/path``, with its ``tracking_uri``) and ``predictions``.
    ``features``: numeric columns, in the order a model was fitted on. ``label``: the column it
    predicts. ``claim``: the score the analyst says it has; a gate that asks for champions takes
    none. ``estimator``: what scores it, with ``options`` and, for groups on which it fails, a
    ``default``. ``rival``: a second estimator file on the same features, for comparisons. An
    ``estimator`` of columns takes neither model nor label; it reads ``features``. One in SQL, ``{sql,
    range, default}``, names its columns and default itself. ``notes``: the analyst's own, which mean
    nothing here. A field that the estimator does not use is refused
    (`dpflow.engine.sessions.scored_fields`).
    """

    name: str
    file: Path | None = None
    model: str | None = None
    tracking_uri: str | None = None
    predictions: Predictions | None = None
    rival: Path | None = None
    label: str = ""
    features: tuple[str, ...] = ()
    claim: Exact | None = None
    estimator: AnyEstimator = "accuracy"
    options: dict[str, Exact] = Field(default_factory=dict)
    default: Exact | None = None
    notes: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _check_sources(self) -> Submission:
        sources = [name for name in _SOURCES if getattr(self, name) is not None]
        if len(sources) > 1:
            raise ValueError("give one of file, model and predictions")
        in_sql = isinstance(self.estimator, SqlEstimator)
        if self.tracking_uri is not None and self.model is None:
            raise ValueError("tracking_uri says where a model is; name the model, or leave it out")
        if self.predictions is not None and self.features:
            raise ValueError(
                "predictions are looked up by their id and read no features; leave them out"
            )
        if in_sql and (self.options or self.default is not None):
            raise ValueError(
                "an estimator in SQL has its default in itself, and no options; leave both out"
            )
        if self.predictions is None and not self.features and not (in_sql and not sources):
            raise ValueError("name the features it reads")
        return self

    @property
    def source_field(self) -> str:
        """Which of file, model and predictions it brings; "" if none."""
        return next((name for name in _SOURCES if getattr(self, name) is not None), "")

    @property
    def source(self) -> str:
        """Where it comes from, as a URI."""
        if self.model is not None:
            return self.model
        file = self.file or (self.predictions.database if self.predictions else None)
        return file.resolve().as_uri() if file else "estimator:" + self.measure

    @property
    def measure(self) -> str:
        """The estimator's name or SQL."""
        return self.estimator if isinstance(self.estimator, str) else self.estimator.sql

    @property
    def columns(self) -> tuple[str, ...]:
        """What it reads: the label, then features or the row id."""
        inputs = (self.predictions.id,) if self.predictions else self.features
        return (self.label, *inputs) if self.label else inputs


@dataclass(frozen=True)
class Candidate:
    """A loaded submission. ``digest`` covers what a model is made of or a table's predictions, columns and
    the estimator with its options, and neither name, claim, place nor how a file is written.
    ``predicts_rows_alone``: whether a row's prediction is the same bit for bit whatever other rows are
    predicted with it.
    """

    submission: Submission
    digest: str
    predict: Callable[[Rows], Any] | None = field(default=None, repr=False)
    score: Callable[[Rows], Any] | None = field(default=None, repr=False)
    rival: Callable[[Rows], Any] | None = field(default=None, repr=False)
    predicts_rows_alone: bool = False

    def query(self) -> dict[str, Any]:
        """The question that a gate is asked about it."""
        submission = self.submission
        return {
            "estimator": submission.model_dump(mode="json")["estimator"],
            "claim": None if submission.claim is None else str(submission.claim),
            "candidate": self.digest,
            "columns": list(submission.columns),
            "options": {name: str(value) for name, value in submission.options.items()},
            "default": None if submission.default is None else str(submission.default),
        }


def _require_fixed_function(name: str, file: Path, data: bytes) -> None:
    """Refuse a file with anything that may answer differently the next time. Raises `InvalidInput`."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            classes = set(_class_names(json.loads(archive.read("schema.json"))))
    except (zipfile.BadZipFile, KeyError, ValueError):
        raise InvalidInput(f"candidate {name}: {file} is not a skops file") from None
    odd = {t for t in classes if t.startswith("sklearn.") and not t.startswith(FIXED)}
    odd |= {t for t in classes if t.startswith("numpy.random")}
    if odd:
        raise InvalidInput(
            f"candidate {name} holds {', '.join(sorted(odd)[:5])}, which may not be a fixed function of its input; "
            f"save another fitted estimator: a linear model, tree, forest, bagging, AdaBoost or naive Bayes, or a pipeline of "
            f"scalers, simple imputers or polynomials before it, with random_state an integer or None"
        )


def _class_names(node: Any) -> Iterator[str]:
    """Every class named in a skops schema."""
    if isinstance(node, dict):
        if "__class__" in node:
            yield f"{node.get('__module__')}.{node['__class__']}"
        node = list(node.values())
    if isinstance(node, list):
        for child in node:
            yield from _class_names(child)


def load_candidate(submission: Submission) -> Candidate:
    """Load what a submission names and digest it. Raises `InvalidInput` for a missing file or one
    that would run foreign code.
    """
    # What it is called, said to be worth and lies in is no part of what it is.
    about = hashlib.sha256(
        submission.model_dump_json(
            include={"label", "features", "estimator", "options", "default"}
        ).encode()
    )
    predict: Callable[[Rows], Any] | None = None
    score: Callable[[Rows], Any] | None = None
    rival: Callable[[Rows], Any] | None = None
    # A table's predictions are looked up; without a model there are none.
    alone = True
    if submission.predictions is not None:
        table = read_predictions(
            **submission.predictions.model_dump(exclude={"score"}),
            score=submission.predictions.score,
        )
        about.update(table.digest)
        predict, score = table.predict, table.score
    elif submission.file is not None or submission.model is not None:
        file = submission.file or _find_registered(submission)
        model, identity, alone = _load_row_wise(submission, file)
        # Each of one length, so that no two make the text of a third.
        about.update(b"\0" + identity)
        predict, score = _make_predictor(submission, model), _make_scorer(submission, model)
    if submission.rival is not None:
        other, identity, rival_alone = _load_row_wise(submission, submission.rival)
        alone = alone and rival_alone
        about.update(b"\0\0" + identity)
        rival = _make_predictor(submission, other)
    return Candidate(submission, about.hexdigest(), predict, score, rival, alone)


def _find_registered(submission: Submission) -> Path:
    """The skops file of a model in MLflow."""
    try:
        return mlflow_models.find_file(str(submission.model), submission.tracking_uri)
    except InvalidInput as error:
        raise InvalidInput(f"candidate {submission.name}: {error}") from None


def _load_row_wise(submission: Submission, file: Path) -> tuple[Any, bytes, bool]:
    """A model, as one that predicts each row alone if there is such a one, its identity, and whether
    there is.
    """
    model = _load_model(submission, file)
    identity, row_wise = digest_model(model), make_row_wise(model)
    return (model, identity, False) if row_wise is None else (row_wise, identity, True)


def _load_model(submission: Submission, file: Path) -> Any:
    with require_extra("gate", "a candidate"), warnings.catch_warnings():
        # At import it looks into every loaded module, where deprecated names complain.
        warnings.simplefilter("ignore")
        import skops.io

    try:
        data = file.read_bytes()
    except OSError:
        raise InvalidInput(
            f"candidate {submission.name}: there is no readable file {file}"
        ) from None
    # Before skops makes an object of it.
    _require_fixed_function(submission.name, file, data)
    try:
        untrusted = sorted(set(skops.io.get_untrusted_types(data=data)) - set(TRUSTED))
        model = None if untrusted else skops.io.loads(data, trusted=list(TRUSTED))
    except Exception:  # noqa: BLE001  anything can be in a file that is not skops
        raise InvalidInput(f"candidate {submission.name}: {file} is not a skops file") from None
    if untrusted:
        raise InvalidInput(
            f"candidate {submission.name} holds types that are not scikit-learn's or numpy's: {', '.join(untrusted[:5])}; "
            f"save an estimator made of those only"
        )
    if (odd := find_odd_part(model)) is not None:
        raise InvalidInput(
            f"candidate {submission.name}: {odd} in {file} is not as scikit-learn fits it; save a fitted estimator as it is"
        )
    _require_features(submission, model, file)
    return model


def _require_features(submission: Submission, model: Any, file: Path) -> None:
    """Raises `InvalidInput` for a model of other features: it would fail on every row, and its no would
    be paid for.
    """
    expected, given = getattr(model, "n_features_in_", None), submission.features
    if expected is not None and expected != len(given):
        raise InvalidInput(
            f"candidate {submission.name}: {file} was fitted on {expected} features, and {len(given)} are named; name those "
            f"that it was fitted on"
        )
    # Names of a data frame; other names than the table's may be meant as they are.
    order = tuple(map(str, getattr(model, "feature_names_in_", ())))
    if order and order != given and set(order) == set(given):
        raise InvalidInput(
            f"candidate {submission.name}: {file} was fitted on features in the order {', '.join(order[:20])}; name them in it"
        )


def _feature_matrix(submission: Submission, rows: Rows) -> Any:
    return np.column_stack([np.asarray(rows[name], dtype=float) for name in submission.features])


def _make_predictor(submission: Submission, model: Any) -> Callable[[Rows], Any]:
    """Predictions for the rows of one group."""
    return lambda rows: model.predict(_feature_matrix(submission, rows))


def _make_scorer(submission: Submission, model: Any) -> Callable[[Rows], Any]:
    """Scores: the probability of the second class, else the decision function, else the predictions
    themselves.
    """

    def score_rows(rows: Rows) -> Any:
        matrix = _feature_matrix(submission, rows)
        # Probabilities first: their order is what scores mean for most estimators.
        if hasattr(model, "predict_proba"):
            return model.predict_proba(matrix)[:, 1]
        return (
            model.decision_function(matrix)
            if hasattr(model, "decision_function")
            else model.predict(matrix)
        )

    return score_rows
