"""Numbers of a unit's rows read them as they are: bounds clamp what is added up, and what is released."""

from __future__ import annotations

from typing import Any

import duckdb
import numpy as np
import pytest
from sql_world import DECLARATION, EXACT, World, close

#: Values are far beyond these bounds, and a unit has more rows in a city than it may.
NARROW = {
    "columns": DECLARATION["columns"]
    | {
        "age": {"lower": 0, "upper": 10, "missing": 5},
        "cost": {"lower": 0, "upper": 1, "step": "0.25"},
    }
}
CITIES = "(SELECT person, city, COUNT(*) AS n, MIN(day) AS d FROM visits GROUP BY person, city)"


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> World:
    """Random rows, some missing: 20 of each of 60 units."""
    world = World(tmp_path_factory.mktemp("narrow"))
    source = np.random.default_rng(7)
    rows = [
        (
            unit,
            ["Oslo", "Rome", "Bern"][source.integers(3)],
            None if source.random() < 0.2 else int(age),
            None if source.random() < 0.2 else float(source.integers(-8, 20)) / 4,
            int(day),
        )
        for unit in range(60)
        # No ties of a unit, of which DuckDB takes any.
        for age, day in zip(source.permutation(90)[:20] - 30, source.permutation(40)[:20])
    ]
    with duckdb.connect(str(world.folder / "visits.duckdb")) as connection:
        connection.execute("DELETE FROM visits")
        connection.executemany(
            "INSERT INTO visits SELECT $1, $2, 'c0', $3, $4, DATE '2020-01-01' + $5::INTEGER", rows
        )
    world.table = world.declare(**NARROW)
    return world


@pytest.mark.parametrize(
    "feature",
    [
        "COUNT(*) FILTER (WHERE age > 20)",
        "COUNT_IF(age > 20 AND cost < 0)",
        "COUNT_IF(age IS NULL)",
        "COUNT_IF(age = 5)",
        "COUNT(age)",
        "COUNT(DISTINCT age)",
        "COUNT(DISTINCT cost)",
        "SUM(CASE WHEN age > 20 THEN 2 ELSE 1 END)",
        "SUM(least(greatest(age, 3), 4))",
        "SUM(CASE WHEN cost > 2 THEN 3 ELSE 2 END) FILTER (WHERE cost * 4 > age)",
        "GREATEST(LEAST(ARG_MAX(cost, age), 1), 0)",
        "GREATEST(LEAST(ARG_MIN(cost, age), 1), 0)",
        "GREATEST(LEAST(FIRST(cost ORDER BY age DESC NULLS LAST), 1), 0)",
        "GREATEST(LEAST(MAX(age), 10), 0)",
    ],
)
def test_a_unit_has_what_duckdb_finds_in_its_rows(narrow: World, feature: str) -> None:
    """Conditions, orders, choices and different values."""
    text = f"SELECT SUM(k) FROM (SELECT person, {feature} AS k FROM visits GROUP BY person)"
    assert close(narrow.ask(text, epsilon=EXACT).rows[0][0], narrow.truth(text)[0][0]), text


