"""A table of points in, a table of private answers out: for the operator and the command line."""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError

from dpflow.core.contract.prediction import PredictionParams
from dpflow.core.contract.strict_models import Strict, describe_problems
from dpflow.engine.prediction.session import (
    BATCH,
    PredictionSession,
    most_predictions,
    require_predictions,
)
from dpflow.engine.prediction.student import (
    Student,
    make_estimator,
    require_registry,
    student_guarantee,
    teach_student,
)
from dpflow.engine.releases.plan import Plan
from dpflow.engine.releases.released_bounds import compose_event
from dpflow.engine.releases.request import Publish, require_public
from dpflow.engine.releases.run_identity import RunIdentity
from dpflow.errors import InvalidDeclaration
from dpflow.ledger import Ledger
from dpflow.registry import Registry
from dpflow.tables import check_answers, publish_answers, read_points

log = logging.getLogger("dpflow")


class Points(Strict):
    """A public DuckDB table of query points: its columns are the session's features, ``key`` names
    each point.
    """

    database: Path
    table: str
    key: str
    batch: Annotated[int, Field(ge=1, le=10**7)] = BATCH


def parse_tables(
    points: Mapping[str, Any], answers: Mapping[str, Any], base: Path
) -> tuple[Points, Publish]:
    """Both tables, paths taken from ``base``. Raises `InvalidDeclaration` naming the field."""
    tables: list[Any] = []
    for what, model, fields in (("points", Points, points), ("answers", Publish, answers)):
        try:
            table = model.model_validate(dict(fields))
        except ValidationError as error:
            raise InvalidDeclaration(f"{what}: {describe_problems(error)}") from None
        tables.append(table.model_copy(update={"database": (base / table.database).resolve()}))
    return tables[0], tables[1]


def label_points(
    plan: Plan,
    points: Points,
    answers: Publish,
    ledger: Ledger,
    registry: Registry,
    *,
    student: Student | None = None,
    run_identity: RunIdentity | None = None,
    interval: dt.datetime | None = None,
) -> dict[str, Any]:
    """Answer every point of a table and publish the answers. A retry is free and writes the same.

    Args:
        interval: the start of the run's interval, as of `publish_answers`.
        student: a model to train on points and answers, which may be published.

    Returns: session id, number of points, how many of them have a value beyond the declared range, the end of which stood
        for it (``clamped``), how many predictions are left, and what `teach_student` says of the student.

    Raises:
        PlanRefused: points or answers are in the private table's own file: points are published by
        their keys.
        SessionClosed: more new points than predictions are left.
        BudgetExceeded, InvalidInput, TableError, NotPublished: as for a release.
    """
    require_predictions(plan)
    params = plan.params
    assert isinstance(params, PredictionParams)
    require_public(points.database, plan.table, "points")
    require_public(answers.database, plan.table, "answers")
    check_answers(answers.database, answers.table)
    # Before anything is charged: a student that cannot be trained is refused.
    event = compose_event(plan, ledger, run_identity)
    if student is not None:
        student_guarantee(event, student.delta)
        make_estimator(student, plan.table, params.features)
        require_registry(student)
    features = read_points(points.database, points.table, params.features, points.key)
    # A resumed session is paid for, so there is nothing to advise.
    key = (run_identity or RunIdentity.of_request(plan.request)).key(plan)
    if ledger.find(key) is None:
        afforded = most_predictions(plan, ledger, registry)
        log.info(
            "scope %s pays for %d predictions, %d are planned",
            plan.request.scope,
            afforded,
            params.predictions,
        )
    session = PredictionSession.open(plan, ledger, run_identity=run_identity)
    keys = features.pop("").tolist()
    encoded = session.encode(features)
    labels = session.predict(features, batch=points.batch)
    # Answers first: they are charged, and a student may still fail to be trained.
    publish_answers(answers.database, answers.table, session.id, keys, labels, interval)
    taught = (
        None
        if student is None
        else teach_student(plan, event, session.id, encoded.codes, labels, student)
    )
    return {
        "session_id": session.id,
        "points": len(keys),
        "clamped": int(encoded.clamped.sum()),
        "predictions_left": session.predictions_left,
        "published": f"{answers.database.name}:{answers.table}",
    } | ({"student": taught} if taught else {})
