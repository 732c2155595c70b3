"""The second place: a directory with the ledger's key and the highest entry that was ever
committed.

Whoever can write the database but not this directory cannot make an entry that carries a valid
seal, and cannot take an entry away that the mark has seen. Keep it on other storage that has locks,
where those who spend can read the key and write the mark.
"""

from __future__ import annotations

import contextlib
import fcntl
import hmac
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from dpflow.errors import LedgerCorrupt, LedgerUnavailable

Seen = tuple[int, str]  # an entry's number and hash
_LONGEST = 512  # bytes of a record


class Anchor:
    """The key and the high-water mark of one ledger."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.place = str(folder / "mark")
        #: The last record of the mark that this process wrote or checked; none before it had a lock
        #: on it.
        self.valid: tuple[bytes, Seen | None] = b"", None
        self._secret = b""

    def create(self) -> None:
        """Make the directory and the key, if they are missing; only this user can enter."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            # Written whole under a name of its own first: nobody ever reads half a key.
            part = self.folder / f"key.{os.getpid()}.{secrets.token_hex(4)}"
            descriptor = os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(secrets.token_bytes(32))
                file.flush()
                os.fsync(file.fileno())
            # If another process was first, its key holds: a link never replaces one.
            with contextlib.suppress(FileExistsError):
                os.link(part, self.folder / "key")
            part.unlink()
            # A link is on the disk only once its directory is.
            folder = os.open(self.folder, os.O_RDONLY)
            os.fsync(folder)
            os.close(folder)
        except OSError as error:
            raise self.explain_failure(error) from None

    @property
    def _cached_key(self) -> bytes:
        """The secret key, read once."""
        if not self._secret:
            self._secret = self.stored_key()
        return self._secret

    def stored_key(self) -> bytes:
        """The key in the directory. Raises `LedgerCorrupt` if it is missing: a new one would break
        every commitment.
        """
        try:
            key = (self.folder / "key").read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            raise LedgerCorrupt(
                f"the ledger's key is not in {self.folder}; mount or restore it, or name the anchor directory "
                f"that the ledger was made or imported under: DPFLOW_LEDGER_ANCHOR=DIR"
            ) from None
        except OSError as error:
            raise self.explain_failure(error) from None
        if len(key) != 32:
            raise LedgerCorrupt(f"the ledger's key in {self.folder} is damaged; restore it")
        return key

    def commitment(self, data: bytes, purpose: str) -> str:
        """HMAC-SHA256 under the key, separated by purpose."""
        return hmac.digest(self._cached_key, purpose.encode() + b"\0" + data, "sha256").hex()

    def seal_entry(
        self, seq: int, entry_hash: str, purpose: Literal["entry", "mark"] = "entry"
    ) -> str:
        """What only this ledger can put under an entry, or under the mark at one: nobody makes a
        mark from an export.
        """
        return self.commitment(f"{seq} {entry_hash}".encode(), purpose)

    def read_mark(self) -> Seen | None:
        """The highest committed entry, or None. Raises `LedgerCorrupt` if the mark was not written
        under this key.
        """
        with contextlib.closing(Mark(self)) as mark:
            return mark.read_entry()

    def explain_failure(self, error: OSError) -> LedgerUnavailable:
        """What to say when the directory fails."""
        return LedgerUnavailable(
            f"the anchor directory {self.folder} cannot be used ({error.strerror}); mend it and repeat the call, which is "
            f"never charged twice"
        )


class Mark:
    """The open file of the mark: number and hash of the highest entry, and a seal.

    It is rewritten in place, within one sector and without fsync: after a power cut it may be some
    entries old, which only means that those last entries are guarded by their seals alone.
    """

    def __init__(self, anchor: Anchor) -> None:
        self._anchor = anchor
        try:
            self._file = os.open(anchor.place, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise anchor.explain_failure(error) from None

    def read_entry(self) -> Seen | None:
        """The highest committed entry, or None. Raises `LedgerCorrupt` if it was not written under
        the anchor's key.

        It is read without a lock, but for the first time: where nothing can be locked, nothing must
        be charged.
        """
        if self._anchor.valid[0]:
            # Half of it may be new, because somebody is just writing: then read under the lock.
            with contextlib.suppress(LedgerCorrupt):
                return self._read_record()
        with self._hold_lock(fcntl.LOCK_SH):
            return self._read_record()

    def advance(self, seq: int, digest: str) -> Seen | None:
        """Raise the mark after a commit; it never goes down, whoever comes last. Returns a mark
        that says something else.
        """
        record = f"{seq:020d} {digest} {self._anchor.seal_entry(seq, digest, 'mark')}\n".encode()
        with self._hold_lock(fcntl.LOCK_EX):
            marked = self._read_record()
            # A mark that goes down would accept an older copy of the database.
            if marked is not None and marked[0] >= seq:
                return None if marked == (seq, digest) else marked
            os.pwrite(self._file, record, 0)
        self._anchor.valid = record, (seq, digest)
        return None

    def close(self) -> None:
        """Let go of the file. A disk across the network may say only now that it did not take what
        was written.
        """
        try:
            os.close(self._file)
        except OSError as error:
            raise self._anchor.explain_failure(error) from None

    @contextlib.contextmanager
    def _hold_lock(self, lock: int) -> Iterator[None]:
        try:
            fcntl.flock(self._file, lock)
            try:
                yield
            finally:
                # Closing the file would not do: a child forked meanwhile has a copy.
                fcntl.flock(self._file, fcntl.LOCK_UN)
        except OSError as error:
            # Without a lock nothing is sure any more: the next reader must take one first.
            self._anchor.valid = b"", None
            raise self._anchor.explain_failure(error) from None

    def _read_record(self) -> Seen | None:
        try:
            record = os.pread(self._file, _LONGEST, 0)
        except OSError as error:
            raise self._anchor.explain_failure(error) from None
        last_record, read_entry = self._anchor.valid
        # The same bytes were checked before: the seal need not be computed a second time.
        if record == last_record and record:
            return read_entry
        # A new ledger has no mark yet. Nor has a directory that is not mounted: but no key either.
        if not record:
            self._anchor.stored_key()
            return None
        try:
            seq, digest, seal = record.decode("ascii").split()
            read_entry = int(seq), digest
            valid = hmac.compare_digest(seal, self._anchor.seal_entry(*read_entry, "mark"))
        except ValueError:
            valid = False
        if not valid:
            raise LedgerCorrupt(
                f"the high-water mark in {self._anchor.folder} was not written under this ledger's key; restore it"
            )
        self._anchor.valid = record, read_entry
        return read_entry
