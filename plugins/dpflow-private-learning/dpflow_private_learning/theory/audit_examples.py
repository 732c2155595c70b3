"""Declarations and parameters on which audits and the conformance checks of this package run."""

from __future__ import annotations

from typing import Any

DECLARED: dict[str, Any] = {
    "name": "example",
    "database": "example.duckdb",
    "privacy_unit": {"column": "user"},
    "contribution_bounds": {"rows": 1},
    "columns": {
        "user": {},
        "amount": {"lower": -10, "upper": 30},
        "share": {"lower": 0, "upper": 1, "step": "0.25"},
        "late": {"lower": 0, "upper": 1},
        "kind": {"public_keys": ["no", "yes"]},
        "few": {"lower": 0, "upper": 3},
    },
}


def example(params: dict[str, Any], relation: str = "add-remove", rows: int = 1) -> dict[str, Any]:
    """The parameters on one relation, with units of at most so many rows."""
    table = DECLARED | {"neighbours": relation, "contribution_bounds": {"rows": rows}}
    return {"table": table, "params": params}


def on_sides(
    params: dict[str, Any], shared: list[Any], left: Any, right: Any, relation: str = "replace"
) -> dict[str, Any]:
    """The parameters on two tables that differ in one unit of one row."""
    sides = {"shared": shared, "left": [left] if left else [], "right": [right] if right else []}
    return example(params, relation) | {"sides": sides}


# Where all others agree a choice loses most: their value gets less probable, and one that hardly ever
# comes gets more probable.
AGREE = [[60, {"amount": 0, "few": 0, "late": 1, "kind": "yes"}]]
HERE: dict[str, Any] = {"amount": 0, "few": 0, "late": 1, "kind": "yes"}
THERE: dict[str, Any] = {"amount": 20, "few": 3, "late": 1, "kind": "yes"}

RULES = [
    {"kind": "rectangle", "lower": [0, 0], "upper": [20, 2]},
    {"kind": "threshold", "below": 7},
    {"kind": "nothing"},
]

PARTS = [{"rules": "subsets", "lower": -10, "upper": -5}, {"rules": "points", "lower": -4}]

KNOWN: dict[str, Any] = {
    "neighbours": "replace",
    "columns": {
        "amount": {"lower": -10, "upper": 30, "public": True},
        "share": {"lower": 0, "upper": 1, "step": "0.25", "public": True},
        "few": {"lower": 0, "upper": 3, "public": True},
        "late": {"lower": 0, "upper": 1, "missing": 0},
        "kind": {"public_keys": ["no", "yes"]},
    },
}


def with_public_features(params: dict[str, Any], rows: int = 1) -> dict[str, Any]:
    """The parameters on a table whose features are public."""
    table = DECLARED | KNOWN | {"contribution_bounds": {"rows": rows}}
    return {"table": table, "params": params}


#: Forms in which the number of rows is counted with noise; audited apart.
COUNTED = {"form": "counted"}

#: Of whatever makes labelled rows first.
LABELLED_ROWS = [
    example(
        {"column": "amount", "label": "late", "epsilon": "1", "rows": 200, "alpha": "1/4"},
        rows=2,
    ),
    example(
        {
            "column": "few",
            "label": "kind",
            "epsilon": "1",
            "rows": 200,
            "step": 10,
            "rules": "points",
        },
        "replace",
    ),
]

