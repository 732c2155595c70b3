"""Random tables, and queries with one row for each privacy unit: what every backend has to make of them."""

from __future__ import annotations

import random
from typing import Any

import duckdb

from dpflow.analyst_sql.answer.query_plan import plan_sql
from dpflow.analyst_sql.releases.query_parts import PartPlan
from dpflow.core.contract.declaration import Table
from dpflow.core.contract.requests import GroupedSums
from dpflow.tables.backends import find_backend
from dpflow.tables.language.conditions import parse_condition
from dpflow.tables.language.expressions import parse_expression

KINDS = {
    "u": "INTEGER",
    "name": "VARCHAR",
    "day": "DATE",
    "seen": "TIMESTAMP",
    "x": "BIGINT",
    "cost": "DECIMAL(9,2)",
    "k": "VARCHAR",
    "old": "BOOLEAN",
}
#: Texts of values: missing ones, limits of types, and few of each, so that dates tie.
VALUES: dict[str, list[str | None]] = {
    "u": [None, "0", "1", "2", "3", "2147483647", "-2147483648"],
    "name": [None, "", "é", "ann", "Ann", "bob "],
    "day": [None, "2024-01-31", "2024-02-01", "2024-02-29", "0001-01-01", "9999-12-31"],
    "seen": [None, "2024-01-31 00:00:00", "2024-01-31 23:59:59.999999", "2024-02-01 12:00:00"],
    "x": [None, "-9223372036854775808", "9223372036854775807", "0", "1", "2", "3", "-4"],
    "cost": [None, "-9999999.99", "9999999.99", "0.01", "0.5", "2.25", "-3.33"],
    "k": [None, "", "a", "b", "A", "c"],
    "old": [None, "true", "false"],
}
COLUMNS: dict[str, dict[str, Any]] = {
    "x": {"lower": -10, "upper": 10},
    "cost": {"lower": -5, "upper": 5, "step": "0.01"},
    "k": {"public_keys": ["a", "b", "A"]},
    "name": {},
    "day": {},
    "seen": {},
    "old": {},
}
#: Of the rows of each unit, and as DuckDB writes them where ties are decided. Columns are clamped.
FEATURES = {
    "count(*)": "count(*)",
    "count(x)": "count(x)",
    "count_if(old)": "count(*) FILTER (WHERE old)",
    "count(DISTINCT name)": "count(DISTINCT name)",
    "sum(x)": "sum(x)",
    "avg(x)": "avg(x)",
    "min(cost)": "min(cost)",
    "max(x)": "max(x)",
    "sum(cost) FILTER (WHERE k = 'a')": "sum(cost) FILTER (WHERE k = 'a')",
    "sum(CASE WHEN old THEN 1 ELSE 0 END)": "sum(CASE WHEN old THEN 1 ELSE 0 END)",
    "arg_min(x, day)": "(min({'d': day, 'v': x}) FILTER (WHERE day IS NOT NULL AND x IS NOT NULL)).v",
    "max_by(cost, seen)": "(max({'d': seen, 'v': cost}) FILTER (WHERE seen IS NOT NULL AND cost IS NOT NULL)).v",
    "first(x ORDER BY day)": "first(x ORDER BY day, x)",
    "first(x ORDER BY day DESC)": "first(x ORDER BY day DESC, x DESC)",
    "last(cost ORDER BY seen)": "last(cost ORDER BY seen, cost NULLS FIRST)",
    "last(x ORDER BY day NULLS FIRST)": "last(x ORDER BY day NULLS FIRST, x NULLS FIRST)",
    "first(x ORDER BY day) FILTER (WHERE old)": "first(x ORDER BY day, x) FILTER (WHERE old)",
}
#: Features by which units are grouped: public keys, numbers of rows, and private keys.
KEYS = {
    "arg_min(k, day)": "(min({'d': day, 'v': k}) FILTER (WHERE day IS NOT NULL AND k IS NOT NULL)).v",
    "last(k ORDER BY seen NULLS FIRST)": "last(k ORDER BY seen NULLS FIRST, k NULLS FIRST)",
    "count(*)": "least(count(*), 9)",
    "min(day)": "min(day)",
    "first(name ORDER BY seen)": "first(name ORDER BY seen, name)",
}


def make_rows(seed: int) -> list[list[str | None]]:
    """Rows of few units."""
    rng = random.Random(seed)
    names = [*VALUES]
    return [[rng.choice(VALUES[name]) for name in names] for _ in range(rng.randint(0, 60))]


