"""What no pure method can do (Lemmas 4.15, 5.7, Theorems 2.20, 4.16, 5.9, 5.10)."""

from __future__ import annotations

import math

from dpflow.errors import InvalidInput


def sanitizer_rows(size: int, alpha: float, beta: float, epsilon: float) -> float:
    """Lemma 4.15: (1/(3 epsilon alpha)) ln((X_C - 1)(1 - beta)/beta) rows at least, for a pure
    sanitizer, X_C = ``size``.
    """
    return max(
        0.0, 1 / (3 * epsilon * alpha) * (math.log(max(size - 1, 1)) + math.log((1 - beta) / beta))
    )


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
