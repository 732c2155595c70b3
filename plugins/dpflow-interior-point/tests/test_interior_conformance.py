"""Every mechanism of the plugin passes the house's checks, also where the number of rows is public."""

from __future__ import annotations

from typing import Any

from dpflow_interior_point.plugin import dpflow_register_mechanisms

from dpflow.testing.conformance import Check, Example
from dpflow.testing.examples import EXAMPLE_TABLE
from dpflow.testing.pytest_plugin import parametrize_with_checks

PUBLIC = EXAMPLE_TABLE.model_copy(
    update={
        "neighbours": "replace",
        "block": None,
        "limits": EXAMPLE_TABLE.limits.model_copy(update={"rows": 1, "groups": 1, "rows_per_group": None}),
    }
)
PARAMS: dict[str, Any] = {"column": "amount", "epsilon": "1", "delta": "0.01"}
EXTRA: dict[str, dict[str, Any]] = {
    "interior_point": {"rule": "largest", "split": "1/2", "atoms": False},
    "approximate_median": {"alpha": "0.2", "gamma": "0.01"},
    "seeded_median": {},
    "estimate_first_moment": {"tau": "1/8"},
    "find_interior_point": {"exponent": 1},
    "stability_histogram": {"exponent": 1},
    "truncated_count": {},
}
EXAMPLES = {
    name: [Example(PUBLIC, (PARAMS if name != "truncated_count" else {"epsilon": "1", "delta": "0.01"}) | extra)]
    for name, extra in EXTRA.items()
}


@parametrize_with_checks(dpflow_register_mechanisms(), EXAMPLES)
def test_mechanism_conforms(check: Check) -> None:
    """The mechanism keeps the rule that the check's docstring states."""
    check.run()
