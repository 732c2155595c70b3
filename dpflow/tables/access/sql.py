"""SQL text: the only place that quotes, and the exact expressions for values, keys and units by
column type.

Every expression is total: whatever a row holds, it gives a value or NULL and never an error.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from dpflow.core.contract.columns import Column
from dpflow.errors import PlanRefused, TableUnreadable, UnfitColumn, UnknownName
from dpflow.tables.access.arithmetic import (
    BIGINT,
    DUCKDB,
    HUGEINT,
    MAX_ROWS,
    RANGES,
    Whole,
    choose,
    clamp_days,
    coalesce,
    date_of_days,
    days_of_date,
    decimal_digits,
    double,
    greatest,
    least,
    operate_doubles,
    place_from_zero,
)

_WHOLE = {
    "tinyint",
    "smallint",
    "integer",
    "bigint",
    "utinyint",
    "usmallint",
    "uinteger",
    "boolean",
}
_WIDE = {"ubigint", "hugeint"}
_FLOATS = {"float", "double"}
_TIMES = {"timestamp", "timestamp_s", "timestamp_ms", "timestamp_ns", "timestamp with time zone"}
# No integer of ours holds the upper half of a UHUGEINT: it can be a key, and no value.
_VALUES = _WHOLE | _WIDE | _FLOATS | _TIMES | {"decimal", "date"}
_KEYS = _WHOLE | _WIDE | _TIMES | {"uhugeint", "decimal", "date", "time", "uuid", "varchar", "enum"}

_DAY = 86_400_000_000  # microseconds
_FIRST = "290309-12-22 (BC) 00:00:00"  # of what DuckDB writes as a date and time
_LAST = {kind: "294247-01-10 04:00:54.775806" for kind in _TIMES - {"timestamp_ns"}}
_LAST |= {"timestamp_s": "294247-01-10 04:00:54", "timestamp_ms": "294247-01-10 04:00:54.775"}
FIRST_MICROSECOND, LAST_MICROSECOND = -9_223_372_022_400_000_000, 2**63 - 2  # of a TIMESTAMP
#: Collations by which texts are equal exactly where their bytes are.
BYTEWISE = {"", "c", "binary", "posix"}


#: An ENUM with its values, each in single quotes.
_ENUM_VALUES = re.compile(r"ENUM ?\((?:'(?:[^']|'')*'(?:, ?)?)*\)", re.IGNORECASE)


@dataclass(frozen=True)
class Field:
    """A column as the catalog describes it: ``kind`` is the type's family, ``type`` its full name,
    ``width`` the digits of a DECIMAL or the number of an ENUM's values.

    ``reference`` is where a query finds it, if not under its name in ``t``; ``parts`` are the columns
    whose keys it combines; ``collation`` is how the source compares its texts, if not as bytes.
    """

    name: str
    kind: str
    type: str
    width: int = 0
    scale: int = 0
    reference: str = ""
    parts: tuple[Field, ...] = ()
    collation: str = ""

    @property
    def is_float(self) -> bool:
        """Whether the values are binary floats."""
        return self.kind in _FLOATS

    @property
    def sql(self) -> str:
        """The column in a query that reads its relation as ``t``; NULL for what its storage holds
        and no value of the type stands for.

        Files and frames bring such timestamps, times, decimals, truth values and codes of an ENUM.
        DuckDB compares and groups them, but fails where it writes or converts one, or reads memory
        beyond what it owns, and a row must not make a query fail.

        Raises `TableUnreadable` for texts that the source compares by a collation: dpflow compares
        bytes, so one unit would count as several.
        """
        if self.collation.casefold() not in BYTEWISE:
            raise TableUnreadable(
                f"column {self.name!r} has the collation {self.collation}, which takes different texts for equal, and "
                f"dpflow compares bytes; {advise_plain_text(self.name, self.collation)}"
            )
        value = self.reference or f"t.{quote_name(self.name)}"
        # JSON is stored as VARCHAR, and functions of texts want it to be one.
        if self.type == "JSON":
            return f"CAST({value} AS VARCHAR)"
        genuine = self._is_genuine(value)
        return value if genuine is None else f"CASE WHEN {genuine} THEN {value} END"

    def _is_genuine(self, value: str) -> str | None:
        """The condition that what is stored is a value of the type; None if it cannot but be one."""
        if self.kind == "boolean":
            return f"CAST({value} AS UTINYINT) <= 1"
        if self.kind == "enum":
            return f"enum_code({value}) < {self.width}"
        ends: tuple[str, ...] = ()
        if self.kind in _LAST:
            ends = (_FIRST, _LAST[self.kind])
        elif self.kind == "time":
            ends = ("00:00:00", "24:00:00")
        elif self.kind == "decimal":
            digits = "9" * self.width
            most = f"{digits[self.scale :]}.{digits[: self.scale]}"
            ends = ("-" + most, most)
        if not ends:
            return None
        first, last = (f"CAST('{text}' AS {self.type})" for text in ends)
        within = f"{value} BETWEEN {first} AND {last}"
        if self.kind not in _LAST:
            return within
        infinities = (f"CAST('{text}' AS {self.type})" for text in ("infinity", "-infinity"))
        return f"{within} OR {value} IN ({', '.join(infinities)})"


def advise_plain_text(name: str, collation: str) -> str:
    """How to get one text for all values that a collation takes for equal, as the end of a sentence."""
    functions = {"nocase": "lower", "noaccent": "strip_accents", "nfc": "nfc_normalize"}
    parts, text = collation.casefold().split("."), quote_name(name)
    if not set(parts) <= set(functions):
        return "store one text for each value in a column without a collation"
    for part in parts:
        text = f"{functions[part]}({text})"
    # Of these functions, views that are rewritten have lower alone.
    view = f", or read a view that selects {text} COLLATE C" if parts == ["nocase"] else ""
    return f"store {text} in a column without a collation{view}"


def describe_field(name: str, kind: Any) -> Field:
    """A field from DuckDB's Python type."""
    if kind.id == "decimal":
        sizes = dict(kind.children)
        return Field(name, "decimal", str(kind), sizes["precision"], sizes["scale"])
    if kind.id == "enum":
        return Field(name, "enum", str(kind), len(dict(kind.children)["values"]))
    return Field(name, kind.id, str(kind))


