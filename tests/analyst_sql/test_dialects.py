"""Queries of other dialects, and GoogleSQL's clause: what they ask becomes DuckDB's query and options."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from sql_twins import exact_statistic, fill_twins, measure_moves, try_query

from dpflow.analyst_sql.answer.sql_plan import SqlPlan
from dpflow.analyst_sql.parse import foreign_sql
from dpflow.analyst_sql.releases.cells import find_release
from dpflow.core.contract.declaration import Table
from dpflow.errors import InvalidInput, SqlRefused
from dpflow.registry import Registry

if TYPE_CHECKING:
    from sql_world import World

CLAUSE = (
    "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS({}) city, COUNT(*) AS n FROM visits GROUP BY city"
)
FULL = "epsilon=1, delta=1e-6, max_groups_contributed=2, max_rows_contributed=5, min_privacy_units_per_group=3"


@pytest.mark.parametrize(
    ("dialect", "text", "same"),
    [
        ("bigquery", "SELECT SAFE_DIVIDE(COUNTIF(age > 9), COUNT(*)) AS r FROM `visits`",
         "SELECT CASE WHEN COUNT(*) <> 0 THEN COUNT_IF(age > 9) / COUNT(*) END AS r FROM visits"),
        ("bigquery", "SELECT DATE_TRUNC(day, MONTH) AS m, COUNT(*) AS n FROM visits "
         "WHERE day >= DATE_SUB('2020-02-01', INTERVAL 3 DAY) GROUP BY m",
         "SELECT date_trunc('month', day) AS m, COUNT(*) AS n FROM visits WHERE day >= '2020-01-29' GROUP BY m"),
        ("snowflake", "SELECT IFF(age > 30, 'old', 'young') AS k, COUNT(*) AS n FROM visits GROUP BY k",
         "SELECT CASE WHEN age > 30 THEN 'old' ELSE 'young' END AS k, COUNT(*) AS n FROM visits GROUP BY k"),
        ("postgres", "SELECT COUNT(*) FILTER (WHERE city ~ '^R') AS n FROM visits",
         "SELECT COUNT(*) FILTER (WHERE regexp_matches(city, '^R')) AS n FROM visits"),
        # sqlglot's CASE of them is not in the language of rows.
        ("bigquery", "SELECT SUM(LEAST(age, GREATEST(cost, 3))) AS s FROM visits WHERE LENGTH(city) > 3",
         "SELECT SUM(CASE WHEN age IS NOT NULL AND CASE WHEN cost IS NOT NULL THEN greatest(cost, 3) END IS NOT NULL "
         "THEN least(age, CASE WHEN cost IS NOT NULL THEN greatest(cost, 3) END) END) AS s FROM visits WHERE length(city) > 3"),
        ("snowflake", "SELECT PERCENTILE_CONT(0.5) WITHIN GROUP (ORDER BY GREATEST(age, 9)) FROM visits WHERE SUBSTR(city, 1, 1) = 'O'",
         "SELECT QUANTILE_CONT(CASE WHEN age IS NOT NULL THEN greatest(age, 9) END, 0.5) FROM visits WHERE substring(city, 1, 1) = 'O'"),
    ],
)  # fmt: skip
def test_a_dialects_query_is_duckdbs(fresh: World, dialect: str, text: str, same: str) -> None:
    """Asked in DuckDB's SQL afterwards it is the same release, so it is free."""
    first = fresh.ask(text, epsilon=1, delta="1e-6", dialect=dialect)
    again = fresh.ask(same, epsilon=1, delta="1e-6")
    assert again.free and again.rows == first.rows
    if "`" not in text:
        assert fresh.ask(f"-- dp: dialect={dialect}\n{text}", epsilon=1, delta="1e-6").free


