"""Whether the groups of a query hold all of its rows, so that their numbers add up to those of all rows.

SQL has a group of NULL, and no release does. Rows without a declared key are left out everywhere, as its owner declared.
Nobody declared the keys of an expression: they hold all rows only where each row has one whatever its values are, such as
those of a CASE with ELSE, or where WHERE leaves out the rows without.
"""

from __future__ import annotations

import datetime as dt
import math
import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from dpflow.analyst_sql.parse.select_query import SelectQuery
from dpflow.core.contract.declaration import Table
from dpflow.tables.language.conditions import parse_condition
from dpflow.tables.language.group_bounds import may_hold
from dpflow.tables.language.grouping import (
    PERIOD_STARTS,
    declare_groups,
    list_keys,
    parse_row_expression,
)
from dpflow.tables.language.key_tests import split_nodes
from dpflow.tables.language.nodes import COMPARISONS, PART_RANGES, Node

_LITERALS = ("number", "text", "truth")
#: Truth values that are NULL only where an operand is.
_TESTS = (*COMPARISONS.values(), "AND", "OR", "NOT", "IN", "LIKE", "regexp_matches")


def find_incomplete(query: SelectQuery, finer: Sequence[Node]) -> Node | None:
    """The first expression that finer groups have beyond those of a query and that may lack a key for a row of it, so that
    they do not add up; None if each has a key for all rows.
    """
    conditions = tuple(part for one in query.conditions for part in split_nodes(one))
    rows = _Rows(query.table, conditions)
    dropped = (one for one in finer if one not in query.groups)
    return next((one for one in dropped if not rows.have_key(one)), None)


