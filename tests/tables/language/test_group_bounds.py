"""Bounds of what is computed of a column cut nothing where the declared ones cut nothing."""

from __future__ import annotations

import datetime as dt
import random
from collections import defaultdict
from typing import Any

import duckdb
import pytest
from declared_tables import declare_table
from pydantic import ValidationError

from dpflow.core.contract.columns import Column
from dpflow.core.contract.contribution import TOUCHED
from dpflow.core.contract.declaration import Table
from dpflow.core.contract.requests import GroupedSums
from dpflow.core.contract.strict_models import describe_problems
from dpflow.tables import declare_groups
from dpflow.tables.language.group_bounds import takes_null
from dpflow.tables.language.grouping import parse_row_expression

#: Groupings of a date, a key and a number, as DuckDB takes them too.
GROUPINGS = (
    *(f"date_trunc('{period}', day)" for period in TOUCHED),
    *("day", "year(day)", "month(day)", "quarter(day)", "dayofweek(day)", "day(day)", "city"),
    "CASE WHEN day > '2020-03-01' THEN 'late' ELSE 'early' END",
    "CASE WHEN x > 4 AND city = 'a' THEN 'one' ELSE 'other' END",
    "CASE WHEN city = 'a' THEN 'one' END",
    "CASE WHEN city = 'a' THEN x WHEN x > 2 THEN 7 END",
    "x > 3",
    "coalesce(x, 99)",
    "x IS NULL",
    "date_trunc('month', day) IS NULL",
    *("city, day", "city, date_trunc('month', day)", "year(day), month(day)", "city, x"),
)
FIRST = dt.date(2019, 12, 20)

MANY = 10**6


def test_a_period_touches_no_more_of_another_than_the_calendar_has() -> None:
    """Every pair of periods, day by day over a cycle of leap years and weeks."""
    names = {
        "day": lambda day: day,
        "week": lambda day: day.toordinal() // 7 - (day.toordinal() % 7 == 0),
        "month": lambda day: (day.year, day.month),
        "quarter": lambda day: (day.year, (day.month - 1) // 3),
        "year": lambda day: day.year,
    }
    days = [dt.date(2000, 1, 1) + dt.timedelta(i) for i in range(366 * 28)]
    for of, inner in names.items():
        for period, outer in names.items():
            touched = defaultdict(set)
            for day in days:
                touched[outer(day)].add(inner(day))
            assert TOUCHED[of][period] == max(map(len, touched.values())), (of, period)


@pytest.mark.parametrize("seed", range(6))
def test_inherited_bounds_cut_nothing_that_declared_ones_keep(seed: int) -> None:
    """Rows of one unit at random, declared exactly: every grouping has no more groups, and no more
    rows in one, than what it inherits; each inherits something.
    """
    rng = random.Random(seed)
    rows = [
        (
            FIRST + dt.timedelta(rng.randrange(9 + 40 * seed)) if rng.random() < 0.9 else None,
            rng.choice(["a", "b", "c", None]),
            rng.choice([*range(8), None]),
        )
        for _ in range(rng.randrange(2, 60))
    ]
    rows.append((FIRST, "a", 0))
    periods = rng.sample(sorted(TOUCHED), rng.randrange(1, 4))
    with duckdb.connect() as connection:
        connection.execute("CREATE TABLE t (day DATE, city VARCHAR, x INTEGER)")
        connection.executemany("INSERT INTO t VALUES (?, ?, ?)", rows)

        def measure(by: str) -> tuple[int, int]:
            # Rows without a key are in no group.
            found = connection.execute(f"SELECT {by}, count(*) FROM t GROUP BY ALL").fetchall()
            sizes = [size for *key, size in found if None not in key]
            return max(len(sizes), 1), max(sizes, default=1)

        exact = {period: measure(f"date_trunc('{period}', day)") for period in periods}
        columns: dict[str, Any] = {
            "day": {
                "groups": {period: groups for period, (groups, _) in exact.items()},
                "rows_per_group": {period: most for period, (_, most) in exact.items()},
            },
            **{
                name: dict(zip(("groups", "rows_per_group"), measure(name), strict=True))
                for name in ("city", "x")
            },
        }
        table = declare_table(columns, rows=MANY)
        for by in GROUPINGS:
            declared, name = declare_groups(table, by)
            groups, most = measure(by)
            inherited = declared.bounds_for(name)
            assert groups <= inherited.groups and most <= inherited.rows_per_group, by
            assert declared.limits_for(name)[0].source.startswith("groups of "), by


def test_days_limit_no_times_of_day() -> None:
    """A column of times with limits of days: its hours have none, wherever an expression asks for them."""
    table = declare_table({"at": {"groups": {"day": 3}, "rows_per_group": {"day": 4}}}, rows=90)
    hours = ("hour(at)", "hour(at) + 1", "date_trunc('hour', at)", "date_diff('minute', at, at)")
    late = "CASE WHEN hour(at) > 18 THEN 'late' ELSE 'early' END"
    for by in (*hours, late, "hour(at), date_trunc('day', at)"):
        declared, name = declare_groups(table, by)
        assert declared.bounds_for(name).groups == 90, by
    for by in ("date_trunc('day', at)", "dayofweek(at) + 1", "date_diff('day', at, at)"):
        declared, name = declare_groups(table, by)
        assert declared.bounds_for(name).groups == 3, by


def test_where_a_bound_comes_from_is_said() -> None:
    """By the declaration's own words; what is declared for an expression itself wins."""
    table = declare_table(
        {
            "day": {"groups": {"day": 30, "month": 12}, "rows_per_group": 2},
            "month": {"expression": "date_trunc('month', day)"},
            "own": {"expression": "date_trunc('month', day)", "groups": 5},
            "city": {},
        },
        rows=60,
    )
    found = {}
    for by in ("month", "own", "date_trunc('week', day)", "city", "city, day"):
        declared, name = declare_groups(table, by)
        found[by] = declared.bounds_for(name).groups, declared.limits_for(name)[0].source
    assert found == {
        "month": (12, "groups of day: {month: 12}"),
        "own": (5, "groups of own: 5"),
        "date_trunc('week', day)": (30, "groups of day: {day: 30}"),
        # As many groups as rows that count: a unit can be in no more.
        "city": (60, "contribution_bounds.rows"),
        "city, day": (60, "contribution_bounds.rows"),
    }


def test_limits_beside_public_keys_are_about_these_keys() -> None:
    """A unit may have rows of other keys, which an expression sees; by period they are for all rows."""
    days = {"public_keys": ["2020-01-01"], "rows_per_group": 2}
    table = declare_table(
        {"city": {"public_keys": ["a", "b"], "groups": 1}, "day": days | {"groups": 3}}, rows=MANY
    )
    for by in (
        "lower(city)",
        "CASE WHEN city = 'c' THEN 'x' ELSE 'y' END",
        "date_trunc('month', day)",
    ):
        declared, name = declare_groups(table, by)
        assert declared.limits_for(name)[0].source == "contribution_bounds.rows", by
    declared, name = declare_groups(table, "city, day")
    assert declared.bounds_for(name).groups == 3
    table = declare_table({"day": days | {"groups": {"month": 4}}}, rows=MANY)
    declared, name = declare_groups(table, "date_trunc('month', day)")
    assert declared.bounds_for(name).groups == 4


def test_a_dimension_has_no_more_groups_than_its_key() -> None:
    table = declare_table({"city": {"groups": 2}, "town.area": {}}, rows=MANY)
    join = {"relation": "towns", "name": "town", "kind": "dimension", "on": {"city": "name"}}
    table = Table.model_validate(table.model_dump() | {"joins": [join]})
    declared, name = declare_groups(table, "town.area")
    assert declared.bounds_for(name).groups == 2


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ({"groups": {"day": 0}}, "must be greater than or equal to 1"),
        ({"groups": {"mnth": 3}}, "did you mean 'month'"),
        ({"rows_per_group": {}}, "name at least one of day, week"),
        ({"groups": "many"}, "must be a whole number"),
        ({"lower": 0, "upper": 9, "groups": {"day": 3}}, "by day or month are for dates"),
    ],
)
def test_a_wrong_limit_is_a_sentence(column: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError) as refused:
        Column.model_validate(column)
    assert message in describe_problems(refused.value)


