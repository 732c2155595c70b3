"""The declared language as SQL: what every engine's renderer shares, and DuckDB's.

A renderer knows of each node which types it takes and gives. What engines do differently is in a few
methods: how a column of each type is read, how texts are compared by their bytes, how constants of
times are written. What it writes is total: whatever a row holds, a value or NULL and never an error.
"""

from __future__ import annotations

import datetime as dt
import math
import re
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal
from fractions import Fraction
from functools import cache
from typing import ClassVar

from dpflow.tables.access import sql
from dpflow.tables.access.arithmetic import (
    DUCKDB,
    date_difference,
    minus_double,
    operate_doubles,
)
from dpflow.tables.language.nodes import (
    ARITHMETIC,
    CHOICES,
    COMPARISONS,
    DATE_UNITS,
    DUCKDB_ALONE,
    PART_RANGES,
    Node,
    refuse_sql,
)
from dpflow.tables.language.sql_writer import SqlWriter

_SMALL = {"tinyint", "smallint", "integer", "bigint", "utinyint", "usmallint", "uinteger"}
_INT64 = 2**63
#: Comparisons with their sides exchanged.
_EXCHANGED = {"=": "=", "<>": "<>", "<": ">", ">": "<", "<=": ">=", ">=": "<="}
#: Digits of the widest decimals.
_DIGITS = Context(prec=76)


@dataclass(frozen=True)
class Wide:
    """A column of decimals as it is stored: its SQL, and its digits, of which ``scale`` stand behind the point."""

    sql: str
    width: int
    scale: int


@dataclass(frozen=True)
class Term:
    """An expression that cannot raise, and its family: whole, number, text, truth, or a column's
    time or UUID kind.
    """

    sql: str
    family: str
    unguarded: str = ""  #: of arithmetic, the same as SQL that may be NaN where it should be NULL
    decimal: Wide | None = None  #: of a column of decimals that no double writes, its digits


def decimal_term(value: str, name: str, field: sql.Field) -> Term:
    """A column of decimals: a DOUBLE, which beyond 15 digits is not all of it."""
    wide = Wide(name, field.width, field.scale) if field.width > 15 else None
    return Term(value, "number", decimal=wide)


@cache
def open_writer(dialect: str) -> SqlWriter:
    """The writer of a dialect; made once, for it loads the dialect."""
    return SqlWriter(dialect)


