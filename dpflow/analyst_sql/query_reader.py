"""Reads a whole parsed query: WITH, FROM, joins and UNION ALL, down to SELECTs over private rows and
SELECTs over what those release.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from sqlglot import exp

from dpflow.analyst_sql.comma_joins import spell_joins
from dpflow.analyst_sql.declared_joins import add_join
from dpflow.analyst_sql.output_reader import (
    MOST_DEPTH,
    name_column,
    strip_alias,
    strip_brackets,
    take_arguments,
)
from dpflow.analyst_sql.private_rows import PrivateRows
from dpflow.analyst_sql.query_parts import find_grouping
from dpflow.analyst_sql.released_query import (
    Query,
    ReleasedQuery,
    ReleasedSource,
    UnionAll,
    list_queries,
)
from dpflow.analyst_sql.released_reader import NamedColumn, ReleasedRowReader, read_released
from dpflow.analyst_sql.row_reader import RowReader
from dpflow.analyst_sql.select_query import OutputExpression, SelectQuery
from dpflow.analyst_sql.source_text import Refusal, rename_part
from dpflow.analyst_sql.statement import CLAUSES, SOURCES, SelectReader, read_where
from dpflow.analyst_sql.syntax_repairs import find_select
from dpflow.core.contract.declaration import Table
from dpflow.errors import InvalidInput, UnknownName
from dpflow.tables.language.nodes import Node

#: How deeply queries may stand inside each other, and how many private SELECTs one may have.
MOST_NESTED, MOST_QUERIES = 20, 50
#: Combinations of rows that joins and unions may look at, with all that CTEs repeat.
MOST_ROWS = 10**8
#: How many groups private keys are taken to have there.
_PRIVATE_GROUPS = 1000

FindTable = Callable[[str], Table]
Relation = PrivateRows | Query
Scope = Mapping[str, Relation]


def read_query(parsed: Any, find_table: FindTable) -> Query:
    """A parsed query. Raises `Refusal`."""
    query = _QueryReader(find_table).read_answer(parsed)
    if len(list_queries(query)) > MOST_QUERIES:
        raise Refusal("length", f"it has more than {MOST_QUERIES} SELECTs of private rows", parsed)
    return query


class _QueryReader:
    def __init__(self, find_table: FindTable) -> None:
        self._find_table = find_table
        self._sizes: dict[int, tuple[Query, int]] = {}
        self._scalars: dict[int, OutputExpression] = {}

    def read_answer(self, parsed: Any) -> Query:
        """The query whose rows are the answer."""
        query = self._read(parsed, {}, 0, must_release=True)
        assert not isinstance(query, PrivateRows)
        return query

    def _read(self, parsed: Any, scope: Scope, nested: int, must_release: bool) -> Relation:
        """A query.

        Args:
            scope: what CTEs stand for, by their names in lower case.
            must_release: rows themselves are no answer here.
        """
        if nested > MOST_NESTED:
            raise Refusal(
                "depth", f"queries stand inside each other deeper than {MOST_NESTED}", parsed
            )
        while isinstance(parsed, exp.Subquery | exp.Paren):
            # In brackets; an alias is FROM's.
            (parsed,) = take_arguments(parsed, "this", ignore=("alias",))
        if not isinstance(parsed, exp.Select | exp.SetOperation):
            what = "SHOW, SET and the like" if isinstance(parsed, exp.Command) else "it"
            raise Refusal(
                "select-only",
                f"only a SELECT is answered, and {what} is none; write one",
                parsed,
                text=find_select(parsed),
            )
        scope = self._read_with(parsed.args.get("with_"), scope, nested)
        if isinstance(parsed, exp.SetOperation):
            query: Relation = self._read_union(parsed, scope, nested)
        else:
            query = self._read_select(parsed, scope, nested, must_release)
        if not isinstance(query, PrivateRows):
            self._check_size(query, parsed)
        return query

    def _read_with(self, parsed: Any, scope: Scope, nested: int) -> Scope:
        if parsed is None:
            return scope
        (parts,) = take_arguments(parsed, "expressions")
        inner_scope = dict(scope)
        names: set[str] = set()
        for part in parts:
            if part.alias.casefold() in names:
                raise Refusal(
                    "ambiguous-columns", f"two CTEs are called {part.alias!r}; rename one", part
                )
            names.add(part.alias.casefold())
            inner, alias = take_arguments(part, "this", "alias", ignore=("materialized",))
            relation = self._read(inner, inner_scope, nested + 1, must_release=False)
            inner_scope[part.alias.casefold()] = _rename(relation, alias)
        return inner_scope

    # --- UNION ALL ----------------------------------------------------------------------------------------------

    def _read_union(self, parsed: Any, scope: Scope, nested: int) -> Query:
        clauses = ("order", "limit", "offset")
        if not isinstance(parsed, exp.Union) or parsed.args.get("distinct") is not False:
            raise Refusal(
                "unions",
                "answers are put together by UNION ALL only; what is in both has noise of its own in each",
                parsed,
                lambda: parsed.set("distinct", False) if isinstance(parsed, exp.Union) else None,
            )
        left, right, order, limit, offset = take_arguments(
            parsed, "this", "expression", *clauses, ignore=("with_", "distinct")
        )
        branches: list[Query] = []
        for part in (*_list_branches(left), right):
            branch = self._read(part, scope, nested + 1, must_release=True)
            assert not isinstance(branch, PrivateRows)
            branches.append(branch)
            if len(branch.columns) != len(branches[0].columns):
                raise Refusal(
                    "unions",
                    f"this SELECT has {len(branch.columns)} columns, and the first one {len(branches[0].columns)}",
                    part,
                )
        union = UnionAll(tuple(branches))
        if order is None and limit is None and offset is None:
            return union
        names = [NamedColumn("", name) for name, _ in union.columns]
        rows = ReleasedRowReader(parsed, (), names, self._refuse_subquery)
        columns = tuple(
            (one.name, OutputExpression("input", (position,))) for position, one in enumerate(names)
        )
        return ReleasedQuery(
            (ReleasedSource(union),),
            columns,
            order=tuple(rows.read_order(order, columns)),
            limit=rows.read_number(limit, "LIMIT"),
            offset=rows.read_number(offset, "OFFSET") or 0,
        )

    def _refuse_subquery(self, parsed: Any) -> OutputExpression:
        raise Refusal("subqueries", "a union is ordered by its columns", parsed)

    # --- SELECT -------------------------------------------------------------------------------------------------

    def _read_select(self, parsed: Any, scope: Scope, nested: int, must_release: bool) -> Relation:
        source = parsed.args.get("from_")
        if source is None:
            raise Refusal(
                "declared-table",
                "FROM is missing; name a declared table",
                parsed,
                self._propose_table(parsed),
            )
        spell_joins(parsed, self._find_table, scope)
        joins = parsed.args.get("joins") or []
        first, alias = self._read_relation(source.this, scope, nested)

        def read_subquery(brackets: Any) -> OutputExpression:
            # It is looked at once for every expression around it.
            scalar = self._scalars.get(id(brackets))
            if scalar is None:
                scalar = self._scalars[id(brackets)] = read_once(brackets)
            return scalar

        def read_once(brackets: Any) -> OutputExpression:
            inner = self._read(brackets, scope, nested + 1, must_release=True)
            assert not isinstance(inner, PrivateRows)
            if len(inner.columns) != 1:
                raise Refusal("subqueries", "a query in brackets gives one column", brackets)
            return OutputExpression("scalar", (inner,))

        if isinstance(first, PrivateRows):
            for join in joins:
                first = self._join_rows(first, join, scope)
            if must_release or parsed.args.get("group") or _has_aggregate(parsed):
                return SelectReader(parsed, first, read_subquery).read()
            return _read_rows(parsed, first)
        columns = [NamedColumn(alias, name) for name, _ in first.columns]
        rows = ReleasedRowReader(parsed, parsed.expressions, columns, read_subquery)
        sources = [ReleasedSource(first)]
        for join in joins:
            sources.append(self._join_released(join, rows, scope, nested))
        return read_released(parsed, sources, rows)

    def _propose_table(self, parsed: Any) -> Callable[[], Any] | None:
        """What names the declared table that has all columns of a SELECT; None if none has."""
        used = {one.name.casefold() for one in parsed.find_all(exp.Column)}
        known: list[str] = []
        try:
            self._find_table("")
        except UnknownName as error:
            known = error.known[:MOST_NESTED]
        for name in known:
            try:
                table = self._find_table(name)
            except InvalidInput:
                continue
            columns = {one.casefold() for one in (*table.columns, table.privacy_unit.column)}
            if used <= columns or len(known) == 1:
                relation = exp.Table(this=exp.to_identifier(table.name))
                return partial(parsed.set, "from_", exp.From(this=relation))
        return None

    def _read_relation(self, parsed: Any, scope: Scope, nested: int) -> tuple[Relation, str]:
        """One relation of FROM, and what its columns are qualified by, in lower case."""
        if isinstance(parsed, exp.Subquery):
            relation = self._read(parsed, scope, nested + 1, must_release=False)
            alias = parsed.args.get("alias")
            relation = _rename(relation, alias)
            name = parsed.alias.casefold()
            return (
                replace(relation, alias=name) if isinstance(relation, PrivateRows) else relation
            ), name
        if not isinstance(parsed, exp.Table) or not isinstance(parsed.this, exp.Identifier):
            raise Refusal(
                "declared-table",
                "FROM takes a declared table by its name, or a query in brackets, and no function or file",
                parsed,
            )
        name, alias, schema = take_arguments(parsed, "this", "alias", "db", ignore=("joins",))
        if parsed.args.get("joins"):
            raise Refusal("allow-list", "joins stand one after the other", parsed)
        qualifier = parsed.alias.casefold() if alias is not None else name.name.casefold()
        if schema is None and name.name.casefold() in scope:
            relation = _rename(scope[name.name.casefold()], alias)
            return (
                replace(relation, alias=qualifier)
                if isinstance(relation, PrivateRows)
                else relation
            ), qualifier
        if schema is not None and schema.name.casefold() != "main":
            raise Refusal(
                "declared-table",
                f"schemas are not named here: a declared table has one name, such as {name.name}",
                parsed,
                lambda: parsed.set("db", None),
            )
        if alias is not None:
            take_arguments(alias, "this")
        try:
            table = self._find_table(name.name)
        except InvalidInput as error:
            repair = rename_part(parsed, error) if isinstance(error, UnknownName) else None
            raise Refusal("declared-table", str(error), parsed, repair) from None
        return PrivateRows.of_table(table, qualifier), qualifier

    def _join_rows(self, source: PrivateRows, join: Any, scope: Scope) -> PrivateRows:
        """Private rows with a relation that the declaration joins them with."""
        joined = join.this
        name = joined.name.casefold() if isinstance(joined, exp.Table) else ""
        if not isinstance(joined, exp.Table) or name in scope:
            raise Refusal(
                "joins",
                "private rows are joined with relations that the declaration joins them with, and with no query",
                join,
            )
        return add_join(source, join)

    def _join_released(
        self, join: Any, rows: ReleasedRowReader, scope: Scope, nested: int
    ) -> ReleasedSource:
        """A further relation of released rows; its columns stand behind those of the others."""
        joined, on, using = take_arguments(join, "this", "on", "using", ignore=("kind", "side"))
        kind, side = str(join.args.get("kind") or ""), str(join.args.get("side") or "")
        if kind not in ("", "INNER", "OUTER", "CROSS") or side not in ("", "LEFT"):
            raise Refusal(
                "joins",
                f"{side or kind} JOIN of released rows is not computed; there are JOIN, LEFT JOIN and CROSS JOIN",
                join,
                lambda: (join.set("kind", None), join.set("side", "LEFT")),
            )
        relation, alias = self._read_relation(joined, scope, nested)
        if isinstance(relation, PrivateRows):
            raise Refusal(
                "joins",
                "released rows are joined with released rows; aggregate this relation first",
                join,
            )
        before = list(rows.columns)
        names = [name for name, _ in relation.columns]
        shared = [one.name.casefold() for one in using or ()]
        columns = [NamedColumn(alias, name, name.casefold() in shared) for name in names]
        condition: OutputExpression | None = None
        for one in using or ():
            left = rows.find_column(exp.column(one.name))
            right = [i for i, name in enumerate(names) if name.casefold() == one.name.casefold()]
            if left is None or len(right) != 1:
                raise Refusal(
                    "declared-columns", f"both relations need a column {one.name!r}", join
                )
            pair = (
                OutputExpression("input", (left,)),
                OutputExpression("input", (len(before) + right[0],)),
            )
            test = OutputExpression("=", pair)
            condition = test if condition is None else OutputExpression("AND", (condition, test))
        if alias and alias in {one.relation for one in before}:
            raise Refusal(
                "ambiguous-columns",
                f"two relations are called {alias!r}; give one an alias",
                joined,
            )
        rows.columns = before + columns
        if on is not None:
            condition = rows.read_output(on, MOST_DEPTH)
        return ReleasedSource(relation, condition, side == "LEFT")

    def _check_size(self, query: Query, parsed: Any) -> None:
        """Refuse what grows with every CTE that names another one twice."""
        if isinstance(query, UnionAll):
            rows = self._count_rows(query)
        elif isinstance(query, ReleasedQuery):
            rows = math.prod(self._count_rows(one.query) for one in query.sources)
        else:
            return
        if rows > MOST_ROWS:
            raise Refusal(
                "length", f"its joins and unions look at more than {MOST_ROWS:,} rows", parsed
            )

    def _count_rows(self, query: Query) -> int:
        """The most rows of a query, where its groups are public."""
        entry = self._sizes.get(id(query))
        if entry is None:
            if isinstance(query, UnionAll):
                rows = sum(map(self._count_rows, query.branches))
            elif isinstance(query, SelectQuery):
                rows = _count_groups(query)
            elif query.groups == ():
                rows = 1
            else:
                rows = math.prod(self._count_rows(one.query) for one in query.sources)
            # With the query itself, so that no other one gets its id.
            entry = self._sizes[id(query)] = query, rows
        return entry[1]


def _count_groups(query: SelectQuery) -> int:
    try:
        table, by, private = find_grouping(query)
        if private:
            return _PRIVATE_GROUPS
        return 1 if by is None else len(table.public_keys(by))
    except InvalidInput:
        # Whoever plans it says what is wrong.
        return 1


def _list_branches(parsed: Any) -> list[Any]:
    """The SELECTs on the left of a UNION ALL, first to last."""
    branches: list[Any] = []
    while isinstance(parsed, exp.Union) and parsed.args.get("distinct") is False:
        left, right = take_arguments(parsed, "this", "expression", ignore=("distinct",))
        branches.append(right)
        parsed = left
    return [parsed, *reversed(branches)]


def _rename(relation: Relation, alias: Any) -> Relation:
    """The relation with the columns' names that ``t(a, b)`` gives."""
    if alias is None:
        return relation
    _, names = take_arguments(alias, "this", "columns")
    if not names:
        return relation
    if isinstance(relation, PrivateRows):
        columns = relation.names
        if columns is None:
            raise Refusal("no-star", "* says no order of columns; name them in the query", alias)
    else:
        columns = tuple(name for name, _ in relation.columns)
    if len(names) > len(columns) or len({one.name.casefold() for one in names}) < len(names):
        raise Refusal(
            "positions", f"the query has {len(columns)} columns to name, each once", alias
        )
    new_names = [one.name for one in names] + list(columns[len(names) :])
    if isinstance(relation, PrivateRows):
        return relation.rename(dict(zip(columns, new_names)))
    inputs = tuple((name, OutputExpression("input", (n,))) for n, name in enumerate(new_names))
    return ReleasedQuery((ReleasedSource(relation),), inputs)


