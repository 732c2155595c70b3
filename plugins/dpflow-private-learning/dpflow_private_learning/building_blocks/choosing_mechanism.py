"""The choosing mechanism for scores of bounded growth (section 4.1, Figure 8, Lemmas 4.4 and 4.5).

Definition: q(S, f) is 0 on the empty table, and one row more raises it by 0 or 1, for at most k
solutions f. With n the declared number of rows: if max q + Z < alpha n/2, Z discrete Laplace of
scale 4/epsilon, nothing is released ("bottom"). Otherwise one of the solutions with q >= 1 is drawn
with probability proportional to exp(epsilon q/4).

Guarantee: (epsilon, delta)-DP for one row added, removed or replaced, if n is at least `gate`. The
gate is part of the proof: below it the solutions that only one of two neighbours has would show. n
is a constant of the plan, so nothing about the rows decides whether it holds. Proof. Say max q >=
alpha n/4 on S. The weights then sum to W >= exp(epsilon alpha n/16), so the at most k solutions
that only S has, each of score 1, are drawn with probability k e^(epsilon/4)/W <= delta; the others
cost epsilon/4 for the noise, epsilon/4 for their weight, and epsilon/2 for the sums, since W' <=
e^(epsilon/4) (W + k) <= e^(epsilon/2) W. If max q < alpha n/4, anything is released with
probability at most Pr[Z >= alpha n/4] <= delta. With no solution at all "bottom" is released; a
neighbour then has max q <= 1 < alpha n/4.

Accuracy (Lemma 4.5): with n >= `proven_rows`, with probability 1 - beta, q >= max q - alpha n, or
bottom if max q < alpha n.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np

from dpflow.core.sampling.samplers import choose_piece
from dpflow_private_learning.building_blocks.log_bounds import ln_up
from dpflow_private_learning.building_blocks.spend_log import SpendLog
from dpflow_private_learning.building_blocks.stability_selection import reaches_level
from dpflow_private_learning.building_blocks.step_function import Array


def minimum_rows(alpha: Fraction, epsilon: Fraction, delta: Fraction, growth: int) -> int:
    """The least declared number of rows at which the guarantee is proved; rounded up."""
    # The three terms: the test passes by chance, a solution that only one table has is drawn,
    # and the sums of weights differ. Rounded up, because the proof fails below.
    need = max(ln_up(1 / delta), epsilon / 4 + ln_up(growth / delta), ln_up(4 * growth / epsilon))
    return max(math.ceil(16 * need / (alpha * epsilon)), math.floor(4 / alpha) + 1)


def proven_rows(alpha: float, beta: float, epsilon: float, delta: float, growth: int) -> float:
    """Lemma 4.5: rows from which the answer is alpha-good with probability 1 - beta."""
    return 16 / (alpha * epsilon) * math.log(16 * growth / (alpha * beta * epsilon * delta))


def choose_solution(
    scores: Array, rows: int, alpha: Fraction, epsilon: Fraction, delta: Fraction, calls: SpendLog
) -> int | None:
    """The index of one of the solutions, or None for bottom.

    Args:
        scores: of every solution with a score of at least 1, in an order that is a function of the
        solutions.
        rows: the declared number of rows, at least `gate`; that is checked where the plan is made.
        alpha: accuracy as a share of the rows, above 0 and at most 1.
        epsilon, delta: the privacy cost.
        calls: source and notebook.
    """
    calls.record_call("choosing", epsilon, delta)
    level = math.ceil(alpha * rows / 2)
    best = int(scores.max()) if len(scores) else 0
    # The noise is drawn even where there is no solution: its cost is charged, and an empty
    # table must look like one with a best score of 0.
    if not reaches_level(best, level, 4 / epsilon, calls) or not len(scores):
        return None
    # Capped as in `exponential_mechanism`: none counts as more than 2^53 below the best.
    costs = np.minimum(best - scores, 2**53 - 1)
    return choose_piece(np.ones(len(scores), np.int64), costs, epsilon / 4, calls.source)
