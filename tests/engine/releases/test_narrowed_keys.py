"""Conditions on what rows are grouped by: fewer groups, less noise, and the same truth."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from duckdb_files import duckdb_file
from orders_world import REGISTRY, World
from scipy.stats import binom

from dpflow.core.contract.declaration import Table
from dpflow.core.contract.sensitivity import Sensitivity
from dpflow.core.toolbox.contribution_profile import (
    ContributionProfile,
    SizeHistogram,
    count_bins,
    size_bins,
)
from dpflow.core.toolbox.noise import laplace_noise
from dpflow.engine import fail_closed, make_plan
from dpflow.engine.releases.choose_bounds import _Choice
from dpflow.engine.releases.request import ReleaseRequest
from dpflow.tables.private import PrivateTable
from dpflow.testing.harness import StreamSource
from dpflow.testing.neighbours import make_sizes

#: Nobody has more than 24 orders, and two in one month.
LARGEST = {"rows": 24, "rows_per_group": {"day": {"month": 2}}}
EARLY = (
    "SELECT date_trunc('month', day) AS m, COUNT(*) AS n, COUNT(DISTINCT customer) AS u FROM orders "
    "WHERE day < '2024-03-01' GROUP BY m ORDER BY m"
)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """With a profile, and a declared maximum."""
    made = World(tmp_path_factory.mktemp("orders"))
    declared = made.table.model_dump(mode="python", exclude_unset=True)
    made.table = Table.model_validate(declared | {"max_contributions": LARGEST})
    made.release("contributions")
    return made


def test_the_noise_is_that_of_the_groups_that_are_left(world: World) -> None:
    """As of a table that declares no others; a release has no others, either."""
    plan = world.plan("count_distinct", params={"by": "state"}, where="state IN ('A', 'B')")
    declared = world.table.model_dump(mode="python", exclude_unset=True)
    columns = {**declared["columns"], "state": {"public_keys": ["A", "B"]}}
    few = Table.model_validate(declared | {"columns": columns})
    same = world.plan("count_distinct", params={"by": "state"}, table=few)
    question = plan.question or plan
    assert question.error_bound == (same.question or same).error_bound
    every = world.plan("count_distinct", params={"by": "state"})
    assert question.privacy_cost() == every.privacy_cost()
    assert (every.question or every).error_bound.half_width["count_distinct"] > 1.3 * (
        question.error_bound.half_width["count_distinct"]
    )
    receipt = world.release("count_distinct", params={"by": "state"}, where="state IN ('A', 'B')")
    assert {row.key for row in receipt.result.rows} == {"A", "B"}


@pytest.mark.parametrize("mechanism", ["count_distinct", "histogram"])
def test_one_unit_moves_numbers_by_no_more_than_is_stated(tmp_path: Path, mechanism: str) -> None:
    """Over all units with up to two rows in each of three groups, of which a condition leaves two; some move them by
    as much, and without the condition by more.
    """
    found: dict[str | None, tuple[float, float]] = {}
    for where in (None, "k <> 'c'"):
        worst = 0.0
        for n, rows in enumerate(itertools.product(range(3), repeat=3)):
            file = tmp_path / f"{n}.duckdb"
            if not file.exists():
                with duckdb_file(file) as connection:
                    connection.execute("CREATE TABLE t (u INTEGER, k VARCHAR)")
                    for key, number in zip("abc", rows):
                        connection.executemany(
                            "INSERT INTO t VALUES (1, ?)", [[key]] * number or [[None]]
                        )
            table = Table.model_validate(
                {
                    "name": "t",
                    "database": file,
                    "privacy_unit": {"column": "u"},
                    "contribution_bounds": {"rows": 5, "groups": 3, "rows_per_group": 2},
                    "columns": {"k": {"public_keys": ["a", "b", "c"]}},
                }
            )
            params = {"by": "k", "epsilon": "1"}
            request = ReleaseRequest(
                name="n", mechanism=mechanism, scope="t", table=table, params=params, where=where
            )
            plan = make_plan(request, REGISTRY)
            asked = plan.mechanism.data_request(plan.params, plan.table)
            answer = PrivateTable(plan.table, plan.request.where).answer(asked, ())
            numbers = answer.units if mechanism == "count_distinct" else answer.rows
            assert len(numbers) == (2 if where else 3)
            # Without the unit all are 0.
            worst = max(worst, float(np.abs(numbers).sum()))
            moved = plan.table.sensitivity(asked)
            stated = float((moved.units if mechanism == "count_distinct" else moved.rows).l1)
        found[where] = worst, stated
    left, every = found["k <> 'c'"], found[None]
    assert left == ((2, 2) if mechanism == "count_distinct" else (4, 4))
    assert every == ((3, 3) if mechanism == "count_distinct" else (5, 5))


def test_total_intervals_hold_and_noise_is_for_few_groups(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of counts of two months of twelve: 95 % of cells; noise is for four rows at most, which nobody exceeds there."""
    monkeypatch.setattr(fail_closed, "SystemSource", lambda: source)
    truth = world.read(EARLY)
    held = cells = 0
    for seed in range(30):
        source = StreamSource(seed)
        answer = world.ask(EARLY, revision=100 + seed)
        frame = answer.to_pandas(intervals=True)
        assert [str(m)[:10] for m in frame["m"]] == ["2024-01-01", "2024-02-01"]
        for name in "nu":
            # At epsilon 1 for each of both: the tail of Laplace noise for four rows, or two groups, and what it sums up.
            assert (frame[f"{name}_noise_high"] - frame[f"{name}_noise_low"]).max() <= 2 * 4 * 5
            held += int(
                (
                    (frame[f"{name}_low"] <= truth[name]) & (truth[name] <= frame[f"{name}_high"])
                ).sum()
            )
            cells += len(frame)
    assert held >= binom.ppf(1e-4, cells, 0.95)


