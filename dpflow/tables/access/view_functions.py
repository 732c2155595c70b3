"""Functions and casts that take one row by itself: what fails on no value, and what may stand in
TRY.

The lists hold what was tried over the extremes of every type (`tests.tables.access`); a function
that is on none of them is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dpflow.tables.access import arithmetic

#: Whole numbers that compare by widening, with their least and largest values.
RANGES = {kind: ends for kind, ends in arithmetic.RANGES.items() if kind != "boolean"}
FLOATS = {"float", "double"}
TIMES = {"timestamp", "timestamp_s", "timestamp_ms", "timestamp_ns", "timestamp with time zone"}
#: Types that expressions may read; a column of another type is only passed on, or asked for NULL.
COMPUTABLE = (
    set(RANGES) | FLOATS | TIMES
    | {"boolean", "uhugeint", "decimal", "date", "time", "uuid", "varchar", "enum"}
)  # fmt: skip

#: Functions that give a value or NULL for all values of these types, by the patterns of their
#: arguments: T a text, W a whole number, F a float, D a date or timestamp; of constants t a text,
#: i a place in a text, p a part of a date.
TOTAL: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("lower", "upper", "trim", "ltrim", "rtrim", "length", "strlen"), ("T",)),
    **dict.fromkeys(("md5", "sha256"), ("T",)),
    **dict.fromkeys(("||", "starts_with", "^@", "prefix", "suffix", "contains"), ("TT",)),
    **dict.fromkeys(("~~", "!~~", "~~*", "!~~*"), ("Tt",)),
    "concat": ("T", "TT", "TTT", "TTTT"),
    "replace": ("Ttt",),
    "substring": ("Ti", "Tii"),
    "left": ("Ti",),
    "right": ("Ti",),
    "+": ("FF", "FW", "WF"),
    "-": ("F", "FF", "FW", "WF"),
    "*": ("FF", "FW", "WF"),
    "/": ("FF", "FW", "WF", "WW"),
    "abs": ("F",),
    **dict.fromkeys(("year", "month", "day", "quarter", "dayofweek", "isodow"), ("D",)),
    "date_part": ("pD",),
}
#: Of a constant place in a text: DuckDB fails on larger ones.
MOST_PLACES = 10**6
#: Parts of a date that every date has.
DATE_PARTS = {"year", "month", "day", "quarter", "dow", "isodow", "doy", "hour", "minute"}
#: Functions whose first argument is a part of a date, and the parts that they may name.
OF_PARTS = {"date_trunc", "datetrunc", "date_part", "date_diff", "datediff", "date_sub", "datesub"}
# DuckDB fails on the first week of all, even within TRY.
PARTS = DATE_PARTS | {"second", "decade", "epoch"}
#: What else may stand in TRY: functions of one row, whose results are not much larger than what
#: they are given. Arguments that are no constants are at these places; without places, at all.
ROW_WISE: dict[str, tuple[int, ...] | None] = {
    **dict.fromkeys(TOTAL),
    **dict.fromkeys(("//", "%", "**", "^", "pow", "power", "mod", "floor", "ceil", "ceiling")),
    **dict.fromkeys(("trunc", "sign", "sqrt", "cbrt", "ln", "log", "log2", "log10", "exp")),
    **dict.fromkeys(("make_date", "make_timestamp", "epoch", "epoch_ms", "last_day", "isfinite")),
    **dict.fromkeys(("instr", "strpos", "position", "ascii", "chr", "weekofyear", "week")),
    **dict.fromkeys(("hour", "minute", "second", "dayofyear", "weekday", "isoyear")),
    **dict.fromkeys(("to_years", "to_months", "to_weeks", "to_days", "to_hours", "to_minutes")),
    **dict.fromkeys(("to_seconds", "to_milliseconds")),
    **dict.fromkeys(("round", "replace", "translate", "regexp_replace", "regexp_extract"), (0,)),
    **dict.fromkeys(("regexp_matches", "regexp_full_match", "split_part", "strftime"), (0,)),
    **dict.fromkeys(("strptime", "try_strptime", "trim", "ltrim", "rtrim"), (0,)),
    **dict.fromkeys(("date_trunc", "datetrunc", "date_part"), (1,)),
    **dict.fromkeys(("date_diff", "datediff", "date_sub", "datesub"), (1, 2)),
}  # fmt: skip


@dataclass(frozen=True)
class SqlTerm:
    """A checked expression: its text, its type, and if it is a constant of which kind."""

    text: str
    kind: str
    type: str
    literal: str = ""


def is_total(name: str, terms: Sequence[SqlTerm]) -> bool:
    """Whether a function gives a value or NULL for all values of these types."""
    return any(
        len(pattern) == len(terms)
        and all(map(_fits, pattern, terms))
        # A constant alone makes no sum one of floats.
        and any(
            not term.literal and (letter == "F" or "F" not in pattern)
            for letter, term in zip(pattern, terms, strict=True)
        )
        for pattern in TOTAL.get(name, ())
    )


def widens(value: SqlTerm, target: SqlTerm) -> bool:
    """Whether every value of one type has one of the other, so that a cast cannot fail."""
    if value.type == target.type or target.kind == "varchar":
        return True
    if value.kind in RANGES and target.kind in RANGES:
        (low, high), (least, most) = RANGES[value.kind], RANGES[target.kind]
        return least <= low and high <= most
    if value.kind == "boolean":
        return target.kind in RANGES or target.kind in FLOATS
    if target.kind == "date":
        return value.kind in TIMES
    return target.kind == "double" and (value.kind in RANGES or value.kind == "float")


def _fits(letter: str, term: SqlTerm) -> bool:
    """Whether an argument fits a letter of a function's pattern."""
    if term.literal:
        if letter == "p":
            return term.text.strip("'").casefold() in DATE_PARTS
        if letter == "i" and term.literal == "INTEGER":
            return abs(int(term.text)) <= MOST_PLACES
        numbers = ("INTEGER", "NUMERIC")
        kinds = {"T": ("STRING",), "F": numbers, "W": ("INTEGER",), "t": ("STRING",)}
        return term.literal in kinds.get(letter, ())
    kinds_of = {"T": {"varchar"}, "F": FLOATS, "W": set(RANGES), "D": TIMES | {"date"}}
    return term.kind in kinds_of.get(letter, set())
