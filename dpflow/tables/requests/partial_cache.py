"""Cached partial aggregates: sums of single blocks, stored for the next release that reads the same blocks.

Sound only where a declaration protects a unit's rows of one block: then blocks are truncated
one by one, and a release over several adds up what each gives. Truncation draws by a keyed hash of
unit, block and group here, so the sums of a block are one function of its rows. The contribution
bounds give that function's sensitivity, and a stored sum is its value and nothing else. (With fresh
draws, a row that arrives late would make all other units of its block be drawn again, and two
releases would differ by more than one unit's rows.)

The sums are exact, so they are as private as the table and stay where it is: in
``<database>.partials``, a directory and files that only their owner can enter. They never reach the
ledger, a result or a message. What makes them right:

- The name of an entry is a digest of the request, the declaration, the condition, the columns' types and the block.
- Its state says where in the file the block's rows are stored, with checksums of what is there
  (`dpflow.tables.access.block_fingerprints`), or of a sealed block which version the owner declares.
  If that is anything else now, the entry is not used and is replaced.
- Entries of sealed blocks stay until then: what would be removed instead, and when, could follow rows.
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
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
from numpy.typing import NDArray

from dpflow.core.contract.requests import Groups, ValueCounts

log = logging.getLogger("dpflow")

Part = Groups | ValueCounts
Seal = Callable[[bytes], str]  #: a keyed digest, as hexadecimal text

FORMAT = 4  #: raised whenever the truncation or the file changes
MOST = 5000  #: entries; beyond it the oldest go, but none of sealed blocks
SEALED = "sealed-"  #: what the names of sealed blocks' entries begin with
PROBE = ".probe"  #: an empty file that shows whether files can be written
ABANDONED = 3600  #: seconds after which a half-written file belongs to nobody


class PartialCache:
    """The cached partial aggregates of one database.

    Args:
        database: the private file; the directory is made beside it.
        seal: a keyed digest that only who may release can make.
    """

    def __init__(self, database: Path, seal: Seal) -> None:
        self.folder = database.with_name(database.name + ".partials")
        self._seal = seal
        self._usable = False

    @property
    def draw_salt(self) -> int:
        """A secret number for draws, so that nobody can look for rows that are cached."""
        return int(self._seal(b"salt")[:15], 16)

    def entry_name(self, what: Any, sealed: bool = False) -> str:
        """The name of an entry, from what it is of."""
        digest = self._seal(b"name\0" + repr((FORMAT, duckdb.__version__, what)).encode())
        return (SEALED if sealed else "") + digest

    def prepare_folder(self) -> None:
        """Make the directory and try it, before rows decide whether there is anything to keep: its
        state alone is logged.
        """
        self._usable = False
        try:
            with contextlib.suppress(FileExistsError):
                self.folder.mkdir(mode=0o700)
            status = self.folder.lstat()
            if not (stat.S_ISDIR(status.st_mode) and _only_ours(status)):
                log.warning(
                    "%s is open to others, so no sums of blocks are cached there; remove it",
                    self.folder,
                )
                return
            # A full disk keeps nothing more; what is there stays in use, or a sealed block would
            # be read again because of it.
            self._usable = True
            self._write_file(b"", PROBE)
            (self.folder / PROBE).unlink()
        except OSError as error:
            log.warning(
                "no more sums of blocks are cached in %s (%s); releases read these blocks",
                self.folder,
                error.strerror,
            )

    def read_entry(self, name: str, state: str) -> Part | None:
        """The entry of this name if it is genuine and was made in this state."""
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            if self._usable:
                return self._parse_entry(self._read_file(self.folder / name), name, state)
        return None

    def write_entry(self, name: str, state: str, part: Part) -> None:
        """Keep an entry, in the place of an older one; it appears whole or not at all."""
        if self._usable:
            with contextlib.suppress(
                OSError
            ):  # a disk may be full or not by what rows hold: no word about it
                data = _pack_entry(name, state, part)
                self._write_file(self._seal(data).encode() + b"\n" + data, name)

    def _write_file(self, content: bytes, name: str) -> None:
        half = self.folder / f".{secrets.token_hex(8)}"
        try:
            with open(
                os.open(half, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600), "wb"
            ) as file:
                file.write(content)
            os.replace(half, self.folder / name)
        except OSError:
            with contextlib.suppress(OSError):
                half.unlink(missing_ok=True)
            raise

    def remove_old(self) -> None:
        """Remove what a killed process left half written, and the oldest entries beyond `MOST`."""
        with contextlib.suppress(OSError):
            files = sorted((entry.stat().st_mtime, entry.name) for entry in os.scandir(self.folder))
            whole = [name for _, name in files if not name.startswith((".", SEALED))]
            old = [
                name
                for when, name in files
                if name.startswith(".") and when < time.time() - ABANDONED
            ]
            for name in [*old, *whole[: max(0, len(whole) - MOST)]]:
                (self.folder / name).unlink(missing_ok=True)

    def _read_file(self, path: Path) -> bytes:
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode) or not _only_ours(status):
                raise PermissionError(path)
            return file.read()

    def _parse_entry(self, content: bytes, name: str, state: str) -> Part | None:
        seal, _, data = content.partition(b"\n")
        if not hmac.compare_digest(seal, self._seal(data).encode()):
            return None
        line, _, raw = data.partition(b"\n")
        header = json.loads(line)
        if (header["name"], header["state"]) != (name, state):
            return None
        numbers, ends = np.frombuffer(raw, "<i8").astype(np.int64), np.cumsum(header["sizes"])
        return _restore_part(header, iter(np.split(numbers, ends[:-1])))


def _only_ours(found: os.stat_result) -> bool:
    return found.st_uid == os.geteuid() and not found.st_mode & 0o077


def _pack_entry(name: str, state: str, part: Part) -> bytes:
    header: dict[str, Any] = {"name": name, "state": state}
    if isinstance(part, Groups):
        measures = (part.sums, part.counts, part.squares)
        arrays = [part.rows, part.units, *(array for one in measures for array in one.values())]
        header |= {"keys": part.keys, "columns": [list(one) for one in measures]}
    else:
        arrays = [part.values, part.counts] + ([] if part.codes is None else [part.codes])
    header["sizes"] = [len(array) for array in arrays]
    return (
        json.dumps(header).encode()
        + b"\n"
        + b"".join(array.astype("<i8").tobytes() for array in arrays)
    )


def _restore_part(header: dict[str, Any], arrays: Iterator[NDArray[np.int64]]) -> Part:
    if "keys" not in header:
        return ValueCounts(next(arrays), next(arrays), next(arrays, None))
    rows, units = next(arrays), next(arrays)
    sums, counts, squares = ({name: next(arrays) for name in names} for names in header["columns"])
    return Groups(tuple(header["keys"]), rows, units, sums, counts, squares)
