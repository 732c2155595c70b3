"""Splits a parsed query at its noise: aggregating SELECTs over private rows become releases, and what stands
around them reads the tables of what was released.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

from sqlglot import exp

from dpflow.analyst_sql.parse.joins import add_join, require_joins, spell_joins
from dpflow.analyst_sql.parse.parsed_parts import (
    take_arguments,
    walk_own,
)
from dpflow.analyst_sql.parse.private_rows import PrivateRows, RowReader, read_where
from dpflow.analyst_sql.parse.public_joins import join_public
from dpflow.analyst_sql.parse.select_query import SelectQuery, SplitQuery
from dpflow.analyst_sql.parse.select_reader import (
    AFTER_NOISE,
    CLAUSES,
    MAX_COLUMNS,
    SOURCES,
    SelectReader,
    name_column,
)
from dpflow.analyst_sql.parse.text_and_options import Refusal
from dpflow.analyst_sql.parse.unit_reader import (
    has_group_bounds,
    is_by_unit,
    read_unit_rows,
    spell_group_bounds,
)
from dpflow.core.contract.declaration import Table
from dpflow.errors import InvalidInput
from dpflow.tables.language.nodes import Node
from dpflow.tables.public.query_process import PROCESS, RowTable
from dpflow.tables.public.query_worker import SCHEMA

#: How deeply queries may stand inside each other, and how many private SELECTs one may have.
MAX_NESTED, MAX_RELEASES = 20, 50

FindTable = Callable[[str], Table]
FindPublic = Callable[[str], RowTable | None]
#: What CTEs stand for, by their names in lower case: private rows, or None for released ones.
Scope = Mapping[str, PrivateRows | None]
#: Clauses of a SELECT over released rows.
_RELEASED_CLAUSES = (*CLAUSES, *AFTER_NOISE, *SOURCES, "laterals")


def read_query(
    parsed: Any, find_table: FindTable, find_public: FindPublic = lambda name: None
) -> SplitQuery:
    """A parsed query, which is changed in place, split. Raises `Refusal`."""
    reader = _QueryReader(find_table, find_public)
    # The SELECT over released rows whose rows are the answer.
    tree = reader.read(parsed, {}, 0, must_release=True)
    _order_rows(tree)
    if not reader.releases:
        raise Refusal("declared-table", "no private table is read; name a declared table", parsed)
    return SplitQuery(tree, tuple(reader.releases), tuple(reader.public.values()))


class _QueryReader:
    def __init__(self, find_table: FindTable, find_public: FindPublic) -> None:
        self._find_table, self._find_public = find_table, find_public
        self.releases: list[SelectQuery] = []
        #: Public tables by their names in lower case.
        self.public: dict[str, RowTable] = {}

    def _add_release(self, query: SelectQuery) -> int:
        if query in self.releases:
            return self.releases.index(query)
        if len(self.releases) == MAX_RELEASES:
            raise Refusal("length", f"it has more than {MAX_RELEASES} SELECTs of private rows")
        self.releases.append(query)
        return len(self.releases) - 1

    def read(self, parsed: Any, scope: Scope, nested: int, must_release: bool) -> Any:
        """A query: `PrivateRows`, or its tree over released rows.

        Args:
            must_release: rows themselves are no answer here.
        """
        if nested > MAX_NESTED:
            raise Refusal(
                "depth", f"queries stand inside each other deeper than {MAX_NESTED}", parsed
            )
        if isinstance(parsed, exp.Subquery | exp.Paren):
            inner = self.read(parsed.this, scope, nested, must_release)
            if isinstance(inner, PrivateRows):
                take_arguments(parsed, "this", ignore=("alias",))
                return inner
            parsed.set("this", inner)
            return parsed
        if isinstance(parsed, exp.Pivot):
            parsed = spell_pivot(parsed)
        if not isinstance(parsed, exp.Select | exp.SetOperation):
            what = "SHOW, SET and the like" if isinstance(parsed, exp.Command) else "it"
            raise Refusal(
                "select-only", f"only a SELECT is answered, and {what} is none; write one", parsed
            )
        scope = self._read_with(parsed, scope, nested)
        if isinstance(parsed, exp.SetOperation):
            return self._read_set(parsed, scope, nested)
        return self._read_select(parsed, scope, nested, must_release)

    def _read_with(self, parsed: Any, scope: Scope, nested: int) -> Scope:
        """The scope with a query's CTEs; those of private rows leave the tree."""
        clause = parsed.args.get("with_")
        if clause is None:
            return scope
        inner_scope = dict(scope)
        names: set[str] = set()
        kept = []
        for part in clause.expressions:
            name = part.alias.casefold()
            if name in names:
                raise Refusal(
                    "ambiguous-columns", f"two CTEs are called {part.alias!r}; rename one", part
                )
            names.add(name)
            if clause.args.get("recursive") and _names_itself(part):
                inner_scope[name] = None
            relation = self.read(part.this, inner_scope, nested + 1, must_release=False)
            if isinstance(relation, PrivateRows):
                take_arguments(part, "this", "alias", ignore=("materialized",))
                inner_scope[name] = _rename(relation, part.args.get("alias"))
                continue
            inner_scope[name] = None
            part.set("this", relation)
            kept.append(part)
        clause.set("expressions", kept)
        if not kept:
            parsed.set("with_", None)
        return inner_scope

    def _read_set(self, parsed: Any, scope: Scope, nested: int) -> Any:
        """UNION, EXCEPT and INTERSECT of released rows; the left branches are a chain."""
        operation = parsed
        while True:
            self._replace(operation.expression, scope, nested + 1)
            left = operation.this
            if not isinstance(left, exp.SetOperation) or left.args.get("with_") is not None:
                self._replace(left, scope, nested + 1)
                break
            operation = left
        for name in ("order", "limit", "offset"):
            clause = parsed.args.get(name)
            if clause is not None:
                self._replace_inner(clause, scope, nested)
        return parsed

    def _replace(self, query: Any, scope: Scope, nested: int) -> None:
        """Put a query's tree over released rows into its place."""
        parent, name, index = query.parent, query.arg_key, query.index
        tree = self.read(query, scope, nested, must_release=True)
        assert not isinstance(tree, PrivateRows)
        if tree is not query:
            parent.set(name, tree, index)

    def _replace_inner(self, part: Any, scope: Scope, nested: int) -> None:
        """The same for all queries inside of an expression."""
        parts = part.walk(bfs=False, prune=lambda one: isinstance(one, exp.Query))
        for query in [one for one in parts if isinstance(one, exp.Query)]:
            self._replace(query, scope, nested + 1)

    # --- SELECT -------------------------------------------------------------------------------------------------

    def _read_select(self, parsed: Any, scope: Scope, nested: int, must_release: bool) -> Any:
        source = parsed.args.get("from_")
        if source is None:
            if _has_aggregate(parsed):
                raise Refusal("declared-table", "FROM is missing; name a declared table", parsed)
            self._read_released(parsed, [], scope, nested)
            return parsed
        spell_joins(parsed, self._find_table, set(scope))
        joins = parsed.args.get("joins") or []
        if len(joins) == 1 and self._begins_public(source.this, joins[0], scope):
            public, private = source.this, joins[0].this
            source.set("this", private)
            joins[0].set("this", public)
        first = self._read_relation(source, scope, nested)
        if isinstance(first, PrivateRows):
            for join in joins:
                first = self._join_rows(first, join, scope)
            require_joins(first, parsed)
            if not must_release and is_by_unit(parsed, first):
                return read_unit_rows(parsed, first)
            if has_group_bounds(parsed):
                parsed, first = spell_group_bounds(parsed, first)
            if must_release or parsed.args.get("group") or _has_aggregate(parsed):
                return self._read_aggregates(parsed, first, scope, nested)
            return _read_rows(parsed, first)
        for join in joins:
            if isinstance(self._read_relation(join, scope, nested), PrivateRows):
                raise Refusal(
                    "joins",
                    "released rows are joined with released rows; aggregate this relation first",
                    join,
                )
        self._read_released(parsed, joins, scope, nested)
        return parsed

    def _read_aggregates(self, parsed: Any, source: PrivateRows, scope: Scope, nested: int) -> Any:
        def read_subquery(part: Any) -> Any:
            if isinstance(part, exp.Exists):
                self._replace(part.this, scope, nested + 1)
                return part
            tree = self.read(part, scope, nested + 1, must_release=True)
            assert not isinstance(tree, PrivateRows)
            return tree

        reader = SelectReader(
            parsed, source, read_subquery, self._add_release, PROCESS.list_aggregates
        )
        return reader.read()

    def _read_released(
        self, parsed: Any, joins: Collection[Any], scope: Scope, nested: int
    ) -> None:
        """Check a SELECT over released rows, and split the queries inside of its expressions."""
        take_arguments(parsed, *_RELEASED_CLAUSES)
        if len(parsed.expressions) > MAX_COLUMNS:
            raise Refusal("length", f"it has more than {MAX_COLUMNS} columns", parsed)
        for item in parsed.expressions:
            is_several = item.is_star or item.find(exp.Columns, exp.Explode, exp.Unnest)
            # DuckDB would call a query in brackets as it is written again.
            if not (isinstance(item, exp.Alias) or is_several) and item.find(exp.Query):
                item.replace(exp.alias_(item.copy(), name_column(item), quoted=True))
        for name in (*CLAUSES, *AFTER_NOISE):
            value = parsed.args.get(name)
            for part in value if isinstance(value, list) else [value]:
                if isinstance(part, exp.Expression):
                    self._replace_inner(part, scope, nested)
        for join in joins:
            for part in (join.args.get("on"), join.args.get("match_condition")):
                if part is not None:
                    self._replace_inner(part, scope, nested)

    def _read_relation(self, holder: Any, scope: Scope, nested: int) -> PrivateRows | None:
        """The relation of a FROM or JOIN: private rows, or None for released ones, which stay in the
        tree.
        """
        parsed = holder.this
        if isinstance(parsed, exp.Subquery):
            tree = self.read(parsed.this, scope, nested + 1, must_release=False)
            if isinstance(tree, PrivateRows):
                alias = take_arguments(parsed, "alias", ignore=("this",))[0]
                return replace(_rename(tree, alias), alias=parsed.alias.casefold())
            parsed.set("this", tree)
            self._read_beside(parsed, scope, nested)
            return None
        if isinstance(parsed, exp.Unnest | exp.Values | exp.Lateral) or (
            isinstance(parsed, exp.Table) and isinstance(parsed.this, exp.Func)
        ):
            # Rows of its own arguments; DuckDB's functions are checked where it runs.
            if nested == 0 and isinstance(parsed, exp.Table) and not self.releases:
                raise _refuse_relation(parsed)
            self._replace_inner(parsed, scope, nested)
            return None
        if not isinstance(parsed, exp.Table) or not isinstance(parsed.this, exp.Identifier):
            raise _refuse_relation(parsed)
        return self._read_table(parsed, scope, nested)

    def _read_table(self, parsed: Any, scope: Scope, nested: int) -> PrivateRows | None:
        name, schema, alias = (parsed.args.get(part) for part in ("this", "db", "alias"))
        qualifier = parsed.alias.casefold() if alias is not None else name.name.casefold()
        if schema is None and parsed.args.get("catalog") is None and name.name.casefold() in scope:
            rows = scope[name.name.casefold()]
            if rows is None:
                self._read_beside(parsed, scope, nested)
                return None
            take_arguments(parsed, "this", "alias")
            return replace(_rename(rows, alias), alias=qualifier)
        take_arguments(parsed, "this", "alias", "db")
        if schema is not None and schema.name.casefold() != "main":
            raise Refusal(
                "declared-table",
                f"schemas are not named here: a declared table has one name, such as {name.name}",
                parsed,
            )
        if self._is_public(name.name):
            parsed.set("this", exp.to_identifier(self.public[name.name.casefold()].name))
            parsed.set("db", exp.to_identifier(SCHEMA))
            if alias is None:
                parsed.set("alias", exp.TableAlias(this=name))
            return None
        if alias is not None:
            take_arguments(alias, "this")
        try:
            table = self._find_table(name.name)
        except InvalidInput as error:
            raise Refusal("declared-table", str(error), parsed) from None
        return PrivateRows.of_table(table, qualifier)

    def _is_public(self, name: str) -> bool:
        """Whether this is a public table, which is read now."""
        if name.casefold() not in self.public:
            try:
                rows = self._find_public(name)
            except InvalidInput as error:
                raise Refusal("declared-table", str(error)) from None
            if rows is None:
                return False
            self.public[name.casefold()] = replace(rows, name=f"p{len(self.public)}")
        return True

    def _read_beside(self, parsed: Any, scope: Scope, nested: int) -> None:
        """What hangs on a relation of released rows: joins in brackets, and PIVOT."""
        for join in parsed.args.get("joins") or ():
            if isinstance(self._read_relation(join, scope, nested), PrivateRows):
                raise Refusal("joins", "joins stand one after the other", join)
        for pivot in parsed.args.get("pivots") or ():
            self._replace_inner(pivot, scope, nested)

    def _begins_public(self, first: Any, join: Any, scope: Scope) -> bool:
        """Whether private rows stand behind a public table, in a join whose sides may be exchanged."""
        tables = [first, join.this]
        if not all(
            isinstance(one, exp.Table) and isinstance(one.this, exp.Identifier) for one in tables
        ):
            return False
        names = [one.name.casefold() for one in tables]
        is_plain = not join.args.get("side") and str(join.args.get("kind") or "INNER") == "INNER"
        are_public = [name not in scope and self._is_public(name) for name in names]
        is_private = names[1] not in scope or scope[names[1]] is not None
        return is_plain and is_private and are_public == [True, False]

    def _join_rows(self, source: PrivateRows, join: Any, scope: Scope) -> PrivateRows:
        """Private rows with a relation that the declaration joins them with."""
        joined = join.this
        name = joined.name.casefold() if isinstance(joined, exp.Table) else ""
        if not isinstance(joined, exp.Table) or name in scope:
            raise Refusal(
                "joins",
                "private rows are joined with relations that the declaration joins them with, and with no query; "
                "aggregate them first, and join the result",
                join,
            )
        # What the declaration joins comes before a public table of its name.
        relations = [part for one in source.table.joins for part in (one.name, one.relation)]
        is_declared = name in {one.rpartition(".")[2].casefold() for one in relations}
        is_named = isinstance(joined.this, exp.Identifier) and not is_declared
        if is_named and self._is_public(joined.name):
            take_arguments(joined, "this", "alias")
            table, called = self.public[joined.name.casefold()], joined.alias_or_name.casefold()
            return join_public(source, join, table, joined.name, called)
        return add_join(source, join, self._find_table)


