"""The rules of one SELECT over released rows; see `dpflow.analyst_sql.noise.noise_rules`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sqlglot import exp

from dpflow.analyst_sql.noise.expression_intervals import (
    EXACT,
    Known,
    NoisyNull,
    Source,
    choose,
    combine,
    number,
    rule_of,
)
from dpflow.analyst_sql.noise.noise_relations import (
    COUNT,
    HIGH,
    LOW,
    NoisyColumn,
    ReleasedNoise,
    RuleMissing,
    SelectSources,
    Shape,
)
from dpflow.analyst_sql.parse.parsed_parts import find_item, is_aggregate, iterate_parts, walk_own

_BOUNDED_AGGREGATES = (exp.Sum, exp.Avg, exp.Min, exp.Max, exp.Median)
_BOUNDED_WINDOWS = (exp.Sum, exp.Avg, exp.Min, exp.Max)
#: Functions that make several rows of one, beside ``unnest``.
ROW_FUNCTIONS = ("generate_subscripts", "regexp_split_to_table", "unlist")
#: What comes out the same whatever order the rows have.
_UNORDERED = (*_BOUNDED_AGGREGATES, exp.Count, exp.Quantile, exp.LogicalAnd, exp.LogicalOr)
#: Windows that give rows of equal order the same number.
_RANKS = (exp.Rank, exp.DenseRank, exp.PercentRank, exp.CumeDist)
_ROW_WINDOWS = (exp.Lag, exp.Lead, exp.FirstValue, exp.LastValue, exp.NthValue)


class SelectRules(SelectSources):
    """The rules of one SELECT."""

    #: Numbers whose noise orders the rows of its windows.
    _window_order: frozenset[Source] = frozenset()

    def read(self) -> Shape:
        """The columns of the answer."""
        select = self._select
        self._read_sources()
        items, order = self._expand_stars(), select.args.get("order")
        may_repeat = any(issubclass(one, exp.UDTF | exp.Anonymous) for one in self._kinds)
        repeating = [may_repeat and _repeats_rows(part) for part in (*items, order)]
        if any(repeating):
            self._release = None
        self._aliases = {
            item.alias.casefold(): item.this for item in items if isinstance(item, exp.Alias)
        }
        self._filter("where")
        self._read_groups(items)
        # HAVING leaves groups out, and changes none.
        self._rows_chosen = self._chosen
        self._filter("having")
        self._window_order = self._find_window_order()
        noise, chosen = [self.find(item.unalias()) for item in items], self._chosen
        for one, repeats in zip(noise, repeating):
            # How many rows each becomes.
            if repeats:
                self._choose(one)
        is_grouped = self._groups is not None
        cells = [None if is_grouped else self._find_cell(item.unalias()) for item in items]
        self._filter("qualify")
        distinct = select.args.get("distinct")
        if distinct is not None and distinct.args.get("on") is not None:
            self._choose(self.find(distinct.args["on"]))
        elif distinct is not None:
            for one in noise:
                self._choose(one)
            noise = [combine([one]) if one.noisy else one for one in noise]
        is_cut = is_limited(select) and not self._keeps_all_rows()
        keys = [
            one
            for part in (() if order is None else order.expressions)
            for one in self._find_order_key(part.this, items, noise)
        ]
        for one in keys if distinct is not None or repeating[-1] else ():
            self._choose(one)
        self._ordered |= frozenset().union(*(self._list_deciding(one) for one in keys))
        self._ordered |= self._window_order
        if is_cut or (distinct is not None and distinct.args.get("on") is not None):
            self._chosen |= self._ordered
        for name in ("limit", "offset"):
            if (clause := select.args.get(name)) is not None:
                self._choose(self.find(clause))
        # A column that DuckDB names is not referred to.
        names = [item.alias_or_name or f"?{n}" for n, item in enumerate(items)]
        columns = [NoisyColumn(*one) for one in zip(names, noise, cells)]
        is_bare = not is_grouped and self._release is not None

        def reread(released: ReleasedNoise, wanted: Sequence[bool]) -> list[Known]:
            self._released, self._chosen = released, chosen
            return [self.find(item.unalias()) if one else EXACT for item, one in zip(items, wanted)]

        return Shape(
            columns,
            self._chosen,
            self._selected,
            self._release if is_bare else None,
            self._ordered,
            self._make_attach(names, noise),
            reread,
        )

    def _keeps_all_rows(self) -> bool:
        """Whether LIMIT is at least the number of rows of the one release that is read."""
        limit, offset = (self._select.args.get(name) for name in ("limit", "offset"))
        if limit is None or offset is not None or self._groups is not None:
            return False
        # 20 % is not 20 rows.
        if not isinstance(limit, exp.Limit) or set(filter(limit.args.get, limit.args)) != {
            "expression"
        }:
            return False
        number_text = str(limit.expression)
        return (
            self._release is not None
            and number_text.isdecimal()
            and int(number_text[:18]) >= self._released.count_numbers([(self._release, 0)])
        )

    def _make_attach(
        self, names: Sequence[str], noise: Sequence[Known]
    ) -> Callable[[Sequence[bool]], None]:
        select = self._select

        def attach(wanted: Sequence[bool]) -> None:
            items = list(select.expressions)
            for item, name, one, is_wanted in zip(items, names, noise, wanted):
                if not is_wanted:
                    continue
                low, high, count = one.low, one.high, one.count
                if not one.noisy:
                    # Beside noisy values of another branch; a text has no bounds there.
                    text = exp.cast(item.unalias().copy(), "VARCHAR", copy=False)
                    low = high = exp.TryCast(this=text, to=exp.DataType.build("DOUBLE"))
                    count = number(0)
                for end, part in ((LOW, low), (HIGH, high), (COUNT, count)):
                    alias = exp.to_identifier(name + end, quoted=True)
                    select.append("expressions", exp.alias_(part.copy(), alias, copy=False))

        return attach

    def _filter(self, clause: str) -> None:
        """A condition that leaves rows out: those of noisy values choose by noise."""
        condition = self._select.args.get(clause)
        if condition is None:
            return
        kept = []
        for part in (
            condition.this.flatten() if isinstance(condition.this, exp.And) else [condition.this]
        ):
            noise = self.find(part)
            self._choose(noise)
            if not noise.noisy:
                kept.append(part)
        if self._released.keep_noisy:
            tree = exp.and_(*kept, copy=False) if kept else None
            self._select.set(clause, None if tree is None else type(condition)(this=tree))

    def _read_groups(self, items: Sequence[Any]) -> None:
        group = self._select.args.get("group")
        aggregates = [*(one.unalias() for one in items), self._select.args.get("having")]
        if group is None:
            if any(part is not None and self._has_aggregate(part) for part in aggregates):
                self._groups = []
            return
        if any(group.args.get(name) for name in ("rollup", "cube", "grouping_sets", "totals")):
            raise RuleMissing
        parts = []
        if group.args.get("all"):
            parts = [p for p in (one.unalias() for one in items) if not self._has_aggregate(p)]
        parts += [
            find_item(part, items, lambda column: bool(self._list_columns("", column.name)))
            for part in group.expressions
        ]
        if any(isinstance(p, exp.Rollup | exp.Cube | exp.GroupingSets | exp.Tuple) for p in parts):
            raise RuleMissing
        noise = [self.find(part) for part in parts]
        for one in noise:
            self._choose(one)
        self._groups = list(zip(parts, noise))

    def _has_aggregate(self, part: Any) -> bool:
        if isinstance(part, exp.Window):
            call = _strip_call(part.this)
            inner = [*call.iter_expressions(), *(part.args.get("partition_by") or [])]
            inner += [part.args[name] for name in ("order",) if part.args.get(name) is not None]
            return any(map(self._has_aggregate, inner))
        if isinstance(part, exp.Query):
            return False
        if is_aggregate(part, self._released.aggregate_names):
            return True
        return any(map(self._has_aggregate, part.iter_expressions()))

    def _find_order_key(
        self, key: Any, items: Sequence[Any], noise: Sequence[Known]
    ) -> list[Known]:
        if isinstance(key, exp.Var):
            return list(noise)
        if isinstance(key, exp.Literal) and not key.is_string:
            return [noise[int(key.this) - 1]]
        if isinstance(key, exp.Column) and not key.table:
            names = [item.alias.casefold() for item in items]
            if key.name.casefold() in names:
                return [noise[names.index(key.name.casefold())]]
        return [self.find(key)]

    def find(self, part: Any) -> Known:
        """What is known of an expression's noise."""
        noise = self._find_noise(part)
        return noise if self._released.rests_on_one(noise.sources) else combine([noise])

    def _find_noise(self, part: Any) -> Known:
        for group, noise in self._groups or ():
            if part == group:
                return combine([noise]) if noise.noisy else EXACT
        if isinstance(part, exp.Column):
            return self._find_column(part)
        if isinstance(part, exp.Window):
            return self._find_window(part)
        if isinstance(part, exp.Query):
            return self._find_subquery(part)
        if isinstance(part, (exp.Exists | exp.In | exp.Any | exp.All, exp.Lambda)):
            return self._find_set(part)
        if isinstance(part, exp.Filter) or is_aggregate(part, self._released.aggregate_names):
            return self._find_aggregate(part)
        self._released.count_step()
        operands = [(node, self.find(node)) for node in _list_operands(part)]
        noisy = [noise for _, noise in operands if noise.noisy]
        if not noisy:
            return EXACT

        def look_up(inner: Any) -> Known:
            # Each operand is looked at once: else a chain of n operators takes 2^n steps.
            matches = (noise for node, noise in operands if node is inner)
            noise = next(matches, None)
            return self.find(inner) if noise is None else noise

        rule = self._released.find_quotient_range(part, look_up) or rule_of(part, look_up)
        return combine(noisy) if rule is None else rule

    def _find_subquery(self, part: Any) -> Known:
        """A value of a query in brackets; of one that noise chose, what might have been chosen."""
        inner = part.copy()
        shape = self._read_query(inner, self._scope)
        if len(shape.columns) != 1:
            return combine([], self._released.everything)
        noise = shape.columns[0].noise
        sources = noise.sources | shape.chosen
        if not noise.noisy and not shape.chosen and not shape.selected:
            # Of several rows it may be a list.
            return combine([], shape.ordered) if shape.ordered else EXACT
        if noise.ruled and not shape.selected:
            if shape.chosen:
                return self._find_ranked(part, noise, sources)
            shape.attach([True])
            parts = [_take_column(inner, n) for n in range(1, 4)]
            low, high, count = parts
            return Known(True, sources, low, high, count, noise.noisy_null)
        return combine([], sources or self._released.everything)

    def _find_ranked(self, part: Any, noise: Known, sources: frozenset[Source]) -> Known:
        """``SELECT x ... ORDER BY x LIMIT 1``: the first of the lower bounds, and of the upper ones."""
        select = part.this if isinstance(part, exp.Subquery) else part
        order = select.args.get("order") if isinstance(select, exp.Select) else None
        if order is None or select.args.get("distinct") is not None:
            return combine([], sources)
        unordered = part.copy()
        bare = unordered.this if isinstance(unordered, exp.Subquery) else unordered
        for name in ("order", "limit", "offset"):
            bare.set(name, None)
            if name != "order" and select.args.get(name) and select.args[name].find(exp.Query):
                return combine([], sources)
        shape = self._read_query(unordered, self._scope)
        if shape.chosen or shape.selected or not shape.columns[0].noise.ruled or noise.noisy_null:
            return combine([], sources)
        item, key = select.expressions[0], order.expressions[0].this
        names = {item.alias_or_name.casefold()} - {""}
        is_value = key == item.unalias() or (
            isinstance(key, exp.Column) and not key.table and key.name.casefold() in names
        )
        if not is_value and not (isinstance(key, exp.Literal) and key.this == "1"):
            return combine([], sources)
        shape.attach([True])
        parts = []
        for position in (1, 2):
            ordered = exp.Ordered(this=number(1), desc=order.expressions[0].args.get("desc"))
            ordered.set("nulls_first", order.expressions[0].args.get("nulls_first"))
            query = _take_column(unordered, position).this
            query.set("order", exp.Order(expressions=[ordered]))
            for name in ("limit", "offset"):
                clause = select.args.get(name)
                query.set(name, None if clause is None else clause.copy())
            parts.append(exp.Subquery(this=query))
        self._released.ranks = True
        count = number(self._released.count_numbers(sources))
        return Known(True, sources, parts[0], parts[1], count)

    def _find_set(self, part: Any) -> Known:
        """EXISTS, IN and the like: true or false, so without bounds where noise decides."""
        parts: list[Known] = []
        for query in [node for node in part.iter_expressions() if isinstance(node, exp.Query)]:
            shape = self._read_query(query.copy(), self._scope)
            sources = shape.chosen.union(*(column.noise.sources for column in shape.columns))
            noisy = shape.selected or any(column.noise.noisy for column in shape.columns)
            if noisy or sources:
                parts.append(combine([], sources or self._released.everything))
        for node in _list_operands(part):
            if not isinstance(node, exp.Query):
                parts.append(self.find(node))
        noisy_parts = [one for one in parts if one.noisy]
        return combine(noisy_parts) if noisy_parts else EXACT

    def _find_inner(self, part: Any) -> Known:
        """Of the rows that an aggregate is over."""
        groups, self._groups = self._groups, None
        try:
            return self.find(part)
        finally:
            self._groups = groups

    def _find_aggregate(self, part: Any) -> Known:
        inner = part.this if isinstance(part, exp.Filter) else part
        operands = [self._find_inner(node) for node in _list_operands(inner)]
        if isinstance(part, exp.Filter):
            operands.append(self._find_inner(part.expression.this))
            if operands[-1].noisy:
                return combine(operands, self._chosen)
        noisy = [one for one in operands if one.noisy]
        # Which rows there are is noise: then their number, and what hangs on it, has no rule.
        if self._rows_chosen or self._selected:
            return combine(operands, self._rows_chosen or self._released.everything)
        if self._ordered and not isinstance(inner, _UNORDERED):
            return combine(operands, self._ordered)
        if not noisy:
            return EXACT
        value = inner.this if isinstance(inner.this, exp.Expression) else None
        if isinstance(inner, exp.Count) and len(noisy) == 1 and not noisy[0].noisy_null:
            # A released number has a value in every row.
            return combine(noisy) if isinstance(value, exp.Distinct) else EXACT
        noise = None if value is None else self._find_inner(value)
        if (
            not isinstance(inner, _BOUNDED_AGGREGATES)
            or noise is None
            or not noise.ruled
            or noise.noisy_null is NoisyNull.ANYWHERE
            or len(noisy) > 1
        ):
            return combine(operands)

        def wrap(kind: type, argument: Any) -> Any:
            made = kind(this=argument.copy())
            if isinstance(part, exp.Filter):
                return exp.Filter(this=made, expression=part.expression.copy())
            return made

        return self._bound_many(part, inner, value, noise, wrap)

    def _bound_many(
        self,
        part: Any,
        inner: Any,
        value: Any,
        noise: Known,
        wrap: Callable[[type, Any], Any],
    ) -> Known:
        """Bounds of a sum, mean, or extreme of many numbers, all of which must hold."""
        values, bounded = wrap(exp.Count, value), wrap(exp.Count, noise.low)
        count = exp.Coalesce(this=wrap(exp.Sum, noise.count), expressions=[number(0)])
        narrow = self._find_width(value) if isinstance(inner, exp.Sum | exp.Avg) else None
        if narrow is not None:
            below, above = narrow(values.copy())
            if isinstance(inner, exp.Avg):
                below, above = (
                    exp.Div(this=exp.paren(one), expression=values.copy()) for one in (below, above)
                )
            test = exp.paren(exp.EQ(this=values, expression=bounded))
            low = choose(test, exp.Sub(this=part.copy(), expression=exp.paren(below)))
            high = choose(test, exp.Add(this=part.copy(), expression=exp.paren(above)))
            return Known(True, noise.sources, low, high, number(1))
        # Where noise may have made some NULL, each row needs bounds, which say that it did not.
        rows = wrap(exp.Count, exp.Star()) if noise.noisy_null else values
        test = exp.paren(exp.EQ(this=rows, expression=bounded))
        low, high = (choose(test, wrap(type(inner), end)) for end in (noise.low, noise.high))
        return Known(True, noise.sources, low, high, count, noise.noisy_null)

    def _find_width(self, value: Any) -> Callable[[Any], tuple[Any, Any]] | None:
        """How far a sum of a release's own numbers may be, each of which is in it once."""
        cell = self._find_cell(value)
        if cell is None or self._release is None or cell[0] != self._release:
            return None
        return self._released.make_sum_width(cell)

    def _find_window_order(self) -> frozenset[Source]:
        """The numbers whose noise orders or parts the rows of a window: DuckDB gives them on in its order."""
        if exp.Window not in self._kinds:
            return frozenset()
        parts = walk_own(self._select, "qualify", "order", "distinct")
        windows = [one for one in parts if isinstance(one, exp.Window)]
        frames = [one for window in windows for one in self._find_frames(window)]
        return frozenset().union(*(self._list_deciding(one) for one in frames))

    def _find_frames(self, window: Any) -> list[Known]:
        frame = [
            *(window.args.get("partition_by") or []),
            window.args.get("order"),
            window.args.get("spec"),
        ]
        frame += self._select.args.get("windows") or [] if window.args.get("alias") else []
        return [self._find_frame(one) for one in frame if one is not None]

    def _find_window(self, part: Any) -> Known:
        call = part.this
        if isinstance(call, exp.Identifier):
            return EXACT
        around = self._find_frames(part)
        inner = _strip_call(call)
        operands = [self.find(node) for node in _list_operands(inner)]
        is_filtered = isinstance(call, exp.Filter)
        if is_filtered:
            around.append(self.find(call.expression.this))
        noisy = [one for one in operands if one.noisy]
        if self._chosen or self._selected:
            return combine([*operands, *around], self._chosen or self._released.everything)
        if any(one.noisy for one in around):
            return combine([*operands, *around])
        has_order = any(part.args.get(name) is not None for name in ("order", "spec", "alias"))
        if self._ordered and (has_order or not isinstance(inner, _UNORDERED)):
            return combine(operands, self._ordered)
        # Ties of another window's order reach this one only where single rows count.
        reads_ties = part.args.get("spec") is not None or not isinstance(
            inner, (*_UNORDERED, *_RANKS)
        )
        if self._window_order and reads_ties:
            return combine(operands, self._window_order)
        if not noisy:
            return EXACT
        if isinstance(inner, exp.Count) and len(noisy) == 1 and not noisy[0].noisy_null:
            return combine(noisy) if isinstance(inner.this, exp.Distinct) else EXACT
        value = inner.this
        noise = self.find(value) if isinstance(value, exp.Expression) else EXACT
        if not noise.ruled or noise.noisy_null is NoisyNull.ANYWHERE or len(noisy) > 1:
            return combine(operands)
        if isinstance(inner, _ROW_WINDOWS) and isinstance(call, type(inner)):
            ends = [_replace_call(part, inner, end) for end in (noise.low, noise.high)]
            default = inner.args.get("default")
            zero = None if default is None else number(0)
            counted = _replace_call(part, inner, noise.count, zero)
            count = exp.Coalesce(this=counted, expressions=[number(0)])
            return Known(True, noise.sources, ends[0], ends[1], count, noise.noisy_null)
        if not isinstance(inner, _BOUNDED_WINDOWS) or isinstance(call, exp.IgnoreNulls):
            return combine(operands)

        def wrap(kind: type, argument: Any) -> Any:
            window = part.copy()
            made: Any = kind(this=argument.copy())
            if is_filtered:
                made = exp.Filter(this=made, expression=call.expression.copy())
            window.set("this", made)
            return window

        return self._bound_many(part, inner, value, noise, wrap)

    def _find_frame(self, part: Any) -> Known:
        parts = [self.find(node) for node in _list_operands(part)] or [EXACT]
        if not isinstance(part, exp.Order | exp.WindowSpec | exp.Window):
            return self.find(part)
        noisy = [one for one in parts if one.noisy]
        return combine(noisy) if noisy else EXACT


