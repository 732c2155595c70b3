"""The life of a release: reserve, aggregate, draw, settle, publish. The file that must be right.

Nothing private is read before `Ledger.reserve` returned, and nothing drawn is visible before
`Ledger.settle` returned. A crash between the two leaves a reservation which the next try of the
same key takes over; nothing of the first draw was visible, so fresh noise is safe. A failure that
may depend on the rows or the draw is settled as "none": to draw again would be rejection sampling.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dpflow import fault_points
from dpflow.core.accounting.events import Unprotected
from dpflow.core.contract.audit_cells import describe_cells
from dpflow.core.contract.declaration import Table
from dpflow.core.contract.joins import plain_relation
from dpflow.core.contract.mechanism import Mechanism
from dpflow.core.contract.question_text import QUESTION
from dpflow.core.contract.results import NONE, UNLIMITED, Result
from dpflow.core.sampling.randomness import Source
from dpflow.engine.fail_closed import draw_or_none
from dpflow.engine.releases.certificates import CERTIFICATES, SHIPPED, list_certifiers
from dpflow.engine.releases.choose_bounds import follow_record, may_choose
from dpflow.engine.releases.make_plan import fit_plan
from dpflow.engine.releases.own_histogram import DOCUMENT as OWN_HISTOGRAM
from dpflow.engine.releases.own_histogram import (
    bind_groups,
    draw_histogram,
    histogram_request,
)
from dpflow.engine.releases.plan import Plan
from dpflow.engine.releases.receipt import Receipt, published_release
from dpflow.engine.releases.run_identity import RunIdentity
from dpflow.engine.releases.scope_filters import ScopeFilters
from dpflow.engine.releases.source_check import check_source
from dpflow.engine.releases.total_intervals import find_own_totals, find_totals
from dpflow.error_boundary import errors_end_here
from dpflow.errors import DpflowError, PlanRefused, TableUnreadable
from dpflow.ledger import Ledger, ReleaseCharge, ReleaseRecord, Reservation, Scope
from dpflow.ledger.books.data_claims import JOINED
from dpflow.ledger.books.records import path_of
from dpflow.registry import Registry
from dpflow.tables.private import PrivateTable

log = logging.getLogger("dpflow")
#: Under which a charge keeps a service's request, encrypted.
SEALED_REQUEST = "sealed_request"
#: Under which it keeps the types of keys.
TYPES = "types"


@errors_end_here
def release(
    plan: Plan,
    ledger: Ledger,
    registry: Registry,
    *,
    run_identity: RunIdentity | None = None,
    spend_again: bool = False,
) -> Receipt:
    """Run a plan to its end, exactly once for each run identity.

    Args:
        plan: from `make_plan`.
        ledger: where its scope has a grant.
        registry: tells observers.
        run_identity: which run this is; by default the request's name and revision.
        spend_again: pay although this task already released something else for this interval.

    Raises:
        BudgetExceeded: the scope cannot pay; nothing was read.
        RetryConflict: a retry that asks for something else.
        TableBusy, NotPublished, LedgerUnavailable: try again later; nothing is charged twice.
    """
    # Of a plan that was made without its ledger; the receipt says what was drawn.
    plan = fit_plan(plan, registry, ScopeFilters(ledger))
    run_identity = run_identity or RunIdentity.of_request(plan.request)
    asked = [(plan, run_identity)]
    (receipt,) = release_all(asked, ledger, registry, spend_again=spend_again)
    return receipt


def release_all(
    planned: Sequence[tuple[Plan, RunIdentity]],
    ledger: Ledger,
    registry: Registry,
    *,
    spend_again: bool = False,
) -> Iterator[Receipt]:
    """Run many plans, each with its run identity, as `release` does: all are charged in one
    transaction before a row is read, or none is. Then they are drawn, settled and published one
    after the other. One that cannot be published keeps none of those behind it from that; the error comes last, and in
    the place of its receipt and theirs.

    Raises:
        DpflowError: as `release`. Before the first receipt nothing was charged, unless the error
        is retryable or says so.
    """
    if not planned:
        return
    with ExitStack() as open_tables:
        stored = [ledger.find(run.key(plan)) for plan, run in planned]
        checked = [
            _check_table(plan, record, ledger, open_tables)
            for (plan, _), record in zip(planned, stored)
        ]
        _check_places([plan for (plan, _), record in zip(planned, stored) if record is None])
        reservations = ledger.reserve_many(
            [
                make_charge(plan, run, spend_again, one.data, one.certifiers)
                for (plan, run), one in zip(planned, checked)
            ]
        )
        unpublished: list[DpflowError] = []
        for (plan, run), one, reservation in zip(planned, checked, reservations):
            # Drawn with the bounds that were charged, also where another process charged them.
            if may_choose(plan.question or plan):
                plan = follow_record(plan, ledger.find(run.key(plan)))
            # Somebody may have settled this key since we looked.
            replayed = reservation.result is not None
            settled = (
                reservation
                if replayed
                else _draw_and_settle(plan, one.private, ledger, reservation, run.principal)
            )
            # After settling: a table that cannot be written costs nothing, and a retry writes it.
            receipt = _make_receipt(plan, settled, replayed, ledger)
            try:
                receipt = _publish_result(plan, receipt, wait=not unpublished)
            except DpflowError as error:
                unpublished.append(error)
                continue
            # The release is settled: an observer that fails can no longer undo it.
            for observer in registry.notify_observers(receipt):
                log.warning("observer %s failed; the release stands", observer)
            if not unpublished:
                yield receipt
        if unpublished:
            raise unpublished[0]


@dataclass(frozen=True)
class _Checked:
    """A plan's table, checked, and open if it will be read: what was checked is what is read.

    Attributes:
        data: names of the data; none where a stored result is returned.
        certifiers: who has certified what will draw, where the scope asks for that.
    """

    private: PrivateTable
    data: Sequence[str] = ()
    certifiers: tuple[str, ...] = ()


def _check_table(
    plan: Plan, stored: ReleaseRecord | None, ledger: Ledger, open_tables: ExitStack
) -> _Checked:
    if not isinstance(plan.mechanism, Mechanism):
        raise PlanRefused(
            f"{plan.mechanism.name} is a session, not a release; open it with dpflow ask, a gate, or dpflow.open_session"
        )
    check_scope(plan, ledger)
    private = PrivateTable(
        plan.table, plan.request.where, lambda data: ledger.commitment(data, "partial")
    )
    # A stored result is returned without a look at the table, which may be gone by now.
    if stored is not None and stored.settled:
        return _Checked(private)
    certifiers = require_certified(plan, ledger)
    open_tables.enter_context(private.hold_open())
    check_source(plan, private)
    return _Checked(private, data_names(plan, ledger, private), certifiers)


def make_charge(
    plan: Plan,
    run_identity: RunIdentity,
    spend_again: bool = False,
    data: Sequence[str] = (),
    certifiers: tuple[str, ...] = (),
) -> ReleaseCharge:
    """What a run of a plan asks of the ledger; the fields are those of `ReleaseCharge`."""
    return ReleaseCharge(
        run_identity.key(plan),
        event=plan.event,
        blocks=plan.charged_blocks,
        family=plan.version_independent_digest,
        slot=run_identity.slot,
        principal=run_identity.principal,
        spend_again=spend_again,
        request=describe_request(plan, run_identity),
        data=data,
        protects=plan.table.protection_text,
        certified_by=certifiers,
    )


def describe_request(plan: Plan, run_identity: RunIdentity) -> dict[str, Any]:
    """What a charge keeps of what was asked."""
    also = {
        QUESTION: run_identity.question,
        SEALED_REQUEST: run_identity.sealed_request,
        TYPES: dict(run_identity.types),
    }
    return plan.ledger_entry() | {name: value for name, value in also.items() if value}


def find_lock(plans: Sequence[Plan], ledger: Ledger) -> str:
    """Which of these plans' tables a session keeps from them now, or ""; whose session it is, is not said."""
    for plan in plans:
        if ledger.is_locked(plan.request.scope, name_rows(plan.table, ledger)):
            return f"an open session keeps table {plan.table.name!r} from other releases; wait until it is used up"
    return ""


