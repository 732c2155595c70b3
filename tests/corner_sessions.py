"""Sessions and predictions at corners of declarations, through ledger and database: what is refused
before the charge, and which fields a reply has, does not depend on rows, and no draw fails.

A reply's numbers and yes or no are drawn, so they are not compared. None of these mechanisms answers
"none" by its own law: it stands for a draw that failed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

from corner_audit import EXPRESSIONS, Findings
from corner_tables import FORMS, Corner, Store

from dpflow import Ledger, Session, open_predictions, plan
from dpflow.core.contract.declaration import Table
from dpflow.engine import fail_closed
from dpflow.engine.prediction import session as predictions
from dpflow.engine.sessions import session as sessions
from dpflow.errors import DpflowError, SessionClosed
from dpflow.registry import Registry

REGISTRY = Registry.load()
SHARE = {"range": [0, 1], "default": 0, "better": "higher"}
GRID = {"kind": "grid", "lower": 0, "upper": 1, "step": "0.01"}
MEAN = {"estimator": "column_mean", "columns": ["x"]}


@dataclass(frozen=True)
class Door:
    """A session: its parameters and questions."""

    mechanism: str
    params: dict[str, Any]
    queries: tuple[dict[str, Any], ...]


OWN = tuple({"estimator": SHARE | {"sql": text}} for text in EXPRESSIONS)
_VALUES = {"features": ["x", "y"], "label": "z", "epsilon": "5", "predictions": 4}
DOORS = (
    Door("above_threshold", {"epsilon": "1", "failures": 2}, ({"threshold": 5}, {"threshold": 0})),
    Door("mean_queries", {"epsilon": "1", "rows": 10, "queries": 4}, ({"column": "x"}, {"column": "y"})),
    Door(
        "reusable_holdout",
        {"groups": 20, "queries": 30, "failures": 20, "rho": "0.24", "alpha": "0.2", "epsilon": "20"},
        tuple(query | {"claim": "0.5"} for query in (MEAN, *OWN)),
    ),
    Door(
        "stable_median",
        {"groups": 20, "queries": 20, "range_size": 101, "epsilon": "5"},
        tuple(query | {"range": GRID} for query in (MEAN, *OWN)),
    ),
    Door(
        "watch_rows",
        {
            "epsilon": "6",
            "questions": 4,
            "checks": [
                {"name": "a", "check": "violations", "condition": "x + 1 > x", "at_most": 0},
                {"name": "b", "check": "violations", "condition": "x * x < 4", "at_most": 0},
            ],
        },
        ({"check": "a"}, {"check": "b"}),
    ),
    Door("predict_vote", {**_VALUES, "shards": 3}, ()),
    Door("predict_linear", {**_VALUES, "size": 10, "strength": "1", "loss": "logistic"}, ()),
    Door("predict_value", {**_VALUES, "label": "y", "features": ["x"], "shards": 3}, ()),
    Door("predict_walk", {**_VALUES, "features": ["x"], "clip": 4}, ()),
)  # fmt: skip


def audit_sessions(
    corner: Corner, store: Store, doors: tuple[Door, ...], tables: int = 4
) -> Findings:
    """Visit each door over so many tables of the corner, the empty one and the fullest among them."""
    every = list(corner.tables())
    chosen = [every[0], *every[-tables + 1 :]]
    contents = {}
    for i, values in enumerate(chosen):
        (kinds, listed), _ = FORMS["own"].relations(corner, values)
        labels = [[*row, str(i % 2)] for i, row in enumerate(listed)]
        contents[f"t{i}"] = (kinds | {"z": "SMALLINT"}, labels)
    places = store(contents)
    findings = Findings()
    for door in doors:
        seen: list[list[Any]] = []
        for i, values in enumerate(chosen):
            declared = FORMS["own"].declare(corner, places[f"t{i}"], "").model_dump()
            declared["columns"]["z"] = {"lower": 0, "upper": 1}
            failures: list[str] = []
            with recorded_failures(failures), TemporaryDirectory() as folder:
                home = Path(folder)
                seen.append(list(_visit(door, Table.model_validate(declared), corner, home)))
            words = f"{door.mechanism} at {corner.name}: {[text for text, _ in values]}"
            findings.problems += [f"{words}: {failure}" for failure in failures]
        # A session that a draw has closed answers fewer questions.
        if any(a != b for one in seen for a, b in zip(one, seen[0])):
            findings.problems.append(f"{door.mechanism} at {corner.name}: replies {seen}")
        n_refused = sum(isinstance(reply, tuple) for reply in seen[0])
        findings.refused += n_refused
        findings.answered += len(seen[0]) - n_refused
    return findings


@contextmanager
def recorded_failures(failures: list[str]) -> Iterator[None]:
    """In it, the failures of draws are listed, too."""

    def draw(call: Any, none: Any, notes: list[str] | None = None) -> Any:
        own: list[str] = []
        result = fail_closed.draw_or_none(call, none, own)
        failures.extend(own)
        return result

    with (
        patch.object(sessions, "draw_or_none", draw),
        patch.object(predictions, "draw_or_none", draw),
    ):
        yield


def _visit(door: Door, table: Table, corner: Corner, home: Path) -> Iterator[Any]:
    """What each question shows: the fields of the reply and which of them are empty, or the class of a
    refusal.
    """
    try:
        planned = plan(
            door.mechanism, table, name="d", scope="all", registry=REGISTRY, **door.params
        )
        ledger = Ledger(home / "ledger.sqlite", anchor=home / "anchor", create=True)
        grant = {"filter": "basic", "principal": "owner", "confirm_large": True}
        ledger.grant("all", 100, "1e-3", table=table, **grant)
        if not door.queries:
            predicting = open_predictions(planned, ledger)
            predicting.learn_models()
            ends = [end * corner.step for end in (corner.low, corner.high)]
            numbers = [int(end) if end.denominator == 1 else float(end) for end in ends]
            points = [[number] * len(planned.params.features) for number in numbers]
            yield [answer is None for answer in predicting.predict(points)]
            return
        session = Session.open(planned, ledger, REGISTRY)
    except DpflowError as refusal:
        yield (type(refusal).__name__,)
        return
    for query in door.queries:
        try:
            yield sorted((name, value is None) for name, value in session.ask(query).items())
        except SessionClosed:
            # A draw may have used up the answers.
            return
        except DpflowError as refusal:
            yield (type(refusal).__name__,)
