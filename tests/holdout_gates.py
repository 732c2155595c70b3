"""A holdout gate over a small table, and a model registry in memory for what it promotes."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb

from dpflow import Session, plan
from dpflow.engine.sessions.holdout_gate import Champion
from dpflow.ledger import Ledger
from dpflow.registry import Registry
from dpflow.tables.access.declarations import load_table

if TYPE_CHECKING:
    from smallworld import Tiny

PARAMS = {
    "groups": 400,
    "queries": 20,
    "failures": 2,
    "rho": "0.24",
    "alpha": "0.2",
    "epsilon": "4",
}
ROWS = """
CREATE TABLE visits AS SELECT 'p' || i AS person, DATE '2020-01-01' AS day, i % 2 AS sick, (i % 2) * 30 + i % 7 AS age
FROM range(4000) t(i)
"""
HONEST = {"name": "honest", "estimator": "column_mean", "features": ["age"], "claim": "18"}


def wrong(number: int) -> dict[str, Any]:
    return HONEST | {"name": "wrong", "claim": str(50 + number)}


def grant_holdout(tiny: Tiny) -> Ledger:
    """A holdout of 4,000 people, protected in scopes ``gate``, ``more`` and the quota ``gate/a``."""
    tiny.fill(ROWS)
    columns = {"sick": {"lower": 0, "upper": 1}, "age": {"lower": 0, "upper": 120}}
    table = load_table(
        tiny.declare(
            protects="unit",
            contribution_bounds={"rows": 1},
            columns=columns,
            block=None,
            holdout=True,
        )
    )
    made = Ledger(tiny.ledger)
    for scope in ("gate", "more"):
        made.grant(scope, 8, 0, filter="basic", table=table, principal="owner")
    made.quota("gate/a", 4, 0, principal="owner")
    return made


def open_gate(
    tiny: Tiny,
    ledger: Ledger,
    scope: str = "gate",
    name: str = "gate",
    table: str = "visits.yml",
    **params: Any,
) -> Session:
    planned = plan(
        "reusable_holdout", tiny.folder / table, name=name, scope=scope, **(params or PARAMS)
    )
    return Session.open(planned, ledger, Registry.load())


def open_session(
    tiny: Tiny, mechanism: str, table: str = "visits.yml", name: str = "gate", **params: Any
) -> Session:
    """A session in the scope ``gate`` of the tiny ledger."""
    planned = plan(mechanism, tiny.folder / table, name=name, scope="gate", **params)
    return Session.open(planned, Ledger(tiny.ledger), Registry.load())


def grant_people(tiny: Tiny, rows: str, columns: dict[str, Any], **changes: Any) -> Path:
    """The declaration of a holdout with one row a unit, after epsilon 50 in the scope ``gate`` was granted for it."""
    tiny.fill(rows)
    bounds = {"protects": "unit", "contribution_bounds": {"rows": 1}}
    fields = bounds | {"columns": columns, "block": None, "holdout": True} | changes
    path = tiny.declare(**fields)
    terms: dict[str, Any] = {"filter": "basic", "principal": "owner", "confirm_large": True}
    Ledger(tiny.ledger).grant("gate", 50, 0, table=load_table(path), **terms)
    return path


def write_predictions(
    tiny: Tiny, expression: str, name: str = "said", rows: int = 4000
) -> dict[str, str]:
    """A table of predictions for visits r0, r1 and so on; the expression is over their number i."""
    path = tiny.folder / f"{name}.duckdb"
    path.unlink(missing_ok=True)
    columns = f"'r' || i AS visit, {expression} AS prediction, i / 4000 AS p"
    with duckdb.connect(str(path)) as connection:
        connection.execute(f"CREATE TABLE said AS SELECT {columns} FROM range({rows}) t(i)")
    return {"database": str(path), "table": "said", "id": "visit"}


class MemoryRegistry:
    """A model registry of one alias."""

    better_by, tracking_uri = Fraction(0), None

    def __init__(self) -> None:
        self.champion: Champion | None = None
        self.records: list[Mapping[str, str]] = []
        self.promoted: set[tuple[str, str]] = set()
        self.replaced: Champion | None = None

    def find_champion(self) -> Champion | None:
        return self.champion

    def find_missing(self) -> str:
        return ""

    def was_promoted(self, digest: str, session: str) -> bool:
        return (digest, session) in self.promoted

    def promote(self, candidate: Any, record: Mapping[str, str], seen: Champion | None) -> bool:
        if self.champion != seen:
            return False
        text, self.replaced = candidate.submission.model_dump_json(), self.champion
        self.champion = Champion(str(len(self.records) + 1), candidate.digest, text)
        self.records.append(record)
        self.promoted.add((candidate.digest, record["session"]))
        return True

    def find_replaced(self) -> Champion | None:
        return self.replaced

    def roll_back(self, former: Champion, record: Mapping[str, str], seen: Champion | None) -> bool:
        if self.champion != seen:
            return False
        self.champion, self.replaced = former, None
        return True
