"""Declarations, parameters and points on which audits and the conformance checks of this package run."""

from __future__ import annotations

from typing import Any

TABLE: dict[str, Any] = {
    "name": "example",
    "database": "example.duckdb",
    "privacy_unit": {"column": "user"},
    "contribution_bounds": {"rows": 3},
    "columns": {
        "amount": {"lower": -10, "upper": 30},
        "share": {"lower": 0, "upper": 1, "step": "0.25"},
        "late": {"public_keys": ["no", "yes"]},
    },
}
SHARDED = {
    "features": ["amount", "share"],
    "label": "late",
    "epsilon": "1",
    "predictions": 3,
    "shards": 4,
}
LINEAR = {
    "features": ["amount", "share"],
    "label": "late",
    "epsilon": "1",
    "predictions": 3,
    "size": 7,
}
ON_A_LINE = {"features": ["amount"], "label": "late", "epsilon": "1", "predictions": 3}
PARAMS: dict[str, list[dict[str, Any]]] = {
    "predict_average": [SHARDED | {"learner": "GaussianNB"}, SHARDED | {"answer": "share", "noise": "gaussian", "learner": "GaussianNB"}],
    "predict_value": [
        SHARDED | {"label": "share", "features": ["amount"]},
        SHARDED | {"label": "share", "features": ["late"], "noise": "gaussian", "options": {"fit_intercept": False}},
    ],
    "predict_linear": [
        LINEAR | {"loss": "logistic"},
        LINEAR | {"label": "share", "features": ["amount"], "method": "sgd", "radius": "2", "noise": "gaussian"},
    ],
    "predict_walk": [ON_A_LINE | {"clip": 2}, ON_A_LINE | {"mode": "agnostic"}],
}  # fmt: skip


def _make_example(params: dict[str, Any], neighbours: str) -> dict[str, Any]:
    """Six queries at one point."""
    point = ["yes"] if params["features"] == ["late"] else [5, 0.5][: len(params["features"])]
    queries = [{"point": point}] * 6
    return {"table": TABLE | {"neighbours": neighbours}, "params": params, "queries": queries}


EXAMPLES = {
    name: [*map(_make_example, given, ("add-remove", "replace"))] for name, given in PARAMS.items()
}
