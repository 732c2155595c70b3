"""A forecast in plain values, for tables, JSON and plots: privacy costs, dates, what fits, and
which filter holds more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from dpflow.core.accounting import pld
from dpflow.core.accounting.amounts import DELTA_UNIT, EPSILON_UNIT, exact_text
from dpflow.core.accounting.events import Event
from dpflow.core.accounting.privacy_filters import SATURATED, Cost
from dpflow.engine.planning.fit_schedule import compare_filters, count_rounds, total_cost
from dpflow.engine.planning.simulate import Forecast, Outlook
from dpflow.errors import InvalidAmount


def describe_forecast(seen: Forecast) -> dict[str, Any]:
    """Everything a forecast says, as JSON. A round is one run of every job."""
    return {
        "forecast": "this schedule alone, as if it ran as planned; only each reservation is authoritative",
        "jobs": [{"job": job.name, "runs": job.cadence} for job in seen.jobs],
        "tasks": [line.to_json() for line in seen.lines],
        "scopes": [_describe_scope(seen, name, outlook) for name, outlook in seen.outlooks.items()],
        "notes": [
            f"{job.name}.{task.name}: {task.note}"
            for job in seen.jobs
            for task in job.tasks
            if task.note
        ],
        "ungranted": list(seen.ungranted),
        "until": seen.until.isoformat() if seen.until else None,
    }


def scope_events(seen: Forecast, scope: str) -> tuple[list[Event], list[Event]]:
    """What a scope pays once, for sessions that are not open yet, and what it pays in every round."""
    here = [line for line in seen.lines if scope in line.scope_path]
    once = [line.plan.event for line in here if line.once and line not in seen.open_sessions]
    return once, [line.plan.event for line in here if not line.once]


def _describe_scope(seen: Forecast, name: str, outlook: Outlook) -> dict[str, Any]:
    granted, (once, per_round) = outlook.scope, scope_events(seen, name)
    rule = granted.filter
    return {
        "scope": name,
        "protects": granted.protects,
        "equality": granted.equality,
        "filter": rule.name,
        "epsilon": exact_text(rule.epsilon),
        "delta": exact_text(rule.delta),
        "closed": granted.closed,
        "charged": "each block" if granted.blocks else "the scope",
        "once": _cost_texts(total_cost(rule, [(event, 1) for event in once])),
        "round": _cost_texts(total_cost(rule, [(event, 1) for event in per_round])),
        "rounds_that_fit": count_rounds(rule, once, per_round),
        "budgets": [
            {
                "block": block,
                "used": granted.used_share(cost),
                "rounds_left": count_rounds(rule, once, per_round, cost),
            }
            for block, cost in seen.spent.get(name, {}).items()
        ],
        "runs": outlook.runs,
        "runs_paid_before": outlook.runs_paid_before,
        "runs_changed": sorted(outlook.runs_changed),
        "exhausted": outlook.refused.isoformat() if outlook.refused else None,
        "exhausted_block": outlook.block,
        "last_run": outlook.last.isoformat() if outlook.last else None,
        # A fresh grant of the same size under each filter.
        "filters": _compare_filters(rule.epsilon, rule.delta, once, per_round),
        "fixed_schedule": _fixed_schedule(outlook),
    }


def _fixed_schedule(outlook: Outlook) -> dict[str, Any] | None:
    """What the forecast charged to the fullest budget, as a schedule fixed in advance; None where
    nothing can be said.
    """
    delta, releases = outlook.scope.filter.delta, sum(count for _, count in outlook.charged)
    try:
        epsilon = pld.report_epsilon(outlook.charged, delta) if delta else None
    # No release, too many, or one without a privacy guarantee.
    except InvalidAmount:
        return None
    if epsilon is None:
        return None
    return {
        "report": pld.LABEL,
        "releases": releases,
        # Rounded up: a report must not promise more than is proved.
        "epsilon": math.ceil(epsilon * 1e6) / 1e6,
        "delta": exact_text(delta),
    }


def _cost_texts(cost: Cost) -> dict[str, str]:
    units = {"epsilon": EPSILON_UNIT, "delta": DELTA_UNIT, "renyi": EPSILON_UNIT}
    sums = {name: getattr(cost, name) for name in units}
    return {
        # A saturated sum stands for all larger ones.
        name: "inf" if sums[name] >= SATURATED else exact_text(sums[name] * unit)
        for name, unit in units.items()
    }


def _compare_filters(
    epsilon: Any, delta: Any, once: Sequence[Event], each: Sequence[Event]
) -> list[dict[str, Any]]:
    return [
        {
            "filter": choice.name,
            "rounds": choice.rounds,
            "tail_share": None if choice.tail_share is None else exact_text(choice.tail_share),
            "reason": choice.reason,
        }
        for choice in compare_filters(epsilon, delta, once, each)
    ]


def list_faults(forecast: Forecast, share: float) -> list[str]:
    """Why a schedule does not keep every budget below a share of its grant, one sentence each; none if
    it does. What nobody can tell before a run counts as a fault.

    Args:
        share: above 0, at most 1; of the fullest budget, as `Scope.used_share` rounds it.
    """
    faults = []
    for name, outlook in forecast.outlooks.items():
        over = next(((when, used) for when, used in outlook.burn if used > share), None)
        if outlook.scope.closed:
            faults.append(
                f"scope {name} is closed: entries were lost that may have charged it; have its owner grant it again"
            )
        elif outlook.refused:
            block = f", block {outlook.block}" if outlook.block else ""
            faults.append(
                f"scope {name} is exhausted at {outlook.refused.isoformat()}{block}; release less, or raise its grant"
            )
        elif over:
            faults.append(
                f"scope {name} comes to {over[1]:.2f} of its grant at {over[0].isoformat()}, and no more than {share} is "
                f"wanted; release less, or raise its grant"
            )
    faults += [
        f"scope {name} has no grant here, so nobody can tell; name its ledger, or suppose one with --grant"
        for name in forecast.ungranted
    ]
    # Each task once, whatever it releases.
    tasks = {(job.name, task.name): task.note for job in forecast.jobs for task in job.tasks}
    faults += [f"{job}.{task}: {note}" for (job, task), note in tasks.items() if note]
    return faults