class Renderer(ABC):
    """Writes nodes as SQL of one engine.

    Raises `PlanRefused` where types do not fit, and what ``column`` raises where one is missing.
    """

    dialect: ClassVar[str]  #: sqlglot's name of the engine

    def __init__(self, column: Callable[[str], sql.Field]) -> None:
        self._column, self.write = column, open_writer(self.dialect)

    @abstractmethod
    def column_term(self, field: sql.Field) -> Term:
        """A column's value by its type, NaN as NULL, or `PlanRefused` for types without values to
        compare.
        """

    @abstractmethod
    def is_missing(self, field: sql.Field) -> str:
        """Whether a column of any type is NULL, or NaN."""

    @abstractmethod
    def text_bytes(self, text: str) -> str:
        """What two texts are compared by: equal only if they are the same characters."""

    @abstractmethod
    def timestamp(self, since: dt.timedelta, zoned: bool) -> str:
        """The constant that lies so long after 1970."""

    @abstractmethod
    def to_utc(self, value: str) -> str:
        """A timestamp with a time zone as the timestamp that clocks show in UTC."""

    def date_part(self, part: str, value: str) -> str:
        """A part of a date or timestamp, as the language numbers it."""
        return self.write.call(part, value)

    def condition(self, node: Node) -> str:
        """A condition as SQL."""
        return condition_text(self.write_term(node), node)

    def write_term(self, node: Node) -> Term:
        """A node as SQL, with its family."""
        if node.op == "column":
            return self.column(".".join(node.args[0]))
        if node.op == "number":
            return self._number(node.args[0])
        if node.op == "text":
            return Term(self.write.text(node.args[0]), "text")
        if node.op == "truth":
            return Term(self.write.truth(node.args[0]), "truth")
        if node.op in ("CASE", *CHOICES.values()):
            return self._write_choice(node)
        if node.op in (*ARITHMETIC.values(), "abs", "sqrt", "ln", "exp"):
            return self._write_arithmetic(node)
        return Term(*self._write_operator(node))

    def column(self, name: str) -> Term:
        """A column's value."""
        return self.column_term(self._column(name))

    def as_double(self, term: Term) -> str:
        """A number as a DOUBLE."""
        return term.sql if term.family == "number" else self.write.cast(term.sql, "DOUBLE")

    def without_nan(self, value: str) -> str:
        """A DOUBLE, or NULL for NaN."""
        return self.write.call("nullif", value, self.write.double(float("nan")))

    def without_zero(self, value: str) -> str:
        """A DOUBLE to divide by, or NULL for either zero."""
        return self.write.call("nullif", value, self.write.double(0.0))

    def as_text(self, term: Term) -> str:
        """A value as a text."""
        return self.write.cast(term.sql, "VARCHAR")

    def _as_operand(self, term: Term) -> str:
        """A number as a DOUBLE that goes into arithmetic, through which NaN stays NaN."""
        return term.unguarded or self.as_double(term)

    def _number(self, value: Decimal) -> Term:
        if value == value.to_integral_value() and -_INT64 <= value < _INT64:
            return Term(self.write.integer(int(value)), "whole")
        return Term(self.write.double(float(value)), "number")

    def _write_choice(self, node: Node) -> Term:
        """One of several values of one family. ``least`` and ``greatest`` pass over NULL."""
        terms = [self.write_term(arg) for arg in node.args]
        whens: list[str] = []
        if node.op == "CASE":
            pairs = len(terms) // 2
            whens = [condition_text(term, node) for term in terms[: 2 * pairs : 2]]
            terms = [*terms[1 : 2 * pairs : 2], *terms[2 * pairs :]]
        families = {term.family for term in terms}
        if families == {"whole", "number"}:
            terms = [Term(self.as_double(term), "number") for term in terms]
        require_operands(
            len(families) == 1 or families == {"whole", "number"}, node, "values of one type"
        )
        ordered = terms[0].family in ("whole", "number")
        require_operands(ordered or node.op not in ("least", "greatest"), node, "numbers")
        texts = [term.sql for term in terms]
        if node.op != "CASE":
            return Term(self.write.call(node.op, *texts), terms[0].family)
        otherwise = texts[-1] if len(texts) > len(whens) else None
        return Term(self.write.choose(list(zip(whens, texts)), otherwise), terms[0].family)

    def _write_operator(self, node: Node) -> tuple[str, str]:
        if node.op == "IS NULL" and node.args[0].op == "column":  # of any type
            return self.is_missing(self._column(".".join(node.args[0].args[0]))), "truth"
        if node.op in COMPARISONS.values() or node.op == "IN":
            return self._write_comparison(node), "truth"
        if node.op == "CAST":
            return self._write_cast(node)
        if node.op == "date_trunc":
            return self._write_date_trunc(node)
        if node.op in DUCKDB_ALONE:
            return self.write_special(node)
        if node.op in PART_RANGES:
            moment = self._calendar_value(node, node.args[0])
            return self.date_part(node.op, moment.sql), "whole"
        terms = [self.write_term(arg) for arg in node.args]
        if node.op == "bucket":
            return self._write_bucket(node, terms[0], int(node.args[1].args[0])), "whole"
        if node.op in ("AND", "OR"):
            left, right = (condition_text(term, node) for term in terms)
            return self.write.operate(left, node.op, right), "truth"
        if node.op == "NOT":
            return self.write.negate(condition_text(terms[0], node)), "truth"
        if node.op == "IS NULL":
            return self.write.is_null(terms[0].sql), "truth"
        if node.op in ("LIKE", "lower", "upper", "length"):
            require_operands(all(term.family == "text" for term in terms), node, "text")
            if node.op == "LIKE":
                return self.write.operate(terms[0].sql, "LIKE", terms[1].sql), "truth"
            value = self.write.call(node.op, terms[0].sql)
            return value, "whole" if node.op == "length" else "text"
        raise AssertionError(f"{node.op} has no SQL")

    def write_special(self, node: Node) -> tuple[str, str]:
        """An operator of `DUCKDB_ALONE`, with its family."""
        refuse_sql("types", f"{node.op} is computed on DuckDB only, not on {self.dialect}")

    def _write_arithmetic(self, node: Node) -> Term:
        """Arithmetic with one guard around all of it: engines write what stands in a nullif twice,
        so one in each operand would double the query with every level.
        """
        terms = [self.write_term(arg) for arg in node.args]
        if node.op == "-" and [term.family for term in terms] == ["date", "date"]:
            unit, (later, earlier) = Node("text", ("day",)), node.args
            return Term(*self.write_special(Node("date_diff", (unit, earlier, later))))
        what = "numbers"
        if any(term.family in CALENDAR for term in terms):
            what += "; days between dates are date_diff('day', a, b), and a literal moves by an INTERVAL"
        require_operands(all(term.family in ("whole", "number") for term in terms), node, what)
        values = [self._as_operand(term) for term in terms]
        if len(values) == 1:
            # Where they are not defined they give NaN, and raise nothing.
            value = (
                minus_double(values[0]) if node.op == "-" else self.write.call(node.op, values[0])
            )
        else:
            if node.op in ("/", "%"):
                values[1] = self.without_zero(values[1])
            value = operate_doubles(values[0], node.op, values[1])
        return Term(self.without_nan(value), "number", value)

    def _calendar_value(self, node: Node, value: Node) -> Term:
        """A date or timestamp (UTC) of the years 1 to 9999, else NULL: beyond them functions of
        dates may fail.

        Of a column, or of another such function: the guard writes its operand three times.
        """
        term = self.write_term(value)
        require_operands(term.family in CALENDAR, node, "a date or a timestamp")
        if value.op in ("CAST", "date_trunc"):
            return term
        require_operands(
            value.op == "column", node, "a column, such as CASE WHEN x THEN hour(d) END"
        )
        first, last = (
            self._time_constant(text[:10] if term.family == "date" else text, term.family)
            for text in ("0001-01-01 00:00:00", "9999-12-31 23:59:59.999999")
        )
        within = self.write.operate(
            self.write.operate(term.sql, ">=", first),
            "AND",
            self.write.operate(term.sql, "<=", last),
        )
        # Inside of the function, so that it never meets another value.
        guarded = self.write.choose([(within, term.sql)])
        if term.family.endswith("zone"):
            return Term(self.to_utc(guarded), "timestamp")
        return Term(guarded, term.family)

    def _write_date_trunc(self, node: Node) -> tuple[str, str]:
        unit, value = node.args[0].args[0], self._calendar_value(node, node.args[1])
        require_operands(unit in DATE_UNITS or value.family != "date", node, "a timestamp")
        start = self.write.call("date_trunc", self.write.text(unit), value.sql)
        kind = "DATE" if unit in DATE_UNITS else "TIMESTAMP"
        return self.write.cast(start, kind), kind.lower()

    def _write_bucket(self, node: Node, term: Term, width: int) -> str:
        """The operand is written once, so that no nesting grows."""
        require_operands(term.family in ("whole", "number"), node, "a number")
        write = self.write
        if term.family == "whole":
            start = DUCKDB.read(write.try_cast(term.sql, "BIGINT"), "bigint").floor_to(width)
        else:
            quotient = operate_doubles(self._as_operand(term), "/", write.double(float(width)))
            # NULL where it is NaN, or beyond 64 bits.
            number = write.try_cast(write.call("floor", quotient), "BIGINT")
            start = DUCKDB.read(number, "bigint") * width
        return write.try_cast(start.sql, "BIGINT")

    def _write_cast(self, node: Node) -> tuple[str, str]:
        """A cast between types of which every value of the first has one in the second, or NULL."""
        kind, term = node.args[1], self.write_term(node.args[0])
        if term.family not in _CASTS[kind]:
            refuse_sql(
                "casts",
                f"a cast to {kind} from {term.family} could fail; bucket(x, 1) rounds numbers down",
            )
        if kind in ("DATE", "TIMESTAMP"):
            return self.write.cast(self._calendar_value(node, node.args[0]).sql, kind), kind.lower()
        if kind == "BIGINT":
            return self.write.try_cast(term.sql, kind), "whole"
        if kind == "VARCHAR":
            return self.as_text(term), "text"
        return self.write.cast(term.sql, kind), "number"

    def _write_comparison(self, node: Node) -> str:
        """A comparison of one family; a text literal takes the type of a time or UUID that it is
        compared with.
        """
        terms = [self.write_term(arg) for arg in node.args]
        if (exact := self._compare_digits(node, terms)) is not None:
            return exact
        families = {term.family for term, arg in zip(terms, node.args) if arg.op != "text"} or {
            "text"
        }
        if families == {"whole"}:
            texts = [term.sql for term in terms]
        elif families <= {"whole", "number"}:
            texts = [self.as_double(term) for term in terms]
        elif families == {"text"}:
            # As bytes: a column's own collation could make different texts equal.
            texts = [self.text_bytes(term.sql) for term in terms]
        elif len(families) == 1:
            family = families.pop()
            require_operands(
                family not in ("truth", "uuid") or node.op in ("=", "<>", "IN"), node, "an order"
            )
            texts = [
                self._time_constant(arg.args[0], family) if arg.op == "text" else term.sql
                for term, arg in zip(terms, node.args)
            ]
        else:
            texts = []
        require_operands(
            bool(texts) and (families <= {"text"} or _no_stray_text(node, families)),
            node,
            "operands of one type",
        )
        if node.op == "IN":
            return self.write.is_in(texts[0], texts[1:])
        return self.write.operate(texts[0], node.op, texts[1])

    def _compare_digits(self, node: Node, terms: Sequence[Term]) -> str | None:
        """A comparison of a column of decimals with literals by all digits; None of anything else.

        A literal is rounded to the column's scale so that it means the same, and the column is never converted.
        """
        op, arguments = node.op, list(node.args)
        if op != "IN" and terms[0].decimal is None:
            op, arguments = _EXCHANGED[op], arguments[::-1]
        column = next((term.decimal for term in terms if term.decimal is not None), None)
        if column is None or any(one.op != "number" for one in arguments[1:]):
            return None
        write, end = self.write, 10**column.width

        def constant(steps: int) -> str:
            digits = f"{Decimal(steps).scaleb(-column.scale, _DIGITS):f}"
            return write.cast(write.text(digits), f"DECIMAL({column.width}, {column.scale})")

        # Of a column's value without it being NULL: whatever is no number of the column's is no value of it.
        never, always = (write.operate(column.sql, one, column.sql) for one in ("<>", "="))
        values = [Fraction(one.args[0]) * 10**column.scale for one in arguments[1:]]
        if op in ("IN", "=", "<>"):
            held = [int(one) for one in values if one.denominator == 1 and abs(one) < end]
            if not held:
                return always if op == "<>" else never
            if op == "IN":
                return write.is_in(column.sql, list(map(constant, held)))
            return write.operate(column.sql, op, constant(held[0]))
        (value,) = values
        # Above x is above the last step up to x; below x is below the first step from x on.
        steps = math.floor(value) if op in (">", "<=") else math.ceil(value)
        if abs(steps) >= end:
            return always if (steps > 0) == (op in ("<", "<=")) else never
        return write.operate(column.sql, op, constant(steps))

    def _time_constant(self, text: str, family: str) -> str:
        """A text literal as a constant of a time or UUID type, in the one spelling that means it."""
        # One spelling for each value: another would be the same condition under a second name.
        try:
            if family == "date" and re.fullmatch(r"\d{4}-\d\d-\d\d", text):
                return self.write.cast(self.write.text(str(dt.date.fromisoformat(text))), "DATE")
            if family == "uuid" and str(uuid.UUID(text)) == text.lower():
                return self.write.cast(self.write.text(text), "UUID")
            if family.startswith("timestamp") and re.fullmatch(
                r"\d{4}-\d\d-\d\d( \d\d:\d\d(:\d\d(\.\d{1,6})?)?)?", text
            ):
                # A number, not a text: no setting of a session changes what it means.
                since = dt.datetime.fromisoformat(text) - dt.datetime(1970, 1, 1)
                return self.timestamp(since, family.endswith("zone"))
        except ValueError:
            pass
        refuse_sql(
            "types",
            f"a literal compared with a {family.upper()} is not one; write it like {_LIKE.get(family, 'TRUE')}",
        )


