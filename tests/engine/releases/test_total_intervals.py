"""Total intervals: that they hold the truth, when they are stated, and what they are about."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import duckdb
import numpy as np
import pandas
import pytest
from orders_world import LARGEST, MONTHS, REGISTRY, World, declare
from pydantic import ValidationError
from scipy.stats import binom

import dpflow
from dpflow.core.contract.contribution import MaxContributions
from dpflow.core.contract.declaration import Table
from dpflow.core.contract.requests import UnitSizes
from dpflow.core.contract.results import Result, Row
from dpflow.core.contract.totals import MeanTotal, TermTotal, Totals
from dpflow.core.toolbox.contribution_profile import (
    ContributionProfile,
    SizeHistogram,
)
from dpflow.core.toolbox.moments import CentredColumn
from dpflow.core.toolbox.noise import FAILURE
from dpflow.engine import fail_closed, make_plan
from dpflow.engine.releases.receipt import published_release
from dpflow.engine.releases.request import ReleaseRequest
from dpflow.engine.releases.result_table import list_printed_columns
from dpflow.engine.releases.total_intervals import NOTHING, _find_cuts
from dpflow.mechanisms.contributions import Contributions, ContributionsParams
from dpflow.tables import publish, read_published
from dpflow.tables.private import PrivateTable
from dpflow.testing.harness import StreamSource

BY = "date_trunc('month', day)"
TRUTH = {
    "count": np.array([1100, 1100, *[200] * 10]),
    "count_distinct": np.array([1000, 1000, *[100] * 10]),
}
#: Nobody has more than 24 orders, and two in one month.


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """With a profile, and a declared maximum."""
    made = World(tmp_path_factory.mktemp("orders"))
    made.table = declare(made, **LARGEST)
    made.release("contributions")
    return made


@pytest.mark.parametrize("measure", ["count", "count_distinct"])
@pytest.mark.parametrize("bounds", [(12, 1, 12), (5, 3, 9), (12, 24, 24)])
def test_they_hold_the_truth(world: World, measure: str, bounds: tuple[int, int, int]) -> None:
    """With fresh profiles, noise and truncation, whatever the bounds cut: 95 % of cells at least. The noise
    interval holds it only where nothing is cut; and with a maximum that is false, too few.
    """
    names = dict(zip(("groups", "rows_per_group", "rows"), bounds))
    mechanism = "histogram" if measure == "count" else "count_distinct"
    fields: dict[str, Any] = {"params": {"by": BY}, "contribution_bounds": names}
    plan = world.plan(mechanism, **fields)
    keys = plan.table.public_keys(plan.params.by)
    release = plan.mechanism.choose_release(plan.params, plan.table)[0]
    ((moment, noise),) = release.noises.items()
    private, held, of_noise, of_false, totals = PrivateTable(plan.table), 0, 0, 0, 0
    sizes = private.answer(UnitSizes((plan.params.by,)), ())
    params, source = ContributionsParams(epsilon=1, groupings=(plan.params.by,)), StreamSource(3)
    too_small = declare(world, rows=5, rows_per_group={"day": {"month": 1}}).max_contributions
    table = plan.table.model_copy(update={"max_contributions": too_small})
    false = replace(plan, table=table)
    statistic = plan.mechanism.data_request(plan.params, plan.table)
    truth = TRUTH[measure]
    for _ in range(5):
        kept = private.answer(statistic, ()).moment(*moment)
        for _ in range(10):
            drawn = Contributions().draw(params, plan.table, sizes, source).document
            profile = ContributionProfile.from_json(drawn["contributions"])
            noisy = noise.add_noise(kept, source)
            cuts = [_find_cuts(one, profile, len(keys)) for one in (plan, false)]
            width = noise.half_width(cuts[0].noise_failure)

            def count(cut: int, noisy: Any = noisy, width: int = width) -> int:
                return int(((noisy - width <= truth) & (truth <= noisy + width + cut)).sum())

            now, wrong = (c.units if measure == "count_distinct" else c.rows for c in cuts)
            assert now is not None and wrong is not None
            held += count(now.each)
            of_noise += count(0)
            of_false += count(wrong.each)
            width = noise.sum_half_width(len(keys), cuts[0].noise_failure)
            totals += -width <= truth.sum() - noisy.sum() <= width + now.total
            assert now.total <= now.each * len(keys)
    cells = 50 * len(keys)
    is_cut = kept.sum() < truth.sum()
    # Where nothing is cut the noise has all of 5 %, and cells are independent: if they hold with 95 %, fewer
    # hold than this with a probability of 0.001 (the exact test: Clopper, Pearson 1934).
    assert held >= (binom.ppf(0.001, cells, 0.95) if not is_cut else 0.95 * cells)
    assert bounds != (12, 24, 24) or cuts[0].noise_failure == FAILURE
    assert (of_noise < 0.9 * cells) == is_cut
    # A sum of all cells lacks what they lack together, which is less than that of each.
    assert totals >= binom.ppf(0.001, 50, 0.95)
    if measure == "count" and bounds == (12, 1, 12):
        # Nobody is said to have two orders in a month, so nothing would be missing.
        assert of_false < 0.9 * cells


def test_a_release_states_them_everywhere(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQL's columns, frames, the published table, what is printed; and stored answers keep theirs."""
    # One noise: by chance three of twelve may miss.
    monkeypatch.setattr(fail_closed, "SystemSource", lambda: StreamSource(1))
    both = MONTHS.replace("AS n", "AS n, COUNT(DISTINCT customer) AS c")
    answer = world.ask(both)
    frame = answer.to_pandas(intervals=True)
    assert [*frame.columns][:6] == ["m", "n", "n_noise_low", "n_noise_high", "n_low", "n_high"]
    for name, measure in (("n", "count"), ("c", "count_distinct")):
        inside = (frame[f"{name}_low"] <= TRUTH[measure]) & (
            TRUTH[measure] <= frame[f"{name}_high"]
        )
        assert inside.mean() > 0.8
        assert (frame[f"{name}_low"] <= frame[f"{name}_noise_low"]).all()
    premise = (
        "hold with 95 %, if no customer has more than 2 rows in a group and 24 in all, as declared"
    )
    assert any(premise in note for note in answer.notes)
    receipt = world.release("histogram", params={"by": BY}, name="months")
    assert receipt.result.totals is not None
    assert Result.from_json(receipt.result.to_json()) == receipt.result
    assert list_printed_columns(receipt.result)[-1] == "95 % total interval"
    table = receipt.to_pandas()
    assert ((table["low"] <= TRUTH["count"]) & (TRUTH["count"] <= table["high"])).mean() > 0.8
    publish(tmp_path / "out.duckdb", "releases", published_release(receipt))
    assert read_published(tmp_path / "out.duckdb", "releases")
    with duckdb.connect(str(tmp_path / "out.duckdb"), read_only=True) as connection:
        ends = connection.execute("SELECT low, high FROM releases").fetchall()
    assert ends == list(zip(table["low"], table["high"]))
    world.release("contributions", revision=2)
    again = world.ask(both)
    assert again.free and again.to_json(True)["rows"] == answer.to_json(True)["rows"]


