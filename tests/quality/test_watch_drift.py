"""Drift from a released reference, asked in a watch's session: what alarms, what it asks, who pays."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import yaml
from contract_world import DAY, World, verdicts, watch

from dpflow.core.contract.results import Result, Row
from dpflow.engine.releases import execute
from dpflow.engine.releases.make_plan import make_plan
from dpflow.engine.releases.request import ReleaseRequest
from dpflow.errors import InvalidDeclaration, PlanRefused
from dpflow.quality.watch import list_drift_checks, plan_session
from dpflow.registry import Registry

REGISTRY = Registry.load()
DRIFT = {"name": "mix", "column": "carrier", "reference": "base", "at_most": "0.3"}


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_a_watch_sees_shares_leave_a_released_reference(world: World) -> None:
    """Quiet days are free; a day whose rows changed carrier alarms once, though both keys moved; the
    reference stays what it was, and without one nothing is charged or read.
    """
    with pytest.raises(PlanRefused, match="no settled release of that name"):
        watch(world, DAY, checks=None, drift=[DRIFT])
    assert world.spent() == "0"
    world.fill(carrier="['AA', 'UA'][i % 2 + 1]")
    asked = ReleaseRequest(
        name="base",
        mechanism="histogram",
        table=world.folder / "flights.yml",
        scope="flights",
        blocks=("2020-01-02",),
        params={"by": "carrier", "epsilon": "5"},
    )
    execute.release(make_plan(asked, REGISTRY), world.ledger, REGISTRY)
    drift = [DRIFT]
    # Half of the rows had either carrier when the reference was released.
    assert verdicts(watch(world, "2020-01-02", checks=None, drift=drift)) == {"mix": "quiet"}
    moved = watch(world, DAY, checks=None, drift=drift)
    assert verdicts(moved) == {"mix": "alarm"}
    assert (
        moved.validation["results"][0]["expectation_config"]["type"] == "expect_shares_as_released"
    )
    assert (world.spent(), world.spent("2020-01-31")) == ("40", "40")
    assert watch(world, DAY, checks=None, drift=drift).checks == moved.checks
    # The alarm closed the session: another one is paid, from its block on.
    assert verdicts(watch(world, "2020-01-03", checks=None, drift=drift)) == {"mix": "alarm"}
    assert (world.spent(), world.spent("2020-01-31")) == ("80", "80")


def test_drift_in_a_watch_asks_each_key_linearly(world: World) -> None:
    """Event: `watch_rows` over linear excesses, whose sensitivity its own tests hold. What is asked follows
    from public keys and the released reference alone; a bound that no share can break is not asked.
    """
    contract = world.contract(mode="watch", checks=None, drift=[DRIFT])
    counts = (Row("AA", "count", 900), Row("UA", "count", -3))
    (listed,) = list_drift_checks(contract, {"mix": Result(counts)}).values()
    assert [(one.name, one.condition, one.at_most, one.at_least) for one in listed] == [
        ("drift_0_0_less", "\"carrier\" IN ('AA')", None, Fraction(7, 10)),
        ("drift_0_1_more", "\"carrier\" IN ('UA')", Fraction(3, 10), None),
    ]
    # A plan's stand-in: its price is the one that is paid, and its keys are asked in both directions.
    plan = plan_session(contract, [DAY], REGISTRY)
    assert len(plan.params.checks) == 4 and plan.privacy_cost() == ("30", "0")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"drift": [DRIFT | {"epsilon": "1"}]}, "the session's pays for it"),
        ({"mode": "metered", "drift": [DRIFT]}, "an epsilon of its own"),
        ({"drift": [DRIFT], "checks": None, "epsilon": None}, "checks and epsilon go together"),
    ],
)
def test_who_pays_for_drift_is_said_once(world: World, fields: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidDeclaration, match=words):
        world.contract(**({"mode": "watch"} | fields))


def test_too_many_keys_for_a_watch_are_refused(world: World) -> None:
    declared = yaml.safe_load((world.folder / "flights.yml").read_text())
    declared["columns"]["carrier"]["public_keys"] = [f"K{n}" for n in range(60)]
    (world.folder / "flights.yml").write_text(yaml.safe_dump(declared))
    drift = [DRIFT | {"at_most": "0.001"}]
    with pytest.raises(PlanRefused, match="1 to 100 bounds, and this contract has 120"):
        plan_session(world.contract(mode="watch", checks=None, drift=drift), [DAY], REGISTRY)
