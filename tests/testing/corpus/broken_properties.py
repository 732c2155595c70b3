"""Mechanisms that are wrong where a declaration says something that their parameters do not name, or where a table is
large; beside them sound ones that differ at the same places.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np

from dpflow.core.accounting.amounts import Epsilon
from dpflow.core.accounting.events import DiscreteLaplace, Event
from dpflow.core.contract.declaration import Table
from dpflow.core.contract.mechanism import Mechanism, Params
from dpflow.core.contract.requests import GroupedSums
from dpflow.core.contract.results import Result, Row
from dpflow.core.sampling.noisy_values import add_laplace
from dpflow.core.sampling.randomness import Source
from dpflow.core.toolbox.noise import Noise, laplace_noise


class RowsParams(Params):
    """``epsilon``: the privacy cost. ``unit``: of the number that is shown."""

    epsilon: Epsilon
    unit: int = 1


class SoundRows(Mechanism[RowsParams]):
    """The number of rows. Sound."""

    name = "all_rows"
    summary = "number of rows"
    citation = "Dwork, McSherry, Nissim, Smith 2006"

    def data_request(self, params: RowsParams, table: Table) -> GroupedSums:
        """Rows after contribution bounding."""
        return GroupedSums(rows_per_group=table.contribution_bounds.rows)

    def noise(self, params: RowsParams, table: Table) -> Noise:
        """Fitted to what the request says."""
        return laplace_noise(
            table.sensitivity(self.data_request(params, table)).rows, params.epsilon
        )

    def event(self, params: RowsParams, table: Table) -> Event:
        """That of the noise."""
        return self.noise(params, table).event

    def statistic(self, answer: Any) -> Any:
        """What gets noise."""
        return answer.rows

    def draw(self, params: RowsParams, table: Table, answer: Any, source: Source) -> Result:
        """One number."""
        noisy = self.noise(params, table).add_noise(self.statistic(answer), source)
        return Result((Row("", "count", int(noisy[0])),))


class RoundsAsFloats(SoundRows):
    """Counts in single precision, which rounds above 2^24 rows."""

    def statistic(self, answer: Any) -> Any:
        return np.asarray(answer.rows, np.float32).astype(np.int64)


class CountsExactly(SoundRows):
    """Counts in Python's integers. Sound."""

    def statistic(self, answer: Any) -> Any:
        return np.array([int(rows) for rows in answer.rows])


class _ExactSometimes(SoundRows):
    """Exact where something holds."""

    def is_exact(self, params: RowsParams, table: Table, rows: int) -> bool:
        """Whether it does."""
        return False

    def draw(self, params: RowsParams, table: Table, answer: Any, source: Source) -> Result:
        result = super().draw(params, table, answer, source)
        rows = int(answer.rows[0])
        if not self.is_exact(params, table, rows):
            return result
        return Result((replace(result.rows[0], value=rows),))


class ExactFromMillions(_ExactSometimes):
    """Exact from three million rows on, a number that the code names."""

    def is_exact(self, params: RowsParams, table: Table, rows: int) -> bool:
        return rows >= 3_000_000


class ExactFromManyBits(_ExactSometimes):
    """Exact where the number of rows has more than thirty binary digits."""

    def is_exact(self, params: RowsParams, table: Table, rows: int) -> bool:
        return rows.bit_length() > 30


class ExactWithoutColumns(_ExactSometimes):
    """Exact where no column is declared."""

    def is_exact(self, params: RowsParams, table: Table, rows: int) -> bool:
        return not table.columns


class ExactWithoutUnit(_ExactSometimes):
    """Exact where the unit's column is not among those declared."""

    def is_exact(self, params: RowsParams, table: Table, rows: int) -> bool:
        return table.privacy_unit.column not in table.columns


class ExactForManyColumns(_ExactSometimes):
    """Exact where more than fifteen columns are declared."""

    def is_exact(self, params: RowsParams, table: Table, rows: int) -> bool:
        return len(table.columns) > 15


class ExactWithDates(_ExactSometimes):
    """Exact where some column has dates."""

    def is_exact(self, params: RowsParams, table: Table, rows: int) -> bool:
        return any(column.holds_dates for column in table.columns.values())


