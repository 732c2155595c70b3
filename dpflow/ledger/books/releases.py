"""Exactly once: how a key finds its release, who may pay, who may settle."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any, NotRequired, TypedDict

import sqlalchemy as sa

from dpflow.core.accounting import events
from dpflow.core.accounting.events import Event
from dpflow.core.contract.strict_models import check_flag
from dpflow.errors import InvalidInput, LedgerCorrupt, RetryConflict
from dpflow.ledger.books import charges, data_claims, grants, witnesses
from dpflow.ledger.books.records import (
    ReleaseKey,
    ReleaseRecord,
    Reservation,
    SettledRequest,
    Slot,
    State,
    check_key_length,
    checked_name,
    checked_principal,
    name_in_request,
    path_of,
    stored_json,
)
from dpflow.ledger.history import chain
from dpflow.ledger.history.checkpoint import DecisionSigner
from dpflow.ledger.history.cipher import Cipher, strip_salt
from dpflow.ledger.history.state import LedgerState
from dpflow.ledger.storage import schema
from dpflow.ledger.storage.compact_json import canonical_json, encode_finite
from dpflow.ledger.storage.statements import Prepared, Transaction, match_columns

R, _L = schema.release.c, schema.slot.c
PUBLIC = [column for column in schema.release.columns if column.name != "secret"]
_K = schema.key.c
#: The key of a release's result, and of a session's state.
WITH_KEY = sa.and_(_K.release_id == R.id, _K.version == R.version)
_RESULT = Prepared(
    sa.select(R.result, _K.wrapped)
    .select_from(schema.release.outerjoin(schema.key, WITH_KEY))
    .where(match_columns(R.id))
)


@functools.lru_cache(maxsize=1024)
def _event_text(event: Event) -> str:
    return canonical_json(events.to_json(event))


class ChargeTerms(TypedDict):
    """The fields of a `ReleaseCharge` beside its key, as keyword arguments."""

    event: Event
    blocks: Sequence[str]
    family: str
    slot: Slot | None
    principal: str
    request: Mapping[str, Any]
    spend_again: NotRequired[bool]
    data: NotRequired[Sequence[str]]
    partition: NotRequired[str]
    protects: NotRequired[str | None]
    certified_by: NotRequired[Sequence[str]]


@dataclass(frozen=True)
class ReleaseCharge:
    """What a caller wants to pay for.

    Attributes:
        key: equal keys are the same release.
        event: what it costs, in every block of ``blocks``; none where the scope has no blocks.
        family: the plan's digest without the mechanism's version.
        slot: one task instance of one run; None if nobody retries.
        principal: who pays.
        request: what was asked, for people; JSON.
        spend_again: pay even if this slot released something else.
        data: public names of what it reads, beside its dataset, which is the first part of the
            scope's path.
        partition: how a session partitions this data into groups, such as ``2000 groups``. The
            first one says so for all later ones.
        protects: what its table's privacy unit is. Every scope that pays must have been granted to
            protect just this, or nothing named. None: the caller asks for no such check.
        certified_by: verifier keys that have certified what will draw. A scope that asks for
            certificates pays only if it trusts one of them.
    """

    key: ReleaseKey
    event: Event
    blocks: Sequence[str]
    family: str
    slot: Slot | None
    principal: str
    request: Mapping[str, Any]
    spend_again: bool = False
    data: Sequence[str] = ()
    partition: str = ""
    protects: str | None = None
    certified_by: Sequence[str] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "principal", checked_principal(self.principal))
        checked_name("a family", self.family)
        check_flag("spend_again", self.spend_again)
        for block in self.blocks:
            checked_name("a block", block, empty=True)
        for name in self.data:
            check_key_length("a name of data", checked_name("a name of data", name, longest=1000))
        # What it costs to write it down is paid before others wait for the turn.
        _ = self.public, self.name

    @functools.cached_property
    def public(self) -> dict[str, Any]:
        """What the release's row and its entry say of it."""
        return self.key.columns | {
            "family": self.family,
            "blocks": canonical_json(list(self.request.get("blocks", self.blocks))),
            "event": _event_text(events.check_supported(self.event)),
            "request": encode_ordered(self.request),
        }

    @functools.cached_property
    def name(self) -> str:
        """Under which it is found again."""
        return name_in_request(self.public["request"])


