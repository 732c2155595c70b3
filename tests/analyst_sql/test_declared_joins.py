# ruff: noqa: E501  queries are written as analysts write them
"""Joins of private rows: those of the declaration, as DuckDB computes them, and no other."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest
from sql_world import DECLARATION, EXACT, World, close

from dpflow.analyst_sql.parse.query_reader import read_query
from dpflow.analyst_sql.parse.text_and_options import Refusal, read_source
from dpflow.core.contract.declaration import Table
from dpflow.errors import InvalidInput, SqlRefused


@pytest.fixture(scope="module")
def joined(tmp_path_factory: pytest.TempPathFactory) -> World:
    """Visits with public places and private people; Rome has no place, and some people are unknown."""
    world = World(Path(tmp_path_factory.mktemp("joins")))
    with duckdb.connect(str(world.folder / "visits.duckdb")) as connection:
        connection.execute(
            "CREATE TABLE places AS SELECT 'Oslo' AS name, 'north' AS zone, 7 AS size"
        )
        connection.execute("INSERT INTO places VALUES ('Bern', 'middle', 3)")
        connection.execute(
            "CREATE TABLE people AS SELECT i AS id, i % 2 AS kind FROM range(300) t(i)"
        )
    world.table = world.declare(
        joins=[
            {"relation": "places", "name": "place", "kind": "dimension", "on": {"city": "name"}},
            {
                "relation": "people",
                "name": "people",
                "kind": "unit",
                "on": {"person": "id"},
                "rows": 1,
            },
        ],
        columns=DECLARATION["columns"]
        | {
            "place.zone": {"public_keys": ["north", "middle"]},
            "place.size": {"lower": 0, "upper": 10},
            "place.name": {},
            "people.kind": {"public_keys": ["0", "1"]},
        },
    )
    world.grant("joined")
    return world


@pytest.mark.parametrize(
    "text",
    [
        "SELECT zone, COUNT(*) FROM visits JOIN places ON visits.city = places.name WHERE zone = 'north' GROUP BY zone",
        "SELECT COUNT(*), SUM(p.size) FROM visits AS v INNER JOIN places p ON p.name = v.city WHERE v.age > 3",
        "SELECT COUNT(*), COUNT(p.size) FROM visits v LEFT JOIN places p ON (v.city = p.name)",
        "SELECT p.kind, COUNT(*) AS n FROM visits v LEFT JOIN people p ON v.person = p.id WHERE p.kind IS NOT NULL GROUP BY p.kind ORDER BY n, 1",
        "SELECT zone, COUNT(*) FROM visits, places WHERE city = places.name AND zone = 'north' GROUP BY zone",
        "SELECT COUNT(*), SUM(p.size) FROM places p, visits v WHERE v.age > 3 AND (p.name = v.city)",
        "SELECT p.zone, COUNT(*) AS n FROM places p, visits WHERE name = city AND size > 5 GROUP BY p.zone HAVING n > 0",
        "WITH t AS (SELECT age, zone FROM visits v JOIN places p ON v.city = p.name WHERE p.size > 5) SELECT COUNT(*), SUM(age) FROM t WHERE zone = 'north'",
    ],
)  # fmt: skip
def test_an_answer_is_what_duckdb_says(joined: World, text: str) -> None:
    """JOIN leaves out what has no match, LEFT JOIN keeps it."""
    answer = joined.ask(text, epsilon=EXACT, delta="1e-3", scope="joined")
    truth = joined.truth(text)
    assert len(answer.rows) == len(truth), (answer.rows, truth)
    for row, expected in zip(answer.rows, truth):
        # A private key that is a number in the rows is a text in the declaration.
        assert all(map(close, row, expected)), (row, expected)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("SELECT COUNT(*) FROM visits JOIN towns ON visits.city = towns.key", "if everybody may see its rows, declare joins: [{relation: towns, name: towns, kind: dimension, on: {city: key}}]"),
        ("SELECT COUNT(*) FROM visits JOIN places ON visits.clinic = places.name", "declared are place on city = name"),
        ("SELECT COUNT(*) FROM visits JOIN places ON visits.city = places.name AND places.size > 3", "one equality"),
        ("SELECT COUNT(*) FROM visits JOIN people ON person = people.id", "declare the column people.id"),
        ("SELECT COUNT(*) FROM visits FULL JOIN places ON city = name", "LEFT JOIN"),
        ("SELECT COUNT(*) FROM visits, places", "one equality"),
        ("SELECT COUNT(*) FROM visits, places WHERE city = places.name OR age > 3", "one equality"),
        ("SELECT COUNT(*) FROM visits, places WHERE clinic = places.name", "one equality"),
        ("SELECT COUNT(*) FROM visits CROSS JOIN places", "one equality"),
        ("SELECT COUNT(*) FROM visits v JOIN visits w ON v.person = w.person", "'visits' is private; aggregate each table by itself"),
        ("SELECT COUNT(*) FROM (SELECT city FROM visits) v JOIN places ON v.city = places.name", "inside of it"),
        ("SELECT COUNT(*) FROM visits NATURAL JOIN places", "method"),
        ("SELECT COUNT(*) FROM visits JOIN (SELECT 1 AS one) ON TRUE", "no query"),
    ],
)  # fmt: skip
def test_other_joins_are_refused(joined: World, text: str, what: str) -> None:
    """With what to declare or to write; no query that asks something else is proposed."""
    with pytest.raises(SqlRefused) as refused:
        joined.ask(text, epsilon=1)
    assert refused.value.rule in ("joins", "allow-list") and what in str(refused.value)
    assert refused.value.nearest is None
    assert joined.spent() == "0"


def test_rows_that_a_join_repeats_are_read_where_the_query_names_it(joined: World) -> None:
    """COUNT(*) of the table alone counted its pairs with another private table."""
    joins = [
        one.model_copy(update={"rows": 3} if one.kind == "unit" else {})
        for one in joined.table.joins
    ]
    options = {
        "epsilon": 1,
        "scope": "joined",
        "tables": [joined.table.model_copy(update={"joins": tuple(joins)})],
    }
    named = "FROM visits v LEFT JOIN people p ON v.person = p.id"
    for text in (
        "SELECT COUNT(*) FROM visits",
        "SELECT COUNT(*) FROM visits v LEFT JOIN places p ON v.city = p.name",
        "SELECT AVG(n) FROM (SELECT person, COUNT(*) AS n FROM visits GROUP BY person)",
        f"SELECT COUNT(*) {named} LEFT JOIN people q ON v.person = q.id",
    ):
        with pytest.raises(SqlRefused, match="repeat"):
            joined.ask(text, **options)
    assert joined.ask(f"EXPLAIN SELECT COUNT(*) {named}", **options)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("SELECT COUNT(*) FROM visits v JOIN stays s ON v.stay = s.id", "and 'stays' is private; aggregate each table by itself"),
        ("SELECT COUNT(*) FROM visits JOIN main.stays ON stay = stays.person", "and 'stays' is private"),
        ("SELECT COUNT(*) FROM visits v JOIN visits w USING (person)", "and 'visits' is private"),
        ("SELECT COUNT(*) FROM visits v JOIN stays s ON s.guest = v.person", "or declare joins: [{relation: stays, name: stays, kind: unit, rows: N, on: {person: guest}}]"),
    ],
)  # fmt: skip
def test_a_private_table_is_no_dimension(text: str, what: str) -> None:
    """The message named a declared table as a public dimension, whose rows no noise would hide."""
    units = {"visits": "person", "stays": "guest"}

    def find_table(name: str) -> Table:
        if name not in units:
            raise InvalidInput(name)
        return Table.model_validate(
            {
                "name": name,
                "database": "t.duckdb",
                "privacy_unit": {"column": units[name]},
                "contribution_bounds": {"rows": 2},
                "columns": {"stay": {}, "id": {}},
            }
        )

    with pytest.raises(Refusal) as refused:
        read_query(read_source(text).parse({}), find_table)
    assert refused.value.rule == "joins" and what in str(refused.value)
    assert "kind: dimension" not in str(refused.value)
