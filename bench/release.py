"""What a release costs beside its query: plan, check, reserve, draw and settle, on a table so small
that the query is nothing.
"""

from __future__ import annotations

import tempfile
from itertools import count
from pathlib import Path

import duckdb

from bench.timing import hold, medians, show
from dpflow.engine import make_plan, release
from dpflow.engine.releases.request import parse_request
from dpflow.ledger import Ledger
from dpflow.registry import Registry
from dpflow.tables.access.declarations import load_table

DECLARED = """
name: events
database: events.duckdb
privacy_unit: {column: unit}
contribution_bounds: {rows: 4, groups: 2, rows_per_group: 2}
columns: {region: {public_keys: [r0, r1, r2, r3]}, amount: {lower: 0, upper: 4}}
"""
QUERY = "SELECT region, sum(least(n, 2)) FROM (SELECT unit, region, count(*) AS n FROM events GROUP BY ALL) GROUP BY region"


def main() -> None:
    """A histogram from its YAML files to its settled result, against the same counts by hand, file
    opened and closed.
    """
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        with duckdb.connect(str(place / "events.duckdb")) as connection:
            connection.execute(
                "CREATE TABLE events AS SELECT i // 3 AS unit, i % 5 AS amount, 'r' || (i % 4) AS region FROM range(300) t(i)"
            )
        (place / "events.yml").write_text(DECLARED)
        ledger, registry, number = (
            Ledger(place / "ledger.db", create=True),
            Registry.load(),
            count(),
        )
        ledger.grant(
            "events",
            1000,
            0,
            filter="basic",
            table=load_table(place / "events.yml"),
            principal="bench",
            confirm_large=True,
        )

        def ours() -> None:
            asked = {
                "name": f"r{next(number)}",
                "mechanism": "histogram",
                "table": "events.yml",
                "scope": "events",
            }
            request = parse_request(asked | {"params": {"by": "region", "epsilon": "0.1"}}, place)
            release(make_plan(request, registry), ledger, registry)

        def by_hand() -> None:
            with duckdb.connect(str(place / "events.duckdb"), read_only=True) as connection:
                connection.execute(QUERY).fetchall()

        taken = medians({"release": ours, "the query by hand": by_hand}, repeats=31)
    extra = taken["release"] - taken["the query by hand"]
    hold("a small release beside its query, ms", 1000 * extra, 15, noise=0.3)
    rows = [(name, f"{1000 * s:.1f} ms") for name, s in taken.items()]
    show(
        "a release beside its query",
        ("work", "median"),
        [*rows, ("beside the query", f"{1000 * extra:.1f} ms")],
    )


if __name__ == "__main__":
    main()
