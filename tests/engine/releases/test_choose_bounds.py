"""Bounds that a profile chooses: which, that people overrule them, and that questions stay the same."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from orders_world import MONTHS, REGISTRY, World, declare
from smallworld import forbid_reads

import dpflow
from dpflow.core.contract.contribution import MaxContributions, RequestedBounds
from dpflow.core.contract.declaration import Table
from dpflow.core.contract.requests import GroupedSums
from dpflow.core.contract.sensitivity import Sensitivity
from dpflow.core.toolbox.contribution_profile import (
    ContributionProfile,
    SizeHistogram,
    count_bins,
    size_bins,
)
from dpflow.core.toolbox.noise import laplace_noise
from dpflow.engine import RunIdentity, fail_closed, make_plan, release
from dpflow.engine.releases import execute
from dpflow.engine.releases.choose_bounds import (
    BoundsChooser,
    _Choice,
    _Units,
    couple_sizes,
)
from dpflow.engine.releases.profiled_groups import find_histogram
from dpflow.errors import InvalidInput, PlanRefused
from dpflow.tables.private import PrivateTable
from dpflow.testing.harness import StreamSource
from dpflow.testing.neighbours import make_sizes


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """With a stored answer and a stored release from before there was a profile, and then a profile."""
    made = World(tmp_path_factory.mktemp("orders"))
    made.ask()
    made.release("histogram", params={"by": "date_trunc('month', day)"})
    made.release("contributions")
    return made


def test_the_chosen_bounds_keep_what_the_declared_ones_cut(world: World) -> None:
    """Customers with 24 orders count in all months, where three orders of them did; EXPLAIN names whose
    bounds they are, and what others would do.
    """
    before, after = world.ask(revision=1), world.ask(revision=2)
    truth = 2 * 100 + np.array([900, 900, *[0] * 10])
    errors = [np.abs(np.array(one.to_arrow()["n"]) - truth) for one in (before, after)]
    assert np.median(errors[0]) > 150 and np.median(errors[1]) < 60
    assert any("chosen by profile" in note for note in after.notes)
    told = dpflow.plan_sql(
        MONTHS, tables=[world.table], ledger=world.ledger, scope="orders", epsilon="2", revision=3
    ).explain(world.ledger)
    notes = [note for note in told["notes"] if note.startswith("bounds for aggregates")]
    assert len(notes) >= 3 and all("expected cut of a group" in note for note in notes)
    assert any("chosen by profile" in stage for stage in told["stages"])
    plan = world.plan("count", params={"by": "date_trunc('month', day)"}).describe()
    assert "chosen by profile" in plan["contributions"] and "expected cut" in plan["candidates"]


def test_candidates_are_shown_where_the_declared_bounds_are_best(world: World) -> None:
    """And so nothing was chosen."""
    best = world.plan("count").chosen.bounds
    raw = declare(world).model_dump(mode="json", exclude={"source"}, exclude_unset=True)
    table = Table.model_validate(raw | {"contribution_bounds": {"rows": best.rows}})
    plan = world.plan("count", table=table)
    assert plan.chosen is None
    assert len([text for text in plan.describe_candidates() if "expected cut" in text]) >= 3


def test_a_stored_answer_is_free_whatever_profile_came_later(world: World) -> None:
    """From before any profile, and from before another one; by SQL and by a release file."""
    assert [origin.epsilon for origin in world.ask(revision=1).origins] == ["0"]
    assert world.release("histogram", params={"by": "date_trunc('month', day)"}).replayed
    plan = world.plan("count", params={"by": "date_trunc('month', day)"}, name="by month")
    first = release(plan, world.ledger, REGISTRY)
    answer = world.ask(revision=4)
    world.release("contributions", revision=2)
    later = world.plan("count", params={"by": "date_trunc('month', day)"}, name="by month")
    assert later.chosen.profile != plan.chosen.profile and later.digest == plan.digest
    again = release(later, world.ledger, REGISTRY)
    assert again.replayed and again.result == first.result
    free = world.ask()
    assert [origin.epsilon for origin in free.origins] == ["0"]
    assert free.to_arrow()["n"] == answer.to_arrow()["n"]
    widths = [one.to_arrow(True)["n_noise_high"][0].as_py() for one in (free, answer)]
    assert widths[0] == widths[1]


def test_a_target_is_met_by_what_was_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stored answer serves a target error by the bounds that it was drawn with, and not by those that a
    profile chooses now, nor by the declared ones.
    """
    # One noise: a profile with a far bin by chance chooses bounds for which no epsilon meets the target.
    monkeypatch.setattr(fail_closed, "SystemSource", lambda: StreamSource(1))
    own = World(tmp_path)
    own.table = own.table.with_bounds(None, RequestedBounds(rows=1000), "a test")
    text = "SELECT COUNT(*) AS n FROM orders"
    wide = own.ask(text)
    own.release("contributions")
    narrow = own.ask(text, epsilon=None, error="60")
    assert not narrow.free and narrow.to_arrow(True)["n_noise_high"][0].as_py() < 4200 + 200
    assert own.ask(text).rows == wide.rows
    # It was drawn with a profile's bounds: whatever comes later, it meets what it met.
    own.release("contributions", revision=2)
    again = own.ask(text, epsilon=None, error="60")
    assert again.free and again.rows == narrow.rows
    assert not own.ask(text, epsilon=None, error="30").free