PER_MONTH = MONTHS.replace(" ORDER BY m", "")
#: Rows without a day are in no month, so months add up to all rows where these are left out alone.
OF_YEAR = PER_MONTH.replace("GROUP", "WHERE day BETWEEN '2024-01-01' AND '2024-12-31' GROUP")
COMPUTED = [
    "SELECT 1 AS k, sum(n) AS n FROM (" + OF_YEAR + ")",
    "SELECT m, n / sum(n) OVER () AS n FROM (" + OF_YEAR + ")",
    f"{PER_MONTH} HAVING COUNT(*) > 150",
    PER_MONTH + " ORDER BY n DESC, m LIMIT 2",
    OF_YEAR.replace("ALL", f"ROLLUP ({BY})"),
    OF_YEAR.replace("AS m,", "AS m, state,").replace("ALL", f"ROLLUP ({BY}, state)"),
    PER_MONTH.replace("COUNT(*)", "COUNT(*) - 2 * COUNT(DISTINCT customer)"),
]


BOUNDS = ("groups=5, rows_per_group=1, rows_per_unit=5", "groups=12, rows_per_unit=24")


def name_key(values: Sequence[Any]) -> tuple[str, ...]:
    return tuple("" if pandas.isna(one) else str(one)[:10] for one in values)


