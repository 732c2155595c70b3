"""From a table that `dpflow init` declared to three different answers in SQL, without YAML."""

from __future__ import annotations

import json
from pathlib import Path

import duckdb
import pytest
from page_runner import show_in
from sql_world import ROWS

from dpflow.analyst_sql.answer import publish_answer


def test_three_answers_without_yaml(tmp_path: Path) -> None:
    """Public keys, private keys and a median; asked again they are free, whatever the spelling."""
    with duckdb.connect(str(tmp_path / "visits.duckdb")) as connection:
        connection.execute(ROWS)
    owner = (
        "--unit",
        "person",
        "--rows",
        "20",
        "--epsilon",
        "30",
        "--confirm-large",
        "--delta",
        "1e-4",
    )
    known = ("--keys", "city=Oslo,Rome", "--groups", "city=2", "--bounds", "age=0..100")
    show_in(tmp_path, "init", "visits.duckdb", *owner, *known)
    queries = [
        "SELECT city, COUNT(*) AS n, AVG(age) AS a FROM visits GROUP BY city ORDER BY n",
        "SELECT clinic, COUNT(*) AS n FROM visits GROUP BY clinic",
        "SELECT MEDIAN(age) AS middle FROM visits WHERE age IS NOT NULL",
    ]
    file = tmp_path / "query.sql"
    for text in queries:
        delta = ("--delta", "1e-5") if "clinic" in text else ()
        explained = show_in(tmp_path, "sql", f"EXPLAIN {text}", "--epsilon", "5", *delta, "--json")
        assert json.loads(explained)["forecast"] == "the ledger would accept it now"
        first = json.loads(show_in(tmp_path, "sql", text, "--epsilon", "5", *delta, "--json"))
        assert not first["free"] and first["rows"]
        comment = f"-- dp: epsilon=4{', delta=1e-5' if delta else ''}"
        file.write_text(f"{comment}\n{text.lower()};")
        again = json.loads(show_in(tmp_path, "sql", "query.sql", "--json"))
        assert again["free"] and again["rows"] == first["rows"]
    described = json.loads(show_in(tmp_path, "describe", "visits", "--json"))
    assert [budget["epsilon_left"] for budget in described["budgets"]] == ["15"]
    show_in(tmp_path, "sql", "query.sql", "--output", "answer.csv")
    assert (tmp_path / "answer.csv").read_text().startswith("middle,middle_noise_low,")
    refused = show_in(tmp_path, "sql", "SELECT * FROM visits", "--epsilon", "1", status=1)
    assert "no-star" in refused and "nearest query" not in refused


def test_a_file_that_cannot_be_written_costs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its name is looked at before the charge, and a private source is never overwritten."""
    with duckdb.connect(str(tmp_path / "visits.duckdb")) as connection:
        connection.execute(ROWS)
    (tmp_path / "alias.csv").symlink_to(tmp_path / "visits.duckdb")
    owner = (
        "--unit",
        "person",
        "--rows",
        "20",
        "--epsilon",
        "30",
        "--confirm-large",
        "--delta",
        "1e-4",
    )
    show_in(tmp_path, "init", "visits.duckdb", *owner)
    before = (tmp_path / "visits.duckdb").read_bytes()
    query = ("sql", "SELECT COUNT(*) AS n FROM visits", "--epsilon", "5", "--output")
    assert "end it in .csv" in show_in(tmp_path, *query, "answer.txt", status=1)
    assert "private table's file" in show_in(tmp_path, *query, "alias.csv", status=1)
    assert (tmp_path / "visits.duckdb").read_bytes() == before
    (tmp_path / "folder.csv").mkdir()
    for file in ("nowhere/answer.csv", "folder.csv", "/proc/answer.parquet"):
        assert "cannot be written; give another" in show_in(tmp_path, *query, file, status=1)
    # As an editor on Windows writes it. A disk that fills later costs neither the answer nor a second charge.
    (tmp_path / "query.sql").write_text(query[1], encoding="utf-8-sig")
    words = ("sql", "query.sql", *query[2:])
    with monkeypatch.context() as patch:
        patch.setattr(publish_answer, "require_writable", lambda file: None)
        said = show_in(tmp_path, *words, "nowhere/answer.csv", "--json", status=75)
    assert '"n":' in said and "the result is stored, so the same again" in said
    first, _ = json.JSONDecoder().raw_decode(said)
    answer = json.loads(show_in(tmp_path, *query, "answer.csv", "--json"))
    assert not first["free"], "nothing was paid before"
    assert answer["free"] and (tmp_path / "answer.csv").exists()


def test_a_listed_file_is_never_overwritten(tmp_path: Path) -> None:
    """The declaration names the list, and the rows are in the files that it names."""
    source = tmp_path / "visits.parquet"
    with duckdb.connect() as connection:
        connection.execute(ROWS)
        connection.execute(f"COPY visits TO '{source}' (FORMAT parquet)")
    show_in(tmp_path, "load", "visits.parquet", "--in-place", "--into", "visits.files.json")
    (listed,) = tmp_path.glob("*.files.json")
    owner = (
        "--unit",
        "person",
        "--rows",
        "20",
        "--epsilon",
        "30",
        "--confirm-large",
        "--delta",
        "1e-4",
    )
    show_in(tmp_path, "init", listed.name, *owner)
    (tmp_path / "alias.csv").symlink_to(source)
    before = source.read_bytes()
    query = ("sql", "SELECT COUNT(*) AS n FROM visits", "--epsilon", "5", "--output")
    for file in ("visits.parquet", "alias.csv"):
        assert "private table's file" in show_in(tmp_path, *query, file, status=1)
    assert source.read_bytes() == before
    answer = json.loads(show_in(tmp_path, *query, "answer.parquet", "--json"))
    assert not answer["free"], "nothing was paid before"
