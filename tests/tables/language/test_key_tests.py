"""Which groups a condition can leave a row: never too few, whatever the rows are."""

from __future__ import annotations

import random
from typing import Any

import duckdb
import pytest

from dpflow.core.contract.declaration import Table
from dpflow.tables import declare_groups
from dpflow.tables.language.key_tests import narrow_keys

TABLE = Table.model_validate(
    {
        "name": "t",
        "database": "t.duckdb",
        "privacy_unit": {"column": "u"},
        "contribution_bounds": {"rows": 1},
        "columns": {
            "d": {"lower": "2023-12-20", "upper": "2025-01-10"},
            "t": {"lower": "2023-12-20", "upper": "2025-01-10"},
            "k": {"public_keys": ["a", "b", "c", "2024-02-01", "7"]},
            "s": {"public_keys": ["2024-01-31", "2024-02-01", "2024-02-01 00:00", "x"]},
            "n": {"public_keys": ["1", "2", "30"]},
        },
    }
)
GROUPS = [
    *("k", "s", "n", "year(d)", "month(t)", "quarter(d)", "day(t)", "dayofyear(d)", "isodow(d)", "dayofweek(t)"),
    *(f"date_trunc('{unit}', {name})" for unit in ("day", "week", "month", "quarter", "year") for name in "dt"),
    *("CAST(t AS DATE)", "date_trunc('hour', t)", "CASE WHEN k = 'a' THEN 'x' ELSE 'y' END"),
]  # fmt: skip


@pytest.fixture(scope="module")
def rows() -> Any:
    """All days of four months and their ends, with times around midnight, beside every key."""
    connection = duckdb.connect()
    connection.execute(
        "CREATE TABLE rows AS SELECT CAST(d AS DATE) AS d, CAST(d AS TIMESTAMP) + to_seconds(s) AS t, k, i AS n, x AS s FROM "
        "range(DATE '2023-12-28', DATE '2024-03-08', INTERVAL 1 DAY) a(d), unnest([0, 1, 43200, 86399]) b(s), "
        "unnest([['a', '1'], ['b', '2'], ['c', '30'], ['2024-02-01', '1'], ['7', '2'], [NULL, NULL]]) c(e), "
        "unnest([['2024-01-31', 'x'], ['2024-02-01', '2024-02-01 00:00']]) f(p), LATERAL (SELECT e[1] AS k, "
        "CAST(e[2] AS INTEGER) AS i, p[1 + s % 2] AS x)"
    )
    return connection


def list_atoms(draw: random.Random) -> str:
    """One comparison."""
    day = draw.choice(
        ["2023-12-31", "2024-01-01", "2024-01-31", "2024-02-01", "2024-02-29", "2024-03-04"]
    )
    moment = day + draw.choice(["", "", " 00:00:00", " 12:00", "T23:59:59"])
    op = draw.choice(["=", "<>", "<", "<=", ">", ">="])
    return draw.choice(
        [
            f"d {op} '{day}'",
            f"t {op} '{moment}'",
            f"t BETWEEN '{day}' AND '2024-02-10'",
            f"date_trunc('{draw.choice(['week', 'month', 'quarter', 'day'])}', {draw.choice('dt')}) {op} '{day}'",
            f"year({draw.choice('dt')}) {op} 2024",
            f"month(d) {op} 2",
            f"d IN ('{day}', '2024-02-10')",
            f"CAST(t AS DATE) {op} '{day}'",
            f"k {op} '{draw.choice(['a', 'b', '2024-02-01', '7'])}'",
            f"s {op} '{draw.choice(['2024-01-31', '2024-02-01', '2024-02-01 00:00'])}'",
            "k IN ('a', 'c')",
            "k IS NULL",
            f"n {op} {draw.choice([1, 2, 29])}",
            "n IN (1, 30)",
        ]
    )  # fmt: skip