def _order_rows(tree: Any) -> None:
    """Order the answer's rows where they tie, or stand in the order of a hash: by their columns."""
    if not isinstance(tree, exp.Select) or any(
        tree.args.get(name) is not None for name in ("limit", "offset")
    ):
        return
    order = tree.args.get("order")
    parts = [] if order is None else order.expressions
    moved = any(tree.args.get(name) for name in ("group", "distinct", "joins"))
    if order is None and not moved and tree.find(exp.Window, exp.Pivot) is None:
        return
    if any(isinstance(part.this, exp.Var) for part in parts):
        return
    if any(isinstance(item, exp.Star | exp.Columns) or item.is_star for item in tree.expressions):
        if order is None:
            tree.set("order", exp.Order(expressions=[exp.Ordered(this=exp.var("ALL"))]))
        return
    ties = [
        exp.Ordered(this=exp.Literal.number(n + 1), nulls_first=False)
        for n in range(len(tree.expressions))
    ]
    tree.set("order", exp.Order(expressions=[*parts, *ties]))


def _refuse_relation(parsed: Any) -> Refusal:
    return Refusal(
        "declared-table",
        "FROM takes a declared table by its name, or a query in brackets, and no function or file",
        parsed,
    )


def _names_itself(cte: Any) -> bool:
    name = cte.alias.casefold()
    tables = cte.this.find_all(exp.Table)
    return isinstance(cte.this, exp.SetOperation) and any(
        table.name.casefold() == name for table in tables
    )


