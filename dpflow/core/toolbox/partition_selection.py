"""Private keys: which noise, and from which noisy count on a key may be shown, so that a lone
unit's key stays hidden.

A unit reaches at most g keys with at most B in each; the counts of shared keys move by D1 in L1 and
by D2 in L2. A key that no row has is never shown. Three rules, of which
`SelectionRule.lowest_threshold` takes the one with the lowest threshold:

- *Laplace* of scale b = D1/epsilon: show n + X >= t + B, where t is the smallest integer with Pr[X >= t] <= delta/g.
  Proof. Let T' have the unit's rows and T not. Keys that only T' has are at most g, each with at most B, so one of them is
  shown with probability d <= delta. Given that none is, outputs are those of the shared keys, which costs epsilon. In the other
  direction the factor 1 - d of "none is shown" is a difference of at most d. Under replace each table may have g keys of its
  own; the two deficits do not add: their maximum bounds the divergence.
- *Gaussian* of the rho that is (epsilon, delta/2)-DP, by D2: the same with Pr[X >= t] <= delta/(2 g). Proof. As above, with
  a = delta/2 for the shared keys: a set of outputs has x from T, at least (1 - d) (x - a)/e^epsilon from T', and
  x - (1 - d) (x - a) <= d + a. It is delta/2-approximate rho-zCDP too: "none is shown" is independent of the shared keys.
  It pays where a unit reaches many keys.
- *Truncated* (Desfontaines, Voss, Gipson, Mandayam 2022, for B = 1 the optimal selection but for the rounding of k): Laplace X
  conditioned on |X| <= k, show n + X > k. Proof. On one key whose count moves by d <= B, the outcomes that only one side
  reaches are the d outermost ones, of probability M(k) = q^(k-B+1) (1 - q^B)/(1 + q - 2 q^(k+1)) at most; all others
  change by a factor exp(d/b) at most. So a key costs (d/b, M(k)), the changed keys together epsilon and m M(k), where m is g
  under add-remove and 2 g under replace; k is the smallest integer >= B with M(k) <= delta/m. A key without rows has
  n + X <= k surely, so leaving it out is no other release.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from dpflow.core.accounting.bisection import bisect_integers
from dpflow.core.accounting.events import ZCDP, Approximate, DiscreteLaplace
from dpflow.core.contract.sensitivity import GroupedSensitivity
from dpflow.core.sampling.noisy_values import show_large_counts
from dpflow.core.sampling.randomness import Source
from dpflow.core.toolbox.noise import (
    FAILURE,
    Noise,
    gaussian_noise,
    laplace_noise,
    rho_for,
    scale_for,
)
from dpflow.errors import PlanRefused

Law = Literal["laplace", "gaussian"]
# Covers the rounding of 60-digit arithmetic, always in favour of the privacy unit.
_SLACK = 1 + Decimal("1e-30")
_ROOT = Decimal("2.50662827463")  # below the root of 2 pi
_ROOT_OF_2_PI = float(_ROOT)


def require_delta(value: Fraction) -> Fraction:
    """The delta of private keys, or `ValueError`: with 0 no key could ever be shown."""
    if not value > 0:
        raise ValueError("private keys need a delta above 0, such as 1e-6")
    return value


@dataclass(frozen=True)
class SelectionRule:
    """A rule for private keys: noise, truncated at ``bound`` if that is not None; keys are shown
    from ``threshold`` on.
    """

    event: Approximate | ZCDP
    noise: Noise
    threshold: int
    bound: int | None = None

    @classmethod
    @lru_cache(maxsize=256)
    def lowest_threshold(
        cls,
        moved: GroupedSensitivity,
        of: str,
        epsilon: Fraction,
        delta: Fraction,
        law: Law | None = None,
    ) -> SelectionRule:
        """The (epsilon, delta)-DP rule with the lowest threshold for counts of rows or units by private key.

        With ``law`` only rules of this noise; Gaussian noise then states its zCDP, which some
        filters charge less for.
        """
        groups = moved.bounds.groups
        rules = (
            [] if law == "gaussian" else cls._laplace_rules(moved, of, Approximate(epsilon, delta))
        )
        # Gaussian noise pays where a unit reaches many keys, so it is not tried with one.
        if law == "gaussian" or (law is None and groups > 1):
            try:
                rho = rho_for(epsilon, delta / 2)
                event = Approximate(epsilon, delta) if law is None else ZCDP(rho, delta / 2)
                rules.append(cls._gaussian_rule(moved, of, event, rho, delta / 2))
            # A cost can be too small for this noise.
            except PlanRefused:
                if not rules:
                    raise
        return min(rules, key=lambda rule: rule.threshold)

    @classmethod
    def _laplace_rules(
        cls, moved: GroupedSensitivity, of: str, event: Approximate
    ) -> list[SelectionRule]:
        noise, most = laplace_noise(moved.moment(of), event.epsilon), moved.most(of)
        scale = scale_for(moved.moment(of).l1, event.epsilon)
        bound = truncation_bound(scale, most, event.delta / moved.changed)
        tail = tail_above(scale, event.delta / moved.bounds.groups)
        return [cls(event, noise, bound + 1, bound), cls(event, noise, most + tail)]

    @classmethod
    def _gaussian_rule(
        cls,
        moved: GroupedSensitivity,
        of: str,
        event: Approximate | ZCDP,
        rho: Fraction,
        half: Fraction,
    ) -> SelectionRule:
        counts = moved.moment(of)
        tail = gaussian_above(counts.l2_squared / (2 * rho), half / moved.bounds.groups)
        return cls(event, gaussian_noise(counts, rho), moved.most(of) + tail)

    def show_counts(
        self, names: Sequence[Any], counts: NDArray[np.int64], source: Source
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Noisy counts of the keys that are shown: their places in the order of their names, and the counts."""
        if self.bound is None:
            return self.noise.show_from(names, counts, self.threshold, source)
        scale, highest = self.noise.scale, self.threshold - 1
        places, noisy = show_large_counts(names, counts, scale, self.bound, highest, source)
        order = np.array(sorted(range(len(places)), key=lambda i: names[int(places[i])]), np.intp)
        return places[order], noisy[order]

    @property
    def half_width(self) -> int:
        """Of the noise before the threshold; reporting only."""
        width = self.noise.half_width(FAILURE)
        return width if self.bound is None else min(width, self.bound)

    @property
    def noise_name(self) -> str:
        """What the noise is called."""
        laplace = isinstance(self.noise.event, DiscreteLaplace)
        return (
            "Gaussian" if not laplace else "Laplace" if self.bound is None else "truncated Laplace"
        )


