"""The declared language as a tree: what users may write, copied node by node from what was parsed.

A `Node` is an operator with its operands, or a leaf: a column or a literal. Its text is canonical, so
that texts which differ in spaces, case or brackets are one condition. A backend's renderer
(`dpflow.tables.language.rendering`) writes the tree as SQL; no text of a user reaches a database.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NoReturn

from dpflow.errors import RuleBroken
from dpflow.tables.access import sql

#: The longest condition, in characters as written and in its canonical form, and the deepest, in
#: brackets and operators.
MOST_TEXT, MOST_DEPTH = 10_000, 100

#: Operators by what sqlglot calls their nodes.
COMPARISONS = {"EQ": "=", "NEQ": "<>", "LT": "<", "LTE": "<=", "GT": ">", "GTE": ">="}
CONNECTIVES = {"And": "AND", "Or": "OR"}
ARITHMETIC = {"Add": "+", "Sub": "-", "Mul": "*", "Div": "/", "Mod": "%"}
FUNCTIONS = {
    "Abs": "abs",
    "Sqrt": "sqrt",
    "Ln": "ln",
    "Exp": "exp",
    "Lower": "lower",
    "Upper": "upper",
    "Length": "length",
}
#: Parts of dates and timestamps (UTC), by sqlglot's nodes and by the words of EXTRACT, with their
#: least and largest numbers. A week's day counts from Sunday as 0, or in ISO's way from Monday as 1.
DATE_PARTS = {
    "Year": "year",
    "Quarter": "quarter",
    "Month": "month",
    "Day": "day",
    "DayOfYear": "dayofyear",
    "DayOfWeek": "dayofweek",
    "DayOfWeekIso": "isodow",
    "Hour": "hour",
    "Minute": "minute",
}
EXTRACTED = {name.upper(): name for name in DATE_PARTS.values()} | {
    "DOW": "dayofweek",
    "DOY": "dayofyear",
}
PART_RANGES = {
    "year": (1, 9999),
    "quarter": (1, 4),
    "month": (1, 12),
    "day": (1, 31),
    "dayofyear": (1, 366),
    "dayofweek": (0, 6),
    "isodow": (1, 7),
    "hour": (0, 23),
    "minute": (0, 59),
}
#: What ``date_trunc`` rounds down to: dates, and what only timestamps have.
DATE_UNITS, TIME_UNITS = ("year", "quarter", "month", "week", "day"), ("hour", "minute")
#: What ``date_diff`` counts the boundaries of: with dates, and those that only timestamps have.
DIFFERENCES = (
    *("day", "week", "month", "quarter", "year"),
    *("hour", "minute", "second", "microsecond"),
)
#: Operators that are rendered as DuckDB's SQL alone.
DUCKDB_ALONE = ("round", "substring", "||", "date_diff", "regexp_matches", "regexp_extract")
#: Types of CAST by what sqlglot calls them.
CAST_TYPES = {
    "TEXT": "VARCHAR",
    "VARCHAR": "VARCHAR",
    "BIGINT": "BIGINT",
    "DOUBLE": "DOUBLE",
    "DATE": "DATE",
    "TIMESTAMP": "TIMESTAMP",
    "TIMESTAMPNTZ": "TIMESTAMP",
}
CHOICES = {"Least": "least", "Greatest": "greatest", "Coalesce": "coalesce"}
BINARY = COMPARISONS | CONNECTIVES | ARITHMETIC
_ORDERED = "ORDER BY"
_INFIX = {*BINARY.values(), "LIKE", "||"}


@dataclass(frozen=True)
class Node:
    """``column``, ``number``, ``text`` or ``truth`` with one value, or an operator with its
    operands.

    Raises `PlanRefused` if its text is longer than what is read again: whatever walks a node is
    bounded by its text.
    """

    op: str
    args: tuple[Any, ...]
    _text: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Write the text, from those of the operands."""
        text = self._canonical_text()
        if len(text) > MOST_TEXT:
            refuse_sql(
                "length",
                f"its canonical form, with every bracket, all digits of a number and the operand of a BETWEEN twice, is "
                f"longer than {MOST_TEXT} characters; write it shorter",
            )
        object.__setattr__(self, "_text", text)

    def __str__(self) -> str:
        """The canonical text, with every bracket."""
        return self._text

    def _canonical_text(self) -> str:
        if self.op == "column":
            return ".".join(sql.quote_name(part) for part in self.args[0])
        if self.op == "number":
            # Without an exponent: one number has one text.
            return format(self.args[0], "f")
        if self.op == "text":
            return sql.quote_text(self.args[0])
        if self.op == "truth":
            return "TRUE" if self.args[0] else "FALSE"
        # Every bracket is written, so that the text has one reading whatever binds tighter.
        operands = [str(arg) for arg in self.args]
        if self.op == "IN":
            return f"({operands[0]} IN ({', '.join(operands[1:])}))"
        if self.op == "IS NULL":
            return f"({operands[0]} IS NULL)"
        if self.op == "CAST":
            return f"CAST({operands[0]} AS {self.args[1]})"
        if self.op == "CASE":
            whens = "".join(
                f" WHEN {when} THEN {then}" for when, then in zip(operands[::2], operands[1::2])
            )
            return f"CASE{whens}{f' ELSE {operands[-1]}' if len(operands) % 2 else ''} END"
        if len(operands) == 2 and self.op in _INFIX:
            return f"({operands[0]} {self.op} {operands[1]})"
        return (
            f"({self.op} {operands[0]})"
            if self.op in ("NOT", "-")
            else f"{self.op}({', '.join(operands)})"
        )

    def column_names(self) -> set[str]:
        """Names of the declared columns that it reads."""
        if self.op == "column":
            return {".".join(self.args[0])}
        return {name for arg in self.args if isinstance(arg, Node) for name in arg.column_names()}


class Aggregate(Node):
    """An aggregate of row expressions, or one with its ``FILTER``."""

    def _canonical_text(self) -> str:
        operands = [str(arg) for arg in self.args]
        if self.op == "FILTER":
            return f"{operands[0]} FILTER (WHERE {operands[1]})"
        if self.op == "count(*)":
            return self.op
        if self.op in ("first", "last"):
            nulls = " NULLS FIRST" if len(operands) > 2 else ""
            return f"{self.op}({operands[0]} {_ORDERED} {operands[1]}{nulls})"
        return (
            f"count(DISTINCT {operands[0]})"
            if self.op == "count distinct"
            else f"{self.op}({', '.join(operands)})"
        )


#: Aggregates of a group's rows.
AGGREGATES = {
    "count(*)",
    "count",
    "count distinct",
    "sum",
    "avg",
    "min",
    "max",
    "quantile_cont",
    "quantile_disc",
    "var_samp",
    "var_pop",
    "stddev_samp",
    "stddev_pop",
    "corr",
    "covar_samp",
    "covar_pop",
    "regr_slope",
    *("arg_min", "arg_max", "first", "last"),
}


def pick_first(
    op: str, value: Node, order: Node, *, descending: bool, nulls_first: bool
) -> Aggregate:
    """``first`` or ``last`` of a value in an order, as one in the ascending order."""
    if descending:
        op, nulls_first = {"first": "last", "last": "first"}[op], not nulls_first
    return Aggregate(op, (value, order, *([Node("truth", (True,))] if nulls_first else [])))


def refuse_sql(rule: str, what: str) -> NoReturn:
    """Raise `RuleBroken` with the name of the rule that is broken."""
    raise RuleBroken(rule, what)
