"""Sums and choices with a wrong sensitivity, each by one mistake of an author, beside the sound
mechanisms that they differ from.
"""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from typing import Any

import numpy as np

from dpflow.core.accounting.amounts import Epsilon
from dpflow.core.accounting.events import DiscreteLaplace, Event, Pure
from dpflow.core.contract.declaration import Table
from dpflow.core.contract.mechanism import Mechanism, Params
from dpflow.core.contract.requests import GroupedSums, SortedValues
from dpflow.core.contract.results import Result, Row
from dpflow.core.contract.sensitivity import sides_of
from dpflow.core.sampling.noisy_values import add_laplace, draw_place
from dpflow.core.sampling.randomness import Source
from dpflow.core.sampling.samplers import choose_piece


class SumParams(Params):
    """``column``: what is added up. ``epsilon``: the privacy cost. ``by``: a column with public keys,
    or nothing.
    """

    column: str
    epsilon: Epsilon
    by: str | None = None


class SoundSum(Mechanism[SumParams]):
    """Sums in total or by public key, with discrete Laplace noise. Sound."""

    name = "sum_by_hand"
    summary = "sum of a column"
    citation = "Dwork, McSherry, Nissim, Smith 2006"

    def reach(self, params: SumParams, table: Table) -> int:
        """How far one unit moves all sums together."""
        return table.sensitivity(self.data_request(params, table)).sum(params.column).l1

    def reach_of(self, peak: int, params: SumParams, table: Table) -> int:
        """How far the rows of one unit move a sum, each by so much; a replaced unit does it twice."""
        return table.bounds_for(params.by).rows * peak * sides_of(table)

    def event(self, params: SumParams, table: Table) -> Event:
        """Discrete Laplace noise at the claimed sensitivity."""
        self.data_request(params, table)
        reach = max(1, self.reach(params, table))
        return DiscreteLaplace(reach / params.epsilon, reach)

    def data_request(self, params: SumParams, table: Table) -> GroupedSums:
        """Clamped sums after contribution bounding."""
        table.bounded_column(params.column).grid_bounds()
        groups, rows_per_group, rows = table.bounds_for(params.by)
        keys = None if params.by is None else table.public_keys(params.by)
        values = ((params.column, 0),)
        return GroupedSums(params.by, keys, groups, rows_per_group, values, rows=rows)

    def draw(self, params: SumParams, table: Table, answer: Any, source: Source) -> Result:
        """Noise on each sum."""
        scale = Fraction(max(1, self.reach(params, table))) / params.epsilon
        noisy = add_laplace(answer.sums[params.column], scale, source)
        keys = answer.keys
        return Result(
            tuple(Row(key, "sum", int(value)) for key, value in zip(keys, noisy, strict=True))
        )


class WidthForPeak(SoundSum):
    """Takes ``upper - lower`` under add-remove, too."""

    def reach(self, params: SumParams, table: Table) -> int:
        low, high = table.bounded_column(params.column).grid_bounds()
        return self.reach_of(high - low, params, table)


class UpperForPeak(SoundSum):
    """Takes ``|upper|`` for the larger of ``|lower|`` and ``|upper|``."""

    def reach(self, params: SumParams, table: Table) -> int:
        _, high = table.bounded_column(params.column).grid_bounds()
        return self.reach_of(abs(high), params, table)


class LowerForPeak(SoundSum):
    """Takes ``|lower|`` where it should take the larger end."""

    def reach(self, params: SumParams, table: Table) -> int:
        low, _ = table.bounded_column(params.column).grid_bounds()
        return self.reach_of(max(1, abs(low)), params, table)


class PeakForReplace(SoundSum):
    """Takes the larger end for a replaced unit, which moves a sum by the width around 0."""

    def reach(self, params: SumParams, table: Table) -> int:
        low, high = table.bounded_column(params.column).grid_bounds()
        return table.bounds_for(params.by).rows * max(abs(low), abs(high))


class StepsForgotten(SoundSum):
    """Takes the bounds in the column's own units, where sums are in grid steps."""

    def reach(self, params: SumParams, table: Table) -> int:
        column = table.bounded_column(params.column)
        assert column.lower is not None and column.upper is not None
        peak: Fraction = max(abs(Fraction(str(end))) for end in (column.lower, column.upper))
        return self.reach_of(max(1, int(peak)), params, table)


