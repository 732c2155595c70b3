"""Queries over what other queries released: post-processing, at no cost, of the private SELECTs below
them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from dpflow.analyst_sql.select_query import Order, OutputExpression, SelectQuery


@dataclass(frozen=True)
class ReleasedSource:
    """One relation of FROM.

    Attributes:
        on: which of its rows belong to a row of the relations before it; None: all.
        keep_left: rows without a match stay, with NULLs (LEFT JOIN).
    """

    query: Query
    on: OutputExpression | None = None
    keep_left: bool = False


@dataclass(frozen=True)
class ReleasedQuery:
    """A SELECT over released rows.

    Attributes:
        sources: relations whose columns stand beside each other, in this order.
        groups: what rows are grouped by; None if each is a row of the answer.
        columns: over rows, or over groups.
    """

    sources: tuple[ReleasedSource, ...]
    columns: tuple[tuple[str, OutputExpression], ...]
    where: OutputExpression | None = None
    groups: tuple[OutputExpression, ...] | None = None
    having: OutputExpression | None = None
    order: tuple[Order, ...] = ()
    limit: int | None = None
    offset: int = 0

    def outputs(self) -> list[OutputExpression]:
        """All expressions of it."""
        expressions = [output for _, output in self.columns] + [one.by for one in self.order]
        expressions += [
            *(self.groups or ()),
            *(one.on for one in self.sources if one.on is not None),
        ]
        return expressions + [one for one in (self.where, self.having) if one is not None]


@dataclass(frozen=True)
class UnionAll:
    """Rows of several queries, one after the other, with the names of the first."""

    branches: tuple[Query, ...]

    @property
    def columns(self) -> tuple[tuple[str, OutputExpression], ...]:
        """Names and expressions of the first branch."""
        return self.branches[0].columns


Query: TypeAlias = SelectQuery | ReleasedQuery | UnionAll


def list_queries(query: Query) -> list[SelectQuery]:
    """The private SELECTs that a query is computed from, each once, in the order of the text."""
    queries: list[SelectQuery] = []
    for one in walk_query(query):
        if isinstance(one, SelectQuery) and one not in queries:
            queries.append(one)
    return queries


def walk_query(query: Query, seen: set[int] | None = None) -> Iterator[Query]:
    """A query and all that it reads, each once: a CTE that is named often is one query."""
    seen = set() if seen is None else seen
    if id(query) in seen:
        return
    seen.add(id(query))
    yield query
    for inner in list_inner(query):
        yield from walk_query(inner, seen)


def list_inner(query: Query) -> list[Query]:
    """The queries that one reads directly."""
    if isinstance(query, UnionAll):
        return list(query.branches)
    inner = [one.query for one in query.sources] if isinstance(query, ReleasedQuery) else []
    return inner + [scalar for output in query.outputs() for scalar in _list_scalars(output)]


def replace_selects(query: Query, change: Callable[[SelectQuery], SelectQuery]) -> Query:
    """The query with other private SELECTs below it; what was one stays one."""
    replaced: dict[int, Query] = {}

    def replace_query(one: Query) -> Query:
        if id(one) not in replaced:
            replaced[id(one)] = replace_parts(one)
        return replaced[id(one)]

    def replace_parts(one: Query) -> Query:
        if isinstance(one, UnionAll):
            return UnionAll(tuple(map(replace_query, one.branches)))
        if isinstance(one, ReleasedQuery):
            sources = tuple(
                replace(source, query=replace_query(source.query), on=replace_output(source.on))
                for source in one.sources
            )
            groups = None if one.groups is None else tuple(map(replace_output, one.groups))
            one = replace(one, sources=sources, groups=groups, where=replace_output(one.where))
        one = replace(
            one,
            columns=tuple((name, replace_output(output)) for name, output in one.columns),
            having=replace_output(one.having),
            order=tuple(replace(order, by=replace_output(order.by)) for order in one.order),
        )
        return change(one) if isinstance(one, SelectQuery) else one

    def replace_output(output: Any) -> Any:
        if isinstance(output, OutputExpression):
            return OutputExpression(output.op, tuple(map(replace_output, output.args)))
        scalar = isinstance(output, SelectQuery | ReleasedQuery | UnionAll)
        return replace_query(output) if scalar else output

    return replace_query(query)


def _list_scalars(output: OutputExpression) -> Iterator[Query]:
    for leaf in output.list_leaves():
        if leaf.op == "scalar":
            yield leaf.args[0]
        elif leaf.op == "rows":
            for arg in leaf.args:
                if isinstance(arg, OutputExpression):
                    yield from _list_scalars(arg)
