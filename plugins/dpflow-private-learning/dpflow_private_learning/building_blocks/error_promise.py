"""What a learner or sanitizer promises about its error: how much, of what, how surely, by which
theorem, and how many rows that takes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from dpflow.core.contract.printed_numbers import print_bound, print_width
from dpflow.core.contract.results import ErrorBound
from dpflow.errors import PlanRefused

#: What errors are of.
WRONG = "share of rows that the rule gets wrong"
FREQUENCY = "share of rows at a value"


@dataclass(frozen=True)
class ErrorPromise:
    """An error that is proven from some number of rows on.

    Attributes:
        error: the most that it is.
        what: of what, such as "share of rows on the wrong side".
        failure: with at most this probability it is more.
        theorem: where the proof is.
        rows: from which it holds; infinite where these parameters prove nothing, as with an error or a
            failure of 1 or more.
        shrinks: how the rows grow as the error or epsilon falls.
        assumes: what the rows must fulfil, which nothing checks; "" if they may be any.
    """

    error: Fraction
    what: str
    failure: Fraction
    theorem: str
    rows: float
    shrinks: str = "rows grow as 1/(error epsilon)"
    assumes: str = ""

    def __post_init__(self) -> None:
        if max(self.error, self.failure) >= 1:
            object.__setattr__(self, "rows", math.inf)

    @property
    def surely(self) -> float:
        """The probability with which it holds."""
        return max(0.0, float(1 - self.failure))

    def with_count(self, margin: int, shift: int, beta: Fraction, rows: int = 0) -> ErrorPromise:
        """The promise where a noisy count takes the place of the rows: it lies up to two margins below
        them, but with probability ``beta``, and the error grows by ``shift`` margins over it.

        ``rows``: what is counted at least; if left out, so many that the error is at most doubled.
        """
        if not math.isfinite(self.rows):
            return self
        moved, room = shift * margin, min(self.error, (1 - self.error) / 2)
        least = max(1, math.ceil(self.rows), math.ceil(moved / room) if moved else 0)
        return replace(
            self,
            error=self.error + Fraction(moved, max(least, rows)),
            failure=self.failure + beta,
            theorem=f"{self.theorem}, with rows counted within {2 * margin:,}",
            rows=least + 2 * margin,
        )

    def to_json(self, proven: Fraction | None) -> dict[str, Any]:
        """For the document of a result: the error that is proven for its rows, if any; and what the
        theorem says, from how many rows on, whatever is known of them.
        """
        finite = math.isfinite(self.rows)
        return {
            "at_most": None if proven is None else float(proven),
            "proven_from": {"rows": math.ceil(self.rows), "at_most": float(self.error)}
            if finite
            else None,
            "of": self.what,
            "if": self.assumes or None,
            "with_probability": self.surely,
            "by": self.theorem,
            "shrinks": self.shrinks,
        }

    def to_bound(self, rows: int | None, least_error: float | None) -> ErrorBound:
        """For a plan with so many rows, if any were given, that prove at best ``least_error``."""
        source = f"{self.theorem}; {self.shrinks}"
        if not math.isfinite(self.rows):
            return ErrorBound(
                {}, f"no number of rows proves an error with these parameters ({source})"
            )
        held = f"with probability {self.surely:g} from {math.ceil(self.rows):,} rows on ({source})"
        if self.assumes:
            held += f", if {self.assumes}, which nothing checks"
        if rows is not None and self.rows > rows:
            best = (
                "no error below 1/2"
                if least_error is None
                else f"an error of {print_width(least_error)}"
            )
            return ErrorBound(
                {},
                f"{self.what} at most {print_bound(float(self.error), upper=True)} {held}; {rows:,} rows prove {best}",
            )
        if rows is not None:
            held += f"; if there are {rows:,} rows, as given: the release reads or counts them"
        return ErrorBound({self.what: float(self.error)}, held)


def least_proven(promise_at: Callable[[Fraction], ErrorPromise], rows: int) -> float | None:
    """The least error that so many rows prove, over the accuracies below 1/2; None if none is."""
    best, low, high = None, 0.0, 0.5
    # Thirty halvings on a logarithmic line: far below what anybody tells apart.
    low = 1e-6
    for _ in range(30):
        middle = math.sqrt(low * high)
        try:
            promise = promise_at(Fraction(middle).limit_denominator(10**8))
            enough = promise.rows <= rows
        except PlanRefused:
            enough = False
        if enough:
            best, high = float(promise.error), middle
        else:
            low = middle
    return best
