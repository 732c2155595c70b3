"""What no pure method can do (Lemmas 4.15, 5.7, Theorems 2.20, 4.16, 5.9, 5.10), with the tables
that prove it.

A packing argument: tables pairwise a few rows apart with disjoint good answers. A pure method gives
each of them its own answer with probability 1 - beta, and, by group privacy, gives all those
answers on the first table too; together they cannot exceed 1. The workloads here are those tables,
so the argument can be replayed on any mechanism.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpflow.errors import InvalidInput


def effective_domain(concepts: NDArray[Any]) -> int:
    """X_C: points that some concept tells apart, the distinct columns of the concept-by-point
    matrix (Def. 4.14).
    """
    return int(np.unique(np.asarray(concepts, bool), axis=1).shape[1])


def sanitizer_rows(size: int, alpha: float, beta: float, epsilon: float) -> float:
    """Lemma 4.15: (1/(3 epsilon alpha)) ln((X_C - 1)(1 - beta)/beta) rows at least, for a pure
    sanitizer, X_C = ``size``.
    """
    return max(
        0.0, 1 / (3 * epsilon * alpha) * (math.log(max(size - 1, 1)) + math.log((1 - beta) / beta))
    )


def sanitizer_workload(points: list[int], rows: int, alpha: float) -> Iterator[list[int]]:
    """Tables of Lemma 4.15: 3 alpha m rows of one point, the rest of the first; pairwise 3 alpha m
    rows apart.
    """
    # The small term: 3 * 0.1 * 200 is a little above 60 in floats.
    moved = math.ceil(3 * alpha * rows - 1e-9)
    if moved > rows:
        raise InvalidInput("the argument needs alpha of at most 1/3")
    for point in points:
        yield [points[0]] * (rows - moved) + [point] * moved


def least_alpha(epsilon: float) -> float:
    """Theorem 2.20: with at most VC/2 rows and epsilon <= 1, a pure sanitizer errs by at least 1/(4
    + 16 epsilon).
    """
    if not 0 < epsilon <= 1:
        raise InvalidInput("the theorem is about an epsilon of at most 1")
    return 1 / (4 + 16 * epsilon)


def k_point_rows(bits: int, k: int, alpha: float, epsilon: float) -> float:
    """Lemma 5.7: (1/(8 alpha epsilon)) ln((((2^d - 1)/(4 e^2 k))^(k/2) - 1)/3) rows for proper pure
    learning of k points.

    For alpha < 1/5, failure 1/2, 2^d >= k^1.1, and as far as it is above `k_point_from`.
    """
    power = k / 2 * (math.log(2**bits - 1) - math.log(4 * math.e**2 * k))
    if power <= 0:
        return 0.0
    # ln(e^power - 1) without overflow; from 700 on no float knows the 1.
    logarithm = power + math.log1p(-math.exp(-power)) if power < 700 else power
    return max(0.0, (logarithm - math.log(3)) / (8 * alpha * epsilon))


def k_point_from(alpha: float) -> float:
    """5 ln 4/(3 alpha): the rows from which Lemma 5.7 speaks."""
    return 5 * math.log(4) / (3 * alpha)


def k_point_sets(k: int, bits: int, most: int) -> Iterator[tuple[int, ...]]:
    """Sets of k points of 1..2^d - 1 that pairwise share at most k/2: graphs of polynomials of
    degree k/2 over a prime field.

    The paper finds a family greedily (its proof must drop sets that share more than k/2, not at
    most k/2); two polynomials of degree t agree in at most t places, which needs no search.
    """
    # Bertrand: there is a prime between k and 2k, and over a field two polynomials of degree t
    # agree in at most t places.
    p = next(n for n in range(max(k, 2), 2 * k + 3) if all(n % q for q in range(2, n)))
    if k * p >= 2**bits:
        raise InvalidInput(
            f"2^{bits} points are too few for sets of {k}: the family needs {k * p + 1}"
        )
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
    if copies * len(points) > rows:
        raise InvalidInput("the argument needs alpha of at most 1/5, and rows for every point")
    return [0] * (rows - copies * len(points)) + [point for point in points for _ in range(copies)]


def group_bound(distance: int, tables: int, epsilon: float, beta: float) -> bool:
    """Whether so many tables, pairwise so many rows apart, leave room for a pure method that fails
    with probability beta.
    """
    return math.log(max(tables - 1, 1)) + math.log(1 - beta) - epsilon * distance <= math.log(beta)
