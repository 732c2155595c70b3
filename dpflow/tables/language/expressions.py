"""A user's own estimator: one SQL expression of aggregates, computed for every holdout group by one
GROUP BY.

    avg(abs(label - prediction))
    quantile_cont(delay, 0.9) - median(delay) FILTER (WHERE hour < 12)
    count(DISTINCT carrier) / count(*)

The language: aggregates of the row expressions of `dpflow.tables.language.conditions`, each with an
optional ``FILTER (WHERE ...)``, and that language's operators between them. ``count``,
``count_if``, ``sum``, ``avg``, ``min``, ``max``, ``median``, ``quantile_cont``, ``quantile_disc``,
``var_samp``, ``var_pop``, ``stddev_samp``, ``stddev_pop``, ``covar_samp``, ``covar_pop``, ``corr``,
``regr_slope``, ``arg_min``, ``arg_max``, ``first(x ORDER BY d)`` and ``last(x ORDER BY d)``. Of several rows
that are the first the smallest value counts, of several that are the last the largest.

Guarantee: a group's number is a function of the multiset of the group's rows, and no row makes the
query fail. So one unit moves the number of its own group only.

- There is no subquery, window, cast or second relation, so a row meets other rows only in its group's aggregates.
- No sum is one of floats, which would depend on the order in which threads meet the rows of all groups. What is added up is
  put on a fine grid first, which the declared bounds of the columns decide, and added as integers: 2^-60 of the largest
  possible value, or 2^-30 for the products in variances. So what is summed needs bounds; ``least`` and ``greatest`` give some.
- Columns of numbers, and days, times and flags that are counted, are read within their declared bounds, missing values as declared; rows
  without a value are passed over, as in SQL.
  A group with no rows, or without a finite number, has the declared default; that is `dpflow.core.contract.estimators`'.

What a candidate predicts is a column, too: ``candidate.prediction``, ``candidate.score`` and
``candidate.rival``, numbers without bounds. Then rows are read with their predictions beside them,
and the same expression is computed over those (`PrivateTable.estimates_over`).
"""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

from dpflow.core.contract.columns import Column
from dpflow.core.contract.declaration import Table
from dpflow.tables.language.conditions import Reader
from dpflow.tables.language.intervals import RowBounds, bound_expression, bound_operator
from dpflow.tables.language.nodes import (
    MOST_DEPTH,
    Aggregate,
    Node,
    pick_first,
    refuse_sql,
)

#: sqlglot's names of aggregates of one argument or two, and what they are called here.
_ONE = {
    "Sum": "sum",
    "Avg": "avg",
    "Min": "min",
    "Max": "max",
    "Variance": "var_samp",
    "VariancePop": "var_pop",
    "Stddev": "stddev_samp",
    "StddevSamp": "stddev_samp",
    "StddevPop": "stddev_pop",
}
_TWO = {
    "Corr": "corr",
    "CovarSamp": "covar_samp",
    "CovarPop": "covar_pop",
    "RegrSlope": "regr_slope",
    "ArgMin": "arg_min",
    "ArgMax": "arg_max",
}
_QUANTILES = {
    "PercentileCont": ("quantile_cont", "expression"),
    "PercentileDisc": ("quantile_disc", "expression"),
    "Quantile": ("quantile_disc", "quantile"),
}
_OTHERS = {"Count", "CountIf", "Median", "Filter", "First", "Last"}
_HALF = Node("number", (Decimal("0.5"),))

#: Columns that a candidate adds to its rows, unless the table has some of these names.
PREDICTED = ("candidate.prediction", "candidate.score", "candidate.rival")


def parse_expression(text: str, table: Table) -> Node:
    """Check an expression. Equal ones up to spaces, case, brackets and synonyms give equal nodes,
    hence equal texts.

    Raises:
        PlanRefused: it is outside the language; the message names the rule.
        UnknownName: a column that the declaration does not have.
    """
    return _Reader(text, add_predictions(table)).read_root()


def candidate_columns(node: Node, table: Table) -> set[str]:
    """Names of the columns that an expression takes from a candidate."""
    return (node.column_names() & set(PREDICTED)) - set(table.columns)


def add_predictions(table: Table) -> Table:
    """The table with a candidate's columns."""
    return table.model_copy(
        update={
            "columns": {
                **table.columns,
                **{n: Column() for n in PREDICTED if n not in table.columns},
            }
        }
    )


