"""Verification forward from a trusted checkpoint: the entries behind it, and the rows that they touch.

A checkpoint states what the rules need of the past: scopes, sums, proposals that wait, and what was
reserved or open. From there the new entries go through the same rules, and each row that they touch is
compared with what they leave and proved under the newest entry's root. What the old entries alone say
(settled results, that no key was charged before) is not checked again; a full verification does that.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import sqlalchemy as sa

from dpflow.errors import DpflowError, LedgerCorrupt
from dpflow.ledger.audit import verify
from dpflow.ledger.audit.recheck import Recheck
from dpflow.ledger.audit.release_state import ReleaseState, digest_values, read_body
from dpflow.ledger.books import data_claims
from dpflow.ledger.books.sessions import ANSWERS_WITH_KEYS
from dpflow.ledger.history import chain
from dpflow.ledger.history.anchor import NOTHING, Anchor, Seen
from dpflow.ledger.history.checkpoint import SCOPE_COLUMNS, Checkpoint, parse_note
from dpflow.ledger.history.state import TABLES
from dpflow.ledger.storage import schema
from dpflow.ledger.storage.database import Database
from dpflow.ledger.storage.statements import Prepared, Transaction, prepare_lookup

_E = schema.entry.c
_AFTER = Prepared(
    sa.select(schema.entry)
    .where(_E.seq > sa.bindparam("seq", type_=sa.BigInteger))
    .order_by(_E.seq)
)
_ENTRIES = prepare_lookup(list(schema.entry.columns), [_E.seq])
_RELEASES = prepare_lookup(list(schema.release.columns), [schema.release.c.id])
_KEYS = prepare_lookup(list(schema.key.columns), [schema.key.c.release_id])
_ANSWERS = prepare_lookup(list(schema.answer.columns), [schema.answer.c.session_id])
_VERDICTS = prepare_lookup(list(schema.verdict.columns), [schema.verdict.c.session_id])
#: Acts on the whole ledger, which only a verification from the first entry on can check. So is a checkpoint of a
#: witness that is older than the start.
_WHOLE = ("recover", "import")
_BATCH = 500  # names in one statement


def stream_texts(database: Database, earlier: Checkpoint, point: Checkpoint) -> Iterator[str]:
    """The texts that the hashes of entries are of, up to one checkpoint: behind another, or from the first one on where a
    recovery went on from what that one signed.
    """
    with database.begin_reading() as transaction:
        rows = transaction.stream(_AFTER, seq=earlier.size - 1)
        first = next(rows, None)
        if first is None or first.hash != earlier.head:
            rows = transaction.stream(_AFTER, seq=0)
        for row in itertools.takewhile(lambda row: row.seq <= point.size, rows):
            yield chain.entry_text(row)


class ForwardCheck:
    """What a checkpoint and the rows that later entries touch say of the past.

    Attributes:
        problems: why the checkpoint is no start.
        first: the entry that was signed; None if it is gone.
        is_whole: whether only a full verification can tell: the signed entry is not there, or later entries
            hold an act on the whole ledger.
    """

    def __init__(self, transaction: Transaction, anchor: Anchor, point: Checkpoint) -> None:
        self.problems: list[str] = []
        self._transaction, self._anchor, self._point = transaction, anchor, point
        self.first = next(iter(self._look_up(_ENTRIES, "seq", [point.size])), None)
        if self.first is not None and (fault := chain.find_fault(anchor, self.first)):
            self.problems.append(fault)
        self._opened = {row[0]: row for row in point.unsettled}
        self._charged: set[str] = set()
        self._mentioned: set[str] = set()
        self._runs: set[str] = set()
        self._names: set[str] = set()
        self._told: set[tuple[str, int]] = set()
        self._own_slots: set[tuple[str, ...]] = set()
        # Another entry in its place: lost, and perhaps taken over by a recovery.
        is_other = self.first is None or self.first.hash != point.head
        self.is_whole = is_other or any(self._note_entry(row) for row in self.entries())

    def entries(self) -> Iterator[Any]:
        """The entries behind the checkpoint, by number."""
        return self._transaction.stream(_AFTER, seq=self._point.size)

    def signed_rows(self, points: Iterable[Checkpoint]) -> list[Any]:
        """The entry of the start, behind those that earlier ones of these checkpoints name."""
        earlier = {point.size for point in points if point.size < self._point.size}
        rows = self._load_entries(earlier)
        return [*(rows[n] for n in sorted(rows)), *([] if self.first is None else [self.first])]

    def require_mark(self, mark: Seen) -> None:
        """Note it as a problem if a mark that is older than the checkpoint is not in the history."""
        if NOTHING[0] < mark[0] <= self._point.size:
            try:
                chain.require_entry(self._transaction, mark)
            except LedgerCorrupt as error:
                self.problems.append(str(error))

    def _note_entry(self, row: Any) -> bool:
        """Note what an entry touches; whether it is about the whole ledger."""
        self._mentioned.add(row.release_id)
        if row.kind in ("reserve", "session", "join", "verdict"):
            # What cannot be read is no entry of a ledger, as the rules say.
            with contextlib.suppress(ValueError, TypeError, LookupError, AttributeError):
                self._note_body(row, read_body(row))
        return row.kind in _WHOLE or (row.kind == "witness" and self._is_older(row))

    def _is_older(self, row: Any) -> bool:
        try:
            return parse_note(read_body(row)["note"]).size < self._point.size
        except (ValueError, TypeError, LookupError, AttributeError, DpflowError):
            return True

    def _note_body(self, row: Any, body: dict[str, Any]) -> None:
        if row.kind == "verdict":
            self._told.add((row.release_id, body["version"]))
            return
        if body["slot"] is not None:
            self._runs.add(body["slot"][0])
            self._own_slots.add((*body["slot"], row.release_id))
        if row.kind != "join":
            self._charged.add(row.release_id)
            self._names |= {*data_claims.all_names(row.scope, body["data"])}

    # --- the past -----------------------------------------------------------------------------

    def start(self) -> Recheck:
        """The rules as they stood at the checkpoint, for what later entries touch."""
        expected, point = Recheck(), self._point
        expected.entries, expected.head, expected.root = point.size, point.head, point.root
        seqs = {row.name: row.seq for row in self._rows(schema.scope)}
        for name, *columns in point.scopes:
            # One that was granted since gets its number from that entry.
            seq = seqs.get(name, 0)
            terms = dict(zip(SCOPE_COLUMNS, columns, strict=True))
            expected.scopes[name] = terms | {"seq": seq if seq <= point.size else 0}
        for scope, block, cost in point.spent:
            expected.accounts.setdefault(scope, {})[block] = cost
        expected.watch_from(point)
        gates = self._open_releases(expected)
        self._open_proposals(expected)
        past = set(self._mentioned - self._charged - self._opened.keys() - {""})
        for row in self._look_up(TABLES[schema.data.name].lookup, "name", self._names):
            if row.first in self._charged:
                continue
            gate = gates.get(row.name, None if row.gate in self._charged else row.gate)
            known = {"first": row.first, "gate": gate, "partition": row.partition}
            expected.data[row.name] = known
            past |= {gate} - self._opened.keys() if gate else set()
        # Settled, fenced or closed by then: nothing of such a release changes any more.
        for row in self._releases(past):
            if row.seq <= point.size:
                expected.releases[row.id] = ReleaseState.from_row(row)
        self._past = set(expected.releases) - self._opened.keys()
        for row in self._look_up(TABLES[schema.slot.name].lookup, "run", self._runs):
            if tuple(row) not in self._own_slots:
                expected.slots.add(digest_values(tuple(row)))
        for row in self._look_up(_ANSWERS, "session_id", self._opened):
            if row.version <= self._opened[row.session_id][4]:
                expected.answers[row.session_id, row.query] = row.version, row.answer_digest
        for row in self._look_up(_VERDICTS, "session_id", self._sessions):
            if (row.session_id, row.version) not in self._told:
                expected.verdicts[row.session_id, row.version] = row.verdict, row.failures_left
        return expected

    @property
    def _sessions(self) -> set[str]:
        return self._charged | self._opened.keys() | {name for name, _ in self._told}

    def _open_releases(self, expected: Recheck) -> dict[str, str]:
        """Take what was reserved or open; returns the open gates by the names that they close."""
        gates: dict[str, str] = {}
        entries = self._load_entries(row[1] for row in self._opened.values())
        for name, seq, attempts, fenced_below, version, secret in self._opened.values():
            entry = entries.get(seq)
            if entry is None or entry.release_id != name:
                self.problems.append(f"the entry {seq} that charged release {name} is gone")
                continue
            body = read_body(entry)
            release = ReleaseState.from_entry(entry, body)
            release.attempts, release.fenced_below = attempts, fenced_below
            release.version, release.secret_digest = version, secret
            expected.releases[name] = release
            if release.kind == "session":
                expected.keys |= {(name, number) for number in range(version + 1)}
            if body["exclusive"]:
                claims = data_claims.claim_names(entry.scope, body["data"])
                gates |= dict.fromkeys(claims, name)
        return gates

    def _open_proposals(self, expected: Recheck) -> None:
        for entry in self._load_entries(self._point.waiting).values():
            expected.propose(entry, read_body(entry))

    def _load_entries(self, numbers: Iterable[int]) -> dict[int, Any]:
        """Entries before the checkpoint by number, without those that nobody sealed."""
        entries = {}
        for row in self._look_up(_ENTRIES, "seq", numbers):
            if fault := chain.find_fault(self._anchor, row):
                self.problems.append(fault)
            else:
                entries[row.seq] = row
        return entries

    # --- rows to compare ----------------------------------------------------------------------

    def forget_past(self, expected: Recheck) -> None:
        """Take out the releases that only the rules had to know."""
        for name in self._past:
            del expected.releases[name]

    def rows_of(self, table: sa.Table, expected: Recheck) -> Iterable[Any]:
        """The rows of a table that are compared with what the entries leave."""
        sessions = self._charged | self._opened.keys()
        if table is schema.release:
            return self._releases(sessions)
        if table is schema.data:
            return self._look_up(TABLES[table.name].lookup, "name", self._names)
        if table is schema.slot:
            return sorted(self._look_up(TABLES[table.name].lookup, "run", self._runs))
        if table is schema.answer:
            wrapped = {(row.release_id, row.version): row.wrapped for row in self.key_rows()}
            return [
                ANSWERS_WITH_KEYS.row(*row, wrapped.get((row.session_id, row.version)))
                for row in self._look_up(_ANSWERS, "session_id", sessions)
            ]
        if table is schema.verdict:
            return self._look_up(_VERDICTS, "session_id", self._sessions)
        rows = self._rows(table)
        if table is schema.proposal:
            # Those that waited no more were forgotten by the rules.
            rows = [row for row in rows if row.scope in expected.proposals]
        return rows

    def key_rows(self) -> list[Any]:
        """The keys of what was reserved or open, or charged since."""
        return self._look_up(_KEYS, "release_id", self._charged | self._opened.keys())

    def _releases(self, names: Iterable[str]) -> list[Any]:
        names = set(names)
        wrapped = {
            (row.release_id, row.version): row.wrapped
            for row in self._look_up(_KEYS, "release_id", names)
        }
        visible = TABLES[schema.release.name].names
        return [
            verify.RELEASES.row(
                *(getattr(row, name) for name in visible),
                row.result,
                row.secret,
                wrapped.get((row.id, row.version)),
            )
            for row in self._look_up(_RELEASES, "id", names)
        ]

    def _rows(self, table: sa.Table) -> list[Any]:
        return self._transaction.rows(TABLES[table.name].select_all)

    def _look_up(self, statement: Prepared, column: str, values: Iterable[Any]) -> list[Any]:
        rows: list[Any] = []
        wanted = sorted(set(values))
        for start in range(0, len(wanted), _BATCH):
            named = [{column: value} for value in wanted[start : start + _BATCH]]
            rows += self._transaction.rows(statement, rows=named)
        return rows
