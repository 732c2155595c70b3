"""From one sanitizer to another: fixed size, larger inputs, databases from estimates (Theorem 2.21,
Lemma 5.1, Remark 2.18).

What `reduce_column` and `make_database` compute from a sanitized column is free. `in_blocks` reads rows: each
block's rows go to one run of the inner mechanism, so all runs together cost what one does (parallel
composition), as long as the block of a row does not depend on any row. Blocks are therefore drawn,
for each unit on its own. Cut from a sorted table, one row more would move a row in every later
block.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import lru_cache
from typing import Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from dpflow.core.sampling.randomness import Source
from dpflow.core.sampling.samplers import uniform_integers
from dpflow_private_learning.building_blocks.row_bounds import agnostic_rows
from dpflow_private_learning.building_blocks.step_function import Array
from dpflow_private_learning.building_blocks.synopsis import Synopsis
from dpflow_private_learning.mechanisms.small_domain import list_multisets

T = TypeVar("T")
Rules = Literal["points", "thresholds"]
TRIES = 20


def largest_deviation(rules: Rules, a: Synopsis, b: Synopsis) -> float:
    """The largest difference of the answers of two columns."""
    if rules == "points":
        return max(
            (abs(a.share_at([p]) - b.share_at([p])) for p in {*a.points, *b.points}), default=0.0
        )
    positions = sorted({p + s for p in (*a.points, *b.points) for s in (0, 1)})
    return float(np.abs(a.share_below(positions) - b.share_below(positions)).max(initial=0.0))


def reduce_column(
    rules: Rules, column: Synopsis, alpha: Fraction, beta: Fraction, source: Source
) -> tuple[Synopsis, bool]:
    """A column of `agnostic_rows` rows within alpha of a sanitized one, and whether drawing it
    succeeded; smaller ones stay.

    Rows are drawn with replacement and drawn again where some answer is too far off.
    """
    size = math.ceil(agnostic_rows(1, alpha, beta))
    if column.size <= size:
        return column, True
    sums = np.cumsum(np.array(column.weights, dtype=np.int64))
    # Free: it reads the sanitized column only. A few tries make a failure improbable.
    for _ in range(TRIES):
        picks = np.searchsorted(sums, uniform_integers(column.size, size, source), side="right")
        weights = np.bincount(picks, minlength=len(sums))
        sample = Synopsis.of(dict(zip(column.points, weights.tolist())))
        if largest_deviation(rules, column, sample) <= alpha:
            return sample, True
    return sample, False


@lru_cache(maxsize=64)
def failing_blocks(blocks: int, chance: Fraction, failure: Fraction) -> int:
    """The least number of blocks than which more fail with probability at most ``failure``, if each
    fails by itself with probability at most ``chance``: the binomial tail, exactly.
    """
    if chance >= 1:
        return blocks
    fails, holds = chance.numerator, chance.denominator - chance.numerator
    term = below = holds**blocks
    enough, number = (1 - failure) * chance.denominator**blocks, 0
    while below < enough:
        term = term * (blocks - number) * fails // ((number + 1) * holds)
        number, below = number + 1, below + term
    return number


def assign_blocks(units: NDArray[np.int64], blocks: int, source: Source) -> NDArray[np.int64]:
    """A block for every row, the same for all rows of a unit, drawn for each unit on its own."""
    # Drawn for each unit and not for each row, or a unit's rows would be in several blocks.
    number = int(units.max()) + 1 if len(units) else 0
    block_of_unit: NDArray[np.int64] = np.asarray(
        uniform_integers(blocks, number, source), np.int64
    )
    return block_of_unit[units]


def in_blocks(
    units: NDArray[np.int64], x: Array, blocks: int, inner: Callable[[Array], T], source: Source
) -> list[T]:
    """What the inner mechanism gives for the rows of each block."""
    block = assign_blocks(units, blocks, source)
    order = np.argsort(block, kind="stable")
    ends = np.searchsorted(block[order], np.arange(blocks + 1))
    return [inner(x[order[ends[i] : ends[i + 1]]]) for i in range(blocks)]


def join_columns(parts: list[Synopsis]) -> Synopsis:
    """All columns one below the other."""
    weights: dict[int, int] = {}
    for part in parts:
        for point, weight in zip(part.points, part.weights):
            weights[point] = weights.get(point, 0) + weight
    return Synopsis.of(weights)


def make_database(
    estimates: Mapping[int, float], classes: NDArray[np.bool_], alpha: float, size: int
) -> tuple[Synopsis, bool]:
    """A database of ``size`` points near improper answers, and whether it is within alpha of all:
    by search, for tiny domains.

    Args:
        estimates: the answer to each concept, by its row in ``classes``.
        classes: concepts by points, as `concept_matrix` of `small_domain` makes them.
    """
    multisets = list_multisets(classes.shape[1] - 1, size)
    targets = np.array([estimates[i] for i in range(len(classes))])
    worst = np.abs(multisets @ classes.T / size - targets).max(axis=1)
    best = int(np.argmin(worst))
    return Synopsis.of({point: int(n) for point, n in enumerate(multisets[best])}), bool(
        worst[best] <= alpha
    )
