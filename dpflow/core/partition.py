"""Private keys: which noise, and from which noisy count on a key may be shown, so that a lone unit's key stays hidden.

A unit reaches at most g keys with at most B in each; the noise has scale b = D/epsilon for an L1 sensitivity of D. A key that
no row has is never shown. Two rules, of which `Shown.least` takes the lower threshold:

- *Laplace*: show n + X >= t + B, where t is the smallest integer with Pr[X >= t] <= delta/g. Proof. Let T' have the unit's
  rows and T not. Keys that only T' has are at most g, each with at most B, so one of them is shown with probability at most
  delta. Given that none is, outputs are those of the shared keys, which costs epsilon. In the other direction the factor
  1 - delta of "none is shown" is a difference of at most delta. Under replace each table may have g keys of its own; the
  two deficits do not add: their maximum bounds the divergence.
- *Truncated* (Desfontaines, Voss, Gipson, Mandayam 2022, for B = 1 the optimal selection but for the rounding of k): X
  conditioned on |X| <= k, show n + X > k. Proof. On one key whose count moves by d <= B, the outcomes that only one side
  reaches are the d outermost ones, of probability M(k) = q^(k-B+1) (1 - q^B)/(1 + q - 2 q^(k+1)) at most; all others
  change by a factor exp(d/b) at most. So a key costs (d/b, M(k)), the changed keys together epsilon and m M(k), where m is g
  under add-remove and 2 g under replace; k is the smallest integer >= B with M(k) <= delta/m. A key without rows has
  n + X <= k surely, so leaving it out is no other release.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from dpflow.core.declaration import Table
from dpflow.core.noise import FAILURE, half_width, reach, scale_for
from dpflow.core.randomness import Source
from dpflow.core.samplers import discrete_laplace, truncated_laplace

_SLACK = 1 + Decimal("1e-30")  # covers the rounding of 60-digit arithmetic, always in favour of the unit


@dataclass(frozen=True)
class Shown:
    """A rule for private keys: noise of this scale, truncated at ``bound`` if that is not None, shown from ``threshold`` on."""

    scale: Fraction
    threshold: int
    bound: int | None

    @classmethod
    def least(cls, table: Table, by: str, most: int, epsilon: Fraction, delta: Fraction) -> Shown:
        """The (epsilon, delta)-DP rule with the lower threshold for counts of which a unit brings ``most`` to a key."""
        groups = table.cut(by)[0]
        scale = scale_for(reach(table, by, None, 0, 1, most).l1, epsilon)
        laplace = most + tail_above(scale, delta / groups)
        changed = groups * (2 if table.neighbours == "replace" else 1)
        bound = truncation(scale, most, delta / changed)
        return cls(scale, bound + 1, bound) if bound < laplace else cls(scale, laplace, None)

    def draw(self, counts: NDArray[np.int64], source: Source) -> NDArray[np.int64]:
        """Noisy counts; those below the threshold must not leave."""
        if self.bound is None:
            return counts + discrete_laplace(self.scale, len(counts), source)
        return counts + truncated_laplace(self.scale, self.bound, len(counts), source)

    @property
    def half_width(self) -> int:
        """Of the noise before the threshold; reporting only."""
        width = half_width(self.scale, FAILURE)
        return width if self.bound is None else min(width, self.bound)


def tail_above(scale: Fraction, failure: Fraction) -> int:
    """Smallest t >= 1 with Pr[X >= t] = q^t/(1+q) <= failure for discrete Laplace noise; rounded upwards."""
    with localcontext(prec=60):
        inverse = _decimal(1 / scale)
        bound = (1 + (-inverse).exp()) * _decimal(failure)
        return max(1, _up(-bound.ln() / inverse))


def truncation(scale: Fraction, most: int, failure: Fraction) -> int:
    """Smallest k >= most with M(k) <= failure: q^(k+1) (q^-B - 1 + 2 failure) <= failure (1 + q); rounded upwards."""
    with localcontext(prec=60):
        inverse, f = _decimal(1 / scale), _decimal(failure)
        ratio = ((most * inverse).exp() - 1 + 2 * f) / (f * (1 + (-inverse).exp()))
        return max(most, _up(ratio.ln() / inverse) - 1)


def _up(need: Decimal) -> int:
    return int((need + abs(need) * (_SLACK - 1)).to_integral_value(rounding="ROUND_CEILING"))


def _decimal(x: Fraction) -> Decimal:
    return Decimal(x.numerator) / Decimal(x.denominator)
