"""Means of what is computed from computed columns: their grids round, and intervals say by how much."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest

from dpflow import Ledger, sql
from dpflow.analyst_sql.answer.sql_answer import SqlAnswer
from dpflow.core.contract.declaration import Table
from dpflow.errors import PlanRefused

UNITS = 20_000
#: Of each unit the values 0, 0 and 100, whose mean is on no grid of decimals, and products far below one step.
ROWS = f"""
SELECT i // 3 AS u, CASE WHEN i % 3 = 0 THEN 100 ELSE 0 END::DECIMAL(9, 2) AS x, 0.07 AS y, 0.7 AS z
FROM range({3 * UNITS}) t(i)
"""
MEANS = "FROM (SELECT u, AVG(x) AS f FROM t GROUP BY u)"
PRODUCTS = "FROM (SELECT u, MAX(y * z) AS f FROM t GROUP BY u)"
QUESTIONS = [
    f"SELECT AVG(f) AS m {MEANS}",
    f"SELECT AVG(greatest(least(f, 34), 33)) AS m {MEANS}",
    f"SELECT AVG(least(f, 50)) AS m {MEANS}",
    f"SELECT AVG(CASE WHEN f < 50 THEN f END) AS m {MEANS}",
    f"SELECT AVG(f + 1) AS m {MEANS}",
    f"SELECT AVG(abs(f)) AS m {MEANS}",
    f"SELECT AVG(coalesce(f, 0)) AS m {MEANS}",
    f"SELECT AVG(f) FILTER (WHERE f > 33) AS m {MEANS}",
    f"SELECT AVG(f) AS m {PRODUCTS}",
    f"SELECT AVG(least(f, 1)) AS m {PRODUCTS}",
    f"SELECT AVG(f + f) AS m {PRODUCTS}",
    f"SELECT VAR_POP(least(f, 50)) AS m {MEANS}",
    "SELECT AVG(y * z) AS m FROM t",
    "SELECT AVG(least(y * z, 1)) AS m FROM t",
]


class World:
    """Units of three rows each, in steps of cents."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "data.duckdb"
        with duckdb.connect(str(self.file)) as connection:
            connection.execute(f"CREATE TABLE t AS {ROWS}")
        bounds = {"lower": 0, "upper": 1000, "step": "0.01"}
        self.table = Table.model_validate(
            {
                "name": "t",
                "database": self.file,
                "privacy_unit": {"column": "u"},
                "contribution_bounds": {"rows": 3},
                "columns": {"x": bounds, "y": bounds, "z": bounds},
            }
        )
        self.ledger = Ledger(folder / "ledger.sqlite", create=True, anchor=folder / "anchor")
        self.ledger.grant(
            "t", 10**6, 0, filter="basic", table=self.table, principal="o", confirm_large=True
        )


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("rounded"))


@pytest.mark.parametrize("question", QUESTIONS)
def test_an_interval_holds_what_the_grid_rounds(world: World, question: str) -> None:
    """At an epsilon whose noise is far below a step."""
    with duckdb.connect(str(world.file), read_only=True) as connection:
        ((truth,),) = connection.execute(question).fetchall()
    answer = sql(question, tables=[world.table], ledger=world.ledger, epsilon=10_000, scope="t")
    (row,) = answer.to_pandas(intervals=True).to_dict("records")
    assert row["m_noise_low"] <= float(truth) <= row["m_noise_high"]
    # It says something: no wider than a hundredth of the bounds.
    assert row["m_noise_high"] - row["m_noise_low"] < 10 or "VAR" in question or "y * z" in question


ROUNDED = ("x / 3", "sqrt(x)", "CASE WHEN y < 1 THEN x / 7 END")


@pytest.mark.parametrize("value", ROUNDED)
def test_a_mean_of_rounded_values_does_not_follow_from_their_sum(world: World, value: str) -> None:
    """Its own interval holds what the grid rounds; those of a stored sum and number of values do not."""

    def ask(text: str, epsilon: int) -> SqlAnswer:
        return sql(text, tables=[world.table], ledger=world.ledger, scope="t", epsilon=epsilon)

    ask(f"SELECT SUM({value}) AS s, COUNT({value}) AS n FROM t", 10_000)
    with pytest.raises(PlanRefused, match="no stored answer serves"):
        ask(f"SELECT AVG({value}) AS m FROM t", 0)
    # Of values on their own grid it follows.
    ask("SELECT SUM(x) AS s, COUNT(x) AS n FROM t", 10_000)
    assert ask("SELECT AVG(x) AS m FROM t", 0).free
