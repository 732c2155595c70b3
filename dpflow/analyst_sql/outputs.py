"""Expressions over released numbers and keys: computed after noise, at no cost, and each with the
interval in which its noise leaves it.

Intervals are computed by the ends of the operands' (interval arithmetic), so they hold whenever the
operands' do. NULL as in SQL; a quotient by 0 is NULL, and one by an interval that holds 0 has no
interval.
"""

from __future__ import annotations

import datetime as dt
import math
import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from dpflow.analyst_sql.select_query import LEAVES, OutputExpression

#: Operators and functions by what sqlglot calls them.
ARITHMETIC = {"Add": "+", "Sub": "-", "Mul": "*", "Div": "/", "Mod": "%"}
COMPARISONS = {"EQ": "=", "NEQ": "<>", "LT": "<", "LTE": "<=", "GT": ">", "GTE": ">="}
FUNCTIONS = {
    "Abs": "abs",
    "Floor": "floor",
    "Ceil": "ceil",
    "Sqrt": "sqrt",
    "Lower": "lower",
    "Upper": "upper",
}
CASTS = {
    "TEXT": "VARCHAR",
    "VARCHAR": "VARCHAR",
    "INT": "BIGINT",
    "BIGINT": "BIGINT",
    "DOUBLE": "DOUBLE",
}


@dataclass(frozen=True)
class Released:
    """A value computed from released ones, and its noise interval; None where there is none.

    ``low`` and ``high`` of what has no noise, such as a key, are its value. ``noisy``: it is no key, so
    a condition on it may be another one without noise.
    """

    value: Any
    low: float | None = None
    high: float | None = None
    noisy: bool = False

    @property
    def bounded(self) -> bool:
        """Whether it has an interval."""
        return self.low is not None and self.high is not None


NULL = Released(None)


