"""What a session has answered, in memory: points by their keyed names, quick to see that a batch is
new.

New points come in large batches, and a dictionary of millions of names goes to memory for each. So
the first halves of all names are stored as sorted numbers, too. A batch none of whose numbers is
there is new, and its names reach the dictionary only when some later batch has to be looked up one
by one.
"""

from __future__ import annotations

import base64
import json
import secrets
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dpflow.core.contract.point_encoding import Codes

Keys = NDArray[np.uint64]

NAME_BYTES: Final = 16
NONCE_BYTES: Final = 16
#: The stored form of a batch that this version writes, under the key "form".
FORM: Final = 2


class PointNames:
    """A session's names of its points, and the form in which the ledger stores them.

    A name is BLAKE2b of the point's integers under the session's key, so every process finds the
    same one. Two points share a name with probability 2^-128; they would share an answer, which
    costs nobody privacy. A batch is stored as its names xor a keystream of its own, BLAKE2b of a
    nonce and a counter: an export shows neither who was asked about, nor whether two sessions were
    asked the same. A personalisation of the hash separates the two purposes of the key.
    """

    def __init__(self, key: bytes) -> None:
        self._key = key  # 32 bytes

    def name_points(self, codes: Codes) -> list[bytes]:
        """The name of each point: 16 bytes for each row of integers."""
        codes = np.ascontiguousarray(codes, np.int64)
        data, width = codes.tobytes(), 8 * codes.shape[1]
        # A copy of a keyed state costs less than to absorb the key for each point.
        keyed = blake2b(digest_size=NAME_BYTES, key=self._key, person=b"point name")
        names = []
        for start in range(0, len(data), width):
            state = keyed.copy()
            state.update(data[start : start + width])
            names.append(state.digest())
        return names

    def seal(self, names: Sequence[bytes]) -> dict[str, Any]:
        """Names as a batch stores them; never twice the same."""
        nonce = secrets.token_bytes(NONCE_BYTES)
        sealed = nonce + _xor_bytes(
            b"".join(names), self._keystream(nonce, NAME_BYTES * len(names))
        )
        return {"form": FORM, "names": base64.b64encode(sealed).decode()}

    def open(self, batch: Mapping[str, Any]) -> list[bytes]:
        """The names of a stored batch. Raises `ValueError`, `LookupError` or `TypeError` for
        anything that is none.
        """
        if batch["form"] != FORM:
            raise ValueError("a batch of a later version")
        sealed = base64.b64decode(batch["names"])
        nonce, names = sealed[:NONCE_BYTES], sealed[NONCE_BYTES:]
        return _split_names(_xor_bytes(names, self._keystream(nonce, len(names))))

    def _keystream(self, nonce: bytes, length: int) -> bytes:
        blocks = (
            blake2b(nonce + number.to_bytes(8, "big"), key=self._key, person=b"batch of names")
            for number in range(-(-length // 64))
        )
        return b"".join(block.digest() for block in blocks)[:length]


def _xor_bytes(data: bytes, stream: bytes) -> bytes:
    return (np.frombuffer(data, np.uint8) ^ np.frombuffer(stream, np.uint8)).tobytes()


def _split_names(data: bytes) -> list[bytes]:
    return np.frombuffer(data, f"V{NAME_BYTES}").tolist()  # type: ignore[no-any-return]


class AnswerIndex:
    """Names of 16 bytes and their answers."""

    def __init__(self) -> None:
        self._answers: dict[bytes, Any] = {}
        # Batches that are not in the dictionary yet.
        self._batches: list[tuple[Sequence[bytes], Sequence[Any]]] = []
        # Sorted halves of names, each run less than half as long as the one before it.
        self._runs: list[Keys] = []

    def find_new(self, names: Sequence[bytes]) -> dict[bytes, int] | None:
        """Names without an answer, with a position of each; None if these are all of them, and all
        different.
        """
        keys = _sort_keys(names)
        if not (keys[1:] == keys[:-1]).any() and not any(_share_key(r, keys) for r in self._runs):
            return None
        answers = self._all_answers()
        return {name: position for position, name in enumerate(names) if name not in answers}

    def add_answers(self, names: Sequence[bytes], answers: Sequence[Any]) -> None:
        """Remember what was stored."""
        if not names:
            return
        self._batches.append((names, answers))
        self._runs.append(_sort_keys(names))
        # Runs of like length are merged, so a look-up searches a logarithmic number of them.
        while len(self._runs) > 1 and 2 * len(self._runs[-1]) >= len(self._runs[-2]):
            run = np.concatenate([self._runs.pop(), self._runs.pop()])
            run.sort(kind="stable")
            self._runs.append(run)

    def look_up(self, names: Sequence[bytes]) -> list[Any]:
        """The answers of these names. Raises `KeyError` for one without."""
        answers = self._all_answers()
        return [answers[name] for name in names]

    def _all_answers(self) -> dict[bytes, Any]:
        for names, answers in self._batches:
            self._answers.update(zip(names, answers))
        self._batches.clear()
        return self._answers


def pack_answers(answers: Sequence[Any]) -> str:
    """Answers as JSON: few different texts or numbers of one type by their positions in a list, all
    else as they are.

    Raises `TypeError` or `ValueError` for what JSON does not hold.
    """
    types = set(map(type, answers))
    if len(types) == 1 and types <= {str, int, bool}:
        labels = {label: number for number, label in enumerate(dict.fromkeys(answers))}
        # One byte an answer; "places" is the stored key.
        if len(labels) <= 256:
            packed = base64.b64encode(bytes(map(labels.__getitem__, answers))).decode()
            return json.dumps({"labels": list(labels), "places": packed})
    return json.dumps(answers, allow_nan=False)


def unpack_answers(text: str) -> list[Any]:
    """The answers that were packed. Raises `KeyError`, `TypeError`, `ValueError` or `IndexError`
    for anything else.
    """
    stored = json.loads(text)
    if isinstance(stored, dict):
        return list(
            map(stored["labels"].__getitem__, base64.b64decode(stored["places"], validate=True))
        )
    return list(stored)


def _sort_keys(names: Sequence[bytes]) -> Keys:
    """The first halves of names as sorted numbers."""
    keys: Keys = np.sort(np.frombuffer(b"".join(names), np.uint64)[::2])
    return keys


def _share_key(run: Keys, keys: Keys) -> bool:
    """Whether two sorted arrays share a number."""
    positions = np.minimum(np.searchsorted(run, keys), len(run) - 1)
    return bool((run[positions] == keys).any())
