"""Which rows a release reads: a small language of conditions, checked and copied into a tree.

A condition is compared with one row at a time, before contributions are truncated, so a unit's rows
pass or fail by themselves and every bound and sensitivity stays what the declaration says. Rows
where it is false or NULL are left out.

The language: declared columns and literals; ``= <> < <= > >=``, ``BETWEEN``, ``IN (...)``, ``IS
NULL``, ``LIKE`` with a literal, ``AND OR NOT``; ``+ - * / %``, ``abs``, ``sqrt``, ``ln`` and
``exp`` of numbers; ``lower``, ``upper`` and ``length`` of text; ``CASE WHEN``, ``coalesce``,
``least`` and ``greatest``; ``date_trunc`` and the parts of dates and timestamps; ``bucket(x, 10)``,
the start of the bin of that width; casts that cannot fail; and what `dpflow.tables.language.respelled` reads as these. Nothing else:
what sqlglot parses is copied node by node into `Node`,
and a node or an argument that this file does not name is refused.
`dpflow.tables.language.expressions` adds aggregates to it.

No expression raises, whatever a row holds, because a condition that fails on a chosen row is an
oracle. Whole columns compare exactly with whole literals; every other number, and all arithmetic,
is a DOUBLE, in which NaN and a division by zero are NULL. Dates outside of the years 1 to 9999 have
no parts. Types never mix, so there is no cast that could fail.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from functools import cache, lru_cache, wraps
from itertools import pairwise
from typing import Any, ClassVar, NoReturn, TypeVar

from dpflow.core.contract.declaration import Table
from dpflow.errors import MissingExtra, UnknownName
from dpflow.tables.language.nodes import (
    BINARY,
    CAST_TYPES,
    CHOICES,
    CONNECTIVES,
    DATE_PARTS,
    DATE_UNITS,
    EXTRACTED,
    FUNCTIONS,
    MOST_DEPTH,
    MOST_TEXT,
    TIME_UNITS,
    Node,
    refuse_sql,
)
from dpflow.tables.language.respelled import read_respelled

T = TypeVar("T")

#: Operators of which a long line is one thing, by the kinds that it may mix.
_LINES = {"Add": ("Add", "Sub"), "Sub": ("Add", "Sub"), "And": ("And",), "Or": ("Or",)}
#: Operands of such a line that are written one bracket inside the other. More could not be read
#: again, so no ledger holds a text of them, and they may be written another way.
MOST_IN_LINE = 40
#: Trees that are kept, and the longest of their texts in characters.
_MAX_KEPT, _MAX_KEPT_TEXT = 2000, 500


@dataclass(frozen=True)
class _TableNames:
    """All of a declaration that a tree depends on, and the declaration."""

    columns: tuple[str, ...]
    joins: tuple[str, ...]
    table: Table = field(compare=False)


def keep_parsed(parse: Callable[[str, Table], T]) -> Callable[[str, Table], T]:
    """Keep the trees of short texts: stored conditions are read again for each query."""
    parse_once = lru_cache(_MAX_KEPT)(lambda text, names: parse(text, names.table))

    @wraps(parse)
    def parse_kept(text: str, table: Table) -> T:
        if len(text) > _MAX_KEPT_TEXT:
            return parse(text, table)
        joins = tuple(join.name for join in table.joins)
        return parse_once(text, _TableNames(tuple(table.columns), joins, table))

    return parse_kept


@keep_parsed
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

    def parse_list(self) -> list[Any]:
        """The expressions of a text that is a list of them; none where it is anything else."""
        from sqlglot import exp

        parsed = self.parse_after(exp.Select, "SELECT")
        clauses = {} if parsed is None else {n: v for n, v in parsed.args.items() if v}
        # FROM, WHERE, GROUP BY and LIMIT are clauses, too, and all of them are refused.
        return list(clauses["expressions"]) if set(clauses) == {"expressions"} else []

    def parse_after(self, kind: Any, keyword: str) -> Any:
        """What sqlglot makes of the text after a keyword; None if it is not one thing of this kind."""
        from sqlglot.errors import SqlglotError

        # Before anything is parsed: the parser's time and stack grow with the text.
        if len(self._text) > MOST_TEXT or "\0" in self._text or not is_unicode(self._text):
            refuse_sql(
                "length",
                f"it is longer than {MOST_TEXT} characters, or has characters that are no text",
            )
        try:
            parsed = _parse_anywhere(kind, f"{keyword} {self._text}")
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
            return self._read_node(self.take_arguments(found, "this")[0], depth)
        if (respelled := read_respelled(self, found, depth)) is not None:
            return respelled
        if kind in _LINES and len(operands := self._read_line(found, kind)) > MOST_IN_LINE:
            return self._balance_line(operands, kind, depth)
        if kind in BINARY:
            # How a dialect divides says nothing here, where every division is one of DOUBLEs.
            extra = ("typed", "safe") if kind == "Div" else ()
            return self._read_operator(
                BINARY[kind],
                self.take_arguments(found, "this", "expression", ignore=extra),
                depth,
            )
        if kind in FUNCTIONS:
            return self._read_operator(FUNCTIONS[kind], self.take_arguments(found, "this"), depth)
        if kind in CHOICES:
            first, others = self.take_arguments(
                found, "this", "expressions", ignore=("ignore_nulls",)
            )
            return self._read_operator(CHOICES[kind], [first, *(others or ())], depth)
        if kind in DATE_PARTS:
            return self._read_part(DATE_PARTS[kind], self.take_arguments(found, "this")[0], depth)
        if kind == "Anonymous" and found.name.lower() in ("bucket", "date_trunc", "datetrunc"):
            bucket = found.name.lower() == "bucket"
            return (self._read_bucket if bucket else self._read_date_trunc)(found, depth)
        build: Callable[[Any, int], Node] | None = getattr(self, f"_read_{kind.lower()}", None)
        # A method alone allows nothing: a new helper's name must not let a node in.
        if build is None or kind not in _SPECIAL:
            refuse_sql("allow-list", f"{_node_name(found)} is not in the language")
        return build(found, depth)

    def _read_operator(self, name: str, operands: Iterable[Any], depth: int) -> Node:
        return Node(name, tuple(self._read_node(operand, depth - 1) for operand in operands))

    def _read_line(self, found: Any, kind: str) -> list[tuple[str, Any]]:
        """The operands of ``a + b - c``, or of one connective, first to last, each with the kind of
        the operator before it.
        """
        operands: list[tuple[str, Any]] = []
        while (operator := type(found).__name__) in _LINES[kind]:
            found, right = self.take_arguments(found, "this", "expression")
            operands.append((operator, right))
            # Brackets on the left change nothing: a line is read from the left with or without.
            while type(found).__name__ == "Paren":
                found = self.take_arguments(found, "this")[0]
        return [(kind, found), *reversed(operands)]

    def _balance_line(self, operands: list[tuple[str, Any]], kind: str, depth: int) -> Node:
        """A long line as a tree of logarithmic depth, which its brackets keep when it is read
        again.
        """
        op = CONNECTIVES.get(kind, "+")
        inner = depth - len(operands).bit_length() - 1
        nodes = [
            self._read_node(operand, inner)
            if before != "Sub" or index == 0
            else _negate(self._read_node(operand, inner))
            for index, (before, operand) in enumerate(operands)
        ]
        while len(nodes) > 1:
            pairs = [Node(op, (a, b)) for a, b in zip(nodes[::2], nodes[1::2])]
            nodes = [*pairs, *nodes[2 * len(pairs) :]]
        return nodes[0]

    def read_operand(self, found: Any, depth: int) -> Node:
        """An operand of what is read at a depth."""
        return self._read_node(found, depth - 1)

    def take_arguments(self, found: Any, *names: str, ignore: tuple[str, ...] = ()) -> list[Any]:
        """The named arguments. Any other that is set would change the meaning, so it is refused."""
        for name, value in found.args.items():
            if name not in (*names, *ignore) and value not in (None, False, [], ""):
                refuse_sql("allow-list", f"{_node_name(found)} with {name} is not in the language")
        return [found.args.get(name) for name in names]

    def _read_column(self, found: Any, depth: int) -> Node:
        self.take_arguments(found, "this", "table")
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
        refuse_sql("literals", "NULL is never true or equal; IS NULL asks for missing values")

    def _read_neg(self, found: Any, depth: int) -> Node:
        # -5 becomes a literal, so that IN and comparisons of whole numbers take it.
        operand = self._read_node(self.take_arguments(found, "this")[0], depth - 1)
        return _negate(operand)

    def _read_not(self, found: Any, depth: int) -> Node:
        return self._read_operator("NOT", self.take_arguments(found, "this"), depth)

    def _read_is(self, found: Any, depth: int) -> Node:
        left, right = self.take_arguments(found, "this", "expression")
        if type(right).__name__ != "Null":
            refuse_sql("allow-list", "only IS NULL and IS NOT NULL are in the language")
        return self._read_operator("IS NULL", [left], depth)

    def _read_between(self, found: Any, depth: int) -> Node:
        """Each operand is read once: twice would be 2^n times in n of them, one inside the other."""
        value, low, high = (
            self._read_node(one, depth - 2)
            for one in self.take_arguments(found, "this", "low", "high")
        )
        return Node("AND", (Node(">=", (value, low)), Node("<=", (value, high))))

    def _read_case(self, found: Any, depth: int) -> Node:
        ifs, default = self.take_arguments(found, "ifs", "default")
        parts = [part for one in ifs for part in self.take_arguments(one, "this", "true")]
        # ELSE NULL is what a CASE without ELSE gives, so both are one node.
        if type(default).__name__ in ("NoneType", "Null"):
            default = None
        return self._read_operator("CASE", [*parts, *([] if default is None else [default])], depth)

    def _read_in(self, found: Any, depth: int) -> Node:
        value, listed = self.take_arguments(found, "this", "expressions")
        nodes = [self._read_node(item, depth - 1) for item in listed or ()]
        if not nodes or any(node.op not in ("number", "text", "truth") for node in nodes):
            refuse_sql("literals", "IN takes a list of literals")
        # Sorted and distinct, so that a list in another order is the same condition.
        return Node("IN", (self._read_node(value, depth - 1), *sorted(set(nodes), key=str)))

    def _read_bucket(self, found: Any, depth: int) -> Node:
        _, arguments = self.take_arguments(found, "this", "expressions")
        node = Node("bucket", tuple(self._read_node(one, depth - 1) for one in arguments or ()))
        if len(node.args) != 2 or node.args[1].op != "number":
            refuse_sql("literals", "bucket takes a number and a literal width")
        width = node.args[1].args[0]
        if width != width.to_integral_value() or not 1 <= width < 2**53:
            refuse_sql(
                "literals",
                "the width of a bucket is a whole number from 1 and below 2^53; for finer ones multiply first, "
                "such as bucket(x * 100, 25)",
            )
        return node

    def _read_extract(self, found: Any, depth: int) -> Node:
        part, value = self.take_arguments(found, "this", "expression")
        name = EXTRACTED.get(str(part.this).upper()) if type(part).__name__ == "Var" else None
        if name is None:
            refuse_sql("literals", f"EXTRACT gives {', '.join(sorted(EXTRACTED)).lower()}")
        return self._read_part(name, value, depth)

    def _read_part(self, name: str, value: Any, depth: int) -> Node:
        node = self._read_operator(name, [value], depth)
        if node.args[0].op == "text":
            refuse_sql("literals", f"{name} of a constant is a number; write the number")
        return node

    def _read_date_trunc(self, found: Any, depth: int) -> Node:
        _, arguments = self.take_arguments(found, "this", "expressions")
        nodes = [self._read_node(one, depth - 1) for one in arguments or ()]
        units = DATE_UNITS + TIME_UNITS
        if len(nodes) != 2 or nodes[0].op != "text" or nodes[0].args[0].lower() not in units:
            refuse_sql("literals", f"date_trunc takes one of {', '.join(units)}, and a date")
        if nodes[1].op == "text":
            refuse_sql("literals", "date_trunc of a constant is a constant; write its value")
        return Node("date_trunc", (Node("text", (nodes[0].args[0].lower(),)), nodes[1]))

    def _read_cast(self, found: Any, depth: int) -> Node:
        value, kind = self.take_arguments(found, "this", "to")
        name = CAST_TYPES.get(getattr(kind.this, "name", "")) if kind is not None else None
        # DATE '2020-01-01' and its other spellings are the literal, which takes the type of what it is
        # compared with.
        if name in ("DATE", "TIMESTAMP") and not kind.expressions:
            literal = self._read_node(value, depth - 1)
            if literal.op == "text":
                return Node("text", (_read_moment(literal.args[0], name),))
            return Node("CAST", (literal, name))
        if name is None or kind.expressions or kind.args.get("nested"):
            types = sorted(set(CAST_TYPES.values()))
            written = kind.sql("duckdb") if kind is not None else "nothing"
            refuse_sql(
                "allow-list",
                f"Cast to {written[:40]} is not in the language; a cast is to one of {', '.join(types)}",
            )
        return Node("CAST", (self._read_node(value, depth - 1), name))

    def _read_like(self, found: Any, depth: int) -> Node:
        value, pattern = self.take_arguments(found, "this", "expression", ignore=("negate",))
        node = self._read_operator("LIKE", (value, pattern), depth)
        if node.args[1].op != "text":
            refuse_sql("literals", "LIKE takes a literal pattern")
        return Node("NOT", (node,)) if found.args.get("negate") else node


def _read_moment(text: str, kind: str) -> str:
    """A date or timestamp literal in the one spelling of its value; midnight is the date alone."""
    try:
        if not _MOMENT.fullmatch(text):
            raise ValueError
        moment = dt.datetime.fromisoformat(text)
    except ValueError:
        refuse_sql(
            "literals",
            f"{text[:40]!r} is no {kind} literal; write it like '2020-01-31' or '2020-01-31 23:59:59'",
        )
    if kind == "DATE" or moment.time() == dt.time():
        return str(moment.date())
    return moment.isoformat(" ")


#: Texts of intervals of which sqlglot loses nothing.
_INTERVAL = re.compile(r"\s*[-+]?\d+(\.\d+)?\s*|(\s*[-+]?\d+(\.\d+)?\s*[A-Za-z]+)+\s*", re.ASCII)
_MOMENT = re.compile(r"\d{4}-\d\d-\d\d( \d\d:\d\d(:\d\d(\.\d{1,6})?)?)?", re.ASCII)


def _negate(operand: Node) -> Node:
    if operand.op == "number" and operand.args[0]:
        return Node("number", (-operand.args[0],))
    return Node("-", (operand,))


_SPECIAL = {
    "Case",
    "Cast",
    "Column",
    "Extract",
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


#: Functions that are parsed as a name with arguments.
_PLAIN_FUNCTIONS = {
    *("LIKE", "DATE_TRUNC", "DATETRUNC", "STRFTIME", "STRPTIME"),
    *("JSON_EXTRACT", "JSON_EXTRACT_STRING", "JSON_EXTRACT_PATH", "JSON_EXTRACT_PATH_TEXT"),
}


#: Functions that GoogleSQL gives ``contribution_bounds_per_group => (low, high)``.
CLAMPED = ("SUM", "COUNT")


def keep_named_arguments(
    functions: dict[str, Any], names: Iterable[str] = CLAMPED
) -> dict[str, Any]:
    """sqlglot's builders of functions, but calls of some with a named argument stay as they are written."""
    from sqlglot import exp

    def keep(name: str) -> Callable[[list[Any]], Any]:
        def build(args: list[Any]) -> Any:
            if any(isinstance(one, exp.Kwarg) for one in args):
                return exp.Anonymous(this=name, expressions=args)
            return functions[name](args)

        return build

    return functions | {name: keep(name) for name in names}


