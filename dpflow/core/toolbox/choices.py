"""One of several candidates by their scores, with probabilities that fall with the distance from the best.

Only differences of scores matter, so what counts is `Sensitivity.spread`: how far one unit moves a difference
of two. Scores move so where each is one of the integers of an answer (`Table.sensitivity`), or a whole multiple of
one. Any other utility declares its spread as an integer; audits compare it with scores on neighbouring tables.

Guarantee: at rate epsilon/spread the log-probability of a choice moves within an interval of length epsilon,
so it is of epsilon-bounded range (Dong, Durfee, Rogers 2020), hence epsilon-DP. Permute-and-flip at this rate
is epsilon-DP (McKenna, Sheldon 2020): its law depends on differences alone, and with the least move taken off all
scores they rise by at most the spread.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpflow.core.accounting.events import BoundedRange, Pure
from dpflow.core.contract.sensitivity import Sensitivity
from dpflow.core.sampling.noisy_values import draw_place
from dpflow.core.sampling.randomness import Source
from dpflow.core.sampling.samplers import choose_piece, permute_and_flip

Ints = NDArray[np.int64]
#: Candidates further from the best than this count as that far: they are never chosen anyway.
MAX_COST = 2**53 - 1


@dataclass(frozen=True)
class Choice:
    """A choice at one cost.

    Attributes:
        moved: the sensitivity of the scores, or how far one unit moves a difference of two, as declared.
        epsilon: above 0, or 0 for a uniform choice.
        flips: whether by permute-and-flip.
    """

    moved: Sensitivity | int
    epsilon: Fraction
    flips: bool = False

    @property
    def spread(self) -> int:
        """How far one unit moves a difference of two scores; 1 at least."""
        return max(1, self.moved if isinstance(self.moved, int) else self.moved.spread)

    @property
    def rate(self) -> Fraction:
        """By how much one unit of a score raises the log-odds."""
        return self.epsilon / self.spread

    @property
    def event(self) -> Pure | BoundedRange:
        """The guarantee of one choice."""
        return Pure(self.epsilon) if self.flips else BoundedRange(self.epsilon)

    def choose_best(self, scores: Ints, source: Source) -> int:
        """The place of a candidate whose score is among the largest."""
        costs = np.minimum(scores.max() - scores, MAX_COST)
        if self.flips:
            return permute_and_flip(costs, self.rate, source)
        return choose_piece(np.ones_like(costs), costs, self.rate, source)

    def choose_integer(self, starts: Any, lengths: Any, costs: Any, source: Source) -> int:
        """An integer of runs of equal cost, the smaller the likelier: see `draw_place`. Not with ``flips``."""
        return draw_place(starts, lengths, costs, self.rate, source)
