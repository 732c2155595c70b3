"""The append-only history: a SHA-256 chain, and an anchor in a second place that holds the key and the high-water mark.

A writer who holds neither the key nor the second place can change, drop, reorder or restore rows, but not without
`problems` saying so. Digests of private things leave only as HMACs under the key.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import fcntl
import hashlib
import hmac
import json
import os
import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from dpflow.errors import LedgerCorrupt, LedgerUnavailable
from dpflow.ledger.schema import entry

FIRST = "0" * 64


def canonical(value: Any) -> str:
    """JSON with one spelling."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def digest(value: Any) -> str:
    """SHA-256 of canonical JSON: of public things only."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()


def _hash(fields: Mapping[str, Any]) -> str:
    names = ("seq", "at", "kind", "scope", "release_id", "principal", "body", "previous")
    return digest([fields[name] for name in names])


def append(
    connection: sa.Connection, kind: str, scope: str, release_id: str, principal: str, body: Mapping[str, Any]
) -> tuple[int, str]:
    """Add an entry inside the caller's transaction; returns the new head."""
    newest = sa.select(entry.c.seq, entry.c.hash).order_by(entry.c.seq.desc()).limit(1)
    head = connection.execute(newest).first()
    fields: dict[str, Any] = {
        "seq": (head.seq if head else 0) + 1,
        "at": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),  # for people; nothing depends on the clock
        "kind": kind,
        "scope": scope,
        "release_id": release_id,
        "principal": principal,
        "body": canonical(body),
        "previous": head.hash if head else FIRST,
    }
    head_hash = _hash(fields)
    connection.execute(entry.insert().values(**fields, hash=head_hash))
    return int(fields["seq"]), head_hash


class Anchor:
    """A directory, away from the database, with the ledger's key and the highest entry that was ever committed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._key: bytes | None = None

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
        except OSError:
            raise LedgerUnavailable(
                f"the anchor directory {self.folder} cannot be written; correct its place"
            ) from None

    @property
    def key(self) -> bytes:
        """The secret key. Raises `LedgerCorrupt` if it is missing: a new one would break every commitment."""
        if self._key is None:
            try:
                self._key = (self.folder / "key").read_bytes()
            except OSError:
                raise LedgerCorrupt(
                    f"the ledger's key is not in {self.folder}; restore it, or name the anchor"
                ) from None
        return self._key

    def commitment(self, data: bytes, purpose: str) -> str:
        """HMAC-SHA256 under the key, separated by purpose."""
        return hmac.new(self.key, purpose.encode() + b"\0" + data, hashlib.sha256).hexdigest()

    def advance(self, seq: int, digest: str) -> None:
        """Raise the high-water mark after a commit; it never goes down, whoever comes last."""
        with (self.folder / "lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            known = self.mark()
            if known is None or known[0] < seq:
                part = self.folder / "mark.part"
                part.write_text(f"{seq} {digest} {self.commitment(f'{seq} {digest}'.encode(), 'mark')}\n")
                os.replace(part, self.folder / "mark")

    def mark(self) -> tuple[int, str] | None:
        """The highest committed entry, or None. Raises `LedgerCorrupt` if the mark was not written under this key."""
        try:
            seq, digest, seal = (self.folder / "mark").read_text().split()
        except FileNotFoundError:
            return None
        except (OSError, ValueError):
            raise LedgerCorrupt(f"the high-water mark in {self.folder} cannot be read; restore it") from None
        if not hmac.compare_digest(seal, self.commitment(f"{seq} {digest}".encode(), "mark")):
            raise LedgerCorrupt(f"the high-water mark in {self.folder} was not written under this ledger's key")
        return int(seq), digest


def problems(connection: sa.Connection, anchor: Anchor) -> Iterator[str]:
    """Everything wrong with chain and anchor."""
    previous, expected, hashes = FIRST, 1, {}
    for row in connection.execute(sa.select(entry).order_by(entry.c.seq)).mappings():
        if row["seq"] != expected:
            yield f"entry {expected} is missing"
            expected = row["seq"]
        if row["previous"] != previous:
            yield f"entry {row['seq']} does not follow the one before it"
        if row["hash"] != _hash(dict(row)):
            yield f"entry {row['seq']} was changed"
        hashes[row["seq"]] = previous = row["hash"]
        expected += 1
    try:
        mark = anchor.mark()
    except LedgerCorrupt as error:
        yield str(error)
        return
    if mark is None:
        if hashes:
            yield "the high-water mark is missing from the anchor"
    elif mark[0] not in hashes:
        yield f"the anchor saw entry {mark[0]}, which is gone: entries were dropped or an old copy was restored"
    elif hashes[mark[0]] != mark[1]:
        yield f"entry {mark[0]} is not the one the anchor saw"