@pytest.mark.parametrize("draws", [1, pytest.param(25, marks=pytest.mark.slow)])
def test_computed_numbers_have_ones_that_hold(tmp_path: Path, draws: int) -> None:
    """Sums of groups, shares, levels of ROLLUP, and what HAVING or LIMIT choose by noise. Noise intervals of what is cut
    miss the truth.
    """
    world = World(tmp_path)
    limits = {"rows": 24, "rows_per_group": {"day": {"month": 2}}, "groups": {"state": 1}}
    world.table = declare(world, **limits)
    exact = {}
    for text in COMPUTED:
        # Noise may choose among rows: all true ones are there.
        rows = world.read(text.partition(" HAVING")[0].partition(" ORDER")[0])
        exact[text] = {name_key(row[:-1]): row[-1] for row in rows.itertuples(index=False)}
    held: dict[str, Any] = {}
    for draw, (bounds, text) in itertools.product(
        range(draws), itertools.product(BOUNDS, COMPUTED)
    ):
        world.release("contributions", revision=draw + 1, params={"epsilon": "1"})
        answer = world.ask(f"-- dp: {bounds}\n{text}", revision=draw + 1)
        assert answer.columns[-1].total == "stated", text
        counts = held.setdefault(f"{bounds}: {text}", np.zeros(3, int))
        for *key, cell in answer.values:
            truth = exact[text][name_key([one.value for one in key])]
            low, high = cell.total or (-math.inf, math.inf)
            counts += [low <= truth <= high, cell.low <= truth <= cell.high, True]
    for name, (inside, _, cells) in held.items():
        # The exact test at 0.001 (Clopper, Pearson 1934).
        assert inside >= binom.ppf(0.001, cells, 0.95), name
    cut = sum(counts for name, counts in held.items() if name.startswith(BOUNDS[0]))
    assert cut[1] < 0.5 * cut[2]


def test_limits_of_two_profiles_are_not_combined(tmp_path: Path) -> None:
    """Each may fail in 2.5 %, so what rests on both has a noise interval alone."""
    world = World(tmp_path)
    world.table = declare(world, **LARGEST)
    world.release("contributions")
    text = f"SELECT a.n + b.n AS x FROM ({PER_MONTH}) a JOIN ({{}}) b USING (m)"
    states = PER_MONTH.replace("GROUP BY", "WHERE state = 'A' GROUP BY")
    bounds = "-- dp: groups=5, rows_per_unit=5\n"
    assert world.ask(bounds + text.format(states)).columns[0].total == "stated"
    world.release("contributions", where="state = 'A'", revision=2)
    answer = world.ask(bounds + text.format(states), revision=2)
    assert [column.total for column in answer.columns] == ["no interval"]


def test_without_a_declared_maximum_counts_of_rows_have_none(tmp_path: Path) -> None:
    """Then the weaker sentence: which table they are of. Units need no maximum; without a profile
    nothing is said.
    """
    world = World(tmp_path)
    text = MONTHS.replace("AS n", "AS n, COUNT(DISTINCT customer) AS c")
    before = world.ask(text)
    assert not any("total" in note or "table with each" in note for note in before.notes)
    world.release("contributions")
    after = world.ask(text, revision=2)
    ends = {name: values for name, _, values in after.list_columns(intervals=True)}
    assert None not in ends["c_low"] and {*ends["n_low"]} == {None}
    weaker = [note for note in after.notes if "of the table with each customer cut at" in note]
    assert len(weaker) == 1 and "declare max_contributions" in weaker[0]


def test_a_profile_of_other_rows_supports_none(tmp_path: Path) -> None:
    """Of another snapshot, which chooses bounds and no more, or of rows under a condition that is not the question's."""
    world = World(tmp_path)
    world.table = declare(world, rows=5000, rows_per_group={"day": {"month": 900}})
    world.release("contributions", where="state = 'A'")
    conditional = world.release("histogram", params={"by": BY}, name="one")
    assert conditional.result.totals is None or conditional.result.totals.ends == {}
    world.release("contributions", revision=2)
    assert world.release("histogram", params={"by": BY}, name="two").result.totals.ends
    with duckdb.connect(str(tmp_path / "orders.duckdb")) as connection:
        connection.execute("INSERT INTO orders SELECT 5, DATE '2024-03-01', 'A' FROM range(500)")
    plan = world.plan("histogram", params={"by": BY}, name="three")
    assert plan.chosen is not None
    later = dpflow.release(plan, ledger=world.ledger)
    assert later.result.totals is None or later.result.totals.ends == {}


