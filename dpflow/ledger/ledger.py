"""The ledger's verbs. Each is one transaction: all of it, or nothing."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from dpflow.core import amounts, faults
from dpflow.core.events import Event, to_json
from dpflow.core.filters import FilterName, make_filter
from dpflow.errors import GrantConflict, InvalidInput, LedgerCorrupt, RetryConflict, SessionClosed, UnknownName
from dpflow.ledger import accounts, chain, schema
from dpflow.ledger.database import Database
from dpflow.ledger.records import (
    Answered,
    Entry,
    Held,
    ReleaseKey,
    Remaining,
    Reservation,
    Scope,
    Stored,
    Verified,
    checked_name,
)

RELEASE = schema.release.c


class Ledger:
    """A ledger in a SQLite file or a PostgreSQL database. Safe to use from many processes.

    Args:
        target: a path, or a ``postgresql+psycopg://`` URL.
        anchor: directory of the key and the high-water mark; by default ``<file>.anchor`` beside a SQLite file, or
            DPFLOW_LEDGER_ANCHOR. Keep it where whoever can write the database cannot.
        create: make a new ledger if there is none.

    Raises:
        LedgerCorrupt: not a ledger, or of another schema version.
        LedgerUnavailable: locked, full, read-only or out of reach (retryable).
        InvalidInput: there is no ledger and ``create`` is false.
    """

    def __init__(self, target: str | Path, *, anchor: Path | str | None = None, create: bool = False) -> None:
        self._database = Database(target)
        place = anchor or os.environ.get("DPFLOW_LEDGER_ANCHOR")
        if place is None and self._database.path is None:
            raise InvalidInput("a ledger on PostgreSQL needs an anchor directory; give anchor or DPFLOW_LEDGER_ANCHOR")
        path = self._database.path
        self._anchor = chain.Anchor(Path(place) if place else Path(f"{path}.anchor"))
        if not self._database.exists():
            if not create:
                raise InvalidInput(f"there is no ledger at {self._database!r}; make one with: dpflow ledger grant")
            self._anchor.create()
            self._database.create()
        elif create:
            self._anchor.create()

    def __repr__(self) -> str:
        return f"Ledger({self._database!r})"

    # --- grants -------------------------------------------------------------------------------------------------

    def grant(
        self,
        scope: str,
        epsilon: object,
        delta: object,
        *,
        filter: FilterName = "hybrid",
        table: Any = None,
        protects: str = "",
        blocks: bool = False,
        principal: str,
    ) -> Scope:
        """Give a scope a budget, raise it, or lower it to no less than what every account has spent.

        Args:
            scope: a path such as ``flights`` or ``flights/team-a``; a scope below another is a quota inside it.
            epsilon, delta: exact amounts, of every block if the scope has blocks.
            filter: the accounting rule, fixed with the first grant.
            table: a declaration that says ``protects`` and ``blocks``.

        Raises:
            InvalidAmount: not a legal amount.
            GrantConflict: another filter or protection than before, a parent without a grant, or less than is spent.
        """
        if table is not None:
            protects, blocks = table.protected, table.protects == "unit-block"
        checked_name("a scope", scope)
        exact = amounts.epsilon(epsilon), amounts.delta(delta)
        granted = Scope(scope, make_filter(filter, *exact), protects, blocks)
        with self._writing() as (connection, note):
            known = accounts.find_scope(connection, scope)
            parent = scope.rpartition("/")[0]
            above = accounts.find_scope(connection, parent) if parent else None
            if parent and above is None:
                raise GrantConflict(f"scope {scope!r} is below {parent!r}, which has no grant; grant {parent!r} first")
            for other in (found for found in (known, above) if found is not None):
                if (other.protects, other.blocks) != (protects, blocks):
                    raise GrantConflict(
                        f"scope {other.scope!r} was granted to protect {other.protects or 'nothing named'!r}; "
                        f"grant {scope!r} for the same declaration"
                    )
            if known is not None and known.filter.name != filter:
                raise GrantConflict(
                    f"scope {scope!r} uses the {known.filter.name} filter; its filter cannot be changed"
                )
            accounts.require_covers(connection, granted)
            values = {"filter": granted.filter.to_json(), "protects": protects, "blocks": blocks}
            if known is None:
                connection.execute(schema.scope.insert().values(name=scope, **values))
            else:
                connection.execute(schema.scope.update().where(schema.scope.c.name == scope).values(**values))
            note("grant", scope, "", principal, values)
        return granted

    def scope(self, name: str) -> Scope:
        """A granted scope. Raises `UnknownName`."""
        with self._database.reading() as connection:
            return accounts.get_scope(connection, name)

    def scopes(self) -> list[Scope]:
        """All granted scopes, by name."""
        with self._database.reading() as connection:
            return accounts.all_scopes(connection)

    def remaining(self, scope: str) -> Remaining:
        """What is left in a scope, by block."""
        with self._database.reading() as connection:
            found = accounts.get_scope(connection, scope)
            return Remaining(found, tuple(accounts.spent(connection, found)))

    def check(self, scope: str, events: Sequence[Event], blocks: Sequence[str]) -> str | None:
        """Would these be accepted together now? None if so, else why not. Charges nothing."""
        with self._database.reading() as connection:
            return accounts.refusal(connection, accounts.bill(connection, scope, events, blocks))

    def require(self, scope: str, events: Sequence[Event], blocks: Sequence[str]) -> None:
        """Like `check`, but raises `BudgetExceeded`."""
        with self._database.reading() as connection:
            accounts.require(connection, accounts.bill(connection, scope, events, blocks))

    # --- releases -----------------------------------------------------------------------------------------------

    def reserve(
        self,
        key: ReleaseKey,
        *,
        event: Event,
        blocks: Sequence[str],
        family: str,
        slot: str | None,
        principal: str,
        request: Mapping[str, Any],
        spend_again: bool = False,
    ) -> Reservation:
        """Charge a release on all scopes of its path and all its blocks, or return what its key already has.

        The same key again is free: settled, it returns the stored result; reserved, the caller takes the reservation over
        and draws afresh, because nothing of the first try was visible. A new mechanism version inside one slot keeps the
        slot's reservation.

        Raises:
            BudgetExceeded: a scope or block cannot pay; nothing was charged.
            RetryConflict: this slot released something else before, or the reservation was fenced.
            SessionClosed: an open gate session closes the scope to releases.
        """
        with self._writing() as (connection, note):
            row = self._known(connection, key, event, family, slot, spend_again)
            if row is None:
                release_id = self._charge(
                    connection, note, key, event, blocks, family, slot, principal, request, "reserved"
                )
                reservation = Reservation(release_id, 1, False)
            else:
                reservation = self._take_over(connection, row)
            faults.reach("reserve.before-commit")
        faults.reach("reserve.after-commit")
        return reservation

    def settle(
        self, reservation: Reservation, result: Mapping[str, Any], *, snapshot: str | None = None
    ) -> Reservation:
        """Store the result of a reservation. The first writer wins; a later one gets the stored result.

        Raises:
            RetryConflict: the attempt was fenced; its result is discarded.
        """
        with self._writing() as (connection, note):
            row = _one(connection, RELEASE.id == reservation.release_id)
            if row is None:
                raise UnknownName("release", reservation.release_id, ())
            if row.state == "settled":
                return Reservation(row.id, reservation.attempt, True, row.result)
            if row.state != "reserved" or reservation.attempt < row.fenced_below:
                raise RetryConflict(f"release {row.id} was fenced by an owner; this late result is discarded")
            stored = dict(result)
            values = {"state": "settled", "result": stored, "snapshot": snapshot}
            connection.execute(schema.release.update().where(RELEASE.id == row.id).values(**values))
            note("settle", row.scope, row.id, row.principal, {"result": chain.digest(stored), "snapshot": snapshot})
            faults.reach("settle.before-commit")
        faults.reach("settle.after-commit")
        return Reservation(reservation.release_id, reservation.attempt, True, stored)

    def resolve(self, release_id: str, *, reason: str, principal: str) -> None:
        """Fence an orphaned reservation: late results are discarded and later tries refused. The charge stays."""
        with self._writing() as (connection, note):
            row = _one(connection, RELEASE.id == release_id)
            if row is None or row.state != "reserved":
                raise InvalidInput(
                    f"release {release_id} is {row.state if row else 'unknown'}; only a reserved one is an orphan"
                )
            values = {"state": "fenced", "fenced_below": row.attempts + 1}
            connection.execute(schema.release.update().where(RELEASE.id == release_id).values(**values))
            note("resolve", row.scope, release_id, checked_name("a principal", principal), {"reason": reason[:1000]})

    def find(self, key: ReleaseKey) -> Stored | None:
        """What a key has, without taking it over."""
        with self._database.reading() as connection:
            row = _one(connection, _key(key))
            return None if row is None else _stored(row)

    def paid(self, scope: str, dag_id: str, occasion: str, digest: str) -> bool:
        """Whether any task of a DAG run has paid for this plan."""
        with self._database.reading() as connection:
            same = (
                RELEASE.scope == scope,
                RELEASE.dag_id == dag_id,
                RELEASE.occasion == occasion,
                RELEASE.digest == digest,
            )
            return _one(connection, *same) is not None

    def release(self, release_id: str) -> Stored:
        """One release by id. Raises `UnknownName`."""
        with self._database.reading() as connection:
            row = _one(connection, RELEASE.id == release_id)
            if row is None:
                known = connection.scalars(sa.select(RELEASE.id).limit(1000)).all()
                raise UnknownName("release", release_id, known)
            return _stored(row)

    def releases(self, scope: str | None = None) -> list[Stored]:
        """All releases and sessions, in the order they were charged."""
        query = sa.select(schema.release).join(schema.entry, schema.entry.c.release_id == RELEASE.id)
        query = query.where(schema.entry.c.kind.in_(("reserve", "session"))).order_by(schema.entry.c.seq)
        if scope is not None:
            query = query.where(RELEASE.scope == scope)
        with self._database.reading() as connection:
            return [_stored(row) for row in connection.execute(query)]

    # --- sessions -----------------------------------------------------------------------------------------------

    def open_session(
        self,
        key: ReleaseKey,
        *,
        event: Event,
        blocks: Sequence[str],
        family: str,
        slot: str | None,
        principal: str,
        state: Mapping[str, Any],
        exclusive: bool,
        request: Mapping[str, Any],
    ) -> Held:
        """Charge an interactive mechanism whole and store its first state; the same key again returns the session.

        Raises:
            BudgetExceeded, RetryConflict: as for `reserve`.
        """
        with self._writing() as (connection, note):
            row = self._known(connection, key, event, family, slot, spend_again=False)
            if row is None:
                release_id = self._charge(
                    connection,
                    note,
                    key,
                    event,
                    blocks,
                    family,
                    slot,
                    principal,
                    request,
                    "open",
                    dict(state),
                    exclusive,
                )
                row = _one(connection, RELEASE.id == release_id)
            faults.reach("session.before-commit")
        faults.reach("session.after-commit")
        return _held(row)

    def session(self, session_id: str) -> Held:
        """A session with its secret state. Raises `UnknownName`."""
        with self._database.reading() as connection:
            return self._session(connection, session_id)

    def answer(
        self,
        session_id: str,
        *,
        query: str,
        expected_version: int,
        state: Mapping[str, Any],
        answer: Mapping[str, Any],
        closed: bool = False,
    ) -> Answered | None:
        """Store an answer and the state it leads to, in one transaction.

        Returns:
            The stored answer: an earlier one if the same query was answered before. None if another answer advanced the
            session first; then nothing was stored, and the caller asks again from the new state.

        Raises:
            SessionClosed: no answer is left.
        """
        with self._writing() as (connection, note):
            held = self._session(connection, session_id)
            if (stored := self._answer(connection, session_id, query)) is not None:
                return stored
            if held.closed:
                raise SessionClosed(f"session {session_id} is closed: its answers are used up")
            if held.version != expected_version:
                return None
            version, secret = held.version + 1, dict(state)
            values = {"version": version, "secret": secret, "state": "closed" if closed else "open"}
            connection.execute(schema.release.update().where(RELEASE.id == session_id).values(**values))
            row = {"session_id": session_id, "query": query, "version": version, "answer": dict(answer)}
            connection.execute(schema.answer.insert().values(**row))
            scope, principal = connection.execute(
                sa.select(RELEASE.scope, RELEASE.principal).where(RELEASE.id == session_id)
            ).one()
            body = {"query": query, "answer": dict(answer), "version": version, "state": self._sealed(secret)}
            note("answer", scope, session_id, principal, body)
            faults.reach("session.before-commit")
        faults.reach("session.after-commit")
        return Answered(query, dict(answer))

    def stored_answer(self, session_id: str, query: str) -> Answered | None:
        """The answer this query got, or None."""
        with self._database.reading() as connection:
            return self._answer(connection, session_id, query)

    # --- history ------------------------------------------------------------------------------------------------

    def record(self, kind: str, body: Mapping[str, Any], *, principal: str, scope: str = "") -> None:
        """Write a note into the history, such as a data contract's outcome."""
        with self._writing() as (_, note):
            note(checked_name("a kind", kind), scope, "", checked_name("a principal", principal), dict(body))

    def history(self, scope: str | None = None, *, limit: int = 100) -> list[Entry]:
        """The newest entries, oldest of them first."""
        query = sa.select(schema.entry).order_by(schema.entry.c.seq.desc()).limit(limit)
        if scope is not None:
            query = query.where(schema.entry.c.scope == scope)
        with self._database.reading() as connection:
            rows = connection.execute(query).mappings().all()
        names = ("seq", "at", "kind", "scope", "release_id", "principal", "hash")
        return [Entry(**{n: row[n] for n in names}, body=json.loads(row["body"])) for row in reversed(rows)]

    def verify(self) -> Verified:
        """Recompute the chain, compare it with the anchor, and recompute every sum from the entries."""
        with self._database.reading() as connection:
            number = connection.scalar(sa.select(sa.func.count()).select_from(schema.entry)) or 0
            found = [*chain.problems(connection, self._anchor), *accounts.problems(connection, self._sealed)]
        return Verified(number, tuple(found))

    def commitment(self, data: bytes, purpose: str) -> str:
        """HMAC of something private under the ledger's key: the only form in which its digest may leave."""
        return self._anchor.commitment(data, purpose)

    # --- inside -------------------------------------------------------------------------------------------------

    def _writing(self) -> accounts.Writing:
        return accounts.Writing(self._database, self._anchor)

    def _known(
        self, connection: sa.Connection, key: ReleaseKey, event: Event, family: str, slot: str | None, spend_again: bool
    ) -> Any:
        """The release this key has, or whose reservation its slot keeps; None when it is new and may be charged."""
        row = _one(connection, _key(key))
        if row is not None or slot is None:
            return row
        before = connection.execute(sa.select(schema.release).where(RELEASE.slot == slot)).all()
        for other in before:
            if other.family == family and other.event == to_json(event):
                return other
        if before and not spend_again:
            raise RetryConflict(
                "this task released something else in this run (or this name and revision before); a retry must ask for the "
                "same release. To pay for a new one, set spend_again on the operator, or raise revision in the release file"
            )
        return None

    def _take_over(self, connection: sa.Connection, row: Any) -> Reservation:
        if row.state == "settled":
            return Reservation(row.id, row.attempts, True, row.result)
        if row.state != "reserved":
            raise RetryConflict(f"release {row.id} is {row.state}; an owner decided that it stays so")
        attempt = row.attempts + 1
        connection.execute(schema.release.update().where(RELEASE.id == row.id).values(attempts=attempt))
        return Reservation(row.id, attempt, False)

    def _charge(
        self,
        connection: sa.Connection,
        note: accounts.Note,
        key: ReleaseKey,
        event: Event,
        blocks: Sequence[str],
        family: str,
        slot: str | None,
        principal: str,
        request: Mapping[str, Any],
        state: str,
        secret: dict[str, Any] | None = None,
        exclusive: bool = False,
    ) -> str:
        accounts.require_no_gate(connection, key.scope)
        bill = accounts.bill(connection, key.scope, [event], blocks)
        accounts.require(connection, bill)
        accounts.debit(connection, bill)
        release_id = secrets.token_hex(8)
        values: dict[str, Any] = {name: getattr(key, name) for name in schema.KEY}
        values |= {
            "id": release_id,
            "family": family,
            "slot": slot,
            "state": state,
            "exclusive": exclusive,
            "attempts": 1,
            "fenced_below": 0,
            "principal": checked_name("a principal", principal),
            "blocks": list(request.get("blocks", blocks)),
            "event": to_json(event),
            "request": dict(request),
            "version": 0,
            "secret": secret,
        }
        connection.execute(schema.release.insert().values(**values))
        public = ("dag_id", "task_id", "occasion", "digest", "ordinal", "event", "request", "exclusive")
        body = {name: values[name] for name in public} | {"charges": [charge.to_json() for charge in bill]}
        if secret is not None:
            body["state"] = self._sealed(secret)
        note("reserve" if state == "reserved" else "session", key.scope, release_id, principal, body)
        return release_id

    def _session(self, connection: sa.Connection, session_id: str) -> Held:
        row = _one(connection, RELEASE.id == session_id)
        if row is None or row.state not in ("open", "closed"):
            raise UnknownName("session", session_id, ())
        return _held(row)

    def _answer(self, connection: sa.Connection, session_id: str, query: str) -> Answered | None:
        c = schema.answer.c
        row = connection.execute(sa.select(c.answer).where(c.session_id == session_id, c.query == query)).first()
        return None if row is None else Answered(query, row.answer)

    def _sealed(self, secret: Mapping[str, Any]) -> str:
        """A salted commitment to secret state: the key is the salt, so it cannot be searched."""
        return self.commitment(chain.canonical(secret).encode(), "state")


def _key(key: ReleaseKey) -> sa.ColumnElement[bool]:
    return sa.and_(*(schema.release.c[name] == getattr(key, name) for name in schema.KEY))


def _one(connection: sa.Connection, *where: sa.ColumnElement[bool]) -> Any:
    return connection.execute(sa.select(schema.release).where(*where)).first()


def _stored(row: Any) -> Stored:
    return Stored(
        release_id=row.id,
        scope=row.scope,
        blocks=tuple(row.blocks),
        state=row.state,
        attempts=row.attempts,
        principal=row.principal,
        request=row.request,
        event=row.event,
        result=row.result,
        snapshot=row.snapshot,
    )


def _held(row: Any) -> Held:
    if row.secret is None:
        raise LedgerCorrupt(f"session {row.id} has no state; run dpflow ledger verify")
    return Held(row.id, row.version, row.state == "closed", row.secret)
