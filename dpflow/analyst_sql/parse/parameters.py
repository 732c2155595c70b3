"""Parameters of a query: which values can stand in it as one literal."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any

from dpflow.errors import InvalidInput

_KINDS = (str, bool, int, float, Decimal, Fraction, dt.date)

#: Of an integer that a double can be near to.
_MAX_BITS = 1024


def find_value_problem(value: object) -> str:
    """Why a value cannot be a parameter, as the end of a sentence; "" if it can."""
    if not isinstance(value, _KINDS) or (isinstance(value, dt.date) and value != value):
        return f"is of type {type(value).__name__}; give a plain number, text, date or truth value, such as int(value)"
    if isinstance(value, dt.datetime) and value.tzinfo is not None:
        return "has a time zone, which columns have not; convert it to that of the column, and drop the zone"
    if isinstance(value, int | Fraction):
        parts = (value.numerator, value.denominator)
        if max(abs(part).bit_length() for part in parts) >= _MAX_BITS:
            return "is a number of more digits than a double has room for; give a smaller one"
    return ""


def find_shape_problem(parameters: object) -> str:
    """Why parameters are none at all, as a sentence; "" if they are a sequence or a mapping."""
    is_text = isinstance(parameters, str | bytes | bytearray | memoryview)
    # An array is no `Sequence`.
    if not is_text and hasattr(parameters, "__len__") and hasattr(parameters, "__getitem__"):
        return ""
    return (
        f"parameters are a list with a value for each ?, and not of type {type(parameters).__name__}; "
        f"write one value as [value]"
    )


def check_parameters(parameters: Mapping[str, Any] | Sequence[Any]) -> None:
    """Raises `InvalidInput` for parameters of another shape, or with a value that no query can hold."""
    if problem := find_shape_problem(parameters):
        raise InvalidInput(problem)
    is_named = isinstance(parameters, Mapping)
    items: Iterable[tuple[Any, Any]] = parameters.items() if is_named else enumerate(parameters, 1)  # type: ignore[union-attr]
    for name, value in items:
        if problem := find_value_problem(value):
            raise InvalidInput(f"parameter {str(name)[:40]!r} {problem}")