@pytest.mark.parametrize("where", ["month(day) < 3", "early = TRUE"])
def test_a_profile_of_a_conditions_rows_limits_what_is_cut_of_them(
    tmp_path: Path, where: str
) -> None:
    """Intervals hold the truth with fresh profiles and noise, and are narrower than by a profile of all rows. For
    other rows, or where a column of the condition has another meaning now, it says nothing.
    """
    world = World(tmp_path)
    base = declare(world, **LARGEST).model_dump(mode="json", exclude={"source"}, exclude_unset=True)

    def declare_early(months: int) -> Table:
        flag = {"early": {"expression": f"month(day) <= {months}"}}
        return Table.model_validate(base | {"columns": base["columns"] | flag})

    world.table = declare_early(2)
    # Bounds that cut nobody's orders of two months, and a tenth's of twelve.
    terms: dict[str, Any] = {"params": {"by": BY}, "contribution_bounds": {"groups": 2, "rows": 4}}
    before = world.release("histogram", name="before", where=where, **terms).result.totals
    assert before is None or before.ends == {}
    precise: dict[str, Any] = {"params": {"epsilon": "20", "groupings": [BY]}}
    world.release("contributions", revision=100, **precise)
    general = world.release("histogram", name="general", where=where, **terms).result.totals
    truth, held = np.array([1100, 1100, *[0] * 10]), 0
    for n in range(1, 9):
        world.release("contributions", revision=n, where=where, **precise)
        result = world.release("histogram", name=f"own {n}", where=where, **terms).result
        ends = [result.totals.ends["count"].find_span(row.value, 0) for row in result.rows]
        held += sum(low <= exact <= high for (low, high), exact in zip(ends, truth))
    # The exact test at 0.001 (Clopper, Pearson 1934).
    assert held >= binom.ppf(0.001, 8 * 12, 0.95)
    own, general_end = result.totals.ends["count"], general.ends["count"]
    assert own.cut < general_end.cut / 2
    for plan_fields in ({"where": f"{where} OR state = 'A'"}, {}):
        other = world.release("histogram", name=f"other {plan_fields}", **plan_fields, **terms)
        assert other.result.totals.ends["count"].cut > 2 * own.cut
    if "early" in where:
        world.table = declare_early(3)
        later = world.release("histogram", name="later", where=where, **terms)
        assert later.result.totals.ends["count"].cut > 2 * own.cut


#: State A is warm where the climate is that of the north, and state B in the south.


def test_what_is_declared_changes_no_question(world: World) -> None:
    """A maximum is in no digest, and names declared columns."""
    request = world.request("histogram", params={"by": BY})
    plain = request.model_copy(update={"table": declare(world)})
    assert make_plan(plain, REGISTRY).digest == make_plan(request, REGISTRY).digest
    with pytest.raises(ValidationError, match="no_such"):
        declare(world, rows=5, rows_per_group={"no_such": 2})


def test_totals_are_stored_exactly() -> None:
    mean = MeanTotal(-5, 5, 5, 0.25, (3.0, 2.5), (4.0, 3.5), 7, True)
    totals = Totals({"count": TermTotal(3.0, 0.0, 1.0, 37, 50, True), "mean": mean}, "if")
    result = Result((Row("", "count", 5, 2.0),), totals=totals)
    assert Result.from_json(result.to_json()) == result


