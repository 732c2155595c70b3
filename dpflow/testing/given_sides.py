"""Two neighbouring tables that an example brings: where its mechanism's guarantee is tight.

Standard neighbours show a wrong scale. What a choice loses, or a threshold, depends on what all
other units have; its author knows where that is most.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpflow.core.contract.declaration import Table
from dpflow.core.contract.requests import (
    Answer,
    DataRequest,
    GroupValues,
    PerGroup,
    PerUnit,
    UnitScores,
)
from dpflow.testing.neighbours import SmallTable, UnitRows, index_keys, reference_answer


@dataclass(frozen=True)
class Sides:
    """Neighbouring tables, as rows or, for estimators, as the numbers of the holdout groups.

    Attributes:
        tables: units with their rows, values in grid steps.
        values: a number for each group.
        swapped: the requests whose values are exchanged, by their columns: a unit that is good for
            one estimator may be bad for another.
    """

    tables: tuple[SmallTable, SmallTable] = ((), ())
    values: tuple[tuple[float, ...], tuple[float, ...]] | None = None
    swapped: tuple[tuple[str, ...], ...] = ()

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Sides:
        """As `dpflow.hookspecs.dpflow_register_examples` has it.

        ``shared`` lists units with their number, each of one row; ``left`` and ``right`` are the
        rows of the unit in which both tables differ, none where it is absent. Or ``values`` has two
        lists of numbers.
        """
        if "values" in raw:
            first, second = (tuple(map(float, side)) for side in raw["values"])
            return cls(values=(first, second), swapped=tuple(map(tuple, raw.get("swapped", ()))))
        shared: list[UnitRows] = [
            (row,) for number, row in raw.get("shared", ()) for _ in range(number)
        ]
        left, right = (
            (*shared, tuple(raw[side])) if raw[side] else tuple(shared)
            for side in ("left", "right")
        )
        return cls((left, right))

    def answer_request(self, request: DataRequest, table: Table, side: int) -> Answer:
        """The exact answer on one of the two tables."""
        if isinstance(request, GroupValues):
            assert self.values is not None
            swap = request.columns in self.swapped
            return PerGroup(np.array(self.values[side ^ swap], float))
        if isinstance(request, UnitScores):
            assert self.values is not None
            swap = request.columns in self.swapped
            return PerUnit(np.array(self.values[side ^ swap], float))
        return reference_answer(request, index_keys(request, table, self.tables[side]))