@pytest.mark.parametrize(
    ("quotient", "is_exact"),
    [
        ("COUNT(*) / 2", False),
        ("SUM(age) / COUNT(*)", False),
        ("(SUM(age) + 1) / NULLIF(COUNT(*), 0)", False),
        ("COUNT(*) / 2.0", True),
        ("CAST(SUM(age) AS DOUBLE PRECISION) / COUNT(*)", True),
        ("1.0 * SUM(age) / COUNT(*)", True),
        ("SUM(age::numeric) / COUNT(*)", True),
        ("AVG(age) / 3", True),
    ],
)
def test_a_quotient_that_postgresql_rounds_is_refused(
    world: World, quotient: str, is_exact: bool
) -> None:
    """DuckDB's is another number; where PostgreSQL does not round, both are the same one."""
    text = f"SELECT {quotient} AS q FROM visits"
    if is_exact:
        assert "/" in foreign_sql.translate(text, "postgres")
        return
    with pytest.raises(InvalidInput, match="PostgreSQL rounds .*, and FLOOR of that"):
        world.ask(f"EXPLAIN {text}", epsilon=1, dialect="postgres")
    # The advice holds for rows, too, where DuckDB's // is not read.
    rows = "SELECT COUNT(*) FROM visits WHERE FLOOR(CAST(age AS DOUBLE PRECISION) / 10) > 3"
    assert world.ask(f"EXPLAIN {rows}", epsilon=1, dialect="postgres")


@pytest.mark.parametrize(
    ("dialect", "part"),
    [
        # Sunday is 1, and weeks begin on Sunday.
        ("bigquery", "EXTRACT(DAYOFWEEK FROM day)"),
        ("bigquery", "EXTRACT(WEEK FROM day)"),
        ("bigquery", "EXTRACT(WEEK(MONDAY) FROM day)"),
        ("bigquery", "TIMESTAMP_DIFF(day, day, DAY)"),  # whole days of 24 hours
        ("bigquery", r"city LIKE 'a\\\\_b'"),
        ("postgres", r"city LIKE 'a\\_b'"),
        ("postgres", r"city NOT LIKE '50\\%'"),
        ("postgres", r"city ILIKE 'a\\_b'"),
        ("postgres", "city LIKE city"),
        ("postgres", r"city ~ '\\mR'"),
        ("postgres", "SUBSTR(city, -1)"),
        ("postgres", "LEFT(city, -1)"),
        ("postgres", "TO_CHAR(day, 'Day')"),
        ("postgres", "TO_CHAR(day, 'Month')"),
        ("postgres", "ROUND(AVG(age))"),  # 2.5 is 2
        ("postgres", "DATE_TRUNC('decade', day)"),
        ("postgres", "EXTRACT(SECOND FROM day)"),  # with a fraction
        ("postgres", "AGE(day, day)"),
        ("postgres", "LOG(COUNT(*))"),
        ("postgres", "MODE() WITHIN GROUP (ORDER BY age)"),
        ("postgres", "PERCENTILE_CONT(0.9) WITHIN GROUP (ORDER BY age DESC)"),
        ("postgres", "age::text"),
        ("postgres", "day + INTERVAL (3) DAY"),  # sqlglot loses the number
        ("bigquery", "TRIM(city)"),
        ("bigquery", "CAST(AVG(age) AS INT64)"),  # 2.5 is 3
        ("bigquery", "DATE(day, 'Asia/Tokyo')"),
        ("bigquery", "DIV(COUNT(*), -2)"),
        ("bigquery", "IEEE_DIVIDE(1, COUNT(*))"),
        ("snowflake", "AVG(age)::int"),
        ("snowflake", "RATIO_TO_REPORT(COUNT(*)) OVER ()"),
        ("snowflake", "TRUNC(AVG(age))"),
        ("snowflake", "CAST(COUNT(*) AS REAL)"),  # of 64 bits
        ("snowflake", "SUBSTR(city, 1, -1)"),
        ("bigquery", "AVG(age, contribution_bounds_per_group => (0, 5))"),
        ("bigquery", "PERCENTILE_CONT(age, 0.5, contribution_bounds_per_row => (0, 5))"),
    ],
)  # fmt: skip
def test_a_part_with_another_meaning_is_refused(world: World, dialect: str, part: str) -> None:
    """DuckDB has something else under the same name, or nobody has compared the two."""
    with pytest.raises(InvalidInput, match="is not known to mean the same"):
        world.ask(
            f"EXPLAIN SELECT {part} AS x, COUNT(*) AS n FROM visits", epsilon=1, dialect=dialect
        )


