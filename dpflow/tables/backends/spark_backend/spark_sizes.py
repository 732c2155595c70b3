"""What Spark is asked for the numbers of rows and groups that units have."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpflow.core.contract.requests import SizeCounts, UnitSizes
from dpflow.tables.access.isolated_database import as_int64
from dpflow.tables.backends.spark_backend.spark_queries import SparkQuery, check_query


def check_sizes(reading: SparkQuery, request: UnitSizes) -> None:
    """Refuse columns that have no keys."""
    for name in request.groupings:
        check_query(reading, _unit_groups(reading, name))


def answer_sizes(reading: SparkQuery, request: UnitSizes) -> SizeCounts:
    """Count rows and groups by unit, then units by these numbers."""
    rows = _count_units(reading, reading.select_rows([]))
    groups = [_count_units(reading, _unit_groups(reading, by)) for by in request.groupings]
    return SizeCounts(rows, tuple(groups))


def _unit_groups(reading: SparkQuery, by: str) -> Any:
    """Each unit's groups, each once."""
    rows = reading.select_rows([f"{reading.write_key(by)} AS group_key"])
    return rows.where("group_key IS NOT NULL").distinct()


def _count_units(reading: SparkQuery, rows: Any) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    units = rows.groupBy(*reading.owners).count().selectExpr("`count` AS size")
    arrays = reading.connection.fetch(units.groupBy("size").count())
    sizes = as_int64(arrays["size"])
    order = np.argsort(sizes)
    return sizes[order], as_int64(arrays["count"])[order]
