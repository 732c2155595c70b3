"""`synthesize`: a synthetic table over two to eight columns, after MST: select pairs of columns,
measure them, generate rows.

Definition. Each column has public cells: its public keys, or up to ``bins`` runs of equal length of its
grid. The rows are read once, each unit truncated to its R rows; rows that hold no public key, or no
value, are left out. All counts below are of these rows.

1. Noisy counts of every column's cells, with discrete Gaussian noise. From them alone follow the number
   of rows N, and the groups: neighbouring cells, or rare keys, that are too small to be told apart in
   pairs are taken together.
2. A spanning tree of pairs, one at a time, by the exponential mechanism (Kruskal's rule: only pairs that
   close no circle). A pair's score is the L1 distance of its counts to those that independence and round 1
   predict, in whole rows, less what its noise will cost (a public number).
3. Noisy counts of the tree's pairs.
4. The tree model nearest to all these counts (`dpflow.core.toolbox.tree_model`), and rows drawn from it;
   within a group as round 1 says, within a cell evenly.

Guarantee: rho-zCDP, rho being what is (epsilon, delta)-DP; ``guarantee`` says which of both is charged.
The rounds compose adaptively, rho being split among them (`split_rho`). A neighbour adds or removes R rows
of a unit: each of d marginals, taken together as one vector, moves by R in L1 at most, so by R in L2, and the
vector of all d by sqrt(d) R. Under replace R
rows leave and R come: sqrt(2) R for one marginal, sqrt(2 d) R for d. Noise of variance sigma^2 = d D^2/(2 rho'),
D being R or sqrt(2) R, makes a round rho'-zCDP (Canonne, Kamath, Steinke 2020), with d columns in round 1 and
d - 1 pairs in round 3. Which pairs these are was released before. A score is an L1 distance to released
numbers, so it moves by S = R, or 2 R under replace. A choice with weights exp(rate score) has losses in an
interval of length e = 2 rate S, so it is e^2/8-zCDP (Cesar, Rogers 2021), and the d - 1 choices have e^2/8 =
rho'/(d - 1) each. The last step reads what was released alone.

Error: every marginal of one or two columns has a bound on its distance in total variation, the share of
rows that are in a wrong cell: at most half of (its L1 distance in rows plus that of N)/N. They hold all at once with probability
95 % and follow from released numbers alone. For a measured marginal it is the synthetic counts' distance to the
noisy ones, and a tail of the noise's L1 norm. For a pair that was not chosen: when a pair was chosen instead, its score was at
least the other's, less ln(pairs/failure)/rate; the chosen one was then measured; and its own distance
from independence adds to it (McKenna et al. 2022, section 5, has such bounds for AIM). Pairs are compared
in their groups; what is finer follows the columns. Nothing bounds where in its cell a value lies, so means, and shares
that cut a cell, have no bound.

When not to use it: for one column (`cdf`, `sanitize_thresholds` know more of it); for one question that
is known beforehand (`histogram` of that pair is nearer); where what matters is a relation among three
columns at once: the tree keeps pairs alone; for wide bounds with nearly all rows in few bins.

Source: McKenna, Miklau, Sheldon 2021 (MST); McKenna, Mullins, Sheldon, Miklau 2022 (AIM); inference after
McKenna, Sheldon, Miklau 2019 (Private-PGM).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, Literal

import numpy as np
from pydantic import AfterValidator, Field

from dpflow.core.accounting.amounts import Delta, Epsilon
from dpflow.core.accounting.events import ZCDP, Approximate, Event
from dpflow.core.contract.columns import Column
from dpflow.core.contract.declaration import Table
from dpflow.core.contract.mechanism import Mechanism, Params
from dpflow.core.contract.requests import RecordArrays, Records
from dpflow.core.contract.results import (
    NO_INFORMATION,
    NOT_NEGATIVE,
    ErrorBound,
    Result,
    Row,
    Synthetic,
    ValueRange,
)
from dpflow.core.sampling.noisy_values import add_gaussian
from dpflow.core.sampling.randomness import Source
from dpflow.core.sampling.samplers import MAX_SCALE, choose_piece
from dpflow.core.toolbox.marginal_errors import bound_noise_norm, bound_noise_sum
from dpflow.core.toolbox.noise import FAILURE, rho_for
from dpflow.core.toolbox.tree_model import (
    Edge,
    Floats,
    Ints,
    TreeModel,
    fit_tree,
    order_edges,
    spread_rows,
)
from dpflow.errors import PlanRefused

#: Parts of rho for the columns' counts and for the choice of pairs; the pairs' counts have the rest.
COUNTING, CHOOSING = Fraction(1, 4), Fraction(1, 8)
MOST_KEYS, MOST_GROUPS, MOST_ROWS = 10_000, 32, 100_000
#: Synthetic rows, where nobody says how many, at most.
USUAL_ROWS = 20_000
#: A key with fewer noisy rows, in standard deviations of their noise, shares a group with the others of this kind.
RARE = 3
COLUMN_MEASURE = "share of rows in a wrong cell, at most"
#: Of pairs, which are compared by groups of cells.
#: The measure of the number of rows.
ROWS_MEASURE = "rows"
PAIR_MEASURE = "share of rows in a wrong pair of groups, at most"
#: Columns that a published synthetic table has of its own.
_TAKEN = ("release_id", "block")
_SHOWN_ROWS = (1_000, 10_000, 100_000, 1_000_000)


def _require_delta(value: Fraction) -> Fraction:
    if not value > 0:
        raise ValueError("Gaussian noise needs a delta above 0, such as 1e-6")
    return value


def _check_names(names: tuple[str, ...]) -> tuple[str, ...]:
    if len({name.casefold() for name in names}) < len(names):
        raise ValueError("a column is named twice, or two differ in case alone; name each once")
    return names


class SynthesizeParams(Params):
    """``columns``: two to eight, each with public keys or bounds. ``epsilon``, ``delta``: the privacy
    cost of everything; delta above 0. ``bins``: cells of a column with bounds, 2 to 1,024, at most.
    ``rows``: of the synthetic table, up to 100,000; about as many as were read, up to 20,000, if left out.
    ``guarantee``: how it is stated, approximate or zcdp; scopes with the filter renyi or hybrid add
    zcdp up better.
    """

    columns: Annotated[
        tuple[str, ...], Field(min_length=2, max_length=8), AfterValidator(_check_names)
    ]
    epsilon: Epsilon
    delta: Annotated[Delta, AfterValidator(_require_delta)]
    bins: Annotated[int, Field(ge=2, le=1024)] = 64
    rows: Annotated[int, Field(ge=1, le=MOST_ROWS)] | None = None
    guarantee: Literal["approximate", "zcdp"] = "approximate"


@dataclass(frozen=True)
class Spending:
    """What each round draws with.

    Attributes:
        singles, pairs: sigma squared of the noise of each column's and each pair's counts.
        rate: of the exponential mechanism, for one row of the score.
    """

    singles: Fraction
    pairs: Fraction
    rate: Fraction


def split_rho(rho: Fraction, columns: int, rows: int, replace: bool) -> Spending:
    """The noise and the choices that cost rho together; the proof is the module's.

    Args:
        rho: of everything.
        columns: d, two or more.
        rows: R, that one unit has at most.
        replace: whether a neighbour exchanges a unit's rows.
    """
    squared = rows**2 * (2 if replace else 1)
    # Of two columns there is one pair, and nothing to choose.
    choosing = rho * CHOOSING if columns > 2 else Fraction(0)
    counting = rho * COUNTING
    choice_rho = choosing / (columns - 1)
    # The root of 8 each, rounded down.
    length = Fraction(math.isqrt(math.floor(8 * choice_rho * 10**24)), 10**12)
    return Spending(
        columns * squared / (2 * counting),
        (columns - 1) * squared / (2 * (rho - counting - choosing)),
        length / (2 * rows * (2 if replace else 1)),
    )


@dataclass(frozen=True)
class Cells:
    """Cells of one column.

    Attributes:
        keys: public keys, or () for a column with bounds.
        starts: the first grid integer of each cell of one with bounds, and the one behind the last.
    """

    keys: tuple[str, ...]
    starts: tuple[int, ...] = ()

    @classmethod
    def of_column(cls, column: Column, bins: int) -> Cells:
        """Those of a declared column."""
        if column.public_keys is not None:
            return cls(column.public_keys)
        low, high = column.grid_bounds()
        width = high - low + 1
        number = min(bins, width)
        return cls((), tuple(low + width * i // number for i in range(number + 1)))

    @property
    def size(self) -> int:
        """How many there are."""
        return len(self.keys) or len(self.starts) - 1

    def number_cells(self, values: Ints) -> Ints:
        """The cell of each value, -1 for what is no public key."""
        if self.keys:
            return values
        inner = np.array(self.starts[1:-1], np.int64)
        return np.asarray(np.searchsorted(inner, values, side="right"), np.int64)

    def list_values(self, cells: Ints, column: Column, source: Source) -> list[int | float | str]:
        """A value for each row: a key, or grid values spread evenly over a cell, in random order."""
        if self.keys:
            return [self.keys[cell] for cell in cells.tolist()]
        grid = [0] * len(cells)
        for cell in np.unique(cells).tolist():
            low, end = self.starts[cell : cell + 2]
            indices = np.flatnonzero(cells == cell)
            order = spread_rows(np.ones(len(indices)), len(indices), source)
            for index, i in zip(indices.tolist(), order.tolist()):
                grid[index] = low + (2 * i + 1) * (end - low) // (2 * len(indices))
        # Each distinct one is written once.
        written = {integer: column.grid_value(integer) for integer in set(grid)}
        return [written[integer] for integer in grid]


@dataclass(frozen=True)
class Singles:
    """Round 1: what is known of each column by itself.

    Attributes:
        noisy: counts of its cells.
        total: rows, of all columns' counts, and how far that is off at most.
        groups: the group of each cell.
        laws: of each column, the probabilities of its cells.
    """

    noisy: list[Ints]
    total: float
    total_off: float
    groups: list[Ints]
    laws: list[Floats]

    def group_counts(self, column: int) -> Floats:
        """Noisy counts of a column's groups."""
        return _add_groups(self.groups[column], self.noisy[column].astype(float))

    def group_sizes(self, column: int) -> Floats:
        """How many cells each group has."""
        return _add_groups(self.groups[column], np.ones(len(self.groups[column])))

    def group_law(self, column: int) -> Floats:
        """Probabilities of a column's groups."""
        return _add_groups(self.groups[column], self.laws[column])

    def expect_pair(self, edge: Edge) -> Ints:
        """Counts of a pair's groups if its columns were independent, in whole rows."""
        laws = self.group_law(edge[0])[:, None] * self.group_law(edge[1])
        return np.rint(self.total * laws).astype(np.int64)


