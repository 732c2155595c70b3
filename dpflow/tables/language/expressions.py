"""A user's own estimator: one SQL expression of aggregates, computed for every holdout group by one
GROUP BY.

    avg(abs(label - prediction))
    quantile_cont(delay, 0.9) - median(delay) FILTER (WHERE hour < 12)
    count(DISTINCT carrier) / count(*)

The language: aggregates of the row expressions of `dpflow.tables.language.conditions`, each with an
optional ``FILTER (WHERE ...)``, and that language's operators between them. ``count``,
``count_if``, ``sum``, ``avg``, ``min``, ``max``, ``median``, ``quantile_cont``, ``quantile_disc``,
``var_samp``, ``var_pop``, ``stddev_samp``, ``stddev_pop``, ``covar_samp``, ``covar_pop``, ``corr``
and ``regr_slope``.

Guarantee: a group's number is a function of the multiset of the group's rows, and no row makes the
query fail. So one unit moves the number of its own group only.

- There is no subquery, window, ordering, cast or second relation, so a row meets other rows only in its group's aggregates.
- No sum is one of floats, which would depend on the order in which threads meet the rows of all groups. What is added up is
  put on a fine grid first, which the declared bounds of the columns decide, and added as integers: 2^-60 of the largest
  possible value, or 2^-30 for the products in variances. So what is summed needs bounds; ``least`` and ``greatest`` give some.
- Columns of numbers are read within their declared bounds, missing values as declared; rows without a value are passed over, as in SQL.
  A group with no rows, or without a finite number, has the declared default; that is `dpflow.core.contract.estimators`'.

What a candidate predicts is a column, too: ``candidate.prediction``, ``candidate.score`` and
``candidate.rival``, numbers without bounds. Then rows are read with their predictions beside them,
and the same expression is computed over those (`query_arrays`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any

from dpflow.core.contract.declaration import Column, Table
from dpflow.errors import PlanRefused
from dpflow.tables.access import sql
from dpflow.tables.language.conditions import (
    MOST_DEPTH,
    ConditionRenderer,
    Node,
    Reader,
    Term,
    refuse_sql,
    require_operands,
)

#: Bits of the grid on which values are added, and of the one on which their products are.
SUM_BITS, PRODUCT_BITS = 60, 30

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
}
_QUANTILES = {
    "PercentileCont": ("quantile_cont", "expression"),
    "PercentileDisc": ("quantile_disc", "expression"),
    "Quantile": ("quantile_disc", "quantile"),
}
_OTHERS = {"Count", "CountIf", "Median", "Filter"}
_AGGREGATES = {
    "count(*)",
    "count",
    "count distinct",
    "quantile_cont",
    "quantile_disc",
    *_ONE.values(),
    *_TWO.values(),
}
_HALF = Node("number", (Decimal("0.5"),))

#: Columns that a candidate adds to its rows, unless the table has some of these names.
PREDICTED = ("candidate.prediction", "candidate.score", "candidate.rival")


class Aggregate(Node):
    """An aggregate of row expressions, or one with its ``FILTER``."""

    def _canonical_text(self) -> str:
        operands = [str(arg) for arg in self.args]
        if self.op == "FILTER":
            return f"{operands[0]} FILTER (WHERE {operands[1]})"
        if self.op == "count(*)":
            return self.op
        return (
            f"count(DISTINCT {operands[0]})"
            if self.op == "count distinct"
            else f"{self.op}({', '.join(operands)})"
        )


def parse_expression(text: str, table: Table) -> Node:
    """Check an expression. Equal ones up to spaces, case, brackets and synonyms give equal nodes,
    hence equal texts.

    Raises:
        PlanRefused: it is outside the language; the message names the rule.
        UnknownName: a column that the declaration does not have.
    """
    return _Reader(text, _add_predictions(table)).read_root()


def candidate_columns(node: Node, table: Table) -> set[str]:
    """Names of the columns that an expression takes from a candidate."""
    return (node.column_names() & set(PREDICTED)) - set(table.columns)


def _add_predictions(table: Table) -> Table:
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
        from sqlglot import exp

        parsed = self.parse_after(exp.Select, "SELECT")
        clauses = (
            {} if parsed is None else {name: value for name, value in parsed.args.items() if value}
        )
        # FROM, WHERE, GROUP BY and LIMIT are clauses, too, and all of them are refused.
        if set(clauses) != {"expressions"} or len(clauses["expressions"]) != 1:
            refuse_sql(
                "one expression",
                "it is not one SQL expression; write what gives one number per group, such as avg(x)",
            )
        node = self._read_node(clauses["expressions"][0], MOST_DEPTH)
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
        inner, where = self._take_arguments(found, "this", "expression")
        node = self._read_node(inner, depth - 1)
        if not isinstance(node, Aggregate):
            refuse_sql("aggregates", "FILTER stands after one aggregate")
        self._in_aggregate = True
        try:
            condition = self._read_node(self._take_arguments(where, "this")[0], depth - 1)
        finally:
            self._in_aggregate = False
        # A count_if is a FILTER already: both conditions have to hold.
        if node.op == "FILTER":
            node, condition = node.args[0], Node("AND", (node.args[1], condition))
        return Aggregate("FILTER", (node, condition))

    def _read_aggregate(self, kind: str, found: Any, depth: int) -> Node:
        if kind == "Count":
            return self._read_count(found, depth)
        if kind == "CountIf":
            return Aggregate(
                "FILTER",
                (
                    Aggregate("count(*)", ()),
                    *self._read_arguments(self._take_arguments(found, "this"), depth),
                ),
            )
        if kind == "Median":
            return Aggregate(
                "quantile_cont",
                (*self._read_arguments(self._take_arguments(found, "this"), depth), _HALF),
            )
        if kind in _QUANTILES:
            name, share = _QUANTILES[kind]
            node = Aggregate(
                name, self._read_arguments(self._take_arguments(found, "this", share), depth)
            )
            if node.args[1].op != "number" or not 0 <= node.args[1].args[0] <= 1:
                refuse_sql("literals", "a quantile is asked at a literal between 0 and 1")
            return node
        if kind in _TWO:
            return Aggregate(
                _TWO[kind],
                self._read_arguments(self._take_arguments(found, "this", "expression"), depth),
            )
        return Aggregate(
            _ONE[kind], self._read_arguments(self._take_arguments(found, "this"), depth)
        )

    def _read_arguments(self, found: list[Any], depth: int) -> tuple[Node, ...]:
        return tuple(self._read_node(one, depth - 1) for one in found)

    def _read_count(self, found: Any, depth: int) -> Node:
        (what,) = self._take_arguments(found, "this", ignore=("big_int",))
        if what is None or type(what).__name__ == "Star":
            if what is not None:
                self._take_arguments(what)
            return Aggregate("count(*)", ())
        if type(what).__name__ != "Distinct":
            return Aggregate("count", self._read_arguments([what], depth))
        (several,) = self._take_arguments(what, "expressions")
        if len(several) != 1:
            refuse_sql("allow-list", "DISTINCT of several expressions is not in the language")
        return Aggregate("count distinct", self._read_arguments(several, depth))


def _has_aggregate(node: Node) -> bool:
    return isinstance(node, Aggregate) or any(
        _has_aggregate(arg) for arg in node.args if isinstance(arg, Node)
    )


# --- SQL for DuckDB -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ExpressionSql:
    """An expression for DuckDB: ``rows``, what a query of rows gives, and ``value``, the aggregate
    of it.
    """

    rows: tuple[str, ...]
    value: str


def to_sql(node: Node, table: Table, column: Callable[[str], sql.Field]) -> ExpressionSql:
    """The expression, by the columns' types in the catalog.

    Raises `PlanRefused` where types do not fit or a sum has no bounds, `TableUnreadable` where a
    column is missing.
    """
    groups = _Groups(_Rows(_add_predictions(table), column))
    term = groups.write_term(node)
    require_operands(term.family in ("whole", "number"), node, "to be a number")
    return ExpressionSql(tuple(groups.rows), term.double)


def query_arrays(node: Node, table: Table, kinds: Mapping[str, str]) -> str:
    """The query of an expression's ``value`` by ``bucket`` over arrays: the relation ``given`` of
    `dpflow.tables.access.sandbox.open_arrays`.

    Args:
        kinds: of each array after the groups' numbers, the column that it is, and "double" or
        "varchar".
    """
    fields = {
        name: sql.Field(name, kind, kind.upper(), reference=f"t.c{i}")
        for i, (name, kind) in enumerate(kinds.items(), 1)
    }
    written = to_sql(node, table, fields.__getitem__)
    rows = ", ".join(["t.c0 AS bucket", *(f"{row} AS r{i}" for i, row in enumerate(written.rows))])
    return f"SELECT bucket, {written.value} AS value FROM (SELECT {rows} FROM given AS t) GROUP BY bucket"


class _Rows(ConditionRenderer):
    """Row expressions, in which columns are within their declared bounds."""

    def __init__(self, table: Table, column: Callable[[str], sql.Field]) -> None:
        super().__init__(column)
        self.table = table
        self.integers: set[str] = set()  # columns of which every value is a whole number

    def column(self, name: str) -> Term:
        term, declaration = super().column(name), self.table.column(name)
        if term.family not in ("whole", "number"):
            return term
        if declaration.lower is None or declaration.upper is None:
            return (
                term if declaration.missing == "skip" else _fill_missing(term, declaration.missing)
            )
        integer = term.family == "whole" and _is_whole(declaration)
        value, text = (term.sql, _integer_sql) if integer else (term.double, sql.write_double)
        clamped = f"least(greatest({value}, {text(declaration.lower)}), {text(declaration.upper)})"
        # least and greatest pass over NULL, so a missing value would become a bound.
        clamped = f"CASE WHEN {value} IS NOT NULL THEN {clamped} END"
        if declaration.missing != "skip":
            clamped = f"coalesce({clamped}, {text(declaration.missing)})"
        if not integer:
            return Term(clamped, "number")
        self.integers.add(name)
        return Term(f"CAST({clamped} AS BIGINT)", "whole")


def _fill_missing(term: Term, missing: Fraction) -> Term:
    """A number without bounds, or what a missing one is."""
    if term.family == "whole" and missing.denominator == 1 and abs(missing) < 2**62:
        return Term(f"coalesce({term.sql}, {_integer_sql(missing)})", "whole")
    return Term(f"coalesce({term.double}, {sql.write_double(missing)})", "number")


def _is_whole(declared: Column) -> bool:
    """Whether everything a column of integers can be read as is one, of 63 bits."""
    ends = (declared.lower, declared.upper, declared.missing)
    return all(
        end.denominator == 1 and abs(end) < 2**62 for end in ends if isinstance(end, Fraction)
    )


def _integer_sql(value: Fraction) -> str:
    return sql.write_integer(int(value))


@dataclass(frozen=True)
class _Span:
    """What a row expression can be: within [low, high], and perhaps integers only."""

    low: float = -math.inf
    high: float = math.inf
    whole: bool = False

    @property
    def size(self) -> float:
        return max(abs(self.low), abs(self.high))


def _bound_expression(node: Node, rows: _Rows) -> _Span:
    """Bounds of a row expression's value where it has some, by interval arithmetic; its term was
    written before.
    """
    if node.op == "number":
        value = node.args[0]
        return _Span(float(value), float(value), value == value.to_integral_value())
    if node.op == "column":
        name = ".".join(node.args[0])
        declaration = rows.table.column(name)
        if declaration.lower is None or declaration.upper is None:
            return _Span()
        return _Span(float(declaration.lower), float(declaration.upper), name in rows.integers)
    if node.op in ("CASE", "coalesce", "least", "greatest"):
        values = (
            node.args
            if node.op != "CASE"
            else [*node.args[1::2], *node.args[len(node.args) // 2 * 2 :]]
        )
        return _bound_choice(node, [_bound_expression(arg, rows) for arg in values])
    if node.op == "length":
        return _Span(0, math.inf, True)
    spans = [_bound_expression(arg, rows) for arg in node.args if isinstance(arg, Node)]
    low, high = _bound_operator(node.op, spans)
    if math.isnan(low) or math.isnan(high):
        return _Span()
    # Up to 2^53 the DOUBLE that computes whole numbers is exact.
    return _Span(
        low,
        high,
        node.op in ("+", "-", "*", "abs")
        and all(s.whole for s in spans)
        and max(-low, high) < 2**53,
    )


def _bound_choice(node: Node, spans: list[_Span]) -> _Span:
    """One of several values: literals are never NULL, so ``least`` and ``greatest`` cannot pass
    over them.
    """
    low, high = min(s.low for s in spans), max(s.high for s in spans)
    literals = [s for arg, s in zip(node.args, spans) if arg.op == "number"]
    if node.op == "least":
        high = min([high, *(s.high for s in literals)])
    if node.op == "greatest":
        low = max([low, *(s.low for s in literals)])
    return _Span(low, high, all(s.whole for s in spans))


def _bound_operator(op: str, spans: list[_Span]) -> tuple[float, float]:
    """The interval of an operator's value, NaN where there is none."""
    a, b = spans[0], spans[-1]
    if op == "-":
        return (-a.high, -a.low) if len(spans) == 1 else (a.low - b.high, a.high - b.low)
    if op == "+":
        return a.low + b.low, a.high + b.high
    if op in ("*", "/"):
        if op == "/":
            # A quotient by what may be 0 has no bounds.
            if b.low <= 0 <= b.high:
                return math.nan, math.nan
            b = _Span(1 / b.high, 1 / b.low)
        ends = [x * y for x in (a.low, a.high) for y in (b.low, b.high)]
        return (
            (math.nan, math.nan)
            if any(map(math.isnan, ends))
            else (_widen_end(min(ends)), _widen_end(max(ends)))
        )
    if op == "%":
        return -b.size, b.size
    if op == "abs":
        return (0.0 if a.low <= 0 <= a.high else min(abs(a.low), abs(a.high))), a.size
    if op == "sqrt":
        return 0.0, math.sqrt(max(a.high, 0.0))
    if op == "ln":
        return (
            (_widen_end(math.log(a.low)), _widen_end(math.log(a.high)))
            if a.low > 0
            else (math.nan, math.nan)
        )
    if op == "exp":
        # Beyond about exp(709) there is no finite DOUBLE.
        return 0.0, _widen_end(math.exp(a.high)) if a.high < 700 else math.inf
    return math.nan, math.nan


