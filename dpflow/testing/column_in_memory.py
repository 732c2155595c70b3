"""An open column in memory: the reference for `dpflow.tables`, and what enumeration and experiments
draw from.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from dpflow.core.contract.requests import Cells, Grid, OpenColumn


@dataclass(frozen=True)
class ArrayColumn(OpenColumn):
    """Values per group, after any cut, in an order that does not depend on them; ``size`` is the
    number of units.
    """

    groups: tuple[NDArray[np.float64], ...] = field(repr=False)
    size: int = field(repr=False)
    step = Fraction(1)

    @classmethod
    def of(cls, *groups: Iterable[float], units: int | None = None) -> ArrayColumn:
        """One unit a value unless said otherwise; NaN is no value, but its unit counts."""
        arrays = [np.asarray(list(group), dtype=np.float64) for group in groups]
        size = sum(map(len, arrays)) if units is None else units
        return cls(tuple(array[~np.isnan(array)] for array in arrays), size)

    @property
    def rows(self) -> NDArray[np.int64]:  # type: ignore[override]
        """Values in each group."""
        return np.array([len(values) for values in self.groups], dtype=np.int64)

    def units(self) -> int:
        return self.size

    def sample(self, most: int) -> list[NDArray[np.float64]]:
        return [values[:most] for values in self.groups]

    def cells(self, grids: Mapping[int, Grid]) -> dict[int, Cells]:
        found = {}
        for code, grid in grids.items():
            x = np.sort(self.groups[code])[grid.trim :]
            x = keys = x[: max(len(x) - grid.trim, 0)]
            if grid.exponent is not None:
                with np.errstate(over="ignore"):
                    keys = np.floor(x * 2.0**-grid.exponent)
                keys = np.where((keys == 0) & (x < 0), -1.0, keys)
            distinct, counts = np.unique(keys + 0.0, return_counts=True)
            enough = counts >= grid.least
            found[code] = Cells(distinct[enough], counts[enough].astype(np.int64))
        return found

    def written(self, value: float) -> float:
        return value + 0.0
