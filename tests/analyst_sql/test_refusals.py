"""What is refused: by a rule, at a place, with a near query that is accepted, before anything is read."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest
from smallworld import forbid_reads

from dpflow.analyst_sql.source_text import MOST_TEXT
from dpflow.errors import DpflowError, InvalidInput, SqlRefused

if TYPE_CHECKING:
    from sql_world import World

#: Query, rule, line and column, and whether a near query is known.
REFUSED = [
    ("SELECT * FROM visits", "no-star", 1, 8, True),
    ("SELECT visits.* FROM visits", "no-star", 1, 8, True),
    ("SELECT COUNT(DISTINCT city) FROM visits", "distinct-unit", 1, 23, True),
    ("SELECT SUM(DISTINCT age) FROM visits", "distinct-unit", 1, 21, True),
    ("SELECT DISTINCT city, COUNT(*) FROM visits GROUP BY city", "allow-list", 1, 17, True),
    ("SELECT age, COUNT(*) FROM visits", "grouped-columns", 1, 8, True),
    ("SELECT COUNT(*)\nFROM visits\nWHERE nobody = 1", "declared-columns", 3, 7, True),
    ("SELECT COUNT(*) FROM visits WHERE person = 1", "declared-columns", 1, 35, True),
    ("SELECT SUM(AVG(age)) FROM visits", "nested-aggregates", 1, 12, True),
    ("SELECT COUNT(*) FROM visits WHERE SUM(age) > 1", "nested-aggregates", 1, 35, True),
    ("SELECT SUM(age) OVER (PARTITION BY city) FROM visits", "windows", 1, 8, True),
    ("SELECT COUNT(*) FROM visits QUALIFY row_number() OVER () = 1", "allow-list", 1, 37, True),
    ("SELECT SUM(clinic) FROM visits", "bounds", 1, 8, True),
    ("SELECT SUM(age / cost) FROM visits", "bounds", 1, 8, True),
    ("SELECT SUM(1) FROM visits", "bounds", 1, 8, True),
    ("SELECT STRING_AGG(city, ',') FROM visits", "aggregates", 1, 19, True),
    ("SELECT ANY_VALUE(age), FIRST(age) FROM visits", "aggregates", 1, 18, True),
    ("SELECT city FROM visits GROUP BY city", "aggregates", 1, 8, True),
    ("SELECT 1", "declared-table", 1, 8, True),
    ("SELECT COUNT(*) FROM secrets", "declared-table", 1, 22, True),
    ("SELECT COUNT(*) FROM other.visits", "declared-table", 1, 22, True),
    ("SELECT COUNT(*) FROM 'visits.duckdb'", "declared-table", 1, 22, True),
    ("SELECT COUNT(*) FROM read_parquet('x')", "declared-table", 1, 22, False),
    ("SELECT COUNT(*) FROM visits, visits v", "joins", 1, 30, True),
    (
        "SELECT COUNT(*) FROM visits WHERE age IN (SELECT age FROM visits)",
        "subqueries",
        1,
        35,
        True,
    ),
    ("SELECT (SELECT COUNT(*) FROM visits) FROM visits", "subqueries", 1, 16, True),
    ("SELECT COUNT(*) FROM visits; DROP TABLE visits", "one-statement", 1, 29, True),
    ("DROP TABLE visits", "select-only", 1, 12, True),
    ("PRAGMA database_list", "select-only", 1, 8, False),
    ("SELECT COUNT(*) FRM visits", "syntax", 1, 26, True),
    ("WITH dp(epsilon=1) SELECT 1", "syntax", 1, 16, True),
    ("", "one-statement", 1, 1, False),
    (";;", "one-statement", 1, 1, False),
    ("SELECT COUNT(*) FROM visits WHERE age > $1", "parameters", 1, 41, True),
    ("SELECT COUNT(*) FROM visits WHERE age > ?", "parameters", 1, 35, True),
    ("SELECT QUANTILE_CONT(age, 1.5) FROM visits", "literals", 1, 27, True),
    ("SELECT QUANTILE_CONT(age, [0.1, 0.2]) FROM visits", "literals", 1, 28, True),
    ("SELECT COUNT(*) FROM visits LIMIT 10%", "allow-list", 1, 35, True),
    ("SELECT COUNT(*) FROM visits GROUP BY 7", "positions", 1, 38, True),
    ("SELECT city, COUNT(*) FROM visits GROUP BY city ORDER BY 3", "positions", 1, 58, True),
    ("SELECT COUNT(*) // 2 FROM visits", "allow-list", 1, 8, True),
    ("SELECT random() * COUNT(*) FROM visits", "allow-list", 1, 8, True),
    ("SELECT getenv('HOME'), COUNT(*) FROM visits", "allow-list", 1, 8, True),
    ("SELECT clinic, COUNT(*) FROM visits GROUP BY clinic", "private-keys", 1, 46, True),
    ("SELECT city, MODE(city) FROM visits GROUP BY city", "grouped-mode", 1, 14, True),
    (
        "SELECT city, COUNT(*) FROM visits GROUP BY CUBE (city, 1, 1, 1, 1, 1, 1)",
        "length",
        1,
        50,
        True,
    ),
    ("SELECT COUNT(*) FROM visits WHERE city ILIKE 'o%'", "allow-list", 1, 35, True),
    ("SELECT COUNT(*) FROM visits WHERE NULL", "literals", 1, 8, True),
    ("SELECT clinic, MEDIAN(age) FROM visits GROUP BY clinic", "public-keys", 1, 16, True),
    ("SELECT COUNT(*) FROM visits WHERE aeg > 3", "declared-columns", 1, 35, True),
    ("SELECT a.b.c.d, COUNT(*) FROM visits", "allow-list", 1, 10, True),
    ("SELECT COUNT(*) FROM vists", "declared-table", 1, 22, True),
    ("SELECT COUNT(*) FROM visits LIMIT $1", "parameters", 1, 35, True),
]


@pytest.mark.parametrize(("text", "rule", "line", "column", "mended"), REFUSED)
def test_a_refusal_says_rule_and_place(
    world: World, text: str, rule: str, line: int, column: int, mended: bool
) -> None:
    """And its nearest query is accepted; nothing is charged."""
    before = world.spent()
    with pytest.raises(SqlRefused) as refused:
        world.ask(text, epsilon=1)
    error = refused.value
    assert (error.rule, error.line, error.column) == (rule, line, column), str(error)
    assert (error.nearest is not None) == mended, str(error)
    assert not error.retryable and "^" in str(error)
    if error.nearest is not None:
        assert world.ask(f"EXPLAIN {_after_comment(error.nearest)}", epsilon=1, delta="1e-6")
    assert world.spent() == before


def test_a_near_name_is_proposed(world: World) -> None:
    """Rather than to leave out what has it."""
    for wrong, right in (
        ("SELECT AVG(aeg) FROM visits", "SELECT AVG(age) FROM visits"),
        ("SELECT COUNT(*) FROM vistis", "SELECT COUNT(*) FROM visits"),
        ("WITH t AS (SELECT age AS years FROM visits) SELECT SUM(yaers) FROM t", "SUM(years) FROM t"),
    ):  # fmt: skip
        with pytest.raises(SqlRefused) as refused:
            world.ask(wrong, epsilon=1)
        assert str(refused.value.nearest).endswith(right)


NEAREST = [
    ("SELCT COUNT(*) FRM visits GRUOP BY city", "SELECT COUNT(*) FROM visits GROUP BY city"),
    ("SELECT city, COUNT(* FROM visits GROUP BY city", "SELECT city, COUNT(*) FROM visits GROUP BY city"),
    ("SELECT COUNT(*)) FROM visits", "SELECT COUNT(*) FROM visits"),
    ("SELECT COUNT(*) FROM visits WHERE", "SELECT COUNT(*) FROM visits"),
    ("SELECT COUNT(*) FROM visits WHERE city = 'Rome", "SELECT COUNT(*) FROM visits WHERE city = 'Rome'"),
    ("SELECT COUNT(*) FROM visits WHERE age > 3 AND AND age < 9", "SELECT COUNT(*) FROM visits WHERE age > 3 AND  age < 9"),
    ("WITH dp(delta=1e-7) SELECT clinic, COUNT(*) FROM visits GROUP BY clinic", "-- dp: delta=1e-7\n"
     "SELECT clinic, COUNT(*) FROM visits GROUP BY clinic"),
    ("CREATE TABLE t AS SELECT city, COUNT(*) FROM visits GROUP BY city", "SELECT city, COUNT(*) FROM visits GROUP BY city"),
    ("INSERT INTO t SELECT COUNT(*) FROM visits", "SELECT COUNT(*) FROM visits"),
    ("COPY (SELECT SUM(age) FROM visits) TO 'x.csv'", "SELECT SUM(age) FROM visits"),
    ("DELETE FROM visits WHERE age > 3", "SELECT COUNT(*) FROM visits WHERE age > 3"),
    ("UPDATE visits SET age = 1 WHERE city = 'Rome'", "SELECT COUNT(*) FROM visits WHERE city = 'Rome'"),
    ("DROP TABLE visits", "SELECT COUNT(*) FROM visits"),
    ("DESCRIBE visits", "SELECT COUNT(*) FROM visits"),
    ("SELECT city, AVG(age) GROUP BY city", "SELECT city, AVG(age) FROM visits GROUP BY city"),
    ("SELECT COUNT(*) FROM visits WHERE age > $1 AND city = 'Rome'", "SELECT COUNT(*) FROM visits WHERE city = 'Rome'"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "nearest"), NEAREST)
def test_what_is_no_select_has_a_near_query(world: World, text: str, nearest: str) -> None:
    """Of a broken text, another statement, one without FROM or without a parameter's value."""
    with pytest.raises(SqlRefused) as refused:
        world.ask(text, epsilon=1)
    assert refused.value.nearest == nearest
    assert world.ask(f"EXPLAIN {_after_comment(nearest)}", epsilon=1, delta="1e-6")