def _has_aggregate(select: Any) -> bool:
    """Whether a SELECT has an aggregate of its own, outside of the queries inside of it."""
    clauses = [*select.expressions, select.args.get("having"), select.args.get("qualify")]
    return any(
        isinstance(part, exp.AggFunc)
        for clause in clauses
        if clause is not None
        for part in clause.walk(prune=lambda one: isinstance(one, exp.Query | exp.Subquery))
    )


def _read_rows(parsed: Any, source: PrivateRows) -> PrivateRows:
    """What a CTE or subquery makes of private rows, each by itself. Raises `Refusal`."""
    for clause in (*CLAUSES[2:], "distinct"):
        refused = parsed.args.get(clause)
        if refused:
            raise Refusal(
                "row-queries",
                f"{clause.upper()} looks at several rows, and a query over private rows takes each by itself; "
                f"aggregate in it, or leave this out",
                refused if isinstance(refused, exp.Expression) else parsed,
                partial(parsed.set, clause, None),
            )
    items, where = take_arguments(parsed, "expressions", "where", ignore=SOURCES)
    conditions, blocks = read_where(where, source)
    rows = RowReader(source)
    columns: dict[str, Node] = {}
    taken: set[str] = set()
    units: set[str] = set()
    block_names: set[str] = set()
    order: list[str] | None = []
    for item in items:
        inner = strip_brackets(strip_alias(item))
        star = inner if isinstance(inner, exp.Star) else getattr(inner, "this", None)
        if isinstance(star, exp.Star) and not isinstance(inner, exp.AggFunc):
            take_arguments(star)
            _check_qualifier(inner, source)
            listed = source.list_columns()
            _take_names({*listed, *source.units, *source.block_names}, taken, inner)
            columns |= listed
            units |= source.units
            block_names |= source.block_names
            order = None
            continue
        name = item.alias if isinstance(item, exp.Alias) else name_column(inner)
        _take_names({name}, taken, item)
        passed = False
        for test, names in ((rows.is_unit, units), (rows.is_block, block_names)):
            if test(inner):
                names.add(name.casefold())
                passed = True
        if order is not None:
            order.append(name)
        if not passed or rows.is_declared(inner):
            columns[name] = rows.read(inner)
    return PrivateRows(
        source.table,
        "",
        {},
        conditions,
        blocks,
        columns,
        frozenset(units),
        frozenset(block_names),
        None if order is None else tuple(order),
    )


def _check_qualifier(parsed: Any, source: PrivateRows) -> None:
    qualifier = parsed.table.casefold() if isinstance(parsed, exp.Column) else source.alias
    if qualifier != source.alias:
        raise Refusal(
            "declared-table", f"FROM has no {parsed.table!r} whose columns these are", parsed
        )


def _take_names(names: Collection[str], taken: set[str], parsed: Any) -> None:
    """Note names of columns, the privacy unit's and the block's among them; each means one thing."""
    for name in names:
        if name.casefold() in taken:
            raise Refusal(
                "ambiguous-columns",
                f"the query has two columns {name!r}; name one of them otherwise",
                parsed,
            )
    taken |= {name.casefold() for name in names}
