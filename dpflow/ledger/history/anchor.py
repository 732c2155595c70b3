"""The second place: a directory with the ledger's keys and the highest entry that was ever
committed.

Whoever can write the database but not this directory cannot make an entry that carries a valid
seal, cannot take an entry away that the mark has seen, and cannot read what is stored. Keep it on
other storage that has locks, where those who spend can read the keys and write the mark.

Its files: ``key`` seals entries and makes commitments, ``wrap`` encrypts the keys of results and
answers and can be rotated, ``sign`` signs the owner's checkpoints and opens notes to the owner (nobody
who only spends needs it), ``notes`` is the public key that seals these notes, ``mark`` is the
high-water mark. During a rotation ``wrap.old`` is the key before, and ``wrap.lock``, an empty file that
stays, is locked.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import hmac
import os
import secrets
import sys
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import BinaryIO, Literal

from dpflow.errors import DpflowError, InvalidInput, LedgerCorrupt, LedgerUnavailable
from dpflow.ledger.history import owner_notes
from dpflow.private_files import (
    UntrustedPlace,
    forbid_public_writing,
    make_private_folder,
    require_own_file,
    require_own_folder,
    write_private,
)

Seen = tuple[int, str]  # an entry's number and hash
#: What comes before the first entry.
NOTHING: Seen = 0, "0" * 64
_LONGEST = 512  # bytes of a record
_OLD = "wrap.old"  # while a rotation is not complete


def default_folder(ledger_id: str) -> Path:
    """Where the anchor of a SQLite ledger is unless somebody says otherwise: with this user's
    state, because a copy of the ledger's own folder must not bring an old mark along.
    """
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "dpflow" / ledger_id
    state = os.environ.get("XDG_STATE_HOME", "")
    # The specification has relative paths ignored.
    home = Path(state) if Path(state).is_absolute() else Path.home() / ".local" / "state"
    return home / "dpflow" / ledger_id


class WrapKeyMissing(LedgerCorrupt):
    """The anchor's wrap key is another than the one that stored results need, such as one from before a rotation."""