@lru_cache(maxsize=256)
def tail_above(scale: Fraction, failure: Fraction) -> int:
    """Smallest t >= 1 with Pr[X >= t] = q^t/(1+q) <= failure for discrete Laplace noise; rounded
    upwards.
    """
    with localcontext(prec=60):
        inverse = _to_decimal(1 / scale)
        bound = (1 + (-inverse).exp()) * _to_decimal(failure)
        return max(1, _round_up(-bound.ln() / inverse))


@lru_cache(maxsize=256)
def gaussian_above(sigma2: Fraction, failure: Fraction) -> int:
    """A t >= 2 with Pr[X >= t] <= failure for discrete Gaussian noise, at most two steps above the
    smallest.

    Pr[X >= t] <= Pr[N >= t - 1] for the continuous N of the same sigma (Canonne, Kamath, Steinke
    2020, Prop. 25), which with x = (t - 1)/sigma is at most exp(-x^2/2)/(x root(2 pi)) (Mills).
    """
    with localcontext(prec=60):
        variance, log = _to_decimal(sigma2), _to_decimal(failure).ln()

        def tail_holds(t: int) -> bool:
            square = Decimal(t - 1) ** 2 / variance
            return -square / 2 - (square.sqrt() * _ROOT).ln() <= log * _SLACK

        # Doubles say about where it is; the bound itself is decided in decimals.
        high = max(2, _find_gaussian_tail(float(sigma2), float(log)))
        step = 1
        while not tail_holds(high):
            high, step = high + step, 2 * step
        low, step = high - 1, 1
        while low > 1 and tail_holds(low):
            low, high, step = max(1, low - step), low, 2 * step
        return bisect_integers(tail_holds, low, high)


def _find_gaussian_tail(sigma2: float, log: float) -> int:
    """About the t whose x = (t - 1)/sigma has x^2/2 + log(x root(2 pi)) = -log, by Newton's method."""
    x = max(math.sqrt(max(-2 * log, 0.0)), 1.0)
    for _ in range(30):
        change = (x * x / 2 + math.log(x * _ROOT_OF_2_PI) + log) / (x + 1 / x)
        x = max(x - change, x / 2)
    return math.floor(x * math.sqrt(sigma2)) + 2


@lru_cache(maxsize=256)
def truncation_bound(scale: Fraction, most: int, failure: Fraction) -> int:
    """Smallest k >= most with M(k) <= failure: q^(k+1) (q^-B - 1 + 2 failure) <= failure (1 + q);
    rounded upwards.
    """
    with localcontext(prec=60):
        inverse, f = _to_decimal(1 / scale), _to_decimal(failure)
        ratio = ((most * inverse).exp() - 1 + 2 * f) / (f * (1 + (-inverse).exp()))
        return max(most, _round_up(ratio.ln() / inverse) - 1)


def _round_up(need: Decimal) -> int:
    return int((need + abs(need) * (_SLACK - 1)).to_integral_value(rounding="ROUND_CEILING"))


def _to_decimal(x: Fraction) -> Decimal:
    return Decimal(x.numerator) / Decimal(x.denominator)
