"""What tests of samplers share: cuts against decimals of any precision, and when a statistic is alarming."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction

from dpflow.core.sampling.randomness import Source
from dpflow.testing.scripted_sources import ScriptedSource

ALARM = 1e-15  # of the chi-square law; the statistic itself exceeds that less than once in 10^9 times from 10 expected on


def exp(x: Fraction | int) -> Decimal:
    """exp(-x) to the precision of the context."""
    return (-Decimal(Fraction(x).numerator) / Decimal(Fraction(x).denominator)).exp()


def assert_cut(
    draw: Callable[[Source], object], cut: Decimal, below: object, above: object
) -> None:
    """The cut lies within 2^-108 of where it should: the 128-bit uniforms around it give the right
    answers.
    """
    exact = int(cut * 2**128)
    for u, answer in ((exact - 2**20, below), (exact + 2**20, above)):
        source = ScriptedSource([u >> 64, u & (2**64 - 1)])
        assert draw(source) == answer