def _add_groups(groups: Ints, values: Floats) -> Floats:
    return np.asarray(np.bincount(groups, values), np.float64)


class Synthesize(Mechanism[SynthesizeParams]):
    """Synthetic rows over several columns."""

    name = "synthesize"
    job = "synthetic rows"
    summary = "a synthetic table over two to eight columns, and how far each marginal is off"
    citation = (
        "McKenna, Miklau, Sheldon 2021 (MST); McKenna, Mullins, Sheldon, Miklau 2022 (AIM); "
        "Canonne, Kamath, Steinke 2020 (discrete Gaussian); Cesar, Rogers 2021 (bounded range)"
    )

    def _cells(self, params: SynthesizeParams, table: Table) -> list[Cells]:
        cells = []
        for name in params.columns:
            column = table.column(name)
            if name.casefold() in _TAKEN:
                raise PlanRefused(
                    f"a published table has a column {name!r} of its own; read the column under another name"
                )
            if column.public_keys is None:
                table.bounded_column(name)
                # Cells are told apart by 64-bit integers.
                if column.grid_bounds()[1] >= 2**63:
                    raise PlanRefused(
                        f"the bounds of {name!r} go beyond 2^63 steps; take a coarser step or an upper bound below"
                    )
            cells.append(Cells.of_column(column, params.bins))
            if cells[-1].size > MOST_KEYS:
                raise PlanRefused(
                    f"{name!r} has {cells[-1].size} public keys; synthesize takes columns of up to {MOST_KEYS}"
                )
        return cells

    def _spending(self, params: SynthesizeParams, table: Table) -> Spending:
        rho, rows = rho_for(params.epsilon, params.delta), table.contribution_bounds.rows
        spending = split_rho(rho, len(params.columns), rows, table.neighbours == "replace")
        if max(spending.singles, spending.pairs) > MAX_SCALE**2:
            raise PlanRefused(
                "epsilon and the rows of a unit need noise of more than 2^50 rows; "
                "take a larger epsilon or fewer rows a unit"
            )
        return spending

    def event(self, params: SynthesizeParams, table: Table) -> Event:
        """One event for all rounds: (epsilon, delta)-DP, or the rho that implies it."""
        self._cells(params, table)
        self._spending(params, table)
        if params.guarantee == "approximate":
            return Approximate(params.epsilon, params.delta)
        return ZCDP(rho_for(params.epsilon, params.delta))

    def data_request(self, params: SynthesizeParams, table: Table) -> Records:
        """The columns' rows, each unit truncated once for all marginals."""
        return Records(params.columns, table.contribution_bounds.rows)

    def draw(
        self, params: SynthesizeParams, table: Table, answer: RecordArrays, source: Source
    ) -> Result:
        """Columns, pairs, rows; the errors follow from what was released."""
        cells, spending = self._cells(params, table), self._spending(params, table)
        codes = [
            cell.number_cells(answer.columns[name]) for cell, name in zip(cells, params.columns)
        ]
        # By itself each row decides whether it counts.
        is_public = np.logical_and.reduce([code >= 0 for code in codes])
        codes = [code[is_public] for code in codes]
        singles = measure_singles(codes, cells, spending, source)
        grouped = [groups[code] for groups, code in zip(singles.groups, codes)]
        choices = choose_pairs(grouped, singles, spending, source)
        edges = order_edges([choice.edge for choice in choices])
        noisy = {}
        for edge in edges:
            exact = _count_pair(grouped, edge, singles)
            flat = add_gaussian(exact.ravel(), spending.pairs, source)
            noisy[edge] = flat.reshape(exact.shape)
        model = fit_tree(
            [
                (singles.group_counts(i), singles.group_sizes(i) * float(spending.singles))
                for i in range(len(cells))
            ],
            {edge: (counts.astype(float), float(spending.pairs)) for edge, counts in noisy.items()},
            max(singles.total, 1.0),
        )
        # Nothing of the rows is read below.
        size = params.rows or min(round(singles.total), USUAL_ROWS)
        drawn = draw_cells(model, singles, size, source)
        values = [
            cell.list_values(code, table.column(name), source)
            for cell, code, name in zip(cells, drawn, params.columns)
        ]
        kinds = tuple(
            (name, "text" if cell.keys else table.column(name).kind)
            for name, cell in zip(params.columns, cells)
        )
        errors = bound_errors(drawn, singles, noisy, choices, spending)
        rows = [Row("", ROWS_MEASURE, round(singles.total), math.ceil(singles.total_off))]
        for members, error in errors.items():
            key = ", ".join(params.columns[i] for i in members)
            measure = COLUMN_MEASURE if len(members) == 1 else PAIR_MEASURE
            rows.append(Row(key, measure, error, remark=NO_INFORMATION if error >= 1 else ""))
        document = {
            "method": "MST",
            "pairs": [[params.columns[i] for i in choice.edge] for choice in choices],
            "cells": [cell.size for cell in cells],
            "groups": [int(groups.max()) + 1 for groups in singles.groups],
            "errors": "all hold at once with probability 95 %; pairs are compared by groups of cells",
        }
        return Result(tuple(rows), document, Synthetic(kinds, tuple(zip(*values, strict=True))))

    def value_ranges(self, params: SynthesizeParams, table: Table) -> dict[str, ValueRange]:
        """The number of rows is not negative; shares are at most 1."""
        share = ValueRange(0, 1)
        return {ROWS_MEASURE: NOT_NEGATIVE, COLUMN_MEASURE: share, PAIR_MEASURE: share}

    def error_bound(self, params: SynthesizeParams, table: Table) -> ErrorBound:
        """What noise alone may put into wrong cells, for some numbers of rows."""
        cells, spending = self._cells(params, table), self._spending(params, table)
        widths = {}
        failure = FAILURE / (2 * len(cells))
        for rows in _SHOWN_ROWS:
            groups = choose_groups(rows, spending)
            sizes = sorted(min(cell.size, groups) for cell in cells)
            norm = bound_noise_norm(sizes[-1] * sizes[-2], spending.pairs, failure)
            widths[f"share of a measured pair, of {rows:,} rows"] = min(1.0, norm / (2 * rows))
        return ErrorBound(
            widths,
            "noise of the largest pair that is measured; the result states the error of every column and pair, measured or not, "
            "all of which hold at once with probability 95 %",
        )


