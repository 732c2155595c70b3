"""Exact sums over all pairs of a positive and a negative row, such as the area under a ROC curve.

A pair's sign is 1 if the positive row has the higher score, -1 if the negative one has, and 0 on a tie or
where one of them has no score (NaN). The area is the mean of (1 + sign)/2. Scores are compared and never
added up; all sums are of integers.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dpflow.core.contract.requests import PairCounts

Floats = NDArray[np.float64]
Labels = NDArray[np.bool_]


def count_pairs(labels: Labels, scores: Floats, others: Floats | None = None) -> PairCounts:
    """Sums of the pairs' scores, or of how much higher they are than by another candidate's ``others``."""
    positives = int(labels.sum())
    negatives = len(labels) - positives
    signs, squares = _sum_signs(labels, scores)
    if others is None:
        return PairCounts(positives, negatives, signs + positives * negatives)
    their_signs, their_squares = _sum_signs(labels, others)
    squares += their_squares - 2 * _sum_products(labels, scores, others)
    return PairCounts(positives, negatives, signs - their_signs, squares)


def _sum_signs(labels: Labels, scores: Floats) -> tuple[int, int]:
    """The sum of the signs, and that of their squares, in n log n steps."""
    present = ~np.isnan(scores)
    negatives = np.sort(scores[present & ~labels])
    positives = scores[present & labels]
    below = int(np.searchsorted(negatives, positives, "left").sum())
    not_above = int(np.searchsorted(negatives, positives, "right").sum())
    above = len(negatives) * len(positives) - not_above
    return below - above, below + above


def _sum_products(labels: Labels, scores: Floats, others: Floats) -> int:
    """The sum over pairs of the product of two scores' signs, in n log^2 n steps."""
    present = ~(np.isnan(scores) | np.isnan(others))
    y, a, b = labels[present], scores[present], others[present]
    agree = _count_dominated(y, a, b) + _count_dominated(y, -a, -b)
    return agree - _count_dominated(y, a, -b) - _count_dominated(y, -a, b)


def _count_dominated(labels: Labels, a: Floats, b: Floats) -> int:
    """Pairs whose negative row is below the positive one in both scores: a merge sort that counts."""
    # Of equal scores positive rows come first, so a negative row that comes before is below.
    order = np.lexsort((~labels, a))
    y = labels[order]
    # Places by a, in the order of b.
    by_b = np.lexsort((~y, b[order]))
    total, width = 0, 1
    while width < len(y):
        merged = by_b[np.argsort(by_b // (2 * width), kind="stable")]
        is_left = merged // width % 2 == 0
        seen = np.concatenate([[0], np.cumsum(is_left & ~y[merged])])
        right = np.flatnonzero(~is_left & y[merged])
        starts = merged[right] // (2 * width) * (2 * width)
        total += int((seen[right] - seen[starts]).sum())
        width *= 2
    return total
