"""Bounds of row expressions by interval arithmetic: what a sum of them may be put on a grid by."""

from __future__ import annotations

import datetime as dt
import math
from dataclasses import dataclass

from dpflow.core.contract.declaration import Table
from dpflow.tables.language.nodes import PART_RANGES, Node


@dataclass(frozen=True)
class RowBounds:
    """What a row expression can be: within [low, high], and perhaps integers only."""

    low: float = -math.inf
    high: float = math.inf
    whole: bool = False

    @property
    def size(self) -> float:
        return max(abs(self.low), abs(self.high))


def bound_expression(node: Node, table: Table, integers: set[str]) -> RowBounds:
    """Bounds of a row expression's value where it has some, by interval arithmetic; its term was
    written before.
    """
    if node.op == "number":
        value = node.args[0]
        return RowBounds(float(value), float(value), value == value.to_integral_value())
    if node.op == "column":
        name = ".".join(node.args[0])
        declaration = table.column(name)
        if declaration.lower is None or declaration.upper is None:
            return RowBounds()
        return RowBounds(float(declaration.lower), float(declaration.upper), name in integers)
    if node.op in ("CASE", "coalesce", "least", "greatest"):
        values = (
            node.args
            if node.op != "CASE"
            else [*node.args[1::2], *node.args[len(node.args) // 2 * 2 :]]
        )
        return _bound_choice(node, [bound_expression(arg, table, integers) for arg in values])
    if node.op == "length":
        return RowBounds(0, math.inf, True)
    if node.op == "round":
        inner, whole = bound_expression(node.args[0], table, integers), node.args[1].args[0] == 0
        return RowBounds(_lower_end(inner.low) - 1, _upper_end(inner.high) + 1, whole)
    if node.op == "date_diff":
        return _bound_difference(node, table)
    if node.op in PART_RANGES:
        return RowBounds(*PART_RANGES[node.op], True)
    if node.op == "bucket":
        inner, width = bound_expression(node.args[0], table, integers), int(node.args[1].args[0])
        return RowBounds(_lower_end(inner.low) - width, _upper_end(inner.high) + width, True)
    if node.op == "CAST" and node.args[1] == "DOUBLE":
        inner = bound_expression(node.args[0], table, integers)
        # Of a truth value it is 0 or 1.
        return RowBounds(min(inner.low, 0), max(inner.high, 1), inner.whole)
    if not node.args or not isinstance(node.args[0], Node):
        return RowBounds()
    spans = [bound_expression(arg, table, integers) for arg in node.args if isinstance(arg, Node)]
    low, high = bound_operator(node.op, spans)
    if math.isnan(low) or math.isnan(high):
        return RowBounds()
    # Up to 2^53 the DOUBLE that computes whole numbers is exact.
    return RowBounds(
        low,
        high,
        node.op in ("+", "-", "*", "abs")
        and all(s.whole for s in spans)
        and max(-low, high) < 2**53,
    )


def _bound_choice(node: Node, spans: list[RowBounds]) -> RowBounds:
    """One of several values: literals are never NULL, so ``least`` and ``greatest`` cannot pass
    over them.
    """
    low, high = min(s.low for s in spans), max(s.high for s in spans)
    literals = [s for arg, s in zip(node.args, spans) if arg.op == "number"]
    if node.op == "least":
        high = min([high, *(s.high for s in literals)])
    if node.op == "greatest":
        low = max([low, *(s.low for s in literals)])
    return RowBounds(low, high, all(s.whole for s in spans))


def _bound_difference(node: Node, table: Table) -> RowBounds:
    """Of two columns whose bounds are dates: what `date_diff` gives for their ends."""
    ends = []
    for arg in node.args[1:]:
        if arg.op == "text":
            day = _day_of(arg.args[0])
            ends.append((day, day))
            continue
        column = table.column(".".join(arg.args[0])) if arg.op == "column" else None
        if column is None or not column.holds_dates or None in (column.lower, column.upper):
            return RowBounds(whole=True)
        ends.append((float(column.lower or 0), float(column.upper or 0)))
    unit, (earlier, later) = node.args[0].args[0], ends
    low, high = later[0] - earlier[1], later[1] - earlier[0]
    if math.isnan(low):
        return RowBounds(whole=True)
    if unit == "day":
        return RowBounds(low, high, True)
    # A day of a timestamp's column ends a day later; years, quarters, months and weeks are at least so long.
    if unit in _PER_DAY:
        return RowBounds((low - 1) * _PER_DAY[unit], (high + 1) * _PER_DAY[unit], True)
    days = _DAYS[unit]
    return RowBounds(math.floor(low / days) - 1, math.ceil(high / days) + 1, True)


def _day_of(text: str) -> float:
    """Of a literal date or timestamp the days since 1970."""
    try:
        return float(dt.date.fromisoformat(text[:10]).toordinal() - _EPOCH)
    except ValueError:
        return math.nan


_EPOCH = dt.date(1970, 1, 1).toordinal()
_DAYS = {"week": 7, "month": 28, "quarter": 90, "year": 365}
_PER_DAY = {"hour": 24, "minute": 1440, "second": 86_400, "microsecond": 86_400_000_000}


def bound_operator(op: str, spans: list[RowBounds]) -> tuple[float, float]:
    """The interval of an operator's value, NaN where there is none."""
    a, b = spans[0], spans[-1]
    if op == "-":
        return (-a.high, -a.low) if len(spans) == 1 else (a.low - b.high, a.high - b.low)
    if op == "+":
        return a.low + b.low, a.high + b.high
    if op in ("*", "/"):
        if op == "/":
            # A quotient by what may be 0 has no bounds.
            if b.low <= 0 <= b.high:
                return math.nan, math.nan
            b = RowBounds(1 / b.high, 1 / b.low)
        ends = [x * y for x in (a.low, a.high) for y in (b.low, b.high)]
        return (
            (math.nan, math.nan)
            if any(map(math.isnan, ends))
            else (_lower_end(min(ends)), _upper_end(max(ends)))
        )
    if op == "%":
        return -b.size, b.size
    if op == "abs":
        return (0.0 if a.low <= 0 <= a.high else min(abs(a.low), abs(a.high))), a.size
    if op == "sqrt":
        return 0.0, math.sqrt(max(a.high, 0.0))
    if op == "ln":
        return (
            (_lower_end(math.log(a.low)), _upper_end(math.log(a.high)))
            if a.low > 0
            else (math.nan, math.nan)
        )
    if op == "exp":
        # Beyond about exp(709) there is no finite DOUBLE.
        return 0.0, _upper_end(math.exp(a.high)) if a.high < 700 else math.inf
    return math.nan, math.nan


def _upper_end(end: float) -> float:
    """A little higher: two libraries may round a logarithm or a quotient differently."""
    return end * (1 + math.copysign(2**-40, end))


def _lower_end(end: float) -> float:
    return -_upper_end(-end)
