"""Keys are ordered and typed as the source's column is, whatever their texts look like."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest
from sql_world import EXACT, World

from dpflow.errors import TableBusy
from dpflow.tables.access import isolated_database

COLUMNS = {
    "code": ("VARCHAR", ["10", "9", "100"]),
    "day": ("VARCHAR", ["2020-01-02", "10"]),
    "flag": ("VARCHAR", ["true", "false"]),
    "rate": ("DECIMAL(6,2)", ["10.50", "9.25", "-3.00", "100.00"]),
    "size": ("INTEGER", ["10", "9", "-3"]),
    "truth": ("BOOLEAN", ["true", "false"]),
    "born": ("DATE", ["2020-01-10", "2020-01-09"]),
}


@pytest.fixture(scope="module")
def typed_world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """Each person has one row of each key."""
    world = World(Path(tmp_path_factory.mktemp("typed")))
    with duckdb.connect(str(world.folder / "visits.duckdb")) as connection:
        names = ", ".join(f"{name} {kind}" for name, (kind, _) in COLUMNS.items())
        connection.execute(f"CREATE OR REPLACE TABLE visits(person INTEGER, age INTEGER, {names})")
        for person in range(40):
            for row in range(4):
                keys = [keys[row % len(keys)] for _, keys in COLUMNS.values()]
                marks = ", ".join("?" for _ in keys)
                connection.execute(f"INSERT INTO visits VALUES (?, 1, {marks})", [person, *keys])
    world.table = world.declare(columns={name: {"public_keys": k} for name, (_, k) in COLUMNS.items()})  # fmt: skip
    world.grant("typed")
    return world


@pytest.mark.parametrize("name", COLUMNS)
def test_keys_have_the_order_and_type_of_their_column(typed_world: World, name: str) -> None:
    """As DuckDB has them, ascending and descending; a text that writes a number is a text."""
    text = f"SELECT {name}, COUNT(*) AS n FROM visits GROUP BY {name} ORDER BY {name}"
    kinds = {"VARCHAR": "VARCHAR", "INTEGER": "BIGINT", "DECIMAL(6,2)": "DOUBLE"}
    for order in ("", " DESC"):
        answer = typed_world.ask(text + order, epsilon=EXACT, scope="typed")
        assert answer.rows == typed_world.truth(text + order)
        assert answer.columns[0].kind == kinds.get(COLUMNS[name][0], COLUMNS[name][0])


def test_an_expression_has_the_type_of_its_columns(typed_world: World) -> None:
    """A CASE over texts that a column has is a text, too; a part of a date is a number."""
    for key in ("coalesce(code, day)", "CASE WHEN size > 0 THEN code ELSE day END"):
        text = f"SELECT {key} AS k, COUNT(*) FROM visits GROUP BY k ORDER BY k"
        answer = typed_world.ask(text, epsilon=EXACT, delta="1e-3", scope="typed")
        # What columns may hold is public, so a value that no row has is a group of none.
        assert [row for row in answer.rows if row[1]] == typed_world.truth(text)
    text = (
        "SELECT day(born) AS k, COUNT(*) FROM visits GROUP BY k HAVING COUNT(*) > 9 ORDER BY k DESC"
    )
    assert typed_world.ask(text, epsilon=EXACT, scope="typed").rows == typed_world.truth(text)


def test_a_time_that_python_does_not_have_leaves_the_type_of_its_column(tmp_path: Path) -> None:
    """Private keys beyond the years 1 to 9999: what EXPLAIN says of types is true of the answer."""
    world = World(tmp_path)
    ends = ["DATE '2024-01-01'", "'infinity'::DATE", "DATE '0044-03-15 (BC)'", "DATE '2024-03-01'"]
    with duckdb.connect(str(tmp_path / "visits.duckdb")) as connection:
        connection.execute(
            f"CREATE OR REPLACE TABLE visits AS SELECT i AS person, ends, ends::TIMESTAMP AS moment, "
            f"ends::TIMESTAMPTZ AS zoned FROM (SELECT i, [{', '.join(ends)}][1 + i % 4] AS ends FROM range(4000) t(i))"
        )
    bounds = {"rows": 1}
    columns: dict[str, dict[str, str]] = {"ends": {}, "moment": {}, "zoned": {}}
    world.table = world.declare(columns=columns, contribution_bounds=bounds)
    world.ledger.grant(
        "ends", 10**6, "0.1", filter="basic", table=world.table, principal="owner", confirm_large=True
    )  # fmt: skip
    for name in columns:
        text = (
            f"SELECT {name}, dayname({name}) AS d, COUNT(*) AS n FROM visits GROUP BY {name} "
            f"HAVING {name} > '2024-01-01' ORDER BY {name}"
        )
        answer = world.ask(text, epsilon=EXACT, delta="1e-3", scope="ends")
        found = [(str(row[0]), *row[1:]) for row in answer.rows]
        midnight = "" if name == "ends" else " 00:00:00"
        assert found == [(f"2024-03-01{midnight}", "Friday", 1000), ("infinity", None, 1000)]
        assert answer.list_published()[0][1] == ("DATE" if name == "ends" else "TIMESTAMP")
    file = tmp_path / "answer.parquet"
    answer.write(file)
    assert duckdb.read_parquet(str(file)).fetchall()[1][0] == "infinity"


@pytest.mark.parametrize("name", COLUMNS)
def test_a_stored_answer_is_the_same_without_its_source(typed_world: World, name: str) -> None:
    """Keys have the types that were kept with their release, also those that could be of several."""
    text = f"SELECT {name}, COUNT(*) FROM visits GROUP BY {name} ORDER BY {name}"
    first = typed_world.ask(text, epsilon=EXACT, scope="typed")
    place = typed_world.folder / "visits.duckdb"
    place.rename(typed_world.folder / "away.duckdb")
    try:
        again = typed_world.ask(text, epsilon=1, scope="typed")
        later = typed_world.ask(f"{text} DESC", epsilon=1, scope="typed")
        typed_world.ask("EXPLAIN " + text, epsilon=1, scope="typed").explain(typed_world.ledger)
    finally:
        (typed_world.folder / "away.duckdb").rename(place)
    assert again.free and again.values == first.values and again.columns == first.columns
    assert later.free and later.rows == first.rows[::-1]


def test_a_stored_answer_is_there_while_another_process_holds_the_file(
    fresh: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It needs no private row. What is new is refused, and costs nothing."""
    monkeypatch.setattr(isolated_database, "MAX_WAIT", 0.1)
    text = "SELECT day, MEDIAN(day) AS m, COUNT(*) AS n FROM visits WHERE age > 5 GROUP BY day"
    days = {
        "public_keys": ["2020-01-01", "2020-01-02"],
        "lower": "2020-01-01",
        "upper": "2020-12-31",
    }
    fresh.table = fresh.declare(columns={"day": days, "age": {}})
    first, spent = fresh.ask(text, epsilon=5), fresh.spent()
    with duckdb.connect(str(fresh.folder / "visits.duckdb")):
        again = fresh.ask(text, epsilon=5)
        assert again.free and again.values == first.values and again.columns == first.columns
        with pytest.raises(TableBusy):
            fresh.ask(text.replace("> 5", "> 6"), epsilon=5)
    assert fresh.spent() == spent


