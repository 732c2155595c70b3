"""What this distribution adds to dpflow: the module behind its entry point."""

from __future__ import annotations

from typing import Any

from dpflow.core.calculator import Calculator
from dpflow.core.mechanism import Mechanism
from dpflow.hookspecs import hookimpl
from dpflow_interior_point.calculators import CheckPoint, HardInstance, InteriorRows, NormalizedVariance, TruncatedNoise
from dpflow_interior_point.histograms import StabilityHistogram, TruncatedCount
from dpflow_interior_point.interior import ApproximateMedian, InteriorPoint
from dpflow_interior_point.seeded import SeededMedian
from dpflow_interior_point.stages import EstimateFirstMoment, FindInteriorPoint


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