class Anchor:
    """The keys and the high-water mark of one ledger."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.place = str(folder / "mark")
        #: The last record of the mark that this process wrote or checked; none before it had a lock
        #: on it.
        self.valid: tuple[bytes, Seen] = b"", NOTHING
        #: The highest entry that this object proved to be in the history: database and mark may be put
        #: back to before it, and then show nothing.
        self.known: Seen = NOTHING
        self._secret = b""
        self._wrap: tuple[object, tuple[str, bytes]] | None = None

    @classmethod
    def create_default(cls) -> Anchor:
        """Make an anchor with new keys in the default place of its ledger."""
        key = secrets.token_bytes(32)
        anchor = cls(default_folder(_ledger_id(key)))
        anchor.create(key)
        return anchor

    def create(self, key: bytes | None = None) -> None:
        """Make the directory, the keys and the mark, if there is no key; only this user can enter.

        Raises:
            InvalidInput: another user made the directory, or one above it, or may write into it.
        """
        try:
            make_private_folder(self.folder)
            half = self.folder / "key.new"
            with _open_own(half) as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                # Another process was first: its key holds.
                if (self.folder / "key").exists():
                    half.unlink(missing_ok=True)
                    return
                self._secret = key or secrets.token_bytes(32)
                wrap, sign = secrets.token_bytes(32), secrets.token_bytes(32)
                notes = owner_notes.public_key(sign)
                for name, data in (("wrap", wrap), ("sign", sign), ("notes", notes)):
                    write_private(self.folder / name, data)
                write_private(Path(self.place), self.mark_record(*NOTHING))
                _write_flushed(file, self._secret)
                # The key comes last: where there is a key, all else is there.
                half.rename(self.folder / "key")
                self._flush_folder()
        except OSError as error:
            raise self.explain_failure(error) from None

    def _flush_folder(self) -> None:
        """A name is on the disk only once its directory is."""
        folder = os.open(self.folder, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    @property
    def ledger_id(self) -> str:
        """The ledger's public name, which follows from its key."""
        return _ledger_id(self._cached_key)

    @property
    def _cached_key(self) -> bytes:
        """The secret key, read once."""
        if not self._secret:
            self._secret = self.stored_key()
        return self._secret

    def stored_key(self, name: str = "key") -> bytes:
        """A key in the directory. Raises `LedgerCorrupt` if it is missing: a new one would break
        every commitment, and open no result.
        """
        try:
            for place in (self.folder, self.folder / name):
                forbid_public_writing(place)
            key = (self.folder / name).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            raise LedgerCorrupt(
                f"the ledger's {name} is not in {self.folder}; mount or restore it, or name the anchor directory "
                f"that the ledger was made or imported under: DPFLOW_LEDGER_ANCHOR=DIR"
            ) from None
        except OSError as error:
            raise self.explain_failure(error) from None
        if len(key) != 32:
            raise LedgerCorrupt(f"the ledger's {name} in {self.folder} is damaged; restore it")
        return key

    @functools.cached_property
    def note_key(self) -> bytes:
        """The public key that seals notes to the owner, read once: no rotation renews it, so old notes
        stay readable.
        """
        return self.stored_key("notes")

    def newest_wrap_key(self) -> tuple[str, bytes]:
        """The key under which keys are wrapped now, and its name."""
        try:
            status = os.stat(self.folder / "wrap")
        except FileNotFoundError:
            status = None
        except OSError as error:
            raise self.explain_failure(error) from None
        # A rotation puts another file there; as long as it is this one, it need not be read.
        identity = status and (status.st_ino, status.st_mtime_ns)
        if self._wrap is None or self._wrap[0] != identity:
            key = self.stored_key("wrap")
            self._wrap = identity, (_key_name(key), key)
        return self._wrap[1]

    def wrap_key(self, name: str) -> bytes:
        """The wrap key of this name. Raises `WrapKeyMissing` if it is neither the newest nor the one
        before, which is there while a rotation is not complete.
        """
        newest = self.newest_wrap_key()
        if name == newest[0]:
            return newest[1]
        if (self.folder / _OLD).exists() and _key_name(old := self.stored_key(_OLD)) == name:
            return old
        raise WrapKeyMissing(
            f"the key {name[:8]!r} that opens stored results is not in {self.folder}; restore the file wrap that was there when "
            f"this database was written"
        )

    @contextlib.contextmanager
    def rotate(self) -> Iterator[None]:
        """Put a new wrap key in place and keep the old one, unless a killed rotation left one; at the end, when nothing that
        is stored needs the old one, destroy it. Raises `LedgerUnavailable` while another rotation goes on.
        """
        with contextlib.ExitStack() as stack:
            with self._explaining_failures():
                require_own_folder(self.folder)
                turn = stack.enter_context(_open_own(self.folder / "wrap.lock"))
                try:
                    # Who ended beside another would destroy the key from which a third rotates.
                    fcntl.flock(turn, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    raise LedgerUnavailable(
                        f"the keys in {self.folder} are being rotated by another program; repeat the call when that has ended"
                    ) from None
                with contextlib.suppress(FileExistsError):
                    os.link(self.folder / "wrap", self.folder / _OLD)
                if (self.folder / "wrap").samefile(self.folder / _OLD):
                    write_private(self.folder / "wrap", secrets.token_bytes(32))
                self._flush_folder()
            yield
            with self._explaining_failures():
                (self.folder / _OLD).unlink()
                self._flush_folder()

    @contextlib.contextmanager
    def _explaining_failures(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise self.explain_failure(error) from None

    def commitment(self, data: bytes, purpose: str) -> str:
        """HMAC-SHA256 under the key, separated by purpose."""
        return _keyed_digest(self._cached_key, data, purpose)

    def seal_entry(
        self, seq: int, entry_hash: str, purpose: Literal["entry", "mark"] = "entry"
    ) -> str:
        """What only this ledger can put under an entry, or under the mark at one: nobody makes a
        mark from an export.
        """
        return self.commitment(f"{seq} {entry_hash}".encode(), purpose)

    def mark_record(self, seq: int, digest: str) -> bytes:
        """What the mark holds for an entry."""
        return f"{seq:020d} {digest} {self.seal_entry(seq, digest, 'mark')}\n".encode()

    def read_mark(self) -> Seen:
        """The highest committed entry, or `NOTHING`. Raises `LedgerCorrupt` if the mark is missing
        or was not written under this key.
        """
        with contextlib.closing(Mark(self)) as mark:
            return mark.read_entry()

    def remember(self, entry: Seen) -> None:
        """Have every later transaction require this entry, which is in the history for certain and on the disk."""
        if entry[0] > self.known[0]:
            self.known = entry

    def replace_mark(self, seq: int, digest: str) -> None:
        """An owner's act: make this entry the highest, whatever the mark says or if there is none."""
        try:
            require_own_folder(self.folder)
            # Into the file that is there: whoever charges now has it open.
            with _open_own(Path(self.place)) as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                _write_flushed(file, self.mark_record(seq, digest))
            self._flush_folder()
            self.known = seq, digest
        except OSError as error:
            raise self.explain_failure(error) from None

    def explain_lost_mark(self) -> LedgerCorrupt:
        """What to say when there is no mark. Raises `LedgerCorrupt` if there is no key either, as
        where the directory is not mounted.
        """
        self.stored_key()
        return LedgerCorrupt(
            f"the high-water mark is missing from {self.folder}, so nobody can tell whether entries were dropped; "
            f"restore it, or accept the history as it is: dpflow ledger recover --lost mark"
        )

    def explain_failure(self, error: OSError) -> DpflowError:
        """What to say when the directory fails, or must not be trusted."""
        if isinstance(error, UntrustedPlace):
            return InvalidInput(f"no key of the ledger is kept or read there: {error.strerror}")
        return LedgerUnavailable(
            f"the anchor directory {self.folder} cannot be used ({error.strerror}); mend it and repeat the call, which is "
            f"never charged twice"
        )


def _keyed_digest(key: bytes, data: bytes, purpose: str) -> str:
    return hmac.digest(key, purpose.encode() + b"\0" + data, "sha256").hex()


def _ledger_id(key: bytes) -> str:
    return _keyed_digest(key, b"", "fingerprint")[:16]


def _key_name(key: bytes) -> str:
    return _keyed_digest(key, b"", "name")[:8]


def _open_own(path: Path) -> BinaryIO:
    """A file of this user, made if missing, which nobody else can write. Raises `UntrustedPlace`."""
    way = os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        descriptor = os.open(path, way, 0o600)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise UntrustedPlace(path, "is a symbolic link; remove it") from None
    try:
        require_own_file(path, os.fstat(descriptor))
    except BaseException:
        os.close(descriptor)
        raise
    return open(descriptor, "r+b")


def _write_flushed(file: BinaryIO, data: bytes) -> None:
    file.write(data)
    file.truncate()
    file.flush()
    os.fsync(file.fileno())


class Mark:
    """The open file of the mark: number and hash of the highest entry, and a seal.

    It is rewritten in place, within one sector and without fsync: after a power cut it may be some
    entries old, which only means that those last entries are guarded by their seals alone.
    """

    def __init__(self, anchor: Anchor, *, read_only: bool = False) -> None:
        self._anchor = anchor
        try:
            way = os.O_RDONLY if read_only else os.O_RDWR
            self._file = os.open(anchor.place, way | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            raise anchor.explain_lost_mark() from None
        except OSError as error:
            raise anchor.explain_failure(error) from None

    def read_entry(self) -> Seen:
        """The highest committed entry, or `NOTHING`. Raises `LedgerCorrupt` if the mark is empty or
        was not written under the anchor's key.

        It is read without a lock, but for the first time: where nothing can be locked, nothing must
        be charged.
        """
        if self._anchor.valid[0]:
            # Half of it may be new, because somebody is just writing: then read under the lock.
            with contextlib.suppress(LedgerCorrupt):
                return self._read_record()
        with self._hold_lock(fcntl.LOCK_SH):
            return self._read_record()

    def advance(self, newest: Seen, known: Collection[Seen]) -> Seen | None:
        """Raise the mark after a commit; it never goes down, whoever comes last.

        Args:
            newest: the entry that was committed.
            known: further entries that are in the same history for certain.

        Returns: a mark that is none of these, which stays: it may be of a copy in use elsewhere.
        """
        record = self._anchor.mark_record(*newest)
        with self._hold_lock(fcntl.LOCK_EX):
            marked = self._read_record()
            # Also a lower one: raised over the mark of a copy, it would hide what was charged there.
            if marked != newest and marked not in known:
                return marked
            # A mark that goes down would accept an older copy of the database.
            if marked[0] < newest[0]:
                os.pwrite(self._file, record, 0)
                self._anchor.valid = record, newest
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
            self._anchor.valid = b"", NOTHING
            raise self._anchor.explain_failure(error) from None

    def _read_record(self) -> Seen:
        try:
            record = os.pread(self._file, _LONGEST, 0)
        except OSError as error:
            raise self._anchor.explain_failure(error) from None
        last_record, read_entry = self._anchor.valid
        # The same bytes were checked before: the seal need not be computed a second time.
        if record == last_record and record:
            return read_entry
        if not record:
            raise self._anchor.explain_lost_mark()
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
