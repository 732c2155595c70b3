"""Are independent differences above a margin on average, on fresh data? A test by one exact integer that
one unit moves by 1 at most.

Differences d are from [-1, 1], and b >= 0 is the margin. With y = (d - b)/(1 + b), which is -1 at least,
and a rate r from (0, 1), let psi(r) = -ln(1 - r) - r and

    S(r) = sum over units of (r y - psi(r) y^2).

As ln(1 + r y) >= r y - psi(r) y^2 for all y >= -1 (Fan, Grama, Liu 2015), E exp(S(r)) is at most the
product of the (1 + r E y), which is at most 1 where the expectations of y have a mean of 0 or less. So
where challengers are not better by b, S(r) reaches c with probability exp(-c) at most: no variance is
assumed or measured, and the square takes its place.

One unit moves S(r) by a number that r, b and the neighbouring relation fix. In units of it, less what
the transcripts of a session cost (`dpflow.core.toolbox.transcripts`), rounded down, the largest over
`RATES` is an integer that one unit moves by 1 at most: differences of little spread are found by large
rates, others by small ones.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cache

import numpy as np
from numpy.typing import NDArray

from dpflow.core.contract.requests import PairCounts
from dpflow.core.toolbox.mean_test import STEPS
from dpflow.core.toolbox.transcripts import as_fraction

#: Each is the best one for some number and spread of differences, and its double for twice less.
RATES = tuple(Fraction(1, 2**i) for i in range(1, 11))
#: Squares of so many steps are added up in 64 bits.
_CHUNK = 2**20


@dataclass(frozen=True)
class Rate:
    """One of `RATES` with what a unit can do.

    Attributes:
        rate, curvature: r, and psi(r) rounded up.
        move: how far one unit moves S(r).
    """

    rate: Fraction
    curvature: Fraction
    move: Fraction


def list_rates(margin: Fraction, *, is_replaced: bool) -> tuple[Rate, ...]:
    """What `count_improvement` compares.

    Args:
        margin: b, rounded up to a multiple of 1/2^20.
        is_replaced: whether a unit's difference may become any other one; else it appears or
            disappears.
    """
    return _list_rates(Fraction(_margin_steps(margin), STEPS), is_replaced)


@cache
def _list_rates(margin: Fraction, is_replaced: bool) -> tuple[Rate, ...]:
    top = (1 - margin) / (1 + margin)
    rates = []
    for rate in RATES:
        curvature = _curvature(rate)
        # S(r)'s term grows with y on [-1, 1], from -(r + psi) at y = -1.
        lowest, highest = rate + curvature, rate * top - curvature * top**2
        rates.append(Rate(rate, curvature, lowest + (highest if is_replaced else 0)))
    return tuple(rates)


def count_improvement(
    differences: NDArray[np.float64], margin: Fraction, cost: float, *, is_replaced: bool
) -> int:
    """0 or more only with probability exp(-``cost``) where differences are not above the margin on
    average; one unit moves it by 1 at most.

    Args:
        differences: what lies outside of [-1, 1] is clamped; NaN is none. Rounded down to 1/2^20.
        margin: from [0, 1].
    """
    steps = _margin_steps(margin)
    present = differences[~np.isnan(differences)]
    y = np.floor(np.clip(present, -1, 1) * STEPS).astype(np.int64) - steps
    total = int(y.sum())
    squares = sum(
        int((part * part).sum()) for part in (y[i : i + _CHUNK] for i in range(0, len(y), _CHUNK))
    )
    scale = STEPS + steps
    sums = Fraction(total, scale), Fraction(squares, scale**2)
    return _count_moves(*sums, margin, cost, is_replaced=is_replaced)


def count_pair_improvement(counts: PairCounts, margin: Fraction, cost: float) -> int:
    """The same of a pair's difference on average, for independent units that are alike in each class.

    S(r) is the mean over pairs of (r y - psi(r) y^2), times the number m of pairs that share no unit. That
    is the mean over all ways to choose m such pairs of their sums, so E exp(S(r)) is at most that of one
    of these sums (Hoeffding 1963, section 5), which is at most 1.
    """
    if not counts.pairs:
        return -1
    level = Fraction(_margin_steps(margin), STEPS)
    mean, square = (
        Fraction(counts.halves, 2 * counts.pairs),
        Fraction(counts.squares, 4 * counts.pairs),
    )
    total = (mean - level) / (1 + level)
    squares = (square - 2 * level * mean + level**2) / (1 + level) ** 2
    m = counts.independent
    return _count_moves(m * total, m * squares, margin, cost, is_replaced=False)


def _count_moves(
    total: Fraction, squares: Fraction, margin: Fraction, cost: float, *, is_replaced: bool
) -> int:
    """The largest S(r) less what is needed, in moves of one unit, from the sums of y and y^2."""
    needed = as_fraction(total_cost(cost))
    return max(
        math.floor((each.rate * total - each.curvature * squares - needed) / each.move)
        for each in list_rates(margin, is_replaced=is_replaced)
    )


def total_cost(cost: float) -> float:
    """The cost with that of choosing the best rate afterwards."""
    return cost + math.log(len(RATES))


def _margin_steps(margin: Fraction) -> int:
    return math.ceil(margin * STEPS)


def _curvature(rate: Fraction) -> Fraction:
    """psi(r) = r^2/2 + r^3/3 + ..., rounded up: the terms from r^65/65 on are less than 2^-64 in all."""
    terms = sum((rate**i / i for i in range(2, 65)), Fraction(0))
    return Fraction(math.ceil(terms * 2**60) + 1, 2**60)