def find_release(writer: chain.Writer, ask: ReleaseCharge) -> Any:
    """As `choose_release`; a task instance that finds another's release joins it."""
    row, state = choose_release(writer.state, ask), writer.state
    if row is not None and ask.slot is not None:
        slots = state.rows(schema.slot, run=ask.slot.run)
        if (ask.slot.instance, row.id) not in {(slot.instance, slot.release_id) for slot in slots}:
            state.insert(schema.slot, **vars(ask.slot), release_id=row.id)
            writer.add_entry("join", row.scope, row.id, ask.principal, {"slot": astuple(ask.slot)})
    return row


def choose_release(state: LedgerState, ask: ReleaseCharge) -> Any:
    """The release this ask already has; None when it is new and may be charged.

    A key finds its release whoever asks: inputs mapped in another order find theirs. A key that is
    new to a slot which has a release is a changed retry. It keeps that release if only the
    mechanism's version changed; it may pay if the caller says so, or while the instances that
    asked, in all runs of the interval, are more than the releases they got (after a reordering some
    instances join what others paid for, and then others owe one). So the instances of an interval
    never pay for more releases than they are, however often they are run, unless the caller says so.

    Raises:
        RetryConflict: a changed retry that may not pay.
    """
    row = find_by_key(state, ask.key)
    if row is not None or ask.slot is None:
        return row
    in_run = state.rows(schema.slot, run=ask.slot.run)
    slots = [slot for slot in in_run if slot.instance == ask.slot.instance]
    if not slots:
        return None
    before = [get_row(state, slot.release_id) for slot in slots]
    before.sort(key=lambda row: row.seq)
    event = ask.public["event"]
    # Only the mechanism's version differs: event and privacy cost are those already charged. Another ordinal is a
    # second draw.
    same = [
        other
        for other in before
        if (other.family, other.scope, other.event, other.ordinal)
        == (ask.family, ask.key.scope, event, ask.key.ordinal)
    ]
    if same:
        return same[0]
    owed = len({row.instance for row in in_run}) - len({row.release_id for row in in_run})
    if ask.spend_again or owed > 0:
        return None
    raise RetryConflict(_explain_conflict(ask, ask.slot, before[-1]))


def wanted_rows(charges: Iterable[ReleaseCharge]) -> Iterator[tuple[sa.Table, dict[str, Any]]]:
    """What is read for these charges for certain, to be read ahead."""
    shared = set()
    for ask in charges:
        yield schema.release, ask.key.columns
        if ask.slot is not None:
            yield schema.slot, {"run": ask.slot.run}
        read = ask.key.scope, tuple(ask.blocks), tuple(ask.data)
        if read in shared:
            continue
        shared.add(read)
        for name in path_of(ask.key.scope):
            yield schema.scope, {"name": name}
            for block in ask.blocks or ("",):
                yield schema.account, {"scope": name, "block": block}
        for name in data_claims.all_names(ask.key.scope, ask.data):
            yield schema.data, {"name": name}


def find_by_key(state: LedgerState, key: ReleaseKey) -> Any:
    """The release of a key, or None."""
    return state.find(schema.release, **key.columns)


def _explain_conflict(ask: ReleaseCharge, slot: Slot, before: Any) -> str:
    """What a changed retry asks for beside what its slot released last, and what to do about it."""
    changed = ", ".join(_list_changes(ask, before))
    # No DAG: the release came from a file or a call, where there is no operator to set.
    if not ask.key.dag_id:
        return (
            f"{ask.request.get('name')!r} released something else with this revision before (changed: {changed}). Write it as "
            f"it was, or pay for a new release: raise the revision, such as revision: 2 in the release file"
        )
    pay = "to pay for a second release of this interval, set spend_again=True on the operator and clear the task"
    if slot.instance[:1].isdigit():
        return (
            f"mapped task instance {slot.instance} released something else for this interval (changed: {changed}). If its input only "
            f"moved, or others were added, clear it once the other instances have run; {pay}"
        )
    return (
        f"this task released something else for this interval (changed: {changed}). A retry, or another run of it, must ask for "
        f"the same release: write it as it was and clear the task; or, {pay}"
    )


