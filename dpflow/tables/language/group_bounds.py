"""Contribution bounds of what is computed: what follows from those that are declared for its columns.

Every rule is a fact about any rows: a function of a column has no more groups than the column, a
period no more than those that a declared period touches, several columns no more than the product
of theirs. So where the declared bounds cut nothing, the inherited ones cut nothing either.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal

from dpflow.core.contract.contribution import MAX_GROUPS, MAX_ROWS, TOUCHED, Limit
from dpflow.core.contract.declaration import Table
from dpflow.tables.language.nodes import DATE_UNITS, PART_RANGES, TIME_UNITS, Node

#: Parts of a date that a period decides; but for the year, several periods have one part.
_PART_PERIODS = {"year": "year", "quarter": "quarter", "month": "month"}
#: Parts of a date or time that its day decides.
_DAY_PARTS = {*PART_RANGES} - {*TIME_UNITS}
#: What has no value only where none of its operands has one. All else but CASE and IS NULL has none where one
#: operand has none.
_CHOOSE_VALUES = {"AND", "OR", "coalesce", "least", "greatest"}

Limits = tuple[Limit | None, Limit | None]


def inherit_bounds(table: Table, name: str, nodes: Mapping[str, Node]) -> Table:
    """The declaration in which a computed column, or one of a dimension, has the groups and rows per
    group that follow; unchanged where it declares its own, or nothing follows.

    Args:
        nodes: expressions of the computed columns, by name.
    """
    column = table.column(name)
    inherited = column.inherit(*_limit_column(table, name, nodes))
    if inherited == column:
        return table
    return table.model_copy(update={"columns": {**table.columns, name: inherited}})


def _limit_column(table: Table, name: str, nodes: Mapping[str, Node]) -> Limits:
    """Groups that one unit reaches in a column, and rows in each."""
    column = table.column(name)
    groups, rows = column.limit_groups(name), column.limit_rows(name)
    if column.parts is not None:
        derived = _limit_several(table, [nodes.get(part, part) for part in column.parts], nodes)
    elif name in nodes:
        derived = _limit_node(table, nodes[name], nodes)
    else:
        derived = _limit_dimension(table, name)
    return groups or derived[0], rows or derived[1]


def _limit_dimension(table: Table, name: str) -> Limits:
    """A dimension's column is a function of the key that it is joined on."""
    alias, *rest = table.split_name(name)
    join = next((one for one in table.joins if rest and one.name == alias), None)
    if join is None or join.kind != "dimension" or join.left_column not in table.columns:
        return None, None
    return _limit_function(table, join.left_column)


def _limit_node(table: Table, node: Node, nodes: Mapping[str, Node]) -> Limits:
    """The same of an expression."""
    names = sorted(node.column_names())
    period, inner = find_period(node)
    if inner in table.columns and table.columns[inner].expression is None:
        if period is None:
            return _limit_column(table, inner, nodes)
        groups, rows = _limit_period(table, inner, period)
        # A month of any year holds the rows of several months.
        rows = None if node.op in ("quarter", "month") else rows
        return groups, _least(rows, _limit_function(table, inner)[1])
    if not names or _exceeds_days(table, node, names):
        return None, None
    # A group may hold all combinations of the columns' groups, and one of rows without a value.
    limits = [_limit_function(table, name, takes_null=takes_null(node, name)) for name in names]
    groups = _multiply([of_groups for of_groups, _ in limits])
    rows = None
    if len(names) == 1 and not takes_null(node, names[0]):
        rows = limits[0][1]
    return groups, rows


def takes_null(node: Node, name: str) -> bool:
    """Whether an expression may have a value where a column of it has none, such as a CASE with ELSE."""
    return not _is_null(node, name)


def _is_null(node: Node, name: str) -> bool:
    """Whether an expression surely has no value where this column has none."""
    if node.op == "column":
        return ".".join(node.args[0]) == name
    operands = [arg for arg in node.args if isinstance(arg, Node)]
    are_null = [_is_null(one, name) for one in operands]
    if node.op == "CASE":
        # Pairs of a condition and a value; without ELSE the default is NULL.
        pairs = len(operands) // 2
        values, conditions = are_null[1 : 2 * pairs : 2], operands[: 2 * pairs : 2]
        none_holds = not any(may_hold(one, name) for one in conditions)
        return (none_holds or all(values)) and all(are_null[2 * pairs :])
    if node.op in _CHOOSE_VALUES:
        return bool(operands) and all(are_null)
    return node.op != "IS NULL" and any(are_null)


def may_hold(condition: Node, name: str) -> bool:
    """Whether a condition may be true where this column has no value."""
    parts = [may_hold(arg, name) for arg in condition.args if isinstance(arg, Node)]
    if condition.op in ("AND", "OR"):
        return all(parts) if condition.op == "AND" else any(parts)
    return not _is_null(condition, name)


def counts_null(case: Node, unit: str) -> bool:
    """Whether a CASE that counts rows tells those without a unit from others, in whatever way it is written. The rows of
    a share, in the second branch, may leave them out.
    """
    if case.op != "CASE" or case.args[1] == Node("number", (Decimal(0),)):
        return False
    names = [name for name in case.column_names() if name.casefold() == unit.casefold()]
    counted, among = (
        {test for name in names for part in parts for test in _list_null_tests(part, name)}
        for parts in (case.args[:1], case.args[2:3] if len(case.args) > 3 else ())
    )
    return bool((counted | among) - {test for test in among if test[0].op == "IS NULL" and test[1]})


