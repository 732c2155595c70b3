"""How a query reads a column of each of Spark's types: exact grid steps, and keys as texts.

Every expression is total whether or not the server's ANSI mode is on: numbers are clamped before they
change type, so nothing overflows, and no cast meets a value that its type lacks.
"""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import replace
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from typing import Any, NoReturn

from dpflow.core.contract.columns import Column
from dpflow.core.contract.declaration import MAX_MAGNITUDE
from dpflow.errors import PlanRefused, TableUnreadable, UnfitColumn
from dpflow.tables.access.arithmetic import (
    BIGINT,
    RANGES,
    SPARK,
    Whole,
    absolute_double,
    choose,
    clamp_days,
    double,
    greatest,
    least,
    operate_doubles,
    outer_doubles,
    spark_decimal_units,
    sum_parities,
)
from dpflow.tables.access.parquet_texts import name_text_type
from dpflow.tables.access.sql import (
    FIRST_MICROSECOND,
    LAST_MICROSECOND,
    Field,
    convert_missing,
)

#: Spark's types by their names, as the kinds that the declared language knows.
_KINDS = {
    "tinyint": "tinyint",
    "smallint": "smallint",
    "int": "integer",
    "bigint": "bigint",
    "float": "float",
    "double": "double",
    "date": "date",
    "timestamp_ntz": "timestamp",
    "timestamp": "timestamp with time zone",
    "boolean": "boolean",
    "string": "varchar",
}
#: The kind of a column whose values the server may not read as they are.
MISREAD = "misread"
#: The kind of a column on one of whose values a server can fail, until all of them were read once.
UNVERIFIED = "unverified"
INTEGERS = {"tinyint": 2**7, "smallint": 2**15, "integer": 2**31, "bigint": 2**63}
_FLOATS = {"float", "double"}
_VALUES = {
    *INTEGERS,
    *_FLOATS,
    "decimal",
    "date",
    "timestamp",
    "timestamp with time zone",
    "boolean",
}
_KEYS = {*INTEGERS, "decimal", "date", "timestamp", "boolean", "varchar"}
_CALENDAR = {"date": "DATE", "timestamp": "TIMESTAMP_NTZ"}
_CALENDAR_ENDS = ("0001-01-01", "10000-01-01")
_DAY = 86_400_000_000
#: Digits of a decimal that 64 bits hold, and of one that Spark writes without an exponent.
_DIGITS, _PLAIN_SCALE = 18, 6


def quote_name(name: str) -> str:
    """A quoted identifier."""
    return "`" + name.replace("`", "``") + "`"


def name_type(column: Any) -> str:
    """The name of the type of a column of Spark's schema. That of a text which Spark does not compare as
    bytes is in its metadata, where a reader takes it for a plain one.
    """
    return name_text_type(column.metadata) or str(column.dataType.simpleString())


def describe_field(name: str, kind: str) -> Field:
    """A field from the name of Spark's type; one of an unknown type has that name for its kind."""
    reference = quote_name(name)
    if found := re.fullmatch(r"decimal\((\d+),(\d+)\)", kind):
        width, scale = int(found[1]), int(found[2])
        # A file's bytes hold more digits than its type says, of which servers make values.
        digits = "9" * width
        end = f"{digits[scale:]}.{digits[:scale]}"
        ends = [f"CAST('{sign}{end}' AS {kind})" for sign in ("-", "")]
        within = f"{reference} BETWEEN {ends[0]} AND {ends[1]}"
        genuine = f"(CASE WHEN {within} THEN {reference} END)"
        return Field(name, "decimal", kind, width, scale, reference=genuine)
    return Field(name, _KINDS.get(kind, kind), kind, reference=reference)


def key_text(field: Field, role: str) -> str:
    """The column as a text to group and compare by: equal exactly when the values are the same. NULL for a
    date or time outside of the years 1 to 9999, of which servers write several ones alike.

    Raises `TableUnreadable` for types whose values have no one text, and `PlanRefused` as `require_read`.
    """
    require_read(field)
    if field.kind not in _KEYS or field.scale > _PLAIN_SCALE:
        raise TableUnreadable(
            f"column {field.name!r} is a {field.type.upper()} and cannot be a {role} on Spark; use a whole number, text, "
            f"DATE, TIMESTAMP_NTZ, BOOLEAN, or DECIMAL column of at most {_PLAIN_SCALE} decimals"
        )
    return write_text(within_calendar(field.reference, field.kind), field.kind)


