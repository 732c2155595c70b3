"""Several releases of one task: numbered, planned, charged together, drawn one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from dpflow.engine.releases.choose_bounds import follow_record, may_choose
from dpflow.engine.releases.execute import release_all
from dpflow.engine.releases.make_plan import make_plan
from dpflow.engine.releases.plan import Plan
from dpflow.engine.releases.receipt import Receipt
from dpflow.engine.releases.request import ReleaseRequest
from dpflow.engine.releases.run_identity import RunIdentity
from dpflow.errors import PlanRefused
from dpflow.ledger import Ledger
from dpflow.registry import Registry

#: The run identity of a release by its ordinal among equal ones and by its part of the task, "" for the first.
Identify = Callable[[int, str], RunIdentity]


def number_equal(requests: Sequence[ReleaseRequest]) -> list[int]:
    """For each request of one task, how many before it ask for the same: an ordinal that tells them
    apart.
    """
    # A release is known by its content: its name, revision and place are no part of its digest.
    outside = {"name": "", "revision": 1, "publish": None}
    contents = [request.model_copy(update=outside) for request in requests]
    return [contents[:n].count(content) for n, content in enumerate(contents)]


def identify_all(requests: Sequence[ReleaseRequest], identify: Identify) -> list[RunIdentity]:
    """The run identity of each release of a list."""
    return [
        identify(ordinal, f"#{n}" if n else "") for n, ordinal in enumerate(number_equal(requests))
    ]


def release_list(
    requests: Sequence[ReleaseRequest],
    identify: Identify,
    ledger: Ledger,
    registry: Registry,
    *,
    spend_again: bool = False,
    log_charge: Callable[[str], None] = lambda line: None,
) -> Iterator[tuple[Plan, Receipt]]:
    """Make the releases of one task, each with the plan that was charged: all are charged before a row is read. What
    takes its bounds from a release of the list is charged after that one was drawn, with those behind it.

    Args:
        log_charge: gets a line for each release before it is charged.

    Raises:
        PlanRefused: an entry asks for the release of an earlier one in other words.
        DpflowError: as `release_all`.
    """
    waiting: list[tuple[Plan, RunIdentity]] = []
    names: dict[tuple[str, int], str] = {}

    def release_waiting() -> Iterator[tuple[Plan, Receipt]]:
        for plan, _ in waiting:
            log_charge(describe_charge(plan))
        receipts = release_all(waiting, ledger, registry, spend_again=spend_again)
        for (plan, _), receipt in zip(waiting, receipts):
            yield follow_receipt(plan, receipt, ledger), receipt
        waiting.clear()

    for n, (request, run) in enumerate(zip(requests, identify_all(requests, identify))):
        # Its plan needs what these search for, so they come first.
        if {plan.request.name for plan, _ in waiting} & set(request.bounds):
            yield from release_waiting()
        plan = make_plan(request, registry, ledger, run)
        # A database's path is in no digest: a second file would get the first one's result.
        other = names.setdefault((plan.digest, run.ordinal), request.name)
        if len(names) <= n:
            raise PlanRefused(
                f"{request.name!r} is the same release as {other!r} before it in the list, "
                f"though written otherwise; write both the same way to draw twice, and give "
                f"the declarations of two tables two names"
            )
        waiting.append((plan, run))
    yield from release_waiting()


def follow_receipt(plan: Plan, receipt: Receipt, ledger: Ledger) -> Plan:
    """The plan with the bounds that a release was charged with: another try may have charged others."""
    if not may_choose(plan.question or plan):
        return plan
    return follow_record(plan, ledger.release(receipt.release_id))


def describe_charge(plan: Plan, *, is_paid: bool = False) -> str:
    """One line for a task's log: what a release will be charged, unless it was paid before; whether
    it was, where somebody knows.
    """
    epsilon, delta = plan.privacy_cost()
    blocks = ", ".join(plan.charged_blocks)
    return (
        f"{plan.request.name} ({plan.mechanism.name}): asks scope {plan.request.scope}"
        f"{f', block {blocks},' if blocks else ''} for epsilon {epsilon}, delta {delta}"
        f"{'; it was paid before and is free' if is_paid else ''}"
    )


def describe_event(plan: Plan, receipt: Receipt) -> dict[str, Any]:
    """What may be said of a release without its result: its receipt, the run that paid, the table it was published
    in, and the half-width of its noise interval as it was planned, unless a histogram of its own fixes that.
    """
    bound = None if plan.histogram else plan.error_bound
    return receipt.to_json() | {
        "run": receipt.run,
        "released_at": receipt.released_at.isoformat(),
        # A place is FILE:TABLE.
        "table": receipt.published and receipt.published.rpartition(":")[2],
        "half_width_95": (bound and dict(bound.half_width)) or None,
    }


def describe_session(plan: Plan, session_id: str, *, replayed: bool) -> dict[str, Any]:
    """What may be said of a session that was opened, or that goes on (``replayed``): its cost and what it protects."""
    epsilon, delta = plan.privacy_cost()
    return {
        "release_id": session_id,
        "name": plan.request.name,
        "mechanism": plan.mechanism.name,
        "scope": plan.request.scope,
        "blocks": list(plan.request.blocks),
        "epsilon": epsilon,
        "delta": delta,
        "protects": plan.table.protection_text,
        "replayed": replayed,
        "published": None,
    }
