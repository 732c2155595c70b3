"""The exponential projected walk keeps its epsilon and its error bound; broken variants are caught."""

from __future__ import annotations

import math
import sys
from fractions import Fraction
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.special import expit

sys.path.insert(0, str(Path(__file__).parent))
from dpflow_private_prediction.mechanisms import walk as walking  # noqa: E402
from dpflow_private_prediction.mechanisms.walk import (
    PredictWalk,
    Walk,
    WalkParams,
    clip_level,
    clipped_walk,
    step_logit,
    walk_labels,
)  # noqa: E402
from neighbour_auditor import audit_prediction, largest_move  # noqa: E402
from prediction_world import ALTERNATIVES, POINTS, TABLE, exact_law, tables  # noqa: E402

from dpflow.core.accounting.events import BoundedRange, Repeated  # noqa: E402
from dpflow.errors import InvalidInput  # noqa: E402
from dpflow.testing.harness import StreamSource  # noqa: E402

MECHANISM = PredictWalk()
ADD_REMOVE = TABLE.model_copy(update={"neighbours": "add-remove"})


def params(**changes: Any) -> WalkParams:
    given = {"features": ["x"], "label": "y", "epsilon": "1", "clip": 2, "predictions": 10}
    return WalkParams.model_validate(given | changes)


def loop(steps: Any, clip: int) -> list[int]:
    """The definition."""
    v, seen = 0, []
    for step in steps:
        v = min(clip, max(-clip, v + int(step)))
        seen.append(v)
    return seen


# --- privacy ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("relation", "table", "ties"),
    [
        ("replace", TABLE, 3),
        ("add-remove", ADD_REMOVE, 1),
        pytest.param("replace", TABLE, 1, marks=pytest.mark.slow),
        pytest.param("add-remove", ADD_REMOVE, 3, marks=pytest.mark.slow),
    ],
)
def test_exact_on_every_neighbour(
    monkeypatch: pytest.MonkeyPatch, relation: Any, table: Any, ties: int
) -> None:
    """The whole mechanism, its own draw enumerated; few tie-breakers, so that they tie as well."""
    monkeypatch.setattr(walking, "TIES", ties)
    law = exact_law(MECHANISM, params(clip=3), table=table)
    found = audit_prediction(law, tables(5, 2), ALTERNATIVES, POINTS, relation=relation)
    assert found.keeps_epsilon(1.0) and found.epsilon > 0.4


def test_every_small_walk_moves_by_two_or_one() -> None:
    """All tables of up to four rows on four places: 2 for a replaced row, 1 for a removed one, both
    attained.
    """
    kinds = [(x, y) for x in (1, 2, 3, 4) for y in (0, 1)]

    @cache
    def value(rows: tuple[Any, ...], point: int) -> int:
        ordered = sorted(range(len(rows)), key=lambda i: (rows[i][0], i))
        return [0, *loop([2 * rows[i][1] - 1 for i in ordered if rows[i][0] <= point], 2)][-1]

    every = [rows for n in range(1, 4) for rows in product(kinds, repeat=n)]
    assert largest_move(value, every, kinds, [1, 2, 3, 4]) == 2
    removed = (
        abs(value(rows, x) - value(rows[:i] + rows[i + 1 :], x))
        for rows in every
        for i in range(len(rows))
        for x in range(5)
    )
    assert max(removed) == 1


@pytest.mark.parametrize("sharpness", [2, 1])
def test_a_tie_order_that_rows_decide_is_caught(sharpness: int) -> None:
    """Inside a tie the majority label last, or the logit doubled: each costs more than epsilon; the
    right walk does not.
    """

    def broken(majority_last: bool, factor: float) -> Any:
        @cache
        def law(rows: tuple[Any, ...], point: int) -> dict[int, float]:
            ones = sum(y for _, y in rows)
            last = 2 * ones > len(rows)
            tie = (lambda y: y == last) if majority_last else (lambda y: 0)
            ordered = sorted(range(len(rows)), key=lambda i: (rows[i][0], tie(rows[i][1]), i))
            v = [0, *loop([2 * rows[i][1] - 1 for i in ordered if rows[i][0] <= point], 3)][-1]
            p = float(expit(factor * v / 2))
            return {1: p, 0: 1 - p}

        return law

    tied = [((0, 1),) * ones + ((0, 0),) * (11 - ones) for ones in range(12)]
    kinds = [(0, 0), (0, 1)]
    assert audit_prediction(broken(False, 1), tied, kinds, [0]).keeps_epsilon(1.0)
    wrong = broken(False, 2) if sharpness == 2 else broken(True, 1)
    assert not audit_prediction(wrong, tied, kinds, [0]).keeps_epsilon(1.0)


