"""Noisy numbers as people read them: no more digits than their noise leaves, and intervals that hold what they held."""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_EVEN, Decimal
from fractions import Fraction
from typing import Any


def print_number(value: Any, low: float | None = None, high: float | None = None) -> Any:
    """A value rounded to two digits of its interval's half-width; any other as it is."""
    if isinstance(value, Decimal):
        return f"{value:f}"
    step = _find_step(low, high)
    if step is None or isinstance(value, bool) or not isinstance(value, int | float):
        return value
    # A whole number stays one.
    return _round(value, max(step, Decimal(1)) if isinstance(value, int) else step, ROUND_HALF_EVEN)


def print_interval(low: float | None, high: float | None, value: Any = None) -> str:
    """Both ends, rounded outward likewise: what was inside stays inside. Empty without an interval.

    Args:
        value: the number whose interval it is; of a whole one the ends are whole, too.
    """
    if low is None or high is None:
        return ""
    step = _find_step(low, high)
    if isinstance(value, int) and math.isfinite(low) and math.isfinite(high):
        step = max(step or Decimal(1), Decimal(1))
    if step is None:
        return f"{low!r} to {high!r}"
    return f"{_round(low, step, ROUND_FLOOR)} to {_round(high, step, ROUND_CEILING)}"


def round_between(value: float, low: float, high: float) -> float:
    """A double with the digits that `print_number` shows, between the same ends."""
    step = _find_step(low, high)
    rounded = value if step is None else float(_round(value, step, ROUND_HALF_EVEN))
    return min(max(rounded, low), high)


def print_width(width: float) -> str:
    """A half-width rounded up to three digits."""
    if not math.isfinite(width) or width <= 0:
        return f"{width:g}"
    step = Decimal(1).scaleb(math.floor(math.log10(width)) - 2)
    return _round(width, Decimal(1) if width == int(width) else step, ROUND_CEILING)


def print_around(value: float, width: float) -> tuple[str, str]:
    """A value and a half-width around what is shown of it, rounded up: they hold what value and half-width hold."""
    if not math.isfinite(width):
        return f"{value:.6g}", print_width(width)
    rounded = print_number(value, value - width, value + width)
    shown = rounded if isinstance(rounded, str) else f"{rounded:.15g}"
    # A double is what its shortest text says.
    exact = abs(Fraction(shown) - Fraction(repr(float(value)))) + Fraction(repr(float(width)))
    total = float(exact)
    if Fraction(repr(total)) < exact:
        total = math.nextafter(total, math.inf)
    return shown, print_width(total)


def whole_percent(share: float) -> int:
    """The used share of a budget, of at most four digits, rounded down: what is shown as 80 % has reached it."""
    return round(10**4 * share) // 100


def print_bound(value: float | Fraction, *, upper: bool) -> str:
    """What a number is at most (``upper``) or at least, in six digits: rounded so that it stays true."""
    if isinstance(value, Fraction):
        exact, value = value, float(value)
        if (exact - Fraction(repr(value))) * (1 if upper else -1) > 0:
            value = math.nextafter(value, math.inf if upper else -math.inf)
    if not math.isfinite(value) or value == 0:
        return f"{value:g}"
    step = Decimal(1).scaleb(Decimal(repr(value)).adjusted() - 5)
    rounded = _round(value, step, ROUND_CEILING if upper else ROUND_FLOOR)
    return rounded.rstrip("0").rstrip(".") if "." in rounded else rounded


def _find_step(low: float | None, high: float | None) -> Decimal | None:
    if low is None or high is None or not math.isfinite(width := (high - low) / 2) or width <= 0:
        return None
    return Decimal(1).scaleb(math.floor(math.log10(width)) - 1)


def _round(value: float, step: Decimal, rounding: str) -> str:
    steps = (Decimal(repr(value)) / step).to_integral_value(rounding)
    number = steps * step
    return f"{number:f}" if step < 1 else f"{int(number)}"
