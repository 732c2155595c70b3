"""A list of questions to one session: what the operator and the command line share."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dpflow.core.contract.interactive import InteractiveMechanism
from dpflow.engine.releases.plan import Plan
from dpflow.engine.sessions.candidate import Predictions
from dpflow.engine.sessions.holdout_gate import (
    Promotes,
    check_candidates,
    judge,
    read_tables_together,
    require_gate,
)
from dpflow.engine.sessions.session import Session
from dpflow.errors import InvalidInput, SessionClosed
from dpflow.ledger import Ledger
from dpflow.registry import Registry
from dpflow.tables import read_predictions


def check_questions(
    plan: Plan,
    ledger: Ledger,
    registry: Registry,
    queries: Sequence[Mapping[str, Any]],
    base: Path,
) -> None:
    """Check a list for `ask_all` before the session is charged; reads no row.

    Args:
        base: as of `ask_all`.

    Raises:
        InvalidInput: a query cannot be asked, or a candidate cannot be judged.
        PlanRefused: a candidate is for a gate, and this is another session.
    """
    _require_mappings(queries)
    # Opening refuses what is no session.
    if isinstance(plan.mechanism, InteractiveMechanism):
        unopened = Session("", "", plan, ledger, registry)
        for query in queries:
            if "name" not in query:
                unopened.check_question(query)
        if candidates := [resolve_paths(query, base) for query in queries if "name" in query]:
            require_gate(plan)
            check_candidates([plan], ledger, candidates)


def _require_mappings(queries: Sequence[object]) -> None:
    if not all(isinstance(query, Mapping) for query in queries):
        raise InvalidInput(
            "queries are a list of mappings, such as - {estimator: column_mean, columns: [age]}"
        )


def ask_all(
    session: Session,
    queries: Sequence[Mapping[str, Any]],
    base: Path,
    promoter: Promotes | None = None,
) -> list[dict[str, Any]]:
    """Ask in order. A query with a ``name`` is a candidate for a gate; any other is the mechanism's
    own query.

    A query after the session was used up is answered ``exhausted``; one that was answered before
    gets its stored answer.

    Args:
        base: the folder that relative paths of candidates are taken from.
    """
    _require_mappings(queries)
    queries = [resolve_paths(query, base) if "name" in query else query for query in queries]
    answers = []
    with read_tables_together(session, queries):
        for query in queries:
            if "name" in query:
                answers.append(judge(session, query, promoter))
                continue
            try:
                answers.append(session.ask(query))
            # Later queries may have stored answers, so the list goes on.
            except SessionClosed:
                answers.append({"verdict": "exhausted"})
    return answers


def resolve_paths(submission: Mapping[str, Any], base: Path) -> dict[str, Any]:
    """A submission with its paths taken from a folder; absolute, for a champion is scored later."""
    base = base.absolute()
    submission_here = dict(submission)
    for name in ("file", "rival"):
        if submission_here.get(name) is not None:
            submission_here[name] = base / str(submission_here[name])
    if isinstance(submission_here.get("predictions"), Mapping):
        predictions = dict(submission_here["predictions"])
        submission_here["predictions"] = predictions | {
            "database": base / str(predictions.get("database", ""))
        }
    return submission_here


def load_upload(submission: Mapping[str, Any]) -> dict[str, Any]:
    """A submission for a service: files as bytes, predictions by row id. Raises `InvalidInput`, also for a model in
    MLflow, which a service does not fetch.
    """
    upload = {name: value for name, value in submission.items() if name != "notes"}
    if "model" in upload:
        raise InvalidInput(
            f"candidate {upload['name']!r} names a model in MLflow, and a service gets the model itself; save it by skops and "
            f"name the file"
        )
    for name in ("file", "rival"):
        if upload.get(name) is not None:
            try:
                upload[name] = Path(upload[name]).read_bytes()
            except OSError:
                raise InvalidInput(
                    f"candidate {upload['name']!r}: there is no readable file {upload[name]}"
                ) from None
    if upload.get("predictions") is not None:
        place = Predictions.model_validate(upload["predictions"])
        table = read_predictions(**place.model_dump())
        scores = None if table.scores is None else _list_numbers(table.scores)
        upload["predictions"] = {
            "column": place.id,
            "ids": table.list_ids(),
            "predictions": _list_numbers(table.predictions),
            "scores": scores,
        }
    return upload


def _list_numbers(values: Any) -> list[float | None]:
    return [None if math.isnan(value) else value for value in values.tolist()]