def choose_groups(rows: float, spending: Spending) -> int:
    """Groups of a column in pairs, for so many rows: as many as leave a pair's noise at about a tenth of the
    rows.
    """
    sigma = math.sqrt(float(spending.pairs))
    return int(min(MOST_GROUPS, max(2.0, math.sqrt(0.125 * max(rows, 0) / sigma))))


def measure_singles(
    codes: Sequence[Ints], cells: Sequence[Cells], spending: Spending, source: Source
) -> Singles:
    """Round 1: noisy counts, and what follows from them."""
    noisy = [
        add_gaussian(
            np.bincount(code, minlength=cell.size).astype(np.int64), spending.singles, source
        )
        for code, cell in zip(codes, cells)
    ]
    # The sums of all columns' counts are of the same rows: a weighted mean, by their variances.
    weights = np.array([1 / cell.size for cell in cells])
    sums = np.array([float(counts.sum()) for counts in noisy])
    total = float((weights * sums).sum() / weights.sum())
    variance = float(spending.singles) / float(weights.sum())
    off = bound_noise_sum(variance, FAILURE / 3)
    total = max(total, 0.0)
    number = choose_groups(total, spending)
    laws = [_law_of(counts, float(spending.singles)) for counts in noisy]
    floor = RARE * math.sqrt(float(spending.singles))
    groups = [
        group_keys(counts, number, floor) if cell.keys else group_bins(law, number)
        for counts, cell, law in zip(noisy, cells, laws)
    ]
    return Singles(noisy, total, off, groups, laws)


