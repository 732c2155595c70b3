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
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import numpy as np
from pydantic import Field, model_validator

from dpflow.core.contract.columns import Column
from dpflow.core.contract.estimators import AnyEstimator, Rows, SqlEstimator
from dpflow.core.contract.strict_models import Exact, Strict
from dpflow.engine.sessions import mlflow_models
from dpflow.engine.sessions.model_identity import digest_model
from dpflow.engine.sessions.model_parts import find_odd_part
from dpflow.engine.sessions.row_wise_models import make_row_wise
from dpflow.errors import InvalidInput
from dpflow.extras import require_extra
from dpflow.tables import PredictionTable, read_predictions

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
#: Bytes of a model's file when it is unpacked.
MAX_UNPACKED = 2**30


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


class CandidateStopped(Exception):
    """The process of a model died, or took too long."""


@dataclass(frozen=True)
class LoadedModel:
    """A fixed function of a matrix of features, in this process or another one.

    Attributes:
        identity: digest of what the model is made of.
        predicts_rows_alone: as of `Candidate`.
        predict, score: of each row of a matrix; see `Submission`.
        require_running: raises `CandidateStopped` if the process that computes them ended.
    """

    identity: bytes
    predicts_rows_alone: bool
    predict: Callable[[Any], Any] = field(repr=False)
    score: Callable[[Any], Any] = field(repr=False)
    require_running: Callable[[], None] = field(default=lambda: None, repr=False)


#: Loads a model: the candidate's name, its features, its skops file.
Found = TypeVar("Found")
ModelLoader = Callable[[str, Sequence[str], Path], LoadedModel]


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
    models: tuple[LoadedModel, ...] = field(default=(), repr=False)
    table: PredictionTable | None = field(default=None, repr=False)

    def match_ids(self, kind: str, declared: Column) -> Candidate:
        """The same, whose table of predictions is looked up by ids as rows have them. Raises `InvalidInput`."""
        if self.table is None:
            return self
        table = self.table.match_type(kind, declared)
        return replace(self, predict=table.predict, score=table.score)

    def require_running(self) -> None:
        """Raise `CandidateStopped` if a process of its models ended, whatever scores there are meanwhile."""
        for model in self.models:
            model.require_running()

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


def _require_fixed_function(name: str, file: str, data: bytes) -> None:
    """Refuse a file with anything that may answer differently the next time. Raises `InvalidInput`."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            # No more than this is read of a member, whatever is in the file.
            unpacked = sum(member.file_size for member in archive.infolist())
            if unpacked > MAX_UNPACKED:
                raise InvalidInput(
                    f"candidate {name}: {file} has more than {MAX_UNPACKED} bytes unpacked; save a smaller model"
                )
            classes = set(_class_names(json.loads(archive.read("schema.json"))))
    except (
        zipfile.BadZipFile,
        zlib.error,
        NotImplementedError,
        RuntimeError,
        EOFError,
        KeyError,
        ValueError,
    ):
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


def load_candidate(submission: Submission, load: ModelLoader | None = None) -> Candidate:
    """Load what a submission names and digest it.

    Args:
        load: loads a model's file; `load_model` if left out.

    Raises:
        InvalidInput: for a missing file or one that would run foreign code.
    """
    load = load or load_model
    # What it is called, said to be worth and lies in is no part of what it is.
    about = hashlib.sha256(
        submission.model_dump_json(
            include={"label", "features", "estimator", "options", "default"}
        ).encode()
    )
    predict: Callable[[Rows], Any] | None = None
    score: Callable[[Rows], Any] | None = None
    rival: Callable[[Rows], Any] | None = None
    models: list[LoadedModel] = []
    table: PredictionTable | None = None
    if submission.predictions is not None:
        table = read_predictions(
            **submission.predictions.model_dump(exclude={"score"}),
            score=submission.predictions.score,
        )
        about.update(table.digest)
        predict, score = table.predict, table.score
    elif submission.file is not None or submission.model is not None:
        if submission.model is not None:
            submission = name_version(submission)
        with TemporaryDirectory() as scratch:
            file = submission.file or _find_registered(submission, Path(scratch))
            model = load(submission.name, submission.features, file)
        # Each of one length, so that no two make the text of a third.
        about.update(b"\0" + model.identity)
        predict, score = _of_rows(submission, model.predict), _of_rows(submission, model.score)
        models.append(model)
    if submission.rival is not None:
        other = load(submission.name, submission.features, submission.rival)
        about.update(b"\0\0" + other.identity)
        rival = _of_rows(submission, other.predict)
        models.append(other)
    # A table's predictions are looked up; without a model there are none.
    alone = all(model.predicts_rows_alone for model in models)
    return Candidate(
        submission, about.hexdigest(), predict, score, rival, alone, tuple(models), table
    )


def name_version(submission: Submission) -> Submission:
    """A submission of a model in MLflow, by its version instead of an alias: what is kept of it stays true."""
    named = _look_up(mlflow_models.name_version, submission)
    return submission.model_copy(update={"model": named})


def _find_registered(submission: Submission, scratch: Path) -> Path:
    """The skops file of a model in MLflow."""
    return _look_up(partial(mlflow_models.find_file, scratch=scratch), submission)


def _look_up(find: Callable[[str, str | None], Found], submission: Submission) -> Found:
    try:
        return find(str(submission.model), submission.tracking_uri)
    except InvalidInput as error:
        raise InvalidInput(f"candidate {submission.name}: {error}") from None


def load_model(name: str, features: Sequence[str], file: Path) -> LoadedModel:
    """Load a model into this process. Raises `InvalidInput` for a file that is none, or holds anything but a
    fixed function of these features.
    """
    try:
        data = file.read_bytes()
    except OSError:
        raise InvalidInput(f"candidate {name}: there is no readable file {file}") from None
    return load_bytes(name, features, str(file), data)


def load_bytes(name: str, features: Sequence[str], file: str, data: bytes) -> LoadedModel:
    """The same of a file's content. The model predicts each row alone if there is such a one."""
    model = _load_estimator(name, file, data)
    if not callable(getattr(model, "predict", None)):
        raise InvalidInput(
            f"candidate {name}: {file} holds a {type(model).__name__}, which predicts nothing; save a fitted estimator"
        )
    if (odd := find_odd_part(model)) is not None:
        raise InvalidInput(
            f"candidate {name}: {odd} in {file} is not as scikit-learn fits it; save a fitted estimator as it is"
        )
    _require_features(name, features, model, file)
    row_wise = make_row_wise(model)
    used = model if row_wise is None else row_wise
    return LoadedModel(
        digest_model(model), row_wise is not None, used.predict, partial(_score_matrix, used)
    )