def check_scope(plan: Plan, ledger: Ledger) -> None:
    """A scope's budget protects what its grant says; refuse a table that promises something else."""
    check_protection(plan, ledger.scope(plan.request.scope))


def check_protection(plan: Plan, scope: Scope) -> None:
    """Raises `PlanRefused` if a scope was granted to protect something else than the plan's table
    declares.
    """
    if isinstance(plan.event, Unprotected) and not scope.protects:
        raise PlanRefused(
            f"{plan.request.name} makes no privacy guarantee, and scope {scope.scope!r} does not say that it protects nobody; "
            f"grant a scope for table {plan.table.name!r} itself"
        )
    if scope.protects and scope.protects != plan.table.protection_text:
        raise PlanRefused(
            f"scope {scope.scope!r} was granted to protect {scope.protects}, but table {plan.table.name!r} declares "
            f"{plan.table.protection_text}; use a scope granted for this declaration"
        )


def require_certified(plan: Plan, ledger: Ledger) -> tuple[str, ...]:
    """Refuse what no certificate covers, where a scope that pays asks for one.

    Returns:
        the verifier keys that the charge names: whose certificates of the code that will draw every
        such scope trusts.

    Raises:
        PlanRefused: there is none, or it is about other code.
    """
    keys: set[str] = set()
    for name in path_of(plan.request.scope):
        keys |= {*find_certifiers(plan, ledger.scope(name), ledger)}
    return tuple(sorted(keys))


