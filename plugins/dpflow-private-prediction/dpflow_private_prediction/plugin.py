"""What this distribution adds to dpflow: the module behind its entry point."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from dpflow import hookimpl
from dpflow.core.contract.calculator import Calculator
from dpflow.core.contract.prediction import PredictionMechanism
from dpflow_private_prediction.mechanisms.average_label import PredictAverage
from dpflow_private_prediction.mechanisms.average_value import PredictValue
from dpflow_private_prediction.mechanisms.linear import PredictLinear
from dpflow_private_prediction.mechanisms.vote import PredictVote
from dpflow_private_prediction.mechanisms.walk import PredictWalk
from dpflow_private_prediction.theory import audit_examples, calculators


@hookimpl
def dpflow_register_mechanisms() -> Iterable[PredictionMechanism[Any]]:
    return [PredictVote(), PredictAverage(), PredictValue(), PredictLinear(), PredictWalk()]


@hookimpl
def dpflow_register_calculators() -> Iterable[Calculator[Any]]:
    return calculators.CALCULATORS


@hookimpl
def dpflow_register_examples() -> dict[str, list[dict[str, Any]]]:
    return audit_examples.EXAMPLES