def _list_changes(ask: ReleaseCharge, before: Any) -> list[str]:
    """What differs between an ask and a release of its slot, in words."""
    asked, stored = dict(ask.request), stored_json(before.request)
    asked["scope"], stored["scope"] = ask.key.scope, before.scope
    changes = []
    for part in ("scope", "mechanism", "params", "table", "protects", "blocks", "where", "bounds"):
        new, old = asked.get(part), stored.get(part)
        if isinstance(new, Mapping) and isinstance(old, Mapping):
            changes += [f"parameter {n}" for n in {**old, **new} if old.get(n) != new.get(n)]
        elif new != old:
            changes.append(part)
    versions = stored.get("version"), asked.get("version")
    # Of two mechanisms the versions have nothing to do with each other.
    same_mechanism = stored.get("mechanism") == asked.get("mechanism")
    if same_mechanism and None not in versions and versions[0] != versions[1]:
        what = "from version {} to version {}, which came with dpflow itself".format(*versions)
        changes.append(f"mechanism {asked.get('mechanism')} {what}")
    if changes:
        return changes
    return [
        "ordinal"
        if before.digest == ask.key.digest
        else f"the declaration of table {asked.get('table')}"
    ]


def sort_known_first(state: LedgerState, asks: Sequence[ReleaseCharge]) -> Sequence[ReleaseCharge]:
    """These asks in their order, those whose key has a release before all others."""
    if len(asks) == 1:
        return asks
    return sorted(asks, key=lambda ask: find_by_key(state, ask.key) is None)


def charge_release(
    writer: chain.Writer,
    ask: ReleaseCharge,
    accounts: charges.OpenAccounts,
    *,
    state: str = "reserved",
    exclusive: bool = False,
    secret: str | None = None,
    commitment: str | None = None,
) -> str:
    """Debit every budget and add the release, or raise; then the transaction must leave nothing.
    Returns the release's id.
    """
    books, release_id = writer.state, writer.draw_id()
    # Equal terms have one bill, and access: what this transaction writes meanwhile changes neither.
    terms = (
        *(ask.key.scope, ask.public["event"], ask.protects, ask.partition, exclusive),
        *map(tuple, (ask.blocks, ask.certified_by, ask.data)),
    )
    bill = accounts.bills.get(terms)
    if bill is None:
        claims = data_claims.require_access(books, ask.key.scope, ask.data, ask.partition)
        bill = charges.make_bill(books, ask.key.scope, [ask.event], ask.blocks, writer.day)
        charges.require_protection(bill, ask.protects)
        charges.require_certified(bill, ask.certified_by)
        data_claims.record_claims(
            books,
            release_id,
            ask.key.scope,
            ask.data,
            claims,
            gate=exclusive,
            partition=ask.partition,
        )
        accounts.bills[terms] = bill
    accounts.debit(bill)
    witnesses.count_charges(books, bill, accounts.counted)
    public = ask.public | {"exclusive": int(exclusive)}
    sealed = None if secret is None else writer.make_key(release_id, 0).encrypt(secret, "state")
    books.insert(
        schema.release, id=release_id, state=state, attempts=1, fenced_below=0, principal=ask.principal, version=0,
        name=ask.name, seq=writer.next_seq,
        result=None, result_digest=None, snapshot=None, secret=sealed, secret_digest=commitment, **public,
    )  # fmt: skip
    if ask.slot is not None:
        books.insert(schema.slot, **vars(ask.slot), release_id=release_id)
    body = public | {
        "slot": None if ask.slot is None else astuple(ask.slot),
        "charges": [charge.to_json() for charge in bill],
        "state": commitment,
        "data": list(ask.data),
        "partition": ask.partition,
    }
    if ask.certified_by:
        body["certified_by"] = sorted(ask.certified_by)
    writer.add_entry(
        "reserve" if state == "reserved" else "session",
        ask.key.scope,
        release_id,
        ask.principal,
        body,
    )
    return release_id


def take_over(writer: chain.Writer, row: Any, ask: ReleaseCharge) -> Reservation:
    """What a known release offers its next try. Raises `RetryConflict` if an owner closed it."""
    if row.state == "settled":
        result = stored_json(settled_result(writer.cipher, writer.state.transaction, row))
        return Reservation(row.id, row.attempts, True, result, ask.key)
    if row.state == "fenced":
        raise RetryConflict(
            f"release {row.id} is fenced, closed by an owner; its charge stays. Pay for a new one under another name"
        )
    if row.state != "reserved":
        raise RetryConflict(f"release {row.id} is a session; ask it, do not reserve it")
    # Nothing of the first try was visible, so its charge pays for this one.
    return Reservation(row.id, _count_try(writer, row, ask.principal), False, key=ask.key)