@pytest.mark.parametrize(
    ("dialect", "part", "same"),
    [
        ("postgres", "PERCENTILE_CONT(0.9) WITHIN GROUP (ORDER BY age)", "QUANTILE_CONT(age, 0.9)"),
        ("snowflake", "PERCENTILE_DISC(0.5) WITHIN GROUP (ORDER BY age)", "QUANTILE_DISC(age, 0.5)"),
        ("postgres", "SUM(age)::numeric", "CAST(SUM(age) AS DOUBLE)"),  # DECIMAL(18, 3) in DuckDB
        ("bigquery", "DATE_TRUNC(day, ISOWEEK)", "DATE_TRUNC('WEEK', day)"),
        ("bigquery", "GREATEST(a, b)", "CASE WHEN NOT a IS NULL AND NOT b IS NULL THEN GREATEST(a, b) END"),
        ("snowflake", "x FROM t GROUP BY LENGTH(SUBSTR(a, 1, 2))", "x FROM t GROUP BY LENGTH(SUBSTRING(a, 1, 2))"),
        ("bigquery", "a ORDER BY b", "a ORDER BY b NULLS FIRST"),
        ("postgres", "a ORDER BY b DESC", "a ORDER BY b DESC NULLS FIRST"),
        ("snowflake", "DAYOFWEEK(day)", "DAYOFWEEK(day)"),
        ("postgres", "EXTRACT(dow FROM day)", "EXTRACT(DAYOFWEEK FROM day)"),
        ("postgres", "TO_CHAR(day, 'YYYY-MM')", "STRFTIME(day, '%Y-%m')"),
    ],
)  # fmt: skip
def test_what_means_the_same_is_written_so(dialect: str, part: str, same: str) -> None:
    written = foreign_sql.translate(f"SELECT {part}", dialect)
    assert written.casefold() == f"SELECT {same}".casefold()


@pytest.mark.parametrize("text", ["5 days ago", "-5 days ago", "1 day banana", "5 days 3", "P1W"])
@pytest.mark.parametrize("dialect", ["duckdb", "postgres"])
def test_an_interval_is_a_number_and_a_unit(world: World, dialect: str, text: str) -> None:
    """Before and after the noise; sqlglot would drop the rest, so that a day ago would be a day later."""
    for query in (
        f"SELECT COUNT(*) AS n FROM visits WHERE day > DATE '2020-01-10' + INTERVAL '{text}'",
        f"SELECT day + INTERVAL '{text}' AS d, COUNT(*) AS n FROM visits GROUP BY day",
    ):
        with pytest.raises((InvalidInput, SqlRefused), match="is no number and unit"):
            world.ask(f"EXPLAIN {query}", epsilon=1, dialect=dialect)


def test_googles_clause_is_options(world: World) -> None:
    """With the privacy unit's name in any case, and behind a WITH."""
    plan = world.ask(
        "EXPLAIN " + CLAUSE.format(f"{FULL}, privacy_unit_column=v.PERSON"), dialect="bigquery"
    )
    settings = plan.settings
    assert (settings.epsilon, settings.min_units) == (1, 3) and str(settings.delta) == "1/1000000"
    assert (settings.bounds.groups, settings.bounds.rows) == (2, 5)
    text = "WITH old AS (SELECT * FROM visits WHERE age > 3) SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS(epsilon=0.5) COUNT(*) FROM old"
    assert str(world.ask(f"EXPLAIN {text}").settings.epsilon) == "1/2"


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ("epsilon=1, privacy_unit_column=city", "declared-columns"),
        ("epsilon=1, contribution_bounds_per_group=(0, 5)", "contribution_bounds_per_group"),
        ("epsilon=1, epsilon=2", "given twice"),
        ("epsilon=1, group_selection_strategy=PUBLIC_GROUPS", "group_selection_strategy"),
        ("epsilon", "name=value"),
        ("", "name=value"),
        ("epsilon=1, max_groups_contributed=none", "groups is a whole number"),
    ],
)
def test_an_option_without_a_counterpart_is_named(world: World, options: str, match: str) -> None:
    """None is passed over: the query would be another one."""
    with pytest.raises((InvalidInput, SqlRefused), match=match):
        world.ask(CLAUSE.format(options))


