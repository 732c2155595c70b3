"""The tables that prove the lower bounds for pure methods (Lemmas 4.15, 5.7), and sizes of classes by search.

A packing argument: tables pairwise a few rows apart with disjoint good answers. A pure method gives
each of them its own answer with probability 1 - beta, and, by group privacy, gives all those
answers on the first table too; together they cannot exceed 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import combinations, product
from typing import Any

import numpy as np
from numpy.typing import NDArray


def effective_domain(concepts: NDArray[Any]) -> int:
    """X_C: points that some concept tells apart, the distinct columns of the concept-by-point
    matrix (Def. 4.14).
    """
    return int(np.unique(np.asarray(concepts, bool), axis=1).shape[1])


def sanitizer_workload(points: list[int], rows: int, alpha: float) -> Iterator[list[int]]:
    """Tables of Lemma 4.15: 3 alpha m rows of one point, the rest of the first; pairwise 3 alpha m
    rows apart.
    """
    # The small term: 3 * 0.1 * 200 is a little above 60 in floats.
    moved = math.ceil(3 * alpha * rows - 1e-9)
    assert moved <= rows
    for point in points:
        yield [points[0]] * (rows - moved) + [point] * moved


def k_point_sets(k: int, bits: int, most: int) -> Iterator[tuple[int, ...]]:
    """Sets of k points of 1..2^d - 1 that pairwise share at most k/2: graphs of polynomials of
    degree k/2 over a prime field.

    The paper finds a family greedily (its proof must drop sets that share more than k/2, not at
    most k/2); two polynomials of degree t agree in at most t places, which needs no search.
    """
    # Bertrand: there is a prime between k and 2k, and over a field two polynomials of degree t
    # agree in at most t places.
    p = next(n for n in range(max(k, 2), 2 * k + 3) if all(n % q for q in range(2, n)))
    assert k * p < 2**bits
    for number, coefficients in enumerate(product(range(p), repeat=k // 2 + 1)):
        if number == most:
            return
        yield tuple(
            1 + x * p + sum(c * x**i for i, c in enumerate(coefficients)) % p for x in range(k)
        )


def k_point_workload(points: tuple[int, ...], rows: int, alpha: float) -> list[int]:
    """A table of Lemma 5.7: mass 1 - 5 alpha on 0, the rest shared equally by the set's points."""
    # Less 1e-9, because floats lift some exact products above an integer.
    copies = math.ceil(5 * alpha * rows / len(points) - 1e-9)
    assert copies * len(points) <= rows
    return [0] * (rows - copies * len(points)) + [point for point in points for _ in range(copies)]


def group_bound(distance: int, tables: int, epsilon: float, beta: float) -> bool:
    """Whether so many tables, pairwise so many rows apart, leave room for a pure method that fails
    with probability beta.
    """
    return math.log(max(tables - 1, 1)) + math.log(1 - beta) - epsilon * distance <= math.log(beta)


def vc_dimension_by_search(concepts: NDArray[Any]) -> int:
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
