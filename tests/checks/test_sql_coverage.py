"""The coverage table: what tutorials ask is answered, and a refusal names its rule."""

from __future__ import annotations

from checks.sql_coverage import tutorials
from checks.sql_coverage.__main__ import write_page
from checks.sql_coverage.ask_dpflow import ask_dpflow
from checks.sql_coverage.units import UNITS


def test_tutorials_are_answered() -> None:
    """All of PipelineDP's, and Tumult's but for a function that is not in the language."""
    refused = {
        key: verdict
        for name, queries in (("PipelineDP", tutorials.PIPELINE_DP), ("Tumult", tutorials.TUMULT))
        for key, text in queries.items()
        if (verdict := ask_dpflow(text, tutorials.TABLES, UNITS[name])) != "accepted"
    }
    assert refused in ({}, {"by bins of age": "allow-list"})


def test_a_query_of_rows_is_counted_by_its_rule() -> None:
    text = "SELECT rating FROM ratings"
    assert ask_dpflow(text, tutorials.TABLES, UNITS["PipelineDP"]) != "accepted"
    page = write_page(
        {"x": {"1": ["accepted", "Error", "accepted"], "2": ["joins", "accepted", "E"]}}
    )
    assert "| x, 2 | 1 | 1 | 1 |" in page and "| x | `joins` | 1 |" in page
    assert "| x 2 | joins | accepted | refused |" in page
