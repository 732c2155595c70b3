"""Whether an estimator uses what a candidate brings: a field that it ignores would be a claim about
something else.
"""

from __future__ import annotations

from collections.abc import Collection

from dpflow.core.contract.estimators import Estimator
from dpflow.engine.sessions.candidate import Submission
from dpflow.errors import PlanRefused


def require_used_by_name(estimator: Estimator, submission: Submission) -> None:
    """Raises `PlanRefused` for a field that a named estimator does not use, or lacks."""
    reads = {"": (), "one": ("prediction",), "two": ("prediction", "rival")}[estimator.model]
    name = f"estimator {estimator.name!r}"
    _require_sources(name, reads, submission)
    if not estimator.model and submission.label:
        _refuse(submission, "label", f"{name} predicts none; name the columns it reads as features")
    if estimator.model and not submission.label:
        raise PlanRefused(
            f"candidate {submission.name!r} names no label, and {name} compares predictions with it"
        )
    n = estimator.columns
    if not estimator.model and not estimator.more_columns and len(submission.features) > n:
        _refuse(submission, f"{len(submission.features)} features", f"{name} reads the first {n}")


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