def describe_type(kind: str) -> str:
    """DuckDB's name of a type for messages: the full one of an ENUM, also within another type, lists values that may be
    those of rows.
    """
    return _ENUM_VALUES.sub("ENUM", kind)


def match_name(name: str, known: Mapping[str, Any], kind: str) -> str:
    """The known name that DuckDB means by this one (case does not matter), or `TableUnreadable`
    with close matches.
    """
    if name in known:
        return name
    folded = {other.casefold(): other for other in known}
    if name.casefold() in folded:
        return folded[name.casefold()]
    raise TableUnreadable(str(UnknownName(kind, name, known)))


def quote_name(name: str) -> str:
    """A quoted identifier."""
    # A doubled quote is SQL's only escape in a name: nothing that a name holds can end it.
    return '"' + name.replace('"', '""') + '"'


def quote_path(*names: str) -> str:
    """Quoted names, such as database, schema and table, with points between them."""
    return ".".join(quote_name(name) for name in names)


def quote_text(text: str) -> str:
    """A quoted string."""
    return "'" + text.replace("'", "''") + "'"


def key(column: Field, role: str) -> str:
    """The column as something to group, partition and compare by: equal exactly when the values are
    the same.

    Text is compared as bytes. Raises `TableUnreadable` for types without one exact equality, and
    for text with a collation.
    """
    if column.kind not in _KEYS:
        raise TableUnreadable(
            f"column {column.name!r} is a {column.kind.upper()} and cannot be a {role}; use a whole number, text, DATE, "
            f"TIMESTAMP, DECIMAL, UUID, ENUM or BOOLEAN column"
        )
    return f"CAST({column.sql} AS VARCHAR)" if column.kind == "enum" else column.sql


def write_keys(column: Field, texts: Sequence[str]) -> str:
    """Keys given as text as values of `key`, with commas between them."""
    return ", ".join(
        key_from_text(column, f"CAST({quote_text(text)} AS VARCHAR)") for text in texts
    )


#: What is added to a `small_integer`, so that it is not negative.
SMALL_OFFSET = 2**31


def small_integer(column: Field) -> Whole | None:
    """The column as a number of 32 bits, if every value of its type has one: a private key that
    needs no dictionary.
    """
    small = column.kind in ("tinyint", "smallint", "integer", "utinyint", "usmallint")
    return DUCKDB.read(column.sql, column.kind) + SMALL_OFFSET if small else None


