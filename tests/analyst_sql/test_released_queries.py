# ruff: noqa: E501  queries are written as analysts write them
"""CTEs, subqueries and UNION ALL: row by row they are parts of the private query, and over released
rows they are free, with the error carried along.
"""

from __future__ import annotations

import contextlib
from fractions import Fraction
from typing import TYPE_CHECKING

import pytest
from smallworld import forbid_reads
from sql_world import EXACT, close

from dpflow.errors import BudgetExceeded, QueryStopped, SqlRefused

if TYPE_CHECKING:
    from sql_world import World

#: Of private rows, each by itself: merged into the query above.
ROW_BY_ROW = [
    "WITH late AS (SELECT * FROM visits WHERE cost > 1) SELECT city, COUNT(*) AS n FROM late WHERE city IN ('Oslo', 'Rome') GROUP BY city ORDER BY city",
    "SELECT COUNT(*), SUM(twice) FROM (SELECT age * 2 AS twice, city AS place FROM visits WHERE age > 3) AS t WHERE t.place = 'Rome'",
    "WITH a AS (SELECT age AS x, person FROM visits), b(y, p) AS (SELECT x + 1, person FROM a WHERE x < 40) SELECT AVG(y), COUNT(y) FROM b",
    "WITH a AS (SELECT person AS who, v.city FROM visits v) SELECT COUNT(DISTINCT who), COUNT(DISTINCT a.who) FILTER (WHERE city = 'Rome') FROM a",
    "WITH visits AS (SELECT * FROM visits WHERE city = 'Rome') SELECT COUNT(*), SUM(cost) FROM visits WHERE cost > 2",
    "SELECT CASE WHEN young THEN 'y' ELSE 'o' END AS k, COUNT(*) FROM (SELECT age < 25 AS young FROM visits WHERE age IS NOT NULL) GROUP BY k ORDER BY k",
]
#: Of released rows: computed after noise.
AFTER_NOISE = [
    "WITH t AS (SELECT city, COUNT(*) AS n, AVG(age) AS a FROM visits WHERE city IN ('Oslo', 'Rome') GROUP BY city) SELECT city, n, a * 2 AS b FROM t WHERE n > 100 AND city <> 'Bern' ORDER BY n DESC, city",
    "SELECT SUM(n), AVG(n), MIN(n), MAX(n), COUNT(*), MEDIAN(n) FROM (SELECT city, COUNT(*) AS n FROM visits WHERE city IN ('Oslo', 'Rome') GROUP BY city)",
    "WITH t AS (SELECT city, bucket(age, 25) AS b, COUNT(*) AS n FROM visits WHERE age IS NOT NULL AND city IS NOT NULL GROUP BY city, b) SELECT b, SUM(n) AS s, COUNT(*) FILTER (WHERE n > 5), COUNT(DISTINCT city) FROM t WHERE city <> 'Bern' AND b < 50 GROUP BY b HAVING SUM(n) > 0 ORDER BY b",
    "WITH a AS (SELECT city, COUNT(*) AS n FROM visits WHERE city IS NOT NULL GROUP BY city), b AS (SELECT city, COUNT(*) AS m FROM visits WHERE age > 20 AND city IS NOT NULL GROUP BY city) SELECT a.city, m / n, n - m AS rest FROM a JOIN b ON a.city = b.city WHERE n > 100 ORDER BY a.city",
    "WITH a AS (SELECT city, COUNT(*) AS n FROM visits WHERE city IN ('Oslo', 'Rome') GROUP BY city) SELECT * FROM a LEFT JOIN (SELECT city, n * 2 AS d FROM a WHERE city = 'Oslo') AS o USING (city) ORDER BY city",
    "SELECT COUNT(*) / (SELECT COUNT(*) FROM visits), (SELECT MAX(n) FROM (SELECT city, COUNT(*) AS n FROM visits WHERE city = 'Rome' GROUP BY city)) FROM visits WHERE age > 20",
    "WITH t(k, n) AS (SELECT city, COUNT(*) FROM visits WHERE city IN ('Oslo', 'Rome') GROUP BY city) SELECT k, n FROM t WHERE n > (SELECT AVG(n) FROM t) ORDER BY k",
    "SELECT 'all' AS what, COUNT(*) AS n FROM visits UNION ALL SELECT city, COUNT(*) FROM visits WHERE city IN ('Oslo', 'Rome') GROUP BY city ORDER BY n DESC, what LIMIT 2",
    "WITH u AS (SELECT city AS k, COUNT(*) AS n FROM visits WHERE city IN ('Oslo', 'Rome') GROUP BY city UNION ALL SELECT 'old', COUNT(*) FROM visits WHERE age > 40) SELECT SUM(n), MIN(k) FROM u",
    "SELECT COUNT(*), COUNT(*) FILTER (WHERE o IN (TRUE)) FROM (SELECT city = 'Rome' AS o, COUNT(*) AS n FROM visits WHERE city IN ('Oslo', 'Rome') GROUP BY 1) WHERE n NOT IN (-1, 0)",
    "SELECT upper(city), n FROM (SELECT city, COUNT(*) AS n FROM visits WHERE city IN ('Oslo', 'Rome') GROUP BY city ORDER BY n LIMIT 1) AS t",
    "SELECT (SELECT COUNT(*) FROM visits WHERE age > 20) / (SELECT COUNT(*) FROM visits) AS share, 7 AS seven",
    "WITH t AS (SELECT city, COUNT(*) AS n FROM visits WHERE city IN ('Oslo', 'Rome') GROUP BY city) SELECT (SELECT MAX(n) FROM t) - (SELECT (SELECT MIN(n) FROM t)) AS apart",
]


