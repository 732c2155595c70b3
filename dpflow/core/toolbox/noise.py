"""Integer noise for integer statistics: sensitivity, law, guarantee and tail, in one place.

`Noise` is a law fitted to how far one unit moves a vector (`Table.sensitivity`):

- discrete Laplace of scale D1/epsilon: epsilon-DP (Ghosh, Roughgarden, Sundararajan 2009), by L1;
- discrete Gaussian of variance D2^2/(2 rho): rho-zCDP in any dimension (Canonne, Kamath, Steinke 2020), by L2.

Which is smaller depends on the vector: a unit in g groups has D1 = g D2/sqrt(g), so Gaussian noise
pays when a unit reaches many groups or columns, and it costs a delta. `dpflow.core.sampling.samplers.truncated_laplace` is discrete
Laplace noise that never exceeds a bound: (epsilon, delta)-DP, and what makes keys private
(`dpflow.core.toolbox.partition_selection`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property, lru_cache
from statistics import NormalDist
from typing import Any

from dpflow.core.accounting import renyi
from dpflow.core.accounting.events import DiscreteGaussian, DiscreteLaplace
from dpflow.core.contract.sensitivity import Sensitivity
from dpflow.core.sampling.noisy_values import (
    Exact,
    Ints,
    add_gaussian,
    add_laplace,
    show_gaussian,
    show_laplace,
)
from dpflow.core.sampling.randomness import Source
from dpflow.core.sampling.samplers import MAX_SCALE
from dpflow.core.toolbox.noise_sums import (
    chernoff_half_width,
    gaussian_sum_half_width,
    laplace_sum_half_width,
    subgaussian_half_width,
)
from dpflow.errors import PlanRefused

FAILURE = 0.05  #: an error bound holds with probability 1 - FAILURE


@dataclass(frozen=True)
class Noise:
    """Noise on every coordinate of an integer vector; ``event`` is its guarantee and names its law, ``moved`` what it
    was fitted to.
    """

    event: DiscreteLaplace | DiscreteGaussian
    moved: Sensitivity | None = field(default=None, compare=False)

    def add_noise(self, exact: Exact, source: Source) -> Exact:
        """The noisy vector, or the noisy integer. Statistics stay below 2^62 by plan and the samplers' noise does too:
        the sum cannot wrap.
        """
        if isinstance(self.event, DiscreteLaplace):
            return add_laplace(exact, self.event.scale, source)
        return add_gaussian(exact, self.event.sigma2, source)

    def show_from(
        self, names: Sequence[Any], exact: Ints, threshold: int | None, source: Source
    ) -> tuple[Ints, Ints]:
        """Noisy numbers of private names, as far as they reach a threshold: their places in the order of the names,
        and the numbers. None shows all.
        """
        if isinstance(self.event, DiscreteLaplace):
            return show_laplace(names, exact, self.event.scale, threshold, source)
        return show_gaussian(names, exact, self.event.sigma2, threshold, source)

    @property
    def scale(self) -> Fraction:
        """Of Laplace noise."""
        assert isinstance(self.event, DiscreteLaplace)
        return self.event.scale

    def half_width(self, failure: float = FAILURE) -> int:
        """A t with Pr[|X| > t] <= failure for one coordinate; reporting only, never a guarantee."""
        if failure not in self._half_widths:
            self._half_widths[failure] = self._find_half_width(failure)
        return self._half_widths[failure]

    @cached_property
    def _half_widths(self) -> dict[float, int]:
        """By failure: each draw of a release asks for the same ones."""
        return {}

    def _find_half_width(self, failure: float) -> int:
        if isinstance(self.event, DiscreteLaplace):
            return half_width(self.event.scale, failure)
        # Pr[X >= t + 1] <= Pr[N >= t] for the continuous N of the same sigma (Canonne, Kamath,
        # Steinke 2020, Prop. 25)
        return math.ceil(-NormalDist().inv_cdf(failure / 2) * math.sqrt(float(self.event.sigma2)))

    def sum_half_width(self, terms: int, failure: float = FAILURE) -> int:
        """A t that a sum of so many independent noises exceeds with this probability at most
        (`dpflow.core.toolbox.noise_sums`).
        """
        if terms == 1:
            return self.half_width(failure)
        if isinstance(self.event, DiscreteLaplace):
            return laplace_sum_half_width(terms, self.event.scale, failure)
        return gaussian_sum_half_width(terms, self.event.sigma2, failure)

    def weighted_half_width(self, terms: Mapping[float, int], failure: float = FAILURE) -> float:
        """The same of a weighted sum: positive weights, each with its number of terms."""
        if isinstance(self.event, DiscreteLaplace):
            return chernoff_half_width(terms, self.event.scale, failure)
        squares = sum(number * weight**2 for weight, number in terms.items())
        return subgaussian_half_width(squares * float(self.event.sigma2), failure)


def laplace_noise(moved: Sensitivity, epsilon: Fraction) -> Noise:
    """Noise that makes a vector of this sensitivity epsilon-DP."""
    return Noise(DiscreteLaplace(scale_for(moved.l1, epsilon), max(moved.l1, 1)), moved)


def gaussian_noise(moved: Sensitivity, rho: Fraction) -> Noise:
    """Noise that makes a vector of this sensitivity rho-zCDP, up to one part in 10^12."""
    # A column with one possible value moves by nothing, and noise needs a scale all the same.
    squared = max(moved.l2_squared, 1)
    sigma2 = squared / (2 * rho)
    if sigma2 > MAX_SCALE**2:
        raise _too_wide()
    sensitivity = Fraction(math.isqrt(squared * 10**24 - 1) + 1, 10**12)  # the root, rounded up
    return Noise(DiscreteGaussian(sigma2, sensitivity), moved)


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
