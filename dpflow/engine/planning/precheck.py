"""Would the ledger take it? A look without a charge; only each reservation is authoritative."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from dpflow.core.contract.interactive import InteractiveMechanism
from dpflow.engine.releases.execute import (
    check_scope,
    commit_to_rows,
    find_lock,
    make_charge,
    require_certified,
)
from dpflow.engine.releases.make_plan import fit_plan
from dpflow.engine.releases.plan import Plan
from dpflow.engine.releases.run_identity import RunIdentity
from dpflow.engine.releases.scope_filters import ScopeFilters
from dpflow.engine.releases.source_check import check_source
from dpflow.error_boundary import errors_end_here
from dpflow.errors import MissingExtra, TableError
from dpflow.ledger import Ledger
from dpflow.registry import Registry
from dpflow.tables.private import PrivateTable

#: What is said where a source cannot be opened; what follows may name its place.
SOURCE_AWAY = "the source cannot be checked now"
#: What is said of a release that was charged.
ALREADY_PAID = "already paid: running it again is free"


def forecast(plan: Plan, ledger: Ledger, registry: Registry | None = None) -> str:
    """One sentence: accepted now, already paid, or why it would be refused."""
    # As the charge does with a plan that was made without its ledger.
    plan = fit_plan(plan, registry or Registry.load(), ScopeFilters(ledger))
    run_identity = RunIdentity.of_request(plan.request)
    stored = ledger.find(run_identity.key(plan))
    if stored is not None:
        return ALREADY_PAID
    if conflict := ledger.explain_conflict(make_charge(plan, run_identity)):
        return f"it would be refused: {conflict}"
    check_scope(plan, ledger)
    require_certified(plan, ledger)
    refusal = ledger.check(plan.request.scope, [plan.event], plan.charged_blocks)
    locked = refusal or find_lock([plan], ledger)
    return locked or find_source_fault(plan) or "the ledger would accept it now"


@errors_end_here
def find_source_fault(plan: Plan) -> str:
    """What keeps a plan's source from being opened now, or "", after its catalogue was checked as before
    the charge.

    Raises `PlanRefused` or `UnknownName` where plan and catalogue do not fit.
    """
    private = PrivateTable(plan.table, plan.request.where)
    try:
        with private.hold_open():
            check_source(plan, private)
    except (TableError, MissingExtra) as error:
        return f"{SOURCE_AWAY}: {error}"
    return ""


def find_snapshot(plan: Plan, ledger: Ledger) -> str:
    """The commitment to a plan's rows as they are now, which a release of them keeps; "" where the source cannot be asked."""
    try:
        return commit_to_rows(PrivateTable(plan.table, plan.request.where), ledger)
    except (TableError, MissingExtra):
        return ""


@dataclass(frozen=True)
class PlanInRun:
    """A release that a run will ask for. ``task_id`` and ``ordinal`` as its task has them; no task
    id: any task's. ``run`` is the name of the run that pays, where it depends on the blocks.
    """

    plan: Plan
    task_id: str | None = None
    ordinal: int = 0
    run: str = ""


def check_run(
    planned: Sequence[PlanInRun], ledger: Ledger, run_identity: RunIdentity
) -> dict[str, Any]:
    """Refuse a run whose releases do not fit their scopes together; what this run has paid for
    counts as paid.

    Raises:
        BudgetExceeded: the sum of what is still to pay is above what remains.
        PlanRefused: a scope without a grant, granted to protect something else, or for certified
        mechanisms only.
    """
    # Together, in one look at the ledger: each alone may fit where their sum does not.
    owed: dict[Any, Plan] = {}
    for number, one in enumerate(planned):
        check_scope(one.plan, ledger)
        # Equal releases of one task are one release.
        if not is_paid(one, ledger, run_identity):
            require_certified(one.plan, ledger)
            same = number if one.task_id is None else (one.task_id, one.plan.digest, one.ordinal)
            owed.setdefault(same, one.plan)
    ledger.require(
        *((plan.request.scope, [plan.event], plan.charged_blocks) for plan in owed.values())
    )
    return {"planned": len(planned), "to_pay": len(owed)}


def is_paid(one: PlanInRun, ledger: Ledger, run_identity: RunIdentity) -> bool:
    """A release is paid by its run; a session by whatever run came first."""
    plan = one.plan
    run_identity = replace(run_identity, name=one.run or run_identity.name)
    if isinstance(plan.mechanism, InteractiveMechanism):
        return ledger.find(RunIdentity.of_request(plan.request).key(plan)) is not None
    if one.task_id is None:
        return ledger.is_paid(
            plan.request.scope,
            run_identity.dag_id,
            run_identity.name,
            plan.digest,
        )
    return (
        ledger.find(replace(run_identity, task_id=one.task_id, ordinal=one.ordinal).key(plan))
        is not None
    )