def _load_estimator(name: str, file: str, data: bytes) -> Any:
    with require_extra("gate", "a candidate"), warnings.catch_warnings():
        # At import it looks into every loaded module, where deprecated names complain.
        warnings.simplefilter("ignore")
        import skops.io

    # Before skops makes an object of it.
    _require_fixed_function(name, file, data)
    try:
        untrusted = sorted(set(skops.io.get_untrusted_types(data=data)) - set(TRUSTED))
        model = None if untrusted else skops.io.loads(data, trusted=list(TRUSTED))
    except Exception:  # noqa: BLE001  anything can be in a file that is not skops
        raise InvalidInput(f"candidate {name}: {file} is not a skops file") from None
    if untrusted:
        raise InvalidInput(
            f"candidate {name} holds types that are not scikit-learn's or numpy's: {', '.join(untrusted[:5])}; "
            f"save an estimator made of those only"
        )
    return model


def _require_features(name: str, features: Sequence[str], model: Any, file: str) -> None:
    """Raises `InvalidInput` for a model of other features: it would fail on every row, and its no would
    be paid for.
    """
    expected = getattr(model, "n_features_in_", None)
    if expected is not None and expected != len(features):
        raise InvalidInput(
            f"candidate {name}: {file} was fitted on {expected} features, and {len(features)} are named; name those "
            f"that it was fitted on"
        )
    # Names of a data frame; other names than the table's may be meant as they are.
    order = tuple(map(str, getattr(model, "feature_names_in_", ())))
    if order and order != tuple(features) and set(order) == set(features):
        raise InvalidInput(
            f"candidate {name}: {file} was fitted on features in the order {', '.join(order[:20])}; name them in it"
        )


def _of_rows(submission: Submission, function: Callable[[Any], Any]) -> Callable[[Rows], Any]:
    """A model's function for the rows of one group."""

    def apply(rows: Rows) -> Any:
        columns = [np.asarray(rows[name], dtype=float) for name in submission.features]
        return function(np.column_stack(columns))

    return apply


def _score_matrix(model: Any, matrix: Any) -> Any:
    """Scores: the probability of the second class, else the decision function, else the predictions
    themselves.
    """
    # Probabilities first: their order is what scores mean for most estimators.
    if hasattr(model, "predict_proba"):
        return model.predict_proba(matrix)[:, 1]
    if hasattr(model, "decision_function"):
        return model.decision_function(matrix)
    return model.predict(matrix)