def count_try(writer: chain.Writer, release_id: str, principal: str) -> None:
    """Count a try of an unsettled release or an open session. See `Ledger.count_try`."""
    row = get_row(writer.state, release_id)
    if row.state not in ("reserved", "open"):
        raise RetryConflict(f"release {release_id} is {row.state}; there is nothing to try")
    _count_try(writer, row, checked_principal(principal))


def _count_try(writer: chain.Writer, row: Any, principal: str) -> int:
    attempt: int = row.attempts + 1
    writer.state.update(schema.release, row, attempts=attempt)
    writer.add_entry("retry", row.scope, row.id, principal, {"attempt": attempt})
    return attempt


def settled_result(cipher: Cipher, transaction: Transaction, row: Any) -> str:
    """The stored result of a settled release. Raises `LedgerCorrupt` if it is not the one that was
    settled.
    """
    stored = transaction.first(_RESULT, id=row.id)
    if stored is None:
        raise LedgerCorrupt(f"release {row.id} is gone; run dpflow ledger verify")
    return open_result(cipher, row, stored.result, stored.wrapped)


def open_result(cipher: Cipher, row: Any, sealed: object, wrapped: object) -> str:
    """The JSON text of an encrypted result. Raises `LedgerCorrupt` if it is not the one that was
    settled.
    """
    text = cipher.open_key(row.id, 0, wrapped).decrypt(sealed, "result")
    if chain.digest_json(text) != row.result_digest:
        raise LedgerCorrupt(
            f"the result of release {row.id} is not the one that was settled, so it is not given out; "
            f"run dpflow ledger verify, and bring the newest copy back"
        )
    return strip_salt(text)


def settle_release(
    writer: chain.Writer,
    reservation: Reservation,
    result: str,
    snapshot: str | None,
    principal: str,
    failure: str,
) -> str:
    """Store a result unless there is one; returns what is stored. See `Ledger.settle`."""
    row = get_row(writer.state, reservation.release_id)
    # The first result stays: a second draw for one charge would be a second output.
    if row.state == "settled":
        return settled_result(writer.cipher, writer.state.transaction, row)
    # An owner gave up the attempts below this one: only later tries may settle.
    if row.state != "reserved" or not row.fenced_below <= reservation.attempt <= row.attempts:
        raise RetryConflict(
            f"release {row.id} was fenced by an owner; this late result is discarded"
        )
    if snapshot is not None:
        # A number would be stored as a text, and the history would say another thing than the row.
        checked_name("a snapshot", snapshot)
    salted = writer.cipher.add_note(result, failure)
    digest, sealed = chain.digest_json(salted), writer.make_key(row.id, 0).encrypt(salted, "result")
    settled = {"state": "settled", "result": sealed, "result_digest": digest, "snapshot": snapshot}
    writer.state.update(schema.release, row, **settled)
    body = {"result": digest, "snapshot": snapshot, "attempt": reservation.attempt}
    writer.add_entry(
        "settle", row.scope, row.id, checked_principal(principal or row.principal), body
    )
    return result


def resolve_release(
    writer: chain.Writer,
    release_id: str,
    decision: str,
    reason: str,
    principal: str,
    signer: DecisionSigner | None = None,
) -> str:
    """Fence what is unsettled. See `Ledger.resolve`."""
    row = writer.state.find_handle(schema.release, release_id)
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
    body = {"decision": decision, "reason": reason, "fenced_below": fenced, "becomes": state}
    if signer is not None:
        grants.require_signer(writer.state, charges.get_scope(writer.state, row.scope), signer)
        principal = signer.name
        body = grants.sign_decision(writer, "resolve", row.scope, body, signer, release_id=row.id)
    writer.state.update(schema.release, row, state=state, fenced_below=fenced)
    writer.add_entry("resolve", row.scope, row.id, principal, body)
    return state


def get_row(state: LedgerState, release_id: str) -> Any:
    """A release's row. Raises `InvalidInput`."""
    row = state.find_handle(schema.release, release_id)
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
        return encode_finite(value)
    except (TypeError, ValueError, RecursionError):
        raise InvalidInput(
            "what the ledger stores must be JSON: texts, finite numbers, lists and mappings"
        ) from None