def test_a_profile_of_all_groups_is_thinned_to_those_that_are_left(world: World) -> None:
    """Units with one row in each of twelve months have two rows in two months, and no twelve in one."""
    starts, noise = size_bins(24), laplace_noise(Sensitivity(1, 1), 1000)
    counted = count_bins(starts, *make_sizes([12] * 5000).rows).tolist()
    sizes = SizeHistogram(starts, tuple(counted), noise)
    profile = ContributionProfile(sizes, {"date_trunc('month', day)": sizes}, 1)
    params = {"by": "date_trunc('month', day)", "epsilon": "1"}
    plan = world.plan("histogram", params=params, where="day < '2024-03-01'")
    plan = plan.question or plan
    assert plan.key_share == pytest.approx(1 / 6)
    units = _Choice(plan, profile, True)._units
    kept = units.units > 1
    assert (units.units * units.rows)[kept].sum() == pytest.approx(5000 * 2, rel=0.15)
    assert units.groups[kept].max() <= 2 and units.rows[kept].max() < 4


@pytest.mark.parametrize("again", [False, True])
def test_a_filter_leaves_groups_in_the_answer(world: World, again: bool) -> None:
    """Those of a FILTER that no row of them passes have no unit, exactly, and what is stored says so, too."""
    text = (
        "SELECT state, COUNT(DISTINCT customer) FILTER (WHERE state <> 'B') AS u FROM orders "
        "WHERE state <> 'C' GROUP BY state ORDER BY state"
    )
    answer = world.ask(text, revision=7)
    frame = answer.to_pandas(intervals=True)
    assert [*frame["state"]] == ["A", "B"] and answer.free == again
    assert [*frame.loc[1, ["u", "u_noise_low", "u_noise_high"]]] == [0, 0, 0]
    assert frame.loc[0, "u"] > 100


def test_conditions_on_one_value_of_a_unit_leave_out_whole_units(world: World) -> None:
    """A customer has one state, so those that pass have all of their rows: bounds are chosen for these. By month a
    condition leaves a unit some of its rows.
    """
    starts, noise = size_bins(24), laplace_noise(Sensitivity(1, 1), 1000)
    rows = SizeHistogram(
        starts, tuple(count_bins(starts, *make_sizes([12] * 5000).rows).tolist()), noise
    )
    by_state = {
        reached: SizeHistogram(
            starts, tuple(count_bins(starts, *make_sizes([reached] * 5000).rows).tolist()), noise
        )
        for reached in (1, 3)
    }
    plan = world.plan("count", params={"epsilon": "1"}, where="state <> 'A'")
    for reached, sizes in by_state.items():
        cases = _Choice(
            plan.question or plan, ContributionProfile(rows, {"state": sizes}, 1), True
        )._cases
        most = [case.rows[case.units > 1].max() for case in cases]
        assert (most[1] == most[0]) == (reached == 1)


def test_a_declared_maximum_of_few_groups_needs_no_profile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two months nobody has more than four orders, so nothing is cut, and the noise interval is the total one; of all
    months that is not known.
    """
    monkeypatch.setattr(fail_closed, "SystemSource", lambda: StreamSource(3))
    world = World(tmp_path)
    declared = world.table.model_dump(mode="python", exclude_unset=True)
    world.table = Table.model_validate(declared | {"max_contributions": LARGEST})
    fields = {
        "params": {"by": "date_trunc('month', day)"},
        "contribution_bounds": {"groups": 2, "rows": 4},
    }
    totals = world.release("histogram", name="all", **fields).result.totals
    assert totals is None or totals.ends == {}
    result = world.release("histogram", name="early", where="day < '2024-03-01'", **fields).result
    assert result.totals is not None
    for row in result.rows:
        low, high = result.totals.ends["count"].find_span(row.value, row.half_width_95)
        assert low <= 1100 <= high and high - low == 2 * row.half_width_95
