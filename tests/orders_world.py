"""A table of orders with few heavy customers, its ledger, and releases of both."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from duckdb_files import duckdb_file

import dpflow
from dpflow import Ledger
from dpflow.core.contract.declaration import Table
from dpflow.engine import make_plan, release
from dpflow.engine.releases.request import ReleaseRequest
from dpflow.registry import Registry

REGISTRY = Registry.load()
MONTHS = "SELECT date_trunc('month', day) AS m, COUNT(*) AS n FROM orders GROUP BY ALL ORDER BY m"
#: 1,000 customers: most with two orders, a tenth with 24, two in each month.
ROWS = """
CREATE TABLE orders AS
SELECT customer, DATE '2024-01-15' + INTERVAL (n % 12) MONTH AS day, chr(65 + CAST(customer % 3 AS INTEGER)) AS state
FROM range(1000) c(customer), range(24) o(n) WHERE n < 2 OR customer % 10 = 0
"""


class World:
    """A table of orders, its ledger, and releases of both."""

    def __init__(self, folder: Path) -> None:
        with duckdb_file(folder / "orders.duckdb") as connection:
            connection.execute(ROWS)
        self.table = self.declare(folder)
        self.ledger = Ledger(folder / "ledger.sqlite", create=True)
        terms: Any = {"principal": "owner", "confirm_large": True}
        self.ledger.grant("orders", "1000", "1e-5", table=self.table, **terms)

    def declare(self, folder: Path, **day: Any) -> Table:
        declared: dict[str, Any] = {
            "name": "orders",
            "database": folder / "orders.duckdb",
            "privacy_unit": {"column": "customer"},
            "contribution_bounds": {"rows": 3},
            "columns": {
                "day": {"lower": "2024-01-01", "upper": "2024-12-31", **day},
                "state": {"public_keys": ["A", "B", "C"]},
            },
        }
        return Table.model_validate(declared)

    def request(self, mechanism: str, **fields: Any) -> ReleaseRequest:
        params = {"epsilon": "2", **fields.pop("params", {})}
        named = {"name": f"{mechanism} of orders", "table": self.table} | fields
        return ReleaseRequest(mechanism=mechanism, scope="orders", params=params, **named)

    def plan(self, mechanism: str, **fields: Any) -> Any:
        return make_plan(self.request(mechanism, **fields), REGISTRY, self.ledger)

    def release(self, mechanism: str, **fields: Any) -> Any:
        return release(self.plan(mechanism, **fields), self.ledger, REGISTRY)

    def ask(self, text: str = MONTHS, **options: Any) -> Any:
        options = {"epsilon": "2", "scope": "orders"} | options
        return dpflow.sql(text, tables=[self.table], ledger=self.ledger, **options)

    def read(self, text: str) -> Any:
        """The true answer of a query, as a frame."""
        with duckdb_file(self.table.database) as connection:
            return connection.execute(text).df()


LARGEST: dict[str, Any] = {"rows": 24, "rows_per_group": {"day": {"month": 2}}}


def declare(world: World, **largest: Any) -> Table:
    raw = world.table.model_dump(
        mode="json", exclude={"source", "max_contributions"}, exclude_unset=True
    )
    return Table.model_validate(raw | ({"max_contributions": largest} if largest else {}))


#: Nobody spends more than 10,000; nearly all orders cost less than 8, one in 50 costs 700.
COST = "CASE WHEN hash(customer, day) % 50 = 0 THEN 700 ELSE hash(day, customer) % 8 END"
SEARCH: dict[str, Any] = {"name": "look", "params": {"column": "cost", "epsilon": "4"}}


def make_costs(folder: Path, cost: str = COST) -> World:
    """Orders with costs, of which each has 24 rows of a customer at most."""
    world = World(folder)
    with duckdb_file(world.table.database) as connection:
        connection.execute(
            f"CREATE OR REPLACE TABLE orders AS SELECT *, {cost} AS cost FROM orders"
        )
    raw = declare(world).model_dump(mode="json", exclude={"source"}, exclude_unset=True)
    raw["contribution_bounds"] = {"rows": 24}
    raw["columns"] |= {"cost": {"lower": 0, "upper": 10_000}}
    raw["max_contributions"] = {"rows": 24, "within_bounds": ["cost"]}
    world.table = Table.model_validate(raw)
    return world
