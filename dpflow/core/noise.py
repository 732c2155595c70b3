"""Scales and tails of the integer noise that mechanisms add: the arithmetic between a sensitivity and an error bound.

Discrete Laplace of scale b: Pr[x] = (1-q)/(1+q) q^|x| with q = exp(-1/b). Added to an integer statistic that one
neighbour moves by at most D it is (D/b, 0)-DP (Ghosh, Roughgarden, Sundararajan 2009). Two-sided tail:
Pr[|X| > t] = 2 q^(t+1) / (1+q).
"""

from __future__ import annotations

import math
from fractions import Fraction

from dpflow.core.declaration import Table
from dpflow.core.samplers import MAX_SCALE
from dpflow.errors import PlanRefused


def scale_for(sensitivity: int, epsilon: Fraction) -> Fraction:
    """Scale of discrete Laplace noise that makes a statistic of this L1 sensitivity epsilon-DP, exactly."""
    scale = Fraction(max(sensitivity, 1)) / epsilon
    if scale > MAX_SCALE:
        raise PlanRefused(
            "the declared bounds, limits and epsilon need noise of more than 2^50 steps; "
            "take a coarser step, tighter bounds, lower limits or a larger epsilon"
        )
    return scale


def half_width(scale: Fraction, failure: float = 0.05) -> int:
    """Smallest t with Pr[|X| > t] <= failure for discrete Laplace noise of this scale; reporting only, never a claim."""
    q = math.exp(-1 / float(scale)) if scale > Fraction(1, 700) else 0.0
    if q == 0.0:
        return 0
    return max(0, math.ceil(float(scale) * math.log(2 / (failure * (1 + q))) - 1))


def sum_sensitivity(table: Table, per_row: int, by: str | None) -> int:
    """L1 sensitivity of sums of terms with absolute value at most ``per_row``, per group of ``by`` or in total.

    Under add-remove a unit brings at most groups x rows_per_group terms (or ``rows`` terms without grouping); under
    replace it may take as many away from other groups, which doubles it.
    """
    groups, rows = table.cut(by)
    return groups * rows * per_row * (2 if table.neighbours == "replace" else 1)
