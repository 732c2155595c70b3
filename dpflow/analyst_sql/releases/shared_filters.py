"""A FILTER that every aggregate of a SELECT has is a condition on its rows: the same query as with
WHERE, and a more exact one, since rows that it leaves out use up no contribution bound.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dpflow.analyst_sql.parse.canonical_conditions import merge_operands
from dpflow.analyst_sql.parse.select_query import SelectQuery, SqlAggregate
from dpflow.analyst_sql.releases.query_parts import is_private_node
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
