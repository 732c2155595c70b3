"""Sessions of the gate on means for checks of its privacy."""

from __future__ import annotations

from typing import Any

METRIC = {"estimator": "accuracy"}
_COLUMN = {"lower": 0, "upper": 1, "step": "0.25"}
_TABLE: dict[str, Any] = {
    "name": "example",
    "database": "example.duckdb",
    "privacy_unit": {"column": "user"},
    "contribution_bounds": {"rows": 1},
    "columns": {"user": {}, "amount": _COLUMN, "other": _COLUMN},
}


def list_examples() -> dict[str, list[dict[str, Any]]]:
    """Where one unit shows most, by either noise; then both questions, with and without a score."""
    shared: dict[str, Any] = {
        "metric": METRIC,
        "threshold": "0.1",
        "epsilon": 1,
        "queries": 12,
        "failures": 2,
    }
    ask: dict[str, Any] = {"estimator": "accuracy", "columns": ["amount"]}
    claims = [{**ask, "claim": "1/2", "candidate": f"candidate-{i}"} for i in range(6)]
    duels = [{**ask, "champion": "a", "candidate": f"candidate-{i}"} for i in range(6)]
    forms: list[tuple[dict[str, Any], list[dict[str, Any]]]] = [
        ({}, claims),
        ({"side": "both", "count_epsilon": "0.2", "correct": True}, claims),
        ({"question": "champion", "threshold": 0}, duels),
    ]
    tight = {
        "table": _TABLE,
        "params": shared | {"epsilon": 6, "failures": 1},
        # The unit is good for one candidate and bad for the other. Five claims of the first, plausible
        # by luck alone, push the threshold's noise down, and one failure of the other costs the rest.
        "queries": [
            {**ask, "columns": [column], "claim": "0.6", "candidate": str(i)}
            for i, column in enumerate((*["amount"] * 5, "other"))
        ],
        "sides": {"values": [[1.0, *[0.0] * 4], [0.0] * 4], "swapped": [["other"]]},
    }
    others: list[dict[str, Any]] = [
        {"table": {**_TABLE, "neighbours": relation}, "params": {**shared, **more}, "queries": asks}
        for relation in ("add-remove", "replace")
        for more, asks in forms
    ]
    return {"gate": [tight, *others, *_gaussian_examples(shared, ask)]}


def _gaussian_examples(shared: dict[str, Any], ask: dict[str, Any]) -> list[dict[str, Any]]:
    """Every answer tells of one unit, of many answers and of one; then all draws that there are."""
    noise: dict[str, Any] = {**shared, "method": "gaussian", "delta": "1e-6", "failures": 12}
    single: dict[str, Any] = {"delta": "0.01", "queries": 1, "failures": 1}
    every: dict[str, Any] = {"side": "both", "count_epsilon": "0.2", "correct": True, "failures": 2}
    asks = [{**ask, "claim": "0.6", "candidate": str(i)} for i in range(12)]
    # At half a point for each unit, one of score 0 moves the sum by as much as a unit can.
    sides = {"values": [[0.0, 1.0, 1.0], [1.0, 1.0]]}
    examples: list[dict[str, Any]] = [
        {"params": noise, "queries": asks, "sides": sides},
        {"params": {**noise, **single}, "queries": asks[:1], "sides": sides},
        {"params": {**noise, **every}, "queries": asks[:6]},
    ]
    return [{"form": "Gaussian noise", "table": _TABLE, **one} for one in examples]
