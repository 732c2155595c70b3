"""A query over released rows in which what DuckDB cannot compute is NULL, as by TRY(...).

It is run where the query as written fails, so that what was charged is answered: a quotient of texts, a product
beyond its type, the logarithm of a negative number. DuckDB's TRY takes no aggregate, window or query in brackets, so
those are handed to it as fields of a struct, by a lambda.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlglot
from sqlglot import exp

from dpflow.analyst_sql.parse.parsed_parts import change_parts, find_item, is_aggregate, walk_own

#: Aggregates of one argument that fail on some numbers. Over a list they are functions, which TRY takes.
_FAILING_AGGREGATES = {
    *("sum", "sumkahan", "kahan_sum", "fsum", "avg", "mean", "favg", "mad", "geomean"),
    *("geometric_mean", "kurtosis", "kurtosis_pop", "skewness", "product"),
    *("stddev", "stddev_pop", "stddev_samp", "variance", "var_pop", "var_samp", "sem"),
}
#: What holds expressions and computes nothing.
_STRUCTURE = (
    *(exp.With, exp.CTE, exp.From, exp.Where, exp.Having, exp.Qualify, exp.Group, exp.Rollup),
    *(exp.Cube, exp.GroupingSets, exp.Order, exp.Ordered, exp.Distinct, exp.Values, exp.Tuple),
    *(exp.And, exp.Or, exp.Not, exp.Paren, exp.Alias, exp.Limit, exp.Offset),
)
#: Aggregates that DuckDB writes as expressions of others, or that are NULL here, by name and number of arguments.
_MACROS = {
    ("geomean", 1): "exp(avg(ln({0})))",
    ("geometric_mean", 1): "exp(avg(ln({0})))",
    ("wavg", 2): "sum({0} * {1}) / sum({1})",
    ("weighted_avg", 2): "sum({0} * {1}) / sum({1})",
    # Where a bin is its type's largest number, which stands for all others, it fails.
    ("histogram_exact", 2): "any_value(CASE WHEN FALSE THEN MAP([{0}], [CAST(0 AS UBIGINT)]) END)",
}
_CONSTANTS = (exp.Literal, exp.Star, exp.Null, exp.Boolean, exp.Identifier, exp.DataType, exp.Var)
_COMPARISONS = (exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE)
#: The lambda's parameter. No query has it: names of tables in it would hide that.
_FIELDS = "dpflow guarded"


def guard_query(tree: Any, aggregates: frozenset[str], tries_joins: bool = False) -> Any:
    """A copy of a query in which each expression that may fail is NULL where it does.

    Args:
        aggregates: names of DuckDB's aggregate functions, in lower case.
        tries_joins: comparisons of a join, too, whose sides may have no type in common that holds both: then DuckDB
            looks at every pair of rows.
    """
    return _Guard(aggregates, tries_joins).visit(tree.copy().transform(_write_macro))


class _Guard:
    def __init__(self, aggregates: frozenset[str], tries_joins: bool) -> None:
        self._aggregates, self._tries_joins = aggregates, tries_joins
        # Grouping expressions of the SELECT around, and whether it has aggregates or windows.
        self._groups: list[Any] = []
        self._is_plain = True

    def visit(self, node: Any) -> Any:
        """A clause or a query, changed in place; of an expression what stands for it."""
        if isinstance(node, exp.Select):
            return self._visit_select(node)
        if isinstance(node, exp.Subquery | exp.SetOperation):
            return change_parts(node, self.visit)
        if isinstance(node, exp.Join):
            for name in ("this", "on"):
                if node.args.get(name) is not None:
                    visit = self._visit_condition if name == "on" else self.visit
                    node.set(name, visit(node.args[name]))
            return node
        if isinstance(node, exp.Table | exp.TableAlias | exp.Pivot | exp.Unnest | exp.Lateral):
            return node
        if isinstance(node, _STRUCTURE):
            is_count = isinstance(node, exp.Limit | exp.Offset)
            if is_count and not isinstance(node.expression, exp.Literal):
                node.set("expression", self._keep_positive(node.expression, 0))
                return node
            return change_parts(node, self.visit)
        return self._guard(node)

    def _visit_select(self, select: Any) -> Any:
        around = self._groups, self._is_plain
        group = select.args.get("group")
        parts = [] if group is None else list(group.expressions)
        self._groups = [find_item(part, select.selects).copy() for part in parts]
        self._is_plain = not parts and not any(map(self._is_special, walk_own(select)))
        for name, part in list(select.args.items()):
            if name == "expressions":
                select.set(name, [self._guard(item) for item in part])
            elif isinstance(part, exp.Expression):
                select.set(name, self.visit(part))
            elif isinstance(part, list):
                select.set(name, [self.visit(one) for one in part])
        self._groups, self._is_plain = around
        return select

    def _visit_condition(self, node: Any) -> Any:
        """A join's condition: comparisons stay, by which DuckDB finds partners, unless they are tried."""
        if isinstance(node, exp.And | exp.Paren):
            return change_parts(node, self._visit_condition)
        if isinstance(node, _COMPARISONS):
            is_tried = self._tries_joins and not any(map(self._is_special, node.walk()))
            compared = change_parts(node, self._guard)
            return exp.Try(this=compared) if is_tried else compared
        return self._guard(node)

    def _is_special(self, node: Any) -> bool:
        """Whether TRY does not take an expression."""
        is_call = isinstance(node, exp.Window | exp.Filter | exp.IgnoreNulls | exp.RespectNulls)
        is_query = isinstance(node, exp.Query) or _holds_rows(node)
        return is_call or is_query or is_aggregate(node, self._aggregates)

    def _guard(self, node: Any) -> Any:
        """An expression that is NULL where it fails."""
        if isinstance(node, (*_CONSTANTS, exp.Column)):
            return node
        if isinstance(node, exp.Paren | exp.Alias):
            return change_parts(node, self._guard)
        if isinstance(node, exp.And | exp.Or | exp.Not):
            return change_parts(node, self._guard)
        if self._is_special(node):
            return self._guard_special(node)
        fields = list[Any]()
        is_plain = self._is_plain

        def take(part: Any) -> Any:
            """An operand, or the field that stands for it."""
            if self._is_special(part):
                value = self._guard_special(part)
            elif part is not node and any(part == group for group in self._groups):
                value = self._guard(part)
            elif isinstance(part, exp.Column) and not is_plain:
                value = part
            elif isinstance(part, (*_CONSTANTS, exp.Column)):
                return part
            else:
                return change_parts(part, take)
            fields.append(value)
            return _take_field(len(fields) - 1)

        body = change_parts(node, take)
        return _try_with(body, fields) if fields else exp.Try(this=body)

    def _guard_special(self, node: Any) -> Any:
        """A call, or query in brackets, whose own operands are guarded."""
        if isinstance(node, exp.Query):
            return self._keep_one(node)
        if not (isinstance(node, exp.Window | exp.Filter) or is_aggregate(node, self._aggregates)):
            tested = node.this if isinstance(node, exp.In) else None

            def guard(part: Any) -> Any:
                is_rows = isinstance(part, exp.Query) and part is not tested
                return self.visit(part) if is_rows else self._guard(part)

            return change_parts(node, guard)
        around = self._groups, self._is_plain
        if isinstance(node, exp.Window):
            node = self._guard_window(node)
        else:
            # Rows below an aggregate are not grouped yet.
            self._groups, self._is_plain = [], True
            node = change_parts(node, self._guard_operand)
        self._groups, self._is_plain = around
        return _guard_aggregate(node)

    def _guard_operand(self, part: Any) -> Any:
        """An operand of an aggregate; its own clauses, as ORDER BY, hold expressions."""
        if isinstance(part, _STRUCTURE):
            return change_parts(part, self._guard_operand)
        if is_aggregate(part, self._aggregates):
            return change_parts(part, self._guard_operand)
        return self._guard(part)

    def _guard_window(self, window: Any) -> Any:
        call = window.this
        if isinstance(call, exp.Expression):
            is_ntile = isinstance(call, exp.Ntile)
            change = (lambda x: self._keep_positive(x, 1)) if is_ntile else self._guard
            window.set("this", change_parts(call, change))
        for part in window.args.get("partition_by") or []:
            part.replace(self._guard(part))
        order, frame = window.args.get("order"), window.args.get("spec")
        if order is not None:
            change_parts(order, self.visit)
        for name in ("start", "end"):
            bound = None if frame is None else frame.args.get(name)
            if isinstance(bound, exp.Expression) and not isinstance(bound, exp.Literal):
                frame.set(name, self._keep_positive(bound, 0))
        return window

    def _keep_positive(self, value: Any, least: int) -> Any:
        """A number of rows that may be below what DuckDB takes."""
        if isinstance(value, exp.Interval):
            return value
        lowest = exp.Literal.number(least)
        known = exp.Coalesce(this=self._guard(value), expressions=[lowest.copy()])
        return exp.Greatest(this=known, expressions=[lowest])

    def _keep_one(self, query: Any) -> Any:
        """A query as a value: NULL where it has several rows."""
        inner = query.this if isinstance(query, exp.Subquery) else query
        column, rows = exp.column("value"), exp.TableAlias(this=exp.to_identifier("guarded"))
        rows.set("columns", [exp.to_identifier("value")])
        first = exp.Anonymous(this="first", expressions=[column])
        is_one = exp.LTE(this=exp.Count(this=exp.Star()), expression=exp.Literal.number(1))
        source = exp.Subquery(this=self.visit(inner), alias=rows)
        value = exp.Case(ifs=[exp.If(this=is_one, true=first)])
        return exp.Subquery(this=exp.Select(expressions=[value], from_=exp.From(this=source)))


