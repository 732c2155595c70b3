"""Counts, sums, means and variances of one GROUP BY, computed from a few exact integers per group:
its *moments*.

    rows      number of rows                          units     number of units
    values    number of values of a column            sum       sum of (x - c) over its values x, in grid steps
    square    sum of (r((x - c)^2) - h) over them, r rounded to k and counted in k, h half of the largest

k is 1, or so coarse that no table's squares add up to 2^62 (`dpflow.core.contract.squares`). c is the
middle of the declared bounds, so that one row moves a moment half as far; it is 0 for a
column of which only the sum is asked while the number of its values is not released anyway. Where a
column declares what a missing value is, its values are as many as the rows, and ``rows`` is their
number: nobody pays for it twice. With n, s and q the noisy number, sum and square of a column's
values, all post-processing of noisy integers:

    sum = s + c n     mean = c + s/n     variance = k (q/n + h) - (s/n)^2     standard deviation = its root

where the interval of n excludes 0, else there is no value; the mean clamped to the bounds and the variance (divided by n, not
n - 1) to what bounded values can have.
Errors are half-widths, given half-widths (tails) of the moments, and bound the noise for whatever rows:
|S/N - s/n| <= (|S - s| + |s/n| |N - n|)/N with N >= n minus its tail, and the same for q; |m^2 - M^2| <= |m - M| (2|m| + |m - M|).
To a half-width of a mean or variance comes what rounding moves one value or square by at most, where values are computed
on a grid that no declared step gives, as quotients are, or squares are coarse.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Annotated, Any, Literal, TypeAlias, TypeVar

from pydantic import Field, model_validator

from dpflow.core.contract.declaration import Table
from dpflow.core.contract.mechanism import Params
from dpflow.core.contract.requests import GroupedSums
from dpflow.core.contract.results import NOT_NEGATIVE, ValueRange
from dpflow.core.contract.sensitivity import GroupedSensitivity, Sensitivity
from dpflow.core.contract.squares import Square
from dpflow.core.contract.strict_models import Exact
from dpflow.late_numpy import NDArray, np

Floats: TypeAlias = "NDArray[np.float64]"
Moment = tuple[str, str]  #: what is added up, and of which column ("" where none is needed)
Noisy: TypeAlias = "Mapping[Moment, NDArray[np.int64]]"
Tails = Mapping[Moment, float]
V = TypeVar("V")
#: What a few operations on doubles are off by at most, as a share of the largest number in them.
_ROUNDING = 2.0**-50


class Measure(Params):
    """One number per group.

    ``measure``: what is computed. ``column``: a bounded column; none for count and count_distinct.
    ``weight``: how much its error counts against the others' where one epsilon is split. ``error``:
    instead of an epsilon, the half-width that its 95 % noise interval may have. ``size``: of a mean
    or variance, how many values a group has where ``error`` is to hold.
    """

    measure: Literal["count", "count_distinct", "sum", "mean", "variance", "standard_deviation"]
    column: str | None = None
    weight: Annotated[Exact, Field(gt=0, le=10**6)] = Fraction(1)
    error: Annotated[Exact, Field(gt=0)] | None = None
    size: Annotated[int, Field(ge=1, le=10**12)] | None = None

    @model_validator(mode="after")
    def _check_column(self) -> Measure:
        if (self.column is None) != (self.measure in ("count", "count_distinct")):
            raise ValueError(
                f"{self.measure} {'needs a' if self.column is None else 'takes no'} column"
            )
        if self.measure == "standard_deviation" and self.error is not None:
            raise ValueError(
                "give the error of the variance instead of that of the standard deviation"
            )
        if (self.size is not None) != (self.error is not None and self.shrinks):
            raise ValueError(
                "size goes with the error of a mean or variance: how many values the group has"
            )
        return self

    @property
    def shrinks(self) -> bool:
        """Whether its error shrinks with the number of values."""
        return self.measure in ("mean", "variance", "standard_deviation")

    @property
    def full_name(self) -> str:
        """Its name among several."""
        return self.measure if self.column is None else f"{self.measure}({self.column})"


@dataclass(frozen=True)
class Query:
    """Measures of one GROUP BY: the moments they need, how far one unit moves these, and what they
    make of noisy ones.

    ``private``: every key in the rows has a group, whether or not keys are declared.
    """

    table: Table
    by: str | None
    measures: tuple[Measure, ...]
    private: bool = False

    @cached_property
    def group_keys(self) -> tuple[str, ...] | None:
        """Public keys of the grouping column; None for private ones, or without one."""
        return None if self.by is None or self.private else self.table.public_keys(self.by)

    @cached_property
    def moments(self) -> tuple[Moment, ...]:
        """What gets noise, each once."""
        return tuple(
            dict.fromkeys(moment for measure in self.measures for moment in self.weights(measure))
        )

    @cached_property
    def columns(self) -> dict[str, CentredColumn]:
        """The columns in steps; centred where the number of their values is released for another
        measure.
        """
        names = dict.fromkeys(m.column for m in self.measures if m.column is not None)
        # =|A released count of rows is the number of values where none is missing.
        released = {
            self.count_moment(m.column) for m in self.measures if m.shrinks and m.column is not None
        }
        released |= {self.row_moment for m in self.measures if m.measure == "count"}
        return {
            name: CentredColumn.from_declaration(
                self.table, name, self.count_moment(name) in released
            )
            for name in names
        }

    @cached_property
    def row_moment(self) -> Moment:
        """The moment that is the number of rows: of private groups with one row of a unit each, that
        of units, for which one noisy number serves.
        """
        single = self.private and self.table.bounds_for(self.by).rows_per_group == 1
        return ("units" if single else "rows", "")

    def count_moment(self, name: str) -> Moment:
        """The moment that is the number of a column's values."""
        return (
            ("values", name)
            if self.table.bounded_column(name).missing == "skip"
            else self.row_moment
        )

    def weights(self, measure: Measure) -> Mapping[Moment, float]:
        """The moments of a measure: for counts and sums its exact coefficients, else how much their
        errors weigh in its own.
        """
        name = measure.column
        if name is None:
            return {self.row_moment if measure.measure == "count" else ("units", ""): 1}
        grid = self.columns[name]
        if measure.measure == "sum":
            return {("sum", name): 1} | (
                {self.count_moment(name): grid.centre} if grid.centre else {}
            )
        if measure.measure == "mean":
            return {("sum", name): 1, self.count_moment(name): grid.reach}
        # the sum weighs twice the distance of the mean from the centre, for which a quarter of the
        # reach stands
        return {
            ("square", name): grid.square.step,
            ("sum", name): grid.reach / 2,
            # Of three values or two the half is 0, and the number of values still divides.
            self.count_moment(name): max(grid.half, 1),
        }

    def sensitivity(self, moment: Moment) -> Sensitivity:
        """How far one unit moves a moment over all groups."""
        return self._moved.moment(*moment)

    @cached_property
    def _moved(self) -> GroupedSensitivity:
        return self.table.sensitivity(self.data_request())

    def data_request(self) -> GroupedSums:
        """All moments in one scan."""
        moments, bounds = self.moments, self.table.bounds_for(self.by)
        sums = tuple((name, grid.centre) for name, grid in self.columns.items())
        squares = tuple(
            grid.square for name, grid in self.columns.items() if ("square", name) in moments
        )
        # A unit counts once, so its further rows need not be read.
        if moments == (("units", ""),):
            bounds = bounds.narrow(None, 1)
        return GroupedSums(
            self.by,
            self.group_keys,
            bounds.groups,
            bounds.rows_per_group,
            sums,
            squares,
            bounds.rows,
        )

    def error_bound(self, measure: Measure, tails: Tails) -> float:
        """Its half-width in its own unit; of a mean or variance, the largest that a group of the declared
        size gets, as often as ``tails`` hold.
        """
        rounding = 0.0
        if measure.column is not None and measure.shrinks:
            grid = self.columns[measure.column]
            rounding = grid.rounding * grid.step
            if measure.measure != "mean":
                spread = grid.spread_rounding((grid.high - grid.low) ** 2 / 4)
                rounding = (grid.square_rounding + spread) * grid.step**2
        return self.noise_error(measure, tails) + rounding

    def noise_error(self, measure: Measure, tails: Tails) -> float:
        """The same without what rounding adds, whatever the noise is."""
        if not measure.shrinks:
            step = (
                1.0
                if measure.column is None
                else float(self.table.bounded_column(measure.column).step)
            )
            return step * sum(
                abs(weight) * tails[moment] for moment, weight in self.weights(measure).items()
            )
        assert measure.column is not None and measure.size is not None
        grid, own_tails = self.columns[measure.column], self._column_moments(measure.column, tails)
        # A release divides by the noisy size, which may come out lower by its tail.
        n, edge = np.array([measure.size - own_tails["n"]]), np.array([float(grid.reach)])
        largest = np.array([max(map(abs, grid.square_range))])
        of_mean, of_square = grid.ratio_errors(n, edge, largest, own_tails)
        error, power = (
            (of_mean, 1)
            if measure.measure == "mean"
            else (_variance_error(edge, of_mean, of_square), 2)
        )
        return float(error[0]) * grid.step**power

    def widest_error(self, measure: Measure) -> float:
        """The width of what a shrinking measure can be: no error is larger."""
        assert measure.column is not None
        grid = self.columns[measure.column]
        width = (grid.high - grid.low) * grid.step
        return {"mean": width, "variance": width**2 / 4, "standard_deviation": width / 2}[
            measure.measure
        ]

    def value_range(self, measure: Measure) -> ValueRange:
        """What a measure can be, whatever the rows are."""
        if measure.column is None:
            return NOT_NEGATIVE
        grid = self.columns[measure.column]
        if measure.measure == "mean":
            return ValueRange(grid.low * grid.step, grid.high * grid.step)
        if measure.measure == "sum":
            return ValueRange(0 if grid.low >= 0 else None, 0 if grid.high <= 0 else None)
        return ValueRange(0, self.widest_error(measure))

    def spans_range(self, measure: Measure, value: float, half_width: float) -> bool:
        """Whether an interval holds everything that a shrinking measure can be: it says nothing."""
        if not measure.shrinks:
            return False
        # Rounded numbers: an interval that reaches an end up to its last bits reaches it.
        slack, limits = 1e-9 * self.widest_error(measure), self.value_range(measure)
        assert limits.low is not None and limits.high is not None
        return (
            value - half_width <= limits.low + slack and value + half_width >= limits.high - slack
        )

    def _column_moments(self, name: str, moments: Mapping[Moment, V]) -> dict[str, V]:
        """The moments of one column, ``n`` being the number of its values."""
        terms = {what: moments[what, name] for what in ("sum", "square") if (what, name) in moments}
        return {"n": moments[self.count_moment(name)], **terms}

    def read_measure(
        self, measure: Measure, noisy: Noisy, tails: Tails, error: float | None = None
    ) -> tuple[list[Any], list[float | None]]:
        """The measure of every group and its half-width, from noisy moments alone; None for both where
        the group may have no values. ``error``: the half-width of one that does not shrink.
        """
        if measure.shrinks:
            assert measure.column is not None
            name = measure.column
            own_noisy = self._column_moments(name, noisy)
            own_tails = self._column_moments(name, tails)
            estimates = self.columns[name].read_groups(measure, own_noisy, own_tails)
            may_be_empty = own_noisy["n"] <= own_tails["n"]
            groups = zip(may_be_empty.tolist(), *(of.tolist() for of in estimates), strict=True)
            pairs = [(None, None) if empty else pair for empty, *pair in groups]
            return [value for value, _ in pairs], [error for _, error in pairs]
        assert error is not None
        moments, factors, top, bottom = self._find_terms(measure)
        parts = zip(*(noisy[moment].tolist() for moment in moments), strict=True)
        totals = [sum(map(operator.mul, factors, part)) for part in parts]
        if measure.column is None:
            return totals, [error] * len(totals)
        # A quotient of integers is rounded once, as that of fractions.
        values = [total * top / bottom for total in totals]
        # Far from 0 a double is not the sum: what it is off by, is part of the error.
        errors: list[float | None] = [
            error if _is_exact(value, total * top, bottom) else error + abs(value) * _ROUNDING
            for value, total in zip(values, totals, strict=True)
        ]
        return values, errors

    def _find_terms(self, measure: Measure) -> tuple[Sequence[Moment], Sequence[int], int, int]:
        """Of a count or sum its moments, their factors, and the step that they count as numerator and denominator."""
        name = measure.full_name
        if name not in self._terms:
            weights = self.weights(measure)
            column = None if measure.column is None else self.table.bounded_column(measure.column)
            step = Fraction(1) if column is None else column.step
            factors = [*map(int, weights.values())]
            self._terms[name] = [*weights], factors, *step.as_integer_ratio()
        return self._terms[name]

    @cached_property
    def _terms(self) -> dict[str, tuple[Sequence[Moment], Sequence[int], int, int]]:
        """By measures' names: draws after each other ask for the same."""
        return {}


