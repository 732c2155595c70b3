"""Renyi DP in 100-digit decimals, rounded against the spender, so that a privacy cost is the same
on every machine.

An output distribution P against Q has Renyi divergence ``D_a(P||Q) = ln E_Q[(P/Q)^a] / (a - 1)``;
the *order* a is above 1. Curves bound it for both directions of a neighbouring pair; conversions
turn a bound into (epsilon, delta). Every returned curve value is an upper bound that exceeds the
true value by a relative 1e-40 at most; `capacity` is a lower bound with the same margin. All
numbers are exact Fractions, in nats.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal, localcontext
from fractions import Fraction
from functools import lru_cache
from typing import Final

from dpflow.errors import InvalidAmount

LARGEST_ORDER: Final = Fraction(10**18)
_DIGITS: Final = Context(prec=100, Emax=MAX_EMAX, Emin=MIN_EMIN)
# Far above the error of any formula here: cancellation loses at most 50 digits.
_MARGIN: Final = Fraction(1, 10**40)


def check_order(value: Fraction) -> Fraction:
    """A legal Renyi order, above 1 and up to 1e18. Raises `InvalidAmount`."""
    if 1 < value <= LARGEST_ORDER:
        return value
    raise InvalidAmount(
        f"the Renyi order is {float(value):.6g}; it must be above 1 and at most 1e18."
    )


# --- curves -----------------------------------------------------------------------------------------------------------


def pure_divergence(epsilon: Fraction, order: Fraction) -> Fraction:
    """The largest divergence of an epsilon-DP mechanism: that of randomised response (Bun, Steinke
    2016, Prop. 3.3).
    """
    return discrete_laplace_divergence(1 / epsilon, 1, order)


def bounded_range_divergence(epsilon: Fraction, order: Fraction) -> Fraction:
    """An epsilon-bounded-range mechanism: ``order * epsilon^2 / 8`` (Cesar, Rogers 2021), or its
    pure bound if smaller.
    """
    return min(order * epsilon**2 / 8, pure_divergence(epsilon, order))


@lru_cache(maxsize=4096)
def discrete_laplace_divergence(scale: Fraction, sensitivity: int, order: Fraction) -> Fraction:
    """Integer noise with ``Pr[x] ~ exp(-|x|/scale)`` under shifts of total size at most
    ``sensitivity``.

    With t = 1/scale, r = exp(-(2a-1)t) and d the shift, summing the geometric series on the three
    sides of the shift gives ``E_Q[(P/Q)^a] = A exp((a-1)td) + (1-A) exp(-atd)``, ``A = (1 - r
    exp(-t)) / ((1-r)(1+exp(-t)))``, 1/2 <= A <= 1. It is 1 at d = 0 and log-convex in d, hence its
    logarithm is increasing and superadditive: the worst way to spread an L1 sensitivity over
    coordinates is one shift of the full size. For d = 1 this is randomised response.
    """
    # A hundred digits, whatever the caller's decimal context is.
    with localcontext(_DIGITS):
        t, a = 1 / _to_decimal(scale), _to_decimal(order)
        r = (-(2 * a - 1) * t).exp()
        first = (1 - r * (-t).exp()) / ((1 - r) * (1 + (-t).exp()))
        shift = t * sensitivity
        log = (a - 1) * shift + (first + (1 - first) * (-(2 * a - 1) * shift).exp()).ln()
        return _add_margin(log / (a - 1))


# --- conversions ------------------------------------------------------------------------------------------------------


# Searches for an order ask for the same grids again: two logarithms of a hundred digits for each.
@lru_cache(4096)
@lru_cache(maxsize=4096)
def conversion_penalty(order: Fraction, delta: Fraction) -> Fraction:
    """What (epsilon, delta)-DP costs above the divergence: D_a <= R implies (R + penalty,
    delta)-DP. Rounded up.

    It bounds the hockey-stick divergence: ``ln(1-1/a) + ln(1/(a delta))/(a-1)`` (Canonne, Kamath,
    Steinke 2020, Prop. 12; Balle et al. 2020).

    Args:
        order: the Renyi order a > 1.
        delta: in (0, 1).
    """
    with localcontext(_DIGITS):
        a, d = _to_decimal(order), _to_decimal(delta)
        return _add_margin((1 - 1 / a).ln() - (a * d).ln() / (a - 1))


def divergence_capacity(epsilon: Fraction, delta: Fraction, order: Fraction) -> Fraction:
    """The largest divergence at this order that still implies (epsilon, delta)-DP; rounded down,
    may be negative.
    """
    return epsilon - conversion_penalty(order, delta)


def best_order(epsilon: Fraction, delta: Fraction) -> Fraction:
    """The order that maximises capacity/order, which is the number of small charges a grant holds;
    four digits.

    Any order above 1 is valid; this one is a choice, made once when a grant is made and stored with
    it.
    """
    return _minimise_order(lambda a: -divergence_capacity(epsilon, delta, a) / a)


def smallest_epsilon(curve: Callable[[Fraction], Fraction], delta: Fraction) -> Fraction:
    """The least epsilon at ``delta`` over the orders of a whole curve. For reports: a filter fixes
    one order.
    """
    best = _minimise_order(lambda a: curve(a) + conversion_penalty(a, delta))
    return max(Fraction(0), curve(best) + conversion_penalty(best, delta))


def _minimise_order(objective: Callable[[Fraction], Fraction]) -> Fraction:
    """The order, to four digits, with the least objective: a coarse grid of order - 1, then two
    finer ones around the best.
    """
    # Orders from 1.0001 to 1e17; every order is valid, so a range costs accuracy alone.
    low, high, best = -4.0, 17.0, Fraction(2)
    for _ in range(5):
        step = (high - low) / 24
        exponents = [low + step * i for i in range(25)]
        best_exponent = min(exponents, key=lambda x: objective(_order_at(x)))
        best = _order_at(best_exponent)
        low, high = best_exponent - 1.5 * step, best_exponent + 1.5 * step
    return best


def _order_at(exponent: float) -> Fraction:
    return 1 + Fraction(f"{math.pow(10, exponent):.3e}")


# --- directed rounding ------------------------------------------------------------------------------------------------


def exp_up(x: Fraction) -> Fraction:
    """An upper bound of e^x, relative excess at most 1e-40."""
    with localcontext(_DIGITS):
        return _add_margin(_to_decimal(x).exp())


@lru_cache(1024)
def log_up(x: Fraction) -> Fraction:
    """An upper bound of ln x, for x > 0."""
    with localcontext(_DIGITS):
        return _add_margin(_to_decimal(x).ln())


def sqrt_up(x: Fraction) -> Fraction:
    """An upper bound of the square root of x >= 0."""
    with localcontext(_DIGITS):
        return _add_margin(_to_decimal(x).sqrt())


def _to_decimal(x: Fraction | int) -> Decimal:
    return Decimal(x.numerator) / Decimal(x.denominator)


def _add_margin(x: Decimal) -> Fraction:
    """``x`` plus a relative 1e-40."""
    exact = Fraction(x)
    return exact + abs(exact) * _MARGIN
