"""The ledger's verbs. Each is one transaction: all of it, or nothing."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TextIO

import sqlalchemy as sa

from dpflow import fault_points
from dpflow.core.accounting import amounts
from dpflow.core.accounting.events import Event
from dpflow.core.accounting.privacy_filters import Cost, FilterName, Guarantee, odometer
from dpflow.core.contract.declaration import Table
from dpflow.errors import DpflowError, InvalidInput, LedgerCorrupt, LedgerUnavailable
from dpflow.ledger.audit import export, migrations, recheck, recovery, verify
from dpflow.ledger.audit.audit_page import AuditPage
from dpflow.ledger.books import charges, data_claims, grants, releases, sessions
from dpflow.ledger.books.records import (
    AnswerRecord,
    Entry,
    Point,
    ReleaseKey,
    ReleaseRecord,
    Remaining,
    Reservation,
    Scope,
    SessionRecord,
    Slot,
    VerificationReport,
    checked_name,
    path_of,
    stored_json,
    utc_text,
)
from dpflow.ledger.books.releases import R, ReleaseCharge
from dpflow.ledger.history import chain
from dpflow.ledger.history.anchor import Anchor, Mark, Seen, default_folder
from dpflow.ledger.history.checkpoint import Checkpoint, Signer, open_note
from dpflow.ledger.history.cipher import Cipher, add_salt, strip_salt
from dpflow.ledger.history.state import LedgerState
from dpflow.ledger.storage import schema
from dpflow.ledger.storage.database import Database
from dpflow.ledger.storage.statements import (
    Prepared,
    Transaction,
    match_columns,
    prepare_insert,
)

_E = schema.entry.c
_LIMIT = sa.bindparam("limit", type_=sa.Integer)
_NEWEST = Prepared(sa.select(schema.entry).order_by(_E.seq.desc()).limit(_LIMIT))
_FROM = sa.select(schema.entry).where(_E.seq >= sa.bindparam("first", type_=sa.BigInteger))
_FORWARD, _BACKWARD = (Prepared(_FROM.order_by(order)) for order in (_E.seq, _E.seq.desc()))
_META = prepare_insert(schema.meta)
_CHARGED = (
    sa.select(*releases.PUBLIC, schema.key.c.wrapped)
    .outerjoin(schema.key, releases.WITH_KEY)
    .order_by(R.seq)
)
_RELEASES, _RELEASES_OF = Prepared(_CHARGED), Prepared(_CHARGED.where(match_columns(R.scope)))
_NAMED = _CHARGED.where(match_columns(R.scope, R.name))
_RELEASES_NAMED, _RELEASES_OF_RUN = (
    Prepared(_NAMED),
    Prepared(_NAMED.where(match_columns(R.dag_id, R.run_identity))),
)
_PAID = Prepared(sa.select(R.id).where(match_columns(R.scope, R.dag_id, R.run_identity, R.digest)))


class Ledger:
    """A ledger in a SQLite file or a PostgreSQL database. Safe to use from many processes, threads
    and forks.

    Args:
        target: a path, or a ``postgresql+psycopg://`` URL.
        anchor: directory of the keys and the high-water mark; by default DPFLOW_LEDGER_ANCHOR, or
            for a SQLite file this user's state directory (`default_folder`). Keep it where whoever
            can write the database cannot.
        create: make a new ledger if there is none.
        owner: spend although this login can change what it spends from; also by
            DPFLOW_LEDGER_OWNER=1. See `reserve`.

    Raises:
        LedgerCorrupt: not a ledger, of another schema version, or not this anchor's.
        LedgerUnavailable: locked, full, read-only or out of reach (retryable).
        InvalidInput: there is no ledger and ``create`` is false.
    """

    def __init__(
        self,
        target: str | Path,
        *,
        anchor: Path | str | None = None,
        create: bool = False,
        owner: bool = False,
    ) -> None:
        self._database = Database(target)
        self._may_spend = owner or os.environ.get("DPFLOW_LEDGER_OWNER") == "1"
        folder = anchor or os.environ.get("DPFLOW_LEDGER_ANCHOR")
        named = Anchor(Path(folder)) if folder else None
        if named is None and self._database.path is None:
            raise InvalidInput(
                "a ledger on PostgreSQL needs an anchor directory; give anchor or DPFLOW_LEDGER_ANCHOR"
            )
        if not self._database.exists():
            if not create:
                raise InvalidInput(
                    f"there is no ledger at {self._database!r}; name the right file, or make one: dpflow ledger grant"
                )
            self._create_tables(named)
        with self._database.begin_reading() as transaction:
            ((fingerprint,),) = transaction.text(
                "SELECT coalesce(max(value), '') FROM dpflow_meta WHERE name = 'anchor'"
            )
        self._anchor = named or Anchor(default_folder(fingerprint[:16]))
        self._cipher = Cipher(self._anchor)
        # Only a commitment is stored there: the database must not tell the key.
        if fingerprint != self._meta_values()["anchor"]:
            raise LedgerCorrupt(
                f"{self._anchor.folder} is not the anchor of {self._database!r}; name the right one: "
                f"DPFLOW_LEDGER_ANCHOR=DIR"
            )

    def __repr__(self) -> str:
        return f"Ledger({self._database!r})"

    @property
    def anchor_folder(self) -> Path:
        """Where its keys and its high-water mark are."""
        return self._anchor.folder

    def _create_tables(self, named: Anchor | None) -> None:
        """Make tables and anchor; harmless if another process just did."""
        self._database.make_place()
        with self._database.begin_writing() as transaction:
            # Asked a second time inside the turn: two processes may come here at once.
            if transaction.has_ledger():
                return
            if named is not None:
                named.create()
            self._anchor = named or Anchor.create_default()
            transaction.create_tables()
            rows = [{"name": name, "value": value} for name, value in self._meta_values().items()]
            transaction.many(_META, rows)

    def _meta_values(self) -> dict[str, str]:
        return {"schema": schema.VERSION, "anchor": self._anchor.commitment(b"", "fingerprint")}

    # --- grants -------------------------------------------------------------------------------------------------

    def grant(
        self,
        scope: str,
        epsilon: object,
        delta: object,
        *,
        table: Table | None,
        filter: FilterName = "hybrid",
        protects: str = "",
        blocks: bool = False,
        tail_share: object | None = None,
        principal: str,
    ) -> Scope:
        """Give a scope a budget, raise it, or lower it to no less than what any of its blocks
        has spent.

        Args:
            scope: a path such as ``flights`` or ``flights/team-a``; a scope below another is a
            quota inside it.
            epsilon, delta: exact amounts, of every block if the scope has blocks.
            filter: the accounting rule, fixed with the first grant.
            table: the declaration whose privacy unit the budget protects; None for a scope of no
                table, which then protects ``protects`` in every block if ``blocks``.
            tail_share: under renyi and hybrid, the part of delta that converts Renyi divergence;
                the rest pays for mechanisms with a delta of their own. By default all of it, or
                what an earlier grant said.

        Raises:
            InvalidAmount: not a legal amount.
            GrantConflict: another filter than before, another table once something was charged, a
                parent without a grant, or less than is spent.

        Until the first charge another table may be named: its quotas then follow it. Once something
        is spent the Renyi order and the division of delta stay: the sums so far were
        made with them.
        """
        if table is not None:
            protects, blocks = table.protection_text, table.protects == "unit-block"
        grants.checked_scope(scope)
        checked_name("what is protected", protects, empty=True, longest=1000)
        checked_name("a principal", principal)
        terms = grants.Terms.parse_terms(filter, epsilon, delta, tail_share)
        with self._begin_writing() as writer:
            return grants.store_grant(
                writer,
                scope,
                terms,
                protects,
                blocks,
                principal,
                may_bind=table is not None,
            )

    def quota(
        self,
        scope: str,
        epsilon: object,
        delta: object,
        *,
        filter: FilterName | None = None,
        tail_share: object | None = None,
        principal: str,
    ) -> Scope:
        """Give a scope below another, such as ``flights/team-a``, a budget of its own inside that
        one; or change it.

        What is charged to a quota is charged to every scope above it, too. It protects what the
        scope above protects, by the same blocks, and counts by the same filter unless ``filter``
        says otherwise. Several quotas may add up to more than the scope above: then the first to
        spend is served.

        Raises:
            GrantConflict: the scope above has no grant or a smaller one; else as for `grant`.
            InvalidInput: the scope is not below another.
        """
        grants.checked_scope(scope)
        checked_name("a principal", principal)
        with self._begin_writing() as writer:
            above = grants.find_parent(writer.state, scope)
            if above is None:
                raise InvalidInput(
                    f"{scope!r} is below no other scope; name a quota as in {scope}/team-a"
                )
            before = charges.find_scope(writer.state, scope)
            name = filter or (before or above).filter.name
            terms = grants.Terms.parse_terms(name, epsilon, delta, tail_share)
            grants.require_inside(scope, terms, above)
            return grants.store_grant(writer, scope, terms, above.protects, above.blocks, principal)

    def scope(self, name: str) -> Scope:
        """A granted scope. Raises `UnknownName`."""
        with self._begin_reading() as state:
            return charges.get_scope(state, name)

    def scopes(self) -> list[Scope]:
        """All granted scopes, by name."""
        with self._begin_reading() as state:
            return charges.all_scopes(state)

    def remaining(self, scope: str) -> Remaining:
        """What is left in a scope, by block."""
        with self._begin_reading() as state:
            granted = charges.get_scope(state, scope)
            spent = charges.list_costs(state, scope) or [("", Cost())]
            return Remaining(granted, tuple(spent))

    def odometer(self, scope: str, *, delta: object | None = None) -> dict[str, Guarantee | None]:
        """What was spent so far, per block, as (epsilon, delta); a report, while the promise is the
        grant.

        Args:
            delta: the total delta to report at; by default the grant's. None stands for "nothing
            finite at this delta".

        Beside the blocks, ``*`` is what a unit pays that has rows in every block used so far.
        """
        total_delta = None if delta is None else amounts.check_delta(delta)
        left = self.remaining(scope)
        spent = dict(left.spent)
        if left.scope.blocks and len(spent) > 1:
            spent["*"] = sum(spent.values(), Cost())
        return {
            block: odometer(cost, left.scope.filter, total_delta) for block, cost in spent.items()
        }

    def check(self, scope: str, events: Sequence[Event], blocks: Sequence[str]) -> str | None:
        """Would these be accepted together now? None if so, else why not. Charges nothing."""
        with self._begin_reading() as state:
            bill = charges.make_bill(state, scope, events, blocks)
            refusal = charges.find_refusal(state, bill)
            return None if refusal is None else str(refusal)

    def require(self, *asks: tuple[str, Sequence[Event], Sequence[str]]) -> None:
        """Raises `BudgetExceeded` unless all of these (scope, events, blocks) would be accepted
        together now.
        """
        with self._begin_reading() as state:
            bills = [charge for ask in asks for charge in charges.make_bill(state, *ask)]
            # Merged, because two charges may fit one by one and not together.
            charges.require_budget(state, charges.merge_charges(bills))

    # --- releases -----------------------------------------------------------------------------------------------

    def reserve(
        self,
        key: ReleaseKey,
        *,
        event: Event,
        blocks: Sequence[str],
        family: str,
        slot: Slot | None,
        principal: str,
        request: Mapping[str, Any],
        former_family: str = "",
        spend_again: bool = False,
        data: Sequence[str] = (),
        protects: str | None = None,
    ) -> Reservation:
        """Charge a release on all scopes of its path and all its blocks, or return what its key
        already has.

        The same key again is free: settled, it returns the stored result; reserved, the caller
        takes the reservation over and draws afresh, because nothing of the first try was visible. A
        new mechanism version inside one slot keeps the slot's reservation. See
        `dpflow.ledger.books.releases.find_release` for mapped inputs in another order.

        Args:
            family: the plan's digest without the mechanism's version.
            slot: one task instance of one run; None if nobody retries.
            former_family: what schema version 5 made of ``family``, if that is something else.
            spend_again: pay even if this slot released something else.
            data: public names of what it reads, beside its dataset, which is the first part of the
            scope's path.
            protects: what its table's privacy unit is. Every scope that pays must have been granted
                to protect just this, or nothing named. None: the caller asks for no such check.

        Raises:
            InvalidInput: on PostgreSQL this login is a superuser, owns the tables, can delete rows,
                or can write grants or change the history, and does not say that it is the owner.
            PlanRefused: a scope that pays protects something else.
            BudgetExceeded: a scope or block cannot pay; nothing was charged.
            RetryConflict: this slot released something else before, or an owner closed the release.
            SessionClosed: an open gate session closes the data to other releases.
        """
        ask = ReleaseCharge(
            key,
            event,
            blocks,
            family,
            slot,
            principal,
            request,
            former_family,
            spend_again,
            data,
            protects=protects,
        )
        return self.reserve_many([ask])[0]

    def reserve_many(self, asks: Sequence[ReleaseCharge]) -> list[Reservation]:
        """Charge many releases as `reserve` does, in one transaction: all of them, or none.

        Those that were charged before come first, so that a list which grew at its front finds its
        own before the new one asks whether it may pay.

        Raises:
            DpflowError: as `reserve`; then none of them was charged.
        """
        self._require_spender()
        reservations: dict[ReleaseKey, Reservation] = {}
        with self._begin_writing() as writer:
            for ask in releases.sort_known_first(writer.state, asks):
                if ask.key in reservations:
                    continue
                row = releases.find_release(writer, ask)
                reservations[ask.key] = (
                    Reservation(releases.charge_release(writer, ask), 1, False)
                    if row is None
                    else releases.take_over(writer, row, ask.principal)
                )
            fault_points.pass_point("reserve.before-commit")
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
    ) -> Reservation:
        """Store the result of a reservation. The first writer wins; a later one gets the stored
        result.

        Args:
            snapshot: a commitment to the rows that were read, never a plain digest.
            principal: whose try this is; whoever reserved first if left out.

        Raises:
            RetryConflict: the attempt was fenced; its result is discarded.
        """
        return self.settle_many([(reservation, result, snapshot)], principal=principal)[0]

    def settle_many(
        self,
        results: Sequence[tuple[Reservation, Mapping[str, Any], str | None]],
        *,
        principal: str = "",
    ) -> list[Reservation]:
        """Store many results as `settle` does, in one transaction: all of them, or none.

        Args:
            results: reservations with their results and snapshots.
        """
        texts = [releases.encode_ordered(result) for _, result, _ in results]
        with self._begin_writing() as writer:
            stored = [
                releases.settle_release(writer, reservation, text, snapshot, principal)
                for (reservation, _, snapshot), text in zip(results, texts)
            ]
            fault_points.pass_point("settle.before-commit")
        fault_points.pass_point("settle.after-commit")
        return [
            Reservation(reservation.release_id, reservation.attempt, True, stored_json(text))
            for (reservation, _, _), text in zip(results, stored)
        ]

    def resolve(
        self,
        release_id: str,
        *,
        reason: str,
        principal: str,
        decision: Literal["close", "retry"] = "close",
    ) -> None:
        """An owner's decision on an orphan. Whatever still runs is fenced: its late result is
        discarded. The charge stays.

        Args:
            decision: ``close`` refuses later tries too, and closes a session; ``retry`` lets a new
            try use the reservation.
        """
        if decision not in ("close", "retry"):
            raise InvalidInput("the decision is close or retry; choose one")
        checked_name("a reason", reason, longest=1000)
        checked_name("a principal", principal)
        with self._begin_writing() as writer:
            releases.resolve_release(writer, release_id, decision, reason, principal)

    def find(self, key: ReleaseKey) -> ReleaseRecord | None:
        """What a key has, without taking it over."""
        with self._begin_reading() as state:
            row = releases.find_by_key(state, key)
            return None if row is None else releases.proved_record(self._cipher, state, row)

    def is_paid(self, scope: str, dag_id: str, run_identity: str, *digests: str) -> bool:
        """Whether any task of a DAG run has paid for the plan of these digests.

        A yes is proved. A release that was deleted by hand counts as still to pay, and its own
        charge refuses.
        """
        run = {"scope": scope, "dag_id": dag_id, "run_identity": run_identity}
        with self._begin_reading() as state:
            found = [state.transaction.first(_PAID, **run, digest=one) for one in digests]
            return any(state.find_handle(schema.release, row.id) for row in found if row)

    def release(self, release_id: str) -> ReleaseRecord:
        """One release by id. Raises `InvalidInput`."""
        with self._begin_reading() as state:
            return releases.proved_record(self._cipher, state, releases.get_row(state, release_id))

    def releases(self, scope: str | None = None) -> list[ReleaseRecord]:
        """All releases and sessions, in the order they were charged.

        Each is what the history says; that none was deleted by hand, only `verify` says.
        """
        which = {} if scope is None else {"scope": scope}
        with self._begin_reading() as state:
            rows = state.transaction.rows(_RELEASES_OF if which else _RELEASES, **which)
            return [self._make_record(state, row) for row in rows]

    def releases_by_name(
        self, scope: str, name: str, run: tuple[str, str] | None = None
    ) -> list[ReleaseRecord]:
        """Releases of a scope and those above it whose request has this name, in the order they
        were charged.

        Each is what the history says; one that was deleted by hand is not missed.

        Args:
            run: only those of one DAG and run identity.
        """
        parameters: dict[str, Any] = {"name": name}
        if run is not None:
            parameters |= {"dag_id": run[0], "run_identity": run[1]}
        statement = _RELEASES_NAMED if run is None else _RELEASES_OF_RUN
        with self._begin_reading() as state:
            rows = [
                row
                for at in path_of(scope)
                for row in state.transaction.rows(statement, scope=at, **parameters)
            ]
            rows.sort(key=lambda row: row.seq)
            return [self._make_record(state, row) for row in rows]

    # --- sessions -----------------------------------------------------------------------------------------------

    def open_session(
        self,
        key: ReleaseKey,
        *,
        event: Event,
        blocks: Sequence[str],
        family: str,
        slot: Slot | None,
        principal: str,
        state: Mapping[str, Any],
        exclusive: bool,
        request: Mapping[str, Any],
        former_family: str = "",
        data: Sequence[str] = (),
        partition: str = "",
        protects: str | None = None,
    ) -> SessionRecord:
        """Charge an interactive mechanism whole and store its first state; the same key again
        returns the session.

        Args:
            exclusive: a gate: while it is open, every other release of its dataset or of anything
            in ``data`` is refused.
            data: as for `reserve`.
            partition: how the session partitions this data into groups, such as ``2000 groups``. The
            first one says so for all later ones.
            protects: as for `reserve`.

        Raises:
            InvalidInput, BudgetExceeded, RetryConflict, SessionClosed: as for `reserve`.
            PlanRefused: the data is partitioned otherwise.
        """
        ask = ReleaseCharge(
            key,
            event,
            blocks,
            family,
            slot,
            principal,
            request,
            former_family,
            False,
            data,
            partition,
            protects,
        )
        self._require_spender()
        secret = add_salt(releases.encode_ordered(state))
        with self._begin_writing() as writer:
            row, resumed = releases.find_release(writer, ask), False
            if row is None:
                options: dict[str, Any] = {
                    "state": "open",
                    "exclusive": exclusive,
                    "secret": secret,
                }
                name = releases.charge_release(
                    writer, ask, commitment=self._seal_state(secret), **options
                )
                session = SessionRecord(name, 0, False, stored_json(strip_salt(secret)))
            else:
                session = self._make_session(writer.state, row.id)
                resumed = not session.closed
            fault_points.pass_point("session.before-commit")
        if resumed:
            self._database.empty_log()
        fault_points.pass_point("session.after-commit")
        return session

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
    ) -> AnswerRecord | None:
        """Store an answer and the state it leads to, in one transaction.

        Args:
            principal: who asked; whoever opened the session if left out.

        Returns:
            The stored answer: an earlier one if the same query was answered before. None if another
            answer advanced the
            session first; then nothing was stored, and the caller asks again from the new state.

        Raises:
            SessionClosed: no answer is left.
        """
        with self._begin_writing() as writer:
            record = sessions.store_answer(
                writer,
                session_id,
                query,
                expected_version,
                state,
                answer,
                closed,
                principal,
            )
            fault_points.pass_point("session.before-commit")
        fault_points.pass_point("session.after-commit")
        return record

    def answer_batch(
        self,
        session_id: str,
        batch: Mapping[str, Any],
        *,
        expected_version: int,
        state: Mapping[str, Any],
        closed: bool = False,
        principal: str = "",
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
        with self._begin_writing() as writer:
            stored = sessions.store_batch(
                writer,
                session_id,
                batch,
                expected_version,
                state,
                closed,
                principal,
            )
            fault_points.pass_point("session.before-commit")
        fault_points.pass_point("session.after-commit")
        return stored

    def batches(self, session_id: str, after: int = 0) -> list[dict[str, Any]]:
        """The batches that led to versions of the session above this one, in order."""
        with self._begin_reading() as state:
            return sessions.list_batches(self._cipher, state, session_id, after)

    def stored_answer(self, session_id: str, query: str) -> AnswerRecord | None:
        """The answer this query got, or None."""
        with self._begin_reading() as state:
            return sessions.stored_answer(self._cipher, state, session_id, query)

    def answers(self, session_id: str) -> list[AnswerRecord]:
        """All answers of a session, in the order they were given."""
        with self._begin_reading() as state:
            return sessions.list_answers(self._cipher, state, session_id)

    # --- history ------------------------------------------------------------------------------------------------

    def record(
        self, kind: str, body: Mapping[str, Any], *, principal: str, scope: str = ""
    ) -> None:
        """Write a note into the history, such as a data contract's outcome. Its kind is not one of
        the ledger's own.
        """
        if checked_name("a kind", kind) in recheck.RESERVED_KINDS:
            raise InvalidInput(
                f"{kind!r} is an entry that only the ledger writes; name the note otherwise"
            )
        checked_name("a scope", scope, empty=True)
        checked_name("a principal", principal)
        # Through JSON and back, so that the hash covers what a reader will parse.
        note = json.loads(releases.encode_ordered(body))
        with self._begin_writing() as writer:
            writer.add_entry(kind, scope, "", principal, note)

    def history(
        self,
        scope: str | None = None,
        *,
        since: Point = 1,
        principal: str | None = None,
        limit: int = 100,
    ) -> list[Entry]:
        """The newest entries, oldest of them first; arguments and errors as of `stream_history`."""
        with contextlib.closing(
            self._select_entries(_BACKWARD, scope, since, principal)
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

    def report(self, scope: str, *, since: Point | None = None, until: Point | None = None) -> str:
        """One HTML page for an auditor: grants, spend, orphans and decisions of a scope in a period.

        Args:
            scope: a granted scope; the quotas below it are part of it.
            since, until: from this entry or time on, and before that one; no bound if None.

        Raises:
            UnknownName: nobody granted the scope.
            LedgerCorrupt: the ledger does not verify.
        """
        self.scope(scope)
        checked = self.verify()
        if not checked.ok:
            raise LedgerCorrupt(f"nothing is reported that does not verify: {checked.problems[0]}")
        page = AuditPage(scope, since, until)
        # What was written since was not verified.
        page.add_entries(itertools.islice(self.stream_history(), checked.entries))
        return page.render_html()

    def _select_entries(
        self,
        statement: Prepared,
        scope: str | None,
        since: Point,
        principal: str | None,
    ) -> Generator[Entry, None, None]:
        first, earliest = since if isinstance(since, int) else 1, ""
        if not isinstance(since, int):
            earliest = utc_text(since)
        names = ("seq", "at", "kind", "scope", "release_id", "principal", "hash")
        with self._database.begin_reading() as transaction:
            if scope is not None:
                charges.get_scope(LedgerState(transaction, ""), scope)
            with contextlib.closing(transaction.stream(statement, first=first)) as rows:
                for row in rows:
                    # Not where it ends: clocks may go back, so that an earlier one may follow.
                    if (
                        str(row.at) >= earliest
                        and (scope is None or scope in path_of(row.scope))
                        and principal in (None, row.principal)
                    ):
                        fields = {name: getattr(row, name) for name in names}
                        yield Entry(**fields, body=stored_json(row.body))

    def verify(self, *, since: str | None = None, keys: Sequence[str] = ()) -> VerificationReport:
        """Recompute chain and seals, compare with the anchor, and rebuild every table from the
        entries.

        Args:
            since: a signed checkpoint, which the history must extend.
            keys: verifier keys that may have signed it, beside the owner's own.

        Raises:
            LedgerCorrupt: no trusted key signed the checkpoint.
        """
        point = None if since is None else self._open_checkpoint(since, keys)[0]
        with self._database.begin_reading() as transaction:
            passage, expected, problems = self._verify_within(transaction, point)
        return VerificationReport(expected.entries, (*problems, *passage.problems))

    def _verify_within(
        self, transaction: Transaction, point: Checkpoint | None = None, marked: bool = True
    ) -> tuple[recovery.Passage, recheck.Recheck, list[str]]:
        """What goes by, what the entries leave, and all that is wrong; without the mark's own
        problems if ``marked`` is false.
        """
        auditor = chain.Auditor(self._anchor, marked=marked)
        passage = recovery.Passage(point, self._anchor.ledger_id)
        rows = passage.pass_entries(transaction.stream(verify.ENTRIES))
        expected = recheck.recheck_entries(auditor.pass_entries(rows))
        tables = verify.TableCheck(transaction, expected, self._cipher, self._seal_state)
        found = tables.find_problems(self._meta_values())
        return passage, expected, [*auditor.problems, *expected.problems, *found]

    def _open_checkpoint(self, note: str, keys: Sequence[str]) -> tuple[Checkpoint, str]:
        """A checkpoint and whose trusted key signed it."""
        own = []
        with contextlib.suppress(LedgerCorrupt):  # who only spends may have no key to sign
            own = [recovery.make_signer(self._anchor).public_text]
        text, signer = open_note(note, [*own, *keys])
        return Checkpoint.parse(text), signer

    @property
    def signer(self) -> Signer:
        """The owner's key pair. Raises `LedgerCorrupt` where the anchor has no private half."""
        return recovery.make_signer(self._anchor)

    def checkpoint(self, signer: Signer | None = None) -> str:
        """Verify everything, and sign how far the history goes and what was spent.

        Args:
            signer: a witness; the owner if left out.

        Returns:
            A signed note. Keep it where whoever can write the ledger and its anchor cannot.

        Raises:
            LedgerCorrupt: the ledger does not verify.
        """
        with self._database.begin_reading() as transaction:
            passage, expected, problems = self._verify_within(transaction)
        if problems:
            raise LedgerCorrupt(f"nothing is signed that does not verify: {problems[0]}")
        point = recovery.make_checkpoint(self._anchor, expected, passage)
        return (signer or self.signer).sign(point.text)

    def reanchor(self, *, reason: str, principal: str) -> None:
        """An owner's decision after the high-water mark was lost: the history is accepted as it is.

        Raises:
            InvalidInput: the mark is there.
            LedgerCorrupt: the history does not verify.
        """
        checked_name("a reason", reason, longest=1000)
        checked_name("a principal", principal)
        with self._database.begin_writing() as transaction:
            if self._find_mark() is not None:
                raise InvalidInput(
                    "the high-water mark is there; if it knows entries that are gone, see dpflow ledger recover"
                )
            passage, expected, problems = self._verify_within(transaction, marked=False)
            if problems:
                raise LedgerCorrupt(
                    f"a history that does not verify is not accepted: {problems[0]}"
                )
            writer = chain.Writer(transaction, self._anchor, passage.head)
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
        """An owner's decision after entries were lost for good: go on with what is left.

        What a checkpoint says beyond the history is taken over: scopes and what they spent. Scopes
        that a lost entry may have charged are closed until they are granted again: all of them,
        unless the mark stands at the very entry that was signed. Reservations are fenced and
        sessions closed, because the lost entries may have settled or answered them.

        Args:
            checkpoint: the newest signed one. An empty new ledger takes over one of another ledger.
            keys: verifier keys that may have signed it, beside the owner's own.

        Returns:
            The scopes that are closed now.

        Raises:
            InvalidInput: neither mark nor checkpoint knows more than the history.
            LedgerCorrupt: what is left does not verify, or nobody trusted signed the checkpoint.
        """
        checked_name("a reason", reason, longest=1000)
        checked_name("a principal", principal)
        point, signer = (
            (None, "") if checkpoint is None else self._open_checkpoint(checkpoint, keys)
        )
        with self._database.begin_writing() as transaction:
            passage, expected, problems = self._verify_within(transaction, marked=False)
            if problems:
                raise LedgerCorrupt(f"what is left does not verify: {problems[0]}")
            if point is not None and expected.entries and point.ledger_id != self._anchor.ledger_id:
                raise InvalidInput("the checkpoint is of another ledger; name this one's")
            writer = chain.Writer(transaction, self._anchor, passage.head)
            body = recovery.recover_state(
                writer, passage.head, self._find_mark(), point, signer, reason, principal
            )
            writer.write_entries()
        self._replace_mark(writer)
        return list(body["closed"])

    def rotate(self, *, principal: str) -> int:
        """Encrypt the keys of all results and answers, and the states of open sessions, under new
        keys, and destroy the old one. Returns how many keys there are. Harmless when repeated.
        """
        checked_name("a principal", principal)
        self._anchor.begin_rotation()
        with self._begin_writing() as writer:
            sessions.renew_states(writer)
            number = self._cipher.rewrap_keys(writer.transaction)
            writer.add_entry("rotate", "", "", principal, {"keys": number})
        self._database.empty_log()
        self._anchor.end_rotation()
        return number

    def _find_mark(self) -> Seen | None:
        """The mark; None if it is missing or was not written under this key."""
        self._anchor.stored_key()
        with contextlib.suppress(LedgerCorrupt):
            return self._anchor.read_mark()
        return None

    def _replace_mark(self, writer: chain.Writer) -> None:
        assert writer.added is not None
        self._anchor.replace_mark(*writer.added)

    def export(self, stream: TextIO) -> int:
        """Write the whole ledger but secret state as JSON lines; returns the number of entries."""
        with self._database.begin_reading() as transaction:
            return export.write_export(transaction, stream, self._cipher)

    def import_(self, stream: TextIO, *, principal: str) -> int:
        """Fill this empty ledger from an export, under the anchor of the ledger that wrote it.

        The history goes on where it stopped; the old database is refused from then on, because the
        anchor has seen more than it holds. Sessions are closed: their secret state is not in an
        export. Returns the number of entries.

        Raises:
            InvalidInput: this ledger is not empty.
            LedgerCorrupt: the export does not verify under this anchor, or ends before its
            high-water mark.
        """
        checked_name("a principal", principal)
        exported = export.read_export(stream)
        with self._begin_writing() as writer:
            transaction = writer.transaction
            # Asked inside the turn: another import may have been first.
            if transaction.rows(_NEWEST, limit=1):
                raise InvalidInput(f"{self._database!r} is not empty; import into a new ledger")
            closed, root = export.restore_tables(transaction, self._cipher, exported)
            # Sessions are closed now, so the newest entry's root is not that of the tables.
            writer.state.root = root
            writer.add_entry(
                "import", "", "", principal, {"entries": len(exported.entries), "closed": closed}
            )
        return len(exported.entries)

    @classmethod
    def upgrade(
        cls, target: str | Path, *, anchor: Path | str | None = None, principal: str
    ) -> VerificationReport:
        """Take a ledger of an earlier schema version to this one, verified before and after.

        It is one transaction: whoever charges meanwhile waits, and is refused retryably before it. An
        anchor that lay beside a SQLite file goes to the default place. On PostgreSQL the roles must
        be made again (roles.sql). A ledger of this version is only verified.

        Raises:
            LedgerCorrupt: the ledger does not verify; nothing is changed.
            InvalidInput: there is no ledger.
        """
        checked_name("a principal", principal)
        ledger = cls.__new__(cls)
        ledger._database = database = Database(target)
        version = database.stored_version()
        if version is None:
            raise InvalidInput(f"there is no ledger at {database!r}; name the right file")
        named = anchor or os.environ.get("DPFLOW_LEDGER_ANCHOR")
        beside = Path(named or f"{database.path}.anchor")
        if version in schema.UPGRADABLE:
            ledger._anchor = Anchor(beside)
            ledger._cipher = Cipher(ledger._anchor)
            ledger._upgrade_tables(version, principal)
            # Pages that the old rows have left hold results and states in the clear.
            database.empty_log(rewrite=True)
        # Also after an upgrade that was killed right before it.
        if not named and (beside / "key").exists():
            Anchor(beside).move_default()
        return cls(target, anchor=anchor).verify()

    def _upgrade_tables(self, version: str, principal: str) -> None:
        fingerprint = self._meta_values()["anchor"]
        with self._begin_writing() as writer:
            transaction = writer.transaction
            stored = transaction.text("SELECT name, value FROM dpflow_meta")
            meta = {name: value for name, value in stored}
            if meta.get("anchor") != fingerprint:
                raise LedgerCorrupt(
                    f"{self._anchor.folder} is not the anchor of {self._database!r}; name the right one: "
                    f"DPFLOW_LEDGER_ANCHOR=DIR"
                )
            # Asked inside the turn: another upgrade may have been first.
            if meta.get("schema") != version:
                return
            self._anchor.complete()
            number, root = migrations.upgrade_tables(transaction, self._cipher, self._seal_state)
            rows = [{"name": name, "value": value} for name, value in self._meta_values().items()]
            transaction.many(_META, rows)
            writer.state.root = root
            writer.add_entry("upgrade", "", "", principal, {"from": version, "entries": number})

    def commitment(self, data: bytes, purpose: str) -> str:
        """HMAC of something private under the ledger's key: the only form in which its digest may
        leave.
        """
        return self._anchor.commitment(data, purpose)

    # --- inside -------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _begin_writing(self) -> Iterator[chain.Writer]:
        """A writing transaction that can append entries, and raises the anchor's mark after its
        commit.

        Raises:
            LedgerCorrupt: a row that was read is not what the newest entry left; or the anchor has
                seen an entry that is not in this database, such as one of a copy in use elsewhere.
        """
        with contextlib.closing(Mark(self._anchor)) as mark:
            # Read before the turn, which others wait for: it may be older then, never newer.
            seen = mark.read_entry()
            with self._database.begin_writing() as transaction:
                writer = chain.Writer(transaction, self._anchor, seen)
                with _proving(writer.prove_reads):
                    yield writer
                writer.write_entries()
            while writer.added and (other := mark.advance(writer.added, writer.known)):
                # Another writer's entry, or one of a copy that is in use elsewhere.
                with self._database.begin_reading() as transaction:
                    chain.require_entry(transaction, other)
                if other[0] > writer.added[0]:
                    break
                writer.known.add(other)

    @contextlib.contextmanager
    def _begin_reading(self) -> Iterator[LedgerState]:
        """A reading transaction, whose rows are proved before anything of them is given out."""
        with self._database.begin_reading() as transaction:
            state = chain.read_state(transaction, self._anchor)
            with _proving(state.prove_reads):
                yield state
            state.prove_reads()

    def _make_record(self, state: LedgerState, row: Any) -> ReleaseRecord:
        state.take(schema.release, row)
        settled = row.state == "settled"
        result = (
            releases.open_result(self._cipher, row, row.result, row.wrapped) if settled else None
        )
        return releases.make_record(row, result)

    def _require_spender(self) -> None:
        """Whoever spends should not be able to change budgets or history; asked once."""
        if not self._may_spend and (power := self._database.find_power()):
            raise InvalidInput(
                f"nothing was charged, because this login can do more than spend: it {power}. Give the ledger a login with "
                f"the role dpflow_spender or dpflow_interactive alone (see roles.sql); an owner who spends says so with "
                f"DPFLOW_LEDGER_OWNER=1 or Ledger(..., owner=True)"
            )
        self._may_spend = True

    def _make_session(self, state: LedgerState, session_id: str) -> SessionRecord:
        return sessions.make_session(*sessions.find_session(state, self._cipher, session_id))

    def _seal_state(self, secret: str) -> str:
        return sessions.seal_state(self._anchor, secret)


@contextlib.contextmanager
def _proving(prove_reads: Callable[[], None]) -> Iterator[None]:
    """Proves what was read before a refusal that was decided on it is believed, too."""
    try:
        yield
    except LedgerUnavailable:
        raise
    except DpflowError:
        prove_reads()
        raise