@dataclass(frozen=True)
class _Rows:
    """The rows of a table that fulfil all of some conditions."""

    table: Table
    conditions: tuple[Node, ...]

    def have_key(self, node: Node) -> bool:
        """Whether each row has a public key of a grouping expression, but for those without a declared one."""
        if node.op == "column" and self._have_column_key(".".join(node.args[0])):
            return True
        if node.op != "column" and self._are_listed(node) and self._have_value(node):
            return True
        declared, name = declare_groups(self.table, str(node))
        keys = declared.columns[name].public_keys or ()
        named = (_list_literals(one, node) for one in self.conditions)
        return any(one and set(map(_write_key, one)) <= {*keys} for one in named)

    def _have_column_key(self, name: str) -> bool:
        units = self.table.unit_rows
        if units is None:
            return self.table.column(name).public_keys is not None
        if name in units.features:
            return self.table.last_count(name) is not None
        where = units.where and parse_condition(units.where, units.rows)
        rows = _Rows(units.rows, tuple(split_nodes(where or None)))
        return rows.have_key(parse_row_expression(dict(units.keys)[name], units.rows))

    def _are_listed(self, node: Node) -> bool:
        """Whether each value that an expression has is one of its public keys."""
        if node.op in ("text", "IS NULL", *_TESTS) or (
            node.op in PART_RANGES and node.op != "year"
        ):
            return True
        if node.op in ("CASE", "coalesce", "||", "substring") or _is_text(node):
            return all(map(self._are_listed, _list_values(node)))
        return self._are_within(node)

    def _have_value(self, node: Node) -> bool:
        """Whether an expression is NULL in no row."""
        if node.op in (*_LITERALS, "IS NULL") or any(_asks_value(c, node) for c in self.conditions):
            return True
        if node.op == "column":
            name = ".".join(node.args[0])
            is_count = self.table.last_count(name) is not None
            return is_count or any(not may_hold(one, name) for one in self.conditions)
        have_values = map(self._have_value, _list_values(node))
        if node.op == "coalesce":
            return any(have_values)
        if node.op == "CASE":
            return self._have_branch(node) and all(have_values)
        if node.op in (*_TESTS, "||", "substring") or _is_text(node):
            return all(have_values)
        return self._are_within(node)

    def _have_branch(self, case: Node) -> bool:
        """Whether each row has a branch of a CASE: that of ELSE, or, as in an inner join, of a key that WHERE names."""
        tests = case.args[: len(case.args) // 2 * 2 : 2]
        named = [(one.args[0], _list_literals(one, one.args[0])) for one in tests]
        return bool(len(case.args) % 2) or any(
            one in tests
            or (
                (literals := _list_literals(one, one.args[0]))
                and literals <= {x for of, listed in named if of == one.args[0] for x in listed}
            )
            for one in self.conditions
        )

    def _are_within(self, node: Node) -> bool:
        """Whether WHERE leaves a column no value without a bin, period, or part of a date that is a public key."""
        keys = list_keys(node, self.table)
        column = node.args[-1 if node.op == "date_trunc" else 0]
        if keys is None or not isinstance(column, Node) or column.op != "column":
            return False
        ends = self._find_ends(column, "number" if node.op == "bucket" else "text")
        if ends is None:
            return False
        if node.op == "bucket":
            width = int(node.args[1].args[0])
            return {str(math.floor(end / width) * width) for end in ends} <= {*keys}
        days = [dt.date.fromordinal(int(end)) for end in ends]
        if node.op == "date_trunc":
            start = PERIOD_STARTS[node.args[0].args[0]]
            return {str(start(day)) for day in days} <= {*keys}
        return node.op != "year" or {str(day.year) for day in days} <= {*keys}

    def _find_ends(self, column: Node, kind: str) -> tuple[Fraction, Fraction] | None:
        """The least and the greatest number or day that WHERE leaves a column; None where it leaves one open."""
        lows, highs = list[Fraction](), list[Fraction]()
        for one in self.conditions:
            if one.op not in ("=", "IN", "<", "<=", ">", ">=") or one.args[0] != column:
                continue
            values = [_read_ends(literal, kind, one.op) for literal in one.args[1:]]
            known = [end for ends in values for end in ends]
            if all(values):
                lows += [min(known)] if one.op in ("=", "IN", ">", ">=") else []
                highs += [max(known)] if one.op in ("=", "IN", "<", "<=") else []
        return (max(lows), min(highs)) if lows and highs else None


def _asks_value(condition: Node, node: Node) -> bool:
    """Whether a condition is that an expression IS NOT NULL."""
    inner = condition.args[0] if condition.op == "NOT" else condition
    return inner is not condition and inner.op == "IS NULL" and bool(inner.args[0] == node)


def _list_values(node: Node) -> list[Node]:
    """The operands that the value of an expression is one of, or is made of."""
    if node.op == "CASE":
        return [*node.args[1::2], *node.args[len(node.args) // 2 * 2 :]]
    operands = [one for one in node.args if isinstance(one, Node)]
    return operands[:1] if node.op == "substring" else operands


def _is_text(node: Node) -> bool:
    return node.op == "CAST" and node.args[1] == "VARCHAR"


def _list_literals(condition: Node, subject: object) -> set[Node]:
    """The literals of which a subject is one where a condition holds; none of any other condition."""
    literals = condition.args[1:] if condition.op in ("=", "IN") else ()
    is_listed = bool(literals) and condition.args[0] == subject
    return {*literals} if is_listed and all(one.op in _LITERALS for one in literals) else set()


def _write_key(literal: Node) -> str:
    value = literal.args[0]
    return (
        str(value).lower()
        if literal.op == "truth"
        else format(value, "f")
        if literal.op == "number"
        else value
    )


def _read_ends(literal: Node, kind: str, op: str) -> list[Fraction]:
    """What a column is compared with: a number, also as a column of floats takes it; the ordinal of the day of a date or
    time, or of the day before one that all are below. None of anything else.
    """
    if literal.op != kind:
        return []
    if kind == "number":
        exact = Fraction(literal.args[0])
        try:
            return [
                exact,
                *(Fraction(*struct.unpack(form, struct.pack(form, exact))) for form in "fd"),
            ]
        except OverflowError:
            return []
    found = re.fullmatch(r"(\d{4}-\d\d-\d\d)([ T][0-9:.]+)?", literal.args[0])
    try:
        day = dt.date.fromisoformat(found[1]).toordinal() if found else None
    except ValueError:
        return []
    return [] if found is None or day is None else [Fraction(day - (op == "<" and not found[2]))]
