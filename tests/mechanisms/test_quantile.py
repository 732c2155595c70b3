"""The quantile's exact distribution against a golden table and against enumeration."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import product
from pathlib import Path

import duckdb
import numpy as np
import pytest

from dpflow.core.accounting.events import BoundedRange, Composed, DiscreteLaplace, Repeated
from dpflow.core.contract.contribution import MaxContributions
from dpflow.core.contract.declaration import Table
from dpflow.core.contract.requests import ValueCounts
from dpflow.core.sampling.randomness import SystemSource
from dpflow.errors import InvalidInput
from dpflow.mechanisms.quantile import COUNTING, Quantiles, QuantilesParams, cost_pieces
from dpflow.registry import Registry
from dpflow.tables.private import PrivateTable
from dpflow.testing.audit import refutes_probability
from dpflow.testing.examples import plan_mechanism

REGISTRY = Registry.load()
TABLE = Table.model_validate(
    {
        "name": "t",
        "database": "t.duckdb",
        "privacy_unit": {"column": "user"},
        "contribution_bounds": {"rows": 2},
        "columns": {"user": {}, "score": {"lower": 0, "upper": 1000}, "open": {}},
    }
)


def distribution(
    values: tuple[int, ...], low: int, high: int, p: Fraction, rate: float
) -> list[float]:
    """Probabilities over the grid, from the mechanism's own pieces."""
    found, counts = np.unique(np.array(values, dtype=np.int64), return_counts=True)
    starts, lengths, costs = cost_pieces(ValueCounts(found, counts), low, high, p)
    weights = [length * math.exp(-rate * cost) for length, cost in zip(lengths, costs, strict=True)]
    found = [0.0] * (high - low + 1)
    for start, length, weight in zip(starts, lengths, weights, strict=True):
        for point in range(start, start + length):
            found[point - low] = weight / length / sum(weights)
    return found


def test_the_median_has_the_papers_distribution() -> None:
    """T = {0..9}, y = [2,3,3,7,8], eps = 1: the golden table of the stable-median specification,
    section 4.
    """
    golden = [
        0.046185,
        0.046185,
        0.076145,
        0.206985,
        0.125543,
        0.125543,
        0.125543,
        0.125543,
        0.076145,
        0.046185,
    ]
    # the table's cost max(below, above) differs from ours, 2 max(below, above) - n, by a factor 2
    # and a constant
    assert distribution((2, 3, 3, 7, 8), 0, 9, Fraction(1, 2), 1 / 4) == pytest.approx(
        golden, abs=1e-6
    )


@pytest.mark.parametrize("p", [Fraction(1, 2), Fraction(1, 10), Fraction(2, 3)])
@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_the_claim_holds_on_every_small_table(p: Fraction, epsilon: float) -> None:
    """Adding one row changes no probability by more than e^eps, whatever the rows; half the
    sensitivity would fail.
    """
    sensitivity = max(p.numerator, p.denominator - p.numerator)
    worst, controls = 0.0, 0.0
    for rows in product(range(4), repeat=2):
        for more in range(4):
            for factor in (1, 2):
                rate = factor * epsilon / (2 * sensitivity)
                a = distribution(rows, 0, 3, p, rate)
                b = distribution((*rows, more), 0, 3, p, rate)
                loss = max(abs(math.log(x / y)) for x, y in zip(a, b, strict=True))
                if factor == 1:
                    worst = max(worst, loss)
                else:
                    controls = max(controls, loss)
    assert worst <= epsilon + 1e-9
    assert controls > epsilon


def test_no_rows_give_the_uniform_distribution() -> None:
    """An empty table is answered, not refused."""
    assert distribution((), 0, 4, Fraction(1, 2), 1.0) == pytest.approx([0.2] * 5)


