"""What a profile says of groupings that it does not count: limits that hold, and bounds chosen by them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import duckdb
import numpy as np
import pytest
from orders_world import World

from dpflow.core.contract.declaration import Table
from dpflow.core.contract.sensitivity import Sensitivity
from dpflow.core.toolbox.contribution_profile import (
    ContributionProfile,
    JointHistogram,
    Marginal,
    SizeHistogram,
    count_bins,
    size_bins,
)
from dpflow.core.toolbox.noise import laplace_noise
from dpflow.engine import fail_closed
from dpflow.engine.releases.profiled_groups import find_histogram
from dpflow.errors import UnknownName
from dpflow.tables import declare_groups
from dpflow.testing.harness import StreamSource
from dpflow.testing.neighbours import make_sizes

MONTH, WEEK = "date_trunc('month', day)", "date_trunc('week', day)"
DAY, HOURS = "date_trunc('day', day)", ("2024-01-01 10:00:00", "2024-01-01 11:00:00")
EXACT: Any = SimpleNamespace(sum_half_width=lambda terms, failure: 0)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """With a profile of the state, of days, weeks and months."""
    made = World(tmp_path_factory.mktemp("orders"))
    made.release("contributions", params={"epsilon": "20"})
    return made


def count_sizes(numbers: Any, noise: Any = EXACT) -> SizeHistogram:
    numbers = [int(one) for one in numbers if one]
    starts = size_bins(max(numbers, default=1))
    return SizeHistogram(starts, tuple(count_bins(starts, *make_sizes(numbers).rows)), noise)


def test_limits_of_parts_hold_for_all_of_them() -> None:
    """Over tables of random cells: no more units have more groups together, or of a function of one part, than
    is said; and now and then as many have. A control without the group of rows without a value fails.
    """
    draws = np.random.default_rng(5)
    tight = wrong = 0
    for _ in range(150):
        shape = tuple(draws.integers(2, 7, 2))
        # Units by cells; the first place of the second part stands for rows without a value there.
        cells = draws.random((30, *shape)) < draws.random((30, 1, 1)) ** 2
        first, second = cells.any(axis=2).sum(axis=1), cells[:, :, 1:].any(axis=1).sum(axis=1)
        together = cells[:, :, 1:].sum(axis=(1, 2))
        parts = (
            Marginal(count_sizes(cells[:, :, 1:].any(axis=2).sum(axis=1)), 0, int(shape[0])),
            Marginal(count_sizes(second)),
        )
        # A function that gives every value, and rows without one, a group of its own.
        function = cells.any(axis=1).sum(axis=1)
        cases = [
            (together, JointHistogram(parts)),
            (first, JointHistogram((Marginal(count_sizes(first)),))),
            (function, JointHistogram((Marginal(count_sizes(second), 1),))),
        ]
        for size in range(1, 40):
            for groups, joint in cases:
                above, limit = int((groups > size).sum()), joint.limit_above(size, 0.05)
                assert above <= limit
                tight += above == limit > 0
            without = JointHistogram((Marginal(count_sizes(second)),))
            wrong += int((function > size).sum()) > without.limit_above(size, 0.05)
    assert tight > 20 and wrong > 20


def test_limits_hold_with_noise() -> None:
    """Noise chooses how groups are split over the parts, so limits hold for every split: in 95 % at least."""
    noise = laplace_noise(Sensitivity(3, 3), 1)
    draws = np.random.default_rng(1)
    numbers = [np.minimum(draws.geometric(0.3, 400), 12) for _ in range(2)]
    above = {size: int((numbers[0] * numbers[1] > size).sum()) for size in (4, 12, 40)}
    held = 0
    for _ in range(300):
        parts = []
        for one in numbers:
            exact = count_sizes(one, noise)
            noisy = np.array(exact.counts) + np.rint(draws.laplace(scale=3, size=len(exact.counts)))
            parts.append(Marginal(SizeHistogram(exact.starts, tuple(map(int, noisy)), noise)))
        joint = JointHistogram(tuple(parts))
        held += all(n <= joint.limit_above(size, 0.05 / 3) for size, n in above.items())
    assert held >= 0.95 * 300


def test_units_of_parts_are_coupled_from_the_most_on() -> None:
    noise = laplace_noise(Sensitivity(1, 1), 1000)
    parts = [SizeHistogram((1, 2, 3), counts, noise) for counts in ((50, 30, 20), (60, 40, 0))]
    joint = JointHistogram((Marginal(parts[0]), Marginal(parts[1], 1, 2)))
    assert joint.estimates.tolist() == [50, 10, 20, 20]
    assert joint.sizes.tolist() == [1 * 2, 2 * 2, 2 * 2, 3 * 2]


def test_groupings_are_found_by_what_they_are_computed_from(world: World) -> None:
    """Periods by shorter ones, expressions by their columns, several columns by each; else nothing is said."""
    made = {name: count_sizes([n + 1]) for n, name in enumerate(("state", MONTH, WEEK))}
    profile = ContributionProfile(count_sizes([9]), made, 1)

    def find(by: str, table: Table = world.table) -> Any:
        table, name = declare_groups(table, by)
        found = find_histogram(profile, table, name)
        if not isinstance(found, JointHistogram):
            return found
        return [(one.histogram, one.further, one.largest) for one in found.parts]

    month, state = made[MONTH], made["state"]
    assert find(MONTH) is month and find("state") is state
    assert find("date_trunc('quarter', day)") == [(month, 0, 4)]
    assert find("date_trunc('year', day)")[0][0] is month
    assert find("month(day)")[0] == (month, 0, 12)
    case = "CASE WHEN state = 'A' THEN 'near' ELSE 'far' END"
    assert find(case) == [(state, 1, None)]
    assert find(f"state, {MONTH}") == [(state, 0, 3), (month, 0, 12)]
    # Counted together, in whichever order.
    both = ContributionProfile(count_sizes([9]), made | {f"{MONTH}, state": made[WEEK]}, 1)
    assert find_histogram(both, *declare_groups(world.table, f"state, {MONTH}")) is made[WEEK]
    # Bounds that are dates may be those of times, whose hours no day decides; but these days do.
    days = ContributionProfile(count_sizes([9]), {DAY: made[WEEK]}, 1)
    later = "CASE WHEN day < DATE '2024-02-01' THEN 'a' ELSE 'b' END"
    for by in ("hour(day)", "hour(day), state", "CAST(day AS VARCHAR)", later):
        assert find_histogram(days, *declare_groups(world.table, by)) is None, by
    for by in ("dayofweek(day)", f"CASE WHEN {DAY} < DATE '2024-02-01' THEN 'a' ELSE 'b' END"):
        assert find_histogram(days, *declare_groups(world.table, by)) is not None, by
    for keys, found in (("2024-01-01", "2024-01-02"), days.groups[DAY]), (HOURS, None):
        column = world.table.column("day").model_copy(update={"public_keys": keys})
        table = world.table.model_copy(update={"columns": world.table.columns | {"day": column}})
        assert find_histogram(days, table, "day") is found
    # Weeks decide no month, and nobody counted days.
    only = ContributionProfile(count_sizes([9]), {WEEK: made[WEEK]}, 1)
    table, by = declare_groups(world.table, f"state, {MONTH}")
    assert find_histogram(only, table, by) is None
    assert find_histogram(only, *declare_groups(world.table, "day")) is None


def test_fewer_groups_are_chosen_and_the_truth_is_held(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A customer is in one state, so states and months have as many groups as months, and not as many as
    orders; half as many quarters. Units have a total interval that holds.
    """
    # One noise: of four quarters one is outside in every fifth run.
    monkeypatch.setattr(fail_closed, "SystemSource", lambda: StreamSource(1))
    by = {
        f"state, {MONTH}": (12, "state, m", f"SELECT state, {MONTH} AS m"),
        "date_trunc('quarter', day)": (4, "q", "SELECT date_trunc('quarter', day) AS q"),
    }
    for grouping, (most, keys, select) in by.items():
        plan = world.plan("count_distinct", params={"by": grouping})
        assert plan.chosen is not None and plan.chosen.bounds.groups <= most
        text = f"{select}, COUNT(DISTINCT customer) AS n FROM orders GROUP BY ALL ORDER BY {keys}"
        frame = world.ask(text).to_pandas(intervals=True)
        truth = world.read(text)["n"]
        held = (frame["n_low"] <= truth) & (truth <= frame["n_high"])
        assert held.mean() > 0.8