def within_calendar(value: str, kind: str) -> str:
    """A date or time of the years 1 to 9999, else NULL; a value of another kind as it is."""
    if kind not in _CALENDAR:
        return value
    first, last = (f"CAST('{end}' AS {_CALENDAR[kind]})" for end in _CALENDAR_ENDS)
    return f"CASE WHEN {value} >= {first} AND {value} < {last} THEN {value} END"


def write_text(value: str, kind: str) -> str:
    """A value of a kind as a text, by a function where it is none. Sail carries a file's least and largest
    value through a plain cast, and fails where their texts are in another order, as of 9 and 10: whether
    there is an answer would follow from one row.
    """
    text = f"CAST({value} AS STRING)"
    return text if kind == "varchar" else f"substr({text}, 1)"


def unit_text(field: Field, role: str) -> str:
    """The column as a text that names nobody, but tells every two values apart. Raises as `key_text`.

    Of a time it is a number, for servers write one text for all times that their clocks do not show:
    two units would be one, and either could change what the other keeps.
    """
    text = key_text(field, role)
    numbers = {
        "date": f"unix_date({field.reference})",
        "timestamp": f"unix_micros(CAST({field.reference} AS TIMESTAMP))",
    }
    return write_text(numbers[field.kind], "bigint") if field.kind in numbers else text


def write_owner(field: Field, role: str) -> str:
    """The column as rows are put together by whose they are: a BIGINT of whole numbers, which is cheaper to
    compare, else the text of `unit_text`. Raises as `key_text`.
    """
    text = unit_text(field, role)
    return f"CAST({field.reference} AS BIGINT)" if field.kind in INTEGERS else text


def holds_text(field: Field, text: str) -> bool:
    """Whether a key's text is how a value of the column's type is written; decided here, not by
    the server.
    """
    try:
        if field.kind in INTEGERS:
            end = INTEGERS[field.kind]
            return str(int(text)) == text and -end <= int(text) < end
        if field.kind == "date":
            return str(dt.date.fromisoformat(text)) == text
        if field.kind == "timestamp":
            moment = dt.datetime.fromisoformat(text)
            if moment.tzinfo is not None:
                # Servers pass over the zone, so one block would have many names, each with a budget.
                return False
            fraction = f".{moment.microsecond:06}".rstrip("0").rstrip(".")
            return f"{moment.replace(microsecond=0)}{fraction}" == text
        if field.kind == "decimal":
            number = Decimal(text)
            digits = number.as_tuple()
            fits = len(digits.digits) <= field.width
            zero = number == 0 and text.startswith("-")
            return f"{number:f}" == text and digits.exponent == -field.scale and fits and not zero
    except (ValueError, InvalidOperation):
        return False
    return text in ("true", "false") if field.kind == "boolean" else True


def write_grid_steps(field: Field, declared: Column) -> Whole:
    """The column in grid steps as a BIGINT within the declared bounds: clamped, rounded half away
    from zero.

    NULL and NaN are ``declared.missing``. Dates and timestamps count days since 1970-01-01 (UTC).

    Raises:
        TableUnreadable: the type is none of a number.
        PlanRefused: bounds and step are beyond what 64 bits compute exactly.
    """
    _require_value(field)
    low, high = declared.grid_bounds()
    if max(-low, high, high - low) > MAX_MAGNITUDE:
        _refuse(field, "bounds further than 2^62 steps from 0 or from each other")
    missing = _write_missing(field)
    exact = field.kind not in _FLOATS
    steps = _exact_steps(field, declared) if exact else _float_steps(field, declared)
    clamped = least(greatest(steps, low), high)
    if declared.missing == "skip":
        return choose([(f"NOT ({missing})", clamped)])
    # A declared number is put on the grid as a row's value would be.
    default = min(max(_half_away(declared.missing / declared.step), low), high)
    return choose([(missing, SPARK.number(default))], clamped)


def write_number(field: Field) -> tuple[str, str]:
    """The column as a DOUBLE, dates and timestamps in days since 1970-01-01, and the condition that it
    has no value. To compare, not to add up. Raises `TableUnreadable` as `write_grid_steps` does.
    """
    _require_value(field)
    if field.kind in (*_FLOATS, "decimal"):
        return f"CAST({field.reference} AS DOUBLE)", _write_missing(field)
    whole = _write_integer(field)
    if not field.kind.startswith("timestamp"):
        return f"CAST({whole} AS DOUBLE)", _write_missing(field)
    whole = least(greatest(whole, FIRST_MICROSECOND), LAST_MICROSECOND)
    days = operate_doubles(f"CAST({whole} AS DOUBLE)", "/", double(_DAY))
    return days, _write_missing(field)