def _holds_rows(node: Any) -> bool:
    """Whether an expression looks at the rows of a query in brackets: EXISTS, IN and the like."""
    parts = list(node.iter_expressions())
    if any(isinstance(part, exp.Any | exp.All) for part in parts):
        return True
    kinds = (exp.Exists, exp.In, exp.Any, exp.All, exp.Array)
    return isinstance(node, kinds) and any(isinstance(part, exp.Query) for part in parts)


def _write_macro(node: Any) -> Any:
    """A macro's call as the aggregates that it stands for."""
    place = (
        (node.name.casefold(), len(node.expressions)) if isinstance(node, exp.Anonymous) else None
    )
    if place not in _MACROS:
        return node
    written = [part.sql("duckdb") for part in node.expressions]
    return sqlglot.parse_one(_MACROS[place].format(*written), read="duckdb")


def _guard_aggregate(node: Any) -> Any:
    """A call of an aggregate that fails on some numbers, as a function of their list."""
    holder, call = None, node
    while isinstance(call, exp.Window | exp.Filter):
        holder, call = call, call.this
    if not isinstance(call, exp.Func):
        return node
    name = call.name if isinstance(call, exp.Anonymous) else call.sql("duckdb").partition("(")[0]
    arguments = list(call.iter_expressions())
    if name.casefold() not in _FAILING_AGGREGATES or len(arguments) != 1:
        return node
    collected = exp.Anonymous(this="list", expressions=[arguments[0].copy()])
    if holder is None:
        node = collected
    else:
        holder.set("this", collected)
    name_text = exp.Literal.string(name.casefold())
    body = exp.Anonymous(this="list_aggregate", expressions=[_take_field(0), name_text])
    return _try_with(body, [node])


def _take_field(position: int) -> Any:
    """A field of the lambda's parameter, written so that HAVING takes it for no column."""
    parameter = exp.to_identifier(_FIELDS, quoted=True)
    name = exp.Literal.string(f"v{position}")
    return exp.Anonymous(this="struct_extract", expressions=[parameter, name])


def _try_with(body: Any, fields: Sequence[Any]) -> Any:
    """TRY of an expression, of which some operands are fields of the lambda's parameter."""
    named = [
        exp.PropertyEQ(this=exp.to_identifier(f"v{n}"), expression=field)
        for n, field in enumerate(fields)
    ]
    rows = exp.Array(expressions=[exp.Struct(expressions=named)])
    tried = exp.Lambda(
        this=exp.Try(this=body), expressions=[exp.to_identifier(_FIELDS, quoted=True)]
    )
    values = exp.Anonymous(this="list_transform", expressions=[rows, tried])
    return exp.Anonymous(this="list_extract", expressions=[values, exp.Literal.number(1)])
