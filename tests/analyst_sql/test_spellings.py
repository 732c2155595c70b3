"""Spellings that analysts bring, and aggregates of two columns: as DuckDB computes them, but for noise."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from sql_world import EXACT, close

from dpflow.errors import SqlRefused

if TYPE_CHECKING:
    from sql_world import World

#: Each is asked of the rows where city is a declared key.
EXPRESSIONS = [
    "COUNT(*) FILTER (WHERE IF(age > 20, cost > 1, FALSE))",
    "SUM(IF(age > 20, age, 0))",
    "COUNT(NULLIF(age, 7)), COUNT(NULLIF(age, cost))",
    "COUNT_IF(city ILIKE 'o%'), COUNT_IF(city NOT ILIKE 'OSLO')",
    "COUNT_IF((age > 20) IS TRUE), COUNT_IF((age > 20) IS NOT TRUE), COUNT_IF((age > 20) IS FALSE)",
    "COUNT_IF(age IS DISTINCT FROM 7), COUNT_IF(age IS NOT DISTINCT FROM cost)",
    "COUNT_IF(age IS DISTINCT FROM NULL), COUNT_IF(NULL IS NOT DISTINCT FROM cost)",
    "COUNT_IF((city, age) IN (('Oslo', 7), ('Rome', 21))), COUNT_IF((age, clinic) NOT IN ((7, 'c1'), (20, 'c0')))",
    "COUNT_IF(starts_with(city, 'O')), COUNT_IF(prefix(city, 'R')), COUNT_IF(contains(city, 'sl')), COUNT_IF(suffix(city, 'e'))",
    "SUM(ROUND(cost)), SUM(ROUND(cost, 1)), COUNT_IF(ROUND(cost) = 3)",
    "COUNT_IF(FLOOR(cost) = 2), COUNT_IF(FLOOR(age / 7) * 7 = 14)",
    "COUNT_IF(SUBSTR(clinic, 2) = '1'), COUNT_IF(LEFT(city, 2) = 'Os'), COUNT_IF(SUBSTRING(city, 2, 2) = 'om')",
    "COUNT_IF(city || clinic = 'Romec1'), COUNT_IF(CONCAT(city, '-', clinic) = 'Rome-c1')",
    "COUNT_IF(dayname(day) = 'Friday'), COUNT_IF(monthname(day) = 'February')",
    "COUNT_IF(strftime(day, '%Y-%m') = '2020-02'), COUNT_IF(strftime(day, '%d %b, %a') = '03 Feb, Mon'), "
    "COUNT_IF(strftime(day, '%Y-%m-%d') < '2020-01-09')",
    "COUNT_IF(date_diff('day', day, DATE '2020-03-01') > 40), COUNT_IF(date_diff('week', DATE '2020-01-01', day) = 2), "
    "COUNT_IF(date_diff('month', day, DATE '2021-01-01') = 11), COUNT_IF(day - day = 0)",
    "COUNT_IF(day >= DATE '2020-02-29' - INTERVAL 30 DAY), COUNT_IF(day < DATE '2020-01-31' + INTERVAL '1 month'), "
    "COUNT_IF(day < TIMESTAMP '2020-01-05 12:00:00' + INTERVAL 12 HOUR)",
    "COUNT_IF(regexp_matches(clinic, '^c[12]$')), COUNT_IF(regexp_extract(clinic, '([0-9])', 1) = '2')",
    "COUNT(DISTINCT CASE WHEN age > 40 THEN person END), COUNT(DISTINCT IF(age > 40, person, NULL))",
    "CORR(age, cost), COVAR_POP(age, cost), COVAR_SAMP(cost, age), REGR_SLOPE(age, cost), CORR(age, age + cost)",
]


@pytest.mark.parametrize("columns", EXPRESSIONS)
def test_a_spelling_means_what_duckdb_means(world: World, columns: str) -> None:
    """NULL included: a fifth of the rows have no age, or no cost."""
    text = f"SELECT {columns} FROM visits WHERE city IN ('Oslo', 'Rome')"
    (row,) = world.ask(text, epsilon=EXACT, delta="1e-3").rows
    (expected,) = world.truth(text)
    assert all(map(close, row, expected)), (row, expected)


@pytest.mark.parametrize(
    ("group", "keys"),
    [
        ("dayname(day)", 7),
        ("strftime(day, '%b')", 12),
        ("LEFT(city, 1) || '!'", 3),
        ("CONCAT(city, '/', dayname(day))", 32),
        ("IF(age > 20, 'old', 'young')", 2),
        ("COALESCE(LEFT(city, 2), '?')", 4),
    ],
)
def test_outcomes_that_follow_from_declarations_are_public(
    world: World, group: str, keys: int
) -> None:
    """No delta is needed, and no row with a declared key is left out."""
    text = f"SELECT {group} AS g, COUNT(*) AS n FROM visits WHERE city IN ('Oslo', 'Rome') GROUP BY g ORDER BY g"
    rows = world.ask(text, epsilon=EXACT).rows
    assert len(rows) == keys
    truth = world.truth(text)
    assert [(g, n) for g, n in rows if n > 9] == [
        (g, pytest.approx(n, abs=9)) for g, n in truth if n > 9
    ]


def test_several_shares_are_a_list(world: World) -> None:
    """As DuckDB's, each share is a released number of its own."""
    text = (
        "SELECT QUANTILE_CONT(age, [0.25, 0.75]) AS q, QUANTILE_CONT(age, 0.25) AS a, "
        "APPROX_QUANTILE(age, 0.75) AS b, APPROX_COUNT_DISTINCT(person) AS people FROM visits"
    )
    ((listed, low, high, people),) = world.ask(text, epsilon=EXACT).rows
    assert listed == [low, high] and abs(low - 12) <= 2 and abs(high - 37) <= 2
    assert abs(people - 400) <= 1