def group_keys(counts: Ints, number: int, floor: float) -> Ints:
    """The largest keys by themselves, the others together in the last group."""
    order = np.argsort(-counts, kind="stable")
    if len(counts) <= number and (counts >= floor).all():
        return np.arange(len(counts))
    alone = order[: number - 1]
    alone = np.sort(alone[counts[alone] >= floor])
    groups = np.full(len(counts), len(alone), np.int64)
    groups[alone] = np.arange(len(alone))
    return groups


def group_bins(law: Floats, number: int) -> Ints:
    """Runs of neighbouring bins with about equal shares of the rows."""
    if len(law) <= number:
        return np.arange(len(law))
    middles = np.cumsum(law) - law / 2
    # Groups without a bin are left out.
    return np.unique(
        np.minimum((middles * number).astype(np.int64), number - 1), return_inverse=True
    )[1]


def _law_of(counts: Ints, variance: float) -> Floats:
    """Probabilities nearest to noisy counts: their projection upon what adds up to the same and has nothing
    below 0; equal ones where the counts say nothing.
    """
    total = float(counts.sum())
    if total <= 0:
        return np.full(len(counts), 1 / len(counts))
    ordered = np.sort(counts.astype(float))[::-1]
    shifts = (np.cumsum(ordered) - total) / np.arange(1, len(ordered) + 1)
    shift = shifts[np.flatnonzero(ordered > shifts)[-1]]
    positive = np.maximum(counts - shift, 0.0)
    return np.asarray(positive / positive.sum())


