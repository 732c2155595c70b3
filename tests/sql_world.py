"""A small table with everything that SQL asks about: public and private keys, NULL, dates."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import yaml
from duckdb_files import duckdb_file

import dpflow
from dpflow.analyst_sql.answer.sql_answer import SqlAnswer
from dpflow.analyst_sql.answer.sql_plan import SqlPlan
from dpflow.analyst_sql.parse.text_and_options import read_source
from dpflow.core.contract.declaration import Table
from dpflow.ledger import Ledger
from dpflow.tables.access.declarations import load_table

ROWS = """
CREATE TABLE visits AS
SELECT i % 400 AS person,
       CASE WHEN i % 10 = 0 THEN NULL WHEN i % 2 = 0 THEN 'Oslo' ELSE 'Rome' END AS city,
       'c' || (i % 3) AS clinic,
       CASE WHEN i % 7 = 0 THEN NULL ELSE i % 50 END::INTEGER AS age,
       CASE WHEN i % 5 = 0 THEN NULL ELSE (i % 20) / 4.0 END::DOUBLE AS cost,
       DATE '2020-01-01' + (i % 40)::INTEGER AS day
FROM range(8000) t(i)
"""
DECLARATION: dict[str, Any] = {
    "name": "visits",
    "database": "visits.duckdb",
    "privacy_unit": {"column": "person"},
    "contribution_bounds": {"rows": 20, "groups": 10},
    "columns": {
        "city": {"public_keys": ["Oslo", "Rome", "Bern"]},
        "clinic": {},
        "age": {"lower": 0, "upper": 100},
        "cost": {"lower": 0, "upper": 5, "step": "0.25"},
        "day": {},
    },
}


#: So much epsilon that noise vanishes: what is left is what was asked for.
EXACT = 20_000


def close(left: Any, right: Any) -> bool:
    if isinstance(left, float) or isinstance(right, float):
        return (
            left is not None and right is not None and abs(left - right) <= 1e-2 + 1e-3 * abs(right)
        )
    if isinstance(left, int) and isinstance(right, int) and right > 10_000:
        return abs(left - right) <= 1e-3 * right
    if isinstance(left, dt.datetime) and not isinstance(right, dt.datetime):
        return left.date() == right
    return left == right or (isinstance(right, dt.datetime) and left == right.date())


class World:
    """The table, its ledger, and `dpflow.sql` over them."""

    def __init__(self, folder: Path, ledger: Ledger | None = None) -> None:
        self.folder = folder
        with duckdb_file(folder / "visits.duckdb") as connection:
            connection.execute(ROWS)
        self.table = self.declare()
        self.ledger = ledger or Ledger(folder / "ledger.sqlite", create=True)
        self.grant("visits")

    def grant(self, scope: str) -> None:
        """A budget for the table as it is declared now, large enough for all that a test asks."""
        terms: Any = {"filter": "basic", "principal": "owner", "confirm_large": True}
        self.ledger.grant(scope, 10**6, "0.1", table=self.table, **terms)

    def declare(self, **changes: Any) -> Table:
        path = self.folder / "visits.yml"
        path.write_text(yaml.safe_dump(DECLARATION | changes))
        return load_table(path)

    def ask(self, text: str, **options: Any) -> Any:
        options = {"scope": "visits", "tables": [self.table], "ledger": self.ledger} | options
        door = dpflow.plan_sql if read_source(text).explain else dpflow.sql
        answer = door(text, **options)
        assert isinstance(answer, SqlAnswer | SqlPlan)
        return answer

    def spent(self, scope: str = "visits") -> str:
        return str(self.ledger.remaining(scope).rows()[0]["epsilon_spent"])

    def truth(self, text: str) -> list[tuple[Any, ...]]:
        """What DuckDB says, where no contribution is above its bounds."""
        with duckdb_file(self.folder / "visits.duckdb", read_only=True) as connection:
            return connection.execute(text).fetchall()