def write_bounded_number(field: Field, declared: Column) -> str:
    """The column as estimators read it: a DOUBLE within its bounds if it has any, ``declared.missing`` or
    NaN for what is missing; text as its bytes. Raises `TableUnreadable` as `write_grid_steps` does.
    """
    if field.kind == "varchar":
        return f"CAST({field.reference} AS BINARY)"
    value, missing = write_number(field)
    if declared.lower is not None and declared.upper is not None:
        value = f"least(greatest({value}, {double(declared.lower)}), {double(declared.upper)})"
    default = "CAST('NaN' AS DOUBLE)" if declared.missing == "skip" else double(declared.missing)
    return f"CASE WHEN {missing} THEN {default} ELSE {value} END"


def write_open_number(field: Field, declared: Column) -> str:
    """The column as a number without bounds, in the same order: a DOUBLE of binary floats, else a BIGINT;
    NULL and NaN are ``declared.missing`` where that is a number, else they stay. Decimals count their last
    digit, dates days and times microseconds since 1970-01-01 (UTC).

    Raises:
        TableUnreadable: the type is none of a number.
        PlanRefused: a decimal that 64 bits do not hold, or a declared number that is none of the type's.
    """
    _require_value(field)
    missing = convert_missing(field, declared)
    if field.kind in _FLOATS:
        number = f"CAST({field.reference} AS DOUBLE)"
        if missing is None:
            return number
        return f"CASE WHEN {_write_missing(field)} THEN {double(missing)} ELSE {number} END"
    end = 10**field.width - 1
    value = _decimal_units(field, -end, end) if field.kind == "decimal" else _write_integer(field)
    # least and greatest pass over NULL, so a missing value would become a bound.
    default = "NULL" if missing is None else SPARK.literal(int(missing), BIGINT)
    return f"CASE WHEN {field.reference} IS NULL THEN {default} ELSE {value} END"


def find_misread(field: Field, stored: str) -> Field:
    """A field as servers other than Apache Spark read it, of the kind `MISREAD` where they may not read every
    value: floats, for Sail reads a number where a file has NaN; and what is stored as another type than
    the schema says, such as unsigned integers.
    """
    if field.is_float or stored != field.type:
        return replace(field, kind=MISREAD, type=stored)
    return field


def needs_verification(field: Field, *, is_apache_spark: bool) -> bool:
    """Whether a server can fail on one value that a file of this column holds: a time in milliseconds beyond
    the years of microseconds, and on Apache Spark, of a type of more than 18 digits, a number with more.
    """
    return field.kind.startswith("timestamp") or (is_apache_spark and field.width > _DIGITS)


def find_unverified(field: Field) -> Field:
    """A field that needs verification and has none, as one of the kind `UNVERIFIED`."""
    return replace(field, kind=UNVERIFIED)


def write_decoded(field: Field) -> str:
    """An aggregate of a column that needs verification, for which the server decodes every value. It fails
    where a query of such a column would.
    """
    if field.kind.startswith("timestamp"):
        return sum_parities(_write_integer(field))
    digits = f"CAST(length(CAST({quote_name(field.name)} AS STRING)) AS BIGINT)"
    return sum_parities(SPARK.column(digits, 0, 100))


def require_read(field: Field) -> None:
    """Raises `PlanRefused` for a column whose values the server may not read as they are."""
    if field.kind == UNVERIFIED:
        raise PlanRefused(
            f"column {field.name!r} is a {field.type.upper()}, and the server fails on values that a file of this type can hold; "
            f"store a DATE or at most {_DIGITS} digits, or let its owner verify the rows as they are now: name a file in the "
            f"source, such as verified: visits.verified.json, and run dpflow load DECLARATION --in-place"
        )
    if field.kind == MISREAD:
        raise PlanRefused(
            f"column {field.name!r} has the type {field.type.upper()}, of which servers other than Apache Spark do not read every "
            f"value as it is; store a BIGINT or DECIMAL, or read it on Apache Spark"
        )


def _require_value(field: Field) -> None:
    require_read(field)
    if field.kind not in _VALUES:
        raise UnfitColumn(
            f"column {field.name!r} is a {field.type.upper()} and cannot be a value on Spark; use a number, DATE, TIMESTAMP "
            f"or BOOLEAN column"
        )


def _write_missing(field: Field) -> str:
    missing = f"{field.reference} IS NULL"
    return f"{missing} OR isnan({field.reference})" if field.kind in _FLOATS else missing