@pytest.mark.parametrize(
    "text",
    [
        "SELECT COUNT(*) FRM visits /*\x1b[2J*/",
        "SELECT COUNT(*), MAX(clinic) FROM visits WHERE city = '\x1b[2J'",
        "SELECT COUNT(*) FROM visits WHERE city = '\u202e'; SELECT 1",
    ],
)
def test_a_near_query_moves_no_cursor(world: World, text: str) -> None:
    """One with control characters is not shown: it reached terminals and logs as it was."""
    with pytest.raises(SqlRefused) as refused:
        world.ask(text, epsilon=1)
    assert refused.value.nearest is None
    assert all(c.isprintable() or c == "\n" for c in str(refused.value))


def test_a_value_that_is_given_stays_where_another_is_missing(world: World) -> None:
    """The near query leaves out what lacks its value, and nothing else."""
    text = "SELECT COUNT(*) FROM visits WHERE age > $low AND age < $high AND city = $city"
    with pytest.raises(SqlRefused) as refused:
        world.ask(text, epsilon=1, parameters={"low": 3, "city": "Rome"})
    assert refused.value.rule == "parameters" and "'high'" in str(refused.value)
    near = "SELECT COUNT(*) FROM visits WHERE age > 3 AND city = 'Rome'"
    assert refused.value.nearest == near


