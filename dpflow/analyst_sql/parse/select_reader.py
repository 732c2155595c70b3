"""Reads an aggregating SELECT over private rows: what is released, and the same SELECT over the table of
what was released.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from sqlglot import ErrorLevel, exp

from dpflow.analyst_sql.parse.aggregate_reader import AggregateReader
from dpflow.analyst_sql.parse.parsed_parts import (
    change_parts,
    find_item,
    take_arguments,
    take_item,
)
from dpflow.analyst_sql.parse.private_rows import PrivateRows, RowReader, read_where
from dpflow.analyst_sql.parse.public_joins import find_constant
from dpflow.analyst_sql.parse.select_query import (
    RELEASED_ROWS,
    SelectQuery,
    SqlAggregate,
    alias_rows,
    key_column,
    make_source,
    mark,
    name_key_counts,
    number_column,
    present_column,
)
from dpflow.analyst_sql.parse.text_and_options import Refusal
from dpflow.errors import PlanRefused
from dpflow.tables.language.grouping import declare_groups
from dpflow.tables.language.nodes import Node

#: Clauses of a SELECT that are read; ``with_``, ``from_`` and ``joins`` by the reader of its sources.
CLAUSES = ("expressions", "where", "group", "having", "order", "limit", "offset")
SOURCES = ("with_", "from_", "joins")
#: Clauses that work on released rows alone.
AFTER_NOISE = ("distinct", "qualify", "windows")
#: The most columns, ordering keys and groups of one query, and how deeply an expression may nest.
MAX_COLUMNS, MAX_DEPTH = 100, 60

#: A query inside of an expression, over released rows.
ReadSubquery = Callable[[Any], Any]
#: Adds a release and returns its position.
AddRelease = Callable[[SelectQuery], int]


class SelectReader:
    """Reads one SELECT over private rows.

    Args:
        read_subquery: the same for a query inside of an expression.
        add_release: notes what is released.
        aggregate_names: what DuckDB calls its aggregates, in lower case.
    """

    def __init__(
        self,
        parsed: Any,
        source: PrivateRows,
        read_subquery: ReadSubquery,
        add_release: AddRelease,
        aggregate_names: Callable[[], frozenset[str]],
    ) -> None:
        self._parsed, self._source, self._table = parsed, source, source.table
        self._read_subquery, self._add_release = read_subquery, add_release
        self._aggregate_names = aggregate_names
        self._rows = RowReader(source)
        self._numbers: dict[SqlAggregate, int] = {}
        self._aggregates = AggregateReader(
            source.table, self._rows, self._make_number, self._count_keys, self._find_constant
        )
        #: Tables of how many keys an expression has in each group.
        self._key_counts: list[Any] = []
        self._is_single_set = True
        self._conditions: tuple[Node, ...] = ()
        self._blocks: tuple[str, ...] = ()
        self._groups: tuple[Node, ...] = ()
        self._key_kinds: set[type] = set()
        self._grouping: list[tuple[int, ...]] = []
        #: Expressions of the answer's columns, by their aliases.
        self._items = {
            item.alias.casefold(): item.this
            for item in parsed.expressions
            if isinstance(item, exp.Alias)
        }

    def read(self) -> Any:
        """The SELECT over released rows. Raises `Refusal`."""
        parsed = self._parsed
        clauses = take_arguments(parsed, *CLAUSES, *AFTER_NOISE, ignore=SOURCES)
        items, where, group, having, order, limit, offset, distinct, qualify, windows = clauses
        if len(items) > MAX_COLUMNS:
            raise Refusal("length", f"it has more than {MAX_COLUMNS} columns", items[-1])
        texts: dict[Any, Any] = {}
        conditions, blocks = read_where(where, self._source, texts)
        self._conditions, self._blocks = conditions, blocks or ()
        levels = [list(self._read_groups(level)) for level in self._list_groups(group, items)]
        nodes = {str(node): (node, part) for level in levels for node, part in level}
        self._groups = tuple(nodes[text][0] for text in sorted(nodes))
        self._is_single_set = len(levels) == 1
        # A name of the grouping is a key wherever it stands outside an aggregate.
        self._key_kinds = {type(part.unnest()) for _, part in nodes.values()}
        tree = exp.Select(with_=parsed.args.get("with_"))
        tree.set("expressions", [self._read_item(item) for item in items])
        if having is not None:
            tree.set("where", exp.Where(this=self._rewrite(having.this.copy())))
        for name, clause in (("qualify", qualify), ("distinct", distinct)):
            if clause is not None:
                tree.set(name, self._rewrite_parts(clause.copy(), MAX_DEPTH))
        if windows:
            tree.set("windows", [self._rewrite_parts(w.copy(), MAX_DEPTH) for w in windows])
        self._order(tree, order, limit, offset, items)
        if not self._numbers:
            if self._key_counts:
                return self._read_key_counts(tree)
            self._refuse_rows(items)
        query = SelectQuery(
            self._table,
            conditions,
            blocks or (),
            self._groups,
            tuple(self._numbers),
            parsed=texts | dict(nodes.values()) | self._aggregates.parsed,
        )
        self._set_source(tree, query, [[node for node, _ in level] for level in levels])
        self._join_key_counts(tree, self._key_counts)
        return tree

    def _refuse_rows(self, items: Sequence[Any]) -> None:
        inner = next((sub for item in items for sub in item.find_all(exp.Subquery)), None)
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
        )

    # --- the table of what was released --------------------------------------------------------------------------

    def _set_source(self, tree: Any, query: SelectQuery, sets: Sequence[Sequence[Node]]) -> None:
        """FROM: the table of a release, or those of all grouping sets, one after the other."""
        if len(sets) == 1:
            position = self._add_release(query)
            source = make_source(position)
        else:
            levels = tuple(tuple(sorted(level, key=str)) for level in sets)
            branches = [self._make_level(query, level, levels) for level in levels]
            union = branches[0]
            for branch in branches[1:]:
                union = exp.Union(this=union, expression=branch, distinct=False)
            source = exp.Subquery(this=union)
        source.set("alias", alias_rows())
        tree.set("from_", exp.From(this=source))

    def _make_level(
        self,
        query: SelectQuery,
        level: tuple[Node, ...],
        levels: tuple[tuple[Node, ...], ...],
    ) -> Any:
        """One grouping set's rows, with NULL for the keys that it leaves out."""
        release = replace(query, groups=level, levels=levels)
        columns = []
        for position, group in enumerate(query.groups):
            key = exp.Null()
            if group in level:
                key = mark(exp.column(key_column(level.index(group))), group)
            columns.append(mark(exp.alias_(key, key_column(position))))
        columns += [mark(exp.column(number_column(n)), a) for n, a in enumerate(query.aggregates)]
        for n, positions in enumerate(self._grouping):
            # As in SQL: a bit for each argument, the last one lowest, set where it is not grouped by.
            bits = "".join(str(int(query.groups[p] not in level)) for p in positions)
            columns.append(mark(exp.alias_(exp.Literal.number(int(bits, 2)), _grouping_column(n))))
        source = make_source(self._add_release(release))
        return exp.Select(expressions=columns, from_=exp.From(this=source))

    def _make_key(self, position: int) -> Any:
        return _make_column(key_column(position), self._groups[position])

    def _make_number(self, aggregate: SqlAggregate) -> Any:
        position = self._numbers.setdefault(aggregate, len(self._numbers))
        return _make_column(number_column(position), aggregate)

    # --- numbers of keys ------------------------------------------------------------------------------------------

    def _count_keys(self, node: Node, condition: Node | None, parsed: Any) -> Any:
        """How many of an expression's public keys have units in a group: of a release by group and key. Raises
        `PlanRefused`.
        """
        nodes = {str(one): one for one in (*self._groups, node)}
        for text in nodes:
            declared, name = declare_groups(self._table, text)
            declared.public_keys(name)
        if not self._is_single_set:
            raise PlanRefused("several grouping sets")
        groups = tuple(nodes[text] for text in sorted(nodes))
        units = SqlAggregate("units", condition=condition)
        texts: dict[SqlAggregate | Node, Any] = {units: parsed, node: parsed}
        query = SelectQuery(
            self._table, self._conditions, self._blocks, groups, (units,), parsed=texts
        )
        source = make_source(self._add_release(query))
        keys = [mark(exp.column(key_column(groups.index(one))), one) for one in self._groups]
        columns = [mark(exp.alias_(key, key_column(n))) for n, key in enumerate(keys)]
        total = exp.Sum(this=mark(exp.column(present_column(0)), f"{node} has a unit"))
        count = exp.cast(exp.Coalesce(this=total, expressions=[exp.Literal.number(0)]), "BIGINT")
        columns.append(mark(exp.alias_(count, _KEY_COUNT)))
        table = exp.Select(expressions=columns, from_=exp.From(this=source))
        if keys:
            table.set("group", exp.Group(expressions=[key.copy() for key in keys]))
        if table not in self._key_counts:
            self._key_counts.append(table)
        name = name_key_counts(self._key_counts.index(table))
        return _make_column(_KEY_COUNT, f"COUNT(DISTINCT {node})", name)

    def _read_key_counts(self, tree: Any) -> Any:
        """A SELECT of nothing else: it reads the first of them."""
        first, *others = self._key_counts
        tree.set("from_", exp.From(this=exp.Subquery(this=first, alias=alias_rows())))
        for column in list(tree.find_all(exp.Column)):
            if column.table == name_key_counts(0):
                column.set("table", exp.to_identifier(RELEASED_ROWS, quoted=True))
        self._join_key_counts(tree, others, 1)
        return tree

    def _join_key_counts(self, tree: Any, tables: Sequence[Any], start: int = 0) -> None:
        for number, table in enumerate(tables, start):
            name = name_key_counts(number)
            tests = [
                exp.EQ(this=self._make_key(n), expression=_make_column(key_column(n), group, name))
                for n, group in enumerate(self._groups)
            ]
            source = exp.Subquery(this=table, alias=alias_rows(name))
            condition = exp.and_(*tests) if tests else exp.true()
            tree.append("joins", exp.Join(this=source, on=condition))

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
                        inner := item.unalias(), exp.Literal | exp.Star | exp.Subquery
                    )
                ]
            ]
        sets = list_sets(parts)
        if max(map(len, sets)) > MAX_COLUMNS:
            raise Refusal("length", f"it groups by more than {MAX_COLUMNS} expressions", group)
        is_column = self._rows.is_declared
        return [[find_item(part, items, is_column) for part in members] for members in sets]

    def _read_groups(self, parts: Sequence[Any]) -> Iterator[tuple[Node, Any]]:
        for part in parts:
            if self._rows.is_unit(part.unnest()) and not self._rows.is_declared(part):
                raise Refusal(
                    "unit-groups",
                    f"a group of each {part.name} would show single privacy units; group by what many of them share, "
                    f"and divide by COUNT(DISTINCT {part.name}) for a mean of each",
                    part,
                )
            yield self._rows.read(part), part

    def _find_key(self, parsed: Any) -> int | None:
        """The position of a group that an expression is; None if it is none."""
        if type(parsed) not in self._key_kinds:
            return None
        try:
            node = self._rows.read(parsed)
        except Refusal:
            return None
        return next((i for i, group in enumerate(self._groups) if group == node), None)

    def _find_constant(self, node: Node) -> Any:
        """See `find_constant`. A grouping set without a key has several of its values, and so has the last number of a
        unit's rows.
        """
        is_one = self._is_single_set and self._table.unit_rows is None
        return find_constant(node, self._groups, self._make_key) if is_one else None

    # --- what is computed of released numbers -------------------------------------------------------------------

    def _read_item(self, item: Any) -> Any:
        inner = item.unalias()
        star = inner.unnest()
        if isinstance(star, exp.Star | exp.Columns) or isinstance(
            getattr(star, "this", None) if isinstance(star, exp.Column) else None, exp.Star
        ):
            raise Refusal(
                "no-star",
                "rows are never released, so * has no columns; name groups and aggregates",
                inner,
            )
        name = item.alias if isinstance(item, exp.Alias) else name_column(inner)
        alias = exp.to_identifier(name, quoted=True)
        return exp.alias_(self._rewrite(inner.copy()), alias, copy=False)

    def _rewrite(self, part: Any, depth: int = MAX_DEPTH, in_window: bool = False) -> Any:
        """An expression over the columns of the released table."""
        if depth <= 0:
            raise Refusal("depth", f"it is nested deeper than {MAX_DEPTH}", part)
        position = self._find_key(part)
        if position is not None:
            return self._make_key(position)
        if isinstance(part, exp.Grouping | exp.GroupingId):
            return self._read_grouping(part)
        if isinstance(part, exp.Window):
            return self._read_window(part, depth)
        if isinstance(part, exp.Query | exp.Exists):
            return self._read_subquery(part)
        number = self._aggregates.read(part)
        if number is not None:
            return number
        if isinstance(part, exp.Column):
            return self._read_column(part, depth, in_window)
        if isinstance(part, exp.Star) and in_window:
            # COUNT(*) OVER (...) counts groups.
            return part
        if isinstance(part, exp.Star | exp.Columns):
            raise Refusal("no-star", "* has no columns here; name groups and aggregates", part)
        if isinstance(part, exp.Anonymous) and part.name.casefold() in self._aggregate_names():
            raise self._aggregates.unknown(part)
        return self._rewrite_parts(part, depth, in_window)

    def _rewrite_parts(self, part: Any, depth: int, in_window: bool = False) -> Any:
        return change_parts(part, lambda inner: self._rewrite_part(inner, depth, in_window))

    def _rewrite_part(self, part: Any, depth: int, in_window: bool) -> Any:
        # Names of types, units and windows are no columns.
        if isinstance(part, exp.Identifier | exp.DataType | exp.Var | exp.Literal):
            return part
        return self._rewrite(part, depth - 1, in_window)

    def _read_window(self, part: Any, depth: int) -> Any:
        """A window function: what it is computed from is released, and it is not."""
        call = part.this
        if isinstance(call, exp.IgnoreNulls | exp.RespectNulls):
            call = call.this
        if isinstance(call, exp.Filter):
            call.expression.set("this", self._rewrite(call.expression.this, depth - 1, True))
            call = call.this
        if isinstance(call, exp.WithinGroup):
            raise Refusal("windows", "WITHIN GROUP has no window here", part)
        self._rewrite_parts(call, depth - 1, True)
        for name in ("partition_by", "order", "spec"):
            value = part.args.get(name)
            if isinstance(value, list):
                part.set(name, [self._rewrite_part(inner, depth, True) for inner in value])
            elif isinstance(value, exp.Expression):
                part.set(name, self._rewrite_parts(value, depth - 1, True))
        return part

    def _read_column(self, part: Any, depth: int, in_window: bool) -> Any:
        name = part.name.casefold()
        # An alias of the answer, as DuckDB's HAVING and ORDER BY take it.
        if not part.table and name in self._items:
            inner = self._items.pop(name)
            try:
                return exp.paren(self._rewrite(inner.copy(), depth - 1, in_window), copy=False)
            finally:
                self._items[name] = inner
        resolved = self._rows.resolve(part)
        if in_window:
            raise Refusal(
                "windows",
                f"a window over rows would show them; a window is computed over groups, such as SUM(SUM({resolved})) OVER "
                "(ORDER BY a key)",
                part,
            )
        raise Refusal(
            "grouped-columns",
            f"column {resolved!r} is neither grouped by nor inside an aggregate, so it would show rows",
            part,
        )

    def _read_grouping(self, parsed: Any) -> Any:
        (parts,) = take_arguments(parsed, "expressions")
        items = self._parsed.expressions
        keys = (find_item(part.unnest(), items, self._rows.is_declared) for part in parts)
        positions = tuple(self._find_key(key.unnest()) for key in keys)
        numbers = tuple(position for position in positions if position is not None)
        if not positions or len(positions) > 60 or len(numbers) < len(positions):
            raise Refusal("grouped-columns", "GROUPING takes expressions of GROUP BY", parsed)
        if self._is_single_set:
            return exp.Literal.number(0)
        if numbers not in self._grouping:
            self._grouping.append(numbers)
        listed = ", ".join(str(self._groups[number]) for number in numbers)
        name = _grouping_column(self._grouping.index(numbers))
        return _make_column(name, f"GROUPING({listed})")

    def _order(self, tree: Any, order: Any, limit: Any, offset: Any, items: Sequence[Any]) -> None:
        """ORDER BY, LIMIT and OFFSET; ties, and rows without an order, are in the order of keys."""
        parts: list[Any] = []
        complete = False
        if order is not None:
            (ordered,) = take_arguments(order, "expressions")
            for part in ordered[: MAX_COLUMNS + 1]:
                key = part.this
                if isinstance(key, exp.Var):
                    # ORDER BY ALL
                    parts.append(part.copy())
                    complete = True
                    continue
                new = part.copy()
                new.set("this", self._read_order_key(key, items))
                parts.append(new)
        distinct = tree.args.get("distinct") is not None
        # Released rows are in the order of keys; windows and DISTINCT leave them in another one.
        moved = distinct or bool(self._key_counts) or tree.find(exp.Window) is not None
        if not complete and (parts or moved):
            if distinct:
                parts += [_ordered(exp.Literal.number(n + 1)) for n in range(len(items))]
            else:
                parts += [_ordered(self._make_key(n)) for n in range(len(self._groups))]
        if parts:
            tree.set("order", exp.Order(expressions=parts))
        for name, clause in (("limit", limit), ("offset", offset)):
            if clause is not None:
                read_number(clause, name.upper())
                tree.set(name, clause.copy())

    def _read_order_key(self, key: Any, items: Sequence[Any]) -> Any:
        if isinstance(key, exp.Literal) and not key.is_string:
            take_item(key, items)
            return key.copy()
        if isinstance(key, exp.Column) and not key.table:
            names = [item.alias_or_name.casefold() for item in items]
            if key.name.casefold() in self._items:
                return exp.Literal.number(names.index(key.name.casefold()) + 1)
        return self._rewrite(key.copy())


