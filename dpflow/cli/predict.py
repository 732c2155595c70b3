"""`dpflow predict`: answer a table of points from a prediction session, outside Airflow, with the
same guarantees.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpflow.cli.console import (
    JsonOption,
    LedgerOption,
    find_service,
    open_ledger,
    show_json,
    show_table,
)
from dpflow.core.contract.prediction import PredictionMechanism
from dpflow.engine import load_request, make_plan
from dpflow.engine.prediction.batch import Points, label_points, parse_tables
from dpflow.engine.prediction.session import most_predictions
from dpflow.engine.prediction.student import parse_student
from dpflow.engine.releases.request import Publish
from dpflow.errors import InvalidInput
from dpflow.registry import Registry
from dpflow.yaml_files import load_yaml

if TYPE_CHECKING:
    from dpflow.client.remote import RemoteClient


def command(
    file: Annotated[
        Path | None,
        typer.Argument(
            help="A release file (YAML) with a prediction mechanism; left out at a service."
        ),
    ] = None,
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
    Without --points, say how many predictions the scope can pay for. A service answers from the session that its
    owner opened for you: leave the file out.
    """
    service = find_service(ledger, None if file is None else file.parent)
    if points is None or answers is None:
        # Half of these options would look like a run that answers nothing.
        if points or answers or student:
            raise InvalidInput(
                "give both --points and --answers, or neither to see what the scope can pay for"
            )
        tables = None
    else:
        tables = parse_tables({**_parse_place(points), "key": key}, _parse_place(answers), Path())
    if service is not None:
        if file is not None or student is not None:
            raise InvalidInput(
                "a service answers from the session of its service file; leave the release file and --student out"
            )
        name, outcome = _ask_service(service, tables)
    elif file is None:
        raise InvalidInput(
            "name a release file with a prediction mechanism, or a service in dpflow.yml"
        )
    else:
        name, outcome = _answer_here(file, ledger, tables, student)
    if as_json:
        return show_json(outcome)
    # Rows of their own: a mapping in one cell cannot be read.
    taught_rows = {f"student {name}": value for name, value in outcome.pop("student", {}).items()}
    show_table(f"predictions {name}", ("", ""), (outcome | taught_rows).items())


def _ask_service(
    service: RemoteClient, tables: tuple[Points, Publish] | None
) -> tuple[str, dict[str, Any]]:
    """The session's name, and what is shown of it or of the points."""
    if tables is not None:
        from dpflow.client.predictions import label_points_remotely

        return label_points_remotely(service, *tables)
    session = service.show_session()
    return session["name"], {
        "session": session["name"],
        "features": ", ".join(feature["name"] for feature in session["features"]),
        "protects": session["protects"],
        "predictions left": session["predictions_left"],
    }


def _answer_here(
    file: Path, ledger: str | None, tables: tuple[Points, Publish] | None, student: Path | None
) -> tuple[str, dict[str, Any]]:
    """The same beside the ledger."""
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
    if tables is None:
        epsilon, delta = plan.privacy_cost()
        return plan.request.name, {
            "session": plan.request.name,
            "predictions planned": plan.request.params.get("predictions"),
            "price of the session": f"epsilon {epsilon}, delta {delta}",
            "predictions the scope can pay for": most_predictions(plan, book, registry),
        }
    taught = (
        None if student is None else parse_student(load_yaml(student, "student"), student.parent)
    )
    return plan.request.name, label_points(plan, *tables, book, registry, student=taught)


def _parse_place(text: str) -> dict[str, str]:
    # From the right: a path may hold a colon.
    database, colon, table = text.rpartition(":")
    if not colon or not database or not table:
        raise InvalidInput(
            f"{text!r} is no table; write FILE:TABLE, such as points.duckdb:tomorrow"
        )
    return {"database": database, "table": table}
