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

- The name of an entry is a digest of the request, the declaration, the condition, the columns' types and the block;
  of a sealed one only of what is read of these.
- Its state says where in the file the block's rows are stored, with digests of what is there
  (`dpflow.tables.access.block_fingerprints`). If that is anything else now, the entry is not used and is
  replaced.
- Of sealed blocks the version that the owner declares is in the name. Their entries stay: what would be
  removed instead, and when, could follow rows.
- A seal, a keyed digest under the ledger's key, covers all of it. A torn, exchanged or forged file is no entry.
- A directory or file that somebody else owns or can open is not used at all: whoever reads along knows exact sums, and that is
  said in the log. A place that cannot be written keeps nothing. Neither stops a release.

No number leaves that rests on a sealed block whose entry was not stored, for a later release would
then rest on other rows, and what is stored could follow rows. So where blocks are sealed:

- A directory that cannot be used, an entry that cannot be read, and a damaged one raise `NotSealed`.
- One process seals at a time (`lock_entries`): the first to lock decides, before it reads any row.
- Room for all entries of a release is taken before rows are read (`reserve_space`), as much as the
  request alone may need up to `MOST_RESERVED`. Above that a full disk may follow rows, and raises.
- Entries are on the disk (fsync) before the release goes on.
"""

from __future__ import annotations

import contextlib
import fcntl
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

from dpflow.core.contract.requests import Groups, ValueCounts
from dpflow.errors import NotSealed
from dpflow.late_numpy import NDArray, np

log = logging.getLogger("dpflow")

Part = Groups | ValueCounts
Seal = Callable[[bytes], str]  #: a keyed digest, as hexadecimal text

FORMAT = 5  #: raised whenever the truncation or the file changes
MOST = 5000  #: entries; beyond it the oldest go, but none of sealed blocks
SEALED = "sealed-"  #: what the names of sealed blocks' entries begin with
PROBE = ".probe"  #: an empty file that shows whether files can be written
ABANDONED = 3600  #: seconds after which a half-written file belongs to nobody
MOST_RESERVED = 1 << 20  #: bytes of an entry for which room is made before rows are read


class PartialCache:
    """The cached partial aggregates of one database.

    Args:
        database: the private file; the directory is made beside it.
        seal: a keyed digest that only who may release can make.
        sealed: whether entries are of sealed blocks.
    """

    def __init__(self, database: Path, seal: Seal, sealed: bool = False) -> None:
        self.folder = database.with_name(database.name + ".partials")
        self._seal, self.sealed = seal, sealed
        self._usable = False
        self._reserved: dict[str, Path] = {}

    @property
    def draw_salt(self) -> int:
        """A secret number for draws, so that nobody can look for rows that are kept."""
        return int(self._seal(b"salt")[:15], 16)

    def entry_name(self, what: Any) -> str:
        """The name of an entry, from what it is of."""
        digest = self._seal(b"name\0" + repr(what).encode())
        return (SEALED if self.sealed else "") + digest

    def prepare_folder(self) -> None:
        """Make the directory and try it, before rows decide whether there is anything to keep: its
        state alone is logged. Raises `NotSealed` where blocks are sealed and it cannot be used.
        """
        self._usable = False
        try:
            with contextlib.suppress(FileExistsError):
                self.folder.mkdir(mode=0o700)
            status = self.folder.lstat()
            self._usable = stat.S_ISDIR(status.st_mode) and _only_ours(status)
            problem = "is open to others, so no sums of blocks are cached there; remove it"
            if self._usable and not self.sealed:
                self._write_file(b"", PROBE)
                (self.folder / PROBE).unlink()
        except OSError as error:
            problem = (
                f"caches no more sums of blocks ({error.strerror}); releases read these blocks"
            )
            if self._usable:
                log.warning("%s %s", self.folder, problem)
        if not self._usable:
            if self.sealed:
                raise NotSealed(f"{self.folder} cannot be used; give it to this user, mode 0700")
            log.warning("%s %s", self.folder, problem)

    def read_entry(self, name: str, state: str | None) -> Part | None:
        """The entry of this name if it was made in this state. One that is not genuine is none, or
        raises `NotSealed`.
        """
        if not self._usable or state is None:
            return None
        path = self.folder / name
        try:
            return self._parse_entry(self._read_file(path), name, state)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError):
            if not self.sealed:
                return None
        raise NotSealed(
            f"{path} is damaged, or cannot be read, so what it sealed is lost; restore it, or "
            f"declare another sealed_version and remove it"
        )

    def write_entry(self, name: str, state: str | None, part: Part) -> None:
        """Keep an entry, in the place of an older one; it appears whole or not at all. Raises
        `NotSealed` where it must be kept.
        """
        if not self._usable or state is None:
            return
        data = _pack_entry(name, state, part)
        try:
            self._write_file(self._seal(data).encode() + b"\n" + data, name)
            return
        # A disk may be full or not by what rows hold: no word about it.
        except OSError:
            if not self.sealed:
                return
        raise NotSealed(self._lack_of_room())

    @contextlib.contextmanager
    def lock_entries(self) -> Iterator[None]:
        """Where blocks are sealed, let nobody else seal any until all are; then they are on disk."""
        if not self.sealed:
            yield
            return
        descriptor, stored = -1, False
        try:
            with contextlib.suppress(OSError):
                descriptor = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                stored = True
            if stored:
                yield
                stored = False
                with contextlib.suppress(OSError):
                    os.fsync(descriptor)
                    stored = True
        finally:
            for half in self._reserved.values():
                with contextlib.suppress(OSError):
                    half.unlink(missing_ok=True)
            self._reserved.clear()
            if descriptor >= 0:
                os.close(descriptor)
        if not stored:
            raise NotSealed(self._lack_of_room())

    def reserve_space(self, names: Sequence[str], size: int) -> None:
        """Make room for entries to be sealed, each of so many bytes, or raise `NotSealed`."""
        for name in names:
            half = self.folder / f".{secrets.token_hex(8)}"
            self._reserved[name] = half
            descriptor, full = -1, False
            try:
                descriptor = os.open(
                    half, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600
                )
                os.posix_fallocate(descriptor, 0, min(size, MOST_RESERVED))
            except OSError:
                full = True
            finally:
                if descriptor >= 0:
                    os.close(descriptor)
            if full:
                raise NotSealed(self._lack_of_room())

    def _lack_of_room(self) -> str:
        return f"{self.folder} has no room to seal blocks in; free space, then try again"

    def _write_file(self, content: bytes, name: str) -> None:
        reserved = self._reserved.pop(name, None)
        half = reserved or self.folder / f".{secrets.token_hex(8)}"
        # A reserved file that somebody took for abandoned is made again.
        new = os.O_CREAT | (0 if reserved else os.O_EXCL)
        try:
            with open(os.open(half, new | os.O_WRONLY | os.O_CLOEXEC, 0o600), "wb") as file:
                file.write(content)
                file.truncate()
                if self.sealed:
                    file.flush()
                    os.fsync(file.fileno())
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
        line, _, raw = data.partition(b"\n")
        if not hmac.compare_digest(seal, self._seal(data).encode()):
            raise ValueError(name)
        header = json.loads(line)
        # Another format is another truncation: what is checked is made again, and what is sealed is not.
        if (header["name"], header["format"]) != (name, FORMAT):
            raise ValueError(name)
        if header["state"] != state:
            return None
        numbers, ends = np.frombuffer(raw, "<i8").astype(np.int64), np.cumsum(header["sizes"])
        return _restore_part(header, iter(np.split(numbers, ends[:-1])))


def _only_ours(found: os.stat_result) -> bool:
    return found.st_uid == os.geteuid() and not found.st_mode & 0o077


def _pack_entry(name: str, state: str, part: Part) -> bytes:
    header: dict[str, Any] = {"name": name, "state": state, "format": FORMAT}
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
