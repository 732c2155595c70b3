"""Bounds for a column whose range nobody knows, so that a first sum or quantile can be declared.

Definition: values are counted by sign and power of two, 2^j <= |x| < 2^(j+1) for j = -64, ..., 127,
smaller ones as zero, larger and infinite ones in a bin of each sign that has no outer edge. Every
count gets Laplace noise. Bins with edges whose noisy count reaches t are taken as occupied; the answer
is the lower edge of the lowest and the upper edge of the highest of them, or none. t is the smallest
integer that the noise of any of the 387 bins reaches with probability 5 % at most. The list of bins is public, so no delta is
needed. With ``by`` each public key has bins of its own, and t is that of all of them.

Guarantee: a unit with R rows in each of g groups moves the counts by g R in L1 and by root(g) R in
L2 under add-remove, by 2 g R and root(2 g) R under replace; the noise fits one of them, so the
answer is post-processing of an epsilon-DP histogram, or with a ``delta`` of one with Gaussian noise
that is (epsilon, delta)-DP, if its threshold is lower: where a unit reaches many groups.

Error: with probability 95 % no empty bin is taken, and with the same a bin of 2 t rows is: what the
bounds leave out lies in bins with fewer, or is 2^128 and more. How many rows that is follows from the same noisy counts, at no
cost: their sum over the bins outside, and with 95 % at most so many, whichever bounds were found
(the tail of a sum, over all pairs of bins and all keys). So a reader knows what share of the rows
is clamped. Of a column with declared bounds the document limits what values exceed each power of two inside them by
(``excess``), from which releases of sums take narrower ones (`dpflow.engine.releases.narrower_bounds`).
Use: release it once, and name it in the ``bounds`` of other releases (`dpflow.engine.releases.released_bounds`), or copy
what the result's document has ready into the declaration. The result is stored: the same file again is free. Bounds that were
drawn are public; clamping to them is no further loss.

When not to use it: when the range is known from elsewhere, which costs nothing; or where 2 t rows
are many, since a quantile over a generous guess loses only the logarithm of it.

Source: Wilson, Zhang, Lam, Desfontaines, Simmons-Marengo, Gipson 2020 (approximate bounds); Laplace
tails are exact.
"""

from __future__ import annotations

import datetime as dt
import math
import operator
from collections import Counter
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpflow.core.accounting.amounts import Delta, Epsilon, exact_text
from dpflow.core.accounting.events import DiscreteGaussian, DiscreteLaplace, Event
from dpflow.core.contract.declaration import Table
from dpflow.core.contract.mechanism import Mechanism, Params
from dpflow.core.contract.requests import BinCounts, CellGrid, OpenColumn, UnboundedValues
from dpflow.core.contract.results import ErrorBound, Result, Row
from dpflow.core.contract.strict_models import read_quoted_date
from dpflow.core.sampling.randomness import Source
from dpflow.core.toolbox.noise import (
    FAILURE,
    Noise,
    gaussian_noise,
    laplace_noise,
    rho_for,
)
from dpflow.core.toolbox.partition_selection import gaussian_above, tail_above

LEAST, MOST = -64, 127  # exponents of the first and the last power of two
NARROWER = 20  # powers of two by which a narrower end is below that of the declared range, at most
POWERS = MOST - LEAST + 2  # and one for what is larger
BINS = 2 * POWERS + 1  # the negative ones, zero, the positive ones


class BoundsParams(Params):
    """``column``: a column that can be read as a number, with or without declared bounds. ``by``: a
    column with public keys, or nothing. ``epsilon``: the privacy cost of all groups together.
    ``delta``: allows Gaussian noise.
    """

    column: str
    epsilon: Epsilon
    by: str | None = None
    delta: Delta = Fraction(0)