def test_pieces_cover_the_grid_once() -> None:
    """Rows at both ends of the grid leave no gap and no overlap."""
    found, counts = np.unique(np.array((0, 9, 9, 4), dtype=np.int64), return_counts=True)
    starts, lengths, _ = cost_pieces(ValueCounts(found, counts), 0, 9, Fraction(1, 2))
    covered = [
        point
        for start, length in zip(starts, lengths, strict=True)
        for point in range(start, start + length)
    ]
    assert sorted(covered) == list(range(10))


@pytest.mark.parametrize(
    ("low", "high", "count"), [(-(2**62), 2**62, 3), (0, 2**62, 2**55), (-5, 5, 2**61)]
)
def test_costs_do_not_overflow(low: int, high: int, count: int) -> None:
    """Ranges and counts at the ends of what a plan allows give the costs of exact integers."""
    data = ValueCounts(
        np.array([low, 1, high], dtype=np.int64), np.array([count, 1, 1], dtype=np.int64)
    )
    p = Fraction(1, 10**6)
    starts, lengths, costs = cost_pieces(data, low, high, p)
    assert sum(map(int, lengths)) == high - low + 1
    total = count + 2

    def cost(v: int) -> int:
        below = sum(n for x, n in ((low, count), (1, 1), (high, 1)) if x < v)
        above = sum(n for x, n in ((low, count), (1, 1), (high, 1)) if x > v)
        return max(10**6 * below - total, 10**6 * above - (10**6 - 1) * total)

    exact = [cost(int(v)) for v in starts]
    assert costs.tolist() == [min(one - min(exact), 2**53 - 1) for one in exact]


def test_several_quantiles_ascend_and_are_near() -> None:
    """Nine deciles of evenly spread rows: in ascending order, all within the rank that the plan
    promises in 95 % of draws.
    """
    mechanism = REGISTRY.find_mechanism("quantiles")
    params, event = plan_mechanism(
        mechanism,
        TABLE,
        {"column": "score", "epsilon": "1", "quantiles": [f"0.{i}" for i in range(9, 0, -1)]},
    )
    rest = 1 - COUNTING
    counting = DiscreteLaplace(2 / COUNTING, 2)
    assert event == Composed((counting, Repeated(BoundedRange(rest / 9), 9)))
    bound = mechanism.error_bound(params, TABLE)
    assert bound is not None
    rank = bound.half_width["rank (rows)"]
    data = ValueCounts(np.arange(1001), np.full(1001, 10))
    misses = 0
    for _ in range(60):
        rows = mechanism.draw(params, TABLE, data, SystemSource()).rows
        assert [row.measure for row in rows] == [
            f"quantile {Fraction(i, 10)}" for i in range(1, 10)
        ]
        values = [float(row.value or 0) for row in rows]
        assert values == sorted(values)
        misses += any(abs(10 * v - 10010 * i / 10) > rank + 10 for i, v in enumerate(values, 1))
    assert not refutes_probability(misses, 60, 0.05)


GROUPS = Table.model_validate(
    {
        "name": "t",
        "database": "t.duckdb",
        "privacy_unit": {"column": "user"},
        "contribution_bounds": {"rows": 30, "groups": 15, "rows_per_group": 2},
        "columns": {
            "user": {},
            "score": {"lower": 0, "upper": 1000},
            "kind": {"public_keys": [f"k{i}" for i in range(20)]},
        },
    }
)