@cache
def _strict_parser() -> Any:
    """sqlglot's parser of DuckDB's SQL, but no argument of a function is lost or changes its place."""
    from sqlglot import TokenType, exp, parser
    from sqlglot.parsers.duckdb import DuckDBParser

    if not str(parser.__file__).endswith(".py"):
        raise MissingExtra(
            "sqlglot is compiled here, and its parser cannot be extended so; uninstall sqlglotc, and keep sqlglot"
        )

    def number_placeholder(parser: Any) -> Any:
        """A ``?`` with its number in the text: the tree has clauses in another order."""
        read = parser._tokens[: parser._index]
        number = sum(token.token_type == TokenType.PLACEHOLDER for token in read)
        return parser.expression(exp.Placeholder(this=str(number)))

    class Strict(DuckDBParser):
        #: like(value, pattern), whose arguments sqlglot exchanges, is no function of the language;
        #: of date_trunc it makes several things, by what its argument looks like; formats and paths it writes
        #: again
        FUNCTIONS: ClassVar[dict[str, Any]] = keep_named_arguments(
            {n: build for n, build in DuckDBParser.FUNCTIONS.items() if n not in _PLAIN_FUNCTIONS}
        )
        #: those of quantiles look at two arguments only
        FUNCTION_PARSERS: ClassVar[dict[str, Any]] = {
            n: parse
            for n, parse in DuckDBParser.FUNCTION_PARSERS.items()
            if not n.startswith("QUANTILE")
        }

        PLACEHOLDER_PARSERS: ClassVar[dict[Any, Any]] = {
            **DuckDBParser.PLACEHOLDER_PARSERS,
            TokenType.PLACEHOLDER: number_placeholder,
        }

        def validate_expression(self, expression: Any, args: Any = None) -> Any:
            """As sqlglot does, and that every argument has found a place."""
            if any(getattr(arg, "parent", expression) is None for arg in args or ()):
                what = f"with {len(args)} arguments is not in the language"
                if any(isinstance(arg, exp.Kwarg) for arg in args):
                    what = f"takes no named argument: contribution_bounds_per_group is of {' and '.join(CLAMPED)}"
                refuse_sql("allow-list", f"{_node_name(expression)} {what}")
            return super().validate_expression(expression, args)

    return Strict


