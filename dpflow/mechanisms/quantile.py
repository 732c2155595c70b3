"""Quantiles of a bounded column, one or several, by the exponential mechanism over its grid; the
median; lowest and highest values.

Definition: with p = a/b, n rows after truncation, and for a grid point v the counts L(v) = #{x <
v}, U(v) = #{x > v}, the cost is c(v) = max(b L(v) - a n, b U(v) - (b-a) n); v is drawn with
probability proportional to exp(-e c(v) / (2 D)), exactly, over the whole grid between the declared
bounds. `quantiles` draws k of them and sorts the values, since a higher quantile is no smaller.
`minimum` and `maximum` are quantiles a small ``tail`` away from the ends: the smallest row itself
is one person's. With ``by`` all of this happens in each of the column's public keys, those without
rows included.

Guarantee: k g draws with losses in an interval of length e, where a unit reaches g of the K groups:
with e = epsilon/(k g) they are epsilon-DP together, and k g e^2/8-zCDP. With a ``delta`` the zCDP
may pay for a larger e. Proof. One row more moves c by at most max(a, b-a). Under add-remove a
unit's R rows of a group move it by D = R max(a, b-a) in at most g groups; all others have the same
rows on both sides and lose nothing, so a loss is a sum of g losses, whichever groups these are.
Under replace its R rows in a group become others, which moves c by R b: that is D with one group,
or g = K. Else the unit may leave a group and enter another, each moved by R max(a, b-a); the two
together have losses in an interval of the sum of both lengths, so D = 2 R max(a, b-a), which is no
less than R b, and g such pairs are all there can be.

Error: with probability 95 % the ranks of all answers, in all groups, are within 2 D ln(20 k K G)/(b
e) rows of p n, where G is the number of grid points. In the column's own unit no bound is known
beforehand.

Without declared bounds these are answered by `cdf`, which needs none; a median by groups, or one that
must be certain, by `approximate_median`.

When not to use it: where the grid is much coarser than the spread of the rows.
Recursive schemes that halve the rows at each answer (Kaplan, Schnapp, Stemmer 2022) pay log k
instead of k, and are wrong where many rows share a value; these are not.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, Field

from dpflow.core.accounting.amounts import Delta, Epsilon
from dpflow.core.accounting.events import BoundedRange, Event, Repeated
from dpflow.core.contract.declaration import Table
from dpflow.core.contract.mechanism import Delegation, Mechanism, Params
from dpflow.core.contract.requests import Answer, SortedValues, ValueCounts
from dpflow.core.contract.results import ErrorBound, Result, Row
from dpflow.core.contract.strict_models import Exact
from dpflow.core.sampling.noisy_values import draw_place
from dpflow.core.sampling.randomness import Source
from dpflow.core.toolbox.noise import FAILURE, choice_epsilon
from dpflow.errors import PlanRefused


def _check_share(value: Fraction) -> Fraction:
    if not 0 < value < 1 or value.denominator > 10**6:
        raise ValueError("p must lie strictly between 0 and 1, with at most six decimals")
    return value


def check_distinct(values: tuple[Fraction, ...]) -> tuple[Fraction, ...]:
    """The quantiles themselves; raises ValueError if one is named twice."""
    if len(set(values)) != len(values):
        raise ValueError("name each quantile once")
    return values


Share = Annotated[Exact, AfterValidator(_check_share)]
P = TypeVar("P", bound="RankParams")


class RankParams(Params):
    """``column``: a bounded column. ``by``: a column with public keys, or nothing. ``epsilon``: the
    privacy cost of everything. ``delta``: lets many answers be drawn at a higher rate.
    """

    column: str
    epsilon: Epsilon
    by: str | None = None
    delta: Delta = Fraction(0)


class QuantileParams(RankParams):
    """As `ColumnParams`. ``p``: strictly between 0 and 1, 1/2 for the median."""

    p: Share = Fraction(1, 2)


class QuantilesParams(RankParams):
    """As `ColumnParams`. ``quantiles``: up to 100, strictly between 0 and 1."""

    quantiles: Annotated[
        tuple[Share, ...], Field(min_length=1, max_length=100), AfterValidator(check_distinct)
    ]


class ExtremeParams(RankParams):
    """As `ColumnParams`. ``tail``: the part of the rows that may lie beyond the answer."""

    tail: Share = Fraction(1, 100)


class MedianParams(RankParams):
    """As `ColumnParams`; the column is bounded if its range is trusted. ``certain``: an answer near the
    middle rank for certain, or none, in place of the most accurate one with an interval; it needs a
    ``delta``, as a median by groups of a column without bounds does.
    """

    certain: bool = False


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
    """How many draws one unit can change, and the length of the interval in which the losses of
    each lie.
    """

    changed: int
    epsilon: Fraction

    @property
    def event(self) -> Event:
        """The guarantee of all draws together."""
        one = BoundedRange(self.epsilon)
        return one if self.changed == 1 else Repeated(one, self.changed)


class _Quantiles(Mechanism[P]):
    """Draws what `list_quantiles` names, in every group."""

    @abstractmethod
    def list_quantiles(self, params: P) -> dict[str, Fraction]:
        """Measures with their p, ascending."""

    def group_keys(self, params: P, table: Table) -> tuple[str, ...]:
        """The groups."""
        return ("",) if params.by is None else table.public_keys(params.by)

    def plan_draws(self, params: P, table: Table) -> Draws:
        """What the privacy cost buys."""
        groups = table.bounds_for(params.by).narrow(len(self.group_keys(params, table))).groups
        # Groups that a unit does not reach have the same rows on both sides.
        changed = groups * len(self.list_quantiles(params))
        return Draws(changed, choice_epsilon(params.epsilon, params.delta, changed))

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
        epsilon = self.plan_draws(params, table).epsilon
        rank = math.ceil(self._rank_error(params, table))
        remark = f"its rank is within {rank:,} rows (95 % for all answers together)"
        # Each quantile has its own sensitivity, hence its own rate.
        rates = {p: epsilon / (2 * self._sensitivity(p, params, table)) for p in quantiles.values()}
        rows: list[Row] = []
        for key, data in zip(keys, answer.split(len(keys)), strict=True):
            answers = []
            for p, rate in rates.items():
                starts, lengths, costs = cost_pieces(data, *column.grid_bounds(), p)
                answers.append(draw_place(starts, lengths, costs, rate, source))
            # Sorting is post-processing, and a higher quantile is never smaller.
            values = zip(quantiles, sorted(answers), strict=True)
            rows += (
                Row(key, name, column.grid_value(value), remark=remark) for name, value in values
            )
        return Result(tuple(rows))

    def _rank_error(self, params: P, table: Table) -> float:
        """In rows: that of all answers in all groups, with probability 95 %."""
        low, high = table.bounded_column(params.column).grid_bounds()
        draws, quantiles = self.plan_draws(params, table), self.list_quantiles(params)
        likely = math.log(
            len(quantiles) * len(self.group_keys(params, table)) * (high - low + 1) / FAILURE
        )
        scales = (
            2 * self._sensitivity(p, params, table) / (p.denominator * draws.epsilon)
            for p in quantiles.values()
        )
        return float(max(scales)) * likely

    def error_bound(self, params: P, table: Table) -> ErrorBound:
        draws, rank = self.plan_draws(params, table), self._rank_error(params, table)
        where = "" if params.by is None else " of a group"
        note = f"rank error{where}; the error in the column's unit depends on the rows"
        # How much the delta helps compared with an even split of epsilon.
        gain = float(draws.epsilon * draws.changed / params.epsilon)
        if gain > 1:
            note += f"; the delta makes it {100 * (1 - 1 / gain):.0f} % smaller, at {draws.changed} answers that a unit can change"
        return ErrorBound({"rank (rows)": rank}, note)


def _delegate_to_cdf(
    params: RankParams, table: Table, quantiles: tuple[Fraction, ...]
) -> Delegation | None:
    """`cdf` where the column declares no bounds; None where it declares some."""
    if table.column(params.column).lower is not None:
        return None
    if params.by is not None:
        raise PlanRefused(
            f"column {params.column!r} of table {table.name!r} declares no bounds, and quantiles without them are not "
            f"taken by group; declare lower and upper, leave by out, or release once for each group, with where"
        )
    names = [str(p) for p in quantiles]
    epsilon = params.model_dump(mode="json")["epsilon"]
    given = {"column": params.column, "epsilon": epsilon, "quantiles": names}
    spare = "; delta is not used" if params.delta else ""
    why = f"column {params.column!r} declares no bounds, so cdf is taken, which needs none{spare}"
    return Delegation("cdf", given, why)


class Quantile(_Quantiles[QuantileParams]):
    """A quantile of a bounded column."""

    name = "quantile"
    summary = "a quantile (p: 1/2 is the median) of a bounded column"
    citation = "McSherry, Talwar 2007 (exponential mechanism); Smith 2011 (quantiles); Dong, Durfee, Rogers 2020 (bounded range)"
    Params = QuantileParams

    def list_quantiles(self, params: QuantileParams) -> dict[str, Fraction]:
        """The one quantile p."""
        return {f"quantile {params.p}": params.p}

    def delegate_to(self, params: QuantileParams, table: Table) -> Delegation | None:
        """`cdf` where the column declares no bounds."""
        return _delegate_to_cdf(params, table, (params.p,))


class Quantiles(_Quantiles[QuantilesParams]):
    """Several quantiles of a bounded column."""

    name = "quantiles"
    summary = "several quantiles of a bounded column, in ascending order"
    citation = Quantile.citation
    Params = QuantilesParams

    def list_quantiles(self, params: QuantilesParams) -> dict[str, Fraction]:
        """All quantiles in ascending order, so that sorted answers belong to them."""
        return {f"quantile {p}": p for p in sorted(params.quantiles)}

    def delegate_to(self, params: QuantilesParams, table: Table) -> Delegation | None:
        """`cdf` where the column declares no bounds."""
        return _delegate_to_cdf(params, table, params.quantiles)


class Minimum(_Quantiles[ExtremeParams]):
    """A value that few rows are below."""

    name = "minimum"
    summary = "the value of a bounded column that a small part of the rows is below"
    citation = Quantile.citation
    Params = ExtremeParams

    def list_quantiles(self, params: ExtremeParams) -> dict[str, Fraction]:
        """The quantile ``tail`` above the lowest row."""
        return {self.name: params.tail}


class Maximum(Minimum):
    """A value that few rows are above."""

    name = "maximum"
    summary = "the value of a bounded column that a small part of the rows is above"

    def list_quantiles(self, params: ExtremeParams) -> dict[str, Fraction]:
        """The quantile ``tail`` below the highest row."""
        return {self.name: 1 - params.tail}


class Median(_Quantiles[MedianParams]):
    """The median of a column, bounded or not: the plan says how it is found."""

    name = "median"
    summary = "the median: exponential mechanism on a trusted range, cdf without one, or certain"
    citation = f"{Quantile.citation}; Aliakbarpour, Silver, Steinke, Ullman 2023 (certain)"
    Params = MedianParams

    def list_quantiles(self, params: MedianParams) -> dict[str, Fraction]:
        """The middle rank."""
        return {self.name: Fraction(1, 2)}

    def delegate_to(self, params: MedianParams, table: Table) -> Delegation | None:
        """`cdf` where the column declares no bounds, whose intervals are narrower; `approximate_median`
        by groups, and where the answer must be certain.
        """
        is_bounded = table.column(params.column).lower is not None
        if not params.certain and (is_bounded or params.by is None):
            return _delegate_to_cdf(params, table, (Fraction(1, 2),))
        need = (
            "certain: true was asked for"
            if params.certain
            else f"column {params.column!r} declares no bounds, and cdf takes no groups"
        )
        # Only approximate privacy makes an interior point possible.
        if not params.delta:
            raise PlanRefused(
                f"{need}, which takes approximate_median; add delta to the parameters, such as 1e-6"
            )
        given = params.model_dump(mode="json", exclude={"certain"})
        return Delegation("approximate_median", given, f"{need}, so approximate_median is taken")

    def error_bound(self, params: MedianParams, table: Table) -> ErrorBound:
        """The rank error, and a warning that the declared bounds are trusted."""
        bound = super().error_bound(params, table)
        spare = "; delta is not used" if params.delta and "delta" not in bound.note else ""
        why = f"exponential mechanism over the declared bounds, which are trusted{spare}"
        return ErrorBound(bound.half_width, f"{why}; {bound.note}")