@pytest.mark.parametrize(
    "query",
    [
        "SELECT COUNT(*) FROM (SELECT person FROM visits GROUP BY person HAVING COUNT_IF(age > 50) > 2)",
        "SELECT COUNT(*) FROM (SELECT person FROM visits GROUP BY person HAVING MAX(age) > 55 AND MIN(cost) < -1.5)",
        "SELECT COUNT_IF(m > 55) FROM (SELECT person, MAX(age) AS m FROM visits GROUP BY person)",
        "SELECT COUNT_IF(m IS NULL) FROM (SELECT person, MAX(age) AS m FROM visits WHERE cost > 4 GROUP BY person)",
        "SELECT COUNT_IF(m > 20) FROM (SELECT person, ARG_MIN(age, day) AS m FROM visits GROUP BY person)",
        f"SELECT COUNT_IF(m > 8) FROM (SELECT person, MAX(n) AS m FROM {CITIES} GROUP BY person)",
        f"SELECT COUNT_IF(m > 15) FROM (SELECT person, SUM(n) AS m FROM {CITIES} GROUP BY person)",
        f"SELECT COUNT(*) FROM (SELECT person FROM {CITIES} GROUP BY person HAVING AVG(n) > 6 AND ARG_MAX(n, d) > 7)",
        f"SELECT SUM(k) FROM (SELECT person, COUNT_IF(n > 7) AS k FROM {CITIES} GROUP BY person)",
        f"SELECT m, COUNT(*) FROM (SELECT person, n AS m FROM {CITIES} GROUP BY person, n) GROUP BY m ORDER BY m",
    ],
)
def test_conditions_of_units_see_numbers_as_they_are(narrow: World, query: str) -> None:
    """Also those of queries by unit over others, where each may have 3 rows and has up to 20."""
    few: Any = narrow.declare(**NARROW, contribution_bounds={"rows": 3, "groups": 3})
    wide, narrow.table = narrow.table, few if "city" in query else narrow.table
    try:
        rows = narrow.ask(query, epsilon=EXACT, delta="1e-3").rows
    finally:
        narrow.table = wide
    truth = narrow.truth(query)
    if len(truth) > 1:
        # Groups of few units are not shown.
        truth = [row for row in truth if row in rows or row[1] > 2]
    assert len(rows) == len(truth) and all(map(close, sum(rows, ()), sum(truth, ()))), (rows, truth)


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("SELECT COUNT_IF(s > 45) FROM (SELECT person, SUM(age) AS s FROM visits GROUP BY person)",
         'add up "age" clamped to 0..10, 5 where missing'),
        ("SELECT s, COUNT(*) FROM (SELECT person, SUM(cost) AS s FROM visits GROUP BY person) GROUP BY s",
         'add up "cost" clamped to 0..1'),
        ("SELECT COUNT(*) FROM (SELECT person FROM visits GROUP BY person HAVING AVG(cost * 2) > 1)",
         '("cost" * 2) clamped to 0..2'),
        (f"SELECT AVG(m) FROM (SELECT person, MAX(n) AS m FROM {CITIES} GROUP BY person)",
         'clamped for each person: max("count(*)") to 1..20'),
        (f"SELECT AVG(m) FROM (SELECT person, ARG_MAX(n, d) AS m FROM {CITIES} GROUP BY person)",
         'clamped for each person: arg_max("count(*)", "min(""day"")") to 1..20'),
        ("SELECT AVG(t) FROM (SELECT person, SUM(s) AS t FROM (SELECT person, city, SUM(cost) AS s FROM visits "
         "GROUP BY person, city) GROUP BY person)", 'add up "sum(""cost"")" clamped to 0..20, "cost" clamped to 0..1'),
        ("SELECT COUNT_IF(s > 4) FROM (SELECT person, SUM(CASE WHEN age > 20 THEN 1 END) AS s FROM visits GROUP BY person)", ""),
        ("SELECT AVG(s) FROM (SELECT person, AVG(cost) AS s FROM visits GROUP BY person)", ""),
        ("SELECT COUNT_IF(m > 9) FROM (SELECT person, MAX(age) AS m FROM visits GROUP BY person)", ""),
    ],
)  # fmt: skip
def test_what_is_clamped_within_a_unit_is_stated(narrow: World, query: str, says: str) -> None:
    """Before a charge: of numbers of numbers, and of sums that a condition reads."""
    notes = narrow.ask(f"EXPLAIN {query}", epsilon=EXACT, delta="1e-3").explain()["notes"]
    clamped = [note for note in notes if "clamped" in note]
    assert (says in clamped[0] and len(clamped) == 1) if says else not clamped, notes


def test_what_nobody_exceeds_is_not_called_clamped(narrow: World) -> None:
    """Values that are within their bounds, as everybody knows."""
    largest = {"rows": 20, "within_bounds": ["cost"]}
    table, narrow.table = narrow.table, narrow.declare(**NARROW, max_contributions=largest)
    query = "EXPLAIN SELECT COUNT_IF(s > 4) FROM (SELECT person, SUM(cost) AS s FROM visits GROUP BY person)"
    try:
        notes = narrow.ask(query, epsilon=EXACT).explain()["notes"]
    finally:
        narrow.table = table
    assert not [note for note in notes if "clamped" in note]
