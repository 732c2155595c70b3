"""Who follows the quickstart gets counts whose intervals hold the truth."""

from __future__ import annotations

import csv
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from page_runner import ROOT, inside, run_main, run_page

from dpflow import Ledger, load_table
from dpflow.engine import fail_closed
from dpflow.testing.harness import StreamSource


def test_total_intervals_hold_the_true_months(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the page's own epsilon of 0.5, with one noise. With each person cut at one visit, as the control
    shows, noise intervals hold none.
    """
    monkeypatch.setattr(fail_closed, "SystemSource", lambda: StreamSource(1))
    run_page(ROOT / "docs" / "quickstart.md", tmp_path)
    with (tmp_path / "visits.csv").open() as file:
        truth = Counter(row["day"][:7] for row in csv.DictReader(file))

    def ask(*options: str) -> Any:
        with inside(tmp_path):
            status, output, errors = run_main(
                ["sql", "months.sql", *options, "--intervals", "--json"]
            )
        assert status == 0, errors
        return json.loads(output)

    def count_held(answer: Any, low: str, high: str) -> int:
        assert len(answer["rows"]) == len(truth) == 12
        return sum(row[low] <= truth[str(row["month"])[:7]] <= row[high] for row in answer["rows"])

    answer = ask("--epsilon", "0.5")
    assert answer["free"] and any("as declared" in note for note in answer["notes"])
    assert count_held(answer, "visits_low", "visits_high") >= 8
    widths = [row["visits_high"] - row["visits_low"] for row in answer["rows"]]
    assert max(widths) < 0.5 * max(truth.values())
    terms: Any = {"principal": "owner", "confirm_large": True}
    with inside(tmp_path):
        table = load_table("visits.yml")
        Ledger("ledger.sqlite").grant("trial", "100", "1e-6", table=table, **terms)
    cut = ask("--epsilon", "50", "--scope", "trial", "--rows-per-unit", "1")
    assert count_held(cut, "visits_noise_low", "visits_noise_high") == 0
    assert {row["visits_low"] for row in cut["rows"]} == {None}
