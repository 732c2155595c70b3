"""Expressions of aggregates as SQL: what a query of rows gives, and the aggregate of it."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import ClassVar

from dpflow.core.contract.columns import Column
from dpflow.core.contract.declaration import Table
from dpflow.errors import RuleBroken
from dpflow.tables.access import sql
from dpflow.tables.access.arithmetic import (
    DUCKDB,
    MAX_ROWS,
    Dialect,
    Whole,
    double,
    operate_doubles,
)
from dpflow.tables.language.expressions import add_predictions, parse_expression
from dpflow.tables.language.intervals import bound_expression
from dpflow.tables.language.nodes import AGGREGATES, Node
from dpflow.tables.language.rendering import (
    CALENDAR,
    DuckDBRenderer,
    Renderer,
    Term,
    require_operands,
)

#: Bits of the grid on which values are added, and of the one on which their products are.
SUM_BITS, PRODUCT_BITS = 60, 30
#: Rows of one group up to which moments are exact; of more their sums are clamped.
MAX_GROUP = 2**32


@dataclass(frozen=True)
class ExpressionSql:
    """An expression as SQL: ``rows``, what a query of rows gives, and ``value``, the aggregate of
    it.
    """

    rows: tuple[str, ...]
    value: str


def render_expression(
    node: Node, table: Table, column: Callable[[str], sql.Field]
) -> ExpressionSql:
    """The expression, by the columns' types in the catalog.

    Raises `PlanRefused` where types do not fit or a sum has no bounds, `TableUnreadable` where a
    column is missing.
    """
    groups = DuckDBGroups(DuckDBRows(add_predictions(table), column))
    term = groups.write_term(node)
    require_operands(term.family in ("whole", "number"), node, "to be a number")
    return ExpressionSql(tuple(groups.rows), groups.as_double(term))


def render_features(nodes: Sequence[Node], groups: GroupRenderer) -> tuple[list[str], list[Term]]:
    """What a query of rows gives, and several aggregates of it, each in its own type. Raises as
    `render_expression`.
    """
    terms = [groups.write_term(node) for node in nodes]
    return groups.rows, terms


class RowRenderer(Renderer):
    """Row expressions of aggregates.

    Args:
        clamps: columns are within their declared bounds, and filled, wherever they stand. Else only what is added up
            is: a unit's number is clamped after it is computed of its rows as they are.
    """

    def __init__(
        self, table: Table, column: Callable[[str], sql.Field], clamps: bool = True
    ) -> None:
        super().__init__(column)
        self.table, self._clamps = table, clamps
        self.integers: set[str] = set()  # columns of which every value is a whole number

    def column(self, name: str) -> Term:
        """A column's value."""
        return self._clamp_column(name) if self._clamps else super().column(name)

    def write_added(self, node: Node) -> Term:
        """What a sum or mean adds up, within its bounds: a column is filled as it is declared, too."""
        if self._clamps:
            return self.write_term(node)
        name = ".".join(node.args[0]) if node.op == "column" else ""
        if name:
            return super().column(name) if is_count(self.table, name) else self._clamp_column(name)
        term = self.write_term(node)
        require_operands(term.family in ("whole", "number"), node, "numbers")
        span = bound_expression(node, self.table, self.integers)
        if not span.size < math.inf:
            return term
        integer = term.family == "whole" and span.whole and span.size < 2**62
        value = term.sql if integer else self.as_double(term)
        constant = self._integer if integer else self._fraction
        clamped = self._clamp(value, constant(Fraction(span.low)), constant(Fraction(span.high)))
        return Term(clamped, "whole" if integer else "number")

    def _clamp(self, value: str, low: str, high: str) -> str:
        """A number within constants; NULL where it is, over which least and greatest pass."""
        clamped = self.write.call("least", self.write.call("greatest", value, low), high)
        return self.write.choose([(self.write.negate(self.write.is_null(value)), clamped)])

    def _clamp_column(self, name: str) -> Term:
        """A column's value, clamped and filled as it is declared."""
        term, declaration = super().column(name), self.table.column(name)
        if term.family not in ("whole", "number"):
            return term
        if declaration.lower is None or declaration.upper is None:
            return (
                term
                if declaration.missing == "skip"
                else self._fill_missing(term, declaration.missing)
            )
        integer = term.family == "whole" and _is_whole(declaration)
        value = term.sql if integer else self.as_double(term)
        constant = self._integer if integer else self._fraction
        clamped = self._clamp(value, constant(declaration.lower), constant(declaration.upper))
        if declaration.missing != "skip":
            clamped = self.write.call("coalesce", clamped, constant(declaration.missing))
        if not integer:
            return Term(clamped, "number")
        self.integers.add(name)
        return Term(self.write.cast(clamped, "BIGINT"), "whole")

    def _write_operator(self, node: Node) -> tuple[str, str]:
        if self._clamps and node.op == "IS NULL" and node.args[0].op == "column":
            # A number stands in for what is missing here, as it does where rows are read first.
            name = ".".join(node.args[0].args[0])
            if self.table.column(name).missing != "skip" and not self._is_text(name):
                return self.write.truth(False), "truth"
        return super()._write_operator(node)

    def write_counted(self, name: str) -> str | None:
        """The number of a day, time or flag that is read within bounds or for a missing one, to be counted: as it is
        where rows are read first. None for other columns, and where columns are read as they are.
        """
        if not self._clamps:
            return None
        declared = self.table.column(name)
        is_declared = declared.lower is not None or declared.missing != "skip"
        if not is_declared or self._is_text(name):
            return None
        if super().column(name).family in ("whole", "number"):
            return None
        number = self.bounded_number(self._column(name), declared)
        return self.write.choose([(self.write.negate(self.write.call("isnan", number)), number)])

    @abstractmethod
    def bounded_number(self, field: sql.Field, declared: Column) -> str:
        """A column of numbers or times as a DOUBLE within its bounds, NaN where it has no value."""

    def _is_text(self, name: str) -> bool:
        return self._column(name).kind in ("varchar", "enum")

    def _fill_missing(self, term: Term, missing: Fraction) -> Term:
        """A number without bounds, or what a missing one is."""
        if term.family == "whole" and missing.denominator == 1 and abs(missing) < 2**62:
            return Term(self.write.call("coalesce", term.sql, self._integer(missing)), "whole")
        value = self.write.call("coalesce", self.as_double(term), self._fraction(missing))
        return Term(value, "number")

    def _integer(self, value: Fraction) -> str:
        return self.write.integer(int(value))

    def _fraction(self, value: Fraction) -> str:
        return self.write.double(float(value))


