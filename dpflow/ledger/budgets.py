"""The verbs of budgets: grants, approvals, and what is left."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from typing import Any, Literal, Unpack

import sqlalchemy as sa

from dpflow.core.accounting import amounts
from dpflow.core.accounting.amounts import Amount
from dpflow.core.accounting.events import Event
from dpflow.core.accounting.periods import Period, select_current
from dpflow.core.accounting.privacy_filters import Cost, Guarantee, odometer
from dpflow.core.contract.declaration import Table
from dpflow.core.contract.strict_models import check_flag
from dpflow.errors import BudgetExceeded, InvalidInput, LedgerCorrupt, LedgerUnavailable
from dpflow.ledger.audit.movable_ledger import MovableLedger
from dpflow.ledger.audit.witness import open_place, read_newest
from dpflow.ledger.books import charges, data_claims, grants, witnesses
from dpflow.ledger.books.grant_terms import GrantOptions, Terms
from dpflow.ledger.books.records import (
    GrantProposal,
    Remaining,
    Scope,
    checked_name,
    checked_principal,
    stored_json,
)
from dpflow.ledger.books.witnesses import WitnessState
from dpflow.ledger.history import chain
from dpflow.ledger.history.checkpoint import DecisionSigner, StoredCheckpoint
from dpflow.ledger.storage import schema
from dpflow.ledger.storage.statements import Prepared, match_columns

_ENTRIES = Prepared(
    sa.select(schema.entry)
    .where(schema.looked_for, match_columns(schema.entry.c.kind))
    .order_by(schema.entry.c.seq)
)


class BudgetLedger(MovableLedger):
    """The verbs of who grants and who asks what is left. `dpflow.ledger.Ledger` has those that spend, too."""

    def grant(
        self,
        scope: str,
        epsilon: Amount,
        delta: Amount,
        *,
        table: Table | None,
        protects: str = "",
        blocks: bool = False,
        principal: str,
        confirm_large: bool = False,
        **options: Unpack[GrantOptions],
    ) -> Scope | GrantProposal:
        """Give a scope a budget, raise it, or lower it to no less than what any of its blocks has spent.

        Args:
            scope: a path such as ``flights`` or ``flights/team-a``; a scope below another is a quota inside it.
            epsilon, delta: exact amounts, of every block if the scope has blocks.
            filter: the accounting rule, fixed with the first grant. By default hybrid if delta > 0 and
                the scope protects somebody, else basic.
            table: the declaration whose privacy unit the budget protects; None for a scope of no table, which then
                protects ``protects`` in every block if ``blocks``.
            tail_share: under renyi and hybrid, the part of delta that lets many releases cost less than their sum; the rest
                is left for mechanisms that use a delta themselves. By default what an earlier grant said, else half of it
                under hybrid and all of it under renyi.
            approvals: 2 has this grant and all later ones of the scope wait until another principal approves
                (`approve`); 1 ends that, once it is approved itself. By default 1, or what an earlier grant said.
            certified_by: verifier keys. The scope then pays only for mechanisms that one of them has certified, as
                they are installed where they run; so do quotas below it. None keeps what an earlier grant said, and
                an empty list ends it.

            confirm_large: an epsilon above 20 or a delta above 1e-3 is meant, else both are refused.
            signers: verifier keys of people. This grant and all later ones of the scope, and of quotas below it
                that name none, are then signed by one of them; of two approvals, by two. None keeps what
                an earlier grant said, and an empty list ends it, signed.
            signer: the key pair of whoever grants, or a signature from elsewhere. Its name is the principal then.
            witness: verifier key of a witness, whose checkpoint must not be further behind than
                ``witness_every`` charges of this scope, 0 ends that; None keeps what an earlier grant said.
                See `dpflow.ledger.books.witnesses`.
            reason: why, in at most 1000 characters, for readers of the history; signed with the rest.

        Returns:
            The scope; or the proposal that waits. The same grant proposed again adds nothing.

        Raises:
            InvalidAmount: not a legal amount.
            GrantConflict: another filter than before, another table once something was charged, a parent without a
                grant, or less than is spent.

        Until the first charge another table may be named: its quotas then follow it. Once something is spent the
        Renyi order and the division of delta stay: the sums so far were made with them.
        """
        check_flag("blocks", blocks)
        if table is not None:
            protects, blocks = table.protection_text, table.protects == "unit-block"
        grants.checked_scope(scope)
        checked_name("what is protected", protects, empty=True, longest=1000)
        principal = checked_principal(principal)
        terms = Terms.parse_terms(epsilon, delta, **options)
        grants.require_confirmation(epsilon, delta, confirm_large)
        with self._begin_writing() as writer:
            return grants.store_grant(
                writer, scope, terms, protects, blocks, principal, may_bind=table is not None
            )

    def quota(
        self,
        scope: str,
        epsilon: Amount,
        delta: Amount,
        *,
        period: Period | Literal["never"] | None = None,
        principal: str,
        **options: Unpack[GrantOptions],
    ) -> Scope | GrantProposal:
        """Give a scope below another, such as ``flights/team-a``, a budget of its own inside that
        one; or change it.

        What is charged to a quota is charged to every scope above it, too. It protects what the
        scope above protects, by the same blocks, and counts by the same filter unless ``filter``
        says otherwise. Several quotas may add up to more than the scope above: then the first to
        spend is served. ``approvals``, ``certified_by``, ``signers``, ``witness`` and ``reason`` are the quota's own, as for `grant`.

        Args:
            period: ``day``, ``week`` or ``month`` (UTC) after which the quota is whole again, ``never``,
                or None for what an earlier grant said. It paces who spends, and promises nothing. The
                period of a charge is that of its entry's time.

        Raises:
            GrantConflict: the scope above has no grant or a smaller one; the quota was charged and
                counts by another period; else as for `grant`.
            InvalidInput: the scope is not below another.
        """
        grants.checked_scope(scope)
        principal = checked_principal(principal)
        with self._begin_writing() as writer:
            above = grants.find_parent(writer.state, scope)
            if above is None:
                raise InvalidInput(
                    f"{scope!r} is below no other scope; name a quota as in {scope}/team-a"
                )
            before = charges.find_scope(writer.state, scope)
            options["filter"] = options.get("filter") or (before or above).filter.name
            terms = Terms.parse_terms(epsilon, delta, period, **options)
            grants.require_inside(scope, terms, above)
            return grants.store_grant(writer, scope, terms, above.protects, above.blocks, principal)

    def approve(
        self,
        scope: str,
        proposal: int,
        *,
        principal: str,
        signer: DecisionSigner | None = None,
        reason: str = "",
        digest: str | None = None,
    ) -> Scope:
        """Put a grant into effect that another principal proposed.

        Args:
            proposal: the number of the entry that proposed it, so that nobody approves what came in
                its place meanwhile.
            signer, reason: as for `grant`.
            digest: `GrantProposal.digest` of what the approver saw, if it is to be compared.

        Raises:
            InvalidInput: nothing that this entry proposed waits, or this principal proposed it.
            GrantConflict: as for `grant`, by what is spent and granted now.
        """
        grants.checked_scope(scope)
        principal = checked_principal(principal)
        with self._begin_writing() as writer:
            return grants.approve_proposal(
                writer, scope, proposal, principal, signer, reason, digest
            )

    def proposals(self) -> list[GrantProposal]:
        """Grants that wait for a second principal, the oldest first."""
        with self._begin_reading() as state:
            return grants.list_proposals(state, self._anchor)

    def register_suite(
        self,
        digest: str,
        places: Sequence[str],
        block: str | None,
        *,
        table: str,
        registered: bool = True,
        principal: str,
    ) -> None:
        """An owner's decision that data contracts may run a suite of expectations over a table's rows.

        Args:
            digest: of the suite.
            places: where the rows are (`dpflow.engine.releases.execute.place_names`).
            block: the column by which contracts select rows.
            table: what the table is called, for readers of the history.
            registered: false takes the decision back.
        """
        checked_name("a table", table)
        principal = checked_principal(principal)
        body = {"suite": digest, "places": list(places), "block": block, "table": table}
        with self._begin_writing() as writer:
            writer.add_entry("suite", "", "", principal, {**body, "registered": registered})

    def is_suite_registered(self, digest: str, places: Sequence[str], block: str | None) -> bool:
        """Whether the newest decision about this suite, block column and one of these places registered it.

        Raises `LedgerCorrupt` for an entry that this ledger did not make.
        """
        registered = False
        for body in self._read_bodies("suite"):
            # Taken back is a suite for whatever rows of the place.
            counts = not body["registered"] or body["block"] == block
            if counts and body["suite"] == digest and {*body["places"]} & {*places}:
                registered = body["registered"]
        return registered

    def require_no_gate(self, names: Sequence[str]) -> None:
        """Raises `PlanRefused` where a gate was ever opened on one of these names of data."""
        with self._begin_reading() as state:
            data_claims.require_no_gate(state, names)

    def was_checked(self, names: Sequence[str]) -> bool:
        """Whether a contract told what it had read of the rows themselves under one of these names of data.

        Raises `LedgerCorrupt` for an entry that this ledger did not make.
        """
        return any({*body.get("data", ())} & {*names} for body in self._read_bodies("contract"))

    def _read_bodies(self, kind: str) -> Iterator[dict[str, Any]]:
        with self._begin_reading() as state:
            for row in state.transaction.rows(_ENTRIES, kind=kind):
                if fault := chain.find_fault(self._anchor, row):
                    raise LedgerCorrupt(f"{fault}; run dpflow ledger verify")
                yield stored_json(row.body)

    def scope(self, name: str) -> Scope:
        """A granted scope. Raises `UnknownName`."""
        with self._begin_reading() as state:
            return charges.get_scope(state, name)

    def scopes(self) -> list[Scope]:
        """All granted scopes, by name."""
        with self._begin_reading() as state:
            return charges.all_scopes(state)

    def remaining(self, scope: str) -> Remaining:
        """What is left in a scope, by block; of a quota that refreshes, in this period."""
        day = charges.today()
        with self._begin_reading() as state:
            granted = charges.get_scope(state, scope)
            costs = charges.list_costs(state, scope)
            spent = select_current(granted.filter.period, costs, day) or [("", Cost())]
            return Remaining(granted, tuple(spent), day)

    def witness_states(self) -> list[WitnessState]:
        """How far the witness of each scope is that demands one, with what is at the place that DPFLOW_LEDGER_WITNESS names
        as far as it is in reach.
        """
        with self._begin_reading() as state:
            keys = witnesses.list_keys(state)
        name, newest = os.environ.get("DPFLOW_LEDGER_WITNESS"), dict[str, StoredCheckpoint]()
        if name and keys:
            with contextlib.suppress(LedgerUnavailable, LedgerCorrupt):
                newest = read_newest(open_place(name), self._anchor.ledger_id, lambda _: keys)
        with self._begin_reading() as state:
            return witnesses.list_states(state, newest)

    def has_recovered(self) -> bool:
        """Whether entries were lost and an owner went on: sums may leave out what these charged."""
        with self._begin_reading() as state:
            return state.find(schema.data, name=data_claims.LOST) is not None

    def odometer(self, scope: str, *, delta: Amount | None = None) -> dict[str, Guarantee | None]:
        """What was spent so far, per block, as (epsilon, delta); a report, while the promise is the
        grant.

        Args:
            delta: the total delta to report at; by default the grant's. None stands for "nothing
            finite at this delta".

        Beside the blocks, ``*`` is what a unit pays that has rows in every block used so far.
        """
        total_delta = None if delta is None else amounts.check_delta(delta)
        with self._begin_reading() as state:
            granted = charges.get_scope(state, scope)
            spent = charges.sum_costs(state, granted)
        if granted.blocks and len(spent) > 1:
            spent["*"] = sum(spent.values(), Cost())
        return {block: odometer(cost, granted.filter, total_delta) for block, cost in spent.items()}

    def check(self, scope: str, events: Sequence[Event], blocks: Sequence[str]) -> str | None:
        """Would these be accepted together now? None if so, else why not. Charges nothing."""
        with self._begin_reading() as state:
            bill = charges.make_bill(state, scope, events, blocks)
            try:
                charges.OpenAccounts(state).debit(bill)
            except BudgetExceeded as refusal:
                return str(refusal)
        return None

    def require(self, *asks: tuple[str, Sequence[Event], Sequence[str]]) -> None:
        """Raises `BudgetExceeded` unless all of these (scope, events, blocks) would be accepted
        together now.
        """
        with self._begin_reading() as state:
            bills = [charge for ask in asks for charge in charges.make_bill(state, *ask)]
            # Merged, because two charges may fit one by one and not together.
            charges.OpenAccounts(state).debit(charges.merge_charges(bills))
