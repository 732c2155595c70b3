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
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, NoReturn, Protocol

from dpflow.errors import PlanRefused, TableUnreadable
from dpflow.tables.access import row_wise_functions as functions
from dpflow.tables.access import sql
from dpflow.tables.access.row_wise_casts import find_failing_cast
from dpflow.tables.access.row_wise_functions import SqlTerm


class Catalog(Protocol):
    """The open file: what is asked of its catalog. Neither call reads a row of a relation here."""

    def fetch_rows(self, query: str, parameters: list[Any] | None = None) -> list[tuple[Any, ...]]:
        """All rows of a query."""

    def bind_fields(self, relation: str, columns: str = "*") -> dict[str, sql.Field]:
        """The columns that a query would have."""


Node = Mapping[str, Any]

_COMPARISONS = {
    "COMPARE_EQUAL": "=",
    "COMPARE_NOTEQUAL": "<>",
    "COMPARE_LESSTHAN": "<",
    "COMPARE_LESSTHANOREQUALTO": "<=",
    "COMPARE_GREATERTHAN": ">",
    "COMPARE_GREATERTHANOREQUALTO": ">=",
    "COMPARE_DISTINCT_FROM": "IS DISTINCT FROM",
    "COMPARE_NOT_DISTINCT_FROM": "IS NOT DISTINCT FROM",
}
#: Functions that give one of their arguments, which have one type.
_ALIKE = {"ifnull", "nullif", "least", "greatest"}
#: What may fail on a row, within TRY.
_FALLIBLE = {"CAST", "COMPARISON", "BETWEEN", "FUNCTION"}
#: What makes more of NULL than NULL: within TRY it would take a part that failed for a missing one.
_NOT_STRICT = _ALIKE | {
    *("CASE_EXPR", "CONJUNCTION_AND", "CONJUNCTION_OR", "OPERATOR_COALESCE", "OPERATOR_NOT"),
    *("OPERATOR_IS_NULL", "OPERATOR_IS_NOT_NULL", "COMPARE_IN", "COMPARE_NOT_IN"),
    *("COMPARE_DISTINCT_FROM", "COMPARE_NOT_DISTINCT_FROM", "concat", "if"),
}
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
_NO_JOIN = "select from one table or view, and declare a join in the declaration"
_NO_ERROR = "write TRY(...) around it, or TRY_CAST for a cast"


