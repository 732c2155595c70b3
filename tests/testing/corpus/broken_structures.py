"""Releases whose form, noise or stated error follows exact counts, and parameters that break the
guarantee; beside them the sound mechanisms that they differ from.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from enum import Enum
from fractions import Fraction
from typing import Any, Literal

from dpflow.core.contract.declaration import Table
from dpflow.core.contract.results import Result, Row
from dpflow.core.sampling.noisy_values import add_laplace
from dpflow.core.sampling.randomness import Source
from dpflow.core.toolbox.partition_selection import SelectionRule
from dpflow.mechanisms.count import Count, CountParams
from dpflow.mechanisms.private_histogram import PrivateHistogram
from tests.testing.corpus.broken_sensitivities import SoundSum, SumParams


class _ByExactNumber(Count):
    """Changes rows of the sound result by the exact number behind each."""

    of = "rows"

    @abstractmethod
    def change(self, row: Row, exact: int) -> Row:
        """The row as it is shown."""

    def draw(self, params: Any, table: Table, answer: Any, source: Source) -> Result:
        result = super().draw(params, table, answer, source)
        rows = zip(result.rows, answer.moment(self.of, ""), strict=True)
        return Result(tuple(self.change(row, int(exact)) for row, exact in rows))


class _Suppressing(_ByExactNumber):
    """Hides what is computed from few rows or units, by the exact number: an office's rule."""

    least: int

    def change(self, row: Row, exact: int) -> Row:
        return replace(row, value=None) if exact < self.least else row


class SuppressesBelow10(_Suppressing):
    """No number below ten rows."""

    least = 10


class SuppressesBelow11(_Suppressing):
    """No number below eleven rows."""

    least = 11


class SuppressesBelow20Units(_Suppressing):
    """No number below twenty units."""

    least, of = 20, "units"


class SuppressesBelow75(_Suppressing):
    """No number below 75 rows."""

    least = 75


class SoundSuppression(_ByExactNumber):
    """Hides noisy numbers below ten. Sound: a function of the noisy result."""

    def change(self, row: Row, exact: int) -> Row:
        is_small = isinstance(row.value, int) and row.value < 10
        return replace(row, value=None) if is_small else row


class _ExactFrom(_ByExactNumber):
    """Exact from so many rows on, where "nobody can be found among so many"."""

    enough: int

    def change(self, row: Row, exact: int) -> Row:
        return replace(row, value=exact) if exact >= self.enough else row


class ExactFrom10(_ExactFrom):
    """Exact from ten rows on."""

    enough = 10


class ExactFrom50(_ExactFrom):
    """Exact from fifty rows on."""

    enough = 50


class NoiseBelow1000(Count):
    """Draws no noise for counts from 1,000 on."""

    def draw(self, params: Any, table: Table, answer: Any, source: Source) -> Result:
        if int(answer.rows.max(initial=0)) >= 1000:
            rows = zip(answer.keys, answer.rows, strict=True)
            return Result(tuple(Row(key, "count", int(n), 0.0) for key, n in rows))
        return super().draw(params, table, answer, source)


class LessNoiseFrom300(_ByExactNumber):
    """Halves its noise for counts from 300 on."""

    def change(self, row: Row, exact: int) -> Row:
        if exact < 300 or not isinstance(row.value, int):
            return row
        return replace(row, value=exact + (row.value - exact) // 2)


class WidthByMagnitude(_ByExactNumber):
    """States a half-width by the order of magnitude of the exact count."""

    def change(self, row: Row, exact: int) -> Row:
        return replace(row, half_width_95=float(10 ** len(str(exact))))


class RemarkOnFewRows(_ByExactNumber):
    """Remarks which numbers are of fewer than thirty rows."""

    def change(self, row: Row, exact: int) -> Row:
        return replace(row, remark="few rows") if exact < 30 else row


class Speed(Enum):
    """How noise is drawn."""

    CAREFUL = "careful"
    QUICK = "quick"


class _SettingParams(CountParams):
    """``mode``, ``exact_grid``, ``speed``: settings of a stranger's mechanism."""

    mode: Literal["standard", "fast"] = "standard"
    exact_grid: bool = False
    speed: Speed = Speed.CAREFUL


class _Setting(Count):
    """Adds less noise for one value of a setting."""

    Params = _SettingParams

    @abstractmethod
    def is_broken(self, params: Any) -> bool:
        """Whether these parameters weaken the noise."""

    def draw(self, params: Any, table: Table, answer: Any, source: Source) -> Result:
        stronger = params.epsilon * (4 if self.is_broken(params) else 1)
        return super().draw(params.model_copy(update={"epsilon": stronger}), table, answer, source)


class BrokenLiteral(_Setting):
    """Less noise for one of a parameter's texts."""

    def is_broken(self, params: Any) -> bool:
        return bool(params.mode == "fast")


class BrokenFlag(_Setting):
    """Less noise where a flag is set."""

    def is_broken(self, params: Any) -> bool:
        return bool(params.exact_grid)


class BrokenEnum(_Setting):
    """Less noise for one member of an enumeration."""

    def is_broken(self, params: Any) -> bool:
        return params.speed is Speed.QUICK


class SoundSettings(_Setting):
    """The same settings, which change nothing. Sound."""

    def is_broken(self, params: Any) -> bool:
        return False


class ScaleCap(SoundSum):
    """Noise of a scale of at most 60: too little for a small epsilon."""

    cap: int = 60

    def draw(self, params: SumParams, table: Table, answer: Any, source: Source) -> Result:
        scale = min(Fraction(self.reach(params, table)) / params.epsilon, Fraction(self.cap))
        noisy = add_laplace(answer.sums[params.column], scale, source)
        return Result(tuple(Row(k, "sum", int(x)) for k, x in zip(answer.keys, noisy, strict=True)))


class ScaleCapOf500(ScaleCap):
    """The same at 500."""

    cap = 500


class ScaleFloorInEpsilon(Count):
    """Takes epsilons below 1/10 for 1/10: "smaller ones are useless"."""

    def draw(self, params: Any, table: Table, answer: Any, source: Source) -> Result:
        larger = max(params.epsilon, Fraction(1, 10))
        return super().draw(params.model_copy(update={"epsilon": larger}), table, answer, source)


class NoNoiseAtLargeEpsilon(Count):
    """Draws no noise from epsilon 20 on."""

    def draw(self, params: Any, table: Table, answer: Any, source: Source) -> Result:
        if params.epsilon >= 20:
            rows = zip(answer.keys, answer.rows, strict=True)
            return Result(tuple(Row(key, "count", int(n)) for key, n in rows))
        return super().draw(params, table, answer, source)


class DeltaForOneKey(PrivateHistogram):
    """Takes delta for one key, where a unit may show several."""

    def _selection_rule(self, params: Any, table: Table) -> SelectionRule:
        rule = super()._selection_rule(params, table)
        groups = table.bounds_for(params.by).groups
        generous = params.delta * groups * (2 if table.neighbours == "replace" else 1)
        wide = SelectionRule.lowest_threshold(
            table.sensitivity(self.data_request(params, table)),
            params.of,
            params.epsilon,
            min(generous, Fraction(1, 2)),
            None if params.noise == "auto" else params.noise,
        )
        return replace(wide, event=rule.event)
