"""Squares of distances from a centre, counted in steps so coarse that no table's sum of them stops.

Guarantee: each row's square is rounded by itself before it is added up, so what one unit moves is that of
the rounded squares, exactly. The steps follow from declared bounds alone.
"""

from __future__ import annotations

from typing import NamedTuple

#: Terms up to here add up to no more than 2^62, for a table has fewer than 2^40 rows.
MAX_TERM = 2**22
_BITS = MAX_TERM.bit_length() - 1
#: Bits of a distance that is squared: its square fits into 64 bits.
_DISTANCE_BITS = 31


class Square(NamedTuple):
    """What is added up of a column: the square of each value's distance from a centre, less a half.

    Attributes:
        name: the column.
        centre: in grid steps.
        half: what is taken from each rounded square.
        drop: bits that the distance is rounded by before it is squared.
        shift: bits that its square is rounded by. Both are rounded half up.
    """

    name: str
    centre: int
    half: int
    drop: int = 0
    shift: int = 0

    @classmethod
    def fit(cls, name: str, centre: int, reach: int) -> Square:
        """Of distances of at most ``reach`` steps: rounded so that sums fit, less half of the largest."""
        drop = max(0, reach.bit_length() - _DISTANCE_BITS)
        largest = _round_bits(reach, drop) ** 2
        shift = max(0, largest.bit_length() - _BITS)
        return cls(name, centre, _round_bits(largest, shift) // 2, drop, shift)

    @property
    def step(self) -> int:
        """What one step of the rounded square is, in squares of grid steps."""
        return 1 << (2 * self.drop + self.shift)

    def round_square(self, value: int) -> int:
        """The rounded square of a value in grid steps."""
        return _round_bits(_round_bits(abs(value - self.centre), self.drop) ** 2, self.shift)

    def term_range(self, low: int, high: int) -> tuple[int, int]:
        """The least and the largest term of values between two bounds."""
        largest = max(self.round_square(low), self.round_square(high), 1)
        return -self.half, largest - self.half

    def rounding_error(self, reach: int) -> int:
        """How far a rounded square is at most from that of a distance of at most ``reach``, in squares
        of grid steps: half a step, and |d^2 - e^2| = |d - e| |2d - (d - e)| for the rounded distance e.
        """
        rest = (1 << self.drop) >> 1
        return ((1 << self.shift) >> 1 << 2 * self.drop) + rest * (2 * reach + rest)


def _round_bits(value: int, bits: int) -> int:
    """What is not negative without its lowest bits, rounded half up."""
    return (value + (1 << bits >> 1)) >> bits