def _is_exact(value: float, top: int, bottom: int) -> bool:
    numerator, denominator = value.as_integer_ratio()
    return numerator * bottom == top * denominator


@dataclass(frozen=True)
class CentredColumn:
    """A bounded column in grid steps, around its centre."""

    name: str
    low: int
    high: int
    centre: int
    step: float
    rounding: float  #: of a value before it is added up, in steps: known of computed columns

    @classmethod
    def from_declaration(cls, table: Table, name: str, centred: bool) -> CentredColumn:
        """The declared column; around 0 unless centred."""
        column = table.bounded_column(name)
        low, high = column.grid_bounds()
        centre = (low + high) // 2 if centred else 0
        # Computed in doubles: a little more than half a step.
        rounding = 0.5 + 2.0**-20 if column.is_rounded else 0.0
        return cls(name, low, high, centre, float(column.step), rounding)

    @property
    def reach(self) -> int:
        """The largest distance from the centre."""
        return max(self.high - self.centre, self.centre - self.low, 1)

    @cached_property
    def square(self) -> Square:
        """How squares are added up."""
        return Square.fit(self.name, self.centre, self.reach)

    @property
    def half(self) -> float:
        """Half of the largest square, rounded."""
        return float(self.square.half * self.square.step)

    @property
    def square_range(self) -> tuple[float, float]:
        """The least and the largest mean of squares less half of the largest."""
        low, high = self.term_range("square")
        return float(low * self.square.step), float(high * self.square.step)

    @property
    def square_rounding(self) -> float:
        """How far the mean square may be from that of squares which are not rounded."""
        return float(self.square.rounding_error(self.reach))

    def spread_rounding(self, variance: Any) -> Any:
        """How far rounding the values moves a variance of at most so much: its root by no more than it
        moves one of them.
        """
        return self.rounding * (2 * np.sqrt(variance) + self.rounding)

    def term_range(self, what: str) -> tuple[int, int]:
        """The least and the largest term of a sum or square."""
        if what == "sum":
            return self.low - self.centre, self.high - self.centre
        return self.square.term_range(self.low, self.high)

    def read_groups(
        self, measure: Measure, noisy: Mapping[str, NDArray[np.int64]], tails: Mapping[str, float]
    ) -> tuple[Floats, Floats]:
        """Mean, variance or standard deviation of every group, and its half-width."""
        # A noisy number of values may be zero or below: such a group gets no value in the end.
        n = np.maximum(noisy["n"], 1).astype(np.float64)
        mean = np.clip(noisy["sum"] / n, self.low - self.centre, self.high - self.centre)
        square = np.zeros_like(n)
        if "square" in noisy:
            low, high = self.square_range
            square = np.clip(noisy["square"] / n * float(self.square.step), low, high)
        of_mean, of_square = self.ratio_errors(n, mean, square, tails)
        if measure.measure == "mean":
            # A double near bounds that are far from 0 may be a few steps from what it stands for.
            rounding = (np.abs(mean) + abs(self.centre)) * _ROUNDING + self.rounding
            error = np.minimum(of_mean + rounding, np.maximum(self.high - self.low, rounding))
            return (mean + self.centre) * self.step, error * self.step
        most = (self.high - self.low) ** 2 / 4  # the largest variance of bounded values (Popoviciu)
        variance = np.clip(square + self.half - mean**2, 0.0, most)
        rounding = (np.abs(square) + self.half + mean**2 + most) * _ROUNDING
        error = _variance_error(mean, of_mean, of_square) + rounding + self.square_rounding
        error += self.spread_rounding(np.minimum(variance + error, most))
        error = np.minimum(error, most)
        if measure.measure == "variance":
            return variance * self.step**2, error * self.step**2
        root = np.sqrt(variance)
        below = np.sqrt(np.maximum(variance - error, 0.0))
        above = np.sqrt(np.minimum(variance + error, most))
        wide = np.maximum(root - below, above - root) + above * _ROUNDING
        return root * self.step, wide * self.step

    def ratio_errors(
        self, n: Floats, mean: Floats, square: Floats, tails: Mapping[str, float]
    ) -> tuple[Floats, Floats]:
        """Half-widths of sum/n and square/n, in steps and their squares; infinite in a group that may be
        empty.
        """
        slack = tails["n"]
        surely = n - slack

        def ratio_error(ratio: Floats, tail: float) -> Floats:
            return np.where(
                surely > 0, (tail + np.abs(ratio) * slack) / np.maximum(surely, 1e-9), np.inf
            )

        return (
            ratio_error(mean, tails["sum"]),
            ratio_error(square, tails.get("square", 0.0) * self.square.step),
        )


def _variance_error(mean: Floats, of_mean: Floats, of_square: Floats) -> Floats:
    return of_square + of_mean * (2 * np.abs(mean) + of_mean)


def single_measure(kind: str, column: str | None = None) -> tuple[Measure, ...]:
    """One measure of a column, or of the rows."""
    return (Measure.model_validate({"measure": kind, "column": column}),)
