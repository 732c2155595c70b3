"""Random queries: each is refused by a rule, or planned at a price that the ledger agrees with; and what
is executed moves with one unit by no more than its plan says.
"""

from __future__ import annotations

import random
from collections import Counter
from fractions import Fraction
from pathlib import Path

import pytest
from sql_grammar import Grammar
from sql_twins import exact_statistic, fill_twins, measure_moves, try_query

from dpflow.analyst_sql.answer.sql_plan import SqlPlan
from dpflow.analyst_sql.releases.cells import find_release
from dpflow.core.contract.declaration import Table
from dpflow.errors import InvalidInput, PlanRefused
from dpflow.ledger import Ledger
from dpflow.registry import Registry

EPSILON = Fraction(2)


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
            # No plan costs more than was asked for, by its own account and by the ledger's.
            costs = [part.plan.privacy_cost() for part in found.parts]
            assert sum(Fraction(epsilon) for epsilon, _ in costs) <= EPSILON
            if delta is None:
                assert all(cost == "0" for _, cost in costs)
                events = [part.plan.event for part in found.parts]
                assert ledger.check("visits", events, ()) is None
                # All of it is spent: one more such query is beyond the grant.
                assert ledger.check("visits", events * 2, ()) is not None
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
    # Of joined pairs, too, which a query names.
    joins = [
        one.model_copy(update={"rows": 2 * (one.rows or 0) or None}) for one in visits_table.joins
    ]
    pairs = visits_table.model_copy(update={"joins": tuple(joins)})
    assert execute_many(3, 4, pairs) == 3


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
