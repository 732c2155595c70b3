"""A table of flights under data contracts, which tests of modes and of what is shown share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import yaml

from dpflow.engine.releases.execute import release
from dpflow.engine.releases.make_plan import make_plan
from dpflow.engine.releases.request import ReleaseRequest
from dpflow.ledger import Ledger
from dpflow.quality import Contract, ContractOutcome, parse_contract, run_contract
from dpflow.registry import Registry
from dpflow.tables.access.declarations import load_table

SECRET = "N5EKRET"
DAY = "2020-01-01"
CHECKS = [
    {"name": "late", "check": "violations", "condition": "delay > 30", "at_most": "0.2"},
    {"name": "keys", "check": "unknown_keys", "column": "carrier", "at_most": "0.1"},
    {"name": "many", "check": "rows", "at_least": 300},
]


class World:
    """A folder with a declaration of flights by day, 500 planes a day, and a budget per day."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.database = folder, folder / "flights.duckdb"
        declared = {
            "name": "flights",
            "database": "flights.duckdb",
            "privacy_unit": {"column": "plane"},
            "block": "day",
            "protects": "unit-block",
            "contribution_bounds": {"rows": 2},
            "columns": {
                "delay": {"lower": -60, "upper": 180},
                "carrier": {"public_keys": ["AA", "UA"]},
            },
        }
        (folder / "flights.yml").write_text(yaml.safe_dump(declared))
        self.fill()
        self.table = load_table(folder / "flights.yml")
        self.ledger = Ledger(folder / "ledger.sqlite", create=True)
        self.ledger.grant(
            "flights",
            100,
            0,
            filter="basic",
            table=self.table,
            principal="owner",
            confirm_large=True,
        )

    def fill(self, delay: str = "i % 30", carrier: str = "'AA'", rows: int = 1000) -> None:
        """The same rows on each of three days, except for what differs on the second."""
        self.database.unlink(missing_ok=True)
        with duckdb.connect(str(self.database)) as connection:
            connection.execute(
                f"""CREATE TABLE flights AS SELECT '{SECRET}' || (i % 500) AS plane,
                DATE '2020-01-01' + CAST(d AS INTEGER) AS day,
                CASE WHEN d = 1 THEN {delay} ELSE i % 30 END AS delay,
                CASE WHEN d = 1 THEN {carrier} ELSE 'AA' END AS carrier
                FROM range({rows}) r(i), range(3) s(d)"""
            )

    def contract(self, **fields: Any) -> Contract:
        paid = {"scope": "flights", "epsilon": "30", "checks": CHECKS, "mode": "metered"}
        content = {"name": "daily", "table": "flights.yml"} | paid | fields
        return parse_contract({k: v for k, v in content.items() if v is not None}, self.folder)

    def free(self, mode: str) -> Contract:
        return self.contract(mode=mode, scope=None, epsilon=None, checks=None)

    def run(self, *blocks: str, **fields: Any) -> ContractOutcome:
        return run_contract(self.contract(**fields), blocks or (DAY,), ledger=self.ledger)

    def spent(self, day: str = DAY) -> str:
        rows = self.ledger.remaining("flights").rows()
        return str(next((r["epsilon_spent"] for r in rows if r["block"] == day), "0"))


def verdicts(outcome: ContractOutcome) -> dict[str, str]:
    return {one.name: one.verdict for one in outcome.checks}


def watch(world: World, *blocks: str, **fields: Any) -> ContractOutcome:
    content = {"mode": "watch", "epsilon": "40", "period": "month"} | fields
    return world.run(*blocks, **content)


def declare_profiled(folder: Path) -> World:
    """Of 5,500 rows 500 are one plane's, all late, in a table whose declaration cuts none."""
    world = World(folder)
    redeclare(world, contribution_bounds={"rows": 500}, max_contributions={"rows": 500})
    with duckdb.connect(str(world.database)) as connection:
        connection.execute(
            "CREATE OR REPLACE TABLE flights AS SELECT 'p' || least(i, 5000) AS plane, DATE '2020-01-01' AS day, "
            "CASE WHEN i >= 5000 THEN 100 ELSE 0 END AS delay, CASE WHEN i >= 5000 THEN 'UA' ELSE 'AA' END AS carrier "
            "FROM range(5500) r(i)"
        )
    return world


def redeclare(world: World, column: str = "", **changes: Any) -> None:
    """What its owner changes in the declaration, or in a column's; None takes a field away."""
    file = world.folder / "flights.yml"
    content = yaml.safe_load(file.read_text())
    part = content["columns"].setdefault(column, {}) if column else content
    part |= changes
    file.write_text(yaml.safe_dump(content))


def release_named(world: World, name: str, mechanism: str, **params: Any) -> None:
    registry = Registry.load()
    bounds, where = params.pop("contribution_bounds", None), params.pop("where", None)
    asked = ReleaseRequest(
        name=name, mechanism=mechanism, table=world.folder / "flights.yml", scope="flights",
        blocks=(DAY,), params=params, contribution_bounds=bounds, where=where,
    )  # fmt: skip
    release(make_plan(asked, registry, world.ledger), world.ledger, registry)