def is_integer(column: Field) -> bool:
    """Whether the column's values are whole numbers of 64 bits, whose text is theirs."""
    return column.kind in _WHOLE - {"boolean"}


def ordinal(kind: str) -> Callable[[str], Whole] | None:
    """How a query makes an integer of a value of a type that has one for each; None if it has not."""
    if kind in _WHOLE - {"boolean"}:
        return lambda value: DUCKDB.read(value, kind)
    return days_of_date if kind == "date" else None


def key_from_text(column: Field, text: str) -> str:
    """The expression `key` for a key given as text: NULL if the type has no such value or writes it
    differently.
    """
    if column.kind in ("varchar", "enum"):
        return text
    value = f"TRY_CAST({text} AS {column.type})"
    # Only the text that DuckDB writes itself: '07' would be a second name of the key 7.
    return f"CASE WHEN CAST({value} AS VARCHAR) = {text} THEN {value} END"


def check_texts(
    fetch_rows: Callable[..., list[tuple[Any, ...]]],
    column: Field,
    texts: Sequence[str],
    role: str,
) -> None:
    """Refuse a public key or block that the column's type cannot hold, or that DuckDB writes differently."""
    value = key_from_text(column, "t")
    if value == "t":
        # Every text is one.
        return
    query = f"SELECT t FROM (SELECT unnest(CAST(? AS VARCHAR[])) AS t) WHERE {value} IS NULL"
    if bad := fetch_rows(query, [list(texts)]):
        query = f"SELECT CAST(TRY_CAST(unnest(['2026-11-01', '7', 'true']) AS {column.type}) AS VARCHAR)"
        examples = [text for (text,) in fetch_rows(query) if text is not None]
        example = f", such as {examples[0]!r}" if examples else ""
        raise PlanRefused(
            f"{role} {bad[0][0]!r} is not how a {column.kind.upper()} is written, so column {column.name!r} cannot hold it; "
            f"write it as DuckDB prints it{example}"
        )


def key_as_text(column: Field, value: str) -> str:
    """The text of something that `key` gave."""
    return f"CAST({value} AS VARCHAR)"


def check_value(column: Field) -> None:
    """Raises `UnfitColumn` unless the column's type can be read as a number."""
    if column.kind not in _VALUES:
        raise UnfitColumn(
            f"column {column.name!r} is a {column.kind.upper()} and cannot be a value; use a number, DATE, TIMESTAMP or "
            f"BOOLEAN column"
        )


def write_grid_steps(column: Field, declared: Column, *, above: int = 0) -> Whole:
    """The column in grid steps above an integer, as a BIGINT, within the declared bounds: clamped,
    rounded half away from zero.

    NULL and NaN are ``declared.missing``. Dates and timestamps count days since 1970-01-01 (UTC).
    Raises `PlanRefused` where a BIGINT does not hold the bounds less ``above``.
    """
    check_value(column)
    low, high = declared.grid_bounds()
    if high - above > BIGINT.high:
        raise PlanRefused(
            f"column {column.name!r} declares more than a BIGINT holds, and only values by themselves are read "
            f"beyond that (quantiles, synthetic columns); take a coarser step, or an upper bound below 2^63"
        )
    value = (
        _from_float(column, declared) if column.kind in _FLOATS else _from_exact(column, declared)
    )
    value = (value - above).to(BIGINT)
    if declared.missing == "skip":
        return value
    # A declared number is put on the grid as a row's value would be, so it cannot leave the bounds.
    default = min(max(_half_away(declared.missing / declared.step), low), high)
    return coalesce(value, default - above)


def bounded_number(column: Field, declared: Column) -> str:
    """The column as a DOUBLE within its bounds if it has any; NULL and NaN are
    ``declared.missing``, or NaN.

    Text stays text.
    """
    if column.kind in ("varchar", "enum"):
        return f"CAST({column.sql} AS VARCHAR)"
    check_value(column)
    if column.kind in _FLOATS:
        value = f"CAST({column.sql} AS DOUBLE)"
    else:
        steps, divisor = _exact_steps(column, HUGEINT.low, HUGEINT.high)
        value = operate_doubles(steps.as_double(), "/", double(divisor))
    clamped = value
    if declared.lower is not None and declared.upper is not None:
        clamped = f"least(greatest({value}, {double(declared.lower)}), {double(declared.upper)})"
    default = double(math.nan) if declared.missing == "skip" else double(declared.missing)
    # Missing is asked first: least and greatest pass over NULL and take NaN for the largest,
    # so a missing value would count as a bound.
    return f"CASE WHEN {column.sql} IS NULL OR isnan({value}) THEN {default} ELSE {clamped} END"


