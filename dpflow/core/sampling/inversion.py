"""Inversion: the cells of a law, drawn by a uniform number U that starts with a 64-bit word.

Cells 0, 1, ... have weights and cut [0, 1) in proportion to them; the cell that holds U is drawn. So it is
exactly distributed, whatever decides between which cuts U lies. Three ways do, and they agree wherever two
of them are sure:

- Floats, for the first draws of a law. Their proven error is a margin around each cut.
- A table, for many draws and for words within a margin. Integer bounds of the cuts are computed rigorously; 2^16
  buckets of words map straight to the cell that holds all of them; a word in a mixed bucket is searched.
- A word next to a cut, or beyond the last cell of the table, is resolved with 128, 256, ... bits.

Proof of the margin: a weight is exp(-x) with x = rate edge^power. Rounding rate, edge, power and product
makes x wrong by less than 2^-50 x. For x < 745, where anything is left, that and 2^-40 for ``exp``
(as in `dpflow.core.sampling.samplers.choose_piece`) make a weight wrong by less than 2^-39 of itself. What underflows, and
what has no cell, weigh less than 2^-60 together. The first weight is 1, so n sums in floats are wrong by
less than 2^-39 + n 2^-52 of the total, and U and its word's first 53 bits differ by 2^-53. The margin is more
than both sides of a comparison can be wrong by together.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import TypeAlias

from dpflow.core.sampling.interval_arithmetic import Bounds, Cuts, exp_bounds, exp_ladder
from dpflow.core.sampling.randomness import RandomWords, Source
from dpflow.errors import InvalidAmount
from dpflow.late_numpy import NDArray, np

Ints: TypeAlias = "NDArray[np.int64]"

WORD = 64  # bits of a uniform number that are drawn first
BUCKET = 16  # leading bits of a word that select its bucket
# Words worked on at once: together with the buckets they fit into the second-level cache.
CHUNK = 1 << 15
FEW = 1 << 14  # draws of a law for which no table is worth its making
MIXED = -(2**31)


@dataclass(frozen=True)
class Law:
    """Cells 0, 1, 2, ... (two-sided: 0, -1, 1, -2, 2, ...) with weight exp(-rate edge^power).

    A cell v >= 0 stands for the integers v 2^shift, ..., (v + 1) 2^shift - 1 and its edge is the
    smallest of them; a cell v < 0 stands for -1 minus the integers of cell -1 - v, and its edge is
    the smallest absolute value.
    """

    rate: Fraction
    power: int
    shift: int
    two_sided: bool
    width: int | None = None  # a lower digit has this many bits, and no tail

    def cell_weights(self, bits: int) -> tuple[list[int], list[Bounds]]:
        """Cells up to weight exp(-bits), bounds of their weights, and bounds of the tail's weight,
        which has no cell.

        The tail is rigorous: with y = rate edge(n)^power >= bits for the first edge n left out on
        each side, convexity makes each further exponent larger by y/n at least, so a side weighs at
        most exp(-y) / (1 - exp(-y/n)) <= exp(-y) (1 + n/y) <= exp(-bits) (n + 1).
        """
        n = self._count_edges(bits)
        cells = [v for k in range(n) for v in ((k, ~k) if self.two_sided else (k,))]
        edges = ((v << self.shift) if v >= 0 else (~v << self.shift) + 1 for v in cells)
        precision = bits + 32
        weights = list(exp_ladder(self.rate, (edge**self.power for edge in edges), precision))
        if self.width is None:
            weights.append((0, 2 * (n + 1) * exp_bounds(Fraction(bits), precision)[1]))
        return cells, weights

    def _count_edges(self, bits: int) -> int:
        """How many edges each side has up to weight exp(-bits)."""
        least = math.ceil(bits / self.rate)
        root = least if self.power == 1 else math.isqrt(least) + 1
        return (root >> self.shift) + 1 if self.width is None else 1 << self.width

    def sum_weights(self) -> tuple[Ints, NDArray[np.float64]]:
        """Cells up to weight exp(-64), and sums of their weights, wrong by less than the margin."""
        edges = np.arange(self._count_edges(WORD), dtype=np.int64)
        cells = np.column_stack([edges, ~edges]).ravel() if self.two_sided else edges
        edges = np.where(cells >= 0, cells << self.shift, (~cells << self.shift) + 1)
        # A rate above 2^900 leaves nothing of any other cell than the first, whatever it is exactly.
        rate = float(min(self.rate, Fraction(2**900)))
        return cells, np.cumsum(np.exp(-rate * edges.astype(np.float64) ** self.power))


class _Table:
    """Bounds of a law's cuts, as words and as buckets of words."""

    def __init__(self, law: Law) -> None:
        self.law = law
        cells, weights = law.cell_weights(WORD)
        self.cells = np.array([*cells, 0], dtype=np.int64)
        self.tail = len(cells)
        undecided = np.array([*Cuts(weights).uncertain_words(WORD)], dtype=np.uint64).reshape(-1, 2)
        self.first, self.last = undecided[:, 0].copy(), undecided[:, 1].copy()
        starts = np.arange(1 << BUCKET, dtype=np.uint64) << np.uint64(WORD - BUCKET)
        lowest, unsure = self._search_cells(starts)
        ends = starts | np.uint64((1 << WORD - BUCKET) - 1)
        mixed = unsure | (lowest != np.searchsorted(self.first, ends, side="right"))
        self.buckets = np.where(mixed, MIXED, self.cells[lowest]).astype(np.int32)

    def draw_cells(self, size: int, source: Source) -> Ints:
        """Independent cells, many."""
        cells = np.empty(size, dtype=np.int64)
        for start in range(0, size, CHUNK):
            words = source.draw_words(min(CHUNK, size - start))
            part = cells[start : start + CHUNK]
            part[:] = self.buckets.take(words >> np.uint64(WORD - BUCKET))
            # Few buckets hold a cut, so nearly every word is settled by one look-up.
            mixed = (part == MIXED).nonzero()[0]
            if mixed.size:
                part[mixed] = self.resolve_words(words[mixed], source)
        return cells

    def _search_cells(self, words: RandomWords) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
        """The cell of each word, and whether that is not yet certain."""
        index = np.searchsorted(self.first, words, side="right")
        return index, (index == self.tail) | ((index > 0) & (words <= self.last[index - 1]))

    def resolve_words(self, words: RandomWords, source: Source) -> Ints:
        """The cells of words that a bucket does not settle."""
        index, unsure = self._search_cells(words)
        values = self.cells[index]
        for i in np.flatnonzero(unsure):
            values[i] = self._resolve_word(int(words[i]), source)
        return values

    def _resolve_word(self, u: int, source: Source) -> int:
        """The cell of the uniform number that starts with the word u."""
        bits = WORD
        while True:
            u = u << bits | source.draw_bits(bits)
            bits *= 2
            cells, weights = self.law.cell_weights(bits)
            piece = Cuts(weights).find_piece(u, bits)
            if piece is None or piece == len(cells):
                continue  # too close to a cut, or in the tail of these bounds: twice the bits see further out
            if cells[piece].bit_length() + self.law.shift > 62:
                raise InvalidAmount(
                    "the noise left the 64-bit range, which no working source of randomness makes happen"
                )
            return cells[piece]


class Inversion:
    """Draws the cells of a law: the first ones by floats, as soon as they are many by a table."""

    def __init__(self, law: Law) -> None:
        self.law = law
        self._drawn = 0

    @cached_property
    def table(self) -> _Table:
        """The table, made when it is first needed."""
        return _Table(self.law)

    @cached_property
    def _sums(self) -> tuple[Ints, NDArray[np.float64], float, float]:
        """Cells, sums of their weights, the total, and the margin."""
        cells, sums = self.law.sum_weights()
        total = float(sums[-1])
        return cells, sums, total, total * 2 * (2.0**-38 + len(sums) * 2.0**-52)

    def draw_cells(self, size: int, source: Source) -> Ints:
        """Independent cells."""
        self._drawn += size
        if self._drawn > FEW:
            return self.table.draw_cells(size, source)
        cells, sums, total, margin = self._sums
        words = source.draw_words(size)
        points = (words >> np.uint64(11)) * 2.0**-53 * total
        index = sums.searchsorted(points - margin, side="right")
        unsure = (index != sums.searchsorted(points + margin)).nonzero()[0]
        drawn: Ints = cells[index]
        if unsure.size:
            drawn[unsure] = self.table.resolve_words(words[unsure], source)
        return drawn
