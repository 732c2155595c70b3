"""Integer noise for integer statistics: sensitivity, law, guarantee and tail, in one place.

`group_sensitivity` says how far one unit moves a vector of sums, in L1 and in L2. `Noise` is a law
fitted to that reach:

- discrete Laplace of scale D1/epsilon: epsilon-DP (Ghosh, Roughgarden, Sundararajan 2009), by L1;
- discrete Gaussian of variance D2^2/(2 rho): rho-zCDP in any dimension (Canonne, Kamath, Steinke 2020), by L2.

Which is smaller depends on the vector: a unit in g groups has D1 = g D2/sqrt(g), so Gaussian noise
pays when a unit reaches many groups or columns, and it costs a delta. `dpflow.core.sampling.samplers.truncated_laplace` is discrete
Laplace noise that never exceeds a bound: (epsilon, delta)-DP, and what makes keys private
(`dpflow.core.toolbox.partition_selection`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from statistics import NormalDist

from dpflow.core.accounting import renyi
from dpflow.core.accounting.events import DiscreteGaussian, DiscreteLaplace
from dpflow.core.contract.declaration import Table
from dpflow.core.sampling.noisy_values import Exact, add_gaussian, add_laplace
from dpflow.core.sampling.randomness import Source
from dpflow.core.sampling.samplers import MAX_SCALE
from dpflow.errors import PlanRefused

FAILURE = 0.05  #: an error bound holds with probability 1 - FAILURE


@dataclass(frozen=True)
class Sensitivity:
    """How far one unit moves a vector of integers: its L1 sensitivity, and the square of its L2
    sensitivity.
    """

    l1: int
    l2_squared: int

    def noise_norm(self, power: int) -> float:
        """The sensitivity that Laplace (1) or Gaussian (2) noise follows."""
        return float(self.l1) if power == 1 else math.sqrt(self.l2_squared)


def group_sensitivity(
    table: Table, by: str | None, keys: int | None, low: int, high: int, most: int
) -> Sensitivity:
    """Reach of per-group sums of terms from [low, high], of which a unit brings at most ``most`` to
    a group.

    Add-remove: a unit brings up to g groups, each moved by at most most x max(|low|, |high|).
    Replace: it also takes away as many. A group that it leaves or enters moves by that much; one
    that it stays in moves by most x width at most, the width being that of [low, high] with 0. Of K
    public keys at least 2 g - K are stayed in. L1 is largest with the fewest of these; squared L2
    is linear in their number, hence largest at one of the ends.

    Args:
        table: contribution bounds and neighbours.
        by: the grouping column, or None for one group.
        keys: how many public keys there are; None for private ones.
        low, high: ends of a term; a term may be missing, which counts as 0.
        most: terms of one unit in one group.
    """
    peak, width = max(abs(low), abs(high)), max(high, 0) - min(low, 0)
    size = 1 if by is None else keys
    groups = (
        table.groups_and_rows(by)[0] if size is None else min(table.groups_and_rows(by)[0], size)
    )
    if table.neighbours == "add-remove":
        return Sensitivity(groups * most * peak, groups * (most * peak) ** 2)
    # Private keys may all be other ones, so no group need be stayed in.
    stayed = 0 if size is None else max(0, 2 * groups - size)
    squares = (most**2 * (n * width**2 + 2 * (groups - n) * peak**2) for n in (stayed, groups))
    return Sensitivity(most * (stayed * width + 2 * (groups - stayed) * peak), max(squares))


@dataclass(frozen=True)
class Noise:
    """Noise on every coordinate of an integer vector; ``event`` is its guarantee and names its law."""

    event: DiscreteLaplace | DiscreteGaussian

    def add_noise(self, exact: Exact, source: Source) -> Exact:
        """The noisy vector, or the noisy integer. Statistics stay below 2^62 by plan and the samplers' noise does too:
        the sum cannot wrap.
        """
        if isinstance(self.event, DiscreteLaplace):
            return add_laplace(exact, self.event.scale, source)
        return add_gaussian(exact, self.event.sigma2, source)

    def half_width(self, failure: float = FAILURE) -> int:
        """A t with Pr[|X| > t] <= failure for one coordinate; reporting only, never a guarantee."""
        if isinstance(self.event, DiscreteLaplace):
            return half_width(self.event.scale, failure)
        # Pr[X >= t + 1] <= Pr[N >= t] for the continuous N of the same sigma (Canonne, Kamath,
        # Steinke 2020, Prop. 25)
        return math.ceil(-NormalDist().inv_cdf(failure / 2) * math.sqrt(float(self.event.sigma2)))


def laplace_noise(reach: Sensitivity, epsilon: Fraction) -> Noise:
    """Noise that makes a vector of this reach epsilon-DP."""
    return Noise(DiscreteLaplace(scale_for(reach.l1, epsilon), max(reach.l1, 1)))


def gaussian_noise(reach: Sensitivity, rho: Fraction) -> Noise:
    """Noise that makes a vector of this reach rho-zCDP, up to one part in 10^12."""
    # A column with one possible value moves by nothing, and noise needs a scale all the same.
    squared = max(reach.l2_squared, 1)
    sigma2 = squared / (2 * rho)
    if sigma2 > MAX_SCALE**2:
        raise _too_wide()
    sensitivity = Fraction(math.isqrt(squared * 10**24 - 1) + 1, 10**12)  # the root, rounded up
    return Noise(DiscreteGaussian(sigma2, sensitivity))


@lru_cache(maxsize=1024)
def rho_for(epsilon: Fraction, delta: Fraction) -> Fraction:
    """The largest rho that this package proves to be (epsilon, delta)-DP; rounded down to four
    digits.

    rho-zCDP is (rho a + penalty(a, delta), delta)-DP for every order a, so rho = max over a of
    capacity(a)/a.
    """
    best = renyi.best_order(epsilon, delta)
    exact = renyi.divergence_capacity(epsilon, delta, best) / best
    if not exact > 0:
        raise PlanRefused(
            "epsilon and delta are too small for Gaussian noise; ask for noise: laplace"
        )
    # Rounded down, so that the guarantee computed from it is never above what was asked for.
    digits = 10 ** (4 - math.floor(math.log10(float(exact))))
    return (
        Fraction(math.floor(exact * digits), digits) if digits >= 1 else Fraction(math.floor(exact))
    )


def choice_epsilon(epsilon: Fraction, delta: Fraction, count: int) -> Fraction:
    """The range that each of ``count`` exponential choices may have so that all of them together
    are (epsilon, delta)-DP.

    An equal part of epsilon, or more where a delta pays: a choice of range e is e^2/8-zCDP (Cesar,
    Rogers 2021), and count of them may have the rho that is (epsilon, delta)-DP.
    """
    share = epsilon / count
    if not delta:
        return share
    try:
        rho = rho_for(epsilon, delta) / count
    # The even split needs no delta, so nothing is lost.
    except PlanRefused:  # an epsilon or delta too small for zCDP
        return share
    return max(share, Fraction(math.isqrt(math.floor(8 * rho * 10**24)), 10**12))


def scale_for(sensitivity: int, epsilon: Fraction) -> Fraction:
    """Scale of discrete Laplace noise that makes a statistic of this L1 sensitivity epsilon-DP,
    exactly.
    """
    return require_scale(Fraction(max(sensitivity, 1)) / epsilon)


def require_scale(scale: Fraction) -> Fraction:
    """The scale itself; raises `PlanRefused` where it is beyond what can be drawn."""
    if scale > MAX_SCALE:
        raise _too_wide()
    return scale


def half_width(scale: Fraction, failure: float = FAILURE) -> int:
    """Smallest t with Pr[|X| > t] = 2 q^(t+1)/(1+q) <= failure for discrete Laplace noise;
    reporting only.
    """
    q = math.exp(-1 / float(scale)) if scale > Fraction(1, 700) else 0.0
    if q == 0.0:
        return 0
    return max(0, math.ceil(float(scale) * math.log(2 / (failure * (1 + q))) - 1))


def _too_wide() -> PlanRefused:
    return PlanRefused(
        "the declared bounds and epsilon need noise of more than 2^50 steps; "
        "take a coarser step, tighter bounds on values or contributions, or a larger epsilon"
    )