class Bounds(Mechanism[BoundsParams]):
    """Powers of two between which most of a column lies."""

    name = "bounds"
    job = "distribution"
    summary = (
        "powers of two between which nearly all values of a column lie, to declare its bounds with"
    )
    citation = "Wilson et al. 2020 (differentially private SQL with bounded user contribution, approximate bounds)"

    def _group_keys(self, params: BoundsParams, table: Table) -> tuple[str, ...]:
        return ("",) if params.by is None else table.public_keys(params.by)

    def _choose_noise(self, params: BoundsParams, table: Table) -> tuple[int, Noise]:
        """The lower threshold, and its noise."""
        moved = table.sensitivity(self.data_request(params, table)).cells
        failure = Fraction(str(FAILURE)) / (BINS * len(self._group_keys(params, table)))
        # The lower threshold finds rarer bins at the same cost.
        forms = [
            (tail_above(moved.l1 / params.epsilon, failure), laplace_noise(moved, params.epsilon))
        ]
        if params.delta:
            rho = rho_for(params.epsilon, params.delta)
            forms.append(
                (gaussian_above(moved.l2_squared / (2 * rho), failure), gaussian_noise(moved, rho))
            )
        return min(forms, key=lambda form: form[0])

    def count_rows(self, params: BoundsParams, table: Table) -> int:
        return 2 * len(self._group_keys(params, table))

    def event(self, params: BoundsParams, table: Table) -> Event:
        """The guarantee of the histogram of magnitudes; the bounds are post-processing of it."""
        table.column(params.column)
        return self._choose_noise(params, table)[1].event

    def data_request(self, params: BoundsParams, table: Table) -> UnboundedValues:
        """The values as they are: the column needs no declared bounds."""
        table.column(params.column)
        return UnboundedValues(
            params.column, params.by, self._group_keys(params, table), *table.bounds_for(params.by)
        )

    def draw(
        self, params: BoundsParams, table: Table, answer: OpenColumn, source: Source
    ) -> Result:
        """Noisy counts by power of two, of which the outermost above the threshold become the
        bounds.
        """
        keys = self._group_keys(params, table)
        # One cell for each value: magnitudes are counted here, where zero and infinity are handled.
        cells = answer.count_cells(dict.fromkeys(range(len(keys)), CellGrid(None)))
        counts = np.concatenate([count_magnitudes(cells[code]) for code in range(len(keys))])
        threshold, noise = self._choose_noise(params, table)
        noisy = noise.add_noise(counts, source).reshape(len(keys), BINS)
        rows: list[Row] = []
        bounds: dict[str, Any] = {}
        outside: dict[str, Any] = {}
        for key, counted in zip(keys, noisy, strict=True):
            # The outermost bins have no outer edge, so no bounds hold what is in them.
            occupied = 1 + np.flatnonzero(counted[1:-1] >= threshold)
            if occupied.size:
                outside[key] = self._count_outside(counted, occupied, noise, len(keys))
                lower, upper = (
                    answer.column_value(edge)
                    for edge in outer_edges(int(occupied[0]), int(occupied[-1]))
                )
                bounds[key] = {params.column: {"lower": lower, "upper": upper}}
                rows += [Row(key, "lower", lower), Row(key, "upper", upper)]
            else:
                rows += [Row(key, "lower", None), Row(key, "upper", None)]
        if params.by is not None:
            return Result(tuple(rows), {"keys": bounds, "outside": outside})
        found = {"columns": bounds[""], "outside": outside[""]} if bounds else {}
        return Result(tuple(rows), found | self._limit_excess(params, table, noisy[0], answer))

    def _count_outside(
        self, counted: NDArray[np.int64], occupied: NDArray[np.intp], noise: Noise, keys: int
    ) -> dict[str, int]:
        """Rows beyond the bounds: their noisy number, a number that is hardly exceeded, and all rows."""
        first, last = int(occupied[0]), int(occupied[-1])
        number = int(counted[:first].sum() + counted[last + 1 :].sum())
        # The noise chose the bins, so the limit holds for every choice.
        failure = FAILURE / (keys * BINS * (BINS + 1) / 2)
        slack = noise.sum_half_width(max(1, first + BINS - 1 - last), 2 * failure)
        ends = {"rows": max(0, number), "at_most_95": max(0, number + slack)}
        return ends | {"of": max(0, int(counted.sum()))}

    def _limit_excess(
        self, params: BoundsParams, table: Table, counted: NDArray[np.int64], answer: OpenColumn
    ) -> dict[str, Any]:
        """Powers of two inside the declared range, each with a number that what values exceed it by is hardly more than, all
        together. With 97.5 % all of them hold, if no value is beyond the range.
        """
        column, noise = table.column(params.column), self._choose_noise(params, table)[1]
        if column.lower is None or column.upper is None:
            return {}
        # Of times a cell is another unit than the bounds.
        if isinstance(read_quoted_date(answer.column_value(1.0)), dt.date):
            return {}
        sides = {"upper": counted[POWERS + 1 :], "lower": counted[POWERS - 1 :: -1]}
        excess: dict[str, list[Any]] = {side: [] for side in sides}
        ends = _list_ends(column.lower, column.upper, answer.step, answer.is_whole)
        for side, end, first, weights in ends:
            counts = sides[side][first : first + len(weights)].tolist()
            most = sum(map(operator.mul, weights, counts))
            most += _limit_noise(noise.event, weights, FAILURE / len(ends))
            excess[side].append([exact_text(end), max(0.0, most) * (1 + 1e-9)])
        return {"excess": excess}

    def error_bound(self, params: BoundsParams, table: Table) -> ErrorBound:
        """How many rows a power of two needs to be found; the edges themselves have no noise."""
        threshold, noise = self._choose_noise(params, table)
        rows = 2 * threshold
        law = "Laplace" if isinstance(noise.event, DiscreteLaplace) else "Gaussian"
        note = (
            f"{law} noise; a power of two with {rows} rows or more is found; what is outside the bounds lies in "
            f"rarer ones, or is 2^128 and more"
        )
        return ErrorBound({"rows outside, per power of two": rows}, note)


