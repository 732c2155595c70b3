"""Is a sum of bounded scores above a claim? The linear test behind gates on means.

Each unit has a score s in [0, 1], so it moves the sum over units of (a - s), for a public number a, by

====================  ==========================================================
add-remove            max(\\|a\\|, \\|1 - a\\|): the term itself appears or disappears
replace, or a part    max of that and 1: one term becomes another, or none
====================  ==========================================================

`count_shortfall` is that sum in units of this largest move, rounded down, so one unit moves it by 1 at
most. No number of units enters: the sum is compared with 0. Scores are rounded to 2^-20 first, each
alone, and added up as integers.

`comparison_half_width` is what both noises of a sparse vector's comparison exceed together with a
given probability. `transcript_width` is for tests without noise: how far a mean of n units may be from
its expectation in every possible transcript of a session (a union bound over questions, each by
Hoeffding 1963). `ladder_width` and `splitting_width` are the same for two other ways to answer: a board
that shows its best score so far in steps (Blum, Hardt 2015), and units of its own for each question.
"""

from __future__ import annotations

from fractions import Fraction
from functools import cache
from math import ceil, exp, lgamma, log, sqrt

import numpy as np
from numpy.typing import NDArray

from dpflow.core.accounting.bisection import bisect_reals
from dpflow.core.contract.declaration import Table

#: Scores are rounded to this part of their range.
STEPS = 2**20


def largest_move(level: Fraction, table: Table, low: int = 0) -> Fraction:
    """How far one unit moves the sum of (level - score), for scores from [low, 1].

    Args:
        low: 0, or -1 for differences of two scores.
    """
    alone = max(abs(level - low), abs(1 - level))
    # A unit of which only a part is protected has a score before and after.
    if table.neighbours == "replace" or table.protects == "unit-block":
        return max(alone, Fraction(1 - low))
    return alone


def count_shortfall(
    shares: NDArray[np.float64], level: Fraction, table: Table, low: int = 0
) -> int:
    """The sum over units of (level - score), in units of `largest_move`, rounded down: an integer
    that one unit moves by 1 at most.

    Args:
        shares: scores from [low, 1]; what lies outside is clamped, NaN is no score.
        level: rounded up to a multiple of 1/2^20.
    """
    whole, number = sum_steps(shares, low)
    target = Fraction(ceil(level * STEPS), STEPS)
    shortfall = number * target - Fraction(whole, STEPS)
    move = largest_move(target, table, low)
    return int(shortfall // move) if move else 0


def sum_steps(shares: NDArray[np.float64], low: int = 0) -> tuple[int, int]:
    """The sum of all scores in steps of 1/2^20, and how many there are."""
    present = shares[~np.isnan(shares)]
    # 2^42 units of 2^20 steps fit into 64 bits.
    return int(np.rint(np.clip(present, low, 1) * STEPS).astype(np.int64).sum()), len(present)


@cache
def comparison_half_width(scale: Fraction, failure: float) -> float:
    """A t with Pr[|Y - X| > t] <= failure, for a sparse vector's noise Y of this scale on a query and
    X of half of it on the threshold. Reporting only.

    The continuous noises: Pr[|Y - X| > t] = (4 exp(-t/b) - exp(-2 t/b)) / 3 for scale b.
    """
    b = float(scale)

    def is_beyond(t: float) -> bool:
        return (4 * exp(-t / b) - exp(-2 * t / b)) / 3 <= failure

    # One more for the lattice and the sum that was rounded down.
    return bisect_reals(is_beyond, 0.0, b * (log(4 / (3 * failure)) + 1))[1] + 1


@cache
def log_transcripts(queries: int, failures: int, answers: int = 1) -> float:
    """The logarithm of how many questions an analyst can have asked, over all transcripts of a
    session that ends with its last paid answer.

    Args:
        answers: how many different texts a paid answer may carry.
    """
    last = min(failures, queries)
    terms = [
        lgamma(queries + 1) - lgamma(i + 2) - lgamma(queries - i) + i * log(answers)
        for i in range(last)
    ]
    top = max(terms)
    return top + log(sum(exp(term - top) for term in terms))


def transcript_width(
    units: int, queries: int, failures: int, beta: float, answers: int = 1
) -> float:
    """How far the mean of so many independent scores from [0, 1] may be from its expectation, in
    every transcript together but with probability ``beta``.
    """
    nodes = log_transcripts(queries, failures, answers)
    return sqrt((nodes + log(2 / beta)) / (2 * units))


def fresh_width(units: int, queries: int, beta: float) -> float:
    """The same for questions that were all fixed beforehand: Bonferroni's interval of a fresh test
    set.
    """
    return sqrt(log(2 * queries / beta) / (2 * units))


def ladder_width(units: int, queries: int, beta: float) -> float:
    """How far the best score that a Ladder shows may be from that on fresh data.

    A Ladder of step h shows a multiple of h, and a new one only if it is higher. So a transcript is a
    choice of questions and of as many levels, in order. Of steps a twentieth apart that with the least
    width is taken.
    """

    def width(levels: int) -> float:
        choices = [
            _log_binomial(queries, i) + _log_binomial(levels, i)
            for i in range(min(queries, levels) + 1)
        ]
        top = max(choices)
        logs = top + log(sum(exp(one - top) for one in choices))
        return 1 / levels + sqrt((logs + log(2 / beta)) / (2 * units))

    # The first term falls, the second rises: beyond the first rise nothing is less.
    least, levels = width(1), 2
    while (following := width(levels)) < least:
        least, levels = following, levels + 1 + levels // 20
    return least


def splitting_width(units: int, queries: int, beta: float) -> float:
    """How far each of so many means may be from its expectation that all have units of their own."""
    return fresh_width(1, queries, beta) * sqrt(queries / units)


def _log_binomial(whole: int, part: int) -> float:
    return lgamma(whole + 1) - lgamma(part + 1) - lgamma(whole - part + 1)
