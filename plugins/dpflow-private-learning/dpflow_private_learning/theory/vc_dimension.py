"""Sample complexity without privacy: VC dimension, generalisation, tails (section 2.2, Theorems
2.6, 2.12 to 2.14).
"""

from __future__ import annotations

import math
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpflow.errors import InvalidInput


def realisable_rows(vc: int, alpha: float, beta: float) -> float:
    """(8/alpha)(VC ln(16/alpha) + ln(2/beta)): every hypothesis right on all rows errs at most
    alpha (Theorem 2.13).
    """
    return 8 / alpha * (vc * math.log(16 / alpha) + math.log(2 / beta))


def agnostic_rows(vc: int, alpha: float, beta: float) -> float:
    """(50 VC/alpha^2) ln(1/(alpha beta)): all errors on the rows are within alpha of the true ones
    (Theorem 2.14).
    """
    return 50 * vc / alpha**2 * math.log(1 / (alpha * beta))


def learner_rows(vc: int, alpha: float, beta: float) -> float:
    """`agnostic_rows` at alpha/2, beta/2: an error of alpha/2 on the rows is one of alpha in the
    population.
    """
    return agnostic_rows(vc, alpha / 2, beta / 2)


def chernoff_above(p: float, n: int, g: float) -> float:
    """Pr[more than (1 + g) p n heads] is at most this, for 0 < g <= 1; as printed, for all g > 0,
    it would be false.
    """
    if not 0 < g <= 1:
        raise InvalidInput("the upper tail holds for g above 0 and at most 1")
    return math.exp(-p * n * g**2 / 3)


def chernoff_below(p: float, n: int, g: float) -> float:
    """Pr[fewer than (1 - g) p n heads] is at most this, for 0 < g < 1."""
    if not 0 < g < 1:
        raise InvalidInput("the lower tail holds for g strictly between 0 and 1")
    return math.exp(-p * n * g**2 / 2)


def vc_dimension(concepts: NDArray[Any]) -> int:
    """The largest set of points that a class labels in every way; by trying all sets, so for tiny
    classes.

    ``concepts`` has one row a concept and one column a point.
    """
    labels = np.unique(np.asarray(concepts, np.int64), axis=0)
    best = 0
    for size in range(1, int(math.log2(max(len(labels), 1))) + 1):
        weights = 2 ** np.arange(size)
        # Shattering is monotone: if no set of this size is shattered, no larger one is.
        if not any(
            len(np.unique(labels[:, s] @ weights)) == 2**size
            for s in combinations(range(labels.shape[1]), size)
        ):
            return best
        best = size
    return best
