"""A point between two occupied cells, or one on an atom; and the middle slice of both.

Cells [k w, (k+1) w) of width w = 2^e that `stable_bins.select_bins` shows hold a row each, with certainty.
The left edge of a shown cell that is not the lowest one therefore lies above some row and not above
another: min(x) < z <= max(x) for every table and every noise, exactly in doubles and integers, because k w
is exact.

A cell may also be asked for ``spare`` rows beyond the noise: T = R + spare. Then cells with at most
``spare`` rows can be left in the database, and a shown cell has more than that.

The middle slice drops the t lowest and the t highest values. With the same t, replacing one value
replaces at most one value of the slice, and one value more is one value more in the slice, at most.
With t = floor(r n) of a private n up to three would differ: t has to come from a public or a noisy
number of rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpflow.core.contract.requests import BinCounts
from dpflow.core.sampling.randomness import Source
from dpflow_interior_point.building_blocks.stable_bins import select_bins
from dpflow_interior_point.building_blocks.truncated_noise import TruncatedNoiseLaw


@dataclass(frozen=True)
class Point:
    """A point, or none.

    Attributes:
        value: the point, or None.
        status: ``ok``, ``ok_atom`` (a value that many rows share), ``no_scale`` or ``no_bins``.
        below, above: noisy numbers of rows in the shown cells on both sides, 0 without an answer.
    """

    value: float | int | None
    status: str
    below: int = 0
    above: int = 0


NO_SCALE = Point(None, "no_scale")
NO_BINS = Point(None, "no_bins")


def finite_cells(cells: BinCounts) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Keys and counts without the cells of infinite values, which have no edge that a double holds."""
    if cells.keys.dtype.kind != "f":
        return cells.keys, cells.counts
    finite = np.isfinite(cells.keys)
    return cells.keys[finite], cells.counts[finite]


def lower_edge(key: Any, exponent: int) -> float | int:
    """key 2^exponent, exactly: of cells of doubles a double, of cells of integers an integer."""
    if isinstance(key, float):
        return math.ldexp(key, exponent)
    # Cells narrower than 1 hold one integer each, so nothing is lost.
    return int(key) << exponent if exponent >= 0 else int(key) >> -exponent


def middle_slice(values: NDArray[Any], trim: int) -> NDArray[Any]:
    """The values without the ``trim`` lowest and highest."""
    # In the order of the rows: audits give both neighbours' rows the same places in a circle.
    if not trim:
        return values
    # An end before the start would count from the back: too few values leave none.
    return np.sort(values)[trim : max(len(values) - trim, trim)]


def point_between(
    cells: BinCounts, exponent: int, noise: TruncatedNoiseLaw, spare: int, source: Source
) -> Point:
    """The edge between shown cells that best divides their noisy counts in two; of equal ones the
    lowest.
    """
    keys, counts = finite_cells(cells)
    selected, noisy = select_bins(keys, counts, noise, noise.radius + spare, source)
    # One occupied cell proves no row on the other side of its edges.
    if len(selected) < 2:
        return NO_BINS
    # post-processing from here on
    below = np.cumsum(noisy)[:-1]
    total = int(noisy.sum())
    cut = int(np.argmin(np.abs(2 * below - total)))
    edge = lower_edge(keys[selected[cut + 1]], exponent)
    return Point(edge, "ok", int(below[cut]), total - int(below[cut]))


def point_among(atoms: BinCounts, noise: TruncatedNoiseLaw, spare: int, source: Source) -> Point:
    """Of the shown values the lowest that reaches half of their noisy counts. It is a value of the
    table.
    """
    keys, counts = finite_cells(atoms)
    selected, noisy = select_bins(keys, counts, noise, noise.radius + spare, source)
    if not len(selected):
        return NO_BINS
    # post-processing from here on
    upto = np.cumsum(noisy)
    cut = int(np.argmax(2 * upto >= upto[-1]))
    below, above = int(upto[cut] - noisy[cut]), int(upto[-1] - upto[cut])
    return Point(lower_edge(keys[selected[cut]], 0), "ok_atom", below, above)