class _Reader(Reader):
    """Adds aggregates to the language of rows."""

    _in_aggregate = False  #: whether the node being read is an aggregate's argument

    def read_root(self) -> Node:
        """The expression."""
        listed = self.parse_list()
        if len(listed) != 1:
            refuse_sql(
                "one expression",
                "it is not one SQL expression; write what gives one number per group, such as avg(x)",
            )
        node = self._read_node(listed[0], MOST_DEPTH)
        if not _has_aggregate(node):
            refuse_sql("aggregates", "it has no aggregate; write one, such as avg(x) or count(*)")
        return node

    def _read_node(self, found: Any, depth: int) -> Node:
        kind = type(found).__name__
        if kind not in _ONE | _TWO | _QUANTILES and kind not in _OTHERS:
            if kind == "Column" and not self._in_aggregate:
                refuse_sql(
                    "aggregates",
                    f"column {found.name!r} stands outside an aggregate; write avg(...) or another one around it",
                )
            return super()._read_node(found, depth)
        if self._in_aggregate:
            refuse_sql("aggregates", "an aggregate stands inside another one")
        if depth <= 0:
            refuse_sql("depth", f"it is nested deeper than {MOST_DEPTH}")
        if kind == "Filter":
            return self._filter(found, depth)
        self._in_aggregate = True
        try:
            return self._read_aggregate(kind, found, depth - 1)
        finally:
            self._in_aggregate = False

    def _filter(self, found: Any, depth: int) -> Node:
        inner, where = self.take_arguments(found, "this", "expression")
        node = self._read_node(inner, depth - 1)
        if not isinstance(node, Aggregate):
            refuse_sql("aggregates", "FILTER stands after one aggregate")
        self._in_aggregate = True
        try:
            condition = self._read_node(self.take_arguments(where, "this")[0], depth - 1)
        finally:
            self._in_aggregate = False
        # A count_if is a FILTER already: both conditions have to hold.
        if node.op == "FILTER":
            node, condition = node.args[0], Node("AND", (node.args[1], condition))
        return Aggregate("FILTER", (node, condition))

    def _read_aggregate(self, kind: str, found: Any, depth: int) -> Node:
        if kind == "Count":
            return self._read_count(found, depth)
        if kind in ("First", "Last"):
            value, order = read_ordered(self, found)
            nodes = self._read_arguments([value, order.this], depth)
            return pick_first(
                kind.lower(),
                *nodes,
                descending=bool(order.args.get("desc")),
                nulls_first=bool(order.args.get("nulls_first")),
            )
        if kind in _QUANTILES:
            name, share = _QUANTILES[kind]
            node = Aggregate(name, self._read_named(found, depth, "this", share))
            if node.args[1].op != "number" or not 0 <= node.args[1].args[0] <= 1:
                refuse_sql("literals", "a quantile is asked at a literal between 0 and 1")
            return node
        if kind in _TWO:
            return Aggregate(_TWO[kind], self._read_named(found, depth, "this", "expression"))
        operands = self._read_named(found, depth, "this")
        if kind == "CountIf":
            return Aggregate("FILTER", (Aggregate("count(*)", ()), *operands))
        if kind == "Median":
            return Aggregate("quantile_cont", (*operands, _HALF))
        return Aggregate(_ONE[kind], operands)

    def _read_named(self, found: Any, depth: int, *names: str) -> tuple[Node, ...]:
        return self._read_arguments(self.take_arguments(found, *names), depth)

    def _read_arguments(self, found: list[Any], depth: int) -> tuple[Node, ...]:
        return tuple(self._read_node(one, depth - 1) for one in found)

    def _read_count(self, found: Any, depth: int) -> Node:
        (what,) = self.take_arguments(found, "this", ignore=("big_int",))
        if what is None or type(what).__name__ == "Star":
            if what is not None:
                self.take_arguments(what)
            return Aggregate("count(*)", ())
        if type(what).__name__ != "Distinct":
            return Aggregate("count", self._read_arguments([what], depth))
        (several,) = self.take_arguments(what, "expressions")
        if len(several) != 1:
            refuse_sql("allow-list", "DISTINCT of several expressions is not in the language")
        return Aggregate("count distinct", self._read_arguments(several, depth))


def read_ordered(reader: Reader, found: Any) -> tuple[Any, Any]:
    """Of ``first(x ORDER BY d)`` the value, and the order as sqlglot has it."""
    from sqlglot import exp

    (ordered,) = reader.take_arguments(found, "this")
    orders: list[Any] = []
    if isinstance(ordered, exp.Order):
        value, orders = reader.take_arguments(ordered, "this", "expressions")
    if len(orders) != 1 or not isinstance(orders[0], exp.Ordered):
        refuse_sql("aggregates", "first and last need one order, such as first(x ORDER BY day)")
    reader.take_arguments(orders[0], "this", ignore=("desc", "nulls_first"))
    return value, orders[0]


def _has_aggregate(node: Node) -> bool:
    return isinstance(node, Aggregate) or any(
        _has_aggregate(arg) for arg in node.args if isinstance(arg, Node)
    )


def mean_range(node: Node, table: Table) -> tuple[float, float] | None:
    """[low, high] of the score of each row that an expression is the mean of; None unless it is
    ``avg`` of one with known bounds, times and plus constants.
    """
    bounds = _bound_mean(node, add_predictions(table))
    if (
        bounds is None
        or bounds[2] != 1
        or not math.isfinite(bounds[0])
        or not math.isfinite(bounds[1])
    ):
        return None
    return bounds[0], bounds[1]


def _bound_mean(node: Node, table: Table) -> tuple[float, float, int] | None:
    """The ends of what each row adds, and of how many averages; None for anything else."""
    if node.op == "number":
        return float(node.args[0]), float(node.args[0]), 0
    if node.op == "avg" and _has_value(node.args[0]):
        bounds = bound_expression(node.args[0], table, set())
        return bounds.low, bounds.high, 1
    if node.op not in ("+", "-", "*", "/"):
        return None
    parts = [_bound_mean(arg, table) for arg in node.args]
    if any(part is None for part in parts):
        return None
    ends = [part for part in parts if part is not None]
    # Two averages may leave out different rows, and only one side of a product is a mean.
    if sum(n for *_, n in ends) > 1 or (node.op == "/" and (ends[1][2] or ends[1][0] == 0)):
        return None
    low, high = bound_operator(node.op, [RowBounds(a, b) for a, b, _ in ends])
    return low, high, sum(n for *_, n in ends)


def _has_value(node: Node) -> bool:
    """Whether a row expression has a value in every row that has its columns."""
    if node.op == "CASE":
        # Without ELSE some rows are in no case; a condition that is NULL is one that is false.
        values = [*node.args[1::2], node.args[-1]]
        return len(node.args) % 2 == 1 and all(map(_has_value, values))
    return node.op in ("column", "number") or (
        node.op in ("+", "-", "*", "abs", "least", "greatest") and all(map(_has_value, node.args))
    )
