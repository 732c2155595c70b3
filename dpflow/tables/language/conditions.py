"""Which rows a release reads: a small language of conditions, checked, and rewritten for DuckDB.

A condition is compared with one row at a time, before contributions are truncated, so a unit's rows
pass or fail by themselves and every bound and sensitivity stays what the declaration says. Rows
where it is false or NULL are left out.

The language: declared columns and literals; ``= <> < <= > >=``, ``BETWEEN``, ``IN (...)``, ``IS
NULL``, ``LIKE`` with a literal, ``AND OR NOT``; ``+ - * / %``, ``abs``, ``sqrt``, ``ln`` and
``exp`` of numbers; ``lower``, ``upper`` and ``length`` of text; ``CASE WHEN``, ``coalesce``,
``least`` and ``greatest``. Nothing else: what sqlglot parses is copied node by node into `Node`,
and a node or an argument that this file does not name is refused.
`dpflow.tables.language.expressions` adds aggregates to it.

No expression raises, whatever a row holds, because a condition that fails on a chosen row is an
oracle. Whole columns compare exactly with whole literals; every other number, and all arithmetic,
is a DOUBLE, in which NaN and a division by zero are NULL. Types never mix, so there is no cast that
could fail.
"""

from __future__ import annotations

import datetime as dt
import re
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from functools import cache
from typing import Any, ClassVar, NoReturn

from dpflow.core.contract.declaration import Table
from dpflow.errors import PlanRefused, UnknownName
from dpflow.tables.access import sql

#: The longest condition, in characters as written and in its canonical form, and the deepest, in
#: brackets and operators.
MOST_TEXT, MOST_DEPTH = 10_000, 100

_COMPARISONS = {"EQ": "=", "NEQ": "<>", "LT": "<", "LTE": "<=", "GT": ">", "GTE": ">="}
_CONNECTIVES = {"And": "AND", "Or": "OR"}
_ARITHMETIC = {"Add": "+", "Sub": "-", "Mul": "*", "Div": "/", "Mod": "%"}
_FUNCTIONS = {
    "Abs": "abs",
    "Sqrt": "sqrt",
    "Ln": "ln",
    "Exp": "exp",
    "Lower": "lower",
    "Upper": "upper",
    "Length": "length",
}
_CHOICES = {"Least": "least", "Greatest": "greatest", "Coalesce": "coalesce"}
_BINARY = _COMPARISONS | _CONNECTIVES | _ARITHMETIC
_INFIX = {*_BINARY.values(), "LIKE"}

_SMALL = {"tinyint", "smallint", "integer", "bigint", "utinyint", "usmallint", "uinteger"}
_INT64 = 2**63


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


def parse_condition(text: str, table: Table) -> Node:
    """Check a condition on declared columns. Equal conditions up to spaces, case and brackets give
    equal nodes.

    Raises:
        PlanRefused: it is outside the language; the message names the rule.
        UnknownName: a column that the declaration does not have.
    """
    return Reader(text, table).read_root()