@pytest.mark.parametrize(
    "text",
    [
        "SELECT COUNT(DISTINCT city) AS c FROM visits",
        "SELECT APPROX_COUNT_DISTINCT(bucket(age, 20)) AS c, COUNT(*) AS n FROM visits WHERE age > 10",
        "SELECT city, COUNT(DISTINCT bucket(age, 20)) AS c, COUNT(DISTINCT city) FILTER (WHERE age > 90) AS d, AVG(age) AS a "
        "FROM visits WHERE city <> 'Bern' GROUP BY city ORDER BY c DESC, city",
        "SELECT COUNT(DISTINCT CASE WHEN age < 7 AND age % 2 = 0 THEN city END) + 1 AS c, COUNT(DISTINCT city) AS d FROM visits "
        "HAVING d > 1",
    ],
)
def test_public_keys_that_are_there_are_counted(world: World, text: str) -> None:
    """As DuckDB counts them, with stated intervals that hold; also by group, filtered and beside other aggregates."""
    answer = world.ask(text, epsilon=EXACT, groups=10)
    truth = world.truth(re.sub(r"bucket\((\w+), (\d+)\)", r"floor(\1 / \2)", text))
    assert len(answer.rows) == len(truth)
    for row, expected in zip(answer.values, truth):
        for column, cell, number in zip(answer.columns, row, expected):
            assert close(cell.value, number)
            assert column.name in ("a", "n", "city") or cell.low == cell.value == cell.high


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("SELECT clinic, COUNT(DISTINCT city) FROM visits GROUP BY clinic", "distinct-unit"),
        ("SELECT city, COUNT(DISTINCT city) FROM visits GROUP BY ROLLUP (city)", "distinct-unit"),
        ("SELECT COUNT(DISTINCT age), COUNT(*) FROM visits", "distinct-unit"),
        ("SELECT COUNT(DISTINCT CASE WHEN age > 4 THEN clinic END) FROM visits", "distinct-unit"),
        (
            "SELECT COUNT(DISTINCT CASE WHEN age > 4 THEN person ELSE 0 END) FROM visits",
            "distinct-unit",
        ),
        ("SELECT COUNT(DISTINCT CASE age WHEN 4 THEN person END) FROM visits", "distinct-unit"),
        ("SELECT APPROX_COUNT_DISTINCT(clinic) FROM visits", "distinct-unit"),
        ("SELECT CORR(age, person) FROM visits", "declared-columns"),
        ("SELECT CORR(age, age / cost) FROM visits", "bounds"),
    ],
)
def test_what_they_do_not_take(world: World, text: str, rule: str) -> None:
    """Only the unit is counted once, and a product has bounds."""
    with pytest.raises(SqlRefused) as refused:
        world.ask(text, epsilon=1)
    assert refused.value.rule == rule


def test_intervals_of_correlations_hold(fresh: World) -> None:
    """In draws with much noise, too: the truth is inside, or no interval is stated."""
    text = "SELECT COVAR_POP(age, cost) AS c, CORR(age, cost) AS r FROM visits"
    (truth,) = fresh.truth(text)
    held = [0, 0]
    for revision in range(1, 13):
        answer = fresh.ask(text, epsilon="0.5", revision=revision)
        for position, (cell, expected) in enumerate(zip(answer.values[0], truth)):
            held[position] += cell.low is None or cell.low <= expected <= cell.high
            assert position == 0 or cell.value is None or -1 <= cell.value <= 1
    assert min(held) >= 10
