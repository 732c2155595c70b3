"""Sanitizers: golden parameters, accuracy where it is proven, completeness of the rules, published
tables.
"""

from __future__ import annotations

import math
import re
import sys
from dataclasses import replace
from fractions import Fraction as F
from pathlib import Path

import numpy as np
import pytest
from dpflow_private_learning.building_blocks import row_bounds as needed
from dpflow_private_learning.building_blocks import san_thresholds
from dpflow_private_learning.building_blocks.adaptive_calls import call_epsilon
from dpflow_private_learning.building_blocks.choosing_mechanism import minimum_rows
from dpflow_private_learning.building_blocks.prefix_tree import build_tree
from dpflow_private_learning.building_blocks.spend_log import SpendLog
from dpflow_private_learning.building_blocks.synopsis import Synopsis
from dpflow_private_learning.mechanisms import sanitize_points
from dpflow_private_learning.mechanisms.sanitize_thresholds import SanitizeThresholds

from dpflow.core.contract.declaration import Table
from dpflow.core.contract.requests import ValueCounts
from dpflow.core.contract.result_fields import clip_row
from dpflow.errors import PlanRefused
from dpflow.mechanisms.cdf import Cdf
from dpflow.testing.examples import plan_mechanism as planned
from dpflow.testing.harness import StreamSource

sys.path.insert(0, str(Path(__file__).parent))
from learning_examples import DECLARED, at_rows, example  # noqa: E402

ONE, MILLIONTH, TENTH = F(1), F(1, 10**6), F(1, 10)