def test_the_claim_follows_limits_neighbours_and_mode() -> None:
    """Two rows a unit halve the logit; agnostic and high-probability modes cost what they need."""
    two = ADD_REMOVE.model_copy(
        update={"contribution_bounds": TABLE.contribution_bounds.model_copy(update={"rows": 2})}
    )
    for table, step in ((ADD_REMOVE, Fraction(1)), (TABLE, Fraction(1, 2)), (two, Fraction(1, 2))):
        assert step_logit(params(), table) == step
        assert MECHANISM.event(params(), table) == Repeated(BoundedRange(Fraction(1)), 10)
    assert MECHANISM.event(params(mode="agnostic"), TABLE) == Repeated(
        BoundedRange(Fraction(1, 20)), 10
    )
    assert clip_level(params(mode="agnostic", clip=None), TABLE) == 164
    high = MECHANISM.event(params(mode="high-probability", beta="0.025"), TABLE)
    assert isinstance(high, Repeated)
    assert float(high.event.epsilon_delta()[0]) == pytest.approx(0.01694, abs=1e-5)  # type: ignore[index]
    assert [clip_level(params(clip=None, epsilon=e), TABLE) for e in ("0.1", "1")] == [60, 6]


def test_a_wrong_plan_is_refused() -> None:
    """Two features, a feature with keys, a label with three values: before anything is charged."""
    many = TABLE.model_copy(update={"columns": TABLE.columns | {"z": TABLE.columns["x"]}})
    keyed = TABLE.model_copy(
        update={
            "columns": TABLE.columns
            | {"x": TABLE.columns["x"].model_copy(update={"public_keys": ("a",)})}
        }
    )
    for changes, table in (({"features": ["x", "z"]}, many), ({}, keyed), ({"label": "z"}, many)):
        with pytest.raises(InvalidInput, match="predict_vote"):
            MECHANISM.event(params(**changes), table)


# --- the walk itself --------------------------------------------------------------------------------------------------


def test_the_specification_s_walk() -> None:
    """Five rows, T = 2, epsilon 1: the probabilities at five points."""
    made = walk_labels(np.array([1, 2, 3, 4, 5]), np.array([0, 0, 1, 1, 1]), 2, StreamSource(1))
    assert made.values.tolist() == [0, -1, -2, -1, 0, 1]
    seen = [float(expit(made.values_at(np.array([x]), Highest())[0] / 2)) for x in (0, 2, 3, 5, 9)]
    assert seen == pytest.approx([0.5, 0.268941, 0.377541, 0.622459, 0.622459], abs=1e-6)


class Highest(StreamSource):
    """Tie-breakers above all others."""

    def __init__(self) -> None:
        super().__init__(0)

    def draw_words(self, n: int) -> Any:
        return np.full(n, walking.TIES - 1, np.uint64)


def test_blocks_walk_as_a_loop_does() -> None:
    """All lengths around the squares, several clipping levels; no rows at all."""
    steps = 2 * (StreamSource(3).draw_words(2000) % np.uint64(2)).astype(np.int64) - 1
    steps[500:900] = 1
    for n in (0, 1, 2, 3, 4, 15, 16, 17, 99, 100, 101, 1999, 2000):
        for level in (1, 2, 7, 10**6):
            assert clipped_walk(steps[:n], level).tolist() == loop(steps[:n], level)
    empty = walk_labels(np.zeros(0, np.int64), np.zeros(0, np.int64), 3, StreamSource(1))
    assert empty.values_at(np.array([-5, 5]), StreamSource(2)).tolist() == [0, 0]


def test_a_query_sees_the_rows_that_are_not_above_it() -> None:
    """The rank by sorting equals the definition, ties included."""
    source = StreamSource(8)
    x = (source.draw_words(300) % np.uint64(20)).astype(np.int64)
    made = walk_labels(x, np.ones(300, np.int64), 10**6, source)  # values count rows
    queries = np.arange(-2, 23)
    seen = made.values_at(queries, Highest())
    assert seen.tolist() == [int((x <= q).sum()) for q in queries]
    drawn = np.array([made.values_at(np.array([7]), StreamSource(i))[0] for i in range(200)])
    below, upto = int((x < 7).sum()), int((x <= 7).sum())
    assert drawn.min() >= below and drawn.max() <= upto and len(set(drawn.tolist())) > 3


