"""A charge keeps its price: the same call completes it, whatever was released between a crash and the retry."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from duckdb_files import duckdb_file
from ledger_verbs import spent
from orders_world import REGISTRY, World

from dpflow import fault_points
from dpflow.analyst_sql.answer.query_plan import answer_sql, plan_sql
from dpflow.analyst_sql.answer.sql_answer import SqlAnswer
from dpflow.analyst_sql.releases.query_parts import PartPlan
from dpflow.core.contract.contribution import RequestedBounds
from dpflow.engine.releases.run_identity import RunIdentity
from dpflow.errors import InvalidInput, RetryConflict

#: Two releases, of which both have an error that is known.
TEXT = "SELECT COUNT(*) AS n, COUNT(DISTINCT customer) FILTER (WHERE state = 'A') AS a FROM orders"
ERROR, PRICE = {"error": "900"}, {"epsilon": "2"}


def identify(parts: Sequence[PartPlan], position: int) -> RunIdentity:
    """A task's run."""
    part = f"#{position}" if position else ""
    return RunIdentity.of_task("daily", "n", "2026-01-01", "air", part=part)


def ask(world: World, terms: dict[str, Any], *, is_task: bool, text: str = TEXT) -> SqlAnswer:
    """By hand, or as a task of one run."""
    found: Any = {"look_up": False, "identify_part": identify} if is_task else {}
    place: Any = ([world.table], (), world.ledger, REGISTRY)
    plan = plan_sql(text, {"scope": "orders"} | terms, *place, **found)
    run = (lambda position: identify(plan.parts, position)) if is_task else None
    return answer_sql(plan, world.ledger, REGISTRY, run)


@pytest.fixture
def world(tmp_path: Path) -> World:
    """Whose first profile allows a far lower price for the same error."""
    made = World(tmp_path)
    made.table = made.table.with_bounds(None, RequestedBounds(rows=1000), "a test")
    return made


BETWEEN = {
    "profile": lambda world: world.release("contributions"),
    "higher price": lambda world: ask(world, {"epsilon": "5"}, is_task=False),
    "other revision": lambda world: ask(world, {"epsilon": "5", "revision": 2}, is_task=False),
}


@pytest.mark.parametrize("between", BETWEEN)
@pytest.mark.parametrize("terms", [ERROR, PRICE], ids=["error", "price"])
@pytest.mark.parametrize("start", ["by hand", "task", "after a load"])
@pytest.mark.parametrize("point", ["reserve.after-commit", "settle.after-commit"])
def test_a_retry_completes_its_charge(
    world: World,
    monkeypatch: pytest.MonkeyPatch,
    point: str,
    start: str,
    terms: Any,
    between: str,
) -> None:
    """Nothing more is paid, and no charge is left, after a crash before all draws and after the first; nor where a part is
    charged in a revision that nobody asked for, since what is stored of it is of rows before a load.
    """
    is_task = start == "task"
    if start == "after a load":
        ask(world, terms, is_task=False, text=TEXT.replace("'A'", "'B'"))
        with duckdb_file(world.table.database) as connection:
            connection.execute("INSERT INTO orders SELECT customer + 3000, day, state FROM orders")
    with monkeypatch.context() as patch:
        patch.setattr(fault_points, "armed", f"{point}:fail")
        with pytest.raises(fault_points.FaultInjected):
            ask(world, terms, is_task=is_task)
    left = {one.release_id for one in world.ledger.reserved_releases()}
    assert len(left) == (2 if point.startswith("reserve") else 1)
    BETWEEN[between](world)
    before = spent(world.ledger, "orders")
    answer = ask(world, terms, is_task=is_task)
    assert spent(world.ledger, "orders") == before and not world.ledger.reserved_releases()
    assert left <= {origin.release_id for origin in answer.origins}
    again = ask(world, terms, is_task=is_task)
    assert spent(world.ledger, "orders") == before and (not is_task or again.rows == answer.rows)


def test_a_cleared_task_keeps_its_answer(world: World) -> None:
    """After a profile, which would lower its price; another question or a narrower error is a changed retry."""
    first = ask(world, ERROR, is_task=True)
    world.release("contributions")
    before = spent(world.ledger, "orders")
    assert (
        ask(world, ERROR, is_task=True).rows == first.rows
        and spent(world.ledger, "orders") == before
    )
    narrow = {"error": "90"}
    with pytest.raises(RetryConflict, match="parameter epsilon"):
        ask(world, narrow, is_task=True)
    with pytest.raises(RetryConflict, match="where"):
        ask(world, ERROR, is_task=True, text=f"{TEXT} WHERE state <> 'B'")
    assert spent(world.ledger, "orders") == before
    # Another run pays what the profile allows.
    assert ask(world, narrow | {"revision": 2}, is_task=False).rows


def test_a_charge_is_completed_where_no_price_reaches_the_error_any_more(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is charged is asked first: a new price may be none at all."""
    first = ask(world, ERROR, is_task=True)

    def refuse(*asked: Any) -> Any:
        raise InvalidInput("no epsilon")

    monkeypatch.setattr("dpflow.analyst_sql.releases.own_charges.find_epsilon", refuse)
    assert ask(world, ERROR, is_task=True).rows == first.rows


def test_a_stored_answer_alone_completes_no_charge(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Epsilon 0 takes what is settled, and leaves to the same call what is not."""
    with monkeypatch.context() as patch:
        patch.setattr(fault_points, "armed", "reserve.after-commit:fail")
        with pytest.raises(fault_points.FaultInjected):
            ask(world, {"epsilon": "1"}, is_task=False)
    stored = ask(world, {"epsilon": "5"}, is_task=False)
    assert ask(world, {"epsilon": "0"}, is_task=False).rows == stored.rows
    assert len(world.ledger.reserved_releases()) == 2
