"""What an aggregate is over, as a column that mechanisms know: a declared one, or one computed row by
row, with bounds that follow from the declaration.

A FILTER is part of the column: rows that it leaves out have no value there. So aggregates with
different filters share one scan, one truncation of contributions and one privacy cost.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any

from dpflow.analyst_sql.parse.private_rows import find_column, inline_expressions
from dpflow.analyst_sql.parse.select_query import Kind, SelectQuery, SqlAggregate
from dpflow.core.contract.columns import Column
from dpflow.core.contract.declaration import Table
from dpflow.errors import PlanRefused
from dpflow.tables.language.intervals import bound_expression
from dpflow.tables.language.nodes import COMPARISONS, CONNECTIVES, PART_RANGES, Node

#: Steps of a computed column's grid whose own step nothing says.
STEPS = 10**6
#: The most steps between bounds: doubles, in which expressions are computed, hold each.
MAX_STEPS = 2**52
#: Of what is 1 or 0 in each row. The step is said, so that nobody is warned of a coarse grid.
_FLAG: dict[str, Any] = {
    "lower": Fraction(0),
    "upper": Fraction(1),
    "step": Fraction(1),
    "missing": Fraction(0),
}
_CONDITIONS = {
    *COMPARISONS.values(),
    *CONNECTIVES.values(),
    "NOT",
    "IN",
    "LIKE",
    "IS NULL",
    "regexp_matches",
}
_ONE, _ZERO = (Node("number", (Decimal(number),)) for number in (1, 0))


def declare_value(table: Table, aggregate: SqlAggregate) -> tuple[Table, str]:
    """The declaration with the column that an aggregate is over, and the column's name.

    Raises `PlanRefused` if nothing says its bounds, unless it is a column's quantile.
    """
    condition = aggregate.condition and inline_expressions(aggregate.condition, table)
    if aggregate.kind in ("count", "values"):
        return declare_computed(table, _count_rows(table, aggregate.value, condition))
    value = aggregate.value
    assert value is not None
    if value.op == "column" and condition is None:
        name = ".".join(value.args[0])
        column = table.column(name)
        if column.lower is not None or column.expression is None:
            # A quantile has a method that needs no bounds.
            if aggregate.kind != "quantile":
                table.bounded_column(name)
            return table, name
    node = inline_expressions(_fill_missing(value, table), table)
    return declare_computed(table, node if condition is None else Node("CASE", (condition, node)))


def declare_computed(table: Table, node: Node) -> tuple[Table, str]:
    """The declaration with an expression as a column, whose bounds follow from it alone. Raises
    `PlanRefused`.
    """
    name = str(node)
    grouped = table.columns.get(name)
    if grouped is not None and grouped.lower is not None:
        return table, name
    is_rounded = False
    if node.op == "CASE" and node.args[1:] == (_ONE, _ZERO):
        # 1 where a row counts, else 0; never NULL.
        bounds = _FLAG
    else:
        low, high, step, is_rounded = find_bounds(node, table)
        bounds = {"lower": low, "upper": high, "step": step}
    # What rows are grouped by, too, keeps its keys.
    keys = {} if grouped is None else {"public_keys": grouped.public_keys}
    try:
        column = Column(expression=name, **bounds, **keys)
    except ValueError:
        raise PlanRefused(
            f"{name} lies between {bounds['lower']} and {bounds['upper']}, and 64 bits do not hold that in steps of "
            f"{bounds['step']}; declare narrower bounds or a coarser step"
        ) from None
    if is_rounded:
        column.note_rounding()
    return table.model_copy(update={"columns": {**table.columns, name: column}}), name


def _count_rows(table: Table, value: Node | None, condition: Node | None) -> Node:
    """1 in each row that fulfils a condition and has a value."""
    tests = [] if condition is None else [condition]
    if value is not None:
        present = Node("NOT", (Node("IS NULL", (inline_expressions(value, table),)),))
        tests.append(present)
    return Node("CASE", (tests[0] if len(tests) == 1 else Node("AND", tuple(tests)), _ONE, _ZERO))


def _fill_missing(node: Node, table: Table) -> Node:
    """A declared column with what its declaration says a missing value is; of an expression NULL
    stays NULL.
    """
    column = find_column(node, table)
    if column is None or column.missing == "skip":
        return node
    return Node("coalesce", (node, Node("number", (_decimal(column.missing),))))


def count_values(value: Node, table: Table) -> tuple[Kind, Node | None]:
    """The kind and value of the aggregate that counts what a mean is over: all rows where missing ones count as a number."""
    column = find_column(value, table)
    return ("values", value) if column is None or column.missing == "skip" else ("count", None)


def describe_missing(queries: Sequence[SelectQuery]) -> list[str]:
    """What to say of columns whose missing values one statistic counts as a number, and another leaves out."""
    filled, left_out = dict[str, Fraction](), set[str]()
    for query in queries:
        for aggregate in query.aggregates:
            value = aggregate.value
            if value is None:
                continue
            if aggregate.kind == "values" or value.op != "column":
                left_out |= value.column_names()
            elif aggregate.kind in ("sum", "mean", "variance"):
                name = ".".join(value.args[0])
                missing = query.table.column(name).missing
                if missing != "skip":
                    filled[name] = missing
    return [
        f"sums and means of {name} count a missing one as {missing}, and counts and expressions leave it out: AVG({name}) is not "
        f"SUM({name}) / COUNT({name}), but SUM({name}) / COUNT(*)"
        for name, missing in sorted(filled.items())
        if name in left_out
    ]


def _decimal(value: Fraction) -> Decimal:
    exact = Decimal(value.numerator) / Decimal(value.denominator)
    return exact.normalize() if exact else Decimal(0)


def find_bounds(node: Node, table: Table) -> tuple[Fraction, Fraction, Fraction, bool]:
    """Bounds and step of an expression, by interval arithmetic over declared bounds; and whether its
    values may lie between the steps.
    """
    used = [table.column(name) for name in sorted(node.column_names())]
    if not used:
        raise PlanRefused("it is of a constant; write the constant times COUNT(*)")
    if any(table.column(name).holds_dates for name in _list_values(node, table)):
        raise PlanRefused(
            "a date is ranked as it is only; take out FILTER and arithmetic, or put the condition into WHERE"
        )
    bounds = bound_expression(node, table, set())
    if not (math.isfinite(bounds.low) and math.isfinite(bounds.high)):
        open_ends = [
            name for name in sorted(node.column_names()) if table.column(name).lower is None
        ]
        columns = ", ".join(open_ends) or "its columns"
        raise PlanRefused(
            f"nothing says between which bounds {str(node)[:80]} lies, and without bounds no sensitivity is known; "
            f"declare lower and upper of {columns}, or clamp it in the query, such as least(greatest({str(node)[:80]}, 0), 100)"
        )
    width = bounds.high - bounds.low
    whole = all(column.step.denominator == 1 and not column.is_rounded for column in used)
    is_rounded = False
    common = _find_step(node, table)
    if common is not None and width <= MAX_STEPS * (common or 1):
        step = common or Fraction(1)
    elif whole and bound_expression(node, table, set(table.columns)).whole:
        step = Fraction(1)
    else:
        is_rounded = True
        step = Fraction(10) ** max(math.floor(math.log10(max(width, 1e-300) / STEPS)), -12)
    low, high = math.floor(Fraction(bounds.low) / step), math.ceil(Fraction(bounds.high) / step)
    return low * step, max(high, low + 1) * step, step, is_rounded


def _list_values(node: Node, table: Table) -> set[str]:
    """The columns whose values go into that of an expression: not those of conditions, date parts and
    differences of dates.
    """
    if node.op == "column":
        return node.column_names()
    if node.op in (*PART_RANGES, *_CONDITIONS, "date_diff"):
        return set()
    if node.op == "-" and len(node.args) == 2 and all(one.op == "column" for one in node.args):
        names = {name: table.column(name).holds_dates for name in node.column_names()}
        return set() if all(names.values()) else set(names)
    values = node.args
    if node.op == "CASE":
        values = (*node.args[1::2], *node.args[len(node.args) // 2 * 2 :])
    return {
        name for value in values if isinstance(value, Node) for name in _list_values(value, table)
    }


def _find_step(node: Node, table: Table) -> Fraction | None:
    """The step of a grid that holds an expression's values where its columns are on theirs: the largest that
    divides all steps and numbers. None where its form does not say one, or where values of a column lie between
    its steps; 0 where each value is 0.
    """
    if (column := find_column(node, table)) is not None:
        return None if column.is_rounded else column.step
    if node.op == "number":
        number = abs(Fraction(node.args[0]))
        return number if number.denominator == 1 else None
    values = node.args
    if node.op == "*" and (factor := next((one for one in values if one.op == "number"), None)):
        of_other = _find_step(values[1 - values.index(factor)], table)
        return None if of_other is None else of_other * abs(Fraction(factor.args[0]))
    if node.op == "CASE":
        values = (*node.args[1::2], *node.args[len(node.args) // 2 * 2 :])
    elif node.op not in ("+", "-", "abs", "least", "greatest", "coalesce"):
        return None
    common = Fraction(0)
    for value in values:
        step = _find_step(value, table)
        if step is None:
            return None
        denominator = math.lcm(common.denominator, step.denominator)
        whole = math.gcd(int(common * denominator), int(step * denominator))
        common = Fraction(whole, denominator)
    return common
