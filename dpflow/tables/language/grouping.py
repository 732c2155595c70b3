"""What rows are grouped by: a list of columns and row expressions, as SQL's GROUP BY has it.

Each expression becomes a column of the declaration, and several become one whose key is all of their
keys: a JSON list. So every mechanism that groups by a column groups by these. A row's key is a
function of that row (and of public dimensions), and a unit keeps so many combined keys as the table's
contribution bounds say. So sensitivities are those of one column.
"""

from __future__ import annotations

import datetime as dt
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

from dpflow.core.contract.columns import Column
from dpflow.core.contract.declaration import Table
from dpflow.errors import PlanRefused
from dpflow.tables.language.conditions import Reader, keep_parsed
from dpflow.tables.language.group_bounds import counts_null, inherit_bounds
from dpflow.tables.language.nodes import COMPARISONS, MOST_DEPTH, PART_RANGES, Node, refuse_sql

#: Keys that an expression may have by itself; beyond it they are private, or declared.
MOST_KEYS = 100_000


def declare_groups(table: Table, by: str) -> tuple[Table, str]:
    """The declaration with what a text groups by as a column, and that column's name.

    Raises `PlanRefused` where the text is not a list of row expressions, `UnknownName` for a column
    that the declaration does not have.
    """
    if by in table.columns:
        return _inherit_bounds(table, [by], {}), by
    nodes = parse_groups(by, table)
    columns = dict(table.columns)
    names = []
    for node in nodes:
        name = ".".join(node.args[0]) if node.op == "column" else str(node)
        if name not in columns:
            columns[name] = Column(expression=name, public_keys=list_keys(node, table))
        names.append(name)
    if len(set(names)) < len(names):
        refuse_sql("one grouping", "an expression stands in the grouping twice")
    name = ", ".join(names)
    if len(names) > 1:
        columns[name] = Column(parts=tuple(names))
    table = table.model_copy(update={"columns": columns})
    known = dict(zip(names, nodes, strict=True))
    return _inherit_bounds(table, list(dict.fromkeys([*names, name])), known), name


def _inherit_bounds(table: Table, names: Sequence[str], nodes: Mapping[str, Node]) -> Table:
    """The declaration with inherited contribution bounds of these columns."""
    nodes = {name: node for name, node in nodes.items() if node.op != "column"}
    parts = [part for name in names for part in table.column(name).parts or ()]
    for name in (*names, *parts):
        expression = table.column(name).expression
        if name not in nodes and expression is not None:
            nodes[name] = parse_row_expression(expression, table)
    for name in names:
        table = inherit_bounds(table, name, nodes)
    return table


def declare_columns(table: Table, columns: Mapping[str, Column]) -> Table:
    """The declaration with further columns, each computed by an expression over a row, or several of them
    together.

    Raises `PlanRefused` where one has a declared column's name, an expression outside of the language, or a count of
    rows without a unit; `UnknownName` for a column in it that nobody declared.
    """
    if not columns:
        return table
    declared = {name.casefold() for name in table.columns}
    added = {}
    for name, column in columns.items():
        if name.casefold() in declared:
            raise PlanRefused(
                f"table {table.name!r} declares a column {name!r}, which a check would compute; give the check another name"
            )
        if column.parts is not None:
            added[name] = column
            continue
        try:
            node = parse_row_expression(column.expression or "", table)
        except PlanRefused as error:
            raise PlanRefused(
                f"{name} cannot be computed, for its condition is outside of the language: {error}"
            ) from None
        unit = table.privacy_unit
        if counts_null(node, unit.column):
            fate = "dropped" if unit.missing == "drop" else "cut to the bounds of one unit"
            raise PlanRefused(
                f"{name} asks which rows have no {unit.column}, and rows without a unit are {fate} before anything is "
                "counted: it would always say the same; count them where the table is loaded, or in mode trusted"
            )
        added[name] = column.model_copy(update={"expression": str(node)})
    return table.model_copy(update={"columns": {**table.columns, **added}})


@keep_parsed
def parse_groups(text: str, table: Table) -> tuple[Node, ...]:
    """The expressions of a grouping."""
    return tuple(_ListReader(text, table).read_list())


def parse_row_expressions(text: str, table: Table) -> tuple[Node, ...]:
    """A list of expressions over a row's stored columns."""
    stored = {
        name: column
        for name, column in table.columns.items()
        if column.expression is None and column.parts is None
    }
    return parse_groups(text, table.model_copy(update={"columns": stored}))


