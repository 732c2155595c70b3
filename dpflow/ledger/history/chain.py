"""The append-only history: entries in a SHA-256 chain, each sealed with an HMAC under the anchor's
key.

The chain lets a third party check an export without the key. The seals keep a writer without the
key from adding entries, the mark in the anchor keeps it from taking any away, and both are checked
before every new entry, so that neither a forged tail nor a restored backup can be built upon.
"""

from __future__ import annotations

import datetime as dt
import functools
import hmac
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from dpflow.errors import LedgerCorrupt
from dpflow.ledger.history.anchor import NOTHING, Anchor, Seen
from dpflow.ledger.history.cipher import Cipher, DataKey
from dpflow.ledger.history.state import EMPTY_ROOT, LedgerState, ReadAhead, digest_text
from dpflow.ledger.storage.compact_json import canonical_json, encode_json
from dpflow.ledger.storage.schema import entry
from dpflow.ledger.storage.statements import (
    Prepared,
    Read,
    Transaction,
    match_columns,
    prepare_insert,
)

#: Entries that must be in the history: the anchor's mark, and the highest that this process proved.
Marks = tuple[Seen, Seen]

FIELDS = ("seq", "at", "kind", "scope", "release_id", "principal", "body", "root", "previous")

_LAST = sa.select(entry).order_by(entry.c.seq.desc()).limit(sa.literal_column("1"))
_MARKED_AND_HEAD = Prepared(
    sa.union_all(sa.select(entry).where(match_columns(entry.c.seq)), sa.select(_LAST.subquery()))
)
_KNOWN = entry.c.seq == sa.bindparam("known", type_=sa.BigInteger)
_MARKS_AND_HEAD = Prepared(
    sa.union_all(
        sa.select(entry).where(match_columns(entry.c.seq)),
        sa.select(entry).where(_KNOWN),
        sa.select(_LAST.subquery()),
    )
)
_HASH_AT = Prepared(sa.select(entry.c.hash).where(match_columns(entry.c.seq)))
INSERT = prepare_insert(entry)


def digest_json(value: Any) -> str:
    """SHA-256 of canonical JSON: of public things only."""
    return digest_text(canonical_json(value))


def first_link(ledger_id: str) -> str:
    """What a ledger's first entry is chained to, so that no entry, and no decision signed behind one, can be
    another ledger's.
    """
    return digest_text(f"dpflow.ledger\n{ledger_id}")


def hash_entry(fields: Mapping[str, Any]) -> str:
    """The hash of an entry, over all of its fields and the hash before it: of their list as
    canonical JSON.
    """
    return digest_text(encode_json([fields[name] for name in FIELDS]))


def entry_text(row: Any) -> str:
    """What the hash of an entry is of."""
    # The columns of an entry are its fields in their order, then hash and seal. All but its number
    # are texts.
    return encode_json(row[: len(FIELDS)])


def is_genuine(anchor: Anchor, row: Any) -> bool:
    """Whether an entry's hash carries the seal of this ledger's key."""
    # In constant time: nobody may learn how far a forged seal agrees.
    return hmac.compare_digest(
        str(row.seal).encode(errors="replace"), anchor.seal_entry(row.seq, row.hash).encode()
    )


@functools.lru_cache(maxsize=1)
def _time_text(second: int) -> str:
    return dt.datetime.fromtimestamp(second, dt.UTC).isoformat()


def is_changed(row: Any) -> bool:
    """Whether an entry says something else than its hash is of, which takes no key to tell."""
    # SQLite holds any type in any column: check it before a hash is made of it.
    well_formed = type(row.seq) is int and {*map(type, row[1:])} == {str}
    return not well_formed or row.hash != digest_text(entry_text(row))


def find_fault(anchor: Anchor, row: Any) -> str | None:
    """What is wrong with an entry's content or seal, or None."""
    if is_changed(row):
        return f"entry {row.seq} was changed"
    return None if is_genuine(anchor, row) else f"entry {row.seq} was not made by this ledger"


