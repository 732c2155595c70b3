"""The second place: a directory with the ledger's key and the highest entry that was ever committed.

Whoever can write the database but not this directory cannot make an entry that carries a valid seal, and cannot take an
entry away that the mark has seen. Keep it on other storage, readable by those who spend.
"""

from __future__ import annotations

import contextlib
import fcntl
import hmac
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

from dpflow.errors import LedgerCorrupt, LedgerUnavailable


class Anchor:
    """The key and the high-water mark of one ledger."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._mark = str(folder / "mark")
        self._secret = b""
        self._valid = b""  # the last record this process wrote or checked

    def create(self) -> None:
        """Make the directory and the key, if they are missing; only this user can enter."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            part = self.folder / f"key.{os.getpid()}.{secrets.token_hex(4)}"
            descriptor = os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(secrets.token_bytes(32))
                file.flush()
                os.fsync(file.fileno())
            with contextlib.suppress(FileExistsError):  # another process was first, and then its key holds
                os.link(part, self.folder / "key")
            part.unlink()
            folder = os.open(self.folder, os.O_RDONLY)
            os.fsync(folder)
            os.close(folder)
        except OSError as error:
            raise self._unusable(error) from None

    @property
    def _key(self) -> bytes:
        """The secret key. Raises `LedgerCorrupt` if it is missing: a new one would break every commitment."""
        if not self._secret:
            try:
                key = (self.folder / "key").read_bytes()
            except OSError:
                raise LedgerCorrupt(
                    f"the ledger's key is not in {self.folder}; restore it, or name the anchor directory "
                    f"that the ledger was made or imported under: DPFLOW_LEDGER_ANCHOR=DIR"
                ) from None
            if len(key) != 32:
                raise LedgerCorrupt(f"the ledger's key in {self.folder} is damaged; restore it")
            self._secret = key
        return self._secret

    def commitment(self, data: bytes, purpose: str) -> str:
        """HMAC-SHA256 under the key, separated by purpose."""
        return hmac.digest(self._key, purpose.encode() + b"\0" + data, "sha256").hex()

    def mark(self) -> tuple[int, str] | None:
        """The highest committed entry, or None. Raises `LedgerCorrupt` if the mark was not written under this key."""
        with self._marked(fcntl.LOCK_SH) as file:
            return self._read(file)

    def advance(self, seq: int, digest: str) -> tuple[int, str] | None:
        """Raise the mark after a commit; it never goes down, whoever comes last. Returns a mark that says something else.

        The record is rewritten in place, within one sector and without fsync: after a power cut it may be some entries
        old, which only means that those last entries are guarded by their seals alone.
        """
        with self._marked(fcntl.LOCK_EX) as file:
            known = self._read(file)
            if known is None or known[0] < seq:
                seal = self.commitment(f"{seq} {digest}".encode(), "mark")
                record = f"{seq:020d} {digest} {seal}\n".encode()
                os.pwrite(file, record, 0)
                self._valid = record
                return None
            return None if known == (seq, digest) else known

    @contextlib.contextmanager
    def _marked(self, lock: int) -> Iterator[int]:
        try:
            file = os.open(self._mark, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(file, lock)
                yield file
            finally:
                fcntl.flock(file, fcntl.LOCK_UN)  # a child forked meanwhile has a copy
                os.close(file)
        except OSError as error:
            raise self._unusable(error) from None

    def _unusable(self, error: OSError) -> LedgerUnavailable:
        return LedgerUnavailable(
            f"the anchor directory {self.folder} cannot be used ({error.strerror}); mend it and repeat the call, which is "
            f"never charged twice"
        )

    def _read(self, file: int) -> tuple[int, str] | None:
        record = os.pread(file, 512, 0)
        if not record:
            return None
        try:
            seq, digest, seal = record.decode("ascii").split()
            valid = record == self._valid or hmac.compare_digest(
                seal, self.commitment(f"{int(seq)} {digest}".encode(), "mark")
            )
        except ValueError:
            valid = False
        if not valid:
            raise LedgerCorrupt(
                f"the high-water mark in {self.folder} was not written under this ledger's key; restore it"
            )
        self._valid = record
        return int(seq), digest
