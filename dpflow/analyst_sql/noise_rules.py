"""Noise intervals of a query over released rows, as columns of the same query: beside each column that has a sound
rule stand the lowest and the highest value that the noise allows, and how many released numbers must be within
their widths for that.

The rules are interval arithmetic over the parsed query. Values choose rows and their order; the columns beside them
change neither. What has no rule here has no interval: there is no rule for what depends on how many rows noise chose.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from sqlglot import exp

from dpflow.analyst_sql.noise_expressions import EXACT, Known, Source, combine
from dpflow.analyst_sql.noise_relations import (
    COUNT,
    HIGH,
    LOW,
    MARK,
    NoisyColumn,
    ReleasedColumns,
    RuleMissing,
    Scope,
    Shape,
    beside,
)
from dpflow.analyst_sql.noise_selects import SelectRules, is_limited
from dpflow.analyst_sql.select_query import filled_column, key_column, number_column

#: Expressions that are looked at, at most.
_MAX_STEPS = 20_000
#: The half-width of a sum of cells of a number's release, by how many there are.
SumWidth = Callable[[Source, Any], Any]


class NoiseRules:
    """Makes the query with columns for intervals.

    Args:
        releases: the released tables, by position.
        aggregate_names: DuckDB's aggregates, in lower case.
        sum_width: writes the half-width of a sum of cells.
        keep_noisy: conditions on noisy values are left out: the most rows that an answer may have.
    """

    def __init__(
        self,
        releases: Sequence[ReleasedColumns],
        aggregate_names: frozenset[str],
        sum_width: SumWidth,
        keep_noisy: bool = False,
    ) -> None:
        self._releases, self.aggregate_names = releases, aggregate_names
        self._sum_width, self.keep_noisy = sum_width, keep_noisy
        self._steps = 0
        #: All released columns: what may have decided where nothing is noise.
        self.everything = frozenset(
            (n, j) for n, one in enumerate(releases) for j in range(len(one.numeric))
        )

    def apply(self, tree: Any) -> tuple[Any, Shape]:
        """A query with columns for intervals behind its own, and what is known of those. Raises
        `RuleMissing`.
        """
        tree = tree.copy()
        if any(_is_uncovered(node) for node in tree.walk()):
            raise RuleMissing
        try:
            shape = self.read(tree, {})
            shape.attach(shape.list_ruled())
        except RecursionError:
            raise RuleMissing from None
        return tree, shape

    def make_sum_width(self, source: Source) -> Callable[[Any], Any] | None:
        """What writes the half-width of a sum of a column's numbers; None where their noise does not
        add up.
        """
        if not self._releases[source[0]].cells[source[1]]:
            return None
        return lambda count: self._sum_width(source, count)

    def count_step(self) -> None:
        """Raise `RuleMissing` where a query takes too many steps."""
        self._steps += 1
        if self._steps > _MAX_STEPS:
            raise RuleMissing

    def count_numbers(self, sources: Iterable[Source]) -> int:
        """How many released numbers columns of released tables have."""
        return sum(self._releases[release].rows for release, _ in sources)

    # --- queries ------------------------------------------------------------------------------------------------

    def read(self, query: Any, scope: Scope) -> Shape:
        """A query's columns. Raises `RuleMissing`."""
        if isinstance(query, exp.Subquery):
            if any(query.args.get(name) for name in ("with_", "order", "limit", "offset")):
                raise RuleMissing
            return self.read(query.this, scope)
        scope = self._read_with(query.args.get("with_"), scope)
        if isinstance(query, exp.Select):
            return SelectRules(self, query, scope).read()
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
            inner_scope[name] = self.expose(self.read(part.this, inner_scope), part.args["alias"])
        return inner_scope

    def expose(self, shape: Shape, alias: Any) -> Shape:
        """A query's columns as the query around it sees them, with those for intervals."""
        wanted = shape.list_ruled()
        shape.attach(wanted)
        names = [column.name for column in shape.columns]
        given = [one.name for one in alias.args.get("columns") or ()] if alias is not None else []
        names[: len(given)] = given
        if len({name.casefold() for name in names}) < len(names):
            raise RuleMissing
        if given:
            beside = [n + end for n, w in zip(names, wanted) if w for end in (LOW, HIGH, COUNT)]
            columns = [exp.to_identifier(name, quoted=True) for name in names + beside]
            alias.set("columns", columns)
        columns_seen = [replace(column, name=name) for column, name in zip(shape.columns, names)]
        return Shape(columns_seen, shape.chosen, shape.selected, shape.release)

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

        if is_limited(query) and query.args.get("order") is not None:
            choosers |= frozenset().union(*(column.noise.sources for column in columns))
        return Shape(columns, choosers, selected, attach=attach)

    def read_released(self, position: int) -> Shape:
        """The columns of a released table."""
        released = self._releases[position]
        keys = [NoisyColumn(key_column(n), EXACT) for n in range(released.keys)]
        numbers = []
        for n, numeric in enumerate(released.numeric):
            name, source = number_column(n), (position, n)
            noise = combine([], frozenset({source}))
            if numeric:
                noise = beside(name, None, frozenset({source}), released.hidden[n])
            numbers.append(NoisyColumn(name, noise, source if numeric else None))
        # Beside the quotients that they decide on, for which noise may be the reason to be NULL.
        filled = [NoisyColumn(filled_column(n), EXACT) for n in released.filled]
        return Shape(keys + numbers + filled, selected=released.selected, release=position)


def _unite(left: Known, right: Known) -> Known:
    """A column of UNION ALL."""
    if not left.noisy and not right.noisy:
        return EXACT
    if all(one.ruled or not one.noisy for one in (left, right)):
        anything = left if left.ruled else right
        return replace(
            anything,
            sources=left.sources | right.sources,
            maybe_null=left.maybe_null or right.maybe_null,
        )
    return combine([left, right])


def _is_uncovered(node: Any) -> bool:
    """Whether rules would miss something: relations turned round, columns by pattern, names like ours."""
    return (
        isinstance(node, exp.Pivot | exp.Columns | exp.Lateral)
        or (isinstance(node, exp.Identifier) and MARK in node.name)
        or (isinstance(node, exp.Join) and bool(node.args.get("method")))
    )
