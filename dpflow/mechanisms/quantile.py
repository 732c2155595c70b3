"""Quantiles of a bounded column, one or several, by the exponential mechanism over its grid; the
median; lowest and highest values.

Definition: with p = a/b, n rows after truncation, and for a grid point v the counts L(v) = #{x <
v}, U(v) = #{x > v}, the cost is c(v) = max(b L(v) - a n, b U(v) - (b-a) n); v is drawn with
probability proportional to exp(-e c(v) / (2 D)), exactly, over the whole grid between the declared
bounds. `quantiles` draws k of them and sorts the values, since a higher quantile is no smaller.
`minimum` and `maximum` are quantiles a small ``tail`` away from the ends: the smallest row itself
is one person's. With ``by`` all of this happens in each of the column's public keys, those without
rows included.

Guarantee: the rows of every group are counted with Laplace noise for `COUNTING` of epsilon; e stands
for a part of the rest. k g draws with losses in an interval of length e, where a unit reaches g of
the K groups: with e = rest/(k g) they are rest-DP together, and k g e^2/8-zCDP. With a ``delta`` the
zCDP may pay for a larger e. Proof. One row more moves c by at most max(a, b-a). Under add-remove a
unit's R rows of a group move it by D = R max(a, b-a) in at most g groups; all others have the same
rows on both sides and lose nothing, so a loss is a sum of g losses, whichever groups these are.
Under replace its R rows in a group become others, which moves c by R b: that is D with one group,
or g = K. Else the unit may leave a group and enter another, each moved by R max(a, b-a); the two
together have losses in an interval of the sum of both lengths, so D = 2 R max(a, b-a), which is no
less than R b, and g such pairs are all there can be.

Error: with probability 97.5 % the ranks of all answers, in all groups, are within E = 2 D ln(40 k K
G)/(b e) rows of p n, where G is the number of grid points, and with 97.5 % every group has as many
rows as its noisy count says, less the noise's half-width. The share that follows from both is stated
with each number; a number whose share does not tell its rank apart from both ends is not shown
(`supports_value`). All of this is about values clamped to the bounds and rounded to the grid. In the
column's own unit no bound is known beforehand.

Which method answers, this one or another, `rank_methods` decides.

When not to use it: where the grid is much coarser than the spread of the rows.
Recursive schemes that halve the rows at each answer (Kaplan, Schnapp, Stemmer 2022) pay log k
instead of k, and are wrong where many rows share a value; these are not.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from dpflow.core.accounting.events import BoundedRange, Composed, Event, Repeated
from dpflow.core.contract.columns import Column
from dpflow.core.contract.declaration import Table
from dpflow.core.contract.distribution import MAX_RANK_ERROR, supports_value
from dpflow.core.contract.mechanism import Delegation, Mechanism
from dpflow.core.contract.requests import Answer, SortedValues, ValueCounts
from dpflow.core.contract.results import NO_RANK, ErrorBound, Result, Row
from dpflow.core.sampling.randomness import Source
from dpflow.core.toolbox.choices import Choice
from dpflow.core.toolbox.noise import (
    FAILURE,
    Noise,
    choice_epsilon,
    laplace_noise,
)
from dpflow.mechanisms.rank_methods import choose_method
from dpflow.mechanisms.rank_params import (
    ExtremeParams,
    MedianParams,
    QuantileParams,
    QuantilesParams,
    RankParams,
)

#: Of epsilon, for the number of rows of each group: it decides how few rows support an answer.
COUNTING = Fraction(1, 8)
P = TypeVar("P", bound=RankParams)


def cost_pieces(
    data: ValueCounts, low: int, high: int, p: Fraction
) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.int64]]:
    """Divide the grid [low, high] into runs of equal cost: their starts, lengths and costs
    (smallest cost 0).

    A run is a value that some row has, or a gap before, between or after such values. Python's
    integers stand in for numpy's where those could overflow.
    """
    a, b = p.numerator, p.denominator
    total = int(data.counts.sum())
    values = data.values.astype(np.int64 if low > -(2**62) and high < 2**62 else object)
    counts = data.counts.astype(np.int64 if b * (total + 1) < 2**62 else object)
    upto = np.cumsum(counts)
    starts, below, above = (
        np.empty(2 * len(kind) + 1, kind.dtype) for kind in (values, counts, counts)
    )
    # Gaps and values alternate: even places are gaps, odd ones are values.
    starts[0], starts[1::2], starts[2::2] = low, values, values + 1
    below[0::2], below[1::2] = np.append(upto - counts, total), upto - counts
    above[0::2], above[1::2] = np.append(total - upto + counts, 0), total - upto
    lengths = np.diff(np.append(starts, high + 1))
    costs = np.maximum(b * below - a * total, b * above - (b - a) * total)
    # Neighbouring values leave gaps without a grid point.
    there = lengths > 0
    costs = costs[there]
    # Costs are clamped at 2^53 above the least: that bound moves with the least cost, so one row
    # still moves a cost by no more.
    return (
        starts[there],
        lengths[there],
        np.minimum(costs - costs.min(), 2**53 - 1).astype(np.int64),
    )


@dataclass(frozen=True)
class Draws:
    """What a privacy cost buys.

    Attributes:
        counting: the noise of each group's number of rows.
        changed: how many draws one unit can change.
        epsilon: the length of the interval in which the losses of each lie.
    """

    counting: Noise
    changed: int
    epsilon: Fraction

    @property
    def event(self) -> Event:
        """The guarantee of all of it."""
        draw = BoundedRange(self.epsilon)
        draws = draw if self.changed == 1 else Repeated(draw, self.changed)
        return Composed((self.counting.event, draws))


class _Quantiles(Mechanism[P]):
    """Draws what `list_quantiles` names, in every group."""

    version = 2  # 1 did not count the rows

    @abstractmethod
    def list_quantiles(self, params: P) -> dict[str, Fraction]:
        """Measures with their p, ascending."""

    def group_keys(self, params: P, table: Table) -> tuple[str, ...]:
        """The groups."""
        return ("",) if params.by is None else table.public_keys(params.by)

    def count_rows(self, params: P, table: Table) -> int:
        return len(self.group_keys(params, table)) * len(self.list_quantiles(params))

    def delegate_to(self, params: P, table: Table) -> Delegation | None:
        """The method that `rank_methods` chooses, or this one."""
        return choose_method(self, params, table)

    def plan_draws(self, params: P, table: Table) -> Draws:
        """What the privacy cost buys."""
        keys = len(self.group_keys(params, table))
        moved = table.sensitivity(self.data_request(params, table))
        # Groups that a unit does not reach have the same rows on both sides.
        changed = table.bounds_for(params.by).narrow(keys).groups * len(self.list_quantiles(params))
        rest = params.epsilon * (1 - COUNTING)
        return Draws(
            laplace_noise(moved.rows, params.epsilon * COUNTING),
            changed,
            choice_epsilon(rest, params.delta, changed),
        )

    def _sensitivity(self, p: Fraction, params: P, table: Table) -> int:
        """D of the module's guarantee."""
        groups, rows, _ = table.bounds_for(params.by)
        peak = max(p.numerator, p.denominator - p.numerator)
        if table.neighbours == "add-remove":
            return rows * peak
        return rows * (p.denominator if len(self.group_keys(params, table)) <= groups else 2 * peak)

    def event(self, params: P, table: Table) -> Event:
        table.bounded_column(params.column)
        return self.plan_draws(params, table).event

    def data_request(self, params: P, table: Table) -> SortedValues:
        table.bounded_column(params.column)
        groups, rows_per_group, rows = table.bounds_for(params.by)
        keys = self.group_keys(params, table)
        return SortedValues(params.column, rows_per_group, params.by, keys, groups, rows)

    def draw(self, params: P, table: Table, answer: Answer, source: Source) -> Result:
        column = table.bounded_column(params.column)
        quantiles = self.list_quantiles(params)
        keys = self.group_keys(params, table)
        draws, rank = self.plan_draws(params, table), math.ceil(self.rank_error(params, table))
        groups = answer.split(len(keys))
        source.begin_part(params.epsilon * COUNTING)
        least_rows = _count_least_rows(groups, draws.counting, source)
        source.begin_part(params.epsilon * (1 - COUNTING), params.delta)
        # Each quantile has its own sensitivity, hence its own rate.
        choices = {
            p: Choice(2 * self._sensitivity(p, params, table), draws.epsilon)
            for p in quantiles.values()
        }
        rows: list[Row] = []
        counted = table.describe_counted_rows(params.by)
        for key, data, size in zip(keys, groups, least_rows, strict=True):
            values = []
            for p, choice in choices.items():
                starts, lengths, costs = cost_pieces(data, *column.grid_bounds(), p)
                values.append(choice.choose_integer(starts, lengths, costs, source))
            # Sorting is post-processing, and a higher quantile is never smaller.
            share = min(1.0, rank / size) if size > 0 else 1.0
            for (name, p), value in zip(quantiles.items(), sorted(values), strict=True):
                if supports_value(p, share):
                    remark = _describe_rank(share, value, column, counted)
                    rows.append(Row(key, name, column.grid_value(value), remark=remark))
                else:
                    rows.append(Row(key, name, None, remark=NO_RANK))
        return Result(tuple(rows))

    def rank_error(self, params: P, table: Table) -> float:
        """In rows: that of all answers in all groups, with probability 97.5 %."""
        low, high = table.bounded_column(params.column).grid_bounds()
        draws, quantiles = self.plan_draws(params, table), self.list_quantiles(params)
        likely = math.log(
            len(quantiles) * len(self.group_keys(params, table)) * (high - low + 1) * 2 / FAILURE
        )
        scales = (
            2 * self._sensitivity(p, params, table) / (p.denominator * draws.epsilon)
            for p in quantiles.values()
        )
        return float(max(scales)) * likely

    def rows_for_rank(self, params: P, table: Table, alpha: Fraction) -> int:
        """Rows of every group from which all answers are shown, and their ranks are within a share alpha
        of the rows and stated so, with probability 95 %, where rows must be counted.
        """
        draws, rank = self.plan_draws(params, table), math.ceil(self.rank_error(params, table))
        quantiles = self.list_quantiles(params).values()
        limit = min(alpha, Fraction(MAX_RANK_ERROR), *(min(p, 1 - p) for p in quantiles))
        # Counted are those rows less at most twice what is taken off for noise.
        return (
            rank // limit + 1 + 2 * _spare_rows(draws.counting, len(self.group_keys(params, table)))
        )

    def error_bound(self, params: P, table: Table) -> ErrorBound:
        draws, rank = self.plan_draws(params, table), self.rank_error(params, table)
        where = "" if params.by is None else " of a group"
        note = (
            f"rank error{where}; a number is shown if that is a small part of the rows, which are counted within "
            f"{draws.counting.half_width(2 * FAILURE):,}; the error in the column's unit depends on the rows"
        )
        # How much the delta helps compared with an even split of epsilon.
        gain = float(draws.epsilon * draws.changed / (params.epsilon * (1 - COUNTING)))
        if gain > 1:
            note += f"; the delta makes it {100 * (1 - 1 / gain):.0f} % smaller, at {draws.changed} answers that a unit can change"
        return ErrorBound({"rank (rows)": rank}, note)


