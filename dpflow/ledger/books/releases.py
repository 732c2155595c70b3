"""Exactly once: how a key finds its release, who may pay, who may settle."""

from __future__ import annotations

import functools
import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from dpflow.core.accounting import events
from dpflow.core.accounting.events import Event
from dpflow.errors import InvalidInput, LedgerCorrupt, RetryConflict
from dpflow.ledger.books import charges, data_claims
from dpflow.ledger.books.records import (
    ReleaseKey,
    ReleaseRecord,
    Reservation,
    checked_name,
    stored_json,
)
from dpflow.ledger.history import chain
from dpflow.ledger.storage import schema
from dpflow.ledger.storage.statements import (
    Prepared,
    Read,
    Transaction,
    match_columns,
    prepare_insert,
)

R, _L = schema.release.c, schema.slot.c
PUBLIC = [column for column in schema.release.columns if column.name != "secret"]
BY_ID = Prepared(sa.select(*PUBLIC).where(match_columns(R.id)))
BY_KEY = Prepared(sa.select(*PUBLIC).where(match_columns(*(R[name] for name in schema.KEY))))
_INSERT = prepare_insert(schema.release)
_JOIN = prepare_insert(schema.slot)
_IN_SLOT = Prepared(
    sa.select(*PUBLIC)
    .join(schema.slot, _L.release_id == R.id)
    .where(_L.slot == sa.bindparam("slot"))
    .order_by(R.id)
)
_OF_TASK = match_columns(R.scope, R.dag_id, R.task_id, R.run_identity)
_PAID = Prepared(
    sa.select(sa.func.count().label("number")).select_from(schema.release).where(_OF_TASK)
)
_ASKED = Prepared(
    sa.select(sa.func.count(sa.distinct(_L.slot)).label("number"))
    .select_from(schema.slot.join(schema.release, _L.release_id == R.id))
    .where(_OF_TASK)
)
_SETTLE = Prepared(
    schema.release.update()
    .where(match_columns(R.id))
    .values({n: sa.bindparam("new_" + n, type_=sa.Text) for n in ("state", "result", "snapshot")})
)
_RETRY = Prepared(
    schema.release.update()
    .where(match_columns(R.id))
    .values(attempts=sa.bindparam("new_attempts", type_=R.attempts.type))
)
_RESOLVE = Prepared(
    schema.release.update()
    .where(match_columns(R.id))
    .values({n: sa.bindparam("new_" + n, type_=R[n].type) for n in ("state", "fenced_below")})
)


_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False)


@functools.lru_cache(maxsize=1024)
def _event_text(event: Event) -> str:
    return chain.canonical_json(events.to_json(event))


@dataclass(frozen=True)
class ReleaseCharge:
    """What a caller wants to pay for: the arguments of `Ledger.reserve` and `Ledger.open_session`."""

    key: ReleaseKey
    event: Event
    blocks: Sequence[str]
    family: str
    slot: str | None
    principal: str
    request: Mapping[str, Any]
    spend_again: bool = False
    data: Sequence[str] = ()
    partition: str = ""
    protects: str | None = None

    def __post_init__(self) -> None:
        checked_name("a principal", self.principal)
        checked_name("a family", self.family)
        if self.slot is not None:
            checked_name("a slot", self.slot, longest=1000)
        for block in self.blocks:
            checked_name("a block", block, empty=True)
        for name in self.data:
            checked_name("a name of data", name, longest=1000)
        _ = self.public  # what it costs to write it down is paid before others wait for the turn

    @functools.cached_property
    def public(self) -> dict[str, Any]:
        """What the release's row and its entry say of it."""
        return vars(self.key) | {
            "family": self.family,
            "slot": self.slot,
            "blocks": chain.canonical_json(list(self.request.get("blocks", self.blocks))),
            "event": _event_text(events.check_supported(self.event)),
            "request": encode_ordered(self.request),
        }


