"""A group's keys as typed values, so that they are ordered and compared as the source's column is.

A key's text may write a number, a date or a truth value where the column holds texts. So where the text
alone does not say it, the source's catalogue does. A stored answer needs no source: where it cannot be
opened, all keys of a column have the type that their texts write.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from dpflow.core.contract.declaration import Table
from dpflow.core.contract.result_fields import read_key
from dpflow.errors import DpflowError
from dpflow.tables import column_types, declare_groups
from dpflow.tables.language.nodes import Node

_WHOLE, _DECIMAL = re.compile(r"-?[0-9]+"), re.compile(r"-?[0-9]+\.[0-9]+")
_TRUTHS = {"false": False, "true": True}


def read_typed_key(text: str) -> Any:
    """An integer, a date, a timestamp, or the text."""
    key = read_key(text)
    typed = [one for one in (key.integer, key.date, key.timestamp) if one is not None]
    return typed[0] if typed else text


class KeyReader:
    """Reads keys as typed values; a source's catalogue is asked once, and only where it decides."""

    def __init__(self) -> None:
        self._types: dict[tuple[str, str], str | None] = {}

    def read_columns(
        self, table: Table, groups: Sequence[Node], columns: Sequence[Sequence[str]]
    ) -> list[dict[str, Any]]:
        """For each grouping expression a typed value of every key, all of one type."""
        return [self._read(table, group, texts) for group, texts in zip(groups, columns)]

    def find_kind(self, table: Table, group: Node) -> str:
        """DuckDB's type of a grouping expression's keys, as far as it is known before they are released."""
        declared, name = declare_groups(table, str(group))
        public = declared.columns[name].public_keys
        if public is not None:
            (values,) = self.read_columns(table, [group], [list(public)])
            kinds = {type(value) for value in values.values()}
            if kinds == {Decimal} or not all(map(_is_64_bits, values.values())):
                return _name_kind(self._find_type(table, group) or "")
            return KINDS.get(kinds.pop(), "VARCHAR") if len(kinds) == 1 else "VARCHAR"
        if is_text(group):
            return "VARCHAR"
        kind = self._find_type(table, group)
        return "VARCHAR" if kind is None else _name_kind(kind)

    def find_time_kind(self, table: Table, value: Node) -> str | None:
        """DATE or TIMESTAMP where the source says that a value is one; None where it is none, or cannot say."""
        kind = self._find_type(table, value) or ""
        return _name_kind(kind) if kind.startswith(("DATE", "TIMESTAMP")) else None

    def list_types(self) -> list[tuple[str, str | None]]:
        """The types that sources were asked for, each with its table's name; None where one could not say."""
        return [(name, kind) for (name, _), kind in self._types.items()]

    def _find_type(self, table: Table, group: Node) -> str | None:
        place = table.name, str(group)
        if place not in self._types:
            self._types[place] = _find_type(table, group)
        return self._types[place]

    def _read(self, table: Table, group: Node, texts: Sequence[str]) -> dict[str, Any]:
        plain: dict[str, Any] = {text: text for text in texts}
        if is_text(group) or all(map(_is_plain, texts)):
            return plain
        values = _read_as(self._find_type(table, group), texts)
        # A key that no value of the type writes, which a declaration may have, makes all of them texts.
        mixed = len({type(value) for value in values}) > 1
        return plain if mixed else dict(zip(texts, values))


def _find_type(table: Table, group: Node) -> str | None:
    """What the catalogue calls a grouping expression's type; None if it cannot be asked now."""
    try:
        declared, name = declare_groups(table, str(group))
        return column_types(declared)[name]
    except DpflowError:
        return None


def _is_plain(text: str) -> bool:
    """Whether a text writes a value of no other type."""
    known = text in ("false", "true") or _DECIMAL.fullmatch(text) is not None
    return not known and isinstance(read_typed_key(text), str)


def _read_as(kind: str | None, texts: Sequence[str]) -> list[Any]:
    """Keys as values of a type; of one that is not known, as what all of them write."""
    if kind is None:
        truths = set(texts) <= {"false", "true"}
        return [text == "true" for text in texts] if truths else list(map(read_typed_key, texts))
    name = kind.partition("(")[0]
    if name == "BOOLEAN":
        return [_TRUTHS.get(text, text) for text in texts]
    if name.endswith("INT") or name == "INTEGER":
        return [int(text) if _WHOLE.fullmatch(text) else text for text in texts]
    if name == "DECIMAL":
        read = Decimal if _is_wide(kind) else float
        numbers = [read(text) if _is_decimal(text) else text for text in texts]
        # Two texts of one number would be one key.
        return numbers if len(set(numbers)) == len(set(texts)) else list(texts)
    if name == "DATE" or name.startswith("TIMESTAMP"):
        return list(map(read_typed_key, texts))
    return list(texts)


#: DuckDB's types of Python's values.
KINDS: dict[type, str] = {
    bool: "BOOLEAN",
    int: "BIGINT",
    float: "DOUBLE",
    str: "VARCHAR",
    dict: "MAP(VARCHAR, BIGINT)",
    dt.date: "DATE",
    dt.datetime: "TIMESTAMP",
}


def _name_kind(kind: str) -> str:
    """What a key of one of the source's types is here."""
    name = kind.partition("(")[0]
    if name in ("BOOLEAN", "DATE"):
        return name
    if name in ("UBIGINT", "HUGEINT", "UHUGEINT"):
        return "HUGEINT" if name == "UBIGINT" else name
    if name.endswith("INT") or name == "INTEGER":
        return "BIGINT"
    if name == "DECIMAL":
        return kind if _is_wide(kind) else "DOUBLE"
    return "TIMESTAMP" if name.startswith("TIMESTAMP") else "VARCHAR"


def _is_wide(kind: str) -> bool:
    """Whether a type of decimals has more digits than a double writes."""
    return int(kind.removeprefix("DECIMAL(").partition(",")[0]) > 15


def _is_64_bits(value: Any) -> bool:
    return not isinstance(value, int) or -(2**63) <= value < 2**63


def _is_decimal(text: str) -> bool:
    return _DECIMAL.fullmatch(text) is not None or _WHOLE.fullmatch(text) is not None


def is_text(node: Node) -> bool:
    """Whether an expression's values are texts whatever they write; of a column nothing says it."""
    if node.op == "CASE":
        values = [*node.args[1::2], *node.args[len(node.args) // 2 * 2 :]]
        return any(map(is_text, values))
    if node.op in ("coalesce", "least", "greatest"):
        return any(map(is_text, node.args))
    return node.op in ("text", "lower", "upper") or (
        node.op == "CAST" and node.args[1] == "VARCHAR"
    )
