"""What this distribution adds to dpflow: the module behind its entry point."""

from __future__ import annotations

from typing import Any

from dpflow.core.calculator import Calculator
from dpflow.hookspecs import hookimpl
from dpflow_stable_median import bounds, planner


@hookimpl
def dpflow_register_calculators() -> list[Calculator[Any]]:
    return [*planner.CALCULATORS, *bounds.CALCULATORS]
