"""Reads expressions over keys and released numbers: what is computed after noise, at no cost."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from sqlglot import ErrorLevel, exp

from dpflow.analyst_sql.outputs import ARITHMETIC, CASTS, COMPARISONS, FUNCTIONS
from dpflow.analyst_sql.select_query import Order, OutputExpression
from dpflow.analyst_sql.source_text import Refusal

#: The most columns, ordering keys and groups of one query.
MOST_COLUMNS = 100
ReadSubquery = Callable[[Any], OutputExpression]
#: How deeply an expression over released numbers may nest.
MOST_DEPTH = 60


def take_arguments(parsed: Any, *names: str, ignore: Sequence[str] = ()) -> list[Any]:
    """Arguments of a parsed part. Any other that is set would change its meaning: it is refused."""
    for name, value in parsed.args.items():
        if name not in (*names, *ignore) and value not in (None, False, [], ""):
            value = value[0] if isinstance(value, list) else value
            raise Refusal(
                "allow-list",
                f"{type(parsed).__name__.upper()} with {name.rstrip('_')} is not in the language",
                value if isinstance(value, exp.Expression) else parsed,
                partial(parsed.set, name, None),
            )
    return [parsed.args.get(name) for name in names]


def strip_brackets(parsed: Any) -> Any:
    """What stands inside of brackets."""
    while isinstance(parsed, exp.Paren):
        parsed = parsed.this
    return parsed


class OutputReader:
    """Reads the parts of a SELECT that work on released numbers. What a name or an aggregate means is
    said by `find_leaf` and `refuse_column` of its subclasses.

    Args:
        items: the columns of the answer, whose aliases are names, too.
        read_subquery: what a query in brackets stands for.
    """

    def __init__(self, parsed: Any, items: Sequence[Any], read_subquery: ReadSubquery) -> None:
        self._parsed, self.read_subquery = parsed, read_subquery
        #: Expressions of the answer's columns, by their aliases.
        self._items = {
            item.alias.casefold(): item.this for item in items if isinstance(item, exp.Alias)
        }

    def find_leaf(self, parsed: Any) -> OutputExpression | None:
        """A key, an aggregate or a column that was released; None for anything else. Raises `Refusal`."""
        raise NotImplementedError

    def refuse_column(self, parsed: Any) -> Refusal:
        """Why a name is none of those."""
        raise NotImplementedError

    def read_columns(self, items: Sequence[Any]) -> tuple[tuple[str, OutputExpression], ...]:
        columns: dict[str, OutputExpression] = {}
        for item in items:
            inner = strip_alias(item)
            self._refuse_star(inner)
            name = item.alias if isinstance(item, exp.Alias) else name_column(inner)
            add_column(columns, name, self.read_output(inner, MOST_DEPTH))
        return tuple(columns.items())

    def _refuse_star(self, parsed: Any) -> None:
        stars = isinstance(parsed, exp.Star) or isinstance(getattr(parsed, "this", None), exp.Star)
        if stars and not isinstance(parsed, exp.Count):
            raise Refusal(
                "no-star",
                "rows are never released, so * has no columns; name groups and aggregates",
                parsed,
                lambda: parsed.replace(exp.Count(this=exp.Star())),
            )

    def read_order(
        self, order: Any, columns: Sequence[tuple[str, OutputExpression]]
    ) -> Iterator[Order]:
        if order is None:
            return
        (parts,) = take_arguments(order, "expressions")
        named = {name.casefold(): output for name, output in columns}
        for part in parts[: MOST_COLUMNS + 1]:
            parsed, descending, nulls_first = take_arguments(part, "this", "desc", "nulls_first")
            if isinstance(parsed, exp.Literal) and not parsed.is_string:
                position = int(parsed.this) if str(parsed.this).isdecimal() else 0
                if not 1 <= position <= len(columns):
                    raise Refusal("positions", f"there is no column number {parsed.this}", parsed)
                output = columns[position - 1][1]
            elif (
                isinstance(parsed, exp.Column)
                and not parsed.table
                and parsed.name.casefold() in named
            ):
                output = named[parsed.name.casefold()]
            else:
                output = self.read_output(parsed, MOST_DEPTH)
            yield Order(output, bool(descending), bool(nulls_first))

    def read_number(self, clause: Any, name: str) -> int | None:
        if clause is None:
            return None
        if not isinstance(clause, exp.Limit | exp.Offset):
            raise Refusal("allow-list", f"write {name} as a whole number", clause)
        (number,) = take_arguments(clause, "expression")
        if not isinstance(number, exp.Literal) or not str(number.this).isdecimal():
            raise Refusal("literals", f"{name} takes a whole number", clause)
        return int(str(number.this)[:18])

    def read_output(self, parsed: Any, depth: int) -> OutputExpression:
        """An expression over keys and released numbers."""
        parsed = strip_brackets(parsed)
        if depth <= 0:
            raise Refusal("depth", f"it is nested deeper than {MOST_DEPTH}", parsed)
        if (leaf := self.find_leaf(parsed)) is not None:
            return leaf
        kind = type(parsed).__name__
        operators = ARITHMETIC | COMPARISONS | {"And": "AND", "Or": "OR"}
        if kind in operators:
            extra = ("typed", "safe") if kind == "Div" else ()
            operands = take_arguments(parsed, "this", "expression", ignore=extra)
            return self._operate(operators[kind], operands, depth)
        if kind in FUNCTIONS or kind in ("Not", "Neg"):
            name = FUNCTIONS.get(kind) or {"Not": "NOT", "Neg": "-"}[kind]
            output = self._operate(name, take_arguments(parsed, "this"), depth)
            (inner,) = output.args
            if name == "-" and inner.op == "literal" and isinstance(inner.args[0], int | float):
                return OutputExpression("literal", (-inner.args[0],))
            return output
        read = getattr(self, f"_read_{kind.lower()}", None) if kind in _READABLE else None
        if read is None:
            if isinstance(parsed, exp.Window):
                raise Refusal(
                    "windows",
                    "windows look at other rows; group, or compute them over the answer",
                    parsed,
                    lambda: parsed.replace(parsed.this),
                )
            if isinstance(parsed, exp.Subquery):
                return self.read_subquery(parsed)
            if isinstance(parsed, exp.Query | exp.Exists):
                raise Refusal("subqueries", "an expression holds no query of this kind", parsed)
            name = getattr(parsed, "name", "") if kind == "Anonymous" else kind
            raise Refusal(
                "allow-list",
                f"{name[:40]} is not among what is computed from released numbers",
                parsed,
                lambda: parsed.pop() if parsed.parent is self._parsed else None,
            )
        expression: OutputExpression = read(parsed, depth)
        return expression

    def _operate(self, op: str, operands: Sequence[Any], depth: int) -> OutputExpression:
        return OutputExpression(op, tuple(self.read_output(one, depth - 1) for one in operands))

    def _read_column(self, parsed: Any, depth: int) -> OutputExpression:
        name = parsed.name.casefold()
        # An alias of the answer, as DuckDB's HAVING and ORDER BY take it.
        if not parsed.table and name in self._items:
            inner = self._items.pop(name)
            try:
                return self.read_output(inner, depth - 1)
            finally:
                self._items[name] = inner
        raise self.refuse_column(parsed)

    def _read_literal(self, parsed: Any, depth: int) -> OutputExpression:
        text = str(parsed.this)
        if parsed.is_string:
            return OutputExpression("literal", (text,))
        if len(text) > 40:
            raise Refusal("literals", "a number has more than 40 characters", parsed)
        whole = text.isdecimal()
        try:
            value = int(text) if whole else float(text)
        except ValueError:
            raise Refusal("literals", "a number is not written in decimal digits", parsed) from None
        return OutputExpression("literal", (value,))

    def _read_boolean(self, parsed: Any, depth: int) -> OutputExpression:
        return OutputExpression("literal", (bool(parsed.this),))

    def _read_null(self, parsed: Any, depth: int) -> OutputExpression:
        return OutputExpression("literal", (None,))

    def _read_is(self, parsed: Any, depth: int) -> OutputExpression:
        left, right = take_arguments(parsed, "this", "expression")
        if not isinstance(right, exp.Null):
            raise Refusal("allow-list", "only IS NULL and IS NOT NULL are in the language", parsed)
        return self._operate("IS NULL", [left], depth)

    def _read_between(self, parsed: Any, depth: int) -> OutputExpression:
        value, low, high = (
            self.read_output(one, depth - 2)
            for one in take_arguments(parsed, "this", "low", "high")
        )
        return OutputExpression(
            "AND", (OutputExpression(">=", (value, low)), OutputExpression("<=", (value, high)))
        )

    def _read_in(self, parsed: Any, depth: int) -> OutputExpression:
        value, listed = take_arguments(parsed, "this", "expressions")
        if not listed or not all(map(_is_literal, listed)):
            raise Refusal("literals", "IN takes a list of literals", parsed)
        return self._operate("IN", [value, *listed], depth)

    def _read_case(self, parsed: Any, depth: int) -> OutputExpression:
        value, ifs, default = take_arguments(parsed, "this", "ifs", "default")
        parts: list[OutputExpression] = []
        for one in ifs:
            condition, result = take_arguments(one, "this", "true")
            test = self.read_output(condition, depth - 2)
            if value is not None:
                test = OutputExpression("=", (self.read_output(value, depth - 2), test))
            parts += [test, self.read_output(result, depth - 1)]
        if default is not None:
            parts.append(self.read_output(default, depth - 1))
        return OutputExpression("CASE", tuple(parts))

    def _read_if(self, parsed: Any, depth: int) -> OutputExpression:
        return self._operate(
            "CASE", [one for one in take_arguments(parsed, "this", "true", "false") if one], depth
        )

    def _read_nullif(self, parsed: Any, depth: int) -> OutputExpression:
        value, other = (
            self.read_output(one, depth - 2) for one in take_arguments(parsed, "this", "expression")
        )
        return OutputExpression(
            "CASE",
            (OutputExpression("=", (value, other)), OutputExpression("literal", (None,)), value),
        )

    def _read_choice(self, name: str, parsed: Any, depth: int) -> OutputExpression:
        first, others = take_arguments(parsed, "this", "expressions", ignore=("ignore_nulls",))
        return self._operate(name, [first, *(others or ())], depth)

    def _read_coalesce(self, parsed: Any, depth: int) -> OutputExpression:
        return self._read_choice("coalesce", parsed, depth)

    def _read_least(self, parsed: Any, depth: int) -> OutputExpression:
        return self._read_choice("least", parsed, depth)

    def _read_greatest(self, parsed: Any, depth: int) -> OutputExpression:
        return self._read_choice("greatest", parsed, depth)

    def _read_round(self, parsed: Any, depth: int) -> OutputExpression:
        value, digits = take_arguments(parsed, "this", "decimals")
        positions = (
            OutputExpression("literal", (0,))
            if digits is None
            else self.read_output(digits, depth - 1)
        )
        if positions.op != "literal" or not isinstance(positions.args[0], int):
            raise Refusal("literals", "ROUND takes a whole number of digits", parsed)
        return OutputExpression("round", (self.read_output(value, depth - 1), positions))

    def _read_cast(self, parsed: Any, depth: int) -> OutputExpression:
        value, kind = take_arguments(parsed, "this", "to")
        name = CASTS.get(getattr(kind.this, "name", ""))
        if name is None or kind.expressions:
            raise Refusal(
                "allow-list", "released numbers are cast to BIGINT, DOUBLE or VARCHAR", parsed
            )
        return OutputExpression("CAST", (self.read_output(value, depth - 1), name))


#: Kinds that a method of their own reads; a new method's name must not let a part in.
_READABLE = {
    *("Column", "Literal", "Boolean", "Null", "Is", "Between", "In", "Case", "If", "Nullif"),
    *("Coalesce", "Least", "Greatest", "Round", "Cast"),
}


def _is_literal(parsed: Any) -> bool:
    number = parsed.this if isinstance(parsed, exp.Neg) else None
    return isinstance(parsed, exp.Literal | exp.Boolean) or isinstance(number, exp.Literal)


def add_column(columns: dict[str, Any], name: str, value: Any) -> None:
    """Add a column under its name, or where that is taken, under it with a number, as DuckDB does."""
    position, first = 1, name
    taken = {one.casefold() for one in columns}
    while name.casefold() in taken:
        name, position = f"{first}_{position}", position + 1
    columns[name] = value


def strip_alias(item: Any) -> Any:
    """A column of the answer without the name that the query gives it."""
    return item.this if isinstance(item, exp.Alias) else item


def name_column(parsed: Any) -> str:
    """What DuckDB calls a column without an alias, or nearly."""
    if isinstance(parsed, exp.Column):
        return str(parsed.name)
    if isinstance(parsed, exp.Count) and isinstance(parsed.this, exp.Star):
        return "count_star()"
    text = " ".join(str(parsed.sql("duckdb", unsupported_level=ErrorLevel.IGNORE)).lower().split())
    return text if len(text) <= 60 else text[:57] + "..."
