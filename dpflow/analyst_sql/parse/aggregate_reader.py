"""Reads aggregate functions: each becomes what existing mechanisms release, or is refused."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

from sqlglot import exp

from dpflow.analyst_sql.parse.canonical_conditions import rewrite_node
from dpflow.analyst_sql.parse.parsed_parts import (
    is_there,
    name_part,
    take_arguments,
    when,
)
from dpflow.analyst_sql.parse.private_rows import RowReader
from dpflow.analyst_sql.parse.select_query import Kind, SqlAggregate
from dpflow.analyst_sql.parse.text_and_options import Refusal, refusal_of
from dpflow.analyst_sql.parse.value_columns import count_values, declare_computed, declare_value
from dpflow.core.contract.columns import Column
from dpflow.core.contract.declaration import Table
from dpflow.errors import PlanRefused
from dpflow.tables.language.nodes import Node

#: The smallest and the largest value are one unit's own: MIN and MAX are these quantiles.
TAIL = Fraction(1, 100)

#: Aggregates of one expression, by what sqlglot calls them.
_PLAIN: dict[str, Kind] = {
    "Sum": "sum",
    "Avg": "mean",
    "VariancePop": "variance",
}
#: Those that divide by the number of values less one.
_SAMPLES = ("Variance", "Stddev", "StddevSamp")
_SHARES = {"Min": TAIL, "Median": Fraction(1, 2), "Max": 1 - TAIL}
_QUANTILES = {
    "PercentileCont": "expression",
    "PercentileDisc": "expression",
    "Quantile": "quantile",
    "ApproxQuantile": "quantile",
}
#: Steps between the bounds of a product up to which 2^30 of them add up to less than 2^62.
WIDE_PRODUCT = 2**32
#: Of two expressions, in rows where both have values.
_PAIRS = ("Corr", "CovarPop", "CovarSamp", "RegrSlope")


class AggregateReader:
    """Reads aggregates over the rows of one table.

    Args:
        make_number: the column of the released table that stands for an aggregate.
        count_keys: what stands for the number of an expression's keys in the rows that a condition leaves; raises
            `PlanRefused` where its keys are not public.
        find_constant: an expression that is one value in each group, over its keys; None of any other.
    """

    def __init__(
        self,
        table: Table,
        rows: RowReader,
        make_number: Callable[[SqlAggregate], Any],
        count_keys: Callable[[Node, Node | None, Any], Any],
        find_constant: Callable[[Node], Any],
    ) -> None:
        self._table, self._rows, self._make_number = table, rows, make_number
        self._count_keys, self._find_constant = count_keys, find_constant
        #: The part of the text that each aggregate stands in first.
        self.parsed: dict[SqlAggregate, Any] = {}

    def read(self, parsed: Any) -> Any:
        """An aggregate with its FILTER as an expression over released numbers; None for anything else. Raises
        `Refusal`.
        """
        self._call = parsed
        condition: Node | None = None
        call = parsed
        if isinstance(parsed, exp.Filter):
            call = parsed.this
            condition = self._rows.read(parsed.expression.this)
        if isinstance(call, exp.Window):
            return None
        if isinstance(call, exp.IgnoreNulls) and isinstance(call.this, exp.AnyValue):
            # So sqlglot reads DuckDB's ANY_VALUE.
            call = call.this
        if isinstance(call, exp.IgnoreNulls | exp.RespectNulls):
            raise self.unknown(call.this)
        kind = type(call).__name__
        histogram = kind == "Anonymous" and call.name.lower() == "histogram"
        if not isinstance(call, exp.AggFunc | exp.WithinGroup) and not histogram:
            if condition is not None:
                raise Refusal("allow-list", f"{name_part(call)} takes no FILTER", parsed)
            return None
        self._check_nesting(call)
        return self._read_call(call, kind, condition)

    def _number(self, kind: Kind, *args: Any) -> Any:
        aggregate = SqlAggregate(kind, *args)
        self._check(aggregate, self._call)
        self.parsed.setdefault(aggregate, self._call)
        return self._make_number(aggregate)

    def _check_nesting(self, call: Any) -> None:
        inner = call.this if isinstance(call, exp.WithinGroup) else call
        nested = next(
            (p for p in inner.walk() if p is not inner and isinstance(p, exp.AggFunc)), None
        )
        if nested is not None:
            raise Refusal(
                "nested-aggregates",
                "an aggregate stands inside another one; a row has no aggregate",
                nested,
            )

    def _read_call(self, call: Any, kind: str, condition: Node | None) -> Any:
        if kind == "Count":
            return self._read_count(call, condition)
        if kind == "CountIf":
            (test,) = _take(call, "this")
            node = self._rows.read(test)
            return self._number("count", None, None, _both(node, condition))
        if kind in _PLAIN:
            return self._number(_PLAIN[kind], self._read_value(call), None, condition)
        if kind == "StddevPop":
            return _take_root(self._number("variance", self._read_value(call), None, condition))
        if kind in _SAMPLES:
            return self._read_sample(kind != "Variance", self._read_value(call), condition)
        if kind in ("Min", "Max", "AnyValue") and condition is None:
            constant = self._find_constant(self._read_value(call))
            if constant is not None:
                return constant
        if kind in _SHARES:
            value = self._read_value(call)
            return self._number("quantile", value, _SHARES[kind], condition)
        if kind in _QUANTILES:
            value, share = _take(call, "this", _QUANTILES[kind])
            return self._read_quantile(value, share, condition, call)
        if kind in _PAIRS:
            left, right = _take(call, "this", "expression")
            return self._read_pair(kind, self._rows.read(left), self._rows.read(right), condition)
        if kind == "ApproxDistinct":
            # The number of units has noise anyway: nothing more of it is left out.
            return self._read_units(_take(call, "this")[0], condition)
        if kind == "WithinGroup":
            inner, order = _take(call, "this", "expression")
            if type(inner).__name__ not in _QUANTILES or len(order.expressions) != 1:
                raise self.unknown(call)
            (share,) = _take(inner, "this")
            ordered = order.expressions[0]
            if ordered.args.get("desc"):
                raise Refusal("literals", "write 1 - p instead of a descending order", call)
            return self._read_quantile(ordered.this, share, condition, call)
        if kind == "Mode":
            return self._number("mode", self._read_value(call), None, condition)
        if kind == "Anonymous":
            _, values = _take(call, "this", "expressions")
            if len(values or ()) != 1:
                raise Refusal("literals", "HISTOGRAM takes a column with public keys", call)
            return self._number("histogram", self._rows.read(values[0]), None, condition)
        raise self.unknown(call)

    def unknown(self, call: Any) -> Refusal:
        """Why an aggregate is not answered."""
        return Refusal(
            "aggregates",
            f"{name_part(call)} has no private form here; there are COUNT, SUM, AVG, VAR_POP, STDDEV_POP, MIN, MAX, MEDIAN, "
            f"QUANTILE_CONT, CORR, COVAR_POP, REGR_SLOPE, MODE and HISTOGRAM",
            call,
        )

    def _read_value(self, call: Any) -> Node:
        (value,) = _take(call, "this")
        if isinstance(value, exp.Distinct):
            raise Refusal(
                "distinct-unit",
                "DISTINCT is possible in COUNT of the privacy unit only; other values are not counted once",
                value,
            )
        return self._rows.read(value)

    def _read_count(self, call: Any, condition: Node | None) -> Any:
        (what,) = _take(call, "this")
        if what is None or isinstance(what, exp.Star):
            if what is not None:
                _take(what)
            return self._number("count", None, None, condition)
        if not isinstance(what, exp.Distinct):
            # A literal has a value in every row.
            if isinstance(what, exp.Literal | exp.Boolean):
                return self._number("count", None, None, condition)
            if self._rows.is_unit(what) and not self._rows.is_declared(what):
                self._rows.refuse_unit_count(what)
                return self._number("count", None, None, condition)
            return self._number("values", self._rows.read(what), None, condition)
        if len(what.expressions) != 1:
            raise self._not_the_unit(what)
        return self._read_units(what.expressions[0], condition)

    def _read_units(self, counted: Any, condition: Node | None) -> Any:
        """How many privacy units there are; with ``CASE WHEN test THEN unit END`` those of rows that pass."""
        part = counted.unnest()
        if isinstance(part, exp.Case | exp.If):
            is_case = isinstance(part, exp.Case)
            branches = part.args["ifs"] if is_case else [part]
            default = part.args.get("default" if is_case else "false")
            compares = is_case and part.this is not None
            if len(branches) != 1 or compares or not isinstance(default, exp.Null | None):
                raise self._not_the_unit(counted)
            test, part = self._rows.read(branches[0].this), branches[0].args["true"].unnest()
            condition = _both(test, condition)
        if self._rows.is_unit(part):
            return self._number("units", None, None, condition)
        try:
            return self._count_keys(self._rows.read(part), condition, self._call)
        except PlanRefused:
            raise self._not_the_unit(counted) from None

    def _not_the_unit(self, what: Any) -> Refusal:
        unit = self._table.privacy_unit.column
        return Refusal(
            "distinct-unit",
            f"COUNT(DISTINCT ...) counts privacy units, whose column is {unit!r}, or public keys, in groups of public keys; how "
            f"many values another column has would tell of single rows",
            what,
        )

    def _read_pair(self, kind: str, left: Node, right: Node, condition: Node | None) -> Any:
        """Covariances from means of rows where both have values, each less the middle of its bounds:
        mean(xy) - mean(x) mean(y). Correlation and slope divide by the variances of the same rows. Products
        of whole numbers that `WIDE_PRODUCT` does not hold are counted in coarser steps, as other products are.
        """
        left_there, right_there = (Node("NOT", (Node("IS NULL", (n,)),)) for n in (left, right))
        both = _both(_both(left_there, right_there), condition)
        x, y = (self._center(one) for one in (left, right))
        product = rewrite_node(Node("*", (x, y)))
        width = self._find_width(product)
        if width > WIDE_PRODUCT:
            unit = Node("number", (Decimal(10) ** len(str(width)),))
            product = rewrite_node(Node("/", (product, unit)))
        means = [self._number("mean", one, None, both) for one in (product, x, y)]
        if width > WIDE_PRODUCT:
            means[0] = exp.Paren(
                this=exp.Mul(this=means[0], expression=_number(10 ** len(str(width))))
            )
        covariance: Any = exp.Paren(
            this=exp.Sub(
                this=means[0],
                expression=exp.Paren(this=exp.Mul(this=means[1], expression=means[2])),
            )
        )
        if kind == "CovarPop":
            return covariance
        if kind == "CovarSamp":
            return self._enlarge(covariance, self._number("count", None, None, both))
        spread = self._number("variance", right, None, both)
        if kind == "Corr":
            other = self._number("variance", left, None, both)
            spread = exp.Sqrt(this=exp.Mul(this=_positive(other), expression=_positive(spread)))
            ratio: Any = exp.Div(this=covariance, expression=spread, safe=True)
            # Noise alone leads out of [-1, 1].
            low, high = exp.Neg(this=_number(1)), _number(1)
            lowest = exp.Least(this=ratio, expressions=[high], ignore_nulls=True)
            bounded = exp.Greatest(this=lowest, expressions=[low], ignore_nulls=True)
            return exp.Paren(this=when(is_there(ratio.copy()), bounded))
        return exp.Div(this=covariance, expression=_positive(spread), safe=True)

    def _declare(self, value: Node) -> Column:
        try:
            table, name = declare_computed(self._table, value)
        except PlanRefused as error:
            raise refusal_of(error, self._call, "bounds") from None
        return table.columns[name]

    def _find_width(self, value: Node) -> int:
        """How many steps there are between an expression's bounds."""
        low, high = self._declare(value).grid_bounds()
        return high - low

    def _center(self, value: Node) -> Node:
        """An expression less the middle of its bounds: its products have smaller ones."""
        column = self._declare(value)
        assert column.lower is not None and column.upper is not None
        middle = round((column.lower + column.upper) / 2)
        return Node("-", (value, Node("number", (Decimal(middle),)))) if middle else value

    def _read_sample(self, root: bool, value: Node, condition: Node | None) -> Any:
        """VAR_SAMP from VAR_POP and the number of values, which is released beside it."""
        variance, counted = (
            self._number("variance", value, None, condition),
            count_values(value, self._table),
        )
        sample = self._enlarge(variance, self._number(*counted, None, condition))
        return _take_root(sample) if root else sample

    def _enlarge(self, variance: Any, count: Any) -> Any:
        """Of as many values as a sample has: times n / (n - 1)."""
        less = exp.Sub(this=count, expression=_number(1))
        # variance * n / (n - 1), where n stands once, so that its noise counts once.
        factor = exp.Add(
            this=_number(1),
            expression=exp.Div(this=_number(1), expression=exp.Paren(this=less.copy())),
        )
        is_more = exp.GT(this=exp.Paren(this=less), expression=_number(0))
        return when(is_more, exp.Mul(this=variance, expression=exp.Paren(this=factor)))

    def _read_quantile(self, value: Any, share: Any, condition: Node | None, call: Any) -> Any:
        if isinstance(share, exp.Array) and share.expressions:
            each = (self._read_quantile(value, one, condition, call) for one in share.expressions)
            return exp.Array(expressions=list(each))
        if not isinstance(share, exp.Literal) or share.is_string:
            raise Refusal(
                "literals",
                "a quantile takes a share as a number, such as 0.5, or a list of them, such as [0.25, 0.75]",
                share if isinstance(share, exp.Expression) else call,
            )
        part = Fraction(str(share.this)) if len(str(share.this)) < 20 else Fraction(0)
        if not 0 < part < 1 or part.denominator > 10**6:
            raise Refusal(
                "literals",
                "a share lies strictly between 0 and 1, with at most six decimals",
                share,
            )
        return self._number("quantile", self._rows.read(value), part, condition)

    def _check(self, aggregate: SqlAggregate, call: Any) -> None:
        """What is added up or ranked needs bounds, what is a key needs public ones."""
        if aggregate.value is None or aggregate.kind == "values":
            return
        try:
            if aggregate.kind in ("mode", "histogram"):
                self._check_keys(aggregate.value, call)
            else:
                declare_value(self._table, aggregate)
        except PlanRefused as error:
            raise refusal_of(error, call, "bounds") from None

    def _check_keys(self, value: Node, call: Any) -> None:
        name = ".".join(value.args[0]) if value.op == "column" else ""
        if not name:
            raise Refusal(
                "public-keys", "MODE and HISTOGRAM take a declared column with public keys", call
            )
        try:
            self._table.public_keys(name)
        except PlanRefused as error:
            raise refusal_of(error, call, "public-keys") from None


def _take(call: Any, *names: str) -> list[Any]:
    """Arguments; any other that is set is refused."""
    return take_arguments(call, *names, ignore=("big_int",))


def _both(test: Node, condition: Node | None) -> Node:
    """A test and a condition, if there is one."""
    return test if condition is None else rewrite_node(Node("AND", (condition, test)))


def _number(value: int) -> Any:
    return exp.Literal.number(value)


def _positive(variance: Any) -> Any:
    """NULL of what noise made no positive number: nothing is divided by it."""
    return exp.Paren(this=when(exp.GT(this=variance, expression=_number(0)), variance.copy()))


def _take_root(variance: Any) -> Any:
    """The square root; NULL of what noise made negative."""
    is_root = exp.GTE(this=variance, expression=_number(0))
    return when(is_root, exp.Sqrt(this=variance.copy()))
