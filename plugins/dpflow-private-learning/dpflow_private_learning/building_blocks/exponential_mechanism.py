"""The exponential mechanism over pieces (McSherry, Talwar 2007; Prop. 2.25 of the paper).

Definition: a point h of the domain is drawn with probability proportional to exp(epsilon q(h)/2),
exactly, where q is an integer score that one row moves by at most 1 at every point.

Guarantee: epsilon-bounded range, hence epsilon-DP. Adding a constant to all scores changes nothing,
and scores more than 2^53 units below the best are taken as that far below, which moves by no more
than the scores do.

Accuracy: Pr[q <= max q - t] <= |H| exp(-epsilon t/2).
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from dpflow.core.sampling.noisy_values import draw_place
from dpflow_private_learning.building_blocks.spend_log import SpendLog
from dpflow_private_learning.building_blocks.step_function import Array, StepFunction

_FARTHEST = 2**53 - 1


def draw_point(parts: Sequence[StepFunction], epsilon: Fraction, calls: SpendLog) -> int:
    """A point of one or several disjoint ranges. Charges epsilon, or nothing where there is only
    one point.
    """
    lengths = np.concatenate([part.run_lengths() for part in parts])
    # One point is the answer on every table, so it tells nothing and costs nothing.
    if len(lengths) == 1 and lengths[0] == 1:
        return int(parts[0].starts[0])
    values = np.concatenate([part.values for part in parts])
    # Scores are whole numbers of units, so one row moves them by ``unit`` of these.
    starts = np.concatenate([part.starts for part in parts])
    return _draw_scored(starts, lengths, values, epsilon, calls, unit=parts[0].unit)


def draw_solution(scores: Sequence[int] | Array, epsilon: Fraction, calls: SpendLog) -> int:
    """The index of one of some listed solutions, at least one. Charges epsilon, or nothing for a
    single solution.
    """
    values = np.asarray(scores)
    # One solution is the answer on every table.
    if len(values) == 1:
        return 0
    places = np.arange(len(values))
    return _draw_scored(places, np.ones_like(places), values, epsilon, calls)


def _draw_scored(
    starts: Array, lengths: Array, values: Array, epsilon: Fraction, calls: SpendLog, unit: int = 1
) -> int:
    # What a row costs, which moves a score by a whole unit.
    calls.record_call("exponential", epsilon)
    # Capped scores move by no more than the scores do, so the guarantee stays.
    costs = np.minimum(values.max() - values, _FARTHEST)
    return draw_place(starts, lengths, costs, epsilon / unit / 2, calls.source)
