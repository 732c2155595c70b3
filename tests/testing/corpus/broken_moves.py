"""Noise and choices of the toolbox with another statistic than the one whose sensitivity they were given, and orders
of rows that follow exact counts; beside them the sound mechanisms that they differ from.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np

from dpflow.core.accounting.amounts import Epsilon
from dpflow.core.accounting.events import Event
from dpflow.core.contract.declaration import Table
from dpflow.core.contract.mechanism import Mechanism, Params
from dpflow.core.contract.requests import GroupedSums
from dpflow.core.contract.results import Result, Row
from dpflow.core.contract.sensitivity import GroupedSensitivity, Sensitivity
from dpflow.core.sampling.randomness import Source
from dpflow.core.toolbox.choices import Choice
from dpflow.core.toolbox.noise import Noise, gaussian_noise, laplace_noise


class KeyedParams(Params):
    """``column``: what is added up. ``by``: a column with public keys. ``epsilon``: the privacy cost."""

    column: str
    by: str
    epsilon: Epsilon


class SoundKeyed(Mechanism[KeyedParams]):
    """Sums by public key, with noise fitted to what the request says. Sound."""

    name = "keyed_sums"
    summary = "sums by key"
    citation = "Dwork, McSherry, Nissim, Smith 2006"

    def data_request(self, params: KeyedParams, table: Table) -> GroupedSums:
        """Clamped sums after contribution bounding."""
        table.bounded_column(params.column).grid_bounds()
        groups, rows_per_group, rows = table.bounds_for(params.by)
        keys = table.public_keys(params.by)
        values = ((params.column, 0),)
        return GroupedSums(params.by, keys, groups, rows_per_group, values, rows=rows)

    def moves(self, params: KeyedParams, table: Table) -> GroupedSensitivity:
        """What the request says."""
        return table.sensitivity(self.data_request(params, table))

    def moved(self, params: KeyedParams, table: Table) -> Sensitivity:
        """How far one unit moves the statistic."""
        return self.moves(params, table).sum(params.column)

    def statistic(self, params: KeyedParams, answer: Any) -> Any:
        """What gets noise."""
        return answer.sums[params.column]

    def noise(self, params: KeyedParams, table: Table) -> Noise:
        """Laplace noise of the whole epsilon."""
        return laplace_noise(self.moved(params, table), params.epsilon)

    def event(self, params: KeyedParams, table: Table) -> Event:
        """That of the noise."""
        return self.noise(params, table).event

    def draw(self, params: KeyedParams, table: Table, answer: Any, source: Source) -> Result:
        """Noise on each number."""
        noisy = self.noise(params, table).add_noise(self.statistic(params, answer), source)
        numbers = noisy.tolist()
        keys = answer.keys if len(answer.keys) == len(numbers) else map(str, range(len(numbers)))
        return Result(tuple(Row(key, "sum", n) for key, n in zip(keys, numbers, strict=True)))


class _RowMoves(SoundKeyed):
    """Fits the noise to how far rows move: right for statistics of rows alone."""

    def moved(self, params: KeyedParams, table: Table) -> Sensitivity:
        return self.moves(params, table).rows


class RowsForSum(_RowMoves):
    """Fits the noise of sums to how far rows move."""


class UnitsForRows(SoundKeyed):
    """Counts rows with the noise of units."""

    def moved(self, params: KeyedParams, table: Table) -> Sensitivity:
        return self.moves(params, table).units

    def statistic(self, params: KeyedParams, answer: Any) -> Any:
        return answer.rows


class FactorForgotten(SoundKeyed):
    """Doubles the sums and not their sensitivity."""

    def statistic(self, params: KeyedParams, answer: Any) -> Any:
        return 2 * answer.sums[params.column]


class SoundFactor(FactorForgotten):
    """Doubles both. Sound."""

    def moved(self, params: KeyedParams, table: Table) -> Sensitivity:
        return super().moved(params, table) * 2


class TotalForKeys(SoundKeyed):
    """Takes the sensitivity of another request: of one row of one group."""

    def moves(self, params: KeyedParams, table: Table) -> GroupedSensitivity:
        keys, values = table.public_keys(params.by), ((params.column, 0),)
        return table.sensitivity(GroupedSums(params.by, keys, 1, 1, values))


class CentredElsewhere(SoundKeyed):
    """Takes the sensitivity of sums around the middle for sums around 0."""

    def moves(self, params: KeyedParams, table: Table) -> GroupedSensitivity:
        low, high = table.bounded_column(params.column).grid_bounds()
        values = ((params.column, (low + high) // 2),)
        return table.sensitivity(replace(self.data_request(params, table), values=values))


class RowsAndUnitsAtOnce(_RowMoves):
    """Adds rows and units up, with the noise of rows."""

    def statistic(self, params: KeyedParams, answer: Any) -> Any:
        return answer.rows + answer.units


class Differences(_RowMoves):
    """Differences of rows between neighbouring keys, with the noise of rows: each row is in two of them."""

    def statistic(self, params: KeyedParams, answer: Any) -> Any:
        return np.diff(answer.rows, prepend=0)


class SoundDifferences(Differences):
    """The same with twice the sensitivity. Sound."""

    def moved(self, params: KeyedParams, table: Table) -> Sensitivity:
        return super().moved(params, table) * 2


class RunningTotals(_RowMoves):
    """Running totals of rows, with the noise of rows: an early row is in all of them."""

    def statistic(self, params: KeyedParams, answer: Any) -> Any:
        return np.cumsum(answer.rows)


class SoundRunningTotals(RunningTotals):
    """The same with the sensitivity times the keys. Sound."""

    def moved(self, params: KeyedParams, table: Table) -> Sensitivity:
        return super().moved(params, table) * len(table.public_keys(params.by))


class LengthForSquares(SoundKeyed):
    """Gaussian noise by L1 where squares are meant."""

    def noise(self, params: KeyedParams, table: Table) -> Noise:
        reach = self.moved(params, table).l1
        return gaussian_noise(Sensitivity(reach, reach), params.epsilon)


class SoundGaussian(SoundKeyed):
    """Gaussian noise by L2. Sound."""

    def noise(self, params: KeyedParams, table: Table) -> Noise:
        return gaussian_noise(self.moved(params, table), params.epsilon)


class SoundPick(SoundKeyed):
    """The key with most rows. Sound."""

    def choice(self, params: KeyedParams, table: Table) -> Choice:
        """By the exponential mechanism."""
        return Choice(self.moves(params, table).rows, params.epsilon)

    def event(self, params: KeyedParams, table: Table) -> Event:
        """That of the choice."""
        return self.choice(params, table).event

    def statistic(self, params: KeyedParams, answer: Any) -> Any:
        return answer.rows

    def draw(self, params: KeyedParams, table: Table, answer: Any, source: Source) -> Result:
        scores = self.statistic(params, answer)
        place = self.choice(params, table).choose_best(scores, source)
        return Result((Row(answer.keys[place], "rank", 1),))


class DeclaredTooSmall(SoundPick):
    """Declares that a difference of scores moves by one."""

    def choice(self, params: KeyedParams, table: Table) -> Choice:
        return Choice(1, params.epsilon)


class OneSide(SoundPick):
    """Declares how far one score moves for how far a difference does."""

    def choice(self, params: KeyedParams, table: Table) -> Choice:
        return Choice(self.moves(params, table).bounds.rows_per_group, params.epsilon)


class SquaredRows(SoundPick):
    """Squares the scores, which then move further the larger they are."""

    def statistic(self, params: KeyedParams, answer: Any) -> Any:
        return answer.rows**2


class DistanceFromMean(SoundPick):
    """Scores keys by how far they are above the mean, which every row moves, too."""

    def statistic(self, params: KeyedParams, answer: Any) -> Any:
        return len(answer.rows) * answer.rows - answer.rows.sum()


class SoundDistance(DistanceFromMean):
    """The same with a spread that holds: of K keys a row moves a score by K - 1, or another way by 1. Sound."""

    def choice(self, params: KeyedParams, table: Table) -> Choice:
        moved, keys = self.moves(params, table).rows, len(table.public_keys(params.by))
        return Choice(2 * keys * moved.l1, params.epsilon)


class SortedByNoise(_RowMoves):
    """Rows of keys, the largest noisy one first: an order that everybody can derive. Sound."""

    order = "values"

    def exact_order(self, params: KeyedParams, answer: Any, noisy: Any) -> Any:
        """What rows are sorted by, the largest first."""
        return noisy

    def draw(self, params: KeyedParams, table: Table, answer: Any, source: Source) -> Result:
        noisy = self.noise(params, table).add_noise(answer.rows, source)
        ranked = self.exact_order(params, answer, noisy).tolist()
        rows = [Row(key, "count", n) for key, n in zip(answer.keys, noisy.tolist(), strict=True)]
        order = sorted(range(len(rows)), key=lambda i: (-ranked[i], rows[i].key))
        return Result(tuple(rows[i] for i in order))


class SortedByRows(SortedByNoise):
    """Sorts by the exact rows and says that it sorts by what it shows."""

    def exact_order(self, params: KeyedParams, answer: Any, noisy: Any) -> Any:
        return answer.rows


class LargestFirst(SortedByNoise):
    """Puts the key with most rows first, and sorts the others by what it shows."""

    def exact_order(self, params: KeyedParams, answer: Any, noisy: Any) -> Any:
        return noisy + 10**9 * (answer.rows == answer.rows.max())


class TiesByRows(SortedByNoise):
    """Breaks ties of shown numbers by the exact ones."""

    def exact_order(self, params: KeyedParams, answer: Any, noisy: Any) -> Any:
        return noisy * 10**6 + answer.rows


class SeldomLessNoise(SoundKeyed):
    """A quarter of the noise once in 1,024 results."""

    def noise_of(self, params: KeyedParams, table: Table, is_rare: bool) -> Noise:
        """What is drawn in the rare case, and otherwise."""
        return laplace_noise(self.moved(params, table), params.epsilon * (4 if is_rare else 1))

    def draw(self, params: KeyedParams, table: Table, answer: Any, source: Source) -> Result:
        noise = self.noise_of(params, table, source.draw_below(1024) == 0)
        noisy = noise.add_noise(self.statistic(params, answer), source)
        return Result(tuple(Row(str(i), "sum", n) for i, n in enumerate(noisy.tolist())))


class SeldomMoreNoise(SeldomLessNoise):
    """Four times the noise once in 1,024 results. Sound."""

    def noise_of(self, params: KeyedParams, table: Table, is_rare: bool) -> Noise:
        epsilon = params.epsilon * (Fraction(1, 4) if is_rare else 1)
        return laplace_noise(self.moved(params, table), epsilon)


class SeldomOneKeyExact(SoundKeyed):
    """One result in 512 has the exact number of one key, chosen by chance."""

    def draw(self, params: KeyedParams, table: Table, answer: Any, source: Source) -> Result:
        rows = list(super().draw(params, table, answer, source).rows)
        at = source.draw_below(512)
        if at < len(rows):
            rows[at] = replace(rows[at], value=int(answer.sums[params.column][at]))
        return Result(tuple(rows))


class SeldomMarked(SoundKeyed):
    """Remarks once in 256 results which keys have rows."""

    def draw(self, params: KeyedParams, table: Table, answer: Any, source: Source) -> Result:
        result = super().draw(params, table, answer, source)
        if source.draw_below(256):
            return result
        marked = zip(result.rows, answer.rows.tolist(), strict=True)
        return Result(tuple(replace(row, remark="full") if n else row for row, n in marked))
