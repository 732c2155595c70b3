"""Would the ledger take it? A look without a charge; only each reservation is authoritative."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dpflow.engine.occasion import Occasion
from dpflow.engine.plan import Plan
from dpflow.engine.release import check_scope
from dpflow.ledger import Ledger


def forecast(plan: Plan, ledger: Ledger) -> str:
    """One sentence: accepted now, already paid, or why it would be refused."""
    stored = ledger.find(Occasion.of_request(plan.request).key(plan))
    if stored is not None:
        return "already paid: running it again is free"
    check_scope(plan, ledger)
    refusal = ledger.check(plan.request.scope, [plan.event], plan.charged_blocks)
    return refusal or "the ledger would accept it now"


def check_run(plans: Sequence[Plan], ledger: Ledger, occasion: Occasion) -> dict[str, Any]:
    """Refuse a run whose releases do not fit their scopes together; what this run has paid for counts as paid.

    Raises:
        BudgetExceeded: the sum of what is still to pay is above what remains.
        PlanRefused: a scope without a grant, or granted to protect something else.
    """
    owed: dict[tuple[str, tuple[str, ...]], list[Plan]] = {}
    for plan in plans:
        check_scope(plan, ledger)
        if not ledger.paid(plan.request.scope, occasion.dag_id, occasion.name, plan.digest):
            owed.setdefault((plan.request.scope, plan.charged_blocks), []).append(plan)
    for (scope, blocks), group in owed.items():
        ledger.require(scope, [plan.event for plan in group], blocks)
    return {"planned": len(plans), "to_pay": sum(len(group) for group in owed.values())}