def test_a_target_by_groups_needs_a_profile_or_fixed_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else noise within the target says nothing of groups that are cut; refused before rows are read or paid for."""
    own, target = World(tmp_path), {"epsilon": None, "error": "900"}
    with monkeypatch.context() as patch:
        forbid_reads(patch)
        for text in (MONTHS, MONTHS.replace("*", "DISTINCT customer")):
            with pytest.raises(InvalidInput, match="fix groups=N"):
                own.ask(text, **target)
    assert own.ledger.releases() == []
    # No groups, none that anybody could cut, and groups that somebody fixed.
    assert own.ask("SELECT COUNT(*) AS n FROM orders", **target).rows
    assert own.ask(f"-- dp: groups=3\n{MONTHS}", **target).rows
    most = own.table.model_copy(update={"max_contributions": MaxContributions(rows=3)})
    own.table = most
    assert own.ask(**target, revision=2).rows
    own.table = most.model_copy(update={"max_contributions": None})
    own.release("contributions")
    assert own.ask(**target, revision=3).rows


def test_rows_by_unit_keep_their_bounds(world: World) -> None:
    """A profile counts a table's rows, and a customer is one row of a query by customer."""
    each = "SELECT customer, COUNT(*) AS orders FROM orders GROUP BY customer"
    for text in ("SELECT COUNT(*) FROM ({})", "SELECT orders, COUNT(*) FROM ({}) GROUP BY orders"):
        settings: Any = {"tables": [world.table], "ledger": world.ledger, "scope": "orders"}
        planned = dpflow.plan_sql(text.format(each), epsilon="2", **settings)
        plan = planned.parts[0].plan
        assert plan.chosen is None and plan.table.bounds_for(plan.params.by).rows == 1
        assert not [note for note in planned.explain()["notes"] if "bounds for" in note]
        # Nor does it say how many of these rows are cut.
        assert not [note for note in world.ask(text.format(each)).notes if " cut at " in note]


