"""Means from sums and numbers of values: what a stored release has may give what it lacks."""

from __future__ import annotations

from dataclasses import replace

from dpflow.analyst_sql.select_query import OutputExpression, SelectQuery, SqlAggregate


def replace_means(query: SelectQuery) -> SelectQuery:
    """The query with ``SUM(x) / COUNT(x)`` in the place of each ``AVG(x)``."""
    return replace(
        query,
        columns=tuple((name, _replace(output, query)) for name, output in query.columns),
        having=None if query.having is None else _replace(query.having, query),
        order=tuple(replace(order, by=_replace(order.by, query)) for order in query.order),
    )


def _replace(output: OutputExpression, query: SelectQuery) -> OutputExpression:
    if output.op != "aggregate":
        args = tuple(
            _replace(arg, query) if isinstance(arg, OutputExpression) else arg
            for arg in output.args
        )
        return OutputExpression(output.op, args)
    aggregate: SqlAggregate = output.args[0]
    if aggregate.kind != "mean":
        return output
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
