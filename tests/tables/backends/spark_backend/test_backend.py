"""Spark's backend passes the suite of query backends on a Spark Connect server, or refuses by name."""

from __future__ import annotations

from typing import Any

import pytest

from dpflow.errors import PlanRefused
from dpflow.testing import backend_checks as suite

#: Those of the suite's types that Spark has, as DuckDB names them.
TYPES = {
    *("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "DECIMAL(4,2)", "DECIMAL(18,4)", "DECIMAL(38,2)"),
    *("DECIMAL(5,2)", "DOUBLE", "FLOAT", "DATE", "TIMESTAMP", "BOOLEAN", "VARCHAR"),
}
#: Rules about what this backend refuses before any charge, by what it says.
REFUSED = {
    "computed_columns_are_grouped": "groups of several columns",
    "dimensions_add_no_rows": "joined relations",
    "joined_rows_are_bounded": "joined relations",
    "small_tables_are_answered": "holdout groups",
    "values_are_bounded": "UnboundedValues",
    "holdout_groups_keep_units": "holdout groups",
    "holdout_groups_are_exact": "holdout groups",
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
    """Every check of the suite that is not about what the backend refuses."""
    (check,) = (c for c in suite.backend_checks("spark", folders, types=TYPES) if c.name == name)
    refusal = REFUSED.get(name.removeprefix("spark: "))
    if refusal is None:
        check.run()
        return
    with pytest.raises(PlanRefused, match=f"does not have .*{refusal}"):
        check.run()