@pytest.mark.parametrize("seed", range(2))
def test_no_group_with_a_row_is_left_out(rows: Any, seed: int) -> None:
    """Of random conditions, for every grouping; and many groups without one are."""
    declared = [declare_groups(TABLE, by) for by in GROUPS]
    texts = ", ".join(f"list(DISTINCT CAST({by} AS VARCHAR))" for by in GROUPS)
    dropped = 0
    draw = random.Random(seed)
    for _ in range(25):
        a, b, c = (list_atoms(draw) for _ in range(3))
        several = [a, f"{a} AND {b}", f"({a} OR {b}) AND {c}", f"NOT ({a} OR {b}) AND {c}"]
        where = draw.choice([*several, f"({a} AND {b}) OR {c}"])
        found = rows.execute(f"SELECT {texts} FROM rows WHERE {where}").fetchone()
        for by, (table, name), keys in zip(GROUPS, declared, found):
            if (listed := table.columns[name].public_keys) is None:
                continue
            # Starts of periods of times are dates with a time.
            cut = 10 if by.startswith("date_trunc") else 99
            narrowed, share = narrow_keys(table, name, where)
            kept = narrowed.public_keys(name)
            assert {key[:cut] for key in keys or () if key} & {*listed} <= {*kept}, (where, by)
            assert share == len(kept) / len(listed)
            dropped += len(listed) - len(kept)
    assert dropped > 2000


@pytest.mark.parametrize(
    ("by", "where", "kept"),
    [
        ("k", "k IN ('a', 'c')", ["a", "c"]),
        ("k", "k <> 'a' AND NOT k IN ('b', 'c')", ["2024-02-01", "7"]),
        ("n", "n < 30", ["1", "2"]),
        ("date_trunc('month', d)", "d >= '2024-02-10' AND d < '2024-04-01'", ["2024-02-01", "2024-03-01"]),
        ("date_trunc('month', t)", "t < '2024-02-01 00:00:00'", ["2023-12-01", "2024-01-01"]),
        ("date_trunc('week', d)", "date_trunc('month', d) = '2024-02-01'",
         ["2024-01-29", "2024-02-05", "2024-02-12", "2024-02-19", "2024-02-26"]),
        ("date_trunc('month', d)", "year(d) = 2025", ["2025-01-01"]),
        ("month(d)", "d BETWEEN '2024-11-05' AND '2025-01-03'", ["1", "11", "12"]),
        ("isodow(t)", "t >= '2024-02-05' AND t < '2024-02-07'", ["1", "2"]),
        ("date_trunc('quarter', d)", "d < '2024-01-02' AND (d > '2023-12-30' OR k = 'a')", ["2023-10-01", "2024-01-01"]),
    ],
)  # fmt: skip
def test_what_is_left(by: str, where: str, kept: list[str]) -> None:
    table, name = declare_groups(TABLE, by)
    assert sorted(narrow_keys(table, name, where)[0].public_keys(name)) == sorted(kept)


@pytest.mark.parametrize(
    "where",
    ["d >= '2024-02-10' OR k = 'a'", "month(d) = 2", "d IS NULL", "k = 'a' AND k = 'b' AND d < '1999-01-01'"],
)  # fmt: skip
def test_where_nothing_is_proven_all_keys_stay(where: str) -> None:
    """And where no group can have a row, since a grouping needs keys."""
    table, name = declare_groups(TABLE, "date_trunc('month', d)")
    assert narrow_keys(table, name, where) == (table, 1.0)


def test_keys_that_look_like_dates_and_are_none(rows: Any) -> None:
    """Of a column of texts, the order of which is that of texts."""
    table = Table.model_validate(
        TABLE.model_dump(mode="json", exclude={"source"}, exclude_unset=True)
        | {"columns": {"s": {"public_keys": ["2024-99-99", "2024-01-05", "0000-01-01"]}}}
    )
    narrowed, _ = narrow_keys(table, "s", "s < '2024-02-01'")
    assert set(narrowed.public_keys("s")) == {"2024-99-99", "2024-01-05", "0000-01-01"}
