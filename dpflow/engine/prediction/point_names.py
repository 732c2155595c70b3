"""What a session calls its points: a keyed name of sixteen bytes each, in memory; in the ledger
only under a cipher.

A name is four independent multilinear hashes of the point's integers (Lemire and Kaser 2014,
strongly universal), computed for a whole batch in one matrix product. Two points share a name with
probability 2^-128; they would then share an answer, which is the stored one shown again and costs
nobody privacy. The keys come from the ledger's, so every process finds the same names. Hashes of
this kind must not be seen, so a batch is stored as its names xor a keystream of its own (SHAKE-256
of key and nonce): an export does not show who was asked about, nor whether two sessions were asked
the same.
"""

from __future__ import annotations

import base64
import hashlib
import os
import secrets
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from dpflow.core.contract.point_encoding import Codes

SIZE = 16  # bytes of a name
NONCE = 16
_HALF = np.uint64(32)
_BLOCK = 4096  # points whose integers stay in the cache


class Names:
    """Names under one key of at least 32 bytes, for points of this many integers."""

    def __init__(self, key: bytes, width: int) -> None:
        self._key = key
        stream = hashlib.shake_256(key + b"names").digest(8 * (2 * width + 1) * SIZE // 4)
        self._factors: NDArray[np.uint64] = np.frombuffer(stream, np.uint64).reshape(
            2 * width + 1, SIZE // 4
        )

    def of(self, codes: Codes) -> list[bytes]:
        """The name of each point."""
        hashes = np.empty((len(codes), SIZE // 4), np.uint32)

        def name(start: int) -> None:
            part = np.ascontiguousarray(codes[start : start + _BLOCK], np.int64)
            halves = part.view(np.uint32).astype(np.uint64)
            hashes[start : start + _BLOCK] = (
                halves @ self._factors[1:] + self._factors[0]
            ) >> _HALF

        starts = range(0, len(codes), _BLOCK)
        if len(starts) < 2:
            for start in starts:
                name(start)
        else:
            with ThreadPoolExecutor(
                os.cpu_count()
            ) as pool:  # numpy multiplies outside Python's lock
                list(pool.map(name, starts))
        return hashes.view(f"V{SIZE}")[:, 0].tolist()  # type: ignore[no-any-return]

    def sealed(self, names: Iterable[bytes]) -> str:
        """Names as they may be stored, in base64; never twice the same."""
        nonce = secrets.token_bytes(NONCE)
        return base64.b64encode(nonce + self._crypted(b"".join(names), nonce)).decode()

    def opened(self, stored: str) -> list[bytes]:
        """The names that were sealed."""
        given = base64.b64decode(stored)
        plain = self._crypted(given[NONCE:], given[:NONCE])
        return np.frombuffer(plain, f"V{SIZE}").tolist()  # type: ignore[no-any-return]

    def _crypted(self, data: bytes, nonce: bytes) -> bytes:
        stream = hashlib.shake_256(self._key + b"batch" + nonce).digest(len(data))
        return (np.frombuffer(data, np.uint8) ^ np.frombuffer(stream, np.uint8)).tobytes()