class TableGroupsForNoise(SoundSum):
    """Reads as many groups as the column declares; its noise is for as many as the table does."""

    def reach(self, params: SumParams, table: Table) -> int:
        groups = table.bounds_for(params.by).groups
        fewer = 1 if params.by is None else table.contribution_bounds.max_groups
        whole = super().reach(params, table)
        return -(-whole * min(fewer, groups) // groups)


class TableRowsForNoise(SoundSum):
    """Reads the rows per group of the column; its noise is for those of the table."""

    def reach(self, params: SumParams, table: Table) -> int:
        rows = table.bounds_for(params.by).rows_per_group
        fewer = rows if params.by is None else table.contribution_bounds.per_group
        return -(-super().reach(params, table) * min(fewer, rows) // rows)


class OneGroup(SoundSum):
    """Forgets that a unit reaches several groups."""

    def reach(self, params: SumParams, table: Table) -> int:
        return -(-super().reach(params, table) // table.bounds_for(params.by).groups)


class OneRow(SoundSum):
    """Forgets that a unit has several rows in a group."""

    def reach(self, params: SumParams, table: Table) -> int:
        return -(-super().reach(params, table) // table.bounds_for(params.by).rows_per_group)


class ChoiceParams(Params):
    """``by``: a column with public keys. ``epsilon``: the privacy cost."""

    by: str
    epsilon: Epsilon


class SoundChoice(Mechanism[ChoiceParams]):
    """The key with most rows, by the exponential mechanism. Sound."""

    name = "choice_by_hand"
    summary = "most frequent public key"
    citation = "McSherry, Talwar 2007"

    def spread(self, params: ChoiceParams, table: Table) -> int:
        """How far one unit moves a difference of two scores: its rows up, and under replace as many
        down elsewhere.
        """
        rows = table.bounds_for(params.by).rows_per_group
        return rows * sides_of(table)

    def scores(self, answer: Any) -> Any:
        """The score of each key; larger is better."""
        return answer.rows

    def event(self, params: ChoiceParams, table: Table) -> Event:
        """Pure, by the range of differences."""
        self.data_request(params, table)
        return Pure(params.epsilon)

    def data_request(self, params: ChoiceParams, table: Table) -> GroupedSums:
        """Rows by key."""
        groups, rows_per_group, rows = table.bounds_for(params.by)
        keys = table.public_keys(params.by)
        return GroupedSums(params.by, keys, groups, rows_per_group, rows=rows)

    def draw(self, params: ChoiceParams, table: Table, answer: Any, source: Source) -> Result:
        """One key."""
        scores = np.asarray(self.scores(answer))
        costs = [int(scores.max() - score) for score in scores]
        rate = params.epsilon / self.spread(params, table)
        place = choose_piece([1] * len(costs), costs, rate, source)
        return Result((Row(answer.keys[place], "rank", 1),))


class AddRemoveRate(SoundChoice):
    """Takes the rate of add-remove where units are replaced."""

    def spread(self, params: ChoiceParams, table: Table) -> int:
        return table.bounds_for(params.by).rows_per_group


class DoubledScores(SoundChoice):
    """Scores that move by two for each row, taken to move by one."""

    def scores(self, answer: Any) -> Any:
        return 2 * answer.rows


class OneRowScores(SoundChoice):
    """Forgets that a unit has several rows of a key."""

    def spread(self, params: ChoiceParams, table: Table) -> int:
        return sides_of(table)


class MiddleParams(Params):
    """``column``: a bounded column. ``epsilon``: the privacy cost."""

    column: str
    epsilon: Epsilon


class SoundMiddle(Mechanism[MiddleParams]):
    """A value with about as many rows below as above, by the exponential mechanism. Sound."""

    name = "middle_by_hand"
    summary = "value in the middle of a column"
    citation = "McSherry, Talwar 2007"

    def move(self, params: MiddleParams, table: Table) -> int:
        """How far one unit moves |rows below - rows above| of a value."""
        rows = table.contribution_bounds.rows
        return rows * sides_of(table)

    def event(self, params: MiddleParams, table: Table) -> Event:
        """Pure, at twice the move."""
        self.data_request(params, table)
        return Pure(params.epsilon)

    def data_request(self, params: MiddleParams, table: Table) -> SortedValues:
        """All values of the column."""
        table.bounded_column(params.column).grid_bounds()
        return SortedValues(params.column, table.contribution_bounds.rows)

    def draw(self, params: MiddleParams, table: Table, answer: Any, source: Source) -> Result:
        """One value."""
        low, high = table.bounded_column(params.column).grid_bounds()
        counts = Counter[int]()
        for value, count in zip(map(int, answer.values), map(int, answer.counts), strict=True):
            counts[value] += count
        runs, start, below = list[tuple[int, int, int]](), low, 0
        above = counts.total()
        # All values between two of the rows cost the same.
        for value in sorted(counts):
            runs += [(start, value - start, abs(below - above))] * (value > start)
            above -= counts[value]
            runs.append((value, 1, abs(below - above)))
            start, below = value + 1, below + counts[value]
        runs += [(start, high + 1 - start, below)] * (high >= start)
        rate = params.epsilon / (2 * self.move(params, table))
        return Result((Row("", "middle", draw_place(*zip(*runs), rate, source)),))


class MiddleAtAddRemoveRate(SoundMiddle):
    """Takes the move of one row more or less where units are replaced."""

    def move(self, params: MiddleParams, table: Table) -> int:
        return table.contribution_bounds.rows


class HalfTheMove(SoundMiddle):
    """Divides by the move once, not twice."""

    def move(self, params: MiddleParams, table: Table) -> Any:
        return Fraction(super().move(params, table), 2)


class MiddleOfOneRow(SoundMiddle):
    """Forgets that a unit has several rows."""

    def move(self, params: MiddleParams, table: Table) -> int:
        return sides_of(table)
