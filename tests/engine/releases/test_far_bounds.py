"""Bounds near the ends of 64 bits: no value of a row, and no number of rows, makes a release "none"."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from duckdb_files import duckdb_file

import dpflow
from dpflow.core.contract.declaration import Table
from dpflow.core.contract.results import NO_INFORMATION, NO_RANK, NO_VALUE, ONLY_A_BOUND
from dpflow.ledger import Ledger

_slow = partial(pytest.param, marks=pytest.mark.slow)
#: A type and the bounds declared: at its lower end, at its upper end, and the whole of it.
FAR = [
    ("BIGINT", 2**63 - 1000, 2**63 - 1),
    _slow("BIGINT", 2**62 + 5, 2**62 + 2000),
    ("BIGINT", -(2**63), -(2**63) + 1000),
    ("BIGINT", -(2**63), 2**63 - 1),
    _slow("UBIGINT", 2**64 - 1000, 2**64 - 1),
    ("UBIGINT", 2**63 - 3, 2**63 + 3),
    _slow("HUGEINT", 2**63 - 1000, 2**63 - 1),
    ("DECIMAL(38, 0)", -(2**63), -(2**63) + 9),
]
VALUES: dict[str, dict[str, Any]] = {
    "median": {},
    "minimum": {},
    "maximum": {},
    "quantile": {"p": "1/4"},
    "mode": {},
    "unimodal_mode": {"promise": 5, "levels": 1},
}
#: Remarks of numbers that too few rows support.
HIDDEN = (NO_VALUE, NO_RANK, ONLY_A_BOUND, NO_INFORMATION)
SUMS = {"mean": {}, "variance": {}}


@pytest.mark.parametrize(("kind", "low", "high"), FAR)
def test_rows_do_not_decide_whether_there_is_a_number(
    kind: str, low: int, high: int, tmp_path: Path
) -> None:
    """Of pure mechanisms, which always have one: also of a single row at each bound."""
    results: dict[str, set[str]] = {}
    for rows in (0, 1, 2, 3):
        path = tmp_path / f"{rows}.duckdb"
        with duckdb_file(path) as connection:
            connection.execute(f"CREATE TABLE t (u BIGINT, x {kind})")
            for unit in range(rows):
                value = (low, high, (low + high) // 2)[unit]
                connection.execute(f"INSERT INTO t VALUES ({unit}, CAST('{value}' AS {kind}))")
        declared = Table.model_validate(
            {
                "name": "t",
                "database": path,
                "privacy_unit": {"column": "u"},
                "contribution_bounds": {"rows": 1},
                "columns": {"x": {"lower": low, "upper": high}},
            }
        )
        ledger = Ledger(tmp_path / f"{rows}.sqlite", create=True)
        ledger.grant(
            "s", "1000", "0", table=declared, filter="basic", principal="o", confirm_large=True
        )
        for name, params in (VALUES | SUMS).items():
            given = {"column": "x"} | params
            try:
                plan = dpflow.plan(name, declared, name=name, scope="s", epsilon="1", **given)
                found = dpflow.release(plan, ledger).result.rows
            except dpflow.errors.DpflowError as refusal:
                outcome = type(refusal).__name__
            else:
                # One that is not shown for so few rows, as a mean or a quantile, is as good as a number.
                is_hidden = bool(found) and found[0].remark in HIDDEN
                is_number = found and (found[0].value is not None or is_hidden)
                outcome = "number" if is_number else "none"
            results.setdefault(name, set()).add(outcome)
    for name, outcomes in results.items():
        # Sums are refused where one row may move them by 2^62, whatever the rows are.
        assert outcomes == {"number"} or (name in SUMS and outcomes == {"PlanRefused"}), results
