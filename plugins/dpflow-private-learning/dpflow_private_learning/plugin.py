"""What this distribution registers with dpflow."""

from __future__ import annotations

from typing import Any

from dpflow import hookimpl
from dpflow.core.contract.calculator import Calculator
from dpflow.core.contract.mechanism import Mechanism
from dpflow_private_learning.mechanisms.learn_class import LearnClass, LearnSemiPrivate
from dpflow_private_learning.mechanisms.learn_from_sanitizer import LearnFromSanitizer
from dpflow_private_learning.mechanisms.learn_label_private import LearnLabelPrivate
from dpflow_private_learning.mechanisms.learn_points import LearnPoints
from dpflow_private_learning.mechanisms.learn_rectangles import LearnRectangles
from dpflow_private_learning.mechanisms.learn_thresholds import LearnThresholds
from dpflow_private_learning.mechanisms.mode import Mode
from dpflow_private_learning.mechanisms.quasi_concave import UnimodalMode
from dpflow_private_learning.mechanisms.sanitize_blocks import SanitizeBlocks
from dpflow_private_learning.mechanisms.sanitize_labelled import SanitizeLabelled
from dpflow_private_learning.mechanisms.sanitize_points import SanitizePoints
from dpflow_private_learning.mechanisms.sanitize_thresholds import SanitizeThresholds
from dpflow_private_learning.mechanisms.sanitize_union import SanitizeUnion
from dpflow_private_learning.mechanisms.small_domain import SanitizeSmall
from dpflow_private_learning.mechanisms.thresholds_by_search import LearnThresholdsBySearch
from dpflow_private_learning.theory import audit_examples
from dpflow_private_learning.theory.calculators import CALCULATORS


@hookimpl
def dpflow_register_mechanisms() -> list[Mechanism[Any]]:
    return [
        Mode(),
        UnimodalMode(),
        LearnClass(),
        LearnPoints(),
        LearnThresholds(),
        LearnThresholdsBySearch(),
        LearnRectangles(),
        LearnSemiPrivate(),
        LearnLabelPrivate(),
        SanitizePoints(),
        SanitizeThresholds(),
        SanitizeSmall(),
        SanitizeUnion(),
        SanitizeBlocks(),
        SanitizeLabelled(),
        LearnFromSanitizer(),
    ]


@hookimpl
def dpflow_register_calculators() -> list[Calculator[Any]]:
    return list(CALCULATORS)


@hookimpl
def dpflow_register_examples() -> dict[str, list[dict[str, Any]]]:
    return audit_examples.EXAMPLES
