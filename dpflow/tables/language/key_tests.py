"""Conditions on rows as tests of the keys that rows are grouped by: which groups can have a row at all.

A condition may compare a grouping column with texts or whole numbers, or a column of dates with dates, of which the
groups are periods. A group that fails a test has no row that passes, whatever the rows are. So a release leaves it out
(`narrow_keys`): a unit is in fewer groups, and there is less noise. Privacy does not hang on a test: rows of keys that
are left out count nowhere.
"""

from __future__ import annotations

import datetime as dt
import itertools
import math
import operator
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from dpflow.core.contract.declaration import Table
from dpflow.tables.language.conditions import parse_condition
from dpflow.tables.language.group_bounds import find_period
from dpflow.tables.language.grouping import PERIOD_STARTS, declare_groups, parse_row_expression
from dpflow.tables.language.nodes import TIME_UNITS, Node

Day = dt.date
#: The first and the last day that may be, as ordinals.
Span = tuple[float, float]
_ALWAYS: Span = (-math.inf, math.inf)


def narrow_keys(
    table: Table, by: str, where: str | None, blocks: Sequence[str] = ()
) -> tuple[Table, float]:
    """The declaration in which a grouping has only the public keys that a condition and the named blocks may leave a
    row, or those that are declared where they leave none; and the share that is left.
    """
    conditions = [] if where is None else [*split_nodes(parse_condition(where, table))]
    conditions += list_block_conditions(table, blocks)
    if not conditions or by not in table.columns:
        return table, 1.0
    share = 1.0
    columns = dict(table.columns)
    for name in columns[by].parts or (by,):
        keys = columns[name].public_keys
        # In the last group of a number of rows are units with more.
        if keys is None or table.last_count(name) is not None:
            continue
        may_pass = make_key_filter(conditions, [_read_column(name, table)], table)
        kept = tuple(key for key in keys if may_pass((key,)))
        if 0 < len(kept) < len(keys):
            columns[name] = columns[name].model_copy(update={"public_keys": kept})
            share *= len(kept) / len(keys)
    return (table if share == 1 else table.model_copy(update={"columns": columns})), share


def list_block_conditions(table: Table, blocks: Sequence[str]) -> list[Node]:
    """What named blocks demand of rows, as a condition does; none where none is named, or where one may be a declared
    key in other words.
    """
    if table.block is None or not blocks:
        return []
    declared = table.columns.get(table.block)
    if declared and declared.public_keys and not {*blocks} <= {*declared.public_keys}:
        return []
    column = Node("column", (table.split_name(table.block),))
    return [Node("IN", (column, *(Node("text", (block,)) for block in blocks)))]


def _read_column(name: str, table: Table) -> Node:
    expression = table.columns[name].expression
    if expression is None:
        return Node("column", (table.split_name(name),))
    return parse_row_expression(expression, table)


def split_nodes(node: Node | None) -> Iterator[Node]:
    """The parts of a condition between its outermost ANDs; each of NOT IN is one of its own."""
    waiting = [] if node is None else [node]
    while waiting:
        part = waiting.pop()
        if part.op == "AND":
            waiting += reversed(part.args)
        elif part.op == "NOT" and part.args[0].op == "IN":
            subject, *literals = part.args[0].args
            yield from (Node("<>", (subject, literal)) for literal in literals)
        else:
            yield part


def make_key_filter(
    conditions: Sequence[Node], groups: Sequence[Node], table: Table
) -> Callable[[Sequence[str]], bool]:
    """Whether a row with these keys may fulfil all conditions."""
    made = [make_key_test(node, groups, table) for node in conditions]
    tests = [test.may_hold for test in made if test is not None]
    for position, group in enumerate(groups):
        name = _find_dated(group)
        # A text that is a date is below one with a time.
        ending = "" if group.op == "column" else _TIME
        spans = [_find_days(node, name, ending) for node in conditions if name]
        span = _meet(spans) if spans else _ALWAYS
        if span != _ALWAYS:
            tests.append(partial(_touches_days, position, group, span))
    return lambda key: all(test(key) for test in tests)


def _find_dated(group: Node) -> str:
    """The column whose days a group's keys tell; an empty name if there is none."""
    inner = group.args[0] if group.op in _DAY_PARTS else None
    if group.op == "date_trunc" and group.args[0].args[0] in TIME_UNITS:
        inner = group.args[1]
    if isinstance(inner, Node) and inner.op == "column":
        return ".".join(inner.args[0])
    return find_period(group)[1]