def _after_comment(text: str) -> str:
    return text.split("\n", 1)[1] if text.startswith("--") else text


def test_explain_reads_no_row_and_charges_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It opens the catalogue at most, so that types are checked; every line is there."""
    from dpflow.analyst_sql.explain import explain_sql

    forbid_reads(monkeypatch)
    before = world.spent()
    plan = world.ask(
        "EXPLAIN SELECT city, COUNT(*) AS n, MAX(age), AVG(cost) / COUNT(*) FROM visits GROUP BY city LIMIT 1",
        epsilon=1,
    )
    view = explain_sql(plan, world.ledger)
    assert [one["mechanism"] for one in view["releases"]] == ["aggregates", "quantiles"]
    assert [column["column"] for column in view["columns"]][1] == "n"
    assert "+-" in view["columns"][1]["noise"] and "0.99" in " ".join(view["notes"])
    assert view["forecast"] == "the ledger would accept it now" and view["budgets"]
    assert world.spent() == before
    with pytest.raises(DpflowError, match="one type"):
        explain_sql(
            world.ask("EXPLAIN SELECT COUNT(*) FROM visits WHERE age = 'x'", epsilon=1),
            world.ledger,
        )


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("-- dp: epsilon=1\nSELECT COUNT(*) FROM visits", {"epsilon": 1}, "given twice"),
        ("-- dp: epsilon=1, epsilon=1\nSELECT COUNT(*) FROM visits", {}, "given twice"),
        ("-- dp: epsilon=1, error=5\nSELECT COUNT(*) FROM visits", {}, "both given"),
        ("-- dp: epsilom=1\nSELECT COUNT(*) FROM visits", {}, "options:"),
        ("-- dp: epsilon=-1\nSELECT COUNT(*) FROM visits", {}, "no legal amount"),
        ("-- dp: epsilon=nan\nSELECT COUNT(*) FROM visits", {}, "no legal amount"),
        ("-- dp: epsilon=1, revision=0\nSELECT COUNT(*) FROM visits", {}, "revision"),
        ("-- dp: error=5%\nSELECT COUNT(*) FROM visits", {}, "rows"),
        ("SELECT COUNT(*) FROM visits", {}, "what may be spent"),
    ],
)
def test_options_are_checked(
    world: World, text: str, options: dict[str, Any], message: str
) -> None:
    """Each is given once, and is what it should be."""
    with pytest.raises(InvalidInput, match=message):
        world.ask(text, **options)


@pytest.mark.parametrize("above", ["-- Visits by city\n", "/* title\n */ \n", "\n  -- a\n-- b\n"])
def test_options_below_a_title_count(world: World, above: str) -> None:
    """Were they overlooked, another scope than theirs would pay."""
    text = f"{above}-- DP: scope=others, revision=3\n-- dp: epsilon=2\nEXPLAIN SELECT COUNT(*) FROM visits"
    plan = world.ask(text, scope=None)
    assert (plan.settings.scope, plan.settings.revision, plan.settings.epsilon) == ("others", 3, 2)
    with pytest.raises(InvalidInput, match="given twice"):
        world.ask(text, epsilon=1, scope=None)


def test_huge_texts_are_refused_at_once(world: World) -> None:
    """A megabyte, deep brackets and long lines end in a rule, and soon."""
    texts = [
        "SELECT COUNT(*) FROM visits WHERE " + "age > 1 AND " * 90_000 + "TRUE",
        "SELECT COUNT(*) FROM visits WHERE " + "(" * 9000 + "age > 1" + ")" * 9000,
        "SELECT " + "(" * 9000 + "COUNT(*)" + ")" * 9000 + " FROM visits",
        "SELECT COUNT(*) " + "+ 1 " * 4000 + "FROM visits",
        "SELECT " + ", ".join(["COUNT(*)"] * 2000) + " FROM visits",
        "SELECT COUNT(*) FROM visits WHERE NOT " * 300 + "TRUE",
    ]
    for text in texts:
        start = time.process_time()
        with pytest.raises(SqlRefused) as refused:
            world.ask(text, epsilon=1)
        assert refused.value.rule in ("length", "depth", "syntax")
        assert len(str(refused.value)) < 1000
        assert time.process_time() - start < 20
    assert len(texts[0]) > 10**6 > MOST_TEXT


@pytest.mark.parametrize(
    "value",
    ["Oslo' OR TRUE --", "'; DROP TABLE visits; --", "$x", "é\n\t☃", "%s {{ x }}", ""],
)
def test_parameters_are_data(world: World, value: str) -> None:
    """Whatever a value holds, it is one literal."""
    plan = world.ask(
        "EXPLAIN SELECT COUNT(*) FROM visits WHERE city = $city AND age < $1",
        epsilon=1,
        parameters={"city": value, "1": 30},
    )
    quoted = value.replace("'", "''")
    assert [str(node) for node in plan.query.conditions] == [
        '("age" < 30)',
        f"(\"city\" = '{quoted}')",
    ]


def test_question_marks_are_numbered_as_they_stand(world: World) -> None:
    """The parser's tree has LIMIT before WHERE, and some operands twice."""
    plan = world.ask(
        "EXPLAIN SELECT PERCENTILE_CONT(?) WITHIN GROUP (ORDER BY age), COUNT(*) FILTER (WHERE cost > ?) FROM visits "
        "WHERE age > ? AND city IN (?, ?) HAVING COUNT(*) > ? LIMIT ? OFFSET ?",
        epsilon=1,
        parameters=[0.25, 2, 40, "Oslo", "Rome", 5, 10, 3],
    )
    query = plan.query
    assert [str(node) for node in query.conditions] == [
        '("age" > 40)',
        "(\"city\" IN ('Oslo', 'Rome'))",
    ]
    assert (query.limit, query.offset) == (10, 3)
    assert query.having is not None and query.having.args[1].args == (5,)
    assert [str(one.share or one.condition) for one in query.aggregates()[:2]] == [
        "1/4",
        '("cost" > 2)',
    ]


