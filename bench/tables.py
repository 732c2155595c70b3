"""Bounded aggregates against hand-written window SQL for the same bound, without noise."""

from __future__ import annotations

import tempfile
from pathlib import Path

import duckdb

from bench.timing import medians, show
from dpflow.core.declaration import Table
from dpflow.core.statistics import GroupedSums, SortedValues
from dpflow.tables import PrivateTable

ROWS = 2_000_000
MAKE = f"""
CREATE TABLE events AS
SELECT CAST(floor({ROWS // 10} * pow(random(), 2)) AS BIGINT) AS unit, 'r' || CAST(floor(50 * random()) AS INTEGER) AS region,
       CAST(round(200 * random()) AS INTEGER) AS amount
FROM range({ROWS})
"""
FLOOR = """
WITH picked AS (
    SELECT *, dense_rank() OVER (PARTITION BY unit ORDER BY hash(region, unit)) AS g FROM events
), cut AS (
    SELECT *, row_number() OVER (PARTITION BY unit, region ORDER BY hash(amount, unit)) AS r FROM picked WHERE g <= 3
)
SELECT region, count(*), sum(least(greatest(amount, 0), 200)) FROM cut WHERE r <= 2 GROUP BY region
"""


def main() -> None:
    """Count and sum by fifty regions, and sorted values, at most three groups a unit and two rows a group."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "events.duckdb"
        with duckdb.connect(str(path)) as connection:
            connection.execute(MAKE)
        keys = [f"r{n}" for n in range(50)]
        table = Table.model_validate(
            {
                "name": "events",
                "database": path,
                "unit": {"column": "unit"},
                "limits": {"rows": 6, "groups": 3, "rows_per_group": 2},
                "columns": {"region": {"keys": keys}, "amount": {"lower": 0, "upper": 200}},
            }
        )
        private = PrivateTable(table)
        grouped = GroupedSums("region", tuple(keys), 3, 2, (("amount", 0),))

        def floor() -> None:
            with duckdb.connect(str(path), read_only=True) as connection:
                connection.execute(FLOOR).fetchall()

        taken = medians(
            {
                "window floor": floor,
                "count and sum by region": lambda: private.answer(grouped, ()),
                "sorted values": lambda: private.answer(SortedValues("amount", 6), ()),
            },
            repeats=3,
        )
    rows = [(name, f"{s:.2f} s", f"{s / taken['window floor']:.2f}") for name, s in taken.items()]
    show(f"bounded aggregates, {ROWS:,} rows", ("work", "median", "times the window floor"), rows)
