"""Means from sums and numbers of values: what a stored release has may give what it lacks."""

from __future__ import annotations

from dataclasses import replace

from dpflow.analyst_sql.select_query import OutputExpression, SelectQuery, SqlAggregate


def replace_means(query: SelectQuery) -> SelectQuery:
    """The query with ``SUM(x) / COUNT(x)`` in the place of each ``AVG(x)``."""
    return query.replace_aggregates(lambda aggregate: _replace(aggregate, query))


def _replace(aggregate: SqlAggregate, query: SelectQuery) -> OutputExpression:
    if aggregate.kind != "mean":
        return OutputExpression("aggregate", (aggregate,))
    total = replace(aggregate, kind="sum")
    return OutputExpression(
        "/",
        (
            OutputExpression("aggregate", (total,)),
            OutputExpression("aggregate", (_count_values(aggregate, query),)),
        ),
    )


def _count_values(aggregate: SqlAggregate, query: SelectQuery) -> SqlAggregate:
    """How many values a mean is over: all rows where missing ones count as a number."""
    value = aggregate.value
    assert value is not None
    declared = value.op == "column" and query.table.column(".".join(value.args[0]))
    if declared and declared.missing != "skip":
        return replace(aggregate, kind="count", value=None)
    return replace(aggregate, kind="values")
