"""Neighbouring tables of random rows, and how far a unit moves what a release computes before its noise."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from duckdb_files import duckdb_file

from dpflow.analyst_sql.answer.query_plan import plan_sql
from dpflow.analyst_sql.answer.sql_plan import SqlPlan
from dpflow.analyst_sql.releases.cells import find_release
from dpflow.core.contract.declaration import Table
from dpflow.core.contract.mechanism import Mechanism
from dpflow.core.contract.requests import GroupedSums, SortedValues
from dpflow.engine.releases.plan import Plan
from dpflow.errors import SqlRefused
from dpflow.registry import Registry
from dpflow.tables.backends import find_backend
from dpflow.tables.language.conditions import parse_condition

DECLARATION = {
    "name": "visits",
    "database": "visits.duckdb",
    "privacy_unit": {"column": "person"},
    "contribution_bounds": {"rows": 3, "groups": 2, "rows_per_group": 2},
    "joins": [
        {"relation": "places", "name": "place", "kind": "dimension", "on": {"city": "name"}},
        {"relation": "people", "name": "people", "kind": "unit", "on": {"person": "id"}, "rows": 1},
    ],
    "columns": {
        "city": {"public_keys": ["a", "b", "c"]},
        "clinic": {},
        "tag": {"expression": "CASE WHEN age > 50 THEN 'old' ELSE 'young' END"},
        "age": {"lower": 0, "upper": 100},
        "cost": {"lower": -5, "upper": 5, "step": "0.5", "missing": 0},
        "seen": {},
        "place.name": {},
        "place.zone": {"public_keys": ["north", "south"]},
        "place.size": {"lower": 0, "upper": 10},
        "people.kind": {},
        "people.weight": {"lower": 0, "upper": 9, "step": "0.5"},
    },
}
MADE = """
CREATE TABLE visits(person INTEGER, city VARCHAR, clinic VARCHAR, age INTEGER, cost DOUBLE, seen TIMESTAMP);
CREATE TABLE places AS FROM (VALUES ('a', 'north', 3), ('b', 'south', 12), ('d', NULL, NULL)) t(name, zone, size);
CREATE TABLE people(id INTEGER, kind VARCHAR, weight DOUBLE)
"""
#: Texts that columns of random rows hold.
VALUES: dict[str, list[str | None]] = {
    "city": ["a", "b", "c", "d", "é", None],
    "clinic": ["x", "y", "z1", None],
    "age": [None, *map(str, [-(2**31), 2**31 - 1, *range(0, 100, 7)])],
    "cost": [None, "nan", "inf", "-inf", "1e300", "-3", "0.25", "4"],
    "seen": [None, "2020-01-01 05:00:00", "2020-01-03 23:59:59", "0001-01-01", "infinity"],
}
PEOPLE: dict[str, list[str | None]] = {
    "kind": ["p", "q", None],
    "weight": [None, "nan", "-1e9", "0.5", "3", "8.5"],
}


def try_query(text: str, table: Table, registry: Registry, delta: str | None) -> SqlPlan | str:
    """The plan, or the rule that refuses."""
    options = {"epsilon": "2", "delta": delta, "scope": "visits"}
    try:
        return plan_sql(text, options, [table], (), None, registry)
    except SqlRefused as error:
        assert error.line >= 1 and error.column >= 1
        return error.rule


def fill_twins(table: Table, seed: int) -> tuple[Table, Table]:
    """Two files that differ by one unit, with values of all kinds and more rows than the bounds."""
    rng = random.Random(seed)
    units = rng.randint(2, 6)
    lost = rng.randrange(units)
    rows = [
        [rng.choice([unit] * 15 + [None]), *(rng.choice(values) for values in VALUES.values())]
        for unit in range(units)
        for _ in range(rng.randint(1, 9))
    ]
    people = [
        [unit, *(rng.choice(values) for values in PEOPLE.values())]
        for unit in range(units)
        for _ in range(rng.randint(0, 3))
    ]
    twins = []
    for name, without in (("full", None), ("less", lost)):
        place = table.database.parent / f"{name}.duckdb"
        place.unlink(missing_ok=True)
        with duckdb_file(place) as connection:
            connection.execute(MADE)
            # A nonce chooses a unit's groups by their numbers among all keys. One more unit has every key, so that
            # both files give each the same number, and the same choices are compared.
            lists = ", ".join("(SELECT unnest(CAST(? AS VARCHAR[])))" for _ in VALUES)
            connection.execute(
                f"INSERT INTO visits SELECT 99, * FROM {lists}", list(VALUES.values())
            )
            lists = ", ".join("(SELECT unnest(CAST(? AS VARCHAR[])))" for _ in PEOPLE)
            connection.execute(
                f"INSERT INTO people SELECT 99, * FROM {lists}", list(PEOPLE.values())
            )
            for relation, all_rows in (("visits", rows), ("people", people)):
                for row in all_rows:
                    if without is None or row[0] != without:
                        marks = ", ".join("?" for _ in row)
                        connection.execute(f"INSERT INTO {relation} VALUES ({marks})", row)
        twins.append(table.model_copy(update={"database": place}))
    return twins[0], twins[1]


def exact_statistic(plan: Plan, database: Path, nonce: int) -> tuple[Any, Any]:
    assert isinstance(plan.mechanism, Mechanism)
    table = plan.table.model_copy(update={"database": database})
    where = plan.request.where and parse_condition(plan.request.where, table)
    backend = find_backend(table.backend)(table, where or None, None)
    request = plan.mechanism.data_request(plan.params, table)
    backend.check_request(request, plan.request.blocks)
    return request, backend.answer(request, plan.request.blocks, nonce)


def measure_moves(plan: Plan, twins: tuple[Table, Table], nonce: int) -> None:
    """The exact statistics of two neighbours are no further apart than the plan's noise is for."""
    request, full = exact_statistic(plan, twins[0].database, nonce)
    _, less = exact_statistic(plan, twins[1].database, nonce)
    groups, rows, _ = plan.table.bounds_for(request.by)
    if isinstance(request, SortedValues):
        keys = request.keys if request.by is not None else ("",)
        moves = []
        for pair in zip(full.split(len(keys)), less.split(len(keys))):
            counts: Counter[int] = Counter()
            for data, sign in zip(pair, (1, -1)):
                listed = zip(np.asarray(data.values).tolist(), np.asarray(data.counts).tolist())
                for value, count in listed:
                    counts[value] += sign * count
            moves.append(sum(map(abs, counts.values())))
        assert max(moves) <= rows and sum(move > 0 for move in moves) <= groups, moves
        return
    assert isinstance(request, GroupedSums)
    release = find_release(plan)
    moments = release.query.moments if release is not None else [("rows", "")]
    for moment in moments:
        sums = [dict(zip(one.keys, one.moment(*moment).tolist())) for one in (full, less)]
        moved = [sums[0].get(k, 0) - sums[1].get(k, 0) for k in {*sums[0], *sums[1]}]
        if release is None:
            assert sum(map(abs, moved)) <= groups * rows
            continue
        bound = release.query.sensitivity(moment)
        assert sum(map(abs, moved)) <= bound.l1, (moment, moved)
        assert sum(move**2 for move in moved) <= bound.l2_squared, (moment, moved)