def _list_null_tests(
    condition: Node, name: str, negated: bool = False
) -> Iterator[tuple[Node, bool]]:
    """The parts of a condition that depend on whether a column has a value, and whether each is negated."""
    parts = [arg for arg in condition.args if isinstance(arg, Node)]
    if condition.op in ("AND", "OR", "NOT"):
        for part in parts:
            yield from _list_null_tests(part, name, negated ^ (condition.op == "NOT"))
    elif name in condition.column_names():
        is_same = len(parts) == 2 and parts[0] == parts[1]
        if is_same or not _is_null(condition, name):
            yield condition, negated


def _exceeds_days(table: Table, node: Node, names: Sequence[str]) -> bool:
    """Whether an expression asks for times of day where the limits are of days."""
    return _reads_times(node) and not all(isinstance(table.column(n).groups, int) for n in names)


def _reads_times(node: Node) -> bool:
    units = {str(arg.args[0]) for arg in node.args if isinstance(arg, Node) and arg.op == "text"}
    is_unit = node.op in ("date_trunc", "date_diff") and not units & {*DATE_UNITS}
    inner = (arg for arg in node.args if isinstance(arg, Node))
    return node.op in TIME_UNITS or is_unit or any(map(_reads_times, inner))


def reads_days(node: Node, name: str) -> bool:
    """Whether the days of a column of dates or times decide what an expression makes of it."""
    if node.op == "column":
        return ".".join(node.args[0]) != name
    unit = str(node.args[0].args[0]) if node.op in ("date_trunc", "date_diff") else ""
    is_date = node.op == "CAST" and node.args[1] == "DATE"
    of = [arg for arg in node.args if isinstance(arg, Node)]
    if is_date or node.op in _DAY_PARTS or unit in DATE_UNITS:
        # A moment that is computed may be on the next day.
        return all(arg.op in ("column", "text") or reads_days(arg, name) for arg in of)
    return all(reads_days(arg, name) for arg in of)


def _limit_period(table: Table, name: str, period: str) -> Limits:
    """Of a period of a column. A number that is declared beside public keys is about those alone."""
    column = table.columns[name]
    groups, rows = column.limit_groups(name, period), column.limit_rows(name, period)
    if column.public_keys is not None:
        groups = None if isinstance(column.groups, int) else groups
        rows = None if isinstance(column.rows_per_group, int) else rows
    return groups, rows


def find_period(node: Node) -> tuple[str | None, str]:
    """The period of a column that an expression is a function of, as one to one as a period is, and
    that column; None for the column itself. An empty name where it is another expression.
    """
    if node.op == "column":
        return None, ".".join(node.args[0])
    period, inner = _PART_PERIODS.get(node.op), node.args[0] if node.args else None
    if node.op == "date_trunc":
        period, inner = str(node.args[0].args[0]), node.args[1]
    elif node.op == "CAST" and node.args[1] == "DATE":
        period = "day"
    if period in TOUCHED and isinstance(inner, Node) and inner.op == "column":
        return period, ".".join(inner.args[0])
    return None, ""


def _limit_function(table: Table, name: str, takes_null: bool = False) -> Limits:
    """Of any function of a column: its groups hold whole groups of the column, and what has no value.
    Limits beside public keys are about those alone, and say nothing.
    """
    column = table.column(name)
    groups, rows = column.limit_groups(name), column.limit_rows(name)
    if groups is None or column.public_keys is not None:
        return None, None
    if takes_null:
        return Limit(min(groups.number + 1, MAX_GROUPS), groups.source), None
    if rows is None:
        return groups, None
    number = min(groups.number * rows.number, MAX_ROWS)
    return groups, Limit(number, f"{groups.source}, {rows.source}")


def _limit_several(
    table: Table, members: Sequence[Node | str], nodes: Mapping[str, Node]
) -> Limits:
    """Of several columns and expressions together: those of one column have no more groups than that
    column, others have as many as the product; no group has more rows than one of its keys has.
    """
    limits: dict[tuple[str, ...], list[Limits]] = {}
    beyond_days: set[tuple[str, ...]] = set()
    periods: dict[tuple[str, ...], list[str | None]] = {}
    names: tuple[str, ...]
    for member in members:
        if isinstance(member, str):
            names, limit = (member,), _limit_column(table, member, nodes)
        else:
            names, limit = tuple(sorted(member.column_names())), _limit_node(table, member, nodes)
            if _exceeds_days(table, member, names):
                beyond_days.add(names)
        limits.setdefault(names, []).append(limit)
        period = "day" if isinstance(member, str) else find_period(member)[0]
        periods.setdefault(names, []).append(period)
    groups: list[Limit | None] = []
    for names, several in limits.items():
        # A period that decides all of these periods has no fewer groups than they have together.
        deciding = [
            _limit_period(table, name, period)[0]
            for name in names[: len(names) == 1]
            for period in TOUCHED
            if all(TOUCHED.get(one or "", {}).get(period) == 1 for one in periods[names])
        ]
        has_own = len(names) == 1 and names not in beyond_days
        own = _limit_function(table, names[0], True)[0] if has_own else None
        groups.append(_least(_multiply([limit for limit, _ in several]), own, *deciding))
    rows = [one for several in limits.values() for _, one in several if one is not None]
    return _multiply(groups), min(rows, default=None)


def _least(*limits: Limit | None) -> Limit | None:
    return min((limit for limit in limits if limit is not None), default=None)


def _multiply(limits: Sequence[Limit | None]) -> Limit | None:
    known = [limit for limit in limits if limit is not None]
    if len(known) < len(limits) or not known:
        return None
    number = min(math.prod(limit.number for limit in known), MAX_GROUPS)
    return Limit(number, " and ".join(dict.fromkeys(limit.source for limit in known)))
