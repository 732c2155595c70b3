"""Runs that are planned for counts of units with a histogram of their own: their events and half-widths are planned."""

from __future__ import annotations

import datetime as dt
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from orders_world import REGISTRY

from dpflow import Ledger
from dpflow.core.accounting.privacy_filters import Filter, make_filter
from dpflow.core.contract.declaration import Table
from dpflow.engine import make_plan
from dpflow.engine.planning.fit_schedule import solve_epsilons, total_cost
from dpflow.engine.planning.simulate import Job, PlannedRelease, Run, Task, forecast_schedule
from dpflow.engine.releases.request import ReleaseRequest
from dpflow.ledger import Scope

KEYS = [f"k{n}" for n in range(300)]


def _request(table: Table, **params: Any) -> ReleaseRequest:
    return ReleaseRequest(
        name="units",
        mechanism="count_distinct",
        scope="orders",
        table=table,
        params={"by": "key", "epsilon": "0.5", **params},
    )


def _solve(
    folder: Path, rule: Filter, params: dict[str, Any], **wishes: Any
) -> tuple[Any, Ledger, Table]:
    table = Table.model_validate(
        {
            "name": "orders",
            "database": folder / "orders.duckdb",
            "privacy_unit": {"column": "customer"},
            "contribution_bounds": {"rows": 300},
            "columns": {"key": {"public_keys": KEYS}},
        }
    )
    ledger = Ledger(folder / "ledger.sqlite", create=True)
    terms: Any = {"principal": "owner", "filter": rule.name, "confirm_large": True}
    ledger.grant("orders", str(rule.epsilon), str(rule.delta), table=table, **terms)
    asked = PlannedRelease(_request(table, **params), ())
    run = Run(dt.datetime(2030, 1, 1, tzinfo=dt.UTC), "first")
    job = Job("daily", "daily", "daily", (Task("release", lambda _: [asked]),), lambda: iter([run]))
    lines = forecast_schedule([job], REGISTRY, ledger).lines
    granted = {"orders": Scope("orders", rule, table.protection_text, False)}
    (fitted,) = solve_epsilons(lines, granted, 30, **wishes)
    return fitted, ledger, table


@pytest.mark.parametrize(
    ("name", "delta", "noise"),
    [
        ("renyi", "1e-6", {"delta": "1e-6"}),
        ("hybrid", "1e-6", {"delta": "1e-6"}),
        ("basic", "0", {}),
    ],
)
def test_all_runs_that_fit_are_admitted(
    tmp_path: Path, name: Any, delta: str, noise: dict[str, str]
) -> None:
    """With the event that each of them charges: that of a histogram and of what is left of its epsilon."""
    rule = make_filter(name, Fraction(1), Fraction(delta))
    fitted, ledger, table = _solve(tmp_path, rule, noise)
    plan = make_plan(_request(table, **noise, epsilon=str(fitted.epsilon)), REGISTRY, ledger)
    assert plan.histogram is not None
    assert Filter.admits(rule.capacity(), total_cost(rule, [(plan.event, 30)]))
    assert plan.error_bound is not None and fitted.error_bound is not None
    assert fitted.error_bound.half_width == plan.error_bound.half_width


def test_a_target_error_is_that_of_the_numbers(tmp_path: Path) -> None:
    """For which a histogram leaves less than the whole epsilon."""
    rule = make_filter("basic", Fraction(1000), Fraction(0))
    fitted, ledger, table = _solve(tmp_path, rule, {}, errors={"units": "100"})
    plan = make_plan(_request(table, epsilon=str(fitted.epsilon)), REGISTRY, ledger)
    assert plan.histogram is not None and plan.error_bound is not None
    assert 95 < plan.error_bound.half_width["count_distinct"] <= 100