def declare(place: dict[str, Any], **changes: Any) -> Table:
    """The declaration of these rows in a place."""
    return Table.model_validate(
        {
            "name": "data",
            "privacy_unit": {"column": "u"},
            "contribution_bounds": {"rows": 9},
            "columns": COLUMNS,
        }
        | place
        | changes
    )


def plan(text: str, table: Table) -> list[PartPlan]:
    """What a query asks the backend for."""
    options = {"epsilon": 1, "scope": "s", "noise": "laplace", "delta": "1e-6"}
    return list(plan_sql(text, options, [table]).parts)


#: Of each key the numbers of rows and units, and of each value column how many there are and their sum.
Statistic = dict[str, tuple[int, ...]]


def read_statistic(
    part: PartPlan, nonce: int | None = None, **place: Any
) -> tuple[GroupedSums, Statistic]:
    """The exact sums of a part by key, of keys with rows."""
    planned = part.plan
    table = planned.table.model_copy(update=place)
    where = planned.request.where and parse_condition(planned.request.where, table)
    backend = find_backend(table.backend)(table, where or None, None)
    request, blocks = planned.mechanism.data_request(planned.params, table), planned.request.blocks
    assert isinstance(request, GroupedSums)
    backend.check_schema(blocks)
    backend.check_request(request, blocks)
    groups = backend.answer(request, blocks, nonce)
    moments = [("rows", ""), ("units", "")]
    moments += [(what, name) for name, _ in request.values for what in ("values", "sum")]
    columns = [groups.moment(*moment).tolist() for moment in moments]
    return request, {key: row for key, *row in zip(groups.keys, *columns) if any(row)}


def list_queries() -> list[str]:
    """One query of all features, and one for each kind of key."""
    columns = ", ".join(f"{text} AS f{n}" for n, text in enumerate(FEATURES))
    sums = ", ".join(f"SUM(f{n})" for n in range(len(FEATURES)))
    return [
        f"SELECT {sums} FROM (SELECT u, {columns} FROM data GROUP BY u)",
        *(
            f"SELECT g, COUNT(*), SUM(n) FROM (SELECT u, {text} AS g, COUNT(x) AS n FROM data GROUP BY u) GROUP BY g"
            for text in KEYS
        ),
    ]


def name_feature(feature: str, part: PartPlan) -> str:
    """What a feature's column is called."""
    units = part.plan.table.unit_rows
    assert units is not None
    return str(parse_expression(feature, units.rows))


def find_truth(
    connection: duckdb.DuckDBPyConnection, part: PartPlan, feature: str, where: str
) -> Statistic:
    """The same of one feature by DuckDB's own words: all of it, or its groups with the number of ``x``.

    Args:
        where: which rows are read.
    """
    connection.execute(
        "CREATE OR REPLACE TEMP VIEW clamped AS SELECT * REPLACE (CASE WHEN x IS NOT NULL THEN "
        "CAST(least(greatest(x, -10), 10) AS BIGINT) END AS x, CASE WHEN cost IS NOT NULL THEN "
        f"CAST(least(greatest(cost, -5), 5) AS DOUBLE) END AS cost) FROM data WHERE {where}"
    )
    per_unit = "SELECT {} AS v, count(x) AS n FROM clamped GROUP BY u"
    if (by := getattr(part.plan.params, "by", None)) is not None:
        listed = part.plan.table.columns[by].public_keys
        query = (
            f"SELECT CAST(v AS VARCHAR) AS g, count(*), count(*), count(*), sum(least(n, 9)) FROM ({per_unit.format(KEYS[feature])}) "
            "WHERE v IS NOT NULL GROUP BY g"
        )
        rows = connection.execute(query).fetchall()
        return {key: row for key, *row in rows if listed is None or key in listed}
    column = part.plan.table.columns[name_feature(feature, part)]
    assert column.lower is not None and column.upper is not None
    ends = f"{float(column.lower)}, {float(column.upper)}, {float(column.step)}"
    query = (
        "SELECT count(*), count(*), count(v), coalesce(sum(CAST(round(least(greatest(v, lo), hi) / step) AS BIGINT)) "
        "FILTER (WHERE v IS NOT NULL), 0) FROM "
        f"({per_unit.format(FEATURES[feature])}), (VALUES ({ends})) AS e(lo, hi, step)"
    )
    return {"": connection.execute(query).fetchall()[0]}
