"""A sum in SQL that takes the clamping bounds of a search, as a release of it does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from orders_world import SEARCH, World, make_costs

import dpflow
from dpflow.analyst_sql.answer import query_plan
from dpflow.engine import fail_closed
from dpflow.errors import InvalidInput, PlanRefused, SqlRefused, UnknownName
from dpflow.testing.harness import StreamSource

SUMS = "SELECT state, COUNT(*) AS n, SUM(cost) AS s FROM orders GROUP BY state"
MEASURES = [{"measure": "count"}, {"measure": "sum", "column": "cost"}]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """With a search that was paid once, and twice as much as a query costs many times."""
    made = make_costs(tmp_path_factory.mktemp("orders"))
    with pytest.MonkeyPatch.context() as patch:
        # What it finds decides at what is clamped.
        patch.setattr(fail_closed, "SystemSource", lambda: StreamSource(1))
        made.release("bounds", **SEARCH)
    return made


def plan_sql(world: World, text: str, **options: Any) -> Any:
    options = {"epsilon": "0.2", "scope": "orders", "bounds": "look"} | options
    return dpflow.plan_sql(text, tables=[world.table], ledger=world.ledger, **options)


def test_a_query_asks_what_a_release_asks(world: World) -> None:
    """The same digest, bounds and noise; without the search another question."""
    (part,) = plan_sql(world, SUMS).parts
    params = {"by": "state", "measures": MEASURES, "epsilon": "0.2"}
    release = world.plan("aggregates", params=params, bounds=["look"], name="by release")
    assert part.plan.digest == release.digest
    assert part.plan.table.columns["cost"] == release.table.columns["cost"]
    assert part.plan.error_bound == release.error_bound
    (other,) = plan_sql(world, SUMS, bounds=None).parts
    assert other.plan.digest != release.digest
    assert part.plan.table.columns["cost"].upper < other.plan.table.columns["cost"].upper
    (finer,) = plan_sql(world, SUMS, bounds=None, epsilon="50").parts
    assert finer.plan.table.columns["cost"].upper == 10_000


def test_the_text_names_the_search(world: World) -> None:
    """As an option, and EXPLAIN says at what it clamps."""
    text = f"-- dp: bounds=look, epsilon=0.2\n{SUMS}"
    plan = plan_sql(world, text, epsilon=None, bounds=None)
    (said,) = (note for note in plan.explain()["notes"] if note.startswith("bounds of cost"))
    assert said.startswith("bounds of cost from 0 to 8 (9 grid points, ")
    assert "inside 0 to 10000; 'look' found that values exceed it by at most" in said
    (column,) = (one for one in plan.explain()["columns"] if one["column"] == "s")
    (whole,) = (
        one
        for one in plan_sql(world, SUMS, bounds=None).explain()["columns"]
        if one["column"] == "s"
    )
    assert column["half_width_95"] < whole["half_width_95"] / 100


def test_total_intervals_are_those_of_the_release(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the same draw the same ends: of sums by group, of their total, and of means by counts."""
    monkeypatch.setattr(fail_closed, "SystemSource", lambda: StreamSource(1))
    params = {"by": "state", "measures": MEASURES, "epsilon": "0.3"}
    released = world.release("aggregates", params=params, bounds=["look"], name="as a release")
    frame = released.to_pandas()
    sums = frame[frame["measure"] == "sum(cost)"]
    asked = world.ask(SUMS, epsilon="0.3", bounds="look")
    assert any("values of cost exceed 0 to 8 by at most" in note for note in asked.notes)
    told = asked.to_pandas(intervals=True)
    for beside in ("noise_low", "noise_high", "low", "high"):
        assert np.allclose(told[f"s_{beside}"], sums[beside].to_numpy(float))
    truth = world.read("SELECT sum(cost) AS s, avg(cost) AS m FROM orders").iloc[0]
    total = world.ask(
        f"SELECT SUM(s) AS s, SUM(s) / SUM(n) AS m FROM ({SUMS})", epsilon="0.3", bounds="look"
    )
    row = total.to_pandas(intervals=True).iloc[0]
    # What values exceed the bounds by counts once, and not once for each group.
    excess = released.result.totals.ends["sum(cost)"].beyond_above
    assert excess < row["s_high"] - row["s_noise_high"] < 1.1 * excess
    assert row["s_low"] <= truth["s"] <= row["s_high"]
    assert row["m_low"] <= truth["m"] <= row["m_high"]