class Reader:
    """Copies what sqlglot parsed, node by node, into the language."""

    def __init__(self, text: str, table: Table) -> None:
        self._text, self._table = text, table

    def read_root(self) -> Node:
        """The condition."""
        from sqlglot import exp

        parsed = self.parse_after(exp.Where, "WHERE")
        if parsed is None:
            refuse_sql(
                "one condition",
                "it is not one SQL condition; write what stands after WHERE and nothing else",
            )
        return self._read_node(parsed.this, MOST_DEPTH)

    def parse_after(self, kind: Any, keyword: str) -> Any:
        """What sqlglot makes of the text after a keyword; None if it is not one thing of this kind."""
        from sqlglot.errors import SqlglotError

        # Before anything is parsed: the parser's time and stack grow with the text.
        if len(self._text) > MOST_TEXT or "\0" in self._text or not _is_unicode(self._text):
            refuse_sql(
                "length",
                f"it is longer than {MOST_TEXT} characters, or has characters that are no text",
            )
        try:
            parsed = _parse_sql(kind, f"{keyword} {self._text}")
        # Some of sqlglot's builders look blindly at arguments.
        except (SqlglotError, LookupError, AttributeError, TypeError):
            return None
        except RecursionError:
            refuse_sql(
                "depth",
                "it is nested too deeply to be read, perhaps in its canonical form, with every bracket",
            )
        # What stands after a semicolon is no part of the one thing.
        return parsed[0] if len(parsed) == 1 and isinstance(parsed[0], kind) else None

    def _read_node(self, found: Any, depth: int) -> Node:
        kind = type(found).__name__
        if depth <= 0:
            refuse_sql("depth", f"it is nested deeper than {MOST_DEPTH}; list values with IN")
        if kind == "Paren":
            return self._read_node(self._take_arguments(found, "this")[0], depth)
        if kind in _BINARY:
            # How a dialect divides says nothing here, where every division is one of DOUBLEs.
            extra = ("typed", "safe") if kind == "Div" else ()
            return self._read_operator(
                _BINARY[kind],
                self._take_arguments(found, "this", "expression", ignore=extra),
                depth,
            )
        if kind in _FUNCTIONS:
            return self._read_operator(_FUNCTIONS[kind], self._take_arguments(found, "this"), depth)
        if kind in _CHOICES:
            first, others = self._take_arguments(
                found, "this", "expressions", ignore=("ignore_nulls",)
            )
            return self._read_operator(_CHOICES[kind], [first, *(others or ())], depth)
        build: Callable[[Any, int], Node] | None = getattr(self, f"_read_{kind.lower()}", None)
        # A method alone allows nothing: a new helper's name must not let a node in.
        if build is None or kind not in _SPECIAL:
            refuse_sql("allow-list", f"{_node_name(found)} is not in the language")
        return build(found, depth)

    def _read_operator(self, name: str, operands: Iterable[Any], depth: int) -> Node:
        return Node(name, tuple(self._read_node(operand, depth - 1) for operand in operands))

    def _take_arguments(self, found: Any, *names: str, ignore: tuple[str, ...] = ()) -> list[Any]:
        """The named arguments. Any other that is set would change the meaning, so it is refused."""
        for name, value in found.args.items():
            if name not in (*names, *ignore) and value not in (None, False, [], ""):
                refuse_sql("allow-list", f"{_node_name(found)} with {name} is not in the language")
        return [found.args.get(name) for name in names]

    def _read_column(self, found: Any, depth: int) -> Node:
        self._take_arguments(found, "this", "table")
        parts = [found.args.get(name) for name in ("table", "this")]
        if any(part is not None and type(part).__name__ != "Identifier" for part in parts):
            refuse_sql("declared columns", "* and lambda parameters are not columns")
        full_name = ".".join(part.name for part in parts if part is not None)
        # Of names that differ in case only, the first declared one is meant.
        names = {name.casefold(): name for name in reversed(self._table.columns)}
        name = full_name if full_name in self._table.columns else names.get(full_name.casefold())
        if name is None:
            raise UnknownName(
                f"column of table {self._table.name!r}, named in SQL,",
                full_name,
                self._table.columns,
            )
        return Node("column", (self._table.split_name(name),))

    def _read_literal(self, found: Any, depth: int) -> Node:
        if found.args.get("is_string"):
            return Node("text", (str(found.this),))
        try:
            number = Decimal(str(found.this))
        except InvalidOperation:
            refuse_sql("literals", "a number is not written in decimal digits")
        # One that a DOUBLE rounds to 0 or to infinity would compare as another number.
        if number and not 0 < float(number) < float("inf"):
            refuse_sql("literals", "a number is beyond what a DOUBLE holds")
        # Decimals round beyond 28 digits, so longer ones stay as written.
        number = number.normalize() if len(number.as_tuple().digits) <= 28 else number
        return Node("number", (number or Decimal(0),))

    def _read_boolean(self, found: Any, depth: int) -> Node:
        return Node("truth", (bool(found.this),))

    def _read_null(self, found: Any, depth: int) -> NoReturn:
        refuse_sql("literals", "NULL compares with nothing; write IS NULL")

    def _read_neg(self, found: Any, depth: int) -> Node:
        # -5 becomes a literal, so that IN and comparisons of whole numbers take it.
        operand = self._read_node(self._take_arguments(found, "this")[0], depth - 1)
        return (
            Node("number", (-operand.args[0],))
            if operand.op == "number" and operand.args[0]
            else Node("-", (operand,))
        )

    def _read_not(self, found: Any, depth: int) -> Node:
        return self._read_operator("NOT", self._take_arguments(found, "this"), depth)

    def _read_is(self, found: Any, depth: int) -> Node:
        left, right = self._take_arguments(found, "this", "expression")
        if type(right).__name__ != "Null":
            refuse_sql("allow-list", "only IS NULL and IS NOT NULL are in the language")
        return self._read_operator("IS NULL", [left], depth)

    def _read_between(self, found: Any, depth: int) -> Node:
        """Each operand is read once: twice would be 2^n times in n of them, one inside the other."""
        value, low, high = (
            self._read_node(one, depth - 2)
            for one in self._take_arguments(found, "this", "low", "high")
        )
        return Node("AND", (Node(">=", (value, low)), Node("<=", (value, high))))

    def _read_case(self, found: Any, depth: int) -> Node:
        ifs, default = self._take_arguments(found, "ifs", "default")
        parts = [part for one in ifs for part in self._take_arguments(one, "this", "true")]
        # ELSE NULL is what a CASE without ELSE gives, so both are one node.
        if type(default).__name__ in ("NoneType", "Null"):
            default = None
        return self._read_operator("CASE", [*parts, *([] if default is None else [default])], depth)

    def _read_in(self, found: Any, depth: int) -> Node:
        value, listed = self._take_arguments(found, "this", "expressions")
        nodes = [self._read_node(item, depth - 1) for item in listed or ()]
        if not nodes or any(node.op not in ("number", "text", "truth") for node in nodes):
            refuse_sql("literals", "IN takes a list of literals")
        # Sorted and distinct, so that a list in another order is the same condition.
        return Node("IN", (self._read_node(value, depth - 1), *sorted(set(nodes), key=str)))

    def _read_like(self, found: Any, depth: int) -> Node:
        value, pattern = self._take_arguments(found, "this", "expression", ignore=("negate",))
        node = self._read_operator("LIKE", (value, pattern), depth)
        if node.args[1].op != "text":
            refuse_sql("literals", "LIKE takes a literal pattern")
        return Node("NOT", (node,)) if found.args.get("negate") else node


