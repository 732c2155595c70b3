"""Results of an earlier declaration: what drift is measured from, and what bounds are suggested from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from contract_world import CHECKS, World, declare_profiled, redeclare, release_named, verdicts

from dpflow.engine import fail_closed
from dpflow.errors import PlanRefused
from dpflow.quality.suggest import suggest_bounds
from dpflow.registry import Registry
from dpflow.testing.harness import StreamSource

REGISTRY = Registry.load()


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.fixture
def profiled(tmp_path: Path) -> World:
    return declare_profiled(tmp_path)


MIX = {"name": "mix", "column": "carrier", "reference": "base", "at_most": "0.3"}


@pytest.mark.parametrize("mode", ["metered", "watch"])
def test_drift_from_a_reference_of_another_declaration_is_refused(
    profiled: World, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The owner bounds rows otherwise after the reference was released: equal rows had drifted by 0.09 and more. What
    neither chooses nor cuts rows changes nothing.
    """
    paid = {"mode": mode, "checks": None, "epsilon": "30" if mode == "watch" else None}
    drift = [MIX | ({} if mode == "watch" else {"epsilon": "30"})]
    monkeypatch.setattr(fail_closed, "SystemSource", lambda: StreamSource(1))
    release_named(profiled, "base", "histogram", by="carrier", epsilon="30")
    redeclare(profiled, "delay", upper=90)
    redeclare(profiled, max_contributions=None)
    verdict = "quiet" if mode == "watch" else "kept"
    assert verdicts(profiled.run(**paid, drift=drift)) == {"mix": verdict}
    spent = profiled.spent()
    for change in (
        {"contribution_bounds": {"rows": 1}},
        {"column": "carrier", "rows_per_group": 1},
        {"column": "carrier", "missing": 0},
        {"privacy_unit": {"column": "plane", "missing": "one-unit"}},
    ):
        before = (profiled.folder / "flights.yml").read_text()
        redeclare(profiled, **change)
        with pytest.raises(PlanRefused, match="cut each plane's rows, otherwise"):
            profiled.run(**paid, drift=drift, revision=2)
        (profiled.folder / "flights.yml").write_text(before)
    assert profiled.spent() == spent


def test_drift_from_no_counts_of_the_column_is_refused(world: World) -> None:
    """Before it is paid: releases by another column, of units, and of rows under a condition."""
    redeclare(
        world,
        "late",
        expression="CASE WHEN delay > 30 THEN 'AA' ELSE 'UA' END",
        public_keys=["AA", "UA"],
    )
    release_named(world, "late", "histogram", by="late", epsilon="1")
    release_named(world, "units", "count_distinct", by="carrier", epsilon="1")
    release_named(world, "some", "histogram", where="delay > 3", by="carrier", epsilon="20")
    spent = world.spent()
    for name, fault in (("late", "no counts"), ("units", "no counts"), ("some", "chose its rows")):
        drift = [MIX | {"reference": name, "epsilon": "1"}]
        with pytest.raises(PlanRefused, match=fault):
            world.run(checks=None, epsilon=None, drift=drift)
    assert world.spent() == spent


@pytest.mark.parametrize("change", [{"upper": 60}, {"step": 2}, {"missing": 0}])
def test_numbers_of_another_declaration_suggest_nothing(
    world: World, change: dict[str, Any]
) -> None:
    """Moments are steps from the middle of the bounds of their time: read with those of now, the very same rows broke
    the bound that was suggested. Another column's declaration, and another check beside, change nothing.
    """
    mean = {"name": "mean", "check": "mean", "column": "delay", "at_most": 100}
    world.run(checks=[mean, CHECKS[1]])
    redeclare(world, "carrier", public_keys=["AA", "UA", "BB"])
    contract = world.contract(checks=[mean])
    (found,) = suggest_bounds(contract, world.ledger, REGISTRY)
    assert found.runs == 1 and found.bound is not None
    redeclare(world, "delay", **change)
    (told,) = suggest_bounds(contract, world.ledger, REGISTRY)
    assert (told.bound, told.runs) == (None, 0)