#: The column of a table of numbers of keys.
_KEY_COUNT = "c0"


def _make_column(name: str, meaning: object, table: str = RELEASED_ROWS) -> Any:
    return mark(exp.column(name, table=exp.to_identifier(table, quoted=True)), meaning)


def _grouping_column(position: int) -> str:
    return f"g{position}"


def _ordered(key: Any) -> Any:
    return exp.Ordered(this=key, nulls_first=False)


def read_number(clause: Any, name: str) -> None:
    """Refuse a LIMIT or OFFSET that is no whole number."""
    if not isinstance(clause, exp.Limit | exp.Offset):
        raise Refusal("allow-list", f"write {name} as a whole number", clause)
    (number,) = take_arguments(clause, "expression")
    if not isinstance(number, exp.Literal) or not str(number.this).isdecimal():
        raise Refusal("literals", f"{name} takes a whole number", clause)


def name_column(parsed: Any) -> str:
    """What DuckDB calls a column without an alias, or nearly."""
    if isinstance(parsed, exp.Column):
        return str(parsed.name)
    if isinstance(parsed, exp.Count) and isinstance(parsed.this, exp.Star):
        return "count_star()"
    text = " ".join(str(parsed.sql("duckdb", unsupported_level=ErrorLevel.IGNORE)).lower().split())
    return text if len(text) <= 60 else text[:57] + "..."


