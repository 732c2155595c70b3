"""Rows by privacy unit: a query that gives each unit what its own rows together say, and no row of
another's.
"""

from __future__ import annotations

from collections.abc import Callable

from dpflow.core.contract.declaration import UnitRows
from dpflow.tables.access import sql
from dpflow.tables.language.aggregate_rendering import DuckDBGroups, DuckDBRows, render_features
from dpflow.tables.language.expressions import parse_expression
from dpflow.tables.language.grouping import parse_groups
from dpflow.tables.language.rendering import DuckDBRenderer, derived_field


def write_unit_rows(
    units: UnitRows,
    unit: sql.Field,
    column: Callable[[str], sql.Field],
    select_rows: Callable[[list[str]], str],
) -> tuple[str, dict[str, sql.Field]]:
    """The query as a relation, and its columns.

    Args:
        unit, column: the unit's column of the rows below, and what finds any other.
        select_rows: writes a query of these rows with their unit and some expressions.

    Raises `PlanRefused` where types do not fit, or a sum has no bounds.
    """
    table, unit_name = units.rows, units.rows.privacy_unit.column
    keys = {
        name: DuckDBRenderer(column).write_term(parse_groups(text, table)[0])
        for name, text in units.keys
    }
    outputs, features = render_features(
        [parse_expression(text, table) for text in units.features],
        DuckDBGroups(DuckDBRows(table, column, clamps=False)),
    )
    terms = {**keys, **dict(zip(units.features, features))}
    fields = {name: derived_field(name, term) for name, term in terms.items()}
    values = [f"{fields[name].reference} AS {sql.quote_name(name)}" for name in units.features]
    listed = [f"r{n} AS {sql.quote_name(name)}" for n, name in enumerate(keys, len(outputs))]
    outputs = [*outputs, *(fields[name].reference for name in keys)]
    rows = select_rows([f"{text} AS r{n}" for n, text in enumerate(outputs)])
    grouped = ", ".join(["unit", *(f"r{n}" for n in range(len(outputs) - len(keys), len(outputs)))])
    columns = ", ".join([f"unit AS {sql.quote_name(unit_name)}", *listed, *values])
    # An ENUM's values are compared, and given, as texts.
    text_unit = sql.Field(unit.name, "varchar", "VARCHAR")
    stored = {
        unit.name: text_unit if unit.kind == "enum" else sql.Field(unit.name, unit.kind, unit.type)
    }
    computed = {name: sql.Field(name, one.kind, one.type) for name, one in fields.items()}
    return f"(SELECT {columns} FROM ({rows}) GROUP BY {grouped})", {**stored, **computed}