def test_counts_of_rows_cost_nothing_more_for_undeclared_groups() -> None:
    """A unit of at most R rows moves counts by R, in however many groups they are."""
    one = declare_table({"k": {"groups": 1}}, rows=7)
    many = declare_table({"k": {}}, rows=7)
    assert many.bounds_for("k") == (7, 7, 7) and one.bounds_for("k") == (1, 7, 7)
    for keys in (3, 20, None):
        listed = keys and tuple(map(str, range(keys)))
        requests = [
            GroupedSums("k", listed, groups, per_group, rows=rows)
            for groups, per_group, rows in (one.bounds_for("k"), many.bounds_for("k"))
        ]
        moves = [one.sensitivity(request).rows for request in requests]
        assert moves[0] == moves[1]


@pytest.mark.parametrize(
    ("text", "of_city", "of_x"),
    [
        ("CASE WHEN city = 'a' THEN 'one' END", False, False),
        ("CASE WHEN city = 'a' THEN 'one' ELSE 'other' END", True, False),
        ("CASE WHEN city = 'a' THEN x ELSE x END", True, False),
        ("CASE WHEN city IS NULL THEN 'none' END", True, False),
        ("CASE WHEN city = 'a' OR x > 1 THEN 'one' END", True, True),
        ("CASE WHEN city = 'a' AND x > 1 THEN 'one' ELSE city END", False, True),
        ("CASE WHEN city = 'a' THEN 'one' ELSE city END", False, False),
        ("coalesce(x, 3) > 2", False, True),
        ("lower(city)", False, False),
    ],
)
def test_rows_without_a_value_have_a_group_where_duckdb_says_so(
    text: str, of_city: bool, of_x: bool
) -> None:
    """With the column missing, and for the other one any value or none."""
    table = declare_table({"city": {}, "x": {"lower": 0, "upper": 9}}, rows=MANY)
    node = parse_row_expression(text, table)
    for name, expected in (("city", of_city), ("x", of_x)):
        if name not in node.column_names():
            continue
        cities = ["NULL"] if name == "city" else ["NULL", "'a'", "'b'"]
        numbers = ["NULL"] if name == "x" else ["NULL", "0", "5"]
        rows = ", ".join(f"({c}::VARCHAR, {x}::INTEGER)" for c in cities for x in numbers)
        found = duckdb.sql(f"SELECT count({text}) > 0 FROM (VALUES {rows}) t(city, x)").fetchall()
        assert found == [(expected,)]
        assert takes_null(node, name) == expected
