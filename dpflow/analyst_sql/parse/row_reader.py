"""Row expressions of a query: the declared language, whose refusals know their position."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from sqlglot import exp

from dpflow.analyst_sql.parse.canonical_conditions import rewrite_node
from dpflow.analyst_sql.parse.parsed_parts import take_arguments
from dpflow.analyst_sql.parse.private_rows import PrivateRows
from dpflow.analyst_sql.parse.source_text import Refusal, refusal_of
from dpflow.core.contract.declaration import Table
from dpflow.errors import PlanRefused, UnknownName
from dpflow.tables.language.conditions import Reader
from dpflow.tables.language.grouping import parse_row_expression
from dpflow.tables.language.nodes import MOST_DEPTH, Node


class RowReader(Reader):
    """Copies parsed row expressions into the declared language.

    Names are those of DuckDB: in any case, quoted or not; of the table by its name or alias; of a
    declared join by the join's name, or alone where one relation only has it. Names of a CTE or
    subquery stand for its expressions.
    """

    def __init__(self, source: PrivateRows) -> None:
        super().__init__("", source.table)
        self._source = source

    def read(self, parsed: Any) -> Node:
        """One row expression. Raises `Refusal`."""
        try:
            return self._read_node(parsed, MOST_DEPTH)
        except RecursionError:
            raise Refusal("depth", "it is nested too deeply to be read", parsed) from None

    def _read_node(self, parsed: Any, depth: int) -> Node:
        # The innermost call sees the refusal first, so it knows the part that is meant.
        try:
            if isinstance(parsed, exp.AggFunc):
                raise Refusal(
                    "nested-aggregates",
                    "an aggregate stands where one row is looked at; conditions on aggregates are "
                    "HAVING's, and an aggregate of another one is a subquery's",
                    parsed,
                )
            inner = parsed.args.get("query") if isinstance(parsed, exp.In) else parsed
            if isinstance(inner, exp.Query | exp.Subquery | exp.Exists):
                raise Refusal(
                    "subqueries",
                    "a condition on rows cannot read another query: what it released would have to be paid first",
                    parsed,
                )
            return rewrite_node(super()._read_node(parsed, depth))
        except (PlanRefused, UnknownName) as error:
            raise refusal_of(error, parsed, "declared-columns") from None

    def _read_column(self, parsed: Any, depth: int) -> Node:
        columns = self._source.columns
        if columns is None:
            return Node("column", (self._table.split_name(self.resolve(parsed)),))
        return columns[self.resolve(parsed)]

    def is_unit(self, parsed: Any) -> bool:
        """Whether a parsed part is the privacy unit's column."""
        return self._is_own(parsed, self._source.units)

    def is_block(self, parsed: Any) -> bool:
        """Whether a parsed part is the column that says a row's block."""
        return self._is_own(parsed, self._source.block_names)

    def is_declared(self, parsed: Any) -> bool:
        """Whether the relation has a readable column of this name."""
        names = self._table.columns if self._source.columns is None else self._source.columns
        return any(name.casefold() == parsed.name.casefold() for name in names)

    def has_column(self, parsed: Any) -> bool:
        """Whether the relation has a column of this name, readable or not."""
        return self.is_declared(parsed) or self.is_unit(parsed) or self.is_block(parsed)

    def _is_own(self, parsed: Any, names: Collection[str]) -> bool:
        return (
            isinstance(parsed, exp.Column)
            and parsed.name.casefold() in names
            # A joined relation's column of this name is another one.
            and parsed.table.casefold() in ("", self._source.alias)
        )

    def resolve(self, parsed: Any) -> str:
        """The column that a name means. Raises `Refusal`."""
        take_arguments(parsed, "this", "table")
        if not isinstance(parsed.this, exp.Identifier):
            raise Refusal("declared-columns", "* is no column; name the columns", parsed)
        source = self._source
        qualifier, name = parsed.table, parsed.name
        if qualifier.casefold() == source.alias:
            qualifier = ""
        qualifier = source.relations.get(qualifier.casefold(), qualifier)
        full = f"{qualifier}.{name}" if qualifier else name
        if source.columns is not None:
            matches = [one for one in source.columns if one.casefold() == full.casefold()]
            if matches:
                return matches[0]
            raise _unknown_column(parsed, f"the query {source.alias!r}", full, list(source.columns))
        if full in self._table.columns:
            return full
        matches = [one for one in self._table.columns if one.casefold() == full.casefold()]
        if not matches and not qualifier:
            # As in SQL: a joined column needs no qualifier where one relation only has it.
            joined = [one for one in self._table.columns if len(self._table.split_name(one)) > 1]
            matches = [one for one in joined if one.partition(".")[2].casefold() == name.casefold()]
        if len(matches) > 1:
            raise Refusal(
                "ambiguous-columns",
                f"{name!r} may be {' or '.join(matches)}; write which",
                parsed,
            )
        if not matches:
            columns = list(self._table.columns)
            raise _unknown_column(parsed, f"table {self._table.name!r}", full, columns)
        return matches[0]


def _unknown_column(parsed: Any, of: str, name: str, columns: list[str]) -> Refusal:
    error = UnknownName(f"column of {of}", name, columns)
    return Refusal("declared-columns", str(error), parsed)


def inline_expressions(node: Node, table: Table) -> Node:
    """The expression over stored columns alone: what an owner declared as a computed column is
    written out.
    """
    if node.op == "column":
        column = table.column(".".join(node.args[0]))
        return node if column.expression is None else parse_row_expression(column.expression, table)
    args = tuple(inline_expressions(a, table) if isinstance(a, Node) else a for a in node.args)
    return Node(node.op, args)