def exact(value: Any) -> Released:
    """A value without noise."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return Released(value, value, value) if number else Released(value)


LookUp = Callable[[OutputExpression], Released]


def evaluate(output: OutputExpression, look_up: LookUp) -> Released:
    """An expression of one row.

    Args:
        look_up: the value of a leaf, such as a key of the row's group or a released number.
    """
    if output.op == "literal":
        return exact(output.args[0])
    if output.op in LEAVES:
        return look_up(output)
    if output.op == "CASE":
        return _choose(output.args, look_up)
    values = [evaluate(arg, look_up) for arg in output.args if isinstance(arg, OutputExpression)]
    if output.op in ("AND", "OR"):
        return _connect(output.op, [as_truth(one.value) for one in values])
    if output.op == "IS NULL":
        return Released(values[0].value is None)
    if output.op in ("coalesce", "least", "greatest"):
        chosen = _pass_over_nulls(output.op, values)
        # What noise made NULL might have been any number.
        passed = (arg for arg, one in zip(output.args, values) if one.value is None)
        noisy = any(look_up(leaf).noisy for arg in passed for leaf in arg.list_leaves())
        return Released(chosen.value) if noisy else chosen
    if output.op == "CAST":
        return _cast(values[0], output.args[1])
    if any(one.value is None for one in values):
        # IN of several is TRUE where one equals, whatever the others are; literals are never NULL.
        return NULL
    if output.op == "IN":
        return Released(any(_compare(values[0].value, "=", one.value) for one in values[1:]))
    if output.op == "NOT":
        truth = as_truth(values[0].value)
        return NULL if truth is None else Released(not truth)
    if output.op in COMPARISONS.values():
        return Released(_compare(values[0].value, output.op, values[1].value))
    if output.op in ("lower", "upper"):
        return Released(getattr(str(values[0].value), output.op)())
    if not all(_is_number(one.value) for one in values):
        return NULL
    return _compute(output.op, values)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _choose(args: Sequence[Any], look_up: LookUp) -> Released:
    """A CASE. Which branch is taken may hang on noise, so the interval holds those of all branches
    unless the conditions have none of it.
    """
    pairs = len(args) // 2
    branches = [*args[1 : 2 * pairs : 2], *args[2 * pairs :]]
    results = [evaluate(one, look_up) for one in branches]
    if len(args) % 2 == 0:
        results.append(NULL)
    chosen = results[-1]
    for condition, result in zip(args[: 2 * pairs : 2], results):
        if as_truth(evaluate(condition, look_up).value):
            chosen = result
            break
    leaves = (leaf for condition in args[: 2 * pairs : 2] for leaf in condition.list_leaves())
    if not any(look_up(leaf).noisy for leaf in leaves):
        return chosen
    if not chosen.bounded or not all(one.bounded or one.value is None for one in results):
        return Released(chosen.value)
    lows = [one.low for one in results if one.low is not None]
    highs = [one.high for one in results if one.high is not None]
    return Released(chosen.value, min(lows), max(highs))


def as_truth(value: Any) -> bool | None:
    """A value as a condition: a number is true unless it is 0."""
    if isinstance(value, int | float):
        return bool(value)
    return None


def _connect(op: str, values: Sequence[Any]) -> Released:
    """AND and OR with three values."""
    decisive = op == "OR"
    if any(value is decisive for value in values):
        return Released(decisive)
    return NULL if any(value is None for value in values) else Released(not decisive)


def _pass_over_nulls(op: str, values: Sequence[Released]) -> Released:
    """The first value, the least or the greatest; as in DuckDB, NULL is none of them."""
    values = [one for one in values if one.value is not None]
    if op == "coalesce":
        return values[0] if values else NULL
    if not values or not all(_is_number(one.value) for one in values):
        return NULL
    choose: Callable[..., Any] = min if op == "least" else max
    value = choose(one.value for one in values)
    if not all(one.bounded for one in values):
        return Released(value)
    return Released(value, choose(one.low for one in values), choose(one.high for one in values))


def _cast(value: Released, kind: str) -> Released:
    if value.value is None:
        return NULL
    if kind == "VARCHAR":
        return Released(write_text(value.value))
    number = read_number_value(value.value)
    if number is None or not math.isfinite(number):
        return NULL
    if kind == "DOUBLE":
        return Released(float(number), value.low, value.high)
    # To the next whole number, of two the even one, as DuckDB casts a DOUBLE.
    if not value.bounded:
        return Released(round(number))
    return Released(round(number), round(value.low or 0), round(value.high or 0))


def write_text(value: Any) -> str:
    """A value as DuckDB writes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dt.datetime):
        return value.isoformat(sep=" ")
    return value.isoformat() if isinstance(value, dt.date) else str(value)


_NUMBER = re.compile(r"\s*[-+]?[0-9]+(\.[0-9]+)?\s*")


def read_number_value(value: Any) -> int | float | None:
    """A number, also of a text that writes one; None for anything else."""
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, int | float):
        return value
    if not isinstance(value, str) or not _NUMBER.fullmatch(value) or len(value) > 30:
        return None
    return float(value) if "." in value else int(value)


def _compare(left: Any, op: str, right: Any) -> bool | None:
    """A comparison; texts are read as what they are compared with, and are NULL if they cannot be."""
    if _is_number(left) != _is_number(right):
        left, right = read_number_value(left), read_number_value(right)
    elif type(left) is not type(right) and not _is_number(left):
        # Dates are written so that their texts have their order.
        left, right = write_text(left), write_text(right)
    if left is None or right is None:
        return None
    holds: bool = _COMPARE[op](left, right)
    return holds


