"""Query points in the form in which a declaration gives rows to learners: exact integers, column by
column.

A bounded column becomes grid steps, clamped and rounded half away from zero; a column with public
keys becomes the key's place in the list. Points are public, so what is wrong with them is said,
with the number of the point.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpflow.core.contract.columns import Column
from dpflow.core.contract.declaration import Table
from dpflow.errors import InvalidInput, UnknownName

Codes = NDArray[np.int64]

#: Points as rows (a list of lists or a matrix), or by column.
Points = Sequence[Sequence[Any]] | NDArray[Any] | Mapping[str, Any]


class EncodedPoints(NamedTuple):
    """Points as integers, shape (points, features), and which of them have a value beyond the declared bounds, as the
    caller wrote it: an end of the grid stands for it.
    """

    codes: Codes
    clamped: NDArray[np.bool_]


def encode_points(table: Table, features: Sequence[str], points: Points) -> EncodedPoints:
    """Points as integers.

    Args:
        table: the declaration that gives each feature bounds or public keys.
        features: the columns of a point, in order.
        points: rows in that order, or a mapping from every feature to its values.

    Raises:
        InvalidInput: a point of another size; a value that is no number, is NaN or infinite, or is
            missing where the declaration gives no number for that; a key that is not public.
    """
    columns = points if isinstance(points, Mapping) else _split_columns(features, points)
    if missing := [name for name in features if name not in columns]:
        raise InvalidInput(
            f"the points lack {', '.join(missing)}; a point has the features {', '.join(features)}"
        )
    if odd := [name for name in features if not _is_list(columns[name])]:
        raise InvalidInput(
            f"the values of {odd[0]} are no list; give a list with one value for each point"
        )
    sizes = {len(columns[name]) for name in features}
    if len(sizes) != 1:
        raise InvalidInput(
            f"the features have different numbers of values ({sorted(sizes)}); give each point one of each"
        )
    # Column by column, as it is written and read.
    codes = np.empty((len(features), sizes.pop()), np.int64)
    clamped = np.zeros(codes.shape[1], np.bool_)
    for index, name in enumerate(features):
        column = table.column(name)
        if column.public_keys is not None:
            codes[index] = _encode_keys(name, column, columns[name])
        else:
            column = table.bounded_column(name)
            codes[index], beyond = _encode_numbers(name, column, columns[name])
            clamped |= beyond
    return EncodedPoints(codes.T, clamped)


def _split_columns(features: Sequence[str], points: Any) -> Mapping[str, Any]:
    if isinstance(points, np.ndarray) and points.ndim == 2:
        if points.shape[1] != len(features):
            raise InvalidInput(_size_message(0, points.shape[1], features))
        return dict(zip(features, points.T.copy()))
    if not _is_list(points):
        raise InvalidInput(
            f"points are a list of points, each a list of {len(features)} values: {', '.join(features)}"
        )
    rows = list(points)
    for number, row in enumerate(rows):
        if not _is_list(row):
            raise InvalidInput(f"point {number} is no list; write it as [{', '.join(features)}]")
        if len(row) != len(features):
            raise InvalidInput(_size_message(number, len(row), features))
    return {name: [row[i] for row in rows] for i, name in enumerate(features)}


def _is_list(values: Any) -> bool:
    """Whether these are values in a row, and not one value or a text."""
    if isinstance(values, str | bytes):
        return False
    return isinstance(values, Sequence) or (
        hasattr(values, "__array__") and getattr(values, "ndim", 1) > 0
    )


def _size_message(number: int, found: int, features: Sequence[str]) -> str:
    return (
        f"point {number} has {found} values, but a point has {len(features)}: {', '.join(features)}"
    )


def _encode_numbers(name: str, column: Column, values: Any) -> EncodedPoints:
    """Numbers and dates in grid steps."""
    hidden = np.ma.getmaskarray(values) if isinstance(values, np.ma.MaskedArray) else None
    array = np.asarray(values)  # what a mask hides is put right below
    low, high = column.grid_bounds()
    if max(abs(low), abs(high)) > 2**53 and array.dtype.kind in "iufO":
        return _encode_exactly(name, column, values, hidden)
    if array.dtype.kind == "M":
        numbers = array.astype("datetime64[us]").astype(np.float64) / 86_400_000_000
        # A missing date is a number far below zero after the cast.
        numbers[np.isnat(array)] = np.nan
    elif array.dtype.kind in "iufb" and array.ndim == 1:
        numbers = array.astype(np.float64)
    else:
        listed_values = (
            values
            if hidden is None
            else [None if no else value for no, value in zip(hidden, array)]
        )
        numbers = np.array(
            [_parse_number(name, i, value) for i, value in enumerate(listed_values)], np.float64
        )
    if hidden is not None:
        numbers = np.where(hidden, np.nan, numbers)
    if not np.isfinite(numbers).all():
        numbers = _fill_missing(name, column, numbers)
    lower, upper = _float_bounds(column)
    beyond = (numbers < lower) | (numbers > upper)
    with np.errstate(over="ignore"):  # what is too large for a double is clamped below
        steps = numbers / float(column.step)
    # Half away from zero, as the database rounds rows.
    rounded = np.copysign(np.floor(np.abs(steps) + 0.5), steps)
    clamped = np.clip(rounded, float(low), float(high))
    # Twice, because a bound may not be a double: the second clamp is exact.
    codes: Codes = np.clip(clamped.astype(np.int64), low, high)
    return EncodedPoints(codes, beyond)


def _float_bounds(column: Column) -> tuple[float, float]:
    """Bounds as the doubles that are nearest to them, which a caller writes for them, too."""
    assert column.lower is not None and column.upper is not None
    return float(column.lower), float(column.upper)


def _encode_exactly(
    name: str, column: Column, values: Any, hidden: NDArray[np.bool_] | None
) -> EncodedPoints:
    """The same one by one, for grids of more steps than a double holds."""
    low, high = column.grid_bounds()
    assert column.lower is not None and column.upper is not None
    bounds = column.lower, column.upper
    codes, beyond = np.empty(len(values), np.int64), np.zeros(len(values), np.bool_)
    for index, value in enumerate(values):
        lower, upper = bounds
        if isinstance(value, int | np.integer | Decimal) and not isinstance(value, bool):
            finite = not isinstance(value, Decimal) or value.is_finite()
            number = (
                Fraction(value if isinstance(value, Decimal) else int(value)) if finite else None
            )
        else:
            number = None
        if number is None or (hidden is not None and hidden[index]):
            given = (
                np.nan
                if hidden is not None and hidden[index]
                else _parse_number(name, index, value)
            )
            number = Fraction(float(_fill_missing(name, column, np.array([given]), index)[0]))
            first, last = _float_bounds(column)
            lower, upper = Fraction(first), Fraction(last)
        # Half away from zero, as the database rounds rows.
        steps = int((2 * abs(number) / column.step + 1) // 2) * (-1 if number < 0 else 1)
        codes[index] = min(max(steps, low), high)
        beyond[index] = not lower <= number <= upper
    return EncodedPoints(codes, beyond)


def _fill_missing(
    name: str, column: Column, numbers: NDArray[np.float64], first: int = 0
) -> NDArray[np.float64]:
    """Numbers with the declared one for each that is missing; ``first`` is the first point's number."""
    absent = np.isnan(numbers)
    if absent.any():
        if column.missing == "skip":
            raise InvalidInput(
                f"point {first + int(absent.argmax())} has no {name}, and its column declares no missing number; give one"
            )
        numbers = np.where(absent, float(column.missing), numbers)
    if not np.isfinite(numbers).all():
        raise InvalidInput(
            f"point {first + int((~np.isfinite(numbers)).argmax())} has an infinite {name}; give a finite number"
        )
    return numbers


