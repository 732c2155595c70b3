"""Truncated Laplace noise: the least radius with which (epsilon, delta) holds, exactly.

Definition: eta has weight exp(-a |x|) on [-R, R]; on the integers for counts, which is the form
that is drawn, continuous in the paper's form, which is only compared with.

Guarantee. Let one neighbour move m lots of coordinates, each by at most k in total and all of them
by L <= m k, with a L <= epsilon, and let M(s) be the mass of the last s of the support, Pr[eta > R - s]. Where both
densities are positive their ratio is at most e^epsilon. The rest has mass 1 - prod (1 - M(|s_i|));
M is superadditive, so it is at most 1 - (1 - M(k))^m, reached when each lot is one coordinate. So
(epsilon, delta)-DP holds exactly if that is at most delta. With q = e^-a and d = 1 - (1 -
delta)^(1/m), for integers:

    M(k) = q^(R+1) (q^-k - 1) / (1 + q - 2 q^(R+1)) <= d   <=>   R + 1 >= ln( (q^-k - 1 + 2 d) / (d (1 + q)) ) / a

Two formulas in circulation are wrong: R = (D/epsilon) ln(1/(2 delta)) for epsilon > ln 2 and R =
(D/epsilon) ln(1/delta) for epsilon > ln 3; at epsilon = 2 they spend 6.4 and 3.2 times delta. The
privacy loss is epsilon with probability 1 - delta and infinite otherwise, so there is no Renyi
curve: the event is `Approximate`.

Source: Aliakbarpour, Silver, Steinke, Ullman 2023, Lemma 2.3, whose condition on R is derived
here.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import ROUND_CEILING, Decimal, localcontext
from fractions import Fraction
from functools import lru_cache
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator

from dpflow.core.accounting.amounts import Delta
from dpflow.core.sampling.randomness import Source
from dpflow.core.sampling.samplers import MAX_SCALE, truncated_laplace
from dpflow.core.toolbox.noise import half_width
from dpflow.errors import PlanRefused

#: Of decimal arithmetic; doubles would round the condition on the radius either way.
_DIGITS = 120
#: Relative; more than all rounding below, always in favour of the privacy unit.
_SLACK = Decimal("1e-60")


def _check_delta(value: Fraction) -> Fraction:
    if not 0 < value <= Fraction(1, 2):
        raise ValueError("delta must be above 0 and at most 1/2, such as 1e-6")
    return value


#: What truncated noise needs: above 0 and at most 1/2.
TruncatedDelta = Annotated[Delta, AfterValidator(_check_delta)]


@dataclass(frozen=True)
class TruncatedNoiseLaw:
    """Integer noise for counts: Laplace of this scale, never above ``radius`` in absolute value."""

    scale: Fraction
    radius: int

    def add_noise(self, exact: NDArray[np.int64], source: Source) -> NDArray[np.int64]:
        """The counts with independent numbers from exactly this law."""
        return exact + truncated_laplace(self.scale, self.radius, len(exact), source)

    @property
    def half_width(self) -> int:
        """What the noise stays within with probability 95 %."""
        return min(half_width(self.scale), self.radius)


# The event, the error bound and every draw ask for the same noise.
@lru_cache(maxsize=256)
def count_noise(
    epsilon: Fraction,
    delta: Fraction,
    rows: int,
    *,
    exchange: bool,
    groups: int = 1,
    total: int | None = None,
) -> TruncatedNoiseLaw:
    """The least noise that makes a histogram (epsilon, delta)-DP.

    Args:
        epsilon, delta: the privacy cost; delta is a `TruncatedDelta`.
        rows: the most by which one neighbour changes one count.
        exchange: whether it can raise counts and lower others, or only one of both.
        groups: counts that it can raise (and, with ``exchange``, as many that it can lower).
        total: the most by which it raises all of them together; None for ``groups`` x ``rows``.

    Raises:
        PlanRefused: noise beyond 2^50.
    """
    sides = 2 if exchange else 1
    moved = groups * sides
    scale = Fraction(sides * (groups * rows if total is None else total)) / epsilon
    # The sampler takes no larger scale: refused in the plan, not after the charge.
    if scale > MAX_SCALE:
        raise PlanRefused(
            "these contribution bounds and this epsilon need noise beyond 2^50; lower the bounds or raise epsilon"
        )
    with localcontext(prec=_DIGITS):
        a = _to_decimal(1 / scale)
        # The slack lowers delta here and raises the radius below: roundings err towards more noise.
        d = (1 - (1 - _to_decimal(delta)) ** (Decimal(1) / moved)) * (1 - _SLACK)
        outside = (a * rows).exp() - 1
        least_radius = ((outside + 2 * d) / (d * (1 + (-a).exp()))).ln() / a * (1 + _SLACK) - 1
        return TruncatedNoiseLaw(
            scale, max(rows, int(least_radius.to_integral_value(rounding=ROUND_CEILING)))
        )


def scalar_radius(epsilon: Fraction, delta: Fraction, sensitivity: Fraction) -> float:
    """Continuous noise on one number, or on a vector of this L1 sensitivity: the exact condition,
    for comparison only.
    """
    with localcontext(prec=_DIGITS):
        e = _to_decimal(epsilon)
        return float(
            _to_decimal(sensitivity) / e * (1 + (e.exp() - 1) / (2 * _to_decimal(delta))).ln()
        )


def simple_radius(epsilon: Fraction, delta: Fraction, sensitivity: Fraction) -> float:
    """D (1 + ln(1/(2 delta)) / epsilon): sufficient for `scalar_radius`, easy to remember."""
    with localcontext(prec=_DIGITS):
        return float(
            _to_decimal(sensitivity)
            * (1 + (1 / (2 * _to_decimal(delta))).ln() / _to_decimal(epsilon))
        )


def pair_radius(epsilon: Fraction, delta: Fraction, rows: int = 1) -> float:
    """Continuous noise on a histogram in which a neighbour lowers counts by ``rows`` and raises
    others by as many.
    """
    with localcontext(prec=_DIGITS):
        half = _to_decimal(epsilon) / 2
        d = 1 - (1 - _to_decimal(delta)).sqrt()
        return float(rows / half * (1 + (half.exp() - 1) / (2 * d)).ln())


def _to_decimal(value: Fraction) -> Decimal:
    return Decimal(value.numerator) / Decimal(value.denominator)
