"""Whether an estimator uses what a candidate brings: a field that it ignores, or a label that it does not know, would
be a claim about something else.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import numpy as np

from dpflow.core.contract.columns import Column
from dpflow.core.contract.declaration import Table
from dpflow.core.contract.estimators import Estimator, Rows
from dpflow.engine.sessions.candidate import Candidate, Submission
from dpflow.errors import PlanRefused


def require_used_by_name(estimator: Estimator, submission: Submission, table: Table) -> None:
    """Raises `PlanRefused` for a field that a named estimator does not use, or lacks, and for a label that it takes for
    something else.
    """
    reads = {"": (), "one": ("prediction",), "two": ("prediction", "rival")}[estimator.model]
    name = f"estimator {estimator.name!r}"
    _require_sources(name, reads, submission)
    if not estimator.model and submission.label:
        _refuse(submission, "label", f"{name} predicts none; name the columns it reads as features")
    if estimator.model and not submission.label:
        raise PlanRefused(
            f"candidate {submission.name!r} names no label, and {name} compares predictions with it"
        )
    if estimator.model:
        _require_known_label(estimator, submission.label, table)
    n = estimator.columns
    if not estimator.model and not estimator.more_columns and len(submission.features) > n:
        _refuse(submission, f"{len(submission.features)} features", f"{name} reads the first {n}")


def _require_known_label(estimator: Estimator, label: str, table: Table) -> None:
    column = table.column(label)
    if estimator.label == "number" and (column.lower is None or column.bounds_are_times):
        wants = "a label that is a number"
        how = f"declare its lower and upper in table {table.name!r}"
    elif estimator.label == "binary" and not (column.lower == 0 and column.upper == 1):
        wants = "a label of 0 and 1, of which 1 is positive"
        how = f"declare such a column in table {table.name!r}, as by expression, with lower: 0 and upper: 1"
    else:
        return
    raise PlanRefused(f"estimator {estimator.name!r} takes {wants}, and {label!r} is none; {how}")


def require_comparable(candidate: Candidate, label: str, label_type: str) -> None:
    """Raises `PlanRefused` for a candidate that predicts texts or times of a label of numbers, or numbers of one of texts:
    no prediction could be right.

    Args:
        label_type: the label's type in the database.
    """
    wanted = "texts" if _is_text(label_type) else "numbers"
    zeros = {name: np.zeros(1) for name in candidate.submission.features}
    for who, predict in (("candidate", candidate.predict), ("rival", candidate.rival)):
        if predict is None:
            continue
        # Predictions that are stored are numbers.
        said = np.zeros(1) if candidate.submission.predictions else np.asarray(predict(zeros))
        kind = "texts" if isinstance(said.tolist()[0], str) else "numbers"
        kind = "times" if said.dtype.kind == "M" else kind
        if kind != wanted:
            raise PlanRefused(
                f"{who} {candidate.submission.name!r} predicts {kind}, and label {label!r} is read as {wanted}, so no prediction "
                f"could be right; fit it on labels as the gate reads them, dates as days since 1970"
            )


def require_numbers(submission: Submission, type_of: Callable[[str], str]) -> None:
    """Raises `PlanRefused` for a model's feature that is a text: some texts would be read as numbers, and others fail.

    Args:
        type_of: a column's type in the database.
    """
    for name in () if submission.predictions else submission.features:
        if _is_text(type_of(name)):
            raise PlanRefused(
                f"candidate {submission.name!r} reads feature {name!r}, a {type_of(name)}, and models read numbers; declare a column "
                f"of numbers or dates, as by expression"
            )


def predict_floats(predict: Callable[[Rows], Any], label: Column) -> Callable[[Rows], Any]:
    """Predictions of a FLOAT label as that label is read: of 4 bytes, and its declared bounds of 8."""
    ends = np.array([end for end in (label.lower, label.upper) if end is not None], dtype=float)

    def apply(rows: Rows) -> Any:
        said = np.asarray(predict(rows)).astype(np.float32)
        values = said.astype(float)
        if not ends.size:
            return values
        # What is outside of the bounds stays wrong.
        is_end = np.isin(said, ends.astype(np.float32))
        return np.where(is_end, np.clip(values, ends.min(), ends.max()), values)

    return apply


def _is_text(column_type: str) -> bool:
    return column_type.upper().startswith(("VARCHAR", "STRING", "ENUM"))


def require_one_label(submissions: Collection[Submission]) -> None:
    """Raises `PlanRefused` for candidates that predict different labels: how often each is right says nothing about which is
    better. Of a metric that reads none there is none.
    """
    labels = list(dict.fromkeys(one.label for one in submissions if one.label))
    if len(labels) > 1:
        raise PlanRefused(
            f"candidates and champion predict {' and '.join(map(repr, labels))}, and a comparison is of one label; name another "
            f"registered model, alias or champion file for each label"
        )


def require_used_by_sql(
    columns: Collection[str], said: Collection[str], submission: Submission
) -> None:
    """Raises `PlanRefused` for a field that an estimator in SQL does not use, or lacks.

    Args:
        columns: those of the table that it names.
        said: those of the candidate that it names, such as ``candidate.prediction``.
    """
    reads = [name.removeprefix("candidate.") for name in said]
    _require_sources("the estimator's SQL", reads, submission)
    if submission.label and submission.label not in columns:
        _refuse(submission, f"label {submission.label!r}", "the estimator's SQL never names it")
    if submission.features and not reads:
        _refuse(submission, "features", "the estimator's SQL names its columns itself")


def _require_sources(name: str, reads: Collection[str], submission: Submission) -> None:
    if submission.source_field and not {"prediction", "score"} & set(reads):
        _refuse(
            submission,
            submission.source_field,
            f"{name} never calls it; a gate on models needs a metric that scores them, such as accuracy",
        )
    if reads and not submission.source_field:
        raise PlanRefused(
            f"candidate {submission.name!r} brings no file, model or predictions, and {name} scores one"
        )
    if submission.rival is not None and "rival" not in reads:
        _refuse(submission, "a rival", f"{name} compares no two models")
    if "rival" in reads and submission.rival is None:
        raise PlanRefused(f"{name} compares two models; give the candidate a rival")


def _refuse(submission: Submission, field: str, why: str) -> None:
    raise PlanRefused(f"candidate {submission.name!r} brings {field}, and {why}")
