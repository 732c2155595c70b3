"""What a plan says that it costs is what the filters of its scope charge, and no more than was asked."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from functools import lru_cache
from itertools import cycle
from pathlib import Path
from typing import Any

import duckdb
import pytest

from dpflow import sql
from dpflow.core.accounting.amounts import DELTA_UNIT, EPSILON_UNIT, to_units_up
from dpflow.core.accounting.privacy_filters import make_filter
from dpflow.core.contract.declaration import Table
from dpflow.engine import make_plan
from dpflow.engine.planning.precheck import forecast
from dpflow.engine.releases.execute import release
from dpflow.engine.releases.plan import Plan
from dpflow.engine.releases.request import ReleaseRequest
from dpflow.engine.releases.scope_filters import ScopeFilters
from dpflow.errors import InvalidInput
from dpflow.ledger import Ledger
from dpflow.registry import Registry
from dpflow.testing.examples import Example, examples_for, read_examples

REGISTRY = Registry.load()
NAMES = [
    name for name, one in sorted(REGISTRY.mechanisms.items()) if "delta" in one.Params.model_fields
]
BASIC, HYBRID, RENYI, NO_DELTA = (
    make_filter(name, Fraction(50), delta)
    for name, delta in (
        ("basic", Fraction(1, 10)),
        ("hybrid", Fraction(1, 10)),
        ("renyi", Fraction(1, 10)),
        ("hybrid", Fraction(0)),
    )
)
#: Filters of scope a, and of its quota a/b, which pays, too.
PATHS = {
    "basic": (BASIC,),
    "hybrid": (HYBRID,),
    "renyi": (RENYI,),
    "hybrid without a delta": (NO_DELTA,),
    "hybrid quota of a basic scope": (BASIC, HYBRID),
}
ASKED = [{"epsilon": "0.1", "delta": "0.01"}, {"epsilon": "1", "delta": "1e-6"}]


@lru_cache
def list_examples(name: str) -> list[Example]:
    """The mechanism's examples by standard names, else its own, with one cost each; and its own as they are."""
    own: list[Example] = []
    try:
        listed = examples_for(REGISTRY.mechanisms[name])
    except InvalidInput:
        listed = own = read_examples(REGISTRY.collect_examples(name))
    costs = zip(listed, cycle(ASKED))
    return own + [replace(one, params={**one.params, **cost}) for one, cost in costs]


@pytest.mark.parametrize(
    "path",
    ["basic", *(pytest.param(one, marks=pytest.mark.slow) for one in PATHS if one != "basic")],
)
@pytest.mark.parametrize("name", NAMES)
def test_stated_cost_is_what_the_filters_charge(name: str, path: str) -> None:
    """Over all mechanisms with a delta: where a filter sums epsilons, the cost is to the unit what it charges;
    elsewhere it is proved of the event. It is never above what is asked.
    """
    scope = "a/b" if len(PATHS[path]) == 2 else "a"
    known = ScopeFilters(None, dict(zip(("a", "a/b"), PATHS[path])))
    planned: list[tuple[Plan, Any]] = []
    for example in list_examples(name):
        request = ReleaseRequest(
            name=name, mechanism=name, table=example.table, scope=scope, params=example.params
        )
        try:
            asked = REGISTRY.mechanisms[name].Params.model_validate(example.params)
            plan = make_plan(request, REGISTRY, is_supposed=True, filters=known)
        except (InvalidInput, ValueError):
            continue
        if known.hold(scope, plan.event) and asked.delta:
            planned.append((plan, asked))
    assert planned or path not in ("basic", "hybrid")
    for plan, asked in planned:
        epsilon, delta = map(Fraction, plan.privacy_cost())
        for one in PATHS[path]:
            if one.order is None:
                cost = one.event_cost(plan.event)
                assert cost.epsilon == to_units_up(epsilon, EPSILON_UNIT)
                assert cost.delta == to_units_up(delta, DELTA_UNIT)
        exact, proved = plan.event.epsilon_delta(), plan.event.epsilon_at(delta)
        assert exact == (epsilon, delta) or (proved is not None and proved <= epsilon)
        # Not the epsilon of each prediction, nor that of a paper's own lemma.
        is_total = (
            not hasattr(asked, "predictions") and getattr(asked, "selection", "") != "literal"
        )
        if is_total and asked.epsilon is not None:
            assert epsilon <= asked.epsilon
            assert delta <= asked.delta


