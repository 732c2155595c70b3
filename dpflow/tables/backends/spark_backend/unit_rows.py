"""Rows by privacy unit on Spark: a relation that gives each unit what its own rows together say, and no row of
another's.

The features are those of DuckDB (`dpflow.tables.language.aggregate_rendering`), on the same grids: a unit's row
does not hang on the order of its rows, nor on where the cluster adds them up.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dpflow.core.contract.columns import Column
from dpflow.core.contract.declaration import UnitRows
from dpflow.tables.access.arithmetic import SPARK
from dpflow.tables.access.sql import Field
from dpflow.tables.backends.spark_backend.spark_columns import (
    INTEGERS,
    quote_name,
    round_double,
    write_bounded_number,
)
from dpflow.tables.backends.spark_backend.spark_rendering import (
    SparkRenderer,
    describe_computed_field,
)
from dpflow.tables.language.aggregate_rendering import (
    GroupRenderer,
    RowRenderer,
    render_features,
)
from dpflow.tables.language.expressions import parse_expression
from dpflow.tables.language.grouping import parse_groups
from dpflow.tables.language.rendering import Term


class _SparkRows(RowRenderer, SparkRenderer):
    """Row expressions on Spark."""

    def bounded_number(self, field: Field, declared: Column) -> str:
        return write_bounded_number(field, declared)


class _SparkGroups(GroupRenderer, SparkRenderer):
    """Expressions of a unit's rows on Spark."""

    arithmetic = SPARK

    def pick_last(self, function: str, parts: Sequence[str]) -> str:
        named = (text for i, part in enumerate(parts) for text in (f"'p{i}'", part))
        row = self._aggregate(function, self.write.call("named_struct", *named))
        return f"({row}).p{len(parts) - 1}"

    def round_double(self, value: str) -> str:
        return str(round_double(value))


def make_unit_rows(units: UnitRows, reading: Any) -> tuple[Any, dict[str, Field]]:
    """The relation, and its columns. Only describes the query.

    Args:
        reading: the `SparkQuery` of the rows below.

    Raises `PlanRefused` where types do not fit, or a sum has no bounds.
    """
    table = units.rows
    keys = {
        name: SparkRenderer(reading.column).write_term(parse_groups(text, table)[0])
        for name, text in units.keys
    }
    outputs, features = render_features(
        [parse_expression(text, table) for text in units.features],
        _SparkGroups(_SparkRows(table, reading.column, clamps=False)),
    )
    rows = reading.select_rows(
        [
            *(f"{text} AS r{n}" for n, text in enumerate(outputs)),
            *(f"{term.sql} AS k{n}" for n, term in enumerate(keys.values())),
        ]
    )
    names = ["unit", *(f"k{n}" for n in range(len(keys)))]

    def group(_: Any) -> Any:
        from pyspark.sql.connect.functions import expr

        if not features:
            return rows.select(*names).distinct()
        aggregates = (expr(term.sql).alias(f"f{n}") for n, term in enumerate(features))
        return rows.groupBy(*names).agg(*aggregates)

    stored = {
        **{name: (f"k{n}", term) for n, (name, term) in enumerate(keys.items())},
        **{name: (f"f{n}", term) for n, (name, term) in enumerate(zip(units.features, features))},
    }
    unit = reading.own_column(table.privacy_unit.column)
    kind = ("bigint", "bigint") if unit.kind in INTEGERS else ("varchar", "string")
    fields = {
        name: describe_computed_field(name, Term(quote_name(place), term.family))
        for name, (place, term) in stored.items()
    }
    fields[unit.name] = Field(unit.name, *kind, reference=quote_name("unit"))
    return reading.connection.run(group), fields
