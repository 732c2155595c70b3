"""Spark's backend passes the suite of query backends on a Spark Connect server."""

from __future__ import annotations

from typing import Any

import pytest

from dpflow.testing import backend_checks as suite

#: Those of the suite's types that Spark has, as DuckDB names them.
TYPES = {
    *("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "DECIMAL(4,2)", "DECIMAL(18,4)", "DECIMAL(38,2)"),
    *("DECIMAL(5,2)", "DOUBLE", "FLOAT", "DATE", "TIMESTAMP", "BOOLEAN", "VARCHAR"),
}
#: Types that `make test` leaves to `make slow`: they are read by the same expressions as others.
SLOW_TYPES = {"TINYINT", "SMALLINT", "DECIMAL(18,4)", "DECIMAL(4,2)", "INTEGER", "BOOLEAN"}
CHECKS = [check.name for check in suite.backend_checks("spark", lambda _: {}, types=TYPES)]
MARKED = [
    pytest.param(name, marks=pytest.mark.slow)
    if any(f"[{kind}]" in name for kind in SLOW_TYPES)
    else name
    for name in CHECKS
]


@pytest.mark.parametrize("name", MARKED)
def test_spark_keeps_the_contract(name: str, folders: Any) -> None:
    """Every check of the suite for types that Spark has."""
    (check,) = (c for c in suite.backend_checks("spark", folders, types=TYPES) if c.name == name)
    check.run()
