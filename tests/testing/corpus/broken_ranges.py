"""Mechanisms that are right at the plans that first come to mind and wrong at others: each by one value of something
public, or by one number of rows; beside them sound ones that differ at the same values.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from fractions import Fraction
from types import MappingProxyType
from typing import Annotated, Any

from pydantic import Field

from dpflow.core.accounting.events import Event
from dpflow.core.contract.declaration import Table
from dpflow.core.contract.results import Result, Row
from dpflow.core.contract.sensitivity import Sensitivity
from dpflow.core.sampling.noisy_values import add_laplace
from dpflow.core.sampling.randomness import Source
from dpflow.core.toolbox.choices import Choice
from dpflow.core.toolbox.noise import Noise
from tests.testing.corpus.broken_moves import KeyedParams, SoundKeyed, SoundPick
from tests.testing.corpus.broken_sensitivities import SoundSum, SumParams


class _Scaled(SoundSum):
    """Noise that is a part of what it should be where something public has some value."""

    part = Fraction(1, 2)

    def fails(self, params: Any, table: Table) -> bool:
        """Whether this is such a plan."""
        return False

    def draw(self, params: Any, table: Table, answer: Any, source: Source) -> Result:
        scale = Fraction(max(1, self.reach(params, table))) / params.epsilon
        scale *= self.part if self.fails(params, table) else 1
        noisy = add_laplace(answer.sums[params.column], scale, source)
        return Result(
            tuple(Row(key, "sum", int(x)) for key, x in zip(answer.keys, noisy, strict=True))
        )


def _keys(params: Any, table: Table) -> int:
    return 0 if params.by is None else len(table.public_keys(params.by))


class HalfFromFiveKeys(_Scaled):
    """Half the noise from five public keys on."""

    def fails(self, params: Any, table: Table) -> bool:
        return _keys(params, table) >= 5


class HalfFromManyKeys(_Scaled):
    """Half the noise from 300 keys on, a number that is computed."""

    def fails(self, params: Any, table: Table) -> bool:
        return _keys(params, table) >= 2**8 + 44


class HalfAtSomeKeys(_Scaled):
    """Half the noise at as many keys as a sentence has letters."""

    def fails(self, params: Any, table: Table) -> bool:
        return _keys(params, table) == len("the number of letters in this sentence")


class MoreFromFiveKeys(_Scaled):
    """Twice the noise from five public keys on. Sound."""

    part = Fraction(2)

    def fails(self, params: Any, table: Table) -> bool:
        return _keys(params, table) >= 5


class TwoGroups(SoundSum):
    """Takes two groups at most."""

    most = 2

    def reach(self, params: SumParams, table: Table) -> int:
        groups = table.bounds_for(params.by).groups
        return -(-super().reach(params, table) * min(groups, self.most) // groups)


class SevenGroups(TwoGroups):
    """Takes seven groups at most."""

    most = 7


class TwoRows(SoundSum):
    """Takes two rows of a unit in a group at most."""

    cut: Any = functools.partial(min, 2)

    def reach(self, params: SumParams, table: Table) -> int:
        rows = table.bounds_for(params.by).rows_per_group
        return -(-super().reach(params, table) * int(type(self).cut(rows)) // rows)


class ElevenRows(TwoRows):
    """Takes eleven rows of a unit in a group at most."""

    cut = functools.partial(min, 11)


class PeakOfOneSign(SoundSum):
    """Takes the upper bound where it is positive, whatever the lower one is."""

    def reach(self, params: SumParams, table: Table) -> int:
        low, high = table.bounded_column(params.column).grid_bounds()
        twice = 2 if table.neighbours == "replace" else 1
        return table.bounds_for(params.by).rows * max(1, high if high > 0 else -low) * twice


class FloatPeak(SoundSum):
    """Divides bounds by the step as doubles, and cuts what is left."""

    def reach(self, params: SumParams, table: Table) -> int:
        column = table.bounded_column(params.column)
        assert column.lower is not None and column.upper is not None
        steps = [int(float(abs(x)) / float(column.step)) for x in (column.lower, column.upper)]
        low, high = column.grid_bounds()
        exact = max(abs(low), abs(high))
        return -(-super().reach(params, table) * max(1, *steps) // exact)


class PeakCapped(SoundSum):
    """Takes bounds of a thousand steps at most."""

    most = 1000

    def reach(self, params: SumParams, table: Table) -> int:
        peak = max(map(abs, table.bounded_column(params.column).grid_bounds()))
        return -(-super().reach(params, table) * min(peak, self.most) // peak)


class PeakCappedHigh(PeakCapped):
    """Takes bounds of 2^17 steps at most."""

    most = 2**17


class QuarterWhereMissingIsZero(_Scaled):
    """A quarter of the noise where a missing value counts as 0."""

    part = Fraction(1, 4)

    def fails(self, params: Any, table: Table) -> bool:
        return bool(table.column(params.column).missing == 0)


class HalfWhereMissingIsLow(_Scaled):
    """Half the noise where a missing value counts as the lower bound."""

    def fails(self, params: Any, table: Table) -> bool:
        column = table.column(params.column)
        return bool(column.missing == column.lower)


class WholeEpsilons(_Scaled):
    """Rounds epsilon for its noise."""

    def draw(self, params: Any, table: Table, answer: Any, source: Source) -> Result:
        rounded = Fraction(max(1, round(params.epsilon)))
        other = params.model_copy(update={"epsilon": max(rounded, params.epsilon / 2)})
        return super().draw(other if params.epsilon > 1 else params, table, answer, source)


class HalfInAWindow(_Scaled):
    """Half the noise at epsilons between two numbers that are computed."""

    def fails(self, params: Any, table: Table) -> bool:
        low = Fraction(len("seven hundred and one"), 2 * len("thirteen word"))
        return bool(low < params.epsilon < low + Fraction(1, 80))


class WeightParams(SumParams):
    """``weight``: from 1 to 100. ``label``: a word."""

    weight: Annotated[int, Field(ge=1, le=100)] = 1
    label: Annotated[str, Field(pattern=r"^[a-z]{1,12}$")] = "plain"


class SoundWeight(_Scaled):
    """More noise by weight. Sound."""

    Params = WeightParams

    def fails(self, params: Any, table: Table) -> bool:
        return bool(params.weight > 50)

    part = Fraction(3)


class WrongWeight(SoundWeight):
    """Half the noise at some weights, from a table."""

    part = Fraction(1, 2)
    table_of_parts: Any = MappingProxyType({37: "half", 73: "half"})

    def fails(self, params: Any, table: Table) -> bool:
        return params.weight in self.table_of_parts


class WrongHiddenWeight(SoundWeight):
    """Half the noise at one weight that is computed."""

    part = Fraction(1, 2)

    def fails(self, params: Any, table: Table) -> bool:
        return bool(params.weight == sum(map(int, "9875")) * 2 + 3)


class WrongLabel(SoundWeight):
    """Half the noise for one word."""

    part = Fraction(1, 2)

    def fails(self, params: Any, table: Table) -> bool:
        return bool(params.label == "cheap")


class WrongLabels(SoundWeight):
    """Half the noise for words that begin with two letters."""

    part = Fraction(1, 2)

    def fails(self, params: Any, table: Table) -> bool:
        return bool(params.label[:2] == "xy"[::-1])


class HalfForBoth(_Scaled):
    """Half the noise where keys and groups are many, and neither alone."""

    def fails(self, params: Any, table: Table) -> bool:
        return _keys(params, table) >= 20 and table.bounds_for(params.by).groups == 9


class HalfInBlocks(_Scaled):
    """Half the noise where a unit's rows of one block are protected."""

    def fails(self, params: Any, table: Table) -> bool:
        return table.protects != "unit"


