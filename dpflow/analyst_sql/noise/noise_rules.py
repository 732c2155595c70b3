"""Noise intervals of a query over released rows, as columns of the same query: beside each column that has a sound
rule stand the lowest and the highest value that the noise allows, and how many released numbers must be within
their widths for that.

The rules are interval arithmetic over the parsed query. Values choose rows and their order; the columns beside them
change neither. What has no rule here has no interval: there is no rule for what depends on how many rows noise chose.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from sqlglot import exp

from dpflow.analyst_sql.noise.expression_intervals import EXACT, Known, combine
from dpflow.analyst_sql.noise.noise_relations import (
    MARK,
    NoisyColumn,
    ReleasedNoise,
    RuleMissing,
    Scope,
    Shape,
    expose,
)
from dpflow.analyst_sql.noise.select_rules import SelectRules, is_limited
from dpflow.analyst_sql.parse.parsed_parts import iterate_parts


class NoiseRules:
    """Makes the query with columns for intervals."""

    def __init__(self, released: ReleasedNoise) -> None:
        self._released = released

    def apply(self, tree: Any) -> tuple[Any, Shape]:
        """A query with columns for intervals behind its own, and what is known of those. Raises
        `RuleMissing`.
        """
        tree = self.copy(tree)
        shape = self.read_outer(tree)
        shape.attach(shape.list_ruled())
        return tree, shape

    def copy(self, tree: Any) -> Any:
        """The query to read. Raises `RuleMissing`."""
        tree = tree.copy()
        if any(map(_is_uncovered, iterate_parts(tree))):
            raise RuleMissing
        return tree

    def read_outer(self, tree: Any) -> Shape:
        """The columns of a copied query. Raises `RuleMissing`."""
        try:
            return self.read(tree, {})
        except RecursionError:
            raise RuleMissing from None

    def read(self, query: Any, scope: Scope) -> Shape:
        """A query's columns. Raises `RuleMissing`."""
        if isinstance(query, exp.Subquery):
            if any(query.args.get(name) for name in ("with_", "order", "limit", "offset")):
                raise RuleMissing
            return self.read(query.this, scope)
        scope = self._read_with(query.args.get("with_"), scope)
        if isinstance(query, exp.Select):
            return SelectRules(self._released, self.read, query, scope).read()
        if isinstance(query, exp.SetOperation):
            return self._read_set(query, scope)
        raise RuleMissing

    def _read_with(self, clause: Any, scope: Scope) -> Scope:
        if clause is None:
            return scope
        inner_scope = dict(scope)
        for part in clause.expressions:
            name = part.alias.casefold()
            if clause.args.get("recursive") and any(
                table.name.casefold() == name for table in part.this.find_all(exp.Table)
            ):
                raise RuleMissing
            inner_scope[name] = expose(self.read(part.this, inner_scope), part.args["alias"])
        return inner_scope

    def _read_set(self, query: Any, scope: Scope) -> Shape:
        left, right = self.read(query.this, scope), self.read(query.expression, scope)
        if len(left.columns) != len(right.columns) or query.args.get("by_name"):
            raise RuleMissing
        is_union = isinstance(query, exp.Union) and query.args.get("distinct") is False
        choosers, selected = left.chosen | right.chosen, left.selected or right.selected
        columns = []
        for one, other in zip(left.columns, right.columns):
            noise = (
                _unite(one.noise, other.noise) if is_union else combine([one.noise, other.noise])
            )
            columns.append(NoisyColumn(one.name, noise))
            if not is_union:
                choosers |= noise.sources

        def attach(wanted: Sequence[bool]) -> None:
            left.attach(wanted)
            right.attach(wanted)

        ordered = left.ordered | right.ordered
        if query.args.get("order") is not None:
            ordered |= frozenset().union(*(column.noise.sources for column in columns))
        if is_limited(query):
            if any(query.args[n].find(exp.Query) for n in ("limit", "offset") if query.args.get(n)):
                raise RuleMissing
            choosers |= ordered
        return Shape(columns, choosers, selected, ordered=ordered, attach=attach)


def _unite(left: Known, right: Known) -> Known:
    """A column of UNION ALL."""
    if not left.noisy and not right.noisy:
        return EXACT
    if all(one.ruled or not one.noisy for one in (left, right)):
        anything = left if left.ruled else right
        return replace(
            anything,
            sources=left.sources | right.sources,
            noisy_null=max(left.noisy_null, right.noisy_null),
            never_null=left.never_null and right.never_null,
        )
    return combine([left, right])


def _is_uncovered(node: Any) -> bool:
    """Whether rules would miss something: relations turned round, columns by pattern, names like ours."""
    return (
        isinstance(node, exp.Pivot | exp.Columns | exp.Lateral)
        or (isinstance(node, exp.Identifier) and MARK in node.name)
        or (isinstance(node, exp.Join) and bool(node.args.get("method")))
    )
