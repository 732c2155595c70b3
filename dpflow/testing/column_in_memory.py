"""An unbounded column in memory: the reference for `dpflow.tables`, without a database."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from dpflow.core.contract.requests import BinCounts, CellGrid, OpenColumn, PublicSize


@dataclass(frozen=True)
class ArrayColumn(OpenColumn):
    """Values per group after contribution bounding; ``size`` is the number of privacy units.

    The order of the values must not depend on them: `sample` takes the first ones.
    """

    groups: tuple[NDArray[np.float64], ...] = field(repr=False)
    size: int = field(repr=False)
    step = Fraction(1)
    is_whole = False
    public_size: PublicSize | None = None

    @classmethod
    def from_groups(
        cls, *groups: Iterable[float], units: int | None = None, size_is_public: bool = False
    ) -> ArrayColumn:
        """Values of every group; ``units`` defaults to one per value. NaN is no value, but its unit
        counts. ``size_is_public``: as under replace, where every unit has one value.
        """
        arrays = [np.asarray(list(group), dtype=np.float64) for group in groups]
        size = sum(map(len, arrays)) if units is None else units
        public = PublicSize(size, True) if size_is_public else None
        return cls(tuple(array[~np.isnan(array)] for array in arrays), size, public)

    @property
    def rows(self) -> NDArray[np.int64]:  # type: ignore[override]
        """Values in each group."""
        return np.array([len(values) for values in self.groups], dtype=np.int64)

    def count_units(self) -> int:
        return self.size

    def sample_values(self, most: int) -> list[NDArray[np.float64]]:
        return [values[:most] for values in self.groups]

    def count_cells(self, grids: Mapping[int, CellGrid]) -> dict[int, BinCounts]:
        cells_by_group = {}
        for code, grid in grids.items():
            # Trimmed before cells are counted, as in the database.
            x = np.sort(self.groups[code])[grid.trim :]
            x = keys = x[: max(len(x) - grid.trim, 0)]
            if grid.exponent is not None:
                with np.errstate(over="ignore"):
                    # an infinite quotient is a cell of its own, as in the database
                    keys = np.floor(x * 2.0**-grid.exponent)
                # a tiny negative value over a wide cell underflows to -0, and belongs to cell -1
                keys = np.where((keys == 0) & (x < 0), -1.0, keys)
            # -0.0 + 0.0 is 0.0: one cell has one key.
            distinct, counts = np.unique(keys + 0.0, return_counts=True)
            enough = counts >= grid.least
            cells_by_group[code] = BinCounts(distinct[enough], counts[enough].astype(np.int64))
        return cells_by_group

    def column_value(self, value: float | Fraction) -> float:
        return float(value) + 0.0