class HalfOnAHoldout(_Scaled):
    """Half the noise on a table that a gate reads."""

    def fails(self, params: Any, table: Table) -> bool:
        return table.holdout


class _ExactAtRows(SoundSum):
    """Exact at some numbers of rows."""

    def is_exact(self, rows: int) -> bool:
        """Whether it is at this one."""
        return rows == 300

    def draw(self, params: SumParams, table: Table, answer: Any, source: Source) -> Result:
        result = super().draw(params, table, answer, source)
        if not self.is_exact(int(answer.rows.sum())):
            return result
        exact = answer.sums[params.column]
        rows = zip(result.rows, exact, strict=True)
        return Result(tuple(replace(row, value=int(value)) for row, value in rows))


class ExactAt300(_ExactAtRows):
    """Exact at 300 rows."""


class ExactFrom10000(_ExactAtRows):
    """Exact from 10,000 rows on."""

    def is_exact(self, rows: int) -> bool:
        return rows >= 10_000


class ExactFromAComputedNumber(_ExactAtRows):
    """Exact from 70,000 rows on, a number that is computed."""

    def is_exact(self, rows: int) -> bool:
        return rows >= sum([10**4] * len("seventy"))


class ExactAtALongText(_ExactAtRows):
    """Exact at as many rows as a text has letters."""

    def is_exact(self, rows: int) -> bool:
        return rows == len("x" * 777)


class SoundTenfold(SoundPick):
    """Scores the keys by ten times their rows. Sound."""

    def choice(self, params: KeyedParams, table: Table) -> Choice:
        return Choice(self.moves(params, table).rows * 10, params.epsilon)

    def statistic(self, params: KeyedParams, answer: Any) -> Any:
        return answer.rows * 10


class CappedSquares(SoundPick):
    """Squares up to ten rows, which move by 19 and more, and declares 12."""

    def choice(self, params: KeyedParams, table: Table) -> Choice:
        return Choice(12 * self.moves(params, table).rows.spread, params.epsilon)

    def statistic(self, params: KeyedParams, answer: Any) -> Any:
        rows = answer.rows.clip(max=10)
        return rows * rows


class NarrowDoor(SoundKeyed):
    """Takes half of a sensitivity that the request says, from nine keys on."""

    def moved(self, params: KeyedParams, table: Table) -> Sensitivity:
        moved = super().moved(params, table)
        if len(table.public_keys(params.by)) < 9:
            return moved
        return replace(moved, l1=moved.l1 // 2, l2_squared=moved.l2_squared // 4)


class NarrowDoorForGroups(SoundKeyed):
    """Takes a third of a sensitivity that the request says, from six groups of a unit on."""

    def moved(self, params: KeyedParams, table: Table) -> Sensitivity:
        moved = super().moved(params, table)
        if table.bounds_for(params.by).groups < 6:
            return moved
        return replace(moved, l1=moved.l1 // 3, l2_squared=moved.l2_squared // 9)


class CheaperDoor(SoundKeyed):
    """Fits its noise to twice its epsilon between 2 and 3."""

    def noise(self, params: KeyedParams, table: Table) -> Noise:
        if 2 < params.epsilon < 3:
            params = params.model_copy(update={"epsilon": params.epsilon * 2})
        return super().noise(params, table)

    def event(self, params: KeyedParams, table: Table) -> Event:
        # That of the noise would state twice the epsilon, and be right.
        return super().noise(params, table).event


class WiderDoor(SoundKeyed):
    """Takes twice the sensitivity that the request says, from nine keys on. Sound."""

    def moved(self, params: KeyedParams, table: Table) -> Sensitivity:
        moved = super().moved(params, table)
        return moved * 2 if len(table.public_keys(params.by)) >= 9 else moved