def test_a_day_limits_no_hours(tmp_path: Path) -> None:
    """Units with all hours of one day, each counted in one: either no total interval is stated, or it holds."""
    world = World(tmp_path)
    with duckdb.connect(str(tmp_path / "orders.duckdb")) as connection:
        connection.execute(
            "CREATE OR REPLACE TABLE orders AS SELECT u AS customer, TIMESTAMP '2024-01-01' + to_hours(h::INTEGER) "
            "AS day, 'A' AS state FROM range(200) r(u), range(24) s(h)"
        )
    world.release("contributions", params={"epsilon": "20"})
    fields: dict[str, Any] = {"contribution_bounds": {"groups": 1, "rows_per_group": 1, "rows": 1}}
    for by in ("hour(day)", "state, hour(day)", DAY):
        result = world.release("count_distinct", params={"by": by}, name=by, **fields).result
        ends = {} if result.totals is None else result.totals.ends
        for row in result.rows if ends and by != DAY else ():
            low, high = ends[row.measure].find_span(row.value, row.half_width_95)
            assert low <= 200 <= high or row.key.startswith(('["B"', '["C"')), by
        assert bool(ends) or by != DAY


def test_a_profile_counts_columns_together(tmp_path: Path) -> None:
    """Lists of groupings are one grouping each, and what a unit has of it is found by its members."""
    world = World(tmp_path)
    params: dict[str, Any] = {"epsilon": "20", "groupings": ["state", ["state", MONTH]]}
    result = world.release("contributions", params=params).result
    counted = {row.measure: row.value for row in result.rows if row.key == f"state, {MONTH}"}
    # A customer is in one state: 900 are in two months, a hundred in each.
    assert counted["units with 2 groups"] == pytest.approx(900, abs=20)
    assert counted["units with 12 to 15 groups"] == pytest.approx(100, abs=20)
    plan = world.plan("count_distinct", params={"by": f"{MONTH}, state"})
    profile = ContributionProfile.from_json(result.document["contributions"])
    found = find_histogram(profile, plan.table, plan.params.by)
    assert isinstance(found, SizeHistogram) and found is [*profile.groups.values()][1]
    # Twelve is in the bin of 12 to 15.
    assert plan.chosen is not None and plan.chosen.bounds.groups in (12, 16)
    with pytest.raises(UnknownName, match="stat"):
        world.plan("contributions", params={"groupings": [["stat", MONTH]]})