@pytest.mark.parametrize("text", ROW_BY_ROW + AFTER_NOISE)
def test_an_answer_is_what_duckdb_says(world: World, text: str) -> None:
    """Also names of CTEs over those of tables, renamed columns, and a unit that passes through."""
    answer = world.ask(text, epsilon=EXACT, delta="1e-3")
    truth = world.truth(text.replace("bucket(age, 25)", "(age // 25) * 25"))
    assert len(answer.rows) == len(truth), (answer.rows, truth)
    for row, expected in zip(answer.rows, truth):
        assert all(map(close, row, expected)), (row, expected)


def test_rows_of_a_subquery_are_the_tables(world: World) -> None:
    """The plan is that of the query written in one piece: so are bounds, sensitivity and the key."""
    nested = "WITH a AS (SELECT city AS c, age + 1 AS older FROM visits WHERE cost > 1) SELECT c, SUM(older) FROM a WHERE older < 40 GROUP BY c"
    plain = "SELECT city, SUM(age + 1) FROM visits WHERE cost > 1 AND age + 1 < 40 GROUP BY city"
    plans = [world.ask(f"EXPLAIN {text}", epsilon=1).parts for text in (nested, plain)]
    assert [part.plan.digest for part in plans[0]] == [part.plan.digest for part in plans[1]]


def test_selects_of_the_same_rows_share_their_releases(fresh: World) -> None:
    """Branches, CTEs and brackets over the same rows and groups are one release, charged once."""
    text = (
        "WITH t AS (SELECT city, COUNT(*) AS n FROM visits GROUP BY city) SELECT t.city, t.n, o.s FROM t JOIN "
        "(SELECT city, SUM(age) AS s FROM visits GROUP BY city) AS o USING (city)"
    )
    answer = fresh.ask(text, epsilon=3)
    assert [one.mechanism for one in answer.origins] == ["aggregates"] and fresh.spent() == "3"
    assert fresh.ask(text, epsilon=2).free
    assert fresh.ask("SELECT city, SUM(age) FROM visits GROUP BY city", epsilon=1).free