@lru_cache(maxsize=256)
def _list_ends(
    lower: Fraction, upper: Fraction, step: Fraction, is_whole: bool
) -> tuple[tuple[str, Fraction, int, tuple[float, ...]], ...]:
    """Powers of two inside a range: the side, the number, its bin from zero outward, and for that bin and those
    beyond how far their values may exceed it.
    """
    edges = [Fraction(2) ** power for power in range(LEAST, MOST + 1)]
    # As `OpenColumn.column_value` rounds.
    edges = [(math.ceil(edge) if is_whole else edge) * step for edge in edges]
    found = []
    for side, sign, largest, least in (("upper", 1, upper, lower), ("lower", -1, -lower, -upper)):
        last = next((j for j, edge in enumerate(edges) if edge > largest), len(edges))
        for first, end in enumerate(edges[:last]):
            # Of whole numbers several powers below 1 are one edge, of which the last has values.
            is_bin = first + 1 == last or end < edges[first + 1]
            if is_bin and max(least, 0, largest / 2**NARROWER) < end < largest:
                fars = [*edges[first + 1 : last], largest]
                found.append((side, sign * end, first, tuple(float(far - end) for far in fars)))
    return tuple(found)


@lru_cache(maxsize=1024)
def _limit_noise(
    law: DiscreteLaplace | DiscreteGaussian, weights: tuple[float, ...], failure: float
) -> float:
    return Noise(law).weighted_half_width(Counter(weights), failure)


def count_magnitudes(cells: BinCounts) -> NDArray[np.int64]:
    """How many values have each sign and power of two, from the lowest bin to the highest."""
    keys = cells.keys if cells.keys.dtype.kind == "f" else _round_towards_zero(cells.keys)
    size = np.abs(keys)
    # frexp gives a fraction of [1/2, 1), so its exponent is one above the power.
    power = np.frexp(size)[1] - 1
    power = np.where(np.isinf(size) | (power > MOST), MOST + 1, power)
    away = np.where((size == 0) | (power < LEAST), 0, power - LEAST + 1)
    counts = np.zeros(BINS, dtype=np.int64)
    np.add.at(counts, POWERS + np.where(keys < 0, -away, away), cells.counts)
    return counts


def _round_towards_zero(integers: NDArray[Any]) -> NDArray[np.float64]:
    """Integers as doubles of the same power of two: the nearest double may have the next one."""
    sizes = [abs(int(value)) for value in integers]
    sizes = [
        size >> max(0, size.bit_length() - 53) << max(0, size.bit_length() - 53) for size in sizes
    ]
    return np.array(sizes, float) * np.where(integers < 0, -1.0, 1.0)


def outer_edges(first: int, last: int) -> tuple[float, float]:
    """The lower edge of the first bin and the upper edge of the last; 0 and 1 if both are zero's."""
    low = _near_edge(first) if first >= POWERS else _far_edge(first)
    high = _far_edge(last) if last >= POWERS else _near_edge(last)
    # Only zeros: an interval must have a width, so the unit interval stands for them.
    return (low, high) if low < high else (0.0, 1.0)


def _far_edge(place: int) -> float:
    """The edge of a bin that is away from zero."""
    away = place - POWERS
    return float(np.sign(away)) * 2.0 ** (LEAST + abs(away))


def _near_edge(place: int) -> float:
    """The edge of a bin that is next to zero."""
    return _far_edge(place) / 2
