"""The fields in which a released number leaves, the same in published tables, frames and files.

All of them are functions of what was released: nothing here knows a table's columns or rows.

A reader's ``value`` and noise interval are clipped to the public range of the measure; ``raw_value``
and ``half_width_95`` are what was drawn, for sums over rows: a sum of clipped numbers is biased.
"""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import dataclass, replace
from typing import Any

from dpflow.core.contract.results import UNLIMITED, Result, Row, ValueRange

#: Their names, in order.
FIELDS = (
    "release_id",
    "release",
    "block",
    "mechanism",
    "group_key",
    "measure",
    "value",
    "text",
    "noise_low",
    "noise_high",
    "low",
    "high",
    "clipped",
    "only_a_bound",
    "remark",
    "epsilon",
    "delta",
    "scope",
    "run",
    "released_at",
    "protects",
    "key_integer",
    "key_date",
    "key_timestamp",
    "raw_value",
    "half_width_95",
)

#: DuckDB's types of those that are not texts.
FIELD_KINDS = {
    **dict.fromkeys(
        ("value", "noise_low", "noise_high", "low", "high", "raw_value", "half_width_95"), "DOUBLE"
    ),
    **dict.fromkeys(("clipped", "only_a_bound"), "BOOLEAN"),
    "epsilon": "DOUBLE",
    "delta": "DOUBLE",
    "released_at": "TIMESTAMP",
    "key_integer": "BIGINT",
    "key_date": "DATE",
    "key_timestamp": "TIMESTAMP",
}

# As DuckDB writes them: '07' is no integer, and a fraction ends in no zero.
_INTEGER = re.compile(r"0|-?[1-9][0-9]{0,18}")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_TIMESTAMP = re.compile(_DATE.pattern + r" [0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{0,5}[1-9])?")
#: A text that writes a decimal, which no key of an integer or date does.
_DECIMAL = re.compile(r"-?[0-9]+\.[0-9]+")


@dataclass(frozen=True)
class TypedKey:
    """A group's key by the type that its text writes: one of these, or none of them for any other
    text.

    Attributes:
        integer: of 64 bits.
        date: of the years 1 to 9999.
        timestamp: without a zone, exact to the microsecond, of the same years.
    """

    integer: int | None = None
    date: dt.date | None = None
    timestamp: dt.datetime | None = None


def read_key(text: str) -> TypedKey:
    """The typed form of a key. Only the text that DuckDB itself writes for a value counts, so two
    keys never have one typed form.
    """
    # Keys of text are the most frequent ones.
    if not text or text[-1] not in "0123456789" or len(text) > 26:
        return TypedKey()
    if _INTEGER.fullmatch(text):
        number = int(text)
        return TypedKey(integer=number) if -(2**63) <= number < 2**63 else TypedKey()
    try:
        if _DATE.fullmatch(text):
            return TypedKey(date=dt.date.fromisoformat(text))
        if _TIMESTAMP.fullmatch(text):
            whole, _, fraction = text.partition(".")
            return TypedKey(
                timestamp=dt.datetime.fromisoformat(f"{whole}.{fraction.ljust(6, '0')}")
            )
    except ValueError:  # 2013-02-30
        pass
    return TypedKey()


@dataclass(frozen=True)
class ClippedNumber:
    """A released number as readers get it: in its public range.

    Attributes:
        value: the nearest possible value; of a row that is no number, what it holds.
        noise_low, noise_high: the 95 % noise interval, in the same range; of one that lies outside,
            both are the nearest end. None where no bound is proved.
        clipped: whether value or interval reached outside the range.
        low, high: the 95 % total interval, of noise and truncation, in the same range; None where it is
            not known.
    """

    value: float | int | str | None
    noise_low: float | None = None
    noise_high: float | None = None
    clipped: bool = False
    low: float | None = None
    high: float | None = None


def clip_number(
    value: float | int | str | None, span: tuple[float, float] | None, limits: ValueRange
) -> ClippedNumber:
    """A number and its interval, clipped to a range."""
    if isinstance(value, str | bool) or value is None:
        return ClippedNumber(value)
    nearest = limits.clip(value)
    if span is None:
        return ClippedNumber(nearest, clipped=(nearest,) != (value,))
    low, high = map(limits.clip, span)
    return ClippedNumber(nearest, low, high, (nearest, low, high) != (value, *span))


def clip_row(row: Row, result: Result) -> ClippedNumber:
    """A row's number, noise interval and total interval, clipped to the range of its measure."""
    value, width = row.value, row.half_width_95
    limits = result.ranges.get(row.measure, UNLIMITED)
    if isinstance(value, str) or value is None or width is None:
        return clip_number(value, None, limits)
    number = clip_number(value, (float(value - width), float(value + width)), limits)
    ends = None if result.totals is None else result.totals.ends.get(row.measure)
    if ends is None:
        return number
    low, high = (limits.clip(float(end)) for end in ends.find_span(value, width))
    return replace(number, low=low, high=high)


def list_row_fields(result: Result) -> dict[str, list[Any]]:
    """The fields that differ by row, as lists by name; numbers of ``value`` as they are."""
    rows = result.rows
    numbers = [clip_row(row, result) for row in rows]
    keys = [read_key(row.key) for row in rows]
    values = [split_value(number.value) for number in numbers]
    return {
        "group_key": [row.key for row in rows],
        "measure": [row.measure for row in rows],
        "value": [value for value, _ in values],
        "text": [text for _, text in values],
        "noise_low": [_as_float(number.noise_low) for number in numbers],
        "noise_high": [_as_float(number.noise_high) for number in numbers],
        "low": [_as_float(number.low) for number in numbers],
        "high": [_as_float(number.high) for number in numbers],
        "clipped": [number.clipped for number in numbers],
        "only_a_bound": [row.only_a_bound for row in rows],
        "remark": [row.remark or None for row in rows],
        "key_integer": [key.integer for key in keys],
        "key_date": [key.date for key in keys],
        "key_timestamp": [key.timestamp for key in keys],
        "raw_value": [_as_float(split_value(row.value)[0]) for row in rows],
        "half_width_95": [_as_float(row.half_width_95) for row in rows],
    }


def _as_float(value: float | None) -> float | None:
    return None if value is None else float(value)


def split_value(value: float | int | str | None) -> tuple[float | int | None, str | None]:
    """A released value as a number and as a text: the exact text stands wherever a double would not
    be exact, and alone where the value is no number.
    """
    if isinstance(value, str):
        return (float(value) if _DECIMAL.fullmatch(value) else None), value
    exact = value is None or isinstance(value, float) or abs(value) <= 2**53
    return value, None if exact else str(value)


def utc_time(time: dt.datetime | None) -> dt.datetime | None:
    """A time with its zone as the fields have it: in UTC, without the zone."""
    return None if time is None else time.astimezone(dt.UTC).replace(tzinfo=None)
