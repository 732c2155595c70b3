"""The fields in which a released number leaves, the same in published tables, frames and files.

All of them are functions of what was released: nothing here knows a table's columns or rows.
"""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import dataclass

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
    "half_width_95",
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
)

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
