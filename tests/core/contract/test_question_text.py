"""A stored request in its user's words."""

from __future__ import annotations

from typing import Any

import pytest

from dpflow.core.contract.question_text import describe_question

COUNTED = {"measure": "count", "column": None}


@pytest.mark.parametrize(
    ("request_", "text"),
    [
        (
            {
                "mechanism": "aggregates",
                "table": "orders",
                "where": "returned",
                "params": {
                    "measures": [COUNTED, {"measure": "mean", "column": "amount"}],
                    "by": "country",
                },
            },
            "count, mean of amount by country, from orders where returned",
        ),
        (
            {"mechanism": "median", "table": "visits", "params": {"column": "age"}},
            "median of age from visits",
        ),
        ({"mechanism": "top_k", "table": "v", "params": {"by": "city"}}, "top k by city, from v"),
        ({"mechanism": "synthesize", "params": {"columns": ["a", "b"]}}, "synthesize of a, b"),
        ({"mechanism": "count", "question": "SELECT 1\n  FROM v"}, "SELECT 1 FROM v"),
        ({"mechanism": "count", "question": 7}, "count"),
        ({}, ""),
        ({"mechanism": 3, "params": "x", "table": None, "where": 0}, "3"),
        ({"mechanism": "count", "params": {"measures": [1]}}, "count"),
    ],
)
def test_questions(request_: dict[str, Any], text: str) -> None:
    """Whatever somebody made of it by hand, it is a text."""
    assert describe_question(request_) == text