def has_exact_integers(column: Field) -> bool:
    """Whether the values are integers that a double may not hold; decimals count their last digit."""
    return column.kind in _WIDE | {"bigint"} or column.width > 15


def convert_missing(column: Field, declared: Column) -> int | float | None:
    """The number that is declared for missing values, in the units of `open_number`; None for ``skip``.

    Raises `PlanRefused` where it is no value of the column's type: without a grid nothing rounds it.
    """
    if declared.missing == "skip":
        return None
    if column.kind in _FLOATS:
        return float(declared.missing)
    low, high = RANGES.get(column.kind, (FIRST_MICROSECOND, LAST_MICROSECOND))
    if column.kind == "decimal":
        low, high = 1 - 10**column.width, 10**column.width - 1
    elif column.kind == "date":
        low, high = clamp_days(RANGES["integer"][0]), clamp_days(RANGES["integer"][1])
    units = declared.missing * (_DAY if column.kind in _TIMES else 10**column.scale)
    if units.denominator != 1 or not low <= units <= high:
        raise PlanRefused(
            f"column {column.name!r} declares missing: {declared.missing}, which is no {column.type}, and this method reads "
            f"values as they are stored; declare a number that the type holds, or missing: skip"
        )
    return int(units)


def open_number(column: Field, declared: Column) -> str:
    """The column as a number without bounds, in the same order, with the declared number for NULL and
    NaN; where none is declared these stay.

    A BIGINT or HUGEINT where `has_exact_integers`, else a DOUBLE. Decimals count their last digit,
    dates days and timestamps microseconds since 1970-01-01 (UTC); infinities stay. Timestamps that
    a double cannot hold are rounded down: then a double z is at most the time itself only if it is
    at most x, and above it only if above x.
    """
    value, missing = _write_open(column), convert_missing(column, declared)
    if missing is None:
        return value
    if has_exact_integers(column):
        kind = BIGINT if column.kind == "bigint" else HUGEINT
        return f"coalesce({value}, {DUCKDB.literal(int(missing), kind)})"
    default = float(missing)
    # As the column's own times.
    default = math.nextafter(default, -math.inf) if default > missing else default
    if column.is_float:
        value = f"CASE WHEN NOT isnan({value}) THEN {value} END"
    return f"coalesce({value}, {double(default)})"


def _write_open(column: Field) -> str:
    check_value(column)
    if column.kind == "hugeint":
        return column.sql
    if column.kind in _FLOATS:
        return f"CAST({column.sql} AS DOUBLE)"
    whole = (
        _microseconds(column)
        if column.kind in _TIMES
        else _exact_steps(column, HUGEINT.low, HUGEINT.high)[0]
    )
    if has_exact_integers(column):
        integer = whole.to(BIGINT if column.kind == "bigint" else HUGEINT)
        return f"CASE WHEN {column.sql} IS NULL THEN NULL ELSE {integer} END"
    value = whole.as_double()
    if column.kind in _TIMES:
        # Beyond 2^53 the cast may have rounded up.
        above = f"TRY_CAST({value} AS HUGEINT) > {whole}"
        value = (
            f"CASE WHEN {above} THEN nextafter({value}, CAST('-inf' AS DOUBLE)) ELSE {value} END"
        )
    if column.kind == "date" or column.kind in _TIMES:
        # An infinite date has no number of days: on which side of 1970 it lies is its sign.
        side = f"CASE WHEN {column.sql} > CAST('1970-01-01' AS {column.type}) THEN 'inf' ELSE '-inf' END"
        value = f"CASE WHEN isinf({column.sql}) THEN CAST({side} AS DOUBLE) ELSE {value} END"
    return f"CASE WHEN {column.sql} IS NULL THEN NULL ELSE {value} END"


