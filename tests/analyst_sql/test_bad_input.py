# ruff: noqa: E501  queries are written as analysts write them
"""What analysts, templates and hostile callers write: each ends in an answer that means what SQL means, or
in a rule; nothing raises anything else, and nothing is charged.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import duckdb
import pytest
from sql_world import DECLARATION, EXACT

from dpflow.analyst_sql.parse.text_and_options import read_source
from dpflow.errors import InvalidInput, SqlRefused

if TYPE_CHECKING:
    from sql_world import World

#: In CTEs, brackets, unions, joins and grouping sets: the rule that refuses.
REFUSED = [
    # Ambiguous columns.
    ("WITH t AS (SELECT city, COUNT(*) AS n FROM visits GROUP BY city) SELECT city FROM t a JOIN t b ON a.n = b.n", "binding"),
    ("SELECT COUNT(*) FROM (SELECT age AS x, cost AS X FROM visits)", "ambiguous-columns"),
    # Reserved words without quotes.
    ("SELECT COUNT(*) AS select FROM visits", "syntax"),
    ("SELECT select, COUNT(*) FROM visits GROUP BY select", "syntax"),
    # Nested aggregates, wherever the inner one hides.
    ("SELECT SUM(n) FROM (SELECT SUM(COUNT(*)) AS n FROM visits)", "nested-aggregates"),
    ("SELECT city AS c, SUM(COUNT(*)) FROM visits GROUP BY ROLLUP (city)", "nested-aggregates"),
    ("WITH t AS (SELECT COUNT(*) AS n FROM visits) SELECT SUM(MAX(n)) FROM t", "binding"),
    ("WITH t AS (SELECT COUNT(*) AS n FROM visits) SELECT n FROM t WHERE SUM(n) > 1", "binding"),
    ("SELECT COUNT(*) FROM (SELECT age FROM visits WHERE age > AVG(age))", "nested-aggregates"),
    # DISTINCT on another column than the unit.
    ("SELECT n FROM (SELECT COUNT(DISTINCT clinic) AS n FROM visits)", "distinct-unit"),
    ("WITH t AS (SELECT clinic AS person, age FROM visits) SELECT COUNT(DISTINCT person) FROM t", "distinct-unit"),
    # Windows.
    ("SELECT COUNT(*) OVER () FROM visits", "aggregates"),
    ("SELECT COUNT(*) FROM (SELECT row_number() OVER () AS r FROM visits) WHERE r < 3", "allow-list"),
    # SELECT *.
    ("SELECT * FROM visits", "no-star"),
    ("SELECT * FROM (SELECT * FROM visits)", "no-star"),
    ("SELECT COUNT(*) FROM visits UNION ALL SELECT * FROM visits", "no-star"),
    ("SELECT COUNT(*), t.* FROM visits t", "no-star"),
    ("WITH t(a, b) AS (SELECT * FROM visits) SELECT SUM(a) FROM t", "no-star"),
    ("SELECT COUNT(*) FROM (SELECT * EXCLUDE (age) FROM visits)", "allow-list"),
    # Tables that nobody declared.
    ("WITH t AS (SELECT * FROM secrets) SELECT COUNT(*) FROM t", "declared-table"),
    ("SELECT COUNT(*) FROM visits UNION ALL SELECT COUNT(*) FROM information_schema.tables", "declared-table"),
    ("SELECT COUNT(*) FROM visits, duckdb_settings()", "joins"),
    ("SELECT (SELECT COUNT(*) FROM secrets), COUNT(*) FROM visits", "declared-table"),
    ("WITH a AS (SELECT COUNT(*) AS n FROM b), b AS (SELECT COUNT(*) AS n FROM visits) SELECT n FROM a", "declared-table"),
    # Of the enclosing query: a query in brackets sees none of its rows.
    ("SELECT city, (SELECT COUNT(*) FROM visits v WHERE v.city = visits.city) FROM visits GROUP BY city", "declared-columns"),
    ("SELECT COUNT(*) FROM visits WHERE EXISTS (SELECT 1 FROM visits)", "subqueries"),
    ("SELECT COUNT(*) FROM visits WHERE age = (SELECT MAX(age) FROM visits)", "subqueries"),
    # More statements, and others than SELECT.
    ("SELECT COUNT(*) FROM visits; SELECT 1", "one-statement"),
    ("SELECT COUNT(*) FROM visits; ATTACH 'x'", "one-statement"),
    ("COPY visits TO 'x'", "select-only"),
    ("SET memory_limit = '1GB'", "select-only"),
    ("WITH t AS (DELETE FROM visits RETURNING *) SELECT COUNT(*) FROM t", "select-only"),
    ("SELECT COUNT(*) INTO x FROM visits", "allow-list"),
    ("SELECT COUNT(*) FROM visits FOR UPDATE", "allow-list"),
    ("SELECT COUNT(*) FROM visits TABLESAMPLE 10%", "allow-list"),
    ("SELECT COUNT(*) FROM visits USING SAMPLE 10", "allow-list"),
    ("PIVOT visits ON city USING COUNT(*)", "select-only"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "rule"), REFUSED)
def test_it_is_refused_by_a_rule(world: World, text: str, rule: str) -> None:
    before = world.spent()
    with pytest.raises(SqlRefused) as refused:
        world.ask(text, epsilon=1, delta="1e-6")
    error = refused.value
    assert error.rule == rule, str(error)
    assert error.nearest is None
    assert world.spent() == before


def test_a_quotient_by_a_released_zero_is_null(fresh: World) -> None:
    """As DuckDB has it; with an interval around zero there is no interval."""
    text = "SELECT city, COUNT(*) AS n, 100 / n AS q, 5 % n AS r, 1 / 0 AS z FROM visits WHERE city = 'Bern' GROUP BY city"
    found = {}
    for revision in range(1, 40):
        ((_, n, q, r, z),) = fresh.ask(text, epsilon=30, revision=revision).values
        assert z.value is None
        assert (q.value is None) == (r.value is None) == (n.raw_value == 0)
        low, high = n.raw_span
        assert (q.low is None) == (low <= 0 <= high) and math.isfinite(q.value or 0)
        found[n.raw_value] = q.value
        if 0 in found and len(found) > 2:
            break
    assert 0 in found and len(found) > 1
    total = fresh.ask(
        "SELECT SUM(n) / MIN(n) FROM (SELECT city, 0 * COUNT(*) AS n FROM visits GROUP BY city)",
        epsilon=1,
    )
    assert total.rows == [(None,)]  # fmt: skip


def test_null_groups_are_left_out_and_counted_as_sql_counts(world: World) -> None:
    """Rows without a key are in no group; IS NULL is a key, COALESCE names it; NULL in lists and joins matches nothing."""
    cities = [
        row[0]
        for row in world.ask("SELECT city, COUNT(*) FROM visits GROUP BY city", epsilon=EXACT).rows
    ]
    assert sorted(cities) == ["Bern", "Oslo", "Rome"]
    text = "SELECT city IS NULL AS missing, COUNT(*) AS n FROM visits GROUP BY missing ORDER BY missing"
    assert world.ask(text, epsilon=EXACT).rows == world.truth(text) == [(False, 7200), (True, 800)]
    text = "SELECT COALESCE(city, 'none') AS c, COUNT(*) AS n FROM visits GROUP BY c ORDER BY c"
    assert world.ask(text, epsilon=EXACT, delta="1e-3").rows == [("Bern", 0), *world.truth(text)]
    # A level's NULL is all keys, and no key is NULL.
    text = "SELECT city, n FROM (SELECT city, COUNT(*) AS n FROM visits WHERE city IS NOT NULL GROUP BY ROLLUP (city)) WHERE city IS NULL"
    assert world.ask(text, epsilon=EXACT).rows == world.truth(text) == [(None, 7200)]
    text = "WITH t AS (SELECT city, COUNT(*) AS n FROM visits WHERE city IN ('Oslo', 'Rome') GROUP BY ROLLUP (city)) SELECT COUNT(*) FROM t a JOIN t b ON a.city = b.city"
    assert world.ask(text, epsilon=EXACT).rows == world.truth(text) == [(2,)]  # fmt: skip


def test_quoted_names_unicode_and_keywords(fresh: World) -> None:
    """Mixed case, spaces, quotes inside of names, keywords of other dialects; also as CTEs and aliases."""
    text = (
        'WITH "Größe ☃" AS (SELECT age AS "a""b", CITY AS "Order" FROM Visits), minus AS (SELECT "a""b" AS top, "ORDER" AS rownum '
        'FROM "größe ☃" WHERE "order" <> \'é\' AND top."a""b" > 3) SELECT COUNT(*) FROM minus'
    )
    with pytest.raises(SqlRefused, match="declared-columns"):
        fresh.ask(text, epsilon=1)
    text = text.replace('top."a""b"', '"a""b"')
    answer = fresh.ask(f"{text} WHERE rownum = 'Rome' AND \"TOP\" < 40", epsilon=EXACT)
    truth = fresh.truth("SELECT COUNT(*) FROM visits WHERE city = 'Rome' AND age > 3 AND age < 40")
    assert answer.rows == truth
    named = fresh.ask(
        'SELECT COUNT(*) AS "💥 ""x""; --", COUNT(*) AS "DROP" FROM visits', epsilon=1
    )
    assert [column.name for column in named.columns] == ['💥 "x"; --', "DROP"]
    with duckdb.connect(str(fresh.folder / "visits.duckdb")) as connection:
        connection.execute('ALTER TABLE visits ADD COLUMN "top" INTEGER')
        connection.execute('UPDATE visits SET "top" = age')
    fresh.table = fresh.declare(columns=DECLARATION["columns"] | {"top": {"lower": 0, "upper": 50}})
    for text in ("SELECT SUM(top) FROM visits", "SELECT SUM(visits.top) FROM visits WHERE top > 3"):
        ((got,),), ((expected,),) = fresh.ask(text, epsilon=EXACT).rows, fresh.truth(text)
        assert abs(got - expected) < 100


@pytest.mark.parametrize(
    "text",
    [
        "/* a */ SELECT /* b; */ COUNT(*) -- c ; d\n FROM visits /* ' */ ; -- e",
        "-- title\nSELECT COUNT(*) FROM visits;\n\n;  ",
        "\ufeff".strip("\ufeff") + "select\tcount(*)\r\nfrom\u00a0visits",
    ],
)
def test_comments_and_semicolons_change_nothing(world: World, text: str) -> None:
    try:
        assert world.ask(text, epsilon=EXACT).rows[0][0] == pytest.approx(8000, abs=10)
    except SqlRefused as error:
        assert error.rule == "syntax" and "\u00a0" in text


@pytest.mark.parametrize(
    "value",
    [
        "Rome' OR 1=1 --",
        "'); DROP TABLE visits; --",
        "$city",
        "?",
        ":city",
        "${city}",
        "{{ 1 }}",
        "/*",
        "\\'",
        "💥\u202e",
        "Rome",
    ],
)
def test_hostile_values_stay_values(world: World, value: str) -> None:
    """In CTEs, unions and filters of released rows as in WHERE: each is one text that equals no key."""
    text = (
        "WITH t AS (SELECT city, age FROM visits WHERE city = $city), u AS (SELECT city, COUNT(*) AS n FROM t GROUP BY city) "
        "SELECT city, n FROM u WHERE city = $city AND n > $2 UNION ALL SELECT $city, COUNT(*) FROM visits WHERE clinic = $city"
    )
    rows = world.ask(text, epsilon=EXACT, parameters={"city": value, "2": 100}).rows
    assert [row for row in rows[:-1] if row[0] != "Rome"] == [] and len(rows) == 1 + (
        value == "Rome"
    )
    assert rows[-1][0] == value and abs(rows[-1][1]) < 10


@pytest.mark.parametrize(
    "value",
    [object(), b"x", [1], {"a": 1}, None, float("nan"), float("inf"), 10**500, "\0", "\ud800", complex(1)],
)  # fmt: skip
def test_values_of_other_kinds_are_refused(world: World, value: Any) -> None:
    with pytest.raises(SqlRefused, match="parameters") as refused:
        world.ask("SELECT COUNT(*) FROM visits WHERE age > $x", epsilon=1, parameters={"x": value})
    assert (refused.value.line, refused.value.column) == (1, 41)


def test_parameters_that_sqlglot_takes_for_a_quote_are_named(world: World) -> None:
    """It reads on behind $1,$ to the next such sign."""
    with pytest.raises(SqlRefused, match=r"no blank behind it; write IN \(\$1, \$2\)"):
        world.ask("SELECT COUNT(*) FROM visits WHERE age IN ($1,$2)", epsilon=1, parameters=[1, 2])


def test_an_option_is_given_once(world: World) -> None:
    """Twice in a comment, or there and as an argument."""
    query = "WITH t AS (SELECT * FROM visits) SELECT COUNT(*) FROM t"
    for text, options in (
        (f"-- dp: epsilon=1, epsilon=2\n{query}", {}),
        (f"-- dp: epsilon=1\n-- dp: epsilon=1\n{query}", {}),
        (f"-- dp: epsilon=1\n{query}", {"epsilon": 1}),
    ):
        with pytest.raises(InvalidInput, match="given twice"):
            world.ask(text, **options)


@pytest.mark.parametrize(
    "text",
    [
        "-- dp: epsilon=1, -- dp: scope=other",
        "-- dp: epsilon=1 /* scope=other */",
        "-- dp: epsilon=1, groups=3 /* dp: groups=4 */",
        "-- dp: -- scope=other",
    ],
)
def test_a_comment_inside_of_options_is_refused(world: World, text: str) -> None:
    """A scope in it would not be charged."""
    with pytest.raises(InvalidInput, match="is not a list of options"):
        world.ask(f"{text}\nSELECT COUNT(*) AS n FROM visits", epsilon=1)


@pytest.mark.parametrize(
    ("text", "dialect"),
    [("# dp: groups=2", "bigquery"), ("-- DP : groups=2", None), ("/*dp :groups=2*/", None)],
)
def test_options_are_read_however_a_comment_begins(text: str, dialect: str | None) -> None:
    """In the first line of all, too."""
    query = "SELECT COUNT(*) AS n FROM visits"
    source = read_source(f"{text}\n{query}", dialect)
    assert source.options["groups"] == "2" and source.text.split() == query.split()
    with pytest.raises(InvalidInput, match="move it before the query"):
        read_source(f"{query}\n{text}", dialect)


@pytest.mark.parametrize(
    "text",
    [
        "{0} -- dp: groups=2",
        "{0}; -- dp: groups=2",
        "{0}\n/* DP: groups=2 */",
        "-- dp: epsilon=1\nSELECT n -- dp: groups=2\nFROM ({0})",
        "EXPLAIN SELECT n FROM (-- dp: groups=2\n{0})",
    ],
)
def test_options_that_are_not_read_are_refused(world: World, text: str) -> None:
    """A question that ignores them would be charged for another one."""
    with pytest.raises(InvalidInput, match="move it before the query"):
        world.ask(text.format("SELECT COUNT(*) AS n FROM visits"))
    assert world.ask("SELECT '-- dp: groups=2' AS x, COUNT(*) AS n FROM visits", epsilon=EXACT).rows