def test_no_group_lacks_more_than_the_cut(tmp_path: Path) -> None:
    """Every unit with up to three rows in each of two groups, under several bounds, and a profile without
    noise: no group lacks more rows than said, and with both groups kept some lacks as many; and no sum
    lacks more than these rows could have. Whatever noise tails of a twentieth allow, the true mean is in its
    total interval; without the cut some miss it.
    """
    vectors = [(a, b) for a in range(4) for b in range(4) if a + b]
    with duckdb.connect(str(tmp_path / "tiny.duckdb")) as connection:
        connection.execute("CREATE TABLE tiny (day INTEGER, unit INTEGER, part TEXT, gain INTEGER)")
        for day, vector in enumerate(vectors):
            rows = [(day, 1, key) for key, number in zip("AB", vector) for _ in range(number)]
            patterns = ((3,), (-2,), (1, -2), (3, None, -2), (None, 3, 3))
            gains = [(pattern := patterns[day % 5])[n % len(pattern)] for n in range(len(rows))]
            # Rows of undeclared keys are no part of any truth.
            rows += [(day, 1, "C")] * (day % 3)
            gains += [1] * (day % 3)
            connection.executemany(
                "INSERT INTO tiny VALUES (?, ?, ?, ?)", [(*row, g) for row, g in zip(rows, gains)]
            )
        sums = "SELECT day, part, coalesce(sum(gain), 0), avg(gain) FROM tiny GROUP BY ALL"
        truths = {(day, key): true for day, key, *true in connection.execute(sums).fetchall()}
    declared: dict[str, Any] = {
        "name": "tiny",
        "database": tmp_path / "tiny.duckdb",
        "privacy_unit": {"column": "unit"},
        "protects": "unit-block",
        "block": "day",
        "max_contributions": {"rows": 6, "rows_per_group": {"part": 3}},
        "columns": {"part": {"public_keys": ["A", "B"]}, "gain": {"lower": -2, "upper": 3}},
    }
    exact: Any = SimpleNamespace(sum_half_width=lambda terms, failure: 0)
    bins, missed, is_tight_together = tuple(range(1, 7)), 0, False
    for groups, in_each, rows in [(2, 1, 6), (2, 2, 6), (2, 3, 3), (2, 3, 5), (2, 2, 3), (1, 3, 3)]:
        bounds = {"rows": rows, "groups": groups, "rows_per_group": in_each}
        table = Table.model_validate(declared | {"contribution_bounds": bounds})
        request = ReleaseRequest(
            name="tiny", mechanism="aggregates", table=table, scope="tiny", blocks=("0",),
            params={"by": "part", "epsilon": "1", "measures": ["count", *MEASURES]},
        )  # fmt: skip
        plan = make_plan(request, REGISTRY)
        statistic, private = plan.mechanism.data_request(plan.params, table), PrivateTable(table)
        query = plan.mechanism.make_query(plan.params, table)  # type: ignore[union-attr]
        grid, is_tight = query.columns["gain"], False
        for day, vector in enumerate(vectors):
            sizes = [
                SizeHistogram(bins, tuple(int(size == n) for n in bins), exact)
                for size in (sum(vector), sum(map(bool, vector)))
            ]
            profile = ContributionProfile(sizes[0], {"part": sizes[1]}, 1)
            rows_cut, units_cut = (cuts := _find_cuts(plan, profile, 2)).rows, cuts.units
            assert rows_cut is not None and units_cut is not None
            cut = rows_cut.each
            kept = private.answer(statistic, [str(day)])
            lacking = dict(zip("AB", vector))
            lost = [lacking[key] - n for key, n in zip(kept.keys, kept.rows.tolist(), strict=True)]
            gained, values = (kept.moment(what, "gain").tolist() for what in ("sum", "values"))
            for key, n, gain in zip(kept.keys, values, gained, strict=True):
                true_sum, mean = truths.get((day, key), (0, None))
                assert -2 * cut <= true_sum - (gain + grid.centre * n) <= 3 * cut
                if mean is not None:
                    assert count_misses(grid, n, gain, mean, cut) == 0, (vector, bounds)
                    missed += count_misses(grid, n, gain, mean, 0)
            assert min(lost) >= 0 and max(lost) <= cut, (vector, bounds)
            is_tight |= 0 < cut == max(lost)
            assert sum(lost) <= rows_cut.total, (vector, bounds)
            assert units_cut.total >= sum(map(bool, vector)) - groups
            is_tight_together |= max(lost) < sum(lost) == rows_cut.total
        assert is_tight or groups == 1, bounds
    assert missed > 0 and is_tight_together


MEASURES = [{"measure": name, "column": "gain"} for name in ("sum", "mean")]