EXAMPLES: dict[str, list[dict[str, Any]]] = {
    "mode": [
        on_sides({"column": "amount", "epsilon": "1"}, AGREE, HERE, THERE),
        example({"column": "amount", "epsilon": "1"}, rows=2),
        example(
            {"column": "amount", "method": "stability", "epsilon": "1", "delta": "0.4"}, "replace"
        ),
        example(
            {"column": "amount", "method": "stability", "epsilon": "1", "delta": "0.4"}, rows=2
        ),
        example(
            {"column": "amount", "method": "stability-literal", "epsilon": "0.5", "delta": "0.3"},
            "replace",
        ),
        example(
            {
                "column": "few",
                "method": "choosing",
                "epsilon": "20",
                "delta": "0.4",
                "rows": 10,
                "alpha": "1/2",
            }
        ),
        example(
            {
                "column": "few",
                "method": "choosing",
                "epsilon": "20",
                "delta": "0.4",
                "alpha": "1/2",
            },
            rows=2,
        )
        | COUNTED,
        # Parts state what one row costs.
        example(
            {
                "column": "few",
                "method": "choosing",
                "epsilon": "20",
                "delta": "0.4",
                "alpha": "1/2",
            }
        )
        | COUNTED,
    ],
    "unimodal_mode": [
        on_sides({"column": "amount", "epsilon": "1", "promise": 10}, AGREE, HERE, THERE),
        example({"column": "amount", "epsilon": "1", "promise": 10}),
        example(
            {"column": "amount", "epsilon": "4", "delta": "0.4", "promise": 10, "levels": 2},
            "replace",
        ),
        example(
            {
                "column": "amount",
                "epsilon": "2",
                "delta": "0.2",
                "promise": 10,
                "levels": 2,
                "selection": "literal",
            },
            "replace",
        ),
    ],
    "learn_thresholds": [
        example({"column": "amount", "label": "late", "epsilon": "1"}, "replace"),
        example({"column": "amount", "label": "late", "epsilon": "2", "delta": "0.1", "levels": 2}),
        example({"column": "amount", "label": "late", "epsilon": "1", "rows": 200}, rows=2),
        example(
            {
                "column": "amount",
                "label": "kind",
                "epsilon": "1",
                "delta": "0.1",
                "rows": 200,
                "levels": 2,
                "budget": "paper",
            },
            "replace",
        ),
    ],
    "sanitize_points": [
        example({"column": "amount", "epsilon": "1", "rows": 200, "alpha": "1/2"}, rows=2),
        example(
            {
                "column": "few",
                "method": "san-points",
                "epsilon": "60",
                "delta": "0.4",
                "rows": 20,
                "alpha": "9/10",
            }
        ),
        example({"column": "few", "epsilon": "60", "rows": 20, "alpha": "9/10"}),
        example({"column": "few", "epsilon": "60", "delta": "0.4", "alpha": "9/10"}) | COUNTED,
    ],
    "sanitize_thresholds": [
        example({"column": "amount", "epsilon": "1", "rows": 200, "alpha": "1/4"}, rows=2),
        example({"column": "amount", "epsilon": "1", "alpha": "1/4"}, rows=2) | COUNTED,
        example(
            {
                "column": "few",
                "method": "san-thresholds",
                "epsilon": "200",
                "delta": "0.4",
                "rows": 30_000,
                "alpha": "9/10",
            },
            "replace",
        ),
    ],
    "learn_class": [
        example({"columns": ["amount"], "label": "late", "epsilon": "1", "rows": 200}, rows=2),
        example(
            {"columns": ["share"], "label": "late", "epsilon": "1", "rows": 200, "rules": "points"},
            "replace",
        ),
        example(
            {
                "columns": ["amount", "share"],
                "label": "kind",
                "epsilon": "0.01",
                "rows": 200,
                "rules": RULES,
            }
        ),
    ],
    "learn_points": [
        example(
            {
                "column": "amount",
                "label": "late",
                "epsilon": "1",
                "delta": "0.1",
                "rows": 200,
                "alpha": "1/4",
                "beta": "1/4",
            }
        ),
        example(
            {
                "column": "few",
                "label": "kind",
                "epsilon": "2",
                "delta": "0.4",
                "rows": 200,
                "allow_zero": True,
            },
            "replace",
            2,
        ),
    ],
    "learn_thresholds_by_search": [
        on_sides(
            {
                "column": "few",
                "label": "late",
                "epsilon": "4",
                "delta": "0.01",
                "rows": 50,
                "alpha": "1/4",
            },
            [[20, {"few": 0, "late": 1}], [20, {"few": 3, "late": 0}]],
            {"few": 0, "late": 1},
            {"few": 3, "late": 1},
        ),
        example(
            {
                "column": "few",
                "label": "late",
                "epsilon": "0.3",
                "delta": "0.4",
                "rows": 50,
                "alpha": "1/4",
            },
            "replace",
        ),
    ],
    "learn_rectangles": [
        example(
            {
                "columns": ["amount", "share"],
                "label": "late",
                "epsilon": "20",
                "rows": 200,
                "alpha": "1/2",
            }
        ),
    ],
    "learn_semi_private": [
        example(
            {
                "columns": ["amount", "share"],
                "label": "late",
                "epsilon": "1",
                "rows": 200,
                "public": [["0", "0.25"], ["10", "0.5"], ["20", "1"]],
                "rules": "rectangles",
            },
            rows=2,
        ),
        example(
            {
                "columns": ["amount"],
                "label": "kind",
                "epsilon": "0.01",
                "rows": 200,
                "public": [["0"], ["5"]],
            },
            "replace",
        ),
    ],
    "learn_label_private": [
        with_public_features(
            {
                "columns": ["amount"],
                "label": "late",
                "epsilon": "0.1",
                "rows": 2000,
                "alpha": "9/10",
                "beta": "1/2",
            },
        )
        | {
            "sides": {
                "shared": [[9, {"amount": 20, "late": 1}], [1990, {"amount": 0, "late": 0}]],
                "left": [{"amount": 20, "late": 1}],
                "right": [{"amount": 20, "late": 0}],
            }
        },
        with_public_features(
            {
                "columns": ["amount"],
                "label": "late",
                "epsilon": "0.01",
                "rows": 2000,
                "alpha": "9/10",
                "beta": "1/2",
            },
            2,
        ),
        with_public_features(
            {
                "columns": ["amount", "share"],
                "label": "kind",
                "epsilon": "0.01",
                "rows": 4000,
                "alpha": "9/10",
                "beta": "1/2",
                "rules": "rectangles",
            }
        ),
    ],
    "sanitize_small": [
        on_sides({"column": "few", "epsilon": "1", "rows": 61, "size": 2}, AGREE, HERE, THERE),
        example({"column": "few", "epsilon": "1", "rows": 20, "size": 6}, rows=2),
        example(
            {"column": "few", "epsilon": "1", "rows": 20, "size": 6, "rules": "subsets"}, "replace"
        ),
        example(
            {
                "column": "few",
                "epsilon": "1",
                "rows": 20,
                "size": 6,
                "rules": [{"kind": "threshold", "below": 2}],
            }
        ),
    ],
    "sanitize_union": [
        example(
            {"column": "amount", "epsilon": "1", "rows": 200, "alpha": "1/2", "parts": PARTS},
            rows=2,
        ),
        example(
            {
                "column": "amount",
                "epsilon": "1",
                "rows": 200,
                "parts": [{"rules": "points"}, {"rules": "thresholds"}],
            },
            "replace",
        ),
    ],
    "sanitize_blocks": [
        example(
            {"column": "amount", "epsilon": "1", "rows": 200, "alpha": "1/4", "shards": 3}, rows=2
        ),
        example(
            {
                "column": "few",
                "epsilon": "1",
                "rows": 200,
                "alpha": "1/2",
                "shards": 2,
                "rules": "points",
            },
            "replace",
        ),
    ],
    "sanitize_labelled": LABELLED_ROWS,
    "learn_from_sanitizer": LABELLED_ROWS,
}
