"""`dpflow init`: what it proposes, asks, writes and refuses, and that it reads no value."""

from __future__ import annotations

import io
import json
import re
import sys
from pathlib import Path
from typing import Any

import duckdb
import pytest
import yaml
from page_runner import inside, run_in

from dpflow import Ledger, load_table
from dpflow.catalogue import load_catalogue
from dpflow.cli.proposals import parse_bounds
from dpflow.errors import InvalidInput
from dpflow.tables import declare_groups

ROWS = """
CREATE TYPE mood AS ENUM ('secret mood', 'other mood');
CREATE TABLE visits AS
SELECT 'p' || (i % 40) AS person, DATE '2020-01-01' + CAST(i % 2 AS INTEGER) AS day,
       CASE WHEN i % 3 = 0 THEN 'Rome' ELSE 'Oslo' END AS city, 20 + i % 50 AS age,
       i % 2 = 0 AS adult, CAST('secret mood' AS mood) AS mood
FROM range(80) t(i)
"""
ANSWERS = ("--unit", "person", "--rows", "4", "--epsilon", "1")


class Terminal(io.StringIO):
    """What a person types, or sees."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a private file of one table."""
    with duckdb.connect(str(tmp_path / "visits.duckdb")) as connection:
        connection.execute(ROWS)
    return tmp_path


def init(folder: Path, *words: str) -> tuple[int, str, str]:
    return run_in(folder, "init", "visits.duckdb", *words)


def read_declaration(folder: Path, name: str = "visits") -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load((folder / f"{name}.yml").read_text())
    return content


def test_options_make_everything(folder: Path) -> None:
    """Declaration, catalogue, budget and a first plan, which is released as it is."""
    options = ("--keys", "city=Oslo,Rome", "--groups", "city=2", "--bounds", "age=0..120")
    options += ("--groups", "day:month=3", "--groups", "day:week=9", "--rows-per-group", "day=1")
    status, output, errors = init(folder, *ANSWERS, *options, "--profile", "0.5")
    assert status == 0, errors
    assert "resolution" in output and "dpflow release visits_profile.yml" in output
    assert "epsilon 1" in output and "dpflow release visits_first.yml" in output
    table = load_table(folder / "visits.yml")
    assert table.columns["city"].public_keys == ("Oslo", "Rome")
    assert table.bounds_for("city") == (2, 4, 4)
    months, by = declare_groups(table, "date_trunc('month', day)")
    assert months.bounds_for(by).groups == 3
    assert read_declaration(folder)["columns"]["day"] == {
        "groups": {"month": 3, "week": 9},
        "rows_per_group": 1,
    }
    assert table.columns["age"].grid_bounds() == (0, 120)
    assert table.columns["adult"].public_keys == ("false", "true")  # the type says so
    catalogue = load_catalogue(folder / "dpflow.yml")
    assert (catalogue.scope, set(catalogue.tables)) == ("visits", {"visits"})
    assert catalogue.ledger == str(folder / "ledger.sqlite")
    with inside(folder):
        assert Ledger("ledger.sqlite").scope("visits").protects == table.protection_text
    status, output, errors = run_in(folder, "release", "visits_first.yml", "--json")
    assert status == 0, errors
    assert [row[0] for row in json.loads(output)["rows"]] == ["Oslo", "Rome"]
    status, output, errors = run_in(folder, "release", "visits_profile.yml", "--json")
    assert status == 0, errors
    days = [f"date_trunc('{period}', day)" for period in ("day", "week", "month")]
    groupings = {"", "city", "adult", "mood", *days}
    assert {row[0] for row in json.loads(output)["rows"]} == groupings


def test_nothing_that_a_row_holds_is_shown_or_written(folder: Path) -> None:
    """Neither values, nor members of an ENUM; every row could be another and all stay the same."""
    status, output, errors = init(folder, *ANSWERS)
    assert status == 0, errors
    seen = output + errors + "".join(p.read_text() for p in folder.glob("*.yml"))
    assert not any(text in seen for text in ("Oslo", "Rome", "mood'", "secret", "2020"))
    assert not re.search(r"\bp1\b", seen)  # as a word: a ledger's id may hold it
    assert "public_keys" not in read_declaration(folder)["columns"]["mood"]


def test_editors_find_the_schema(folder: Path) -> None:
    """By the first line; the schema accepts what is written."""
    init(folder, *ANSWERS, "--bounds", "age=0..120/0.5")
    first = (folder / "visits.yml").read_text().splitlines()[0]
    schema = json.loads((folder / first.partition("$schema=")[2]).read_text())
    assert first.startswith("# yaml-language-server: $schema=")
    assert set(read_declaration(folder)) <= set(schema["properties"])
    assert set(read_declaration(folder)["columns"]["age"]) <= set(
        schema["$defs"]["Column"]["properties"]
    )


def test_what_is_missing_is_said_at_once(folder: Path) -> None:
    """With what each thing means, and nothing is written."""
    status, _, errors = init(folder)
    assert status == 1
    for option in (
        "--unit COLUMN: ",
        "--rows N (or --max-rows N): ",
        "--epsilon E (or --no-grant): ",
    ):
        assert option in errors
    assert "mood ENUM" in errors
    assert [p.name for p in folder.iterdir()] == ["visits.duckdb"]


