"""What this distribution adds to dpflow: the module behind its entry point."""

from __future__ import annotations

from typing import Any

from dpflow import hookimpl
from dpflow.core.contract.calculator import Calculator
from dpflow.core.contract.mechanism import Mechanism
from dpflow_interior_point.mechanisms.interior_point import ApproximateMedian, InteriorPoint
from dpflow_interior_point.mechanisms.seeded_median import SeededMedian
from dpflow_interior_point.mechanisms.single_stages import EstimateFirstMoment, FindInteriorPoint
from dpflow_interior_point.mechanisms.truncated_histograms import StabilityHistogram, TruncatedCount
from dpflow_interior_point.theory import audit_examples
from dpflow_interior_point.theory.calculators import (
    CheckPoint,
    HardInstance,
    InteriorRows,
    NormalizedVariance,
    TruncatedNoise,
)


@hookimpl
def dpflow_register_mechanisms() -> list[Mechanism[Any]]:
    return [
        InteriorPoint(),
        ApproximateMedian(),
        SeededMedian(),
        EstimateFirstMoment(),
        FindInteriorPoint(),
        StabilityHistogram(),
        TruncatedCount(),
    ]


@hookimpl
def dpflow_register_calculators() -> list[Calculator[Any]]:
    return [InteriorRows(), TruncatedNoise(), NormalizedVariance(), CheckPoint(), HardInstance()]


@hookimpl
def dpflow_register_examples() -> dict[str, list[dict[str, Any]]]:
    return audit_examples.EXAMPLES
