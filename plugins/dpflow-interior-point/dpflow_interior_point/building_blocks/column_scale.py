"""The scale of a column: the class [2^j, 2^(j+1)) in which differences of random pairs often lie.

Random pairs (Section 3.1 of the paper, which takes neighbours in a sequence of independent rows):
the rows stand in a circle, in a fresh, secret and uniformly random order. Each is
paired with those at most r = `REACH` steps away.

Guarantee: one row raises at most 2r counts and lowers at most 2r, under both relations, whatever the
order of the rows in the table is. If one is replaced, the same circle is as likely with the new row
in the old one's place, and the 2r pairs that it is in change. A circle of n + 1 rows without the
last one is a uniformly random circle of n; so circles of both tables can be drawn together, and the
new row steps in between two others. It forms 2r pairs; pairs that reach over the gap, d of each
distance d, are one step farther apart than before, so the r pairs of distance r go. (Where n <= 2r
the circle closes on itself and some pairs are formed twice; the numbers hold.) If the outcomes of
coupled draws are (epsilon, delta)-close, so are their mixtures. Pairs of sorted rows have no such
bound: one value can change every difference; and even in a circle a row that moves elsewhere would
change more.

A matching, r = 1/2 as it were, has one pair for two rows, where a row raises and lowers one count.
Here there are 2r times as many of both, and noise grows with them: only the luck of the pairing
shrinks, the largest part of which r = 2 takes away.

Of many rows only a bounded sample is paired, picked by the rows' units alone: one row more
exchanges one row of the sample at most, which is the case above. Its size is public; a class that
holds a twentieth of all pairs shows in it, however much noise the privacy cost asks for.

A pair is ignored if its difference is not finite or lies outside [2^-1000, 2^1001); that too
depends on the pair alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from dpflow.core.sampling.randomness import Source
from dpflow.core.sampling.samplers import circular_order
from dpflow_interior_point.building_blocks.stable_bins import Ints, select_bins
from dpflow_interior_point.building_blocks.truncated_noise import TruncatedNoiseLaw

LEAST, MOST = -1000, 1000  #: exponents of classes, so that 2^j and 2^-j are ordinary doubles
TIES = LEAST - 1  #: the class of differences that are 0
REACH = 2  #: steps between a row and the farthest that it is paired with
PARTNERS = 2 * REACH  #: pairs that one row is in

Rule = Literal["argmax", "largest"]


@dataclass(frozen=True)
class Scale:
    """The result of the first stage.

    Attributes:
        exponent: j of the chosen class, or None.
        count: its noisy number of pairs, of which there are `REACH` for each row.
        ties: noisy number of pairs of equal values, 0 if that was not selected.
    """

    exponent: int | None
    count: int
    ties: int

    @property
    def mostly_ties(self) -> bool:
        """Whether equal values are the better lead: their pairs are at least half as many as those
        of the chosen class.
        """
        return self.ties > 0 and (self.exponent is None or 2 * self.ties >= self.count)


def sample_size(noise: TruncatedNoiseLaw) -> int:
    """Rows that are paired at most: a function of the plan."""
    # At least 32 radii of pairs: a class with a twentieth of them lies above the radius.
    return max(2**16, 64 * noise.radius // PARTNERS)


def pair_differences(values: NDArray[Any], source: Source) -> NDArray[Any]:
    """|x - x'| of random pairs. No row is paired with itself, even if there are only two.

    Of integers exactly: those of 64 bits have differences of 64 bits without a sign.
    """
    circle = values[circular_order(len(values), source)]
    pairs = [
        (circle, np.roll(circle, distance))
        for distance in range(1, REACH + 1)
        if distance < len(circle)
    ]
    if values.dtype.kind == "i":
        # Modulo 2^64 the difference of the larger and the smaller is the difference itself.
        gaps = [(np.maximum(x, y).view("u8") - np.minimum(x, y).view("u8")) for x, y in pairs]
        return np.concatenate(gaps or [circle[:0].view("u8")])
    # inf - inf is NaN and the largest doubles overflow: both are dropped when classes are counted
    with np.errstate(over="ignore", invalid="ignore"):
        gaps = [np.abs(x - y) for x, y in pairs]
    return np.concatenate(gaps or [circle[:0]])


def count_classes(gaps: NDArray[Any], octaves: int = 1) -> tuple[Ints, Ints]:
    """Least exponents of the classes of the differences, or `TIES`, and how often each occurs.

    No logarithm: an exponent is read off. With more ``octaves`` a class is [2^j, 2^(j + octaves)),
    j a multiple of them.
    """
    exponents = _read_exponents(gaps)
    exponents = exponents[(exponents >= LEAST) & (exponents <= MOST)] // octaves * octaves
    # LEAST need not be a multiple of ``octaves``: bins start where its class does
    lowest = LEAST // octaves * octaves
    class_counts = np.bincount(exponents - lowest)
    counts = np.append(np.count_nonzero(gaps == 0), class_counts)
    names = np.append(TIES, lowest + np.arange(len(class_counts)))
    return names[counts > 0], counts[counts > 0]


def _read_exponents(gaps: NDArray[Any]) -> Ints:
    """j with 2^j <= gap < 2^(j+1), of gaps above 0 that are finite."""
    if gaps.dtype.kind == "f":
        return np.asarray(np.frexp(gaps[np.isfinite(gaps) & (gaps > 0)])[1] - 1, np.int64)
    if gaps.dtype.kind == "O":
        return np.array([int(gap).bit_length() - 1 for gap in gaps if gap], np.int64)
    gaps = gaps[gaps > 0]
    # The upper half of a number's bits is exact as a double, and so is the lower.
    upper, lower = gaps >> np.uint64(32), gaps & np.uint64(2**32 - 1)
    exponents = np.where(
        upper > 0, np.frexp(upper.astype(float))[1] + 32, np.frexp(lower.astype(float))[1]
    )
    return np.asarray(exponents - 1, np.int64)


def least_pairs(share: Fraction, rows: int) -> int:
    """The threshold for a class that is to hold this share of all pairs of so many rows."""
    # Rounding down is safe: the radius bounds every threshold from below.
    return int(share * REACH * max(0, rows))


def estimate_scale(
    values: NDArray[Any],
    noise: TruncatedNoiseLaw,
    threshold: int,
    rule: Rule,
    source: Source,
    octaves: int = 1,
) -> Scale:
    """Pair the values, count the pairs by class, choose a class."""
    exponents, counts = count_classes(pair_differences(values, source), octaves)
    return choose_class(exponents, counts, noise, threshold, rule, source)


def choose_class(
    exponents: Ints,
    counts: Ints,
    noise: TruncatedNoiseLaw,
    threshold: int,
    rule: Rule,
    source: Source,
) -> Scale:
    """Choose among the classes that are selected: the fullest by noisy count ("argmax", of equal
    ones the largest), or the largest exponent ("largest", the paper's rule, which estimates E|X -
    mean| up to a constant factor).
    """
    # Never below the radius, or classes without a pair could show.
    selected, noisy = select_bins(exponents, counts, noise, max(threshold, noise.radius), source)
    candidates = [(int(n), int(j)) for j, n in zip(exponents[selected], noisy, strict=True)]
    ties = next((n for n, j in candidates if j == TIES), 0)
    # Ties have no scale: they lead to atoms, or to nothing.
    proper = [(n, j) for n, j in candidates if j != TIES]
    if not proper:
        return Scale(None, 0, ties)
    count, exponent = max(proper) if rule == "argmax" else max(proper, key=lambda pair: pair[1])
    return Scale(exponent, count, ties)