def test_names_are_found_as_duckdb_finds_them(fresh: World) -> None:
    """Quoted or not, in any case, with keywords of other dialects; ambiguous ones are refused."""
    columns = {name: {} for name in ("Select", "user", "Größe", "a b", "x.y")}
    columns["rank"] = {"lower": 0, "upper": 1}
    fresh.table = fresh.declare(columns=columns)
    for condition in (
        '"select" = 1',
        '"SELECT" = 1',
        '"GRÖSSE" IS NULL',
        '"a B" = 2',
        "\"User\" = 'x'",
    ):
        plan = fresh.ask(f"EXPLAIN SELECT SUM(rank) FROM visits WHERE {condition}", epsilon=1)
        assert len(plan.query.conditions) == 1
    joined = {
        "joins": [
            {"relation": name, "name": name, "kind": "dimension", "on": {"city": "k"}}
            for name in ("one", "two")
        ],
        "columns": {"one.zone": {}, "two.zone": {}, "two.port": {}, "city": {}},
    }
    fresh.table = fresh.declare(**joined)
    with pytest.raises(SqlRefused, match="ambiguous-columns") as refused:
        fresh.ask("SELECT COUNT(*) FROM visits WHERE zone = 'a' AND port = 'b'", epsilon=1)
    assert "one.zone = 'a'" in str(refused.value.nearest)
