"""What owners and auditors do with a ledger: verify it, read its history, sign checkpoints, decide
after a loss, export, import and upgrade it.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import itertools
import os
from collections.abc import Generator, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

import sqlalchemy as sa

from dpflow.errors import DpflowError, InvalidInput, LedgerCorrupt
from dpflow.ledger.audit import recheck
from dpflow.ledger.audit.witness import Witnessed, add_checkpoint, open_place
from dpflow.ledger.books import charges, releases, sessions, witnesses
from dpflow.ledger.books.records import (
    Entry,
    Point,
    Settlement,
    checked_name,
    checked_principal,
    is_same_principal,
    path_of,
    utc_text,
)
from dpflow.ledger.history import chain
from dpflow.ledger.history.checkpoint import Checkpoint, Signer, open_note
from dpflow.ledger.history.sealed_database import SealedDatabase
from dpflow.ledger.history.state import LedgerState
from dpflow.ledger.storage import schema
from dpflow.ledger.storage.statements import Prepared, Transaction, match_columns

# Who only spends imports none of these modules.
if TYPE_CHECKING:
    from dpflow.ledger.audit import recovery
    from dpflow.ledger.audit.audit_page import AuditPage
    from dpflow.ledger.audit.failures import FailureReport
    from dpflow.ledger.audit.statement import Group, Statement
    from dpflow.ledger.audit.verification_report import VerificationReport, WitnessLook

_E = schema.entry.c
_LIMIT = sa.bindparam("limit", type_=sa.Integer)
NEWEST = Prepared(sa.select(schema.entry).order_by(_E.seq.desc()).limit(_LIMIT))
_FROM = sa.select(schema.entry).where(_E.seq >= sa.bindparam("first", type_=sa.BigInteger))
_FORWARD = Prepared(_FROM.order_by(_E.seq))
_BACKWARD = Prepared(
    _FROM.where(_E.seq < sa.bindparam("before", type_=sa.BigInteger)).order_by(_E.seq.desc())
)
# From the entry that charged it: the one that settled it is seldom far behind.
_SETTLED = Prepared(
    _FROM.where(match_columns(_E.kind, _E.release_id)).order_by(_E.seq).limit(sa.literal(1))
)


class StatementTerms(TypedDict, total=False):
    """What a statement is of, as keyword arguments.

    Attributes:
        since, until: from this entry or time on, and before that one; no bound if None.
        by: what totals are grouped by: ``dag``, ``principal`` or ``table``.
        checkpoints: signed ones that the history should extend, and ``keys`` that may have signed them beside the owner's own.
        new_only: verify as `AuditedLedger.verify` does with the earliest of them; a page says so.
    """

    since: Point | None
    until: Point | None
    by: Group
    checkpoints: Sequence[str]
    keys: Sequence[str]
    new_only: bool


class AuditedLedger(SealedDatabase):
    """The verbs of owners and auditors. Whoever spends has those of `dpflow.ledger.Ledger`."""

    # --- failures ---------------------------------------------------------------------------------

    def failures(self) -> FailureReport:
        """Draws that failed although nothing should have made them fail: settled as "none", and told
        here alone. Rows may have decided it, so it needs the owner's signing key, ``sign`` in the anchor.
        Reads every result. Raises `LedgerCorrupt` without that key.
        """
        from dpflow.ledger.audit.failures import read_failures

        with self._database.begin_reading() as transaction:
            return read_failures(transaction, self._cipher)

    # --- history ----------------------------------------------------------------------------------

    def history(
        self,
        scope: str | None = None,
        *,
        since: Point = 1,
        principal: str | None = None,
        before: int = 2**62,
        limit: int = 100,
    ) -> list[Entry]:
        """The newest entries below number ``before``, oldest of them first; other arguments and errors as of
        `stream_history`.
        """
        with contextlib.closing(
            self._select_entries(_BACKWARD, scope, since, principal, before=before)
        ) as entries:
            return list(itertools.islice(entries, limit))[::-1]

    def stream_history(
        self,
        scope: str | None = None,
        *,
        since: Point = 1,
        principal: str | None = None,
    ) -> Generator[Entry, None, None]:
        """All entries, the oldest first, as they come from the database.

        Args:
            scope: only those of this scope and the quotas below it.
            since: the number of the first entry, or a time with its zone. Entries hold their
                writers' clocks, in whole seconds.
            principal: only those of this principal.

        Raises:
            UnknownName: nobody granted the scope.
            LedgerCorrupt: a row is none that a ledger wrote. Nothing else is verified: a damaged
                ledger must show its history, too.
        """
        return self._select_entries(_FORWARD, scope, since, principal)

    def settlement(self, release_id: str) -> Settlement:
        """When a release was settled, and in which run. The same however often it is asked.

        Raises:
            InvalidInput: there is no such release, or it is not settled.
            LedgerCorrupt: the entry that settled it is missing or was changed.
        """
        with self._begin_reading() as state:
            row = releases.get_row(state, release_id)
            if row.state != "settled":
                raise InvalidInput(
                    f"release {release_id} is {row.state}, not settled; run it to its end first"
                )
            entry = state.transaction.first(
                _SETTLED, first=row.seq, kind="settle", release_id=release_id
            )
            if entry is None or chain.find_fault(self._anchor, entry) is not None:
                raise LedgerCorrupt(
                    f"the entry that settled release {release_id} is not the one that was made; "
                    f"run dpflow ledger verify"
                )
            run = [row.dag_id, row.task_id, row.run_identity]
            return Settlement(dt.datetime.fromisoformat(entry.at), "/".join(filter(None, run)))

    def statement(self, scope: str, **terms: Unpack[StatementTerms]) -> Statement:
        """Account statement of a scope: each release with its cost and what was left after it.

        Args:
            scope: a granted scope; what quotas below it paid is part of it.
            terms: the fields of `StatementTerms`.

        Raises:
            UnknownName: nobody granted the scope.
            LedgerCorrupt: the ledger does not verify, or does not extend a checkpoint.
        """
        page, checked = self._read_account(scope, **terms)
        if checked.problems:
            raise LedgerCorrupt(f"nothing is stated that does not verify: {checked.problems[0]}")
        return page.make_statement()

    def report(self, scope: str, **terms: Unpack[StatementTerms]) -> tuple[str, VerificationReport]:
        """The statement as one HTML page for an auditor, with grants, spend, refusals, orphans and decisions of the period,
        and whether the history extends checkpoints. Arguments and errors as of `statement`, but that a page of a history
        that does not extend a checkpoint is written, and begins with NOT verified.

        Returns: the page, and the verification that it states.
        """
        page, checked = self._read_account(scope, **terms)
        return page.render_html(), checked

    def _read_account(
        self,
        scope: str,
        *,
        since: Point | None = None,
        until: Point | None = None,
        by: Group = "dag",
        checkpoints: Sequence[str] = (),
        keys: Sequence[str] = (),
        new_only: bool = False,
    ) -> tuple[AuditPage, VerificationReport]:
        with self._begin_reading() as state:
            charges.get_scope(state, scope)
        checked, answers, problems = self._verify(checkpoints, keys, new_only and bool(checkpoints))
        if problems:
            raise LedgerCorrupt(f"nothing is stated that does not verify: {problems[0]}")
        from dpflow.ledger.audit.audit_page import AuditPage

        page = AuditPage(scope, since, until, by, answers, checked)
        # What was written since was not verified.
        page.add_entries(itertools.islice(self.stream_history(), checked.entries))
        return page, checked

    def has_paid(self, run: str) -> bool:
        """Whether any instance of a task paid for a release in this run (`Slot.run`), whatever it was."""
        with self._begin_reading() as state:
            return bool(state.rows(schema.slot, run=run))

    def _select_entries(
        self,
        statement: Prepared,
        scope: str | None,
        since: Point,
        principal: str | None,
        **bounds: int,
    ) -> Generator[Entry, None, None]:
        first, earliest = since if isinstance(since, int) else 1, ""
        if not isinstance(since, int):
            earliest = utc_text(since)
        with self._database.begin_reading() as transaction:
            if scope is not None:
                charges.get_scope(LedgerState(transaction, ""), scope)
            with contextlib.closing(transaction.stream(statement, first=first, **bounds)) as rows:
                for row in rows:
                    # Not where it ends: clocks may go back, so that an earlier one may follow.
                    if (
                        str(row.at) >= earliest
                        and (scope is None or scope in path_of(row.scope))
                        and (principal is None or is_same_principal(principal, row.principal))
                    ):
                        yield Entry.read_row(row)

    # --- verification -----------------------------------------------------------------------------

    def verify(
        self, *, since: str | None = None, keys: Sequence[str] = (), new_only: bool = False
    ) -> VerificationReport:
        """Recompute chain and seals, compare with the anchor, and rebuild every table from the
        entries.

        Args:
            since: a signed checkpoint, which the history must extend.
            keys: verifier keys that may have signed it, beside the owner's own.
            new_only: trust the checkpoint, and check the entries behind it and the rows that they
                touch alone. A loss or an import since then is checked from the first entry on.

        Raises:
            LedgerCorrupt: no trusted key signed the checkpoint.
        """
        return self._verify([] if since is None else [since], keys, new_only)[0]

    def _verify(
        self, notes: Sequence[str], keys: Sequence[str], new_only: bool
    ) -> tuple[VerificationReport, list[tuple[Checkpoint, str, str]], list[str]]:
        """Verify, and compare with these checkpoints and the witness's; returns the report, each checkpoint with its signer
        and why the history does not extend it, and what is wrong beside that.
        """
        from dpflow.ledger.audit import verification_report as reports

        points = [self._open_checkpoint(note, keys) for note in notes]
        # Before the transaction, which then reads no less than was signed by now.
        look = self._look_at_witness(keys)
        with self._database.begin_reading() as transaction:
            trace, expected, problems, after = self._verify_within(
                transaction, points, new_only=new_only, witnessed=look.points
            )
            strange = look.find_strange(partial(chain.has_entry, transaction))
        problems += [look.problem] if look.problem else []
        demands = expected.list_demands()
        brought = {key for note in notes for key in witnesses.signed_by(note, demands)[0]}
        pairs = [*points, *look.points]
        report = reports.VerificationReport(
            expected.entries,
            (*problems, *trace.problems),
            reports.list_compared(points, look, trace.vouched),
            tuple(look.list_gaps(demands, brought, strange)),
            (*trace.warnings, *expected.warnings, *look.warnings),
            after,
            tuple(expected.self_declared),
        )
        return report, [(point, name, trace.explain(point)) for point, name in pairs], problems

    def _look_at_witness(self, keys: Sequence[str]) -> WitnessLook:
        from dpflow.ledger.audit.verification_report import look_at_witness

        demanded = set(keys)
        # Not proved: whoever changes a demand, or a row so that nobody can read it, is found by the verification.
        with contextlib.suppress(DpflowError), self._database.begin_reading() as transaction:
            demanded |= witnesses.list_keys(LedgerState(transaction, ""))
        return look_at_witness(self._anchor.ledger_id, demanded, set(self._own_keys()))

    def _verify_within(
        self,
        transaction: Transaction,
        points: Sequence[tuple[Checkpoint, str]] = (),
        marked: bool = True,
        new_only: bool = False,
        witnessed: Sequence[tuple[Checkpoint, str]] = (),
    ) -> tuple[recovery.CheckpointTrace, recheck.Recheck, list[str], int]:
        """What goes by, what the entries leave, all that is wrong, and the entry behind which it was
        checked; without the mark's own problems if ``marked`` is false.

        Args:
            new_only: start at the earliest of the checkpoints, if it can be.
            witnessed: further checkpoints to compare with, which nobody trusts as a start.
        """
        from dpflow.ledger.audit import recovery, verify
        from dpflow.ledger.audit.forward import ForwardCheck

        # First of all: the mark that it takes may be older than what is read, never newer.
        auditor = chain.Auditor(self._anchor, marked=marked)
        start = min((point for point, _ in points), key=lambda p: p.size) if new_only else None
        forward = None if start is None else ForwardCheck(transaction, self._anchor, start)
        if forward is None or forward.is_whole or start is None:
            expected, forward, start = recheck.Recheck(), None, None
            entries: Iterator[Any] = transaction.stream(verify.ENTRIES)
        else:
            auditor.start = start.size, start.head
            forward.require_mark(auditor.mark)
            expected, entries = forward.start(), forward.entries()
        trace = recovery.CheckpointTrace([*points, *witnessed], self._anchor.ledger_id, expected)
        if forward is not None and start is not None:
            trace.start(forward.signed_rows(point for point, _ in witnessed), start)
        for row in auditor.pass_entries(trace.pass_entries(entries)):
            expected.apply_entry(row)
        found = []
        if forward is not None:
            forward.forget_past(expected)
            found += forward.problems
        tables = verify.TableCheck(transaction, expected, self._cipher, self._seal_state, forward)
        found += tables.find_problems(self._meta_values())
        after = 0 if start is None else start.size
        return trace, expected, [*auditor.problems, *expected.problems, *found], after

    def _open_checkpoint(self, note: str, keys: Sequence[str]) -> tuple[Checkpoint, str]:
        """A checkpoint and whose trusted key signed it."""
        text, signer = open_note(note, [*self._own_keys(), *keys])
        return Checkpoint.parse(text), signer

    def _own_keys(self) -> list[str]:
        """The owner's verifier key; none where the anchor has no private half, as of who only spends."""
        with contextlib.suppress(LedgerCorrupt):
            return [self.signer.public_text]
        return []

    @property
    def signer(self) -> Signer:
        """The owner's key pair. Raises `LedgerCorrupt` where the anchor has no private half."""
        from dpflow.ledger.audit import recovery

        return recovery.make_signer(self._anchor)

    def checkpoint(self, signer: Signer | None = None, *, since: str | None = None) -> str:
        """Verify everything, and sign how far the history goes and what was spent.

        Args:
            signer: a witness; the owner if left out.
            since: an earlier checkpoint of the owner or this signer, behind which alone is verified.
                The new one then says so.

        Returns: a signed note. Keep it where whoever can write the ledger and its anchor cannot.

        Raises:
            LedgerCorrupt: the ledger does not verify, or does not extend what the place that
                DPFLOW_LEDGER_WITNESS names holds.
            LedgerUnavailable: that place is out of reach.
        """
        look = self._look_at_witness([] if signer is None else [signer.public_text])
        return self._sign(signer, since, look.required.points)

    def _sign(
        self,
        signer: Signer | None,
        since: str | None,
        witnessed: Sequence[tuple[Checkpoint, str]] = (),
    ) -> str:
        from dpflow.ledger.audit import recovery

        keys = [] if signer is None else [signer.public_text]
        points = [] if since is None else [self._open_checkpoint(since, keys)]
        with self._database.begin_reading() as transaction:
            trace, expected, problems, after = self._verify_within(
                transaction, points, new_only=bool(points), witnessed=witnessed
            )
        if problems := [*problems, *trace.problems]:
            raise LedgerCorrupt(f"nothing is signed that does not verify: {problems[0]}")
        point = recovery.make_checkpoint(self._anchor, expected, trace, after)
        return (signer or self.signer).sign(point.text)

    def witness(self, place: str | Path, signer: Signer | None = None) -> Witnessed:
        """Add a checkpoint to a place outside, if anything was written since the newest one there.

        It is verified forward from that one, which the history must extend. Arguments and errors as of
        `checkpoint`, `dpflow.ledger.audit.witness.open_place` and `dpflow.ledger.audit.witness.add_checkpoint`.
        """
        from dpflow.ledger.audit.forward import stream_texts

        return add_checkpoint(
            open_place(str(place)),
            self._anchor.ledger_id,
            {*self._own_keys(), *([] if signer is None else [signer.public_text])},
            # What is there is what it is compared with.
            lambda earlier: self._sign(signer, earlier),
            lambda *points: stream_texts(self._database, *points),
        )

    def may_be_written(self) -> bool:
        """Whether this user can write the ledger, or put another file in its place: what it says of the
        ledger is then evidence against accidents only.
        """
        path = self._database.path
        if path is not None:
            owns = path.stat().st_uid == os.geteuid()
            return owns or any(os.access(place, os.W_OK) for place in (path, path.parent))
        with self._database.begin_reading() as transaction:
            query = "SELECT has_table_privilege('dpflow_entry', 'INSERT')"
            return bool(transaction.text(query)[0][0])

    # --- decisions of owners ----------------------------------------------------------------------

    def reanchor(self, *, reason: str, principal: str, keys: Sequence[str] = ()) -> None:
        """An owner's decision after the high-water mark was lost: the history is accepted as it is.

        Args:
            keys: verifier keys of witnesses, beside those that scopes demand and the owner's own.

        Raises:
            InvalidInput: the mark is there, or a witness knows of entries that are gone.
            LedgerCorrupt: the history does not verify.
            LedgerUnavailable: the place that DPFLOW_LEDGER_WITNESS names is out of reach.
        """

        checked_name("a reason", reason, longest=1000)
        principal, look = checked_principal(principal), self._look_at_witness(keys).required
        with self._database.begin_writing() as transaction:
            if self._find_mark() is not None:
                raise InvalidInput(
                    "the high-water mark is there; if it knows entries that are gone, see dpflow ledger recover --lost database"
                )
            trace, expected, problems, _ = self._verify_within(
                transaction, marked=False, witnessed=look.points
            )
            if problems:
                raise LedgerCorrupt(
                    f"a history that does not verify is not accepted: {problems[0]}"
                )
            look.require_none_ahead(trace.explain)
            writer = chain.Writer(transaction, self._anchor, (trace.head, trace.head))
            body = {"reason": reason, "entries": expected.entries}
            writer.add_entry("reanchor", "", "", principal, body)
            writer.write_entries()
        self._replace_mark(writer)

    def recover(
        self,
        *,
        reason: str,
        principal: str,
        checkpoint: str | None = None,
        keys: Sequence[str] = (),
    ) -> list[str]:
        """An owner's decision after entries were lost and cannot come back: go on with what is left.

        What a checkpoint says beyond the history is taken over: scopes and what they spent. No person signed it, so a scope
        whose grants are signed or approved by a second principal keeps the terms of this history; it is closed if the
        checkpoint states others. What a lost entry may have done counts as done: scopes are closed until they are granted
        again (all of them, unless the mark stands at the very entry that was signed), reservations are fenced, sessions
        closed, and no data count as fresh from then on.

        A checkpoint that turns up after a recovery is taken over by another one: to its sums comes what was charged since
        the first recovery that it does not know. Take over the newest one first: an earlier one would be counted twice.

        Args:
            checkpoint: the newest signed one. An empty new ledger takes over one of another ledger.
            keys: verifier keys that may have signed it, beside the owner's own.

        Returns: the scopes that are closed now.

        Raises:
            InvalidInput: neither mark nor checkpoint knows more than the history, or the checkpoint says
                that less was spent, or states what the rules forbid.
            LedgerCorrupt: what is left does not verify, or nobody trusted signed the checkpoint.
            LedgerUnavailable: the place that DPFLOW_LEDGER_WITNESS names is out of reach.
        """
        from dpflow.ledger.audit import recovery

        checked_name("a reason", reason, longest=1000)
        principal = checked_principal(principal)
        points = [] if checkpoint is None else [self._open_checkpoint(checkpoint, keys)]
        point, signer = points[0] if points else (None, "")
        look = self._look_at_witness(keys).required
        with self._database.begin_writing() as transaction:
            trace, expected, problems, _ = self._verify_within(
                transaction, points, marked=False, witnessed=look.points
            )
            if problems:
                raise LedgerCorrupt(f"what is left does not verify: {problems[0]}")
            look.require_none_ahead(trace.explain, point)
            if point is not None and not trace.accepts(point):
                raise InvalidInput("the checkpoint is of another ledger; name this one's")
            writer = chain.Writer(transaction, self._anchor, (trace.head, trace.head))
            body = recovery.plan_recovery(trace, self._find_mark(), point, signer, reason)
            recovery.write_recovery(writer, expected, body)
            writer.add_entry("recover", "", "", principal, body)
            writer.write_entries()
        self._replace_mark(writer)
        return sorted(name for name, row in expected.scopes.items() if row["closed"])

    def rotate(self, *, principal: str) -> int:
        """Encrypt the keys of all results and answers, and the states of open sessions, under new
        keys, and destroy the old one. Returns how many keys there are. Harmless when repeated.
        """
        principal = checked_principal(principal)
        # Before the anchor has a new key that its backup lacks: a database out of reach, or closed to this login, refuses.
        with self._database.begin_writing() as transaction:
            transaction.text("UPDATE dpflow_key SET wrapped = '' WHERE 1 = 0 RETURNING wrapped")
        with self._anchor.rotate():
            with self._begin_writing() as writer:
                sessions.renew_states(writer)
                number = self._cipher.rewrap_keys(writer.transaction)
                writer.add_entry("rotate", "", "", principal, {"keys": number})
            # Whoever began before it reads keys that only the old one opens.
            self._database.outwait_readers()
        return number

    def _seal_state(self, secret: str) -> str:
        return sessions.seal_state(self._anchor, secret)
