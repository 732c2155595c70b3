"""The description of a query's plan, as people read it; of this machine's plans and of a service's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from dpflow.core.contract.printed_numbers import whole_percent


def _left_text(budget: Mapping[str, Any]) -> str:
    if budget["epsilon_left"] is not None:
        return f"epsilon {budget['epsilon_left']}"
    return f"Renyi divergence {budget['renyi_left']} of order {budget['renyi_order']}"


def plan_lines(view: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """A description as lines of two texts, for people."""
    yield from (("stage", stage) for stage in view["stages"])
    for one in view["releases"]:
        cost = one["stored"] or f"epsilon {one['epsilon']}, delta {one['delta']}"
        charged = ", ".join(one["charged_blocks"])
        each = f" in each of the blocks {charged}" if charged else ""
        yield one["mechanism"], f"{one['why']}"
        yield "", f"cost: {cost}{each if not one['stored'] else ''}"
    yield from ((f"noise of {one['column']}", one["noise"]) for one in view["columns"])
    yield "protects", view["protects"]
    for budget in view["budgets"]:
        block = f" {budget['block']}" if budget["block"] else ""
        yield (
            f"left in {budget['scope']}{block}",
            f"{_left_text(budget)}, delta {budget['delta_left']}; {whole_percent(budget['used'])}% used",
        )
    yield from (("note", note) for note in view["notes"])
    yield "forecast", view["forecast"]
