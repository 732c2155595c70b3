"""Sound noise with a half-width that it leaves more often than once in twenty results; beside them sound half-widths."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from dpflow.core.accounting.events import DiscreteLaplace
from dpflow.core.contract.declaration import Table
from dpflow.core.contract.results import ErrorBound, Result, Row
from dpflow.core.sampling.randomness import Source
from dpflow.mechanisms.count import Count
from dpflow.mechanisms.histogram import Histogram
from dpflow.mechanisms.mean import Mean
from dpflow.mechanisms.private_histogram import PrivateHistogram
from dpflow.mechanisms.sum import Sum


class _Restated:
    """States another half-width than the sound mechanism beside it, in plan and result alike."""

    def state(self, width: float, params: Any, table: Table, row: Row | None) -> float:
        """The half-width that is stated; ``row`` is the released one, None before anything is spent."""
        raise NotImplementedError

    def error_bound(self, params: Any, table: Table) -> ErrorBound | None:
        bound = super().error_bound(params, table)  # type: ignore[misc]
        if bound is None:
            return None
        widths = bound.half_width.items()
        return ErrorBound({name: self.state(w, params, table, None) for name, w in widths})

    def draw(self, params: Any, table: Table, answer: Any, source: Source) -> Result:
        result: Result = super().draw(params, table, answer, source)  # type: ignore[misc]
        rows = (
            row
            if row.half_width_95 is None
            else replace(row, half_width_95=self.state(row.half_width_95, params, table, row))
            for row in result.rows
        )
        return replace(result, rows=tuple(rows))


def _scale(counting: Count, params: Any, table: Table) -> float | None:
    """Of Laplace noise."""
    event = counting.choose_release(params, table)[0].noises["rows", ""].event
    return float(event.scale) if isinstance(event, DiscreteLaplace) else None


class HalfOfTheWidth(_Restated, Count):
    """Half of the half-width."""

    def state(self, width: float, params: Any, table: Table, row: Row | None) -> float:
        return width / 2


class WidthOfNormalNoise(_Restated, Count):
    """1.96 standard deviations, as if Laplace noise were normal: 93.7 %."""

    def state(self, width: float, params: Any, table: Table, row: Row | None) -> float:
        scale = _scale(self, params, table)
        return width if scale is None else 1.96 * math.sqrt(2) * scale


class WidthOfOneSide(_Restated, Count):
    """The quantile of 95 % of one side: 90 %."""

    def state(self, width: float, params: Any, table: Table, row: Row | None) -> float:
        scale = _scale(self, params, table)
        return width if scale is None else scale * math.log(1 / (2 * 0.05))


class WidthRoundedDown(_Restated, Count):
    """One less than it must be, where it has many steps."""

    def state(self, width: float, params: Any, table: Table, row: Row | None) -> float:
        return max(0.0, width - 1)


class WidthAtLargeEpsilon(_Restated, Count):
    """None where epsilon is above 3: "there is no noise"."""

    def state(self, width: float, params: Any, table: Table, row: Row | None) -> float:
        return 0.0 if 3 < params.epsilon < 5 else width


class WidthOfAddRemove(_Restated, Sum):
    """Half under replace, as if no unit were replaced."""

    def state(self, width: float, params: Any, table: Table, row: Row | None) -> float:
        return width / 2 if table.neighbours == "replace" else width


class WidthInOtherUnits(_Restated, Sum):
    """Counts steps of the column's grid as if each were half as wide as it is, where steps are small."""

    def state(self, width: float, params: Any, table: Table, row: Row | None) -> float:
        return width / 2 if table.column(params.column).step < 1 else width


class WidthOfOneGroup(_Restated, Histogram):
    """As if a unit were in one group, where noise is for all that it may be in."""

    def state(self, width: float, params: Any, table: Table, row: Row | None) -> float:
        return width / table.bounds_for(params.by).groups


class WidthOfShare(_Restated, Count):
    """One percent of the released number."""

    def state(self, width: float, params: Any, table: Table, row: Row | None) -> float:
        return width if row is None or not isinstance(row.value, int) else abs(row.value) / 100


class WidthOfFewKeys(_Restated, Histogram):
    """Three quarters from five keys on."""

    def state(self, width: float, params: Any, table: Table, row: Row | None) -> float:
        return width * 3 / 4 if len(table.column(params.by).public_keys or ()) >= 5 else width


class WidthOfLastKey(_Restated, Histogram):
    """Half for one key."""

    def state(self, width: float, params: Any, table: Table, row: Row | None) -> float:
        return width / 2 if row is not None and row.key == "a" else width


class WidthWhereNoiseIsSmall(_Restated, Count):
    """Too small where the released number is odd."""

    def state(self, width: float, params: Any, table: Table, row: Row | None) -> float:
        is_odd = row is not None and isinstance(row.value, int) and row.value % 2
        return width / 3 if is_odd else width


class WidthOfMean(_Restated, Mean):
    """A fifth of a mean's, in which two noises meet."""

    def state(self, width: float, params: Any, table: Table, row: Row | None) -> float:
        return width / 5


class WidthOfPrivateKeys(_Restated, PrivateHistogram):
    """Two thirds for keys that the rows say."""

    def state(self, width: float, params: Any, table: Table, row: Row | None) -> float:
        return width * 2 / 3


class PromisesLess(Count):
    """The plan promises nine tenths of what the result says."""

    def error_bound(self, params: Any, table: Table) -> ErrorBound:
        bound = super().error_bound(params, table)
        return ErrorBound({name: 0.9 * width for name, width in bound.half_width.items()})


class WidthRoundedUp(_Restated, Count):
    """One more than it must be. Sound."""

    def state(self, width: float, params: Any, table: Table, row: Row | None) -> float:
        return width + 1


class WidthOfTail(_Restated, Count):
    """By the tail of continuous Laplace noise, rounded up. Sound."""

    def state(self, width: float, params: Any, table: Table, row: Row | None) -> float:
        scale = _scale(self, params, table)
        return width if scale is None else float(math.ceil(scale * math.log(1 / 0.05)))


class WiderForLarge(_Restated, Sum):
    """Wider for large numbers. Sound."""

    def state(self, width: float, params: Any, table: Table, row: Row | None) -> float:
        is_large = row is not None and isinstance(row.value, int | float) and abs(row.value) > 9
        return 2 * width if is_large else width


class WiderMean(_Restated, Mean):
    """A mean's half-width and a little. Sound."""

    def state(self, width: float, params: Any, table: Table, row: Row | None) -> float:
        return 1.01 * width


class NoWidth(Count):
    """States none. Sound."""

    def error_bound(self, params: Any, table: Table) -> None:  # type: ignore[override]
        return None

    def draw(self, params: Any, table: Table, answer: Any, source: Source) -> Result:
        result = super().draw(params, table, answer, source)
        return Result(tuple(replace(row, half_width_95=None) for row in result.rows))