def _touches_days(position: int, group: Node, span: Span, key: Sequence[str]) -> bool:
    """Whether the days of a group are some of these; True where the key says nothing of its days."""
    first, last = span
    if part := _DAY_PARTS.get(group.op):
        is_long = last - first > _LONGEST["year"]
        days = () if is_long else range(int(first), int(last) + 1)
        return is_long or any(str(part(Day.fromordinal(day))) == key[position] for day in days)
    text = key[position]
    if group.op == "year":
        text = str(Day(int(text), 1, 1))
    ending = "" if group.op == "column" else ".*"
    if (day := _parse_day(text, ending)) is None:
        return True
    low, high = _extend_day(find_period(group)[0] or "day", day)
    return low <= last and first <= high


def _parse_day(text: str, ending: str) -> Day | None:
    """The day that a text begins with, if it ends so; None where it has none."""
    try:
        return Day.fromisoformat(text[:10]) if re.fullmatch(_DATE + ending, text) else None
    except ValueError:
        return None


def _meet(spans: Sequence[Span]) -> Span:
    return max(low for low, _ in spans), min(high for _, high in spans)


def _find_days(node: Node, name: str, ending: str) -> Span:
    """Between which days a column of dates or times is in all rows that may fulfil a condition.

    Args:
        ending: what may follow the date in a literal.
    """
    if node.op in ("AND", "OR"):
        spans = [_find_days(arg, name, ending) for arg in node.args]
    if node.op == "AND":
        return _meet(spans)
    if node.op in ("=", "IN", "<", "<=", ">", ">="):
        period, inner = find_period(node.args[0])
        if inner != name or node.args[0].op in _DAY_PARTS:
            return _ALWAYS
        days = [_read_day(arg, node.args[0].op == "year", ending) for arg in node.args[1:]]
        spans = [_compare_day(node.op, period, *day) if day else _ALWAYS for day in days]
    elif node.op != "OR":
        return _ALWAYS
    return min(low for low, _ in spans), max(high for _, high in spans)


def _read_day(literal: Node, is_year: bool, ending: str) -> tuple[Day, bool] | None:
    """The day of a literal, and whether it is its first moment; None of any other."""
    value = literal.args[0]
    if is_year and literal.op == "number" and value == int(value) and 1 <= value <= 9999:
        return Day(int(value), 1, 1), True
    # Zones and other spellings are not read.
    day = _parse_day(value, ending) if literal.op == "text" and not is_year else None
    return None if day is None else (day, not value[10:].strip(" T:0."))


def _compare_day(op: str, period: str | None, day: Day, is_start: bool) -> Span:
    """Days on which a column, or the start of its period, may compare so with a moment of a day."""
    if op == "<":
        if is_start and day == Day.min:
            return _ALWAYS
        # What is below the first moment of a day is on an earlier one.
        op, day = "<=", day - dt.timedelta(days=int(is_start))
    first, last = _extend_day(period or "day", day)
    if op == "<=":
        return -math.inf, last
    if op == ">":
        # Starts of periods are first moments of days.
        return (day.toordinal() if period is None else last + 1), math.inf
    return (day.toordinal(), math.inf) if op == ">=" else (first, last)


def _extend_day(period: str, day: Day) -> Span:
    """The first and last day of the period of a day."""
    start = PERIOD_STARTS[period](day)
    try:
        end = PERIOD_STARTS[period](start + dt.timedelta(days=_LONGEST[period])).toordinal() - 1
    except OverflowError:
        end = Day.max.toordinal()
    return start.toordinal(), end


_DATE, _TIME = r"\d{4}-\d\d-\d\d", r"([ T]\d\d:\d\d(:\d\d(\.\d+)?)?)?"
_LONGEST = {"year": 366, "quarter": 92, "month": 31, "week": 7, "day": 1}
#: Parts of a date that recur, by their operators.
_DAY_PARTS: dict[str, Callable[[Day], int]] = {
    "quarter": lambda day: (day.month + 2) // 3,
    "month": lambda day: day.month,
    "day": lambda day: day.day,
    "dayofyear": lambda day: day.timetuple().tm_yday,
    "dayofweek": lambda day: day.isoweekday() % 7,
    "isodow": lambda day: day.isoweekday(),
}


