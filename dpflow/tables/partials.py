"""Bounded sums of single blocks, kept for the next release that reads the same blocks.

Sound only where a declaration protects a unit's rows of one block: then blocks are cut one by one, and a release over several
adds up what each gives. The cut's draws are a keyed hash of unit, block and group here, so the sums of a block are one
function of its rows, whose sensitivity is that of the limits: to keep them is to remember that function's value and nothing
else. (With fresh draws, a row that arrives late would make all other units of its block be drawn again, and two releases
would differ by more than one unit's rows.)

The sums are exact, so they are as private as the table and stay where it is: in ``<database>.partials``, a directory and files
that only their owner can enter. They never reach the ledger, a result or a message. What makes them right:

- The name of an entry is a digest of the request, the declaration, the condition, the columns' types and the block.
- Its state is a fingerprint of the block's rows (`_Reading.states` of `dpflow.tables.private`). If the rows are others
  now, the entry is not used and is replaced.
- A seal, a keyed digest under the ledger's key, covers all of it. A torn, exchanged or forged file is no entry.
- A directory or file that somebody else owns or can open is not used at all: whoever reads along knows exact sums, and that is
  said in the log. A place that cannot be written keeps nothing. Neither stops a release.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import logging
import os
import secrets
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
from numpy.typing import NDArray

from dpflow.core.declaration import MAX_MAGNITUDE
from dpflow.core.statistics import Groups, Histogram

log = logging.getLogger("dpflow")

Part = Groups | Histogram
Seal = Callable[[bytes], str]  #: a keyed digest, as hexadecimal text

FORMAT = 2  #: raised whenever cut or file change
MOST = 5000  #: entries; beyond it the oldest go
ABANDONED = 3600  #: seconds after which a half-written file belongs to nobody


class Partials:
    """The kept sums of one database.

    Args:
        database: the private file; the directory is made beside it.
        seal: a keyed digest that only who may release can make.
    """

    def __init__(self, database: Path, seal: Seal) -> None:
        self.folder = database.with_name(database.name + ".partials")
        self._seal = seal
        self._warned = False

    @property
    def salt(self) -> int:
        """A secret number for draws and fingerprints, so that nobody can look for rows that are kept or that collide."""
        return int(self._seal(b"salt")[:15], 16)

    def name(self, what: Any) -> str:
        """The name of an entry, from what it is of."""
        return self._seal(b"name\0" + repr((FORMAT, duckdb.__version__, what)).encode())

    def get(self, name: str, state: str) -> Part | None:
        """The entry of this name if it is genuine and was made in this state."""
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            if self._trusted():
                return self._parsed(self._read(self.folder / name), name, state)
        return None

    def put(self, name: str, state: str, part: Part) -> None:
        """Keep an entry, in the place of an older one; it appears whole or not at all."""
        data = _packed(name, state, part)
        half = self.folder / f".{secrets.token_hex(8)}"
        try:
            with contextlib.suppress(FileExistsError):
                self.folder.mkdir(mode=0o700)
            if not self._trusted():
                return
            with open(os.open(half, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600), "wb") as file:
                file.write(self._seal(data).encode() + b"\n" + data)
            os.replace(half, self.folder / name)
        except OSError as error:
            with contextlib.suppress(OSError):  # nothing about keeping may change what a release answers
                half.unlink(missing_ok=True)
            log.warning(
                "sums of blocks are not kept in %s (%s); releases read every block", self.folder, error.strerror
            )

    def tidy(self) -> None:
        """Remove what a killed process left half written, and the oldest entries beyond `MOST`."""
        with contextlib.suppress(OSError):
            found = sorted((entry.stat().st_mtime, entry.name) for entry in os.scandir(self.folder))
            whole = [name for _, name in found if not name.startswith(".")]
            old = [name for when, name in found if name.startswith(".") and when < time.time() - ABANDONED]
            for name in [*old, *whole[: max(0, len(whole) - MOST)]]:
                (self.folder / name).unlink(missing_ok=True)

    def _trusted(self) -> bool:
        found = self.folder.lstat()
        if stat.S_ISDIR(found.st_mode) and _only_ours(found):
            return True
        if not self._warned:
            log.warning("%s is open to others, so no sums of blocks are kept there; remove it", self.folder)
        self._warned = True
        return False

    def _read(self, path: Path) -> bytes:
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode) or not _only_ours(found):
                raise PermissionError(path)
            return file.read()

    def _parsed(self, content: bytes, name: str, state: str) -> Part | None:
        seal, _, data = content.partition(b"\n")
        if not hmac.compare_digest(seal, self._seal(data).encode()):
            return None
        line, _, raw = data.partition(b"\n")
        header = json.loads(line)
        if (header["name"], header["state"]) != (name, state):
            return None
        numbers, ends = np.frombuffer(raw, "<i8").astype(np.int64), np.cumsum(header["sizes"])
        return _restored(header, iter(np.split(numbers, ends[:-1])))


def _only_ours(found: os.stat_result) -> bool:
    return found.st_uid == os.geteuid() and not found.st_mode & 0o077


def _packed(name: str, state: str, part: Part) -> bytes:
    header: dict[str, Any] = {"name": name, "state": state}
    if isinstance(part, Groups):
        named = (part.sums, part.counts, part.squares)
        arrays = [part.rows, part.units, *(array for one in named for array in one.values())]
        header |= {"keys": part.keys, "columns": [list(one) for one in named]}
    else:
        arrays = [part.values, part.counts] + ([] if part.codes is None else [part.codes])
    header["sizes"] = [len(array) for array in arrays]
    return json.dumps(header).encode() + b"\n" + b"".join(array.astype("<i8").tobytes() for array in arrays)


def _restored(header: dict[str, Any], arrays: Iterator[NDArray[np.int64]]) -> Part:
    if "keys" not in header:
        return Histogram(next(arrays), next(arrays), next(arrays, None))
    rows, units = next(arrays), next(arrays)
    sums, counts, squares = ({name: next(arrays) for name in names} for names in header["columns"])
    return Groups(tuple(header["keys"]), rows, units, sums, counts, squares)


def together(parts: Sequence[Part]) -> Part:
    """The sums of several blocks: groups by their key, values by group and value."""
    first = parts[0]
    if isinstance(first, Groups):
        return _groups_together([part for part in parts if isinstance(part, Groups)])
    histograms = [part for part in parts if isinstance(part, Histogram)]
    values = np.concatenate([part.values for part in histograms])
    grouped = first.codes is not None
    codes = np.concatenate(
        [part.codes if part.codes is not None else np.zeros(len(part.values), np.int64) for part in histograms]
    )
    order = np.lexsort((values, codes))
    values, codes = values[order], codes[order]
    starts = np.flatnonzero(np.r_[True, (np.diff(values) != 0) | (np.diff(codes) != 0)]) if len(values) else order
    counts = np.concatenate([part.counts for part in histograms])[order]
    totals = np.add.reduceat(counts, starts) if len(values) else counts
    return Histogram(values[starts], totals, codes[starts] if grouped else None)


def _groups_together(parts: Sequence[Groups]) -> Groups:
    """Each block's sums stop at +-2^62, and so do theirs: the number of blocks is public, so one unit moves both by no more."""
    keys = parts[0].keys
    if any(part.keys != keys for part in parts):
        keys = tuple(sorted({key for part in parts for key in part.keys}))
    place = {key: i for i, key in enumerate(keys)}
    places = [slice(None) if part.keys == keys else np.array([place[k] for k in part.keys], np.intp) for part in parts]

    def total(arrays: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
        small = max((int(np.abs(array).max()) for array in arrays if len(array)), default=0) < MAX_MAGNITUDE // len(
            arrays
        )
        whole = np.zeros(len(keys), np.int64 if small else object)
        for at, array in zip(places, arrays, strict=True):
            whole[at] += array if small else array.astype(object)
        return np.clip(whole, -MAX_MAGNITUDE, MAX_MAGNITUDE).astype(np.int64)

    def by_column(named: Sequence[Any]) -> dict[str, NDArray[np.int64]]:
        return {column: total([one[column] for one in named]) for column in named[0]}

    return Groups(
        keys,
        total([part.rows for part in parts]),
        total([part.units for part in parts]),
        by_column([part.sums for part in parts]),
        by_column([part.counts for part in parts]),
        by_column([part.squares for part in parts]),
    )
