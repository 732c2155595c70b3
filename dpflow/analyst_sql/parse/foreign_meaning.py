"""Which parts of other dialects mean in DuckDB what they say. sqlglot writes a name that it does not translate as it is,
and DuckDB may have another function under it, so what is not listed here is refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from sqlglot import exp

from dpflow.tables.language.conditions import CLAMPED

#: Clauses, operators and functions that mean the same, or are written so that they do.
_SAME = frozenset((
    exp.Select, exp.From, exp.Join, exp.Where, exp.Group, exp.Having, exp.Order, exp.Ordered, exp.Limit, exp.With,
    exp.CTE, exp.Subquery, exp.Table, exp.TableAlias, exp.Alias, exp.Column, exp.Identifier, exp.Dot, exp.Star,
    exp.Literal, exp.Boolean, exp.Null, exp.Paren, exp.Tuple, exp.Distinct, exp.Union, exp.Intersect, exp.Except,
    exp.Window, exp.WindowSpec, exp.Filter, exp.Qualify, exp.Rollup, exp.Cube, exp.GroupingSets, exp.Grouping,
    exp.Values, exp.Case, exp.If, exp.Coalesce, exp.Nullif, exp.And, exp.Or, exp.Not, exp.EQ, exp.NEQ, exp.LT,
    exp.LTE, exp.GT, exp.GTE, exp.NullSafeEQ, exp.NullSafeNEQ, exp.EqualNull, exp.Is, exp.In, exp.Between,
    exp.Exists, exp.Add, exp.Sub, exp.Mul, exp.Div, exp.Neg, exp.Mod, exp.DPipe, exp.Var, exp.DataType,
    exp.DataTypeParam, exp.Escape, exp.WeekStart, exp.Count, exp.CountIf, exp.Sum, exp.Avg, exp.Min, exp.Max,
    exp.Stddev, exp.StddevPop, exp.StddevSamp, exp.Variance, exp.VariancePop, exp.Corr, exp.CovarSamp, exp.CovarPop,
    exp.RegrSlope, exp.LogicalAnd, exp.LogicalOr, exp.ApproxDistinct, exp.ApproxQuantile, exp.ApproxQuantiles,
    exp.PercentileCont, exp.PercentileDisc, exp.Median, exp.RowNumber, exp.Rank, exp.DenseRank, exp.PercentRank,
    exp.CumeDist, exp.Ntile, exp.Lag, exp.Lead, exp.FirstValue, exp.LastValue, exp.NthValue, exp.Abs, exp.Floor,
    exp.Ceil, exp.Sqrt, exp.Exp, exp.Ln, exp.Pow, exp.Sign, exp.SafeDivide, exp.Greatest, exp.Least, exp.Upper,
    exp.Lower, exp.Length, exp.Concat, exp.Replace, exp.StartsWith, exp.EndsWith, exp.Contains, exp.DateAdd,
    exp.DateSub, exp.DateFromParts, exp.Year, exp.Month, exp.Quarter, exp.Day, exp.DayOfMonth, exp.DayOfYear,
    exp.DayOfWeekIso, exp.Hour, exp.Dayname, exp.Monthname, exp.Kwarg,
))  # fmt: skip
_UNITS = frozenset(("YEAR", "QUARTER", "MONTH", "DAY", "HOUR", "MINUTE", "SECOND"))
_WEEKS = frozenset(("WEEK", "ISOWEEK", "WEEK(SUNDAY)", "WEEK(MONDAY)"))
#: Parts of a date by what `EXTRACT` calls them; weeks and days of a week begin on other days in BigQuery.
_PARTS = frozenset(
    ("YEAR", "QUARTER", "MONTH", "DAY", "DOY", "DAYOFYEAR", "ISOYEAR", "HOUR", "MINUTE")
)
_MORE_PARTS = {
    "bigquery": frozenset(("ISOWEEK",)),
    "snowflake": frozenset(("DOW", "DAYOFWEEK", "ISODOW", "DAYOFWEEKISO", "WEEK", "WEEKISO")),
    "postgres": frozenset(("DOW", "DAYOFWEEK", "ISODOW", "WEEK")),
}
#: `LIKE` and regular expressions read a backslash otherwise; a text in brackets with ``?`` is of one kind of expression.
_SPECIAL = re.compile(r"\\|\(\?")
_FORMAT = re.compile(r"(%[YmdHMSj]|[-/:. _])*")


def find_foreign(tree: Any, dialect: str) -> str:
    """The first part of a query that DuckDB may understand otherwise, as it is written; "" if there is none."""
    for node in tree.walk():
        check = _CHECKS.get(type(node))
        if not (type(node) in _SAME if check is None else check(node, dialect)):
            return str(node.sql(dialect, comments=False))
    return ""


def is_clamped(node: Any) -> bool:
    """Whether a part is a call such as ``SUM(x, contribution_bounds_per_group => (0, 100))``."""
    is_call = isinstance(node, exp.Anonymous) and node.name in CLAMPED
    return is_call and any(isinstance(one, exp.Kwarg) for one in node.expressions)


def spell_alike(node: exp.Expression) -> exp.Expression:
    """A part as DuckDB's writer has it right: a rank as a function of two arguments, and a number without a
    precision, which DuckDB would round to thousandths, as a double. What it would write as a CASE that is not in the
    language of rows is one that is, or the function itself.
    """
    if isinstance(node, exp.WithinGroup):
        (ordered,) = node.expression.expressions
        name = "quantile_cont" if isinstance(node.this, exp.PercentileCont) else "quantile_disc"
        arguments = [ordered.this.transform(spell_alike), node.this.this]
        return exp.Anonymous(this=name, expressions=arguments)
    if (
        isinstance(node, exp.DataType)
        and node.this == exp.DataType.Type.DECIMAL
        and not node.expressions
    ):
        return exp.DataType.build("double")
    if isinstance(node, exp.Length | exp.Substring):
        listed = (node.this, node.args.get("start"), node.args.get("length"))
        arguments = [one.transform(spell_alike) for one in listed if one is not None]
        return exp.Anonymous(this=node.sql_name(), expressions=arguments)
    if isinstance(node, exp.Greatest | exp.Least) and not node.args.get("ignore_nulls"):
        arguments = [one.transform(spell_alike) for one in (node.this, *node.expressions)]
        present = [one.is_(exp.null()).not_() for one in arguments if not one.is_number]
        largest = type(node)(this=arguments[0], expressions=arguments[1:], ignore_nulls=True)
        return exp.case().when(exp.and_(*present), largest) if present else largest
    return node


def _has_text(node: Any, is_fit: Callable[[str], bool]) -> bool:
    return isinstance(node, exp.Literal) and node.is_string and is_fit(node.name)


def _is_number(node: Any, least: int) -> bool:
    return (
        isinstance(node, exp.Literal)
        and not node.is_string
        and node.name.isdigit()
        and int(node.name) >= least
    )


def _has_unit(node: Any, dialect: str) -> bool:
    unit = node.args.get("unit")
    name = "" if unit is None else str(unit.name or unit.this.name).upper()
    if isinstance(unit, exp.WeekStart):
        name = f"WEEK({name})"
    return name in _UNITS or name in _WEEKS


def _matches_alike(node: Any, dialect: str) -> bool:
    """Whether a pattern has no character that dialects read in several ways."""
    special = _SPECIAL if dialect != "bigquery" or isinstance(node, exp.Like) else re.compile("$.")
    return _has_text(node.expression, lambda text: not special.search(text))


def _is_simple(node: Any, _: str) -> bool:
    """Whether a function has its first argument alone: no time zone, no format and no unit."""
    return [name for name, value in node.args.items() if value] == ["this"]


def _ranks_alike(node: Any, _: str) -> bool:
    (ordered,) = node.expression.expressions
    return isinstance(node.this, exp.PercentileCont | exp.PercentileDisc) and not ordered.args.get(
        "desc"
    )


def _casts_alike(node: Any, dialect: str) -> bool:
    """Fractions become integers by rules that differ where they end in 5, and texts in each database's own way."""
    to, of = node.to.this, node.this
    if to in exp.DataType.INTEGER_TYPES:
        whole = exp.Count | exp.CountIf | exp.Floor | exp.Ceil | exp.Extract | exp.Literal
        return dialect == "postgres" or isinstance(of, whole)
    kinds = exp.DataType.REAL_TYPES | {exp.DataType.Type.DATE, exp.DataType.Type.TIMESTAMP}
    # Snowflake's REAL has the digits of a double.
    return to in kinds and (dialect != "snowflake" or to != exp.DataType.Type.FLOAT)


