"""Computed bounds hold every value that DuckDB computes from values within the bounds."""

from __future__ import annotations

from fractions import Fraction

import duckdb
import pytest

from dpflow.core.contract.declaration import PrivacyUnit, Table
from dpflow.tables.language.grouping import parse_row_expression
from dpflow.tables.language.intervals import bound_expression


@pytest.mark.parametrize("low", [10**13, -(10**13) - 2, 3, -1, Fraction(1, 8)])
@pytest.mark.parametrize(
    "text", ["x * 2", "x * 1000", "x * -7", "x / 3", "ln(abs(x) + 1)", "round(x)", "bucket(x, 5)", "exp(x / 1e13)"]
)  # fmt: skip
def test_they_lie_on_the_outer_side(low: int | Fraction, text: str) -> None:
    """Also above 0 from below, and below 0 from above: for large numbers the difference is more than a step."""
    ends = [float(low), float(low + 2)]
    table = Table.model_validate(
        {
            "name": "t", "database": "t.duckdb", "privacy_unit": PrivacyUnit(column="u"), "contribution_bounds": {"rows": 1},
            "columns": {"x": {"lower": ends[0], "upper": ends[1], "step": "0.125"}},
        }
    )  # fmt: skip
    bounds = bound_expression(parse_row_expression(text, table), table, set())
    written = "floor(x / 5) * 5" if text.startswith("bucket") else text
    query = f"SELECT {written} FROM (SELECT unnest({[*ends, sum(ends) / 2]})::DOUBLE AS x)"
    for (value,) in duckdb.sql(query).fetchall():
        assert bounds.low <= value <= bounds.high, (value, bounds)
