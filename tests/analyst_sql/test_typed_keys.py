"""Keys are ordered and typed as the source's column is, whatever their texts look like."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest
from sql_world import EXACT, World

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
    world.ledger.grant(
        "typed",
        10**6,
        "0.1",
        filter="basic",
        table=world.table,
        principal="owner",
        confirm_large=True,
    )
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


def test_a_stored_answer_needs_no_source(typed_world: World) -> None:
    """Where the catalogue cannot be asked, keys have the type that all of them write."""
    text = "SELECT size, COUNT(*) FROM visits GROUP BY size ORDER BY size"
    first = typed_world.ask(text, epsilon=EXACT, scope="typed")
    place = typed_world.folder / "visits.duckdb"
    place.rename(typed_world.folder / "away.duckdb")
    try:
        again = typed_world.ask(text, epsilon=1, scope="typed")
    finally:
        (typed_world.folder / "away.duckdb").rename(place)
    assert again.free and again.rows == first.rows
