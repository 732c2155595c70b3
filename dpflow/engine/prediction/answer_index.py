"""What a session has answered, in memory: found by name, and quick to see that a whole batch is
new.

New points come in large batches, and a dictionary of millions of names goes to memory for each. So
the first halves of all names are kept as sorted numbers, too: a batch none of whose numbers is
there is new, and its names reach the dictionary only when some later batch has to be looked up one
by one.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Keys = NDArray[np.uint64]


class Answered:
    """Names of 16 bytes and their answers."""

    def __init__(self) -> None:
        self._found: dict[bytes, Any] = {}
        self._batches: list[tuple[Sequence[bytes], Sequence[Any]]] = []  # not in the dictionary yet
        self._runs: list[Keys] = []  # sorted, each less than half as long as the one before it

    def new(self, names: Sequence[bytes]) -> dict[bytes, int] | None:
        """Names without an answer, with a place of each; None if these are all of them, and all
        different.
        """
        keys = _keys(names)
        if not (keys[1:] == keys[:-1]).any() and not any(_meet(run, keys) for run in self._runs):
            return None
        found = self._all()
        return {name: place for place, name in enumerate(names) if name not in found}

    def add(self, names: Sequence[bytes], answers: Sequence[Any]) -> None:
        """Remember what was stored."""
        if not names:
            return
        self._batches.append((names, answers))
        self._runs.append(_keys(names))
        while len(self._runs) > 1 and 2 * len(self._runs[-1]) >= len(self._runs[-2]):
            both = np.concatenate([self._runs.pop(), self._runs.pop()])
            both.sort(kind="stable")
            self._runs.append(both)

    def of(self, names: Sequence[bytes]) -> list[Any]:
        """The answers of these names."""
        found = self._all()
        return [found[name] for name in names]

    def _all(self) -> dict[bytes, Any]:
        for names, answers in self._batches:
            self._found.update(zip(names, answers))
        self._batches.clear()
        return self._found


def packed(answers: Sequence[Any]) -> str:
    """Answers as JSON: few different texts or numbers of one type by their places in a list, all
    else as they are.

    Raises `TypeError` or `ValueError` for what JSON does not hold.
    """
    types = set(map(type, answers))
    if len(types) == 1 and types <= {str, int, bool}:
        labels = {label: place for place, label in enumerate(dict.fromkeys(answers))}
        if len(labels) <= 256:
            places = base64.b64encode(bytes(map(labels.__getitem__, answers))).decode()
            return json.dumps({"labels": list(labels), "places": places})
    return json.dumps(answers, allow_nan=False)


def unpacked(text: str) -> list[Any]:
    """The answers that were packed. Raises `KeyError`, `TypeError`, `ValueError` or `IndexError`
    for anything else.
    """
    found = json.loads(text)
    if isinstance(found, dict):
        return list(
            map(found["labels"].__getitem__, base64.b64decode(found["places"], validate=True))
        )
    return list(found)


def _keys(names: Sequence[bytes]) -> Keys:
    """The first halves of names as sorted numbers."""
    keys: Keys = np.sort(np.frombuffer(b"".join(names), np.uint64)[::2])
    return keys


def _meet(run: Keys, keys: Keys) -> bool:
    """Whether two sorted arrays share a number."""
    places = np.minimum(np.searchsorted(run, keys), len(run) - 1)
    return bool((run[places] == keys).any())