def find_certifiers(plan: Plan, scope: Scope, ledger: Ledger | None) -> tuple[str, ...]:
    """The same for one scope, which may be supposed only; none where it asks for none."""
    if not scope.filter.certified_by:
        return ()
    if plan.histogram is not None:
        # The audits that certificates are about are those of single draws.
        raise PlanRefused(
            f"scope {scope.scope!r} pays for certified mechanisms only, and no certificate covers the histogram of its own "
            f"that {plan.request.name} takes; make its plan again"
        )
    rule = plan.table.require_certified
    declared_files = [] if rule is None or rule.file is None else [rule.file]
    ledger_files = [] if ledger is None else [ledger.anchor_folder / CERTIFICATES]
    return list_certifiers(
        f"scope {scope.scope!r} pays for certified mechanisms only",
        plan.mechanism,
        describe_cells(plan.table, plan.params),
        scope.filter.certified_by,
        [*ledger_files, *declared_files, SHIPPED],
        f"dpflow certify {plan.mechanism.name} (with --accept, to sign the audit that it ships with)",
    )


def data_names(plan: Plan, ledger: Ledger, private: PrivateTable) -> list[str]:
    """Public names of what a plan reads, under which the ledger knows it beside its dataset: the
    table as it is declared, and every relation by its place, so that a second declaration of the
    same rows is no second data set. Dimensions are public, so a gate does not close its own;
    another gate may be on their rows all the same.

    Raises `TableUnreadable` or `TableBusy` where the source has to say which folder or relations it reads.
    """
    below = private.find_sources()
    names = [f"table {plan.table.name}", *place_names(plan.table, None, below.get("", ()), ledger)]
    for join in plan.table.joins:
        prefix = "" if join.kind == "unit" else JOINED
        also = below.get(join.name, ())
        names += [prefix + name for name in place_names(plan.table, join.relation, also, ledger)]
    return names


def name_rows(table: Table, ledger: Ledger, *, asks_source: bool = False) -> list[str]:
    """Public names of a table's own rows, as `data_names` has them; where else they are is left out unless the source is asked."""
    below = PrivateTable(table).find_sources().get("", ()) if asks_source else ()
    return [f"table {table.name}", *place_names(table, None, below, ledger)]


def place_names(
    table: Table, joined: str | None, below: Sequence[str], ledger: Ledger
) -> list[str]:
    """Names of where a joined relation is, or the table itself, one for each of its places.

    Args:
        below: the folder that a catalogue says it has, or the relations that it reads as a view.
    """
    if table.source is None:
        # Resolved, so that a symbolic link is no second data set.
        file = os.path.realpath(table.database)
        relations = map(plain_relation, (joined or table.relation_name, *below))
        marks = [f"{file}\0{one}" for one in dict.fromkeys(relations)]
    else:
        # Without the server's name, which may have several: what two clusters call the same is one
        # place, the stricter of two mistakes. Also the folder that a symbolic link on this machine leads
        # to; another machine may have none.
        source = table.source if joined is None else table.source.find_relation(joined)
        paths = [source.place, *(source.in_folder(one).place for one in below)]
        paths += [os.path.realpath(one) for one in paths if one.startswith("/")]
        marks = [f"{table.source.backend}\0{one}" for one in dict.fromkeys(paths)]
    return [f"place {ledger.commitment(mark.encode(), 'place')[:32]}" for mark in marks]


def has_hard_links(table: Table) -> bool:
    """Whether the file of a table's rows has names beside the one that `place_names` knows."""
    with suppress(OSError):
        return table.source is None and os.stat(table.database).st_nlink > 1
    return False


