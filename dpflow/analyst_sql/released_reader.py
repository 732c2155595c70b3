"""Reads a SELECT over what other queries released."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlglot import exp

from dpflow.analyst_sql.output_reader import (
    MOST_COLUMNS,
    MOST_DEPTH,
    OutputReader,
    ReadSubquery,
    add_column,
    name_column,
    strip_alias,
    strip_brackets,
    take_arguments,
)
from dpflow.analyst_sql.released_query import ReleasedQuery, ReleasedSource
from dpflow.analyst_sql.select_query import OutputExpression
from dpflow.analyst_sql.source_text import Refusal
from dpflow.analyst_sql.statement import CLAUSES, SOURCES
from dpflow.errors import UnknownName

#: Aggregates of released rows by what sqlglot calls them.
_AGGREGATES = {"Sum": "sum", "Avg": "avg", "Min": "min", "Max": "max", "Median": "median"}


@dataclass(frozen=True)
class NamedColumn:
    """A column of FROM: the alias of its relation, and its name."""

    relation: str
    name: str
    #: USING names it: without a qualifier, the column of the relation before is meant.
    hidden: bool = False


class ReleasedRowReader(OutputReader):
    """Reads expressions over single released rows: WHERE, ON, groups, and columns without groups."""

    def __init__(
        self,
        parsed: Any,
        items: Sequence[Any],
        columns: Sequence[NamedColumn],
        read_subquery: ReadSubquery,
    ) -> None:
        super().__init__(parsed, items, read_subquery)
        self.columns = list(columns)

    def find_leaf(self, parsed: Any) -> OutputExpression | None:
        """A column of FROM."""
        if isinstance(parsed, exp.AggFunc | exp.Filter | exp.WithinGroup):
            raise Refusal(
                "nested-aggregates",
                "an aggregate stands where one row is looked at; conditions on aggregates are HAVING's",
                parsed,
            )
        if not isinstance(parsed, exp.Column):
            return None
        position = self.find_column(parsed)
        return None if position is None else OutputExpression("input", (position,))

    def find_column(self, parsed: Any) -> int | None:
        """The position of the column that a name means; None if there is none. Raises `Refusal`."""
        if not isinstance(parsed.this, exp.Identifier):
            return None
        name, relation = parsed.name.casefold(), parsed.table.casefold()
        matches = [
            position
            for position, one in enumerate(self.columns)
            if one.name.casefold() == name
            if (one.relation == relation if relation else not one.hidden)
        ]
        if len(matches) > 1:
            relations = [self.columns[position].relation for position in matches]
            raise Refusal(
                "ambiguous-columns",
                f"{parsed.name!r} may be of {' or '.join(relations)}; write which",
                parsed,
                lambda: parsed.set("table", exp.to_identifier(relations[0])),
            )
        return matches[0] if matches else None

    def refuse_column(self, parsed: Any) -> Refusal:
        """A name that no relation of FROM has."""
        names = [one.name for one in self.columns]
        relation = parsed.table.casefold()
        if relation and relation not in {one.relation for one in self.columns}:
            return Refusal(
                "declared-columns",
                f"FROM has no {parsed.table!r} here; a query in brackets is computed once and sees its own FROM alone, so "
                f"join what it is compared with",
                parsed,
            )
        error = UnknownName("column of the queries in FROM, named", parsed.name, names)
        return Refusal("declared-columns", str(error), parsed)

    def expand_stars(self, items: Sequence[Any]) -> list[tuple[str, Any]]:
        """Names and parsed expressions of the answer's columns; of ``*`` its positions."""
        expanded: list[tuple[str, Any]] = []
        for item in items:
            inner = strip_alias(item)
            relation = None
            if isinstance(inner, exp.Star):
                take_arguments(inner)
                relation = ""
            elif isinstance(inner, exp.Column) and isinstance(inner.this, exp.Star):
                take_arguments(inner.this)
                relation = inner.table.casefold()
            if relation is None:
                name = item.alias if isinstance(item, exp.Alias) else name_column(inner)
                expanded.append((name, inner))
                continue
            star_columns = [
                (one.name, OutputExpression("input", (position,)))
                for position, one in enumerate(self.columns)
                if (one.relation == relation if relation else not one.hidden)
            ]
            if not star_columns:
                raise Refusal("declared-table", f"FROM has no {inner.table!r}", inner)
            expanded += star_columns
        if len(expanded) > MOST_COLUMNS:
            raise Refusal("length", f"it has more than {MOST_COLUMNS} columns", items[-1])
        return expanded


