"""The contribution profile: what one unit moves, which law the numbers have, and what its limits say."""

from __future__ import annotations

import itertools
from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest

from dpflow.core.accounting.events import DiscreteGaussian, DiscreteLaplace
from dpflow.core.contract.declaration import Table
from dpflow.core.contract.requests import UnitSizes
from dpflow.core.contract.sensitivity import Sensitivity
from dpflow.core.sampling.randomness import SystemSource
from dpflow.core.toolbox.contribution_profile import (
    ContributionProfile,
    SizeHistogram,
    count_bins,
    size_bins,
)
from dpflow.core.toolbox.noise import laplace_noise
from dpflow.engine.releases.make_plan import make_plan
from dpflow.engine.releases.request import ReleaseRequest
from dpflow.errors import PlanRefused, UnknownName
from dpflow.mechanisms import contributions
from dpflow.mechanisms.contributions import Contributions
from dpflow.registry import Registry
from dpflow.tables.private import PrivateTable
from dpflow.testing.harness import StreamSource
from dpflow.testing.neighbours import make_sizes, possible_units, reference_answer

REGISTRY = Registry.load()
COLUMNS: dict[str, Any] = {
    "shop": {"public_keys": ["a", "b", "c"]},
    "day": {"lower": "2024-01-01", "upper": "2024-12-31"},
    "word": {},
}


def declare_table(database: Path = Path("t.duckdb"), **changes: Any) -> Table:
    declared: dict[str, Any] = {
        "name": "orders",
        "database": database,
        "privacy_unit": {"column": "customer"},
        "contribution_bounds": {"rows": 2},
        "columns": COLUMNS,
    }
    return Table.model_validate(declared | changes)


def plan_profile(table: Table, **params: Any) -> Any:
    request = ReleaseRequest(
        name="profile",
        mechanism="contributions",
        table=table,
        scope="orders",
        params={"epsilon": "1", **params},
        blocks=("2024-01-01",) if table.block else (),
    )
    return make_plan(request, REGISTRY)


@pytest.mark.parametrize("relation", ["add-remove", "replace"])
@pytest.mark.parametrize("number", [0, 1, 3])
def test_one_unit_moves_the_counts_by_what_the_noise_is_made_for(
    monkeypatch: pytest.MonkeyPatch, relation: str, number: int
) -> None:
    """Over all pairs of neighbours of up to two other units, whatever their rows are: the largest
    distance in L1 and in L2 is the one that the noise follows, for each number of histograms.
    """
    table = declare_table(
        neighbours=relation, columns={name: {"public_keys": ["a", "b"]} for name in "xyz"}
    )
    groupings = tuple("xyz"[:number])
    params = contributions.ContributionsParams(epsilon=Fraction(1), groupings=groupings)
    moved: list[Sensitivity] = []
    monkeypatch.setattr(
        contributions, "laplace_noise", lambda s, e: moved.append(s) or laplace_noise(s, e)
    )
    mechanism = Contributions()
    mechanism.event(params, table)
    rows = [dict(zip("xyz", keys)) for keys in itertools.product("ab", repeat=3)]
    units = [*possible_units(rows, 2), ({"x": None, "y": None, "z": None},)]
    starts = mechanism._histograms(params, table)

    def count(*of: Any) -> np.ndarray:
        answer = reference_answer(UnitSizes(groupings), of)
        lists = (answer.rows, *answer.groups)
        bins = [count_bins(s, *one) for s, one in zip(starts.values(), lists)]
        return np.concatenate(bins)

    l1 = l2 = 0
    for one, other in itertools.combinations(units, 2):
        pair = count(one), count(other) if relation == "replace" else count()
        l1 = max(l1, int(abs(pair[0] - pair[1]).sum()))
        l2 = max(l2, int(((pair[0] - pair[1]) ** 2).sum()))
        # Further units add the same to both.
        assert (count(one, other) - count(other)).tolist() == (count(one) - count()).tolist()
    assert Sensitivity(l1, l2) == moved[0]


def test_noise_has_the_law_that_the_event_names() -> None:
    """Every count has independent noise of the stated scale; a unit beyond the last bin is in it, and
    units without rows are nowhere.
    """
    table = declare_table()
    params = contributions.ContributionsParams(epsilon=Fraction(2), groupings=("shop",))
    event = Contributions().event(params, table)
    assert event == DiscreteLaplace(Fraction(1), 2)
    answer = make_sizes([1, 2, 2, 5, 10**9], [1, 3, 0])
    draws = [Contributions().draw(params, table, answer, SystemSource()) for _ in range(400)]
    values = np.array([[row.value for row in draw.rows] for draw in draws])
    exact = {"units with 1 row": 1, "units with 2 rows": 2, "units with 4 to 5 rows": 1}
    exact |= {"units with 4096 or more rows": 1, "units with 1 group": 1}
    exact |= {"units with 3 or more groups": 1}
    names = [row.measure for row in draws[0].rows]
    assert set(exact) < set(names)
    noise = values - np.array([exact.get(name, 0) for name in names])
    # Variance of discrete Laplace noise of scale 1 is 2 q/(1-q)^2, q = 1/e.
    counted = Counter(noise.ravel().tolist())
    q = np.exp(-1.0)
    for k in range(-3, 4):
        share = (1 - q) / (1 + q) * q ** abs(k)
        width = 6 * np.sqrt(share / noise.size)
        assert abs(counted[k] / noise.size - share) < width
    assert abs(np.corrcoef(noise[:, 0], noise[:, 1])[0, 1]) < 0.3


