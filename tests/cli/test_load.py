"""`dpflow load`: what it takes from the command line, and what it says where."""

from __future__ import annotations

import json
from pathlib import Path

import duckdb
import pytest
from page_runner import run_in

CSV = "person,city,age\np1,Oslo,30\np2,Rome,x\np3,Rome,5\n"
COLUMNS = "person VARCHAR, city VARCHAR, age INTEGER"


@pytest.fixture
def visits(tmp_path: Path) -> Path:
    """A folder with a file of three rows, one of which is no row of the declared types."""
    (tmp_path / "visits.csv").write_text(CSV)
    return tmp_path


def test_without_types_it_writes_the_option_to_give(visits: Path) -> None:
    """From the first line only, and makes no file."""
    status, _, errors = run_in(visits, "load", "visits.csv", "--counts")
    assert status == 1 and "--columns 'person VARCHAR, city VARCHAR, age VARCHAR'" in errors
    assert not (visits / "visits.duckdb").exists()


@pytest.mark.parametrize("columns", [(), ("--columns", COLUMNS)])
def test_a_first_line_that_is_a_row_shows_nowhere(visits: Path, columns: tuple[str, ...]) -> None:
    """A day without its header: what a log gets has no name of the file."""
    (visits / "visits.csv").write_text("".join(CSV.splitlines(keepends=True)[1:]))
    row = CSV.splitlines()[1].split(",")
    status, output, errors = run_in(visits, "load", "visits.csv", *columns)
    assert status == 1 and not any(value in output + errors for value in row)
    assert run_in(visits, "load", "visits.csv", *columns, "--counts")[2].count(row[0]) == 1


def test_numbers_are_for_the_owner_only(visits: Path) -> None:
    """A log, which is no terminal, gets none of them; a file of the owner's gets kinds and lines."""
    words = ("load", "visits.csv", "--columns", COLUMNS)
    status, output, errors = run_in(visits, *words, "--rejects", "rejects.csv")
    assert status == 1 and output == "" and "--rejects FILE" in errors
    assert not any(digit in errors for digit in "123")
    rejects = visits / "rejects.csv"
    assert (
        rejects.read_text()
        == "source,column,kind,rows,first_lines\nvisits.csv,age,not INTEGER,1,3\n"
    )
    assert rejects.stat().st_mode & 0o077 == 0
    status, output, _ = run_in(visits, *words, "--counts")
    assert status == 1 and "2 rows taken, 1 rejected" in output
    status, output, _ = run_in(visits, *words, "--max-rejects", "1")
    assert status == 0
    assert (
        output == "loaded into visits.duckdb:visits; declare it with: dpflow init visits.duckdb\n"
    )
    status, output, _ = run_in(visits, "load", "visits.csv", "--json")
    assert json.loads(output) == {"table": "visits", "loaded": False}


def test_a_target_is_a_file_and_a_table(visits: Path) -> None:
    """Or the name of a declared table."""
    words = ("load", "visits.csv", "--columns", COLUMNS, "--max-rejects", "1", "--into")
    assert run_in(visits, *words, "private.duckdb:all_visits")[0] == 0
    (visits / "visits.yml").write_text(
        "{name: visits, database: declared.duckdb, relation: rows, privacy_unit: {column: person}, "
        "contribution_bounds: {rows: 1}, columns: {}}"
    )
    (visits / "dpflow.yml").write_text("tables: {visits: visits.yml}")
    assert run_in(visits, *words, "visits")[0] == 0
    for file, table in (("private", "all_visits"), ("declared", "rows")):
        with duckdb.connect(str(visits / f"{file}.duckdb"), read_only=True) as connection:
            assert connection.execute(f"SELECT count(*) FROM {table}").fetchone() == (2,)
    status, _, errors = run_in(visits, *words, "a b.duckdb")
    assert status == 1 and "write FILE:TABLE" in errors


@pytest.mark.parametrize(
    ("name", "table"), [("City-visits 2026.csv", "city_visits_2026"), ("2026.csv", "visits")]
)
def test_a_file_whose_name_is_no_tables_is_told_an_option(
    visits: Path, name: str, table: str
) -> None:
    (visits / "visits.csv").rename(visits / name)
    status, _, errors = run_in(visits, "load", name)
    assert status == 1 and f"--into {table}.duckdb:{table}\n" in errors


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("nothing.csv",), "there is no file nothing.csv"),
        (("*.csv.gz",), "no file matches"),
        (("visits.csv", "visits.json"), "give files of one kind"),
        (("visits.xlsx",), "does not say by its name what it is"),
        (("visits.csv", "--columns", "person, city"), "write them as in SQL"),
        (("visits.csv", "--columns", "persn VARCHAR"), "no column called 'persn'"),
        (("visits.csv", "--columns", COLUMNS, "--by", "day"), "there is no column 'day'"),
        (("visits.csv", "--columns", COLUMNS, "--into", "nowhere/x.duckdb"), "make the folder"),
        (("visits.csv", "--columns", COLUMNS, "--into", "visits.csv:t"), "cannot be"),
    ],
)
def test_a_mistake_is_a_sentence(visits: Path, words: tuple[str, ...], message: str) -> None:
    """Which says what to do."""
    status, _, errors = run_in(visits, "load", *words)
    assert status == 1 and message in errors and "Traceback" not in errors
