"""The append-only history: entries in a SHA-256 chain, each sealed with an HMAC under the anchor's
key.

The chain lets a third party check an export without the key. The seals keep a writer without the
key from adding entries, the mark in the anchor keeps it from taking any away, and both are checked
before every new entry, so that neither a forged tail nor a restored backup can be built upon.
"""

from __future__ import annotations

import datetime as dt
import functools
import hashlib
import hmac
import json
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import sqlalchemy as sa

from dpflow.errors import LedgerCorrupt
from dpflow.ledger.history.anchor import NOTHING, Anchor, Seen
from dpflow.ledger.storage.schema import entry
from dpflow.ledger.storage.statements import (
    Prepared,
    Read,
    Transaction,
    match_columns,
    prepare_insert,
)

FIRST = NOTHING[1]
FIELDS = ("seq", "at", "kind", "scope", "release_id", "principal", "body", "previous")

_ENDS = entry.c.seq, entry.c.hash, entry.c.seal
_LAST = sa.select(*_ENDS).order_by(entry.c.seq.desc()).limit(sa.literal_column("1"))
_MARKED_AND_HEAD = Prepared(
    sa.union_all(sa.select(*_ENDS).where(match_columns(entry.c.seq)), sa.select(_LAST.subquery()))
)
_HASH_AT = Prepared(sa.select(entry.c.hash).where(match_columns(entry.c.seq)))
INSERT = prepare_insert(entry)


_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"))


def canonical_json(value: Any) -> str:
    """JSON with one spelling, in ASCII."""
    return _ENCODER.encode(value)


def digest_json(value: Any) -> str:
    """SHA-256 of canonical JSON: of public things only."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()


def hash_entry(fields: Mapping[str, Any]) -> str:
    """The hash of an entry, over all of its fields and the hash before it."""
    return digest_json([fields[name] for name in FIELDS])


def is_genuine(anchor: Anchor, row: Any) -> bool:
    """Whether an entry's hash carries the seal of this ledger's key."""
    # In constant time: nobody may learn how far a forged seal agrees.
    return hmac.compare_digest(
        str(row.seal).encode(errors="replace"), anchor.seal_entry(row.seq, row.hash).encode()
    )


@functools.lru_cache(maxsize=1)
def _time_text(second: int) -> str:
    return dt.datetime.fromtimestamp(second, dt.UTC).isoformat()


class Writer:
    """Appends entries inside one writing transaction."""

    def __init__(self, transaction: Transaction, anchor: Anchor, mark: Seen) -> None:
        self._transaction, self._anchor, self._mark = transaction, anchor, mark
        self._newest: Seen | None = None
        self.added: Seen | None = None  # the newest entry that it made

    def add_entry(
        self, kind: str, scope: str, release_id: str, principal: str, body: Mapping[str, Any]
    ) -> None:
        """Add an entry. The time is for people; nothing depends on the clock. Raises
        `LedgerCorrupt`, as `newest` does.
        """
        seq, previous = self.newest_entry()
        fields: dict[str, Any] = {
            "seq": seq + 1,
            "at": _time_text(int(time.time())),
            "kind": kind,
            "scope": scope,
            "release_id": release_id,
            "principal": principal,
            "body": canonical_json(body),
            "previous": previous,
        }
        entry_hash = hash_entry(fields)
        self._transaction.run(
            INSERT, **fields, hash=entry_hash, seal=self._anchor.seal_entry(seq + 1, entry_hash)
        )
        self._newest = self.added = seq + 1, entry_hash

    def newest_entry(self) -> Seen:
        """The newest entry.

        Raises:
            LedgerCorrupt: it is not one that this ledger's key sealed, or the one that the anchor
            has seen is gone.
        """
        if self._newest is None:
            self._newest = self._check_newest(self._mark)
        return self._newest

    def _check_newest(self, mark: Seen) -> Seen:
        """The newest entry in the database. The mark is sealed itself, and what comes after it must
        be.
        """
        rows = self._transaction.rows(_MARKED_AND_HEAD, seq=mark[0])
        if mark not in [NOTHING, *(row[:2] for row in rows)]:
            raise LedgerCorrupt(_explain_loss(mark[0]))
        if not rows:
            return NOTHING
        head = max(rows)
        # The mark has a seal of its own; what came after it must carry the ledger's.
        if head[:2] != mark and not is_genuine(self._anchor, head):
            raise LedgerCorrupt(
                f"entry {head.seq} was not made by this ledger; run dpflow ledger verify"
            )
        return head.seq, head.hash


def list_reads(mark: Seen) -> list[Read]:
    """What a writer will read: the newest entry and the marked one."""
    return [(_MARKED_AND_HEAD, {"seq": mark[0]})]


def require_entry(transaction: Transaction, mark: Seen) -> None:
    """Raises `LedgerCorrupt` unless the entry that the anchor has seen is in the history."""
    seen = transaction.first(_HASH_AT, seq=mark[0])
    if seen is None or seen.hash != mark[1]:
        raise LedgerCorrupt(_explain_loss(mark[0]))


def _explain_loss(seq: int) -> str:
    return (
        f"the anchor saw entry {seq}, which is gone or another: entries were dropped, an old copy was restored, or "
        f"another copy is in use. Bring the newest copy back; a new ledger needs a new anchor directory"
    )


class Auditor:
    """Checks a whole history. It takes the mark when it is made: make it before the history is
    read, because others go on.
    """

    def __init__(self, anchor: Anchor) -> None:
        self._anchor, self._damaged = anchor, ""
        self._mark: Seen | None = None
        try:
            self._mark = anchor.read_mark()
        except LedgerCorrupt as error:
            self._damaged = str(error)

    def find_problems(self, rows: Iterable[Any]) -> Iterator[str]:
        """Everything wrong with chain, seals and mark; ``rows`` are all entries by number."""
        previous, number, at_mark = FIRST, 0, None
        for row in rows:
            number += 1
            # A gap is told once; counting goes on from the number that is there.
            if type(row.seq) is not int or row.seq != number:
                yield f"entry {number} is missing"
                number = row.seq if type(row.seq) is int else number
            if row.previous != previous:
                yield f"entry {number} does not follow the one before it"
            # SQLite holds any type in any column: check it before a hash is made of it.
            well_formed = type(row.seq) is int and all(type(text) is str for text in row[1:])
            if not well_formed or row.hash != hash_entry(row._asdict()):
                yield f"entry {number} was changed"
            elif not is_genuine(self._anchor, row):
                yield f"entry {number} was not made by this ledger"
            previous = row.hash
            if self._mark is not None and number == self._mark[0]:
                at_mark = row.hash
        if self._damaged:
            yield self._damaged
        elif self._mark and self._mark[1] not in (FIRST, at_mark):
            yield _explain_loss(self._mark[0])