def test_branches_are_charged_together_or_not_at_all(fresh: World) -> None:
    """The price is that of all of them, divided by what each has."""
    fresh.ledger.grant("small", 1, "1e-6", filter="basic", table=fresh.table, principal="owner")
    text = (
        "SELECT 'all' AS k, COUNT(*) AS n FROM visits UNION ALL "
        "SELECT 'old', COUNT(*) FROM visits WHERE age > 40"
    )
    with pytest.raises(BudgetExceeded):
        fresh.ask(text, epsilon="1.2", scope="small")
    assert fresh.ledger.remaining("small").rows()[0]["epsilon_spent"] == "0"
    answer = fresh.ask(text, epsilon="1", scope="small")
    assert [one.epsilon for one in answer.origins] == ["0.5", "0.5"]
    assert [row[0] for row in answer.rows] == ["all", "old"]
    # By the order of the branches: the other order is the same two releases.
    other = "SELECT 'old' AS k, COUNT(*) AS n FROM visits WHERE age > 40 UNION ALL SELECT 'all', COUNT(*) FROM visits"
    assert fresh.ask(other, epsilon="1", scope="small").free
    assert fresh.ledger.remaining("small").rows()[0]["epsilon_spent"] == "1"


def test_intervals_hold_over_released_rows(fresh: World) -> None:
    """Sums over rows have the noise of all of them; a single row's interval is narrower."""
    inner = (
        "SELECT bucket(age, 10) AS b, COUNT(*) AS n FROM visits WHERE age IS NOT NULL GROUP BY b"
    )
    single = fresh.ask(inner, epsilon=1)
    total = fresh.ask(f"SELECT SUM(n) AS s, MAX(n) - MIN(n) AS d FROM ({inner})", epsilon=1)
    assert total.free
    (width,) = {row[1].raw_span[1] - row[1].raw_value for row in single.values}
    ((s, d),) = total.values
    assert width < s.raw_span[1] - s.raw_value < 11 * width
    assert (
        s.raw_value == sum(row[1].raw_value for row in single.values) and d.low < d.value < d.high
    )
    # Rows that noise chose: without it others would be summed up, so no interval holds the sum.
    chosen = fresh.ask(f"SELECT SUM(n) AS s FROM ({inner}) WHERE n > 100", epsilon=1)
    assert chosen.free and chosen.columns[0].interval == "no interval"
    truth = fresh.truth(inner.replace("bucket(age, 10)", "age // 10"))
    assert s.low <= sum(row[1] for row in truth) <= s.high


REFUSED = [
    ("SELECT person, AVG(n) FROM (SELECT person, COUNT(*) AS n FROM visits GROUP BY person) GROUP BY person", "unit-groups", 96),
    ("SELECT COUNT(*) FROM (SELECT DISTINCT city FROM visits)", "row-queries", 39),
    ("SELECT COUNT(*) FROM (SELECT city FROM visits LIMIT 10)", "row-queries", 53),
    ("SELECT COUNT(*) FROM (SELECT city FROM visits GROUP BY city)", "aggregates", 30),
    ("WITH t AS (SELECT age FROM visits) SELECT nobody, COUNT(*) FROM t", "declared-columns", 43),
    ("WITH t AS (SELECT age FROM visits) SELECT SUM(cost) FROM t", "declared-columns", 47),
    ("WITH t AS (SELECT age FROM visits) SELECT * FROM t", "no-star", 43),
    ("SELECT COUNT(*) FROM visits UNION ALL SELECT COUNT(*), 1 FROM visits", "binding", 1),
    ("SELECT COUNT(*) FROM visits UNION ALL SELECT age FROM visits", "grouped-columns", 46),
    ("WITH t AS (SELECT COUNT(*) AS n FROM visits) SELECT n FROM t, t", "binding", 1),
    ("WITH t AS (SELECT COUNT(*) AS n FROM visits) SELECT n FROM t, t AS u", "binding", 1),
    ("WITH t AS (SELECT COUNT(*) AS n FROM visits) SELECT COUNT(*) FROM visits JOIN t ON TRUE", "joins", 79),
    ("WITH t AS (SELECT COUNT(*) AS n FROM visits) SELECT n FROM t FULL JOIN t AS u ON TRUE", "binding", 1),
    ("WITH t AS (SELECT city, COUNT(*) AS n FROM visits GROUP BY city) SELECT n, SUM(n) FROM t", "binding", 1),
    ("SELECT COUNT(*), (SELECT COUNT(*), 1 FROM visits) FROM visits", "binding", 1),
    ("SELECT COUNT(*) FROM (SELECT age, cost AS age FROM visits)", "ambiguous-columns", 35),
    ("SELECT AVG(person) FROM (SELECT person, age AS person FROM visits)", "ambiguous-columns", 41),
    ("SELECT AVG(age) FROM (SELECT *, age + 1 AS Person FROM visits)", "ambiguous-columns", 33),
    ("WITH a AS (SELECT COUNT(*) AS n FROM visits), A AS (SELECT COUNT(age) AS n FROM visits) SELECT n FROM a", "ambiguous-columns", 47),
]  # fmt: skip


