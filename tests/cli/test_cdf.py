"""`dpflow cdf` asks what was released, and nothing else; the documented commands name no accuracy."""

from __future__ import annotations

import json
import re
from pathlib import Path

import duckdb
import pytest
from page_runner import ROOT, examples, run_in

from dpflow import Ledger, load_table, plan, release
from dpflow.engine import Receipt
from dpflow.errors import InvalidInput

PAGE = ROOT / "docs" / "how-to" / "ask-for-distributions.md"
DECLARED = """
name: visits
database: visits.duckdb
privacy_unit: {column: person}
contribution_bounds: {rows: 1}
columns: {minutes: {}}
"""
RELEASE = "{name: n, mechanism: cdf, table: visits.yml, scope: visits, params: {column: minutes, epsilon: 1}}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with duckdb.connect(str(tmp_path / "visits.duckdb")) as connection:
        connection.execute(
            "CREATE TABLE visits AS SELECT i AS person, (i % 100) / 7 AS minutes FROM range(3000) t(i)"
        )
    (tmp_path / "visits.yml").write_text(DECLARED)
    (tmp_path / "minutes.yml").write_text(RELEASE)
    book = Ledger(tmp_path / "ledger.sqlite", create=True, anchor=tmp_path / "anchor")
    declared = load_table(tmp_path / "visits.yml")
    book.grant("visits", "3", "0", table=declared, filter="basic", principal="owner")
    (tmp_path / "dpflow.yml").write_text("ledger: ledger.sqlite\nanchor: anchor\n")
    return tmp_path


def test_it_asks_what_was_released(folder: Path) -> None:
    """Free and without rows; before the release it says what to run."""
    status, _, errors = run_in(folder, "cdf", "minutes.yml")
    assert status == 1 and "release it with: dpflow release minutes.yml" in errors
    assert run_in(folder, "release", "minutes.yml")[0] == 0
    (folder / "visits.duckdb").unlink()
    status, shown, errors = run_in(folder, "cdf", "minutes.yml")
    assert status == 0 and shown.count("quantile 0.") == 9, errors
    questions = ["--below", "5", "--between", "2..4", "--quantile", "0.9"]
    status, shown, _ = run_in(folder, "cdf", "minutes.yml", *questions, "--json")
    found = json.loads(shown)
    assert [one["question"] for one in found] == [
        *("share below 5", "share from 2 to 4", "quantile 0.9")
    ]
    assert found[0]["low"] <= 0.35 <= found[0]["high"]
    assert found[2]["low"] <= 90 / 7 <= found[2]["high"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--quantile", "2"), "between 0 and 1"),
        (("--below", "soon"), "is no number"),
        (("--between", "5"), "has no two ends"),
        (("--between", "5..3"), "ends before it begins"),
        (("--plot", "a.exe"), "cannot be drawn"),
    ],
)
def test_mistakes_are_sentences(folder: Path, words: tuple[str, ...], message: str) -> None:
    run_in(folder, "release", "minutes.yml")
    status, _, errors = run_in(folder, "cdf", "minutes.yml", *words)
    assert status == 1 and message in errors and "Traceback" not in errors


def test_a_plot(folder: Path) -> None:
    """Of released numbers."""
    run_in(folder, "release", "minutes.yml")
    assert run_in(folder, "cdf", "minutes.yml", "--plot", "minutes.svg")[0] == 0
    assert "<svg" in (folder / "minutes.svg").read_text()


def test_quantiles_by_their_own_name_are_of_the_same_door(folder: Path) -> None:
    """One charge, replayed free, and asked like a cdf; another release is refused with a sentence."""
    table = load_table(folder / "visits.yml")
    book = Ledger(folder / "ledger.sqlite", anchor=folder / "anchor")

    def run() -> Receipt:
        asked = plan(
            *("quantiles", table),
            name="q",
            scope="visits",
            column="minutes",
            epsilon="0.5",
            quantiles=["0.5"],
        )
        return release(asked, book)

    first, again = run(), run()
    assert (first.replayed, again.replayed) == (False, True) and first.result == again.result
    assert book.remaining("visits").rows()[0]["epsilon_left"] == "2.5"
    measures = [row.measure for row in first.result.rows[:3]]
    assert measures == ["quantile 1/2", "quantile 1/2 at least", "quantile 1/2 at most"]
    assert first.cdf.quantile(0.5).value == first.result.rows[0].value
    count = release(plan("count", table, name="c", scope="visits", epsilon="0.5"), book)
    with pytest.raises(InvalidInput, match="no distribution"):
        _ = count.cdf


def test_documented_commands_name_no_accuracy() -> None:
    """The page's commands (its own test runs them) go from a CSV file to a private median and a
    private CDF, and give no alpha.
    """
    blocks = [example.text for example in examples(PAGE) if example.reason is None]
    text = "\n".join(blocks)
    assert "alpha" not in text and "beta" not in text
    for words in ("dpflow load visits.csv", "mechanism: cdf", "mechanism: median", "dpflow cdf"):
        assert words in text
    assert not re.search(r"--bounds|lower|upper", text)