@dataclass(frozen=True)
class PairChoice:
    """A pair of the tree, and the pairs that it was chosen from."""

    edge: Edge
    among: tuple[Edge, ...]


def _count_pair(codes: Sequence[Ints], edge: Edge, singles: Singles) -> Ints:
    """Rows of every pair of groups."""
    a, b = edge
    shape = tuple(int(singles.groups[i].max()) + 1 for i in edge)
    return np.bincount(codes[a] * shape[1] + codes[b], minlength=shape[0] * shape[1]).reshape(shape)


def _noise_cost(edge: Edge, singles: Singles, spending: Spending) -> int:
    """The noise's mean L1 norm in a pair's counts, in whole rows: a large pair has to be worth it."""
    size = math.prod(int(singles.groups[i].max()) + 1 for i in edge)
    return math.ceil(size * math.sqrt(2 / math.pi * float(spending.pairs)))


def choose_pairs(
    codes: Sequence[Ints], singles: Singles, spending: Spending, source: Source
) -> tuple[PairChoice, ...]:
    """Round 2: d - 1 pairs that form a tree."""
    edges = list(itertools.combinations(range(len(codes)), 2))
    scores = {
        edge: int(np.abs(_count_pair(codes, edge, singles) - singles.expect_pair(edge)).sum())
        - _noise_cost(edge, singles, spending)
        for edge in edges
    }
    part = list(range(len(codes)))
    choices: list[PairChoice] = []
    while len(choices) < len(codes) - 1:
        among = tuple(edge for edge in edges if part[edge[0]] != part[edge[1]])
        edge = among[0]
        if len(among) > 1:
            best = max(scores[edge] for edge in among)
            costs = np.array([min(best - scores[edge], 2**53 - 1) for edge in among], np.int64)
            edge = among[choose_piece(np.ones_like(costs), costs, spending.rate, source)]
        choices.append(PairChoice(edge, among))
        joined = part[edge[1]]
        part = [part[edge[0]] if one == joined else one for one in part]
    return tuple(choices)