@dataclass(frozen=True)
class KeyTest:
    """A condition on rows as one on their group's keys.

    Attributes:
        outcomes: what the condition may be on rows of the group with these keys: true, false, or either.
        is_exact: whether it is one on the keys alone, whatever type the column has.
    """

    outcomes: Callable[[Sequence[str]], frozenset[bool]]
    is_exact: bool

    def may_hold(self, key: Sequence[str]) -> bool:
        """Whether rows of a group may fulfil the condition."""
        return True in self.outcomes(key)


_EITHER = frozenset({True, False})


def make_key_test(node: Node, groups: Sequence[Node], table: Table) -> KeyTest | None:
    """A condition on rows as one on a group's keys, where it compares grouping columns with texts
    that are keys as they stand, or public keys that are whole numbers with numbers; None for any
    other. No key is NULL.
    """
    if node.op in ("AND", "OR", "NOT"):
        tests = [make_key_test(arg, groups, table) for arg in node.args]
        inner = [test for test in tests if test is not None]
        if len(inner) < len(tests):
            return None
        exact = all(test.is_exact for test in inner)
        if node.op == "NOT":
            return KeyTest(lambda key: frozenset(not x for x in inner[0].outcomes(key)), exact)
        decide = all if node.op == "AND" else any
        return KeyTest(
            lambda key: frozenset(
                map(decide, itertools.product(*(test.outcomes(key) for test in inner)))
            ),
            exact,
        )
    if node.op not in (*COMPARED, "IN") or node.args[0] not in groups:
        return None
    keys = _public_keys(node.args[0], table)
    position, literals = list(groups).index(node.args[0]), node.args[1:]
    # Of a unit's number of rows, the last key has those of more rows, too.
    counts = any(table.last_count(name) is not None for name in node.args[0].column_names())
    if all(one.op == "number" for one in literals) and keys is not None:
        return _compare_numbers(node.op, position, literals, keys, counts)
    texts = [one.args[0] for one in literals if one.op == "text"]
    is_order = node.op not in ("=", "<>", "IN")
    if counts or is_order or len(texts) < len(literals):
        return None
    if not all(_is_key_text(text, keys) for text in texts):
        return None
    wanted = node.op != "<>"
    return KeyTest(lambda key: frozenset({(key[position] in texts) == wanted}), True)


COMPARED: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def _compare_numbers(
    name: str, position: int, literals: Sequence[Node], keys: Sequence[str], counts: bool
) -> KeyTest | None:
    """Whole numbers as keys against numbers, as doubles, which hold them exactly. A text that reads as
    such a number is another key, and the column's type is not known here: so it is no exact test.

    Args:
        counts: whether the last key stands for all numbers from it on.
    """
    if not all(re.fullmatch(r"0|-?[1-9][0-9]{0,14}", key) for key in keys):
        return None
    ends = [float(one.args[0]) for one in literals]

    def decide(number: float) -> bool:
        if name == "IN":
            return number in ends
        return COMPARED[name](number, ends[0])

    def find_outcomes(key: Sequence[str]) -> frozenset[bool]:
        number = float(key[position])
        if not counts or key[position] != keys[-1]:
            return frozenset({decide(number)})
        # Between the literals nothing changes.
        beyond = (number, *(max(number, end + 1) for end in ends), *(e for e in ends if e > number))
        return frozenset(map(decide, beyond))

    return KeyTest(find_outcomes, False)


def _public_keys(node: Node, table: Table) -> tuple[str, ...] | None:
    declared, name = declare_groups(table, str(node))
    return declared.columns[name].public_keys


#: Texts that a column of truth values, numbers or times may read as a value with another text.
_WORDS = {
    *("true", "false", "t", "f", "yes", "no", "y", "n", "on", "off"),
    *("nan", "inf", "infinity", "epoch", "today", "now"),
}


def _is_key_text(text: str, keys: Sequence[str] | None) -> bool:
    """Whether a literal equals a key just where their texts are equal, whatever the column's type."""
    if keys is not None:
        return text in keys
    # Numbers, dates and most UUIDs have digits, and may be written in several ways.
    return not any(c.isdigit() for c in text) and len(text) < 30 and text.casefold() not in _WORDS