def test_stored_keys_keep_the_type_that_they_were_drawn_with(fresh: World) -> None:
    """Whatever the column is now: the answer is the same while its file is away and after it came back."""
    text = "SELECT age, COUNT(*) AS n FROM visits GROUP BY age ORDER BY age"
    fresh.table = fresh.declare(columns={"age": {"public_keys": ["9", "10", "11"]}})
    first = fresh.ask(text, epsilon=EXACT)
    assert [row[0] for row in first.rows] == [9, 10, 11]
    with duckdb.connect(str(fresh.folder / "visits.duckdb")) as connection:
        connection.execute("ALTER TABLE visits ALTER age TYPE VARCHAR")
    again = fresh.ask(text, epsilon=1)
    assert again.free and again.rows == first.rows
    new = fresh.ask(text.replace("(*)", "(DISTINCT person)"), epsilon=EXACT)
    assert not new.free and [row[0] for row in new.rows] == ["10", "11", "9"]


def test_keys_that_are_texts_need_no_source(tmp_path: Path) -> None:
    world = World(tmp_path)
    text = "SELECT city, COUNT(*) AS n FROM visits GROUP BY city ORDER BY n"
    first = world.ask(text, epsilon=1)
    (tmp_path / "visits.duckdb").rename(tmp_path / "away.duckdb")
    again = world.ask(text, epsilon=1)
    assert again.free and again.rows == first.rows