def test_a_mean_is_not_clipped_to_searched_bounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of the orders cost 900, and much noise makes bounds of far less the best: the mean is beyond them."""
    monkeypatch.setattr(fail_closed, "SystemSource", lambda: StreamSource(1))
    made = make_costs(tmp_path, "CASE WHEN customer % 2 = 0 THEN 900 ELSE 3 END")
    made.release("bounds", **SEARCH)
    text = "SELECT SUM(cost) / COUNT(*) AS m FROM orders"
    options = {"epsilon": "0.06", "bounds": "look"}
    (part,) = plan_sql(made, text, **options).parts
    truth = float(made.read("SELECT avg(cost) AS m FROM orders")["m"][0])
    assert 2 * part.plan.table.columns["cost"].upper < truth
    row = made.ask(text, **options).to_pandas(intervals=True).iloc[0]
    assert row["m_low"] <= truth <= row["m_high"]


def test_the_same_question_is_free(world: World) -> None:
    """In another spelling, too; with and without the search they are two questions."""
    first = world.ask(SUMS, epsilon="0.4", bounds="look")
    again = world.ask(
        "SELECT SUM(cost) AS total, COUNT(*), state FROM orders GROUP BY 3",
        epsilon=0,
        bounds="look",
    )
    assert [one.release_id for one in again.origins] == [one.release_id for one in first.origins]
    with pytest.raises(PlanRefused, match="no stored answer serves"):
        world.ask(SUMS, epsilon=0)
    plain = world.ask(SUMS, epsilon="0.4")
    assert plain.origins[0].release_id != first.origins[0].release_id


def test_other_numbers_keep_the_declared_range(world: World) -> None:
    """A median beside a sum is a release of its own."""
    text = "SELECT MEDIAN(cost) AS m, SUM(cost) AS s FROM orders"
    uppers = [one.plan.table.columns["cost"].upper for one in plan_sql(world, text).parts]
    assert sorted(uppers)[1] == 10_000 > sorted(uppers)[0]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("SELECT COUNT(*) FROM orders", "only SUM(cost) of the table's own rows"),
        ("SELECT AVG(cost) FROM orders", "only SUM(cost) of the table's own rows"),
        ("SELECT SUM(cost * 2) FROM orders", "only SUM(cost) of the table's own rows"),
        ("SELECT SUM(cost), AVG(cost) FROM orders", "only sums of it take narrower ones"),
        ("SELECT SUM(cost), SUM(cost) FILTER (WHERE state = 'A') FROM orders", "only sums of it"),
        (
            "SELECT SUM(cost) FROM (SELECT customer, SUM(cost) AS cost FROM orders GROUP BY customer)",
            "least",
        ),
    ],
)
def test_what_takes_no_search_is_refused(world: World, text: str, why: str) -> None:
    """Before anything is charged."""
    with pytest.raises(SqlRefused) as refused:
        plan_sql(world, text)
    assert why in str(refused.value)


def test_options_that_name_no_search_are_refused(world: World) -> None:
    """A name that is none, one without a ledger, and an error beside it."""
    with pytest.raises(UnknownName, match="lok"):
        plan_sql(world, SUMS, bounds="lok")
    options = {"epsilon": 1, "scope": "orders", "bounds": "look"}
    with pytest.raises(PlanRefused, match="name the ledger"):
        query_plan.plan_sql(SUMS, options, [world.table])
    with pytest.raises(InvalidInput, match="error and bounds are both given"):
        plan_sql(world, SUMS, epsilon=None, error="100")
    with pytest.raises(InvalidInput, match="bounds has an empty name"):
        plan_sql(world, SUMS, bounds="look|")
    with pytest.raises(PlanRefused, match="declares some"):
        raw = world.table.model_dump(mode="json", exclude={"source"}, exclude_unset=True)
        table = type(world.table).model_validate(raw | {"max_contributions": {"rows": 24}})
        dpflow.plan_sql(
            SUMS, tables=[table], ledger=world.ledger, epsilon=1, scope="orders", bounds="look"
        )