def draw_cells(model: TreeModel, singles: Singles, rows: int, source: Source) -> list[Ints]:
    """Cells of synthetic rows: groups from the model, cells within them from round 1."""
    drawn = []
    for groups, law, column in zip(singles.groups, singles.laws, model.draw_groups(rows, source)):
        cells = np.zeros(rows, np.int64)
        for group in range(int(groups.max()) + 1):
            indices, members = np.flatnonzero(column == group), np.flatnonzero(groups == group)
            inner = law[members]
            inner = inner if inner.sum() > 0 else np.ones(len(members))
            cells[indices] = members[spread_rows(inner, len(indices), source)]
        drawn.append(cells)
    return drawn


def bound_errors(
    drawn: Sequence[Ints],
    singles: Singles,
    noisy: Mapping[Edge, Ints],
    choices: Sequence[PairChoice],
    spending: Spending,
) -> dict[tuple[int, ...], float]:
    """Of every column and pair, the share of rows that are in a wrong cell at most: all hold at once with probability
    95 %. A third of the failure each is for N, for norms of noise, and for choices.
    """
    columns, rows = len(drawn), max(len(drawn[0]), 1)
    scale = singles.total / rows
    failure = FAILURE / 3 / (2 * columns - 1)
    grouped = [groups[cells] for groups, cells in zip(singles.groups, drawn)]
    distances: dict[tuple[int, ...], float] = {}
    for i, counts in enumerate(singles.noisy):
        synthetic = scale * np.bincount(drawn[i], minlength=len(counts))
        distances[i,] = float(np.abs(counts - synthetic).sum()) + bound_noise_norm(
            len(counts), spending.singles, failure
        )
    synthetic_pairs = {
        edge: scale * _count_pair(grouped, edge, singles)
        for edge in itertools.combinations(range(columns), 2)
    }
    expected = {edge: singles.expect_pair(edge) for edge in synthetic_pairs}
    from_independence = dict.fromkeys(synthetic_pairs, math.inf)
    slack = FAILURE / 3 / max(1, columns - 1)
    for choice in choices:
        a, b = edge = choice.edge
        counts = noisy[edge] if edge in noisy else noisy[b, a].T
        norm = bound_noise_norm(counts.size, spending.pairs, failure)
        distances[edge] = float(np.abs(counts - synthetic_pairs[edge]).sum()) + norm
        # What the chosen pair's score was at most, and so the others' of that choice.
        score = float(np.abs(counts - expected[edge]).sum()) + norm
        score -= _noise_cost(edge, singles, spending)
        if len(choice.among) > 1:
            score += math.log((len(choice.among) - 1) / slack) / float(spending.rate)
        for other in choice.among:
            limit = score + _noise_cost(other, singles, spending)
            from_independence[other] = min(from_independence[other], limit)
    for edge, synthetic in synthetic_pairs.items():
        other_way = from_independence[edge] + float(np.abs(expected[edge] - synthetic).sum())
        distances[edge] = min(distances.get(edge, math.inf), other_way)
    least = singles.total - singles.total_off
    return {
        members: min(1.0, (distance + singles.total_off) / (2 * least)) if least > 0 else 1.0
        for members, distance in sorted(distances.items(), key=lambda item: (len(item[0]), item[0]))
    }
