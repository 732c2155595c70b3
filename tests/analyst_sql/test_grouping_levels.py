# ruff: noqa: E501  queries are written as analysts write them
"""ROLLUP, CUBE and GROUPING SETS: as DuckDB answers them, each level paid or added up, whatever is better."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from sql_world import EXACT, close

if TYPE_CHECKING:
    from sql_world import World

WHERE = "WHERE city IN ('Oslo', 'Rome') AND age IS NOT NULL AND age < 50"
QUERIES = [
    f"SELECT city, COUNT(*) AS n FROM visits {WHERE} GROUP BY ROLLUP (city) ORDER BY city NULLS FIRST",
    f"SELECT city, bucket(age, 10) AS b, COUNT(*) AS n, SUM(cost), GROUPING(city), GROUPING(city, b) AS g FROM visits {WHERE} GROUP BY ROLLUP (city, b) HAVING n > 10 ORDER BY g, city, b",
    f"SELECT city, bucket(age, 10) AS b, COUNT(*) AS n FROM visits {WHERE} GROUP BY CUBE (1, 2) HAVING n > 10 ORDER BY GROUPING_ID(city, bucket(age, 10)), 1, 2",
    f"SELECT city, age > 25 AS old, AVG(age), COUNT(DISTINCT person) FROM visits {WHERE} GROUP BY GROUPING SETS ((city, old), (old), ()) ORDER BY 3, 4",
    f"SELECT city, age > 25 AS old, COUNT(*) FROM visits {WHERE} GROUP BY city, ROLLUP (old) ORDER BY 1, 2, 3",
    f"SELECT clinic, age > 25 AS old, COUNT(*) FROM visits {WHERE} GROUP BY GROUPING SETS (clinic, old) ORDER BY 1, 2, 3",
    f"SELECT COALESCE(city, 'all') AS c, COUNT(*) AS n FROM visits {WHERE} GROUP BY ROLLUP ((city, (age > 25))) ORDER BY n DESC LIMIT 1",
    f"WITH t AS (SELECT city, COUNT(*) AS n FROM visits {WHERE} GROUP BY ROLLUP (city)) SELECT a.n / b.n FROM t a JOIN t b ON b.city IS NULL WHERE a.city IS NOT NULL ORDER BY 1",
    f"SELECT city, GROUPING(city), COUNT(*) FROM visits {WHERE} GROUP BY city ORDER BY city",
]  # fmt: skip


@pytest.mark.parametrize("text", QUERIES)
def test_an_answer_is_what_duckdb_says(world: World, text: str) -> None:
    """NULL stands for all keys, GROUPING tells which; names and numbers mean expressions of GROUP BY."""
    # A sum over 22 keys had noise above what `close` allows in one of ten runs.
    answer = world.ask(text, epsilon=5 * EXACT, delta="1e-3")
    truth = world.truth(text.replace("bucket(age, 10)", "(age // 10) * 10"))
    assert len(answer.rows) == len(truth), (answer.rows, truth)
    for row, expected in zip(answer.rows, truth):
        assert all(map(close, row, expected)), (row, expected)


@pytest.fixture
def narrow(fresh: World) -> World:
    """Each person counts in one group: cells have no more noise than a total."""
    fresh.table = fresh.declare(contribution_bounds={"rows": 20, "groups": 1})
    return fresh


def test_the_planner_compares_adding_with_paying(narrow: World) -> None:
    """Few cells are added up, many make a level worth its price; EXPLAIN says which and why."""
    few = "SELECT city, COUNT(*) FROM visits GROUP BY ROLLUP (city)"
    plan = narrow.ask(f"EXPLAIN {few}", epsilon=1)
    assert len(plan.to_pay) == 1 and [level.name for level in plan.added] == ["()"]
    view = plan.explain(narrow.ledger)
    noise = view["columns"][1]["noise"]
    stages = view["stages"]
    assert 'level ("city") is paid: no level is finer' in stages
    assert any(
        "level () is added up from 3 cells" in one and "paid, it would be" in one for one in stages
    )
    many = "SELECT city, COUNT(*) FROM visits WHERE age BETWEEN 0 AND 100 GROUP BY ROLLUP (city, bucket(age, 1))"
    plan = narrow.ask(f"EXPLAIN {many}", epsilon=1)
    assert len(plan.to_pay) == 2 and [level.name for level in plan.added] == ["()"]
    (line,) = [one for one in plan.levels if one.startswith('level ("city")')]
    assert "is paid" in line and "added up from 101 cells" in line
    for text, reason in (
        (
            "SELECT city, COUNT(DISTINCT person) FROM visits GROUP BY ROLLUP (city)",
            "does not add up",
        ),
        ("SELECT city, AVG(age) FROM visits GROUP BY ROLLUP (city)", "does not add up"),
        (
            "SELECT clinic, COUNT(*) FROM visits GROUP BY ROLLUP (clinic)",
            "no finer level has public keys",
        ),
        (
            "SELECT age > 5, COUNT(*) FROM visits GROUP BY ROLLUP ((age > 5))",
            'rows without a key of ("age" > 5) are in no finer group',
        ),
    ):
        plan = narrow.ask(f"EXPLAIN {text}", epsilon=1, delta="1e-6")
        assert len(plan.to_pay) == 2 and not plan.added
        assert reason in str(plan.levels), plan.levels
    # A row is of one level, so its interval is that of one number, as in the answer.
    widths = [row[1].raw_span[1] - row[1].raw_value for row in narrow.ask(few, epsilon=1).values]
    assert all(f"+- {width:g} " in noise for width in (widths[0], widths[-1])), (noise, widths)


def test_added_levels_cost_nothing(narrow: World) -> None:
    """The total is the sum of the released cells, with the noise of all; asked again all of it is free."""
    text = "SELECT city, COUNT(*) AS n FROM visits GROUP BY ROLLUP (city) ORDER BY city NULLS LAST"
    answer = narrow.ask(text, epsilon=2)
    assert narrow.spent() == "2" and len(answer.origins) == 1
    cells = answer.values
    assert cells[-1][1].raw_value == sum(row[1].raw_value for row in cells[:-1])
    widths = [row[1].raw_span[1] - row[1].raw_value for row in cells]
    assert widths[0] < widths[-1] < 3 * widths[0]
    assert "rows without declared keys are not in it" in str(answer.notes)
    assert narrow.ask(text, epsilon=1).free
    assert narrow.ask("SELECT city, COUNT(*) FROM visits GROUP BY city", epsilon=2).free
    # A target holds for the sums, too.
    held = narrow.ask(text, error="500", revision=9)
    assert max(row[1].raw_span[1] - row[1].raw_value for row in held.values) <= 500


def test_released_rows_are_grouped_as_duckdb_groups(world: World) -> None:
    """Levels over released rows are free; which rows are which has no rule for intervals."""
    text = (
        "WITH t AS (SELECT city, COUNT(*) AS n FROM visits WHERE city IN ('Oslo', 'Rome') GROUP BY city) "
        "SELECT city, SUM(n) FROM t GROUP BY ROLLUP (city) ORDER BY city"
    )
    answer = world.ask(text, epsilon=EXACT)
    assert answer.rows == world.truth(text)
    assert answer.columns[1].interval == "no interval"