class DuckDBRenderer(Renderer):
    """DuckDB's SQL."""

    dialect = "duckdb"

    def column_term(self, field: sql.Field) -> Term:
        kind, name = field.kind, field.sql
        if kind in _SMALL:
            return Term(name, "whole")
        if kind in ("ubigint", "hugeint"):
            return Term(self.write.cast(name, "HUGEINT"), "whole")
        if kind in ("float", "double"):
            return Term(self.without_nan(self.write.cast(name, "DOUBLE")), "number")
        if kind == "decimal":
            return decimal_term(self.write.cast(name, "DOUBLE"), name, field)
        if kind in ("varchar", "enum"):
            return Term(self.write.cast(name, "VARCHAR"), "text")
        if kind in ("date", "uuid", "timestamp with time zone"):
            return Term(name, kind)
        if kind.startswith("timestamp"):
            # NULL for what the wider types hold beyond a TIMESTAMP.
            return Term(self.write.try_cast(name, "TIMESTAMP"), "timestamp")
        if kind == "boolean":
            return Term(name, "truth")
        refuse_sql(
            "types",
            f"column {field.name!r} is a {field.kind.upper()}, of which only IS NULL can be asked",
        )

    def is_missing(self, field: sql.Field) -> str:
        missing = self.write.is_null(field.sql)
        if not field.is_float:
            return missing
        return self.write.operate(missing, "OR", self.write.call("isnan", field.sql))

    def write_special(self, node: Node) -> tuple[str, str]:
        if node.op == "date_diff":
            unit = node.args[0].args[0]
            moments = [
                self._calendar_value(node, arg) if arg.op != "text" else None
                for arg in node.args[1:]
            ]
            families = {moment.family for moment in moments if moment is not None}
            require_operands(len(families) == 1, node, "two dates, or two timestamps")
            (family,) = families
            ends = [
                self._time_constant(arg.args[0], family) if moment is None else moment.sql
                for arg, moment in zip(node.args[1:], moments)
            ]
            require_operands(unit in DATE_UNITS or family != "date", node, "timestamps")
            return date_difference(self.write.text(unit), *ends).sql, "whole"
        if node.op == "round":
            term, digits = self.write_term(node.args[0]), str(int(node.args[1].args[0]))
            require_operands(term.family in ("whole", "number"), node, "a number")
            return self.write.call("round", self.as_double(term), digits), "number"
        terms = [self.write_term(arg) for arg in node.args]
        texts = terms[: 2 if node.op != "substring" else 1]
        require_operands(all(term.family == "text" for term in texts), node, "text")
        if node.op == "||":
            return self.write.operate(terms[0].sql, "||", terms[1].sql), "text"
        family = "truth" if node.op == "regexp_matches" else "text"
        values = [
            # DuckDB wants positions as they stand, and groups as no BIGINT.
            str(int(arg.args[0])) if arg.op == "number" else term.sql
            for arg, term in zip(node.args, terms)
        ]
        return self.write.call(node.op, *values), family

    def text_bytes(self, text: str) -> str:
        return self.write.call("encode", text)

    def timestamp(self, since: dt.timedelta, zoned: bool) -> str:
        microseconds = str(since // dt.timedelta(microseconds=1))
        return self.write.call("make_timestamptz" if zoned else "make_timestamp", microseconds)

    def to_utc(self, value: str) -> str:
        return self.write.call("make_timestamp", self.write.call("epoch_us", value))


#: Families with a calendar, and those that a cast to each type takes.
CALENDAR = ("date", "timestamp", "timestamp with time zone")
_CASTS = {
    "VARCHAR": ("text", "whole", "truth", "date", "timestamp", "uuid"),
    "BIGINT": ("whole", "truth"),
    "DOUBLE": ("whole", "number", "truth"),
    "DATE": CALENDAR,
    "TIMESTAMP": CALENDAR,
}

#: DuckDB's type of each family, where a column is computed.
_FIELD_TYPES = {
    "whole": "BIGINT",
    "number": "DOUBLE",
    "text": "VARCHAR",
    "truth": "BOOLEAN",
    "date": "DATE",
    "timestamp": "TIMESTAMP",
    "timestamp with time zone": "TIMESTAMP WITH TIME ZONE",
    "uuid": "UUID",
}


def derived_field(name: str, term: Term) -> sql.Field:
    """A column that is computed of others, as if it were stored; of whole numbers those of 64 bits."""
    kind, write = _FIELD_TYPES[term.family], open_writer(DuckDBRenderer.dialect)
    value = write.try_cast(term.sql, kind) if term.family == "whole" else term.sql
    return sql.Field(name, kind.lower(), kind, reference=f"({value})")


_LIKE = {
    "date": "'2013-01-31'",
    "timestamp": "'2013-01-31 12:00:00'",
    "timestamp with time zone": "'2013-01-31 12:00:00' (UTC)",
    "uuid": "'5fbf1a3c-3b1e-4b1c-8f7e-0123456789ab'",
}


def _no_stray_text(node: Node, families: set[str]) -> bool:
    """Whether text literals stand only beside types that have a text form."""
    return not (families & {"whole", "number"} and any(arg.op == "text" for arg in node.args))


def condition_text(term: Term, node: Node) -> str:
    """The SQL of a condition, or `PlanRefused`."""
    require_operands(term.family == "truth", node, "conditions")
    return term.sql


def require_operands(holds: bool, node: Node, what: str) -> None:
    """Raise `PlanRefused` unless the operands fit the operator."""
    if not holds:
        refuse_sql("types", f"{node.op} needs {what}")
