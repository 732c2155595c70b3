"""`dpflow predict`: answer a table of points from a prediction session, outside Airflow, with the
same guarantees.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from dpflow.cli.console import JsonOption, LedgerOption, open_ledger, show_json, show_table
from dpflow.core.contract.prediction import PredictionMechanism
from dpflow.engine import load_request, make_plan
from dpflow.engine.prediction.batch import label_points, parse_tables
from dpflow.engine.prediction.session import most_predictions
from dpflow.engine.prediction.student import parse_student
from dpflow.errors import InvalidInput
from dpflow.registry import Registry
from dpflow.yaml_files import load_yaml


def command(
    file: Annotated[
        Path, typer.Argument(help="A release file (YAML) with a prediction mechanism.")
    ],
    points: Annotated[
        str | None, typer.Option(metavar="FILE:TABLE", help="A public DuckDB table of points.")
    ] = None,
    key: Annotated[str, typer.Option(help="The column that names a point.")] = "id",
    answers: Annotated[
        str | None, typer.Option(metavar="FILE:TABLE", help="Where the answers are written.")
    ] = None,
    student: Annotated[
        Path | None,
        typer.Option(
            help="A YAML file: folder, learner, model ... of a model to train on the answers."
        ),
    ] = None,
    ledger: LedgerOption = None,
    as_json: JsonOption = False,
) -> None:
    """Answer a table of points from a prediction session.

    Points that were answered before cost nothing.
    Without --points, say how many predictions the scope can pay for.
    """
    registry, book = Registry.load(), open_ledger(ledger, files=[file])
    request = load_request(file)
    plan = make_plan(request, registry, book)
    if not isinstance(plan.mechanism, PredictionMechanism):
        predictors = ", ".join(
            n for n, m in registry.mechanisms.items() if isinstance(m, PredictionMechanism)
        )
        raise InvalidInput(
            f"{plan.mechanism.name} predicts nothing; take one of {predictors}, or run it with release or ask"
        )
    if points is None or answers is None:
        # Half of these options would look like a run that answers nothing.
        if points or answers or student:
            raise InvalidInput(
                "give both --points and --answers, or neither to see what the scope can pay for"
            )
        epsilon, delta = plan.privacy_cost()
        outcome: dict[str, Any] = {
            "session": plan.request.name,
            "predictions planned": plan.request.params.get("predictions"),
            "price of the session": f"epsilon {epsilon}, delta {delta}",
            "predictions the scope can pay for": most_predictions(plan, book, registry),
        }
    else:
        query_table, published = parse_tables(
            {**_parse_place(points), "key": key}, _parse_place(answers), Path()
        )
        taught = (
            None
            if student is None
            else parse_student(load_yaml(student, "student"), student.parent)
        )
        outcome = label_points(plan, query_table, published, book, registry, student=taught)
    if as_json:
        return show_json(outcome)
    # Rows of their own: a mapping in one cell cannot be read.
    taught_rows = {f"student {name}": value for name, value in outcome.pop("student", {}).items()}
    show_table(f"predictions {plan.request.name}", ("", ""), (outcome | taught_rows).items())


def _parse_place(text: str) -> dict[str, str]:
    # From the right: a path may hold a colon.
    database, colon, table = text.rpartition(":")
    if not colon or not database or not table:
        raise InvalidInput(
            f"{text!r} is no table; write FILE:TABLE, such as points.duckdb:tomorrow"
        )
    return {"database": database, "table": table}