def test_limits_hold_as_often_as_they_say() -> None:
    """The upper limit of units above a size is above their number in 95 % of draws at least, within a
    bin, too, and close to it. The noise is the same in every run: 184 of 200 are not far from 95 %.
    """
    noise = laplace_noise(Sensitivity(4, 4), Fraction(1))
    sizes = [1] * 500 + [3] * 200 + [7] * 80 + [40] * 9
    starts, source = size_bins(64), StreamSource(1)
    exact = count_bins(starts, *make_sizes(sizes).rows)
    for bound in (1, 2, 6, 9, 40, 64):
        true, held, slack = sum(size > bound for size in sizes), 0, []
        for _ in range(200):
            counts = tuple(noise.add_noise(exact, source).tolist())
            limit = SizeHistogram(starts, counts, noise).limit_above(bound)
            held += limit >= true
            slack.append(limit)
        assert held >= 184, f"bound {bound}: {held} of 200"
        assert np.median(slack) < true + 100 + 80 * (bound == 6)


def test_a_plan_states_its_resolution_and_refuses_one_that_is_too_coarse() -> None:
    """Before anything is charged, from the declaration and what the person says of the units."""
    table = declare_table()
    plan = plan_profile(table)
    assert set(plan.mechanism.data_request(plan.params, plan.table).groupings) == {
        *("shop", "date_trunc('day', day)", "date_trunc('week', day)"),
        "date_trunc('month', day)",
    }
    assert plan.error_bound is not None
    resolution = int(plan.error_bound.note.split("resolution ")[1].split()[0])
    with pytest.raises(PlanRefused, match=f"up to .- {resolution}"):
        plan_profile(table, units=10 * resolution - 1)
    plan_profile(table, units=10 * resolution)
    # More privacy cost or fewer groupings make it finer; Gaussian noise where many are asked.
    finer = plan_profile(table, groupings=["shop"]).error_bound
    assert finer and finer.half_width["units"] < plan.error_bound.half_width["units"]
    many = plan_profile(table, delta="1e-6", groupings=[f"bucket(day, {n})" for n in range(1, 40)])
    assert isinstance(many.event, DiscreteGaussian)
    with pytest.raises(UnknownName, match="shops"):
        plan_profile(table, groupings=["shops"])
    with pytest.raises(UnknownName, match="no_such_day"):
        plan_profile(table, groupings=["date_trunc('month', no_such_day)"])


def test_a_profile_is_read_back_and_is_fine_or_not() -> None:
    noise = laplace_noise(Sensitivity(2, 2), Fraction(1))
    rows = SizeHistogram((1, 2, 3), (90, 9, 1), noise)
    profile = ContributionProfile(rows, {"shop": SizeHistogram((1, 2), (70, 30), noise)}, 10)
    assert ContributionProfile.from_json(profile.to_json()) == profile
    assert profile.units == 100 and profile.is_fine
    assert not ContributionProfile(rows, {}, 11).is_fine


def test_each_block_has_units_of_its_own(tmp_path: Path) -> None:
    """Under unit-block a unit of two blocks is two, and each block is charged."""
    database = tmp_path / "orders.duckdb"
    with duckdb.connect(str(database)) as connection:
        connection.execute(
            "CREATE TABLE orders AS SELECT customer, shop, DATE '2024-01-01' + CAST(d AS INTEGER) AS day, 'w' AS word "
            "FROM (VALUES (1, 'a', 0), (1, 'b', 0), (1, 'b', 1), (2, 'z', 1)) AS t(customer, shop, d)"
        )
    table = declare_table(database, protects="unit-block", block="day")
    plan = plan_profile(table, groupings=["shop"])
    assert plan.charged_blocks == ("2024-01-01",)
    answer = PrivateTable(table).answer(UnitSizes(("shop",)), ("2024-01-01", "2024-01-02"))
    assert [dict(zip(*map(list, one))) for one in (answer.rows, *answer.groups)] == [
        {1: 2, 2: 1},
        {1: 2, 2: 1},
    ]
