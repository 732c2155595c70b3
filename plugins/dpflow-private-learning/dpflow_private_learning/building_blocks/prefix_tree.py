"""Prefix fractions by a tree of noisy counts: pure, and practical from 10^5 rows over 2^64 (not in
the paper; Chan, Shi, Song 2010; Dwork, Naor, Pitassi, Rothblum 2010).

Definition: a range is halved; the left half gets its count plus discrete Laplace noise of scale s
d/epsilon, the right half what is left of the range's estimate; the root's estimate is the declared
number of rows. Halves with an estimate of at least alpha n/2 are halved again, the ceil(6/alpha)
largest of a level at most, down to single points: d levels. A half that is not divided becomes
copies of its last point. Prefix sums are made to ascend between 0 and n.

Guarantee: epsilon-DP. On each level one row counts in at most one left half, so it moves the counts
of a level by s in all (1 if rows come or go, 2 if they are replaced), which costs epsilon/d; what
is divided on the next level depends on released counts.

Accuracy: a prefix at an end of a half is a sum of at most d noises. All 2^d of them stay within E
with probability 1 - beta, E = v sqrt(8 L), v = (s d/epsilon) max(sqrt d, sqrt(2 L)), L = ln(2
2^d/beta). If E <= alpha n/6, halves that are divided hold at least alpha n/6 rows, so at most
6/alpha are; those that are not hold at most 5 alpha n/6, and every prefix is within alpha n. Below
`LEAST_ALPHA` no more are divided than there, so nothing is proven: few rows whose noise looks heavy
would be divided without end.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np

from dpflow.core.sampling.noisy_values import add_laplace
from dpflow_private_learning.building_blocks.log_bounds import ceil_log2
from dpflow_private_learning.building_blocks.row_bounds import LEAST_ALPHA
from dpflow_private_learning.building_blocks.spend_log import SpendLog
from dpflow_private_learning.building_blocks.step_function import Array
from dpflow_private_learning.building_blocks.synopsis import Synopsis


def level_scale(end: int, epsilon: Fraction, moves: int) -> Fraction:
    """Scale of the noise of every count."""
    return moves * max(ceil_log2(end + 1), 1) / epsilon


def build_tree(
    x: Array,
    counts: Array,
    end: int,
    rows: int,
    alpha: Fraction,
    epsilon: Fraction,
    moves: int,
    calls: SpendLog,
) -> Synopsis:
    """The synthetic column of ``rows`` rows over 0..end."""
    levels, scale = ceil_log2(end + 1), level_scale(end, epsilon, moves)
    if levels:
        calls.record_call("tree", epsilon)
    sums = np.concatenate([[0], np.cumsum(counts)])
    # The root is the declared number of rows, a constant: it costs nothing and needs no noise.
    prefix: dict[int, int] = {end + 1: rows}  # rows below a position, as estimated
    ranges = [(0, 0)]  # first point, and the estimate of what lies below it
    for level in range(levels, 0, -1):
        half = 1 << (level - 1)
        divided = _largest_ranges(ranges, prefix, 1 << level, end, alpha, rows)
        # Noise goes to left halves only. One row lies in one of them at most, and the right half is
        # the range less the left one, so a level costs what one count costs.
        exact = [
            int(sums[_values_below(x, first + half)] - sums[_values_below(x, first)])
            for first, _ in divided
        ]
        noisy = add_laplace(np.array(exact, np.int64), scale, calls.source)
        ranges = []
        for (first, below), rows_left in zip(divided, noisy.tolist()):
            middle = first + half
            if middle <= end:  # else the right half holds no point, and nothing is to be estimated
                prefix[middle] = below + rows_left
                ranges.append((middle, prefix[middle]))
            ranges.append((first, below))
    return _make_ascending(prefix, rows)


def _largest_ranges(
    ranges: list[tuple[int, int]],
    prefix: dict[int, int],
    length: int,
    end: int,
    alpha: Fraction,
    rows: int,
) -> list[tuple[int, int]]:
    """The ranges that are worth dividing, by their first point."""
    sized = [
        (prefix[min(first + length, end + 1)] - below, first, below) for first, below in ranges
    ]
    # A bound on how many ranges are divided keeps the run short when noise makes all look heavy.
    worth = sorted((item for item in sized if 2 * item[0] >= alpha * rows), reverse=True)
    most = math.ceil(6 / max(alpha, LEAST_ALPHA))
    return sorted((first, below) for _, first, below in worth[:most])


def _values_below(x: Array, point: int) -> int:
    """How many distinct values lie below a point."""
    # As uint64: beside a Python int numpy compares as floats, inexact from 2^53 on.
    return int(np.searchsorted(x, point if x.dtype == object else np.uint64(point), side="left"))


def _make_ascending(prefix: dict[int, int], rows: int) -> Synopsis:
    """Copies of the last point before each position, as many as the prefix grows there."""
    weights, reached = {}, 0
    for position, estimate in sorted(prefix.items()):
        # Post-processing: noise may make a prefix fall or pass the total, and a column cannot.
        now = max(reached, min(estimate, rows))
        weights[position - 1] = now - reached
        reached = now
    return Synopsis.of(weights)