_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def _compute(op: str, values: Sequence[Released]) -> Released:
    """Arithmetic of numbers."""
    numbers = [one.value for one in values]
    try:
        value = _apply(op, numbers)
    except (OverflowError, ValueError, ZeroDivisionError):
        return NULL
    if value is None or not math.isfinite(value):
        return NULL
    if not all(one.bounded for one in values):
        return Released(value)
    spans = [(float(one.low or 0), float(one.high or 0)) for one in values]
    try:
        interval = _apply_interval(op, spans, numbers)
    except (OverflowError, ValueError, ZeroDivisionError):
        interval = None
    if interval is None or not all(map(math.isfinite, interval)):
        return Released(value)
    return Released(value, *interval)


def add_released(left: Released, right: Released) -> Released:
    """The sum of two numbers."""
    return _compute("+", (left, right))


def divide_released(left: Released, right: Released) -> Released:
    """The quotient of two numbers."""
    return _compute("/", (left, right))


def _take_root(number: Any) -> float | None:
    return math.sqrt(number) if number >= 0 else None


def _remainder(a: Any, b: Any) -> Any:
    rest = math.fmod(a, b)
    return rest if isinstance(a + b, float) else int(rest)


def _scale_variance(variance: Any, n: Any) -> Any:
    """From a variance that divides by n to one that divides by n - 1."""
    return variance * n / (n - 1) if n > 1 else None


_UNARY: dict[str, Callable[[Any], Any]] = {
    "-": operator.neg,
    "abs": abs,
    "floor": math.floor,
    "ceil": math.ceil,
    "sqrt": _take_root,
}
_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "%": _remainder,
    "sample": _scale_variance,
    "round": lambda number, digits: _round(exact(number), digits).value,
}


def _apply(op: str, numbers: Sequence[Any]) -> Any:
    return _UNARY[op](*numbers) if len(numbers) == 1 else _BINARY[op](*numbers)


def _apply_interval(
    op: str, spans: Sequence[tuple[float, float]], numbers: Sequence[Any]
) -> tuple[float, float] | None:
    """The interval of an operator's value, from those of its operands."""
    (low, high), (other_low, other_high) = spans[0], spans[-1]
    if len(spans) == 1:
        if op == "-":
            return -high, -low
        if op == "abs":
            least = 0.0 if low <= 0 <= high else min(abs(low), abs(high))
            return least, max(abs(low), abs(high))
        if op == "sqrt":
            return math.sqrt(max(low, 0.0)), math.sqrt(max(high, 0.0))
        return float(_apply(op, [low])), float(_apply(op, [high]))
    if op == "round":
        return _round(exact(low), numbers[1]).value, _round(exact(high), numbers[1]).value
    if op == "+":
        return low + other_low, high + other_high
    if op == "-":
        return low - other_high, high - other_low
    if op == "%":
        return None
    if op == "sample":
        if other_low <= 1:
            return None
        return (
            max(low, 0.0) * other_high / (other_high - 1),
            high * other_low / (other_low - 1),
        )
    if op == "/":
        if other_low <= 0 <= other_high:
            return None
        other_low, other_high = 1 / other_high, 1 / other_low
    ends = [x * y for x in (low, high) for y in (other_low, other_high)]
    return min(ends), max(ends)


def _round(value: Released, digits: Any) -> Released:
    """Rounded half away from zero, as DuckDB does."""
    if not isinstance(digits, int) or abs(digits) > 20:
        return NULL

    def round_number(number: Any) -> Any:
        if digits >= 0:
            rounded = math.floor(abs(number) * 10**digits + 0.5) / 10**digits
        else:
            # Of tens and hundreds whole numbers are exact, and their inverses are not.
            rounded = math.floor(abs(number) / 10**-digits + 0.5) * 10**-digits
        rounded = -rounded if number < 0 else rounded
        return int(rounded) if isinstance(number, int) else float(rounded)

    if not value.bounded:
        return Released(round_number(value.value))
    return Released(round_number(value.value), round_number(value.low), round_number(value.high))


def sort_key(value: Any) -> Any:
    """What values of one column are ordered by."""
    if isinstance(value, bool):
        return (0, value)
    if isinstance(value, int | float):
        return (1, value)
    return (2, write_text(value))
