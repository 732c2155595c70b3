"""Reads a query that is grouped by the privacy unit: a relation with one row for each unit, or for each
unit and key.

It is private rows as any other: what stands around it is released from it. A unit's row is made of its own rows, so a
unit adds one row (or as many as it may have keys), which contribution bounding enforces. GoogleSQL's
``SUM(x, contribution_bounds_per_group => (low, high))`` is a sum over such a query by unit and group, whose rows are
clamped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from fractions import Fraction
from typing import Any

from sqlglot import exp

from dpflow.analyst_sql.parse.foreign_meaning import is_clamped
from dpflow.analyst_sql.parse.parsed_parts import (
    find_item,
    is_there,
    name_part,
    take_arguments,
    walk_own,
    when,
)
from dpflow.analyst_sql.parse.private_rows import PrivateRows, RowReader, read_where
from dpflow.analyst_sql.parse.select_query import join_conditions
from dpflow.analyst_sql.parse.select_reader import SOURCES, name_column
from dpflow.analyst_sql.parse.text_and_options import Refusal, refusal_of
from dpflow.analyst_sql.parse.value_columns import STEPS, find_bounds
from dpflow.core.contract.columns import Column
from dpflow.core.contract.contribution import MAX_GROUPS, ContributionBounds
from dpflow.core.contract.declaration import Table, UnitRows
from dpflow.errors import PlanRefused
from dpflow.tables.language.aggregate_rendering import is_count
from dpflow.tables.language.grouping import declare_groups
from dpflow.tables.language.nodes import Aggregate, Node, pick_first

#: Features of one value, by what sqlglot calls them.
_PLAIN = {"Sum": "sum", "Avg": "avg", "Min": "min", "Max": "max", "Count": "count"}
_PICKED = {"ArgMin": "arg_min", "ArgMax": "arg_max"}
#: Numbers of rows of a unit up to which each of them is a public key.
MAX_LISTED = 100
#: The argument by which GoogleSQL clamps a unit's sum in each group.
_BOUNDS = "contribution_bounds_per_group"
#: A column of the relation is what the query below gives, whatever its own column was computed of.
_STORED = {"expression": None, "parts": None}


def is_by_unit(parsed: Any, source: PrivateRows) -> bool:
    """Whether a SELECT over private rows gives one row for each privacy unit, or for each unit and key."""
    rows = RowReader(source)
    group = parsed.args.get("group")
    if group is None:
        distinct = parsed.args.get("distinct")
        return distinct is not None and any(map(rows.is_unit, _list_items(parsed)))
    return any(rows.is_unit(part) for part in list_groups(parsed, rows))


def _list_items(parsed: Any) -> list[Any]:
    return [item.unalias().unnest() for item in parsed.expressions]


def list_groups(parsed: Any, rows: RowReader) -> list[Any]:
    """What a SELECT groups by; DISTINCT groups by all columns. A column of the rows comes before an alias."""
    group, items = parsed.args.get("group"), parsed.expressions
    if group is None:
        return _list_items(parsed)
    if group.args.get("all"):
        return [one for one in _list_items(parsed) if not one.find(exp.AggFunc)]
    parts = (part.unnest() for part in group.expressions)
    return [find_item(part, items, rows.has_column).unnest() for part in parts]


def read_unit_rows(parsed: Any, source: PrivateRows) -> PrivateRows:
    """The relation that a SELECT grouped by the privacy unit makes of private rows. Raises `Refusal`."""
    items, where, group, having, distinct = take_arguments(
        parsed, "expressions", "where", "group", "having", "distinct", ignore=SOURCES
    )
    if distinct is not None:
        # DISTINCT ON takes any of several rows.
        take_arguments(distinct)
    if group is not None:
        take_arguments(group, "expressions", "all")
    conditions, blocks = read_where(where, source)
    rows = RowReader(source)
    reader = _FeatureReader(source, list_groups(parsed, rows), blocks or ())
    columns: dict[str, Node] = {}
    units: set[str] = set()
    names: list[str] = []
    for item in items:
        inner = item.unalias().unnest()
        name = item.alias if isinstance(item, exp.Alias) else name_column(inner)
        if name.casefold() in {one.casefold() for one in names}:
            raise Refusal(
                "ambiguous-columns", f"the query has two columns {name!r}; name one otherwise", item
            )
        names.append(name)
        if rows.is_unit(inner):
            units.add(name.casefold())
            continue
        columns[name] = reader.read(inner)
        reader.aliases[name.casefold()] = columns[name]
    if distinct is not None and not (units and reader.selects_keys(columns.values())):
        raise Refusal(
            "distinct-unit",
            "DISTINCT beside GROUP BY compares rows of several units unless every grouping column is selected; to have "
            "one row for each unit, group by it alone",
            distinct,
        )
    kept = () if having is None else (reader.read(having.this),)
    table = reader.declare(join_conditions(conditions))
    # Where blocks are protected one by one, each of them pays for what is made of it.
    charged = blocks if table.protects == "unit-block" else None
    return PrivateRows(
        table, "", {}, kept, charged, columns, frozenset(units), frozenset(), tuple(names)
    )


class _FeatureReader(RowReader):
    """Reads expressions of a unit's rows: aggregates become columns of the relation."""

    def __init__(self, source: PrivateRows, groups: Sequence[Any], blocks: tuple[str, ...]) -> None:
        super().__init__(source)
        self._blocks = blocks
        table = source.table
        #: Declared bounds are those of a unit in one block, and its rows here are made of all of them.
        per_block = table.protects == "unit-block" and table.unit_rows is None
        self._times = max(1, len(blocks)) if per_block else 1
        self._rows = RowReader(source)
        self._features: dict[str, Column] = {}
        self.aliases: dict[str, Node] = {}
        #: What the rows of a unit are grouped by, beside it.
        self._keys = {
            str(node): node
            for part in groups
            if not self.is_unit(part)
            for node in [self._rows.read(part)]
        }

    def selects_keys(self, columns: Collection[Node]) -> bool:
        """Whether each key of the rows is a column by itself."""
        keys = (Node("column", ((_name_key(node),),)) for node in self._keys.values())
        return all(key in columns for key in keys)

    def _read_node(self, parsed: Any, depth: int) -> Node:
        if isinstance(parsed, exp.AggFunc | exp.Filter):
            return self._read_feature(parsed)
        if self._keys and not isinstance(parsed, exp.Paren) and not parsed.find(exp.AggFunc):
            try:
                node = self._rows.read(parsed)
            except Refusal:
                node = None
            if node is not None and str(node) in self._keys:
                return Node("column", ((_name_key(node),),))
        return super()._read_node(parsed, depth)

    def _read_column(self, parsed: Any, depth: int) -> Node:
        if not parsed.table and parsed.name.casefold() in self.aliases:
            return self.aliases[parsed.name.casefold()]
        raise Refusal(
            "grouped-columns",
            f"column {parsed.name!r} is neither grouped by nor inside an aggregate, and a unit may have several of its values",
            parsed,
        )

    def _read_feature(self, parsed: Any) -> Node:
        call, conditions = parsed, list[Node]()
        if isinstance(parsed, exp.Filter):
            call, test = parsed.this, parsed.expression.this
            conditions.append(self._rows.read(test))
        kind = type(call).__name__
        if kind == "CountIf":
            (test,) = take_arguments(call, "this", ignore=("big_int",))
            conditions.append(self._rows.read(test))
            node = Aggregate("count(*)", ())
        elif kind in _PICKED:
            value, order = take_arguments(call, "this", "expression")
            node = Aggregate(_PICKED[kind], (self._rows.read(value), self._rows.read(order)))
        elif kind in ("First", "Last"):
            node = self._read_first(kind.lower(), call)
        elif kind in _PLAIN:
            (value,) = take_arguments(call, "this", ignore=("big_int",))
            node = self._read_aggregate(_PLAIN[kind], value)
        else:
            raise Refusal(
                "aggregates",
                f"{name_part(call)} of a unit's rows is not computed; there are COUNT, "
                "COUNT_IF, SUM, AVG, MIN, MAX, ARG_MIN, ARG_MAX, and FIRST and LAST with an order",
                call,
            )
        try:
            column = self._bound_feature(node, bool(conditions))
        except PlanRefused as error:
            raise refusal_of(error, parsed, "bounds") from None
        for condition in conditions:
            inner = node
            if node.op == "FILTER":
                inner, condition = node.args[0], Node("AND", (node.args[1], condition))
            node = Aggregate("FILTER", (inner, condition))
        self._features[str(node)] = column
        return Node("column", ((str(node),),))

    def _read_first(self, name: str, call: Any) -> Aggregate:
        """``FIRST(x ORDER BY day)`` or ``LAST``, in either direction."""
        (ordered,) = take_arguments(call, "this")
        value, orders = ordered, []
        if isinstance(ordered, exp.Order):
            value, orders = take_arguments(ordered, "this", "expressions")
        if len(orders) != 1 or not isinstance(orders[0], exp.Ordered):
            raise Refusal(
                "aggregates",
                f"{name.upper()} of a unit's rows needs one order, such as {name.upper()}(x ORDER BY day): rows have none of their own",
                call,
            )
        take_arguments(orders[0], "this", ignore=("desc", "nulls_first"))
        return pick_first(
            name,
            self._rows.read(value),
            self._rows.read(orders[0].this),
            descending=bool(orders[0].args.get("desc")),
            nulls_first=bool(orders[0].args.get("nulls_first")),
        )

    def _read_aggregate(self, name: str, value: Any) -> Aggregate:
        if name == "count" and (value is None or isinstance(value, exp.Star)):
            if value is not None:
                take_arguments(value)
            return Aggregate("count(*)", ())
        if isinstance(value, exp.Distinct):
            if name != "count" or len(value.expressions) != 1:
                raise Refusal("distinct-unit", "DISTINCT stands in COUNT, of one expression", value)
            name, value = "count distinct", value.expressions[0]
        if name == "count" and self.is_unit(value.unnest()):
            self.refuse_unit_count(value)
            return Aggregate("count(*)", ())
        return Aggregate(name, (self._rows.read(value),))

    def _bound_feature(self, node: Aggregate, filtered: bool) -> Column:
        """What a unit's number is clamped to: bounds that follow from the declared ones, whatever the rows are."""
        table = self._source.table
        rows = table.contribution_bounds.rows * self._times
        if node.op.startswith("count"):
            low = 1 if node.op == "count(*)" and not filtered else 0
            keys = (str(n) for n in range(low, rows + 1))
            public = tuple(keys) if rows <= MAX_LISTED else None
            return Column(
                lower=Fraction(low), upper=Fraction(max(rows, low + 1)), public_keys=public
            )
        value, is_picked = node.args[0], node.op not in ("sum", "avg", "min", "max")
        if value.op == "column" and (is_picked or node.op in ("min", "max")):
            declared = table.column(".".join(value.args[0]))
            if is_picked or declared.lower is None or declared.holds_dates:
                # The first or last value is one of the column's.
                is_listed = is_picked and not is_count(table, ".".join(value.args[0]))
                listed = declared.public_keys if is_listed else None
                changes = {"public_keys": listed, "public": False, "missing": "skip"}
                return declared.without_limits().model_copy(update=changes | _STORED)
        low_end, high_end, step, is_rounded = find_bounds(value, table)
        if node.op == "sum":
            low_end, high_end = min(low_end, low_end * rows), max(high_end, high_end * rows)
        if node.op == "avg":
            digits = math.floor(math.log10(float(high_end - low_end) / STEPS))
            step = Fraction(10) ** max(digits, -12)
            low_end, high_end = (low_end // step) * step, -(-high_end // step) * step
        try:
            column = Column(lower=low_end, upper=high_end, step=step)
        except ValueError:
            raise PlanRefused(
                f"{node} lies between {low_end} and {high_end}, and 64 bits do not hold that in steps of {step}; declare "
                f"fewer contribution_bounds.rows, narrower bounds or a coarser step"
            ) from None
        # A mean is between the steps, also of values that are not.
        if is_rounded or node.op == "avg":
            column.note_rounding()
        return column

    def declare(self, where: str | None) -> Table:
        """The declaration of the relation."""
        rows = self._source.table
        columns = dict(self._features)
        bounds = ContributionBounds(rows=1)
        for node in self._keys.values():
            declared, name = declare_groups(rows, str(node))
            limits = declared.limits_for(name)
            # Alone, it has one row of a unit in each group; bounding holds it to that.
            changes = {
                "groups": min(limits[0].number * self._times, MAX_GROUPS),
                "rows_per_group": 1 if len(self._keys) == 1 else None,
            }
            key = declared.columns[name].without_limits()
            if is_count(rows, name):
                # Beyond what is listed is no group here.
                key = key.model_copy(update={"public_keys": None})
            columns[_name_key(node)] = key.model_copy(update=changes | {"public": False} | _STORED)
            bounds = rows.contribution_bounds.multiply(self._times)
        keys = tuple((_name_key(node), text) for text, node in sorted(self._keys.items()))
        units = UnitRows(rows, where, self._blocks, keys, tuple(sorted(self._features)))
        return rows.by_unit(units, columns, bounds)


def _name_key(node: Node) -> str:
    return str(node.args[0][0]) if node.op == "column" and len(node.args[0]) == 1 else str(node)


def has_group_bounds(parsed: Any) -> bool:
    """Whether a SELECT has such an aggregate of its own."""
    return any(map(is_clamped, walk_own(parsed, "having", "order")))


def spell_group_bounds(parsed: Any, source: PrivateRows) -> tuple[Any, PrivateRows]:
    """The SELECT over a query by privacy unit and group, and that query's rows. Raises `Refusal`."""
    groups: list[Any] = []
    if (group := parsed.args.get("group")) is not None:
        take_arguments(group, "expressions", "all")
        groups = list_groups(parsed, RowReader(source))
    if not source.units:
        raise Refusal(
            "declared-columns",
            f"contribution_bounds_per_group needs the column {source.table.privacy_unit.column!r} in the query below",
            parsed,
        )
    unit = exp.column(exp.to_identifier(min(source.units), quoted=True))
    inner = exp.Select(
        expressions=[unit], where=parsed.args.get("where"), from_=parsed.args["from_"]
    )
    inner.set("group", exp.Group(expressions=[unit.copy(), *(part.copy() for part in groups)]))

    def take(part: Any) -> Any:
        """The column of the inner query that is an expression: a new one where there is none."""
        items = inner.expressions[1:]
        known = next((one.alias for one in items if one.this == part), None)
        if known is None:
            known, taken = (
                name_column(part),
                {one.alias_or_name.casefold() for one in inner.selects},
            )
            while known.casefold() in taken:
                known += "_"
            alias = exp.to_identifier(known, quoted=True)
            inner.append("expressions", exp.alias_(part.copy(), alias))
        return exp.column(exp.to_identifier(known, quoted=True))

    keys = [take(part) for part in groups]

    def rewrite(part: Any) -> Any:
        if part in groups:
            return keys[groups.index(part)].copy()
        if is_clamped(part):
            return _clamp(part, take)
        if isinstance(part, exp.Count) and isinstance(part.this, exp.Distinct):
            counted = [one.unnest() for one in part.this.expressions]
            if len(counted) == 1 and RowReader(source).is_unit(counted[0]):
                # A group has one row of each of its units.
                return exp.Count(this=exp.Star())
        if isinstance(part, exp.AggFunc):
            raise Refusal(
                "aggregates",
                "beside contribution_bounds_per_group each SUM and COUNT has such bounds, or counts the privacy unit; ask for "
                "others in a query of their own",
                part,
            )
        return part

    outer = parsed.copy()
    outer.set("where", None)
    for item in outer.expressions:
        if not isinstance(item, exp.Alias):
            item.replace(exp.alias_(item.copy(), exp.to_identifier(name_column(item), quoted=True)))
    for item in outer.expressions:
        item.set("this", item.this.transform(rewrite))
    for clause in ("having", "order", "qualify"):
        if (condition := outer.args.get(clause)) is not None:
            outer.set(clause, condition.transform(rewrite))
    if groups:
        outer.set("group", exp.Group(expressions=[key.copy() for key in keys]))
    return outer, read_unit_rows(inner, source)


def _clamp(call: Any, take: Callable[[Any], Any]) -> Any:
    """The sum of a unit's clamped numbers; a unit without any adds nothing."""
    value, *named = call.expressions
    pair = named[0].expression if len(named) == 1 and isinstance(named[0], exp.Kwarg) else None
    ends = pair.expressions if isinstance(pair, exp.Tuple) and named[0].name == _BOUNDS else []
    numbers = [number for end in ends if (number := _read_end(end)) is not None]
    if len(ends) != 2 or len(numbers) != 2 or numbers != sorted(numbers):
        raise Refusal(
            "literals",
            f"{_BOUNDS} stands once in a call and takes two numbers, the lower one first, such as (0, 100)",
            call,
        )
    value = take((exp.Sum if call.name == "SUM" else exp.Count)(this=value.copy()))
    at_least = exp.Greatest(this=value.copy(), expressions=[ends[0].copy()], ignore_nulls=True)
    clamped = exp.Least(this=at_least, expressions=[ends[1].copy()], ignore_nulls=True)
    return exp.Sum(this=when(is_there(value), clamped))


def _read_end(parsed: Any) -> float | None:
    literal = parsed.this if isinstance(parsed, exp.Neg) else parsed
    if not isinstance(literal, exp.Literal) or literal.is_string:
        return None
    return -float(literal.this) if literal is not parsed else float(literal.this)
