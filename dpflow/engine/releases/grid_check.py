"""Whether values lie on the grids that they are added up on, as the types in a source's catalogue say.

A column's grid has the declared step, and steps of 1 where nobody declared one. Rounding to a declared step is meant.
Without one, a type tells whether a column of few grid points, or an expression over it, holds fractions.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import gcd, lcm

from dpflow.core.accounting.amounts import exact_text
from dpflow.core.contract.columns import Column, default_step
from dpflow.core.contract.declaration import Table
from dpflow.tables.language.expressions import parse_expression
from dpflow.tables.language.grouping import parse_row_expression
from dpflow.tables.language.nodes import Node
from dpflow.tables.private import PrivateTable

#: A value column of fewer grid points is likely one of fractions, rounded to whole numbers.
FEW_POINTS = 50
_FRACTIONS = re.compile(r"DOUBLE|FLOAT|REAL|DECIMAL\(\d+, ?[1-9]\d*\)")
#: Operators whose value is on every grid that holds their operands.
_ON_GRID = ("+", "-", "%", "abs", "least", "greatest", "coalesce")
#: Operators whose value, or each number added up to it, is one of their first operand's.
_OF_FIRST = ("CAST", "FILTER", "sum", "min", "max", "arg_min", "arg_max", "first", "last")


def describe_coarse(column: Column) -> str:
    """A warning that values are rounded to few grid points whose step nobody declared; "" of other columns."""
    return _advise(column) if "step" not in column.model_fields_set and _is_coarse(column) else ""


def _is_coarse(column: Column) -> bool:
    if column.lower is None or column.holds_dates:
        return False
    low, high = column.grid_bounds()
    return high - low + 1 < FEW_POINTS


def _advise(column: Column, source: str = "") -> str:
    low, high = column.grid_bounds()
    assert column.lower is not None and column.upper is not None
    step = exact_text(default_step(column.lower, column.upper))
    return (
        f" ({high - low + 1} grid points, to which values are rounded; declare step: {step}"
        f"{source and ' of ' + source}, or step: 1 for whole numbers)"
    )


def _read_column(name: str, table: Table) -> tuple[Node, bool]:
    """What a column's values are computed by, and whether a query wrote that, so that its step follows from others'."""
    expression, units = table.columns[name].expression, table.unit_rows
    if expression is not None:
        return parse_row_expression(expression, table), name == expression
    is_derived = units is not None and name in (*units.features, *dict(units.keys))
    return Node("column", ((name,),)), is_derived


@dataclass(frozen=True)
class _OpenStep:
    """A stored column of fractions whose step nobody declared."""

    name: str
    column: Column
    kind: str


@dataclass
class GridReader:
    """Finds the grids of expressions, and the columns whose values may lie between their steps. Each type is read once."""

    private: PrivateTable
    _open_steps: list[_OpenStep] = field(default_factory=list)
    _types: dict[tuple[bool, str], str] = field(default_factory=dict)
    _below: PrivateTable | None = None

    def find_rounded(self, name: str, table: Table) -> str:
        """What of a column is rounded to few grid points that nobody declared, by the types of its source; "" where
        nothing is.
        """
        column = table.column(name)
        node, is_derived = _read_column(name, table)
        if column.is_rounded or not (is_derived or describe_coarse(column)):
            return ""
        self._open_steps = []
        grid = self._find_grid(node, table)
        if grid is not None and not grid % column.step:
            return ""
        narrow = [one for one in self._open_steps if _is_coarse(one.column)]
        if not (narrow or _is_coarse(column)) or (is_derived and not self._open_steps):
            return ""
        if not is_derived:
            text = column.expression
            holds = (
                f"holds {self._open_steps[0].kind}" if text is None else f"is {text} with fractions"
            )
            return f"reads column {name}, which {holds}{_advise(column)}"
        source = (narrow or self._open_steps)[0]
        advice = _advise(source.column if narrow else column, source.name)
        if table.backend == "duckdb":
            advice += f"; or compute it of a rounded value, such as round({source.name}, 2)"
        return f"computes {name} of column {source.name}, which holds {source.kind}{advice}"

    def _find_grid(self, node: Node, table: Table) -> Fraction | None:
        """The step of a grid that holds all values of an expression where columns with a declared step are on theirs;
        None where there is none.
        """
        op, values = node.op, node.args
        if op == "column":
            return self._find_column(".".join(values[0]), table)
        if op == "number":
            return abs(Fraction(values[0]))
        if op in _OF_FIRST:
            return self._find_grid(values[0], table)
        if op in ("/", "sqrt", "ln", "exp", "avg"):
            return None
        if op == "round":
            inner, step = self._find_grid(values[0], table), Fraction(10) ** -int(values[1].args[0])
            return step if inner is None or inner % step else inner
        if op == "*":
            left, right = (self._find_grid(one, table) for one in values)
            return None if left is None or right is None else left * right
        if op == "CASE":
            return self._find_common((*values[1::2], *values[len(values) // 2 * 2 :]), table)
        return self._find_common(values, table) if op in _ON_GRID else Fraction(1)

    def _find_common(self, nodes: Sequence[Node], table: Table) -> Fraction | None:
        """The largest step that divides those of several expressions."""
        grids = [self._find_grid(one, table) for one in nodes]
        steps = [grid for grid in grids if grid is not None]
        if len(steps) < len(grids):
            return None
        denominator = lcm(*(step.denominator for step in steps))
        return Fraction(gcd(*(int(step * denominator) for step in steps)), denominator)

    def _find_column(self, name: str, table: Table) -> Fraction | None:
        units, column = table.unit_rows, table.column(name)
        if units is not None and name in units.features:
            return self._find_grid(parse_expression(name, units.rows), units.rows)
        if units is not None and name in (keys := dict(units.keys)):
            return self._find_grid(parse_row_expression(keys[name], units.rows), units.rows)
        if "step" in column.model_fields_set:
            return column.step
        if column.expression is not None:
            return self._find_grid(parse_row_expression(column.expression, table), table)
        kind = self._find_type(name, table).upper()
        if not _FRACTIONS.fullmatch(kind):
            return Fraction(1)
        self._open_steps.append(_OpenStep(name, column, kind))
        return Fraction(1, 10 ** int(digits)) if (digits := kind.partition(",")[2][:-1]) else None

    def _find_type(self, name: str, table: Table) -> str:
        # Of a query by unit the rows below are another table.
        is_read = table is self.private.declaration
        if (is_read, name) not in self._types:
            if not is_read and self._below is None:
                self._below = PrivateTable(table)
            source = self.private if is_read or self._below is None else self._below
            self._types[is_read, name] = source.column_types([name])[name]
        return self._types[is_read, name]
