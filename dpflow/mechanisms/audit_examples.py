"""Tables on which the guarantees of built-in mechanisms are tight, for their audits."""

from __future__ import annotations

import itertools
from typing import Any

DECLARED: dict[str, Any] = {
    "name": "audited",
    "database": "audited.duckdb",
    "privacy_unit": {"column": "user"},
    "contribution_bounds": {"rows": 1},
    "columns": {
        "user": {},
        "amount": {"lower": -10, "upper": 30},
        "kind": {"public_keys": ["b", "a"]},
        "word": {},
    },
}


def _make_example(
    params: dict[str, Any], sides: dict[str, Any], relation: str = "add-remove", **more: Any
) -> dict[str, Any]:
    return {"table": DECLARED | {"neighbours": relation}, "params": params, "sides": sides, **more}


def _amounts(number: int, amount: int) -> list[Any]:
    return [number, {"amount": amount}]


# A choice loses most where what nearly always comes gets rarer, and what hardly ever comes gets
# less rare. The unit moves from above both to below both, and the quantile lies between them.
_LOW_QUANTILE = {
    "shared": [_amounts(2, -10), _amounts(397, 0)],
    "left": [{"amount": 30}],
    "right": [{"amount": -10}],
}
_HIGH_QUANTILE = {
    "shared": [_amounts(2, 30), _amounts(397, 0)],
    "left": [{"amount": -10}],
    "right": [{"amount": 30}],
}
# Just below the number of units at which a key begins to show: there one unit tells most.
_RARE_WORDS = [
    {"shared": [[units, {"word": "rare"}]], "left": [{"word": "rare"}], "right": []}
    for units in (1, 3, 5, 7)
]

# Three columns, so that pairs are chosen; any unit moves every count as far as one can.
_THREE = {
    "name": "audited",
    "database": "audited.duckdb",
    "privacy_unit": {"column": "user"},
    "contribution_bounds": {"rows": 1},
    "columns": {"user": {}, **{name: {"public_keys": ["x", "y"]} for name in "abc"}},
}
_MIXED = dict(zip("abc", "xyx"))
_SPREAD = [[100, dict(zip("abc", values))] for values in itertools.product("xy", repeat=3)]

EXAMPLES: dict[str, list[dict[str, Any]]] = {
    "minimum": [
        _make_example({"column": "amount", "epsilon": "1"}, _LOW_QUANTILE, "replace"),
    ],
    "maximum": [
        _make_example({"column": "amount", "epsilon": "1"}, _HIGH_QUANTILE, "replace"),
    ],
    "private_histogram": [
        _make_example({"by": "word", "epsilon": "4", "delta": "0.01"}, sides)
        for sides in _RARE_WORDS
    ]
    + [
        _make_example(
            {"by": "word", "epsilon": "4", "delta": "0.02", "noise": "gaussian"},
            sides,
            form="Gaussian noise",
        )
        for sides in _RARE_WORDS
    ],
    "synthesize": [
        {
            "table": _THREE,
            "params": {
                "columns": ["a", "b", "c"],
                "epsilon": "12",
                "delta": "0.02",
                "rows": 1,
                "guarantee": "zcdp",
            },
            "sides": {"shared": _SPREAD, "left": [_MIXED], "right": []},
        }
    ],
    "key_union": [
        _make_example({"by": "word", "epsilon": "4", "delta": "0.01"}, sides)
        for sides in _RARE_WORDS
    ],
    "reusable_holdout": [
        {
            "table": DECLARED | {"contribution_bounds": {"rows": 1}},
            "params": {
                "epsilon": "6",
                "groups": 10,
                "failures": 1,
                "queries": 12,
                "rho": "0.24",
                "alpha": "0.2",
            },
            # The unit is good for one estimator and bad for the other. "Plausible" answers about the
            # first push the threshold's noise down, and one failure of the other costs the rest.
            "queries": [
                {"estimator": "accuracy", "columns": [column], "claim": claim, "candidate": claim}
                for column, claim in (("amount", "0.8"),) * 3 + (("kind", "0.5"),)
            ],
            "sides": {
                "values": [[1, 0.6] + [0] * 8, [0.2, 0.6] + [0] * 8],
                "swapped": [["kind"]],
            },
        }
    ],
}