def _write_integer(field: Field) -> Whole:
    """A number's, day's or time's own units as a BIGINT."""
    name = field.reference
    value = {
        "date": f"CAST(unix_date({name}) AS BIGINT)",
        "timestamp": f"unix_micros(CAST({name} AS TIMESTAMP))",
        "timestamp with time zone": f"unix_micros({name})",
        "boolean": f"CASE WHEN {name} THEN 1L ELSE 0L END",
    }.get(field.kind, f"CAST({name} AS BIGINT)")
    kind = "integer" if field.kind == "date" else field.kind
    whole = SPARK.column(value, *RANGES.get(kind, RANGES["bigint"]))
    if field.kind != "date":
        return whole
    # The last two days that 32 bits hold are no days on DuckDB.
    return least(
        greatest(whole, clamp_days(RANGES["integer"][0])), clamp_days(RANGES["integer"][1])
    )


def _refuse(field: Field, what: str) -> NoReturn:
    raise PlanRefused(
        f"column {field.name!r} has {what}, which Spark's 64 bits do not compute exactly; take a coarser step, or "
        f"tighter bounds"
    )


def _half_away(value: Fraction) -> int:
    size = (2 * abs(value) + 1) // 2
    return int(size if value >= 0 else -size)


def _float_steps(field: Field, declared: Column) -> Whole:
    low, high = declared.grid_bounds()
    step = declared.step
    if max(step.numerator, step.denominator) > 10**300:
        _refuse(field, f"the step {step}")
    value = f"CAST({field.reference} AS DOUBLE)"
    # Inside, for a server may look at a CASE's branches whatever its conditions are.
    value = f"CASE WHEN isnan({value}) THEN {double(0)} ELSE {value} END"
    if step.denominator != 1:
        value = operate_doubles(f"({value})", "*", double(step.denominator))
    if step.numerator != 1:
        value = operate_doubles(f"({value})", "/", double(step.numerator))
    first, last = outer_doubles(low, high)
    return round_double(f"least(greatest({value}, {double(first)}), {double(last)})")


def round_double(value: str) -> Whole:
    """A DOUBLE of at most `MAX_MAGNITUDE`, rounded half away from zero; NULL stays.

    By the exact fraction, for servers differ in how they round a double.
    """
    size = absolute_double(value)
    integer = SPARK.column(f"CAST(floor({size}) AS BIGINT)", 0, 2 * MAX_MAGNITUDE - 2)
    rest = operate_doubles(size, "-", integer.as_double())
    half = f"{rest} >= {double(Fraction(1, 2))}"
    rounded = integer + choose([(half, SPARK.number(1))], SPARK.number(0))
    return choose([(f"{value} < {double(0)}", -rounded)], rounded)


def _exact_steps(field: Field, declared: Column) -> Whole:
    low, high = declared.grid_bounds()
    divisor = 10**field.scale if field.kind == "decimal" else 1
    if field.kind.startswith("timestamp"):
        divisor = _DAY
    ratio = 1 / (divisor * declared.step)
    # Rounded outwards, so that clamping the type's own units moves no value within the bounds.
    ends = int(low / ratio // 1), int(-(-high / ratio // 1))
    units = (
        _decimal_units(field, *ends)
        if field.kind == "decimal"
        else least(greatest(_write_integer(field), ends[0]), ends[1])
    )
    if ratio == 1:
        return units
    try:
        return (units * ratio.numerator).divide_half_away(ratio.denominator)
    except PlanRefused:
        _refuse(field, f"a step that does not fit its type {field.type}")


def _decimal_units(field: Field, first: int, last: int) -> Whole:
    """A DECIMAL's digits without the point, clamped, as a BIGINT."""
    end = 10**field.width - 1
    low, high = (min(max(one, -end), end) for one in (first, last))
    if max(abs(low), abs(high)) >= 10**_DIGITS or field.scale >= _DIGITS:
        _refuse(field, f"the type {field.type} and more than {_DIGITS} digits within its bounds")
    texts = (f"{Decimal(one).scaleb(-field.scale):f}" for one in (low, high))
    ends = [f"CAST('{text}' AS {field.type})" for text in texts]
    clamped = f"least(greatest({field.reference}, {ends[0]}), {ends[1]})"
    narrow = f"CAST({clamped} AS DECIMAL({_DIGITS}, {field.scale}))"
    return spark_decimal_units(narrow, field.scale, low, high)


def decode_texts(column: Any) -> list[str | None]:
    """Texts that came as bytes; None for NULL, and for what is no UTF-8, which Spark's strings may hold."""
    texts: list[str | None] = []
    for raw in column.to_pylist():
        try:
            texts.append(None if raw is None else raw.decode())
        except UnicodeDecodeError:
            texts.append(None)
    return texts
