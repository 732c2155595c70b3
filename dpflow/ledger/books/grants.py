"""Grants: what an owner promises, and how a promise may change afterwards."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from typing import Any

import sqlalchemy as sa

from dpflow.core.accounting import amounts
from dpflow.core.accounting.amounts import Amount, exact_text
from dpflow.core.accounting.periods import select_current
from dpflow.core.accounting.privacy_filters import (
    Cost,
    Filter,
)
from dpflow.core.contract.strict_models import check_flag
from dpflow.errors import GrantConflict, InvalidInput, LedgerCorrupt
from dpflow.ledger.books import charges, witnesses
from dpflow.ledger.books.budget_refusal import MAX_USUAL_DELTA, MAX_USUAL_EPSILON
from dpflow.ledger.books.grant_terms import (
    Terms,
    may_follow,
)
from dpflow.ledger.books.records import (
    OTHER_TERMS,
    GrantProposal,
    Scope,
    checked_name,
    is_same_principal,
    stored_json,
)
from dpflow.ledger.history.anchor import Anchor
from dpflow.ledger.history.chain import Writer, find_fault
from dpflow.ledger.history.checkpoint import (
    DecisionSigner,
    SentSignature,
    check_line,
    decision_text,
    parse_public_key,
)
from dpflow.ledger.history.state import LedgerState
from dpflow.ledger.storage import schema
from dpflow.ledger.storage.compact_json import canonical_json
from dpflow.ledger.storage.statements import Prepared

_PROPOSED = Prepared(
    sa.select(schema.entry).where(schema.entry.c.seq == sa.bindparam("seq", type_=sa.BigInteger))
)
_PROPOSALS = Prepared(sa.select(schema.proposal).order_by(schema.proposal.c.seq))


def checked_scope(name: str) -> str:
    """A path of non-empty names, parted by slashes. Raises `InvalidInput`."""
    checked_name("a scope", name)
    if not all(part.strip() for part in name.split("/")):
        raise InvalidInput(
            "a scope is a name or a path such as flights/team-a, with no empty part; correct it"
        )
    return name


def require_confirmation(epsilon: Amount, delta: Amount, is_confirmed: bool) -> None:
    """Raises `InvalidInput` for a budget above the usual amounts that nobody confirmed, and
    `InvalidAmount` for one that is none.
    """
    amount, chance = amounts.check_epsilon(epsilon), amounts.check_delta(delta)
    check_flag("confirm_large", is_confirmed)
    if is_confirmed or (amount <= MAX_USUAL_EPSILON and chance <= MAX_USUAL_DELTA):
        return
    raise InvalidInput(
        f"a budget of epsilon {float(amount):.6g}, delta {float(chance):.6g} protects hardly anybody: above epsilon 20 or "
        f"delta 0.001 nothing keeps a person's rows from showing; grant less, or confirm it with --confirm-large "
        f"(in Python confirm_large=True)"
    )


@dataclass(frozen=True)
class Decision:
    """Who decides on a grant, with which key and why; of an approval, the entry that proposed it."""

    principal: str
    signer: DecisionSigner | None = None
    reason: str = ""
    proposal: int | None = None

    @property
    def by(self) -> str:
        """The principal of its entry: the name of the key, if one signs."""
        return self.principal if self.signer is None else self.signer.name


def find_parent(state: LedgerState, scope: str) -> Scope | None:
    """The scope above a quota, None for a scope without a slash. Raises `GrantConflict` if it has
    no grant.
    """
    parent = scope.rpartition("/")[0]
    granted = charges.find_scope(state, parent) if parent else None
    if parent and granted is None:
        raise GrantConflict(
            f"scope {scope!r} is below {parent!r}, which has no grant; grant {parent!r} first"
        )
    return granted


def require_inside(scope: str, terms: Terms, parent: Scope) -> None:
    """Raises `GrantConflict` for a quota that could never be spent."""
    if terms.epsilon > parent.filter.epsilon or terms.delta > parent.filter.delta:
        raise GrantConflict(
            f"quota {scope!r} of epsilon {exact_text(terms.epsilon)}, delta {exact_text(terms.delta)} is more than {parent.scope!r} was "
            f"granted (epsilon {exact_text(parent.filter.epsilon)}, delta {exact_text(parent.filter.delta)}); ask for less"
        )


def store_grant(
    writer: Writer,
    scope: str,
    terms: Terms,
    protects: str,
    blocks: bool,
    principal: str,
    *,
    may_bind: bool = False,
) -> Scope | GrantProposal:
    """Store a grant, or propose it where two principals must agree. See `Ledger.grant`.

    Args:
        may_bind: the grant names a table: a scope that nothing was charged to may be bound to it.
        terms: a signature that was sent is of a key that the ledger names already: one that only the grant itself
            names is nobody's so far.
    """
    state, binding = writer.state, (protects, blocks)
    before, parent = charges.find_scope(state, scope), find_parent(state, scope)
    used = charges.list_costs(state, scope)
    terms = terms.choose_filter(None if before is None else before.filter, protects)
    stays = 1 if before is None else before.approvals
    # A scope that was charged has promised a guarantee to its table's units, which stays.
    binds = (
        may_bind and before is not None and (before.protects, before.blocks) != binding and not used
    )
    for other in (parent, None if binds else before):
        if other is not None and (other.protects, other.blocks) != binding:
            raise GrantConflict(
                f"scope {other.scope!r} was granted to protect {other.protects or 'nothing named'!r}"
                f"{', per block' if other.blocks else ''}; grant {scope!r} for the same declaration "
                f"(--table FILE)"
            )
    # The sums so far were made by one filter's rule and mean nothing under another.
    if before is not None and before.filter.name != terms.filter:
        raise GrantConflict(
            f"scope {scope!r} uses the {before.filter.name} filter; its filter cannot be changed"
        )
    # While nothing is spent, the Renyi order may still follow the new amounts.
    if before is not None and any(cost != Cost() for _, cost in used):
        filter = terms.change_filter(before)
        if filter.period != before.filter.period:
            counted = f"each {before.filter.period}" if before.filter.period else "without periods"
            raise GrantConflict(
                f"quota {scope!r} was charged, and counts {counted}, which stays; leave --period out, or "
                f"make another quota"
            )
    else:
        filter = terms.build_filter(None if before is None else before.filter)
    granted = Scope(scope, filter, protects, blocks, approvals=terms.approvals or stays)
    _require_covers(granted, used, writer.day)
    signer, named = terms.signer, filter.signers
    if isinstance(signer, SentSignature):
        named = ()
    trusted = require_signer(state, replace(granted, filter=replace(filter, signers=named)), signer)
    decision = Decision(principal, signer, terms.reason)
    if 2 in (stays, granted.approvals):
        return _propose(writer, granted, decision, trusted)
    _put_in_effect(writer, granted, decision, binds)
    return granted


def find_signers(granted: Filter, before: Filter | None, above: Sequence[Filter]) -> Sequence[str]:
    """Who may sign a grant: those that the scope named before; else those of the nearest scope above
    that names any; else those that the grant itself names.
    """
    earlier = () if before is None else before.signers
    return next(filter(None, (earlier, *(rule.signers for rule in above), granted.signers)), ())


def is_signed(entry: Any, body: Mapping[str, Any], trusted: Sequence[str]) -> bool:
    """Whether the entry of a decision is signed by one of these verifier keys, under its principal's name.

    Args:
        body: what the entry says, its signature included.
    """
    decision = {name: value for name, value in body.items() if name != "signature"}
    text = decision_text(entry.previous, entry.kind, entry.scope, entry.principal, decision)
    return check_line(text, entry.principal, body.get("signature"), trusted)


def require_signer(
    state: LedgerState, granted: Scope, signer: DecisionSigner | None
) -> Sequence[str]:
    """The verifier keys one of which must sign a decision about a scope, none if nobody must. Raises `InvalidInput`
    if this signer is none of them.
    """
    before = charges.find_scope(state, granted.scope)
    above = [charges.get_scope(state, name).filter for name in granted.path[-2::-1]]
    trusted = find_signers(granted.filter, None if before is None else before.filter, above)
    if signer is not None and trusted and signer.public_text in trusted:
        return trusted
    if signer is not None and not trusted:
        raise InvalidInput(
            f"scope {granted.scope!r} names no signers, so a signature would prove nothing; name them with a grant beside the "
            f"ledger: --signer KEY"
        )
    if trusted:
        names = ", ".join(parse_public_key(key)[0] for key in trusted)
        raise InvalidInput(
            f"a decision about {granted.scope!r} must be signed by one of {names}; have one of them run it with --sign FILE, the "
            f"file of their private key"
        )
    return ()


def _put_in_effect(
    writer: Writer,
    granted: Scope,
    decision: Decision,
    binds: bool,
) -> None:
    """Write a grant, and bind the quotas below it to its table if it was bound to another."""
    _write_scope(writer, granted, decision)
    # Whatever a quota pays, the scope above it pays too: nothing was charged to these either.
    for quota in charges.all_scopes(writer.state) if binds else ():
        if quota.scope.startswith(granted.scope + "/"):
            if quota.approvals > 1 or decision.signer is not None or quota.filter.signers:
                raise GrantConflict(
                    f"quota {quota.scope!r} would be bound to another table, too, which takes approvals or a signature of its "
                    f"own; name the table before there are quotas"
                )
            quota = replace(quota, protects=granted.protects, blocks=granted.blocks, closed=False)
            _write_scope(writer, quota, replace(decision, proposal=None))


def _columns_of(granted: Scope) -> dict[str, Any]:
    return {
        "filter": canonical_json(granted.filter.to_json()),
        "protects": granted.protects,
        "blocks": int(granted.blocks),
        "approvals": granted.approvals,
    }


def _add_entry(
    writer: Writer,
    kind: str,
    granted: Scope,
    decision: Decision,
) -> None:
    body = _columns_of(granted)
    if body["approvals"] == 1:
        del body["approvals"]
    # In whole units: an auditor then needs no formula for what a grant holds.
    body["capacity"] = list(astuple(granted.capacity))
    if decision.proposal is not None:
        body["proposal"] = decision.proposal
    if decision.reason:
        body["reason"] = decision.reason
    if decision.signer is not None:
        body = sign_decision(writer, kind, granted.scope, body, decision.signer)
    writer.add_entry(kind, granted.scope, "", decision.by, body)


def sign_decision(
    writer: Writer,
    kind: str,
    scope: str,
    body: Mapping[str, Any],
    signer: DecisionSigner,
    **beside: str,
) -> dict[str, Any]:
    """What an entry says, with its signature, which is also of what else of the entry is named ``beside``."""
    text = decision_text(writer.head, kind, scope, signer.name, {**body, **beside})
    return {**body, "signature": signer.sign_line(text)}


def _write_scope(writer: Writer, granted: Scope, decision: Decision) -> None:
    """Write a scope's row and its entry in the history."""
    row = _columns_of(granted) | {"closed": 0, "seq": writer.next_seq}
    before = writer.state.find(schema.scope, name=granted.scope)
    writer.state.put(schema.scope, {"name": granted.scope}, **row)
    former = None if before is None else charges.read_scope(before).filter
    witnesses.watch_scope(writer.state, granted.scope, former, granted.filter, row["seq"])
    _add_entry(writer, "grant", granted, decision)


