"""Other spellings of a query's releases: FILTERs as WHERE, which makes them more exact, and means as sums by numbers of
values, which a stored release may have.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sqlglot import exp

from dpflow.analyst_sql.parse.canonical_conditions import merge_operands
from dpflow.analyst_sql.parse.parsed_parts import when
from dpflow.analyst_sql.parse.select_query import (
    SelectQuery,
    SplitQuery,
    SqlAggregate,
    alias_rows,
    filled_column,
    find_sources,
    key_column,
    mark,
    number_column,
)
from dpflow.analyst_sql.parse.value_columns import count_values, declare_value
from dpflow.analyst_sql.releases.query_parts import is_private_node
from dpflow.errors import PlanRefused
from dpflow.tables.language.nodes import Node


def move_filters(query: SelectQuery) -> SelectQuery:
    """The query with a FILTER that all of its aggregates share in WHERE.

    A group stays in the answer whether a row of it passes a FILTER or not, and WHERE leaves groups out
    by their keys, or by units that pass. So a FILTER on what rows are grouped by stays one, and so does
    each beside private keys.
    """
    filters = {aggregate.condition for aggregate in query.aggregates}
    if len(filters) != 1 or (condition := filters.pop()) is None:
        return query
    groups = [*query.groups, *(node for level in query.levels for node in level)]
    keys = {name for node in groups for name in node.column_names()}
    if keys & condition.column_names() or any(is_private_node(query.table, one) for one in groups):
        return query

    def move(aggregate: SqlAggregate) -> SqlAggregate:
        return replace(aggregate, condition=None)

    texts: dict[SqlAggregate | Node, Any] = {condition: query.parsed.get(query.aggregates[0])}
    for part, text in query.parsed.items():
        texts[move(part) if isinstance(part, SqlAggregate) else part] = text
    return replace(
        query,
        # Their order is that of the released table's columns.
        aggregates=tuple(map(move, query.aggregates)),
        conditions=tuple(merge_operands("AND", [*query.conditions, condition])),
        parsed=texts,
    )


#: What notes of a parsed mean the release and the position of its sum.
MEAN_OF = "mean of"


def replace_means(query: SplitQuery) -> SplitQuery:
    """The query with ``SUM(x) / COUNT(x)`` in the place of each ``AVG(x)`` that `list_sums` spells so, where the interval
    of that number of values excludes 0.
    """
    tree = query.tree.copy()
    releases = tuple(map(list_sums, query.releases))
    divisors: set[tuple[int, int]] = set()
    for source, position in list(find_sources(tree)):
        old, new = query.releases[position], releases[position]
        if old.aggregates == new.aggregates:
            continue
        divisors |= {
            (position, new.aggregates.index(_count_values(aggregate, new)))
            for aggregate in old.aggregates
            if len(_list_needed(aggregate, new)) > 1
        }
        keys = [mark(exp.column(key_column(n)), group) for n, group in enumerate(new.groups)]
        numbers = [
            mark(exp.alias_(_write_number(aggregate, new, position), number_column(n)))
            for n, aggregate in enumerate(old.aggregates)
        ]
        alias = source.args.get("alias") or alias_rows(source.name)
        inner = source.copy()
        inner.set("alias", None)
        select = exp.Select(expressions=[*keys, *numbers], from_=exp.From(this=inner))
        source.replace(exp.Subquery(this=select, alias=alias))
    return replace(query, tree=tree, releases=releases, divisors=frozenset(divisors))


def list_sums(query: SelectQuery) -> SelectQuery:
    """A release with the sum and the number of values of each mean in its place, unless its column's grid rounds values: the
    interval of a mean holds that, and those of sums do not.
    """
    aggregates: list[SqlAggregate] = []
    for aggregate in query.aggregates:
        aggregates += _list_needed(aggregate, query)
    return replace(query, aggregates=tuple(dict.fromkeys(aggregates)))


def _list_needed(aggregate: SqlAggregate, query: SelectQuery) -> list[SqlAggregate]:
    if aggregate.kind != "mean" or _is_rounded(aggregate, query):
        return [aggregate]
    return [replace(aggregate, kind="sum"), _count_values(aggregate, query)]


def _is_rounded(aggregate: SqlAggregate, query: SelectQuery) -> bool:
    """Whether the grid of the column that an aggregate is over rounds its values."""
    try:
        table, name = declare_value(query.table, aggregate)
    except PlanRefused:
        return True
    return table.column(name).is_rounded


def _write_number(aggregate: SqlAggregate, query: SelectQuery, release: int) -> Any:
    needed = _list_needed(aggregate, query)
    positions = list(map(query.aggregates.index, needed))
    columns = [mark(exp.column(number_column(n)), one) for n, one in zip(positions, needed)]
    if len(columns) == 1:
        return columns[0]
    is_filled = mark(exp.column(filled_column(positions[1])), f"{needed[1]} is above 0")
    quotient = exp.Div(this=columns[0], expression=columns[1])
    mean = when(is_filled, quotient)
    mean.meta[MEAN_OF] = (release, positions[0])
    return mean


def _count_values(aggregate: SqlAggregate, query: SelectQuery) -> SqlAggregate:
    """How many values a mean is over."""
    assert aggregate.value is not None
    kind, value = count_values(aggregate.value, query.table)
    return replace(aggregate, kind=kind, value=value)
