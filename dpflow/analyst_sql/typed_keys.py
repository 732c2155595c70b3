"""A group's keys as typed values: the type that a key's text writes, the same for all keys of one
column, unless the grouping expression says that they are texts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dpflow.core.contract.result_fields import read_key
from dpflow.tables.language.nodes import Node


def read_typed_key(text: str) -> Any:
    """An integer, a date, a timestamp, or the text."""
    key = read_key(text)
    typed = [one for one in (key.integer, key.date, key.timestamp) if one is not None]
    return typed[0] if typed else text


def type_keys(groups: Sequence[Node], columns: Sequence[Sequence[str]]) -> list[dict[str, Any]]:
    """For each grouping expression a typed value of every key: texts where the expression says so, or where
    the keys have several types.
    """
    typed = []
    for group, texts in zip(groups, columns):
        if is_text(group):
            typed.append({text: text for text in texts})
            continue
        values = {text: read_typed_key(text) for text in texts}
        if set(texts) <= {"false", "true"} and texts:
            values = {text: text == "true" for text in texts}
        elif len({type(value) for value in values.values()}) > 1:
            values = {text: text for text in texts}
        typed.append(values)
    return typed


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
