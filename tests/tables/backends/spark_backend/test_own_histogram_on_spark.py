"""Counts of units on Spark that choose their groups by a histogram of their own rows."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import numpy as np
from duckdb_files import duckdb_file
from spark_servers import declare_source

import dpflow
from dpflow import Ledger
from dpflow.core.contract.declaration import Table
from dpflow.core.contract.requests import UnitSizes
from dpflow.tables.private import PrivateTable

ROWS = (
    "SELECT customer, 'k' || CAST((customer * 7 + n) % 60 AS INTEGER) AS key, DATE '2024-01-01' + CAST(n * 6 AS INTEGER) AS day "
    "FROM range(2000) c(customer), range(60) o(n) WHERE n < 2 OR customer < 10"
)


def test_it_counts_the_same_groups_and_its_total_intervals_hold(
    tmp_path: Path, spark_server: str
) -> None:
    """And a condition on dates leaves the groups out that have no row, as on DuckDB."""
    (tmp_path / "orders").mkdir()
    with duckdb_file() as connection:
        connection.execute(f"COPY ({ROWS}) TO '{tmp_path}/orders/part-0.parquet' (FORMAT parquet)")
        count = "SELECT key, count(DISTINCT customer) FROM ({}) GROUP BY key"
        truth = dict(connection.execute(count.format(ROWS)).fetchall())
    declared = {
        "name": "orders",
        "source": declare_source(spark_server, tmp_path / "orders"),
        "privacy_unit": {"column": "customer"},
        "contribution_bounds": {"rows": 60},
        "columns": {
            "key": {"public_keys": [f"k{n}" for n in range(60)]},
            "day": {"lower": "2024-01-01", "upper": "2024-12-31"},
        },
    }
    table = Table.model_validate(declared)
    sizes = PrivateTable(table).answer(UnitSizes(("key",)), ())
    assert [*zip(*map(list, sizes.groups[0]))] == [(2, 1990), (60, 10)]
    ledger = Ledger(tmp_path / "ledger.sqlite", create=True)
    ledger.grant("orders", "1000", "1e-3", table=table, principal="owner", confirm_large=True)
    terms = {"tables": [table], "ledger": ledger, "scope": "orders", "epsilon": "4"}
    answer = dpflow.sql(
        "SELECT key, COUNT(DISTINCT customer) AS n FROM orders GROUP BY key", **terms
    )
    assert any("own histogram" in note for note in answer.notes)
    frame = answer.to_pandas(intervals=True).set_index("key")
    exact = np.array([truth[key] for key in frame.index])
    assert len(frame) == 60 and np.median(np.abs(frame["n"] - exact)) < 30
    assert ((frame["n_low"] <= exact) & (exact <= frame["n_high"])).mean() >= 0.9
    assert ledger.remaining("orders").rows()[0]["epsilon_spent"] == "4"
    months = "SELECT date_trunc('month', day) AS m, COUNT(*) AS n FROM orders WHERE day < '2024-03-01' GROUP BY m ORDER BY m"
    # Spark writes the names of types in small letters, and keys have types here, too.
    found = dpflow.sql(months, **terms)
    assert [row[0] for row in found.rows] == [dt.date(2024, 1, 1), dt.date(2024, 2, 1)]