def _count_least_rows(groups: Sequence[ValueCounts], counting: Noise, source: Source) -> list[int]:
    """How many rows each group has at least, in all groups at once with probability 97.5 %; exactly so
    many where their number is public.
    """
    public = groups[0].public_size
    if public is not None and public.exact:
        return [public.rows]
    exact = np.array([group.counts.sum() for group in groups], np.int64)
    spare = _spare_rows(counting, len(groups))
    return [int(count) - spare for count in counting.add_noise(exact, source).tolist()]


def _spare_rows(counting: Noise, groups: int) -> int:
    """What noise of one sign exceeds in one of so many groups with half of `FAILURE` at most."""
    return counting.half_width(FAILURE / groups)


def _describe_rank(share: float, value: int, column: Column, rows: str) -> str:
    """Where an answer lies among the rows that count; of one at an end of the range, that values beyond it count as it."""
    # Rounded up: never nearer than it is.
    percent = math.ceil(1e4 * share) / 100
    # Times between dates are rounded, too, and the type of the column is not known here.
    step = ", rounded to days," if column.holds_dates else f", in steps of {column.step},"
    at_bound = value in column.grid_bounds()
    beyond = "; it is an end of its range, which values beyond count as" if at_bound else ""
    return f"its rank among the {rows}{step} is within {percent:g} % (95 % for all answers of the release together){beyond}"


