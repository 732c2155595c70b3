"""Expressions of views and computed columns, node by node of DuckDB's syntax tree: checked that each takes one row by
itself and that no row can make it fail, and written again. `dpflow.tables.access.owner_views` does the rest.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NoReturn, Protocol

from dpflow.errors import TableUnreadable
from dpflow.tables.access import sql
from dpflow.tables.access import view_functions as functions
from dpflow.tables.access.arithmetic import operate_view
from dpflow.tables.access.view_functions import SqlTerm


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
NO_JOIN = "select from one table or view, and declare a join in the declaration"
NO_ERROR = "write TRY(...) around it, or TRY_CAST for a cast"


@dataclass(frozen=True)
class SelectSource:
    """What one SELECT reads, as ``t``: its text, its columns, and what the SELECT calls it."""

    text: str
    fields: Mapping[str, sql.Field]
    name: str


class ExpressionWriter:
    """Checks the expressions of one open file and writes them again.

    Args:
        catalog: the open file.
        database: what the file is attached as.
        refuse: raises `PlanRefused`; takes the rule, what the SQL does and what to do instead.
    """

    def __init__(
        self, catalog: Catalog, database: str, refuse: Callable[[str, str, str], NoReturn]
    ) -> None:
        self._catalog, self._database, self._refuse = catalog, database, refuse
        self._trying = False
        self._names: set[str] | None = None

    def write(self, node: Node, source: SelectSource) -> SqlTerm:
        """An expression, checked and written again.

        Within TRY each part has a TRY of its own, wherever DuckDB computes it.
        """
        term = self._write_node(node, source)
        if self._trying and node["class"] in _FALLIBLE:
            return replace(term, text=f"TRY({term.text})")
        return term

    def _write_node(self, node: Node, source: SelectSource) -> SqlTerm:
        name = node.get("function_name", "").casefold()
        if self._trying and (node["type"] in _NOT_STRICT or name in _NOT_STRICT):
            self._refuse(
                "total", f"has {self.quote(node)} within TRY", "write TRY around its parts"
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
                parts = [self.write_condition(one, source).text for one in node["children"]]
                return self._truth(f"({word.join(parts)})")
            case "CASE":
                return self._write_case(node, source)
            case "OPERATOR":
                return self._write_operator(node, source)
            case "FUNCTION":
                return self._write_function(node, source)
            case "COLLATE":
                term = self.write(node["child"], source)
                # Only to take a collation away: another one is a column's, not a view's.
                if term.kind != "varchar" or node["collation"].casefold() not in sql.BYTEWISE:
                    self._refuse_expression(node)
                return replace(term, text=f"({term.text} COLLATE C)", literal="")
            case "SUBQUERY" | "WINDOW" | "LAMBDA":
                word = {"SUBQUERY": "a subquery", "WINDOW": "a window"}.get(node["class"], "")
                what = f"has {self.quote(node)}, {word or 'a function of lists'}"
                self._refuse("row-wise", f"{what}, which takes rows together", NO_JOIN)
        self._refuse_expression(node)

    def find_column(self, node: Node, source: SelectSource) -> sql.Field:
        """The column of its source that a reference names."""
        *path, name = node["column_names"]
        folded = {one.casefold(): field for one, field in source.fields.items()}
        if name.casefold() not in folded or [p.casefold() for p in path] not in (
            [],
            [source.name.casefold()],
        ):
            self._refuse(
                "row-wise", f"reads {self.quote(node)}, which is no column of its table", NO_JOIN
            )
        return folded[name.casefold()]

    def _write_column(self, node: Node, source: SelectSource) -> SqlTerm:
        field = self.find_column(node, source)
        if field.kind not in functions.COMPUTABLE and field.type != "JSON":
            self._refuse(
                "total",
                f"computes with {self.quote(node)}, a {field.kind.upper()}",
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
        child, target = self.write(node["child"], source), self._find_type(node)
        if child.literal:
            value = f"TRY_CAST({child.text} AS {target.type})"
            fails = self._catalog.fetch_rows(f"SELECT {value} IS NULL")[0][0]
            if fails and child.literal != "NULL_LITERAL" and not node["try_cast"]:
                self._refuse(
                    "total", f"has {self.quote(node)}, which always fails", "correct the constant"
                )
            return SqlTerm(value, target.kind, target.type)
        if node["try_cast"]:
            return SqlTerm(f"TRY_CAST({child.text} AS {target.type})", target.kind, target.type)
        if not self._trying and not functions.widens(child, target):
            self._refuse("total", f"has {self.quote(node)}, which can fail on a row", NO_ERROR)
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

    def write_condition(self, node: Node, source: SelectSource) -> SqlTerm:
        """An expression that is true or false, as `write` writes it."""
        term = self.write(node, source)
        if term.kind != "boolean" and term.literal != "NULL_LITERAL" and not self._trying:
            self._refuse(
                "total",
                f"has {self.quote(node)} as a condition, which is none",
                "compare it with a value",
            )
        return term

    def _write_case(self, node: Node, source: SelectSource) -> SqlTerm:
        checks = node["case_checks"]
        conditions = [self.write_condition(one["when_expr"], source).text for one in checks]
        values = [*(one["then_expr"] for one in checks), node["else_expr"]]
        *texts, other = self._write_same_kind(node, values, source)
        pairs = zip(conditions, texts, strict=True)
        branches = " ".join(f"WHEN {condition} THEN {text}" for condition, text in pairs)
        return self._typed(f"CASE {branches} ELSE {other} END", source)

    def _write_operator(self, node: Node, source: SelectSource) -> SqlTerm:
        children = node["children"]
        match node["type"]:
            case "OPERATOR_NOT":
                return self._truth(f"(NOT {self.write_condition(children[0], source).text})")
            case "OPERATOR_IS_NULL" | "OPERATOR_IS_NOT_NULL":
                word = "IS NULL" if node["type"] == "OPERATOR_IS_NULL" else "IS NOT NULL"
                # A column of any type can be asked that.
                if children[0]["class"] == "COLUMN_REF":
                    return self._truth(f"({self.find_column(children[0], source).sql} {word})")
                return self._truth(f"({self.write(children[0], source).text} {word})")
            case "COMPARE_IN" | "COMPARE_NOT_IN":
                value, *listed = self._write_same_kind(node, children, source)
                word = "IN" if node["type"] == "COMPARE_IN" else "NOT IN"
                return self._truth(f"({value} {word} ({', '.join(listed)}))")
            case "OPERATOR_COALESCE":
                return self._call_same_kind("coalesce", node, children, source)
            case "OPERATOR_TRY":
                with self._try():
                    return self.write(children[0], source)
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
        terms = [self.write(one, source) for one in given]
        # DuckDB fails on times in functions that it has not written, within TRY, too.
        if any(term.kind == "time" for term in terms):
            self._refuse(
                "total",
                f"has {self.quote(node)}, a function of a TIME",
                "pass the time on as it is",
            )
        if name in functions.OF_PARTS and (
            not given or terms[0].text.strip("'").casefold() not in functions.PARTS
        ):
            self._refuse_unknown(node, name)
        if not self._trying and not functions.is_total(name, terms):
            self._refuse("total", f"has {self.quote(node)}, which can fail on a row", NO_ERROR)
        places = functions.ROW_WISE[name]
        if places is not None and any(
            not term.literal for at, term in enumerate(terms) if at not in places
        ):
            self._refuse("total", f"has {self.quote(node)}", "give it constants beside the column")
        texts = [term.text for term in terms]
        call = f"{sql.quote_name(name)}({', '.join(texts)})"
        text = operate_view(name, *texts) if node["is_operator"] else call
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
        terms = [self.write(one, source) for one in given]
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
                f"has {self.quote(node)}, whose parts have different types",
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
            f"has {self.quote(node)}, whose constant is no {value.kind.upper()}",
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
        self._refuse("total", f"has {unclear}, which DuckDB does not know", NO_ERROR)

    @contextmanager
    def _try(self) -> Iterator[None]:
        """Within TRY an expression may fail on a row."""
        before, self._trying = self._trying, True
        try:
            yield
        finally:
            self._trying = before

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

    def quote(self, node: Node) -> str:
        """An expression as its author may have written it."""
        query = "SELECT json_deserialize_sql(?)"
        tree = json.loads(self._catalog.fetch_rows("SELECT json_serialize_sql('SELECT 1')")[0][0])
        tree["statements"][0]["node"]["select_list"] = [{**node, "alias": ""}]
        text = self._catalog.fetch_rows(query, [json.dumps(tree)])[0][0].removeprefix("SELECT ")
        return text if len(text) <= 80 else f"{text[:77]}..."

    def _refuse_unknown(self, node: Node, name: str) -> NoReturn:
        self._refuse(
            "row-wise",
            f"has {self.quote(node)}, and {name!r} is on no list of functions that take one row by itself",
            "leave it out",
        )

    def _refuse_expression(self, node: Node) -> NoReturn:
        self._refuse(
            "row-wise",
            f"has {self.quote(node)}, which is on no list of expressions that take one row by itself",
            "leave it out",
        )
