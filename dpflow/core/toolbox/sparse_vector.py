"""AboveThreshold as a state machine on integers: the engine of every gate.

Definition: a session allows ``failures`` costly answers. While it lives it holds one secret noisy
threshold; each query is an integer x that one unit moves by at most D, answered "below" when x + Y
<= t + X, with Y fresh discrete Laplace noise of scale 4D/e0, X discrete Laplace of scale 2D/e0
drawn afresh after every "below". "Above" costs nothing.

Guarantee: each stretch up to and including one "below" is e0-DP, so the session is (failures x
e0)-DP, whatever the number of "above" answers (Dwork and Roth 2014, Theorem 3.23, mirrored; with
integer noise the proof shifts integers by D, which keeps the lattice). Neither noise is ever reused
across stretches, logged or shown.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from dpflow.core.sampling.randomness import Source
from dpflow.core.sampling.samplers import discrete_laplace
from dpflow.core.toolbox.noise import require_scale


@dataclass(frozen=True)
class Engine:
    """Public parameters: ``epsilon`` per stretch (e0), ``sensitivity`` D of every query,
    ``failures`` allowed.
    """

    epsilon: Fraction
    sensitivity: int
    failures: int

    @property
    def threshold_scale(self) -> Fraction:
        """Scale of the threshold's noise."""
        return 2 * self.sensitivity / self.epsilon

    @property
    def query_scale(self) -> Fraction:
        """Scale of each query's noise."""
        return 4 * self.sensitivity / self.epsilon

    def require_scales(self) -> None:
        """Raises `PlanRefused` where noise is beyond what can be drawn."""
        # The larger one. It is first drawn when a question is asked, and that is after the charge.
        require_scale(self.query_scale)

    def start_session(self, source: Source) -> Memory:
        """A fresh session. Raises `PlanRefused` where noise is beyond what can be drawn."""
        self.require_scales()
        return Memory(0, self._threshold_noise(source))

    def compare_value(
        self, memory: Memory, value: int, threshold: int, source: Source
    ) -> tuple[bool, Memory]:
        """Answer whether ``value`` is below the threshold. Calling it on an exhausted memory is a
        bug, not a query.
        """
        # No answer is charged any more, so none may be drawn.
        if memory.is_exhausted(self):
            raise AssertionError("an exhausted sparse-vector session was asked")
        # The noise of the threshold stays for the whole stretch; only the query's is fresh.
        if not _is_below(value - threshold, memory.noise, self.query_scale, source):
            return False, memory
        # A "below" ends the stretch: its threshold noise is never used again. After the last one
        # nothing is compared any more, so nothing is drawn.
        failures = memory.failures + 1
        return True, Memory(
            failures, self._threshold_noise(source) if failures < self.failures else 0
        )

    def _threshold_noise(self, source: Source) -> int:
        return _draw_threshold(self.threshold_scale, source)


# Audits follow these two (`dpflow.testing.replay`): what is secret meets nothing but what they return.
def _draw_threshold(scale: Fraction, source: Source) -> int:
    return int(discrete_laplace(scale, 1, source)[0])


def _is_below(difference: int, noise: int, scale: Fraction, source: Source) -> bool:
    """Whether a value, so much above the threshold, is below it once both have their noise."""
    return difference + int(discrete_laplace(scale, 1, source)[0]) <= noise


@dataclass(frozen=True)
class Memory:
    """Secret state of a session: failures so far and the noise on the threshold. Its repr shows
    nothing.
    """

    failures: int = field(repr=False)
    noise: int = field(repr=False)

    def is_exhausted(self, engine: Engine) -> bool:
        """Whether all failures are used up."""
        return self.failures >= engine.failures

    def to_json(self) -> dict[str, Any]:
        """For the ledger's session row only."""
        return {"failures": self.failures, "noise": self.noise}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Memory:
        """The inverse of `to_json`."""
        return cls(int(data["failures"]), int(data["noise"]))