@dataclass(frozen=True)
class SelectSource:
    """What one SELECT reads, as ``t``: its text, its columns, and what the SELECT calls it."""

    text: str
    fields: Mapping[str, sql.Field]
    name: str


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
        self._trying = False
        self._views: dict[tuple[str, str], str] | None = None
        self._names: set[str] | None = None

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
                written[column] = self._write(nodes[column], source).text
            # The next ones read these as columns of a query.
            listed = [sql.quote_name(c) for c in source.fields]
            listed += [f"{written[c]} AS {sql.quote_name(c)}" for c in ready]
            text = f"(SELECT {', '.join(listed)} FROM {source.text} AS t)"
            source = SelectSource(text, self._catalog.bind_fields(text), name)
        outputs = [sql.quote_name(column) for column in fields]
        text = f"SELECT {', '.join(outputs)} FROM {source.text} AS t"
        self._check_casts(text)
        return text

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

    def _is_own_name(self, name: str) -> bool:
        """Whether the file has a macro or type of this name: it may mean another than DuckDB's."""
        if self._names is None:
            query = (
                "SELECT function_name FROM duckdb_functions() WHERE database_name = $1 "
                "UNION SELECT type_name FROM duckdb_types() WHERE database_name = $1 AND NOT internal"
            )
            rows = self._catalog.fetch_rows(query, [self._database])
            self._names = {own.casefold() for (own,) in rows}
        return name.casefold() in self._names

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
            text += f" WHERE {self._write_condition(node['where_clause'], source).text}"
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
                self._refuse("row-wise", "reads another database or time", _NO_JOIN)
        else:
            what = _SOURCES.get(node["type"], node["type"].lower())
            self._refuse("row-wise", f"reads {what}, which takes rows together", _NO_JOIN)
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
                _NO_JOIN,
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
            field = self._find_column(node, source)
            yield node["alias"] or field.name, f"t.{sql.quote_name(field.name)}"
        elif node["class"] != "STAR":
            yield node["alias"], self._write(node, source).text
        else:
            listed = node["relation_name"].casefold() in ("", source.name.casefold())
            more = ("columns", "expr", "qualified_exclude_list", "rename_list")
            if not listed or any(node.get(one) for one in more):
                self._refuse("row-wise", f"has {self._quote(node)}", "name the columns")
            left_out = {name.casefold() for name in node["exclude_list"]}
            replaced = {one["key"].casefold(): one["value"] for one in node["replace_list"]}
            for name in source.fields:
                if name.casefold() in replaced:
                    yield name, self._write(replaced[name.casefold()], source).text
                elif name.casefold() not in left_out:
                    yield name, f"t.{sql.quote_name(name)}"

    # --- Expressions ------------------------------------------------------------------------------

    def _write(self, node: Node, source: SelectSource) -> SqlTerm:
        """An expression, checked and written again.

        Within TRY each part has a TRY of its own. DuckDB computes what several expressions share
        ahead of them, and so outside of the TRY around each: one row would fail for all.
        """
        term = self._write_node(node, source)
        if self._trying and node["class"] in _FALLIBLE:
            return replace(term, text=f"TRY({term.text})")
        return term

    def _write_node(self, node: Node, source: SelectSource) -> SqlTerm:
        name = node.get("function_name", "").casefold()
        if self._trying and (node["type"] in _NOT_STRICT or name in _NOT_STRICT):
            self._refuse(
                "total", f"has {self._quote(node)} within TRY", "write TRY around its parts"
            )
        match node["class"]:
            case "COLUMN_REF":
                return self._write_column(node, source)
            case "CONSTANT":
                return self._write_constant(node)
            case "CAST":
                return self._write_cast(node, source)
            case "COMPARISON":
                operator = _COMPARISONS.get(node["type"])
                if operator is None:
                    self._refuse_expression(node)
                left, right = self._write_same_kind(node, [node["left"], node["right"]], source)
                return self._truth(f"({left} {operator} {right})")
            case "BETWEEN":
                parts = [node[name] for name in ("input", "lower", "upper")]
                value, lower, upper = self._write_same_kind(node, parts, source)
                return self._truth(f"({value} BETWEEN {lower} AND {upper})")
            case "CONJUNCTION":
                word = " AND " if node["type"] == "CONJUNCTION_AND" else " OR "
                parts = [self._write_condition(one, source).text for one in node["children"]]
                return self._truth(f"({word.join(parts)})")
            case "CASE":
                return self._write_case(node, source)
            case "OPERATOR":
                return self._write_operator(node, source)
            case "FUNCTION":
                return self._write_function(node, source)
            case "SUBQUERY" | "WINDOW" | "LAMBDA":
                word = {"SUBQUERY": "a subquery", "WINDOW": "a window"}.get(node["class"], "")
                what = f"has {self._quote(node)}, {word or 'a function of lists'}"
                self._refuse("row-wise", f"{what}, which takes rows together", _NO_JOIN)
        self._refuse_expression(node)

    def _find_column(self, node: Node, source: SelectSource) -> sql.Field:
        *path, name = node["column_names"]
        folded = {one.casefold(): field for one, field in source.fields.items()}
        if name.casefold() not in folded or [p.casefold() for p in path] not in (
            [],
            [source.name.casefold()],
        ):
            self._refuse(
                "row-wise", f"reads {self._quote(node)}, which is no column of its table", _NO_JOIN
            )
        return folded[name.casefold()]

    def _write_column(self, node: Node, source: SelectSource) -> SqlTerm:
        field = self._find_column(node, source)
        if field.kind not in functions.COMPUTABLE and field.type != "JSON":
            self._refuse(
                "total",
                f"computes with {self._quote(node)}, a {field.kind.upper()}",
                "pass the column on as it is",
            )
        if field.type == "JSON":
            return SqlTerm(field.sql, "varchar", "VARCHAR")
        return SqlTerm(f"({field.sql})", field.kind, field.type)

    def _write_constant(self, node: Node) -> SqlTerm:
        kind, text = node["literal"]["kind"], node["literal"].get("text", "")
        if kind == "STRING":
            return SqlTerm(sql.quote_text(text), "varchar", "VARCHAR", kind)
        if kind == "NULL_LITERAL":
            return SqlTerm("NULL", "", "", kind)
        if kind == "BOOLEAN" and text in ("true", "false"):
            return SqlTerm(text, "boolean", "BOOLEAN", kind)
        plain = kind in ("INTEGER", "NUMERIC")
        if not plain or not re.fullmatch(r"-?[0-9]+(\.[0-9]*)?([eE][+-]?[0-9]+)?", text):
            self._refuse_expression(node)
        return SqlTerm(text, "", "", kind)

    def _write_cast(self, node: Node, source: SelectSource) -> SqlTerm:
        child, target = self._write(node["child"], source), self._find_type(node)
        if child.literal:
            value = f"TRY_CAST({child.text} AS {target.type})"
            fails = self._catalog.fetch_rows(f"SELECT {value} IS NULL")[0][0]
            if fails and child.literal != "NULL_LITERAL" and not node["try_cast"]:
                self._refuse(
                    "total", f"has {self._quote(node)}, which always fails", "correct the constant"
                )
            return SqlTerm(value, target.kind, target.type)
        if node["try_cast"]:
            return SqlTerm(f"TRY_CAST({child.text} AS {target.type})", target.kind, target.type)
        if not self._trying and not functions.widens(child, target):
            self._refuse("total", f"has {self._quote(node)}, which can fail on a row", _NO_ERROR)
        return SqlTerm(f"CAST({child.text} AS {target.type})", target.kind, target.type)

    def _find_type(self, node: Node) -> SqlTerm:
        """The type that a cast names, if expressions may read it."""
        given = node["type_expr"]
        sizes = [one.get("literal", {}).get("text", "") for one in given.get("children", ())]
        name = given.get("type_name", "")
        known = re.fullmatch(r"[A-Za-z_][A-Za-z0-9_ ]*", name) and all(map(str.isdecimal, sizes))
        if not known or given.get("schema") or self._is_own_name(name):
            self._refuse_expression(node)
        text = f"{name}({', '.join(sizes)})" if sizes else name
        field = self._catalog.bind_fields("(SELECT 1)", f"TRY_CAST(NULL AS {text}) AS x")["x"]
        if field.kind not in functions.COMPUTABLE or field.type == "JSON":
            self._refuse_expression(node)
        return SqlTerm("", field.kind, field.type)

    def _write_condition(self, node: Node, source: SelectSource) -> SqlTerm:
        term = self._write(node, source)
        if term.kind != "boolean" and term.literal != "NULL_LITERAL" and not self._trying:
            self._refuse(
                "total",
                f"has {self._quote(node)} as a condition, which is none",
                "compare it with a value",
            )
        return term

    def _write_case(self, node: Node, source: SelectSource) -> SqlTerm:
        checks = node["case_checks"]
        conditions = [self._write_condition(one["when_expr"], source).text for one in checks]
        values = [*(one["then_expr"] for one in checks), node["else_expr"]]
        *texts, other = self._write_same_kind(node, values, source)
        pairs = zip(conditions, texts, strict=True)
        branches = " ".join(f"WHEN {condition} THEN {text}" for condition, text in pairs)
        return self._typed(f"CASE {branches} ELSE {other} END", source)

    def _write_operator(self, node: Node, source: SelectSource) -> SqlTerm:
        children = node["children"]
        match node["type"]:
            case "OPERATOR_NOT":
                return self._truth(f"(NOT {self._write_condition(children[0], source).text})")
            case "OPERATOR_IS_NULL" | "OPERATOR_IS_NOT_NULL":
                word = "IS NULL" if node["type"] == "OPERATOR_IS_NULL" else "IS NOT NULL"
                # A column of any type can be asked that.
                if children[0]["class"] == "COLUMN_REF":
                    return self._truth(f"({self._find_column(children[0], source).sql} {word})")
                return self._truth(f"({self._write(children[0], source).text} {word})")
            case "COMPARE_IN" | "COMPARE_NOT_IN":
                value, *listed = self._write_same_kind(node, children, source)
                word = "IN" if node["type"] == "COMPARE_IN" else "NOT IN"
                return self._truth(f"({value} {word} ({', '.join(listed)}))")
            case "OPERATOR_COALESCE":
                return self._call_same_kind("coalesce", node, children, source)
            case "OPERATOR_TRY":
                with self._try():
                    return self._write(children[0], source)
        self._refuse_expression(node)

    def _write_function(self, node: Node, source: SelectSource) -> SqlTerm:
        name = node["function_name"].casefold()
        given = [one["expression"] for one in node["arguments"]]
        odd = node["filter"] or node["distinct"] or node["order_bys"]["orders"] or node["schema"]
        if odd or node["catalog"] or any(one["name"] for one in node["arguments"]):
            self._refuse_unknown(node, name)
        if self._is_own_name(name):
            self._refuse(
                "row-wise", f"calls {name!r}, a macro of the file", "write out what it does"
            )
        if name in _ALIKE:
            return self._call_same_kind(name, node, given, source)
        if name == "if" and len(given) == 3:
            branch = {"when_expr": given[0], "then_expr": given[1]}
            return self._write_case(
                {**node, "case_checks": [branch], "else_expr": given[2]}, source
            )
        if name not in functions.ROW_WISE:
            self._refuse_unknown(node, name)
        terms = [self._write(one, source) for one in given]
        # DuckDB fails on times in functions that it has not written, within TRY, too.
        if any(term.kind == "time" for term in terms):
            self._refuse(
                "total",
                f"has {self._quote(node)}, a function of a TIME",
                "pass the time on as it is",
            )
        if name in functions.OF_PARTS and (
            not given or terms[0].text.strip("'").casefold() not in functions.PARTS
        ):
            self._refuse_unknown(node, name)
        if not self._trying and not functions.is_total(name, terms):
            self._refuse("total", f"has {self._quote(node)}, which can fail on a row", _NO_ERROR)
        places = functions.ROW_WISE[name]
        if places is not None and any(
            not term.literal for at, term in enumerate(terms) if at not in places
        ):
            self._refuse("total", f"has {self._quote(node)}", "give it constants beside the column")
        texts = [term.text for term in terms]
        if node["is_operator"]:
            text = f"({texts[0]} {name} {texts[1]})" if len(texts) > 1 else f"({name} {texts[0]})"
        else:
            text = f"{sql.quote_name(name)}({', '.join(texts)})"
        return self._typed(text, source)

    def _call_same_kind(
        self, name: str, node: Node, given: Sequence[Node], source: SelectSource
    ) -> SqlTerm:
        texts = self._write_same_kind(node, given, source)
        return self._typed(f"{name}({', '.join(texts)})", source)

    def _write_same_kind(
        self, node: Node, given: Sequence[Node], source: SelectSource
    ) -> list[str]:
        """Expressions of one type, so that DuckDB casts none of them in a way that can fail."""
        terms = [self._write(one, source) for one in given]
        values = [term for term in terms if not term.literal]
        if self._trying or not values:
            return [term.text for term in terms]
        first = values[0]
        whole, floats = (
            all(one.kind in kinds for one in values)
            for kinds in (functions.RANGES, functions.FLOATS)
        )
        if not whole and not floats and any(one.type != first.type for one in values):
            self._refuse(
                "total",
                f"has {self._quote(node)}, whose parts have different types",
                "give them one type with TRY_CAST",
            )
        return [
            term.text if not term.literal else self._write_literal(node, term, first)
            for term in terms
        ]

    def _write_literal(self, node: Node, literal: SqlTerm, value: SqlTerm) -> str:
        """A constant beside a value, as one of its type."""
        kind = literal.literal
        number = kind in ("INTEGER", "NUMERIC")
        if kind == "NULL_LITERAL" or (kind == "STRING" and value.kind == "varchar"):
            return literal.text
        if kind == "BOOLEAN" and value.kind == "boolean":
            return literal.text
        if number and value.kind in functions.FLOATS:
            return literal.text
        if kind == "INTEGER" and value.kind in functions.RANGES and abs(int(literal.text)) < 2**63:
            return literal.text
        texts = functions.TIMES | {"date", "time", "uuid", "enum"}
        if (kind == "STRING" and value.kind in texts) or (number and value.kind == "decimal"):
            cast = f"TRY_CAST({literal.text} AS {value.type})"
            exact = f"{cast} = {literal.text}" if number else f"{cast} IS NOT NULL"
            if self._catalog.fetch_rows(f"SELECT {exact}")[0][0]:
                return cast
        self._refuse(
            "total",
            f"has {self._quote(node)}, whose constant is no {value.kind.upper()}",
            "give both one type with TRY_CAST",
        )

    def _truth(self, text: str) -> SqlTerm:
        return SqlTerm(text, "boolean", "BOOLEAN")

    def _typed(self, text: str, source: SelectSource) -> SqlTerm:
        """A text with the type that DuckDB gives it."""
        try:
            field = self._catalog.bind_fields(f"{source.text} AS t", f"{text} AS x")["x"]
        except TableUnreadable:
            unclear = text
        else:
            return SqlTerm(text, field.kind, field.type)
        self._refuse("total", f"has {unclear}, which DuckDB does not know", _NO_ERROR)

    @contextmanager
    def _try(self) -> Iterator[None]:
        """Within TRY an expression may fail on a row."""
        before, self._trying = self._trying, True
        try:
            yield
        finally:
            self._trying = before

    # --- Refusals ---------------------------------------------------------------------------------

    def _quote(self, node: Node) -> str:
        """An expression as its author may have written it."""
        query = "SELECT json_deserialize_sql(?)"
        tree = json.loads(self._catalog.fetch_rows("SELECT json_serialize_sql('SELECT 1')")[0][0])
        tree["statements"][0]["node"]["select_list"] = [{**node, "alias": ""}]
        text = self._catalog.fetch_rows(query, [json.dumps(tree)])[0][0].removeprefix("SELECT ")
        return text if len(text) <= 80 else f"{text[:77]}..."

    def _refuse_unknown(self, node: Node, name: str) -> NoReturn:
        self._refuse(
            "row-wise",
            f"has {self._quote(node)}, and {name!r} is on no list of functions that take one row by itself",
            "leave it out",
        )

    def _refuse_expression(self, node: Node) -> NoReturn:
        self._refuse(
            "row-wise",
            f"has {self._quote(node)}, which is on no list of expressions that take one row by itself",
            "leave it out",
        )

    def _refuse(self, rule: str, what: str, advice: str) -> NoReturn:
        inner = ".".join(self._pending[-1]) if len(self._pending) > 1 else ""
        where = f"{self._relation!r}" + (f", in {inner!r}," if inner else "")
        raise PlanRefused(
            f"relation {where} rule {rule}: its SQL {what}; {advice}, or write trusted_sql: "
            f"[{self._relation}] into the declaration if you answer for it"
        )
