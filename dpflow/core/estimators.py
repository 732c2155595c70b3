"""Estimators: functions of one holdout group's rows, and nothing else, by name."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

#: One group's rows: a column name to an array of its values.
Rows = Mapping[str, Any]


@dataclass(frozen=True)
class Estimator:
    """A named function of (rows of one group, the candidate's predictor) with a default for failures.

    ``default`` is returned for a group on which the function fails or gives no finite number; a group is never dropped,
    because then their number would depend on the rows.
    """

    name: str
    summary: str
    default: float
    function: Callable[[Rows, Any], float]

    def value(self, rows: Rows, predictor: Any) -> float:
        """The estimate on one group, or the default. Never raises because of a row."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # a warning about one group's rows is a message about them
                value = float(self.function(rows, predictor))
        except Exception:  # noqa: BLE001  any failure may depend on a row, so it is mapped, not shown
            return self.default
        return value if math.isfinite(value) else self.default
