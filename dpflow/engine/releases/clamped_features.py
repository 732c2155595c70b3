"""What is clamped of the numbers that a query makes of each unit's rows, in words."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from fractions import Fraction
from typing import Any

from dpflow.core.accounting.amounts import exact_text
from dpflow.core.contract.declaration import Table
from dpflow.tables.language.aggregate_rendering import is_count
from dpflow.tables.language.conditions import parse_condition
from dpflow.tables.language.expressions import parse_expression
from dpflow.tables.language.grouping import parse_row_expression
from dpflow.tables.language.intervals import bound_expression
from dpflow.tables.language.nodes import Node

_FAR = Fraction(2**62)
_OPEN: Mapping[str, Fraction] = {"lower": -_FAR, "upper": _FAR}


def describe_clamped_features(table: Table, values: Collection[str]) -> str:
    """Of numbers and sums of a unit's rows that are released as values: that none is clamped, where the declaration
    says so, or how to measure how many are; "" where the query itself bounds them.

    Args:
        values: the table's columns with bounds whose values are released.
    """
    if (units := table.unit_rows) is None:
        return ""
    totals = _find_totals(table)
    open_table = _open(table, totals)
    clamped = [
        name for name in sorted(values) if _exceeds(_read_column(table, name), table, open_table)
    ]
    if not clamped:
        return ""
    rows, largest = units.rows, units.rows.max_contributions
    is_repeated = any(join.kind == "unit" for join in rows.joins)
    if largest and largest.rows <= rows.contribution_bounds.rows and not is_repeated:
        return (
            f"of {', '.join(clamped)} nothing is clamped: max_contributions.rows is {largest.rows}"
        )
    ends = [
        f"{name} to {exact_text(column.lower or Fraction(0))}..{exact_text(column.upper or Fraction(0))}"
        for name in clamped
        for column in [table.columns[name]]
    ]
    return (
        f"clamped for each {table.privacy_unit.column}: {', '.join(ends)}; how many are beyond is not measured, and "
        f"COUNT_IF(... > ...) in the same query measures it for a share of its privacy cost"
    )


def describe_clamped_rows(
    table: Table, where: str | None, values: Collection[str], keys: Collection[str]
) -> str:
    """Which numbers of rows are clamped or filled before a unit's sums and means add them up, where a condition,
    a key, an expression or a query by unit reads these; "" elsewhere, as for sums of rows.

    Args:
        where: the condition on the table's rows.
        values, keys: the table's columns that the release names; a value that is a column is released itself.
    """
    read = set() if where is None else parse_condition(where, table).column_names()
    for name in (*values, *keys):
        node = _read_column(table, name)
        read |= node.column_names() if node.op != "column" or name in keys else set()
    if not (added := list(dict.fromkeys(_list_added(table, read)))):
        return ""
    return (
        f"sums and means of each {table.privacy_unit.column}'s rows add up {', '.join(added)}, and what reads them sees that; "
        f"a condition on rows sees the numbers as they are"
    )


def _read_column(table: Table, name: str) -> Node:
    expression = table.columns[name].expression
    return (
        Node("column", ((name,),))
        if expression is None
        else parse_row_expression(expression, table)
    )


def _find_totals(table: Table) -> dict[str, Mapping[str, Fraction]]:
    """Columns of rows by unit whose bounds follow from those of contributions, with the ends that they have without;
    others have values of columns.
    """
    if (units := table.unit_rows) is None:
        return {}
    below = _open(units.rows, _find_totals(units.rows))
    totals: dict[str, Mapping[str, Fraction]] = {}
    for name in units.features:
        node = _strip_filter(parse_expression(name, units.rows))
        if node.op.startswith("count"):
            totals[name] = {"upper": _FAR}
        elif node.op == "sum" or _exceeds(node.args[0], units.rows, below):
            totals[name] = _OPEN
    for name, text in units.keys:
        if _exceeds(parse_row_expression(text, units.rows), units.rows, below):
            totals[name] = _OPEN
    return {name: ends for name, ends in totals.items() if table.columns[name].lower is not None}


def _list_added(table: Table, read: set[str] | None) -> Iterator[str]:
    """Arguments of sums and means that are clamped or filled.

    Args:
        read: of which features; None: of all.
    """
    if (units := table.unit_rows) is None:
        return
    rows = units.rows
    totals = _find_totals(rows)
    known = (
        () if rows.unit_rows or not rows.max_contributions else rows.max_contributions.within_bounds
    )
    declared = [] if rows.unit_rows else [n for n in rows.columns if n not in known]
    opened = _open(rows, totals | dict.fromkeys(declared, _OPEN))
    for name in units.features:
        node = _strip_filter(parse_expression(name, rows))
        if node.op not in ("sum", "avg") or (read is not None and name not in read and not totals):
            continue
        arg = node.args[0]
        column = ".".join(arg.args[0]) if arg.op == "column" else ""
        if column and is_count(rows, column):
            continue
        missing = rows.column(column).missing if column else "skip"
        filled = "" if missing == "skip" else f", {exact_text(missing)} where missing"
        if filled or _exceeds(arg, rows, opened):
            span = bound_expression(arg, rows, set())
            yield f"{arg} clamped to {span.low:.6g}..{span.high:.6g}{filled}"
    yield from _list_added(rows, None)


def _strip_filter(node: Node) -> Node:
    return node.args[0] if node.op == "FILTER" else node


def _open(table: Table, ends: Mapping[str, Mapping[str, Fraction]]) -> Table:
    """A table some of whose columns have other ends, where they have any."""
    changed: dict[str, Any] = {
        name: column.model_copy(update=dict(ends[name]))
        for name, column in table.columns.items()
        if name in ends and column.lower is not None
    }
    return table.model_copy(update={"columns": table.columns | changed})


def _exceeds(node: Node, table: Table, opened: Table) -> bool:
    """Whether an expression can be beyond its bounds where columns can be beyond theirs."""
    widest, known = bound_expression(node, opened, set()), bound_expression(node, table, set())
    return widest.low < known.low or widest.high > known.high
