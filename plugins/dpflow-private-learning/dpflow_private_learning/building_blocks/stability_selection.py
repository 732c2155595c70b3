"""Stability-based selection, A_dist (Prop. 2.26, after Smith and Thakurta 2013): the best solution
if it is far ahead.

Definition: gap = q(best) - q(second), ties broken by a fixed order. The best solution is released
if gap + Z >= s + k, where Z is discrete Laplace of scale s/epsilon and k the least integer with
Pr[Z >= k] <= delta; otherwise nothing ("bottom").

Guarantee: (epsilon, delta)-DP if s bounds how far one row moves the gap. If the best solution is
the same on both tables, only the noisy gap differs, by at most s. If it differs, both gaps are at
most s, and each is released with probability at most delta. A score that one row moves by 1 has s =
2: the best may fall while the second rises. Only for counts under add-remove, where one row moves
all scores the same way, is s = 1.

The paper adds noise of scale 1/epsilon and compares with ln(1/delta)/epsilon, for every score.
``literal`` does that and is (2 epsilon, delta e^(2 epsilon)/2)-DP with the paper's continuous
noise, not (epsilon, delta): 14 rows against 0 compared with 13 against 1 have delta = 0.363 at
epsilon = 1, delta = 1e-6. With discrete noise it is 0.462, and the guarantee that holds is (2
epsilon, delta e^(2 epsilon)/(1 + e^-epsilon)).

When not to use it: if the best solution is not expected to lead by about 2/epsilon ln(1/delta)
rows.
"""

from __future__ import annotations

import math
from fractions import Fraction

from dpflow.core.accounting import renyi
from dpflow.core.sampling.noisy_values import add_laplace
from dpflow.core.toolbox.partition_selection import tail_above
from dpflow_private_learning.building_blocks.log_bounds import ln_up
from dpflow_private_learning.building_blocks.spend_log import SpendLog


def gap_threshold(
    epsilon: Fraction, delta: Fraction, moves: int = 2, literal: bool = False
) -> tuple[Fraction, int]:
    """Scale of the noise and what the noisy gap must reach."""
    # The paper's text, for comparison: `literal_guarantee` says what it really costs.
    if literal:
        scale = 1 / epsilon
        return scale, math.ceil(scale * ln_up(1 / delta))
    # The gap moves by ``moves`` where both leader and second change; noise for less is the
    # paper's error, and costs twice the epsilon.
    scale = moves / epsilon
    return scale, moves + tail_above(scale, delta)


def stable_lead(
    epsilon: float | Fraction,
    delta: float | Fraction,
    beta: float | Fraction,
    moves: int = 2,
    literal: bool = False,
) -> int:
    """The least gap that is released with probability 1 - beta, by the exact law: Pr[gap + Z <
    level] = Pr[Z >= gap - level + 1].
    """
    scale, level = gap_threshold(Fraction(epsilon), Fraction(delta), moves, literal)
    return level + tail_above(scale, Fraction(beta)) - 1


def literal_guarantee(epsilon: Fraction, delta: Fraction) -> tuple[Fraction, Fraction]:
    """What one call in literal mode really guarantees."""
    return 2 * epsilon, delta * renyi.exp_up(2 * epsilon) / (1 + 1 / renyi.exp_up(epsilon))


def is_stable(
    gap: int,
    epsilon: Fraction,
    delta: Fraction,
    calls: SpendLog,
    moves: int = 2,
    literal: bool = False,
) -> bool:
    """Whether to release the best solution. Charges the guarantee, whatever the answer."""
    scale, level = gap_threshold(epsilon, delta, moves, literal)
    calls.record_call(
        "stability", *(literal_guarantee(epsilon, delta) if literal else (epsilon, delta))
    )
    return reaches_level(gap, level, scale, calls)


def reaches_level(value: int, level: int, scale: Fraction, calls: SpendLog) -> bool:
    """Whether value + Z >= level for fresh discrete Laplace noise."""
    return add_laplace(value, scale, calls.source) >= level
