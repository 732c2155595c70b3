"""A private table of 400 persons whose label is mostly x + y > 1, a table of points, and a ledger
with epsilon 20.
"""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Any

import duckdb
import pytest
import yaml
from airflow_tasks import context

from dpflow.ledger import Ledger
from dpflow.tables.access.declarations import load_table
from dpflow.testing.harness import StreamSource

DECLARATION: dict[str, Any] = {
    "name": "loans",
    "database": "loans.duckdb",
    "privacy_unit": {"column": "person"},
    "contribution_bounds": {"rows": 2},
    "columns": {
        "x": {"lower": 0, "upper": 1, "step": "0.01"},
        "y": {"lower": 0, "upper": 1, "step": "0.01", "missing": "0.5"},
        "town": {"public_keys": ["Oslo", "Rome"]},
        "late": {"public_keys": ["no", "yes"]},
        "amount": {"lower": 0, "upper": 2, "step": "0.01"},
    },
}
ROWS = """
CREATE TABLE loans AS SELECT 'p' || (i % 400) AS person, (i * 37 % 101) / 100 AS x, (i * 53 % 97) / 96 AS y,
    CASE WHEN i % 2 = 0 THEN 'Oslo' ELSE 'Rome' END AS town, CASE WHEN x + y > 1 THEN 'yes' ELSE 'no' END AS late,
    x + y AS amount
FROM range(800) t(i)
"""
POINTS = """
CREATE TABLE tomorrow AS SELECT 'q' || i AS id, (i * 7 % 101) / 100 AS x, CASE WHEN i = 3 THEN NULL ELSE (i * 11 % 97) / 96 END AS y,
    CASE WHEN i % 3 = 0 THEN 'Oslo' ELSE 'Rome' END AS town
FROM range(50) t(i)
"""
SESSION: dict[str, Any] = {
    "name": "late-payers",
    "mechanism": "predict_vote",
    "table": "loans.yml",
    "scope": "loans",
    "params": {
        "features": ["x", "y", "town"],
        "label": "late",
        "epsilon": "0.2",
        "predictions": 100,
        "shards": 20,
        "learner": "GaussianNB",
    },
}


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shards and answers are drawn from written-down noise."""
    seeds = count(1)
    monkeypatch.setattr("dpflow.engine.fail_closed.SystemSource", lambda: StreamSource(next(seeds)))


class Doors:
    """A folder with everything that an operator, a command or a server needs."""

    def __init__(self, folder: Path, epsilon: int = 20, **changes: Any) -> None:
        self.folder, self.ledger = folder, folder / "ledger.sqlite"
        self.declaration = folder / "loans.yml"
        self.declaration.write_text(yaml.safe_dump(DECLARATION | changes))
        for name, script in (("loans", ROWS), ("points", POINTS)):
            with duckdb.connect(str(folder / f"{name}.duckdb")) as connection:
                connection.execute(script)
        table = load_table(self.declaration)
        self.book = Ledger(self.ledger, create=True)
        self.book.grant(
            "loans", epsilon, 0, filter="basic", table=table, principal="owner", confirm_large=True
        )

    def session(self, **changes: Any) -> dict[str, Any]:
        """The session's request, with other parameters."""
        return SESSION | {"params": SESSION["params"] | changes}

    def file(self, **changes: Any) -> Path:
        """The session as a release file."""
        path = self.folder / "session.yml"
        path.write_text(yaml.safe_dump(self.session(**changes)))
        return path

    def predict(self, **changes: Any) -> dict[str, Any]:
        """One run of the operator."""
        from dpflow.airflow import PrivatePredictionOperator

        given: dict[str, Any] = {
            "session": self.session(),
            "points": {"database": "points.duckdb", "table": "tomorrow", "key": "id"},
            "answers": {"database": "answers.duckdb", "table": "answers"},
        }
        operator = PrivatePredictionOperator(task_id="predict", **(given | changes))
        return operator.execute(context(self))

    def published(self) -> list[tuple[Any, ...]]:
        """The answers."""
        with duckdb.connect(str(self.folder / "answers.duckdb")) as connection:
            return connection.execute(
                "SELECT point, label, number FROM answers ORDER BY point"
            ).fetchall()

    def spent(self) -> str:
        """Epsilon, as text."""
        return self.book.remaining("loans").rows()[0]["epsilon_spent"]
