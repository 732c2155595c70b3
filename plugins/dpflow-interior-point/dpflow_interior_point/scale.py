"""The scale of a column, privately: in which class [2^j, 2^(j+1)) do differences of random pairs of rows often lie?

Random pairs (Section 3.1 of the paper): a uniformly random perfect matching of the rows, drawn anew and kept secret. If one
row is replaced, the same matching is as likely on the other table and one difference changes. If one row comes on top, the
matchings of both tables can be drawn together so that one pair is exchanged, or one comes on top: with n rows, n even, the
new row is the one left over with probability 1/(n+1), else it takes the place of a uniform row, which is left over; n odd, it
joins the one left over. So each row raises and lowers one count at most, under both relations, whatever the order of the
rows is. Pairs of sorted rows have no such bound: one value can change every difference.

Each row is paired `MATCHINGS` times, in as many independent matchings: their sum moves by that many pairs up and down, noise grows
alike, and so only the luck of the pairing shrinks, the largest part of which four matchings take away.

Of many rows only a bounded sample is paired, picked by the rows' units alone: one row more exchanges one row of the sample at
most, which is the case above. Its size is public; a class that holds a twentieth of all pairs shows in it, however much noise
the price asks for.

A pair is ignored if its difference is not finite or lies outside [2^-1000, 2^1001); that too depends on the pair alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dpflow.core.randomness import Source
from dpflow.core.samplers import matching
from dpflow_interior_point.noise import Noise
from dpflow_interior_point.stability import Ints, select

LEAST, MOST = -1000, 1000  #: exponents of classes, so that 2^j and 2^-j are ordinary doubles
TIES = LEAST - 1  #: the class of differences that are 0
MATCHINGS = 4

Rule = Literal["argmax", "largest"]


@dataclass(frozen=True)
class Scale:
    """What the first stage found.

    Attributes:
        exponent: j of the chosen class, or None.
        count: its noisy number of pairs in all matchings.
        ties: noisy number of pairs of equal values, 0 if that was not selected.
    """

    exponent: int | None
    count: int
    ties: int

    @property
    def mostly_ties(self) -> bool:
        """Whether equal values are the better lead: their pairs are at least half as many as those of the chosen class."""
        return self.ties > 0 and (self.exponent is None or 2 * self.ties >= self.count)


def sample_size(noise: Noise) -> int:
    """Rows that are paired at most: a function of the plan."""
    return max(2**16, 64 * noise.radius // MATCHINGS)


def differences(values: NDArray[np.float64], source: Source) -> NDArray[np.float64]:
    """|x - x'| of random pairs, of all matchings."""
    first, second = np.concatenate([matching(len(values), source) for _ in range(MATCHINGS)]).T
    with np.errstate(over="ignore", invalid="ignore"):
        gaps: NDArray[np.float64] = np.abs(values[first] - values[second])
    return gaps


def classes(gaps: NDArray[np.float64], octaves: int = 1) -> tuple[Ints, Ints]:
    """Least exponents of the classes of the differences, or `TIES`, and how often each occurs.

    No logarithm: an exponent is read off. With more ``octaves`` a class is [2^j, 2^(j + octaves)), j a multiple of them.
    """
    gaps = gaps[np.isfinite(gaps)]
    exponents = np.where(gaps == 0, TIES, np.frexp(gaps)[1].astype(np.int64) - 1)
    exponents = exponents[(gaps == 0) | ((exponents >= LEAST) & (exponents <= MOST))]
    exponents = np.where(exponents == TIES, TIES, exponents // octaves * octaves)
    found, counts = np.unique(exponents, return_counts=True)
    return found.astype(np.int64), counts.astype(np.int64)


def least_pairs(share: Fraction, rows: int) -> int:
    """The threshold for a class that is to hold this share of all pairs of so many rows."""
    return int(share * MATCHINGS * (max(0, rows) // 2))


def estimate_scale(
    values: NDArray[np.float64], noise: Noise, threshold: int, rule: Rule, source: Source, octaves: int = 1
) -> Scale:
    """Choose among the classes that are selected: the fullest by noisy count ("argmax", of equal ones the largest), or the
    largest exponent ("largest", the paper's rule, which estimates E|X - mean| up to a constant factor)."""
    exponents, counts = classes(differences(values, source), octaves)
    places, noisy = select(counts, noise, max(threshold, noise.radius), source)
    found = [(int(n), int(j)) for j, n in zip(exponents[places], noisy, strict=True)]
    ties = next((n for n, j in found if j == TIES), 0)
    proper = [(n, j) for n, j in found if j != TIES]
    if not proper:
        return Scale(None, 0, ties)
    count, exponent = max(proper) if rule == "argmax" else max(proper, key=lambda pair: pair[1])
    return Scale(exponent, count, ties)
