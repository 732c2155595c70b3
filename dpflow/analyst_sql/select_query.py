"""A query as this room understands it: rows are chosen and grouped in the declared language, and
everything else is computed from released numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, Literal

from dpflow.core.contract.declaration import Table
from dpflow.tables.language.nodes import Node

#: What a release can be asked for, by group. ``values`` counts rows in which an expression has a
#: value; ``units`` counts privacy units; variances divide by the number of values.
Kind = Literal[
    "count",
    "values",
    "units",
    "sum",
    "mean",
    "variance",
    "quantile",
    "mode",
    "histogram",
]
_NAMES: dict[Kind, str] = {
    "count": "COUNT",
    "values": "COUNT",
    "units": "COUNT",
    "sum": "SUM",
    "mean": "AVG",
    "variance": "VAR_POP",
    "quantile": "QUANTILE_CONT",
    "mode": "MODE",
    "histogram": "HISTOGRAM",
}
#: Aggregates whose values over cells add up.
ADDITIVE = ("count", "values", "sum")


@dataclass(frozen=True)
class SqlAggregate:
    """One statistic of a group's rows.

    Attributes:
        value: the row expression that it is of; None for counts of rows and units.
        share: of a quantile, strictly between 0 and 1.
        condition: its FILTER.
    """

    kind: Kind
    value: Node | None = None
    share: Fraction | None = None
    condition: Node | None = None

    def __str__(self) -> str:
        value = "*" if self.value is None else str(self.value)
        if self.kind == "units":
            value = "DISTINCT unit"
        share = "" if self.share is None else f", {float(self.share):g}"
        where = "" if self.condition is None else f" FILTER (WHERE {self.condition})"
        return f"{_NAMES[self.kind]}({value}{share}){where}"


#: Leaves of an `OutputExpression` that stand for a value of one row, by what their arguments are.
LEAVES = {
    "key": "the position of a grouping expression",
    "aggregate": "an `SqlAggregate` of private rows",
    "input": "the position of a column of the released rows below",
    "rows": "an aggregate of released rows: its name, what it is of, and its FILTER",
    "scalar": "a query that gives one value",
}


@dataclass(frozen=True)
class OutputExpression:
    """An expression over what was released: one of `LEAVES`, ``literal`` with a value, or an operator
    with its operands.
    """

    op: str
    args: tuple[Any, ...]

    def list_leaves(self) -> Iterator[OutputExpression]:
        """Its leaves but for literals, in the order of the text."""
        if self.op in LEAVES:
            yield self
            return
        for arg in self.args:
            if isinstance(arg, OutputExpression):
                yield from arg.list_leaves()

    def aggregates(self) -> Iterator[SqlAggregate]:
        """What it needs to be released of private rows, in the order of the text."""
        return (leaf.args[0] for leaf in self.list_leaves() if leaf.op == "aggregate")


@dataclass(frozen=True)
class Order:
    """One key of ORDER BY."""

    by: OutputExpression
    descending: bool
    nulls_first: bool


@dataclass(frozen=True)
class SelectQuery:
    """One SELECT.

    Attributes:
        conditions: what WHERE demands, each part by itself, in canonical order.
        blocks: the blocks that are read, in order; none if all are.
        groups: what rows are grouped by, in canonical order.
        columns: names and expressions of the answer's columns.
        levels: all grouping sets of the query, where it is the answer of one of several.
        parsed: parts of the text by what was made of them, for the places of refusals.
    """

    table: Table
    conditions: tuple[Node, ...]
    blocks: tuple[str, ...]
    groups: tuple[Node, ...]
    columns: tuple[tuple[str, OutputExpression], ...]
    having: OutputExpression | None = None
    order: tuple[Order, ...] = ()
    limit: int | None = None
    offset: int = 0
    levels: tuple[tuple[Node, ...], ...] = ()
    parsed: Mapping[SqlAggregate | Node, Any] = field(
        default_factory=dict, compare=False, repr=False
    )

    def outputs(self) -> list[OutputExpression]:
        """All that is computed after noise."""
        having = [] if self.having is None else [self.having]
        return [output for _, output in self.columns] + having + [one.by for one in self.order]

    def aggregates(self) -> tuple[SqlAggregate, ...]:
        """All that must be released, each once."""
        return tuple(dict.fromkeys(one for output in self.outputs() for one in output.aggregates()))

    def replace_aggregates(self, change: Callable[[SqlAggregate], OutputExpression]) -> SelectQuery:
        """The query with other expressions in the places of its aggregates."""

        def of(output: OutputExpression) -> OutputExpression:
            if output.op == "aggregate":
                return change(output.args[0])
            parts = (of(arg) if isinstance(arg, OutputExpression) else arg for arg in output.args)
            return OutputExpression(output.op, tuple(parts))

        return replace(
            self,
            columns=tuple((name, of(output)) for name, output in self.columns),
            having=None if self.having is None else of(self.having),
            order=tuple(replace(order, by=of(order.by)) for order in self.order),
        )


def join_conditions(conditions: tuple[Node, ...]) -> str | None:
    """Conditions as the text of one, which the declared language reads."""
    return " AND ".join(map(str, conditions)) or None
