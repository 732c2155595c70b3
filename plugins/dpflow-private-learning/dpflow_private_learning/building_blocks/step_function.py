"""Scores that are constant on runs of an ordered domain: a range of 2^64 or 2^1000 points with a
few thousand runs.

A score over the points 0, 1, ..., ``end`` is held as the start of each run and its integer value.
Everything RecConcave needs of a score (window minima, best blocks, a clipped range) is computed
from the runs, never from the points.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

_WIDE = 2**64  # from here on positions are Python integers


@dataclass(frozen=True)
class StepFunction:
    """Runs of equal score. Starts ascend; run i reaches to the point before run i+1, the last one
    to ``end``.

    Attributes:
        starts: uint64, or Python integers where ``end`` is 2^64 or more.
        end: the last point.
        values: the score of each run, an integer number of units.
        unit: the true score is values/unit.
    """

    starts: Array = field(repr=False)
    end: int
    values: Array = field(repr=False)
    unit: int = 1

    @classmethod
    def from_runs(
        cls, starts: Sequence[int] | Array, end: int, values: Sequence[int] | Array, unit: int = 1
    ) -> StepFunction:
        """Runs from plain numbers; neighbours of equal value are joined."""
        kind = object if end >= _WIDE else np.uint64
        first, value = (
            np.asarray(starts, dtype=kind),
            np.asarray(values, dtype=_integer_type(values)),
        )
        # Neighbouring runs of equal score are joined: window minima are found by walking the runs.
        if len(value) > 1:
            new = np.concatenate([[True], value[1:] != value[:-1]])
            if not new.all():
                first, value = first[new], value[new]
        return cls(first, end, value, unit)

    @classmethod
    def from_points(cls, points: Array, values: Array, end: int) -> StepFunction:
        """The score that is ``values`` at these ascending points and 0 at all others."""
        return cls.from_intervals(points, values, 0, end)

    @classmethod
    def from_intervals(
        cls, points: Array, values: Array, behind: Array | int, end: int
    ) -> StepFunction:
        """The score that is ``values`` at these ascending points, ``behind`` from there to the next
        one, 0 before the first.
        """
        size = 2 * len(points) + 1
        starts, scores = (
            np.zeros(size, object if end >= _WIDE else np.uint64),
            np.zeros(size, np.result_type(values, behind)),
        )
        x, after = starts[1::2], starts[2::2]
        x[:], scores[1::2], scores[2::2] = points, values, behind
        np.add(x, 1 if end >= _WIDE else np.uint64(1), out=after)
        keep = np.ones(size, bool)
        # No empty run before the first point, between neighbours, or behind the end.
        keep[0] = not len(x) or x[0] != 0
        keep[2::2] = np.append(after[:-1] != x[1:], x[-1:] != end)
        if not keep.all():
            starts, scores = starts[keep], scores[keep]
        return cls.from_runs(starts, end, scores)

    @property
    def last_points(self) -> Array:
        """The last point of each run."""
        one = 1 if self.starts.dtype == object else np.uint64(1)
        return np.append(self.starts[1:] - one, np.array([self.end], dtype=self.starts.dtype))

    def run_lengths(self) -> Array:
        """Points of each run."""
        # A run of 2^64 points has a length that no uint64 holds.
        if len(self.starts) == 1:
            return np.array([self.end - int(self.starts[0]) + 1], dtype=object)
        sizes = np.empty_like(self.starts)
        np.subtract(self.starts[1:], self.starts[:-1], out=sizes[:-1])
        sizes[-1] = self.end - int(self.starts[-1]) + 1
        return sizes

    def value_at(self, point: int) -> int:
        """The score at one point, in units."""
        return int(
            self.values[
                int(np.searchsorted(self.starts, self.starts.dtype.type(point), side="right")) - 1
            ]
        )

    def pad_to(self, end: int) -> StepFunction:
        """The same up to ``end``, with min(0, last score) on what is new."""
        if end == self.end:
            return self
        starts = self.starts.astype(object) if end >= _WIDE else self.starts
        extra = np.array([self.end + 1], dtype=starts.dtype)
        value = np.array([min(0, int(self.values[-1]))], dtype=self.values.dtype)
        return StepFunction.from_runs(
            np.append(starts, extra), end, np.append(self.values, value), self.unit
        )

    def clip_to(self, low: int, high: int) -> StepFunction:
        """The runs inside [low, high], ends included."""
        lasts = self.last_points
        touched = (lasts >= low) & (self.starts <= high)
        starts = np.maximum(
            self.starts[touched],
            self.starts.dtype.type(low) if self.starts.dtype != object else low,
        )
        return StepFunction(starts, min(high, self.end), self.values[touched], self.unit)

    def window_minima(self, powers: int) -> list[int]:
        """L(0), ..., L(powers): the largest score that some window of 2^j points keeps throughout,
        for any score at all.

        A run of value v supports windows as long as the stretch around it where the score is at
        least v. Raises ValueError if no window of 2^powers points fits.
        """
        if self.end + 1 < 1 << powers:
            raise ValueError("the longest window does not fit")
        before, behind = _nearest_below(self.values), _nearest_below(self.values[::-1])
        left = before + 1
        right = len(self.values) - 1 - behind[::-1]  # the first run behind with a smaller value
        # A run supports every window that fits into the stretch where no score is below its own.
        sizes = _bit_lengths(self._stretch_lengths(left, right))
        best = np.full(powers + 1, self.values.min(), dtype=self.values.dtype)
        np.maximum.at(best, np.minimum(sizes - 1, powers), self.values)
        return [int(v) for v in np.maximum.accumulate(best[::-1])[::-1]]

    def _stretch_lengths(self, left: Array, right: Array) -> Array:
        """Points from run ``left`` to before run ``right``; for uint64 a stretch of 2^64 points
        comes out as 0.
        """
        wide = self.starts.dtype == object
        # 2^64 wraps to 0 on purpose: `_bit_lengths` reads 0 as 2^64.
        stop = self.end + 1 if wide else np.uint64((self.end + 1) % _WIDE)
        edges = np.append(self.starts, np.array([stop], dtype=self.starts.dtype))
        stretch: Array = edges[right] - edges[left]
        return stretch

    def best_block(self, offset: int, shift: int) -> tuple[int, int, int | None] | None:
        """The block [offset + b 2^shift, offset + (b+1) 2^shift - 1], b >= 0, with the largest
        maximal score.

        Returns its b (the smallest at a tie), its score and the score of the next block, None where
        there is only one block; None where there is none.
        """
        if offset > self.end:
            return None
        lasts = self.last_points
        touched = lasts >= offset
        values = self.values[touched]
        low = offset if self.starts.dtype == object else np.uint64(offset)
        first: Array = np.maximum(self.starts[touched], low) - low
        last: Array = lasts[touched] - low
        # numpy leaves a shift by 64 or more undefined; then all points lie in block 0.
        if self.starts.dtype == object or shift < 64:
            by = shift if self.starts.dtype == object else np.uint64(shift)
            first, last = first >> by, last >> by
        else:
            first, last = np.zeros_like(first), np.zeros_like(last)
        top = values.max()
        winner = first[values == top].min()
        # The last run ends in block 0, so there is no other block.
        if last[-1] == 0:
            return int(winner), int(top), None
        return int(winner), int(top), int(values[(first != winner) | (last != winner)].max())


def offsets(values: NDArray[np.int64], low: int) -> NDArray[np.uint64]:
    """int64 values as distances from ``low``, exact up to 2^64 - 1."""
    # In two's complement the difference modulo 2^64 is the distance.
    return np.ascontiguousarray(values, np.int64).view(np.uint64) - np.uint64(low % _WIDE)


def _integer_type(values: Sequence[int] | Array) -> Any:
    """int64 where that is enough."""
    if isinstance(values, np.ndarray):
        return values.dtype
    # Room for the sum or difference of two such values.
    return np.int64 if all(-(2**62) < v < 2**62 for v in values) else object


def _nearest_below(values: Array) -> NDArray[np.intp]:
    """For each entry the nearest index before it with a smaller value, or -1: a stack of
    candidates.
    """
    nearest, stack, last = [], [-1], values.tolist()
    last.append(min(last, default=0) - 1)  # the sentinel that index -1 points at
    for i, value in enumerate(last[:-1]):
        while last[stack[-1]] >= value:
            stack.pop()
        nearest.append(stack[-1])
        stack.append(i)
    return np.array(nearest, dtype=np.intp)


def _bit_lengths(sizes: Array) -> NDArray[np.intp]:
    """bit_length of each size, exactly; 0 stands for 2^64."""
    if sizes.dtype == object:
        return np.array([size.bit_length() for size in sizes.tolist()], dtype=np.intp)
    bits = np.frexp(sizes.astype(np.float64))[1].astype(np.intp)
    bits = np.minimum(bits, 64)  # a float may have rounded up to the next power of two
    bits -= (np.uint64(1) << (np.maximum(bits, 1) - 1).astype(np.uint64) > sizes) & (bits > 0)
    return np.where(sizes == 0, 65, bits)
