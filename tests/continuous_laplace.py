"""Continuous Laplace noise, which dpflow does not draw: the price that published figures compare with."""

from __future__ import annotations

from decimal import Context, Decimal, localcontext
from fractions import Fraction


def laplace_divergence(epsilon: Fraction, order: Fraction) -> Fraction:
    """The divergence of noise of scale sensitivity/epsilon (Mironov 2017, Table II), rounded up."""
    with localcontext(Context(prec=100)):
        e, a = (Decimal(x.numerator) / x.denominator for x in (epsilon, order))
        first = a / (2 * a - 1)
        log = ((a - 1) * e + (first + (1 - first) * (-(2 * a - 1) * e).exp()).ln()) / (a - 1)
    return Fraction(log) * (1 + Fraction(1, 10**40))