def find_release(transaction: Transaction, writer: chain.Writer, ask: ReleaseCharge) -> Any:
    """The release this ask already has; None when it is new and may be charged.

    A key finds its release whoever asks: inputs mapped in another order find theirs. A key that is
    new to a slot which has a release is a changed retry. It keeps that release if only the
    mechanism's version changed; it may pay if the caller says so, or while this task of this run
    has fewer releases than task instances that asked (after a reordering some instances
    join what others paid for, and then others owe one). So a task never pays more often than it has
    instances, however often it is tried, unless the caller says so.

    Raises:
        RetryConflict: a changed retry that may not pay.
    """
    row = transaction.first(BY_KEY, **vars(ask.key))
    before = [] if ask.slot is None else transaction.rows(_IN_SLOT, slot=ask.slot)
    if row is not None:
        if ask.slot is not None and row.id not in {other.id for other in before}:
            transaction.run(_JOIN, slot=ask.slot, release_id=row.id)
            writer.add_entry("join", row.scope, row.id, ask.principal, {"slot": ask.slot})
        return row
    if not before:
        return None
    event = ask.public["event"]
    # Only the mechanism's version differs: event and privacy cost are those already charged.
    same = [
        other
        for other in before
        if other.family == ask.family and other.event == event and other.scope == ask.key.scope
    ]
    if same:
        return same[0]
    of_task = {
        name: getattr(ask.key, name) for name in ("scope", "dag_id", "task_id", "run_identity")
    }
    # After inputs were mapped in another order, some instances joined what others had paid for.
    owed = transaction.first(_ASKED, **of_task).number - transaction.first(_PAID, **of_task).number
    if ask.spend_again or owed > 0:
        return None
    # No DAG: the release came from a file or a call, where there is no operator to set.
    if ask.key.dag_id:
        conflict = "this task released something else in this run"
        remedy = "set spend_again on the operator, or raise revision in its release"
    else:
        conflict = f"{ask.request.get('name')!r} released something else with this revision before"
        remedy = "raise the revision, such as revision: 2 in the release file"
    raise RetryConflict(
        f"{conflict}; a retry must ask for the same release. To pay for a new one, {remedy}"
    )


def reads_of_one(release_id: str) -> list[Read]:
    """What settling a release will read."""
    return [(BY_ID, {"id": release_id})]


def list_reads(ask: ReleaseCharge) -> list[Read]:
    """What charging an ask will read."""
    statements: list[Read] = [(BY_KEY, vars(ask.key))]
    if ask.slot is not None:
        statements.append((_IN_SLOT, {"slot": ask.slot}))
    statements += data_claims.list_reads(ask.key.scope, ask.data)
    return [*statements, *charges.list_reads(ask.key.scope, ask.blocks)]


def charge_release(
    transaction: Transaction,
    writer: chain.Writer,
    ask: ReleaseCharge,
    *,
    state: str = "reserved",
    exclusive: bool = False,
    secret: str | None = None,
    commitment: str | None = None,
) -> str:
    """Debit every budget and add the release, or raise and leave nothing. Returns the release's
    id.
    """
    # Refusals before writes: a charge that raises has nothing to undo.
    claims = data_claims.require_access(transaction, ask.key.scope, ask.data, ask.partition)
    bill = charges.make_bill(transaction, ask.key.scope, [ask.event], ask.blocks)
    charges.require_protection(bill, ask.protects)
    charges.debit_accounts(transaction, bill)
    # Drawn, not counted: ids that follow each other would tell how much others release.
    release_id = secrets.token_hex(8)
    data_claims.record_claims(
        transaction,
        release_id,
        ask.key.scope,
        ask.data,
        claims,
        gate=exclusive,
        partition=ask.partition,
    )
    public = ask.public | {"exclusive": int(exclusive)}
    transaction.run(
        _INSERT, id=release_id, state=state, attempts=1, fenced_below=0, principal=ask.principal, version=0,
        result=None, snapshot=None, secret=secret, **public,
    )  # fmt: skip
    if ask.slot is not None:
        transaction.run(_JOIN, slot=ask.slot, release_id=release_id)
    body = public | {
        "charges": [charge.to_json() for charge in bill],
        "state": commitment,
        "data": list(ask.data),
        "partition": ask.partition,
    }
    writer.add_entry(
        "reserve" if state == "reserved" else "session",
        ask.key.scope,
        release_id,
        ask.principal,
        body,
    )
    return release_id


