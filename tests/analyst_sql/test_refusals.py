"""What is refused: by a rule, at a place, before anything is read; another query is proposed only if it means the same."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Any

import pytest
from smallworld import forbid_reads
from sql_world import DECLARATION

from dpflow.analyst_sql.parse.text_and_options import MOST_TEXT
from dpflow.engine.releases.make_plan import make_plan
from dpflow.engine.releases.request import ReleaseRequest
from dpflow.errors import DpflowError, InvalidInput, PlanRefused, SqlRefused
from dpflow.registry import Registry

if TYPE_CHECKING:
    from sql_world import World

#: Query, rule, line and column.
REFUSED = [
    ("SELECT * FROM visits", "no-star", 1, 8),
    ("SELECT visits.* FROM visits", "no-star", 1, 8),
    ("SELECT COUNT(DISTINCT clinic) FROM visits", "distinct-unit", 1, 23),
    ("SELECT SUM(DISTINCT age) FROM visits", "distinct-unit", 1, 21),
    ("SELECT age, COUNT(*) FROM visits", "grouped-columns", 1, 8),
    ("SELECT COUNT(*)\nFROM visits\nWHERE nobody = 1", "declared-columns", 3, 7),
    ("SELECT COUNT(*) FROM visits WHERE person = 1", "declared-columns", 1, 35),
    ("SELECT SUM(AVG(age)) FROM visits", "nested-aggregates", 1, 12),
    ("SELECT COUNT(*) FROM visits WHERE SUM(age) > 1", "nested-aggregates", 1, 35),
    ("SELECT SUM(age) OVER (PARTITION BY city) FROM visits", "windows", 1, 12),
    ("SELECT SUM(clinic) FROM visits", "bounds", 1, 8),
    ("SELECT SUM(age / cost) FROM visits", "bounds", 1, 8),
    ("SELECT SUM(1) FROM visits", "bounds", 1, 8),
    ("SELECT STRING_AGG(city, ',') FROM visits", "aggregates", 1, 19),
    ("SELECT ANY_VALUE(age), FIRST(age) FROM visits", "aggregates", 1, 18),
    ("SELECT city FROM visits GROUP BY city", "aggregates", 1, 8),
    ("SELECT 1", "declared-table", 1, 8),
    ("SELECT COUNT(*) FROM secrets", "declared-table", 1, 22),
    ("SELECT COUNT(*) FROM other.visits", "declared-table", 1, 22),
    ("SELECT COUNT(*) FROM 'visits.duckdb'", "declared-table", 1, 22),
    ("SELECT COUNT(*) FROM read_parquet('x')", "declared-table", 1, 22),
    ("SELECT COUNT(*) FROM visits, visits v", "joins", 1, 30),
    (
        "SELECT COUNT(*) FROM visits WHERE age IN (SELECT age FROM visits)",
        "subqueries",
        1,
        35,
    ),
    ("SELECT (SELECT COUNT(*) FROM visits) FROM visits", "subqueries", 1, 16),
    ("SELECT COUNT(*) FROM visits; DROP TABLE visits", "one-statement", 1, 29),
    ("DROP TABLE visits", "select-only", 1, 12),
    ("PRAGMA database_list", "select-only", 1, 8),
    ("SELECT COUNT(*) FRM visits", "syntax", 1, 26),
    ("WITH dp(epsilon=1) SELECT 1", "syntax", 1, 16),
    ("", "one-statement", 1, 1),
    (";;", "one-statement", 1, 1),
    ("SELECT COUNT(*) FROM visits WHERE age > $1", "parameters", 1, 41),
    ("SELECT COUNT(*) FROM visits WHERE age > ?", "parameters", 1, 35),
    ("SELECT QUANTILE_CONT(age, 1.5) FROM visits", "literals", 1, 27),
    ("SELECT QUANTILE_CONT(age, [0.1, 1.5]) FROM visits", "literals", 1, 33),
    ("SELECT COUNT(*) FROM visits LIMIT 10%", "allow-list", 1, 35),
    ("SELECT COUNT(*) FROM visits GROUP BY 7", "positions", 1, 38),
    ("SELECT city, COUNT(*) FROM visits GROUP BY city ORDER BY 3", "positions", 1, 58),
    ("SELECT random() * COUNT(*) FROM visits", "volatile", 1, 8),
    ("SELECT getenv('HOME'), COUNT(*) FROM visits", "volatile", 1, 8),
    ("SELECT clinic, COUNT(*) FROM visits GROUP BY clinic", "private-keys", 1, 46),
    ("SELECT city, MODE(city) FROM visits GROUP BY city", "grouped-mode", 1, 14),
    (
        "SELECT city, COUNT(*) FROM visits GROUP BY CUBE (city, 1, 1, 1, 1, 1, 1)",
        "length",
        1,
        50,
    ),
    ("SELECT COUNT(*) FROM visits WHERE city SIMILAR TO 'o.*'", "allow-list", 1, 35),
    ("SELECT COUNT(*) FROM visits WHERE NULL", "literals", 1, 8),
    ("SELECT clinic, MEDIAN(age) FROM visits GROUP BY clinic", "public-keys", 1, 16),
    ("SELECT COUNT(*) FROM visits WHERE aeg > 3", "declared-columns", 1, 35),
    ("SELECT a.b.c.d, COUNT(*) FROM visits", "allow-list", 1, 10),
    ("SELECT COUNT(*) FROM vists", "declared-table", 1, 22),
    ("SELECT COUNT(*) FROM visits LIMIT $1", "parameters", 1, 35),
]


#: The same question, with what it lacks in its comment.
PROPOSED = {"private-keys"}


@pytest.mark.parametrize(("text", "rule", "line", "column"), REFUSED)
def test_a_refusal_says_rule_and_place(
    world: World, text: str, rule: str, line: int, column: int
) -> None:
    """What it proposes is the same query with an option; nothing is charged."""
    before = world.spent()
    with pytest.raises(SqlRefused) as refused:
        world.ask(text, epsilon=1)
    error = refused.value
    assert (error.rule, error.line, error.column) == (rule, line, column), str(error)
    assert (error.nearest is not None) == (rule in PROPOSED), str(error)
    assert not error.retryable and "^" in str(error)
    if error.nearest is not None:
        comment, _, rest = error.nearest.partition("\n")
        assert text == (rest if comment.startswith("--") else error.nearest)
        assert world.ask(f"EXPLAIN {text}", epsilon=1, delta="1e-6")
    assert world.spent() == before


def test_a_near_name_is_said(world: World) -> None:
    """In the message: the query that has it is another one."""
    for wrong, right in (
        ("SELECT AVG(aeg) FROM visits", "age"),
        ("SELECT COUNT(*) FROM vistis", "visits"),
        ("WITH t AS (SELECT age AS years FROM visits) SELECT SUM(yaers) FROM t", "years"),
    ):
        with pytest.raises(SqlRefused) as refused:
            world.ask(wrong, epsilon=1)
        assert repr(right) in str(refused.value) and refused.value.nearest is None


@pytest.mark.parametrize("text", ["person FROM visits", "COUNT(*) FROM visits WHERE person > 3"])
def test_the_units_column_is_not_called_unknown(world: World, text: str) -> None:
    with pytest.raises(SqlRefused, match="'person' says whose a row is"):
        world.ask(f"SELECT {text}", epsilon=1)


def test_what_the_parser_lacks_is_not_called_wrong(world: World) -> None:
    """DuckDB reads a test in ROLLUP, and sqlglot its alias alone."""
    keys = "SELECT age > 30 AS old, COUNT(*) FROM visits GROUP BY ROLLUP"
    with pytest.raises(SqlRefused, match="cannot read this .* or write it otherwise"):
        world.ask(f"EXPLAIN {keys} (age > 30)", epsilon=1)
    assert world.ask(f"EXPLAIN {keys} (old)", epsilon=1).columns
    assert world.truth(f"{keys} (age > 30)")


@pytest.mark.parametrize(
    "text",
    [
        "SELCT COUNT(*) FRM visits GRUOP BY city",
        "SELECT COUNT(*)) FROM visits",
        "CREATE TABLE t AS SELECT city, COUNT(*) FROM visits GROUP BY city",
        "INSERT INTO t SELECT COUNT(*) FROM visits",
        "DELETE FROM visits WHERE age > 3",
        "DESCRIBE visits",
        "SELECT city, AVG(age) GROUP BY city",
        "SELECT COUNT(*) FROM visits WHERE age > $1 AND city = 'Rome'",
        "SELECT month, SUM(age) OVER (ORDER BY day) FROM visits",
        "SELECT COUNT(*) FROM visits WHERE city SIMILAR TO 'r.*'",
    ],
)
def test_no_other_question_is_proposed(world: World, text: str) -> None:
    """A query without the refused part is another one: its rows would be mistaken for the answer."""
    with pytest.raises(SqlRefused) as refused:
        world.ask(text, epsilon=1)
    assert refused.value.nearest is None


@pytest.mark.parametrize(
    "text",
    [
        "SELECT COUNT(*) FRM visits /*\x1b[2J*/",
        "SELECT clinic, COUNT(*) FROM visits WHERE city = '\x1b[2J' GROUP BY clinic",
        "SELECT COUNT(*) FROM visits WHERE city = '\u202e'; SELECT 1",
    ],
)
def test_a_refusal_moves_no_cursor(world: World, text: str) -> None:
    """One with control characters is not shown: it reached terminals and logs as it was."""
    with pytest.raises(SqlRefused) as refused:
        world.ask(text, epsilon=1)
    assert refused.value.nearest is None
    assert all(c.isprintable() or c == "\n" for c in str(refused.value))


def test_explain_reads_no_row_and_charges_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It opens the catalogue at most, so that types are checked; every line is there."""

    forbid_reads(monkeypatch)
    before = world.spent()
    plan = world.ask(
        "EXPLAIN SELECT city, COUNT(*) AS n, MAX(age), AVG(cost) / COUNT(*) FROM visits GROUP BY city LIMIT 1",
        epsilon=1,
    )
    view = plan.explain(world.ledger)
    assert [one["mechanism"] for one in view["releases"]] == ["aggregates", "quantiles"]
    assert [column["column"] for column in view["columns"]][1] == "n"
    assert "+-" in view["columns"][1]["noise"] and "0.99" in " ".join(view["notes"])
    assert view["forecast"] == "the ledger would accept it now" and view["budgets"]
    assert world.spent() == before
    with pytest.raises(DpflowError, match="one type"):
        plan = world.ask("EXPLAIN SELECT COUNT(*) FROM visits WHERE age = 'x'", epsilon=1)
        plan.explain(world.ledger)


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
    assert [str(node) for node in plan.query.releases[0].conditions] == [
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
    (query,) = plan.query.releases
    assert [str(node) for node in query.conditions] == [
        '("age" > 40)',
        "(\"city\" IN ('Oslo', 'Rome'))",
    ]
    assert "LIMIT 10 OFFSET 3" in plan.query.sql and "> 5" in plan.query.sql
    assert [str(one.share or one.condition) for one in query.aggregates[:2]] == [
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
        assert len(plan.query.releases[0].conditions) == 1
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
    assert "one.zone or two.zone" in str(refused.value)


@pytest.mark.parametrize(
    "value", ["SUM(CASE WHEN age > 3 THEN age ELSE 0 END)", "AVG(round(age))", "CORR(age, cost)"]
)
def test_bounds_that_64_bits_do_not_hold_are_refused_at_their_place(
    fresh: World, value: str
) -> None:
    """Those of the column do; those that follow from them did not, and the reason was pydantic's."""
    wide = {"age": {"lower": -(2**63), "upper": 2**63 - 1}}
    table = fresh.declare(columns=DECLARATION["columns"] | wide)
    with pytest.raises(SqlRefused, match="64 bits|noise of more than") as refused:
        fresh.ask(f"EXPLAIN SELECT {value} FROM visits", epsilon=1, tables=[table])
    assert refused.value.line == 1


def test_a_difference_of_days_without_bounds_is_answered_as_the_refusal_says(fresh: World) -> None:
    """Nothing is charged before; the clamp that the message writes needs no declared dates."""
    with pytest.raises(SqlRefused, match="declare lower and upper of day") as refused:
        fresh.ask(
            "SELECT AVG(date_diff('day', DATE '2020-01-01', day)) AS d FROM visits", epsilon=1
        )
    clamped = re.search(r"such as (least\(.*\))\n", str(refused.value))
    assert clamped is not None and fresh.spent() == "0"
    assert fresh.ask(f"SELECT AVG({clamped[1]}) AS d FROM visits", epsilon=1).columns[0].confidence


def test_a_release_of_a_computed_value_is_refused_with_the_way_around(fresh: World) -> None:
    """The request of a SQL release, as `dpflow release --show` prints it, names no declared column."""
    fresh.ask("SELECT SUM(age * 2) AS s FROM visits", epsilon=1)
    (record,) = fresh.ledger.releases("visits")
    params = {name: value for name, value in record.request["params"].items() if value is not None}
    request = ReleaseRequest(
        name="again", mechanism="aggregates", table=fresh.table, scope="visits", params=params
    )
    with pytest.raises(PlanRefused, match="is an expression.* declare it, such as columns"):
        make_plan(request, Registry.load())