# --- second approvals -----------------------------------------------------------------------------


def _propose(
    writer: Writer,
    granted: Scope,
    decision: Decision,
    trusted: Sequence[str],
) -> GrantProposal:
    """Write down a grant that waits; it takes the place of an earlier one, unless that is the
    same, for the same reason, and signed by who may sign now.
    """
    state = writer.state
    earlier = state.find(schema.proposal, scope=granted.scope)
    row = _columns_of(granted) | {"principal": decision.by}
    if earlier is not None:
        waits = earlier.seq > _seq_of(state, granted.scope)
        same = waits and row.items() <= earlier._asdict().items()
        if same and _is_still_signed(state, earlier.seq, trusted):
            proposal = _read_proposal(state, earlier)
            if proposal.reason == decision.reason:
                return proposal
    proposal = GrantProposal(granted, decision.by, writer.next_seq, decision.reason)
    row["seq"] = proposal.seq
    state.put(schema.proposal, {"scope": granted.scope}, **row)
    _add_entry(writer, "propose", granted, decision)
    return proposal


def _is_still_signed(state: LedgerState, seq: int, trusted: Sequence[str]) -> bool:
    """Whether one who may sign now signed the proposal of an entry; true where nobody must."""
    proposed = _get_proposed(state, seq)
    return not trusted or is_signed(proposed, stored_json(proposed.body), trusted)


