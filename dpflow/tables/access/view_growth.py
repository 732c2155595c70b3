"""How much longer than a row's longest text the texts become that a query makes of it.

``replace`` four times nested makes gigabytes of one row's kilobyte, and memory that ends is a failure
that one row decides. So the query that is written has a bound, which follows from its expressions
alone: functions that lengthen a text multiply it, and those that join texts add theirs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Any

#: A node of DuckDB's syntax tree.
Node = Mapping[str, Any]
#: The most that a text may grow. A text that fills memory so is within a few powers of two of one
#: that fills it as it is stored.
MOST_GROWTH = 32

#: Functions that may lengthen each character: of other case it may have one byte more.
_PER_CHARACTER = {
    "lower": Fraction(3, 2),
    "upper": Fraction(3, 2),
    "translate": Fraction(4),
}
#: Functions that join what they are given.
_JOINING = ("||", "concat")


def find_growth(query: Node) -> tuple[Fraction, Node]:
    """The most that an expression of a query lengthens a text, and that expression.

    Args:
        query: the syntax tree of a query as `ViewRewriter` writes it: SELECTs of one relation, each
            of whose columns has a name, and UNION ALL of them.
    """
    found: list[tuple[Fraction, Node]] = [(Fraction(1), query)]
    _measure_query(query, found)
    return max(found, key=lambda one: one[0])


def _measure_query(query: Node, found: list[tuple[Fraction, Node]]) -> list[tuple[str, Fraction]]:
    """Name and growth of each output column; every expression is noted."""
    if query["type"] == "SET_OPERATION_NODE":
        first, *others = (_measure_query(one, found) for one in query["children"])
        growths = zip(*([growth for _, growth in one] for one in (first, *others)), strict=True)
        return [(name, max(of_all)) for (name, _), of_all in zip(first, growths, strict=True)]
    source = query["from_table"]
    columns: dict[str, Fraction] = {}
    if source["type"] == "SUBQUERY":
        columns = dict(_measure_query(source["subquery"]["node"], found))
    if query["where_clause"]:
        _measure(query["where_clause"], columns, found)
    return [
        (node["alias"] or node["column_names"][-1], _measure(node, columns, found))
        for node in query["select_list"]
    ]


def _measure(
    node: Node, columns: Mapping[str, Fraction], found: list[tuple[Fraction, Node]]
) -> Fraction:
    """The growth of an expression's value, at least 1."""
    if node.get("class") == "COLUMN_REF":
        return columns.get(node["column_names"][-1], Fraction(1))
    parts = [_measure(one, columns, found) for one in _find_parts(node)]
    name = node.get("function_name", "")
    growth = sum(parts, Fraction(0)) if name in _JOINING else max(parts, default=Fraction(1))
    growth *= _PER_CHARACTER.get(name, Fraction(1))
    if name in ("replace", "regexp_replace"):
        growth *= _replacement_growth(name, [one["expression"] for one in node["arguments"]])
    found.append((growth, node))
    return growth


def _find_parts(node: Any) -> Iterator[Node]:
    """The nearest expressions below one."""
    for one in node.values() if isinstance(node, Mapping) else node:
        if isinstance(one, Mapping) and "class" in one:
            yield one
        elif isinstance(one, Mapping | list):
            yield from _find_parts(one)


def _replacement_growth(name: str, arguments: list[Node]) -> Fraction:
    """By how much replaced parts lengthen a text; patterns and replacements are constants."""
    pattern, new = (len(_constant_text(one).encode()) for one in arguments[1:3])
    if name == "replace":
        # An empty text is replaced by nothing.
        return max(Fraction(1), Fraction(new, max(pattern, 1)))
    # A match may be empty, before and behind each character; a reference brings one match.
    return Fraction(1 + 2 * new)


def _constant_text(node: Node) -> str:
    """The text of a constant, "" of NULL."""
    return str(node["literal"].get("text", "")) if node["class"] == "CONSTANT" else ""
