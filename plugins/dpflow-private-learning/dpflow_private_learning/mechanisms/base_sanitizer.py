"""The pure sanitizers that other constructions are built on, as one function of a class and a
number of rows.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpflow_private_learning.building_blocks.prefix_tree import build_tree
from dpflow_private_learning.building_blocks.row_bounds import peeling_rows, tree_rows
from dpflow_private_learning.building_blocks.spend_log import SpendLog
from dpflow_private_learning.building_blocks.synopsis import Synopsis
from dpflow_private_learning.mechanisms.sanitize_points import make_proper, peel_values, plan_rounds
from dpflow_private_learning.mechanisms.sanitizer_transforms import Rules


def sanitize_column(
    rules: Rules,
    values: NDArray[Any],
    counts: NDArray[np.int64],
    end: int,
    rows: int,
    alpha: Fraction,
    beta: Fraction,
    epsilon: Fraction,
    moves: int,
    calls: SpendLog,
) -> Synopsis:
    """A synthetic column of ``rows`` rows over 0..end for distinct values: by peeling for points,
    by the tree for thresholds.

    epsilon-DP for one row, added or removed (``moves`` = 1) or replaced (``moves`` = 2).
    """
    if rules == "thresholds":
        return build_tree(values, counts, end, rows, alpha, epsilon, moves, calls)
    plan = plan_rounds("exponential", end + 1, 1, alpha, beta, rows, epsilon, Fraction(0), "tight")
    return make_proper(peel_values(values, counts, end, plan, calls), rows, alpha, end)[0]


def count_rounds(rules: Rules, alpha: Fraction, end: int) -> int:
    """Rounds of peeling, or levels of the tree, that share epsilon."""
    return math.ceil(2 / alpha) if rules == "points" else max((end + 1).bit_length(), 1)


def rows_for(
    rules: Rules, size: int, alpha: Fraction, beta: Fraction, epsilon: Fraction, moves: int
) -> float:
    """Rows from which `sanitized` is within alpha with probability 1 - beta."""
    if rules == "thresholds":
        return tree_rows(size, alpha, beta, epsilon, moves)
    return peeling_rows(size, alpha, beta, epsilon)
