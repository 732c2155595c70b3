"""GoogleSQL's ``SUM(x, contribution_bounds_per_group => (low, high))``: what one privacy unit adds to a group is clamped.

It is a sum over a query by unit and group, whose rows are clamped.
"""

from __future__ import annotations

from typing import Any

from sqlglot import exp

from dpflow.analyst_sql.parse.parsed_parts import strip_brackets, take_arguments
from dpflow.analyst_sql.parse.private_rows import PrivateRows
from dpflow.analyst_sql.parse.row_reader import RowReader
from dpflow.analyst_sql.parse.select_reader import name_column
from dpflow.analyst_sql.parse.source_text import Refusal
from dpflow.analyst_sql.parse.unit_reader import list_groups, read_unit_rows

#: What such a sum and such a count are called between text and tree: no function of DuckDB is.
_CALLS = {"dpflow_group_sum": exp.Sum, "dpflow_group_count": exp.Count}


def has_group_bounds(parsed: Any) -> bool:
    """Whether a SELECT has such an aggregate of its own."""
    clauses = [*parsed.expressions, *(parsed.args.get(name) for name in ("having", "order"))]
    return any(
        _is_clamped(part)
        for clause in clauses
        if clause is not None
        for part in clause.walk(prune=lambda one: isinstance(one, exp.Query | exp.Subquery))
    )


def _is_clamped(part: Any) -> bool:
    return isinstance(part, exp.Anonymous) and part.name.casefold() in _CALLS


def spell_group_bounds(parsed: Any, source: PrivateRows) -> tuple[Any, PrivateRows]:
    """The SELECT over a query by privacy unit and group, and that query's rows. Raises `Refusal`."""
    groups: list[Any] = []
    if (group := parsed.args.get("group")) is not None:
        take_arguments(group, "expressions", "all")
        groups = list_groups(parsed, RowReader(source))
    if not source.units:
        raise Refusal(
            "declared-columns",
            f"contribution_bounds_per_group needs the column {source.table.privacy_unit.column!r} in the query below",
            parsed,
        )
    unit = exp.column(exp.to_identifier(min(source.units), quoted=True))
    inner = exp.Select(
        expressions=[unit], where=parsed.args.get("where"), from_=parsed.args["from_"]
    )
    inner.set("group", exp.Group(expressions=[unit.copy(), *(part.copy() for part in groups)]))
    names = [exp.to_identifier(f"group {n}", quoted=True) for n in range(len(groups))]
    for part, name in zip(groups, names):
        inner.append("expressions", exp.alias_(part.copy(), name.copy()))
    features: list[Any] = []

    def rewrite(part: Any) -> Any:
        if part in groups:
            return exp.column(names[groups.index(part)].copy())
        if _is_clamped(part):
            return _clamp(part, features)
        if isinstance(part, exp.Count) and isinstance(part.this, exp.Distinct):
            counted = [strip_brackets(one) for one in part.this.expressions]
            if len(counted) == 1 and RowReader(source).is_unit(counted[0]):
                # A group has one row of each of its units.
                return exp.Count(this=exp.Star())
        if isinstance(part, exp.AggFunc):
            raise Refusal(
                "aggregates",
                "beside contribution_bounds_per_group each SUM and COUNT has such bounds, or counts the privacy unit; ask for "
                "others in a query of their own",
                part,
            )
        return part

    outer = parsed.copy()
    outer.set("where", None)
    for item in outer.expressions:
        if not isinstance(item, exp.Alias):
            item.replace(exp.alias_(item.copy(), exp.to_identifier(name_column(item), quoted=True)))
    for item in outer.expressions:
        item.set("this", item.this.transform(rewrite))
    for clause in ("having", "order", "qualify"):
        if (condition := outer.args.get(clause)) is not None:
            outer.set(clause, condition.transform(rewrite))
    if groups:
        outer.set("group", exp.Group(expressions=[exp.column(name.copy()) for name in names]))
    for n, feature in enumerate(features):
        inner.append("expressions", exp.alias_(feature, _name_feature(n)))
    return outer, read_unit_rows(inner, source)


def _name_feature(position: int) -> Any:
    return exp.to_identifier(f"sum {position}", quoted=True)


def _clamp(call: Any, features: list[Any]) -> Any:
    """The sum of a unit's clamped numbers; a unit without any adds nothing."""
    arguments = call.expressions
    ends = arguments[1:]
    numbers = [number for end in ends if (number := _read_end(end)) is not None]
    if len(ends) != 2 or len(numbers) != 2 or numbers != sorted(numbers):
        raise Refusal(
            "literals",
            "contribution_bounds_per_group takes two numbers, the lower one first, such as (0, 100)",
            call,
        )
    feature = _CALLS[call.name.casefold()](this=arguments[0].copy())
    if feature not in features:
        features.append(feature)
    value = exp.column(_name_feature(features.index(feature)))
    at_least = exp.Greatest(this=value.copy(), expressions=[ends[0].copy()], ignore_nulls=True)
    clamped = exp.Least(this=at_least, expressions=[ends[1].copy()], ignore_nulls=True)
    test = exp.Not(this=exp.Is(this=value, expression=exp.Null()))
    return exp.Sum(this=exp.Case(ifs=[exp.If(this=test, true=clamped)]))


def _read_end(parsed: Any) -> float | None:
    literal = parsed.this if isinstance(parsed, exp.Neg) else parsed
    if not isinstance(literal, exp.Literal) or literal.is_string:
        return None
    return -float(literal.this) if literal is not parsed else float(literal.this)
