"""Is a private sum above 0? Two ways to ask that many times, each with a guarantee for all answers.

Every sum is an integer that one unit moves by 1 at most. Questions may depend on earlier answers.

`SparseVectorTest` pays for answers "above" only, and ends with the last that is paid for: so many
stretches, each epsilon-DP (`dpflow.core.toolbox.sparse_vector`).

`GaussianTest` adds fresh discrete Gaussian noise to each sum. Each of a number of draws that is fixed
beforehand is rho-zCDP, whatever it says, so all of them together are (draws x rho)-zCDP (Bun, Steinke
2016, Lemma 2.3; Canonne, Kamath, Steinke 2020, Theorem 4). Answers "above" cost no more than others.

Of n questions with c answers "above", noise grows with c in the first and with the root of n in the
second: few questions, or many answers "above", are for the second.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import sqrt
from typing import Any, Protocol

from dpflow.core.accounting.events import DiscreteLaplace
from dpflow.core.contract.sensitivity import Sensitivity
from dpflow.core.sampling.randomness import Source
from dpflow.core.toolbox.gate_power import mean_refusal_probability
from dpflow.core.toolbox.mean_test import comparison_half_width
from dpflow.core.toolbox.noise import (
    Noise,
    gaussian_noise,
    half_width,
    scale_for,
)
from dpflow.core.toolbox.sparse_vector import Engine, Memory

#: One unit moves a sum by this much at most.
ONE = Sensitivity(1, 1)


class SumTest(Protocol):
    """A way to ask whether sums are above 0."""

    def start_session(self, source: Source) -> dict[str, Any]:
        """The secret state before the first question, with ``failures``: answers "above" so far."""

    def is_above(
        self, value: int, state: dict[str, Any], source: Source
    ) -> tuple[bool, dict[str, Any]]:
        """The noisy answer about one sum, and the state after it."""

    def half_width(self, failure: float) -> float:
        """A t that the noise of one answer exceeds, to either side, with this probability at most."""

    def session_reach(self, sums: int, failure: float) -> float:
        """What no noise of a session exceeds, to either side, but with this probability, all of so many
        sums together.
        """

    def power(self, distance: float, units: int, deviation: float, move: float) -> float:
        """How often a mean is said to be above that is so far above: see `mean_refusal_probability`.

        Args:
            move: how far one unit moves the sum over units, as a share of the range.
        """

    def extra_noise(self, move: int) -> Noise:
        """For one more number, beside an answer "above", that one unit moves by ``move`` at most."""


@dataclass(frozen=True)
class SparseVectorTest:
    """By a sparse vector; ``extra_epsilon`` is what each number beside an answer "above" costs."""

    engine: Engine
    extra_epsilon: Fraction

    def start_session(self, source: Source) -> dict[str, Any]:
        return self.engine.start_session(source).to_json()

    def is_above(
        self, value: int, state: dict[str, Any], source: Source
    ) -> tuple[bool, dict[str, Any]]:
        above, memory = self.engine.compare_value(Memory.from_json(state), -value, 0, source)
        return above, memory.to_json()

    def half_width(self, failure: float) -> float:
        return comparison_half_width(self.engine.query_scale, failure)

    def session_reach(self, sums: int, failure: float) -> float:
        # Which threshold meets which sum depends on the rows: so either each noise alone, with a quarter for
        # the few thresholds and one more for the sum that was rounded down, or all pairs.
        thresholds = half_width(self.engine.threshold_scale, failure / 4 / self.engine.failures)
        alone = thresholds + half_width(self.engine.query_scale, failure * 0.75 / sums) + 1
        return min(alone, self.half_width(failure / sums / self.engine.failures))

    def power(self, distance: float, units: int, deviation: float, move: float) -> float:
        scales = self.engine.query_scale, self.engine.threshold_scale
        moves = Fraction(move)
        return mean_refusal_probability(
            distance, units, deviation, (scales[0] * moves, scales[1] * moves)
        )

    def extra_noise(self, move: int) -> Noise:
        return Noise(DiscreteLaplace(scale_for(move, self.extra_epsilon), move))


@dataclass(frozen=True)
class GaussianTest:
    """By noise of its own for each sum; ``rho`` is what every draw costs."""

    rho: Fraction

    def start_session(self, source: Source) -> dict[str, Any]:
        return {"failures": 0}

    def is_above(
        self, value: int, state: dict[str, Any], source: Source
    ) -> tuple[bool, dict[str, Any]]:
        above = gaussian_noise(ONE, self.rho).add_noise(value, source) > 0
        return above, {"failures": int(state["failures"]) + above}

    def half_width(self, failure: float) -> float:
        # One more for the sum that was rounded down.
        return gaussian_noise(ONE, self.rho).half_width(failure) + 1

    def session_reach(self, sums: int, failure: float) -> float:
        return self.half_width(failure / sums)

    def power(self, distance: float, units: int, deviation: float, move: float) -> float:
        of_mean = move / sqrt(2 * self.rho * units)
        return mean_refusal_probability(distance, units, sqrt(deviation**2 + of_mean**2), ())

    def extra_noise(self, move: int) -> Noise:
        return gaussian_noise(Sensitivity(move, move**2), self.rho)