def _widen_end(end: float) -> float:
    """A little further from 0: two libraries may round a logarithm or a quotient differently."""
    return end * (1 + 2**-40)


class _Groups(ConditionRenderer):
    """Expressions of a group, over row expressions that it collects."""

    def __init__(self, inner: _Rows) -> None:
        self._inner, self._filter = inner, ""
        self.rows: list[str] = []

    def write_term(self, node: Node) -> Term:
        if node.op == "FILTER":
            condition = self._inner.write_term(node.args[1])
            require_operands(condition.family == "truth", node, "a condition")
            self._filter = self._row_name(condition.sql)
            try:
                return self.write_term(node.args[0])
            finally:
                self._filter = ""
        if node.op not in _AGGREGATES:
            return super().write_term(node)
        if node.op.startswith("count"):
            return Term(self._write_count(node), "whole")
        terms = [self._inner.write_term(arg) for arg in node.args]
        require_operands(all(term.family in ("whole", "number") for term in terms), node, "numbers")
        # These, and quantiles, add nothing up over rows, so they need no grid.
        if node.op in ("min", "max"):
            value = f"{node.op}({self._row_name(terms[0].double)})"
        elif node.op.startswith("quantile"):
            value = f"{node.op}({self._row_name(terms[0].double)}, {float(node.args[1].args[0])!r})"
        elif node.op in ("sum", "avg"):
            return Term(self._write_sum(node, terms[0]), "number")
        else:
            return Term(self._write_moment(node, terms), "number")
        return Term(f"nullif({value}{self._filter_clause()}, CAST('NaN' AS DOUBLE))", "number")

    def _row_name(self, text: str) -> str:
        """A row expression's name in the query of groups."""
        if text not in self.rows:
            self.rows.append(text)
        return f"r{self.rows.index(text)}"

    def _filter_clause(self, *also: str) -> str:
        conditions = [*([self._filter] if self._filter else []), *also]
        return f" FILTER (WHERE {' AND '.join(conditions)})" if conditions else ""

    def _write_count(self, node: Node) -> str:
        if not node.args:
            return f"count(*){self._filter_clause()}"
        term = self._inner.write_term(node.args[0])
        # As bytes: DISTINCT by a collation would take different texts for one.
        row = self._row_name(f"encode({term.sql})" if term.family == "text" else term.sql)
        return f"count({'DISTINCT ' if node.op == 'count distinct' else ''}{row}){self._filter_clause()}"

    def _write_grid(self, node: Node, arg: Node, term: Term, bits: int) -> tuple[str, float]:
        """A row expression as an integer of so many bits, and the step that it counts; NULL where
        it has no value.
        """
        # Bounds follow from declaration and text, so they are the same for neighbouring tables.
        span = _bound_expression(arg, self._inner)
        if not span.size < math.inf:
            raise PlanRefused(
                f"the SQL breaks the rule 'bounds': {node.op} adds up {str(arg)[:80]}, whose bounds are not known; declare lower and "
                f"upper of its columns, or write least(greatest(x, low), high)"
            )
        whole = span.whole or term.family == "whole"
        # size < 2^e by frexp, so the scaled value has at most the bits; below 2^-900 the factor
        # would come near the end of DOUBLEs.
        shift = (
            0 if whole and span.size <= 2**bits else bits - math.frexp(max(span.size, 2.0**-900))[1]
        )
        row = self._row_name(f"TRY_CAST({_scale_term(term, shift, whole)} AS BIGINT)")
        return row, math.ldexp(1.0, -shift)

    def _write_sum(self, node: Node, term: Term) -> str:
        row, step = self._write_grid(node, node.args[0], term, SUM_BITS)
        # DuckDB adds BIGINTs up in a HUGEINT: no table has rows enough to overflow it.
        total = f"CAST(sum({row}){self._filter_clause()} AS DOUBLE)"
        if node.op == "avg":
            total = f"({total} / nullif(CAST(count({row}){self._filter_clause()} AS DOUBLE), 0))"
        return _multiply_sql(total, step)

    def _write_moment(self, node: Node, terms: list[Term]) -> str:
        """Of rows in which all arguments have values, with n and the exact integers n sum(xy) -
        sum(x) sum(y).
        """
        # Products have 60 bits, so n times their sum has at most 126 for 2^33 rows.
        grids = [
            self._write_grid(node, arg, term, PRODUCT_BITS) for arg, term in zip(node.args, terms)
        ]
        (x, x_step), (y, y_step) = grids[0], grids[-1]
        where = self._filter_clause(*(f"{row} IS NOT NULL" for row, _ in dict(grids).items()))
        n = f"count(*){where}"

        def spread(a: str, b: str) -> str:
            exact = (
                f"CAST({n} AS HUGEINT) * sum({a} * {b}){where} - sum({a}){where} * sum({b}){where}"
            )
            return f"CAST({exact} AS DOUBLE)"

        if node.op == "corr":
            return f"({spread(x, y)} / nullif(sqrt({spread(x, x)} * {spread(y, y)}), 0))"
        if node.op == "regr_slope":  # of the first on the second
            return _multiply_sql(f"({spread(x, y)} / nullif({spread(y, y)}, 0))", x_step / y_step)
        pairs = f"(CAST({n} AS DOUBLE) * CAST({n}{'' if node.op.endswith('pop') else ' - 1'} AS DOUBLE))"
        value = f"({spread(x, y)} / nullif({pairs}, 0))"
        return (
            _multiply_sql(f"sqrt({value})", x_step)
            if node.op.startswith("stddev")
            else _multiply_sql(value, x_step * y_step)
        )


def _scale_term(term: Term, shift: int, whole: bool) -> str:
    if whole and shift == 0:
        return term.sql
    return f"round({_multiply_sql(term.double, math.ldexp(1.0, shift))})"


def _multiply_sql(value: str, factor: float) -> str:
    return value if factor == 1 else f"({value} * CAST('{factor!r}' AS DOUBLE))"