class Writer:
    """The rows of one writing transaction, and the entries that it appends at its end."""

    def __init__(
        self,
        transaction: Transaction,
        anchor: Anchor,
        marks: Marks,
        ahead: ReadAhead | None = None,
        former: LedgerState | None = None,
    ) -> None:
        self.transaction = transaction
        self._anchor, self._marks, self._ahead, self._former = anchor, marks, ahead, former
        self.cipher = Cipher(anchor)
        self._keys: list[DataKey] = []
        self._id_prefix = secrets.token_hex(2)
        self._entries: list[dict[str, Any]] = []
        self._started: tuple[Seen, LedgerState] | None = None
        self._second: int | None = None
        self.added: Seen | None = None  # the newest entry that it made
        self.known = {*marks}  # what its history held before, for certain

    @property
    def state(self) -> LedgerState:
        """Reads rows, to be proved, and changes them.

        Raises:
            LedgerCorrupt: the newest entry is not one that this ledger's key sealed, or one that the
                anchor or this program has seen is gone.
        """
        return self._start_state()[1]

    @property
    def next_seq(self) -> int:
        """The number of the entry that is added next."""
        return self._start_state()[0][0] + len(self._entries) + 1

    @property
    def head(self) -> str:
        """The hash of the newest entry, to which the first one that is added is chained."""
        assert not self._entries
        number, newest = self._start_state()[0]
        return newest if number else first_link(self._anchor.ledger_id)

    @property
    def carries_on(self) -> bool:
        """Whether the rows are those of the former transaction, which no entry has changed since."""
        return self.state is self._former

    def _start_state(self) -> tuple[Seen, LedgerState]:
        if self._started is None:
            self._started = _start_state(
                self.transaction, self._anchor, self._marks, self._ahead, self._former
            )
            self.known.add(self._started[0])
        return self._started

    @property
    def day(self) -> dt.date:
        """The day (UTC) that the entries say, by this machine's clock."""
        return dt.datetime.fromtimestamp(self._read_second(), dt.UTC).date()

    def _read_second(self) -> int:
        # Once: what a charge was counted by and what its entry says must be one time.
        if self._second is None:
            self._second = int(time.time())
        return self._second

    def add_entry(
        self, kind: str, scope: str, release_id: str, principal: str, body: Mapping[str, Any]
    ) -> None:
        """Add an entry. Its time is for people; beside quotas that refresh nothing depends on the clock."""
        self._entries.append(
            {
                "seq": self.next_seq,
                "at": _time_text(self._read_second()),
                "kind": kind,
                "scope": scope,
                "release_id": release_id,
                "principal": principal,
                "body": canonical_json(body),
            }
        )

    def draw_id(self) -> str:
        """A release's id: drawn, not counted, as ids that follow each other would tell how much others
        release. Those of one transaction have a common beginning, so that an index keeps them on one page.
        """
        return self._id_prefix + secrets.token_hex(6)

    def make_key(self, release_id: str, version: int) -> DataKey:
        """A new key, to be stored behind all else that this transaction writes."""
        key = self.cipher.make_key(release_id, version)
        self._keys.append(key)
        return key

    def prove_reads(self) -> None:
        """Raises `LedgerCorrupt` unless what was read is what the newest entry left."""
        if self._started is not None:
            self.state.prove_reads()

    def write_entries(self) -> None:
        """Prove what was read, and append the entries, all with the root that the transaction
        leaves. Raises `LedgerCorrupt`.
        """
        if self._started is None:
            return
        (number, previous), state = self._started
        if not number:
            previous = first_link(self._anchor.ledger_id)
        root = state.store_root()
        for fields in self._entries:
            fields |= {"root": root, "previous": previous}
            previous = fields["hash"] = hash_entry(fields)
            fields["seal"] = self._anchor.seal_entry(fields["seq"], previous)
        self.transaction.many(INSERT, self._entries)
        if self._entries:
            self.added = self._entries[-1]["seq"], previous
            self._started, self._entries = (self.added, state), []
        # Last: pages that were written before the commit hold ciphertext without a key.
        self.cipher.store_keys(self.transaction, self._keys)
        self._keys = []


def plan_reads(marks: Marks, ahead: ReadAhead) -> list[Read]:
    """What a transaction reads with its beginning: the entries that say whether to go on, and what
    it will ask for.
    """
    return [_read_marks(marks), *ahead.reads]


def _read_marks(marks: Marks) -> Read:
    mark, known = marks
    if mark == known:  # nobody else wrote since
        return _MARKED_AND_HEAD, {"seq": mark[0]}
    return _MARKS_AND_HEAD, {"seq": mark[0], "known": known[0]}


def read_state(
    transaction: Transaction, anchor: Anchor, marks: Marks, former: LedgerState | None = None
) -> tuple[Seen, LedgerState]:
    """The newest entry, and the rows of a transaction that read ahead, to be proved by
    `LedgerState.prove_reads`: those of a former one, if it still is the newest. Raises `LedgerCorrupt`.
    """
    # An empty ledger shows nothing that could be old: under the anchor of another it waits for an
    # import.
    if not transaction.read_ahead[0] and marks[1] == NOTHING:
        return NOTHING, LedgerState(transaction, EMPTY_ROOT)
    return _start_state(transaction, anchor, marks, ReadAhead(), former)