#: The most grouping sets of one query: each is a release, or a sum over one.
MOST_LEVELS = 64


def list_sets(parts: Sequence[Any]) -> list[list[Any]]:
    """The grouping sets of a GROUP BY, each a list of parsed expressions: its elements' sets are combined
    with each other. Raises `Refusal`.
    """
    sets: list[list[Any]] = [[]]
    for part in parts:
        of_part = _list_sets(part)
        if len(sets) * len(of_part) > MOST_LEVELS:
            raise Refusal("length", f"it has more than {MOST_LEVELS} grouping sets", part)
        sets = [one + other for one in sets for other in of_part]
    return sets


def _list_sets(part: Any) -> list[list[Any]]:
    if isinstance(part, exp.GroupingSets):
        return [one for inner in part.expressions for one in _list_sets(inner)]
    if isinstance(part, exp.Rollup | exp.Cube):
        members = [_list_members(inner) for inner in part.expressions]
        if isinstance(part, exp.Rollup):
            subsets = [members[:size] for size in range(len(members), -1, -1)]
        else:
            if 2 ** len(members) > MOST_LEVELS:
                raise Refusal("length", f"it has more than {MOST_LEVELS} grouping sets", part)
            sizes = range(len(members), -1, -1)
            subsets = [list(c) for size in sizes for c in itertools.combinations(members, size)]
        return [[one for member in members for one in member] for members in subsets]
    return [_list_members(part)]


def _list_members(part: Any) -> list[Any]:
    """What stands together: one expression, or several in brackets."""
    inner = part.unnest()
    return list(inner.expressions) if isinstance(inner, exp.Tuple) else [inner]