def _get_proposed(state: LedgerState, seq: int) -> Any:
    entry = state.transaction.first(_PROPOSED, seq=seq)
    if entry is None:
        raise LedgerCorrupt(
            f"entry {seq}, which proposed a grant, is gone; run dpflow ledger verify"
        )
    return entry


def _seq_of(state: LedgerState, scope: str) -> int:
    """The entry that made a scope what it is; 0 if nobody granted it."""
    row = state.find(schema.scope, name=scope)
    return 0 if row is None else int(row.seq)


def _read_proposal(state: LedgerState, row: Any, anchor: Anchor | None = None) -> GrantProposal:
    filter = Filter.from_json(stored_json(row.filter))
    terms = Scope(row.scope, filter, row.protects, bool(row.blocks), approvals=row.approvals)
    proposed = _get_proposed(state, row.seq)
    if anchor is not None and (fault := find_fault(anchor, proposed)):
        raise LedgerCorrupt(f"{fault}; run dpflow ledger verify")
    reason = stored_json(proposed.body).get("reason", "")
    return GrantProposal(terms, row.principal, row.seq, reason)


def list_proposals(state: LedgerState, anchor: Anchor | None = None) -> list[GrantProposal]:
    """All grants that wait, the oldest first; one that was deleted by hand is not missed. Their reasons are proved
    with an anchor: raises `LedgerCorrupt`.
    """
    rows = [state.take(schema.proposal, row) for row in state.transaction.rows(_PROPOSALS)]
    waiting = [row for row in rows if row.seq > _seq_of(state, row.scope)]
    return [_read_proposal(state, row, anchor) for row in waiting]


