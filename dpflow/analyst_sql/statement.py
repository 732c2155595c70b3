"""Reads a parsed SELECT over private rows: clause by clause, and nothing that no line here names."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Sequence
from typing import Any

from sqlglot import exp

from dpflow.analyst_sql.aggregate_reader import AggregateReader
from dpflow.analyst_sql.canonical_conditions import merge_operands
from dpflow.analyst_sql.grouping_levels import list_sets, make_levels
from dpflow.analyst_sql.output_reader import (
    MOST_COLUMNS,
    MOST_DEPTH,
    OutputReader,
    ReadSubquery,
    strip_alias,
    strip_brackets,
    take_arguments,
)
from dpflow.analyst_sql.private_rows import PrivateRows
from dpflow.analyst_sql.released_query import Query
from dpflow.analyst_sql.row_reader import RowReader
from dpflow.analyst_sql.select_query import OutputExpression, SelectQuery
from dpflow.analyst_sql.source_text import Refusal, refusal_of
from dpflow.errors import PlanRefused
from dpflow.tables.language.nodes import Node

#: Clauses of a SELECT that are read; ``with_``, ``from_`` and ``joins`` by whoever finds its sources.
CLAUSES = ("expressions", "where", "group", "having", "order", "limit", "offset")
SOURCES = ("with_", "from_", "joins")
#: The most blocks that a range of dates may name.
MOST_BLOCKS = 1000


def split_conjunction(parsed: Any) -> Iterator[Any]:
    """The parts of a condition between its outermost ANDs, from left to right."""
    waiting = [parsed]
    while waiting:
        part = strip_brackets(waiting.pop())
        if isinstance(part, exp.And):
            waiting += [part.expression, part.this]
        else:
            yield part


def read_where(where: Any, source: PrivateRows) -> tuple[tuple[Node, ...], tuple[str, ...] | None]:
    """What each row fulfils, with the source's own conditions, in canonical order; and the blocks that
    conditions name, None if none does. Raises `Refusal`.
    """
    rows = RowReader(source)
    nodes = list(source.conditions)
    blocks = source.blocks
    for part in split_conjunction(where.this) if where is not None else ():
        named = _read_blocks(part, rows)
        if named is None:
            nodes.append(rows.read(part))
            continue
        # Two conditions on blocks leave those that both name.
        blocks = tuple(sorted(set(named) if blocks is None else set(named) & set(blocks)))
        if not blocks:
            raise Refusal("blocks", "no block is left by the conditions on it", part)
    try:
        merged = merge_operands("AND", nodes)
    except PlanRefused as error:
        raise refusal_of(error, where) from None
    return tuple(merged), blocks


def _read_blocks(part: Any, rows: RowReader) -> list[str] | None:
    """The blocks that a condition names: ``block = 'x'``, ``block IN (...)``, or BETWEEN two dates;
    None for any other condition.
    """
    if not isinstance(part, exp.EQ | exp.In | exp.Between):
        return None
    if not rows.is_block(strip_brackets(part.this)):
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


class SelectReader(OutputReader):
    """Reads one SELECT over private rows.

    Args:
        read_subquery: what a query in brackets, among the columns, stands for.
    """

    def __init__(self, parsed: Any, source: PrivateRows, read_subquery: ReadSubquery) -> None:
        super().__init__(parsed, parsed.expressions, read_subquery)
        self._source, self._table = source, source.table
        self._rows = RowReader(source)
        self._aggregates = AggregateReader(source.table, self._rows)
        self._groups: tuple[Node, ...] = ()
        self._key_kinds: set[type] = set()

    def read(self) -> Query:
        """All clauses; of several grouping sets one SELECT for each. Raises `Refusal`."""
        parsed = self._parsed
        items, where, group, having, order, limit, offset = take_arguments(
            parsed, *CLAUSES, ignore=SOURCES
        )
        if len(items) > MOST_COLUMNS:
            raise Refusal("length", f"it has more than {MOST_COLUMNS} columns", items[-1])
        conditions, blocks = read_where(where, self._source)
        levels = [list(self._read_groups(one)) for one in self._list_groups(group, items)]
        nodes = {str(node): (node, part) for level in levels for node, part in level}
        self._groups = tuple(nodes[text][0] for text in sorted(nodes))
        # A name of the grouping is a key wherever it stands outside an aggregate.
        self._key_kinds = {type(strip_brackets(part)) for _, part in nodes.values()}
        columns = self.read_columns(items)
        query = SelectQuery(
            self._table,
            conditions,
            blocks or (),
            self._groups,
            columns,
            None if having is None else self.read_output(having.this, MOST_DEPTH),
            tuple(self.read_order(order, columns)),
            self.read_number(limit, "LIMIT"),
            self.read_number(offset, "OFFSET") or 0,
            parsed=dict([*nodes.values(), *self._aggregates.parsed.items()]),
        )
        if not query.aggregates():
            self._refuse_rows(items)
        return make_levels(query, [[node for node, _ in level] for level in levels])

    def _refuse_rows(self, items: Sequence[Any]) -> None:
        inner = next((one for item in items for one in item.find_all(exp.Subquery)), None)
        if inner is not None:
            raise Refusal(
                "subqueries",
                "a query in brackets is answered beside aggregates, and rows themselves are never released",
                inner,
            )
        raise Refusal(
            "aggregates",
            "nothing is counted or computed, and rows themselves are never released; add an aggregate",
            items[0] if items else self._parsed,
            lambda: self._parsed.select("COUNT(*) AS rows", copy=False),
        )

    # --- groups -------------------------------------------------------------------------------------------------

    def _list_groups(self, group: Any, items: Sequence[Any]) -> list[list[Any]]:
        """What rows are grouped by, as parsed, for each grouping set: numbers and names of columns of the
        answer stand for their expressions.
        """
        if group is None:
            return [[]]
        parts, everything = take_arguments(group, "expressions", "all")
        if everything:
            return [
                [
                    inner
                    for item in items
                    if not any(isinstance(p, exp.AggFunc | exp.Filter) for p in item.walk())
                    if not isinstance(
                        inner := strip_alias(item), exp.Literal | exp.Star | exp.Subquery
                    )
                ]
            ]
        sets = list_sets(parts)
        if max(map(len, sets)) > MOST_COLUMNS:
            raise Refusal("length", f"it groups by more than {MOST_COLUMNS} expressions", group)
        return [[self._find_item(part, items) for part in one] for one in sets]

    def _find_item(self, part: Any, items: Sequence[Any]) -> Any:
        """The expression that ``1`` or an alias means."""
        if isinstance(part, exp.Literal) and not part.is_string:
            position = int(part.this) if str(part.this).isdecimal() else 0
            if not 1 <= position <= len(items):
                raise Refusal("positions", f"there is no column number {part.this}", part)
            return strip_alias(items[position - 1])
        alias = part.name.casefold() if isinstance(part, exp.Column) and not part.table else ""
        if alias in self._items and not self._rows.is_declared(part):
            return self._items[alias]
        return part

    def _read_groups(self, parts: Sequence[Any]) -> Iterator[tuple[Node, Any]]:
        for part in parts:
            if self._rows.is_unit(strip_brackets(part)) and not self._rows.is_declared(part):
                raise Refusal(
                    "unit-groups",
                    f"a group of each {part.name} would show single privacy units; group by what many of them share, "
                    f"and divide by COUNT(DISTINCT {part.name}) for a mean of each",
                    part,
                )
            yield self._rows.read(part), part

    # --- what is computed of released numbers -------------------------------------------------------------------

    def find_leaf(self, parsed: Any) -> OutputExpression | None:
        """A grouping expression, an aggregate of rows, or what says that a key stands for all."""
        position = self._find_key(parsed)
        if position is not None:
            return OutputExpression("key", (position,))
        if isinstance(parsed, exp.Grouping | exp.GroupingId):
            return self._read_grouping(parsed)
        return self._aggregates.read(parsed)

    def _read_grouping(self, parsed: Any) -> OutputExpression:
        (parts,) = take_arguments(parsed, "expressions")
        items = self._parsed.expressions
        keys = (self._find_item(strip_brackets(part), items) for part in parts)
        positions = tuple(self._find_key(strip_brackets(key)) for key in keys)
        if not positions or len(positions) > 60 or any(one is None for one in positions):
            raise Refusal("grouped-columns", "GROUPING takes expressions of GROUP BY", parsed)
        return OutputExpression("grouping", positions)

    def _find_key(self, parsed: Any) -> int | None:
        """The position of a group that an expression is; None if it is none."""
        if type(parsed) not in self._key_kinds:
            return None
        try:
            node = self._rows.read(parsed)
        except Refusal:
            return None
        return next((i for i, one in enumerate(self._groups) if one == node), None)

    def refuse_column(self, parsed: Any) -> Refusal:
        """A column outside of aggregates that nothing groups by."""
        resolved = self._rows.resolve(parsed)
        return Refusal(
            "grouped-columns",
            f"column {resolved!r} is neither grouped by nor inside an aggregate, so it would show rows",
            parsed,
            lambda: self._parsed.group_by(parsed.copy(), copy=False),
        )


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
