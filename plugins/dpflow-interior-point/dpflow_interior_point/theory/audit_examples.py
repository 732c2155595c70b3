"""Tables on which the guarantees of this package are tight, for their audits."""

from __future__ import annotations

from typing import Any

#: Two values that many rows have, so that both show, and a unit that leaves one for the other.
LOW, HIGH = {"amount": 3.0}, {"amount": 100.0}


def make_example(
    params: dict[str, Any], left: Any, right: Any, relation: str = "replace", rows: int = 120
) -> dict[str, Any]:
    """So many rows at either value, and the unit of one table or both."""
    table = {
        "name": "audited",
        "database": "audited.duckdb",
        "privacy_unit": {"column": "user"},
        "contribution_bounds": {"rows": 1},
        "neighbours": relation,
        "columns": {"user": {}, "amount": {}},
    }
    sides = {"shared": [[rows, LOW], [rows, HIGH]], "left": left, "right": right}
    return {"table": table, "params": {"column": "amount", **params}, "sides": sides}


COST = {"epsilon": "4", "delta": "0.01"}
EXAMPLES: dict[str, list[dict[str, Any]]] = {
    name: [
        make_example(COST | params, [LOW], [HIGH]),
        make_example(COST | params, [LOW], [], "add-remove"),
    ]
    for name, params in {
        "interior_point": {},
        "approximate_median": {},
        "seeded_median": {},
        "estimate_first_moment": {},
        "find_interior_point": {"exponent": 1},
    }.items()
}
