"""Reads a parsed SELECT: clause by clause, and nothing that no line here names."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from sqlglot import ErrorLevel, exp

from dpflow.analyst_sql.aggregate_reader import AggregateReader
from dpflow.analyst_sql.outputs import ARITHMETIC, CASTS, COMPARISONS, FUNCTIONS
from dpflow.analyst_sql.row_reader import RowReader
from dpflow.analyst_sql.select_query import Order, OutputExpression, SelectQuery
from dpflow.analyst_sql.source_text import Refusal
from dpflow.core.contract.declaration import Table
from dpflow.errors import InvalidInput
from dpflow.tables.language.nodes import Node

#: Clauses of a SELECT that are read.
_CLAUSES = ("expressions", "from_", "where", "group", "having", "order", "limit", "offset")
#: The most columns, ordering keys and groups of one query.
MOST_COLUMNS = 100
#: How deeply an expression over released numbers may nest.
MOST_DEPTH = 60
#: The most blocks that a range of dates may name.
MOST_BLOCKS = 1000

FindTable = Callable[[str], Table]


def read_statement(parsed: Any, find_table: FindTable) -> SelectQuery:
    """One SELECT. Raises `Refusal`."""
    return _SelectReader(parsed, find_table).read()


def take_arguments(found: Any, *names: str, ignore: Sequence[str] = ()) -> list[Any]:
    """Arguments of a parsed part. Any other that is set would change its meaning: it is refused."""
    for name, value in found.args.items():
        if name not in (*names, *ignore) and value not in (None, False, [], ""):
            value = value[0] if isinstance(value, list) else value
            raise Refusal(
                "allow-list",
                f"{type(found).__name__.upper()} with {name.rstrip('_')} is not in the language",
                value if isinstance(value, exp.Expression) else found,
                partial(found.set, name, None),
            )
    return [found.args.get(name) for name in names]


def strip_brackets(found: Any) -> Any:
    """What stands inside of brackets."""
    while isinstance(found, exp.Paren):
        found = found.this
    return found


def split_conjunction(found: Any) -> Iterator[Any]:
    """The parts of a condition between its outermost ANDs, from left to right."""
    waiting = [found]
    while waiting:
        part = strip_brackets(waiting.pop())
        if isinstance(part, exp.And):
            waiting += [part.expression, part.this]
        else:
            yield part


class _SelectReader:
    def __init__(self, parsed: Any, find_table: FindTable) -> None:
        self._parsed, self._find_table = parsed, find_table

    def read(self) -> SelectQuery:
        """All clauses."""
        parsed = self._parsed
        if not isinstance(parsed, exp.Select):
            what = "SHOW, SET and the like" if isinstance(parsed, exp.Command) else "it"
            raise Refusal(
                "select-only", f"only a SELECT is answered, and {what} is none; write one", parsed
            )
        items, source, where, group, having, order, limit, offset = take_arguments(
            parsed, *_CLAUSES
        )
        if len(items) > MOST_COLUMNS:
            raise Refusal("length", f"it has more than {MOST_COLUMNS} columns", items[-1])
        self._table, alias = self._read_source(source)
        self._rows = RowReader(self._table, alias)
        self._aggregates = AggregateReader(self._table, self._rows)
        self._blocks: list[str] | None = None
        conditions = self._read_where(where)
        self._items = {
            item.alias.casefold(): item.this for item in items if isinstance(item, exp.Alias)
        }
        group_parts = self._list_groups(group, items)
        nodes = {str(node): (node, part) for node, part in self._read_groups(group_parts)}
        self._groups = tuple(nodes[text][0] for text in sorted(nodes))
        # A name of the grouping is a key wherever it stands outside an aggregate.
        self._key_kinds = {type(strip_brackets(part)) for _, part in nodes.values()}
        columns = self._read_columns(items)
        query = SelectQuery(
            self._table,
            conditions,
            tuple(self._blocks or ()),
            self._groups,
            columns,
            None if having is None else self._read_output(having.this, MOST_DEPTH),
            tuple(self._read_order(order, columns)),
            self._read_number(limit, "LIMIT"),
            self._read_number(offset, "OFFSET") or 0,
        )
        if not query.aggregates():
            raise Refusal(
                "aggregates",
                "nothing is counted or computed, and rows themselves are never released; add an aggregate",
                items[0] if items else parsed,
                lambda: parsed.select("COUNT(*) AS rows", copy=False),
            )
        return query

    # --- rows ---------------------------------------------------------------------------------------------------

    def _read_source(self, source: Any) -> tuple[Table, str]:
        """The declared table, and what its columns are qualified by."""
        if source is None:
            raise Refusal("declared-table", "FROM is missing; name a declared table", self._parsed)
        found = source.this
        if not isinstance(found, exp.Table) or not isinstance(found.this, exp.Identifier):
            raise Refusal(
                "declared-table",
                "FROM takes a declared table by its name, and no function, file or subquery",
                found,
            )
        name, alias, schema = take_arguments(found, "this", "alias", "db")
        if schema is not None and schema.name.casefold() != "main":
            raise Refusal(
                "declared-table",
                f"schemas are not named here: a declared table has one name, such as {name.name}",
                found,
                lambda: found.set("db", None),
            )
        if alias is not None:
            take_arguments(alias, "this")
        try:
            table = self._find_table(name.name)
        except InvalidInput as error:
            raise Refusal("declared-table", str(error), found) from None
        return table, alias.name if alias is not None else name.name

    def _read_where(self, where: Any) -> tuple[Node, ...]:
        """Conditions, without those that name blocks."""
        if where is None:
            return ()
        nodes: dict[str, Node] = {}
        for part in split_conjunction(where.this):
            blocks = self._read_blocks(part)
            if blocks is None:
                node = self._rows.read(part)
                nodes[str(node)] = node
                continue
            # Two conditions on blocks leave those that both name.
            known = self._blocks
            self._blocks = sorted(set(blocks) if known is None else set(blocks) & set(known))
            if not self._blocks:
                raise Refusal("blocks", "no block is left by the conditions on it", part)
        return tuple(nodes[text] for text in sorted(nodes))

    def _read_blocks(self, part: Any) -> list[str] | None:
        """The blocks that a condition names: ``block = 'x'``, ``block IN (...)``, or BETWEEN two
        dates; None for any other condition.
        """
        if self._table.block is None or not isinstance(part, exp.EQ | exp.In | exp.Between):
            return None
        column = strip_brackets(part.this)
        if not isinstance(column, exp.Column) or column.name.casefold() != (
            self._table.block.casefold()
        ):
            return None
        if column.table.casefold() not in ("", self._rows.alias):
            # A joined relation's column of this name.
            return None
        if isinstance(part, exp.EQ):
            values = [part.expression]
        elif isinstance(part, exp.In):
            values = list(part.expressions)
        else:
            values = [part.args["low"], part.args["high"]]
        values = [strip_brackets(value) for value in values]
        if not values or not all(isinstance(value, exp.Literal) for value in values):
            return None
        texts = [str(value.this) for value in values]
        if not isinstance(part, exp.Between):
            take_arguments(part, "this", "expression", "expressions")
            return texts
        take_arguments(part, "this", "low", "high")
        return _list_days(texts[0], texts[1], part)

    # --- groups -------------------------------------------------------------------------------------------------

    def _list_groups(self, group: Any, items: Sequence[Any]) -> list[Any]:
        """What rows are grouped by, as parsed: numbers and names of columns of the answer stand for
        their expressions.
        """
        if group is None:
            return []
        parts, everything = take_arguments(group, "expressions", "all")
        if everything:
            return [
                inner
                for item in items
                if not any(isinstance(p, exp.AggFunc | exp.Filter) for p in item.walk())
                if not isinstance(inner := _without_alias(item), exp.Literal | exp.Star)
            ]
        if len(parts) > MOST_COLUMNS:
            raise Refusal("length", f"it groups by more than {MOST_COLUMNS} expressions", group)
        return [self._find_item(part, items, columns_first=True) for part in parts]

    def _find_item(self, part: Any, items: Sequence[Any], columns_first: bool) -> Any:
        """The expression that ``1`` or an alias means."""
        if isinstance(part, exp.Literal) and not part.is_string:
            position = int(part.this) if str(part.this).isdecimal() else 0
            if not 1 <= position <= len(items):
                raise Refusal("positions", f"there is no column number {part.this}", part)
            return _without_alias(items[position - 1])
        if isinstance(part, exp.Column) and not part.table:
            declared = any(name.casefold() == part.name.casefold() for name in self._table.columns)
            if part.name.casefold() in self._items and not (columns_first and declared):
                return self._items[part.name.casefold()]
        return part

    def _read_groups(self, parts: Sequence[Any]) -> Iterator[tuple[Node, Any]]:
        for part in parts:
            if isinstance(part, exp.Rollup | exp.Cube | exp.GroupingSets):
                raise Refusal(
                    "grouping-sets", "ROLLUP, CUBE and GROUPING SETS stand alone in GROUP BY", part
                )
            yield self._rows.read(part), part

    # --- what is computed of released numbers -------------------------------------------------------------------

    def _read_columns(self, items: Sequence[Any]) -> tuple[tuple[str, OutputExpression], ...]:
        columns: dict[str, OutputExpression] = {}
        for item in items:
            inner = _without_alias(item)
            self._refuse_star(inner)
            name = item.alias if isinstance(item, exp.Alias) else name_column(inner)
            output = self._read_output(inner, MOST_DEPTH)
            position, first = 1, name
            while name.casefold() in {one.casefold() for one in columns}:
                name, position = f"{first}_{position}", position + 1
            columns[name] = output
        return tuple(columns.items())

    def _refuse_star(self, found: Any) -> None:
        stars = isinstance(found, exp.Star) or isinstance(getattr(found, "this", None), exp.Star)
        if stars and not isinstance(found, exp.Count):
            raise Refusal(
                "no-star",
                "rows are never released, so * has no columns; name groups and aggregates",
                found,
                lambda: found.replace(exp.Count(this=exp.Star())),
            )

    def _read_order(
        self, order: Any, columns: Sequence[tuple[str, OutputExpression]]
    ) -> Iterator[Order]:
        if order is None:
            return
        (parts,) = take_arguments(order, "expressions")
        named = {name.casefold(): output for name, output in columns}
        for part in parts[: MOST_COLUMNS + 1]:
            found, descending, nulls_first = take_arguments(part, "this", "desc", "nulls_first")
            if isinstance(found, exp.Literal) and not found.is_string:
                position = int(found.this) if str(found.this).isdecimal() else 0
                if not 1 <= position <= len(columns):
                    raise Refusal("positions", f"there is no column number {found.this}", found)
                output = columns[position - 1][1]
            elif (
                isinstance(found, exp.Column) and not found.table and found.name.casefold() in named
            ):
                output = named[found.name.casefold()]
            else:
                output = self._read_output(found, MOST_DEPTH)
            yield Order(output, bool(descending), bool(nulls_first))

    def _read_number(self, clause: Any, name: str) -> int | None:
        if clause is None:
            return None
        if not isinstance(clause, exp.Limit | exp.Offset):
            raise Refusal("allow-list", f"write {name} as a whole number", clause)
        (number,) = take_arguments(clause, "expression")
        if not isinstance(number, exp.Literal) or not str(number.this).isdecimal():
            raise Refusal("literals", f"{name} takes a whole number", clause)
        return int(str(number.this)[:18])

    def _read_output(self, found: Any, depth: int) -> OutputExpression:
        """An expression over keys and released numbers."""
        found = strip_brackets(found)
        if depth <= 0:
            raise Refusal("depth", f"it is nested deeper than {MOST_DEPTH}", found)
        if (position := self._find_key(found)) is not None:
            return OutputExpression("key", (position,))
        if (aggregate := self._aggregates.read(found)) is not None:
            return aggregate
        kind = type(found).__name__
        operators = ARITHMETIC | COMPARISONS | {"And": "AND", "Or": "OR"}
        if kind in operators:
            extra = ("typed", "safe") if kind == "Div" else ()
            operands = take_arguments(found, "this", "expression", ignore=extra)
            return self._operate(operators[kind], operands, depth)
        if kind in FUNCTIONS or kind in ("Not", "Neg"):
            name = FUNCTIONS.get(kind) or {"Not": "NOT", "Neg": "-"}[kind]
            return self._operate(name, take_arguments(found, "this"), depth)
        read = getattr(self, f"_read_{kind.lower()}", None) if kind in _READABLE else None
        if read is None:
            if isinstance(found, exp.Window):
                raise Refusal(
                    "windows",
                    "windows look at other rows; group, or compute them over the answer",
                    found,
                    lambda: found.replace(found.this),
                )
            if isinstance(found, exp.Query | exp.Subquery | exp.Exists):
                raise Refusal("subqueries", "an expression holds no query here", found)
            name = getattr(found, "name", "") if kind == "Anonymous" else kind
            raise Refusal(
                "allow-list",
                f"{name[:40]} is not among what is computed from released numbers",
                found,
                lambda: found.pop() if found.parent is self._parsed else None,
            )
        output: OutputExpression = read(found, depth)
        return output

    def _operate(self, op: str, operands: Sequence[Any], depth: int) -> OutputExpression:
        return OutputExpression(op, tuple(self._read_output(one, depth - 1) for one in operands))

    def _find_key(self, found: Any) -> int | None:
        """The position of a group that an expression is; None if it is none."""
        if type(found) not in self._key_kinds:
            return None
        try:
            node = self._rows.read(found)
        except Refusal:
            return None
        return next((i for i, one in enumerate(self._groups) if one == node), None)

    def _read_column(self, found: Any, depth: int) -> OutputExpression:
        name = found.name.casefold()
        # An alias of the answer, as DuckDB's HAVING and ORDER BY take it.
        if not found.table and name in self._items:
            inner = self._items.pop(name)
            try:
                return self._read_output(inner, depth - 1)
            finally:
                self._items[name] = inner
        resolved = self._rows.resolve(found)
        raise Refusal(
            "grouped-columns",
            f"column {resolved!r} is neither grouped by nor inside an aggregate, so it would show rows",
            found,
            lambda: self._parsed.group_by(found.copy(), copy=False),
        )

    def _read_literal(self, found: Any, depth: int) -> OutputExpression:
        text = str(found.this)
        if found.is_string:
            return OutputExpression("literal", (text,))
        if len(text) > 40:
            raise Refusal("literals", "a number has more than 40 characters", found)
        whole = text.isdecimal()
        try:
            value = int(text) if whole else float(text)
        except ValueError:
            raise Refusal("literals", "a number is not written in decimal digits", found) from None
        return OutputExpression("literal", (value,))

    def _read_boolean(self, found: Any, depth: int) -> OutputExpression:
        return OutputExpression("literal", (bool(found.this),))

    def _read_null(self, found: Any, depth: int) -> OutputExpression:
        return OutputExpression("literal", (None,))

    def _read_is(self, found: Any, depth: int) -> OutputExpression:
        left, right = take_arguments(found, "this", "expression")
        if not isinstance(right, exp.Null):
            raise Refusal("allow-list", "only IS NULL and IS NOT NULL are in the language", found)
        return self._operate("IS NULL", [left], depth)

    def _read_between(self, found: Any, depth: int) -> OutputExpression:
        value, low, high = (
            self._read_output(one, depth - 2)
            for one in take_arguments(found, "this", "low", "high")
        )
        return OutputExpression(
            "AND", (OutputExpression(">=", (value, low)), OutputExpression("<=", (value, high)))
        )

    def _read_in(self, found: Any, depth: int) -> OutputExpression:
        value, listed = take_arguments(found, "this", "expressions")
        if not listed or not all(isinstance(one, exp.Literal) for one in listed):
            raise Refusal("literals", "IN takes a list of literals", found)
        return self._operate("IN", [value, *listed], depth)

    def _read_case(self, found: Any, depth: int) -> OutputExpression:
        value, ifs, default = take_arguments(found, "this", "ifs", "default")
        parts: list[OutputExpression] = []
        for one in ifs:
            condition, result = take_arguments(one, "this", "true")
            test = self._read_output(condition, depth - 2)
            if value is not None:
                test = OutputExpression("=", (self._read_output(value, depth - 2), test))
            parts += [test, self._read_output(result, depth - 1)]
        if default is not None:
            parts.append(self._read_output(default, depth - 1))
        return OutputExpression("CASE", tuple(parts))

    def _read_if(self, found: Any, depth: int) -> OutputExpression:
        return self._operate(
            "CASE", [one for one in take_arguments(found, "this", "true", "false") if one], depth
        )

    def _read_nullif(self, found: Any, depth: int) -> OutputExpression:
        value, other = (
            self._read_output(one, depth - 2) for one in take_arguments(found, "this", "expression")
        )
        return OutputExpression(
            "CASE",
            (OutputExpression("=", (value, other)), OutputExpression("literal", (None,)), value),
        )

    def _read_choice(self, name: str, found: Any, depth: int) -> OutputExpression:
        first, others = take_arguments(found, "this", "expressions", ignore=("ignore_nulls",))
        return self._operate(name, [first, *(others or ())], depth)

    def _read_coalesce(self, found: Any, depth: int) -> OutputExpression:
        return self._read_choice("coalesce", found, depth)

    def _read_least(self, found: Any, depth: int) -> OutputExpression:
        return self._read_choice("least", found, depth)

    def _read_greatest(self, found: Any, depth: int) -> OutputExpression:
        return self._read_choice("greatest", found, depth)

    def _read_round(self, found: Any, depth: int) -> OutputExpression:
        value, digits = take_arguments(found, "this", "decimals")
        positions = (
            OutputExpression("literal", (0,))
            if digits is None
            else self._read_output(digits, depth - 1)
        )
        if positions.op != "literal" or not isinstance(positions.args[0], int):
            raise Refusal("literals", "ROUND takes a whole number of digits", found)
        return OutputExpression("round", (self._read_output(value, depth - 1), positions))

    def _read_cast(self, found: Any, depth: int) -> OutputExpression:
        value, kind = take_arguments(found, "this", "to")
        name = CASTS.get(getattr(kind.this, "name", ""))
        if name is None or kind.expressions:
            raise Refusal(
                "allow-list", "released numbers are cast to BIGINT, DOUBLE or VARCHAR", found
            )
        return OutputExpression("CAST", (self._read_output(value, depth - 1), name))


#: Kinds that a method of their own reads; a new helper's name must not let a part in.
_READABLE = {
    *("Column", "Literal", "Boolean", "Null", "Is", "Between", "In", "Case", "If", "Nullif"),
    *("Coalesce", "Least", "Greatest", "Round", "Cast"),
}


def _without_alias(item: Any) -> Any:
    return item.this if isinstance(item, exp.Alias) else item


def name_column(found: Any) -> str:
    """What DuckDB calls a column without an alias, or nearly."""
    if isinstance(found, exp.Column):
        return str(found.name)
    if isinstance(found, exp.Count) and isinstance(found.this, exp.Star):
        return "count_star()"
    text = " ".join(str(found.sql("duckdb", unsupported_level=ErrorLevel.IGNORE)).lower().split())
    return text if len(text) <= 60 else text[:57] + "..."


def _list_days(first: str, last: str, part: Any) -> list[str]:
    """All dates from one to another."""
    try:
        low, high = dt.date.fromisoformat(first), dt.date.fromisoformat(last)
    except ValueError:
        raise Refusal(
            "blocks",
            "a range of blocks is one of dates, such as '2013-01-31'; name the blocks",
            part,
        ) from None
    days = (high - low).days + 1
    if not 1 <= days <= MOST_BLOCKS:
        raise Refusal("blocks", f"the range holds {days} days, not 1 to {MOST_BLOCKS}", part)
    return [str(low + dt.timedelta(days=n)) for n in range(days)]
