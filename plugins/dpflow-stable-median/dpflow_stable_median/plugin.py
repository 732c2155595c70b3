"""What this distribution adds to dpflow: the module behind its entry point."""

from __future__ import annotations

from typing import Any

from dpflow.core.calculator import Calculator
from dpflow.core.mechanism import InteractiveMechanism
from dpflow.hookspecs import hookimpl
from dpflow_stable_median import attacks, bounds, planner
from dpflow_stable_median.answering import StableMedian
from dpflow_stable_median.means import MeanQueries
from dpflow_stable_median.rounds import EffectiveRounds
from dpflow_stable_median.weights import MultiplicativeWeights


@hookimpl
def dpflow_register_mechanisms() -> list[InteractiveMechanism[Any, Any]]:
    return [StableMedian(), MeanQueries(), MultiplicativeWeights(), EffectiveRounds()]


@hookimpl
def dpflow_register_calculators() -> list[Calculator[Any]]:
    return [*planner.CALCULATORS, *bounds.CALCULATORS, *attacks.CALCULATORS]
