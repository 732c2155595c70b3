"""Where a statement about a number begins to hold."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import TypeVar

Real = TypeVar("Real", float, Fraction)


def bisect_reals(
    holds: Callable[[Real], bool], low: Real, high: Real, halvings: int = 60
) -> tuple[Real, Real]:
    """Halve a range at whose upper end a statement holds, and at whose lower end it does not: the ends that are left.

    Args:
        low, high: a statement that holds, or fails, everywhere leaves ends at ``low``, or ``high``.
    """
    for _ in range(halvings):
        middle = (low + high) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return low, high


def bisect_integers(holds: Callable[[int], bool], low: int, high: int) -> int:
    """The least integer above ``low`` at which a statement holds that, once it holds, holds up to ``high``."""
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def least_integer(holds: Callable[[int], bool], least: int = 1) -> int:
    """The least integer from ``least`` on, at least 1, at which a statement holds that, once it holds, holds for good."""
    high = least
    while not holds(high):
        high *= 2
    return bisect_integers(holds, max(least - 1, high // 2), high)