class ReleasedGroupReader(OutputReader):
    """Reads expressions over groups of released rows."""

    def __init__(
        self,
        parsed: Any,
        items: Sequence[Any],
        rows: ReleasedRowReader,
        groups: Sequence[OutputExpression],
    ) -> None:
        super().__init__(parsed, items, rows.read_subquery)
        self._rows, self._groups = rows, groups

    def find_leaf(self, parsed: Any) -> OutputExpression | None:
        """A grouping expression, or an aggregate of released rows."""
        if isinstance(parsed, exp.AggFunc | exp.Filter | exp.WithinGroup):
            return self._read_aggregate(parsed)
        if self._groups and not isinstance(parsed, exp.Literal | exp.Subquery):
            try:
                output = self._rows.read_output(parsed, MOST_DEPTH)
            except Refusal:
                return None
            if output in self._groups:
                return OutputExpression("key", (list(self._groups).index(output),))
        return None

    def refuse_column(self, parsed: Any) -> Refusal:
        """A column outside of aggregates that nothing groups by."""
        if self._rows.find_column(parsed) is None:
            return self._rows.refuse_column(parsed)
        return Refusal(
            "grouped-columns",
            f"column {parsed.name!r} is neither grouped by nor inside an aggregate",
            parsed,
            lambda: self._parsed.group_by(parsed.copy(), copy=False),
        )

    def _read_aggregate(self, parsed: Any) -> OutputExpression:
        call, condition = parsed, None
        if isinstance(parsed, exp.Filter):
            call = parsed.this
            condition = self._rows.read_output(parsed.expression.this, MOST_DEPTH)
        kind = type(call).__name__
        if kind == "Count":
            (what,) = take_arguments(call, "this", ignore=("big_int",))
            if what is None or isinstance(what, exp.Star):
                return OutputExpression("rows", ("count", None, condition))
            name = "count"
            if isinstance(what, exp.Distinct):
                (values,) = take_arguments(what, "expressions")
                if len(values) != 1:
                    raise Refusal("distinct-unit", "COUNT(DISTINCT ...) takes one value", what)
                name, what = "distinct", values[0]
        elif kind in _AGGREGATES:
            (what,) = take_arguments(call, "this")
            name = _AGGREGATES[kind]
        else:
            raise Refusal(
                "aggregates",
                f"{kind.upper()} of released rows is not computed; there are COUNT, SUM, AVG, MIN, MAX and MEDIAN",
                call,
                lambda: call.replace(exp.Count(this=exp.Star())),
            )
        if isinstance(what, exp.Distinct):
            raise Refusal(
                "distinct-unit",
                "of DISTINCT values of released rows there is COUNT only",
                what,
                lambda: what.replace(what.expressions[0]),
            )
        value = self._rows.read_output(what, MOST_DEPTH)
        return OutputExpression("rows", (name, value, condition))


def read_released(
    parsed: Any,
    sources: Sequence[ReleasedSource],
    rows: ReleasedRowReader,
) -> ReleasedQuery:
    """A SELECT whose FROM is read. Raises `Refusal`."""
    items, where, group, having, order, limit, offset = take_arguments(
        parsed, *CLAUSES, ignore=SOURCES
    )
    expanded = rows.expand_stars(items)
    condition = None if where is None else rows.read_output(where.this, MOST_DEPTH)
    parsed_outputs = [part for _, part in expanded if isinstance(part, exp.Expression)]
    parsed_outputs += [clause for clause in (having, order) if clause is not None]
    grouped = group is not None or any(_has_aggregate(part) for part in parsed_outputs)
    reader: OutputReader = rows
    groups: tuple[OutputExpression, ...] | None = None
    if grouped:
        groups = tuple(_read_groups(group, expanded, rows))
        reader = ReleasedGroupReader(parsed, items, rows, groups)
    elif having is not None:
        raise Refusal("aggregates", "HAVING goes with groups or aggregates", having)
    columns: dict[str, OutputExpression] = {}
    for name, part in expanded:
        output = part
        if isinstance(part, exp.Expression):
            output = reader.read_output(part, MOST_DEPTH)
        elif groups is not None:
            if part not in groups:
                raise Refusal("grouped-columns", f"column {name!r} of * is not grouped by", parsed)
            output = OutputExpression("key", (groups.index(part),))
        add_column(columns, name, output)
    outputs = tuple(columns.items())
    return ReleasedQuery(
        tuple(sources),
        outputs,
        condition,
        groups,
        None if having is None else reader.read_output(having.this, MOST_DEPTH),
        tuple(reader.read_order(order, outputs)),
        reader.read_number(limit, "LIMIT"),
        reader.read_number(offset, "OFFSET") or 0,
    )


def _has_aggregate(parsed: Any) -> bool:
    """Whether it has an aggregate that is not one of a query in brackets."""
    inside = (exp.Subquery, exp.Window)
    parts = parsed.walk(prune=lambda part: isinstance(part, inside))
    return any(isinstance(part, exp.AggFunc) for part in parts)


def _read_groups(
    group: Any, expanded: Sequence[tuple[str, Any]], rows: ReleasedRowReader
) -> list[OutputExpression]:
    if group is None:
        return []
    parts, everything = take_arguments(group, "expressions", "all")
    if everything:
        parts = [
            part
            for _, part in expanded
            if not isinstance(part, exp.Expression)
            or not (_has_aggregate(part) or isinstance(part, exp.Literal))
        ]
    groups: list[OutputExpression] = []
    for part in parts:
        group_part = strip_brackets(part) if isinstance(part, exp.Expression) else part
        if isinstance(group_part, exp.Literal) and not group_part.is_string:
            position = int(group_part.this) if str(group_part.this).isdecimal() else 0
            if not 1 <= position <= len(expanded):
                raise Refusal(
                    "positions", f"there is no column number {group_part.this}", group_part
                )
            group_part = expanded[position - 1][1]
        elif isinstance(group_part, exp.Rollup | exp.Cube | exp.GroupingSets | exp.Tuple):
            raise Refusal(
                "grouping-sets", "released rows are grouped by one list of expressions", group_part
            )
        output = (
            rows.read_output(group_part, MOST_DEPTH)
            if isinstance(group_part, exp.Expression)
            else group_part
        )
        if output not in groups:
            groups.append(output)
    return groups
