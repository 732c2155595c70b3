"""Rigorous bounds on exp(-x), and lazy inversion over pieces whose weights are only known to lie in
intervals.

A real number r is held as two integers lo <= r 2^bits <= hi. Every operation rounds lo down and hi
up, so a bound is a bound at any precision: precision decides how often the answer is "not yet",
never what the answer is.

Lazy inversion: pieces 0, 1, ... have weights w_i and cut [0, 1) at c_i = (w_0 + ... + w_i) / (sum
of all w). A uniform U of which the first k bits are u lies in [u, u + 1) / 2^k. When that interval
lies between two neighbouring cuts, the piece that holds U is known and no further bit of U is
looked at; otherwise more bits and tighter bounds are asked for. The piece is then exactly
distributed as w, because the map from U to pieces is fixed and U is exactly uniform. A cut stays
undecided forever only on a set of U of measure zero.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from fractions import Fraction
from itertools import accumulate

Bounds = tuple[int, int]


def exp_bounds(x: Fraction, bits: int) -> Bounds:
    """Integers lo <= exp(-x) 2^bits <= hi for an exact x >= 0; hi - lo is at most 2.

    exp(y) is summed for y = x / 2^k < 1/32, where all terms are positive, squared k times and
    inverted. Proof of the slack, in units of 2^-work: the two floors make term i too small by e_i
    <= e_(i-1) / 32 + 1 + 1/i, and e_1 < 1, so every e_i < 2 and N terms lack less than 2N; what
    follows the N-th, which is floored to zero, is less than 2/31; flooring y lacks less than 1.1
    more.
    """
    if x == 0:
        return 1 << bits, 1 << bits
    if x >= bits:
        return 0, 1  # exp(-bits) < 2^-bits
    # Halving x until it is below 1/32 keeps the series short and its terms positive.
    k = int(x).bit_length() + 5
    work = bits + k + 20
    y = (x.numerator << work) // (x.denominator << k)
    term = low = 1 << work
    n = 0
    while term:
        n += 1
        term = (term * y >> work) // n
        low += term
    high = low + 2 * n + 2
    for _ in range(k):
        low = low * low >> work
        high = -(-high * high >> work)
    one = 1 << (work + bits)
    return one // high, -(-one // low)


def exp_ladder(rate: Fraction, costs: Iterable[int], bits: int) -> Iterator[Bounds]:
    """Bounds of exp(-rate c) for nonnegative costs in ascending order, each from the one before."""
    steps: dict[int, Bounds] = {}
    low = high = 1 << bits
    last = 0
    for cost in costs:
        if gap := cost - last:
            # Costs often ascend in equal steps, so few exponentials are computed.
            if gap not in steps:
                steps[gap] = exp_bounds(rate * gap, bits)
            down, up = steps[gap]
            low = low * down >> bits
            high = -(-high * up >> bits)
            last = cost
        yield low, high


class Cuts:
    """Cumulative bounds of the pieces' weights; the last cut is 1 and needs no bounds."""

    def __init__(self, weights: Iterable[Bounds]) -> None:
        lows, highs = zip(*weights, strict=True)
        self.lows, self.highs = list(accumulate(lows)), list(accumulate(highs))
        self.low, self.high = self.lows.pop(), self.highs.pop()

    def uncertain_words(self, bits: int) -> Iterator[Bounds]:
        """For each cut but the last, the first and the last u of this many bits for which its side
        is not known.
        """
        for low, high in zip(self.lows, self.highs, strict=True):
            yield (low << bits) // self.high, min(((high << bits) - 1) // self.low, (1 << bits) - 1)

    def find_piece(self, u: int, bits: int) -> int | None:
        """The piece that holds all of [u, u + 1) / 2^bits, or None if the bounds do not tell."""
        i = bisect_left(self.lows, -(-(u + 1) * self.high >> bits))
        if i and u * self.low < self.highs[i - 1] << bits:
            return None
        return i