def _parse_number(name: str, place: int, value: Any) -> float:
    if value is None:
        return float("nan")
    if isinstance(value, str):
        try:
            value = dt.date.fromisoformat(value)
        except ValueError:
            raise InvalidInput(
                f"point {place}: {name} is a number or a date, not a text; correct it"
            ) from None
    if isinstance(value, dt.datetime):
        return (
            value.replace(tzinfo=value.tzinfo or dt.UTC) - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
        ).total_seconds() / 86400
    if isinstance(value, dt.date):
        return float((value - dt.date(1970, 1, 1)).days)
    if isinstance(value, int | float | Decimal | np.number):
        try:
            return float(value)
        except OverflowError:
            return float("inf")
    raise InvalidInput(
        f"point {place}: {name} is a number or a date, not a {type(value).__name__}; correct it"
    )


def _encode_keys(name: str, column: Column, values: Any) -> Codes:
    """Public keys by their place; no value at all is -1, as in rows."""
    assert column.public_keys is not None
    codes = {key: i for i, key in enumerate(column.public_keys)} | {None: -1}
    masked = np.ma.getmaskarray(values) if isinstance(values, np.ma.MaskedArray) else None
    texts = [None if value is None else key_text(value) for value in values]
    if masked is not None:
        texts = [None if hidden else text for text, hidden in zip(texts, masked.tolist())]
    try:
        return np.array([codes[text] for text in texts], np.int64)
    except KeyError:
        index, odd = next((i, text) for i, text in enumerate(texts) if text not in codes)
        raise InvalidInput(
            f"point {index}: {UnknownName(f'public key of {name}', str(odd), column.public_keys)}"
        ) from None


def key_text(value: Any) -> str:
    """A key as DuckDB writes it."""
    return str(value).lower() if isinstance(value, bool | np.bool_) else str(value)