#: What means the same with some arguments, or in some dialects.
_CHECKS: dict[type, Callable[[Any, str], bool]] = {
    exp.Like: _matches_alike,
    exp.ILike: _matches_alike,
    exp.RegexpLike: _matches_alike,
    exp.RegexpILike: _matches_alike,
    exp.Extract: lambda node, dialect: node.name.upper() in _PARTS | _MORE_PARTS[dialect],
    exp.DateTrunc: _has_unit,
    exp.TimestampTrunc: _has_unit,
    exp.DateDiff: _has_unit,
    exp.DatetimeDiff: _has_unit,
    exp.DayOfWeek: lambda _, dialect: dialect == "snowflake",
    exp.Week: lambda _, dialect: dialect == "snowflake",
    exp.TimeToStr: lambda node, _: _has_text(node.args.get("format"), lambda text: bool(_FORMAT.fullmatch(text))),
    exp.Interval: lambda node, _: isinstance(node.this, exp.Literal),
    exp.Date: _is_simple,
    exp.TsOrDsToDate: _is_simple,
    exp.TsOrDsToTimestamp: _is_simple,
    exp.LastDay: _is_simple,
    exp.WithinGroup: _ranks_alike,
    exp.Anonymous: lambda node, _: is_clamped(node),
    exp.Cast: _casts_alike,
    exp.TryCast: _casts_alike,
    # PostgreSQL rounds doubles that end in 5 to the even neighbour.
    exp.Round: lambda node, dialect: dialect != "postgres" or node.args.get("decimals") is not None,
    exp.Substring: lambda node, _: _is_number(node.args.get("start"), 1)
    and _is_number(node.args.get("length") or exp.Literal.number(0), 0),
    exp.Left: lambda node, _: _is_number(node.expression, 0),
    exp.Right: lambda node, _: _is_number(node.expression, 0),
    # BigQuery takes off all white space.
    exp.Trim: lambda node, dialect: dialect != "bigquery" and node.expression is None,
}  # fmt: skip
