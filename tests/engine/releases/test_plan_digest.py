"""A plan's digest is of what the statistic and its guarantee use of the declaration."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest

from dpflow.core.contract.declaration import Table
from dpflow.engine.releases.make_plan import make_plan
from dpflow.engine.releases.request import ReleaseRequest
from dpflow.registry import BUILT_INS, Registry

PLAIN: dict[str, Any] = {
    "name": "visits",
    "database": "visits.duckdb",
    "privacy_unit": {"column": "user"},
    "contribution_bounds": {"rows": 4},
    "columns": {
        "age": {"lower": 0, "upper": 120},
        "city": {"public_keys": ["Rome", "Oslo"]},
        "note": {},
    },
}
A_CONDITION = {
    "mechanism": "mean",
    "params": {"column": "age", "epsilon": "1"},
    "where": "age >= 18 AND city = 'Oslo'",
}


@pytest.mark.parametrize(
    ("changes", "same"),
    [
        pytest.param({"note": {"lower": 0, "upper": 1}}, True, id="another column's bounds"),
        pytest.param({"more": {}}, True, id="another column"),
        pytest.param({"age": {"lower": 0, "upper": 121}}, False, id="a bound of its column"),
        pytest.param({"city": {"public_keys": ["Rome"]}}, False, id="keys in its condition"),
        pytest.param({"note": {"public": True}}, False, id="what is known of each row"),
    ],
)
def test_a_plan_depends_on_the_columns_that_it_names(changes: dict[str, Any], same: bool) -> None:
    """An edit of the declaration that the statistic and its guarantee never use is the same plan."""
    registry = Registry({module: import_module(module) for module in BUILT_INS})
    base = PLAIN | {"neighbours": "replace"}
    plans = []
    for columns in (base["columns"], base["columns"] | changes):
        table = Table.model_validate(base | {"columns": columns})
        request = ReleaseRequest(name="n", table=table, scope="s", **A_CONDITION)
        plans.append(make_plan(request, registry))
    assert (plans[0].digest == plans[1].digest) == same
