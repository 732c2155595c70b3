"""A model that may be published: trained on a public pool of points that were labelled by private
predictions.

A function of private answers and public points is post-processing, so the student costs nothing
beyond its session. It has the session's privacy guarantee for the private table (Dwork and Feldman
2018, section 2.4). It does not protect the pool. What is written is a model as MLflow saves it, of one skops file; what is
registered says what it guarantees. A holdout gate judges a student of numbers like any other model, and one that
reads keys by a table of its predictions.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field, ValidationError, model_validator

from dpflow.core.accounting import amounts
from dpflow.core.accounting.amounts import Delta
from dpflow.core.accounting.events import Event, to_json
from dpflow.core.contract.declaration import Table
from dpflow.core.contract.point_encoding import Codes
from dpflow.core.contract.prediction import PredictionParams
from dpflow.core.contract.strict_models import Strict, describe_problems
from dpflow.engine.releases.plan import Plan
from dpflow.engine.sessions.mlflow_models import (
    is_server,
    keep_model,
    list_versions,
    open_registry,
    registry_in_reach,
)
from dpflow.error_boundary import errors_end_here
from dpflow.errors import InvalidDeclaration, InvalidInput, UnknownName
from dpflow.extras import require_extra

#: A computed epsilon is rounded up to it.
_GRID = amounts.SMALLEST_EPSILON


class Student(Strict):
    """What is trained and where it goes.

    ``folder``: where the model is written, named by what it was learned from. ``learner`` and
    ``options``: a scikit-learn estimator; it sees numbers scaled and keys one-hot, by the pool
    alone. ``model`` and ``tracking_uri``: the registered model in MLflow, or neither. ``delta``: at
    which epsilon is stated, 0 for the sum over all predictions.
    """

    folder: Path
    learner: str = "LogisticRegression"
    options: dict[str, Any] = Field(default_factory=dict)
    model: str | None = None
    tracking_uri: str | None = None
    delta: Delta = Fraction(0)

    @model_validator(mode="after")
    def _check_registry(self) -> Student:
        if (self.model is None) != (self.tracking_uri is None):
            raise ValueError("give both model and tracking_uri, or neither")
        return self


def parse_student(raw: Mapping[str, Any], base: Path) -> Student:
    """A student as a mapping, its folder taken from ``base``. Raises `InvalidDeclaration` naming
    the field.
    """
    try:
        student = Student.model_validate(dict(raw))
    except ValidationError as error:
        raise InvalidDeclaration(f"student: {describe_problems(error)}") from None
    return student.model_copy(update={"folder": (base / student.folder).resolve()})


def student_guarantee(event: Event, delta: Fraction) -> tuple[str, str]:
    """Epsilon and delta of everything that the session ever answers, and of what its bounds were taken from
    (`compose_event`). Raises `InvalidInput` where it needs a delta.
    """
    exact = event.epsilon_delta()
    if exact is not None and exact[1] >= delta:
        epsilon, delta = exact
    else:
        at = event.epsilon_at(delta)
        if at is None:
            raise InvalidInput(
                "the session's guarantee has no epsilon at this delta; give the student one, such as 1e-6"
            )
        epsilon = at
    return amounts.exact_text(amounts.to_units_up(epsilon, _GRID) * _GRID), amounts.exact_text(
        delta
    )


def make_estimator(student: Student, table: Table, features: Sequence[str]) -> Any:
    """The unfitted pipeline. Raises `UnknownName` or `InvalidDeclaration`."""
    # All that a student needs, before the first answer is paid for.
    with require_extra("gate", "a student"):
        import mlflow  # noqa: F401
        import skops.io  # noqa: F401
        from sklearn.compose import ColumnTransformer
        from sklearn.pipeline import Pipeline
        from sklearn.preprocessing import OneHotEncoder, StandardScaler
        from sklearn.utils import all_estimators

    learners = dict(all_estimators(type_filter=["classifier", "regressor"]))
    if student.learner not in learners:
        raise UnknownName("scikit-learn estimator", student.learner, learners)
    try:
        learner = learners[student.learner](**student.options)
        learner._validate_params()
    except Exception as error:  # noqa: BLE001  whatever a constructor objects to
        raise InvalidDeclaration(
            f"{student.learner} does not take the options {sorted(student.options)}: {error}"
        ) from None
    # Encoded by position: pipelines see a matrix without names.
    keys = {i: table.column(name).public_keys for i, name in enumerate(features)}
    keyed = [i for i in keys if keys[i] is not None]
    if not keyed:
        # Of what a gate can judge.
        return Pipeline([("numbers", StandardScaler()), ("learner", learner)])
    encoder = OneHotEncoder(
        categories=[list(keys[i] or ()) for i in keyed], handle_unknown="ignore"
    )
    numbers = ("numbers", StandardScaler(), [i for i in keys if keys[i] is None])
    columns = ColumnTransformer([numbers, ("keys", encoder, keyed)])
    return Pipeline([("columns", columns), ("learner", learner)])


def require_registry(student: Student) -> None:
    """Make the registered model of a student, if it names one, before the first answer is paid for. Raises
    `NotPublished` or `InvalidInput`.
    """
    if student.model is not None:
        open_registry(student.model, str(student.tracking_uri))


def pool_matrix(table: Table, features: Sequence[str], codes: Codes) -> Any:
    """Encoded points as the student sees them: numbers within their bounds, keys as texts ("" where
    there is none).
    """
    columns: list[Any] = []
    for name, code in zip(features, codes.T):
        column = table.column(name)
        if column.public_keys is None:
            columns.append(code * float(column.step))
        else:
            columns.append(np.array([*column.public_keys, ""], dtype=object)[code])
    mixed = any(column.dtype == object for column in columns)
    return np.stack(columns, axis=1).astype(object if mixed else float)


@errors_end_here
def teach_student(
    plan: Plan,
    event: Event,
    session_id: str,
    codes: Codes,
    answers: Sequence[Any],
    student: Student,
) -> dict[str, Any]:
    """Train on points and their stored answers, write the file, register it. Again, the same file
    and version.

    Args:
        event: as `compose_event` says.

    Returns:
        file, epsilon, delta, number of points, and the version if it was registered.

    Raises:
        InvalidInput: the learner cannot learn from these answers (which are public), no epsilon
        at this delta, or MLflow refuses the student for good.
        NotPublished: MLflow does not answer; a retry costs nothing.
    """
    assert isinstance(plan.params, PredictionParams)
    table, features = plan.table, plan.params.features
    epsilon, delta = student_guarantee(event, student.delta)
    # A point whose draw failed has no label.
    answered_points = np.array([answer is not None for answer in answers], bool)
    labels = np.array([answer for answer in answers if answer is not None])
    pipeline = make_estimator(student, table, features)
    try:
        pipeline.fit(pool_matrix(table, features, codes[answered_points]), labels)
    except ValueError as error:
        raise InvalidInput(
            f"{student.learner} cannot learn from these {len(labels)} answers: {error}"
        ) from None
    # Named by what it was learned from, so that a retry finds it.
    about = hashlib.sha256(
        student.model_dump_json(include={"learner", "options", "delta"}).encode()
    )
    about.update(session_id.encode() + codes.tobytes() + json.dumps(list(answers)).encode())
    file = _save_model(pipeline, student.folder / f"student-{about.hexdigest()[:16]}")
    report = {"file": str(file), "epsilon": epsilon, "delta": delta, "points": len(labels)}
    if student.model is None:
        return report
    tags = {
        "dpflow.student": about.hexdigest(),
        "dpflow.session": session_id,
        "dpflow.epsilon": epsilon,
        "dpflow.delta": delta,
        "dpflow.event": json.dumps(to_json(event)),
        "dpflow.features": json.dumps(list(features)),
        "dpflow.guarantee": f"({epsilon}, {delta})-DP for {table.protection_text} of {table.name}: trained on {len(labels)} public "
        f"points with private labels; the points themselves are not protected",
    }
    return report | {"version": _register_version(student, file, tags)}


def _save_model(pipeline: Any, folder: Path) -> Path:
    """The skops file of a model that MLflow can load, saved whole or not at all."""
    import sklearn
    import skops.io
    from mlflow.sklearn import save_model

    # Renamed when it is whole, so that nobody loads half a model.
    partial = folder.with_suffix(f".{os.getpid()}.partial")
    try:
        if not folder.exists():
            folder.parent.mkdir(parents=True, exist_ok=True)
            save_model(
                pipeline,
                str(partial),
                serialization_format="skops",
                skops_trusted_types=skops.io.get_untrusted_types(data=skops.io.dumps(pipeline)),
                # Named, so that no process is started to find them.
                pip_requirements=[
                    f"scikit-learn=={sklearn.__version__}",
                    f"skops=={skops.__version__}",
                ],
            )
            partial.rename(folder)
    except OSError:
        shutil.rmtree(partial, ignore_errors=True)
        # Another process may have saved the same meanwhile.
        if not folder.exists():
            raise InvalidInput(
                f"{folder.parent} cannot be written; give the student another folder"
            ) from None
    file = folder / "model.skops"
    if not file.is_file():
        raise InvalidInput(f"{folder} has no model any more; remove it and try again")
    return file


@registry_in_reach()
def _register_version(student: Student, file: Path, tags: Mapping[str, str]) -> str:
    """The version of this student, made once. Raises as `registry_in_reach`."""
    model, uri = str(student.model), str(student.tracking_uri)
    client = open_registry(model, uri)
    # A retry finds the version that it made before.
    for version in list_versions(client, model):
        if version.tags.get("dpflow.student") == tags["dpflow.student"]:
            return str(version.version)
    run_id, source = None, file.parent.as_uri()
    if is_server(uri):
        run_id, source = keep_model(client, file.parent.name, file.parent)
    made = client.create_model_version(model, source, run_id, tags=dict(tags))
    return str(made.version)