def _start_state(
    transaction: Transaction,
    anchor: Anchor,
    marks: Marks,
    ahead: ReadAhead | None,
    former: LedgerState | None = None,
) -> tuple[Seen, LedgerState]:
    """The newest entry, and the rows that it left: those of a former transaction, if it still is the
    newest.
    """
    if ahead is None:
        statement, numbers = _read_marks(marks)
        rows, results = transaction.rows(statement, **numbers), []
    else:
        rows, *results = transaction.read_ahead
    newest, root = _check_newest(rows, anchor, marks)
    if former is not None and former.newest == newest:
        state = former
        state.carry_on(transaction)
    else:
        state = LedgerState(transaction, root)
    if ahead is not None:
        state.take_ahead(ahead, results)
    return newest, state


def _check_newest(rows: Sequence[Any], anchor: Anchor, marks: Marks) -> tuple[Seen, str]:
    """The newest entry of these, which are those of the marks and the last one, and its root. The mark is
    sealed itself, and what comes after it must be.
    """
    mark, known = marks
    present = [NOTHING, *((row.seq, row.hash) for row in rows)]
    if mark not in present:
        raise LedgerCorrupt(_explain_loss(mark[0]))
    if known not in present:
        raise LedgerCorrupt(
            f"this program saw entry {known[0]}, which is gone or another: database and anchor were put back to an older state. "
            f"Bring the newest copy back; after dpflow ledger recover, start this program again"
        )
    if not rows:
        return NOTHING, EMPTY_ROOT
    head = max(rows)
    if fault := find_fault(anchor, head):
        raise LedgerCorrupt(f"{fault}; run dpflow ledger verify")
    return (head.seq, head.hash), head.root


def require_entry(transaction: Transaction, mark: Seen) -> None:
    """Raises `LedgerCorrupt` unless the entry that the anchor has seen is in the history."""
    if not has_entry(transaction, mark):
        raise LedgerCorrupt(_explain_loss(mark[0]))


def has_entry(transaction: Transaction, seen: Seen) -> bool:
    """Whether the history has this entry."""
    row = transaction.first(_HASH_AT, seq=seen[0])
    return row is not None and row.hash == seen[1]


def _explain_loss(seq: int) -> str:
    return (
        f"the anchor saw entry {seq}, which is gone or another: entries were dropped, an old copy was restored, or "
        f"another copy is in use. Bring the newest copy back; a new ledger needs a new anchor directory"
    )


class Auditor:
    """Checks a history behind an entry, ``start``, from the first on by default. It takes the mark when
    it is made: make it before anything of the database is read, because others go on. If ``marked`` is
    false, an owner decides without one.
    """

    def __init__(self, anchor: Anchor, *, marked: bool = True, start: Seen = NOTHING) -> None:
        self._anchor, self._damaged, self.start = anchor, "", start
        self.problems: list[str] = []
        self.mark = NOTHING
        try:
            self.mark = max(anchor.read_mark(), anchor.known) if marked else NOTHING
        except LedgerCorrupt as error:
            self._damaged = str(error)

    def pass_entries(self, rows: Iterable[Any]) -> Iterator[Any]:
        """All entries by number, as they come; when they are through, `problems` has everything
        wrong with chain, seals and mark.
        """
        (number, previous), problems = self.start, self.problems
        if not number:
            previous = first_link(self._anchor.ledger_id)
        # A mark before the start says nothing of what comes behind it.
        at_mark = previous if self.mark[0] == number else None
        passed = self.mark[1] if self.mark[0] < number else NOTHING[1]
        for row in rows:
            number += 1
            # A gap is told once; counting goes on from the number that is there.
            if type(row.seq) is not int or row.seq != number:
                problems.append(f"entry {number} is missing")
                number = row.seq if type(row.seq) is int else number
            if row.previous != previous:
                problems.append(f"entry {number} does not follow the one before it")
            if fault := find_fault(self._anchor, row):
                problems.append(fault)
            previous = row.hash
            if number == self.mark[0]:
                at_mark = row.hash
            yield row
        if self._damaged:
            problems.append(self._damaged)
        elif self.mark[1] not in (NOTHING[1], at_mark, passed):
            problems.append(_explain_loss(self.mark[0]))
