"""How much each of k adaptive calls may spend so that all of them together keep a target (section
1, Theorem 2.5).
"""

from __future__ import annotations

import math
from fractions import Fraction

from dpflow.core.accounting import composition, renyi
from dpflow_private_learning.building_blocks.log_bounds import ln_up
from dpflow_private_learning.building_blocks.rec_concave import Budget

_GRID = 10**15


def round_down(x: Fraction) -> Fraction:
    """A shorter number that is not larger, by less than one part in 10^15 of the largest power of
    ten below it.
    """
    if not x:
        return x
    # Rounding down keeps the total below the target: a call may spend less, never more.
    unit = Fraction(10) ** (math.floor(math.log10(x)) - 15)
    return x // unit * unit


def call_epsilon(
    epsilon: Fraction, spare: Fraction, count: int, budget: Budget = "tight"
) -> Fraction:
    """The epsilon of each of ``count`` calls whose total is ``epsilon``, with ``spare`` delta for
    the composition itself.

    ``paper``: epsilon/(2 sqrt(2 k ln(1/spare))), enough for epsilon <= 2 ln(1/spare). ``tight``:
    the largest that basic or advanced composition allows.
    """
    basic = epsilon / count
    if budget == "paper":
        # Beyond this the paper's formula proves nothing; basic composition always holds.
        if epsilon > 2 * ln_up(1 / spare):
            return round_down(basic)
        return round_down(epsilon / (2 * renyi.sqrt_up(2 * count * ln_up(1 / spare))))
    # Advanced composition beats basic only from some number of calls on, so both are tried.
    return round_down(max(basic, Fraction(composition.step_eps(epsilon, spare, count))))


def theorem_epsilon(
    epsilon: Fraction, spare: Fraction, count: int, budget: Budget = "tight"
) -> Fraction:
    """The same by Theorem 2.5 solved exactly, (-A + sqrt(A^2 + 8 k eps))/(4 k) with A = sqrt(2 k
    ln(1/spare)); at most 1.
    """
    if budget == "paper":
        return round_down(
            min(Fraction(1), Fraction(composition.coarse_step_eps(epsilon, spare, count)))
        )
    return call_epsilon(epsilon, spare, count)