def _repeats_rows(part: Any) -> bool:
    """Whether an expression may make several rows of one."""
    return part is not None and any(
        isinstance(node, exp.UDTF)
        or (isinstance(node, exp.Anonymous) and node.name.casefold() in ROW_FUNCTIONS)
        for node in iterate_parts(part)
    )


def _strip_call(call: Any) -> Any:
    while isinstance(call, exp.Filter | exp.IgnoreNulls | exp.RespectNulls):
        call = call.this
    return call


def _list_operands(part: Any) -> list[Any]:
    names = (exp.Identifier, exp.DataType, exp.Var)
    return [node for node in part.iter_expressions() if not isinstance(node, names)]


def is_limited(query: Any) -> bool:
    """Whether a query leaves rows out by their order."""
    return any(query.args.get(name) is not None for name in ("limit", "offset"))


def _take_column(query: Any, position: int) -> Any:
    """The column at a position of a query, as a value."""
    inner = query.this if isinstance(query, exp.Subquery) else query
    names = [f"c{n}" for n in range(len(inner.selects))]
    alias = exp.TableAlias(
        this=exp.to_identifier("bounds"), columns=[exp.to_identifier(name) for name in names]
    )
    source = exp.Subquery(this=inner.copy(), alias=alias)
    column = exp.column(names[position])
    return exp.Subquery(this=exp.Select(expressions=[column], from_=exp.From(this=source)))


def _replace_call(window: Any, call: Any, argument: Any, default: Any = None) -> Any:
    new, made = window.copy(), call.copy()
    made.set("this", argument.copy())
    if default is not None:
        made.set("default", default)
    new.set("this", made)
    return new
