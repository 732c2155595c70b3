"""Row expressions of a query: the declared language, whose refusals know their position."""

from __future__ import annotations

from typing import Any

from sqlglot import exp

from dpflow.analyst_sql.source_text import Refusal, refusal_of
from dpflow.core.contract.declaration import Table
from dpflow.errors import PlanRefused, UnknownName
from dpflow.tables.language.conditions import Reader
from dpflow.tables.language.grouping import parse_row_expression
from dpflow.tables.language.nodes import MOST_DEPTH, Node


class RowReader(Reader):
    """Copies parsed row expressions into the declared language.

    Names are those of DuckDB: in any case, quoted or not; of the table by its name or alias; of a
    declared join by the join's name, or alone where one relation only has it.
    """

    def __init__(self, table: Table, alias: str) -> None:
        super().__init__("", table)
        #: How the table's own columns may be qualified, in lower case.
        self.alias = alias.casefold()

    def read(self, parsed: Any) -> Node:
        """One row expression. Raises `Refusal`."""
        try:
            return self._read_node(parsed, MOST_DEPTH)
        except RecursionError:
            raise Refusal("depth", "it is nested too deeply to be read", parsed) from None

    def _read_node(self, found: Any, depth: int) -> Node:
        # The innermost call sees the refusal first, so it knows the part that is meant.
        try:
            if isinstance(found, exp.AggFunc):
                raise Refusal(
                    "nested-aggregates",
                    "an aggregate stands where one row is looked at; conditions on aggregates are "
                    "HAVING's, and an aggregate of another one is a subquery's",
                    found,
                )
            inner = found.args.get("query") if isinstance(found, exp.In) else found
            if isinstance(inner, exp.Query | exp.Subquery | exp.Exists):
                raise Refusal(
                    "subqueries",
                    "a condition on rows cannot read another query: what it released would have to be paid first",
                    found,
                )
            return super()._read_node(found, depth)
        except (PlanRefused, UnknownName) as error:
            raise refusal_of(error, found, "declared-columns") from None

    def _read_column(self, found: Any, depth: int) -> Node:
        return Node("column", (self._table.split_name(self.resolve(found)),))

    def resolve(self, found: Any) -> str:
        """The declared column that a name means. Raises `Refusal`."""
        self._take_arguments(found, "this", "table")
        if not isinstance(found.this, exp.Identifier):
            raise Refusal("declared-columns", "* is no column; name the columns", found)
        qualifier, name = found.table, found.name
        if qualifier.casefold() == self.alias:
            qualifier = ""
        full = f"{qualifier}.{name}" if qualifier else name
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
                found,
                lambda: _qualify(found, matches[0]),
            )
        if not matches:
            error = UnknownName(f"column of table {self._table.name!r}", full, self._table.columns)
            raise refusal_of(error, found, "declared-columns")
        return matches[0]


def _qualify(found: Any, name: str) -> None:
    relation, _, column = name.rpartition(".")
    found.replace(exp.column(column, table=relation or None))


def inline_expressions(node: Node, table: Table) -> Node:
    """The expression over stored columns alone: what an owner declared as a computed column is
    written out.
    """
    if node.op == "column":
        column = table.column(".".join(node.args[0]))
        return node if column.expression is None else parse_row_expression(column.expression, table)
    args = tuple(inline_expressions(a, table) if isinstance(a, Node) else a for a in node.args)
    return Node(node.op, args)