def parse_row_expression(text: str, table: Table) -> Node:
    """One expression over a row's stored columns."""
    nodes = parse_row_expressions(text, table)
    if len(nodes) != 1:
        refuse_sql("one expression", "a column is one expression over the columns of a row")
    return nodes[0]


class _ListReader(Reader):
    """Reads a list of row expressions."""

    def read_list(self) -> list[Node]:
        """The expressions, at least one."""
        listed = self.parse_list()
        if not listed:
            refuse_sql(
                "one grouping",
                "it is no list of columns and expressions; write what stands after GROUP BY",
            )
        return [self._read_node(one, MOST_DEPTH) for one in listed]


def list_keys(node: Node, table: Table) -> tuple[str, ...] | None:
    """All keys that an expression can have by declaration and text alone, ascending; None where
    there are more than `MOST_KEYS`, or the rows decide.
    """
    if node.op in PART_RANGES and node.op != "year":
        low, high = PART_RANGES[node.op]
        return tuple(map(str, range(low, high + 1)))
    if node.op in _TRUTHS:
        return "false", "true"
    if node.op == "CAST" and node.args[1] == "VARCHAR":
        return _list_operand(node.args[0], table)
    if node.op in _OF_TEXTS:
        return _list_texts(node, table)
    inner = node.args[-1] if node.op == "date_trunc" else node.args[0] if node.args else None
    if isinstance(inner, Node) and inner.op == "column":
        column = table.column(".".join(inner.args[0]))
        if column.lower is not None and column.upper is not None:
            return _list_bins(node, int(column.lower // 1), int(-(-column.upper // 1)))
    return None


def _list_texts(node: Node, table: Table) -> tuple[str, ...] | None:
    """The keys of a text that is made of others, each of which has known keys."""
    values = [arg for arg in node.args if isinstance(arg, Node)]
    if node.op == "CASE":
        values = [*node.args[1::2], *node.args[len(node.args) // 2 * 2 :]]
    if node.op == "substring":
        values = values[:1]
    lists = [_list_operand(value, table) for value in values]
    known = [keys for keys in lists if keys is not None]
    if len(known) < len(lists) or math.prod(map(len, known)) > MOST_KEYS:
        return None
    if node.op == "substring":
        first, length = (int(arg.args[0]) for arg in node.args[1:])
        known = [tuple(key[first - 1 : first - 1 + length] for key in known[0])]
    if node.op == "||":
        known = [tuple(map("".join, itertools.product(*known)))]
    return tuple(sorted({key for keys in known for key in keys}))


def _list_operand(value: Node, table: Table) -> tuple[str, ...] | None:
    if value.op == "text":
        return (str(value.args[0]),)
    if value.op == "column":
        return table.column(".".join(value.args[0])).public_keys
    return list_keys(value, table)


#: Operators that give one of their operands' texts, or a text made of them.
_OF_TEXTS = ("CASE", "coalesce", "substring", "||")
_TRUTHS = {
    *COMPARISONS.values(),
    *("AND", "OR", "NOT", "IS NULL", "IN", "LIKE", "regexp_matches"),
}


def _list_bins(node: Node, low: int, high: int) -> tuple[str, ...] | None:
    """The bins, or the starts of months and the like, of a column between two whole numbers."""
    if node.op == "bucket":
        width = int(node.args[1].args[0])
        count = high // width - low // width + 1
        if count > MOST_KEYS:
            return None
        return tuple(str(number * width) for number in range(low // width, high // width + 1))
    first, last = dt.date(1, 1, 1).toordinal(), dt.date(9999, 12, 31).toordinal()
    epoch = dt.date(1970, 1, 1).toordinal()
    days = range(max(low + epoch, first), min(high + epoch, last) + 1)
    if node.op == "year" and len(days):
        ends = (dt.date.fromordinal(day).year for day in (days[0], days[-1]))
        return tuple(map(str, range(next(ends), next(ends) + 1)))
    unit = node.args[0].args[0] if node.op == "date_trunc" else ""
    if unit not in PERIOD_STARTS or len(days) > MOST_KEYS:
        return None
    starts = {PERIOD_STARTS[unit](dt.date.fromordinal(day)) for day in days}
    return tuple(str(start) for start in sorted(starts))


#: The first day of the period of a day.
PERIOD_STARTS: dict[str, Any] = {
    "year": lambda day: day.replace(month=1, day=1),
    "quarter": lambda day: day.replace(month=(day.month - 1) // 3 * 3 + 1, day=1),
    "month": lambda day: day.replace(day=1),
    "week": lambda day: day - dt.timedelta(days=day.weekday()),
    "day": lambda day: day,
}