_SPECIAL = {
    "Case",
    "Column",
    "Literal",
    "Boolean",
    "Null",
    "Neg",
    "Not",
    "Is",
    "Between",
    "In",
    "Like",
}


@cache
def _strict_parser() -> Any:
    """sqlglot's parser of DuckDB's SQL, but no argument of a function is lost or changes its place."""
    from sqlglot.parsers.duckdb import DuckDBParser

    class Strict(DuckDBParser):
        #: like(value, pattern), whose arguments sqlglot exchanges, is no function of the language
        FUNCTIONS: ClassVar[dict[str, Any]] = {
            n: build for n, build in DuckDBParser.FUNCTIONS.items() if n != "LIKE"
        }
        #: those of quantiles look at two arguments only
        FUNCTION_PARSERS: ClassVar[dict[str, Any]] = {
            n: parse
            for n, parse in DuckDBParser.FUNCTION_PARSERS.items()
            if not n.startswith("QUANTILE")
        }

        def validate_expression(self, expression: Any, args: Any = None) -> Any:
            """As sqlglot does, and that every argument has found a place."""
            if any(getattr(arg, "parent", expression) is None for arg in args or ()):
                refuse_sql(
                    "allow-list",
                    f"{_node_name(expression)} with {len(args)} arguments is not in the language",
                )
            return super().validate_expression(expression, args)

    return Strict


def _parse_sql(kind: Any, text: str) -> list[Any]:
    from sqlglot import Dialect

    dialect = Dialect.get_or_raise("duckdb")
    statements: list[Any] = _strict_parser()(dialect=dialect).parse_into(
        kind, dialect.tokenize(text), text
    )
    return statements


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _node_name(found: Any) -> str:
    """What a person would call a node of sqlglot."""
    kind = type(found).__name__
    return f"the function {found.name!r}" if kind == "Anonymous" else kind


def refuse_sql(rule: str, what: str) -> NoReturn:
    """Raise `PlanRefused` with the name of the rule that is broken."""
    raise PlanRefused(f"the SQL breaks the rule {rule!r}: {what}")


# --- SQL for DuckDB -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Term:
    """An expression that cannot raise, and its family: whole, number, text, truth, or a column's
    time or UUID kind.
    """

    sql: str
    family: str

    @property
    def double(self) -> str:
        """The number as a DOUBLE."""
        return self.sql if self.family == "number" else f"CAST({self.sql} AS DOUBLE)"


def to_sql(node: Node, column: Callable[[str], sql.Field]) -> str:
    """The condition for DuckDB, by the columns' types in the catalog.

    Raises `PlanRefused` where types do not fit, `TableUnreadable` where a column is missing.
    """
    return condition_sql(ConditionRenderer(column).write_term(node), node)


