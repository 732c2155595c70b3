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


# A model of one neighbour answers what the differing unit says, which lies at the point that is
# asked; the other models know no such row. So exactly one vote changes, each time.
NEAREST = {"options": {"n_neighbors": 1}, "predictions": 2, "epsilon": "1", "shards": 3}
NARROW: dict[str, Any] = TABLE | {"contribution_bounds": {"rows": 1}, "neighbours": "replace"}


def _make_tight(
    params: dict[str, Any], row: dict[str, Any], other: dict[str, Any], others: Any = None
) -> dict[str, Any]:
    """One unit has another label; the rows of others lie far away."""
    far = {"amount": -10, "share": 0, "late": "no"}
    sides = {"shared": others or [[12, far]], "left": [row], "right": [other]}
    return {"table": NARROW, "params": params, "queries": [{"point": [30]}] * 2, "sides": sides}


_HERE = {"amount": 30, "share": 0, "late": "no"}
TIGHT = {
    "predict_vote": _make_tight(
        NEAREST
        | {
            "features": ["amount"],
            "label": "late",
            "learner": "KNeighborsClassifier",
            "shards": 16,
            "epsilon": "2",
        },
        _HERE,
        _HERE | {"late": "yes"},
    ),
    "predict_average": _make_tight(
        NEAREST
        | {
            "features": ["amount"],
            "label": "late",
            "learner": "KNeighborsClassifier",
            "answer": "share",
        },
        _HERE,
        _HERE | {"late": "yes"},
    ),
    "predict_value": _make_tight(
        NEAREST | {"features": ["amount"], "label": "share", "learner": "KNeighborsRegressor"},
        _HERE,
        _HERE | {"share": 4},
    ),
    "predict_linear": _make_tight(
        {
            "features": ["amount"],
            "label": "late",
            "epsilon": "1",
            "predictions": 2,
            "size": 100,
            "strength": "1",
            "loss": "logistic",
        },
        _HERE,
        _HERE | {"late": "yes"},
        others=[[30, _HERE], [69, _HERE | {"late": "yes"}]],
    ),
    "predict_walk": _make_tight(
        {"features": ["amount"], "label": "late", "epsilon": "1", "predictions": 2, "clip": 40},
        _HERE | {"amount": -10},
        _HERE | {"amount": -10, "late": "yes"},
    ),
}
EXAMPLES = {
    name: [TIGHT[name], *(_make_example(one, relation) for one, relation in zip(PARAMS.get(name, ()), ("add-remove", "replace")))]
    for name in TIGHT
}  # fmt: skip
