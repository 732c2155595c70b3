"""A forecast in plain values, for tables, JSON and plots: prices, dates, what fits, and which
filter holds more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from dpflow.core.accounting import pld
from dpflow.core.accounting.amounts import text
from dpflow.core.accounting.events import Event
from dpflow.core.accounting.privacy_filters import DELTA_UNIT, EPSILON_UNIT, SATURATED, Cost
from dpflow.engine.planning.simulate import Forecast, Outlook
from dpflow.engine.planning.solve import compare, rounds, total
from dpflow.errors import InvalidAmount


def describe(seen: Forecast) -> dict[str, Any]:
    """Everything a forecast says, as JSON. A round is one run of every job."""
    return {
        "forecast": "this schedule alone, as if it ran as planned; only each reservation is authoritative",
        "jobs": [{"job": job.name, "runs": job.cadence} for job in seen.jobs],
        "tasks": [line.to_json() for line in seen.lines],
        "scopes": [_scope(seen, name, outlook) for name, outlook in seen.outlooks.items()],
        "notes": [
            f"{job.name}.{task.name}: {task.note}"
            for job in seen.jobs
            for task in job.tasks
            if task.note
        ],
        "ungranted": list(seen.ungranted),
        "until": seen.until.isoformat() if seen.until else None,
    }


def events(seen: Forecast, scope: str) -> tuple[list[Event], list[Event]]:
    """What a scope pays once, for sessions that are not open yet, and what it pays in every round."""
    here = [line for line in seen.lines if scope in line.path]
    once = [line.plan.event for line in here if line.once and line not in seen.opened]
    return once, [line.plan.event for line in here if not line.once]


def _scope(seen: Forecast, name: str, outlook: Outlook) -> dict[str, Any]:
    granted, (once, each) = outlook.scope, events(seen, name)
    rule = granted.filter
    return {
        "scope": name,
        "protects": granted.protects,
        "filter": rule.name,
        "epsilon": text(rule.epsilon),
        "delta": text(rule.delta),
        "account": "each block" if granted.blocks else "the scope",
        "once": _cost(total(rule, [(event, 1) for event in once])),
        "round": _cost(total(rule, [(event, 1) for event in each])),
        "rounds_that_fit": rounds(rule, once, each),
        "accounts": [
            {
                "block": block,
                "used": granted.used(cost),
                "rounds_left": rounds(rule, once, each, cost),
            }
            for block, cost in seen.spent.get(name, {}).items()
        ],
        "runs": outlook.runs,
        "runs_paid_before": outlook.paid,
        "exhausted": outlook.refused.isoformat() if outlook.refused else None,
        "exhausted_block": outlook.block,
        "last_run": outlook.last.isoformat() if outlook.last else None,
        "filters": _filters(rule.epsilon, rule.delta, once, each),
        "fixed_schedule": _fixed(outlook),
    }


def _fixed(outlook: Outlook) -> dict[str, Any] | None:
    """What the forecast charged to the fullest account, as a schedule fixed in advance; None where
    nothing can be said.
    """
    delta, releases = outlook.scope.filter.delta, sum(count for _, count in outlook.charged)
    try:
        epsilon = pld.report(outlook.charged, delta) if delta else None
    except InvalidAmount:  # no release, too many, or one that claims nothing
        return None
    if epsilon is None:
        return None
    return {
        "report": pld.LABEL,
        "releases": releases,
        "epsilon": math.ceil(epsilon * 1e6) / 1e6,
        "delta": text(delta),
    }


def _cost(cost: Cost) -> dict[str, str]:
    units = {"epsilon": EPSILON_UNIT, "delta": DELTA_UNIT, "renyi": EPSILON_UNIT}
    sums = {name: getattr(cost, name) for name in units}
    return {
        name: "inf" if sums[name] >= SATURATED else text(sums[name] * unit)
        for name, unit in units.items()
    }


def _filters(
    epsilon: Any, delta: Any, once: Sequence[Event], each: Sequence[Event]
) -> list[dict[str, Any]]:
    return [
        {
            "filter": choice.name,
            "rounds": choice.rounds,
            "tail_share": None if choice.tail_share is None else text(choice.tail_share),
            "reason": choice.reason,
        }
        for choice in compare(epsilon, delta, once, each)
    ]
