"""Sample complexity without privacy (section 2.2, Theorems 2.6, 2.12 to 2.14)."""

from __future__ import annotations

import math


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