def proved_record(cipher: Cipher, state: LedgerState, row: Any) -> ReleaseRecord:
    """A proved row with its result, which is the one that was settled. Raises `LedgerCorrupt`."""
    settled = row.state == "settled"
    return make_record(row, settled_result(cipher, state.transaction, row) if settled else None)


def make_record(row: Any, result: str | None) -> ReleaseRecord:
    """The public fields of a row."""
    try:
        return ReleaseRecord(
            release_id=row.id,
            scope=row.scope,
            blocks=tuple(stored_json(row.blocks)),
            state=row.state,
            attempts=row.attempts,
            answers=row.version,
            principal=row.principal,
            request=stored_json(row.request),
            event=stored_json(row.event),
            result=None if result is None else stored_json(result),
            snapshot=row.snapshot,
        )
    except ValueError:
        raise LedgerCorrupt(f"release {row.id} cannot be read; run dpflow ledger verify") from None


# --- lists ----------------------------------------------------------------------------------------

_CHARGED = sa.select(*PUBLIC, schema.key.c.wrapped).outerjoin(schema.key, WITH_KEY).order_by(R.seq)
_ALL, _OF_SCOPE = Prepared(_CHARGED), Prepared(_CHARGED.where(match_columns(R.scope)))
_OF_STATE = Prepared(_CHARGED.where(match_columns(R.state)))
_NAMED = _CHARGED.where(match_columns(R.scope, R.name))
_OF_NAME, _OF_RUN = (
    Prepared(_NAMED),
    Prepared(_NAMED.where(match_columns(R.dag_id, R.run_identity))),
)
_REQUESTS = Prepared(
    sa.select(R.id, R.digest, R.request)
    .where(match_columns(R.scope, R.name, R.state))
    .order_by(R.seq.desc())
)
_PAID = Prepared(sa.select(R.id).where(match_columns(R.scope, R.dag_id, R.run_identity, R.digest)))


def list_releases(cipher: Cipher, state: LedgerState, scope: str | None) -> list[ReleaseRecord]:
    """All releases and sessions, or those of one scope, in the order they were charged."""
    statement, of_scope = (_ALL, {}) if scope is None else (_OF_SCOPE, {"scope": scope})
    rows = state.transaction.rows(statement, **of_scope)
    return [_open_record(cipher, state, row) for row in rows]


def list_in_state(cipher: Cipher, state: LedgerState, name: State) -> list[ReleaseRecord]:
    """Releases and sessions in a state, in the order they were charged."""
    rows = state.transaction.rows(_OF_STATE, state=name)
    return [_open_record(cipher, state, row) for row in rows]


def list_named(
    cipher: Cipher, state: LedgerState, scope: str, name: str, run: tuple[str, str] | None
) -> list[ReleaseRecord]:
    """Releases of a scope and those above it by name. See `Ledger.releases_by_name`."""
    statement, of_run = _OF_NAME, {}
    if run is not None:
        statement, of_run = _OF_RUN, {"dag_id": run[0], "run_identity": run[1]}
    rows = [
        row
        for at in path_of(scope)
        for row in state.transaction.rows(statement, scope=at, name=name, **of_run)
    ]
    rows.sort(key=lambda row: row.seq)
    return [_open_record(cipher, state, row) for row in rows]


def list_requests(state: LedgerState, scope: str, name: str) -> list[SettledRequest]:
    """Requests of settled releases, unproved. See `Ledger.settled_requests`."""
    rows = state.transaction.rows(_REQUESTS, scope=scope, name=name, state="settled")
    try:
        return [SettledRequest(row.id, row.digest, stored_json(row.request)) for row in rows]
    except ValueError:
        raise LedgerCorrupt(
            f"a release called {name!r} cannot be read; run dpflow ledger verify"
        ) from None


def is_paid(state: LedgerState, **columns: str) -> bool:
    """Whether a release of this scope, DAG, run and digest was charged."""
    row = state.transaction.first(_PAID, **columns)
    return row is not None and bool(state.find_handle(schema.release, row.id))


def _open_record(cipher: Cipher, state: LedgerState, row: Any) -> ReleaseRecord:
    state.take(schema.release, row)
    settled = row.state == "settled"
    result = open_result(cipher, row, row.result, row.wrapped) if settled else None
    return make_record(row, result)