@pytest.mark.parametrize(("text", "rule", "column"), REFUSED)
def test_a_refusal_says_rule_and_place(world: World, text: str, rule: str, column: int) -> None:
    """Inside of the CTE or subquery that is meant; what DuckDB cannot bind is refused before the charge."""
    before = world.spent()
    with pytest.raises(SqlRefused) as refused:
        world.ask(text, epsilon=1)
    error = refused.value
    assert (error.rule, error.line, error.column) == (rule, 1, column), str(error)
    assert error.nearest is None
    assert world.spent() == before


def test_queries_that_grow_end(world: World) -> None:
    """Each CTE names the one before twice; brackets nest; unions are long."""
    doubled = ", ".join(
        f"t{n} AS (SELECT a.n FROM t{n - 1} a JOIN t{n - 1} b ON a.n = b.n)" for n in range(1, 30)
    )
    texts = [
        f"WITH t0 AS (SELECT city, COUNT(*) AS n FROM visits GROUP BY city), {doubled} SELECT n FROM t29",
        "SELECT n FROM " + "(SELECT n FROM " * 60 + "(SELECT COUNT(*) AS n FROM visits)" + ")" * 60,
        "SELECT COUNT(*) FROM visits" + " UNION ALL SELECT COUNT(*) FROM visits WHERE age > 1" * 300,
        "SELECT " + "1 + (SELECT COUNT(*) + " * 15 + "COUNT(*)" + " FROM visits)" * 15 + " FROM visits",
    ]  # fmt: skip
    with contextlib.suppress(QueryStopped):
        assert len(world.ask(texts[0], epsilon=1).rows) >= 3
    with pytest.raises(SqlRefused, match="depth"):
        world.ask(texts[1], epsilon=1)
    for text in texts[2:]:
        with contextlib.suppress(SqlRefused):
            world.ask(f"EXPLAIN {text}", epsilon=1)


def test_explain_reads_no_row(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all branches, levels and brackets: it says the stages, the noise of each column and the cost."""
    forbid_reads(monkeypatch)
    before = world.spent()
    text = (
        "WITH t AS (SELECT city, age > 30 AS old, COUNT(*) AS n FROM (SELECT * FROM visits WHERE cost > 2) GROUP BY ROLLUP (city, old)) "
        "SELECT city, SUM(n) AS s, (SELECT AVG(age) FROM visits) AS a FROM t GROUP BY city HAVING s > 1 UNION ALL "
        "SELECT 'old', COUNT(DISTINCT person), 0 FROM visits WHERE age > 47"
    )
    plan = world.ask(f"EXPLAIN {text}", epsilon=2)
    view = plan.explain(world.ledger)
    assert view["forecast"] == "the ledger would accept it now" and "level (" in str(view["stages"])
    assert sum(Fraction(one["epsilon"]) for one in view["releases"]) == 2
    noises = [one["noise"] for one in view["columns"]]
    assert (
        noises[0] == "none" and "COUNT(*) +-" in noises[1] and "COUNT(DISTINCT unit)" in noises[1]
    )
    assert 'AVG("age")' in noises[2] and world.spent() == before