def text_from_double(column: Field, value: float) -> str:
    """The text of a number of `real` in a DATE or TIMESTAMP column, rounded up to a day or
    microsecond, and clamped to the type.
    """
    # Clamped before ceil, which has no integer for an infinity; the types' ends are nearer.
    near = math.ceil(min(max(value, -1e19), 1e19))
    if column.kind == "date":
        return f"CAST({date_of_days(near)} AS VARCHAR)"
    make = "make_timestamptz" if column.kind.endswith("zone") else "make_timestamp"
    return f"CAST({make}({min(max(near, FIRST_MICROSECOND), LAST_MICROSECOND)}) AS VARCHAR)"


def is_time(column: Field) -> bool:
    """Whether the column's values are dates or timestamps, which are written as text."""
    return column.kind == "date" or column.kind in _TIMES


def _microseconds(column: Field) -> Whole:
    """Microseconds since 1970-01-01, rounded down; NULL for infinities and for what a TIMESTAMP
    cannot hold.
    """
    ends = RANGES["bigint"]
    if column.kind == "timestamp_ns":
        nanoseconds = DUCKDB.column(f"epoch_ns({column.sql})", *ends)
        return nanoseconds.floor_by(DUCKDB.number(1000)).to(HUGEINT)
    value = column.sql if column.kind.endswith("zone") else f"TRY_CAST({column.sql} AS TIMESTAMP)"
    return DUCKDB.column(f"epoch_us({value})", *ends).to(HUGEINT)


