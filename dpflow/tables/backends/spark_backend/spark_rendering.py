"""The declared language as Spark's SQL."""

from __future__ import annotations

import datetime as dt

from dpflow.tables.access.arithmetic import (
    RANGES,
    SPARK,
    day_of_week,
    double,
    operate_doubles,
    start_of_days,
    start_of_time,
)
from dpflow.tables.access.sql import Field
from dpflow.tables.backends.spark_backend.spark_columns import INTEGERS, write_text
from dpflow.tables.language.nodes import DATE_UNITS, Node, refuse_sql
from dpflow.tables.language.rendering import Renderer, Term, decimal_term, require_operands

#: The largest DOUBLE below 2^63.
_FAR = 2**63 - 1024
_MICROSECONDS = {"hour": 3_600_000_000, "minute": 60_000_000}
#: Spark's kind of each family, where a column is computed.
_KINDS = {
    "whole": ("bigint", "bigint"),
    "number": ("double", "double"),
    "text": ("varchar", "string"),
    "truth": ("boolean", "boolean"),
    "date": ("date", "date"),
    "timestamp": ("timestamp", "timestamp_ntz"),
    "timestamp with time zone": ("timestamp with time zone", "timestamp"),
}


class SparkRenderer(Renderer):
    """Spark's SQL. A time with its zone is Spark's TIMESTAMP, one without is its TIMESTAMP_NTZ."""

    dialect = "spark"

    def column_term(self, field: Field) -> Term:
        kind, name = field.kind, field.reference
        if kind in INTEGERS:
            return Term(self.write.cast(name, "BIGINT"), "whole")
        if kind in ("float", "double"):
            return Term(self.without_nan(self.write.cast(name, "DOUBLE")), "number")
        if kind == "decimal":
            return decimal_term(self.write.cast(name, "DOUBLE"), name, field)
        if kind == "varchar":
            return Term(name, "text")
        if kind in ("date", "timestamp", "timestamp with time zone"):
            return Term(name, kind)
        if kind == "boolean":
            return Term(name, "truth")
        refuse_sql(
            "types",
            f"column {field.name!r} is a {field.type.upper()}, of which only IS NULL can be asked",
        )

    def is_missing(self, field: Field) -> str:
        missing = self.write.is_null(field.reference)
        if not field.is_float:
            return missing
        return self.write.operate(missing, "OR", self.write.call("isnan", field.reference))

    def without_nan(self, value: str) -> str:
        # On Sail nullif passes over a NaN whose sign or payload is another, as that of sqrt(-1).
        missing = self.write.cast("NULL", "DOUBLE")
        return self.write.call("nanvl", self._join_zeros(value), missing)

    def without_zero(self, value: str) -> str:
        return super().without_zero(self._join_zeros(value))

    def _join_zeros(self, value: str) -> str:
        """The same number, 0 for -0. On Sail nullif and IN take these for two, and a division by -0 fails."""
        return operate_doubles(value, "+", double(0))

    def as_text(self, term: Term) -> str:
        return write_text(term.sql, "varchar" if term.family == "text" else term.family)

    def _write_cast(self, node: Node) -> tuple[str, str]:
        kind = node.args[1]
        if kind != "VARCHAR" or self.write_term(node.args[0]).family not in ("date", "timestamp"):
            return super()._write_cast(node)
        # Of a far date servers write texts of their own.
        return self.as_text(self._calendar_value(node, node.args[0])), "text"

    def text_bytes(self, text: str) -> str:
        # A column with a collation of its own has another type, which no field has.
        return text

    def timestamp(self, since: dt.timedelta, zoned: bool) -> str:
        moment = self.write.call("timestamp_micros", str(since // dt.timedelta(microseconds=1)))
        return moment if zoned else self._without_zone(moment)

    def to_utc(self, value: str) -> str:
        # The session's clock is UTC.
        return self._without_zone(value)

    def _without_zone(self, value: str) -> str:
        return f"CAST({value} AS TIMESTAMP_NTZ)"

    def date_part(self, part: str, value: str) -> str:
        if part == "dayofweek":
            # From Sunday as 1.
            return str(day_of_week(value) - 1)
        if part == "isodow":
            # From Monday as 1. Not by weekday, of which servers have several ideas.
            return str((day_of_week(value) + 5) % 7 + 1)
        return self.write.call(part, value)

    def _write_operator(self, node: Node) -> tuple[str, str]:
        if node.op == "LIKE" and (node.args[1].op != "text" or "\\" in node.args[1].args[0]):
            refuse_sql(
                "patterns",
                "on Spark LIKE compares with a pattern that is a text without backslashes",
            )
        return super()._write_operator(node)

    def _write_date_trunc(self, node: Node) -> tuple[str, str]:
        unit, value = node.args[0].args[0], self._calendar_value(node, node.args[1])
        require_operands(unit in DATE_UNITS or value.family != "date", node, "a timestamp")
        require_short(node.args[1])
        # Not by date_trunc or trunc, which fail on some servers before the year 1677.
        if unit in DATE_UNITS:
            return start_of_days(unit, value.sql), "date"
        return self._without_zone(start_of_time(_MICROSECONDS[unit], value.sql)), "timestamp"

    def _write_arithmetic(self, node: Node) -> Term:
        if node.op != "ln":
            return super()._write_arithmetic(node)
        # Spark has NULL for the logarithm of 0.
        require_short(node.args[0])
        term = self.write_term(node.args[0])
        require_operands(term.family in ("whole", "number"), node, "numbers")
        value = self._as_operand(term)
        zero = self.write.operate(value, "=", self.write.double(0.0))
        logarithm = self.write.call("ln", value)
        value = self.write.choose([(zero, self.write.double(float("-inf")))], logarithm)
        return Term(self.without_nan(value), "number", value)

    def _write_bucket(self, node: Node, term: Term, width: int) -> str:
        require_operands(term.family in ("whole", "number"), node, "a number")
        require_short(node.args[0])
        if term.family == "whole":
            start = SPARK.column(term.sql, *RANGES["bigint"]).floor_to(width)
        else:
            quotient = operate_doubles(self._as_operand(term), "/", f"{float(width)!r}D")
            # Clamped to what 64 bits hold; what was beyond is NULL.
            number = f"CAST(floor(least(greatest({quotient}, {-_FAR}D), {_FAR}D)) AS BIGINT)"
            number = f"nullif(nullif({number}, {_FAR}L), {-_FAR}L)"
            start = SPARK.column(number, *RANGES["bigint"]) * width
        return f"TRY_CAST({start} AS BIGINT)"


def require_short(node: Node) -> None:
    """Refuse, for functions that write their operand several times, an operand with another such one:
    the query would grow with every level.
    """
    if any(f"{name}(" in str(node) for name in ("ln", "bucket", "date_trunc")):
        refuse_sql(
            "nesting", "on Spark ln, bucket and date_trunc do not take what one of them gives"
        )


def describe_computed_field(name: str, term: Term) -> Field:
    """A column that is computed of others, as if it were stored."""
    kind, type_name = _KINDS[term.family]
    return Field(name, kind, type_name, reference=f"({term.sql})")
