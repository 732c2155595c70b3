"""Whether a value is exactly one of its declared type, as SQL conditions.

DuckDB's casts are generous: ``2026-01-01 junk`` is a date to its CSV reader, ``1.7`` is the integer 2,
and a time's offset is dropped. A load takes a value as it is written, or rejects it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from dpflow.tables.access import sql

_DECIMAL = re.compile(r"DECIMAL\(\d+,(\d+)\)")
_FLOATS = ("FLOAT", "DOUBLE")
# With the digits of a second's fraction that each can hold.
_TIMESTAMPS = {
    "TIMESTAMP": 6,
    "TIMESTAMP_S": 0,
    "TIMESTAMP_MS": 3,
    "TIMESTAMP_NS": 9,
    "TIMESTAMP WITH TIME ZONE": 6,
}
_DATE = r"\d{4,7}-\d\d-\d\d"
_OFFSET = r"(Z|[+-](0\d|1[0-5])(:?[0-5]\d(:?[0-5]\d)?)?)?"
_FLOAT = r"(?i)[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?|[+-]?inf(inity)?|nan"
_HEX = "[0-9a-fA-F]"
_UUID = f"{_HEX}{{8}}(-{_HEX}{{4}}){{3}}-{_HEX}{{12}}|{_HEX}{{32}}"


@dataclass(frozen=True)
class TypedValue:
    """A value and the type it is cast to. Texts and conditions are SQL.

    Attributes:
        value: the value as it is stored, such as a column's name.
        stored: its type in DuckDB's words; ``VARCHAR`` for a text.
        declared: the type it is cast to (`dpflow.tables.loading.column_types`).
        time_format: how dates or timestamps are written, as for strptime; ISO 8601 if None.
        canonical: whether a database wrote the text from a value of the declared type: looking at each
            of its characters would take a third of a load.
    """

    value: str
    stored: str
    declared: str
    time_format: str | None = None
    canonical: bool = False

    def cast(self) -> str:
        """The value in its declared type, or NULL. Exact only where `is_exact` says so."""
        value = self.value
        if self.time_format is not None:
            value = f"try_strptime({value}, {sql.quote_text(self.time_format)})"
        return f"TRY_CAST({value} AS {self.declared})"

    def is_exact(self, cast: str) -> str:
        """Whether a value that is not missing is what its cast, named here, says."""
        condition = f"{cast} IS NOT NULL"
        if self.declared in ("VARCHAR", self.stored):
            return condition
        if self.stored != "VARCHAR":
            # What a cast drops or rounds does not come back.
            return f"{condition} AND TRY_CAST({cast} AS {self.stored}) IS NOT DISTINCT FROM {self.value}"
        if self.time_format is not None:
            return f"{condition} AND {self._fits_format(cast)}"
        if self.canonical:
            # Years before 1 are the one thing that a cast reads otherwise: it drops what follows a date.
            dated = self.declared == "DATE" or self.declared in _TIMESTAMPS
            return f"{condition} AND NOT suffix({self.value}, 'BC')" if dated else condition
        pattern = _find_pattern(self.declared)
        if pattern is not None:
            condition += f" AND regexp_full_match({self.value}, {sql.quote_text(pattern)})"
        if self.declared in _FLOATS:
            # A number that is too large is read as infinite.
            condition += f" AND (NOT isinf({cast}) OR {self.value} ILIKE '%inf%')"
        return condition

    def _fits_format(self, cast: str) -> str:
        """strptime skips blanks, takes "infinity" for 1900, and tells more than a date holds."""
        parsed = f"try_strptime({self.value}, {sql.quote_text(self.time_format or '')})"
        return (
            rf"regexp_full_match({self.value}, '\S(.*\S)?') AND regexp_matches({self.value}, '\d') "
            f"AND {cast} = {parsed}"
        )


def _find_pattern(kind: str) -> str | None:
    """How a text is written that is exactly of this type; None where DuckDB's cast is exact."""
    if kind in _FLOATS:
        return _FLOAT
    if kind == "DATE":
        return f"{_DATE}|-?infinity"
    if kind == "TIME":
        return rf"\d\d:\d\d{_write_seconds(6)}"
    if kind in _TIMESTAMPS:
        offset = _OFFSET if kind.endswith("ZONE") else ""
        hours = rf"([01]\d|2[0-3]):\d\d{_write_seconds(_TIMESTAMPS[kind])}"
        return f"{_DATE}([T ]{hours}{offset})?|-?infinity"
    if kind == "UUID":
        return _UUID
    if kind == "BOOLEAN":
        return None
    decimal = _DECIMAL.fullmatch(kind)
    return rf"[+-]?\d*{_write_fraction(int(decimal[1]) if decimal else 0)}"


def _write_seconds(digits: int) -> str:
    return rf"(:\d\d{_write_fraction(digits)})?"


def _write_fraction(digits: int) -> str:
    """So many digits behind a point, and zeros."""
    return rf"(\.\d{{0,{digits}}}0*)?"
