"""Views and computed columns as queries of dpflow's own, which take each row by itself and which no
row can make fail.

The owner's SQL runs before contributions are bounded. A cast in it that fails on one row would show
that row, and a window or join would let one unit move the rows of others. So the text is parsed by
DuckDB's own parser, checked node by node, and written again; what is not on the lists here is
refused by the name of a rule. What runs is what was checked: names are resolved within the private
file, functions are DuckDB's own, and a stored value that is no value of its type is NULL, as
wherever dpflow reads a column.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from typing import Any, NoReturn

from dpflow.errors import PlanRefused, TableUnreadable
from dpflow.tables.access import sql
from dpflow.tables.access.view_casts import find_failing_cast
from dpflow.tables.access.view_expressions import (
    NO_JOIN,
    Catalog,
    ExpressionWriter,
    Node,
    SelectSource,
)
from dpflow.tables.access.view_growth import MOST_GROWTH, find_growth

#: What takes rows together, by the part of a query that says so.
_CLAUSES = {
    "cte_map": "WITH",
    "group_expressions": "GROUP BY",
    "group_sets": "GROUP BY",
    "having": "HAVING",
    "sample": "a sample",
    "qualify": "QUALIFY",
}
#: All that a query may consist of.
_PARTS = {
    *("type", "modifiers", "select_list", "from_table", "where_clause", "aggregate_handling"),
    *("setop_type", "setop_all", "left", "right", "children", *_CLAUSES),
}
_MODIFIERS = {"DISTINCT_MODIFIER": "DISTINCT", "LIMIT_MODIFIER": "LIMIT"}
_SOURCES = {
    "JOIN": "a join",
    "TABLE_FUNCTION": "a table function",
    "EXPRESSION_LIST": "VALUES",
    "EMPTY": "no table",
}


class ViewRewriter:
    """Rewrites the relations of one open file.

    Args:
        catalog: the open file.
        database: what the file is attached as.
    """

    def __init__(self, catalog: Catalog, database: str) -> None:
        self._catalog, self._database = catalog, database
        self._relation = ""  # the relation that is rewritten, for messages
        self._pending: list[tuple[str, str]] = []
        self._views: dict[tuple[str, str], str] | None = None
        self._expressions = ExpressionWriter(catalog, database, self._refuse)

    def rewrite(self, called: str, schema: str, name: str) -> str | None:
        """The query for a view, or a table with computed columns; None for a stored table.

        Raises `PlanRefused` with the rule that its SQL breaks.
        """
        self._relation, self._pending = called, []
        return self._rewrite(schema, name)

    # --- Relations --------------------------------------------------------------------------------

    def _rewrite(self, schema: str, name: str) -> str | None:
        full = sql.quote_path(self._database, schema, name)
        if self.is_stored(schema, name):
            # Asking for one relation takes DuckDB a tenth of listing all columns.
            info = f"SELECT count(dflt_value) FROM pragma_table_info({sql.quote_text(full)})"
            computes = self._catalog.fetch_rows(info)[0][0]
            return self._rewrite_table(schema, name, full) if computes else None
        if (schema, name) in self._pending:
            self._refuse("row-wise", "reads itself", "select from a table")
        self._pending.append((schema, name))
        query = self._view_query(self._list_views()[schema, name])
        # Whatever a name or type might mean elsewhere, the rewritten view has the view's columns.
        kinds = {column: field.type for column, field in self._catalog.bind_fields(full).items()}
        text = self._write_query(self._parse(query), schema, list(kinds))
        self._check_growth(text)
        self._pending.pop()
        written = self._catalog.bind_fields(f"({text})")
        if kinds != {column: field.type for column, field in written.items()}:
            self._refuse("row-wise", "cannot be looked through", "write it in plain SQL")
        self._check_casts(text)
        return text

    def _rewrite_table(self, schema: str, name: str, full: str) -> str | None:
        """A table's stored columns, and its computed ones as checked expressions."""
        query = (
            "SELECT column_name, generation_expression FROM duckdb_columns() WHERE database_name = ? "
            "AND schema_name = ? AND table_name = ? AND is_generated"
        )
        computed = dict(self._catalog.fetch_rows(query, [self._database, schema, name]))
        if not computed:
            return None
        fields = self._catalog.bind_fields(full)
        stored = {column: field for column, field in fields.items() if column not in computed}
        source, outputs = SelectSource(full, stored, name), []
        # One computed column may read others.
        nodes = {
            column: self._parse(f"SELECT {text}")["select_list"][0]
            for column, text in computed.items()
        }
        written: dict[str, str] = {}
        while len(written) < len(nodes):
            ready = [
                column
                for column, node in nodes.items()
                if column not in written and not self._waits(node, set(nodes) - set(written))
            ]
            if not ready:
                self._refuse("row-wise", "has computed columns in a circle", "store them")
            for column in ready:
                written[column] = self._expressions.write(nodes[column], source).text
            # The next ones read these as columns of a query.
            listed = [sql.quote_name(c) for c in source.fields]
            listed += [f"{written[c]} AS {sql.quote_name(c)}" for c in ready]
            text = f"(SELECT {', '.join(listed)} FROM {source.text} AS t)"
            source = SelectSource(text, self._catalog.bind_fields(text), name)
        outputs = [sql.quote_name(column) for column in fields]
        text = f"SELECT {', '.join(outputs)} FROM {source.text} AS t"
        self._check_growth(text)
        self._check_casts(text)
        return text

    def _check_growth(self, text: str) -> None:
        """Refuse a query whose texts may grow until no memory is left."""
        growth, node = find_growth(self._parse(text))
        if growth > MOST_GROWTH:
            times = math.ceil(growth)
            what = (
                f"has {self._expressions.quote(node)}, which may make a text {times} times as long"
            )
            self._refuse("total", what, f"stay within {MOST_GROWTH} times")

    def _check_casts(self, text: str) -> None:
        """Refuse a query to which DuckDB adds a cast that can fail on a row."""
        plan = json.loads(self._catalog.fetch_rows("SELECT json_serialize_plan(?)", [text])[0][0])
        if plan["error"]:
            self._refuse("total", "cannot be looked through", "write it in plain SQL")
        if found := find_failing_cast(plan["plans"]):
            what = f"needs a cast from {found[0]} to {found[1]} that is not written, and can fail on a row"
            self._refuse("total", what, "give its parts one type with TRY_CAST")

    def _waits(self, node: Any, names: set[str]) -> bool:
        """Whether an expression reads one of these columns."""
        if isinstance(node, Mapping):
            if node.get("class") == "COLUMN_REF":
                return str(node["column_names"][-1]).casefold() in map(str.casefold, names)
            return any(self._waits(one, names) for one in node.values())
        return isinstance(node, list) and any(self._waits(one, names) for one in node)

    def is_stored(self, schema: str, name: str) -> bool:
        """Whether a relation is a table, and no view."""
        full = sql.quote_path(self._database, schema, name)
        # The storage numbers a table's rows, if no column of that name hides it.
        if "rowid" not in map(str.casefold, self._catalog.bind_fields(full)):
            with suppress(TableUnreadable):
                self._catalog.bind_fields(full, "rowid")
                return True
        return (schema, name) not in self._list_views()

    def _list_views(self) -> dict[tuple[str, str], str]:
        if self._views is None:
            query = "SELECT schema_name, view_name, sql FROM duckdb_views() WHERE database_name = ? AND NOT internal"
            rows = self._catalog.fetch_rows(query, [self._database])
            self._views = {(schema, name): text for schema, name, text in rows}
        return self._views

    def _view_query(self, statement: str) -> str:
        """What stands after AS in a view's CREATE statement, as DuckDB writes it."""
        name = r'(?:"(?:[^"]|"")*"|[^\s."(,)]+)'
        names = rf"\s*\(\s*{name}(?:\s*,\s*{name})*\s*\)"
        match = re.fullmatch(
            rf"CREATE VIEW {name}(?:\.{name})*(?:{names})?\s+AS\s+(.*?);?\s*", statement, re.DOTALL
        )
        if match is None:
            self._refuse("row-wise", "cannot be looked through", "write it in plain SQL")
        return match[1]

    def _parse(self, query: str) -> Node:
        """DuckDB's own syntax tree of one SELECT."""
        text = self._catalog.fetch_rows("SELECT json_serialize_sql(?)", [query])[0][0]
        tree = json.loads(text)
        if tree["error"] or len(tree["statements"]) != 1:
            self._refuse("row-wise", "is not one SELECT", "write it as one")
        node: Node = tree["statements"][0]["node"]
        return node

    # --- Queries ----------------------------------------------------------------------------------

    def _write_query(self, node: Node, schema: str, names: Sequence[str] | None) -> str:
        """One SELECT, or several with UNION ALL between them; with other names for its columns."""
        if node["type"] == "SET_OPERATION_NODE":
            if node["setop_type"] != "UNION" or not node["setop_all"]:
                self._refuse(
                    "row-wise",
                    "has a UNION, INTERSECT or EXCEPT, which compares rows",
                    "write UNION ALL",
                )
            self._check_clauses(node)
            first, *others = (self._write_query(one, schema, names) for one in node["children"])
            kinds = [field.type for field in self._catalog.bind_fields(f"({first})").values()]
            for other in others:
                bound = self._catalog.bind_fields(f"({other})").values()
                if [field.type for field in bound] != kinds:
                    self._refuse(
                        "total", "has a UNION ALL of different types", "cast them with TRY_CAST"
                    )
            return " UNION ALL ".join(f"({one})" for one in (first, *others))
        if node["type"] != "SELECT_NODE":
            self._refuse("row-wise", "is no plain SELECT", "write it as one")
        self._check_clauses(node)
        source = self._find_source(node["from_table"], schema)
        outputs = list(
            chain.from_iterable(self._write_output(one, source) for one in node["select_list"])
        )
        names = names or [name or self._name_missing(text) for name, text in outputs]
        if len(names) != len(outputs) or len(set(map(str.casefold, names))) != len(names):
            self._refuse("row-wise", "cannot be looked through", "give each column its own name")
        listed = ", ".join(
            f"{text} AS {sql.quote_name(name)}"
            for name, (_, text) in zip(names, outputs, strict=True)
        )
        text = f"SELECT {listed} FROM {source.text} AS t"
        if node["where_clause"]:
            text += f" WHERE {self._expressions.write_condition(node['where_clause'], source).text}"
        return text

    def _name_missing(self, text: str) -> NoReturn:
        self._refuse("row-wise", "has a column without a name", "give it one with AS")

    def _check_clauses(self, node: Node) -> None:
        """Refuse whatever takes rows together, and what DuckDB may add to its syntax trees. An order
        without a limit says nothing about rows.
        """
        if any(content for part, content in node.items() if part not in _PARTS):
            self._refuse("row-wise", "has a part that dpflow does not know", "leave it out")
        for part, clause in _CLAUSES.items():
            content = node.get(part)
            if content and content != {"map": []}:
                self._refuse("row-wise", f"has {clause}, which takes rows together", "leave it out")
        for modifier in node["modifiers"]:
            if modifier["type"] != "ORDER_MODIFIER":
                clause = _MODIFIERS.get(modifier["type"], "LIMIT")
                self._refuse("row-wise", f"has {clause}, which takes rows together", "leave it out")
        if node.get("aggregate_handling", "STANDARD_HANDLING") != "STANDARD_HANDLING":
            self._refuse("row-wise", "has GROUP BY ALL, which takes rows together", "leave it out")

    def _find_source(self, node: Node, schema: str) -> SelectSource:
        """The one relation that a SELECT reads."""
        if node["type"] == "SUBQUERY":
            text = f"({self._write_query(node['subquery']['node'], schema, None)})"
            name = node["alias"]
        elif node["type"] == "BASE_TABLE":
            parts = [part for part in (node["schema_name"], node["table_name"]) if part]
            text, name = self._find_text(parts, schema), node["alias"] or node["table_name"]
            if node["catalog_name"] or node.get("at_clause"):
                self._refuse("row-wise", "reads another database or time", NO_JOIN)
        else:
            what = _SOURCES.get(node["type"], node["type"].lower())
            self._refuse("row-wise", f"reads {what}, which takes rows together", NO_JOIN)
        if node.get("sample") or node.get("column_name_alias"):
            self._refuse("row-wise", "samples or renames a table in FROM", "leave it out")
        return SelectSource(text, self._catalog.bind_fields(text), name)

    def _find_text(self, parts: Sequence[str], schema: str) -> str:
        """A table or view of the file as a source: its name, or what it was rewritten to."""
        query = (
            "SELECT schema_name, table_name FROM duckdb_tables() WHERE database_name = $1 UNION ALL "
            "SELECT schema_name, view_name FROM duckdb_views() WHERE database_name = $1"
        )
        schemas = [parts[0]] if len(parts) == 2 else [schema, "main"]
        known = self._catalog.fetch_rows(query, [self._database])
        found = {
            (of, name)
            for of, name in known
            if name.casefold() == parts[-1].casefold()
            and of.casefold() in map(str.casefold, schemas)
        }
        if len(found) != 1:
            self._refuse(
                "row-wise",
                f"reads {'.'.join(parts)!r}, which is not one table or view of the file",
                NO_JOIN,
            )
        ((of, name),) = found
        rewritten = self._rewrite(of, name)
        if rewritten is None:
            return sql.quote_path(self._database, of, name)
        return f"({rewritten})"

    def _write_output(self, node: Node, source: SelectSource) -> Iterator[tuple[str, str]]:
        """Outputs of one entry of a SELECT: names, empty if there is none, and texts."""
        if node["class"] == "COLUMN_REF":
            # Passed on as it is stored; whoever reads it looks at it.
            field = self._expressions.find_column(node, source)
            yield node["alias"] or field.name, f"t.{sql.quote_name(field.name)}"
        elif node["class"] != "STAR":
            yield node["alias"], self._expressions.write(node, source).text
        else:
            listed = node["relation_name"].casefold() in ("", source.name.casefold())
            more = ("columns", "expr", "qualified_exclude_list", "rename_list")
            if not listed or any(node.get(one) for one in more):
                self._refuse("row-wise", f"has {self._expressions.quote(node)}", "name the columns")
            left_out = {name.casefold() for name in node["exclude_list"]}
            replaced = {one["key"].casefold(): one["value"] for one in node["replace_list"]}
            for name in source.fields:
                if name.casefold() in replaced:
                    yield name, self._expressions.write(replaced[name.casefold()], source).text
                elif name.casefold() not in left_out:
                    yield name, f"t.{sql.quote_name(name)}"

    def _refuse(self, rule: str, what: str, advice: str) -> NoReturn:
        inner = ".".join(self._pending[-1]) if len(self._pending) > 1 else ""
        where = f"{self._relation!r}" + (f", in {inner!r}," if inner else "")
        raise PlanRefused(
            f"relation {where} rule {rule}: its SQL {what}; {advice}, or write trusted_sql: "
            f"[{self._relation}] into the declaration if you answer for it"
        )
