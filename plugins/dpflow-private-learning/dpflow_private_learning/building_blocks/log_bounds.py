"""Iterated logarithms, as the paper counts them, and logarithms rounded upwards for whatever
decides about privacy.
"""

from __future__ import annotations

import math
from fractions import Fraction

from dpflow.core.accounting import renyi


def log_star(power: int) -> int:
    """log*(2^power): how often log2 is applied to 2^power until the value is at most 1."""
    if power <= 0:
        return 0
    value, count = float(power), 1
    while value > 1:
        value, count = math.log2(value), count + 1
    return count


def log_star_of(n: int) -> int:
    """log*(n) for an integer n >= 1: 0 for 1, 1 for 2, 4 for 65536. Rounding up at each step
    changes nothing.
    """
    count = 0
    while n > 1:
        n, count = ceil_log2(n), count + 1
    return count


def ceil_log2(n: int) -> int:
    """The least p with 2^p >= n, for n >= 1."""
    return (n - 1).bit_length()


def iterated_log(power: int, times: int) -> float:
    """log2 applied ``times`` times to 2^power, and 0 from where it would turn negative."""
    value = float(power)
    for _ in range(times - 1):
        value = math.log2(value) if value > 1 else 0.0
    return value


def iterated_log_up(power: int, times: int) -> int:
    """ceil(log2) applied ``times`` times to 2^power."""
    value = power
    for _ in range(times - 1):
        value = ceil_log2(value) if value > 1 else 0
    return value


def ln_up(x: Fraction) -> Fraction:
    """An upper bound of ln x, for x > 0, with a relative excess of 1e-40; 0 for x <= 1."""
    return renyi.log_up(x) if x > 1 else Fraction(0)