def commit_to_rows(private: PrivateTable, ledger: Ledger) -> str:
    """The ledger's keyed commitment to a table's rows as they are now: a bare digest of them could be guessed."""
    return ledger.commitment(private.data_identity(), "snapshot")


def _draw_and_settle(
    plan: Plan, private: PrivateTable, ledger: Ledger, reservation: Reservation, principal: str
) -> Reservation:
    """Read, add noise, settle. What it returns holds the stored result, whoever stored it."""
    snapshot = commit_to_rows(private, ledger)
    failures: list[str] = []
    # With a histogram of its own they follow from what is drawn.
    totals = None if plan.histogram else find_totals(plan, ledger, snapshot)
    result = draw_result(plan, private, failures)
    if totals is not None and result != NONE:
        result = replace(result, totals=totals)
    return ledger.settle(
        reservation,
        result.to_json(),
        snapshot=snapshot,
        principal=principal,
        failure="; ".join(failures),
    )


def draw_result(plan: Plan, private: PrivateTable, failures: list[str]) -> Result:
    """Read and add noise; a failure that may depend on rows or noise is the result "none", and is named
    in ``failures`` as `draw_or_none` says.
    """
    mechanism = plan.mechanism
    assert isinstance(mechanism, Mechanism)

    def draw_from_rows(source: Source) -> Result:
        drawn, own = plan, None
        if (sizes := histogram_request(plan)) is not None:
            with private.open_answer(sizes, plan.request.blocks) as answer:
                own = draw_histogram(plan, answer, source)
            drawn = bind_groups(plan, own)
            fault_points.pass_point("histogram.after")
        request = mechanism.data_request(drawn.params, drawn.table)
        with private.open_answer(request, plan.request.blocks) as answer:
            fault_points.pass_point("aggregate.after")
            result = mechanism.draw(drawn.params, drawn.table, answer, source)
        ranges = mechanism.value_ranges(drawn.params, drawn.table)
        result = replace(result, ranges={k: r for k, r in ranges.items() if r != UNLIMITED})
        if own is not None:
            totals = find_own_totals(drawn, own["limit_above"])
            result = replace(result, document={OWN_HISTOGRAM: own}, totals=totals)
        # What cannot be stored is an impossible value, too.
        json.dumps(result.to_json(), allow_nan=False)
        return result

    result = draw_or_none(draw_from_rows, NONE, failures)
    fault_points.pass_point("draw.after")
    return result


def _make_receipt(plan: Plan, reservation: Reservation, replayed: bool, ledger: Ledger) -> Receipt:
    # Settled, so there is one.
    assert reservation.result is not None
    settlement = ledger.settlement(reservation.release_id)
    epsilon, delta = plan.privacy_cost()
    return Receipt(
        release_id=reservation.release_id,
        name=plan.request.name,
        mechanism=plan.mechanism.name,
        scope=plan.request.scope,
        blocks=plan.request.blocks,
        epsilon=epsilon,
        delta=delta,
        protects=plan.table.protection_text,
        replayed=replayed,
        released_at=settlement.at,
        run=settlement.run,
        result=Result.from_json(reservation.result).follow_declaration(plan.table.largest_text),
    )


def _check_places(plans: Sequence[Plan]) -> None:
    """Refuse, before they are charged, releases that could not be published. Raises as `check_places`."""
    places: dict[Path, list[tuple[str, str]]] = {}
    for plan in plans:
        if (where := plan.request.publish) is not None:
            places.setdefault(where.database, []).append((where.table, plan.request.name))
    for database, names in places.items():
        from dpflow.tables import check_places

        check_places(database, names)


def _publish_result(plan: Plan, receipt: Receipt, *, wait: bool) -> Receipt:
    """Copy the settled result to its output table, if the request names one.

    Args:
        wait: for another process that holds the file.
    """
    where = plan.request.publish
    if where is None:
        return receipt
    # Most releases are copied nowhere.
    from dpflow.tables import publish

    try:
        released = published_release(receipt)
        publish(where.database, where.table, released, deadline=30.0 if wait else 0.0)
    except TableUnreadable as error:
        raise TableUnreadable(
            f"{error}; {receipt.name!r} (release {receipt.release_id}) is settled and paid, so asking again is free, also with "
            "another place to publish in, and so is dpflow release --show ID"
        ) from None
    return Receipt(**{**receipt.__dict__, "published": f"{where.database.name}:{where.table}"})