def _parse_anywhere(kind: Any, text: str) -> list[Any]:
    """What `_parse_sql` gives, whatever calls it: how deep a text may nest is no matter of the
    caller's stack.
    """
    try:
        return _parse_sql(kind, text)
    except RecursionError:
        # A thread begins with an empty stack.
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(_parse_sql, kind, text).result()


def _parse_sql(kind: Any, text: str) -> list[Any]:
    from sqlglot import Dialect

    dialect = Dialect.get_or_raise("duckdb")
    parser, tokens = _strict_parser()(dialect=dialect), dialect.tokenize(text)
    if (interval := find_cut_interval(tokens)) is not None:
        refuse_sql(
            "literals",
            f"INTERVAL {interval[:40]!r} is no number and unit, such as INTERVAL '5 days'; write one for what is later and "
            f"subtract it for what is earlier",
        )
    statements: list[Any] = (
        parser.parse(tokens, text) if kind is None else parser.parse_into(kind, tokens, text)
    )
    return statements


def find_cut_interval(tokens: Sequence[Any]) -> str | None:
    """The text of an INTERVAL of which sqlglot keeps a beginning only, such as ``5 days ago``; None without one."""
    from sqlglot import TokenType

    for token, text in pairwise(tokens):
        is_text = (token.token_type, text.token_type) == (TokenType.INTERVAL, TokenType.STRING)
        if is_text and not _INTERVAL.fullmatch(text.text):
            return str(text.text)
    return None


def parse_strictly(text: str) -> list[Any]:
    """The statements of a text in DuckDB's SQL, as sqlglot parses them, and no argument lost.

    Raises what sqlglot raises, `PlanRefused` for a lost argument, `RecursionError` if it is nested
    too deeply.
    """
    return _parse_anywhere(None, text)


def is_unicode(text: str) -> bool:
    """Whether a text can be encoded: lone surrogates cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _node_name(found: Any) -> str:
    """What a person would call a node of sqlglot."""
    kind = type(found).__name__
    return f"the function {found.name!r}" if kind == "Anonymous" else kind
