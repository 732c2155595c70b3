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
from dpflow.testing.corpus.broken_sensitivities import SoundSum, SumParams


class _Suppressing(Count):
    """Hides what is computed from few rows or units, by the exact number: an office's rule."""

    least: int
    of = "rows"

    def draw(self, params: Any, table: Table, answer: Any, source: Source) -> Result:
        result = super().draw(params, table, answer, source)
        exact = answer.moment(self.of, "")
        rows = zip(result.rows, exact, strict=True)
        return Result(
            tuple(replace(row, value=None) if number < self.least else row for row, number in rows)
        )


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


class SoundSuppression(Count):
    """Hides noisy numbers below ten. Sound: a function of the noisy result."""

    def draw(self, params: Any, table: Table, answer: Any, source: Source) -> Result:
        result = super().draw(params, table, answer, source)
        return Result(
            tuple(
                replace(row, value=None) if isinstance(row.value, int) and row.value < 10 else row
                for row in result.rows
            )
        )


class _ExactFrom(Count):
    """Exact from so many rows on, where "nobody can be found among so many"."""

    enough: int

    def draw(self, params: Any, table: Table, answer: Any, source: Source) -> Result:
        result = super().draw(params, table, answer, source)
        return Result(
            tuple(
                replace(row, value=int(n)) if n >= self.enough else row
                for row, n in zip(result.rows, answer.rows, strict=True)
            )
        )


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


class LessNoiseFrom300(Count):
    """Halves its noise for counts from 300 on."""

    def draw(self, params: Any, table: Table, answer: Any, source: Source) -> Result:
        result = super().draw(params, table, answer, source)
        return Result(
            tuple(
                replace(row, value=int(n) + (int(row.value) - int(n)) // 2)
                if n >= 300 and isinstance(row.value, int)
                else row
                for row, n in zip(result.rows, answer.rows, strict=True)
            )
        )


class WidthByMagnitude(Count):
    """States a half-width by the order of magnitude of the exact count."""

    def draw(self, params: Any, table: Table, answer: Any, source: Source) -> Result:
        result = super().draw(params, table, answer, source)
        return Result(
            tuple(
                replace(row, half_width_95=float(10 ** len(str(int(n)))))
                for row, n in zip(result.rows, answer.rows, strict=True)
            )
        )


class RemarkOnFewRows(Count):
    """Remarks which numbers are of fewer than thirty rows."""

    def draw(self, params: Any, table: Table, answer: Any, source: Source) -> Result:
        result = super().draw(params, table, answer, source)
        return Result(
            tuple(
                replace(row, remark="few rows") if n < 30 else row
                for row, n in zip(result.rows, answer.rows, strict=True)
            )
        )


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
