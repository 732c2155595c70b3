"""Prefix counts from noisy counts of a partition: a flat histogram, or a tree of them.

Definition: K cells in order are grouped into runs of b^(h-1), these into runs of b^(h-2), and so on
to single cells: h levels. Every run gets its count plus discrete Laplace noise. At an edge between
cells the rows below it are those below its run's start plus the runs to its left, or those below
its run's end less the runs to its right, whichever adds up fewer noises; so it is with the rows
above.

Guarantee: the runs of a level divide the rows. A neighbour that adds or removes ``changes`` rows in
all moves a level's counts by that much in L1, so noise of scale h changes/epsilon makes a level
(epsilon/h)-DP and all of them epsilon-DP; the edges may depend on what was released before.

Error: a prefix is the exact count plus a sum of t independent noises with signs, t public
(`dpflow.core.toolbox.noise_sums`).

Source: Hay, Rastogi, Miklau, Suciu 2010 and Chan, Shi, Song 2010 (trees of counts); Qardaji, Yang,
Li 2013 (their branching).
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from dpflow.core.sampling.randomness import Source
from dpflow.core.toolbox.noise import Noise
from dpflow.core.toolbox.noise_sums import laplace_sum_half_width

Ints = NDArray[np.int64]
#: Stands for an edge of which nothing is known yet.
_UNKNOWN = 2**40


@dataclass(frozen=True)
class PrefixCounts:
    """At every edge, the first and the last included: estimated rows below and above it, and of how
    many independent noises each is a sum. They were released: functions of them are, too.
    """

    below: Ints
    above: Ints
    below_terms: Ints
    above_terms: Ints

    def bounds(self, scale: Fraction, failure: float) -> tuple[Ints, Ints, Ints, Ints]:
        """The least and the most rows below, and above, each edge: all of them hold at once with
        probability 1 - ``failure``.
        """
        # One statement for each number that has noise at all.
        statements = np.count_nonzero(self.below_terms) + np.count_nonzero(self.above_terms)
        each = failure / max(1, int(statements))
        ends = []
        for counts, terms in ((self.below, self.below_terms), (self.above, self.above_terms)):
            widths = np.array(
                [laplace_sum_half_width(int(t), scale, each) for t in terms], np.int64
            )
            ends += [np.maximum(counts - widths, 0), np.maximum(counts + widths, 0)]
        return ends[0], ends[1], ends[2], ends[3]


def draw_prefix_counts(
    counts: Ints, branches: int, levels: int, noise: Noise, rows: int | None, source: Source
) -> PrefixCounts:
    """Noisy prefix counts of K cells.

    Args:
        counts: exact, in the order of the cells.
        branches: runs that a run is divided into, 2 at least, with branches^levels >= K.
        levels: from 1.
        noise: of every count.
        rows: the sum of the counts if it is public, else None.
        source: where the randomness comes from.
    """
    cells = len(counts)
    sums = np.concatenate([[0], np.cumsum(counts)])
    estimates = np.zeros((2, cells + 1), np.int64)
    terms = np.full((2, cells + 1), _UNKNOWN, np.int64)
    terms[0, 0] = terms[1, cells] = 0
    if rows is not None:
        estimates[0, cells] = estimates[1, 0] = rows
        terms[0, cells] = terms[1, 0] = 0
    starts = [0]
    for level in range(levels):
        width = branches ** (levels - 1 - level)
        ends = [*starts[1:], cells]
        edges = [[*range(a, b, width), b] for a, b in zip(starts, ends, strict=True)]
        # A run that is not divided has been counted already, but for the first level.
        divided = [run for run in edges if len(run) > 2 or level == 0]
        exact = np.concatenate([np.diff(sums[run]) for run in divided] or [sums[:0]])
        noisy = noise.add_noise(exact, source)
        at = 0
        for run in divided:
            parts = noisy[at : at + len(run) - 1]
            at += len(parts)
            _fill_edges(estimates, terms, run, parts)
        starts = [edge for run in edges for edge in run[:-1]]
    return PrefixCounts(estimates[0], estimates[1], terms[0], terms[1])


def _fill_edges(estimates: Ints, terms: Ints, run: list[int], parts: Ints) -> None:
    """Both counts at a run's inner edges, from its ends and the noisy counts of its parts."""
    start, end, number = run[0], run[-1], len(parts)
    left = np.concatenate([[0], np.cumsum(parts)])
    right = left[-1] - left
    places = np.array(run)
    # Below: from the start upward or from the end downward; above: the other way round.
    for kind, (near, far) in enumerate(((start, end), (end, start))):
        toward, back = (left, right) if kind == 0 else (right, left)
        steps = np.arange(number + 1) if kind == 0 else np.arange(number, -1, -1)
        first = terms[kind, near] + steps
        second = terms[kind, far] + number - steps
        value = np.where(
            first <= second, estimates[kind, near] + toward, estimates[kind, far] - back
        )
        is_filled = terms[kind, places] < _UNKNOWN
        estimates[kind, places] = np.where(is_filled, estimates[kind, places], value)
        terms[kind, places] = np.where(is_filled, terms[kind, places], np.minimum(first, second))