def approve_proposal(
    writer: Writer,
    scope: str,
    seq: int,
    principal: str,
    signer: DecisionSigner | None,
    reason: str = "",
    digest: str | None = None,
) -> Scope:
    """Put a proposed grant into effect. See `Ledger.approve`."""
    checked_name("a reason", reason, empty=True, longest=1000)
    state, decision = writer.state, Decision(principal, signer, reason, seq)
    row = state.find(schema.proposal, scope=scope)
    if row is None or row.seq != seq or row.seq <= _seq_of(state, scope):
        raise InvalidInput(
            f"no grant that entry {seq} proposed waits for scope {scope!r}; dpflow ledger proposals lists those that do"
        )
    if is_same_principal(row.principal, decision.by):
        raise InvalidInput(
            f"{decision.by} proposed this grant, and somebody else approves it; have a second owner run: "
            f"dpflow ledger approve {scope} {seq}"
        )
    proposal = _read_proposal(state, row)
    if digest not in (None, proposal.digest):
        raise InvalidInput(OTHER_TERMS.format(scope=scope, seq=seq))
    granted = proposal.terms
    # Both signatures are of keys that may sign now, each of one person: whoever left the list since,
    # or has another key or name there, does not count as the second.
    if not _is_still_signed(state, seq, require_signer(state, granted, signer)):
        raise InvalidInput(
            f"nobody who may sign now signed the grant that entry {seq} proposed; propose it again, signed"
        )
    before, parent = charges.find_scope(state, scope), find_parent(state, scope)
    used = charges.list_costs(state, scope)
    binding = granted.protects, granted.blocks
    binds = before is not None and (before.protects, before.blocks) != binding
    # Since it was proposed, others may have charged the scope or granted what is above it.
    stale = (
        (parent is not None and (parent.protects, parent.blocks) != binding)
        or (binds and used)
        or (before is not None and any(cost != Cost() for _, cost in used)
            and not may_follow(granted.filter, before.filter))
    )  # fmt: skip
    if stale:
        raise GrantConflict(
            f"scope {scope!r} has changed since entry {seq} proposed this grant; propose it again"
        )
    _require_covers(granted, used, writer.day)
    _put_in_effect(writer, granted, decision, binds)
    return granted


def find_exceeded(granted: Filter, used: Iterable[tuple[str, Cost]], day: dt.date) -> str | None:
    """An account that has spent more than a grant holds, None if there is none; in a quota that refreshes,
    in this period.
    """
    capacity = granted.capacity()
    for block, cost in select_current(granted.period, used, day):
        if cost != Cost() and not Filter.admits(capacity, cost):
            return block
    return None


def _require_covers(granted: Scope, used: list[tuple[str, Cost]], day: dt.date) -> None:
    """Raises `GrantConflict` if a budget has spent more than the new grant holds."""
    block = find_exceeded(granted.filter, used, day)
    if block is not None:
        raise GrantConflict(
            f"scope {granted.scope!r} has already spent more than epsilon {exact_text(granted.filter.epsilon)}, delta "
            f"{exact_text(granted.filter.delta)}{f' in block {block!r}' if block else ''}; grant at least what is spent, as "
            f"dpflow ledger odometer shows it"
        )