def _half_away(value: Fraction) -> int:
    sign = -1 if value < 0 else 1
    return int(sign * ((2 * abs(value) + 1) // 2))


def _from_float(column: Field, declared: Column) -> Whole:
    low, high = declared.grid_bounds()
    step = declared.step
    # Both have to be finite DOUBLEs.
    if max(step.numerator, step.denominator) > 10**300:
        raise PlanRefused(
            f"the step of column {column.name!r} is out of the range of a {column.kind.upper()}"
        )
    scaled = f"CAST({column.sql} AS DOUBLE)"
    # Times the denominator, not by the step: 1/100 has no exact DOUBLE, 100 has.
    if step.denominator != 1:
        scaled = operate_doubles(scaled, "*", double(step.denominator))
    if step.numerator != 1:
        scaled = operate_doubles(scaled, "/", double(step.numerator))
    value = DUCKDB.round_double(scaled, low, high)
    # NaN is DuckDB's largest number, and a comparison with NULL holds for none: both give NULL.
    return choose([(f"{column.sql} < CAST('NaN' AS {column.type})", value)])


def _from_exact(column: Field, declared: Column) -> Whole:
    low, high = declared.grid_bounds()
    kind = DUCKDB.type_of(low, high)
    if column.kind in _WHOLE | _WIDE and declared.step == 1:
        return DUCKDB.read(column.sql, column.kind).clamp(low, high).to(kind)
    _, divisor = _exact_steps(column, 0, 0)
    ratio = 1 / (divisor * declared.step)
    # Rounded outwards, so that clamping the type's own units moves no value within the bounds.
    first, last = low / ratio // 1, -(-high / ratio // 1)
    units, _ = _exact_steps(column, first, last)
    if column.kind in {"date"} | _TIMES and (first < units.low or last > units.high):
        # Bounds beyond what the type can hold: an infinity counts as the bound all the same.
        units = choose(
            [
                (f"{column.sql} = CAST('{side}' AS {column.type})", DUCKDB.number(int(end)))
                for side, end in (("-inf", first), ("inf", last))
            ],
            units,
        )
    if ratio != 1:
        try:
            units = (units * ratio.numerator).divide_half_away(ratio.denominator)
        except PlanRefused:
            raise PlanRefused(
                f"the step of column {column.name!r} does not fit its type {column.type}; take one with "
                f"fewer digits, such as '0.01'"
            ) from None
    return choose([(f"{column.sql} IS NOT NULL", greatest(least(units, high), low).to(kind))])


def _exact_steps(column: Field, first: int, last: int) -> tuple[Whole, int]:
    """The value times a divisor as an integer clamped to [first, last], and the divisor. Infinite
    dates clamp too.
    """
    name, kind = column.sql, column.kind
    if kind == "date":
        ends = [clamp_days(end) for end in (first, last)]
        clamped = f"least(greatest({name}, {date_of_days(ends[0])}), {date_of_days(ends[1])})"
        return days_of_date(f"CAST({clamped} AS DATE)", *ends), 1
    if kind in _TIMES:
        make = "make_timestamptz" if kind.endswith("zone") else "make_timestamp"
        ends = [min(max(end, FIRST_MICROSECOND), LAST_MICROSECOND) for end in (first, last)]
        value = name if kind.endswith("zone") else f"TRY_CAST({name} AS TIMESTAMP)"
        clamped = f"least(greatest({value}, {make}({ends[0]})), {make}({ends[1]}))"
        micros = f"CASE WHEN {value} IS NULL THEN NULL ELSE epoch_us({clamped}) END"
        return DUCKDB.column(f"({micros})", ends[0], ends[1]), _DAY
    if kind == "decimal":
        digits = decimal_digits(name, column.width, column.scale)
        # Written once, for it may be a cast of text; NULL is taken out by whoever reads it.
        return greatest(least(digits, _clip(last)), _clip(first)), 10**column.scale
    return DUCKDB.read(name, kind).clamp(_clip(first), _clip(last)), 1


def _clip(value: int) -> int:
    return min(max(value, HUGEINT.low), HUGEINT.high)


def exact_text(column: Field) -> str:
    """The column as text that differs wherever a release could tell two values apart; NULL for
    NULL. Total, as everything here.

    Of types that a release reads no value of it is the same for every value.
    """
    name = f"t.{quote_name(column.name)}"
    # concat passes over NULL: a time that has no text is '=', which still differs from no value.
    texts = [f"CAST({column.sql} AS VARCHAR)"] * (column.kind in _VALUES | _KEYS)
    return f"CASE WHEN {name} IS NOT NULL THEN concat({', '.join([quote_text('='), *texts])}) END"


# --- Queries of where rows are stored ---------------------------------------------------------------------


def storage_query(relation: str) -> str:
    """Where the segments of some columns lie, in order; the columns' names are its parameter.

    Statistics are left out: rows decide whether DuckDB can write them.
    """
    return (
        "SELECT row_group_id, column_name, column_path, segment_type, count, compression, persistent, "
        "has_updates, coalesce(block_offset, -1), "
        "list_concat([coalesce(block_id, -1)], coalesce(additional_block_ids, [])) "
        f"FROM pragma_storage_info({quote_text(relation)}) WHERE list_contains(?, column_name) "
        "ORDER BY row_group_id, column_name, column_path, start"
    )


def row_spans_query(relation: str, width: int, condition: str, key: str = "''") -> str:
    """For every key and about ``width`` neighbouring rows the first and last row number, and how
    many rows fulfil the condition: ``k``, ``low``, ``high``, ``n``.
    """
    span = DUCKDB.column("rowid", 0, MAX_ROWS) // width
    return (
        f"SELECT {key} AS k, min(rowid) AS low, max(rowid) AS high, count(*) AS n FROM {relation} AS t "
        f"WHERE {condition} GROUP BY 1, {span}"
    )


def row_places_query(relation: str, low: int, high: int, condition: str) -> str:
    """A digest of the numbers of the rows that fulfil a condition, all from ``low`` to ``high``."""
    numbers = f"CAST(CAST(bitstring_agg(rowid, {low}, {high}) AS VARCHAR) AS BLOB)"
    return f"SELECT sha256({numbers}) FROM {relation} AS t WHERE {condition}"


def rows_at_query(relation: str) -> str:
    """The numbers of the rows at some places, counted from 0, in their order; the places are its
    parameter.
    """
    position = place_from_zero("row_number() OVER (ORDER BY rowid)")
    placed = f"SELECT rowid, {position} AS place FROM {relation}"
    return f"SELECT rowid FROM ({placed}) WHERE place IN (SELECT unnest(?)) ORDER BY rowid"


def least_between(relation: str, text: str, first: int, rows: int) -> str:
    """The least text of so many rows from a number on; NULL if all are."""
    condition = f"rowid >= {first} AND rowid < {first + rows}"
    return f"SELECT min({text}) FROM {relation} AS t WHERE {condition}"


def with_text_key(query: str, column: Field) -> str:
    """A query whose column ``k`` is a key of a column, with the key as text and first."""
    return f"SELECT {key_as_text(column, 'k')}, * EXCLUDE (k) FROM ({query})"
