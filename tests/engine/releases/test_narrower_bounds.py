"""Clamping bounds inside a range that everybody knows, chosen for one release of sums by a search that many share."""

from __future__ import annotations

import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from duckdb_files import duckdb_file
from orders_world import SEARCH, World, make_costs

from dpflow.core.contract.declaration import Table
from dpflow.core.contract.sensitivity import Sensitivity
from dpflow.core.sampling.randomness import SystemSource
from dpflow.core.toolbox.noise import gaussian_noise, laplace_noise
from dpflow.engine import fail_closed
from dpflow.errors import PlanRefused
from dpflow.testing.harness import StreamSource

SUM: dict[str, Any] = {"params": {"column": "cost", "by": "state", "epsilon": "0.1"}}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """With a search that was paid once, and twice as much as a release costs many times."""
    made = make_costs(tmp_path_factory.mktemp("orders"))
    made.release("bounds", **SEARCH)
    return made


def test_total_intervals_are_shorter_and_hold(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of rows that are clamped, too, which noise intervals leave out."""
    truth = world.read("SELECT sum(cost) AS s FROM orders GROUP BY state ORDER BY state")["s"]
    held = of_noise = 0
    for seed in range(12):
        monkeypatch.setattr(fail_closed, "SystemSource", lambda seed=seed: StreamSource(seed))
        (whole, narrow) = (
            world.release("sum", **SUM, **more, revision=seed + 1, name=f"{seed} {len(more)}")
            for more in ({}, {"bounds": ["look"]})
        )
        told = narrow.result.totals
        assert "values of cost exceed 0 to 8 by at most" in told.statement and told.premise
        lengths = [
            np.subtract(*one.result.totals.ends["sum"].find_span(0, 0)) for one in (whole, narrow)
        ]
        assert lengths[0] < 10 * lengths[1] < 0
        frame = narrow.to_pandas()
        held += int(((frame["low"] <= truth) & (truth <= frame["high"])).sum())
        of_noise += int(((frame["noise_low"] <= truth) & (truth <= frame["noise_high"])).sum())
    # Of 36: below 30 with a probability of 1e-3 were each 95 %.
    assert held >= 30 and of_noise <= 18


def test_the_ends_fit_the_release(world: World) -> None:
    """Much noise makes them narrow, little leaves the range; the same question has the same again, and is free."""
    widths = []
    for epsilon in ("0.001", "0.1", "2", "50"):
        plan = world.plan(
            "sum",
            params={"column": "cost", "epsilon": epsilon},
            bounds=["look"],
            name=f"of {epsilon}",
        )
        column = plan.table.columns["cost"]
        assert column.lower == 0 and 0 < column.upper <= 10_000
        # Nobody declared one, so fractions are refused, and not rounded to it.
        assert "step" not in column.model_fields_set
        widths.append(column.upper)
    assert widths == sorted(widths) and widths[0] < 1000 and widths[-1] == 10_000
    assert math.log2(widths[0]).is_integer()
    plan = world.plan("sum", **SUM, bounds=["look"], name="free")
    assert "inside 0 to 10000" in plan.describe()["bounds"]
    assert plan.digest != world.plan("sum", **SUM, name="free").digest
    first = world.release("sum", **SUM, bounds=["look"], name="free")
    again = world.release("sum", **SUM, bounds=["look"], name="free")
    assert again.replayed and again.result == first.result


def test_a_sum_of_several_groups_lacks_no_more_than_all(world: World) -> None:
    """What is beyond the bounds is limited for all groups together."""
    total = world.release("sum", **SUM, bounds=["look"], name="added").result.totals.ends["sum"]
    one, three = (total.find_shortfall(cells) for cells in (1, 3))
    assert one == three and one[1] > 0 == one[0]


def test_limits_hold_of_each_end(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """All at once, below and above; without noise they are what the bins can hold."""
    world = make_costs(tmp_path, "CAST(hash(customer, day) % 3000 AS INTEGER) - 1000")
    raw = world.table.model_dump(mode="json", exclude={"source"}, exclude_unset=True)
    raw["columns"]["cost"] = {"lower": -1024, "upper": 2000}
    world.table = Table.model_validate(raw)
    costs = world.read("SELECT cost FROM orders")["cost"].to_numpy().astype(float)
    failed = 0
    for seed in range(40):
        monkeypatch.setattr(fail_closed, "SystemSource", lambda seed=seed: StreamSource(seed))
        found = world.release(
            "bounds", params={"column": "cost", "epsilon": "0.5"}, name=f"look {seed}"
        ).result.document["excess"]
        assert [end for end, _ in found["upper"]] == [str(2**j) for j in range(11)]
        assert [end for end, _ in found["lower"]] == [str(-(2**j)) for j in range(10)]
        failed += any(
            most < np.maximum(sign * (costs - float(Fraction(end))), 0).sum()
            for side, sign in (("upper", 1), ("lower", -1))
            for end, most in found[side]
        )
    assert failed <= 3
    exact = world.release("bounds", params={"column": "cost", "epsilon": "500"}, name="exact")
    for side, sign in (("upper", 1), ("lower", -1)):
        for end, most in exact.result.document["excess"][side]:
            beyond = np.maximum(sign * (costs - float(end)), 0).sum()
            assert beyond <= most <= 2.5 * beyond + 5000


def test_weighted_noise_stays_within_its_half_width() -> None:
    """Laplace and Gaussian; with equal weights it is no narrower than that of a sum."""
    moved = Sensitivity(6, 6)
    for noise in (laplace_noise(moved, Fraction(1)), gaussian_noise(moved, Fraction(1, 20))):
        assert noise.weighted_half_width({1.0: 9}, 0.02) >= noise.sum_half_width(9, 0.02)
        draws = noise.add_noise(np.zeros(90_000, np.int64), SystemSource()).reshape(-1, 3)
        limit = noise.weighted_half_width({8.0: 1, 1.0: 2}, 0.1)
        share = (np.abs(draws @ np.array([8, 1, 1])) > limit).mean()
        assert 0.002 < share <= 0.1


@pytest.mark.parametrize(
    ("mechanism", "fields", "why"),
    [
        ("mean", {"params": {"column": "cost"}}, "only sums of it"),
        ("median", {"params": {"column": "cost"}}, "only sums take"),
        ("count", {}, "only sums of it"),
        ("sum", {"params": {"column": "double"}}, "only sums of it"),
        ("sum", {"params": {"column": "cost", "by": "dear"}}, "only sums of it"),
    ],
)
def test_other_releases_are_refused(
    world: World, mechanism: str, fields: dict[str, Any], why: str
) -> None:
    """Before anything is charged."""
    raw = world.table.model_dump(mode="json", exclude={"source"}, exclude_unset=True)
    raw["columns"] |= {
        "double": {"expression": "cost * 2", "lower": 0, "upper": 20_000},
        "dear": {
            "expression": "CASE WHEN cost > 9 THEN 'y' ELSE 'n' END",
            "public_keys": ["y", "n"],
        },
    }
    with pytest.raises(PlanRefused, match=f"takes the bounds of 'cost' from 'look'.*{why}"):
        world.plan(mechanism, **fields, bounds=["look"], table=Table.model_validate(raw))


def test_what_a_search_did_not_count_has_no_total_interval(tmp_path: Path) -> None:
    """Other rows, fewer of a unit, other values; nor where contribution bounds cut."""
    world = make_costs(tmp_path)
    world.release("bounds", **SEARCH)
    world.release("bounds", **SEARCH | {"name": "of A"}, where="state = 'A'")
    world.release("bounds", **SEARCH | {"name": "few"}, contribution_bounds={"rows": 3})
    asked = SUM | {"params": {"column": "cost", "epsilon": "0.1"}}

    def has_total(name: str, **more: Any) -> bool:
        fields = asked | {"bounds": ["look"], "name": name} | more
        totals = world.release("sum", **fields).result.totals
        return totals is not None and "sum" in totals.ends

    assert has_total("all") and has_total("part", where="cost > 5 AND state = 'A'")
    assert has_total("same", bounds=["of A"], where="state = 'A'")
    assert not has_total("other", bounds=["of A"], where="state = 'B'")
    assert not has_total("more", bounds=["of A"])
    # A profile would choose fewer rows.
    world.release("contributions", params={"epsilon": "50"})
    noisy = {"params": {"column": "cost", "epsilon": "0.005"}}
    assert world.plan("sum", **noisy, name="profiled").chosen is not None
    assert has_total("profiled", **noisy)
    with pytest.raises(PlanRefused, match="contribution bounds below"):
        has_total("cut", contribution_bounds={"rows": 5})
    with pytest.raises(PlanRefused, match="fewer rows of a unit"):
        has_total("fewer", bounds=["few"])
    with duckdb_file(world.table.database) as connection:
        connection.execute("INSERT INTO orders SELECT 5000, DATE '2024-02-01', 'A', 9999")
    assert not has_total("later")
    raw = world.table.model_dump(mode="json", exclude={"source"}, exclude_unset=True)
    raw["columns"]["cost"] = {"lower": 0, "upper": 20_000}
    world.table = Table.model_validate(raw)
    with pytest.raises(PlanRefused, match="another column"):
        has_total("wider")
    raw["max_contributions"] = {"rows": 24}
    world.table = Table.model_validate(raw)
    with pytest.raises(PlanRefused, match="declares some; leave one out"):
        has_total("unknown")