@pytest.mark.parametrize(
    ("relation", "groups", "per_row"),
    [("add-remove", 15, 3), ("replace", 15, 6), ("replace", 20, 4)],
)
def test_groups_share_the_price(relation: str, groups: int, per_row: int) -> None:
    """As many draws as groups that a unit reaches; p = 1/4: a row moves the cost by 3, a move by 2
    x 3, an exchange by 4.
    """
    limits = GROUPS.contribution_bounds.model_copy(update={"groups": groups})
    table = GROUPS.model_copy(update={"neighbours": relation, "contribution_bounds": limits})
    mechanism = REGISTRY.find_mechanism("quantile")
    params, event = plan_mechanism(
        mechanism, table, {"column": "score", "by": "kind", "p": "1/4", "epsilon": "1"}
    )
    assert isinstance(event, Composed)
    counting, draws = event.events
    assert draws == Repeated(BoundedRange((1 - COUNTING) / groups), groups)
    # 15 groups of 2 rows; of 20 groups two units of 30 rows have 20 in common.
    moved = {("add-remove", 15): 30, ("replace", 15): 40, ("replace", 20): 40}[relation, groups]
    assert isinstance(counting, DiscreteLaplace) and counting.scale == moved / COUNTING
    bound = mechanism.error_bound(params, table)
    wanted = 2 * 2 * per_row * groups / 4 * math.log(20 * 1001 / 0.025) / (1 - COUNTING)
    assert bound is not None and bound.half_width["rank (rows)"] == pytest.approx(wanted)


def test_a_delta_buys_a_higher_rate_of_many_draws() -> None:
    """Fifteen groups: the draws' zCDP is what epsilon and delta allow, and the plan says by how
    much errors shrink.
    """
    mechanism = REGISTRY.find_mechanism("quantiles")
    raw = {"column": "score", "by": "kind", "epsilon": "1", "quantiles": ["1/4", "3/4"]}
    plain, _ = plan_mechanism(mechanism, GROUPS, raw)
    params, event = plan_mechanism(mechanism, GROUPS, {**raw, "delta": "1e-6"})
    proved = event.epsilon_at(Fraction(1, 10**6))
    assert isinstance(event, Composed)
    draws = event.events[1]
    assert isinstance(draws, Repeated) and draws.count == 30
    assert isinstance(draws.event, BoundedRange) and draws.event.epsilon > Fraction(1, 30)
    assert proved is not None and proved <= 1
    ours, theirs = mechanism.error_bound(params, GROUPS), mechanism.error_bound(plain, GROUPS)
    assert ours is not None and theirs is not None
    assert ours.half_width["rank (rows)"] < 0.7 * theirs.half_width["rank (rows)"]
    assert "% smaller, at 30 answers" in ours.note


def test_every_group_has_quantiles_of_its_own() -> None:
    """Groups at different places, and an empty one, which is answered too; keys in their declared
    order.
    """
    mechanism = REGISTRY.find_mechanism("quantiles")
    params, _ = plan_mechanism(
        mechanism,
        GROUPS,
        {"column": "score", "by": "kind", "epsilon": "30", "quantiles": ["0.9", "0.1"]},
    )
    codes = np.repeat(np.arange(19), 11)
    values = (np.arange(11)[None, :] + 50 * np.arange(19)[:, None]).ravel()
    rows = mechanism.draw(
        params, GROUPS, ValueCounts(values, np.full(209, 1000), codes), SystemSource()
    ).rows
    assert [row.key for row in rows] == [key for i in range(20) for key in [f"k{i}"] * 2]
    for i in range(19):
        low, high = (float(row.value or 0) - 50 * i for row in rows[2 * i : 2 * i + 2])
        assert 0 <= low <= 2 and 8 <= high <= 10


def test_the_ends_are_a_tail_away() -> None:
    """About one percent of the rows lies beyond the minimum and the maximum."""
    data = ValueCounts(np.arange(1001), np.full(1001, 1000))
    for name, wanted in (("minimum", 10), ("maximum", 990)):
        mechanism = REGISTRY.find_mechanism(name)
        params, _ = plan_mechanism(mechanism, TABLE, {"column": "score", "epsilon": "1"})
        (row,) = mechanism.draw(params, TABLE, data, SystemSource()).rows
        assert row.measure == name
        assert abs(float(row.value or 0) - wanted) <= 5


