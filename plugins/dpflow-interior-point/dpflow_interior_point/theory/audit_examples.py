"""Tables on which the guarantees of this package are tight, for their audits."""

from __future__ import annotations

from typing import Any

#: Two values that many rows have, so that both show, and a unit that leaves one for the other.
LOW, HIGH = {"amount": 3.0}, {"amount": 100.0}


#: As many rows on either side of one at 4. A unit on the left makes the short gap before it the middle, and
#: on the right the long one. On the left rows are equal, so it also changes how many pairs are.
NEAR, FAR = {"amount": 3.0}, {"amount": 24.0}
AROUND = [[120, NEAR], [1, {"amount": 4.0}], *([1, {"amount": 24.0 + i}] for i in range(120))]


def make_example(
    params: dict[str, Any], left: Any, right: Any, relation: str = "replace", shared: Any = None
) -> dict[str, Any]:
    """The rows that both tables have, by default 120 at either value, and the unit of one or both."""
    table = {
        "name": "audited",
        "database": "audited.duckdb",
        "privacy_unit": {"column": "user"},
        "contribution_bounds": {"rows": 1},
        "neighbours": relation,
        "columns": {"user": {}, "amount": {}},
    }
    shared = shared or [[120, LOW], [120, HIGH]]
    sides = {"shared": shared, "left": left, "right": right}
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
        "estimate_first_moment": {},
        "find_interior_point": {"exponent": 1},
    }.items()
} | {
    "seeded_median": [
        make_example(COST, [NEAR], [FAR], shared=AROUND),
        make_example(COST, [NEAR], [], "add-remove", shared=AROUND),
    ]
}