def test_a_retry_draws_with_the_bounds_that_were_charged(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A first try stops before its draw, and then there is another profile."""
    fields: dict[str, Any] = {"params": {"by": "state"}, "name": "retried"}
    plan = world.plan("count", **fields)
    with monkeypatch.context() as patch:
        patch.setattr(execute, "_draw_and_settle", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            release(plan, world.ledger, REGISTRY)
    charged = plan.chosen.bounds
    other = RequestedBounds(groups=1, rows_per_group=1, rows=1)
    monkeypatch.setattr(_Choice, "_search", lambda self: other)
    later = world.plan("count", **fields)
    assert later.chosen.bounds == other != charged
    receipt = release(later, world.ledger, REGISTRY)
    assert not receipt.replayed
    assert receipt.result.rows[0].half_width_95 == plan.error_bound.half_width["count"]
    key = RunIdentity.of_request(plan.request).key(plan)
    record = world.ledger.find(key)
    assert record is not None and record.request["chosen_bounds"] == plan.chosen.to_json()


def test_people_overrule_a_profile(world: World, tmp_path: Path) -> None:
    """By the query, by the request, by the declaration of a column."""
    requested = world.plan(
        "count", params={"by": "state"}, contribution_bounds={"groups": 2, "rows": 7}
    )
    assert requested.chosen is None and requested.table.bounds_for("state") == (2, 7, 7)
    answer = world.ask(groups=2, rows_per_unit=7)
    assert not any("profile" in note for note in answer.notes)
    folder = world.table.database.parent
    declared = world.declare(folder, groups={"month": 5}, rows_per_group={"month": 2})
    plan = world.plan("count", params={"by": "date_trunc('month', day)"}, table=declared)
    assert plan.chosen.bounds.groups == 5 and plan.chosen.bounds.rows_per_group == 2
    # Quantiles draw no sums: their bounds stay the declared ones.
    column = {"column": "day", "p": "1/2", "by": "state"}
    assert world.plan("quantile", params=column).chosen is None


def test_a_candidate_whose_noise_cannot_be_drawn_is_left_out(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twice the chosen bounds are looked at only: they stop no plan."""
    plan = world.plan("count")
    mechanism, bounds = type(plan.mechanism), plan.chosen.bounds
    price = mechanism.error_bound

    def refuse_more(self: Any, params: Any, table: Any) -> Any:
        if table.bounds_for(None).rows > bounds.rows:
            raise PlanRefused("noise beyond what can be drawn")
        return price(self, params, table)

    monkeypatch.setattr(mechanism, "error_bound", refuse_more)
    again = world.plan("count")
    assert again.chosen.bounds == bounds
    assert len(again.candidates) == len(plan.candidates) - 1


def test_a_coarse_profile_chooses_nothing(tmp_path: Path) -> None:
    """One that counts no tenth of the units; nor one that has another name, or is of another table."""
    coarse = World(tmp_path)
    coarse.release("contributions", params={"epsilon": "0.01"})
    coarse.release("contributions", name="some profile")
    assert coarse.plan("count").chosen is None
    coarse.release("contributions", revision=2)
    assert coarse.plan("count").chosen is not None
    # It left out rows without a unit, which are one unit now.
    one_unit = coarse.table.privacy_unit.model_copy(update={"missing": "one-unit"})
    other = coarse.table.model_copy(update={"privacy_unit": one_unit})
    assert coarse.plan("count", table=other).chosen is None


def test_predicted_cuts_are_those_of_the_rows(world: World) -> None:
    """With a profile without noise, and rows spread evenly over groups: what bounds cut, exactly."""
    sizes = {"rows": [2] * 900 + [24] * 100, "groups": [2] * 900 + [12] * 100}
    noise = laplace_noise(Sensitivity(1, 1), 1000)
    made = {}
    for name, values in sizes.items():
        starts = size_bins(max(values))
        made[name] = SizeHistogram(
            starts, tuple(count_bins(starts, *make_sizes(values).rows).tolist()), noise
        )
    profile = ContributionProfile(made["rows"], {"date_trunc('month', day)": made["groups"]}, 1)
    plan = world.plan("histogram", params={"by": "date_trunc('month', day)"})
    plan = plan.question or plan
    by = plan.params.by
    assert find_histogram(profile, plan.table, by) is made["groups"]
    units, keys = _Choice(plan, profile, False)._units, plan.table.public_keys(by)
    for groups, in_each, rows in ((3, 3, 3), (12, 24, 24), (5, 1, 12), (12, 2, 7), (4, 2, 24)):
        request = GroupedSums(by, keys, groups, in_each, rows=rows)
        kept = PrivateTable(plan.table).answer(request, ())
        assert units.cut("rows", groups, in_each, rows) == 900 * 2 + 100 * 24 - kept.rows.sum()
        assert units.cut("units", groups, in_each, rows) == 900 * 2 + 1200 - kept.units.sum()


def test_units_are_coupled_from_the_most_on() -> None:
    """Units with most rows have most groups, and none has more groups than rows."""
    noise = laplace_noise(Sensitivity(1, 1), 1000)
    rows = SizeHistogram((1, 2, 3), (50, 30, 20), noise)
    groups = SizeHistogram((1, 2), (60, 35), noise)
    units, of_rows, of_groups = couple_sizes(rows, groups, is_grouped=True)
    classes = list(zip(units.tolist(), of_rows.tolist(), of_groups.tolist()))
    assert classes == [(20, 3, 2), (15, 2, 2), (15, 2, 1), (45, 1, 1)]


def test_a_column_of_one_value_has_bounds_chosen(world: World) -> None:
    """Nothing can be wrong of its mean, so any bounds will do."""
    terms = world.table.model_dump(mode="json", exclude={"source"}, exclude_unset=True)
    terms["columns"]["price"] = {"lower": 5, "upper": 5.4, "step": 1}
    for mechanism in ("mean", "sum", "variance"):
        plan = world.plan(
            mechanism, table=Table.model_validate(terms), params={"column": "price", "by": "state"}
        )
        assert plan.chosen is not None


def test_no_ledger_means_no_choice(world: World) -> None:
    plan = make_plan(world.request("count"), REGISTRY)
    assert plan.chosen is None and BoundsChooser(None).fit(plan) is plan


@pytest.mark.parametrize("difference", [0, 10])
def test_a_mean_is_bounded_by_its_own_error(world: World, difference: int) -> None:
    """Rows that are kept speak for those that are cut: near the best bound in hindsight, where a count's would
    have several times the error. Heavy units have cheaper things in the second table.
    """
    ranks = np.arange(1, 20_001)
    rows = np.minimum(60, 1 + (3000 * (ranks / 10) ** -0.9 / 25).astype(int))
    means = 60.0 - difference * (rows > 12)
    starts, noise = size_bins(60), laplace_noise(Sensitivity(1, 1), 1000)
    counted = count_bins(starts, *make_sizes(rows.tolist()).rows).tolist()
    profile = ContributionProfile(SizeHistogram(starts, tuple(counted), noise), {}, 1)
    declared = world.table.model_dump(mode="python", exclude_unset=True)
    declared["columns"]["price"] = {"lower": 0, "upper": 100}
    table = type(world.table).model_validate(declared | {"max_contributions": {"rows": 60}})
    draws = np.random.default_rng(0).laplace(size=(400, 2))
    truth = (rows * means).sum() / rows.sum()

    def find_error(bound: int, epsilon: float) -> float:
        kept, scale = np.minimum(rows, bound), 2 * bound / epsilon
        sums = (kept * (means - 50)).sum() + draws[:, 0] * scale * 50
        return float(np.median(np.abs(sums / (kept.sum() + draws[:, 1] * scale) + 50 - truth)))

    for epsilon in (0.01, 0.1):
        cost: Any = {"epsilon": str(epsilon)}
        chosen = {}
        for name, params in (("mean", {"column": "price"}), ("count", {})):
            plan = world.plan(name, params=params | cost, table=table)
            chosen[name] = _Choice(plan.question or plan, profile, False)._search().rows
        errors = {name: find_error(bound, epsilon) for name, bound in chosen.items()}
        best = min(find_error(bound, epsilon) for bound in range(1, 61))
        assert errors["mean"] <= (1.5 * best if difference else errors["count"] / 2)
        assert chosen["mean"] < chosen["count"] <= 60


def test_units_under_a_condition_are_thinned_in_the_mean() -> None:
    """All ways in which four rows in two groups pass, or one row."""
    thinned = _Units(np.array([10.0, 7.0]), np.array([4.0, 1.0]), np.array([2.0, 1.0])).thin(0.3)
    passing = rows = groups = 0.0
    for kept in itertools.product((0, 1), repeat=4):
        odds = math.prod(0.3 if one else 0.7 for one in kept)
        passing += odds * any(kept)
        rows += odds * sum(kept)
        groups += odds * (any(kept[:2]) + any(kept[2:]))
    assert thinned.units == pytest.approx([10 * passing, 7 * 0.3])
    assert thinned.rows == pytest.approx([rows / passing, 1])
    assert thinned.groups == pytest.approx([groups / passing, 1])


def test_bounds_under_a_condition_fit_all_rows_or_few(world: World) -> None:
    """Of units with a long tail, whether all rows pass or a third: within 2.2 times the error of the best bounds, of
    which those for all rows have more.
    """
    ranks = np.arange(1, 20_001)
    rows = np.minimum(60, 1 + (3000 * (ranks / 10) ** -0.9 / 25).astype(int))
    starts, noise = size_bins(60), laplace_noise(Sensitivity(1, 1), 1000)
    counted = count_bins(starts, *make_sizes(rows.tolist()).rows).tolist()
    profile = ContributionProfile(SizeHistogram(starts, tuple(counted), noise), {}, 1)
    declared = world.table.model_dump(mode="python", exclude_unset=True)
    table = type(world.table).model_validate(declared | {"max_contributions": {"rows": 60}})
    random = np.random.default_rng(0)
    draws = random.laplace(size=400)

    def find_error(bound: int, kept: Any, epsilon: float) -> float:
        cut = (kept - np.minimum(kept, bound)).sum()
        return float(np.median(np.abs(draws * bound / epsilon - cut)))

    for epsilon in (0.02, 0.1):
        plan = world.plan("count", params={"epsilon": str(epsilon)}, table=table)
        robust, all_rows = (
            _Choice(plan.question or plan, profile, is_of_more)._search().rows
            for is_of_more in (True, False)
        )
        for kept in (rows, random.binomial(rows, 1 / 3)):
            best = min(find_error(bound, kept, epsilon) for bound in range(1, 61))
            assert find_error(robust, kept, epsilon) <= 2.2 * best
        assert find_error(all_rows, kept, epsilon) > 2.2 * best


#: Two months of twelve, where nobody has more than four orders of 24.
EARLY = "day < '2024-03-01'"


def test_a_profile_under_a_condition_serves_questions_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And those that demand more. All others go by a profile of all rows, though it is older: one of other rows
    says nothing of theirs.
    """
    monkeypatch.setattr(fail_closed, "SystemSource", lambda: StreamSource(1))
    own = World(tmp_path)
    by_month: dict[str, Any] = {"params": {"by": "date_trunc('month', day)"}}
    own.release("contributions", where=EARLY)
    assert own.plan("histogram", **by_month).chosen is None
    early = own.plan("histogram", where=EARLY, **by_month).chosen
    own.release("contributions", revision=2)
    own.release("contributions", where="state = 'A'", revision=3)
    whole = own.plan("histogram", **by_month).chosen
    assert whole.bounds.rows >= 16 > 6 >= early.bounds.rows and whole.profile != early.profile
    for where in (EARLY, f"state <> 'B' AND ({EARLY} AND state <> 'C')"):
        chosen = own.plan("histogram", where=where, **by_month).chosen
        assert chosen.profile == early.profile and chosen.bounds.rows <= early.bounds.rows
    for where in (f"{EARLY} OR state = 'A'", "day < '2024-04-01'", f"NOT {EARLY}"):
        assert own.plan("histogram", where=where, **by_month).chosen.profile == whole.profile
    text = f"SELECT COUNT(*) AS n FROM orders WHERE state = 'B' AND {EARLY}"
    assert any(early.profile[:8] in note for note in own.ask(text).notes)
    # Groups that it does not count are those of the profile of all rows.
    own.release("contributions", where=EARLY, revision=4, params={"groupings": ["state"]})
    assert own.plan("histogram", where=EARLY, **by_month).chosen.profile == early.profile
    # A condition on a computed column is that of its expression.
    terms = own.table.model_dump(mode="json", exclude={"source"}, exclude_unset=True)
    for month, is_found in ((3, True), (7, False)):
        flag = {"expression": f"month(day) < {month}", "public_keys": ["true", "false"]}
        own.table = Table.model_validate(terms | {"columns": terms["columns"] | {"early": flag}})
        fields: dict[str, Any] = {"where": "early = TRUE"}
        if is_found:
            own.release("contributions", revision=5, **fields)
        chosen = own.plan("count", **fields).chosen
        assert (chosen.profile not in (early.profile, whole.profile)) is is_found
