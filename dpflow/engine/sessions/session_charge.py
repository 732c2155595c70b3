"""The charge of a whole session, before its first answer."""

from __future__ import annotations

from functools import partial

from pydantic import BaseModel

from dpflow.core.contract.interactive import InteractiveMechanism
from dpflow.engine.fail_closed import draw_before_rows
from dpflow.engine.releases.execute import (
    check_scope,
    data_names,
    describe_request,
    require_certified,
)
from dpflow.engine.releases.plan import Plan, digest
from dpflow.engine.releases.run_identity import RunIdentity
from dpflow.engine.releases.source_check import check_source
from dpflow.errors import PlanRefused
from dpflow.ledger import Ledger
from dpflow.tables.private import PrivateTable


def charge_session(
    plan: Plan, ledger: Ledger, run_identity: RunIdentity | None = None
) -> tuple[str, str]:
    """Charge a whole session, or find the one that was charged for the same plan and run identity.

    Returns:
        its id, and the principal who asks.

    Raises:
        BudgetExceeded, PlanRefused, DatasetLocked, TableError: as `Session.open`.
    """
    mechanism = plan.mechanism
    if not isinstance(mechanism, InteractiveMechanism):
        raise PlanRefused(f"{mechanism.name} is a release, not a session; run it with release")
    run_identity = run_identity or RunIdentity.of_request(plan.request)
    check_scope(plan, ledger)
    # Whoever resumes draws answers, too.
    certifiers = require_certified(plan, ledger)
    key = run_identity.key(plan)
    names = list[str]()
    # Who resumes needs no catalogue to be in reach: the names are those of the first time.
    if ledger.find(key) is None:
        private = PrivateTable(plan.table, plan.request.where)
        with private.hold_open():
            check_source(plan, private)
            names = data_names(plan, ledger, private)
    session = ledger.open_session(
        key,
        event=plan.event,
        blocks=plan.charged_blocks,
        family=plan.version_independent_digest,
        slot=run_identity.slot,
        principal=run_identity.principal,
        # The first noise is drawn before any row is read, so it cannot depend on one.
        state=draw_before_rows(partial(mechanism.open, plan.params, plan.table)).data,
        exclusive=mechanism.locks_dataset,
        request=describe_request(plan, run_identity),
        data=names,
        partition=_describe_partition(plan, mechanism.count_groups(plan.params)),
        protects=plan.table.protection_text,
        certified_by=certifiers,
    )
    return session.session_id, run_identity.principal


def _describe_partition(plan: Plan, groups: int | None) -> str:
    """How a session partitions its data into groups, or "" if it does not: by a keyed hash of the privacy
    unit, which depends on the dataset.

    Proofs are for a fixed partition of data that nothing else reads: the ledger stores the first
    partition of any data, and refuses others.
    """
    if groups is None:
        return ""
    return f"{groups} groups by {plan.table.privacy_unit.column!r} in scope {plan.request.scope.split('/')[0]!r}"


def name_query(session_id: str, query: BaseModel | Plan) -> str:
    """Under which name a session stores the answer to a query of its mechanism, or a release inside."""
    if isinstance(query, Plan):
        return digest([session_id, query.digest, query.request.revision])
    return digest([session_id, query.model_dump(mode="json")])
