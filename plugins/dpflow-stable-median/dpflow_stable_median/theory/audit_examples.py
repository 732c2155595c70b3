"""Declarations, parameters and queries on which audits of this package run."""

from __future__ import annotations

from typing import Any


def _make_example(relation: str, params: dict[str, Any], query: dict[str, Any]) -> dict[str, Any]:
    """One query, asked up to four times."""
    table = {
        "name": "example",
        "database": "example.duckdb",
        "privacy_unit": {"column": "user"},
        "neighbours": relation,
        "contribution_bounds": {"rows": 1},
        "columns": {
            "user": {},
            "amount": {"lower": -10, "upper": 30},
            "kind": {"public_keys": ["no", "yes"]},
        },
    }
    return {"table": table, "params": params, "queries": [query] * 4}


_MEAN = {"estimator": "column_mean", "columns": ["amount"]}

# A unit that leaves one key for the other. Questions ask in turn for the key that it goes to and for the one
# that it comes from: "about right" and "wrong" both tell of it.
_FROM, _TO = ({"weights": weights} for weights in (["1", "0"], ["0", "1"]))
_WEIGHTS = _make_example(
    "replace", {"epsilon": "240", "by": "kind", "rows": 1, "accuracy": "1"}, _FROM
) | {
    "queries": [_TO, _FROM] * 12,
    "sides": {
        "shared": [[2, {"kind": "no"}], [1, {"kind": "yes"}]],
        "left": [{"kind": "no"}],
        "right": [{"kind": "yes"}],
    },
}

# All groups but a few agree, and one leaves them for a value that hardly ever comes.
_AGREE = {"values": [[0] * 8 + [20] * 1, [0] * 7 + [20] * 2]}
EXAMPLES: dict[str, list[dict[str, Any]]] = {
    "stable_median": [
        _make_example(
            "add-remove",
            {"epsilon": "2", "groups": 9, "queries": 2},
            _MEAN | {"range": {"kind": "grid", "lower": -10, "upper": 30, "step": 1}},
        )
        | {"sides": _AGREE}
    ],
    "multiplicative_weights": [_WEIGHTS],
    "effective_rounds": [
        _make_example(
            relation,
            {
                "groups": 40,
                "rounds": 2,
                "round_groups": 10,
                "queries": 4,
                "rho": "0.24",
                "alpha": "0.2",
            },
            _MEAN,
        )
        for relation in ("add-remove", "replace")
    ],
}
