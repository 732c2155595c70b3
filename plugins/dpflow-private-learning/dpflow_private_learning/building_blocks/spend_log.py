"""What a run of base mechanisms spends: the source they draw from, and the list of calls that a
test adds up again.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from dpflow.core.accounting.amounts import exact_text
from dpflow.core.sampling.randomness import Source

NOTHING = Fraction(0)
_DELTAS = Fraction(10**30)


@dataclass
class SpendLog:
    """One run. Every base mechanism draws from ``source`` and notes its own (epsilon, delta) in
    ``spent``.

    How many calls a run makes may depend on outputs that were drawn privately before, never on the
    rows; the privacy cost of a release is an upper bound of every possible run.

    Attributes:
        composes: whether calls add up. Those of one of many blocks do not, as a unit's rows are in one
            block: they are within a part that its caller states for all blocks.
    """

    source: Source
    spent: list[tuple[str, Fraction, Fraction]] = field(default_factory=list)
    composes: bool = True

    def record_call(self, name: str, epsilon: Fraction, delta: Fraction = NOTHING) -> None:
        """Note one call of a base mechanism."""
        # Noted when it is drawn, not when it is planned: a test adds up what really happened.
        self.spent.append((name, epsilon, delta))
        if self.composes:
            self.source.begin_part(epsilon, delta)

    def total_cost(self) -> tuple[Fraction, Fraction]:
        """Basic composition of all calls so far."""
        return sum((e for _, e, _ in self.spent), NOTHING), sum(
            (d for _, _, d in self.spent), NOTHING
        )

    def to_json(self) -> list[dict[str, Any]]:
        """Calls by mechanism and privacy cost; a delta is rounded up to 30 decimals, as in a plan."""
        # Sorted, so that the document depends on the calls and not on the order they came in.
        times_by_call = Counter(self.spent)
        return [
            {
                "call": name,
                "epsilon": exact_text(e),
                "delta": exact_text(-(-d * _DELTAS // 1) / _DELTAS),
                "times": times,
            }
            for (name, e, d), times in sorted(times_by_call.items())
        ]
