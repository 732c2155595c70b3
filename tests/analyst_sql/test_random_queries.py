"""Random queries: each is refused by a rule, or planned at a price that the ledger agrees with; and what
is executed moves with one unit by no more than its plan says.
"""

from __future__ import annotations

import random
from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest
import yaml
from sql_grammar import Grammar

from dpflow.analyst_sql.cells import find_release
from dpflow.analyst_sql.query_plan import plan_sql
from dpflow.analyst_sql.sql_plan import SqlPlan
from dpflow.core.contract.declaration import Table
from dpflow.core.contract.mechanism import Mechanism
from dpflow.core.contract.requests import GroupedSums, SortedValues
from dpflow.engine.releases.plan import Plan
from dpflow.errors import InvalidInput, PlanRefused, SqlRefused
from dpflow.ledger import Ledger
from dpflow.registry import Registry
from dpflow.tables.access.declarations import load_table
from dpflow.tables.backends import find_backend

DECLARATION = {
    "name": "visits",
    "database": "visits.duckdb",
    "privacy_unit": {"column": "person"},
    "contribution_bounds": {"rows": 3, "groups": 2, "rows_per_group": 2},
    "joins": [
        {"relation": "places", "name": "place", "kind": "dimension", "on": {"city": "name"}},
        {"relation": "people", "name": "people", "kind": "unit", "on": {"person": "id"}, "rows": 2},
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
EPSILON = Fraction(2)
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


@pytest.fixture(scope="module")
def visits_table(tmp_path_factory: pytest.TempPathFactory) -> Table:
    folder = tmp_path_factory.mktemp("random")
    (folder / "visits.yml").write_text(yaml.safe_dump(DECLARATION))
    return load_table(folder / "visits.yml")


def try_query(text: str, table: Table, registry: Registry, delta: str | None) -> SqlPlan | str:
    """The plan, or the rule that refuses."""
    options = {"epsilon": "2", "delta": delta, "scope": "visits"}
    try:
        return plan_sql(text, options, [table], (), None, registry)
    except SqlRefused as error:
        assert error.line >= 1 and error.column >= 1
        return error.rule


def check_price(plan: SqlPlan, delta: Fraction, ledger: Ledger) -> None:
    """No plan costs more than was asked for, by its own account and by the ledger's."""
    costs = [part.plan.privacy_cost() for part in plan.parts]
    assert sum(Fraction(epsilon) for epsilon, _ in costs) <= EPSILON
    if not delta:
        assert all(cost == "0" for _, cost in costs)
        assert ledger.check("visits", [part.plan.event for part in plan.parts], ()) is None
        # All of it is spent: one more such query is beyond the grant.
        events = [part.plan.event for part in plan.parts] * 2
        assert ledger.check("visits", events, ()) is not None


def plan_many(count: int, seed: int, table: Table, folder: Path) -> Counter[str]:
    """How many queries are planned, and how many each rule refuses."""
    registry, grammar = Registry.load(), Grammar(seed)
    ledger = Ledger(folder / "ledger.sqlite", create=True)
    ledger.grant("visits", EPSILON, "1e-6", filter="basic", table=table, principal="owner")
    verdicts: Counter[str] = Counter()
    for number in range(count):
        delta = "1e-6" if number % 2 else None
        found = try_query(grammar.query(), table, registry, delta)
        if isinstance(found, SqlPlan):
            check_price(found, Fraction(delta or 0), ledger)
        verdicts["planned" if isinstance(found, SqlPlan) else found] += 1
    return verdicts


def test_a_few_random_queries_are_planned_or_refused(visits_table: Table, tmp_path: Path) -> None:
    verdicts = plan_many(200, 1, visits_table, tmp_path)
    assert verdicts["planned"] > 40, verdicts


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1000, 1020))
def test_random_queries_are_planned_or_refused(
    visits_table: Table, tmp_path: Path, seed: int
) -> None:
    """A hundred thousand of them, in about 40 minutes of CPU."""
    verdicts = plan_many(5000, seed, visits_table, tmp_path)
    print(seed, verdicts.most_common())
    assert verdicts["planned"] > 1000 and sum(verdicts.values()) == 5000


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
        with duckdb.connect(str(place)) as connection:
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
    from dpflow.tables.language.conditions import parse_condition

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
        moves = [_count_moves(a, b) for a, b in zip(full.split(len(keys)), less.split(len(keys)))]
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


def _count_moves(one: Any, other: Any) -> int:
    counts: Counter[int] = Counter()
    for data, sign in ((one, 1), (other, -1)):
        for value, count in zip(np.asarray(data.values).tolist(), np.asarray(data.counts).tolist()):
            counts[value] += sign * count
    return sum(map(abs, counts.values()))


def execute_many(count: int, seed: int, table: Table) -> int:
    """How many releases of random queries were measured."""
    registry, grammar = Registry.load(), Grammar(seed, odd=0.0)
    executed = number = 0
    while executed < count:
        if number % 40 == 0:
            twins = fill_twins(table, seed * 10**6 + number)
        number += 1
        found = try_query(grammar.query(), table, registry, "1e-6")
        if isinstance(found, str):
            continue
        try:
            for part in found.parts:
                measure_moves(part.plan, twins, number)
        except PlanRefused:
            # Of two types: the catalogue alone says so.
            continue
        executed += 1
    return executed


def test_one_unit_moves_a_few_random_queries_by_their_bounds(visits_table: Table) -> None:
    assert execute_many(12, 3, visits_table) == 12


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2000, 2010))
def test_one_unit_moves_random_queries_by_their_bounds(visits_table: Table, seed: int) -> None:
    """Two thousand of them, on 50 and more pairs of neighbours, in about 10 minutes of CPU."""
    assert execute_many(200, seed, visits_table) == 200


def test_a_wrong_bound_would_be_seen(visits_table: Table) -> None:
    """The negative control: a plan for one row a unit, measured on rows bounded by three."""
    found = try_query("SELECT COUNT(*) FROM visits", visits_table, Registry.load(), None)
    assert isinstance(found, SqlPlan)
    plan = found.parts[0].plan
    wrong = plan.table.model_copy(
        update={
            "contribution_bounds": plan.table.contribution_bounds.model_copy(update={"rows": 1})
        }
    )
    release = find_release(plan)
    assert release is not None
    moved = []
    for seed in range(3):
        twins = fill_twins(visits_table, seed)
        sums = [exact_statistic(plan, one.database, 1)[1].moment("rows", "").sum() for one in twins]
        moved.append(abs(int(sums[0] - sums[1])))
    assert max(moved) > wrong.contribution_bounds.rows


def test_broken_texts_end_in_a_rule(visits_table: Table) -> None:
    """Random characters of SQL, unicode and control characters among them."""
    rng, registry = random.Random(5), Registry.load()
    pieces = ["SELECT", "COUNT(*)", "FROM", "visits", "(", ")", "'", '"', ";", "--", "/*", "é", "\u202e", "$1",
              "\x07", ",", "1e999", "0x1", "::", "[", "]", "{", "}", "GROUP BY", "WITH", "*", "\\", "💥"]  # fmt: skip
    for _ in range(300):
        text = " ".join(rng.choices(pieces, k=rng.randint(1, 12)))
        try:
            found = try_query(text, visits_table, registry, None)
        except InvalidInput:
            continue
        assert isinstance(found, SqlPlan | str)
