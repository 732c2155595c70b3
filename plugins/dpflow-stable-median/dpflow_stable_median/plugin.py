"""What this distribution adds to dpflow: the module behind its entry point."""

from __future__ import annotations

from typing import Any

from dpflow import hookimpl
from dpflow.core.contract.calculator import Calculator
from dpflow.core.contract.interactive import InteractiveMechanism
from dpflow_stable_median.mechanisms.effective_rounds import EffectiveRounds
from dpflow_stable_median.mechanisms.mean_queries import MeanQueries
from dpflow_stable_median.mechanisms.multiplicative_weights import MultiplicativeWeights
from dpflow_stable_median.mechanisms.stable_median import StableMedian
from dpflow_stable_median.theory import (
    adaptive_widths,
    audit_examples,
    calculators,
    sign_attack,
    theorems,
)


@hookimpl
def dpflow_register_mechanisms() -> list[InteractiveMechanism[Any, Any]]:
    return [StableMedian(), MeanQueries(), MultiplicativeWeights(), EffectiveRounds()]


@hookimpl
def dpflow_register_calculators() -> list[Calculator[Any]]:
    modules = (calculators, theorems, sign_attack, adaptive_widths)
    return [calculator for module in modules for calculator in module.CALCULATORS]


@hookimpl
def dpflow_register_examples() -> dict[str, list[dict[str, Any]]]:
    return audit_examples.EXAMPLES
