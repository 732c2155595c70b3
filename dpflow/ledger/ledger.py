"""The ledger's verbs. Each is one transaction: all of it, or nothing."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar, Unpack

from dpflow import fault_points
from dpflow.errors import (
    BudgetExceeded,
    DatasetLocked,
    DpflowError,
    InvalidInput,
    LedgerUnavailable,
    RetryConflict,
    WitnessBehind,
)
from dpflow.ledger.audit.recheck import RESERVED_KINDS
from dpflow.ledger.audit.witness import open_place, read_newest
from dpflow.ledger.books import charges, data_claims, releases, sessions, witnesses
from dpflow.ledger.books.records import (
    AnswerRecord,
    ReleaseKey,
    ReleaseRecord,
    Reservation,
    SessionRecord,
    SettledRequest,
    checked_name,
    checked_principal,
    path_of,
    stored_json,
)
from dpflow.ledger.books.releases import ChargeTerms, ReleaseCharge
from dpflow.ledger.budgets import BudgetLedger
from dpflow.ledger.history.checkpoint import DecisionSigner, Signer
from dpflow.ledger.history.cipher import add_salt, strip_salt
from dpflow.ledger.history.state import LedgerState, ReadAhead
from dpflow.ledger.storage import schema

T = TypeVar("T")
_REST = 9  # charges spend a tenth of their time at most on looks at a witness's place that is out of reach


class Ledger(BudgetLedger):
    """A ledger in a SQLite file or a PostgreSQL database. Safe to use from many processes, threads and forks.

    Args:
        target: a path, or a ``postgresql+psycopg://`` URL.
        anchor: directory of the keys and the high-water mark; by default DPFLOW_LEDGER_ANCHOR, or for a SQLite file
            this user's state directory (`default_folder`). Keep it where whoever can write the database cannot.
        create: make a new ledger if there is none.
        owner: spend although this login can change what it spends from; also by DPFLOW_LEDGER_OWNER=1. See `reserve`.

    Raises:
        LedgerCorrupt: not a ledger, or not this anchor's.
        LedgerUnavailable: locked, full, read-only, out of reach, or of another schema version (retryable).
        InvalidInput: there is no ledger and ``create`` is false.
    """

    # --- releases -----------------------------------------------------------------------------------------------

    def reserve(self, key: ReleaseKey, **terms: Unpack[ChargeTerms]) -> Reservation:
        """Charge a release on all scopes of its path and all its blocks, or return what its key already has.

        The same key again is free: settled, it returns the stored result; reserved, the caller takes the reservation over and
        draws afresh, because nothing of the first try was visible. A new mechanism version inside one slot keeps the slot's
        reservation. See `dpflow.ledger.books.releases.choose_release` for mapped inputs in another order.

        Args:
            terms: the fields of `ReleaseCharge`.

        Raises:
            InvalidInput: on PostgreSQL this login could write grants or change the history, and does not say that it is the owner.
            PlanRefused: a scope that pays protects something else.
            BudgetExceeded: a scope or block cannot pay; nothing was charged, and an entry says so.
            RetryConflict: this slot released something else before, or an owner closed the release.
            DatasetLocked: an open session keeps the data from other releases.
        """
        return self.reserve_many([ReleaseCharge(key, **terms)])[0]

    def reserve_many(self, asks: Sequence[ReleaseCharge]) -> list[Reservation]:
        """Charge many releases as `reserve` does, in one transaction: all of them, or none.

        Those charged before come first: a list which grew at its front finds its own before the new one asks.

        Raises:
            DpflowError: as `reserve`; then none of them was charged.
        """
        self._require_spender()
        return self._charge(lambda: self._reserve_many(asks), asks)

    def _reserve_many(self, asks: Sequence[ReleaseCharge]) -> list[Reservation]:
        reservations: dict[ReleaseKey, Reservation] = {}
        try:
            with self._begin_writing(ReadAhead(releases.wanted_rows(asks))) as writer:
                accounts = charges.OpenAccounts(writer.state)
                for ask in releases.sort_known_first(writer.state, asks):
                    if ask.key in reservations:
                        continue
                    row = releases.find_release(writer, ask)
                    if row is None:
                        name = releases.charge_release(writer, ask, accounts)
                        held = Reservation(name, 1, False, key=ask.key)
                    else:
                        held = releases.take_over(writer, row, ask)
                    reservations[ask.key] = held
                accounts.write()
                fault_points.pass_point("reserve.before-commit")
        except BudgetExceeded as refusal:
            self._note_refusal(ask, refusal)
            raise
        if any(held.attempt > 1 and not held.settled for held in reservations.values()):
            self._database.empty_log()
        fault_points.pass_point("reserve.after-commit")
        return [reservations[ask.key] for ask in asks]

    def settle(
        self,
        reservation: Reservation,
        result: Mapping[str, Any],
        *,
        snapshot: str | None = None,
        principal: str = "",
        failure: str = "",
    ) -> Reservation:
        """Store the result of a reservation. The first writer wins; a later one gets the stored
        result.

        Args:
            snapshot: a commitment to the rows that were read, never a plain digest.
            principal: whose try this is; whoever reserved first if left out.
            failure: how the draw failed, which `failures` tells the owner alone.

        Raises:
            RetryConflict: the attempt was fenced; its result is discarded.
        """
        settled = [(reservation, result, snapshot)]
        return self.settle_many(settled, principal=principal, failures=[failure])[0]

    def settle_many(
        self,
        results: Sequence[tuple[Reservation, Mapping[str, Any], str | None]],
        *,
        principal: str = "",
        failures: Sequence[str] = (),
    ) -> list[Reservation]:
        """Store many results as `settle` does, in one transaction: all of them, or none.

        Args:
            results: reservations with their results and snapshots.
            failures: of each, as `settle` says; none of them failed if it is left out.
        """
        texts = [releases.encode_ordered(result) for _, result, _ in results]
        keys = [held.key.columns for held, _, _ in results if held.key is not None]
        ahead = ReadAhead((schema.release, key) for key in keys)
        with self._begin_writing(ahead) as writer:
            stored = [
                releases.settle_release(writer, reservation, text, snapshot, principal, failure)
                for (reservation, _, snapshot), text, failure in zip(
                    results, texts, failures or [""] * len(texts), strict=True
                )
            ]
            fault_points.pass_point("settle.before-commit")
        fault_points.pass_point("settle.after-commit")
        return [
            dataclasses.replace(reservation, settled=True, result=stored_json(text))
            for (reservation, _, _), text in zip(results, stored)
        ]

    def resolve(
        self,
        release_id: str,
        *,
        reason: str,
        principal: str,
        decision: Literal["close", "retry"] = "close",
        signer: DecisionSigner | None = None,
    ) -> str:
        """An owner's decision on an orphan. Whatever still runs is fenced: its late result is
        discarded. The charge stays. Returns the state that the release has then.

        Args:
            decision: ``close`` refuses later tries too, and closes a session; ``retry`` lets a new
            try use the reservation.
            signer: one who may sign grants of the release's scope, and signs this. Its name is the principal then.
        """
        if decision not in ("close", "retry"):
            raise InvalidInput("the decision is close or retry; choose one")
        checked_name("a reason", reason, longest=1000)
        principal = checked_principal(principal)
        with self._begin_writing() as writer:
            return releases.resolve_release(writer, release_id, decision, reason, principal, signer)

    def find(self, key: ReleaseKey) -> ReleaseRecord | None:
        """What a key has, without taking it over."""
        with self._begin_reading() as state:
            row = releases.find_by_key(state, key)
            return None if row is None else releases.proved_record(self._cipher, state, row)

    def explain_conflict(self, ask: ReleaseCharge) -> str:
        """Why a charge would be refused as a changed retry of what its slot released before; "" if it would not."""
        with self._begin_reading() as state:
            try:
                releases.choose_release(state, ask)
            except RetryConflict as conflict:
                return str(conflict)
        return ""

    def is_paid(self, scope: str, dag_id: str, run_identity: str, digest: str) -> bool:
        """Whether any task of a DAG run has paid for the plan of this digest.

        A yes is proved. A release that was deleted by hand counts as still to pay, and its own
        charge refuses.
        """
        with self._begin_reading() as state:
            return releases.is_paid(
                state, scope=scope, dag_id=dag_id, run_identity=run_identity, digest=digest
            )

    def release(self, release_id: str) -> ReleaseRecord:
        """One release by id. Raises `InvalidInput`."""
        with self._begin_reading() as state:
            return releases.proved_record(self._cipher, state, releases.get_row(state, release_id))

    def releases(self, scope: str | None = None) -> list[ReleaseRecord]:
        """All releases and sessions, in the order they were charged.

        Each is what the history says; that none was deleted by hand, only `verify` says.
        """
        with self._begin_reading() as state:
            return releases.list_releases(self._cipher, state, scope)

    def reserved_releases(self) -> list[ReleaseRecord]:
        """Releases that were charged and have no result yet, in the order they were charged: of who
        still draws, or died.
        """
        with self._begin_reading() as state:
            return releases.list_in_state(self._cipher, state, "reserved")

    def open_sessions(self) -> list[ReleaseRecord]:
        """Sessions that are not used up, in the order they were charged."""
        with self._begin_reading() as state:
            return releases.list_in_state(self._cipher, state, "open")

    def releases_by_name(
        self, scope: str, name: str, run: tuple[str, str] | None = None
    ) -> list[ReleaseRecord]:
        """Releases of a scope and those above it whose request has this name, in the order they
        were charged.

        Each is what the history says; one that was deleted by hand is not missed.

        Args:
            run: only those of one DAG and run identity.
        """
        with self._begin_reading() as state:
            return releases.list_named(self._cipher, state, scope, name, run)

    def settled_requests(self, scope: str, name: str) -> list[SettledRequest]:
        """Requests of a scope's settled releases of this name, the newest first: a list to choose from, as it is
        stored. What is chosen is proved by `find`; one that was deleted by hand is not missed.
        """
        with self._begin_reading() as state:
            return releases.list_requests(state, scope, name)

    # --- sessions -----------------------------------------------------------------------------------------------

    def open_session(
        self,
        key: ReleaseKey,
        *,
        state: Mapping[str, Any],
        exclusive: bool,
        **terms: Unpack[ChargeTerms],
    ) -> SessionRecord:
        """Charge an interactive mechanism whole and store its first state; the same key again
        returns the session.

        Args:
            state: the first secret state.
            exclusive: a gate: while it is open, every other release of its dataset or of anything
                in ``data`` is refused.
            terms: the fields of `ReleaseCharge`.

        Raises:
            InvalidInput, BudgetExceeded, RetryConflict, DatasetLocked: as for `reserve`.
            PlanRefused: the data is partitioned otherwise.
        """
        ask = ReleaseCharge(key, **terms)
        self._require_spender()
        secret = add_salt(releases.encode_ordered(state))
        return self._charge(lambda: self._open_session(ask, secret, exclusive), [ask])

    def _open_session(self, ask: ReleaseCharge, secret: str, exclusive: bool) -> SessionRecord:
        try:
            with self._begin_writing(ReadAhead(releases.wanted_rows([ask]))) as writer:
                row, resumed = releases.find_release(writer, ask), False
                if row is None:
                    accounts = charges.OpenAccounts(writer.state)
                    name = releases.charge_release(
                        writer,
                        ask,
                        accounts,
                        state="open",
                        exclusive=exclusive,
                        secret=secret,
                        commitment=sessions.seal_state(self._anchor, secret),
                    )
                    accounts.write()
                    session = SessionRecord(name, 0, False, stored_json(strip_salt(secret)))
                else:
                    session = self._make_session(writer.state, row.id)
                    resumed = not session.closed
                fault_points.pass_point("session.before-commit")
        except BudgetExceeded as refusal:
            self._note_refusal(ask, refusal)
            raise
        if resumed:
            self._database.empty_log()
        fault_points.pass_point("session.after-commit")
        return session

    def count_try(self, release_id: str, principal: str) -> None:
        """Count one more try of a charge or of an open session's questions, after a process died of them or with them.
        Raises `RetryConflict` if nothing is left to try.
        """
        with self._begin_writing() as writer:
            releases.count_try(writer, release_id, principal)

    def is_fresh(self, release_id: str, scope: str, data: Sequence[str]) -> bool:
        """Whether nothing was charged before this release on its dataset or on anything in
        ``data``.
        """
        with self._begin_reading() as state:
            return data_claims.is_fresh(state, release_id, scope, data)

    def session(self, session_id: str) -> SessionRecord:
        """A session with its secret state. Raises `UnknownName`."""
        with self._begin_reading() as state:
            return self._make_session(state, session_id)

    def answer(
        self,
        session_id: str,
        *,
        query: str,
        expected_version: int,
        state: Mapping[str, Any],
        answer: Mapping[str, Any],
        closed: bool = False,
        principal: str = "",
        failure: str = "",
        rows: LedgerState | None = None,
        public_verdict: bool = False,
        tell: Sequence[AnswerRecord] = (),
    ) -> AnswerRecord | None:
        """Store an answer and the state it leads to, in one transaction.

        Args:
            principal: who asked; whoever opened the session if left out.
            rows: those of the `SessionRecord` that `ask` returned, which are not proved again.
            public_verdict: also do as `tell_verdict` does.
            tell: earlier answers of the session, whose verdicts this transaction tells, whatever it returns.

        Returns:
            The stored answer: an earlier one if the same query was answered before. None if another answer
            advanced the session first; then nothing was stored, and the caller asks again from the new state.

        Raises:
            SessionClosed: no answer is left.
        """
        step = sessions.Step(expected_version, state, closed, principal, failure)
        with self._begin_writing(former=rows) as writer:
            for earlier in tell:
                sessions.tell_verdict(writer, session_id, earlier, principal)
            record = sessions.store_answer(writer, session_id, query, answer, step)
            fault_points.pass_point("session.before-commit")
        fault_points.pass_point("session.after-commit")
        if public_verdict and record is not None:
            self._tell_verdict(session_id, record, principal, writer.state)
        return record

    def tell_verdict(self, session_id: str, query: str, *, principal: str = "") -> None:
        """Write an answer's ``verdict`` and ``failures_left`` into the history in the clear, once, for pages
        without a key. Behind the answer's own transaction: in one with it, whoever dies in the middle
        would leave a draw in a file that was never given. Raises `InvalidInput` if there is no answer.
        """
        with self._begin_reading() as state:
            if sessions.verdict_is_public(state, session_id, query):
                return
            record = sessions.stored_answer(self._cipher, state, session_id, query)
        assert record is not None
        self._tell_verdict(session_id, record, principal, state)

    def _tell_verdict(
        self, session_id: str, answer: AnswerRecord, principal: str, rows: LedgerState
    ) -> None:
        with self._begin_writing(former=rows) as writer:
            sessions.tell_verdict(writer, session_id, answer, principal)
            fault_points.pass_point("verdict.before-commit")

    def answer_batch(
        self,
        session_id: str,
        batch: Mapping[str, Any],
        *,
        expected_version: int,
        state: Mapping[str, Any],
        closed: bool = False,
        principal: str = "",
        failure: str = "",
    ) -> bool:
        """Store many answers as one JSON mapping, of whatever form the caller likes, and the state
        they lead to.

        Args:
            principal: who asked; whoever opened the session if left out.

        Returns: False if another answer advanced the session first; then nothing was stored, and
            the caller looks up what was answered meanwhile (`batches`) and asks for the rest from
            the new state.

        Raises:
            SessionClosed: no answer is left.
        """
        step = sessions.Step(expected_version, state, closed, principal, failure)
        with self._begin_writing() as writer:
            stored = sessions.store_batch(writer, session_id, batch, step)
            fault_points.pass_point("session.before-commit")
        fault_points.pass_point("session.after-commit")
        return stored

    def batches(self, session_id: str, after: int = 0) -> list[dict[str, Any]]:
        """The batches that led to versions of the session above this one, in order. Raises
        `UnknownName`.
        """
        with self._begin_reading() as state:
            return sessions.list_batches(self._cipher, state, session_id, after)

    def ask(
        self, session_id: str, query: str, before: SessionRecord | None = None
    ) -> AnswerRecord | SessionRecord:
        """The answer this query got, or the session that is to answer it, with its secret state. Raises
        `UnknownName` for an unknown session.

        Args:
            before: what an earlier call returned; its rows are not proved again unless somebody else added an entry.
        """
        with self._begin_reading(None if before is None else before.rows) as state:
            stored = sessions.stored_answer(self._cipher, state, session_id, query)
            if stored is not None:
                return stored
            return dataclasses.replace(self._make_session(state, session_id), rows=state)

    def answers(self, session_id: str, after: int = 0) -> list[AnswerRecord]:
        """The answers of a session but for the first ``after``, in the order they were given. Raises
        `UnknownName`.
        """
        with self._begin_reading() as state:
            return sessions.list_answers(self._cipher, state, session_id, after)

    def _charge(self, verb: Callable[[], T], asks: Sequence[ReleaseCharge]) -> T:
        """Charge; where a scope demands a newer checkpoint of its witness, bring that in and try once more."""
        self._compare_with_witness({ask.key.scope for ask in asks})
        try:
            return verb()
        except WitnessBehind:
            self._bring_checkpoint(asks[0].principal)
        # Also where another process brought it meanwhile.
        return verb()

    def _compare_with_witness(self, scopes: set[str]) -> None:
        """Before the first charge of each scope, where DPFLOW_LEDGER_WITNESS is set: a history that a newest checkpoint there is
        ahead of was restored, perhaps to before the scope demanded it (`read_newest`). What comes later is found by what this object
        remembers (`Anchor.remember`).

        A place out of reach says nothing: the demand alone holds, and the next charge looks again. A look that takes long
        to fail is followed by `_REST` times that long without one.
        """
        name, begin = os.environ.get("DPFLOW_LEDGER_WITNESS"), time.monotonic()
        if not name or scopes <= self._compared or begin < self._next_look:
            return
        paths = {part for scope in scopes for part in path_of(scope)}
        with self._begin_reading() as state:
            keys = witnesses.list_keys(state, paths)
        try:
            newest = read_newest(
                open_place(name),
                self._anchor.ledger_id,
                lambda point: keys or witnesses.stated_keys(point, paths),
            )
        except LedgerUnavailable:
            end = time.monotonic()
            self._next_look = end + _REST * (end - begin)
            return
        if newest:
            with self._begin_writing() as writer:
                witnesses.require_extended(writer, newest, keys)
        self._compared |= scopes

    def _bring_checkpoint(self, principal: str) -> None:
        """Write the newest checkpoint of DPFLOW_LEDGER_WITNESS into the history, if a scope gains by it.

        Where DPFLOW_LEDGER_WITNESS_KEY names a witness's private key, one is signed and added first.
        """
        name, key = (os.environ.get(f"DPFLOW_LEDGER_WITNESS{part}") for part in ("", "_KEY"))
        if not name:
            return
        try:
            if key:
                self.witness(name, Signer.parse(Path(key).read_text(encoding="utf-8")))
        except OSError as error:
            raise InvalidInput(
                f"the witness's key {key} cannot be read ({error.strerror}); correct DPFLOW_LEDGER_WITNESS_KEY"
            ) from None
        place = open_place(name)
        with self._begin_reading() as state:
            keys = witnesses.list_keys(state)
        newest = read_newest(place, self._anchor.ledger_id, lambda _: keys)
        is_own = bool(key) or (bool(newest) and place.may_be_written())
        for stored in newest.values():
            with self._begin_writing() as writer:
                witnesses.take_checkpoint(writer, stored.note, is_own, principal)
                fault_points.pass_point("witness.before-commit")
            fault_points.pass_point("witness.after-commit")

    def _note_refusal(self, ask: ReleaseCharge, refusal: BudgetExceeded) -> None:
        """Write down what a budget refused, for auditors."""
        key = {name: ask.public[name] for name in ("dag_id", "task_id", "run_identity", "event")}
        body = key | {"name": ask.name, "account": [refusal.scope, refusal.block or ""]}
        # It is refused whether or not this can be written.
        with contextlib.suppress(DpflowError), self._begin_writing() as writer:
            writer.add_entry("refuse", ask.key.scope, "", ask.principal, body)

    def is_locked(self, scope: str, data: Sequence[str]) -> bool:
        """Whether an open session keeps this data from new releases."""
        with self._begin_reading() as state:
            try:
                data_claims.require_access(state, scope, data)
            except DatasetLocked:
                return True
        return False

    # --- history ------------------------------------------------------------------------------------------------

    def newest_entry(self) -> tuple[int, str]:
        """Number and hash of the history's last entry. While they are the same, nobody wrote to the ledger through dpflow;
        what was changed behind its back is found by whoever reads the rows.
        """
        with self._begin_reading() as state:
            pass
        assert state.newest is not None
        return state.newest

    def record(
        self,
        kind: str,
        body: Mapping[str, Any],
        *,
        principal: str,
        scope: str = "",
        data: Sequence[str] = (),
    ) -> None:
        """Write a note into the history, such as a data contract's outcome. Its kind is not one of
        the ledger's own.

        Args:
            data: names of the rows of which the note tells a bit that nobody paid for.

        Raises:
            PlanRefused: a gate was opened on one of these names, perhaps while the rows were read.
        """
        if checked_name("a kind", kind) in RESERVED_KINDS:
            raise InvalidInput(
                f"{kind!r} is an entry that only the ledger writes; name the note otherwise"
            )
        checked_name("a scope", scope, empty=True)
        principal = checked_principal(principal)
        # Through JSON and back, so that the hash covers what a reader will parse.
        note = json.loads(releases.encode_ordered({**body, "data": [*data]} if data else body))
        with self._begin_writing() as writer:
            data_claims.require_no_gate(writer.state, data)
            writer.add_entry(kind, scope, "", principal, note)

    def _make_session(self, state: LedgerState, session_id: str) -> SessionRecord:
        return sessions.make_session(*sessions.find_session(state, self._cipher, session_id))
