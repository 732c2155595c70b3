"""Quantiles of columns without bounds, of every type: each question that is charged has its answer, of the type
that was planned.
"""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest

from dpflow import Ledger, plan_sql, sql
from dpflow.analyst_sql.answer.sql_answer import SqlAnswer
from dpflow.core.contract.declaration import Table
from dpflow.errors import DpflowError

AT = "TIMESTAMP '2020-01-01' + to_minutes(i::BIGINT)"
COLUMNS = {
    "day": "DATE '2020-01-01' + (i % 40)::INTEGER",
    "at": AT,
    "zoned": f"({AT})::TIMESTAMPTZ",
    "seconds": f"({AT})::TIMESTAMP_S",
    "nanoseconds": f"({AT})::TIMESTAMP_NS",
    "amount": "(i % 7)::DECIMAL(9, 2)",
    "wide": "i::HUGEINT * 100000000000000000000",
    "tiny": "(i % 100)::UTINYINT",
    "share": "i / 7",
    "flag": "i % 2 = 0",
}
TIMES = ("day", "at", "zoned", "seconds", "nanoseconds")


class World:
    """A table of 2,000 units, one row each, whose columns have no bounds."""

    def __init__(self, folder: Path) -> None:
        listed = ", ".join(f"{text} AS {name}" for name, text in COLUMNS.items())
        with duckdb.connect(str(folder / "data.duckdb")) as connection:
            connection.execute(
                f"CREATE TABLE data AS SELECT i AS u, {listed} FROM range(2000) t(i)"
            )
        self.table = Table.model_validate(
            {
                "name": "data",
                "database": folder / "data.duckdb",
                "privacy_unit": {"column": "u"},
                "contribution_bounds": {"rows": 1},
                "columns": {name: {} for name in COLUMNS},
            }
        )
        self.ledger = Ledger(folder / "ledger.sqlite", create=True, anchor=folder / "anchor")
        self.ledger.grant(
            "data", 10**4, "1e-3", filter="basic", table=self.table, principal="o", confirm_large=True
        )  # fmt: skip

    def ask(self, query: str) -> SqlAnswer:
        return sql(query, tables=[self.table], ledger=self.ledger, epsilon=10, scope="data")

    def spent(self) -> object:
        return self.ledger.remaining("data").rows()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("open"))


@pytest.mark.parametrize("name", COLUMNS)
def test_what_is_charged_is_answered(world: World, name: str) -> None:
    """Numbers in the middle, and ends, of which a bound alone is released."""
    answer = world.ask(f"SELECT MEDIAN({name}) AS m, QUANTILE_DISC({name}, 0.9) AS q FROM data")
    assert all(value is not None for value in answer.rows[0])
    assert name not in TIMES or str(answer.rows[0][0]).startswith("2020-0")
    (end,) = world.ask(f"SELECT MAX({name}) AS e FROM data").rows
    assert len(end) == 1


@pytest.mark.parametrize("name", TIMES)
def test_dates_are_texts_before_anything_is_charged(world: World, name: str) -> None:
    """Arithmetic on the text is refused by the plan; written as a date, it is planned and answered."""
    before = world.spent()
    with pytest.raises(DpflowError, match="binding"):
        plan_sql(
            f"SELECT MEDIAN({name}) + 1 AS m FROM data",
            tables=[world.table],
            ledger=world.ledger,
            epsilon=10,
            scope="data",
        )
    assert world.spent() == before
    query = f"SELECT MEDIAN({name})::TIMESTAMP::DATE - DATE '2020-01-01' AS days FROM data"
    ((days,),) = world.ask(query).rows
    assert 0 <= days <= 40
