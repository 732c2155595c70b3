"""Private prediction: the models stay inside, answers leave, each paid for (Dwork and Feldman 2018)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from dpflow.core.calculator import Calculator
from dpflow.core.prediction import PredictionMechanism
from dpflow.hookspecs import hookimpl
from dpflow_private_prediction import planner
from dpflow_private_prediction.average import Average
from dpflow_private_prediction.linear import Linear
from dpflow_private_prediction.value import Value
from dpflow_private_prediction.vote import Vote
from dpflow_private_prediction.walk import WalkMechanism


@hookimpl
def dpflow_register_mechanisms() -> Iterable[PredictionMechanism[Any]]:
    return [Vote(), Average(), Value(), Linear(), WalkMechanism()]


@hookimpl
def dpflow_register_calculators() -> Iterable[Calculator[Any]]:
    return planner.CALCULATORS