def test_lemma_5_2_on_random_rows() -> None:
    """Training error <= Opt + (k+2) T/n + exp(-eps T/2), for distinct values, any labels, k, T and
    epsilon.
    """
    source, worst = StreamSource(21), -math.inf
    for case in range(200):
        n, k = 20 + case % 60, 1 + case % 4
        drift = (source.draw_words(n) % np.uint64(100)).astype(int) < 20 * (1 + case % 4)
        y = (drift ^ (np.arange(n) * (k + 1) // n % 2 == 1)).astype(np.int64)
        level, eps = 1 + case % 9, (0.1, 0.5, 1.0, 3.0)[case % 4]
        values = clipped_walk(2 * y - 1, level)
        error = float(np.where(y == 1, expit(-eps * values / 2), expit(eps * values / 2)).mean())
        # Fewest errors of a function that starts at 0 and changes at most k times.
        best = np.array([0] + [10**9] * k)
        for label in y:
            switched = np.concatenate([[10**9], best[:-1]])
            best = np.minimum(best, switched)
            best = best + np.array([label != (k % 2) for k in range(k + 1)])
        optimum = int(min(best.min(), 10**9))
        worst = max(worst, error - optimum / n - (k + 2) * level / n - math.exp(-eps * level / 2))
    assert worst < 0


def test_ties_need_their_breakers() -> None:
    """600 zeros, then 400 ones at one value: the bound holds with tie-breakers and is broken
    without them.
    """
    y = np.array([0] * 600 + [1] * 400)
    bound = 0.4 + 3 * 6 / 1000 + math.exp(-3)
    rates = []
    for seed in range(20):
        made = walk_labels(np.zeros(1000, np.int64), y, 6, StreamSource(seed))
        p = expit(made.values_at(np.zeros(4000, np.int64), StreamSource(seed + 99)) / 2)
        rates.append(float((0.6 * p + 0.4 * (1 - p)).mean()))
    assert np.mean(rates) == pytest.approx(0.432, abs=0.012) and np.mean(rates) < bound
    untied = Walk(
        np.array([0]),
        np.full(1000, walking.TIES),
        np.concatenate([[0], clipped_walk(2 * y - 1, 6)]),
    )
    p = float(expit(untied.values_at(np.array([0]), Highest())[0] / 2))
    assert (
        0.6 * p + 0.4 * (1 - p) == pytest.approx(0.591, abs=0.001)
        and 0.6 * p + 0.4 * (1 - p) > bound
    )


@pytest.mark.parametrize(("k", "noise"), [(1, 0.0), (1, 0.1), (2, 0.0), (2, 0.1), (5, 0.3)])
def test_theorem_5_3_on_unions_of_intervals(k: int, noise: float) -> None:
    """E[error] <= e^eps (Opt + alpha) from 2 (k+2) T/alpha rows; agnostic mode stays within alpha
    of Opt.
    """
    cuts = np.linspace(0, 10**6, k + 2)[1:-1]

    def sample(n: int, source: StreamSource) -> tuple[Any, Any]:
        x = (source.draw_words(n) % np.uint64(10**6)).astype(np.int64)
        flip = (source.draw_words(n) % np.uint64(1000)).astype(int) < 1000 * noise
        return x, ((x[:, None] >= cuts).sum(axis=1) % 2 ^ flip).astype(np.int64)

    for mode, eps, factor, alpha in (
        ("plain", 0.5, math.exp(0.5), 0.1),
        ("agnostic", 0.05, 1.0, 0.1),
    ):
        asked = params(mode=mode, epsilon="0.5", clip=None)
        level = clip_level(asked, TABLE)
        n = (2 if mode == "plain" else 6) * (k + 2) * level * 10
        errors = []
        for seed in range(3):
            source = StreamSource(seed)
            made = walk_labels(*sample(n, source), level, source)
            x, y = sample(5000, source)
            p = expit(eps * made.values_at(x, source) / 2)
            errors.append(float(np.where(y == 1, 1 - p, p).mean()))
        assert np.mean(errors) <= factor * (noise + alpha if mode == "plain" else noise) + (
            0 if mode == "plain" else alpha
        )