def count_misses(grid: CentredColumn, n: int, gain: int, truth: float, cut: int) -> int:
    """How often the total interval of a mean misses the truth, over noise at its ends and none."""
    tail, (low, high) = 0.05, grid.term_range("sum")
    total = MeanTotal(low, high, grid.centre, grid.step, (tail, tail), (tail, tail), cut, True)
    noises = tail * np.array(list(itertools.product((-1, 0, 1), repeat=2)))
    noisy: Any = {"n": n + noises[:, 0], "sum": gain + noises[:, 1]}
    sizes = np.maximum(noisy["n"], 1e-9)
    means = np.clip(noisy["sum"] / sizes, low, high)
    errors, _ = grid.ratio_errors(sizes, means, means, {"n": tail, "sum": tail})
    # Where there may be no values a mean is not stated.
    spans = [
        total.find_span(mean + grid.centre, min(error, high - low))
        for size, mean, error in zip(sizes.tolist(), means.tolist(), errors.tolist())
        if size > tail
    ]
    return sum(not low - 1e-9 <= truth <= high + 1e-9 for low, high in spans)


def test_the_last_bin_begins_at_the_declared_maximum(world: World) -> None:
    """So a profile of units with few rows is finer. Its plan says that all rows count."""
    sizes = world.plan("contributions", params={"groupings": [BY]})
    wide = sizes.table.model_copy(update={"max_contributions": None})
    bins, wider = (Contributions()._histograms(sizes.params, one) for one in (sizes.table, wide))
    assert (bins[""][-1], wider[""][-1]) == (24, 4096)
    assert bins[BY][-1] <= 24 < wider[BY][-1]
    finer, coarser = (Contributions()._resolution(sizes.params, one) for one in (sizes.table, wide))
    assert finer < coarser
    assert "all rows of each customer count" in sizes.describe()["contributions"]


def test_a_declared_maximum_of_groups_needs_no_profile(world: World) -> None:
    """Where units are counted in one group, and reach no more as declared; else the groups are cut."""
    bounds = {"groups": 1, "rows_per_group": 24, "rows": 24}
    fields: dict[str, Any] = {"params": {"by": "state"}, "contribution_bounds": bounds}
    plan = world.plan("histogram", **fields)
    for groups, is_known in ((1, True), (2, False)):
        largest = MaxContributions(rows=24, groups={"state": groups})
        table = plan.table.model_copy(update={"max_contributions": largest})
        cuts = _find_cuts(replace(plan, table=table), None, 3)
        assert (cuts.rows == cuts.units == NOTHING) == is_known
        assert is_known or cuts.rows is None
    assert cuts.noise_failure == FAILURE


def test_notes_say_what_noise_intervals_leave_out(tmp_path: Path) -> None:
    """Where rows or groups of a unit may be cut, and nothing limits how many; not where the declared maximum says that
    none are, where a unit's groups are all that there are, and where one row stands for each unit.
    """
    world = World(tmp_path)
    states = "SELECT state, {} AS n FROM orders GROUP BY state"
    by_unit = (
        "SELECT AVG(n) AS a FROM (SELECT customer, COUNT(*) AS n FROM orders GROUP BY customer)"
    )
    asked = {
        "SELECT COUNT(*) AS n FROM orders": True,
        MONTHS: True,
        states.format("COUNT(*)"): True,
        MONTHS.replace("COUNT(*)", "COUNT(DISTINCT customer)"): True,
        states.format("COUNT(DISTINCT customer)"): False,
        by_unit: False,
    }

    def says(text: str, **options: Any) -> str:
        notes = [one for one in world.ask(text, **options).notes if "which is unmeasured" in one]
        assert len(notes) <= 1
        return "".join(notes)

    for text, is_said in asked.items():
        note = says(text)
        assert bool(note) == is_said, text
        assert not is_said or note.endswith(
            "release contributions of orders or declare max_contributions"
        )
        assert says(text) == note  # a stored answer's, too
    world.table = declare(world, rows=3)
    assert not any(says(text, revision=2) for text in asked)
    # Fewer than the declared maximum, which is known already.
    assert says(MONTHS, revision=2, rows_per_unit=2).endswith("release contributions of orders")