def take_over(
    transaction: Transaction, writer: chain.Writer, row: Any, principal: str
) -> Reservation:
    """What a known release offers its next try. Raises `RetryConflict` if an owner closed it."""
    if row.state == "settled":
        return Reservation(row.id, row.attempts, True, stored_json(row.result))
    if row.state == "fenced":
        raise RetryConflict(
            f"release {row.id} is fenced, closed by an owner; its charge stays. Pay for a new one under another name"
        )
    if row.state != "reserved":
        raise RetryConflict(f"release {row.id} is a session; ask it, do not reserve it")
    # Nothing of the first try was visible, so its charge pays for this one.
    attempt = row.attempts + 1
    transaction.run(_RETRY, id=row.id, new_attempts=attempt)
    writer.add_entry("retry", row.scope, row.id, principal, {"attempt": attempt})
    return Reservation(row.id, attempt, False)


def settle_release(
    transaction: Transaction,
    writer: chain.Writer,
    reservation: Reservation,
    result: str,
    snapshot: str | None,
    principal: str,
) -> str:
    """Store a result unless there is one; returns what is stored. See `Ledger.settle`."""
    row = get_row(transaction, reservation.release_id)
    # The first result stays: a second draw for one charge would be a second output.
    if row.state == "settled":
        return str(row.result)
    # An owner gave up the attempts below this one: only later tries may settle.
    if row.state != "reserved" or not row.fenced_below <= reservation.attempt <= row.attempts:
        raise RetryConflict(
            f"release {row.id} was fenced by an owner; this late result is discarded"
        )
    transaction.run(
        _SETTLE, id=row.id, new_state="settled", new_result=result, new_snapshot=snapshot
    )
    body = {
        "result": chain.digest_json(result),
        "snapshot": snapshot,
        "attempt": reservation.attempt,
    }
    writer.add_entry(
        "settle", row.scope, row.id, checked_name("a principal", principal or row.principal), body
    )
    return result


def resolve_release(
    transaction: Transaction,
    writer: chain.Writer,
    release_id: str,
    decision: str,
    reason: str,
    principal: str,
) -> None:
    """Fence what is unsettled. See `Ledger.resolve`."""
    row = transaction.first(BY_ID, id=release_id)
    if row is None or row.state not in ("reserved", "open"):
        raise InvalidInput(
            f"release {release_id} is {row.state if row else 'unknown'}; only a reserved one or an open session is an orphan"
        )
    if row.state == "open" and decision == "retry":
        raise InvalidInput(
            f"release {release_id} is a session, which needs no retry: the same key resumes it"
        )
    state = "reserved" if decision == "retry" else "closed" if row.state == "open" else "fenced"
    # Above every try so far, so that none of them can settle what it still computes.
    fenced = row.attempts + 1
    transaction.run(_RESOLVE, id=row.id, new_state=state, new_fenced_below=fenced)
    body = {"decision": decision, "reason": reason, "fenced_below": fenced, "becomes": state}
    writer.add_entry("resolve", row.scope, row.id, principal, body)


def get_row(transaction: Transaction, release_id: str) -> Any:
    """A release's row. Raises `InvalidInput`."""
    row = transaction.first(BY_ID, id=release_id)
    if row is None:
        raise InvalidInput(
            f"there is no release {release_id[:80]!r} in this ledger; dpflow release --list has their ids"
        )
    return row


def encode_ordered(value: Mapping[str, Any]) -> str:
    """JSON that keeps the order of its names, as results and requests are shown. Raises
    `InvalidInput`.
    """
    try:
        return _ENCODER.encode(value)
    except (TypeError, ValueError, RecursionError):
        raise InvalidInput(
            "what the ledger stores must be JSON: texts, finite numbers, lists and mappings"
        ) from None


def make_record(row: Any) -> ReleaseRecord:
    """The public fields of a row."""
    try:
        return ReleaseRecord(
            release_id=row.id,
            scope=row.scope,
            blocks=tuple(stored_json(row.blocks)),
            state=row.state,
            attempts=row.attempts,
            principal=row.principal,
            request=stored_json(row.request),
            event=stored_json(row.event),
            result=None if row.result is None else stored_json(row.result),
            snapshot=row.snapshot,
        )
    except ValueError:
        raise LedgerCorrupt(f"release {row.id} cannot be read; run dpflow ledger verify") from None