def test_a_person_is_asked(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One sentence of explanation each; a wrong answer is asked again."""
    typed = [
        "person",
        "9",
        "many",
        "4",
        "none",
        "none",
        "Oslo, Rome",
        "from 0",
        "0..120",
        "none",
        "city",
        "age",
        "3",
        "9, 3, 2",
        "1, 4, 5",
        "2",
        "1",
        "1",
        "1e-6",
        "none",
    ]
    screen = Terminal()
    monkeypatch.setattr(sys, "stdin", Terminal("\n".join(typed) + "\n"))
    with inside(folder):
        monkeypatch.setattr(sys, "stdout", screen)
        monkeypatch.setattr(sys, "argv", ["dpflow", "init", "visits.duckdb"])
        from dpflow.cli.commands import run_app

        with pytest.raises(SystemExit) as end:
            run_app()
    assert end.value.code == 0
    seen = screen.getvalue()
    assert "one guarantee protects all rows" in seen and "have no two ends" in seen
    columns = read_declaration(folder)["columns"]
    assert columns["city"]["public_keys"] == ["Oslo", "Rome"]
    assert (columns["age"]["lower"], columns["age"]["upper"]) == (0, 120)
    assert "in how many days, weeks and months one of them can have rows" in seen
    assert "write three numbers" in seen
    assert columns["day"]["groups"] == {"day": 9, "week": 3, "month": 2}
    # All groups are no limit: written down, they would keep a profile from choosing fewer.
    assert "groups" not in columns["city"] and columns["adult"]["groups"] == 1
    periods = {"day": {"day": 1, "week": 4, "month": 5}}
    largest = {"rows": 9, "rows_per_group": periods, "within_bounds": ["age"]}
    assert read_declaration(folder)["max_contributions"] == largest


def test_a_maximum_is_the_number_of_rows_that_count(folder: Path) -> None:
    """So nothing is left out, and the first release has a total interval; unless a number is given."""
    answers = ("--unit", "person", "--max-rows", "4", "--epsilon", "1", "--keys", "city=Oslo,Rome")
    within = ("--bounds", "age=0..120", "--within-bounds", "age")
    within += ("--max-rows-per-group", "city=3", "--max-rows-per-group", "day:month=2")
    status, _, errors = init(folder, *answers, *within)
    assert status == 0, errors
    assert read_declaration(folder)["contribution_bounds"] == {"rows": 4}
    largest = read_declaration(folder)["max_contributions"]
    assert largest["rows_per_group"] == {"city": 3, "day": {"month": 2}}
    status, output, _ = run_in(folder, "release", "visits_first.yml")
    assert status == 0 and "95 % total interval" in output
    mean = {"name": "m", "mechanism": "mean", "table": "visits", "scope": "visits"}
    (folder / "mean.yml").write_text(
        json.dumps(mean | {"params": {"column": "age", "epsilon": "0.1"}})
    )
    status, output, _ = run_in(folder, "release", "mean.yml")
    assert status == 0 and "no age is beyond its bounds" in output
    status, _, errors = init(folder, *answers, "--rows", "2", "--name", "others")
    assert status == 0, errors
    assert read_declaration(folder, "others")["contribution_bounds"] == {"rows": 2}


def test_budgets_per_day(folder: Path) -> None:
    """A day is named for the first release, because none is read from the rows."""
    status, output, errors = init(folder, *ANSWERS, "--block", "day", "--first-block", "2020-01-01")
    assert status == 0, errors
    assert (read_declaration(folder)["protects"], read_declaration(folder)["block"]) == (
        "unit-block",
        "day",
    )
    assert run_in(folder, "release", "visits_first.yml")[0] == 0


def test_a_second_table_joins_the_catalogue(folder: Path) -> None:
    """Comments and all else stay as its owner wrote them; a table is declared once."""
    init(folder, *ANSWERS)
    catalogue = folder / "dpflow.yml"
    catalogue.write_text("# mine\n" + catalogue.read_text())
    status, _, errors = init(folder, *ANSWERS)
    assert status == 1 and "declared already" in errors
    status, _, errors = init(folder, *ANSWERS, "--name", "others")
    assert status == 0, errors
    assert catalogue.read_text().startswith("# mine\n")
    assert set(load_catalogue(catalogue).tables) == {"visits", "others"}


def test_a_refused_grant_leaves_no_file(folder: Path) -> None:
    """Nor does an answer that declares nothing."""
    for words in (
        ("--unit", "person", "--rows", "4", "--epsilon", "-1"),
        (*ANSWERS, "--bounds", "age=120..0"),
    ):
        status, _, errors = init(folder, *words)
        assert status == 1, errors
        assert not list(folder.glob("*.yml")) and not list(folder.glob(".*part*"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("init", "visits.csv"), "dpflow load visits.csv"),
        (("init", "nothing.duckdb"), "there is no file nothing.duckdb"),
        (("init", "visits.duckdb", "visit"), "did you mean 'visits'"),
        (("init", "visits.duckdb", "--unit", "persn", "--rows", "1"), "did you mean 'person'"),
        (("init", "visits.duckdb", *ANSWERS, "--bounds", "age=0-120"), "write them as 0..120"),
        (("init", "visits.duckdb", *ANSWERS, "--keys", "city"), "has no COLUMN=VALUE"),
        (("init", "visits.duckdb", *ANSWERS, "--within-bounds", "age"), "without --max-rows N"),
        (
            ("init", "visits.duckdb", *ANSWERS, "--max-rows-per-group", "day=1"),
            "without --max-rows N",
        ),
        (("init", "visits.duckdb", *ANSWERS, "--name", "a b"), "is no name for a table"),
        (("init", "visits.duckdb", *ANSWERS, "--groups", "city=x"), "is no number"),
        (("init", "visits.duckdb", *ANSWERS, "--groups", "day:mont=2"), "did you mean 'month'"),
    ],
)
def test_a_mistake_is_a_sentence(folder: Path, words: tuple[str, ...], message: str) -> None:
    """Which says what is true and what to do."""
    status, _, errors = run_in(folder, *words)
    assert status == 1 and message in errors and "Traceback" not in errors
    assert not list(folder.glob("*.yml"))


def test_a_table_without_a_usable_unit(tmp_path: Path) -> None:
    """No column can be compared exactly."""
    with duckdb.connect(str(tmp_path / "visits.duckdb")) as connection:
        connection.execute("CREATE TABLE visits AS SELECT 1.5::DOUBLE AS x, [1] AS y")
    status, _, errors = init(tmp_path, *ANSWERS)
    assert status == 1 and "no column that can name a privacy unit" in errors


def test_fractions_get_the_step_of_their_range(tmp_path: Path) -> None:
    """From type and bounds; whole numbers, wide ranges and a step that is given stay as they are."""
    kinds = {"a": "DOUBLE", "b": "DECIMAL(9,4)", "c": "INTEGER", "d": "DOUBLE", "e": "FLOAT"}
    columns = ", ".join(f"CAST(1 AS {kind}) AS {name}" for name, kind in kinds.items())
    with duckdb.connect(str(tmp_path / "visits.duckdb")) as connection:
        connection.execute(f"CREATE TABLE visits AS SELECT 'p' AS person, {columns}")
    ranges = {"a": "0..1", "b": "-5..35", "c": "0..1", "d": "0..5000", "e": "0..1/0.25"}
    bounds = [word for name, text in ranges.items() for word in ("--bounds", f"{name}={text}")]
    status, _, errors = init(tmp_path, "--unit", "person", "--rows", "1", "--epsilon", "1", *bounds)
    assert status == 0, errors
    columns = yaml.safe_load((tmp_path / "visits.yml").read_text())["columns"]
    steps = {name: column.get("step") for name, column in columns.items()}
    assert steps == {"a": "0.001", "b": "0.1", "c": None, "d": None, "e": "0.25"}


def test_several_tables_are_named(folder: Path) -> None:
    """And the file's own book is none of them."""
    with duckdb.connect(str(folder / "visits.duckdb")) as connection:
        connection.execute("CREATE SCHEMA dpflow; CREATE TABLE dpflow.loads AS SELECT 1 AS a")
        connection.execute("CREATE TABLE other AS SELECT 1 AS a")
    status, _, errors = init(folder, *ANSWERS)
    assert status == 1 and "other | visits" in errors and "loads" not in errors
    assert init(folder, "visits", *ANSWERS)[0] == 0


def test_names_that_yaml_reads_otherwise(tmp_path: Path) -> None:
    """They stay the texts that they are."""
    with duckdb.connect(str(tmp_path / "visits.duckdb")) as connection:
        connection.execute(
            """CREATE TABLE visits AS SELECT 'a' AS "no", 1 AS "a: b, {c}", '2' AS "1", 3 AS "# x" """
        )
    words = ("--unit", "no", "--rows", "1", "--epsilon", "1", "--keys", "1=01,yes,a: b")
    status, _, errors = init(tmp_path, *words)
    assert status == 0, errors
    table = load_table(tmp_path / "visits.yml")
    assert list(table.columns) == ["a: b, {c}", "1", "# x"] and table.privacy_unit.column == "no"
    assert table.columns["1"].public_keys == ("01", "yes", "a: b")


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("0..120", ("0", "120")),
        ("-10..-2.5", ("-10", "-2.5")),
        ("0.5 .. 1.5", ("0.5", "1.5")),
        ("2013-01-01..2013-12-31", ("2013-01-01", "2013-12-31")),
        ("0..100/0.5", ("0", "100", "0.5")),
    ],
)
def test_bounds_have_two_ends(text: str, parts: tuple[str, ...]) -> None:
    """And a step, maybe."""
    assert parse_bounds(text) == parts


@pytest.mark.parametrize("text", ["", "1", "..", "1..", "..2", "1-2"])
def test_other_texts_are_no_bounds(text: str) -> None:
    """The message has an example."""
    with pytest.raises(InvalidInput, match="0..120"):
        parse_bounds(text)
