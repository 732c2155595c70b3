"""Weighted points: what a sanitizer of one ordered column gives, as answers, as a table, and on the
way back from one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpflow.core.contract.columns import Column
from dpflow.core.contract.declaration import Table
from dpflow.core.contract.results import Synthetic
from dpflow.errors import PlanRefused

_TAKEN = ("release_id", "block", "weight", "label")


@dataclass(frozen=True)
class Synopsis:
    """Ascending positions with whole, nonnegative weights: a synthetic column of sum(weights)
    rows.

    It was drawn privately: whatever is computed from it is free.
    """

    points: tuple[int, ...]
    weights: tuple[int, ...]

    @classmethod
    def of(cls, weights: dict[int, int]) -> Synopsis:
        """Points with a weight above 0, in order."""
        positive = sorted((point, weight) for point, weight in weights.items() if weight > 0)
        return cls(tuple(point for point, _ in positive), tuple(weight for _, weight in positive))

    @property
    def size(self) -> int:
        """Rows of the synthetic column."""
        return sum(self.weights)

    def share_below(self, positions: Sequence[int] | NDArray[Any]) -> NDArray[np.float64]:
        """The share of rows below each position; 0 for an empty column."""
        points, sums = (
            np.array(self.points, dtype=object),
            np.concatenate([[0], np.cumsum(self.weights, dtype=float)]),
        )
        # Positions may be beyond 64 bits, so they are compared as Python integers.
        ranks = np.searchsorted(points, np.asarray(positions, dtype=object), side="left")
        return np.asarray(sums[ranks.astype(np.intp)] / max(self.size, 1), float)

    def share_at(self, points: Sequence[int]) -> float:
        """The share of rows at some points: the answer to a point or k-point query."""
        weight = dict(zip(self.points, self.weights))
        return sum(weight.get(point, 0) for point in points) / max(self.size, 1)

    def to_table(self, name: str, column: Column, low: int) -> Synthetic:
        """The synthetic column in its own unit, with a weight for each value."""
        return Synthetic(
            ((name, column.kind), ("weight", "whole")),
            tuple(
                (column.grid_value(low + point), weight)
                for point, weight in zip(self.points, self.weights)
            ),
        )


def check_name(table: Table, name: str) -> None:
    """Refuse a column whose name the synthetic table needs for itself."""
    table.bounded_column(name)
    # The stored table has these columns of its own, and DuckDB ignores case.
    if name.casefold() in _TAKEN:
        raise PlanRefused(
            f"a sanitized table has a column {name!r} of its own; read the column under another name"
        )
