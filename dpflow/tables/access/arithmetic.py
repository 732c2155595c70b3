"""Arithmetic over row values as SQL that cannot fail: no other module writes any.

A `Whole` is an expression of whole numbers that knows the least and largest value which rows can give it. Each operation
computes the range of its result. Where the type of the operands does not hold that range they are widened first (DuckDB:
BIGINT, HUGEINT; Spark: BIGINT, DECIMAL(38, 0)). Where no type holds it, the plan is refused, before anything is charged. So
no value of a row makes a query fail, and none wraps. NULL stays NULL, except in `coalesce`, `least` and `greatest`.

Ranges come from types, declared bounds and the clamps written here. Whole numbers enter by `Dialect.column` (a column that
another query clamped), `Dialect.read` (the full range of a type), `Dialect.round_double` and the draws below. One range is
read from rows: that of the numbers of units and private keys, which is theirs in the file as it is held open. It chooses how
wide an integer is, and every number of 64 bits has one. Differences of dates are numbers of days or microseconds.
Arithmetic of DOUBLEs gives infinities and NaN and never fails, except for a division by 0: whoever divides takes out zeros first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import ClassVar, NoReturn

from dpflow.core.contract.squares import Square
from dpflow.errors import PlanRefused

#: More rows than a table, a view or a group of one can have.
MAX_ROWS = 2**40


@dataclass(frozen=True)
class IntegerType:
    """A type of whole numbers, and the numbers that it holds."""

    name: str
    low: int
    high: int

    def holds(self, low: int, high: int) -> bool:
        """Whether it holds every number from ``low`` to ``high``."""
        return self.low <= low and high <= self.high


BIGINT = IntegerType("BIGINT", -(2**63), 2**63 - 1)
#: Of DuckDB. Its least number is left out: it has no counterpart with the other sign.
HUGEINT = IntegerType("HUGEINT", -(2**127) + 1, 2**127 - 1)
#: Of Spark.
DECIMAL = IntegerType("DECIMAL(38, 0)", -(10**38) + 1, 10**38 - 1)

#: The ranges of types that columns have.
RANGES = {
    f"{sign}{name}": (0, 2**bits - 1) if sign else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    for name, bits in (("tinyint", 8), ("smallint", 16), ("integer", 32), ("bigint", 64))
    for sign in ("", "u")
} | {"hugeint": (-(2**127), 2**127 - 1), "boolean": (0, 1)}


class Dialect:
    """How a database writes whole numbers. Types are listed from the narrowest on."""

    types: ClassVar[tuple[IntegerType, ...]]

    def column(self, sql: str, low: int, high: int) -> Whole:
        """A column or expression whose values lie in a range, of the narrowest type that holds it."""
        return Whole(self, sql, low, high, self.type_of(low, high))

    def read(self, sql: str, kind: str) -> Whole:
        """A column of a stored type of whole numbers or truth values, as it is stored: any value of
        that type, and instead of -2^127 the next one.
        """
        low, high = RANGES[kind]
        # By a CASE, for least and greatest pass over NULL.
        if kind == "hugeint":
            low, end = HUGEINT.low, self.literal(HUGEINT.low, HUGEINT)
            sql = f"CASE WHEN {sql} < {end} THEN {end} ELSE {sql} END"
        read_as = self.type_of(low, high)
        return Whole(self, f"CAST({sql} AS {read_as.name})", low, high, read_as)

    def number(self, value: int) -> Whole:
        """A constant."""
        kind = self.type_of(value, value)
        return Whole(self, self.literal(value, kind), value, value, kind)

    def type_of(self, low: int, high: int, *operands: IntegerType) -> IntegerType:
        """The narrowest type that holds a range and is at least as wide as those of the operands.

        Raises:
            PlanRefused: no type holds it.
        """
        widest = max(map(self.types.index, operands), default=0)
        for kind in self.types[widest:]:
            if kind.holds(low, high):
                return kind
        refuse_range(low, high)

    def literal(self, value: int, kind: IntegerType) -> str:
        """A constant of a type."""
        # A cast of text, as the type of a bare literal follows from its number of digits.
        return f"CAST('{value}' AS {kind.name})"

    def divide(self, dividend: str, divisor: str, kind: IntegerType) -> str:
        """A quotient of numbers of a type, cut towards 0."""
        return f"({dividend} // {divisor})"

    def sum_counts(self, value: str) -> Whole:
        """The sum of numbers of rows that are counted once, however many there are; NULL of none."""
        return Whole(self, f"sum({value})", 0, MAX_ROWS, self.types[-1])

    def sum_rows(self, value: Whole, rows: int = MAX_ROWS) -> Whole:
        """The sum of at most so many rows' values; NULL of none."""
        # DuckDB adds up in a HUGEINT.
        low, high = (min(0, value.low) * rows, max(0, value.high) * rows)
        return Whole(self, f"sum({value.sql})", low, high, HUGEINT)

    def shift_right(self, value: str, bits: int) -> str:
        """A number without its lowest bits."""
        return f"({value} >> {bits})" if bits else value

    def floor_to(self, value: Whole, width: int) -> Whole:
        """As `Whole.floor_to`; the value is written once, so that no nesting grows."""
        # Moved above 0 by whole widths, for // cuts towards 0.
        moved = max(0, -(value.low // width)) * width
        return (value + moved) // width * width - moved

    def round_double(self, value: str, low: int, high: int) -> Whole:
        """A DOUBLE in a range of whole numbers, rounded half away from zero and clamped; no NaN."""
        kind = self.type_of(low, high)
        # Clamped before the cast to an integer, which would fail on a value beyond its range. Ends that a
        # DOUBLE does not hold are rounded outwards, and the integer is clamped again, exactly.
        first, last = outer_doubles(low, high)
        value = clamp_text(f"round({value})", double(first), double(last))
        if max(abs(low), abs(high)) <= 2**53:
            return Whole(self, f"CAST({value} AS {kind.name})", low, high, kind)
        wide = self.types[-1]
        far = 2 * max(abs(low), abs(high))
        exact = Whole(self, f"CAST({value} AS {wide.name})", -far, far, wide)
        return greatest(least(exact, high), low).to(kind)

    def random_bits(self, fraction: str, bits: int) -> Whole:
        """The first bits of a number in [0, 1)."""
        # A product with a power of two is exact, hence below it.
        size = 1 << bits
        product = operate_doubles(fraction, "*", str(size))
        return self.column(f"CAST(floor({product}) AS BIGINT)", 0, size - 1)

    def random_below(self, fraction: str, size: Whole) -> Whole:
        """A number in [0, 1) times a size below 2^53, rounded down. The product may be rounded up to
        the size itself.
        """
        size._require(size.low >= 0 and size.high <= 2**53)
        product = operate_doubles(fraction, "*", size.as_double())
        return self.column(f"CAST(floor({product}) AS BIGINT)", 0, size.high)


class _DuckDB(Dialect):
    types = (BIGINT, HUGEINT)


class _Spark(Dialect):
    types = (BIGINT, DECIMAL)

    def literal(self, value: int, kind: IntegerType) -> str:
        if kind is BIGINT and value > BIGINT.low:
            return f"({value}L)" if value < 0 else f"{value}L"
        return super().literal(value, kind)

    def divide(self, dividend: str, divisor: str, kind: IntegerType) -> str:
        if kind is not BIGINT:
            # Spark's div gives a BIGINT whatever its operands are.
            refuse_range(kind.low, kind.high)
        return f"({dividend} div {divisor})"

    def floor_to(self, value: Whole, width: int) -> Whole:
        rest = self.number(width)
        remainder = Whole(self, f"pmod({value.sql}, {rest.sql})", 0, width - 1, BIGINT)
        return replace(value - remainder, low=value.low // width * width, high=value.high)

    def sum_rows(self, value: Whole, rows: int = MAX_ROWS) -> Whole:
        low, high = (min(0, value.low) * rows, max(0, value.high) * rows)
        if BIGINT.holds(low, high):
            return Whole(self, f"sum({value.sql})", low, high, BIGINT)
        # Spark gives a sum 10 digits more than its operands have, at most 38.
        if max(-value.low, value.high) >= 10**28:
            refuse_range(low, high)
        return Whole(self, f"sum(CAST({value.sql} AS DECIMAL(28, 0)))", low, high, DECIMAL)

    def shift_right(self, value: str, bits: int) -> str:
        return f"shiftright({value}, {bits})" if bits else value


DUCKDB, SPARK = _DuckDB(), _Spark()


@dataclass(frozen=True)
class Whole:
    """An expression of whole numbers over row values.

    Attributes:
        sql: the expression, which can stand wherever an operand can.
        low, high: every value that is not NULL lies between them.
        type: its SQL type, which holds them.
    """

    dialect: Dialect
    sql: str
    low: int
    high: int
    type: IntegerType

    def __post_init__(self) -> None:
        if not self.type.holds(self.low, self.high):
            refuse_range(self.low, self.high)

    def __str__(self) -> str:
        return self.sql

    def __add__(self, other: Whole | int) -> Whole:
        if isinstance(other, int) and other == 0:
            return self
        right = self._operand(other)
        return self._operate("+", right, self.low + right.low, self.high + right.high)

    def __sub__(self, other: Whole | int) -> Whole:
        if isinstance(other, int) and other == 0:
            return self
        right = self._operand(other)
        return self._operate("-", right, self.low - right.high, self.high - right.low)

    def __mul__(self, other: Whole | int) -> Whole:
        if isinstance(other, int) and other == 1:
            return self
        right = self._operand(other)
        ends = [a * b for a in (self.low, self.high) for b in (right.low, right.high)]
        return self._operate("*", right, min(ends), max(ends))

    def __neg__(self) -> Whole:
        low, high = -self.high, -self.low
        kind = self.dialect.type_of(low, high, self.type)
        return Whole(self.dialect, f"(-{self.to(kind).sql})", low, high, kind)

    def __abs__(self) -> Whole:
        high = max(abs(self.low), abs(self.high))
        low = 0 if self.low <= 0 <= self.high else min(abs(self.low), abs(self.high))
        kind = self.dialect.type_of(low, high, self.type)
        return Whole(self.dialect, f"abs({self.to(kind).sql})", low, high, kind)

    def __floordiv__(self, other: Whole | int) -> Whole:
        """The quotient of what is not negative by what is positive, rounded down."""
        right = self._operand(other)
        self._require(self.low >= 0 < right.low)
        low, high = self.low // right.high, self.high // right.low
        left, right, kind = self._common(right, low, high)
        return Whole(self.dialect, self.dialect.divide(left.sql, right.sql, kind), low, high, kind)

    def __mod__(self, other: Whole | int) -> Whole:
        """What is left of something not negative after a division by what is positive."""
        right = self._operand(other)
        self._require(self.low >= 0 < right.low)
        return self._operate("%", right, 0, min(self.high, right.high - 1))

    def __rshift__(self, bits: int) -> Whole:
        """Something not negative without its lowest bits."""
        self._require(self.low >= 0 and self.type is not DECIMAL)
        shifted = self.dialect.shift_right(self.sql, bits)
        return Whole(self.dialect, shifted, self.low >> bits, self.high >> bits, self.type)

    def __and__(self, mask: int) -> Whole:
        """The bits of something not negative that a mask has."""
        self._require(self.low >= 0 <= mask and self.type is not DECIMAL)
        value = f"({self.sql} & {self.dialect.literal(mask, self.type)})"
        return Whole(self.dialect, value, 0, min(self.high, mask), self.type)

    def square(self) -> Whole:
        """The product with itself, which is never negative."""
        product = self * self
        size = abs(self)
        return replace(product, low=size.low**2)

    def floor_by(self, width: Whole) -> Whole:
        """The quotient by a positive width, rounded down also below 0. The expression is written three
        times.
        """
        self._require(width.low > 0)
        ends = [a // b for a in (self.low, self.high) for b in (width.low, width.high)]
        left, right, kind = self._common(width, min(ends), max(ends))
        # Engines cut towards 0: what is negative moves by 1 towards it and back.
        zero, one = (self.dialect.literal(number, kind) for number in (0, 1))
        below = f"{self.dialect.divide(f'({left.sql} + {one})', right.sql, kind)} - {one}"
        above = self.dialect.divide(left.sql, right.sql, kind)
        value = f"(CASE WHEN {left.sql} < {zero} THEN {below} ELSE {above} END)"
        return Whole(self.dialect, value, min(ends), max(ends), kind)

    def floor_to(self, width: int) -> Whole:
        """The greatest multiple of a positive width that is not above the value."""
        self._require(width > 0)
        return self.dialect.floor_to(self, width)

    def divide_half_away(self, divisor: int) -> Whole:
        """The quotient by a positive number, rounded to the nearest whole number, half away from 0."""
        self._require(divisor > 0)
        size = (abs(self) * 2 + divisor) // (2 * divisor)
        if self.low >= 0:
            return size
        return choose([(f"{self.sql} < {self.dialect.literal(0, self.type)}", -size)], size)

    def clamp(self, low: int, high: int) -> Whole:
        """The value within a range; NULL stays. The expression is written three times."""
        whens = []
        if low > self.low:
            whens.append(("<", self._operand(low)))
        if high < self.high:
            whens.append((">", self._operand(high)))
        if not whens:
            return self
        first, last = min(max(self.low, low), high), max(min(self.high, high), low)
        kind = self.dialect.type_of(
            min(self.low, first), max(self.high, last), self.type, *(end.type for _, end in whens)
        )
        value = self.to(kind)
        texts = "".join(
            f" WHEN {value.sql} {sign} {end._in(kind).sql} THEN {end._in(kind).sql}"
            for sign, end in whens
        )
        return Whole(self.dialect, f"(CASE{texts} ELSE {value.sql} END)", first, last, kind)

    def to(self, kind: IntegerType) -> Whole:
        """The same in another type. Raises `PlanRefused` if that does not hold the range."""
        if kind is self.type:
            return self
        return Whole(self.dialect, f"CAST({self.sql} AS {kind.name})", self.low, self.high, kind)

    def as_double(self) -> str:
        """The nearest DOUBLE."""
        return f"CAST({self.sql} AS DOUBLE)"

    def _operand(self, other: Whole | int) -> Whole:
        return self.dialect.number(other) if isinstance(other, int) else other

    def _common(self, other: Whole, low: int, high: int) -> tuple[Whole, Whole, IntegerType]:
        """Both operands in the type that holds them and a result."""
        kind = self.dialect.type_of(low, high, self.type, other.type)
        return self.to(kind), other._in(kind), kind

    def _in(self, kind: IntegerType) -> Whole:
        """The same in a type that holds it; a constant is written in it."""
        if self.low == self.high and self.sql == self.dialect.literal(self.low, self.type):
            return replace(self, sql=self.dialect.literal(self.low, kind), type=kind)
        return self.to(kind)

    def _operate(self, operator: str, other: Whole, low: int, high: int) -> Whole:
        left, right, kind = self._common(other, low, high)
        return Whole(self.dialect, f"({left.sql} {operator} {right.sql})", low, high, kind)

    def _require(self, holds: bool) -> None:
        if not holds:
            raise ValueError(f"not defined for values from {self.low} to {self.high}")


def least(first: Whole, *others: Whole | int) -> Whole:
    """The least of several values, NULLs left out."""
    values = [first, *map(first._operand, others)]
    return _extreme("least", values, min)


def greatest(first: Whole, *others: Whole | int) -> Whole:
    """The greatest of several values, NULLs left out."""
    values = [first, *map(first._operand, others)]
    return _extreme("greatest", values, max)


def _extreme(name: str, values: Sequence[Whole], pick: Callable[[Iterable[int]], int]) -> Whole:
    """``least`` or ``greatest``, whose name picks the end of the range that constants bound."""
    dialect = values[0].dialect
    # The result is on this side of every operand that is no NULL: of constants, for certain.
    constants = [value.low for value in values if value.low == value.high]
    ends = [min(value.low for value in values), max(value.high for value in values)]
    if constants:
        ends[1 if name == "least" else 0] = pick(constants)
    kind = dialect.type_of(
        min(value.low for value in values),
        max(value.high for value in values),
        *(value.type for value in values if value.low != value.high),
    )
    texts = ", ".join(value._in(kind).sql for value in values)
    return Whole(dialect, f"{name}({texts})", min(ends), max(ends), kind)


def coalesce(value: Whole, default: int) -> Whole:
    """The value, or a constant for NULL."""
    low, high = min(value.low, default), max(value.high, default)
    left, right, kind = value._common(value._operand(default), low, high)
    return Whole(value.dialect, f"coalesce({left.sql}, {right.sql})", low, high, kind)


def choose(whens: Sequence[tuple[str, Whole]], otherwise: Whole | None = None) -> Whole:
    """The first value whose condition holds, else the last; NULL where there is none."""
    values = [value for _, value in whens] + ([] if otherwise is None else [otherwise])
    dialect = values[0].dialect
    low, high = min(value.low for value in values), max(value.high for value in values)
    kind = dialect.type_of(low, high, *(value.type for value in values))
    texts = "".join(f" WHEN {condition} THEN {value._in(kind).sql}" for condition, value in whens)
    if otherwise is not None:
        texts += f" ELSE {otherwise._in(kind).sql}"
    return Whole(dialect, f"(CASE{texts} END)", low, high, kind)


def round_bits(value: Whole, bits: int) -> Whole:
    """What is not negative without its lowest bits, rounded half up."""
    return (value + (1 << bits >> 1)) >> bits if bits else value


def round_square(steps: Whole, square: Square) -> Whole:
    """`Square.round_square` of a value in grid steps."""
    away = steps - square.centre
    if square.drop:
        near = round_bits(abs(away), square.drop)
        away = near.to(near.dialect.type_of(near.low, near.high))
    return round_bits(away.square(), square.shift)


def clamp_text(value: str, low: str, high: str) -> str:
    """A value between two constants; NULL stays. Four times as quick as least and greatest."""
    return (
        f"CASE WHEN {value} < {low} THEN {low} WHEN {value} > {high} THEN {high} ELSE {value} END"
    )


def refuse_range(low: int, high: int) -> NoReturn:
    """Raise `PlanRefused` for a range that no type holds."""
    raise PlanRefused(
        f"the declared bounds lead to whole numbers of {max(low.bit_length(), high.bit_length())} bits, "
        f"which the database does not compute exactly; take a coarser step, or tighter bounds"
    )


# --- DOUBLEs ------------------------------------------------------------------------------------------------


def outer_doubles(low: int, high: int) -> tuple[float, float]:
    """The nearest doubles that are not inside of a range."""
    first, last = float(low), float(high)
    if first > low:
        first = math.nextafter(first, -math.inf)
    return first, math.nextafter(last, math.inf) if last < high else last


def double(value: float | Fraction) -> str:
    """A constant DOUBLE."""
    return f"CAST('{float(value)!r}' AS DOUBLE)"


def operate_doubles(left: str, operator: str, right: str) -> str:
    """Two DOUBLEs with one of ``+ - * / %`` between them. What divides must be no 0."""
    return f"({left} {operator} {right})"


def minus_double(value: str) -> str:
    """A DOUBLE with the other sign."""
    return f"(-{value})"


def absolute_double(value: str) -> str:
    """A DOUBLE without its sign."""
    return f"abs({value})"


# --- Of DuckDB alone ------------------------------------------------------------------------------------------


def days_of_date(
    value: str, low: int = RANGES["integer"][0], high: int = RANGES["integer"][1]
) -> Whole:
    """Days of a DATE since 1970-01-01; infinities are the ends of 32 bits. A narrower range is for dates
    that the caller clamped.
    """
    return Whole(DUCKDB, f"({value} - DATE '1970-01-01')", low, high, BIGINT)


#: The least and the largest finite DATE, in days since 1970-01-01.
FIRST_DAY, LAST_DAY = -(2**31) + 2, 2**31 - 2


def clamp_days(days: int) -> int:
    """The nearest number of days that a finite DATE has."""
    return min(max(days, FIRST_DAY), LAST_DAY)


def date_of_days(days: int) -> str:
    """The DATE so many days after 1970-01-01, clamped to the type."""
    return f"CAST(DATE '1970-01-01' + CAST({clamp_days(days)} AS INTEGER) AS DATE)"


def date_difference(unit: str, start: str, end: str) -> Whole:
    """Boundaries of a unit, a text literal, between two dates or timestamps of the years 1 to 9999: of
    microseconds there are fewer than 2^59.
    """
    return Whole(DUCKDB, f"date_diff({unit}, {start}, {end})", -(2**59), 2**59, BIGINT)


def operate_view(operator: str, *operands: str) -> str:
    """An operator of a view's SQL, with one operand or two. The caller knows that it gives a value or NULL on
    each row: the types are on the list of `dpflow.tables.access.view_functions.is_total`, by which
    whole numbers have no operator but ``/``, a DOUBLE; or TRY is around it.
    """
    if len(operands) == 1:
        return f"({operator} {operands[0]})"
    left, right = operands
    return f"({left} {operator} {right})"


def decimal_digits(value: str, width: int, scale: int) -> Whole:
    """A DECIMAL's digits without the point, exactly: DuckDB's product of decimals fails where it has
    more than 18 digits.
    """
    end = 10**width - 1
    if not scale:
        kind = DUCKDB.type_of(-end, end)
        return Whole(DUCKDB, f"CAST({value} AS {kind.name})", -end, end, kind)
    ten = f"CAST({10**scale} AS DECIMAL({scale + 1}, 0))"
    if width + scale <= 18:
        return DUCKDB.column(f"CAST({value} * {ten} AS BIGINT)", -end, end)
    if width <= 18 and 2 * scale <= 18:
        # Digits before and after the point apart: neither product has more than 18.
        part = f"CAST({value} - trunc({value}) AS DECIMAL({scale}, {scale}))"
        digits = f"(CAST(trunc({value}) AS BIGINT) * {10**scale} + CAST({part} * {ten} AS BIGINT))"
        return DUCKDB.column(digits, -end, end)
    # At most 38 digits, which every HUGEINT holds.
    digits = f"CAST(replace(CAST({value} AS VARCHAR), '.', '') AS HUGEINT)"
    return Whole(DUCKDB, digits, -end, end, HUGEINT)


def hash_fraction(digest: str) -> str:
    """A UBIGINT as a number in [0, 1): its first 53 bits, which a DOUBLE holds exactly."""
    return f"CAST({digest} >> 11 AS DOUBLE) * {2.0**-53!r}"


def hash_remainder(digest: str, size: int) -> Whole:
    """The remainder of a UBIGINT by a size below 2^31."""
    return DUCKDB.column(f"CAST({digest} % {size} AS BIGINT)", 0, size - 1)


def sum_remainders(digests: Sequence[str]) -> str:
    """A sum that no database computes without every one of several UBIGINTs of every row."""
    total = DUCKDB.number(0)
    for digest in digests:
        total += hash_remainder(digest, 2)
    return DUCKDB.sum_rows(total).sql


def place_from_zero(window: str) -> Whole:
    """``row_number`` or ``dense_rank`` over a window, counted from 0."""
    return DUCKDB.column(window, 1, MAX_ROWS) - 1


def stretch_hash(column: str) -> str:
    """A hash of 52 bits as a UBIGINT with the same first bits."""
    return f"CAST({column} AS UBIGINT) * {2**12}"


# --- Of Spark alone -------------------------------------------------------------------------------------------


def day_of_week(value: str) -> Whole:
    """The day of a date or time in its week, from Sunday as 1."""
    return SPARK.column(f"dayofweek({value})", 1, 7)


def start_of_days(unit: str, value: str) -> str:
    """The first day of the ``day``, ``week``, ``month``, ``quarter`` or ``year`` of a date or time."""
    if unit == "day":
        return f"CAST({value} AS DATE)"
    if unit == "week":
        since_monday = (day_of_week(value) + 5) % 7
        return f"date_sub(CAST({value} AS DATE), CAST({since_monday} AS INT))"
    month = {
        "month": f"month({value})",
        "quarter": f"CAST({SPARK.column(f'quarter({value})', 1, 4) * 3 - 2} AS INT)",
    }
    return f"make_date(year({value}), {month.get(unit, '1')}, 1)"


def start_of_time(microseconds: int, value: str) -> str:
    """A time of the years 1 to 9999, rounded down to a multiple of so many microseconds."""
    since = SPARK.column(f"unix_micros(CAST({value} AS TIMESTAMP))", -(10**17), 3 * 10**17)
    return f"timestamp_micros({since.floor_to(microseconds)})"


def sum_parities(value: Whole) -> str:
    """A sum that no server computes without every value."""
    return SPARK.sum_rows(Whole(SPARK, f"pmod({value}, 2L)", 0, 1, BIGINT)).sql


def bits_fraction(number: str, bits: int) -> str:
    """A BIGINT of at most 52 bits, not negative, as a number in [0, 1)."""
    return operate_doubles(f"CAST({number} AS DOUBLE)", "*", f"{2.0**-bits!r}D")


def spark_decimal_units(value: str, scale: int, low: int, high: int) -> Whole:
    """The digits without the point of a DECIMAL(18, scale) between two numbers of such digits."""
    ten = f"CAST('{10**scale}' AS DECIMAL({scale + 1}, 0))"
    return SPARK.column(f"CAST({value} * {ten} AS BIGINT)", low, high)
