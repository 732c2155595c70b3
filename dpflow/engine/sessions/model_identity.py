"""The identity of a loaded model: a digest of what it is made of, and of nothing about its file.

The same object saved twice gives other bytes: times, names and padding are in a file, and no part of
the model. So what is digested are the loaded parts: the class of each object with its attributes by
name, each array by type, shape and values, and each collection by its elements.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from typing import Any

import numpy as np

from dpflow.errors import InvalidInput


def digest_model(model: Any) -> bytes:
    """The digest of a model in which `dpflow.engine.sessions.model_parts.find_odd_part` finds nothing.

    Two models have the same one only if their parts are equal: dictionaries and sets in any order,
    arrays in either order of memory, and numbers to the last bit.

    Raises `InvalidInput` for parts that contain each other, or lie too deep in each other.
    """
    try:
        return _Digests().digest(model)
    except RecursionError:
        raise InvalidInput(
            "parts of the model lie too deep in each other; save a fitted estimator as it is"
        ) from None


class _Digests:
    """Digests of parts; one that many refer to is digested once."""

    def __init__(self) -> None:
        # With the parts themselves: what is no longer referred to gives its id to another.
        self._known: dict[int, tuple[Any, bytes]] = {}

    def digest(self, part: Any) -> bytes:
        if id(part) not in self._known:
            self._known[id(part)] = (part, self._digest_new(part))
        return self._known[id(part)][1]

    def _digest_new(self, part: Any) -> bytes:
        kind = type(part)
        name = f"{kind.__module__}.{kind.__qualname__}"
        if isinstance(part, type):
            return _join("type", f"{part.__module__}.{part.__qualname__}")
        if isinstance(part, np.dtype):
            return _join("dtype", repr(part))
        if isinstance(part, np.ndarray):
            return _join("array", str(part.shape), self._digest_values(part))
        if isinstance(part, np.generic):
            return _join(name, self._digest_values(np.asarray(part)))
        if isinstance(part, float):
            return _join(name, part.hex())
        if part is None or isinstance(part, str | bytes | int):
            return _join(name, part if isinstance(part, bytes) else str(part))
        if isinstance(part, list | tuple):
            return _join(name, *map(self.digest, part))
        if isinstance(part, set | frozenset):
            return _join(name, *sorted(map(self.digest, part)))
        if isinstance(part, dict):
            items = [self.digest(key) + self.digest(value) for key, value in part.items()]
            return _join(name, *(items if isinstance(part, OrderedDict) else sorted(items)))
        if hasattr(part, "__dict__"):
            return _join(name, "attributes", self.digest(vars(part)))
        # Compiled structures, such as a tree, say what they were made with and what they hold.
        return _join(name, "state", self.digest(list(part.__reduce__()[1:])))

    def _digest_values(self, array: Any) -> bytes:
        if array.dtype == object:
            return _join("objects", *map(self.digest, array.ravel().tolist()))
        # Field by field: between them are bytes of memory that belong to none.
        if array.dtype.names is not None:
            fields = (
                (name, self._digest_values(array[name])) for name in sorted(array.dtype.names)
            )
            return _join("fields", *(text for field in fields for text in field))
        return _join(array.dtype.str, array.tobytes())


def _join(*texts: str | bytes) -> bytes:
    """The digest of some texts: each of one length, so that no two lists make the same text."""
    joined = hashlib.sha256()
    for text in texts:
        data = text if isinstance(text, bytes) else text.encode(errors="surrogatepass")
        joined.update(hashlib.sha256(data).digest())
    return joined.digest()