def column(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    distinct, counts = np.unique(
        values if values.dtype == object else values.astype(np.uint64), return_counts=True
    )
    return distinct.astype(np.uint64), counts.astype(np.int64)


def prefix_error(x: np.ndarray, counts: np.ndarray, found: Synopsis) -> float:
    """The largest difference of prefix fractions; it suffices to look at x and x + 1 for every x of
    either side.
    """
    places = sorted({int(v) + s for v in (*x.tolist(), *found.points) for s in (0, 1)})
    true = (
        np.concatenate([[0], np.cumsum(counts)])[np.searchsorted(x.astype(object), places)]
        / counts.sum()
    )
    return float(np.abs(true.astype(float) - found.share_below(places)).max())


def test_san_points_has_the_papers_numbers() -> None:
    """758,535 rows, gate 398,633 at alpha = beta = 0.1; 56,519 and 32,428 at alpha = 1/2."""
    for alpha, rows, level in ((TENTH, 758_535, 398_633), (F(1, 2), 56_519, 32_428)):
        plan = sanitize_points.plan_rounds(
            "san-points", 2**64, 1, alpha, TENTH, 10**9, ONE, MILLIONTH, "paper"
        )
        assert math.ceil(plan.proof_rows) == rows
        assert minimum_rows(plan.alpha, plan.epsilon, plan.delta, 1) == level
    tight = sanitize_points.plan_rounds(
        "san-points", 2**64, 1, TENTH, TENTH, 10**9, ONE, MILLIONTH, "tight"
    )
    assert tight.epsilon > 1.9 * call_epsilon(ONE, MILLIONTH / 5, 40, "paper")
    baseline = [math.ceil(needed.peeling_rows(2**d, 0.1, 0.1, 1)) for d in (16, 32, 64)]
    assert baseline == [27_331, 45_076, 80_565]
    auto = sanitize_points.plan_rounds(
        "auto", 2**64, 1, TENTH, TENTH, 10**9, ONE, MILLIONTH, "tight"
    )
    assert auto.method == "exponential"


@pytest.mark.parametrize("method", ["san-points", "exponential"])
def test_points_are_found_with_their_frequencies(method: str) -> None:
    rng = np.random.default_rng(0)
    n = 760_000
    sizes = (np.array([0.3, 0.2, 0.11, 0.1, 0.06]) * n).astype(int)
    values = np.concatenate(
        [np.repeat([5, 900, 2**40, 2**63, 17], sizes), rng.integers(2**20, 2**39, n - sizes.sum())]
    )
    x, counts = column(values)
    plan = sanitize_points.plan_rounds(method, 2**64, 1, TENTH, TENTH, n, ONE, MILLIONTH, "paper")
    calls = SpendLog(StreamSource(1))
    found = sanitize_points.peel_values(x, counts, 2**64 - 1, plan, calls)
    assert {5, 900, 2**40, 2**63} <= set(found)
    true = dict(zip(x.tolist(), counts.tolist()))
    assert max(abs(c - true.get(p, 0)) for p, c in found.items()) < 0.005 * n
    assert len(calls.spent) <= 2 * plan.count
    made, fits = sanitize_points.make_proper(found, n, TENTH, 2**64 - 1)
    assert fits and made.size == n
    assert all(abs(made.share_at([p]) - c / n) <= 0.1 + 1e-9 for p, c in found.items())
    assert abs(made.share_at([5, 900]) - 0.5) <= 0.01


@pytest.mark.parametrize(("method", "k"), [("san-points", 2), ("exponential", 3)])
def test_sums_of_k_points_are_within_alpha(method: str, k: int) -> None:
    """The worst set of k values takes the k largest errors of one sign; and k = 1 is the same plan
    as points.
    """
    rng, alpha = np.random.default_rng(4), F(1, 2)
    plan = sanitize_points.plan_rounds(method, 2**64, k, alpha, TENTH, 1, F(2), MILLIONTH, "tight")
    n = math.ceil(plan.proof_rows)
    plan = sanitize_points.plan_rounds(method, 2**64, k, alpha, TENTH, n, F(2), MILLIONTH, "tight")
    shares = rng.dirichlet([0.2] * 12)
    x, counts = column(np.repeat(rng.choice(2**60, 12, replace=False), rng.multinomial(n, shares)))
    found = sanitize_points.peel_values(x, counts, 2**64 - 1, plan, SpendLog(StreamSource(1)))
    errors = np.array([found.get(int(v), 0) - c for v, c in zip(x.tolist(), counts.tolist())]) / n
    ordered = np.sort(errors)
    worst = max(ordered[-k:].clip(0).sum(), -ordered[:k].clip(None, 0).sum())
    assert worst <= alpha
    assert (
        sanitize_points.plan_rounds(method, 2**64, 1, alpha / k, TENTH, n, F(2), MILLIONTH, "tight")
        == plan
    )


def test_what_is_left_over_is_spread() -> None:
    """Half of the rows are on one value, the others on hundreds: no value that nobody listed gets
    more than a few rows. They were filled up one after the other, .18 of the rows on values of .02.
    """
    for end in (999, 2**64 - 1):
        made, fits = sanitize_points.make_proper({7: 5000}, 10_000, F(1, 5), end)
        assert fits and made.size == 10_000 and made.share_at([7]) == 0.5
        assert all(weight <= 6 for point, weight in zip(made.points, made.weights) if point != 7)
        assert max(made.points) > end * 0.99


def test_negative_counts_are_kept_and_shown_as_none() -> None:
    """Of a column without rows every listed count is noise: stored as it was drawn, read as 0 or more."""
    table = Table.model_validate(DECLARED | {"columns": {"x": {"lower": 0, "upper": 50}}})
    given = {"column": "x", "epsilon": "1", "rows": 100, "method": "exponential", "alpha": "0.1"}
    mechanism = sanitize_points.SanitizePoints()
    params = mechanism.Params.model_validate(given)
    empty = ValueCounts(np.zeros(0, np.int64), np.zeros(0, np.int64))
    result = mechanism.draw(params, table, empty, StreamSource(3))
    result = replace(result, ranges=mechanism.value_ranges(params, table))
    shown = [clip_row(row, result) for row in result.rows]
    assert any(row.value < 0 for row in result.rows)
    assert [number.value for number in shown] == [max(0, row.value) for row in result.rows]


def test_proper_database_edges() -> None:
    """Too much, too little, nothing listed, and a domain too small for what is left over."""
    even = Synopsis(tuple(range(10)), (1,) * 10)
    assert sanitize_points.make_proper({}, 10, F(1, 2), 9) == (even, True)
    assert sanitize_points.make_proper({3: 11}, 10, TENTH, 9) == (Synopsis((3,), (10,)), True)
    assert sanitize_points.make_proper({3: 12}, 10, TENTH, 9)[1] is False
    assert sanitize_points.make_proper({3: -4}, 10, F(1, 5), 9)[1]
    assert not sanitize_points.make_proper({0: 2}, 10, TENTH, 1)[1]
    assert sanitize_points.make_proper({0: 20, 1: 20}, 10, TENTH, 9)[1] is False


def test_window_maxima() -> None:
    """Rows 1, 1, 2, 6 over 0..7: 2 3 3 4; brute force on random columns."""
    x, counts = column(np.array([1, 1, 2, 6]))
    assert san_thresholds.window_maxima(x, np.append(0, np.cumsum(counts)), 7, 3) == [2, 3, 3, 4]
    rng = np.random.default_rng(1)
    for kind in (np.uint64, object):
        for _ in range(40):
            values = np.sort(rng.integers(0, 40, rng.integers(1, 30)))
            x, counts = column(values)
            got = san_thresholds.window_maxima(
                x.astype(kind), np.append(0, np.cumsum(counts)), 39, 6
            )
            assert got == [
                max(((values >= a) & (values < a + 2**j)).sum() for a in range(40))
                for j in range(7)
            ]


def test_san_thresholds_has_the_papers_numbers() -> None:
    """c = 154, inner epsilon 0.02896, gate 1,008,018; and 4,239,923 for alpha = 0.2."""
    first = san_thresholds.plan_calls(F(1, 2), TENTH, F(4), F(1, 1000), 10**7, "paper")
    assert (first.calls, first.minimum_rows) == (154, 1_008_018) and float(
        first.epsilon
    ) == pytest.approx(0.02896, abs=5e-6)
    assert (
        san_thresholds.plan_calls(F(1, 5), TENTH, F(4), F(1, 1000), 10**7, "paper").minimum_rows
        == 4_239_923
    )
    assert (
        san_thresholds.plan_calls(F(1, 2), TENTH, F(4), F(1, 1000), 10**7).minimum_rows == 827_059
    )  # the tight split


@pytest.mark.parametrize("shape", ["uniform", "one value", "two ends", "lumps"])
def test_san_thresholds_is_accurate_from_its_gate_on(shape: str) -> None:
    """alpha = 1/2, epsilon 4, delta 1e-3, 2^64 values, paper's split: errors near a tenth, far
    below alpha.
    """
    rng = np.random.default_rng(2)
    n, end = 1_008_018, 2**64 - 1
    shapes = {
        "uniform": lambda: rng.choice(
            rng.integers(0, 2**63, 50_000, dtype=np.int64).astype(np.uint64) * np.uint64(2), n
        ),
        "one value": lambda: np.full(n, 77),
        "two ends": lambda: (rng.random(n) < 0.3).astype(object) * (2**64 - 1),
        "lumps": lambda: np.uint64(2**40) * rng.integers(0, 4000, n).astype(np.uint64),
    }
    x, counts = column(shapes[shape]())
    plan = san_thresholds.plan_calls(F(1, 2), TENTH, F(4), F(1, 1000), n, "paper")
    calls = SpendLog(StreamSource(1))
    found, used = san_thresholds.san_thresholds(x, counts, end, plan, calls)
    assert prefix_error(x, counts, found) < 0.2
    assert used <= plan.calls and len(calls.spent) <= 4 * plan.calls
    assert sum(e for _, e, _ in calls.spent) <= 4 * plan.calls * plan.epsilon


@pytest.mark.parametrize("end", [2**64 - 1, 2**20 - 1, 999, 1, 0])
def test_tree_is_accurate_where_that_is_proven(end: int) -> None:
    rng = np.random.default_rng(3)
    alpha, size = F(1, 5), end + 1
    n = math.ceil(needed.tree_rows(size, alpha, 0.1, 4))
    for values in (
        rng.integers(0, min(size, 2**62), n),
        np.full(n, end // 3),
        (rng.random(n) < 0.3).astype(object) * end,
    ):
        x, counts = column(values)
        found = build_tree(x, counts, end, n, alpha, F(4), 2, SpendLog(StreamSource(1)))
        assert found.size == n and prefix_error(x, counts, found) <= 0.2


def test_tree_rows_of_the_specification() -> None:
    assert [math.ceil(needed.tree_error(2**d, 0.1, 1) / 0.1) for d in (16, 32, 64)] == [
        18_031,
        64_452,
        242_469,
    ]


def test_wrong_row_numbers_cost_accuracy_only() -> None:
    """Empty tables, ten times too many rows declared, ten times too few: an answer of the right
    shape.
    """
    for x, counts in (column(np.zeros(0)), column(np.arange(100))):
        for n in (1, 10, 1000):
            found = build_tree(x, counts, 999, n, TENTH, ONE, 2, SpendLog(StreamSource(1)))
            assert found.size <= n
        plan = san_thresholds.plan_calls(F(1, 2), TENTH, F(4), F(1, 1000), 10**7)
        assert (
            san_thresholds.san_thresholds(x, counts, 999, plan, SpendLog(StreamSource(1)))[1]
            <= plan.calls
        )
        rounds = sanitize_points.plan_rounds(
            "san-points", 1000, 1, TENTH, TENTH, 10**7, ONE, MILLIONTH, "tight"
        )
        assert (
            len(sanitize_points.peel_values(x, counts, 999, rounds, SpendLog(StreamSource(1))))
            <= rounds.count
        )


def test_below_the_gate_nothing_is_planned() -> None:
    """The gate is a matter of the plan: one row fewer is refused before any table is opened."""
    mechanism = SanitizeThresholds()
    given = {
        "column": "amount",
        "method": "san-thresholds",
        "epsilon": "4",
        "delta": "0.001",
        "alpha": "1/2",
        "budget": "paper",
    }
    planned(at_rows(mechanism), example({}, "replace").table, {**given, "rows": 1_008_018})
    with pytest.raises(PlanRefused, match="private only from 1008018 rows"):
        planned(at_rows(mechanism), example({}, "replace").table, {**given, "rows": 1_008_017})
    with pytest.raises(PlanRefused, match="needs a delta"):
        planned(mechanism, example({}).table, {**given, "delta": "0", "rows": 10**7})


@pytest.mark.parametrize("epsilon", ["0.1", "1"])
@pytest.mark.parametrize("upper", [100, 10**6])
def test_shares_of_rows_are_better_asked_of_their_door(epsilon: str, upper: int) -> None:
    """It states an error of .1 from many more rows on than `cdf` states a smaller one of."""
    mechanism, cdf = SanitizeThresholds(), Cdf()
    assert mechanism.door == cdf.name
    declared = Table.model_validate(
        {
            "name": "t",
            "database": "t.duckdb",
            "privacy_unit": {"column": "u"},
            "contribution_bounds": {"rows": 1},
            "columns": {"u": {}, "x": {"lower": 0, "upper": upper}},
        }
    )
    asked = {"column": "x", "epsilon": epsilon, "alpha": "0.1", "beta": "0.05"}
    bound = mechanism.error_bound(mechanism.Params.model_validate(asked), declared)
    assert bound is not None
    rows = int(re.search(r"from ([\d,]+) rows on", bound.note)[1].replace(",", ""))  # type: ignore[index]
    params = cdf.Params.model_validate({"column": "x", "epsilon": epsilon})
    assert cdf.rank_error(params, declared, rows) < 0.1 * rows / 5