@pytest.mark.parametrize(
    ("name", "raw"),
    [
        ("quantiles", {"quantiles": []}),
        ("quantiles", {"quantiles": ["1/2", "0.5"]}),
        ("quantiles", {"quantiles": ["1"]}),
        ("minimum", {"tail": 0}),
        ("median", {"p": "1/4"}),
    ],
)
def test_quantiles_that_mean_nothing_are_refused(name: str, raw: dict[str, object]) -> None:
    """None, one twice, one outside of (0, 1), a median of another rank."""
    with pytest.raises(InvalidInput):
        plan_mechanism(
            REGISTRY.find_mechanism(name), TABLE, {"column": "score", "epsilon": "1", **raw}
        )


def test_private_keys_would_save_nothing(tmp_path: Path) -> None:
    """One release that selected keys and drew their quantiles would draw as often for a unit as one by
    the keys that another release showed, so cost the same; and units' places would go to keys that
    nobody sees.
    """
    database = tmp_path / "data.duckdb"
    with duckdb.connect(str(database)) as connection:
        # Each of 400 units has both common keys, and eight that it has alone.
        connection.execute(
            "CREATE TABLE data AS SELECT u, CASE WHEN k < 2 THEN 'k' || k ELSE u || '-' || k END AS k, u % 3 AS v "
            "FROM range(400) t(u), range(10) s(k)"
        )
        names = connection.execute("SELECT DISTINCT k FROM data ORDER BY k").fetchall()

    def declare_keys(keys: list[str]) -> Table:
        return Table.model_validate(
            {
                "name": "data",
                "database": database,
                "privacy_unit": {"column": "u"},
                "contribution_bounds": {"rows": 2, "groups": 2, "rows_per_group": 1},
                "columns": {"k": {"public_keys": keys}, "v": {"lower": 0, "upper": 2}},
            }
        )

    shown, every = declare_keys(["k0", "k1"]), declare_keys([name for (name,) in names])
    params = QuantilesParams(column="v", by="k", quantiles=("0.25", "0.5"), epsilon="1")
    mechanism = Quantiles()
    kept = []
    for table in (shown, every):
        draws = mechanism.plan_draws(params, table)
        assert (draws.changed, draws.epsilon) == (2 * 2, (1 - COUNTING) / 4)
        keys = mechanism.group_keys(params, table)
        answer = PrivateTable(table).answer(mechanism.data_request(params, table), ())
        values = dict(zip(keys, answer.split(len(keys)), strict=True))
        kept.append(sum(int(values[key].counts.sum()) for key in ("k0", "k1")))
    # 2 of 2 places, and 2 of 10: 160 +- 5 standard deviations of at most 16.
    assert kept[0] == 800 and 80 < kept[1] < 240


@pytest.mark.parametrize("name", ["quantile", "cdf", "approximate_median"])
def test_a_rank_is_said_of_the_rows_that_bounds_keep(name: str, tmp_path: Path) -> None:
    """A few units have most rows, all at 100: the median of those that count is 0. What is said of its rank says so,
    but not where everybody knows that none is cut.
    """
    with duckdb.connect(str(tmp_path / "t.duckdb")) as connection:
        connection.execute(
            "CREATE TABLE t AS SELECT u AS user, 100 AS score FROM range(40) a(u), range(100) UNION ALL "
            "SELECT 100 + u, 0 FROM range(3000) b(u)"
        )
    more = {"cdf": {"quantiles": ["1/2"]}, "approximate_median": {"delta": "1e-3"}}
    fields = {"column": "score", "epsilon": "4"} | more.get(name, {})
    mechanism = REGISTRY.find_mechanism(name)
    cut = TABLE.model_copy(update={"database": tmp_path / "t.duckdb"})
    full = cut.model_copy(update={"max_contributions": MaxContributions(rows=2)})
    for table, words in ((cut, "the rows with each user cut at 2 rows"), (full, "the rows")):
        params, _ = plan_mechanism(mechanism, table, fields)
        request = mechanism.data_request(params, table)
        with PrivateTable(table).open_answer(request, ()) as answer:
            drawn = mechanism.draw(params, table, answer, SystemSource())
        remark = next(row.remark for row in drawn.rows if "rank" in row.remark)
        assert words in remark and ("cut at" in remark) == (table is cut), remark
