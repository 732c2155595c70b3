"""A group's keys as typed values: the type that a key's text writes, the same for all keys of one
column.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dpflow.core.contract.result_fields import read_key


def read_typed_key(text: str) -> Any:
    """An integer, a date, a timestamp, or the text."""
    key = read_key(text)
    typed = [one for one in (key.integer, key.date, key.timestamp) if one is not None]
    return typed[0] if typed else text


def type_keys(columns: Sequence[Sequence[str]]) -> list[dict[str, Any]]:
    """For each grouping column a typed value of every key; texts where the keys have several types."""
    typed = []
    for texts in columns:
        values = {text: read_typed_key(text) for text in texts}
        if set(texts) <= {"false", "true"} and texts:
            values = {text: text == "true" for text in texts}
        elif len({type(value) for value in values.values()}) > 1:
            values = {text: text for text in texts}
        typed.append(values)
    return typed
