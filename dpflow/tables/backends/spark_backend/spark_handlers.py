"""Which module answers which kind of request on Spark."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from dpflow.core.contract.requests import (
    GroupedSums,
    GroupEstimates,
    GroupMoments,
    GroupValues,
    KeySets,
    Records,
    SortedValues,
    UnboundedValues,
    UnitScores,
    UnitSizes,
)
from dpflow.errors import PlanRefused
from dpflow.tables.backends.spark_backend import (
    open_values,
    spark_groups,
    spark_queries,
    spark_sizes,
)
from dpflow.tables.backends.spark_backend.spark_queries import SparkQuery


@dataclass(frozen=True)
class SparkHandler:
    """What refuses requests of one class by the catalogue alone, what answers them, and what opens an
    answer that is asked in rounds.
    """

    check: Callable[[SparkQuery, Any], None]
    answer: Callable[[SparkQuery, Any], Any] | None = None
    open: Callable[[SparkQuery, Any, Any], AbstractContextManager[Any]] | None = None


HANDLERS: dict[type, SparkHandler] = {
    GroupedSums: SparkHandler(spark_queries.check_sums, spark_queries.answer_sums),
    SortedValues: SparkHandler(spark_queries.check_values, spark_queries.answer_values),
    KeySets: SparkHandler(spark_queries.check_sets, spark_queries.answer_sets),
    UnitSizes: SparkHandler(spark_sizes.check_sizes, spark_sizes.answer_sizes),
    Records: SparkHandler(spark_queries.check_records, spark_queries.answer_records),
    UnboundedValues: SparkHandler(
        open_values.check_values, open_values.keep_values, open_values.open_column
    ),
    # Asked by methods of their own.
    GroupValues: SparkHandler(spark_groups.check_rows),
    UnitScores: SparkHandler(spark_groups.check_rows),
    GroupMoments: SparkHandler(spark_groups.check_moments),
    GroupEstimates: SparkHandler(spark_groups.check_estimates),
}


def find_handler(request: Any) -> SparkHandler:
    """The handler of a request's class; `PlanRefused` by its name where there is none."""
    handler = HANDLERS.get(type(request))
    if handler is None:
        raise PlanRefused(
            f"the backend spark does not have requests of the kind {type(request).__name__}, so nothing is charged; declare a "
            f"table over a DuckDB file or Parquet files for it"
        )
    return handler