@pytest.mark.parametrize(
    ("text", "options", "match"),
    [
        (CLAUSE.format("epsilon=1"), {"epsilon": 1}, "given twice"),
        (f"-- dp: dialect=bigquery\n{CLAUSE.format('epsilon=1')}", {"dialect": "bigquery"}, "given twice"),
        (CLAUSE.format("epsilon=1").replace("OPTIONS(epsilon=1)", ""), {}, "outermost"),
        (f"{CLAUSE.format('epsilon=1')} UNION ALL {CLAUSE.format('epsilon=1')}", {}, "stands once"),
        ("SELECT COUNT(*) FROM visits", {"epsilon": 1, "dialect": "oracle"}, "none of duckdb"),
        ("SELECT COUNT(* FROM visits", {"epsilon": 1, "dialect": "bigquery"}, "no SQL of bigquery"),
        ("SELECT 1; SELECT 2", {"epsilon": 1, "dialect": "postgres"}, "one-statement"),
        ("SELECT COUNT(*) FROM visits WHERE age > RANDOM() * 9", {"epsilon": 1, "dialect": "postgres"}, "RANDOM.* is not known"),
        ("COPY visits TO '/tmp/x'", {"epsilon": 1, "dialect": "snowflake"}, "is not known|no SQL of"),
        ("ATTACH 'x.db'", {"epsilon": 1, "dialect": "bigquery"}, "is not known|no SQL of"),
    ],
)  # fmt: skip
def test_what_is_refused(world: World, text: str, options: dict[str, Any], match: str) -> None:
    """One price for one query, one dialect, and no statement but a SELECT."""
    with pytest.raises((InvalidInput, SqlRefused), match=match):
        world.ask(text, **options)


CLAMP = "contribution_bounds_per_group"
PER_UNIT = (
    "SELECT {keys} SUM(CASE WHEN s IS NOT NULL THEN least(greatest(s, {low}), {high}) END) FROM (SELECT person, {keys} "
    "{call} AS s FROM visits WHERE {where} GROUP BY ALL) GROUP BY ALL ORDER BY ALL"
)


@pytest.mark.parametrize(
    ("keys", "call", "ends", "where"),
    [
        ("city,", "SUM(cost)", (0, 12.5), "city IN ('Oslo', 'Rome')"),
        ("city,", "SUM(cost - 2)", (-3, 4), "age > 5 AND city IN ('Oslo', 'Rome')"),
        ("city,", "COUNT(*)", (0, 7), "city IN ('Oslo', 'Rome')"),
        ("", "COUNT(cost)", (12, 15), "age > 5"),
        ("", "SUM(age)", (0, 70), "true"),
    ],
)
@pytest.mark.parametrize("dialect", ["bigquery", "duckdb"])
def test_a_units_sum_in_a_group_is_clamped(
    world: World, keys: str, call: str, ends: tuple[float, float], where: str, dialect: str
) -> None:
    """As in a query by unit and group whose rows are clamped; beside it units are counted."""
    clamped = call.replace(")", f", {CLAMP} => ({ends[0]}, {ends[1]}))")
    options = "epsilon=20000, max_groups_contributed=3, privacy_unit_column=person"
    text = (
        f"SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS({options}) {keys} {clamped} AS s, COUNT(DISTINCT person) AS people "
        f"FROM visits WHERE {where} {'GROUP BY city ORDER BY 1' if keys else ''}"
    )
    rows = [row for row in world.ask(text, dialect=dialect).rows if row[0] != "Bern"]
    expected = world.truth(
        PER_UNIT.format(keys=keys, call=call, low=ends[0], high=ends[1], where=where)
    )
    assert len(rows) == len(expected)
    for row, (*key, number) in zip(rows, expected):
        assert list(row[:-2]) == key and abs(row[-2] - float(number)) < 0.1 and row[-1] > 100