class ExactWithExpression(_ExactSometimes):
    """Exact where some column is computed."""

    def is_exact(self, params: RowsParams, table: Table, rows: int) -> bool:
        return any(column.expression is not None for column in table.columns.values())


class ExactIfWritten(_ExactSometimes):
    """Exact where a default is written out."""

    def is_exact(self, params: RowsParams, table: Table, rows: int) -> bool:
        return params.unit == 1 and "unit" in params.model_fields_set


class ExactIfCertified(_ExactSometimes):
    """Exact where the declaration asks for certificates."""

    def is_exact(self, params: RowsParams, table: Table, rows: int) -> bool:
        return table.require_certified is not None


class ExactWithoutGroups(_ExactSometimes):
    """Exact where contribution bounds say nothing of groups."""

    def is_exact(self, params: RowsParams, table: Table, rows: int) -> bool:
        return table.contribution_bounds.groups is None


class ExactIfLeftOut(_ExactSometimes):
    """Exact where the declaration leaves the relation of neighbours out."""

    def is_exact(self, params: RowsParams, table: Table, rows: int) -> bool:
        return "neighbours" not in table.model_fields_set


class ExactIfColumnsAreWritten(_ExactSometimes):
    """Exact where a column's step is written though it is 1."""

    def is_exact(self, params: RowsParams, table: Table, rows: int) -> bool:
        return any("step" in c.model_fields_set and c.step == 1 for c in table.columns.values())


class ExactForFeatures(_ExactSometimes):
    """Exact where each unit's rows are made one of several aggregates."""

    def is_exact(self, params: RowsParams, table: Table, rows: int) -> bool:
        return table.unit_rows is not None and len(table.unit_rows.features) > 1


class SumsAllColumns(Mechanism[RowsParams]):
    """Sums of all bounded columns, with noise for all. Sound."""

    name = "all_sums"
    summary = "sums of all columns"
    citation = "Dwork, McSherry, Nissim, Smith 2006"
    most: int | None = None

    def columns(self, table: Table) -> list[str]:
        """Those with bounds, as far as noise for all of them can be drawn."""
        bounded = {n: c.grid_bounds() for n, c in table.columns.items() if c.lower is not None}
        return [name for name, bounds in bounded.items() if max(map(abs, bounds)) <= 10**6]

    def data_request(self, params: RowsParams, table: Table) -> GroupedSums:
        """One sum of each."""
        values = tuple((name, 0) for name in self.columns(table))
        return GroupedSums(values=values, rows_per_group=table.contribution_bounds.rows)

    def event(self, params: RowsParams, table: Table) -> Event:
        """Of Laplace noise."""
        moved = table.sensitivity(self.data_request(params, table))
        moves = sorted(moved.sum(name).l1 for name in self.columns(table))
        total = max(1, sum(moves[-self.most :] if self.most else moves))
        return DiscreteLaplace(Fraction(total) / params.epsilon, total)

    def draw(self, params: RowsParams, table: Table, answer: Any, source: Source) -> Result:
        """A row for each."""
        scale = self.event(params, table).scale  # type: ignore[attr-defined]
        noisy = [(n, add_laplace(answer.sums[n], scale, source)) for n in self.columns(table)]
        return Result(tuple(Row("", f"sum {n}", int(x[0])) for n, x in noisy))


class SumsTwoColumns(SumsAllColumns):
    """Sums of all bounded columns, with noise for the two largest."""

    most = 2


class NoisierBySaying(SoundRows):
    """Twice the noise where any of these holds that others are wrong at. Sound."""

    def noise(self, params: RowsParams, table: Table) -> Noise:
        """Fitted to twice what the request says there."""
        moved = table.sensitivity(self.data_request(params, table)).rows
        is_special = (
            len(table.columns) in (0, *range(16, 1000))
            or table.privacy_unit.column not in table.columns
            or table.require_certified is not None
            or table.contribution_bounds.groups is None
            or any(c.holds_dates or c.expression for c in table.columns.values())
        )
        return laplace_noise(moved * 2 if is_special else moved, params.epsilon)
