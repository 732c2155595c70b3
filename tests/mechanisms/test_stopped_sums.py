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

#: An end of these bounds is 10^15 steps from the middle, so 4,612 rows are too many.
ROWS = 10_000
COLUMN = {"lower": 0, "upper": 2 * 10**12, "step": "0.001"}


@pytest.fixture
def payments(tmp_path: Path) -> tuple[Table, Ledger]:
    with duckdb.connect(str(tmp_path / "payments.duckdb")) as connection:
        connection.execute(
            f"CREATE TABLE payments AS SELECT i AS u, 2000000000000 AS x FROM range({ROWS}) t(i)"
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


@pytest.mark.parametrize("mechanism", ["mean", "variance", "standard_deviation"])
def test_sums_that_stopped_are_not_shown(payments: tuple[Table, Ledger], mechanism: str) -> None:
    """What was added up to 2^62 said less, with a narrow interval. The plan says from how many rows on."""
    table, ledger = payments
    made = dpflow.plan(mechanism, table, name=mechanism, scope="payments", column="x", epsilon="40")
    (row,) = dpflow.release(made, ledger).result.rows
    assert (row.value, row.half_width_95, row.remark) == (None, None, TOO_LARGE)
    assert made.error_bound is not None and "sums of x stop at 4,611 rows" in made.error_bound.note


def test_a_query_has_no_value_of_them(payments: tuple[Table, Ledger]) -> None:
    """NULL, with the reason among the notes; a column computed from it has none either."""
    table, ledger = payments
    text = "SELECT AVG(x) AS v, AVG(x) / COUNT(*) AS r, COUNT(*) AS n FROM payments"
    answer = dpflow.sql(text, tables=[table], scope="payments", epsilon="120", ledger=ledger)
    ((v, r, n),) = answer.rows
    assert v is None and r is None and abs(n - ROWS) < 500
    assert TOO_LARGE in answer.notes