def test_a_condition_leaves_out_the_group_of_rows_without_a_value(world: World) -> None:
    """Over all conditions that hold, or do not, where a column has no value: a CASE with ELSE has a group more only
    where rows without a value pass, as DuckDB says of one.
    """
    profile = ContributionProfile(count_sizes([9]), {"state": count_sizes([1])}, 1)
    table, by = declare_groups(
        world.table, "CASE WHEN state IN ('A', 'B') THEN 'north' ELSE 'south' END"
    )
    cases = {
        "state <> 'A'": 0,
        "state IN ('A', 'C') AND day > '2024-01-01'": 0,
        "NOT state = 'A'": 0,
        "state = 'A' OR state = 'B'": 0,
        "state = 'A' OR day > '2024-01-01'": 1,
        "day > '2024-01-01'": 1,
        "state IS NULL OR state = 'A'": 1,
        "coalesce(state, 'B') = 'B'": 1,
        "CASE WHEN state = 'A' THEN 'x' ELSE 'y' END = 'y'": 1,
    }
    rows = "(SELECT NULL::VARCHAR AS state, DATE '2024-05-05' AS day)"
    for where, further in cases.items():
        found = find_histogram(profile, table, by, where)
        assert isinstance(found, JointHistogram)
        assert [one.further for one in found.parts] == [further], where
        with duckdb.connect() as connection:
            passing = connection.execute(f"SELECT count(*) FROM {rows} WHERE {where}").fetchone()
        assert passing == (further,), where