def is_count(table: Table, name: str) -> bool:
    """Whether a column is a number of a unit's rows below, or the least, greatest, first or last of several: a whole
    number that is added up as it is.
    """
    units = table.unit_rows
    if units is None or name not in units.features:
        return False
    node = parse_expression(name, units.rows)
    node = node.args[0] if node.op == "FILTER" else node
    if node.op in ("sum", "avg") or node.op.startswith("count"):
        return node.op.startswith("count")
    return node.args[0].op == "column" and is_count(units.rows, ".".join(node.args[0].args[0]))


def _is_whole(declared: Column) -> bool:
    """Whether everything a column of integers can be read as is one, of 63 bits."""
    ends = (declared.lower, declared.upper, declared.missing)
    return all(
        end.denominator == 1 and abs(end) < 2**62 for end in ends if isinstance(end, Fraction)
    )


class GroupRenderer(Renderer):
    """Expressions of a group, over row expressions that it collects."""

    arithmetic: ClassVar[Dialect]

    def __init__(self, inner: RowRenderer) -> None:
        super().__init__(inner._column)
        self._inner, self._conditions = inner, list[str]()
        self.rows: list[str] = []

    def write_term(self, node: Node) -> Term:
        """A node of the group's language as SQL, with its family."""
        if node.op == "FILTER":
            condition = self._inner.write_term(node.args[1])
            require_operands(condition.family == "truth", node, "a condition")
            self._conditions = [self._row_name(condition.sql)]
            try:
                return self.write_term(node.args[0])
            finally:
                self._conditions = []
        if node.op not in AGGREGATES:
            return super().write_term(node)
        if node.op.startswith("count"):
            return Term(self._write_count(node), "whole")
        write = self._inner.write_added if node.op in ("sum", "avg") else self._inner.write_term
        terms = [write(arg) for arg in node.args]
        if node.op in ("arg_min", "arg_max", "first", "last"):
            return self._write_first(node, terms)
        if node.op in ("min", "max") and terms[0].family in ("whole", *CALENDAR):
            return Term(self._aggregate(node.op, self._row_name(terms[0].sql)), terms[0].family)
        require_operands(all(term.family in ("whole", "number") for term in terms), node, "numbers")
        if node.op in ("sum", "avg"):
            return Term(self._write_sum(node, terms[0]), "number")
        # These, and quantiles, add nothing up over rows, so they need no grid.
        if node.op in ("min", "max") or node.op.startswith("quantile"):
            shares = [repr(float(share.args[0])) for share in node.args[1:]]
            row = self._row_name(self.as_double(terms[0]))
            return Term(self.without_nan(self._aggregate(node.op, row, *shares)), "number")
        return Term(self._write_moment(node, terms), "number")

    @abstractmethod
    def pick_last(self, function: str, parts: Sequence[str]) -> str:
        """The last of several columns in the row that is least or greatest by them, the first one first."""

    @abstractmethod
    def round_double(self, value: str) -> str:
        """A DOUBLE of at most 60 bits as a BIGINT, rounded half away from zero."""

    def _write_first(self, node: Node, terms: Sequence[Term]) -> Term:
        """The value of the first or last row in an order. Of several such rows it is that of the least or the
        greatest value, so no order of rows decides.
        """
        value, order = map(self._read_operand, terms[:2])
        if terms[1].decimal is not None:
            # By all digits.
            order = Term(terms[1].decimal.sql, "number")
        require_operands(order.family in ("whole", "number", *CALENDAR), node, "a date or number")
        if order.family in CALENDAR and node.args[1].op == "column":
            name = ".".join(node.args[1].args[0])
            number = self._inner.table.column(name).missing
            if number != "skip":
                raise RuleBroken(
                    "bounds",
                    f"column {name!r} declares missing: {number}, and {node.op} orders by dates and times as they are stored; "
                    f"declare missing: skip, or order by another column",
                )
        value_row, order_row = self._row_name(value.sql), self._row_name(order.sql)
        function = "min" if node.op in ("arg_min", "first") else "max"
        missing = [self.write.is_null(row) for row in (order_row, value_row)]
        present = [*map(self.write.negate, missing)]
        if node.op.startswith("arg"):
            filtered, self._conditions = self._conditions, [*self._conditions, *present]
            try:
                return Term(self.pick_last(function, [order_row, value_row]), value.family)
            finally:
                self._conditions = filtered
        # A row without a place in the order is the last one, or the first; one with a value goes before others.
        place = present[0] if len(node.args) > 2 else missing[0]
        valued = missing[1] if function == "min" else present[1]
        return Term(self.pick_last(function, [place, order_row, valued, value_row]), value.family)

    @staticmethod
    def _read_operand(term: Term) -> Term:
        """The same number, 0 for -0, of which an order would make two."""
        if term.family != "number":
            return term
        return Term(operate_doubles(term.sql, "+", double(0)), "number")

    def _row_name(self, text: str) -> str:
        """A row expression's name in the query of groups."""
        if text not in self.rows:
            self.rows.append(text)
        return f"r{self.rows.index(text)}"

    def _aggregate(self, function: str, *arguments: str, distinct: bool = False) -> str:
        return self.write.aggregate(function, *arguments, distinct=distinct, where=self._conditions)

    def _write_count(self, node: Node) -> str:
        if not node.args:
            return self._aggregate("count")
        is_distinct = node.op == "count distinct"
        if node.args[0].op == "column":
            number = self._inner.write_counted(".".join(node.args[0].args[0]))
            if number is not None:
                return self._aggregate("count", self._row_name(number), distinct=is_distinct)
        term = self._inner.write_term(node.args[0])
        # As bytes: DISTINCT by a collation would take different texts for one.
        row = self._row_name(self.text_bytes(term.sql) if term.family == "text" else term.sql)
        return self._aggregate("count", row, distinct=is_distinct)

    def _write_grid(self, node: Node, arg: Node, term: Term, bits: int) -> tuple[str, float]:
        """A row expression as an integer of so many bits, and the step that it counts; NULL where
        it has no value.
        """
        # Bounds follow from declaration and text, so they are the same for neighbouring tables.
        span = bound_expression(arg, self._inner.table, self._inner.integers)
        if not span.size < math.inf:
            raise RuleBroken(
                "bounds",
                f"{node.op} adds up {str(arg)[:80]}, whose bounds are not known; declare lower and "
                f"upper of its columns, or write least(greatest(x, low), high)",
            )
        whole = span.whole or term.family == "whole"
        # size < 2^e by frexp, so the scaled value has at most the bits; below 2^-900 the factor
        # would come near the end of DOUBLEs.
        shift = (
            0 if whole and span.size <= 2**bits else bits - math.frexp(max(span.size, 2.0**-900))[1]
        )
        scaled = (
            term.sql
            if whole and shift == 0
            else self.round_double(self._multiply(self.as_double(term), 2.0**shift))
        )
        return self._row_name(self.write.try_cast(scaled, "BIGINT")), math.ldexp(1.0, -shift)

    def _multiply(self, value: str, factor: float) -> str:
        return value if factor == 1 else operate_doubles(value, "*", double(factor))

    def _divide(self, value: str, divisor: str) -> str:
        return operate_doubles(value, "/", self.write.call("nullif", divisor, double(0)))

    def _write_sum(self, node: Node, term: Term) -> str:
        row, step = self._write_grid(node, node.args[0], term, SUM_BITS)
        total = self._sum_rows(self.arithmetic.column(row, -(2**SUM_BITS), 2**SUM_BITS)).as_double()
        if node.op == "avg":
            total = self._divide(total, self.write.cast(self._aggregate("count", row), "DOUBLE"))
        return self._multiply(total, step)

    def _sum_rows(self, value: Whole) -> Whole:
        """The sum of a number over rows that fulfil the conditions."""
        total = self.arithmetic.sum_rows(value)
        where = f" FILTER (WHERE {' AND '.join(self._conditions)})" if self._conditions else ""
        return replace(total, sql=f"{total}{where}")

    def _write_moment(self, node: Node, terms: list[Term]) -> str:
        """Of rows in which all arguments have values, with n and the exact integers n sum(xy) -
        sum(x) sum(y).
        """
        grids = [
            self._write_grid(node, arg, term, PRODUCT_BITS) for arg, term in zip(node.args, terms)
        ]
        (x, x_step), (y, y_step) = grids[0], grids[-1]
        write, filtered = self.write, self._conditions
        self._conditions = [*filtered, *(write.negate(write.is_null(row)) for row in dict(grids))]
        n = self.arithmetic.column(self._aggregate("count"), 0, MAX_ROWS).clamp(0, MAX_GROUP)

        def sum_rows(value: Whole) -> Whole:
            return self._sum_rows(value).clamp(value.low * MAX_GROUP, value.high * MAX_GROUP)

        def spread(left: str, right: str) -> str:
            end = 2**PRODUCT_BITS
            a, b = (self.arithmetic.column(one, -end, end) for one in (left, right))
            return (n * sum_rows(a * b) - sum_rows(a) * sum_rows(b)).as_double()

        try:
            if node.op == "corr":
                both = write.call("sqrt", operate_doubles(spread(x, x), "*", spread(y, y)))
                return self._divide(spread(x, y), both)
            if node.op == "regr_slope":  # of the first on the second
                slope = self._divide(spread(x, y), spread(y, y))
                return self._multiply(slope, x_step / y_step)
            others = n if node.op.endswith("pop") else n - 1
            pairs = operate_doubles(n.as_double(), "*", others.as_double())
            value = self._divide(spread(x, y), pairs)
        finally:
            self._conditions = filtered
        if node.op.startswith("stddev"):
            return self._multiply(write.call("sqrt", value), x_step)
        return self._multiply(value, x_step * y_step)


class DuckDBRows(RowRenderer, DuckDBRenderer):
    """Row expressions on DuckDB."""

    def bounded_number(self, field: sql.Field, declared: Column) -> str:
        return sql.bounded_number(field, declared)


class DuckDBGroups(GroupRenderer, DuckDBRenderer):
    """Expressions of a group on DuckDB."""

    arithmetic = DUCKDB

    def pick_last(self, function: str, parts: Sequence[str]) -> str:
        row = self._aggregate(function, self.write.call("row", *parts))
        return self.write.call("struct_extract", row, str(len(parts)))

    def round_double(self, value: str) -> str:
        return self.write.call("round", value)
