"""A sum that may have reached 2^62 steps, where sums stop, is not shown; nor is what needs it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import pytest

import dpflow
from dpflow.core.contract.declaration import Table
from dpflow.core.contract.results import TOO_LARGE
from dpflow.ledger import Ledger

#: At an end of these bounds a square less half of the largest is 5 * 10^15 steps, so 923 rows are too many.
ROWS = 2_000
COLUMN = {"lower": 0, "upper": 200_000, "step": "0.001"}


@pytest.fixture
def payments(tmp_path: Path) -> tuple[Table, Ledger]:
    with duckdb.connect(str(tmp_path / "payments.duckdb")) as connection:
        connection.execute(
            f"CREATE TABLE payments AS SELECT i AS u, i % 2 * 200000.0 AS x FROM range({ROWS}) t(i)"
        )
    table = Table.model_validate(
        {
            "name": "payments",
            "database": tmp_path / "payments.duckdb",
            "privacy_unit": {"column": "u"},
            "contribution_bounds": {"rows": 1},
            "columns": {"x": COLUMN},
        }
    )
    ledger = Ledger(str(tmp_path / "ledger.sqlite"), create=True)
    terms: Any = {"principal": "owner", "confirm_large": True}
    ledger.grant("payments", "1000", 0, table=table, filter="basic", **terms)
    return table, ledger


def ask(payments: tuple[Table, Ledger], mechanism: str) -> Any:
    table, ledger = payments
    made = dpflow.plan(mechanism, table, name=mechanism, scope="payments", column="x", epsilon="40")
    return dpflow.release(made, ledger), made


@pytest.mark.parametrize("mechanism", ["variance", "standard_deviation"])
def test_squares_that_stopped_are_not_shown(payments: tuple[Table, Ledger], mechanism: str) -> None:
    """The variance is 10^10; what was added up to 2^62 said less, with a narrow interval. The plan says from
    how many rows on.
    """
    receipt, made = ask(payments, mechanism)
    (row,) = receipt.result.rows
    assert (row.value, row.half_width_95, row.remark) == (None, None, TOO_LARGE)
    assert "sums of squares of x stop at 922 rows" in made.error_bound.note


def test_sums_that_did_not_stop_are_shown(payments: tuple[Table, Ledger]) -> None:
    """The mean and the sum of the same rows have room for 2 * 10^10 of them."""
    for mechanism, truth in (("mean", 100_000), ("sum", 100_000 * ROWS)):
        receipt, made = ask(payments, mechanism)
        (row,) = receipt.result.rows
        assert abs(row.value - truth) <= 3 * row.half_width_95
        assert "stop" not in made.error_bound.note


def test_a_query_has_no_value_of_them(payments: tuple[Table, Ledger]) -> None:
    """NULL, with the reason among the notes; a column computed from it has none either."""
    table, ledger = payments
    text = "SELECT VAR_POP(x) AS v, VAR_POP(x) / AVG(x) AS r, COUNT(*) AS n FROM payments"
    answer = dpflow.sql(text, tables=[table], scope="payments", epsilon="120", ledger=ledger)
    ((v, r, n),) = answer.rows
    assert v is None and r is None and abs(n - ROWS) < 50
    assert TOO_LARGE in answer.notes