def list_moves(text: str, table: Table, seeds: int = 6) -> tuple[float, float]:
    """The most that a unit moves the sum, over neighbours with values of all kinds; and what the plan is for."""
    found = try_query(text, table, Registry.load(), None)
    assert isinstance(found, SqlPlan)
    (part,) = found.parts
    release = find_release(part.plan)
    assert release is not None
    (moment,) = [one for one in release.query.moments if one[0] == "sum"]
    moved = [0]
    for seed in range(seeds):
        twins = fill_twins(table, seed)
        measure_moves(part.plan, twins, seed)
        sums = [
            dict(zip(one.keys, one.moment(*moment).tolist()))
            for one in (exact_statistic(part.plan, twin.database, seed)[1] for twin in twins)
        ]
        moved.append(sum(abs(sums[0].get(k, 0) - sums[1].get(k, 0)) for k in {*sums[0], *sums[1]}))
    step = float(part.plan.table.bounded_column(moment[1]).step)
    return step * max(moved), step * float(release.query.sensitivity(moment).l1)


def test_a_unit_moves_the_sum_by_its_bounds(visits_table: Table) -> None:
    """In each group by no more than the larger end, in as many groups as it may reach; and a wider one moves it by more."""
    text = f"SELECT city, SUM(cost, {CLAMP} => ({{}})) AS s FROM visits GROUP BY city"
    moved, bound = list_moves(text.format("-4, 1"), visits_table)
    assert 0 < moved <= bound and bound % 4 == 0
    _, narrow = list_moves(text.format("-1, 0.5"), visits_table, seeds=0)
    assert narrow == bound / 4 and moved > narrow


@pytest.mark.parametrize(
    ("items", "match"),
    [
        (f"AVG(age), SUM(age, {CLAMP} => (0, 70))", "each SUM and COUNT has such bounds"),
        (f"COUNT(*), SUM(age, {CLAMP} => (0, 70))", "each SUM and COUNT has such bounds"),
        (f"AVG(age, {CLAMP} => (0, 70))", "is of SUM and COUNT"),
        (f"SUM(age, {CLAMP} => 70)", "takes two numbers"),
        (f"SUM(age, {CLAMP} => (0, age))", "takes two numbers"),
        (f"SUM(age, {CLAMP} => (5, 0))", "takes two numbers"),
        (f"SUM(age, {CLAMP} => (0, 1, 2))", "takes two numbers"),
        (f"SUM(clinic, {CLAMP} => (0, 1))", "bounds"),
        (f"SUM(age, {CLAMP} =>", "syntax"),
        ("SUM(age, bounds => (0, 9))", "takes two numbers"),
        (f"SUM(age, {CLAMP} => (0, 9)) FILTER (WHERE age > 3)", "declared-columns|grouped-columns"),
        (f"SUM(age, {CLAMP} => (0, 1), {CLAMP} => (0, 2))", "stands once in a call"),
        (f"SUM(SUM(age, {CLAMP} => (0, 9)))", "each SUM and COUNT has such bounds"),
        (f"SUM(age, {CLAMP} => (0, 9)) FROM visits GROUP BY ROLLUP (city) --", "row-queries|allow-list|plan"),
        (f"SUM(age, {CLAMP} => (0, 9)) FROM visits GROUP BY CUBE (city) --", "row-queries|allow-list|plan"),
        (f"SUM(age, {CLAMP} => (0, 9)) FROM visits GROUP BY GROUPING SETS (city, ()) --", "row-queries|allow-list|plan"),
        (f"person, SUM(age, {CLAMP} => (0, 9)) FROM visits GROUP BY person --", "unit-groups"),
    ],
)  # fmt: skip
def test_bounds_that_mean_something_else_are_refused(world: World, items: str, match: str) -> None:
    with pytest.raises((InvalidInput, SqlRefused), match=match):
        world.ask(f"SELECT {items} FROM visits", epsilon=1)