def _rename(relation: PrivateRows, alias: Any) -> PrivateRows:
    """Private rows with the columns' names that ``t(a, b)`` gives."""
    if alias is None:
        return relation
    _, names = take_arguments(alias, "this", "columns")
    if not names:
        return relation
    columns = relation.names
    if columns is None:
        raise Refusal("no-star", "* says no order of columns; name them in the query", alias)
    if len(names) > len(columns) or len({one.name.casefold() for one in names}) < len(names):
        raise Refusal(
            "positions", f"the query has {len(columns)} columns to name, each once", alias
        )
    new_names = [name.name for name in names] + list(columns[len(names) :])
    return relation.rename(dict(zip(columns, new_names)))


def _has_aggregate(select: Any) -> bool:
    """Whether a SELECT has an aggregate of its own, outside of the queries inside of it."""
    return any(isinstance(part, exp.AggFunc) for part in walk_own(select, "having", "qualify"))


def _read_rows(parsed: Any, source: PrivateRows) -> PrivateRows:
    """What a CTE or subquery makes of private rows, each by itself. Raises `Refusal`."""
    for clause in (*CLAUSES[2:], *AFTER_NOISE):
        refused = parsed.args.get(clause)
        if refused:
            raise Refusal(
                "row-queries",
                f"{clause.upper()} looks at several rows, and a query over private rows takes each by itself; "
                f"aggregate in it, or leave this out",
                refused if isinstance(refused, exp.Expression) else parsed,
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
        inner = item.unalias().unnest()
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


def spell_pivot(parsed: Any) -> Any:
    """``SELECT * FROM rows PIVOT (f(y) FOR x IN (...))``. Raises `Refusal` where values are not listed: DuckDB
    would look them up, in a statement before.
    """
    rows, tests, using, group, with_ = take_arguments(
        parsed, "this", "expressions", "using", "group", "with_"
    )
    for test in tests or [parsed]:
        listed = isinstance(test, exp.In) and isinstance(test.this, exp.Column)
        if not listed or not all(isinstance(one, exp.Literal) for one in test.expressions):
            raise Refusal(
                "select-only",
                "PIVOT lists its values: ON a column of the rows below IN (value, ...), with USING",
                test,
            )
        take_arguments(test, "this", "expressions")
    if not isinstance(rows, exp.Table | exp.Subquery):
        raise Refusal("select-only", "PIVOT takes a query in brackets, or a CTE", parsed)
    counts = [exp.Count(this=exp.Star())]
    rows.append("pivots", exp.Pivot(expressions=using or counts, fields=tests, group=group))
    return exp.Select(expressions=[exp.Star()], from_=exp.From(this=rows), with_=with_)