class Quantile(_Quantiles[QuantileParams]):
    """A quantile of a bounded column."""

    name = "quantile"
    job = "one number"
    summary = "a quantile (p: 1/2 is the median) of a column, by the method that fits it"
    citation = "McSherry, Talwar 2007 (exponential mechanism); Smith 2011 (quantiles); Dong, Durfee, Rogers 2020 (bounded range)"

    def list_quantiles(self, params: QuantileParams) -> dict[str, Fraction]:
        """The one quantile p."""
        return {f"quantile {params.p}": params.p}


class Quantiles(_Quantiles[QuantilesParams]):
    """Several quantiles of a bounded column."""

    name = "quantiles"
    job = "distribution"
    summary = "several quantiles of a column, by the method that fits it"
    citation = Quantile.citation

    def list_quantiles(self, params: QuantilesParams) -> dict[str, Fraction]:
        """All quantiles in ascending order, so that sorted answers belong to them."""
        return {f"quantile {p}": p for p in sorted(params.quantiles)}


class Minimum(_Quantiles[ExtremeParams]):
    """A value that few rows are below."""

    name = "minimum"
    job = "one number"
    summary = "the value of a column that a small part of the rows is below"
    citation = Quantile.citation

    def list_quantiles(self, params: ExtremeParams) -> dict[str, Fraction]:
        """The quantile ``tail`` above the lowest row."""
        return {self.name: params.tail}


class Maximum(Minimum):
    """A value that few rows are above."""

    name = "maximum"
    job = "one number"
    summary = "the value of a column that a small part of the rows is above"

    def list_quantiles(self, params: ExtremeParams) -> dict[str, Fraction]:
        """The quantile ``tail`` below the highest row."""
        return {self.name: 1 - params.tail}


class Median(_Quantiles[MedianParams]):
    """The median of a column, bounded or not: the plan says how it is found."""

    name = "median"
    job = "one number"
    summary = "the median of a column, by the method that fits it; certain if asked"
    citation = f"{Quantile.citation}; Aliakbarpour, Silver, Steinke, Ullman 2023 (certain)"

    def list_quantiles(self, params: MedianParams) -> dict[str, Fraction]:
        """The middle rank."""
        return {self.name: Fraction(1, 2)}

    def error_bound(self, params: MedianParams, table: Table) -> ErrorBound:
        """The rank error, and a warning that the declared bounds are trusted."""
        bound = super().error_bound(params, table)
        spare = "; delta is not used" if params.delta and "delta" not in bound.note else ""
        why = f"exponential mechanism over the declared bounds, which are trusted{spare}"
        return ErrorBound(bound.half_width, f"{why}; {bound.note}")