DECLARATION = {
    "name": "visits",
    "privacy_unit": {"column": "person"},
    "contribution_bounds": {"rows": 30},
    "columns": {
        "shop": {"public_keys": [f"k{i}" for i in range(30)], "groups": 30, "rows_per_group": 1},
        "age": {"lower": 0, "upper": 120},
    },
}
QUARTILES = {
    "column": "age", "by": "shop", "quantiles": ["1/4", "1/2", "3/4"], "epsilon": "1", "delta": "1e-6",
}  # fmt: skip
MEDIAN = "SELECT shop, MEDIAN(age) AS m FROM visits GROUP BY shop"


@pytest.fixture
def visits(tmp_path: Path) -> Table:
    """Visits of 30 shops, where each person reaches all of them."""
    with duckdb.connect(str(tmp_path / "visits.duckdb")) as connection:
        connection.execute(
            "CREATE TABLE visits AS SELECT i % 70 AS person, 'k' || (i % 30) AS shop, 20 + i % 50 AS age FROM range(2100) t(i)"
        )
    return Table.model_validate({**DECLARATION, "database": tmp_path / "visits.duckdb"})


@pytest.fixture
def ledger(tmp_path: Path, visits: Table) -> Ledger:
    """A basic scope, a hybrid one, and a hybrid quota of the basic one."""
    ledger = Ledger(tmp_path / "ledger.sqlite", create=True)
    for scope, kind in (("basic", "basic"), ("hybrid", "hybrid"), ("basic/team", "hybrid")):
        ledger.grant(scope, 5, "1e-5", filter=kind, table=visits, principal="owner")
    return ledger


@pytest.mark.parametrize("scope", ["basic", "basic/team"])
def test_ledger_charges_what_is_said(visits: Table, ledger: Ledger, scope: str) -> None:
    """Quantiles with a delta: before and after the charge, with a plan that was made without its ledger."""
    fields = {"name": "quartiles", "mechanism": "quantiles", "table": visits, "scope": scope}
    request = ReleaseRequest(**fields, params=QUARTILES)
    plan, unfitted = make_plan(request, REGISTRY, ledger), make_plan(request, REGISTRY)
    assert "; the delta is left out: a filter of its scope" in plan.describe()["note"]
    receipt = release(unfitted, ledger, REGISTRY)
    assert plan.privacy_cost() == (receipt.epsilon, receipt.delta) == ("1", "0")
    (left,) = ledger.remaining("basic").rows()
    assert (left["epsilon_left"], left["delta_left"]) == ("4", "0.00001")


@pytest.mark.parametrize("scope", ["basic", "basic/team"])
def test_sql_charges_no_more_than_its_epsilon(visits: Table, ledger: Ledger, scope: str) -> None:
    """Beside a count, which shares the epsilon."""
    text = MEDIAN.replace("FROM", ", COUNT(*) AS n FROM")
    answer = sql(text, ledger=ledger, tables=[visits], scope=scope, epsilon=1, delta="1e-6")
    costs = [(Fraction(one.epsilon), Fraction(one.delta)) for one in answer.origins]
    assert [sum(column) for column in zip(*costs)] == [1, 0]


def test_renyi_scope_takes_the_delta(visits: Table, ledger: Ledger) -> None:
    """Where divergences are summed, the delta buys draws of a higher rate, and the cost is proved at it."""
    request = ReleaseRequest(
        name="quartiles", mechanism="quantiles", table=visits, scope="hybrid", params=QUARTILES
    )
    plan = make_plan(request, REGISTRY, ledger)
    epsilon, delta = map(Fraction, plan.privacy_cost())
    assert epsilon < 1 < plan.event.epsilon_delta()[0]  # type: ignore[index]
    assert delta == Fraction(1, 10**6)
    assert forecast(plan, ledger, REGISTRY) == "the ledger would accept it now"
