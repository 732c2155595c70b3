"""Base mechanisms: pieces against brute force, worked examples of the specification, gates."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from fractions import Fraction as F

import numpy as np
import pytest
from dpflow_private_learning.building_blocks import (
    choosing_mechanism,
    rec_concave,
    stability_selection,
)
from dpflow_private_learning.building_blocks.exponential_mechanism import draw_point, draw_solution
from dpflow_private_learning.building_blocks.log_bounds import (
    ceil_log2,
    iterated_log,
    log_star,
    log_star_of,
)
from dpflow_private_learning.building_blocks.rec_concave import Step
from dpflow_private_learning.building_blocks.spend_log import SpendLog
from dpflow_private_learning.building_blocks.step_function import StepFunction, offsets
from dpflow_private_learning.mechanisms.learn_thresholds import threshold_score

from dpflow.core.toolbox.partition_selection import tail_above
from dpflow.testing.enumeration import enumerate_outputs
from dpflow.testing.harness import StreamSource

LN2 = F(math.log(2))


def runs(values: Sequence[int]) -> StepFunction:
    starts = [i for i in range(len(values)) if i == 0 or values[i] != values[i - 1]]
    return StepFunction.from_runs(starts, len(values) - 1, [values[i] for i in starts])


@pytest.mark.parametrize("kind", [np.uint64, object])
def test_window_minima_and_best_blocks_are_those_of_all_points(kind: type) -> None:
    """Brute force over random scores, most of them not quasi-concave."""
    rng = random.Random(1)
    for _ in range(150):
        p = rng.randint(0, 6)
        values = [rng.randint(0, 4) for _ in range(2**p + 1)]
        score = runs(values)
        score = StepFunction(score.starts.astype(kind), score.end, score.values)
        brute = [
            max(min(values[a : a + 2**j]) for a in range(len(values) + 1 - 2**j))
            for j in range(p + 1)
        ]
        assert score.window_minima(p) == brute
        for shift in range(p + 3):
            for offset in {0, 1, 3, 2**shift // 2}:
                found = score.best_block(offset, shift)
                blocks: dict[int, int] = {}
                for x in range(offset, len(values)):
                    blocks[(x - offset) >> shift] = max(
                        values[x], blocks.get((x - offset) >> shift, -9)
                    )
                if not blocks:
                    assert found is None
                    continue
                winner = min(b for b in blocks if blocks[b] == max(blocks.values()))
                rest = [v for b, v in blocks.items() if b != winner]
                assert found == (winner, blocks[winner], max(rest, default=None))


def test_pieces_around_points() -> None:
    """The ends of the domain, neighbours, and domains beyond 64 bits."""
    for end, points in (
        (9, [0, 1, 5, 9]),
        (9, []),
        (3, [3]),
        (2**64 - 1, [7, 2**64 - 1]),
        (2**70, [0, 2**70]),
    ):
        x = np.array(points, dtype=object if end >= 2**64 else np.uint64)
        score = StepFunction.from_points(x, np.arange(1, len(points) + 1), end)
        assert [score.value_at(point) for point in points] == [*range(1, len(points) + 1)]
        assert sum(map(int, score.run_lengths())) == end + 1
        assert end < 6 or points == [0, 1, 5, 9] or score.value_at(6) == 0
    assert offsets(np.array([-(2**63), 2**63 - 1]), -(2**63)).tolist() == [0, 2**64 - 1]


def test_iterated_logarithms() -> None:
    assert [log_star_of(n) for n in (1, 2, 3, 4, 5, 16, 17, 65536, 65537)] == [
        0,
        1,
        2,
        2,
        3,
        3,
        4,
        4,
        5,
    ]
    assert [log_star(d) for d in (16, 32, 64)] == [4, 5, 5]
    assert [
        rec_concave.recursion_depth(2**d, n)
        for d, n in ((16, 9), (32, 9), (64, 9), (64, 2), (5, 9))
    ] == [2, 2, 3, 2, 1]
    assert ceil_log2(33) == 6 and iterated_log(16, 2) == 4.0


def test_exponential_weights() -> None:
    """q = (3, 1, 0) at epsilon = 2 ln 2 weighs 8 : 2 : 1, listed or as pieces; constants do not
    matter; no overflow.
    """
    expected = [8 / 11, 2 / 11, 1 / 11]
    for shift in (0, 10**6):
        listed = enumerate_outputs(
            lambda s: draw_solution([3 + shift, 1 + shift, shift], 2 * LN2, SpendLog(s))
        )
        pieces = enumerate_outputs(
            lambda s: draw_point([runs([3 + shift, 1 + shift, shift])], 2 * LN2, SpendLog(s))
        )
        assert [listed[i] for i in range(3)] == pytest.approx(expected, abs=1e-12)
        assert [pieces[i] for i in range(3)] == pytest.approx(expected, abs=1e-12)
    wide = enumerate_outputs(
        lambda s: draw_point([StepFunction.from_runs([0, 3, 5], 8, [1, 4, 1])], F(1), SpendLog(s))
    )
    weights = [math.exp(v / 2) for v in (1, 1, 1, 4, 4, 1, 1, 1, 1)]
    assert [wide[i] for i in range(9)] == pytest.approx(
        [w / sum(weights) for w in weights], abs=1e-12
    )


def test_exponential_over_enormous_domains() -> None:
    """2^64, 2^200 and 2^1000 points: a heavy point far out is found, and one point alone costs
    nothing.
    """
    for bits in (64, 200, 1000):
        x = np.array([5, 2**bits - 7], dtype=np.uint64 if bits == 64 else object)
        calls = SpendLog(StreamSource(1))
        assert (
            draw_point(
                [StepFunction.from_points(x, np.array([10, 3000]), 2**bits - 1)], F(1), calls
            )
            == 2**bits - 7
        )
        assert calls.total_cost() == (1, 0)
    free = SpendLog(StreamSource(1))
    assert draw_point([StepFunction.from_runs([0], 0, [4])], F(1), free) == 0 and not free.spent


def continuous(gap: int, epsilon: float, delta: float, moves: int, level: float) -> float:
    """Pr[gap + Lap(moves/epsilon) >= level], as the paper draws it."""
    x = (level - gap) * epsilon / moves
    return 0.5 * math.exp(-x) if x >= 0 else 1 - 0.5 * math.exp(x)


def test_stability_examples() -> None:
    """The worked examples with continuous noise, and the literal threshold's real delta: 0.363,
    0.2195, 0.0478.
    """
    ln2 = math.log(2)
    assert continuous(10, ln2, 1 / 8, 2, 6) == pytest.approx(7 / 8)
    assert continuous(2, ln2, 1 / 8, 2, 6) == pytest.approx(1 / 8)
    assert continuous(5, ln2, 1 / 8, 1, 3) == pytest.approx(7 / 8)
    assert continuous(1, ln2, 1 / 8, 1, 3) == pytest.approx(1 / 8)
    for epsilon, delta, found in ((1, 1e-6, 0.363), (0.5, 1e-6, 0.2195), (0.1, 1e-2, 0.0478)):
        level = math.log(1 / delta) / epsilon
        p = [continuous(m, epsilon, delta, 1, level) for m in range(101)]
        worst = max(p[m] - math.exp(epsilon) * p[m - 2] for m in range(2, 101))
        assert worst == pytest.approx(found, abs=5e-4)


def test_stability_threshold_is_moved_by_the_gaps_sensitivity() -> None:
    scale, level = stability_selection.gap_threshold(F(1), F(1, 10**6))
    assert scale == 2 and level == 2 + tail_above(F(2), F(1, 10**6))
    assert stability_selection.gap_threshold(F(1), F(1, 10**6), moves=1)[0] == 1
    assert stability_selection.literal_guarantee(F(1), F(1, 1000))[1] == pytest.approx(
        math.exp(2) / 1000 / (1 + math.exp(-1))
    )


def test_choosing_example_and_gate() -> None:
    """Selection weighs 64 : 8 : 2; the gate at alpha = 1, epsilon = 2, delta = 0.01 is 41 rows."""
    found = enumerate_outputs(
        lambda s: choosing_mechanism.choose_solution(
            np.array([6, 3, 1]), 10, F(1), 4 * LN2, F(1, 100), SpendLog(s)
        )
    )
    passed = 1 - found[None]
    assert found[None] == pytest.approx(
        1 / 6, abs=1e-9
    )  # Pr[Z <= -2] of discrete noise; 1/4 with continuous noise
    assert [found[i] / passed for i in range(3)] == pytest.approx([64 / 74, 8 / 74, 2 / 74])
    assert choosing_mechanism.minimum_rows(F(1), F(2), F(1, 100), 1) == 41
    assert (
        choosing_mechanism.choose_solution(
            np.zeros(0, np.int64), 10, F(1), F(1), F(1, 100), SpendLog(StreamSource(1))
        )
        is None
    )


def test_threshold_score_example() -> None:
    """{(1,1),(2,1),(5,0),(6,0)} over 0..7: pieces 2 3 4 3 2, L = 4 4 3 2 0, q = 0 1 1 0."""
    x, y = np.array([6, 1, 5, 2], np.uint64), np.array([False, True, False, True])
    score = threshold_score(x, y, 8)
    assert list(zip(score.starts.tolist(), score.last_points.tolist(), score.values.tolist())) == [
        (0, 1, 2),
        (2, 2, 3),
        (3, 5, 4),
        (6, 6, 3),
        (7, 8, 2),
    ]
    minima = score.window_minima(3)
    assert [*minima, min(0, minima[-1])] == [4, 4, 3, 2, 0]
    q, unit = rec_concave._lengths_score(score, 3, F(4), F(1, 2))
    assert [F(v, unit) for v in q] == [0, 1, 1, 0]


def test_lengths_score_is_quasi_concave_and_moves_by_one() -> None:
    """Claim 3.13 and Observation 3.11 on random scores and neighbours."""
    rng = random.Random(2)
    for _ in range(200):
        values = [rng.randint(0, 9) for _ in range(33)]
        near = [v + rng.choice((-1, 0, 1)) for v in values]
        (q, unit), (other, _) = (
            rec_concave._lengths_score(runs(v), 5, F(8), F(1, 3)) for v in (values, near)
        )
        assert all(abs(a - b) <= unit for a, b in zip(q, other))
        peak = q.index(max(q))
        assert q[: peak + 1] == sorted(q[: peak + 1]) and q[peak:] == sorted(q[peak:], reverse=True)


@pytest.mark.parametrize(
    ("top", "levels", "most"), [(2**16, 9, 4), (2**64, 9, 7), (2**64, 2, 4), (40, 2, 4), (9, 9, 1)]
)
def test_rec_concave_spends_what_its_plan_says(top: int, levels: int, most: int) -> None:
    """At most 3D - 2 calls on any data: none, alternating labels, all equal, or a clean cut."""
    step = rec_concave.split_budget(top, levels, F(1), F(1, 10**6))
    assert rec_concave.run_cost(top, step)[0] == 1
    rng = np.random.default_rng(5)
    wide = [int(v) % top for v in rng.integers(0, 2**63, 500, dtype=np.int64)]
    for x, y in (
        ([], []),
        ([3] * 50, [1] * 50),
        (wide, [i % 2 for i in range(500)]),
        (wide, [v < top // 2 for v in wide]),
    ):
        calls = SpendLog(StreamSource(1))
        score = threshold_score(
            np.array(x, dtype=object if top >= 2**64 else np.uint64), np.array(y, bool), top
        )
        point, _ = rec_concave.rec_concave(score, F(500), F(1, 2), step, calls)
        assert 0 <= point <= top and len(calls.spent) <= most
        assert calls.total_cost()[0] <= 1 and calls.total_cost()[1] <= F(1, 10**6)


def test_paper_budget_and_literal_cost() -> None:
    paper = rec_concave.split_budget(2**64, 3, F(1), F(1, 10**6), "paper")
    assert (paper.epsilon, paper.delta) == (F(1, 9), F(1, 9 * 10**6))
    literal = Step(F(1), F(1, 1000), 2, literal=True)
    calls = SpendLog(StreamSource(1))
    x = np.arange(20_000, 20_500, dtype=np.uint64)
    rec_concave.rec_concave(threshold_score(x, x < 20_250, 2**16), F(500), F(1, 2), literal, calls)
    assert rec_concave.run_cost(2**16, literal)[0] == 6 >= calls.total_cost()[0]
    assert calls.total_cost()[1] <= rec_concave.run_cost(2**16, literal)[1]
    assert (
        calls.spent.count(("stability", *stability_selection.literal_guarantee(F(1), F(1, 1000))))
        == 2
    )


@pytest.mark.parametrize("shape", ["uniform", "clumped", "spread"])
def test_rec_concave_finds_thresholds_over_2_to_the_64(shape: str) -> None:
    """N = 2, accuracy 0.05, epsilon 1, delta 1e-6, the proof's 10,584 rows: no failure measured."""
    rng = np.random.default_rng(3)
    m, top = 10_584, 2**64
    cut = 2**63 + 12345
    for _ in range(3):
        if shape == "uniform":
            x = rng.integers(0, 2**63, m, dtype=np.int64).astype(object) * 2
        elif shape == "clumped":
            x = cut + rng.integers(-5000, 5000, m).astype(object)
        else:
            x = cut + (2.0 ** rng.uniform(0, 62, m) * rng.choice([-1, 1], m)).astype(
                np.int64
            ).astype(object)
        score = threshold_score(x, np.array(x < cut, bool), top)
        step = rec_concave.split_budget(top, 2, F(1), F(1, 10**6))
        point, _ = rec_concave.rec_concave(score, F(m), F(1, 20), step, SpendLog(StreamSource(1)))
        assert score.value_at(point) >= 0.95 * m