class ConditionRenderer:
    """Writes nodes as SQL."""

    def __init__(self, column: Callable[[str], sql.Field]) -> None:
        self._column = column

    def write_term(self, node: Node) -> Term:
        """A node as SQL, with its family."""
        if node.op == "column":
            return self.column(".".join(node.args[0]))
        if node.op == "number":
            return _number_term(node.args[0])
        if node.op == "text":
            return Term(sql.quote_text(node.args[0]), "text")
        if node.op == "truth":
            return Term(str(node), "truth")
        return (
            self._write_choice(node)
            if node.op in ("CASE", *_CHOICES.values())
            else Term(*self._write_operator(node))
        )

    def column(self, name: str) -> Term:
        """A column's value."""
        return column_term(self._column(name))

    def _write_choice(self, node: Node) -> Term:
        """One of several values of one family. ``least`` and ``greatest`` pass over NULL, as
        DuckDB's do.
        """
        terms = [self.write_term(arg) for arg in node.args]
        whens: list[str] = []
        if node.op == "CASE":
            pairs = len(terms) // 2
            whens = [condition_sql(term, node) for term in terms[: 2 * pairs : 2]]
            terms = [*terms[1 : 2 * pairs : 2], *terms[2 * pairs :]]
        families = {term.family for term in terms}
        if families == {"whole", "number"}:
            terms = [Term(term.double, "number") for term in terms]
        require_operands(
            len(families) == 1 or families == {"whole", "number"}, node, "values of one type"
        )
        ordered = terms[0].family in ("whole", "number")
        require_operands(ordered or node.op not in ("least", "greatest"), node, "numbers")
        texts = [term.sql for term in terms]
        if node.op != "CASE":
            return Term(f"{node.op}({', '.join(texts)})", terms[0].family)
        otherwise = f" ELSE {texts[-1]}" if len(texts) > len(whens) else ""
        parts = "".join(f" WHEN {when} THEN {then}" for when, then in zip(whens, texts))
        return Term(f"(CASE{parts}{otherwise} END)", terms[0].family)

    def _write_operator(self, node: Node) -> tuple[str, str]:
        if node.op == "IS NULL" and node.args[0].op == "column":  # of any type
            field = self._column(".".join(node.args[0].args[0]))
            return (
                f"({field.sql} IS NULL)"
                if field.kind not in ("float", "double")
                else _null_or_nan(field)
            ), "truth"
        if node.op in _COMPARISONS.values() or node.op == "IN":
            return self._write_comparison(node), "truth"
        terms = [self.write_term(arg) for arg in node.args]
        if node.op in ("AND", "OR"):
            return (
                f"({condition_sql(terms[0], node)} {node.op} {condition_sql(terms[1], node)})",
                "truth",
            )
        if node.op == "NOT":
            return f"(NOT {condition_sql(terms[0], node)})", "truth"
        if node.op == "IS NULL":
            return f"({terms[0].sql} IS NULL)", "truth"
        if node.op in ("LIKE", "lower", "upper", "length"):
            require_operands(all(term.family == "text" for term in terms), node, "text")
            if node.op == "LIKE":
                return f"({terms[0].sql} LIKE {terms[1].sql})", "truth"
            return f"{node.op}({terms[0].sql})", "whole" if node.op == "length" else "text"
        require_operands(all(term.family in ("whole", "number") for term in terms), node, "numbers")
        values = [term.double for term in terms]
        if node.op in ("sqrt", "ln", "exp"):
            # DuckDB's sqrt and ln give NaN where they are not defined, and raise nothing.
            return f"nullif({node.op}({values[0]}), CAST('NaN' AS DOUBLE))", "number"
        if len(values) == 1:
            return f"{node.op}({values[0]})", "number"
        if node.op in ("/", "%"):
            values[1] = f"nullif({values[1]}, CAST(0 AS DOUBLE))"
        return f"nullif({values[0]} {node.op} {values[1]}, CAST('NaN' AS DOUBLE))", "number"

    def _write_comparison(self, node: Node) -> str:
        """A comparison of one family; a text literal takes the type of a time or UUID that it is
        compared with.
        """
        terms = [self.write_term(arg) for arg in node.args]
        families = {term.family for term, arg in zip(terms, node.args) if arg.op != "text"} or {
            "text"
        }
        if families == {"whole"}:
            texts = [term.sql for term in terms]
        elif families <= {"whole", "number"}:
            texts = [term.double for term in terms]
        elif families == {"text"}:
            # As bytes: a column's own collation could make different texts equal.
            texts = [f"encode({term.sql})" for term in terms]
        elif len(families) == 1:
            family = families.pop()
            require_operands(
                family not in ("truth", "uuid") or node.op in ("=", "<>", "IN"), node, "an order"
            )
            texts = [
                _time_constant(arg, family) if arg.op == "text" else term.sql
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
            return f"({texts[0]} IN ({', '.join(texts[1:])}))"
        return f"({texts[0]} {node.op} {texts[1]})"


def _no_stray_text(node: Node, families: set[str]) -> bool:
    """Whether text literals stand only beside types that have a text form."""
    return not (families & {"whole", "number"} and any(arg.op == "text" for arg in node.args))


def column_term(field: sql.Field) -> Term:
    """A column's value by its type, NaN as NULL. Raises `PlanRefused` for types without values to
    compare.
    """
    kind, name = field.kind, field.sql
    if kind in _SMALL:
        return Term(name, "whole")
    if kind in ("ubigint", "hugeint"):
        return Term(f"CAST({name} AS HUGEINT)", "whole")
    if kind in ("float", "double"):
        return Term(f"nullif(CAST({name} AS DOUBLE), CAST('NaN' AS DOUBLE))", "number")
    if kind in ("decimal", "uhugeint"):
        return Term(f"CAST({name} AS DOUBLE)", "number")
    if kind in ("varchar", "enum"):
        return Term(f"CAST({name} AS VARCHAR)", "text")
    if kind in ("date", "uuid", "timestamp with time zone"):
        return Term(name, kind)
    if kind.startswith("timestamp"):
        # NULL for what the wider types hold beyond a TIMESTAMP.
        return Term(f"TRY_CAST({name} AS TIMESTAMP)", "timestamp")
    if kind == "boolean":
        return Term(name, "truth")
    refuse_sql(
        "types",
        f"column {field.name!r} is a {field.kind.upper()}, of which only IS NULL can be asked",
    )


def _null_or_nan(field: sql.Field) -> str:
    return f"({field.sql} IS NULL OR isnan({field.sql}))"


def _number_term(value: Decimal) -> Term:
    if value == value.to_integral_value() and -_INT64 <= value < _INT64:
        return Term(sql.write_integer(int(value)), "whole")
    return Term(f"CAST('{float(value)!r}' AS DOUBLE)", "number")


def _time_constant(node: Node, family: str) -> str:
    """A text literal as a constant of a time or UUID type, in the one spelling that means it."""
    # One spelling for each value: another would be the same condition under a second name.
    text = node.args[0]
    try:
        if family == "date" and re.fullmatch(r"\d{4}-\d\d-\d\d", text):
            return f"CAST('{dt.date.fromisoformat(text)}' AS DATE)"
        if family == "uuid" and str(uuid.UUID(text)) == text.lower():
            return f"CAST('{text}' AS UUID)"
        if family.startswith("timestamp") and re.fullmatch(
            r"\d{4}-\d\d-\d\d( \d\d:\d\d(:\d\d(\.\d{1,6})?)?)?", text
        ):
            # A number, not a text: no setting of a session changes what it means.
            since = dt.datetime.fromisoformat(text) - dt.datetime(1970, 1, 1)
            zone = "tz" if family.endswith("zone") else ""
            return f"make_timestamp{zone}({since // dt.timedelta(microseconds=1)})"
    except ValueError:
        pass
    refuse_sql(
        "types",
        f"a literal compared with a {family.upper()} is not one; write it like {_LIKE.get(family, 'TRUE')}",
    )


_LIKE = {
    "date": "'2013-01-31'",
    "timestamp": "'2013-01-31 12:00:00'",
    "timestamp with time zone": "'2013-01-31 12:00:00' (UTC)",
    "uuid": "'5fbf1a3c-3b1e-4b1c-8f7e-0123456789ab'",
}


def condition_sql(term: Term, node: Node) -> str:
    """The SQL of a condition, or `PlanRefused`."""
    require_operands(term.family == "truth", node, "conditions")
    return term.sql


def require_operands(holds: bool, node: Node, what: str) -> None:
    """Raise `PlanRefused` unless the operands fit the operator."""
    if not holds:
        refuse_sql("types", f"{node.op} needs {what}")
